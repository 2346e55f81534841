"""Quizzes in a real JupyterLab: by keyboard; and every question of the course, answered wrong and
right."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import pytest

from joinlab.course.questions import Question, questions

pytestmark = pytest.mark.browser
pytest.importorskip("playwright.sync_api")
from playwright.sync_api import Page, expect  # noqa: E402

from tests.browser import Notebook, end_kernels, watched, write_notebook  # noqa: E402
from tests.nightly import sampled  # noqa: E402

CELLS = (
    "import joinlab\nasked = joinlab.quiz('last_barrier', 'here is the run')\nasked",
    "end = joinlab.quiz('four_buckets')\nend",
)
SOME = """
import ipywidgets
from joinlab.course.questions import of_notebook
from joinlab.notebook.quiz import Quiz
ipywidgets.VBox([Quiz(one).widget for one in of_notebook({!r})])
"""
"""All questions of one notebook."""

ANSWER = """([first, choices]) => {
    const boxes = Array.from(document.querySelectorAll('.jl-quiz')).slice(first);
    const buttons = Array.from(document.querySelectorAll('.jp-OutputArea-output button')).slice(first);
    choices.forEach((choice, at) => {
        const wanted = choice.replace(/[`*]/g, '');  // code is shown as code
        const label = Array.from(boxes[at].querySelectorAll('label')).find((one) => one.innerText.trim() === wanted);
        label.querySelector('input').click();
    });
    choices.forEach((choice, at) => buttons[at].click()); }"""
"""Choose in each of these questions, and press each Show."""


@pytest.fixture(scope="module")
def opened(browser, served) -> Iterator[Callable[[Sequence[str]], Page]]:
    """Gives the page with the two questions and those of these notebooks; it is opened once for all
    tests in a row that ask for the same notebooks."""
    pages: dict[tuple[str, ...], Page] = {}
    with watched(browser, [served.url], viewport={"width": 1300, "height": 1100}) as page:

        def open_questions(notebooks: Sequence[str]) -> Page:
            key = tuple(notebooks)
            if key not in pages:
                pages.clear()
                forget = "import joinlab\nfrom joinlab.course import progress\nprogress.forget()"
                cells = [forget, *CELLS, *(SOME.format(name) for name in key)]
                write_notebook(served.folder / "quiz.ipynb", cells)
                notebook = Notebook(page, served.url, served.token, "quiz.ipynb")
                notebook.run_all()
                pages[key] = page
            return pages[key]

        yield open_questions
    end_kernels(served.url, served.token)


def notebooks_of(share: int) -> list[str]:
    """A quarter of the notebooks that have questions."""
    return [*dict.fromkeys(one.notebook for one in questions().values())][share::4]


def test_a_quiz_is_answered_by_keyboard_and_shows_the_run_only_then(opened):
    page = opened(notebooks_of(0))
    here, there = (page.locator(".jp-CodeCell").nth(at) for at in (1, 2))
    here.get_by_role("group", name="Rank 1 calls the barrier behind its last input.").wait_for()
    assert page.locator("pre", has_text="here is the run").count() == 0
    here.get_by_role("radio", name="none: rank 1 waits alone").focus()
    page.keyboard.press("Space")
    here.get_by_role("button", name="Show").focus()
    page.keyboard.press("Enter")
    here.get_by_text('The right answer is "anyone left?".').wait_for()
    here.locator("pre", has_text="here is the run").wait_for()
    there.get_by_role("radio", name="3. 6", exact=True).check()
    there.get_by_role("button", name="Show").click()
    there.get_by_text("✓ Right.").wait_for()


@pytest.mark.parametrize("share", sampled(range(4), (0).__eq__))
def test_every_question_of_the_course_is_shown_and_answered(opened, share):
    """Every second one wrong; of a quarter of the notebooks."""
    notebooks = notebooks_of(share)
    asked = [one for one in questions().values() if one.notebook in notebooks]
    page = opened(notebooks)
    choices = [choice(one, at % 2 == 1) for at, one in enumerate(asked)]
    for shown in (".jl-quiz label:first-child", ".jp-OutputArea-output button"):
        # JupyterLab shows them one by one
        expect(page.locator(shown)).to_have_count(len(CELLS) + len(asked))
    verdicts = page.locator(" ~ ".join([".jp-CodeCell"] * 4)).get_by_role("status")
    verdicts = verdicts.filter(has_text=re.compile("^[✓✕]"))
    # a busy server loses what a kernel says in over 1,000 messages at once
    for first in range(0, len(asked), 20):
        page.evaluate(ANSWER, [len(CELLS) + first, choices[first : first + 20]])
        expect(verdicts).to_have_count(min(first + 20, len(asked)))
    for at, (one, verdict) in enumerate(zip(asked, verdicts.all_inner_texts(), strict=True)):
        assert plain(verdict) == plain(
            f"""{"✓ Right." if at % 2 else f'✕ The right answer is "{one.answer}".'} {one.why}"""
        )


def choice(question: Question, right: bool) -> str:
    """A choice as the widget shows it."""
    chosen = (
        question.answer
        if right
        else next(one for one in question.choices if one != question.answer)
    )
    return f"{question.choices.index(chosen) + 1}. {chosen}"


def plain(text: str) -> str:
    return " ".join(text.replace("`", "").replace("*", "").split())
