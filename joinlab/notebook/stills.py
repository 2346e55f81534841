"""Stills: static pictures for places where a live view cannot run.

A live view works only while its kernel runs; a notebook that is opened again would show nothing. So
each view is preceded by an output with a static picture or a sentence. The live view hides it.
Where no view can run (a saved notebook, GitHub, a notebook converted to HTML) the reader sees it.
"""

from __future__ import annotations

from base64 import b64encode
from html import escape
from typing import Any
from uuid import uuid4

from joinlab.analysis.wording import measured, shown, title
from joinlab.picture.compared import compared
from joinlab.picture.first_screen import first_screen
from joinlab.picture.svg import svg
from joinlab.showing import is_terminal, put
from joinlab.story.judge import diagnose
from joinlab.timeline import Timeline

AGAIN = "This is a static picture. Run the cell again for the live view."
GONE = "works only while its kernel runs. Run the cell again."

# hides JupyterLab's own message about a widget without a kernel; the still above it says more
_SILENT = (
    ".jp-OutputArea-child:has(.joinlab-still) + .jp-OutputArea-child:not(:has(.jp-OutputArea-output > *))"
    " { display: none }"
)


def show_live(view: Any) -> None:
    """Show a `joinlab.View`, and before it a picture, which the view hides once it is drawn."""
    plain = f"{view!r}. {AGAIN}"
    if is_terminal():
        print(plain)
        return
    view._still = view._still or uuid4().hex
    still = _picture(view) + f"<style>{_SILENT}</style>"
    html = f'<div class="joinlab-still" data-view="{view._still}">{still}</div>'
    put({"text/html": html, "text/plain": plain})
    made = view._repr_mimebundle_()
    bundle = made[0] if isinstance(made, tuple) else made
    put({**(bundle or {}), "text/plain": f"The live view {GONE}"})


def _picture(view: Any) -> str:
    """A view as an image and a sentence; a covered view as a sentence alone."""
    if view.covered:
        return f"<p>The live view {GONE}</p>"
    runs = [run for run in (view.timeline, view.beside) if run is not None]
    untried = any(run.live.traces for run in runs)
    story, *_ = map(diagnose, runs)
    if untried:
        view.refresh(view._calls)  # with the fixes that were tried
    if view.beside is None:
        sentence, pictures = story.sentence, [drawn(view.timeline)]
        above = story._repr_html_() if view.sentences else ""
    else:
        both, sentence = compared(view.timeline, view.beside)
        pictures = list(map(svg, both))
        above = f"<p><b>{escape(shown(sentence))}</b></p>"
    images = ""
    for picture in pictures:
        source = f"data:image/svg+xml;base64,{b64encode(picture.encode()).decode()}"
        images += f'<img alt="Swimlanes. {escape(shown(sentence))}" src="{source}">'
    return f"{above}{images}<p>{AGAIN}</p>"


def drawn(timeline: Timeline) -> str:
    """The first screen as SVG, with what it is of."""
    return svg(first_screen(timeline), heading=f"{title(timeline)}. {measured(timeline)}")
