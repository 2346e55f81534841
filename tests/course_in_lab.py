"""The course in a real JupyterLab: every notebook run once, its quizzes answered and its exercises solved there.

    python -m tests.course_in_lab --shots out/shots       # all notebooks, or those named by their numbers

Nothing outside of this machine is reached, no cell fails, and the browser has nothing to complain about. Of the
questions of the course, those that test_quiz_browser.py answers wrong are answered right here, and the other way
round. Each notebook is saved as pictures, with its answers.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from joinlab.course.exercises import EXERCISES
from joinlab.course.questions import Question, questions
from tests.browser import Notebook, chromium, lab, watched
from tests.test_notebooks import FOLDER, NOTEBOOKS

ANSWER = """(wanted) => {
    const boxes = Array.from(document.querySelectorAll('.jl-quiz'));
    boxes.slice(0, wanted.length).forEach((box, at) => {
        box.querySelectorAll('input')[wanted[at]].click();
        box.parentElement.querySelector('button').click();
    });
    return boxes.length; }"""
"""Choose in each question on the page, by the number of the choice, and press its Show."""

SCROLL = """async (at) => {
    const panel = Array.from(document.querySelectorAll('.jp-WindowedPanel-outer')).find((one) => one.clientHeight);
    panel.scrollTop = at * (panel.clientHeight - 40);
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    return panel.scrollTop + panel.clientHeight + 1 < panel.scrollHeight; }"""

SOLVE = """
from joinlab.course import solutions as _solutions
_right = bool(joinlab.check({name!r}, getattr(_solutions, {answer!r})))
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.course_in_lab")
    parser.add_argument("--shots", type=Path, default=Path("out/shots"), help="the folder for the pictures")
    parser.add_argument("numbers", nargs="*", type=int, help="which notebooks; by default all")
    arguments = parser.parse_args()
    arguments.shots.mkdir(parents=True, exist_ok=True)
    asked = list(questions().values())
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        os.environ["JOINLAB_PROGRESS"] = str(folder / "progress.json")
        shutil.copytree(FOLDER, folder / "served")
        with lab(folder / "served", folder / "settings") as (url, token), chromium() as browser:
            for path in NOTEBOOKS:
                number = int(path.stem[:2])
                if arguments.numbers and number not in arguments.numbers:
                    continue
                begun = time.monotonic()
                with watched(browser, [url], viewport={"width": 1300, "height": 1700}) as page:
                    page.set_default_timeout(120_000)
                    notebook = Notebook(page, url, token, path.name)
                    notebook.run_all()
                    wanted = [chosen(one, at % 2 == 0) for at, one in enumerate(asked) if one.notebook == number]
                    pressed = page.evaluate(ANSWER, wanted)
                    assert pressed == len(wanted), f"{path.stem}: {pressed} of {len(wanted)} questions are on the page"
                    known = "__import__('joinlab.course.progress').course.progress.state()['questions']"
                    while len(found := notebook.ask(known)) < len(wanted):  # the kernel answers one by one
                        pass
                    mine = {one.name: at % 2 == 0 for at, one in enumerate(asked) if one.notebook == number}
                    assert {name: found[name] for name in mine} == mine
                    for name, exercise in EXERCISES.items():
                        if exercise.notebook == number:
                            notebook.tell(SOLVE.format(name=name, answer=solved_by(name)))
                            assert notebook.ask("_right"), f"{path.stem}: the solution of {name} was refused"
                    picture(notebook, arguments.shots, path.stem)
                    notebook.tell("from joinlab.course import progress as _progress; _progress.forget()")
                    notebook.shut_down()
                print(f"{path.stem}: {pressed} questions, {time.monotonic() - begun:.0f} s", flush=True)
    return 0


def chosen(question: Question, right: bool) -> int:
    """The place of the right choice, or of the first wrong one."""
    return next(at for at, one in enumerate(question.choices) if (one == question.answer) == right)


def solved_by(exercise: str) -> str:
    """The name in solutions.py of what solves an exercise."""
    return {"small_ddp": "SmallDDP"}.get(exercise, "Largest" if EXERCISES[exercise].notebook == 9 else exercise)


def picture(notebook: Notebook, folder: Path, name: str) -> None:
    """The notebook from top to bottom, in pictures of a screen each: name_1.png, name_2.png, ..."""
    page = notebook.page
    for at in range(100):
        more = page.evaluate(SCROLL, at)
        page.screenshot(path=folder / f"{name}_{at + 1}.png")
        if not more:
            return


if __name__ == "__main__":
    sys.exit(main())
