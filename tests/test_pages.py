"""Runs each notebook unanswered: no cell fails, and the page gives no answer away before its question.

The page is what a learner sees before a choice: Markdown, the code of the cells, their output, the titles, and README.
test_quiz.py tests that the quizzes themselves give nothing away. `pytest --nbmake` runs the notebooks in kernels,
without this check.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from IPython import get_ipython

from joinlab.course import running
from joinlab.course.questions import Question, questions
from tests.test_notebooks import COURSE, FOLDER, NOTEBOOKS

TELLS = {
    "1-even": r"both finish",
    "1-without": r"copes with|all is well",
    "1-neither": r"still pending|never completes",
    "1-real": r"hang too",
    "2-broadcast": r"gave its tensor to all",
    "2-reduce": r"only rank 1 has",
    "2-scratch": r"scratch space|nor the sum",
    "2-gather": r"they pass `none`",
    "2-scatter": r"first entries",
    "2-barrier": r"all-reduce like any other|number that is never read",
    "2-calls": r"number of calls is what counts|call costs",
    "3-loss": r"they differ",
    "3-seeds": r"hands out rank 0's|need no seed",
    "3-buckets": r"\*\*one\*\* bucket|one bucket with everything",
    "3-overlap": r"inside `backward`, one after",
    "3-nosync": r"two all-reduces",
    "5-case3": r"made it visible|gpus\*\*: `backward`",
    "5-case5": r"one too many",
    "5-today": r"change places|only in case 4",
    "5-gloo": r"peer is gone",
    "6-meets": r"met the barrier",
    "6-byte": r"tiny",
    "6-questions": r"all have joined",
    "6-pad": r"lines of 8 bytes",
    "6-ways": r"garbage",
    "6-today": r"leaves its circle|rank 1 hangs",
    "6-even": r"by chance",
    "6-look": r"hangs in the line|wait for the stream",
    "6-rebuild": r"rebuilds its buckets|bucket rebuild",
    "7-shadow": r"as many as rank 1",
    "7-divide": r"each input weighs",
    "7-final": r"last to join wins",
    "7-same": r"same parameters, up to",
    "7-drift": r"optimizer's state",
    "7-buffers": r"rank that still has inputs",
    "7-disabled": r"alone with its third",
    "7-exception": r"waits for a rank that is gone|hang in the others",
    "7-throw": r"\bone: ",
    "7-own": r"meets the next call|off by one",
    "9-alone": r"meets no other",
    "9-count": r"knows all 6|knows only",
    "9-two": r"three times|only the \*\*first",
    "9-refused": r"could not ask",
    "9-forgetful": r"does not show",
    "10-threads": r"both wait",
    "10-queue": r"it does not\.",
    "10-same": r"11 and 11",
    "10-lines": r"one line meets",
    "10-named": r"it does not hang",
    "10-destroy": r"waits for all pending",
    "11-documented": r"no difference|half as long",
    "11-calls": r"one, one and three",
    "11-shadow": r"as many as a rank",
    "12-reduce": r"call too many",
    "12-nccl": r"wrong number",
    "12-endless": r"look alike|\*\*suspected",
    "12-timeout": r"one that \*\*waited|waits for whom",
    "12-monitored": r"names the rank|did not|failed to pass",
    "12-state": r"says \"scheduled",
    "13-sampler": r"it pads",
    "13-dump": r"are innocent",
    "4-alike": r"begin equal",
    "4-order": r"whose turn",
    "8-zeros": r"zeros for all",
}
"""What once told an answer too early, beside the words of the answers and explanations themselves."""

ENDINGS = ("safe_loop", "named_on_nccl", "on_gloo", "joinlab.check", "launched.ends", "emulate(mine")
"""Words of the cells that may show how a run ended: they are asked about nowhere."""


def plain(text: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", text).replace("`", "").replace("*", "").lower().split())


def shown(cell: Any) -> str:
    """What a run cell shows, quizzes and benches left out."""
    told = []
    for output in cell.get("outputs", ()):
        data = output.get("data", {})
        if "application/vnd.jupyter.widget-view+json" not in data:
            told += [output.get("text", ""), data.get("text/plain", ""), data.get("text/markdown", "")]
    return "\n".join(told)


def giveaways(question: Question) -> list[str]:
    """Its answer and the clauses of its explanation, where they are long enough to be no chance."""
    answer = "" if question.answer.startswith("`") else question.answer  # a line of the code that it is about
    clauses = [answer, *re.split(r"[.:;,()]", question.why)]
    asked = plain(" ".join((question.ask, question.code)))
    return [one for one in map(plain, clauses) if len(one.split()) >= 4 and one not in asked]


def told_early(question: Question, page: str) -> list[str]:
    found = [one for one in giveaways(question) if one in plain(page)]
    pattern = TELLS.get(question.name)
    return found + ([pattern] if pattern and re.search(pattern, page, re.IGNORECASE) else [])


def front() -> str:
    """README's part on the course, with its titles and its picture's caption."""
    readme = (FOLDER.parent / "README.md").read_text("utf-8")
    return readme[readme.index("## The course") : readme.index("## ", readme.index("## The course") + 5)]


every_page = pytest.mark.parametrize(
    "path", [pytest.param(path, marks=pytest.mark.xdist_group(path.stem), id=path.stem) for path in NOTEBOOKS]
)
"""What is asked of one notebook is asked by one worker, so that it is run once."""


@cache
def ran(path: Path) -> tuple[Any, dict[str, Any]]:
    """A notebook and its variables, with a shell that leaves nothing."""
    main = sys.modules["__main__"]
    found = running.run(path)
    assert sys.modules["__main__"] is main and get_ipython() is None
    return found


@every_page
def test_it_runs_and_tells_nothing_before_it_is_asked(path: Path) -> None:
    notebook, _ = ran(path)
    for cell in notebook.cells:
        if re.search(r"\b(hangs|hung|raised)\b", shown(cell)):
            assert any(word in cell.source for word in ENDINGS), f"{cell.id} shows an ending: {shown(cell)[:300]}"
    page = "\n".join([front(), *(cell.source + "\n" + shown(cell) for cell in notebook.cells)])
    number = COURSE.index(path.stem) + 1
    asked = [one for one in questions().values() if one.name.startswith(f"{number}-")]
    assert {one.name: told for one in asked if (told := told_early(one, page))} == {}


def test_what_tells_an_answer_belongs_to_a_prediction() -> None:
    assert [name for name in TELLS if name not in questions()] == []
    assert told_early(questions()["10-same"], "Both sums are wrong: 11 and 11.")
    assert told_early(questions()["3-seeds"], "<b>No: all begin with rank 0's</b>")
