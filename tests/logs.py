"""Checks what is told of texts of logs against tests/material/logs/more/truths.toml.

    python -m tests.logs [NAMES] [--tell]

A text is told, or refused with the reason that the table states.
"""

from __future__ import annotations

import re
import sys
import tomllib
import warnings
from functools import cache
from pathlib import Path

import joinlab
from joinlab.errors import TimelineFileError

MORE = Path(__file__).parent / "material" / "logs" / "more"


@cache
def truths() -> dict[str, dict[str, str]]:
    """By name what a story says, what it must not say, or why the text is refused."""
    found: dict[str, dict[str, str]] = tomllib.loads((MORE / "truths.toml").read_text("utf-8"))
    return found


def check(name: str) -> tuple[list[str], str]:
    """What is wrong with what is told of a text, and what is told."""
    truth = truths()[name]
    try:
        told = str(joinlab.diagnose(joinlab.load(MORE / f"{name}.log")))
    except TimelineFileError as error:
        reason = truth.get("refused", "(?!)")
        wrong = not re.search(reason, str(error))
        return [f"FALSE refusal, not {reason!r}"] * wrong, str(error)
    if "refused" in truth:
        return ["FALSE: it is told, not refused"], told
    problems = []
    if not re.search(truth["says"], told):
        problems.append(f"SILENT: it does not say {truth['says']!r}")
    if "false" in truth and (found := re.search(truth["false"], told)):
        problems.append(f"FALSE: it says {found[0]!r}")
    return problems, told


def main(words: list[str]) -> int:
    """Check the texts, or some; 1 if anything is wrong."""
    warnings.filterwarnings("ignore")
    names, wrong = [word for word in words if word != "--tell"], 0
    for name in truths():
        if names and not any(name.startswith(word) for word in names):
            continue
        problems, told = check(name)
        wrong += bool(problems)
        print(f"{name}: {'; '.join(problems) or 'so'}")
        if "--tell" in words:
            print("    " + told.replace("\n", "\n    "))
    print(f"{len(truths())} texts: {wrong} are told wrongly")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
