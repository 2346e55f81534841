"""Right and wrong answers to the exercises: solutions, the untouched starters of the notebooks,
plausible mistakes, and answers that do nothing or fail. If a judge's known cases refuse an answer
(`refusal`), every check refuses it.
"""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Callable
from typing import Any

from joinlab.course.answers import solutions
from joinlab.course.exercises import EXERCISES
from joinlab.course.judge import Wrong
from tests.course.test_notebooks import NOTEBOOKS, cells

SOLVED: dict[str, Any] = {
    **{name: getattr(solutions, name) for name in EXERCISES if hasattr(solutions, name)},
    **dict.fromkeys(("notify", "main_hook", "post_hook"), solutions.Largest),
    "small_ddp": solutions.SmallDDP,
}


def starters() -> list[tuple[str, str, Callable[..., Any]]]:
    """The untouched starters in the notebooks: (notebook, exercise, answer)."""
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
    """Why the known cases alone refuse an answer; "" if they accept it."""
    try:
        EXERCISES[name].judge.hold_known(answer)
    except Wrong as wrong:
        return str(wrong)
    return ""
