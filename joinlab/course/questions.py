"""The questions of the notebooks: predictions before a run, and new situations at the end of each
notebook.

questions.toml holds them, so that a notebook does not contain the answers. The text and the choices
of a question stand in the notebook, above the cell that asks it. They are written there by

    python -m joinlab.course.questions notebooks/*.ipynb

between a line "<!-- question NAME -->" and a line "<!-- end -->".
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

BLOCK = re.compile(r"<!-- question (\w+) -->\n.*?<!-- end -->", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Question:
    """One question.

    name      the name by which a notebook asks it
    notebook  the file of its notebook, without ".ipynb"
    ask       the question; words in backticks are code
    choices   the answers to choose from
    answer    the right choice
    why       the explanation shown with the answer
    code      the program in question, or ""
    """

    name: str
    notebook: str
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
        code = "".join(f"    {line}\n" for line in self.code.strip().splitlines())
        choices = "".join(
            f"  {number}. {choice}\n" for number, choice in enumerate(self.choices, 1)
        )
        return f"{self.ask}\n{code}{choices}".rstrip()

    def markdown(self) -> str:
        """The question and its numbered choices, as a notebook shows them."""
        if self.code:
            code = f"```python\n{self.code.strip()}\n```\n\n"
        else:
            code = ""
        choices = "\n".join(f"{number}. {choice}" for number, choice in enumerate(self.choices, 1))
        return f"**{self.ask}**\n\n{code}{choices}"


@cache
def questions() -> Mapping[str, Question]:
    """All questions by name, in the order of the course."""
    text = files("joinlab.course").joinpath("questions.toml").read_text("utf-8")
    asked: dict[str, Question] = {}
    for notebook, named in tomllib.loads(text).items():
        for name, fields in named.items():
            assert name not in asked, f"two questions are called {name}"
            choices, ordered = fields.pop("choices"), fields.pop("ordered", False)
            if not ordered:
                choices = spread(name, choices, fields["answer"])
            asked[name] = Question(name, notebook, choices=tuple(choices), **fields)
    return asked


def known(noun: str, name: str, names: Collection[str]) -> None:
    """Raise ValueError unless there is one of this name."""
    if name not in names:
        raise ValueError(f"there is no {noun} {name!r}; there are {', '.join(names)}")


def spread(name: str, choices: Sequence[str], answer: str) -> list[str]:
    """The choices with the right one at a place that follows from the question's name, so that the
    place tells nothing.

    >>> spread("byte", ["yes", "no", "perhaps"], "no")
    ['yes', 'perhaps', 'no']
    """
    wrong_choices = [choice for choice in choices if choice != answer]
    index = sha256(name.encode()).digest()[2] % len(choices)
    return [*wrong_choices[:index], answer, *wrong_choices[index:]]


def of_notebook(notebook: str) -> tuple[Question, ...]:
    """The questions of a notebook, in order."""
    return tuple(question for question in questions().values() if question.notebook == notebook)


def with_questions(markdown: str) -> str:
    """The text of a cell with its questions as they stand in questions.toml.

    Raises ValueError for the name of a question that does not exist.
    """

    def block(match: re.Match[str]) -> str:
        question = questions().get(match[1])
        if question is None:
            raise ValueError(f"there is no question {match[1]!r} in questions.toml")
        return f"<!-- question {question.name} -->\n{question.markdown()}\n<!-- end -->"

    return BLOCK.sub(block, markdown)


def main(paths: Sequence[str]) -> None:
    """Write the questions into these notebooks."""
    for path in map(Path, paths):
        notebook = json.loads(path.read_text("utf-8"))
        for cell in notebook["cells"]:
            if cell["cell_type"] == "markdown":
                text = with_questions("".join(cell["source"]))
                cell["source"] = text.splitlines(keepends=True)
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
