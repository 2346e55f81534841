"""Quizzes in a real JupyterLab: by keyboard; and every question of the course, answered wrong and
right."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import pytest

from joinlab.course.questions import Question, questions

pytestmark = pytest.mark.browser
pytest.importorskip("playwright.sync_api")
from playwright.sync_api import expect  # noqa: E402

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


@pytest.fixture
def opened(browser, served) -> Iterator[Callable[[str, Sequence[str]], Notebook]]:
    """Opens code cells as a notebook."""
    with watched(browser, [served.url], viewport={"width": 1300, "height": 1100}) as page:

        def open_cells(name: str, cells: Sequence[str]) -> Notebook:
            write_notebook(served.folder / name, cells)
            notebook = Notebook(page, served.url, served.token, name)
            notebook.run_all()
            return notebook

        yield open_cells
    end_kernels(served.url, served.token)


def test_a_quiz_is_answered_by_keyboard_and_shows_the_run_only_then(opened):
    page = opened("quiz.ipynb", CELLS).page
    page.get_by_role("group", name="Rank 1 calls the barrier behind its last input.").wait_for()
    assert page.locator("pre", has_text="here is the run").count() == 0
    page.get_by_role("radio", name="none: rank 1 waits alone").focus()
    page.keyboard.press("Space")
    page.get_by_role("button", name="Show").first.focus()
    page.keyboard.press("Enter")
    page.get_by_text("No: anyone left?").wait_for()
    page.locator("pre", has_text="here is the run").wait_for()
    page.get_by_role("radio", name="3. 6", exact=True).check()
    page.get_by_role("button", name="Show").nth(1).click()
    page.get_by_text("✓ Right.").wait_for()


@pytest.mark.parametrize("share", sampled(range(4), (0).__eq__))
def test_every_question_of_the_course_is_shown_and_answered(opened, share):
    """Every second one wrong; of a quarter of the notebooks."""
    notebooks = [*dict.fromkeys(one.notebook for one in questions().values())][share::4]
    asked = [one for one in questions().values() if one.notebook in notebooks]
    forget = "import joinlab\nfrom joinlab.course import progress\nprogress.forget()"
    page = opened("all.ipynb", [forget, *(SOME.format(name) for name in notebooks)]).page
    choices = [choice(one, at % 2 == 1) for at, one in enumerate(asked)]
    for shown in (".jl-quiz label:first-child", ".jp-OutputArea-output button"):
        expect(page.locator(shown)).to_have_count(len(asked))  # JupyterLab shows them one by one
    verdicts = page.get_by_role("status").filter(has_text=re.compile("^[✓✕]"))
    for first in range(
        0, len(asked), 20
    ):  # a busy server loses what a kernel says in over 1,000 messages at once
        page.evaluate(ANSWER, [first, choices[first : first + 20]])
        expect(verdicts).to_have_count(min(first + 20, len(asked)))
    for at, (one, verdict) in enumerate(zip(asked, verdicts.all_inner_texts(), strict=True)):
        assert plain(verdict) == plain(
            f"{'✓ Right.' if at % 2 else f'✕ No: {one.answer}.'} {one.why}"
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
