"""The whole bench in JupyterLab: from key press to repaint, emulation included, and what travels over the wire.

Nothing stands beside it but what is aimed at; views.py has Plotly's FigureWidget beside the same view.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from tests.bench.figures import Figure, ms
from tests.bench.views import WATCH
from tests.browser import Notebook, chromium, lab, watched, write_notebook

ROUNDS = 24

CELLS = (
    """import joinlab
from joinlab.notebook import verdict_card, view
from joinlab.picture.lanes import lanes

def forget():
    bench._map.watched = False
    bench._map.stop()
    bench._session._kept.clear()
    view._packed_before.cache_clear()
    verdict_card.judged.cache_clear()

def compute_map():
    bench._follow_map()
    bench._map.finish()""",
    "bench = joinlab.bench(case=4, inputs=(5, 6), engine='emulated nccl 1.9')\nbench",
)


def measure() -> Iterator[Figure]:
    """One bench; the slider of rank 0 goes from 5 to 3 and back: each position emulated, then taken from the map."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_notebook(folder / "served" / "bench.ipynb", CELLS)
        with (
            lab(folder / "served", folder / "settings") as (url, token),
            chromium() as browser,
            watched(browser, [url], viewport={"width": 1400, "height": 1300}) as page,
        ):
            sent: list[int] = []

            def received(frame: bytes | str) -> None:
                said = frame if isinstance(frame, bytes) else frame.encode()
                kind = re.search(rb'"msg_type": ?"(\w+)"', said)  # its own comes first, then that of what it answers
                if kind and kind[1] in (b"comm_open", b"comm_msg"):
                    sent.append(len(said))

            page.on("websocket", lambda socket: socket.on("framereceived", received))
            notebook = Notebook(page, url, token, "bench.ipynb")
            notebook.run_all()
            page.locator(".jl-svg").wait_for()
            page.wait_for_timeout(500)
            first, moved = sum(sent), []

            def moves(before: str) -> list[float]:
                """Seconds from key to repaint; `before` is run in Python before each."""
                times = []
                page.get_by_label("rank 0: inputs").focus()
                for at in range(ROUNDS):
                    notebook.tell(before)
                    page.wait_for_timeout(150)  # let what that and the last move began come to an end
                    sent.clear()
                    page.evaluate(WATCH)
                    page.keyboard.press("ArrowLeft" if at % 4 < 2 else "ArrowRight")
                    times.append(page.evaluate("() => window.moved"))
                    page.wait_for_timeout(100)
                    moved.append(sum(sent))
                return times[4:]

            assert notebook.ask("bench.timeline is not None")  # torch is loaded
            emulated = moves("forget()")
            notebook.tell("compute_map()")
            known = moves("")
            boxes = notebook.ask("len(lanes(bench.timeline).boxes)")
    yield Figure(f"bench, key to repaint: {boxes} boxes, emulation included", ms(emulated), "", "at most 60 ms")
    yield Figure("bench, key to repaint, the map computed", ms(known), "", "at most 35 ms")
    yield Figure("bench, first view: all widgets over the wire", f"{first / 1e3:.1f} kB", "", "below 150 kB")
    yield Figure("bench, a slider move over the wire", f"{median(moved) / 1e3:.1f} kB", "", "below 15 kB")
