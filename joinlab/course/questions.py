"""The questions of the notebooks: predictions before a run, and new situations at the end of each
notebook.

They are kept in questions.toml, so that a notebook does not contain the answers.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Question:
    """One question.

    name      the name that a notebook uses, such as "5-barrier"; end questions are numbered: "5.1"
    notebook  the number of its notebook
    ask       the question; words in backticks are code
    code      the program in question, or ""
    choices   the answers to choose from
    answer    the right choice
    why       the explanation shown with the answer
    """

    name: str
    notebook: int
    ask: str
    choices: tuple[str, ...]
    answer: str
    why: str
    code: str = ""

    def __post_init__(self) -> None:
        assert self.answer in self.choices, (
            f"{self.name}: the answer {self.answer!r} is not one of the choices"
        )

    def __str__(self) -> str:
        lines = [self.ask, *(f"    {line}" for line in self.code.splitlines())]
        return "\n".join(
            [
                *lines,
                *(
                    f"  ({letter}) {one}"
                    for letter, one in zip("abcdef", self.choices, strict=False)
                ),
            ]
        )


@cache
def questions() -> Mapping[str, Question]:
    """All questions by name, in the order of the course."""
    text = files("joinlab.course").joinpath("questions.toml").read_text("utf-8")
    found: dict[str, Question] = {}
    for number, parts in tomllib.loads(text).items():
        for at, fields in enumerate(parts.get("end", ()), 1):
            parts[f".{at}"] = fields
        for name, fields in parts.items():
            if name != "end":
                name = number + name if name.startswith(".") else f"{number}-{name}"
                choices = tuple(fields.pop("choices"))
                found[name] = Question(name, int(number), choices=choices, **fields)
    return found


def of_the_end(notebook: int) -> tuple[Question, ...]:
    """The questions at the end of a notebook."""
    return tuple(one for one in questions().values() if one.name.startswith(f"{notebook}."))
