"""The program in hand: its barrier is dragged by mouse, by touch and by keys, on the hand-out and in a
real JupyterLab."""

from __future__ import annotations

import gzip
import json
import re
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from joinlab.cases import DOCUMENTED
from joinlab.course.handout import write_handout
from joinlab.emulator.shipped_runs import endings, position, shipped_run
from joinlab.picture.first_screen import first_screen

pytestmark = pytest.mark.browser
pytest.importorskip("playwright.sync_api")
from playwright.sync_api import expect  # noqa: E402

from tests.browser import Notebook, barriers, end_kernels, watched, write_notebook  # noqa: E402
from tests.first_screen import BENCH, LEAST_TEXT, MOST_CONTROLS, MOST_WORDS, every_position  # noqa: E402
from tests.nightly import sampled  # noqa: E402

MOST = 6
MOST_BYTES = 1_500_000
PLACES = {"inside the loop": 0, "after the loop": 1, "left out": 2}
TONES = {"g": "good", "w": "warn", "b": "bad"}


@pytest.fixture(scope="module")
def handout(tmp_path_factory) -> Path:
    """With up to six inputs a rank: the whole one takes twice as long."""
    path = tmp_path_factory.mktemp("hand") / "cases.html"
    return write_handout(path, most=MOST, progress=False)


@contextmanager
def opened(browser, path: Path, case: int = 4, **options: Any) -> Iterator[Any]:
    with watched(browser, [path.as_uri()], **options) as page:
        page.goto(f"{path.as_uri()}#case={case}&barrier=0&inputs=5,6")
        page.locator(".jl-scene").wait_for()
        yield page


def headline(case: int, inputs: tuple[int, int] = (5, 6)) -> str:
    run = shipped_run(case, inputs)
    assert run is not None
    return "".join(piece.text for piece in first_screen(run).headline).replace("`", "")


def shows(page, case: int, inputs: tuple[int, int] = (5, 6)) -> None:
    """The picture, the loop and the strip are those of a case."""
    join, place = DOCUMENTED[case].switches
    expect(page.locator(".jl-headline")).to_have_text(headline(case, inputs))
    expect(page.locator(".jl-with")).to_have_attribute("aria-pressed", str(join).lower())
    expect(page.locator(".jl-grip")).to_have_attribute("aria-valuetext", place)
    expect(page.locator(".jl-six [aria-current]")).to_have_text(re.compile(rf"^{case}"))


def tones(page) -> list[str]:
    boxes = page.locator(".jl-six b").all()
    return [(box.get_attribute("class") or "").removeprefix("jl-tone-") for box in boxes]


def middle(locator) -> tuple[float, float]:
    box = locator.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


LOOP, LANES = ".jl-hand > div, .jl-six", ".jl-scene, .jl-dotrow"


def places(page, of: str = f"{LOOP}, {LANES}") -> list[float]:
    """Where the rows of the loop, the strip and the picture are."""
    tops = "(all) => all.map((one) => one.getBoundingClientRect().top)"
    return page.locator(of).evaluate_all(tops)


def address(page) -> str:
    return page.evaluate("location.hash").partition("&")[0]


def test_every_run_is_shown_while_the_mouse_has_the_line_in_the_air(browser, handout):
    with opened(browser, handout, viewport={"width": 1440, "height": 900}) as page:
        shows(page, 4)
        before = places(page)
        grip, target = page.locator(".jl-grip"), page.locator(".jl-place")
        page.mouse.move(*middle(grip))
        page.mouse.down()
        for case, place in ((6, "after the loop"), (1, "left out"), (6, "after the loop")):
            page.mouse.move(*middle(target.nth(PLACES[place])))
            shows(page, case)
            assert address(page) == "#case=4"  # it has not landed
            said = f"Case {case}: dist.barrier() {place}. rank 0 finished, rank 1 finished"
            expect(page.locator(".jl-heard")).to_have_text(said)
            assert places(page) == before
        page.mouse.up()
        assert address(page) == "#case=6" and places(page) == before
        # out of the program is left out
        page.mouse.move(*middle(grip))
        page.mouse.down()
        page.mouse.move(300, 700)
        shows(page, 1)
        page.mouse.up()
        assert address(page) == "#case=1"
        shows(page, 1)


def test_escape_puts_the_line_back(browser, handout):
    with opened(browser, handout, viewport={"width": 1440, "height": 900}) as page:
        page.mouse.move(*middle(page.locator(".jl-grip")))
        page.mouse.down()
        page.mouse.move(*middle(page.locator(".jl-place").nth(1)))
        shows(page, 6)
        page.keyboard.press("Escape")
        shows(page, 4)
        page.mouse.move(*middle(page.locator(".jl-place").nth(2)))
        page.mouse.up()
        shows(page, 4)
        assert address(page) == "#case=4"


def test_in_a_narrow_cell_every_tag_is_whole(browser, handout):
    """As in JupyterLab on a phone: a cell's output is 254 px wide there."""
    with opened(browser, handout, 4, viewport={"width": 280, "height": 844}) as page:
        shows(page, 4)
        view, tags = page.locator(".jl").bounding_box(), page.locator(".jl-hand .jl-tag").all()
        assert len(tags) == 3 and view["width"] < 255
        for box in (tag.bounding_box() for tag in tags):
            assert box["x"] + box["width"] <= view["x"] + view["width"]


def test_a_finger_drags_the_line_and_scrolls_everywhere_else(browser, handout):
    size = {"width": 390, "height": 844}
    with opened(browser, handout, 5, viewport=size, has_touch=True) as page:
        shows(page, 5)
        before, loop = places(page), places(page, LOOP)
        assert min(places(page, LANES)) > max(loop)
        finger = page.context.new_cdp_session(page)

        def touch(kind: str, *points: tuple[float, float]) -> None:
            touched = [{"x": x, "y": y} for x, y in points]
            finger.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": touched})

        start, end = middle(page.locator(".jl-grip")), middle(page.locator(".jl-place").first)
        touch("touchStart", start)
        for part in (0.3, 0.6, 1.0):
            way = [a + (b - a) * part for a, b in zip(start, end, strict=True)]
            touch("touchMove", (way[0], way[1]))
        shows(page, 3)
        assert page.evaluate("scrollY") == 0 and places(page, LOOP) == loop
        # the lanes, which lie below, are in sight meanwhile: above the headline
        lanes = page.locator(".jl-scene").bounding_box()
        headline = page.locator(".jl-headline").bounding_box()
        assert lanes["y"] >= 0 and lanes["y"] + lanes["height"] <= headline["y"] + 1
        touch("touchEnd")
        shows(page, 3)
        assert places(page) == before
        assert address(page) == "#case=3"
        touch("touchStart", middle(page.locator(".jl-grip")))
        touch("touchMove", middle(page.locator(".jl-place").nth(2)))
        shows(page, 2)
        touch("touchCancel")
        shows(page, 3)
        handles = page.evaluate(
            """() => [...document.querySelectorAll('.jl-low, .jl-low *')]
                .filter((one) => getComputedStyle(one).touchAction === 'none')
                .map((one) => one.className)"""
        )
        assert len(handles) == 1 and "jl-grip" in handles[0]


def test_arrow_keys_move_the_line_and_enter_drops_it(browser, handout):
    with opened(browser, handout, 5, viewport={"width": 1440, "height": 900}) as page:
        page.locator(".jl-grip").focus()
        for key, case in (("ArrowUp", 3), ("ArrowUp", 3), ("ArrowDown", 5), ("ArrowDown", 2)):
            page.keyboard.press(key)
            shows(page, case)
            assert address(page) == "#case=5"
        page.keyboard.press("Escape")
        shows(page, 5)
        expect(page.locator(".jl-heard")).to_have_text("dist.barrier() is back: after the loop")
        page.keyboard.press("ArrowUp")
        page.keyboard.press("Enter")
        shows(page, 3)
        assert address(page) == "#case=3"
        expect(page.locator(".jl-grip")).to_be_focused()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Tab")  # to leave the line drops it
        shows(page, 5)
        assert address(page) == "#case=5"


def test_a_click_on_with_changes_join_alone(browser, handout):
    with opened(browser, handout, viewport={"width": 1440, "height": 900}) as page:
        for case in (3, 4):
            page.get_by_role("button", name="with model.join():").click()
            shows(page, case)
            assert address(page) == f"#case={case}"


def test_the_strip_follows_the_dots_and_chooses_a_case(browser, handout):
    with opened(browser, handout, viewport={"width": 1440, "height": 900}) as page:
        for inputs in ((5, 6), (5, 5), (0, 1), (6, 3)):
            page.evaluate(f"location.hash = '#case=4&barrier=0&inputs={inputs[0]},{inputs[1]}'")
            shows(page, 4, inputs)
            table = endings("nccl", "today")
            expected = [TONES[table[position(case, inputs)]] for case in DOCUMENTED]
            assert tones(page) == expected
        assert len(set(expected)) > 1
        page.locator(".jl-six b").nth(1).click()
        shows(page, 2, (6, 3))


def test_the_fix_that_was_tried_is_marked_where_the_line_would_go(browser, handout):
    with opened(browser, handout, viewport={"width": 1440, "height": 900}) as page:
        expect(page.locator(".jl-place.jl-add")).to_have_text(["+dist.barrier()"])
        expect(page.locator(".jl-grip s")).to_have_text("dist.barrier()")
        expect(page.locator(".jl-do")).to_have_text("Tried: both finish.")
        page.locator(".jl-six b").nth(4).click()
        shows(page, 5)
        expect(page.locator(".jl-hand .jl-add")).to_have_text(["+with model.join():"])
        page.locator(".jl-scrub").press("Home")  # before the verdict the loop stands there alone
        expect(page.locator(".jl-hand .jl-add .jl-no")).to_be_hidden()
        expect(page.locator(".jl-do")).to_be_hidden()
        expect(page.locator(".jl-with")).to_be_visible()


@pytest.mark.parametrize("most", sampled([MOST, 8], MOST.__eq__))
def test_the_page_holds_the_six_runs_of_every_position_and_says_so(
    browser, handout, tmp_path, most
):
    if most != MOST:
        handout = write_handout(tmp_path / "cases.html", progress=False)
    assert handout.stat().st_size < MOST_BYTES * (most + 1) ** 2 / 81
    with opened(browser, handout, viewport={"width": 1440, "height": 900}) as page:
        packed = page.evaluate("document.getElementById('data').textContent")
        runs = json.loads(gzip.decompress(b64decode(packed)).split(b"\0")[0])["positions"]["runs"]
        counts = {f"{a},{b}" for a, b in product(range(most + 1), repeat=2)}
        assert len(runs) == 6
        assert all({*by} == counts for eras in runs.values() for by in eras.values())
        assert not page.get_by_label("Program", exact=True).is_visible()
        page.get_by_role("button", name="More").click()
        page.get_by_label("Program", exact=True).select_option(index=2)
        shows(page, 3)
        said = re.search(r"all its (\d+) runs, ([\d.]+) MB", page.locator(".jl-more").inner_text())
        assert said and float(said[2]) == pytest.approx(len(packed) / 1e6, abs=0.06)
        numbers = {n for eras in runs.values() for by in eras.values() for n in by.values()}
        assert int(said[1]) == len(numbers)


@pytest.mark.parametrize(
    ("scheme", "width"),
    sampled(product(("light", "dark"), (1440, 390)), ("light", 1440).__eq__),
)
def test_axe_finds_no_serious_violation(browser, handout, axe, scheme, width):
    size = {"width": width, "height": 844}
    with opened(browser, handout, 5, viewport=size, color_scheme=scheme) as page:
        assert barriers(page, axe, ".jl") == []
        page.locator(".jl-grip").focus()
        page.keyboard.press("ArrowUp")
        shows(page, 3)
        assert barriers(page, axe, ".jl") == []


ENGINES_OF = {
    "emulated gloo": ("gloo", "today"),
    "emulated nccl": ("nccl", "today"),
    "emulated nccl 1.9": ("nccl", "1.9"),
}
CELLS = (
    "import joinlab\nhand = joinlab.bench(inputs=(5, 6))\nhand",
    "asks = joinlab.bench(predict=True)\nasks",
)


@pytest.fixture(scope="module")
def notebook(browser, served):
    write_notebook(served.folder / "hand.ipynb", CELLS)
    size = {"width": 1440, "height": 1300}
    with watched(browser, [served.url], viewport=size) as page:
        notebook = Notebook(page, served.url, served.token, "hand.ipynb")
        page.evaluate("window.jupyterapp.shell.collapseLeft()")
        notebook.run_all()
        page.locator(".jl-stage .jl-cover").first.wait_for()
        notebook.wait_for("hand.loading", False)
        yield notebook
    end_kernels(served.url, served.token)


FEW = ((0, 0), (0, 8), (5, 6), (8, 7))
OTHERS = ((0, 1), (1, 0), (2, 3), (3, 2), (4, 4), (8, 0), (8, 8))


@pytest.mark.parametrize(
    ("size",),
    sampled([((1440, 900),), ((1024, 768),), ((390, 844),)], lambda row: row[0][0] != 1024),
)
@pytest.mark.parametrize("counts", [FEW, pytest.param(OTHERS, marks=pytest.mark.nightly)])
def test_a_bench_has_few_words_and_controls_at_positions_near_and_far(notebook, counts, size):
    """`python -m tests.first_screen` visits all 81."""
    bench = notebook.page.locator(BENCH).first
    notebook.tell("bench = hand; bench.counts, bench.engine = (5, 6), 'emulated nccl'")
    notebook.page.set_viewport_size({"width": size[0], "height": size[1]})
    bench.evaluate("(bench) => bench.scrollIntoView({ block: 'start' })")
    notebook.settle()
    for case in (2, 4):
        found = every_position(notebook, case, counts)
        assert 20 < found["words"] <= MOST_WORDS
        assert 3 < found["controls"] <= MOST_CONTROLS
        assert found["least"] >= LEAST_TEXT
        assert (found["cut"], found["moved"]) == ([], 0)
    notebook.tell("hand.case, hand.counts = 4, (5, 6)")
    shows(bench, 4)
    notebook.page.set_viewport_size({"width": 1440, "height": 1300})


def test_in_the_bench_a_run_is_shown_in_the_air_and_python_hears_where_it_lands(notebook):
    page, bench = notebook.page, notebook.page.locator(".joinlab-bench").first
    bench.locator(".jl-tools").scroll_into_view_if_needed()
    page.mouse.move(*middle(bench.locator(".jl-grip")))
    page.mouse.down()
    for case, at in ((6, 1), (1, 2), (4, 0), (6, 1)):
        page.mouse.move(*middle(bench.locator(".jl-place").nth(at)))
        shows(bench, case)
    assert notebook.ask("hand.case") == 4
    page.mouse.up()
    notebook.wait_for("hand.case", 6)
    shows(bench, 6)
    assert notebook.ask("str(hand.timeline.meta['program'])") == "case_6"


def test_in_the_bench_the_strip_is_that_of_the_engine_and_of_the_inputs(notebook):
    bench = notebook.page.locator(".joinlab-bench").first
    for engine, at in ENGINES_OF.items():
        notebook.tell(f"hand.case, hand.counts, hand.engine = 4, (1, 3), {engine!r}")
        table = endings(*at)
        expected = [TONES[table[position(case, (1, 3))]] for case in DOCUMENTED]
        for box, tone in zip(bench.locator(".jl-six b").all(), expected, strict=True):
            expect(box).to_have_class(f"jl-tone-{tone}")
    assert {endings("nccl", "today")[position(2, at)] for at in ((1, 3), (3, 1))} == {"w", "b"}
    notebook.tell("hand.engine = 'emulated nccl'")


def test_the_keys_of_the_line_stay_in_the_bench(notebook):
    page, bench = notebook.page, notebook.page.locator(".joinlab-bench").first
    notebook.tell("hand.case, hand.counts = 5, (5, 6)")
    shows(bench, 5)
    cells = page.locator(".jp-Cell").count()
    active = "window.jupyterapp.shell.currentWidget.content.activeCellIndex"
    before = page.evaluate(active)
    bench.locator(".jl-grip").focus()
    for key in ("ArrowDown", "ArrowUp", "ArrowUp", "Escape", "x", "d", "d", "b"):
        page.keyboard.press(key)
    page.keyboard.press("ArrowUp")
    shows(bench, 3)
    page.keyboard.press("Enter")
    notebook.wait_for("hand.case", 3)
    assert page.locator(".jp-Cell").count() == cells and page.evaluate(active) == before
    expect(bench.locator(".jl-grip")).to_be_focused()


def test_a_place_without_a_shipped_run_is_emulated_after_the_drop_and_says_so(notebook):
    page, bench = notebook.page, notebook.page.locator(".joinlab-bench").first
    notebook.tell("hand.case, hand.counts = 6, (2, 3, 3)")
    bench.locator(".jl-headline", has_text="All 3 ranks finished").wait_for()
    assert tones(bench) == ["", "", "", "", "", "good"]
    bench.locator(".jl-grip").focus()
    page.keyboard.press("ArrowUp")
    expect(bench.locator(".jl-do")).to_have_text("Emulated when dropped.")
    expect(bench.locator(".jl-heard")).to_contain_text("inside the loop. Emulated when dropped.")
    expect(bench.locator(".jl-headline")).to_contain_text("All 3 ranks finished")
    page.keyboard.press("Enter")
    notebook.wait_for("hand.case", 4)
    expect(bench.locator(".jlb-status")).to_have_text("Emulated here: no run of this place ships.")
    expect(bench.locator(".jl-headline")).to_contain_text("Ranks 1, 2 hang.")
    assert tones(bench) == ["", "", "", "bad", "", ""]
    page.keyboard.press("ArrowDown")  # that run is at hand now
    expect(bench.locator(".jl-headline")).to_contain_text("All 3 ranks finished")
    page.keyboard.press("Escape")
    expect(bench.locator(".jl-headline")).to_contain_text("Ranks 1, 2 hang.")


def test_who_predicts_is_told_no_ending(notebook):
    page, bench = notebook.page, notebook.page.locator(".joinlab-bench").nth(1)
    bench.locator(".jl-tools").scroll_into_view_if_needed()
    assert tones(bench) == [""] * 6
    bench.locator(".jl-grip").focus()
    page.keyboard.press("ArrowDown")
    expect(bench.locator(".jl-heard")).to_have_text("Case 6: dist.barrier() after the loop.")
    expect(bench.locator(".jl-headline")).to_have_text("What will each rank do?")
    page.keyboard.press("Enter")
    notebook.wait_for("asks.case", 6)
    expect(bench.locator(".jl-headline")).to_have_text("What will each rank do?")
    assert notebook.ask("[asks.controls['endings'], len(asks.covered)]") == ["", 2]


@pytest.mark.parametrize("width", sampled([320, 360, 640, 844, 1200], (320, 844).__contains__))
def test_the_lines_of_the_program_stand_one_below_the_other(browser, handout, width):
    with opened(browser, handout, viewport={"width": width, "height": 800}) as page:
        overlaps = page.locator(".jl-hand > div").evaluate_all(
            """(rows) => {
                const part = (row, by) => Math[by](...[...row.querySelectorAll("span, i, button")]
                    .map((one) => one.getBoundingClientRect()).filter(({ width }) => width)
                    .map(({ top, bottom }) => (by === "min" ? top : bottom)));
                return rows.slice(1).filter((row, i) => part(rows[i], "max") > part(row, "min") + 6).length }"""
        )
        assert overlaps == 0
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_page_is_as_high_for_every_case(browser, handout):
    """A page that is scrolled to its end would move by a line of the legend."""
    with opened(browser, handout, viewport={"width": 1440, "height": 500}) as page:
        heights = set()
        for case in range(1, 7):
            page.locator(".jl-six b").nth(case - 1).click()
            shows(page, case)
            heights.add(page.evaluate("document.documentElement.scrollHeight"))
        assert len(heights) == 1
