"""Display: what a notebook shows where a cell ends in a Timeline, a view, a comparison or a bench.

For a Timeline: the verdict, and below it the swimlanes. A live view answers only while its kernel
runs, and a notebook that is opened again has nothing to show in its place. So an output of its own stands before each:
the picture, or a sentence. The live view hides it, and where no view can live (a saved notebook, GitHub, one converted
to HTML) it is what the reader sees. A Timeline knows nothing of this: it is plain data, and IPython is told here how to
show it.
"""

from __future__ import annotations

import sys
from base64 import b64encode
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from uuid import uuid4

if TYPE_CHECKING:
    from joinlab.notebook.bench import Bench
    from joinlab.notebook.view import View
    from joinlab.story.story import Story
    from joinlab.timeline import Timeline

AGAIN = "This is a picture of it. Run the cell again for the view that answers."
GONE = "answers only while its kernel runs. Run the cell again."

_SILENT = (  # where a widget's kernel is gone JupyterLab speaks of an error, or of loading: what stands above says more
    ".jp-OutputArea-child:has(.joinlab-still) + .jp-OutputArea-child:not(:has(.jp-OutputArea-output > *))"
    " { display: none }"
)


def register() -> bool:
    """Tell a running IPython how to show them; True if there is one. Imports neither plotly nor polars."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is None:
        return False
    formatter = shell.display_formatter.ipython_display_formatter
    formatter.for_type_by_name("joinlab.timeline", "Timeline", show)
    formatter.for_type_by_name("joinlab.notebook.bench", "Bench", show_bench)
    return True


def show(timeline: Timeline) -> None:
    """Show a Timeline here: in a notebook the verdict and the picture, in a terminal the verdict as text."""
    if _is_terminal():
        print(f"{timeline!r}\n{_said(timeline)}")
    elif _somebody_is_there() and find_spec("anywidget"):
        from joinlab.notebook.view import View

        _said(timeline)  # before it is drawn: this tries fixes, which the picture shows
        show_view(View(timeline))
    else:
        _put(_said(timeline))
        _put({"image/svg+xml": _drawn(timeline), "text/plain": repr(timeline)})


def show_view(view: View) -> None:
    """Show a `joinlab.View` here, with a picture of what it shows now to stand in for it."""
    plain = f"joinlab.View {GONE}" if view.covered else f"{view.timeline!r}. {AGAIN}"
    _show_live(view, view, _picture(view), plain)


def show_bench(bench: Bench) -> None:
    """Show a `joinlab.bench` here, with a sentence to stand in for it."""
    _show_live(bench, bench.view, f"<p>joinlab.bench() {GONE}</p>", repr(bench))


def _show_live(shown: View | Bench, view: View, still: str, plain: str) -> None:
    """Show a widget, and before it what `view` hides as soon as it is drawn."""
    if _is_terminal():
        print(plain)
        return
    view._still = view._still or uuid4().hex
    style = f"<style>{_SILENT}</style>"
    _put(
        {"text/html": f'<div class="joinlab-still" data-view="{view._still}">{still}{style}</div>', "text/plain": plain}
    )
    made = shown._repr_mimebundle_()
    _put(dict(made[0] if isinstance(made, tuple) else made or {}) | {"text/plain": f"The live view {GONE}"})


def _picture(view: View) -> str:
    """What a view shows, as an image and a sentence; where there is something to hide, or too much, as a sentence."""
    if view.covered:
        return f"<p>joinlab.View {GONE}</p>"
    from joinlab.analysis.wording import shown_html

    if view.beside is None:
        said = _said(view.timeline)
        told, above, drawn = said.sentence, said._repr_html_() if view.sentences else "", [_drawn(view.timeline)]
    else:
        from joinlab.picture.compared import compared
        from joinlab.picture.svg import svg

        both = compared(view.timeline, view.beside)
        told, drawn = both.sentence, [svg(one, behind=both.behind) for one in both.scenes]
        above = f"<p><b>{shown_html(told)}</b></p>"
    images = (
        f'<img alt="Swimlanes. {shown_html(told)}" src="data:image/svg+xml;base64,{b64encode(one.encode()).decode()}">'
        for one in drawn
    )
    return f"{above}{''.join(images)}<p>{AGAIN}</p>"


def _said(timeline: Timeline) -> Story:
    from joinlab.story.judge import diagnose

    return diagnose(timeline)


def _drawn(timeline: Timeline) -> str:
    from joinlab.analysis.wording import measured, title
    from joinlab.picture.scene import scene
    from joinlab.picture.svg import svg

    return svg(scene(timeline), heading=f"{title(timeline)}. {measured(timeline)}")


def _put(what: Any) -> None:
    from IPython.display import display

    display(what, raw=isinstance(what, dict))  # type: ignore[no-untyped-call]


def _is_terminal() -> bool:
    from IPython.core.interactiveshell import InteractiveShell

    formatter = InteractiveShell.instance().display_formatter if InteractiveShell.initialized() else None
    return formatter is None or formatter.active_types == ["text/plain"]


def _somebody_is_there() -> bool:
    """Whether a person ran this cell. nbconvert and its like let nobody type, and show no widget that can be asked."""
    shell = sys.modules["IPython"].get_ipython()
    return bool(getattr(getattr(shell, "kernel", None), "_allow_stdin", False))
