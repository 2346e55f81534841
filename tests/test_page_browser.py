"""The page in a real browser, with every request to the outside refused."""

from __future__ import annotations

import os
import shutil

import pytest
from timelines import case_timeline

from joinlab.page import write_html

pytestmark = pytest.mark.browser
sync_api = pytest.importorskip("playwright.sync_api")

ARGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
ARGS += ["--disable-sync", "--disable-quic"]
DRAWN = "() => document.querySelectorAll('.picture[data-axis]').length === 2"


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        path = os.environ.get("CHROMIUM") or shutil.which("chromium")
        running = playwright.chromium.launch(executable_path=path, args=ARGS)
        yield running
        running.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    source = {"file": "train.py", "first_line": 1, "text": "for x in inputs:\n    model(x)\n"}
    hung = case_timeline(4, 2)
    object.__setattr__(hung, "meta", {**hung.meta, "source": source})
    runs = {"Case 4 <b>": hung, "Case 1": case_timeline(1, 2)}
    return write_html(runs, tmp_path_factory.mktemp("page") / "runs.html")


@pytest.fixture
def opened(browser, file):
    """Opens the page and checks, at the end, that nothing was asked for and nothing went wrong."""
    contexts, trouble = [], []

    def request(route):
        if route.request.url == file.as_uri() or route.request.url.startswith(("data:", "blob:")):
            route.continue_()
        else:
            trouble.append(f"asked for {route.request.url}")
            route.abort()

    def go(**options):
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.route("**/*", request)
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on("console", lambda said: trouble.append(said.text) if said.type in ("error", "warning") else None)
        page.goto(file.as_uri())
        return page

    yield go
    for context in contexts:
        context.close()
    assert trouble == []


def test_both_figures_are_drawn(opened):
    page = opened()
    page.wait_for_function(DRAWN)
    assert page.locator(".js-plotly-plot").count() == 2
    texts = page.locator("#run-1-picture .bartext").all_text_contents()
    assert "all-reduce (join() _get_num_nonjoined_procs())" in texts and texts.count("barrier") == 5
    assert page.locator("#run-1-picture .annotation").filter(has_text="hung (proven)").count() == 2
    assert page.locator("h2").first.text_content() == "Case 4 <b>"


def test_the_axis_is_switched_by_keyboard(opened):
    page = opened()
    page.wait_for_function(DRAWN)
    page.locator("#run-1 input[value=logical]").focus()
    page.keyboard.press("ArrowDown")
    page.wait_for_selector("#run-1-picture[data-axis=time]")
    assert page.locator("#run-1-picture .ytitle").text_content().startswith("recorded time")
    assert page.locator("#run-2-picture").get_attribute("data-axis") == "logical"
    page.keyboard.press("ArrowUp")
    page.wait_for_selector("#run-1-picture[data-axis=logical]")
    assert page.locator("#run-1-picture .ytitle").count() == 0


def test_pointing_at_a_call_shows_its_columns(opened):
    page = opened(viewport={"width": 1280, "height": 1400})
    page.wait_for_function(DRAWN)
    page.locator("#run-1-picture .bartext").filter(has_text="backward()").first.scroll_into_view_if_needed()
    box = page.locator("#run-1-picture .bartext").filter(has_text="all-reduce (DDP backward())").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, steps=4)
    page.wait_for_selector("#run-1-picture .hovertext")
    said = page.locator("#run-1-picture .hovertext").text_content()
    assert "all-reduce (DDP backward())" in said and "value out" in said and "host waited" in said


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_the_screen_and_its_text_can_be_read(opened, width, scheme):
    page = opened(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page.wait_for_function(DRAWN)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    ink, paper = page.evaluate(
        """() => ['.ytick text', 'body'].map((name, at) => {
            const style = getComputedStyle(document.querySelector(name));
            const [r, g, b] = (at ? style.backgroundColor : style.fill).match(/\\d+/g).map(Number);
            return r + g + b; })"""
    )
    assert abs(ink - paper) > 500  # dark on light, or light on dark


def test_in_print_the_picture_fits_the_paper(opened):
    page = opened(viewport={"width": 1280, "height": 800})
    page.wait_for_function(DRAWN)
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 700, "height": 990})
    still = page.locator("#run-1-picture .still > svg")
    assert still.is_visible() and still.bounding_box()["width"] <= 700
    assert not page.locator("#run-1-picture .live").is_visible()


def test_without_scripts_the_static_picture_stands_there(opened):
    page = opened(java_script_enabled=False)
    drawn = page.locator("#run-1-picture .still > svg")
    assert drawn.count() == 1 and drawn.is_visible()
    assert drawn.locator("text").filter(has_text="hung (proven)").count() == 2
    assert not page.locator("fieldset").first.is_visible()  # a switch that cannot work is not shown
