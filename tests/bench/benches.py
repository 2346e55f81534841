"""The whole bench in JupyterLab: from key press to repaint, emulation included, and what travels over the wire.

Beside it stands the floor: a widget of one number that Python answers with the same number, in the same page. It takes
the way to Python and back, and the browser's next frame. views.py has Plotly's FigureWidget beside the live view.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from playwright.sync_api import Page

from tests.bench.figures import Figure, ms
from tests.bench.views import WATCH
from tests.browser import Notebook, chromium, lab, watched, write_notebook

ROUNDS = 24

CELLS = (
    """import anywidget, joinlab, traitlets
from joinlab.notebook import ending_map

ending_map.EndingMap.watch = lambda self: None  # the map is computed when it is asked for

def forget(bench):
    bench._emulations.kept.clear()

def compute_map(bench):
    bench._map.follow(None)
    bench._follow_map()
    bench._map.finish()

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
    "floor = Floor(layout=bench.layout) if 'bench' in globals() else Floor()  # no message of its own\nfloor",
    "eight = joinlab.bench(case=4, inputs=(5,) * 7 + (6,), engine='emulated nccl 1.9')\neight",
)


def measure() -> Iterator[Figure]:
    """The slider of rank 0 goes from 5 to 3 and back: each position emulated, then sent ahead by the map."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_notebook(folder / "served" / "bench.ipynb", CELLS[:3])
        write_notebook(folder / "served" / "eight.ipynb", [CELLS[0], *CELLS[2:]])
        with lab(folder / "served", folder / "settings") as (url, token), chromium() as browser:
            viewport = {"width": 1400, "height": 1300}
            with watched(browser, [url], viewport=viewport) as page:
                yield from _two_ranks(Bench(page, url, token, "bench.ipynb"))
            with watched(browser, [url], viewport=viewport) as page:
                yield from _eight_ranks(Bench(page, url, token, "eight.ipynb"))


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
        kind = re.search(rb'"msg_type": ?"(\w+)"', said)  # its own comes first, then that of what it answers
        if kind and kind[1] in (b"comm_open", b"comm_msg") and b"there and back" not in said:
            self.sent.append(len(said))

    def moves(self, slider: str, before: str = "") -> tuple[list[float], float]:
        """Seconds from key to repaint, and bytes of a move; `before` is run in Python before each."""
        times, sizes = [], []
        self.page.get_by_label(slider).focus()
        for at in range(ROUNDS):
            self.tell(before)
            self.page.wait_for_timeout(150)  # let what that and the last move began come to an end
            self.sent.clear()
            self.page.evaluate(WATCH)
            self.page.keyboard.press("ArrowLeft" if at % 4 < 2 else "ArrowRight")
            times.append(self.page.evaluate("() => window.moved"))
            self.page.wait_for_timeout(100)
            sizes.append(sum(self.sent))
        return times[4:], median(sizes)


def _two_ranks(notebook: Bench) -> Iterator[Figure]:
    first = sum(notebook.sent)
    assert notebook.ask("bench.timeline is not None")  # torch is loaded
    slider = "rank 0: inputs"
    emulated, size = notebook.moves(slider, "forget(bench)")
    floor, _ = notebook.moves("there and back")
    notebook.sent.clear()
    notebook.tell("compute_map(bench)")
    notebook.page.wait_for_timeout(1000)
    ahead = sum(notebook.sent)
    known, also = notebook.moves(slider)
    boxes = notebook.ask("bench.timeline.calls.height")
    yield Figure("floor: a number to Python and back, key to repaint", ms(floor), "", "")
    beside = f"{median(emulated) / median(floor):.1f} floors"
    yield Figure(f"bench, key to repaint: {boxes} calls, emulation included", ms(emulated), beside, "at most 60 ms")
    beside = f"{median(known) / median(floor):.1f} floors"
    yield Figure("bench, key to repaint, the map computed", ms(known), beside, "at most 35 ms")
    yield Figure("bench, first view: all widgets over the wire", f"{first / 1e3:.1f} kB", "", "below 150 kB")
    yield Figure("bench, a slider move over the wire", f"{max(size, also) / 1e3:.1f} kB", "", "below 15 kB")
    yield Figure("bench, the map and its pictures, in the background", f"{ahead / 1e3:.1f} kB", "", "below 300 kB")


def _eight_ranks(notebook: Bench) -> Iterator[Figure]:
    assert notebook.ask("eight.timeline is not None")
    emulated, _ = notebook.moves("rank 7: inputs", "forget(eight)")
    floor, _ = notebook.moves("there and back")
    notebook.tell("compute_map(eight)")
    known, _ = notebook.moves("rank 7: inputs", "eight._map.finish()")
    boxes = notebook.ask("eight.timeline.calls.height")
    beside = f"{median(emulated) / median(floor):.1f} floors"
    what = f"bench of 8 ranks, key to repaint: {boxes} calls"
    yield Figure(f"{what}, emulation included", ms(emulated), beside, "at most 60 ms")
    beside = f"{median(known) / median(floor):.1f} floors"
    yield Figure(f"{what}, the next steps computed", ms(known), beside, "at most 60 ms")
