"""Display: what a notebook shows where a cell ends in a Timeline.

The sentences of the diagnosis, and below them the swimlanes. The picture goes out in two forms at once: as a Plotly
figure, which JupyterLab draws, and as an SVG image for the places that run no script, such as a notebook on GitHub
or one converted to HTML. A Timeline knows nothing of this: it is plain data, and IPython is told here how to show it.
"""

from __future__ import annotations

import json
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
        print(f"{timeline.calls.height} calls are too many to draw unasked: joinlab.figure(timeline) draws them.")
        return
    display(bundle(timeline), raw=True)  # type: ignore[no-untyped-call]


def bundle(timeline: Timeline) -> dict[str, Any]:
    """The picture in every form that a notebook might want, by media type."""
    import plotly.io as pio

    from joinlab.figures import CONFIG, figure
    from joinlab.lanes import lanes
    from joinlab.svg import svg

    drawn = json.loads(pio.to_json(figure(timeline), engine="json"))
    return {
        "application/vnd.plotly.v1+json": drawn | {"config": dict(CONFIG)},
        "image/svg+xml": svg(lanes(timeline)),
        "text/plain": repr(timeline),
    }
