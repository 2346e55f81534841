"""Estimates the minutes of each notebook from its words, lines, cells, questions and exercises.

    python -m tests.notebook_minutes

The figures below are assumptions, not measured with people. test_notebooks.py compares each
notebook's stated minutes with these estimates.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from joinlab.course.answers import solutions
from joinlab.course.exercises import EXERCISES
from joinlab.course.questions import questions
from tests.course.test_notebooks import NOTEBOOKS, cells, lines, load, words

WORDS_A_MINUTE = 200
PER_QUESTION = 0.25
"""To decide, beside reading the question, its choices and its explanation."""

PER_PICTURE = 0.25
PLAYED = 6.0
"""To predict the endings of six cases on the bench, and to look at them."""

PER_CODE_LINE = 0.1
PER_CELL = 0.5
"""To run it and to look at what it shows, if it shows something that has not been counted yet: a
definition shows nothing, a question without a run is PER_QUESTION, and a check belongs to its
exercise."""

PER_LINE_TO_WRITE = 2.0
"""For each line of an exercise's solution that the notebook does not have yet: to think, to be
wrong, to mend it."""

LINES_AT_LEAST = 2
"""An exercise counts for so many lines even if its lines only have to be moved."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell: under which heading, its exercise or "", whether it asks something, and its minutes
    without those of the exercise, and of that."""

    heading: str
    exercise: str
    asks: bool
    work: float
    writing: float


def timed(path: Path) -> Iterator[Cell]:
    """The cells of a notebook with their minutes."""
    given = {line for code in cells(path, "code") for line in _lines_of(code)}
    heading = ""
    for at, cell in enumerate(load(path)["cells"]):
        text = "".join(cell["source"])
        exercise, work, writing = "", 0.0, 0.0
        if cell["cell_type"] == "markdown":
            heading = (re.findall(r"(?m)^##? (?:[\w ]*\d\. )?(.*)$", text) or [heading])[-1]
            work = words(prose_of(text)) / WORDS_A_MINUTE + PER_PICTURE * text.count("](pictures/")
        else:
            asked = [questions()[name] for name in re.findall(r'joinlab\.quiz\("(\w+)"', text)]
            read = sum(words(one.why) for one in asked)
            work = (
                PER_CODE_LINE * lines(text)
                + PER_CELL * (at > 1 and _shows_a_run(text))
                + PER_QUESTION * len(asked)
                + PLAYED * ("joinlab.bench(" in text)
                + read / WORDS_A_MINUTE
            )
            exercise = (re.findall(r'joinlab\.check\("(\w+)"', text) or [""])[0]
            if exercise:
                shown = EXERCISES[exercise].shown or (exercise,)
                new = {
                    line
                    for name in shown
                    for line in _lines_of(inspect.getsource(getattr(solutions, name)))
                } - given
                given |= new
                writing = PER_LINE_TO_WRITE * max(len(new), LINES_AT_LEAST)
        asks = bool(re.search(r"joinlab\.(quiz|bench)\(", text))
        yield Cell(heading, exercise, asks, work, writing)


def _shows_a_run(code: str) -> bool:
    last = ast.parse(code).body[-1]
    bare = re.fullmatch(r"joinlab\.(quiz|check|progress)\([^()]*\)", ast.unparse(last).strip())
    return isinstance(last, ast.Expr) and not (
        (bare and "," not in bare[0]) or "check" in str(bare)
    )


def prose_of(markdown: str) -> str:
    """What one reads of a markdown cell: not the links to the other notebooks, nor the words that
    stand for a picture."""
    text = re.sub(r"(?m)^\*(?:The course|How DDP works|Further):\*.*$", "", markdown)
    return re.sub(r"!\[[^]]*\]\([^)]*\)|<[^>]*>", "", text)


def stretches(path: Path) -> list[float]:
    """The minutes before the first exercise, bench or question, between each and the next, and
    after the last."""
    found = [0.0]
    for cell in timed(path):
        if cell.exercise or cell.asks:
            found.append(0.0)
        else:
            found[-1] += cell.work
    return found


def sections(path: Path) -> str:
    """In which minute each part of a notebook begins: "0 First look, 3 A loop, ..."."""
    begun, minute = {}, 0.0
    for cell in timed(path):
        begun.setdefault(cell.heading, round(minute))
        minute += cell.work + cell.writing
    return ", ".join(f"{at} {heading.replace('`', '')}" for heading, at in begun.items())


def _lines_of(code: str) -> list[str]:
    """The statements of some code, a line each, without annotations, docstrings and comments."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
            node.body = node.body[1:] or [ast.Pass()]
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        if isinstance(node, ast.arg):
            node.annotation = None
    return [line.strip() for line in ast.unparse(tree).splitlines() if line.strip()]


def minutes(path: Path) -> int:
    """The minutes of a notebook without its part for the curious, to the next five."""
    return 5 * ceil(exact_minutes(path) / 5)


def exact_minutes(path: Path) -> float:
    """The minutes of a notebook without its part for the curious."""
    return sum(
        cell.work + cell.writing
        for cell in timed(path)
        if not cell.heading.startswith("For the curious")
    )


if __name__ == "__main__":
    for path in NOTEBOOKS:
        print(f"| {minutes(path)} | {path.stem} | {sections(path)} |")
