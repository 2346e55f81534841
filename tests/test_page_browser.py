"""The page in a real browser, with every request to the outside refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import polars as pl
import pytest
from bench.large import large
from timelines import Writer, case_timeline

import joinlab
from joinlab.picture.page import Position, write_html, write_sliders
from joinlab.timeline import Ending

pytestmark = pytest.mark.browser
pytest.importorskip("playwright.sync_api")
from browser import barriers, watched  # noqa: E402
from playwright.sync_api import expect  # noqa: E402

LABELS = "(all) => all.map((one) => one.getAttribute('aria-label'))"
SOURCE = {"file": "train.py", "first_line": 26, "text": "a\nb\nwith join():\n\n\nmodel(x)\nbackward()\nbarrier()\n"}


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
        (Position(program, era, (a, b)), timeline) for (program, era, a), timeline in known.items() for b in (2, 3, 4)
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


def live(page, at: int = 1):
    """Every call of a run, which is behind "…"."""
    view = first(page, at)
    view.get_by_role("button", name="More").click()
    view.locator(".jl-svg").wait_for()
    return view


def texts(view) -> list[str]:
    return view.locator(".jl-svg [role=row] text").all_text_contents()


def test_both_pictures_are_drawn(opened):
    page = opened(viewport={"width": 1400, "height": 900})
    view = live(page)
    assert texts(view).count("barrier") == 1 and "forward 1" in texts(view)
    assert texts(view).count("2 × forward, backward, barrier, and bucket rebuild") == 2
    assert view.locator(".jl-cap text").all_text_contents() == ["✕ hung (proven)"] * 2
    assert view.locator(".jl-miss title").first.text_content().startswith("≠ Face each other, but can never meet")
    assert page.locator("h2").first.text_content() == "Case 4 <b>"
    page.locator("#run-2").scroll_into_view_if_needed()
    assert live(page, 2).locator(".jl-cap text").all_text_contents() == ["✓ finished"] * 2
    assert not page.locator(".still").first.is_visible()


def test_the_axis_is_switched_by_keyboard(opened):
    page = opened()
    view = live(page)
    view.get_by_role("button", name="time", exact=True).focus()
    page.keyboard.press("Enter")
    assert view.locator(".jl-svg", has_text="recorded time").count() == 1
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    assert view.locator(".jl-svg", has_text="recorded time").count() == 0


def test_arrow_keys_step_and_everything_is_said_of_the_call(opened):
    page = opened(viewport={"width": 1300, "height": 900})
    view = live(page)
    view.get_by_role("button", name="unfold all").click()
    view.locator(".jl-svg").focus()
    page.keyboard.press("Home")
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    assert view.locator(".jl-panel .jl-h").first.text_content().startswith("Row 4 of")
    card = view.locator(".jl-card").first
    said = card.text_content()
    for words in ("forward 2", "float32", "value in1.0", "value out2.0", "discarded the value"):
        assert words in said
    assert view.locator(".jl-line.jl-cited").text_content().strip().startswith("31model(x)◂ rank 0, rank 1")
    assert "Row 4 of" in view.locator(".jl-live").text_content()
    chosen = view.locator("[role=gridcell][aria-selected=true]")
    assert chosen.get_attribute("aria-label") == "rank 0: forward 2"
    assert view.locator(".jl-svg").get_attribute("aria-activedescendant") == chosen.get_attribute("id")
    page.keyboard.press("ArrowRight")
    assert chosen.get_attribute("aria-label").startswith("rank 1")
    page.keyboard.press("End")
    assert "never completes" in chosen.get_attribute("aria-label")
    page.keyboard.press("Escape")
    assert chosen.count() == 0 and "Nothing selected" in view.locator(".jl-panel").text_content()


def test_home_and_end_go_to_the_first_and_last_row_from_anywhere(opened):
    page = opened()
    view = live(page)
    rows = view.locator("[role=row]").count()
    view.locator(".jl-svg").focus()
    for key, row in (("End", rows), ("Home", 1), ("PageDown", 6), ("Escape", None), ("Home", 1), ("Escape", None)):
        page.keyboard.press(key)
        said = view.locator(".jl-panel .jl-h").first.text_content()
        assert said == (f"Row {row} of {rows}" if row else "Nothing selected")
    page.keyboard.press("ArrowUp")
    assert view.locator(".jl-panel .jl-h").first.text_content() == f"Row {rows} of {rows}"


def test_no_word_of_the_picture_is_cut_off_at_its_edge(opened, sliders):
    page = opened(sliders, viewport={"width": 700, "height": 900})
    view = live(page)
    over = view.locator(".jl-svg").evaluate(
        """(svg) => { const all = svg.getBoundingClientRect();
            return [...svg.querySelectorAll("text")].filter((text) => { const one = text.getBoundingClientRect();
                return one.right > all.right + 1 || one.left < all.left - 1 || one.bottom > all.bottom + 1; })
                .map((text) => text.textContent); }"""
    )
    assert over == []


def test_a_click_selects_and_the_stack_waits_to_be_asked_for(opened):
    page = opened(viewport={"width": 1300, "height": 900})
    view = live(page)
    view.get_by_role("button", name="unfold all").click()
    view.locator("[role=gridcell][aria-label='rank 1: backward']").nth(1).click()
    assert "rank 1 took 1, 2 for the sum" in view.locator(".jl-card.jl-here").text_content()
    times = view.locator(".jl-card.jl-here details")
    assert not times.locator("dl").is_visible()
    times.locator("summary").click()
    assert "host waited" in times.locator("dl").text_content()
    view.locator(".jl-svg").focus()
    page.keyboard.press("ArrowDown")  # what was opened stays open
    assert view.locator(".jl-card.jl-here details").first.get_attribute("open") is not None


def test_the_function_that_called_is_shown_and_its_callers_are_a_press_away(opened, tmp_path):
    writer = Writer()
    main, helper = "main.py:2 worker", "helpers.py:7 average"
    for rank in (0, 1):
        writer.call(rank, "all_reduce", call_site="helpers.py:7", stack=[main, helper])
    writer.call(0, "broadcast", done=False, call_site="gone.py:4", stack=["main.py:3 worker", "gone.py:4 lost"])
    writer.call(1, "barrier", done=False, call_site="main.py:3", stack=["main.py:3 worker"])
    program = {"file": "main.py", "first_line": 1, "text": "def worker():\n    average()\n    last()\n"}
    average = {"file": "helpers.py", "first_line": 6, "text": "def average():\n    dist.all_reduce(t)\n"}
    timeline = writer.timeline([Ending("hung", call=1, proven=True)] * 2, source=program, functions=[average])
    page = opened(write_html({"one": timeline}, tmp_path / "helpers.html"))
    source = live(page).locator(".jl-source")
    cited = source.locator(".jl-cited")
    expect(source.locator("button")).to_have_text(["main.py, line 3", "gone.py, line 4"])
    expect(source.locator(".jl-unknown")).to_contain_text("gone.py, line 4. The text of that function is not known")
    expect(cited).to_have_text("3    last()◂ rank 0, rank 1✕ rank 0 hung (proven), ✕ rank 1 hung (proven)")
    page.locator(".jl-svg").focus()
    page.keyboard.press("Home")
    expect(cited).to_have_text("7    dist.all_reduce(t)◂ rank 0, rank 1")
    source.get_by_role("button", name="main.py, line 2").press("Enter")
    expect(cited).to_have_text("2    average()◂ rank 0, rank 1")
    expect(source.locator("[aria-pressed=true]")).to_be_focused()
    page.locator(".jl-svg").focus()
    page.keyboard.press("End")
    page.keyboard.press("Home")
    expect(source.locator("[aria-pressed=true]")).to_have_text("helpers.py, line 7")  # another call, another look


def test_the_legend_hides_a_kind_and_brings_it_back(opened):
    page = opened()
    view = live(page)
    view.get_by_role("button", name="unfold all").click()
    boxes = view.locator("[role=gridcell]")
    before, barriers = boxes.count(), view.locator("[role=gridcell][aria-label*=barrier]").count()
    button = view.locator(".jl-legend button", has_text="barrier")
    button.focus()
    page.keyboard.press("Space")
    assert boxes.count() == before - barriers and barriers == 5
    assert button.get_attribute("aria-pressed") == "false"
    page.keyboard.press("Space")  # the focus stayed on it
    assert boxes.count() == before


def folds(view):
    return view.get_by_role("gridcell", name="DDP's setup")


def test_a_click_opens_a_fold_and_leaves_the_others(opened):
    page = opened()
    view = live(page)
    before = view.locator("[role=row]").count()
    view.locator("[role=gridcell][aria-label*='2 ×']").first.click()
    assert view.locator("[role=gridcell][aria-label*='2 ×']").count() == 0
    assert view.locator("[role=gridcell][aria-label$=': backward']").count() == 2 * 2 + 1
    assert view.locator("[role=row]").count() == before - 1 + 9 and folds(view).count() == 2
    tops = [box.bounding_box()["y"] for box in view.locator("[role=gridcell][id$='-0']").all()]
    assert all(after - one >= 19 for one, after in pairwise(tops))  # no row lies on another
    view.get_by_role("button", name="unfold all").click()
    view.get_by_role("button", name="unfold all").click()
    assert view.locator("[role=row]").count() == before


def test_enter_opens_the_selected_fold(opened):
    page = opened()
    view = live(page)
    view.locator(".jl-svg").focus()
    for key in ("Home", "Enter"):
        page.keyboard.press(key)
    assert folds(view).count() == 4  # both calls of DDP's construction, on two ranks


def test_the_first_mismatch_is_selected_and_in_sight_and_n_goes_on(opened, sliders):
    page = opened(sliders, viewport={"width": 1300, "height": 900})
    view = live(page)
    chosen = view.locator("[role=gridcell][aria-selected=true]")
    assert chosen.get_attribute("aria-label") == "rank 0: anyone left?, meets what it should not"
    frame, box = view.locator(".jl-scroll").bounding_box(), chosen.bounding_box()
    assert frame["y"] <= box["y"] and box["y"] + box["height"] <= frame["y"] + frame["height"]
    view.locator(".jl-svg").focus()
    seen = []
    for _ in range(7):
        page.keyboard.press("n")
        seen.append(int(chosen.get_attribute("data-slot")))
    assert seen[:-2] == sorted(set(seen[:-2])) and len(set(seen)) >= 4  # and from the last to the first


def test_the_overview_shows_the_window_and_goes_where_it_is_clicked(opened, tmp_path):
    path = write_html(case_timeline(4, 40), tmp_path / "long.html")
    page = opened(path, viewport={"width": 1300, "height": 900})
    view = live(page)
    view.get_by_role("button", name="unfold all").click()
    strip, window = view.locator(".jl-overview"), view.locator(".jl-window")
    assert strip.locator(".jl-wrongmark").count() >= 1
    box = strip.bounding_box()
    page.mouse.click(box["x"] + 3, box["y"] + 4)
    page.wait_for_function("() => parseFloat(document.querySelector('.jl-window').style.left) < 5")
    assert "Row 1 of" in view.locator(".jl-panel .jl-h").first.text_content()
    assert window.bounding_box()["width"] < box["width"] / 2


def test_the_names_of_the_rows_stay_in_sight_when_the_picture_is_drawn_anew(opened):
    page = opened(viewport={"width": 420, "height": 900})
    view = live(page)
    for _ in range(3):
        view.get_by_role("button", name="zoom in").click()
    places = """(view) => [view.querySelector('.jl-scroll').scrollLeft,
        view.querySelector('.jl-rows').getAttribute('transform')]"""
    view.evaluate("(view) => { view.querySelector('.jl-scroll').scrollLeft = 90; }")
    expect(view.locator(".jl-rows")).to_have_attribute("transform", "translate(90 0)")
    assert view.evaluate(places) == [90, "translate(90 0)"]
    rows = view.locator("[role=row]").count()
    view.get_by_role("button", name="unfold all").click()  # draws it anew, without a scroll
    assert view.locator("[role=row]").count() > rows
    assert view.evaluate(places) == [90, "translate(90 0)"]


def test_ranks_can_be_rows_and_the_picture_zoomed(opened):
    page = opened(viewport={"width": 1300, "height": 900})
    view = live(page)
    picture = view.locator(".jl-svg")
    wide, high = (picture.bounding_box()[side] for side in ("width", "height"))
    picture.focus()
    page.keyboard.press("+")
    assert picture.bounding_box()["width"] > wide and picture.bounding_box()["height"] > high
    page.keyboard.press("0")
    assert picture.bounding_box()["width"] == wide
    view.get_by_role("button", name="turn").click()
    turned = picture.bounding_box()
    assert turned["width"] > turned["height"]
    page.locator(".jl-svg").first.focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    assert view.locator(".jl-panel .jl-h").first.text_content().startswith("Row 2 of")


def test_a_slider_moved_by_keyboard_changes_exactly_the_boxes_of_that_run(opened, sliders):
    page = opened(sliders, viewport={"width": 1300, "height": 900})
    view = live(page)
    assert view.locator(".jl-cap text").all_text_contents() == ["✕ hung (proven)", "✓ finished"]

    def backwards() -> int:
        return view.locator("[role=gridcell][aria-label$=': backward']").count()

    view.get_by_role("button", name="unfold all").click()
    assert backwards() == 2 * 2 + 1
    page.get_by_role("slider", name="rank 0: inputs").focus()
    page.keyboard.press("ArrowRight")
    assert backwards() == 2 * 3 + 1
    assert page.url.endswith("#case=2&barrier=1&inputs=3,3")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert backwards() == 2 * 1 + 1
    page.get_by_role("combobox", name="Barrier").select_option("today")
    assert view.locator(".jl-cap text").all_text_contents() == ["✓ finished", "✕ hung (proven)"]
    assert view.locator(".jl-headline").text_content().endswith("Rank 1 hangs.")
    page.get_by_role("combobox", name="Program").select_option("case 1")
    assert view.locator(".jl-cap text").all_text_contents() == ["✓ finished", "✓ finished"]


def test_short_calls_on_the_clock_can_be_seen_and_say_that_they_are_drawn_longer(opened, tmp_path):
    writer = Writer()
    for rank in (0, 1):
        for n in range(12):  # three calls of 20 µs, then a pause of 1 ms
            at = 1_060_000 * (n // 3) + 20_000 * (n % 3)
            writer.call(rank, "all_reduce", waits=False, enqueued_ns=at, started_ns=at, completed_ns=at + 20_000)
    run = write_html(writer.timeline([Ending("finished")] * 2), tmp_path / "run.html")
    page = opened(run, viewport={"width": 1300, "height": 900})
    view = live(page)
    view.get_by_role("button", name="time", exact=True).click()
    boxes = view.locator(".jl-svg [role=gridcell] :is(rect, path)")
    tall = boxes.evaluate_all("(all) => all.map((one) => one.getBoundingClientRect().height)")
    assert len(tall) == 24 and min(tall) >= 12
    legend = view.locator(".jl-legend", has_text="drawn longer than it took")
    longer = view.locator(".jl-svg .jl-longer")
    assert legend.count() == 1 and longer.count() == 24
    tops = view.evaluate(
        """(view) => { const found = {};
            for (const cell of view.querySelectorAll('[role=gridcell]')) {
                const { top, bottom, left, right } = cell.getBoundingClientRect();
                (found[cell.dataset.rank] ??= []).push({ top, bottom, left, right }); }
            return Object.values(found); }"""
    )
    for of_rank in tops:  # none hides another
        for at, one in enumerate(of_rank):
            for other in of_rank[at + 1 :]:
                apart = one["right"] <= other["left"] + 1 or other["right"] <= one["left"] + 1
                assert apart or one["bottom"] <= other["top"] + 2.5 or other["bottom"] <= one["top"] + 2.5
    view.locator(".jl-svg").focus()
    for _ in range(12):
        page.keyboard.press("+")
    assert longer.count() == 0 and legend.count() == 0  # zoomed in, each is as long as it took


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_the_screen_and_its_text_can_be_read(opened, width, scheme):
    page = opened(viewport={"width": width, "height": 800}, color_scheme=scheme)
    live(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    ink, paper = page.evaluate(
        """() => ['.jl-head text', 'body'].map((name, at) => {
            const style = getComputedStyle(document.querySelector(name));
            const [r, g, b] = (at ? style.backgroundColor : style.fill).match(/\\d+/g).map(Number);
            return r + g + b; })"""
    )
    assert abs(ink - paper) > 500  # dark on light, or light on dark


def test_on_a_phone_nothing_scrolls_sideways_and_what_a_click_tells_is_in_sight(opened, sliders):
    page = opened(sliders, viewport={"width": 390, "height": 844})
    view = live(page)
    for cell in (view.locator("[role=gridcell]").first, view.locator("[role=gridcell]").last):
        cell.click()
        card = view.locator(".jl-card").first.bounding_box()
        assert 0 <= card["y"] <= 844 - 100 and card["x"] + card["width"] <= 390
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert view.locator(".jl-scroll").evaluate("one => one.scrollWidth <= one.clientWidth")


def test_front_ends_that_ask_for_html_get_a_picture_that_answers(opened, tmp_path):
    timeline = case_timeline(4, 2)
    assert isinstance(timeline, joinlab.Timeline)  # joinlab gives it the method when it is loaded through joinlab
    (tmp_path / "cell.html").write_text(f"<!doctype html>{timeline._repr_html_()}", "utf-8")
    frame = opened(tmp_path / "cell.html").frame_locator("iframe")
    frame.get_by_role("button", name="More").click()
    frame.locator("[role=gridcell]").last.click()
    assert frame.locator(".jl-cap text").all_text_contents() == ["✕ hung (proven)"] * 2
    assert frame.locator(".jl-card").count() == 2


def test_on_paper_every_program_has_one_page(opened, sliders):
    page = opened(sliders)
    live(page)
    assert page.pdf(format="A4").count(b"/Type /Page\n") == page.locator(".paper").count() == 2


def test_in_print_the_picture_fits_the_paper(opened):
    page = opened(viewport={"width": 1280, "height": 800})
    live(page)
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 700, "height": 990})
    still = page.locator("#run-1 .still svg")
    assert still.is_visible() and still.bounding_box()["width"] <= 700
    assert not page.locator("#run-1 .live").is_visible()


@pytest.mark.parametrize("which", ["file", "sliders"])
def test_without_scripts_the_static_picture_stands_there(opened, request, which):
    page = opened(request.getfixturevalue(which), java_script_enabled=False)
    drawn = page.locator(".still svg").first
    assert drawn.is_visible() and drawn.locator("text").filter(has_text="hung (proven)").count() >= 1
    assert page.locator("form:visible").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("which", ["file", "sliders", "many"])
def test_axe_finds_no_serious_violation(opened, request, axe, which, scheme):
    page = opened(request.getfixturevalue(which), viewport={"width": 1300, "height": 900}, color_scheme=scheme)
    view = live(page)
    view.locator(".jl-svg").focus()
    for key in ("End", "ArrowRight"):
        page.keyboard.press(key)
    for axis in ("calls that met", "time"):
        view.get_by_role("button", name=axis, exact=True).click()
        assert barriers(page, axe) == []


def test_every_mismatch_of_a_large_run_is_marked_and_reached(opened, tmp_path):
    made = large(8, 1000)
    other = (pl.col("rank") == 7) & pl.col("seq").is_between(200, 899)
    calls = made.calls.with_columns(pl.when(other).then(pl.lit("reduce")).otherwise("op").alias("op"))
    page = opened(
        write_html(replace(made, calls=calls), tmp_path / "run.html"), viewport={"width": 1300, "height": 900}
    )
    view = live(page)
    strip = view.locator(".jl-overview svg")
    assert (
        strip.get_attribute("aria-label") == "The whole run: 1000 rows, 701 of them wrong"
    )  # and the last, which hangs
    strip.click()  # its middle is row 500, which the folded picture does not hold
    panel = view.locator(".jl-panel .jl-h").first
    expect(panel).to_have_text("Row 501 of 1000")
    view.locator(".jl-svg").focus()
    page.keyboard.press("n")
    expect(panel).to_have_text("Row 502 of 1000")


def test_what_is_too_small_to_be_seen_is_told_as_a_block_and_what_went_wrong_is_always_drawn(opened, many):
    page = opened(many, viewport={"width": 1300, "height": 900})
    view = live(page)
    drawn = view.locator(".jl-svg *")
    assert view.locator(".jl-note", has_text="rows between, all matched").count() == 2
    view.get_by_role("button", name="time", exact=True).click()
    assert drawn.count() < 1500
    blocks = view.locator("[role=gridcell][aria-label*='calls, all matched']")
    assert 2 <= blocks.count() < 200
    held = sum(int(one.split()[2].replace(",", "")) for one in blocks.evaluate_all(LABELS))
    assert 500 < held < 6000  # of 5,999, those in sight
    wrong = view.locator("[role=gridcell]:has(.jl-wrong), [role=gridcell].jl-wrong")
    assert ["meets what it should not" in one for one in wrong.evaluate_all(LABELS)] == [True, True]
    picked = view.locator(".jl-svg [aria-selected=true]")
    assert "meets what it should not" in picked.get_attribute("aria-label")
    view.locator(".jl-svg").focus()
    page.keyboard.press("ArrowDown")  # a call that lies in a block is drawn by itself while it is selected
    assert "meets what" not in picked.get_attribute("aria-label")
    for _ in range(11):
        page.keyboard.press("+")
        assert picked.count() == 1 and drawn.count() < 8000
    assert view.locator(".jl-svg [role=gridcell] + text").count() > 6 and blocks.count() == 0  # single calls, named
    facts = view.locator(".jl-card.jl-here").text_content()
    assert "dtype" in facts and "called from" in facts
    page.keyboard.press("f")
    before = view.locator(".jl-svg").bounding_box()["height"]
    blocks.first.scroll_into_view_if_needed()
    page.evaluate(
        "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
    )  # drawn again
    blocks.first.click()
    assert view.locator(".jl-svg").bounding_box()["height"] > before * 1.5
