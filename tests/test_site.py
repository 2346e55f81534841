"""The site: its pages before and after a reader chooses an answer; none sends a request to a
network."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from joinlab.course import site
from joinlab.course.symptoms import SYMPTOMS
from tests.answers import refusal
from tests.test_notebooks import NOTEBOOKS

pytest.importorskip("playwright.sync_api")
from playwright.sync_api import expect

from tests.browser import watched

ESSAY = (Path(site.__file__).parent / "essay.md").read_text("utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The essay with its figures, and one symptom: 10 s, so all its tests run beside the
    browser's."""
    root = tmp_path_factory.mktemp("site")
    for name in ("figures", "symptoms"):
        (root / name).mkdir()
    (root / "index.html").write_text(site.essay(root / "figures"), "utf-8")
    one = SYMPTOMS["early_stopping"]
    (root / "symptoms" / "early_stopping.html").write_text(
        site._symptom(one, root / "symptoms"), "utf-8"
    )
    (root / "symptoms" / "index.html").write_text(site._symptoms(), "utf-8")
    (root / "gpus.html").write_text(site._gpus(), "utf-8")
    return root


def words(page: str) -> int:
    body = re.sub(r"<(script|style).*?</\1>", " ", page, flags=re.DOTALL)
    return len(re.sub(r"<[^>]*>", " ", body).split())


@pytest.mark.browser
def test_the_story_is_short_and_has_eight_figures(folder: Path) -> None:
    page = (folder / "index.html").read_text("utf-8")
    assert words(page) <= 2500
    assert len(re.findall(r"<figure id=", page)) == len(list((folder / "figures").iterdir())) == 8


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
def test_links_lead_to_pages_that_are_there(folder: Path) -> None:
    for page in (folder / "index.html", folder / "symptoms" / "early_stopping.html"):
        for link in re.findall(r'(?:href|src)="([^"#:]+)', page.read_text("utf-8")):
            assert (page.parent / link).is_file(), link


@pytest.mark.browser
@pytest.mark.browser
def test_an_ending_that_undefined_memory_decides_is_one_of_several(folder: Path) -> None:
    page = (folder / "index.html").read_text()
    assert re.findall(r"one of \d endings", page) == ["one of 3 endings", "one of 5 endings"]
    told = page[page.index("one of 5 endings") :].partition("</details>")[0]
    assert told.count("<li>") == 5
    assert "<li>rank 0 hangs; rank 1 finished (the thread)</li>" in told


@pytest.mark.browser
def test_people_with_two_gpus_find_what_is_known_and_how_to_send_more(folder: Path) -> None:
    page = (folder / "gpus.html").read_text()
    for words in ("make gpu", "joinlab-gpu.json", "<table>", "stand-in", "documented"):
        assert words in page
    assert 'href="gpus.html"' in (folder / "index.html").read_text()


def test_a_symptom_says_cause_cure_and_that_it_was_tried(folder: Path) -> None:
    page = (folder / "symptoms" / "early_stopping.html").read_text("utf-8")
    assert "Tried: all ranks finish" in page
    assert "python -m joinlab show -" in page
    assert "<ins>+         dist.all_reduce(stop, op=dist.ReduceOp.MAX)</ins>" in page


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_solved_notebook_passes_its_checks(path: Path) -> None:
    import nbformat  # loading it takes 3 s

    solved = nbformat.reads(site.solved(path), as_version=4)
    nbformat.validate(solved)
    code = [cell.source for cell in solved.cells if cell.cell_type == "code"]
    names: dict[str, Any] = {}
    for before, check in pairwise(code):
        if found := re.fullmatch(r'joinlab\.check\("(\w+)", (\w+)\)', check):
            exec(before, names)
            assert refusal(found[1], names[found[2]]) == ""


def test_every_collective_can_be_looked_up(tmp_path: Path) -> None:
    page = site._collectives(tmp_path)
    assert page.count("<h2 id=") == len(site.COLLECTIVES) == 10
    assert (tmp_path / "collectives-runs.html").read_text("utf-8").count('class="run"') == 10


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
def test_every_figure_is_moved_and_its_position_has_an_address(folder: Path, browser: Any) -> None:
    """Without inputs on rank 0 there are fewer calls; loops 1 and 6 still finish."""
    for figure in sorted((folder / "figures").iterdir()):
        with watched(browser, [folder.as_uri()], viewport={"width": 390, "height": 844}) as page:
            page.goto(figure.as_uri())
            told, whole = page.locator(".jl-headline"), page.locator("body")
            before, drawn = told.inner_text(), whole.inner_text()
            dots = page.locator(".jl-dotrow").first
            dots.focus()
            page.keyboard.press("Home")
            expect(dots).to_have_attribute("aria-valuenow", "0")
            expect(whole).not_to_have_text(drawn, use_inner_text=True)
            if figure.stem in ("shadow", "right"):
                expect(told).to_have_text(before)
            after, address = told.inner_text(), page.url
            assert (
                "inputs=0," in address
                and page.evaluate("document.documentElement.scrollWidth") <= 390
            )
            page.goto("about:blank")
            page.goto(address)
            expect(told).to_have_text(after)


@pytest.mark.browser
@pytest.mark.slow
def test_on_paper_every_answer_stands_there(folder: Path, browser: Any) -> None:
    with watched(browser, [folder.as_uri()]) as page:
        page.goto((folder / "index.html").as_uri())
        page.emulate_media(media="print")
        assert page.locator("form .answer:visible").count() == page.locator("form").count()
