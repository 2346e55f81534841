"""Any size: 2,000 and 1,000,000 calls, irregular and with few mismatches, in a written page and in
a notebook's view, call by call and on the clock.

First paint is counted from the start of the navigation, or of the cell; a step, a zoom and a pan
from the key to the frame after the picture has changed; of a drag, the frames that it shows a
second. Needs chromium.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from playwright.sync_api import Browser, Page

from joinlab.picture.page import write_html
from tests.bench.figures import Figure
from tests.bench.large import large
from tests.browser import Notebook, chromium, lab, watched, write_notebook

SIZES = (("2,000 calls", 2, 1_000), ("1,000,000 calls", 8, 125_000))
CELLS = (
    "import joinlab\nfrom tests.bench.large import large\nmade = large(8, 125_000)",
    "joinlab.View(made)",
)

PAINTED = """(what) => new Promise((done, fail) => {
    setTimeout(() => fail(new Error(`found no ${what} in 60 s`)), 60_000);
    const look = () => document.querySelector(what)
        ? requestAnimationFrame(() => setTimeout(() => done(performance.now()))) : setTimeout(look, 5);
    look(); })"""
PRESS = """async (keys) => {
    const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    const taken = [];
    for (const key of keys) {
        const picture = document.querySelector(".jl-scrub");
        picture.focus({ preventScroll: true });
        await frame();
        const begin = performance.now();
        picture.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
        await frame();
        taken.push(performance.now() - begin);
    }
    return taken; }"""
DRAWN = "() => document.querySelectorAll('.jl-chart *').length"

DRAG = """() => new Promise((done) => {
    const chart = document.querySelector(".jl-chart"), box = chart.getBoundingClientRect();
    const y = box.top + 60, made = (kind, x) => chart.dispatchEvent(new PointerEvent(kind,
        { pointerId: 1, clientX: x, clientY: y, bubbles: true }));
    chart.setPointerCapture = () => {};  // of a pointer that is not there
    let frames = 0, start = 0;
    made("pointerdown", box.left + 900);
    const frame = (now) => {
        start ||= now;
        if (now - start > 1000) { made("pointerup", box.left + 900 - frames); return done(frames); }
        frames++;
        made("pointermove", box.left + 900 - 3 * frames);
        requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame); })"""

STEPS, PANS = ["ArrowRight"] * 12, ["d"] * 12
IN, OUT = ["+"] * 14, ["-"] * 14


def measure() -> Iterator[Figure]:
    """Both sizes as pages, then the larger one as a view in JupyterLab."""
    with tempfile.TemporaryDirectory() as name, chromium() as browser:
        folder = Path(name)
        for what, ranks, each in SIZES:
            timeline = large(ranks, each)
            begin = time.perf_counter()
            path = write_html(timeline, folder / f"{each}.html")
            took, size = time.perf_counter() - begin, path.stat().st_size / 1e6
            yield Figure(f"page of {what}: written, size", f"{took:.2f} s, {size:.1f} MB", "", "")
            with watched(browser, [path.as_uri()], viewport={"width": 1440, "height": 900}) as page:
                page.goto(path.as_uri(), wait_until="commit")
                painted = page.evaluate(PAINTED, ".jl-scene")
                yield Figure(
                    f"page of {what}: first paint", f"{painted / 1000:.2f} s", "", "at most 3 s"
                )
                yield from _moved(
                    page, f"page of {what}", "30 / 60 / - ms" if each == 1_000 else "at most 100 ms"
                )
        yield from _view(folder, browser)


def _view(folder: Path, browser: Browser) -> Iterator[Figure]:
    write_notebook(folder / "served" / "view.ipynb", CELLS)
    with (
        lab(folder / "served", folder / "settings") as (url, token),
        watched(browser, [url], viewport={"width": 1440, "height": 1100}) as page,
    ):
        notebook = Notebook(page, url, token, "view.ipynb")
        notebook.tell(f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r})")
        notebook.tell(CELLS[0])
        begin = time.perf_counter()
        notebook.run_all()
        page.evaluate(PAINTED, ".jl-scene")
        taken = time.perf_counter() - begin
        made = notebook.ask("__import__('timeit').timeit(lambda: large(8, 125_000), number=1)")
        yield Figure(
            "view of 1,000,000 calls: first paint", f"{taken - made:.2f} s", "", "at most 3 s"
        )
        yield from _moved(page, "view of 1,000,000 calls", "at most 100 ms")


def _moved(page: Page, what: str, aim: str) -> Iterator[Figure]:
    """Steps, zooms and pans on both axes; medians, and the most that was drawn."""
    page.locator(".jl-opener").click()
    for axis in ("every call", "clock"):
        page.get_by_text(axis, exact=True).last.click()
        page.evaluate(PAINTED, ".jl-chart svg")
        drawn: list[int] = []

        def pressed(keys: Sequence[str], drawn: list[int] = drawn) -> list[float]:
            taken: Any = page.evaluate(PRESS, keys)
            drawn.append(page.evaluate(DRAWN))
            return list(taken)

        step, zoom = pressed(STEPS), [*pressed(IN), *pressed(OUT)]
        pressed(IN[:8])
        told = [f"{median(some):.0f}" for some in (step, zoom, pressed(PANS))]
        yield Figure(
            f"{what}, {axis}: step / zoom / pan",
            f"{' / '.join(told)} ms",
            f"{max(drawn)} elements",
            aim,
        )
        pressed(OUT)
        pressed(IN[:4])
        yield Figure(f"{what}, {axis}: dragged", f"{page.evaluate(DRAG)} frames/s", "", "60")
