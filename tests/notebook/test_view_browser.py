"""The view in a real JupyterLab, in a real browser that refuses every external request."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

pytestmark = pytest.mark.browser
pytest.importorskip("playwright.sync_api")
from playwright.sync_api import expect  # noqa: E402

from joinlab.notebook.stills import AGAIN  # noqa: E402
from tests.browser import Notebook, end_kernels, watched, write_notebook  # noqa: E402

CELLS = (
    f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
    "import joinlab\nfrom timelines import case_timeline",
    "view = joinlab.View(case_timeline(4, 5, 'nccl', '1.9'))\nview",
    "case_timeline(1, 2)",
    "from joinlab.cases import case_4\n"
    "eras = joinlab.compare(*(joinlab.emulate(case_4, (5, 6), era=era) for era in ('1.9', 'today')))\neras",
    "fabrics = joinlab.compare(*(joinlab.emulate(case_4, (5, 6), backend=name) for name in ('nccl', 'gloo')))\nfabrics",
)

FIRST, MOVE = 76_000, 12_000
"""Bytes that the first view, and a move of a slider, may take on the wire."""


@pytest.fixture(scope="module")
def notebook(browser, served):
    write_notebook(served.folder / "view.ipynb", CELLS)
    with watched(browser, [served.url], viewport={"width": 1400, "height": 1300}) as page:
        sent: list[bytes | str] = []
        page.on(
            "websocket", lambda socket: socket.on("framereceived", lambda one: sent.append(one))
        )
        opened = Notebook(page, served.url, served.token, "view.ipynb")
        opened.sent = sent
        opened.run_all()
        opened.page.wait_for_function("() => document.querySelectorAll('.jl-scene').length === 6")
        for more in opened.page.get_by_role("button", name="More").all()[:2]:
            more.click()
        for every in opened.page.get_by_role("button", name="every call", exact=True).all():
            every.click()
        opened.page.wait_for_function(
            "() => document.querySelectorAll('.jl-chart svg').length === 2"
        )
        yield opened
    end_kernels(served.url, served.token)


def messages(notebook, kind: str) -> list[int]:
    """Sizes of the messages of that kind which the browser got."""
    found = [one if isinstance(one, bytes) else one.encode() for one in notebook.sent]
    return [len(one) for one in found if kind.encode() in one]


def first(notebook, name: str):
    return notebook.page.locator(name).first


def test_the_first_view_is_small_on_the_wire(notebook):
    assert 10_000 < max(messages(notebook, "comm_open")) < FIRST


def test_a_cell_that_ends_in_a_timeline_shows_the_view_with_its_verdict(notebook):
    cell = notebook.page.locator(".jp-CodeCell").nth(2)
    expect(cell.locator(".jl-headline")).to_contain_text(
        "Both ranks finished; every call met its counterpart: in join(), rank 0 issued"
    )
    expect(cell.locator(".jl-stage .jl-end")).to_have_text(["✓ finished", "✓ finished"])
    assert "Measured: 2 real processes" in cell.locator(".jl-title").text_content()


def test_python_hears_of_the_selection_and_can_set_it(notebook):
    first(notebook, ".jl-scrub").focus()
    notebook.page.keyboard.press("Home")
    for key in (*["ArrowRight"] * 4, "Enter"):
        notebook.page.keyboard.press(key)
    expect(first(notebook, ".jl-told")).to_contain_text("forward 2")
    notebook.wait_for("view.calls['origin'].to_list()", ["all-reduce (DDP forward() 2)"] * 2)
    notebook.tell("view.selected = len(joinlab.match(view.timeline)) - 1")
    chosen = first(notebook, ".jl").locator(".jl-chart .jl-chosen title")
    expect(chosen).to_have_text(["rank 0: anyone left?, never ends"])
    notebook.tell("view.selected = None")
    expect(chosen).to_have_count(0)


def test_arrow_keys_leave_the_cells_of_the_notebook_alone(notebook):
    active = "() => window.jupyterapp.shell.currentWidget.content.activeCellIndex"
    first(notebook, ".jl-chart").click(position={"x": 5, "y": 5})
    first(notebook, ".jl-scrub").focus()
    before = notebook.page.evaluate(active)
    for key in ("ArrowDown", "ArrowDown", "ArrowUp"):
        notebook.page.keyboard.press(key)
    assert notebook.page.evaluate(active) == before


def test_after_a_click_on_a_call_no_key_is_the_notebooks(notebook):
    cell = notebook.page.locator(".jp-CodeCell").nth(2)
    cells = notebook.page.locator(".jp-Cell")
    before = cells.count()
    cell.locator(".jl-chart rect.jl-fill").last.click()
    expect(cell.locator(".jl-told")).to_be_visible()
    notebook.page.keyboard.press("Escape")
    expect(cell.locator(".jl-told")).to_be_hidden()
    for checked in ("true", "false"):  # else "c" would copy the cell, and "v" insert it
        notebook.page.keyboard.press("c")
        expect(cell.locator(".jl-switch")).to_have_attribute("aria-checked", checked)
        notebook.page.keyboard.press("v")
    assert cells.count() == before


def test_the_axis_goes_both_ways(notebook):
    first(notebook, ".jl-scrub").press("c")
    notebook.wait_for("view.axis", "time")
    expect(first(notebook, ".jl-switch")).to_have_attribute("aria-checked", "true")
    notebook.tell("view.axis = 'calls'")
    expect(first(notebook, ".jl-switch")).to_have_attribute("aria-checked", "false")


def test_a_move_of_a_slider_is_small_on_the_wire_and_drawn(notebook):
    notebook.sent.clear()
    backwards = first(notebook, ".jl-chart").locator(
        "rect title", has_text=re.compile(": backward")
    )
    for n in (4, 6, 1):
        notebook.tell(f"view.timeline = case_timeline(4, {n}, 'nccl', '1.9')")
        notebook.page.wait_for_function(
            f"() => document.querySelector('.jl-title strong').textContent.includes('({n}, {n + 1})')"
        )
        expect(backwards).to_have_count(2 * n + 1)
    assert 0 < max(messages(notebook, "comm_msg")) < MOVE


def test_covered_lanes_tell_nothing_until_they_are_uncovered(notebook):
    notebook.tell("view.timeline = case_timeline(4, 5, 'nccl', '1.9'); view.covered = [0, 1]")
    view = first(notebook, ".jl")
    cover = view.locator(".jl-stage .jl-cover")
    cover.nth(1).wait_for()
    look = "(one) => [getComputedStyle(one).fill, getComputedStyle(one.nextElementSibling).fill]"
    assert len(set(cover.first.evaluate(look))) == 2  # the word on it can be read
    assert view.locator(".jl-lane").count() == view.locator(".jl-end").count() == 0
    parts = ".jl-headline, .jl-stage, .jl-step, .jl-legend, .jl-low .jl-tag, .jl-story"
    for words in ("hung", "finished", "hangs", ": barrier", "≠", "✕"):
        assert words not in str(view.locator(parts).all_text_contents())
    notebook.tell("view.covered = []")
    view.locator(".jl-stage .jl-end").first.wait_for()
    assert view.locator(".jl-headline").text_content().endswith("Rank 0 hangs.")


def test_a_comparison_is_two_pictures_on_one_axis_below_one_sentence(notebook):
    cell = notebook.page.locator(".jp-CodeCell").nth(3)
    expect(cell.locator(".jl-headline")).to_contain_text("They part at call 29: rank 0 reads")
    one, other = cell.locator(".jl-picture").all()
    assert one.bounding_box()["y"] + one.bounding_box()["height"] <= other.bounding_box()["y"]
    for call in ("anyone left?", "forward 1"):  # a call that both issue stands at one place
        places = [
            of.locator(f".jl-col:has(title:text('{call}')) .jl-fill").first.bounding_box()
            for of in (one, other)
        ]
        assert places[0]["x"] == places[1]["x"] and places[0]["width"] == places[1]["width"]
    expect(cell.locator(".jl-scrub")).to_have_count(1)
    cell.locator(".jl-scrub").press("Home")  # one position moves both
    assert all(of.locator(".jl-future").count() for of in (one, other))


def test_a_notebook_that_is_opened_without_its_kernel_shows_pictures_and_sentences(
    notebook, served
):
    stills = notebook.page.locator(".joinlab-still")
    assert stills.count() == 4 and not any(
        one.is_visible() for one in stills.all()
    )  # the views live
    # a still that JupyterLab renders again, behind the view's back, stays out of sight
    notebook.page.evaluate(
        """() => { for (const one of document.querySelectorAll('.joinlab-still'))
            one.closest('.jp-OutputArea-child').style.display = ''; }"""
    )
    assert not any(one.is_visible() for one in stills.all())
    notebook.page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
    shutil.copy(served.folder / "view.ipynb", served.folder / "later.ipynb")
    known = ["widget model not found"]  # JupyterLab says so on the console
    size = {"width": 1400, "height": 1300}
    with watched(notebook.page.context.browser, [served.url], known, viewport=size) as page:
        later = Notebook(page, served.url, served.token, "later.ipynb").page
        stills = later.locator(".joinlab-still")
        stills.nth(3).wait_for()
        later.wait_for_function(
            """() => [...document.querySelectorAll('.joinlab-still img')].every((one) => one.naturalWidth)
                && document.querySelectorAll('.jp-OutputArea-output.jupyter-widgets').length === 4"""
        )
        assert [one.locator("img:visible").count() for one in stills.all()] == [1, 1, 2, 2]
        said = later.locator(".jp-Notebook").inner_text()
        assert said.count(AGAIN) == 4 and "They part at" in said
        assert "Loading widget" not in said and "Error" not in said


def test_a_launched_runs_fix_is_looked_for_at_a_press_and_can_be_undone(notebook):
    notebook.tell(
        "from joinlab.cases import case_4\n"
        "view.covered = []\n"
        "view.timeline = joinlab.launch(case_4, (2, 3), 'gloo', on_output=None, progress=False)"
    )
    here = first(notebook, ".jl")
    ends, button = here.locator(".jl-stage .jl-end"), here.locator(".jl-do button")
    expect(ends).to_have_text(["✕ waits…", "✕ waits…"])
    expect(button).to_have_text("look for a fix")
    button.click()
    expect(ends).to_have_text(["✓ finished", "✓ finished"])
    expect(here.locator(".jl-do")).to_contain_text("The program with the fix, emulated.")
    notebook.wait_for("view.mended and bool(view.timeline.live.mended)", True)
    button.click()
    expect(ends).to_have_text(["✕ waits…", "✕ waits…"])
    expect(here.locator(".jl-do")).to_contain_text("Tried, emulated: both finish.")
    expect(button).to_have_text("apply")


@pytest.mark.parametrize("theme", ["Dark", "Light"])
def test_it_follows_the_theme_of_the_notebook(notebook, theme):
    notebook.change_theme(theme)
    ink, paper = notebook.page.evaluate(
        """() => ['.jl-scene text', '.jl'].map((name, at) => {
            const style = getComputedStyle(document.querySelector(name));
            const [r, g, b] = (at ? style.backgroundColor : style.fill).match(/\\d+/g).map(Number);
            return r + g + b; })"""
    )
    assert (ink < paper) == (theme == "Light") and abs(ink - paper) > 400
