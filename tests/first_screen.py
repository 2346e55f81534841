"""Measures the first screen in Chromium: `python -m tests.first_screen [--shots FOLDER]`.

For each screen, at four sizes, on a light and a dark page: visible words and controls, the smallest
text, truncated labels, the violations that axe-core finds (npm gets it), external requests, and for
pages with positions how far the picture's top and the dots move between them. Only visible words
count, without names in boxes, code, the legend and the words of a step; a row of dots, the scrubber
and a table of small pictures (radio buttons, moved by arrow keys) count as one control each. One
module draws both this page and the bench's first screen.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from playwright.sync_api import Browser, Page
from torch.nn.parallel import DistributedDataParallel as DDP

import joinlab
from joinlab.cli.cases import write_page
from joinlab.cli.report import CaseRuns
from joinlab.emulator.shipped_runs import shipped_run
from joinlab.picture.page import Position, write_html, write_sliders
from tests.browser import (
    Notebook,
    axe_core,
    barriers,
    chromium,
    from_npm,
    lab,
    watched,
    write_notebook,
)

SIZES = ((1440, 900), (1024, 768), (720, 450), (390, 844))
"""px; the third is the first at a zoom of 200 %."""

POSITIONS = tuple(product(range(9), repeat=2))
"""The counts of inputs that the bench shows."""

MOST_WORDS, MOST_CONTROLS, LEAST_TEXT = 70, 9, 11


def odd_of_8(rank, inputs):
    grads = torch.ones(8)
    for step, _ in enumerate(inputs):
        dist.all_reduce(grads)
        if rank == 5 and step == 15:
            dist.broadcast(grads, 0)
        dist.broadcast(grads, 0)
        dist.barrier()


def odd_of_64(rank, inputs):
    for step, _ in enumerate(inputs):
        loss = torch.tensor(float("nan") if (rank, step) == (41, 9) else 1.0)
        dist.barrier()
        if not loss.isnan():
            dist.all_reduce(loss)
        dist.broadcast(loss, 0)


def one_raises(rank, inputs):
    model = DDP(torch.nn.Linear(1, 1))
    for at, input in enumerate(inputs):
        if rank == 1 and at == 3:
            raise ValueError("sample 3 is empty")
        model(input).backward()
    dist.barrier()


def recv_ring(rank, inputs):
    world = dist.get_world_size()
    dist.recv(torch.ones(1), (rank - 1) % world)
    dist.send(torch.ones(1), (rank + 1) % world)


def pages(folder: Path) -> dict[str, Path]:
    """Every screen that is measured, as a page."""
    runs = {
        "case 2": joinlab.emulate(joinlab.cases.case_2, (5, 6)),
        "case 4": joinlab.emulate(joinlab.cases.case_4, (5, 6)),
        "one odd of 8": joinlab.emulate(odd_of_8, (20,) * 8),
        "one odd of 64": joinlab.emulate(odd_of_64, (12,) * 64),
        "a raise": joinlab.emulate(one_raises, (5, 5)),
        "a healthy run": joinlab.emulate(joinlab.cases.case_1, (5, 6)),
    }
    for run in runs.values():
        joinlab.diagnose(run)
    found = {name: write_html(run, folder / f"{name}.html") for name, run in runs.items()}
    some = {
        "81 positions": positions(folder / "positions.html"),
        "the demo": gallery(folder / "gallery.html"),
    }
    return some | found


def gallery(path: Path) -> Path:
    """The page that `make demo` writes, with a model of gloo in place of the runs here."""
    tables = {n: {number: case_runs(number, n) for number in joinlab.cases.CASES} for n in (2, 5)}
    write_page(tables, path)
    return path


def case_runs(number: int, n: int) -> CaseRuns:
    """A case on the three fabrics."""
    case, counts = joinlab.cases.CASES[number], (n, n + 1)
    before, today = shipped_run(number, counts, era="1.9"), shipped_run(number, counts)
    gloo = shipped_run(number, counts, "gloo")
    assert before is not None and today is not None and gloo is not None
    return CaseRuns(case, before, today, gloo)


def positions(path: Path) -> Path:
    """Case 4 at all 81 positions of its dots."""
    start = Position("Case 4", "today", (5, 6))
    runs = (
        (Position("Case 4", "today", at), shipped_run(4, at)) for at in product(range(9), repeat=2)
    )
    return write_sliders("Case 4", ((at, run) for at, run in runs if run is not None), start, path)


SEEN = """(within) => {
    const root = document.querySelector(within ?? 'body');
    const seen = (one) => one.checkVisibility({ opacityProperty: true }), look = (one) => getComputedStyle(one);
    const inSight = (one) => {
        const box = one.getBoundingClientRect();
        return box.width > 1 && box.height > 1 && box.top < innerHeight && box.bottom > 0 && box.right > 0
            && seen(one); };
    const free = '.jl-col, .jl-lane, .jl-code, .jl-legend, .jl-step, .loop code';
    const texts = [];
    const walk = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    for (let node; (node = walk.nextNode()); ) {
        const on = node.parentElement, skipped = /SCRIPT|STYLE|TITLE|OPTION/i.test(on.tagName) || !node.data.trim();
        if (skipped || !inSight(on)) continue;
        const cut = on.scrollWidth > on.clientWidth + 1 && look(on).overflowX === 'hidden';
        const size = parseFloat(look(on).fontSize);
        texts.push({ text: node.data.trim(), size, cut, free: on.closest(free) });
    }
    for (const one of [...root.querySelectorAll('select')].filter(inSight))
        texts.push({ text: one.selectedOptions[0].text, size: parseFloat(look(one).fontSize), cut: false });
    const stage = root.querySelector('.jl-stage').getBoundingClientRect();
    const cut = [...root.querySelectorAll('.jl-scene text')].filter((one) => {
        const box = one.getBoundingClientRect();
        return inSight(one) && (box.right > stage.right + 1 || box.left < stage.left - 1); });
    const controls = 'button, input, select, a[href], summary, [role=slider], [tabindex="0"]';
    return {
        words: texts.filter((one) => !one.free).flatMap((one) => one.text.split(/\\s+/))
            .filter((one) => /\\p{L}/u.test(one)).length,
        controls: new Set([...root.querySelectorAll(controls)].filter(inSight).map((one) => one.name || one)).size,
        least: Math.min(...texts.map((one) => one.size)),
        cut: [...cut.map((one) => one.textContent), ...texts.filter((one) => one.cut).map((one) => one.text)],
        top: root.querySelector('.jl-scene').getBoundingClientRect().top,
        dots: [...root.querySelectorAll('.jl-dotrow')].map((one) => one.getBoundingClientRect().top) }; }"""


def moved(page: Page) -> float:
    """How far, in px, the picture's top and the dots move over all positions."""
    seen = []
    for one, other in product(range(9), repeat=2):
        page.evaluate(f"location.hash = '#case=1&barrier=0&inputs={one},{other}'")
        page.wait_for_function(
            f"document.querySelector('.jl-scene') && location.hash.includes('inputs={one},{other}')"
        )
        seen.append(page.evaluate(SEEN))
    return spread(seen)


def spread(seen: Sequence[dict[str, Any]]) -> float:
    """px between the extreme places of the picture's top, or of a row of dots."""
    places = zip(*([one["top"], *one["dots"]] for one in seen), strict=True)
    return max(max(some) - min(some) for some in places)


def measured(
    browser: Browser, path: Path, size: tuple[int, int], scheme: str, script: str, shot: Path | None
) -> dict[str, object]:
    """Measures the visible part of one page."""
    outside: list[str] = []
    page = browser.new_page(
        viewport={"width": size[0], "height": size[1]}, color_scheme=scheme, reduced_motion="reduce"
    )
    page.on(
        "request",
        lambda asked: None if asked.url.startswith("file:") else outside.append(asked.url),
    )
    page.goto(path.as_uri())
    page.locator(".jl-stage .jl-scene").wait_for()
    within = "body" if path.stem == "gallery" else ".jl"
    found: dict[str, object] = page.evaluate(SEEN) | {"outside": len(outside)}
    found["axe"] = [rule for _, rule, _ in barriers(page, script, within)]
    if shot is not None:
        page.screenshot(path=shot)
    if path.stem == "positions":
        found["moved"] = moved(page)
    page.close()
    return found


BENCH = ".joinlab-bench"


def benches(
    browser: Browser, folder: Path, script: str, shots: Path | None
) -> Iterator[tuple[str, dict[str, object]]]:
    """A row for the bench in JupyterLab at each size and theme."""
    (folder / "served").mkdir()
    with lab(folder / "served", folder / "settings") as served:
        for size, scheme in product(SIZES, ("light", "dark")):
            yield from bench(browser, folder / "served", *served, size, scheme, script, shots)


def bench(
    browser: Browser,
    folder: Path,
    url: str,
    token: str,
    size: tuple[int, int],
    scheme: str,
    script: str,
    shots: Path | None = None,
    counts: Sequence[tuple[int, int]] = POSITIONS,
) -> Iterator[tuple[str, dict[str, object]]]:
    """Measures a bench without JupyterLab's own words and controls: a new one, and two cases with
    each of `counts`.

    A request to another host raises.
    """
    write_notebook(folder / "first.ipynb", ["import joinlab\nbench = joinlab.bench()\nbench"])
    viewport = {"width": size[0], "height": size[1]}
    with watched(browser, [url], viewport=viewport) as page:
        notebook = Notebook(page, url, token, "first.ipynb")
        page.evaluate("window.jupyterapp.shell.collapseLeft()")
        notebook.change_theme(scheme.title())  # JupyterLab keeps the last one
        notebook.run_all()
        page.locator(f"{BENCH} .jl-scene").wait_for()
        notebook.settle()
        told = named("the bench", size, scheme)
        if shots is not None:
            page.screenshot(path=shots / f"{told}.png")
        broken = [rule for _, rule, _ in barriers(page, script, ".jl")]
        yield told, page.evaluate(SEEN, BENCH) | {"axe": broken, "outside": 0}
        if scheme == "light":
            notebook.wait_for("bench.loading", False)
            for case in (2, 4):
                told = f"the bench, case {case} at {len(counts)} positions"
                yield named(told, size, scheme), every_position(notebook, case, counts)
        notebook.shut_down()


def every_position(
    notebook: Notebook, case: int, counts: Sequence[tuple[int, int]]
) -> dict[str, object]:
    """The most words and controls, the smallest text, every cut label, and what moves, over
    positions of a case."""
    notebook.tell(f"bench.case = {case}")
    seen = []
    for position in counts:
        notebook.tell(f"bench.counts = {position}")
        notebook.page.wait_for_function(AT, arg=position)
        seen.append(notebook.page.evaluate(SEEN, BENCH))
    return {
        "words": max(one["words"] for one in seen),
        "controls": max(one["controls"] for one in seen),
        "least": min(one["least"] for one in seen),
        "cut": sorted({label for one in seen for label in one["cut"]}),
        "moved": spread(seen),
        "outside": 0,
    }


AT = """(counts) => new Promise((done) => {
    const rows = () => [...document.querySelector('.joinlab-bench').querySelectorAll('.jl-dotrow')]
        .map((one) => Number(one.ariaValueNow));
    const look = () => rows().join() === counts.join() ? done(true) : requestAnimationFrame(look);
    requestAnimationFrame(look); })"""
"""Waits until the first bench's rows of dots show these counts, and a frame has been drawn."""


def named(screen: str, size: tuple[int, int], scheme: str) -> str:
    return f"{screen}, {size[0]} x {size[1]}, {scheme}"


def rows(shots: Path | None) -> Iterator[tuple[str, dict[str, object]]]:
    """A row for each screen, size and theme."""
    with tempfile.TemporaryDirectory() as name, chromium() as browser:
        script = axe_core(lambda package: from_npm(package, Path(name) / "npm"))
        yield from benches(browser, Path(name), script, shots)
        for screen, path in pages(Path(name)).items():
            for size, scheme in product(SIZES, ("light", "dark")):
                told = named(screen, size, scheme)
                yield (
                    told,
                    measured(browser, path, size, scheme, script, shots and shots / f"{told}.png"),
                )


def main() -> None:
    """Print every row, with a mark where a figure is beyond its bound, and then exit with 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shots", type=Path, help="a folder for the screenshots")
    options = parser.parse_args()
    shots = options.shots
    if shots is not None:
        shots.mkdir(parents=True, exist_ok=True)
    failed = False
    for told, found in rows(shots):
        beyond = (
            found["words"] > MOST_WORDS
            or found["controls"] > MOST_CONTROLS
            or found["least"] < LEAST_TEXT
        )  # type: ignore[operator]
        wrong = (
            beyond or found["cut"] or found["outside"] or found.get("moved", 0) or found.get("axe")
        )
        failed = failed or bool(wrong)
        more = f", axe {found['axe'] or 0}" if "axe" in found else ""
        more += f", moved {found['moved']:g} px" if "moved" in found else ""
        print(
            f"{'✕' if wrong else '✓'} {told}: {found['words']} words, {found['controls']} controls, "
            f"text {found['least']:g} px and up, cut {found['cut'] or 0}, outside {found['outside']}{more}"
        )
    sys.exit(failed)


if __name__ == "__main__":
    main()
