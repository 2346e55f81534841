"""Display: what a notebook shows where a cell ends in a Timeline.

The sentences of the diagnosis, and below them the swimlanes. The picture goes out in two forms at once: as the live
view, and as an SVG image for the places where no widget can live, such as a notebook on GitHub or one converted to
HTML. A Timeline knows nothing of this: it is plain data, and IPython is told here how to show it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from joinlab.timeline import Timeline

MAX_CALLS = 4000
"""A larger Timeline is not drawn unasked: a browser would be busy with it for seconds."""


def register() -> bool:
    """Tell a running IPython how to show a Timeline; True if there is one. Imports neither plotly nor polars."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is None:
        return False
    formatter = shell.display_formatter.ipython_display_formatter
    formatter.for_type_by_name("joinlab.timeline", "Timeline", show)
    return True


def show(timeline: Timeline) -> None:
    """Show a Timeline here: in a notebook its diagnosis and its picture, in a terminal the diagnosis as text."""
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.display import display

    from joinlab.diagnosis import diagnose

    said = diagnose(timeline)
    formatter = InteractiveShell.instance().display_formatter if InteractiveShell.initialized() else None
    if formatter is None or formatter.active_types == ["text/plain"]:
        print(f"{timeline!r}\n{said}")
        return
    display(said)  # type: ignore[no-untyped-call]
    if timeline.calls.height > MAX_CALLS:
        print(f"{timeline.calls.height} calls are too many to draw unasked: joinlab.View(timeline) draws them.")
        return
    display(bundle(timeline, live=_somebody_is_there()), raw=True)  # type: ignore[no-untyped-call]


def bundle(timeline: Timeline, live: bool) -> dict[str, Any]:
    """The picture by media type: as an image, and, if `live`, as a view that answers."""
    from joinlab.lanes import lanes
    from joinlab.looks import measured, title
    from joinlab.svg import svg

    still = svg(lanes(timeline), heading=f"{title(timeline)}. {measured(timeline)}")
    media: dict[str, Any] = {}
    if live:
        from joinlab.view import View

        made = View(timeline, sentences=False)._repr_mimebundle_()
        media = dict(made[0] if isinstance(made, tuple) else made or {})
    return media | {"image/svg+xml": still, "text/plain": repr(timeline)}


def _somebody_is_there() -> bool:
    """Whether a person ran this cell. nbconvert and its like let nobody type, and show no widget that can be asked."""
    shell = sys.modules["IPython"].get_ipython()
    return bool(getattr(getattr(shell, "kernel", None), "_allow_stdin", False))
