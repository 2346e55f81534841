"""A quiz in a real JupyterLab: choose by keyboard, press Show, and see the answer and the run."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.browser
pytest.importorskip("playwright.sync_api")
from browser import Notebook, chromium, lab, watched, write_notebook  # noqa: E402

CELLS = (
    "import joinlab\nasked = joinlab.quiz('5-meets', 'here is the run')\nasked",
    "end = joinlab.quiz(9)\nend",
)


def test_a_quiz_is_answered_by_keyboard_and_shows_the_run_only_then(tmp_path, monkeypatch):
    monkeypatch.setenv("JOINLAB_PROGRESS", str(tmp_path / "progress.json"))
    write_notebook(tmp_path / "served" / "quiz.ipynb", CELLS)
    with (
        lab(tmp_path / "served", tmp_path / "settings") as (url, token),
        chromium() as browser,
        watched(browser, [url], viewport={"width": 1300, "height": 1100}) as page,
    ):
        notebook = Notebook(page, url, token, "quiz.ipynb")
        notebook.run_all()
        page.get_by_text("Which call of rank 0 meets that barrier?").wait_for()
        assert page.locator("pre", has_text="here is the run").count() == 0
        page.get_by_role("radio", name="a barrier", exact=True).focus()
        page.keyboard.press("Space")
        page.get_by_role("button", name="Show").first.focus()
        page.keyboard.press("Enter")
        page.get_by_text("No: how many have not joined?").wait_for()
        page.locator("pre", has_text="here is the run").wait_for()
        page.get_by_text("0 of 0 answered questions right").wait_for()  # the end was made before the answer
        page.get_by_role("radio", name="300").check()
        page.get_by_role("button", name="Show").nth(2).click()
        page.get_by_text("1 of 2 answered questions right").wait_for()
