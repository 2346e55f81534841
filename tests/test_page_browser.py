"""The page in a real browser that refuses every external request."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

import joinlab
from joinlab.picture.page import Position, write_html, write_sliders
from joinlab.picture.scene import scene
from joinlab.picture.svg import svg
from joinlab.timeline import Ending
from tests.bench.large import large
from tests.timelines import Writer, case_timeline

pytestmark = pytest.mark.browser
pytest.importorskip("playwright.sync_api")
from playwright.sync_api import expect  # noqa: E402

from tests.browser import barriers, watched  # noqa: E402

SOURCE = {
    "file": "train.py",
    "first_line": 26,
    "text": "a\nb\nwith join():\n\n\nmodel(x)\nbackward()\nbarrier()\n",
}


def shown(case: int, n: int, era: str = "today"):
    made = case_timeline(case, n, "nccl", era)
    return replace(made, meta={**made.meta, "source": SOURCE})


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    hung = replace(case_timeline(4, 2), meta={**case_timeline(4, 2).meta, "source": SOURCE})
    runs = {"Case 4 <b>": hung, "Case 1": case_timeline(1, 2)}
    return write_html(runs, tmp_path_factory.mktemp("page") / "runs.html")


@pytest.fixture(scope="module")
def sliders(tmp_path_factory) -> Path:
    runs = [
        (Position(f"case {case}", era, (n, n + 1)), shown(case, n, era))
        for case in (1, 4)
        for era in ("today", "1.9")
        for n in (1, 2, 3)
    ]
    # The controls can take every pair: those that are not hand-made show their neighbour.
    known = {(at.program, at.setting, at.inputs[0]): timeline for at, timeline in runs}
    full = [
        (Position(program, era, (a, b)), timeline)
        for (program, era, a), timeline in known.items()
        for b in (2, 3, 4)
    ]
    path = tmp_path_factory.mktemp("sliders") / "cases.html"
    return write_sliders("Cases", full, Position("case 4", "1.9", (2, 3)), path)


@pytest.fixture(scope="module")
def many(tmp_path_factory) -> Path:
    return write_html(large(2, 3000), tmp_path_factory.mktemp("many") / "run.html")


@pytest.fixture
def opened(browser, file):
    """Opens a page; at the end, nothing was asked for and nothing went wrong."""
    open_pages = []

    def go(path: Path = file, **options):
        page = watched(browser, [path.as_uri()], **options)
        open_pages.append(page)
        made = page.__enter__()
        made.goto(path.as_uri())
        return made

    yield go
    for page in open_pages:
        page.__exit__(None, None, None)


def first(page, at: int = 1):
    """The first screen of a run, once it is drawn."""
    view = page.locator(f"#run-{at} .jl" if page.locator(f"#run-{at}").count() else ".jl")
    view.locator(".jl-scene").wait_for()
    return view


def every(page):
    """Every call of a run, which is behind "…"."""
    view = first(page)
    view.get_by_role("button", name="More").click()
    view.locator(".jl-chart svg").wait_for()
    return view


def chart(view):
    return view.get_by_role("slider", name="Every call")


def row(view, number: int, of: int) -> None:
    expect(chart(view)).to_have_attribute("aria-valuetext", re.compile(rf"^row {number} of {of}\."))


def drawn(view, lane: int = 0) -> list[str]:
    return view.locator(".jl-lane").nth(lane).locator("rect.jl-fill title").all_text_contents()


def test_both_pictures_are_drawn(opened):
    page = opened(viewport={"width": 1400, "height": 900})
    view = first(page)
    assert view.locator(".jl-col text:text-is('barrier')").count() == 1
    expect(view.locator(".jl-end")).to_have_text(["✕ waits…", "✕ waits…"])
    assert page.locator("h2").first.text_content() == "Case 4 <b>"
    page.locator("#run-2").scroll_into_view_if_needed()
    expect(first(page, 2).locator(".jl-end")).to_have_text(["✓ finished", "✓ finished"])
    assert not page.locator(".still").first.is_visible()


def test_the_keyboard_reaches_every_call_and_its_details(opened):
    page = opened(viewport={"width": 1300, "height": 900})
    view = every(page)
    chart(view).focus()
    page.keyboard.press("Home")
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    row(view, 5, 17)
    assert drawn(view)[4] == "rank 0: forward 2" and len(drawn(view)) == 17
    card = view.locator(".jl-every .jl-told .jl-two > div").first
    for words in (
        "forward 2",
        "float32",
        "value in1.0",
        "value out2.0",
        "discarded the value",
        "train.py:31 model(x)",
    ):
        expect(card).to_contain_text(words)
    times = card.locator("details")
    assert not times.locator("table").is_visible()
    times.locator("summary").click()
    assert "host waited" in times.locator("table").text_content()
    chart(view).focus()
    page.keyboard.press("End")
    row(view, 17, 17)
    assert "never ends" in chart(view).get_attribute("aria-valuetext")
    page.keyboard.press("Escape")
    expect(chart(view)).to_have_attribute("aria-valuetext", "nothing selected")
    expect(view.locator(".jl-every .jl-told")).to_be_hidden()


def test_a_click_selects_and_a_stack_is_shown_call_by_call(opened):
    page = opened(viewport={"width": 1300, "height": 900})
    view = first(page)
    view.locator(".jl-col .jl-pile").last.click(force=True)
    view.get_by_role("button", name="one by one").click()
    row(view, 1, 17)
    box = view.locator(".jl-lane").nth(1).locator("rect.jl-fill").nth(3)
    assert box.bounding_box()["width"] > 60
    box.click()
    row(view, 4, 17)
    assert chart(view).get_attribute("aria-valuetext").endswith("rank 1: forward 1")
    box = view.locator(".jl-picked").bounding_box()
    assert box["width"] > 60


def test_on_the_clock_a_call_is_as_long_as_it_took(opened, tmp_path):
    writer = Writer()
    for rank in (0, 1):
        for at, took in ((0, 20_000), (40_000, 40_000), (100_000, 100_000)):
            times = {"enqueued_ns": at, "started_ns": at, "completed_ns": at + took}
            writer.call(
                rank, "all_reduce", **times, host_wait_begin_ns=at, host_wait_end_ns=at + took
            )
    page = opened(
        write_html(writer.timeline([Ending("finished")] * 2), tmp_path / "run.html"),
        viewport={"width": 1300, "height": 900},
    )
    view = every(page)
    view.get_by_role("button", name="on the clock").focus()
    page.keyboard.press("Enter")
    boxes = [
        one.bounding_box() for one in view.locator(".jl-lane").first.locator("rect.jl-fill").all()
    ]
    unit = boxes[0]["width"]
    assert [round(box["width"] / unit) for box in boxes] == [1, 2, 5]
    assert [round((box["x"] - boxes[0]["x"]) / unit) for box in boxes] == [0, 2, 5]
    assert view.locator(".jl-chart", has_text="recorded time").count() == 1
    assert view.locator(".jl-host").count() == 0
    view.get_by_role("button", name="hosts").click()
    waits = [one.bounding_box() for one in view.locator(".jl-host").all()]
    assert (
        len(waits) == 6
        and abs(waits[0]["width"] - unit) < 1
        and waits[0]["y"] > boxes[0]["y"] + boxes[0]["height"]
    )
    chart(view).focus()
    page.keyboard.press("Home")
    page.keyboard.press("w")
    longer = view.locator(".jl-lane rect.jl-fill").first
    assert longer.bounding_box()["width"] > 1.9 * unit
    page.keyboard.press("f")
    assert abs(longer.bounding_box()["width"] - unit) < 1


def test_search_finds_calls(opened):
    page = opened(viewport={"width": 1300, "height": 900})
    view = every(page)
    chart(view).focus()
    page.keyboard.press("/")
    page.keyboard.type("backward rank 1")
    page.keyboard.press("Enter")
    expect(view.locator("[role=status]").filter(has_text=" of ")).to_have_text("1 of 3")
    assert chart(view).get_attribute("aria-valuetext").endswith("rank 1: backward")


def test_the_text_of_the_program_says_where_ranks_ended(opened):
    page = opened(viewport={"width": 1300, "height": 900})
    view = every(page)
    view.get_by_text("The text of train.py").click()
    assert (
        "33barrier()rank 1: ✕ hung (proven)"
        in view.locator(".jl-texts .jl-hit").all_text_contents()
    )


def test_a_slider_moved_by_keyboard_shows_the_calls_of_that_run(opened, sliders):
    page = opened(sliders, viewport={"width": 1300, "height": 900})
    view = every(page)

    def backwards() -> int:
        return sum(one.endswith("backward") for one in drawn(view) + drawn(view, 1))

    expect(view.locator(".jl-stage .jl-end")).to_have_text(["✕ waits…", "✓ finished"])
    assert backwards() == 2 * 2 + 1
    page.get_by_role("slider", name="rank 0: inputs").focus()
    page.keyboard.press("ArrowRight")
    assert backwards() == 2 * 3 + 1
    assert page.url.endswith("#case=2&barrier=1&inputs=3,3")
    page.get_by_role("combobox", name="Barrier").select_option("today")
    expect(view.locator(".jl-stage .jl-end")).to_have_text(["✓ finished", "✕ waits…"])
    assert view.locator(".jl-headline").text_content().endswith("Rank 1 hangs.")
    page.get_by_role("combobox", name="Program").select_option("case 1")
    expect(view.locator(".jl-stage .jl-end")).to_have_text(["✓ finished", "✓ finished"])


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1280, "dark")])
def test_it_fits_the_screen_and_its_text_can_be_read(opened, width, scheme):
    page = opened(viewport={"width": width, "height": 800}, color_scheme=scheme)
    view = every(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    ink, paper = page.evaluate(
        """() => ['.jl-chart text[font-weight="700"]', 'body'].map((name, at) => {
            const style = getComputedStyle(document.querySelector(name));
            const [r, g, b] = (at ? style.backgroundColor : style.fill).match(/\\d+/g).map(Number);
            return r + g + b; })"""
    )
    assert abs(ink - paper) > 500  # dark on light, or light on dark
    over = view.locator(".jl-chart svg").evaluate(
        """(svg) => { const all = svg.getBoundingClientRect();
            return [...svg.querySelectorAll("text")].filter((text) => { const one = text.getBoundingClientRect();
                return one.right > all.right + 1 || one.left < all.left - 1 || one.bottom > all.bottom + 1; })
                .map((text) => text.textContent); }"""
    )
    assert over == []


def test_front_ends_that_ask_for_html_get_a_picture_that_answers(opened, tmp_path):
    timeline = case_timeline(4, 2)
    assert isinstance(
        timeline, joinlab.Timeline
    )  # joinlab gives it the method when it is loaded through joinlab
    (tmp_path / "cell.html").write_text(f"<!doctype html>{timeline._repr_html_()}", "utf-8")
    frame = opened(tmp_path / "cell.html").frame_locator("iframe")
    frame.locator(".jl-col .jl-fill").last.click(force=True)
    expect(frame.locator(".jl-told").first).to_contain_text("It never ends.")


def test_on_paper_every_program_has_one_page(opened, sliders):
    page = opened(sliders)
    every(page)
    assert page.pdf(format="A4").count(b"/Type /Page\n") == page.locator(".paper").count() == 2


def test_in_print_the_picture_fits_the_paper(opened):
    page = opened(viewport={"width": 1280, "height": 800})
    every(page)
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 700, "height": 990})
    still = page.locator("#run-1 .still svg")
    assert still.is_visible() and still.bounding_box()["width"] <= 700
    assert not page.locator("#run-1 .live").is_visible()


@pytest.mark.parametrize("which", ["file", "sliders"])
def test_without_scripts_the_static_picture_is_shown(opened, request, which):
    page = opened(request.getfixturevalue(which), java_script_enabled=False)
    drawn = page.locator(".still svg").first
    assert drawn.is_visible() and drawn.locator("text").filter(has_text="waits…").count() >= 1
    assert page.locator("form:visible").count() == 0


SHAPES = """(all) => all.map((one) => ["x", "y", "width", "height"].map((name) => Number(one.getAttribute(name)))
    .concat(getComputedStyle(one).fill))"""


def test_the_static_picture_and_the_live_one_are_the_same_boxes_in_the_same_colours(
    opened, tmp_path
):
    """The picture on paper, in a mail and in a reopened notebook has the same boxes as the
    screen."""
    run = joinlab.emulate(joinlab.cases.case_4, (5, 6))
    page = opened(write_html(run, tmp_path / "run.html"), viewport={"width": 1200, "height": 900})
    boxes = first(page).locator(".jl-col rect.jl-fill")
    live = boxes.evaluate_all(SHAPES)
    wide = int(page.locator(".jl-scene").get_attribute("width"))
    (tmp_path / "still.html").write_text(svg(scene(run), width=wide), "utf-8")
    still = opened(tmp_path / "still.html").locator("rect.fill").evaluate_all(SHAPES)
    assert len(live) == len(still) == 18
    for one, other in zip(live, still, strict=True):
        assert one[:4] == pytest.approx(other[:4], abs=0.2)
        assert one[4] == other[4]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("which", ["file", "sliders", "many"])
def test_axe_finds_no_serious_violation(opened, request, axe, which, scheme):
    page = opened(
        request.getfixturevalue(which), viewport={"width": 1300, "height": 900}, color_scheme=scheme
    )
    view = every(page)
    chart(view).focus()
    for key in ("End", "ArrowUp"):
        page.keyboard.press(key)
    for axis in ("in order", "on the clock"):
        view.get_by_role("button", name=axis).click()
        assert barriers(page, axe) == []


def test_every_mismatch_of_a_large_run_is_marked_and_reached(opened, tmp_path):
    made = large(8, 1000)
    other = (pl.col("rank") == 7) & pl.col("seq").is_between(200, 899)
    calls = made.calls.with_columns(
        pl.when(other).then(pl.lit("reduce")).otherwise("op").alias("op")
    )
    page = opened(
        write_html(replace(made, calls=calls), tmp_path / "run.html"),
        viewport={"width": 1300, "height": 900},
    )
    view = every(page)
    strip = view.locator(".jl-strip svg")
    assert (
        strip.get_attribute("aria-label") == "The whole run: 1,000 rows, 701 of them wrong"
    )  # and the last, which hangs
    alarm, calm = (
        strip.locator(name).evaluate("(one) => getComputedStyle(one).fill")
        for name in (".jl-alarm", ".jl-calm")
    )
    red, green, blue = (int(part) for part in re.findall(r"\d+", calm)[:3])
    assert (
        max(red, green, blue) - min(red, green, blue) < 12 and alarm != calm
    )  # the one is grey, the other is not
    chart(view).focus()
    for key, number in (("Home", 1), ("n", 201), ("n", 202)):
        page.keyboard.press(key)
        row(view, number, 1000)
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown")
    assert view.locator(".jl-col:has(.jl-ghost)").count() == 1  # rank 7 never issued the last call


def test_of_a_large_run_little_is_drawn_until_one_comes_closer(opened, many):
    page = opened(many, viewport={"width": 1300, "height": 900})
    view = every(page)
    marks = view.locator(".jl-chart svg *")
    assert marks.count() < 200 and view.locator(".jl-many").first.get_attribute("d").count("M") >= 1
    wrong = view.locator("rect.jl-bad title").all_text_contents()
    assert sum("meets what it should not" in one for one in wrong) == 2
    chart(view).focus()
    page.keyboard.press("n")
    for _ in range(9):
        page.keyboard.press("w")
        assert marks.count() < 2500
    assert view.locator(".jl-lane text").count() > 4  # single calls, named
    expect(view.locator(".jl-every .jl-told")).to_contain_text("dtype")
