"""The page in a real browser that refuses every external request."""

from __future__ import annotations

import os
import re
import shutil
from base64 import b64encode
from dataclasses import replace
from functools import partial
from html import unescape
from itertools import product
from pathlib import Path

import polars as pl
import pytest
import torch
import torch.distributed as dist

import joinlab
from joinlab.picture.first_screen import first_screen
from joinlab.picture.page import Position, write_html, write_sliders
from joinlab.picture.svg import svg
from joinlab.timeline import Ending
from tests.bench.large import large
from tests.timelines import Writer, case_timeline

pytestmark = pytest.mark.browser
pytest.importorskip("playwright.sync_api")
from playwright.sync_api import expect  # noqa: E402

from tests.browser import ARGS, barriers, watched  # noqa: E402
from tests.first_screen import one_raises  # noqa: E402
from tests.nightly import sampled  # noqa: E402

MATERIAL = Path(__file__).parents[1] / "material"
MIXED = "color-mix(in srgb, var(--soft) 35%, var(--paper))"

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


def every(page, at: int = 1):
    """The lanes of a run with every call, one after the other: a button behind "…" shows them."""
    view = first(page, at)
    view.get_by_role("button", name="More").click()
    view.get_by_role("button", name="every call", exact=True).click()
    view.locator(".jl-chart svg").wait_for()
    return view


def clock(page):
    """The lanes of a run on the clock."""
    view = first(page)
    view.get_by_role("switch", name="lanes on the clock").click()
    view.locator(".jl-chart svg").wait_for()
    return view


def scrub(view):
    return view.locator(".jl-scrub")


def row(view, number: int, of: int) -> None:
    expect(scrub(view)).to_have_attribute("aria-valuetext", re.compile(rf"^row {number} of {of}: "))


def drawn(view, lane: int = 0) -> list[str]:
    return view.locator(".jl-lane").nth(lane).locator("rect.jl-fill title").all_text_contents()


def test_both_pictures_are_drawn(opened):
    page = opened(viewport={"width": 1400, "height": 900})
    view = first(page)
    assert view.locator(".jl-col text:text-is('barrier')").count() == 1
    expect(view.locator(".jl-end")).to_have_text(["✕ waits…", "✕ waits…"])
    headline = view.locator(".jl-headline > span").text_content()
    expect(view.get_by_role("img", name=headline, exact=True)).to_have_count(1)
    assert page.locator("h2").first.text_content() == "Case 4 <b>"
    page.locator("#run-2").scroll_into_view_if_needed()
    expect(first(page, 2).locator(".jl-end")).to_have_text(["✓ finished", "✓ finished"])
    assert not page.locator(".still").first.is_visible()


def test_the_keyboard_reaches_every_call_and_its_details(opened):
    page = opened(viewport={"width": 1300, "height": 900})
    view = every(page)
    scrub(view).focus()
    page.keyboard.press("Home")
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    row(view, 5, 17)
    assert drawn(view)[4] == "rank 0: forward 2" and len(drawn(view)) == 17
    page.keyboard.press("Enter")
    card = view.locator(".jl-told .jl-two > div").first
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
    scrub(view).focus()
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    expect(view.locator(".jl-told")).to_contain_text("never ends")
    page.keyboard.press("Escape")
    expect(view.locator(".jl-told")).to_be_hidden()


def test_a_second_click_on_a_call_closes_its_details(opened):
    page = opened(viewport={"width": 1300, "height": 900})
    view = first(page)
    details = view.locator(".jl-told")
    box = view.locator(".jl-col .jl-fill").last
    for seen in (True, False, True):
        box.click(force=True)
        expect(details).to_be_visible(visible=seen)
    view.locator(".jl-col .jl-fill").nth(-3).click(force=True)  # another call
    expect(details).to_be_visible()
    call = clock(page).locator(".jl-lane .jl-fill").last
    call.click()
    expect(details).to_be_visible()
    call.click()
    expect(details).to_be_hidden()


def test_a_click_selects_and_a_stack_is_shown_call_by_call(opened):
    page = opened(viewport={"width": 1300, "height": 900})
    view = first(page)
    view.locator(".jl-col .jl-pile").last.click(force=True)
    view.get_by_role("button", name="one by one").click()
    view.locator(".jl-chart svg").wait_for()
    box = view.locator(".jl-lane").nth(1).locator("rect.jl-fill").nth(3)
    assert box.bounding_box()["width"] > 50
    box.click()
    expect(view.locator(".jl-told")).to_contain_text("forward 1")
    assert view.locator(".jl-chosen").count() == 2  # in both lanes


def test_after_a_click_on_a_call_the_keys_are_the_views(opened):
    page = opened(viewport={"width": 1300, "height": 900})
    view = first(page)
    view.locator(".jl-col .jl-fill").last.click(force=True)
    expect(view.locator(".jl-told")).to_be_visible()
    place = page.evaluate("scrollY")
    page.keyboard.press("Escape")
    expect(view.locator(".jl-told")).to_be_hidden()
    page.keyboard.press("c")
    expect(view.locator(".jl-switch")).to_have_attribute("aria-checked", "true")
    assert page.evaluate("scrollY") == place
    view.locator(".jl-lane rect.jl-fill").first.click()
    page.keyboard.press("c")
    expect(view.locator(".jl-switch")).to_have_attribute("aria-checked", "false")


def test_no_key_loses_the_focus(opened, tmp_path):
    run = joinlab.emulate(joinlab.cases.case_4, (2, 3))
    joinlab.diagnose(run)
    page = opened(write_html(run, tmp_path / "run.html"), viewport={"width": 1300, "height": 900})
    view = first(page)
    fix = view.locator(".jl-fix")
    fix.focus()
    for checked in ("true", "false"):
        page.keyboard.press("c")
        expect(view.locator(".jl-switch")).to_have_attribute("aria-checked", checked)
        expect(fix).to_be_focused()
    page.set_viewport_size({"width": 1250, "height": 900})
    page.wait_for_function("() => document.querySelector('.jl').clientWidth < 1250")
    page.keyboard.press("Enter")
    expect(fix).to_have_text("undo")
    expect(fix).to_be_focused()
    for close in ("Enter", "Escape"):
        scrub(view).focus()
        page.keyboard.press("Enter")
        view.locator(".jl-x").focus()
        page.keyboard.press(close)
        expect(view.locator(".jl-told")).to_be_hidden()
        expect(scrub(view)).to_be_focused()


def of_known_times():
    """Three calls of 20, 40 and 100 µs on each of two ranks; rank 1 comes 10 µs later."""
    writer = Writer()
    for rank in (0, 1):
        for at, took in ((0, 20_000), (40_000, 40_000), (100_000, 100_000)):
            begun, ended = at + 10_000 * rank, at + took
            times = {"enqueued_ns": begun, "started_ns": begun, "completed_ns": ended}
            waits = {"host_wait_begin_ns": begun, "host_wait_end_ns": ended}
            writer.call(rank, "all_reduce", **times, **waits)
    return writer.timeline([Ending("finished")] * 2)


def widths(view, lane: int = 0) -> list[dict[str, float]]:
    boxes = view.locator(".jl-lane").nth(lane).locator("rect.jl-fill")
    return [box.bounding_box() for box in boxes.all()]


def test_on_the_clock_a_call_is_as_long_as_it_took_and_the_axis_has_its_unit(opened, tmp_path):
    page = opened(
        write_html(of_known_times(), tmp_path / "run.html"), viewport={"width": 1300, "height": 900}
    )
    view = clock(page)
    boxes = widths(view)
    unit = boxes[0]["width"]
    assert [round(box["width"] / unit) for box in boxes] == [1, 2, 5]
    assert [round((box["x"] - boxes[0]["x"]) / unit) for box in boxes] == [0, 2, 5]
    axis = view.locator(".jl-unit")
    expect(axis).to_have_text("µs, recorded")
    box = axis.bounding_box()
    middle = [box["x"] + box["width"] / 2, box["y"] + box["height"] / 2]
    on_top = "([x, y]) => document.elementsFromPoint(x, y).find((one) => one.matches('svg, svg *')).nodeName"
    axis.evaluate("(one) => { one.style.pointerEvents = 'auto'; }")
    assert page.evaluate(on_top, middle) == "text"  # nothing is painted over it
    waits = [box.bounding_box() for box in view.locator(".jl-waiting:not(.jl-key)").all()]
    assert len(waits) == 6 and abs(waits[0]["width"] - unit) < 1
    assert view.locator(".jl-ribbon").count() == 3  # between the calls that met


def test_the_clock_zooms_where_the_pointer_is_pans_and_shows_all_again(opened, tmp_path):
    page = opened(
        write_html(of_known_times(), tmp_path / "run.html"), viewport={"width": 1300, "height": 900}
    )
    view = clock(page)
    last = widths(view)[2]
    x, y = last["x"] + last["width"] / 2, last["y"] + 10
    page.mouse.move(x, y)
    page.mouse.wheel(0, -100)
    larger = widths(view)[-1]
    assert abs(larger["width"] / last["width"] - 1.25) < 0.01
    assert abs(larger["x"] + larger["width"] / 2 - x) < 2  # what was under the pointer stays there
    assert view.locator(".jl-window").is_visible()
    page.mouse.down()
    page.mouse.move(x - 60, y, steps=4)
    page.mouse.up()
    assert abs(widths(view)[-1]["x"] - larger["x"] + 60) < 2
    expect(view.locator(".jl-told")).to_be_hidden()  # a drag selects nothing
    page.mouse.dblclick(x, y + 60)
    assert abs(widths(view)[2]["width"] - last["width"]) < 3  # it is marked, by a wide edge
    view.locator(".jl-x").click()
    page.mouse.move(x, y)
    page.mouse.wheel(0, 100)  # all is shown: the page may scroll
    assert abs(widths(view)[2]["width"] - last["width"]) < 1
    scrub(view).focus()
    page.keyboard.press("w")
    assert (
        widths(view)[-1]["width"] > 1.4 * last["width"] and view.locator(".jl-window").is_visible()
    )
    page.keyboard.press("f")
    assert abs(widths(view)[2]["width"] - last["width"]) < 1


def test_the_clock_keeps_its_zoom_when_a_scrollbar_or_a_key_changes_its_room(browser, tmp_path):
    """Other tests run without scrollbars, where the details of a call change no width."""
    path = write_html(joinlab.emulate(joinlab.cases.case_4, (5, 6)), tmp_path / "run.html")
    chromium = browser.browser_type.launch(
        executable_path=os.environ.get("CHROMIUM") or shutil.which("chromium"),
        args=ARGS,
        ignore_default_args=["--hide-scrollbars"],
    )
    size = {"width": 1280, "height": 800}
    with watched(chromium, [path.as_uri()], viewport=size) as page:
        page.goto(path.as_uri())
        view = clock(page)
        height = page.evaluate("document.documentElement.scrollHeight")
        page.set_viewport_size({"width": 1280, "height": height + 9})
        page.wait_for_function("() => document.documentElement.clientWidth === 1280")
        call = view.locator(".jl-lane rect.jl-fill").nth(6).bounding_box()
        page.mouse.move(call["x"] + call["width"] / 2, call["y"] + 5)
        for _ in range(4):
            page.mouse.wheel(0, -100)
        wide = view.evaluate("(one) => one.clientWidth")
        shown = view.locator(".jl-rule ~ .jl-num:not(.jl-unit)")
        before = shown.all_text_contents()
        page.mouse.down()
        page.mouse.up()
        expect(view.locator(".jl-told")).to_be_visible()
        page.wait_for_function(
            "(wide) => document.querySelector('.jl').clientWidth < wide", arg=wide
        )
        assert shown.all_text_contents() == before
        for _ in range(2):
            page.keyboard.press("t")
        assert shown.all_text_contents() == before
        page.keyboard.press("c")
        page.keyboard.press("c")
        assert shown.first.text_content() == "0"  # all, as at first
    chromium.close()


def test_the_pointer_reads_the_time_and_what_each_rank_does(opened, tmp_path):
    page = opened(
        write_html(of_known_times(), tmp_path / "run.html"), viewport={"width": 1300, "height": 900}
    )
    view = clock(page)
    box = widths(view)[1]
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 5)
    expect(view.locator(".jl-cursor")).to_have_attribute("visibility", "visible")
    expect(view.locator(".jl-cursor text")).to_have_text("60.0 µs")
    told = view.locator(".jl-step p")
    expect(told).to_have_count(2)
    expect(told.first).to_have_text(
        "rank 0 waits in all-reduce, line 12, for 40 µs; rank 1 came 10 µs later"
    )
    expect(told.last).to_have_text("rank 1 waits in all-reduce, line 12, for 30 µs")
    assert view.locator(".jl-before").count() == 0  # the verdict stays
    page.mouse.move(5, 5)
    expect(view.locator(".jl-cursor")).to_have_attribute("visibility", "hidden")


def test_a_program_walks_off_while_its_queue_is_stuck_or_waits_for_it(opened, tmp_path):
    """Cases 2 and 3 on modelled NCCL differ in the barrier that makes rank 1's program wait."""
    ends = {}
    for case in (2, 3):
        run = joinlab.emulate(getattr(joinlab.cases, f"case_{case}"), (2, 3), latency=250e-6)
        page = opened(
            write_html(run, tmp_path / f"{case}.html"), viewport={"width": 1300, "height": 900}
        )
        view = clock(page)
        stuck = view.locator(".jl-lane").nth(1).locator(".jl-fill.jl-bad").first.bounding_box()
        runs = view.locator(".jl-lane").nth(1).locator(".jl-runs").bounding_box()
        ends[case] = runs["x"] + runs["width"] - stuck["x"] - stuck["width"]
        expect(view.locator(".jl-unit")).to_have_text("ms, modelled")
        expect(view.locator(".jl-end").nth(1)).to_contain_text(["✓ finished", "✕ waits"][case - 2])
    assert ends[2] < -50 and ends[3] > -10
    assert drawn(view, 1)[-1] == "rank 1: barrier, queued"
    said = view.locator(".jl-step p").nth(1)
    expect(said).to_contain_text("rank 1 waits in barrier")
    expect(said).to_contain_text(re.compile(r"its queue has backward, line \d+, never ends"))


def test_what_a_program_that_is_over_left_in_its_queue_is_left_pending(opened, tmp_path):
    run = joinlab.emulate(joinlab.cases.case_2, (2, 3))
    page = opened(write_html(run, tmp_path / "run.html"), viewport={"width": 1300, "height": 900})
    view = clock(page)
    expect(view.locator(".jl-end").nth(1)).to_contain_text("call pending")
    said = view.locator(".jl-step p").nth(1)
    expect(said).to_contain_text(re.compile(r"its queue has backward, line \d+, left pending"))
    titles = view.locator(".jl-lane").nth(1).locator("rect.jl-bad title")
    assert set(titles.all_text_contents()) == {"rank 1: backward, left pending"}
    view.locator(".jl-lane").nth(1).locator("rect.jl-bad").click()
    expect(view.locator(".jl-told")).to_contain_text("left pending")


def test_a_wait_behind_the_loop_is_in_no_input(opened, tmp_path):
    """The barrier waits for the calls before it, too, of the last two inputs."""
    run = joinlab.emulate(one_raises, (5, 5, 5))
    page = opened(write_html(run, tmp_path / "run.html"), viewport={"width": 1440, "height": 900})
    lane = clock(page).locator(".jl-lane").first
    bands = lane.locator(".jl-band + text").all_text_contents()
    assert [text.removeprefix("input ") for text in bands] == ["1", "2", "3", "4", "5"]
    last = lane.locator(".jl-band").last.bounding_box()
    wait = lane.locator(".jl-waiting").last.bounding_box()
    assert last["x"] + last["width"] <= wait["x"] + 1
    expect(page.locator(".jl-end").nth(1)).to_have_text("✕ raises ValueError")


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
    assert page.url.endswith("#case=2&barrier=1&inputs=3,3&row=")
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
        """() => ['.jl-chart text', 'body'].map((name, at) => {
            const style = getComputedStyle(document.querySelector(name));
            const [r, g, b] = (at ? style.backgroundColor : style.fill).match(/\\d+/g).map(Number);
            return r + g + b; })"""
    )
    assert abs(ink - paper) > 350  # dark on light, or light on dark
    over = view.locator(".jl-chart svg").evaluate(
        """(svg) => { const all = svg.getBoundingClientRect();
            return [...svg.querySelectorAll("text")].filter((text) => { const one = text.getBoundingClientRect();
                return one.right > all.right + 1 || one.left < all.left - 1 || one.bottom > all.bottom + 1; })
                .map((text) => text.textContent); }"""
    )
    assert over == []


def test_front_ends_that_ask_for_html_get_a_picture_that_answers(opened, tmp_path):
    timeline = case_timeline(4, 2)
    # joinlab gives it the method when it is loaded through joinlab
    assert isinstance(timeline, joinlab.Timeline)
    (tmp_path / "cell.html").write_text(f"<!doctype html>{timeline._repr_html_()}", "utf-8")
    frame = opened(tmp_path / "cell.html").frame_locator("iframe")
    frame.locator(".jl-col .jl-fill").last.click(force=True)
    expect(frame.locator(".jl-told").first).to_contain_text("never ends")


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
    opened, tmp_path, monkeypatch
):
    """The picture on paper, in a mail and in a reopened notebook has the same boxes as the
    screen."""
    run = joinlab.emulate(joinlab.cases.case_4, (5, 6))
    page = opened(write_html(run, tmp_path / "run.html"), viewport={"width": 1200, "height": 900})
    boxes = first(page).locator(".jl-col rect.jl-fill")
    live = boxes.evaluate_all(SHAPES)
    wide = int(page.locator(".jl-scene").get_attribute("width"))
    monkeypatch.setattr("joinlab.picture.svg.WIDTH", wide)
    (tmp_path / "still.html").write_text(svg(first_screen(run)), "utf-8")
    still = opened(tmp_path / "still.html").locator("rect.fill").evaluate_all(SHAPES)
    assert len(live) == len(still) == 18
    for one, other in zip(live, still, strict=True):
        assert one[:4] == pytest.approx(other[:4], abs=0.2)
        assert one[4] == other[4]


@pytest.mark.parametrize(
    ("which", "scheme"),
    sampled(
        product(("file", "sliders", "many"), ("light", "dark")),
        {("file", "light"), ("sliders", "dark"), ("many", "light")}.__contains__,
    ),
)
def test_axe_finds_no_serious_violation(opened, request, axe, which, scheme):
    page = opened(
        request.getfixturevalue(which), viewport={"width": 1300, "height": 900}, color_scheme=scheme
    )
    view = every(page)
    assert barriers(page, axe) == []
    view.get_by_role("switch", name="lanes on the clock").click()
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
    # and the last, which hangs
    assert strip.get_attribute("aria-label") == "The whole run: 1,000 rows, 701 of them wrong"
    assert strip.locator(".jl-alarm").first.evaluate("(one) => getComputedStyle(one).fill")
    fills = {one.get_attribute("fill") for one in strip.locator(".jl-many").all()}
    assert len(fills) > 2  # each piece has the colour of a kind
    scrub(view).focus()
    for number in (201, 202):
        page.keyboard.press("n")
        expect(view.locator(".jl-told")).to_contain_text(f" {number}")
    expect(view.locator(".jl-told")).to_contain_text("should not have")


def test_of_a_large_run_little_is_drawn_until_one_comes_closer(opened, many):
    page = opened(many, viewport={"width": 1300, "height": 900})
    view = every(page)
    for on_the_clock in (False, True):
        if on_the_clock:
            view.get_by_role("switch", name="lanes on the clock").click()
        marks = view.locator(".jl-chart svg *")
        assert marks.count() < 600
        many = view.locator(".jl-lane .jl-many")
        assert len({one.get_attribute("fill") for one in many.all()}) > 2  # kinds, and mixed ones
        wrong = view.locator("rect.jl-bad title").all_text_contents()
        assert sum("meets what it should not" in one for one in wrong) == 2
        scrub(view).focus()
        page.keyboard.press("n")
        for _ in range(9):
            page.keyboard.press("w")
            assert marks.count() < 2500
        assert view.locator(".jl-lane text").count() > 4  # single calls, named
        expect(view.locator(".jl-told")).to_contain_text("dtype")


def in_turn(rank, inputs):
    for _ in inputs:
        dist.all_reduce(torch.ones(8))
        dist.broadcast(torch.ones(8), 0)
        dist.barrier()


def test_where_calls_of_some_kinds_alternate_no_kind_gives_its_colour(opened, tmp_path):
    """Each kind takes a third of every piece: rounding would choose, and seem to tell something."""
    run = joinlab.emulate(in_turn, (700, 700))
    page = opened(write_html(run, tmp_path / "run.html"), viewport={"width": 1300, "height": 900})
    view = every(page)
    merged = view.locator(":is(.jl-chart .jl-lane, .jl-strip) .jl-many")
    assert {one.get_attribute("fill") for one in merged.all()} == {MIXED}
    view.get_by_role("switch").click()
    strip = view.locator(".jl-strip .jl-many")
    assert {one.get_attribute("fill") for one in strip.all()} == {MIXED}
    view.get_by_role("button", name="every call", exact=True).click()
    expect(view.locator(".jl-legend")).to_contain_text("several kinds")
    scrub(view).focus()
    for _ in range(9):
        page.keyboard.press("w")
    assert (
        len({one.get_attribute("fill") for one in view.locator(".jl-lane rect.jl-fill").all()}) == 3
    )


def test_the_code_follows_the_play_head_and_the_verdict_waits_for_it(opened, tmp_path):
    """Of case 2, rank 0 is over where rank 1's last backward meets nothing."""
    run = joinlab.emulate(joinlab.cases.case_2, (5, 6))
    joinlab.diagnose(run)
    page = opened(write_html(run, tmp_path / "run.html"), viewport={"width": 1300, "height": 900})
    view = page.locator(".jl")
    headline, fix = view.locator(".jl-headline > span"), view.locator(".jl-add").first
    expect(headline).to_be_visible()  # one has not played
    expect(fix).to_be_visible()
    scrub(view).focus()
    page.keyboard.press("Home")
    expect(headline).to_be_hidden()
    expect(fix).to_be_hidden()
    lines = {}
    for mark in view.locator(".jl-here b").all():
        row = mark.locator("xpath=ancestor::div[1]")
        lines[mark.text_content()] = row.text_content()
    assert len(lines) == 1 and "backward()" in lines["0 1"]
    words = view.locator(".jl-step")
    expect(words).to_contain_text("all matched")
    below = words.bounding_box()["y"] - scrub(view).bounding_box()["y"]
    assert 0 < below < 80  # under the scrubber, in sight
    page.keyboard.press("End")
    expect(words).to_contain_text("backward")
    expect(view.locator(".jl-here b")).to_have_text(["1"])
    expect(headline).to_be_visible()
    expect(fix).to_be_visible()


def test_order_and_clock_keep_the_play_head_and_the_focus_and_mark_where_a_program_is(
    opened, tmp_path
):
    run = joinlab.emulate(joinlab.cases.case_4, (2, 3))
    page = opened(write_html(run, tmp_path / "run.html"), viewport={"width": 1300, "height": 900})
    view = first(page)
    scrub(view).focus()
    for key in ("Home", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    place = scrub(view).get_attribute("aria-valuetext")
    page.keyboard.press("c")
    expect(scrub(view)).to_have_attribute(
        "aria-valuetext", re.compile(r"^2\.\d+ ms: .*sync gradients")
    )
    expect(scrub(view)).to_be_focused()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("c")
    expect(scrub(view)).to_have_attribute("aria-valuetext", place)
    page.keyboard.press("c")
    line = view.locator(".jl-code > div", has_text="loss.backward()")
    for work in view.locator(".jl-host:not(.jl-key)", has_text="backward").all():
        box = work.bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        expect(view.locator(".jl-step")).to_contain_text(re.compile(r"rank . backward of input"))
        expect(line.locator(".jl-here b")).to_be_visible()


def in_the_queue(rank, inputs):
    one = torch.ones(1)
    for _ in inputs:
        dist.all_reduce(one)
        dist.all_gather([torch.empty(1) for _ in range(dist.get_world_size())], one)
        dist.broadcast(one, 0)
        dist.barrier()


def test_what_waits_in_the_queue_stands_behind_the_call_that_holds_it(opened, tmp_path):
    run = joinlab.emulate(in_the_queue, (40, 40, 39))
    page = opened(write_html(run, tmp_path / "run.html"), viewport={"width": 1300, "height": 900})
    lane = clock(page).locator(".jl-lane").first
    boxes = {box.text_content(): box.bounding_box() for box in lane.locator(".jl-bad").all()}
    stuck = boxes.pop("rank 0: all-reduce, never ends")
    assert len(boxes) == 3 and all("queued" in title for title in boxes)
    assert all(box["x"] >= stuck["x"] + stuck["width"] - 1 for box in boxes.values())
    expect(lane.locator("text", has_text="all-reduce")).to_have_count(1)


def crosswise(rank, inputs):
    for _ in inputs:
        calls = [dist.all_reduce, partial(dist.broadcast, src=0)]
        for call in calls[:: -1 if rank == 1 else 1]:
            call(torch.ones(8))


def test_calls_that_do_not_belong_together_are_marked_between_all_lanes(opened, tmp_path):
    run = joinlab.emulate(crosswise, (2, 2, 2))
    page = opened(write_html(run, tmp_path / "run.html"), viewport={"width": 1300, "height": 900})
    marks = [mark.bounding_box() for mark in clock(page).locator(".jl-chart .jl-ne").all()]
    gaps = [sorted(mark["x"] for mark in marks if mark["y"] == y) for y in {m["y"] for m in marks}]
    assert len(gaps) == 2 and gaps[0] == gaps[1]


@pytest.mark.parametrize("width", sampled([1300, 390], (1300).__eq__))
def test_the_fix_is_a_button_and_can_be_undone(opened, tmp_path, width):
    run = joinlab.emulate(joinlab.cases.case_4, (2, 3))
    joinlab.diagnose(run)
    page = opened(write_html(run, tmp_path / "run.html"), viewport={"width": width, "height": 900})
    view = page.locator(".jl")
    ends, headline = view.locator(".jl-stage .jl-end"), view.locator(".jl-headline")
    expect(ends).to_have_text(["✓ finished", "✕ waits…"])
    before, button = headline.text_content(), view.locator(".jl-do button")
    expect(button).to_have_text("apply")
    place = button.bounding_box()
    button.click()
    expect(ends).to_have_text(["✓ finished", "✓ finished"])
    expect(headline).to_contain_text("every call met its counterpart")
    expect(view.locator(".jl-do")).to_contain_text("The program with the fix, emulated.")
    assert width < 400 or button.bounding_box()["x"] == place["x"]
    page.keyboard.press("c")  # the focus stays in the view
    expect(view.locator(".jl-lane")).to_have_count(2)
    expect(ends).to_have_text(["✓ finished", "✓ finished"])
    expect(button).to_have_text("undo")
    button.focus()
    page.keyboard.press("Enter")
    page.keyboard.press("c")
    expect(ends).to_have_text(["✓ finished", "✕ waits…"])
    assert headline.text_content() == before


@pytest.mark.parametrize("width", sampled([1300, 390], (390).__eq__))
def test_of_8_ranks_those_alike_share_a_lane_and_no_word_is_cut(opened, tmp_path, width):
    run = joinlab.emulate(joinlab.cases.case_4, (2, 3, 2, 2, 3, 3, 2, 4))
    page = opened(write_html(run, tmp_path / "run.html"), viewport={"width": width, "height": 900})
    view = clock(page)
    expect(view.locator(".jl-lane")).to_have_count(3)
    expect(view.locator(".jl-step p").nth(1)).to_contain_text("ranks 1, 4, 5 wait in")
    expect(view.locator(".jl-step p").nth(2)).to_contain_text("rank 7 waits in")
    cut = view.evaluate(
        """(view) => { const edge = view.querySelector(".jl-stage").getBoundingClientRect().right;
            return [...view.querySelectorAll(".jl-end text, .jl-rank *")]
                .filter((one) => one.getBoundingClientRect().right > edge + 1)
                .map((one) => one.outerHTML); }"""
    )
    assert cut == []


def test_of_8_ranks_each_lane_says_how_many_inputs_it_had(opened, tmp_path):
    run = joinlab.emulate(joinlab.cases.case_4, (2, *[3] * 7))
    page = opened(write_html(run, tmp_path / "run.html"), viewport={"width": 1300, "height": 900})
    heads = first(page).locator(".jl-rank")
    expect(heads).to_contain_text([re.compile("rank 0.*2 inputs"), re.compile("7 ranks.*3 inputs")])


@pytest.mark.parametrize("ranks", sampled([16, 64], (16).__eq__))
def test_on_a_phone_what_is_said_of_a_lane_is_whole_and_above_its_boxes(opened, tmp_path, ranks):
    run = joinlab.emulate(joinlab.cases.case_4, (2, *[3] * (ranks - 1)))
    page = opened(write_html(run, tmp_path / "run.html"), viewport={"width": 390, "height": 844})
    view = first(page)
    expect(view.locator(".jl-rank small")).to_have_text(["2 inputs", "3 inputs"])
    assert all(one.bounding_box()["height"] < 24 for one in view.locator(".jl-rank small").all())
    boxes = view.locator(".jl-scene .jl-fill").first.bounding_box()
    dots = view.locator(".jl-rank svg").all()
    lowest = max(one.bounding_box()["y"] + one.bounding_box()["height"] for one in dots)
    assert len(dots) == 2 and lowest < boxes["y"] + 6


@pytest.mark.parametrize(("ranks", "width"), sampled([(2, 390), (3, 1300)], (2, 390).__eq__))
def test_on_the_clock_the_calls_of_the_sentence_have_names(opened, tmp_path, ranks, width):
    """They take microseconds of a run of milliseconds, and stand between lanes that have words, too."""
    run = joinlab.emulate(joinlab.cases.case_4, (5, *[6] * (ranks - 1)))
    page = opened(write_html(run, tmp_path / "run.html"), viewport={"width": width, "height": 844})
    view = clock(page)
    names = view.locator(".jl-clashing")
    expect(names).to_have_text(["anyone left?", "barrier"])
    over = view.evaluate(
        """(view) => { const box = (one) => one.getBoundingClientRect(),
                words = [...view.querySelectorAll(".jl-chart text")];
            return [...view.querySelectorAll(".jl-clashing")].flatMap((name) => words
                .filter((word) => word !== name
                    && Math.min(box(name).right, box(word).right) > Math.max(box(name).left, box(word).left)
                    && Math.min(box(name).bottom, box(word).bottom) - 3 > Math.max(box(name).top, box(word).top))
                .map((word) => word.textContent)); }"""
    )
    assert over == []


@pytest.mark.parametrize("width", sampled([1300, 390], (390).__eq__))
def test_nothing_moves_while_the_pointer_reads_the_clock(opened, tmp_path, width):
    run = joinlab.emulate(joinlab.cases.case_4, (5, *[6] * 7))
    page = opened(write_html(run, tmp_path / "run.html"), viewport={"width": width, "height": 900})
    view = clock(page)
    box = view.locator(".jl-chart svg").bounding_box()
    tops, words = set(), set()
    for part in range(1, 30):
        across = (0.4, part / 30) if width < 400 else (part / 30, 0.4)
        page.mouse.move(box["x"] + box["width"] * across[0], box["y"] + box["height"] * across[1])
        tops.add(view.locator(".jl-low").bounding_box()["y"])
        words.add(view.locator(".jl-step").text_content())
    assert len(words) > 9 and len(tops) == 1


@pytest.mark.parametrize("axis", ["order", "clock"])
def test_on_a_phone_the_details_leave_the_call_in_sight(opened, tmp_path, axis):
    run = joinlab.emulate(joinlab.cases.case_4, (5, 6))
    page = opened(
        write_html(run, tmp_path / "run.html"),
        viewport={"width": 390, "height": 844},
        has_touch=True,
        is_mobile=True,
    )
    view = clock(page) if axis == "clock" else first(page)
    call = view.locator(".jl-stage rect.jl-fill:not(.jl-pile)").last
    place = call.bounding_box()
    page.touchscreen.tap(place["x"] + place["width"] / 2, place["y"] + place["height"] / 2)
    expect(view.locator(".jl-told")).to_be_visible()
    chosen = ".jl-chosen .jl-fill, .jl-fill.jl-chosen"
    page.wait_for_function(
        """(chosen) => document.querySelector(chosen).getBoundingClientRect().bottom
            < document.querySelector(".jl-told").getBoundingClientRect().top""",
        arg=chosen,
    )


def test_on_the_clock_an_ending_has_the_colour_of_its_tone_and_a_call_that_is_told_is_marked(
    opened, tmp_path
):
    run = joinlab.emulate(joinlab.cases.case_1, (2, 3))
    page = opened(write_html(run, tmp_path / "run.html"), viewport={"width": 1300, "height": 900})
    view = clock(page)
    fill, stroke = (f"(one) => getComputedStyle(one).{name}" for name in ("fill", "stroke"))
    good = view.locator(".jl-end text").first.evaluate(fill)
    assert good != view.locator(".jl-band + text").first.evaluate(fill)
    call = view.locator(".jl-lane .jl-fill").last
    before = call.evaluate(stroke)
    scrub(view).focus()
    page.keyboard.press("Enter")
    expect(view.locator(".jl-told")).to_be_visible()
    assert view.locator(".jl-chart .jl-chosen").first.evaluate(stroke) != before


@pytest.mark.parametrize("scheme", sampled(["light", "dark"], "dark".__eq__))
def test_on_the_clock_a_name_is_within_its_box_with_nothing_over_it(opened, tmp_path, scheme):
    """Calls overlap, and a program waits within its forward and backward."""
    run = joinlab.launch(joinlab.cases.case_4, (5, 6), "gloo", on_output=None, progress=False)
    page = opened(
        write_html(run, tmp_path / "run.html"),
        viewport={"width": 1440, "height": 900},
        color_scheme=scheme,
    )
    view = clock(page)
    names, bad = view.evaluate(
        """(view) => { const all = [...view.querySelectorAll(".jl-lane *")];
            const box = (one) => one.getBoundingClientRect();
            const shade = (text) => { const [r, g, b] = text.match(/[\\d.]+/g).map(Number)
                .map((n) => n / 255).map((n) => n <= 0.04045 ? n / 12.92 : ((n + 0.055) / 1.055) ** 2.4);
                return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05; };
            const over = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 2
                && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 2;
            const texts = all.filter((one) => one.matches("text:not(.jl-end *)")), bad = [];
            for (const text of texts) {
                if (text.textContent === "out of inputs") continue; // beside the bands
                const at = box(text), i = all.indexOf(text);
                const under = all.slice(0, i).filter((one) => one.matches("rect") && over(box(one), at)
                    && !one.matches(".jl-waiting")).at(-1), room = box(under);
                const [ink, fill] = [text, under].map((one) => shade(getComputedStyle(one).fill));
                const ratio = Math.max(ink, fill) / Math.min(ink, fill);
                const middle = (at.top + at.bottom) / 2, size = parseFloat(getComputedStyle(text).fontSize);
                const fits = at.left >= room.left - 1 && at.right <= room.right + 1
                    && middle - size / 2 >= room.top - 1 && middle + size / 2 <= room.bottom + 1;
                const covered = all.slice(i + 1).some((one) => !one.closest("text, title")
                    && over(box(one), at) && !one.matches("path, title"));
                if (!fits || covered || ratio < 4.5)
                    bad.push([text.textContent, fits, covered, ratio]); }
            return [texts.length, bad]; }"""
    )
    assert names > 12 and bad == []


def test_back_goes_back_to_the_case_before(opened, sliders):
    page = opened(sliders, viewport={"width": 1300, "height": 900})
    view = page.locator(".jl")
    headline = view.locator(".jl-headline")
    before, address = headline.text_content(), page.url
    assert "#case=2" in address
    page.get_by_role("slider", name="rank 0: inputs").press("ArrowRight")
    moved = page.url
    assert moved != address  # a move of the dots is no step of the history
    page.get_by_role("combobox", name="Program").select_option("case 1")
    expect(headline).not_to_have_text(before)
    assert "#case=1" in page.url
    page.go_back()
    page.wait_for_function("(url) => location.href === url", arg=moved)
    expect(page.get_by_role("combobox", name="Program")).to_have_value("case 4")
    page.go_forward()
    expect(page.get_by_role("combobox", name="Program")).to_have_value("case 1")


@pytest.mark.parametrize(
    ("width", "scheme"), sampled([(390, "dark"), (1300, "light")], lambda row: row[0] == 1300)
)
def test_a_picture_to_share_is_twice_as_wide_as_high_and_has_all_four_parts(
    opened, tmp_path, width, scheme
):
    run = joinlab.emulate(joinlab.cases.case_4, (2, 3))
    joinlab.diagnose(run)
    page = opened(
        write_html(run, tmp_path / "run.html"),
        viewport={"width": width, "height": 900},
        color_scheme=scheme,
    )
    page.evaluate(
        """() => { const real = XMLSerializer.prototype.serializeToString;
            XMLSerializer.prototype.serializeToString = function (node) {
                window.drawn = node.textContent; return real.call(this, node); }; }"""
    )
    page.locator(".jl-opener").click()
    with page.expect_download() as saved:
        page.get_by_role("button", name="picture to share").click()
    assert saved.value.suggested_filename == "case_4_inputs_2_3_emulated_on_nccl.png"
    png = saved.value.path().read_bytes()
    assert [int.from_bytes(png[at : at + 4], "big") for at in (16, 20)] == [2400, 1200]
    text = page.evaluate("window.drawn")
    for part in ("barrier answered", "who is last?", "dist.barrier()", "Tried: both finish."):
        assert part in text
    assert "order" not in text and page.locator(".jl").count() == 1  # no controls; nothing is left
    colours = page.evaluate(
        """async (png) => { const image = new Image();
            image.src = `data:image/png;base64,${png}`;
            await image.decode();
            const canvas = document.createElement("canvas"), pen = canvas.getContext("2d");
            [canvas.width, canvas.height] = [1200, 600];
            pen.drawImage(image, 0, 0, 1200, 600);
            const { data } = pen.getImageData(0, 0, 1200, 600), seen = {};
            for (let i = 0; i < data.length; i += 4) {
                const key = [data[i], data[i + 1], data[i + 2]].map((n) => n >> 4).join();
                seen[key] = (seen[key] ?? 0) + 1; }
            return Object.values(seen).sort((a, b) => b - a); }""",
        b64encode(png).decode(),
    )
    assert len(colours) > 50 and colours[0] < 0.9 * 1200 * 600  # it is not blank


def around(rank, inputs):
    for _ in inputs:
        dist.all_reduce(torch.ones(1))


def test_a_picture_to_share_has_all_lanes_and_no_scrollbar(opened, tmp_path):
    run = joinlab.emulate(around, (3, 3, 3, 3))
    page = opened(write_html(run, tmp_path / "run.html"), viewport={"width": 1300, "height": 500})
    page.evaluate(
        """() => { const real = XMLSerializer.prototype.serializeToString;
            XMLSerializer.prototype.serializeToString = function (node) {
                const { scrollHeight, clientHeight } = node.querySelector(".jl-chart");
                window.cut = scrollHeight - clientHeight; return real.call(this, node); }; }"""
    )
    view = clock(page)
    chart = view.locator(".jl-chart").evaluate("(one) => one.scrollHeight - one.clientHeight")
    assert chart > 0  # on the page it scrolls
    page.locator(".jl-opener").click()
    with page.expect_download():
        page.get_by_role("button", name="picture to share").click()
    assert page.evaluate("window.cut") == 0


def test_the_address_of_what_is_shown_can_be_copied(opened, tmp_path):
    run = joinlab.emulate(joinlab.cases.case_4, (2, 3))
    joinlab.diagnose(run)
    page = opened(write_html(run, tmp_path / "run.html"), viewport={"width": 1300, "height": 900})
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    clock(page)
    page.locator(".jl-opener").click()
    page.get_by_role("button", name="copy link").click()
    expect(page.get_by_role("button", name="copied")).to_be_visible()
    address = page.evaluate("navigator.clipboard.readText()")
    assert address == page.url and "#clock=" in address
    view = page.locator(".jl")
    view.locator(".jl-fix").click()
    expect(view.locator(".jl-fix")).to_have_text("undo")
    view.get_by_role("button", name="copy link").click()  # another one: no longer "copied"
    expect(page.get_by_role("button", name="copied")).to_be_visible()
    mended = page.evaluate("navigator.clipboard.readText()")
    assert "fix=" in mended
    for link, shown in ((address, "apply"), (mended, "undo")):
        page.goto("about:blank")
        page.goto(link)
        expect(view.locator(".jl-fix")).to_have_text(shown)


def test_a_page_of_a_launched_run_offers_no_fix_that_it_could_not_look_for(opened, tmp_path):
    run = joinlab.launch(joinlab.cases.case_4, (1, 2), "gloo", on_output=None, progress=False)
    run.meta["side_effects"] = {0: "wrote a file"}
    page = opened(write_html(run, tmp_path / "run.html"))
    expect(page.locator(".jl-do")).to_contain_text("No fix was tried")
    expect(page.locator(".jl-do button")).to_have_count(0)


def test_a_page_of_a_launched_run_has_its_fix_to_apply_and_says_that_it_is_emulated(
    opened, tmp_path
):
    run = joinlab.launch(joinlab.cases.case_4, (1, 2), "gloo", on_output=None, progress=False)
    page = opened(write_html(run, tmp_path / "run.html"))
    expect(page.locator(".jl-do")).to_contain_text("Tried, emulated")
    page.locator(".jl-do").get_by_role("button").first.click()
    expect(page.locator(".jl-headline")).to_contain_text("Both ranks finished")


def test_a_log_that_tells_no_times_has_no_clock(opened, tmp_path):
    text = MATERIAL / "logs" / "watchdog_2_4.log"
    run = joinlab.load(text)
    page = opened(write_html(run, tmp_path / "run.html"))
    view = first(page)
    expect(view.get_by_role("switch")).to_be_hidden()
    view.locator(".jl-scrub").press("c")
    assert "clock" not in page.url
    view.locator(".jl-col").first.click()
    for place in (".jl-told .jl-tone-bad", ".jl-sub"):
        expect(view.locator(place).first).to_have_text("no end on record")
    row(every(page), 1, 1)


def test_a_log_has_no_lane_for_a_rank_of_which_it_tells_no_call(opened, tmp_path):
    run = joinlab.load(MATERIAL / "logs" / "watchdog_2_4.log")
    page = opened(write_html(run, tmp_path / "run.html"))
    expect(page.locator(".jl-rank b")).to_have_text(["rank 0", "rank 1", "rank 2"])
    expect(page.locator(".jl-do code")).to_have_text("joinlab record")


def test_the_code_of_two_runs_stands_above_their_pictures(opened, tmp_path):
    runs = [joinlab.emulate(case, (1, 2)) for case in (joinlab.cases.case_4, joinlab.cases.case_6)]
    path = write_html(runs, tmp_path / "two.html", compare=True)
    for width in (390, 1300):
        page = opened(path, viewport={"width": width, "height": 844})
        places = [page.locator(what).first.bounding_box()["y"] for what in (".jl-do", ".jl-which")]
        assert places == sorted(places) and places[0] < 400


def rank_0_alone(rank, inputs):
    if rank == 0:
        dist.all_reduce(torch.ones(1))


def test_a_rank_without_calls_has_an_empty_lane_on_the_clock(opened, tmp_path):
    run = joinlab.emulate(rank_0_alone, (1, 1))
    page = opened(write_html(run, tmp_path / "run.html"))
    programs = clock(page).locator(".jl-runs")
    assert [float(one.get_attribute("width")) > 0 for one in programs.all()] == [True, False]


@pytest.mark.parametrize("width", sampled([390, 1440], (390).__eq__))
def test_a_line_that_the_fix_takes_out_is_struck_on_every_screen(opened, tmp_path, width):
    run = joinlab.emulate(joinlab.cases.case_3, (2, 3))
    page = opened(write_html(run, tmp_path / "run.html"), viewport={"width": width, "height": 900})
    code = first(page).locator(".jl-code")
    expect(code.locator("s")).to_be_visible()
    expect(code.locator(".jl-add")).to_have_count(2)


def test_on_a_phone_the_clock_has_its_fix_and_what_is_pending_in_sight(opened, tmp_path):
    run = joinlab.emulate(joinlab.cases.case_2, (5, 6))
    page = opened(write_html(run, tmp_path / "run.html"), viewport={"width": 390, "height": 844})
    view = clock(page)
    expect(view.locator(".jl-end").last).to_have_text("✓ finishedcall pending")
    fix = view.locator(".jl-fix").bounding_box()
    assert fix["y"] + fix["height"] < 844


def test_on_a_phone_a_sweep_has_its_fix_in_sight_and_its_dots_stay_where_they_are(opened, tmp_path):
    made = joinlab.sweep(joinlab.cases.case_4, range(4))._repr_html_()
    path = tmp_path / "sweep.html"
    path.write_text(unescape(re.search('srcdoc="([^"]*)"', made)[1]))
    page = opened(path, viewport={"width": 390, "height": 844})
    fix, dots = first(page).locator(".jl-fix").bounding_box(), page.locator(".jl-dotrow").first
    assert fix["y"] + fix["height"] < 844
    top = dots.bounding_box()["y"]
    for cell in ("2,2", "3,1"):
        page.locator(f'[data-cell="{cell}"]').click()
        expect(dots).to_have_attribute("aria-valuenow", cell[0])
        assert dots.bounding_box()["y"] == top


def test_in_a_narrow_cell_a_sweep_has_its_fix_in_sight_and_every_call_a_name(opened, tmp_path):
    """As in JupyterLab on a phone: a cell's output is 254 px wide there."""
    made = joinlab.sweep(joinlab.cases.case_4, range(4))._repr_html_()
    path = tmp_path / "sweep.html"
    path.write_text(unescape(re.search('srcdoc="([^"]*)"', made)[1]))
    page = opened(path, viewport={"width": 280, "height": 844})
    fix = first(page).locator(".jl-fix").bounding_box()
    assert fix["y"] + fix["height"] < 530
    names = page.locator(".jl-scene text:not(.jl-num)").all_text_contents()
    assert {"sync", "gradients?", "shadow", "gradient"} <= {*names}


def test_of_four_lanes_on_a_phone_the_loud_calls_have_names(opened, tmp_path):
    run = joinlab.emulate(one_raises, (5, 5, 5, 5))
    page = opened(write_html(run, tmp_path / "run.html"), viewport={"width": 390, "height": 844})
    view = first(page)
    bad = view.locator(".jl-col:has(.jl-fill.jl-bad) text:not(.jl-num)").all_text_contents()
    assert sorted(bad) == ["backward"] * 3 + ["nobody"]


def test_two_programs_say_where_they_part_within_their_stacks(opened, tmp_path):
    runs = [joinlab.emulate(joinlab.cases.CASES[case].program, (5, 6)) for case in (4, 6)]
    path = write_html(runs, tmp_path / "runs.html", compare=True)
    page = opened(path, viewport={"width": 1300, "height": 900})
    page.locator(".jl-scene").first.wait_for()
    said = page.locator(".jl-scene .jl-sub").all_text_contents()
    assert said.count("part here") == 4
