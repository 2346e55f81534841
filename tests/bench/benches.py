"""The whole bench in JupyterLab: the first picture, from key press to repaint, and what travels
over the wire.

Beside it stands the floor: a widget of one number that Python answers with the same number, in the
same page. It takes the way to Python and back, and the browser's next frame.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from playwright.sync_api import Page

from tests.bench.figures import Figure, ms
from tests.browser import Notebook, chromium, lab, watched, write_notebook

ROUNDS, FRESH = 24, 3

CELLS = (
    """import anywidget, joinlab, traitlets
from joinlab.notebook import settings

def forget():
    bench._emulations.kept.clear()

def let_nothing_ship():
    settings.BenchSetting.ships = False

class Floor(anywidget.AnyWidget):
    _esm = '''export default { render({ model, el }) {
        const slider = document.createElement("input"), said = document.createElement("p");
        slider.type = "range";
        slider.setAttribute("aria-label", "there and back");
        said.className = "jl-stage";
        slider.addEventListener("input", () => { model.set("asked", Number(slider.value)); model.save_changes(); });
        model.on("change:answered", () => { said.textContent = model.get("answered"); });
        el.addEventListener("keydown", (event) => event.stopPropagation());  // not the notebook's
        el.append(slider, said); } };'''
    asked = traitlets.Int(50).tag(sync=True, echo_update=False)
    answered = traitlets.Int(50).tag(sync=True)

    @traitlets.observe("asked")
    def _answer(self, change):
        self.answered = change["new"]""",
    "bench = joinlab.bench(case=4, inputs=(5, 6), engine='emulated nccl 1.9')\nbench",
    "floor = Floor(layout=bench.layout)  # no message of its own\nfloor",
)
ASKED = """
from joinlab.notebook import ending_map

ending_map.EndingMap.watch = lambda self: None  # the map is computed when it is asked for"""
FIRST = "import joinlab\njoinlab.bench()"
WATCH = """() => { window.moved = new Promise((done, fail) => {
    setTimeout(() => fail(new Error("no picture followed the key in 30 s")), 30_000);
    let start = 0;
    const drawn = () => [...document.querySelectorAll(".jl-scene, p.jl-stage")]
        .map((one) => one.outerHTML).join(), before = drawn();  // the dots are drawn before Python answers
    document.addEventListener("keydown", () => { start = performance.now(); }, { capture: true, once: true });
    const seen = new MutationObserver(() => {
        if (!start || drawn() === before) return;
        seen.disconnect();
        requestAnimationFrame(() => setTimeout(() => done((performance.now() - start) / 1000)));
    });
    for (const one of document.querySelectorAll(".jl-stage"))
        seen.observe(one, { childList: true, subtree: true, attributes: true });
}); }"""
PAINTED = """() => new Promise((done, fail) => {
    setTimeout(() => fail(new Error("found no picture in 60 s")), 60_000);
    const start = performance.now();
    const seen = new MutationObserver(() => {
        if (!document.querySelector(".jl-scene rect, .jl-scene .jl-box")) return;
        seen.disconnect();
        requestAnimationFrame(() => setTimeout(() => done((performance.now() - start) / 1000)));
    });
    seen.observe(document.body, { childList: true, subtree: true });
    window.jupyterapp.commands.execute("notebook:run-cell");
})"""


def measure() -> Iterator[Figure]:
    """The slider of rank 0 goes from 5 to 3 and back: each position shipped, then emulated, then
    drawn ahead."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_notebook(folder / "served" / "used.ipynb", CELLS)
        write_notebook(folder / "served" / "bench.ipynb", [ASKED, *CELLS])
        write_notebook(folder / "served" / "first.ipynb", [FIRST])
        with lab(folder / "served", folder / "settings") as (url, token), chromium() as browser:
            viewport = {"width": 1400, "height": 1300}
            taken = []
            for _ in range(FRESH):
                with watched(browser, [url], viewport=viewport) as page:
                    notebook = Notebook(page, url, token, "first.ipynb")
                    taken.append(page.evaluate(PAINTED))
                    notebook.shut_down()
            yield Figure(
                "first picture in a fresh kernel, from running the cell",
                ms(taken),
                "",
                "at most 1000 ms",
            )
            with watched(browser, [url], viewport=viewport) as page:
                yield from _as_used(Bench(page, url, token, "used.ipynb"))
            with watched(browser, [url], viewport=viewport) as page:
                yield from _two_ranks(Bench(page, url, token, "bench.ipynb"))


class Bench(Notebook):
    """A notebook with a bench, and how many bytes its widgets have got."""

    def __init__(self, page: Page, url: str, token: str, name: str) -> None:
        self.sent: list[int] = []
        page.on("websocket", lambda socket: socket.on("framereceived", self._received))
        super().__init__(page, url, token, name)
        self.run_all()
        page.locator(".jl-scene").wait_for()
        page.wait_for_timeout(500)

    def _received(self, frame: bytes | str) -> None:
        said = frame if isinstance(frame, bytes) else frame.encode()
        # its own comes first, then that of what it answers
        kind = re.search(rb'"msg_type": ?"(\w+)"', said)
        if kind and kind[1] in (b"comm_open", b"comm_msg") and b"there and back" not in said:
            self.sent.append(len(said))

    def moves(self, slider: str, before: str = "") -> tuple[list[float], float]:
        """Seconds from key to repaint, and bytes of a move; `before` is run in Python before
        each."""
        times, sizes = [], []
        self.page.get_by_label(slider).focus()
        for at in range(ROUNDS):
            self.tell(before)
            self.page.wait_for_timeout(150)  # let this move and the last one finish
            self.sent.clear()
            self.page.evaluate(WATCH)
            self.page.keyboard.press("ArrowLeft" if at % 4 < 2 else "ArrowRight")
            times.append(self.page.evaluate("() => window.moved"))
            self.page.wait_for_timeout(100)
            sizes.append(sum(self.sent))
        return times[4:], median(sizes)


def _as_used(notebook: Bench) -> Iterator[Figure]:
    """Times moves with the map on, which draws neighbouring positions in advance."""
    notebook.wait_for("bench.loading", False)
    floor, _ = notebook.moves("there and back")
    taken, _ = notebook.moves("rank 0: inputs")
    beside = f"{median(taken) / median(floor):.1f} floors"
    yield Figure(
        "bench, key to repaint: a position that ships", ms(taken), beside, "at most 1.5 floors"
    )


def _two_ranks(notebook: Bench) -> Iterator[Figure]:
    first = sum(notebook.sent)
    notebook.wait_for("bench.loading", False)
    slider = "rank 0: inputs"
    shipped, size = notebook.moves(slider, "forget()")
    floor, _ = notebook.moves("there and back")
    notebook.sent.clear()
    notebook.tell("bench._map.finish()")
    notebook.page.wait_for_timeout(1000)
    ahead = sum(notebook.sent)
    known, also = notebook.moves(slider)
    notebook.tell(
        "let_nothing_ship()\nbench._map._send = lambda parcel: None\nbench.barrier_value = 8"
    )
    emulated, _ = notebook.moves(slider, "forget()")
    boxes = notebook.ask("bench.timeline.calls.height")
    yield Figure("floor: a number to Python and back, key to repaint", ms(floor), "", "")
    for how, taken in (
        (", emulation included", emulated),
        (" that ships, without the map", shipped),
        (", drawn ahead by the map", known),
    ):
        aim = "at most 2.5 floors" if taken is emulated else "at most 1.5 floors"
        beside = f"{median(taken) / median(floor):.1f} floors"
        yield Figure(f"bench, key to repaint: {boxes} calls{how}", ms(taken), beside, aim)
    yield Figure(
        "bench, first view: all widgets over the wire", f"{first / 1e3:.1f} kB", "", "below 100 kB"
    )
    yield Figure(
        "bench, a slider move over the wire", f"{max(size, also) / 1e3:.1f} kB", "", "below 15 kB"
    )
    yield Figure(
        "bench, the map and its pictures, in the background",
        f"{ahead / 1e3:.1f} kB",
        "",
        "below 300 kB",
    )
