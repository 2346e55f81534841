"""Each notebook run and not answered: no cell fails, and nothing on the page tells what it is about to ask.

The page is what a learner sees before a choice: Markdown, the code of the cells, what they print and show, the titles,
and README. The quizzes themselves tell nothing before one has chosen (test_quiz.py). `make test` runs this file beside
the rest, since it takes as long as the notebooks do; `pytest --nbmake` runs them without the look at the page.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

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
    "4-case3": r"made it visible|gpus\*\*: `backward`",
    "4-case5": r"one too many",
    "4-today": r"change places|only in case 4",
    "4-gloo": r"peer is gone",
    "5-meets": r"met the barrier",
    "5-byte": r"tiny",
    "5-questions": r"all have joined",
    "5-pad": r"lines of 8 bytes",
    "5-ways": r"garbage",
    "5-today": r"leaves its circle|rank 1 hangs",
    "5-even": r"by chance",
    "5-look": r"hangs in the line|wait for the stream",
    "5-rebuild": r"rebuilds its buckets|bucket rebuild",
    "6-shadow": r"as many as rank 1",
    "6-divide": r"each input weighs",
    "6-final": r"last to join wins",
    "6-same": r"same parameters, up to",
    "6-drift": r"optimizer's state",
    "6-buffers": r"rank that still has inputs",
    "6-disabled": r"alone with its third",
    "6-exception": r"waits for a rank that is gone|hang in the others",
    "6-throw": r"\bone: ",
    "6-own": r"meets the next call|off by one",
    "7-alone": r"meets no other",
    "7-count": r"knows all 6|knows only",
    "7-two": r"three times|only the \*\*first",
    "7-refused": r"could not ask",
    "7-forgetful": r"does not show",
    "8-threads": r"both wait",
    "8-queue": r"it does not\.",
    "8-same": r"11 and 11",
    "8-lines": r"one line meets",
    "8-named": r"it does not hang",
    "8-destroy": r"waits for all pending",
    "9-documented": r"no difference|half as long",
    "9-calls": r"one, one and three",
    "9-shadow": r"as many as a rank",
    "10-reduce": r"call too many",
    "10-nccl": r"wrong number",
    "10-endless": r"look alike|\*\*suspected",
    "10-timeout": r"one that \*\*waited|waits for whom",
    "10-monitored": r"names the rank|did not|failed to pass",
    "10-state": r"says \"scheduled",
    "11-sampler": r"it pads",
    "11-dump": r"are innocent",
    "12-alike": r"begin equal",
    "12-order": r"whose turn",
    "13-zeros": r"zeros for all",
}
"""What once told an answer too early, beside the words of the answers and explanations themselves."""

ENDINGS = ("safe_loop", "named_on_nccl", "on_gloo", "joinlab.check", "launched.ends")
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


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_and_tells_nothing_before_it_is_asked(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOINLAB_PROGRESS", "off")
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(FOLDER)}}).execute()
    for cell in notebook.cells:
        if re.search(r"\b(hangs|hung|raised)\b", shown(cell)):
            assert any(word in cell.source for word in ENDINGS), f"{cell.id} shows an ending: {shown(cell)[:300]}"
    page = "\n".join([front(), *(cell.source + "\n" + shown(cell) for cell in notebook.cells)])
    number = COURSE.index(path.stem) + 1
    asked = [one for one in questions().values() if one.name.startswith(f"{number}-")]
    assert {one.name: told for one in asked if (told := told_early(one, page))} == {}


def test_what_tells_an_answer_belongs_to_a_prediction() -> None:
    assert [name for name in TELLS if name not in questions()] == []
    assert told_early(questions()["8-same"], "Both sums are wrong: 11 and 11.")
    assert told_early(questions()["3-seeds"], "<b>No: all begin with rank 0's</b>")
