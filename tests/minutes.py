"""How many minutes each notebook takes: estimated from its words, lines, cells, questions and exercises.

    python -m tests.minutes

No trial with people stands behind it. The figures below are assumptions; test_notebooks.py holds the minutes that a
notebook states to what comes out of them.
"""

from __future__ import annotations

import ast
import inspect
import re
from math import ceil
from pathlib import Path

from joinlab.course import solutions
from joinlab.course.exercises import EXERCISES
from joinlab.course.questions import questions
from tests.test_notebooks import COURSE, NOTEBOOKS, cells, lines, words

WORDS_A_MINUTE = 200
PER_QUESTION = 0.25
"""To decide, beside reading the question, its choices and its explanation."""

PER_CODE_LINE = 0.1
PER_CELL = 0.5
"""To run it and to look at what it shows."""

PER_LINE_TO_WRITE = 2.0
"""For each line of an exercise's solution that the notebook does not have yet: to think, to be wrong, to mend it."""

LINES_AT_LEAST = 2
"""An exercise counts for so many lines even if its lines only have to be moved."""


def parts(path: Path) -> dict[str, float]:
    """The minutes for each part of a notebook."""
    number = COURSE.index(path.stem) + 1
    prose = "\n".join(re.sub(r"(?m)^The course: .*$", "", text) for text in cells(path, "markdown"))
    asked = [one for one in questions().values() if one.notebook == number]
    read = words(prose) + sum(words(" ".join((one.ask, one.code, *one.choices, one.why))) for one in asked)
    code = cells(path, "code")
    given = {line for cell in code for line in _lines_of(cell)}
    exercises = [one.shown for one in EXERCISES.values() if one.notebook == number]
    to_write: set[str] = set()
    at_least = 0
    for shown in exercises:
        new = {line for name in shown for line in _lines_of(inspect.getsource(getattr(solutions, name)))} - given
        at_least += max(0, LINES_AT_LEAST - len(new - to_write))
        to_write |= new
    return {
        "reading": read / WORDS_A_MINUTE,
        "questions": PER_QUESTION * len(asked),
        "code": PER_CODE_LINE * sum(map(lines, code)),
        "cells": PER_CELL * (len(code) - 1),
        "exercises": PER_LINE_TO_WRITE * (len(to_write) + at_least),
    }


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
    """The minutes of a notebook, to the next five."""
    return 5 * ceil(sum(parts(path).values()) / 5)


if __name__ == "__main__":
    for one in NOTEBOOKS:
        told = ", ".join(f"{name} {value:.1f}" for name, value in parts(one).items())
        print(f"{one.stem}: {minutes(one)} minutes ({told})")
