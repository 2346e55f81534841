"""Right and wrong answers to the exercises, and the check of the checks: wrong ones are refused with every seed.

    python -m tests.answers --seeds 1000        # CI runs a sample, see test_exercises.py

The starters of the notebooks come first, untouched as they stand there, then plausible mistakes, then answers that do
nothing or fail. Prints a line per exercise; the exit code is 1 if a wrong answer passed or a right one did not.
"""

from __future__ import annotations

import argparse
import ast
import linecache
import random
import re
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from joinlab.course import solutions
from joinlab.course.exercises import EXERCISES, TRIALS
from joinlab.course.judge import Judge, Wrong
from tests.material.course.house import RIGHT, WRONG
from tests.test_notebooks import NOTEBOOKS, cells

SOLVED: dict[str, Any] = {
    **{name: getattr(solutions, name) for name in EXERCISES if hasattr(solutions, name)},
    **dict.fromkeys(("notify", "main_hook", "post_hook"), solutions.Largest),
    "small_ddp": solutions.SmallDDP,
}


def starters() -> list[tuple[str, str, Callable[..., Any]]]:
    """The answers that stand in the notebooks, untouched: (notebook, exercise, answer)."""
    found = []
    for path in NOTEBOOKS:
        imports, *rest = cells(path, "code")
        names: dict[str, Any] = {"__name__": path.stem}
        exec(imports, names)
        for at, code in enumerate(rest):
            file = f"<{path.stem}, cell {at}>"
            linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
            for node in ast.parse(code).body:
                if isinstance(node, ast.FunctionDef | ast.ClassDef):
                    exec(compile(ast.Module([node], []), file, "exec"), names)
        for exercise, answer in re.findall(r'joinlab\.check\("(\w+)", (\w+)\)', "\n".join(rest)):
            found.append((path.stem, exercise, names[answer]))
    return found


def fails(*args: Any) -> None:
    """An answer that raises."""
    raise KeyError("oops")


def nothing(*args: Any) -> None:
    """An answer that does nothing."""


def refusal(name: str, answer: Callable[..., Any]) -> str:
    """What the known cases alone say against an answer; "" if they accept it."""
    judge = EXERCISES[name].judge
    return _first_refusal(judge, answer, judge.known)


def refused_seeds(name: str, answer: Callable[..., Any], seeds: int) -> int:
    """With how many of the seeds 0, 1, ... `check` refuses an answer.

    Known cases come first in each check, whatever the seed, and the same case runs the same every time. So they run
    once here, and only an answer that they accept is tried on the cases that each seed draws.
    """
    if refusal(name, answer):
        return seeds
    judge = EXERCISES[name].judge
    drawn = ((judge.draw(rng) for _ in range(TRIALS)) for rng in map(random.Random, range(seeds)))
    return sum(bool(_first_refusal(judge, answer, cases)) for cases in drawn)


def _first_refusal(judge: Judge, answer: Callable[..., Any], cases: Iterable[Any]) -> str:
    try:
        for case in cases:
            judge.hold(answer, case)
    except Wrong as wrong:
        return str(wrong)
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.answers", description="Check the checks.")
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds each answer is checked with")
    parser.add_argument("--right", type=int, help="how many for the right answers, which take longer; by default all")
    parser.add_argument("exercises", nargs="*", help="their names; by default all")
    arguments = parser.parse_args()
    untouched = {name: answer for _, name, answer in starters()}
    surprises = 0
    for name in arguments.exercises or EXERCISES:
        begun = time.monotonic()
        wrong = [untouched[name], *WRONG[name], nothing, fails]
        right = [SOLVED[name], *RIGHT[name]]
        accepted = sum(arguments.seeds - refused_seeds(name, answer, arguments.seeds) for answer in wrong)
        refused = sum(refused_seeds(name, answer, arguments.right or arguments.seeds) for answer in right)
        surprises += accepted + refused
        print(
            f"{name}: {len(wrong)} wrong answers, {arguments.seeds} seeds each, accepted {accepted} times; "
            f"{len(right)} right ones, {arguments.right or arguments.seeds} each, refused {refused} times; "
            f"{time.monotonic() - begun:.0f} s",
            flush=True,
        )
    print(f"{surprises} verdicts were not as they should be")
    return 1 if surprises else 0


if __name__ == "__main__":
    sys.exit(main())
