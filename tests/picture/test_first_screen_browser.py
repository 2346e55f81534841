"""The first screen in a real browser: the drawing of each position, not only its data."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
import torch
import torch.distributed as dist

import joinlab
from joinlab.emulator.shipped_runs import shipped_run
from joinlab.picture.page import write_html

pytestmark = pytest.mark.browser
pytest.importorskip("playwright.sync_api")
from playwright.sync_api import expect  # noqa: E402

from tests.bench.large import large  # noqa: E402
from tests.browser import barriers, watched  # noqa: E402
from tests.first_screen import (  # noqa: E402
    LEAST_TEXT,
    MOST_CONTROLS,
    MOST_WORDS,
    SEEN,
    gallery,
    odd_of_8,
    one_raises,
    positions,
    recv_ring,
)
from tests.nightly import sampled  # noqa: E402

WIDE = {"width": 1440, "height": 900}


def several_odd(rank, inputs):
    for step, _ in enumerate(inputs):
        dist.all_reduce(torch.ones(8))
        if (rank, step) == (8, 3):
            dist.barrier()
        if rank not in (3, 10) or step != 6:
            dist.broadcast(torch.ones(8), 0)


def ring(rank, inputs):
    """Rank 2 waits once more than it is sent to."""
    for step, _ in enumerate(inputs):
        if (rank, step) == (2, 2):
            dist.recv(torch.zeros(1), 0)
        if rank % 2 == 0:
            dist.send(torch.ones(1), (rank + 1) % 4)
            dist.recv(torch.zeros(1), (rank - 1) % 4)
        else:
            dist.recv(torch.zeros(1), (rank - 1) % 4)
            dist.send(torch.ones(1), (rank + 1) % 4)


def scatters(rank, inputs):
    for step, _ in enumerate(inputs):
        if (rank, step) == (1, 1):
            dist.barrier()
        dist.reduce_scatter(torch.zeros(2), [torch.ones(2)] * 3)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("first")
    case_4 = joinlab.emulate(joinlab.cases.case_4, (5, 6))
    joinlab.diagnose(case_4)  # tries fixes
    write_html(case_4, folder / "case_4.html")
    for name, run in (
        ("case_2", shipped_run(2, (5, 6))),
        ("odd_of_8", joinlab.emulate(odd_of_8, (20,) * 8)),
    ):
        joinlab.diagnose(run)
        write_html(run, folder / f"{name}.html")
    of_3 = joinlab.emulate(joinlab.cases.case_4, (5, 5, 6))
    joinlab.diagnose(of_3)
    write_html(of_3, folder / "case_4_of_3.html")
    write_html(joinlab.emulate(scatters, (4, 4, 4)), folder / "scatters_of_3.html")
    then = shipped_run(4, (5, 6), era="1.9")
    write_html([then, shipped_run(4, (5, 6))], folder / "compared.html", compare=True)
    write_html(joinlab.emulate(several_odd, (8,) * 16), folder / "several_odd.html")
    write_html(shipped_run(1, (5, 6)), folder / "case_1.html")
    write_html(joinlab.emulate(one_raises, (5, 5, 5)), folder / "raises_of_3.html")
    write_html(joinlab.emulate(ring, (3,) * 4), folder / "sends.html")
    write_html(joinlab.emulate(recv_ring, (1,) * 4), folder / "recv_ring.html")
    write_html(joinlab.emulate(ring, (2,) * 4), folder / "sends_that_meet.html")
    write_html(large(2, 1500), folder / "large.html")
    positions(folder / "positions.html")
    gallery(folder / "gallery.html")
    found = joinlab.sweep(joinlab.cases.case_4, range(3))
    (folder / "sweep.html").write_text(
        f"<!doctype html><title>A cell</title>{found._repr_html_()}", "utf-8"
    )
    return folder


@pytest.fixture
def opened(browser, files):
    """Opens a page at an address; at the end, nothing was asked for and nothing went wrong."""
    open_pages = []

    def go(name: str, at: str = "", frame: str = "", **options):
        file = (files / f"{name}.html").as_uri()
        page = watched(browser, [file], **{"viewport": WIDE, **options})
        open_pages.append(page)
        made = page.__enter__()
        made.goto(file + at)
        inside = made.frame_locator(frame) if frame else made
        inside.locator(".jl-stage .jl-scene").first.wait_for()
        return inside

    yield go
    for page in open_pages:
        page.__exit__(None, None, None)


def column(page, number: str):
    return page.locator(f".jl-col:has(.jl-num:text-is('{number}'))")


def test_the_nouns_of_the_headline_have_the_colours_of_their_boxes(opened):
    page = opened("case_4")
    for noun in ("anyone left?", "barrier"):
        said = page.locator(".jl-headline span span", has_text=noun).evaluate(
            "(one) => getComputedStyle(one).color"
        )
        drawn = (
            column(page, "call 29")
            .locator("text", has_text=noun)
            .evaluate("(one) => getComputedStyle(one).fill")
        )
        assert said == drawn


PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 800}
NAMED = [
    "case_1",
    "case_4",
    "case_4_of_3",
    "scatters_of_3",
    "raises_of_3",
    "sends",
    "sends_that_meet",
]


@pytest.mark.parametrize(
    ("name", "size"),
    sampled(
        [*product(NAMED, (WIDE, PHONE)), ("case_4", DESK)],
        lambda row: row[1] is DESK or (row[1] is PHONE) == NAMED.index(row[0]) % 2,
    ),
)
def test_every_call_has_its_name_on_it(opened, name, size):
    page = opened(name, viewport=size)
    boxes = page.locator(".jl-col:has(.jl-fill:not(.jl-pile))")
    assert boxes.count() >= 4
    for one in boxes.all():
        filled = one.locator(".jl-fill").count()
        assert one.locator("text:not(.jl-num):not(.jl-sub)").count() >= filled
    assert page.evaluate(SEEN)["cut"] == []
    rights = page.locator(".jl-tag, .jl-end, .jl-scene text").evaluate_all(RIGHTS)
    assert max(right for _, right in rights) <= size["width"]


def test_a_clicked_call_is_marked_while_its_details_are_open(opened):
    page = opened("case_4")
    stroke = "(one) => getComputedStyle(one).stroke"
    one, other = (column(page, number).locator(".jl-fill").first for number in ("27", "28"))
    one.click()
    expect(page.locator(".jl-told").first).to_contain_text("Call 27")
    assert one.evaluate(stroke) != "none" and other.evaluate(stroke) == "none"
    frame = page.locator(".jl-told th").first  # no frame of the page's own tables
    assert frame.evaluate("(one) => getComputedStyle(one).borderLeftWidth") == "0px"
    page.get_by_role("button", name="Close").click()
    assert one.evaluate(stroke) == "none"


def test_ranks_that_wait_for_each_other_are_told_side_by_side(opened):
    page = opened("recv_ring", viewport=DESK)
    scrub = page.locator(".jl-scrub")
    assert scrub.get_attribute("aria-valuetext") == (
        "call 1: rank 0's recv from 3, rank 1's recv from 0, rank 2's recv from 1, rank 3's recv from 2, never ends"
    )
    scrub.focus()
    page.keyboard.press("Enter")
    cards = page.locator(".jl-told .jl-two > div")
    assert [card.split("recv")[0].split() for card in cards.all_inner_texts()] == [
        ["rank", str(rank)] for rank in range(4)
    ]
    calls = page.locator(".jl-told .jl-swatch").all_inner_texts()
    assert calls == [f"recv from {(rank - 1) % 4}" for rank in range(4)]
    lanes, card = page.locator(".jl-lanes").bounding_box(), page.locator(".jl-told").bounding_box()
    assert card["y"] >= lanes["y"] + lanes["height"]


def test_the_keys_go_on_when_lanes_are_laid_on_the_clock_and_back(opened):
    page = opened("case_4")
    page.locator(".jl-scrub").focus()
    for name in ("Time", "Call"):
        page.keyboard.press("c")
        scrub = page.locator(f".jl-scrub[aria-label='{name}']")
        expect(scrub).to_be_focused()


def test_the_whole_story_says_what_each_line_is_about(opened):
    page = opened("case_4")
    page.locator(".jl-opener").click()
    assert page.locator(".jl-story b").all_inner_texts() == ["WHY", "AT", "FIX", "ENDED", "NOTE"]


def test_on_a_phone_what_a_tap_opens_is_in_sight(opened):
    page = opened("case_4", viewport=PHONE, has_touch=True)
    column(page, "27").locator(".jl-fill").first.tap()
    told = page.locator(".jl-told").first
    expect(told).to_contain_text("Call 27")
    page.wait_for_timeout(100)
    box = told.bounding_box()
    assert box["y"] < box["y"] + box["height"] <= PHONE["height"]
    rights = told.locator(".jl-big").evaluate(
        """(title) => {
            const text = document.createRange();
            text.selectNodeContents(title);
            return [...text.getClientRects()].map((line) => line.right); }"""
    )
    assert max(rights) <= page.get_by_role("button", name="Close").bounding_box()["x"]


IN_SIGHT = """(all) => all.length && all.every((one) => {
    const { top, bottom } = one.getBoundingClientRect();
    return bottom > top && top >= 0 && bottom <= innerHeight; })"""


@pytest.mark.parametrize(
    ("name", "size"), [("case_4", WIDE), ("case_4", PHONE), ("compared", WIDE)]
)
def test_who_why_the_line_and_the_fix_are_in_sight(opened, name, size):
    page = opened(name, viewport=size)
    who = page.locator(".jl-headline, .jl-which").all_text_contents()
    assert any("hangs." in told for told in who)
    for part in (".jl-arrow", ".jl-hit", ".jl-add", ".jl-do"):
        assert page.locator(part).evaluate_all(IN_SIGHT), part
    expect(page.locator(".jl-do")).to_contain_text("Tried: both finish.")
    page.locator(".jl-scrub").press("Home")  # every line can be marked while one plays
    assert page.locator(".jl-calm:visible").count() == 3


def test_a_comparison_says_how_each_run_ends(opened):
    told = opened("compared").locator(".jl-which")
    expect(told).to_have_text(["1.9: Rank 0 hangs.", "today: Rank 1 hangs."])


def test_a_comparison_on_a_phone_tells_each_run_above_its_ranks_and_its_fix(opened):
    page = opened("compared", viewport=PHONE)
    expect(page.locator(".jl-do")).to_contain_text("today: Tried: both finish.")
    told, ranks = page.locator(".jl-which"), page.locator(".jl-picture .jl-rank:first-child")
    for at in (0, 1):
        above, below = told.nth(at).bounding_box(), ranks.nth(at).bounding_box()
        assert above["y"] + above["height"] <= below["y"]
    page.locator(".jl-scrub").press("Home")
    for verdict in told.locator("span").all():
        expect(verdict).to_be_hidden()


def test_what_never_ends_fades_within_its_column_and_numbers_stand_clear(opened):
    page = opened("case_2")
    ground = page.locator(".jl-ground").bounding_box()
    plate = page.locator(".jl-onground").first.bounding_box()
    assert plate["x"] + plate["width"] <= ground["x"] + ground["width"] + 0.5
    page = opened("large", viewport=PHONE)
    thumb = page.locator(".jl-thumb").bounding_box()
    lefts = [one.bounding_box()["x"] for one in page.locator(".jl-num").all()]
    assert len(lefts) > 3 and min(lefts) >= thumb["x"] + thumb["width"]


def test_half_way_the_wrong_value_is_between_the_lanes(opened):
    page = opened("case_4", reduced_motion="no-preference")
    lower, upper = (
        column(page, "call 29").locator(".jl-fill").nth(lane).bounding_box() for lane in (1, 0)
    )
    tops = []
    for at in ("29.36", "29.5", "29.6", "29.72"):
        page.evaluate("(at) => { location.hash = '#at=' + at; location.reload(); }", at)
        page.wait_for_load_state()
        token = page.locator(".jl-token")
        expect(token).to_have_text("0")
        box = token.bounding_box()
        tops.append(box["y"] + box["height"] / 2)
    assert tops == sorted(tops, reverse=True)  # from rank 1's barrier up to rank 0's question
    for y in tops[1:3]:
        assert upper["y"] + upper["height"] < y < lower["y"]


def test_what_is_to_come_is_empty_and_the_keys_go_on(opened):
    page = opened("case_4", "#at=26.99")
    inked = "(one) => getComputedStyle(one).opacity"
    label = column(page, "30").locator("text:not(.jl-num)").first
    assert label.evaluate(inked) == "0"
    scrub = page.get_by_role("slider", name="Call")
    scrub.focus()
    for key in ("End", "Enter"):
        page.keyboard.press(key)
    assert label.evaluate(inked) == "1" and page.url.endswith("#at=31.99")
    expect(page.locator(".jl-told")).to_contain_text("Call 31")
    assert page.locator(".jl-told").get_by_text("never ends").count() == 1
    page.keyboard.press("Escape")
    expect(page.locator(".jl-told")).to_be_hidden()


def test_play_runs_from_where_the_first_rank_runs_out(opened):
    page = opened("case_4")  # a call at a time
    page.get_by_role("button", name="Play").click()
    page.wait_for_function(
        "() => document.querySelector('.jl-scrub').getAttribute('aria-valuenow') === '1'"
    )
    assert page.locator(".jl-col.jl-future").count() == 5
    page.get_by_role("button", name="Play").click()
    expect(page.get_by_role("button", name="Play")).to_have_attribute("aria-pressed", "false")


def test_the_fix_is_shown_in_the_code(opened):
    page = opened("case_4")
    struck = page.locator(".jl-code s")
    assert struck.text_content() == "dist.barrier()"
    assert "line-through" in struck.evaluate("(one) => getComputedStyle(one).textDecorationLine")
    expect(page.locator(".jl-code .jl-add")).to_have_text("+dist.barrier()")
    expect(page.locator(".jl-do")).to_contain_text("Tried: both finish.")


def test_a_ghost_fades_out_above_the_call_that_its_rank_never_reached(opened):
    page = opened("case_2")
    ghost, call = (
        page.locator(".jl-ghost rect").bounding_box(),
        column(page, "call 11").locator(".jl-fill").bounding_box(),
    )
    assert ghost["y"] + ghost["height"] < call["y"] and abs(ghost["x"] - call["x"]) < 2
    assert page.locator(".jl-fill[mask]").count() == 1  # it fades out


def test_the_lanes_turn_and_turn_back(opened):
    page = opened("case_4", reduced_motion="no-preference")
    one, other = (page.locator(".jl-rank").nth(lane) for lane in (0, 1))
    assert one.bounding_box()["x"] == other.bounding_box()["x"]
    page.get_by_role("button", name="Lanes as columns").click()
    assert one.bounding_box()["y"] == other.bounding_box()["y"]
    page.get_by_role("button", name="Lanes as columns").click()
    assert one.bounding_box()["x"] == other.bounding_box()["x"]


@pytest.mark.parametrize("size", [(1440, 900), (390, 844)])
def test_a_dot_moves_the_inputs_and_nothing_under_the_pointer(opened, size):
    page = opened("positions", viewport={"width": size[0], "height": size[1]})
    before = page.evaluate(SEEN)
    page.locator(".jl-dotrow").first.locator("i").nth(2).click()
    expect(page.locator(".jl-dotrow").first).to_have_attribute("aria-valuenow", "2")
    assert "inputs=2,6" in page.url
    page.keyboard.press("ArrowRight")
    assert "inputs=3,6" in page.url
    after = page.evaluate(SEEN)
    assert (after["top"], after["dots"]) == (before["top"], before["dots"])
    # a phone has no other way
    assert page.get_by_role("button", name="Lanes as columns").is_visible() == (size[0] > 620)


@pytest.mark.parametrize(
    ("name", "scheme"),
    sampled(
        product(("case_4", "case_2", "odd_of_8", "positions", "gallery"), ("light", "dark")),
        {
            ("case_4", "light"),
            ("case_2", "dark"),
            ("odd_of_8", "light"),
            ("positions", "dark"),
            ("gallery", "light"),
        }.__contains__,
    ),
)
def test_it_is_calm_and_can_be_read(opened, axe, name, scheme):
    page = opened(name, color_scheme=scheme)
    found = page.evaluate(SEEN)
    assert found["words"] <= MOST_WORDS and found["controls"] <= MOST_CONTROLS
    assert found["least"] >= LEAST_TEXT and found["cut"] == []
    assert barriers(page, axe, "body" if name == "gallery" else ".jl") == []


RIGHTS = (
    "(all) => all.map((one) => one.getBoundingClientRect()).map((one) => [one.left, one.right])"
)


def test_every_lane_says_what_it_issues_and_on_a_phone_nothing_is_cut(opened):
    page = opened("several_odd", viewport={"width": 390, "height": 844})
    assert page.evaluate(SEEN)["cut"] == []
    for what in (".jl-rank", ".jl-end"):
        across = page.locator(what).evaluate_all(RIGHTS)
        assert len(across) == 5 and all(one[1] <= other[0] for one, other in pairwise(across)), what
    page.set_viewport_size(WIDE)
    expect(page.locator(".jl-phone")).to_have_count(0)
    said = column(page, "call 8").locator("text:not(.jl-num)").all_text_contents()
    assert said.count("barrier") == 1 and said.count("broadcast") == 4


FILLS = "(all) => all.map((one) => one.getAttribute('fill') ?? getComputedStyle(one).fill)"


def test_a_small_picture_fills_the_large_one_which_has_the_same_boxes(opened):
    page = opened("gallery")
    # all of it is in sight
    assert page.evaluate("document.documentElement.scrollHeight") <= WIDE["height"]
    assert page.locator(".small.drawn .jl-scene").count() == 18
    for at, address in ((3, "case=2&on=1"), (11, "case=4&on=3")):
        page.locator(".gallery label").nth(at).click()
        assert page.url.endswith(f"#{address}&inputs=5,6")
        small, large = (
            page.locator(of).locator(".jl-fill")
            for of in (f"label:nth-match(label, {at + 1})", ".jl-stage")
        )
        assert small.evaluate_all(FILLS) == large.evaluate_all(FILLS) != []
    expect(page.locator(".jl-headline")).to_contain_text("Case 4, gloo, run here")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowLeft")
    page.get_by_label("Inputs of rank 0").select_option("2,3")
    assert page.url.endswith("#case=3&on=2&inputs=2,3")
    page.reload()
    expect(page.locator(".jl-headline")).to_contain_text("Case 3, NCCL today")
    assert page.get_by_role("radio", name="Case 3, NCCL today, modelled: rank 1 hangs").is_checked()


def test_a_phone_scrolls_the_gallery_one_way(opened):
    page = opened("gallery", viewport={"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    expect(page.locator(".gallery label").first).to_contain_text("NCCL, PyTorch 1.9, modelled")


def test_a_cell_of_a_map_of_endings_leads_to_its_run(opened):
    frame = opened("sweep", frame="iframe")
    assert frame.locator("body").evaluate("(body) => innerHeight >= body.offsetHeight")
    headline = frame.locator(".jl-headline")
    expect(headline).to_contain_text("Rank 1 hangs.")  # with 0 and 1 inputs, the fewest that hang
    frame.locator("[data-cell='1,1']").click()
    expect(headline).not_to_contain_text("hangs")
    frame.get_by_role("grid").press("ArrowRight")
    expect(frame.locator("[data-cell='2,1']")).to_have_attribute("aria-selected", "true")
    expect(headline).to_contain_text("hangs")
