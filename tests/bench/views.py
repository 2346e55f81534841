"""From key press to repaint in JupyterLab: the live view, beside Plotly's FigureWidget with bars of the same boxes.

A slider is moved by keyboard, Python answers, and the clock runs in the browser, from the key to the frame after the
picture has changed. Needs chromium.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from playwright.sync_api import Page

from tests.bench.figures import Figure, ms
from tests.browser import Notebook, chromium, lab, watched, write_notebook

ROUNDS = 24

SETUP = """
import ipywidgets, joinlab, plotly.graph_objects as go
from joinlab.picture.places import Across
from joinlab.picture.scene import scene
from joinlab.picture.theme import FILLS

def bars(timeline):
    boxes = Across(scene(timeline), 1000).boxes()
    return dict(
        x=[one.lane for one in boxes],
        width=[0.8] * len(boxes),
        y=[one.w for one in boxes],
        base=[one.x for one in boxes],
        text=[one.box.label for one in boxes],
        marker=dict(color=[FILLS[one.box.kind] for one in boxes]),
    )

def emulated(n):
    return joinlab.emulate(joinlab.cases.case_4, inputs=(n, 6), era="1.9")

large = [joinlab.emulate(joinlab.cases.case_1, inputs=(n,) * 4 + (n + 1,) * 4, era="1.9") for n in (9, 8)]

def follow(make, low, high, what):
    slider = ipywidgets.IntSlider(low, low, high, layout=dict(width="200px"))
    if what == "view":
        shown = joinlab.View(make(low), sentences=False)
    else:
        shown = go.FigureWidget(go.Bar(**bars(make(low))))
        shown.update_layout(yaxis_autorange="reversed", width=900, height=700)
    def move(change):
        if what == "view":
            shown.timeline = make(change.new)
        else:
            with shown.batch_update():
                shown.data[0].update(bars(make(change.new)))
    slider.observe(move, "value")
    return ipywidgets.VBox([slider, shown])
"""
WATCH = """() => { window.moved = new Promise((done) => {
    let start = 0;
    const drawn = () => [...document.querySelectorAll(".jl-scene, p.jl-stage, .js-plotly-plot")]
        .map((one) => one.outerHTML).join(), before = drawn();  // the dots are drawn before Python answers
    document.addEventListener("keydown", () => { start = performance.now(); }, { capture: true, once: true });
    const seen = new MutationObserver(() => {
        if (!start || drawn() === before) return;
        seen.disconnect();
        requestAnimationFrame(() => setTimeout(() => done((performance.now() - start) / 1000)));
    });
    for (const one of document.querySelectorAll(".jl-stage, .js-plotly-plot"))
        seen.observe(one, { childList: true, subtree: true, attributes: true });
}); }"""


SIZES = (
    ("2 ranks of 5 inputs, emulation included", "emulated, 4, 5", "at most 60 ms"),
    ("8 ranks, drawing alone", "lambda at: large[at], 0, 1", "at most 60 ms"),
)
KINDS = ("figure", "view")


def measure() -> Iterator[Figure]:
    """Small and large pictures, each as a view and as a FigureWidget, all in one JupyterLab."""
    cells = [f"follow({made}, {what!r})" for _, made, _ in SIZES for what in KINDS]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_notebook(folder / "served" / "view.ipynb", [SETUP, *cells])
        with (
            lab(folder / "served", folder / "settings") as (url, token),
            chromium() as browser,
            watched(browser, [url], viewport={"width": 1300, "height": 1100}) as page,
        ):
            notebook = Notebook(page, url, token, "view.ipynb")
            notebook.run_all()
            page.locator(".barlayer path").nth(1).wait_for()
            taken = [_moves(page, at) for at in range(len(cells))]
    for at, (name, _, aim) in enumerate(SIZES):
        figure, view = taken[2 * at : 2 * at + 2]
        ratio = f"{median(figure) / median(view):.1f}"
        yield Figure(f"FigureWidget / view, {name}", f"{ms(figure)} / {ms(view)}", ratio, f"view {aim}")


def _moves(page: Page, at: int) -> list[float]:
    """Seconds from key to repaint, for the at-th slider, moved there and back; the first moves warm up."""
    page.locator(".noUi-handle").nth(at).focus()
    times = []
    for move in range(ROUNDS + 4):
        page.wait_for_timeout(150)  # let what the last move began come to an end
        page.evaluate(WATCH)
        page.keyboard.press("ArrowLeft" if move % 2 else "ArrowRight")
        times.append(page.evaluate("() => window.moved"))
    return times[4:]
