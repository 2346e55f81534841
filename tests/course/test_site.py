"""The site: its pages before and after a reader chooses an answer; none sends a request to a
network."""

import re
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from joinlab.course import site
from joinlab.course.exercises import EXERCISES
from joinlab.course.handout import write_handout
from joinlab.course.questions import of_notebook, questions
from joinlab.course.symptoms import SYMPTOMS
from joinlab.documentation import DOCUMENTED
from tests.course.test_notebooks import NOTEBOOKS

pytest.importorskip("playwright.sync_api")
from playwright.sync_api import expect

from tests.browser import watched
from tests.nightly import sampled

ESSAY = (Path(site.__file__).parent / "essay.md").read_text("utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site with one symptom and a small bench: 15 s, so its tests run beside the browser's."""
    root = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site, "write_handout", partial(write_handout, most=1))
        patch.setattr(site, "MOST", 6)
        patch.setattr(site, "MOST_ON_CLOCK", 3)
        site.write_site(root, NOTEBOOKS[0].parent, [SYMPTOMS["early_stopping"]])
    return root


def views(page: str) -> list[str]:
    """The live views of a page: each is the way to its files, without ".js"."""
    return re.findall(r'data-figure="([^"]+)"', page)


def words(page: str) -> int:
    """Without those of pictures, one of which is a table of calls."""
    body = re.sub(r"<(script|style|svg|table style).*?</(\1|table)>", " ", page, flags=re.DOTALL)
    return len(re.sub(r"<[^>]*>", " ", body).split())


@pytest.mark.browser
def test_the_story_is_short_and_has_nine_figures(folder: Path) -> None:
    page = (folder / "index.html").read_text("utf-8")
    assert words(page) <= 2900
    assert len(set(views(page))) == page.count("data-figure=") == 9


def test_the_loop_to_copy_is_on_it_whole() -> None:
    copied = ESSAY.partition("```python\n")[2].partition("```")[0]
    lines = [line.partition("#")[0].rstrip() for line in copied.splitlines()]
    assert lines[1] == "with model.join():"
    assert lines[-1] == "dist.barrier()"


@pytest.mark.browser
@pytest.mark.parametrize("name", re.findall(r"^:::ask (\w+)", ESSAY, re.MULTILINE))
def test_every_question_has_one_right_choice_and_an_answer(folder: Path, name: str) -> None:
    page = (folder / "index.html").read_text("utf-8")
    form = re.search(rf'<form class="ask" id="ask-{name}">.*?</form>', page, re.DOTALL)
    assert form is not None
    assert form[0].count("data-right") == 1
    assert 'class="answer" aria-live="polite" hidden' in form[0]


@pytest.mark.browser
def test_no_page_has_a_dead_link(folder: Path) -> None:
    pages = list(folder.rglob("*.html"))
    lost = []
    for page in pages:
        text = page.read_text("utf-8")
        links = re.findall(r'(?:href|src)="([^"#:]+)(?:#[^"]*)?"', text)
        links += [f"{view}.{kind}" for view in views(text) for kind in ("js", "html")]
        for link in links:
            if not (page.parent / link).resolve().is_file():
                lost.append(f"{page.relative_to(folder)}: {link}")
    assert lost == []
    assert len(pages) > 30


@pytest.mark.browser
def test_every_page_but_a_run_leads_home_in_a_click(folder: Path) -> None:
    runs = {*(folder / "figures").iterdir(), folder / "index.html"}
    for page in {*folder.rglob("*.html")} - runs:
        assert 'index.html">Home</a>' in page.read_text("utf-8"), page.name


@pytest.mark.browser
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_s_page_asks_its_questions_and_opens_its_solutions(
    folder: Path, path: Path
) -> None:
    page = (folder / "notebooks" / f"{path.stem}.html").read_text("utf-8")
    asked = of_notebook(path.stem)
    assert re.findall(r'<form class="ask" id="ask-(\w+)"', page) == [one.name for one in asked]
    assert page.count(" data-right>") == len(asked)
    exercises = [name for name in EXERCISES if EXERCISES[name].notebook == path.stem]
    assert page.count("<summary>A solution</summary>") == len(exercises)
    assert page.count('<img src="pictures/') >= 3


@pytest.mark.browser
def test_the_teacher_s_sheet_has_every_answer(folder: Path) -> None:
    page = (folder / "answers.html").read_text("utf-8")
    assert page.count("<li>") == len(questions())
    assert "<h2>1. Six loops</h2>" in page
    assert (folder / "sheet.html").read_text("utf-8").count('<th scope="row">') == 6


@pytest.mark.browser
def test_an_ending_that_undefined_memory_decides_is_one_of_several(folder: Path) -> None:
    page = (folder / "index.html").read_text()
    table = page[page.index('<table class="ends">') :]
    assert re.findall(r"one of \d endings", table) == ["one of 3 endings", "one of 5 endings"]
    told = table[table.index("one of 5 endings") :].partition("</details>")[0]
    assert told.count("<li>") == 5
    assert "<li>rank 0 hangs; rank 1 finished (the thread)</li>" in told


@pytest.mark.browser
def test_the_thread_s_ending_is_in_sight_wherever_the_cases_endings_are_shown(folder: Path) -> None:
    for name in ("index.html", "gpus.html"):
        page = (folder / name).read_text()
        table = re.sub(r"<details>.*?</details>", "", page[page.index('<table class="ends">') :])
        rows = re.findall(r'<th scope="row">Case (\d)</th><td>(.*?)</td>', table)
        assert [int(number) for number, _ in rows] == list(DOCUMENTED)
        for number, told in rows:
            ends = DOCUMENTED[int(number)].asker
            words = "; ".join(f"rank {rank} {end}" for rank, end in enumerate(ends))
            assert re.sub("<.*?>", "", told) in (words, "both finish")
            assert ("both" in told) == (set(ends) == {"finishes"})


@pytest.mark.browser
def test_a_picture_of_case_4_says_how_many_endings_there_are_and_the_thread_s(folder: Path) -> None:
    page = (folder / "index.html").read_text()
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", page, re.DOTALL)
    told = [caption for caption in captions if "endings" in caption]
    of_three = " one of 3 endings; memory that nobody set decides which. In each, rank 1 hangs. "
    of_five = " one of 5 endings; memory that nobody set decides which. "
    assert [of_three in caption for caption in told] == [True, True, False]
    assert of_five in told[2]
    for caption in told:
        assert "thread of 2021, with PyTorch 1.9.1: rank 0 hangs; rank 1 finishes." in caption


@pytest.mark.browser
def test_people_with_two_gpus_find_what_is_known_and_how_to_send_more(folder: Path) -> None:
    page = (folder / "gpus.html").read_text()
    for words in ("make gpu", "joinlab-gpu.json", "<table>", "stand-in", "documented"):
        assert words in page
    assert 'href="gpus.html"' in (folder / "index.html").read_text()


@pytest.mark.browser
def test_a_symptom_says_cause_cure_and_that_it_was_tried(folder: Path) -> None:
    page = (folder / "symptoms" / "early_stopping.html").read_text("utf-8")
    assert "Tried: all ranks finish" in page
    assert "python -m joinlab show -" in page
    assert "<ins>+         dist.all_reduce(stop, op=dist.ReduceOp.MAX)</ins>" in page


def test_every_collective_can_be_looked_up(tmp_path: Path) -> None:
    page = site._collectives(tmp_path)
    assert page.count("<h2 id=") == len(site.COLLECTIVES) == 10
    assert re.findall(r'data-run="(\d)"', page) == [str(number) for number in range(10)]
    assert (tmp_path / "collectives.html").read_text("utf-8").count('class="run"') == 10


@pytest.mark.browser
@pytest.mark.slow
def test_answers_and_figures_appear_when_one_commits(folder: Path, browser: Any) -> None:
    with watched(browser, [folder.as_uri()], viewport={"width": 390, "height": 844}) as page:
        page.goto((folder / "index.html").as_uri())
        assert page.locator(".answer:visible").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        for name in page.evaluate("[...document.forms].map((form) => form.id)"):
            page.locator(f"#{name} input").first.check()
        assert page.locator(".answer[hidden]").count() == 0
        assert page.locator("form .answer:visible").count() == page.locator("form").count()


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize("share", sampled(range(3), (2).__eq__))
def test_every_figure_is_moved_and_its_position_has_an_address(
    folder: Path, browser: Any, share: int
) -> None:
    """With fewer inputs on rank 0 there are fewer calls; cases 1 and 6 still finish."""
    for name in views((folder / "index.html").read_text("utf-8"))[share::3]:
        figure = folder / f"{name}.html"
        with watched(browser, [folder.as_uri()], viewport={"width": 390, "height": 844}) as page:
            page.goto(figure.as_uri())
            told, whole = page.locator(".jl-headline"), page.locator("body")
            before, drawn = told.inner_text(), whole.inner_text()
            dots = page.locator(".jl-dotrow").first
            dots.focus()
            fewer = str(int(dots.get_attribute("aria-valuenow")) - 1)
            page.keyboard.press("ArrowLeft")
            expect(dots).to_have_attribute("aria-valuenow", fewer)
            expect(whole).not_to_have_text(drawn, use_inner_text=True)
            if figure.stem in ("shadow", "right"):
                expect(told).to_contain_text(before.partition(":")[0])
            after, address = told.inner_text(), page.url
            assert (
                f"inputs={fewer}," in address
                and page.evaluate("document.documentElement.scrollWidth") <= 390
            )
            page.goto("about:blank")
            page.goto(address)
            expect(told).to_have_text(after)


DRAWN = """async (place) => {
    place.scrollIntoView({ block: "center" });
    while (!place.shadowRoot?.querySelector(".jl-scene, .jl-chart svg"))
        await new Promise(requestAnimationFrame);
}"""
"""Of a view: bring it into sight, and wait until it is drawn."""

MEASURED = """async () => {
    const frames = async () => { for (let i = 0; i < 3; i++) await new Promise(requestAnimationFrame); };
    const high = () => document.scrollingElement.scrollHeight;
    for (let before = 0; before !== high();) { before = high(); await frames(); }
    const inner = [];
    for (const place of document.querySelectorAll("[data-figure]"))
        for (const part of [place, ...place.shadowRoot.querySelectorAll("*:not(pre, .jl-code, .jl-code *)")]) {
            const { overflowX, overflowY } = getComputedStyle(part);
            const [high, wide] = [part.scrollHeight - part.clientHeight, part.scrollWidth - part.clientWidth];
            if ((overflowY === "auto" && high > 1) || (overflowX === "auto" && wide > 1))
                inner.push(`${place.dataset.figure}: ${part.outerHTML.slice(0, 90)} ${high} ${wide}`);
        }
    const main = document.querySelector("main").getBoundingClientRect();
    return {
        inner,
        high: Math.abs(high() - Math.max(innerHeight, main.bottom + scrollY)) < 1,
        wide: document.scrollingElement.scrollWidth,
    };
}"""
"""Once all movement has ended: which parts of the views scroll by themselves, except code; whether the page is as
high as its content; and its width."""


@pytest.mark.browser
def test_no_page_has_a_frame(folder: Path) -> None:
    for page in folder.rglob("*.html"):
        assert "<iframe" not in page.read_text("utf-8"), page.name


@pytest.mark.browser
def test_the_runs_of_a_page_and_the_script_that_draws_them_stand_beside_it(folder: Path) -> None:
    """So that the first screen waits for neither."""
    drawing = (folder / "figures" / "joinlab.js").stat().st_size
    for name in ("index.html", "symptoms/early_stopping.html", "collectives.html"):
        page = (folder / name).read_text("utf-8")
        assert "class First" not in page and "joinlab.keep" not in page
        assert len(page) < 100_000 < drawing


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "width"),
    sampled(
        product(("index.html", "symptoms/early_stopping.html", "collectives.html"), (1440, 390)),
        {
            ("symptoms/early_stopping.html", 390),
            ("collectives.html", 1440),
        }.__contains__,
    ),
)
def test_a_page_is_as_high_as_what_is_on_it_after_a_click_too(
    folder: Path, browser: Any, name: str, width: int
) -> None:
    """No view scrolls by itself, and the wheel, turned over a view, scrolls the page."""
    fits = {"inner": [], "high": True, "wide": width}
    with watched(browser, [folder.as_uri()], viewport={"width": width, "height": 900}) as page:
        page.goto((folder / name).as_uri())
        for form in page.locator("form.ask").all():
            form.locator("input").first.evaluate("(input) => input.click()")
            expect(form.locator("input").first).to_be_checked()
        places = page.locator("[data-figure]").all()
        assert len(places) == {"i": 9, "s": 2, "c": 10}[name[0]]
        for place in places:
            place.evaluate(DRAWN)
        assert page.evaluate(MEASURED) == fits
        for place in places:
            place.scroll_into_view_if_needed()
            for box in place.locator(".jl-col rect").all()[:1]:  # on the clock there are none
                box.click(force=True)  # its word lies on it
                expect(place.locator(".jl-told")).to_be_visible()
            place.locator(".jl-opener").click()
        assert page.evaluate(MEASURED) == fits
        for place in places:
            place.evaluate("(place) => place.scrollIntoView()")
            before = page.evaluate("scrollY")
            box = place.locator(".jl-picture").first.bounding_box()
            page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 20)
            page.mouse.wheel(0, -150)
            page.wait_for_function("(before) => scrollY < before", arg=before)


@pytest.mark.browser
@pytest.mark.slow
def test_a_view_in_a_page_leaves_the_page_s_address_and_keys_alone(
    folder: Path, browser: Any
) -> None:
    with watched(browser, [folder.as_uri()], viewport={"width": 1440, "height": 900}) as page:
        page.goto((folder / "index.html").as_uri())
        address, title = page.url, page.title()
        place = page.locator("[data-figure='figures/even']")
        place.evaluate(DRAWN)
        dots = place.locator(".jl-dotrow").first
        dots.focus()
        page.keyboard.press("ArrowLeft")
        expect(dots).to_have_attribute("aria-valuenow", "2")
        place.locator(".jl-scrub").focus()
        page.keyboard.press("t")
        expect(place.locator(".jl-turner")).to_have_attribute("aria-pressed", "true")
        other = page.locator("[data-figure='figures/right']")
        other.evaluate(DRAWN)
        expect(other.locator(".jl-turner")).to_have_attribute("aria-pressed", "false")
        assert (page.url, page.title()) == (address, title)
        page.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text }")
        place.locator(".jl-opener").click()
        place.get_by_role("button", name="copy link").click()
        page.wait_for_function("window.copied")
        copied = page.evaluate("copied")
        assert copied.startswith((folder / "figures" / "even.html").as_uri())
        page.goto(copied)
        expect(page.locator(".jl-dotrow").first).to_have_attribute("aria-valuenow", "2")


@pytest.mark.browser
@pytest.mark.slow
def test_without_scripts_and_on_paper_a_still_stands_in_place_of_a_view(
    folder: Path, browser: Any
) -> None:
    address = (folder / "index.html").as_uri()
    with watched(browser, [folder.as_uri()], java_script_enabled=False) as page:
        page.goto(address)
        for picture in page.locator("[data-figure] img").all():
            expect(picture).to_be_visible()
        expect(page.get_by_role("link", name="Alone on a page")).to_have_count(9)
    with watched(browser, [folder.as_uri()]) as page:
        page.goto(address)
        pictures = "[...document.querySelectorAll('[data-figure] img')]"
        assert page.evaluate(f"{pictures}.every((one) => one.naturalWidth > 400)")
        place = page.locator("[data-figure='figures/even']")
        place.evaluate(DRAWN)
        for media, live in (("print", False), ("screen", True)):
            page.emulate_media(media=media)
            expect(place.locator("img")).to_be_visible(visible=not live)
            expect(place.locator(".jl")).to_be_visible(visible=live)


@pytest.mark.browser
@pytest.mark.slow
def test_the_projector_shows_one_question_a_screen_and_counts_hands(
    folder: Path, browser: Any
) -> None:
    with watched(browser, [folder.as_uri()], viewport={"width": 1440, "height": 900}) as page:
        page.goto((folder / "notebooks" / "01_six_loops.html").as_uri())
        page.get_by_role("button", name="Projector").click()
        expect(page.locator("form.ask:visible")).to_have_id("ask-wait")
        expect(page.locator(".where")).to_be_visible()
        hands = page.locator("#ask-wait .hands").nth(1)
        hands.click()
        hands.click()
        expect(hands).to_have_text("2")
        assert page.locator("#ask-wait .answer:visible").count() == 0
        page.keyboard.press("ArrowRight")
        expect(page.locator("form.ask:visible")).to_have_id("ask-unmatched")
        page.keyboard.press("Escape")
        assert page.locator("form.ask:visible").count() > 3


@pytest.mark.browser
@pytest.mark.slow
def test_in_the_projector_an_answer_s_view_appears_and_closes_its_details_itself(
    folder: Path, browser: Any
) -> None:
    with watched(browser, [folder.as_uri()], viewport={"width": 1440, "height": 900}) as page:
        page.goto((folder / "index.html").as_uri() + "#project=6")
        expect(page.locator("form.ask:visible")).to_have_id("ask-shadow")
        assert page.locator("[data-figure]:visible").count() == 0
        page.locator("#ask-shadow input").first.check()
        place = page.locator("[data-figure='figures/shadow']")
        place.evaluate(DRAWN)
        assert place.bounding_box()["width"] > 1000
        assert page.evaluate("document.documentElement.scrollWidth") <= 1440
        place.locator(".jl-col").last.click()
        expect(place.locator(".jl-told")).to_be_visible()
        place.locator(".jl-scrub").focus()
        page.keyboard.press("Escape")
        expect(place.locator(".jl-told")).to_be_hidden()
        expect(page.locator("body")).to_have_class("projector")
        page.keyboard.press("Escape")
        expect(page.locator("body")).not_to_have_class("projector")


@pytest.mark.browser
@pytest.mark.slow
def test_no_page_is_wider_than_a_phone(folder: Path, browser: Any) -> None:
    viewport = {"width": 390, "height": 844}
    pages = [page for page in folder.rglob("*.html") if page.parent.name != "figures"]
    with watched(browser, [folder.as_uri()], viewport=viewport) as page:
        for path in pages:
            page.goto(path.as_uri())
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, path.name


@pytest.mark.browser
@pytest.mark.slow
def test_on_paper_every_answer_stands_there(folder: Path, browser: Any) -> None:
    with watched(browser, [folder.as_uri()]) as page:
        page.goto((folder / "index.html").as_uri())
        page.emulate_media(media="print")
        assert page.locator("form .answer:visible").count() == page.locator("form").count()
