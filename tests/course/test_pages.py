"""Runs each notebook unanswered: no cell fails, its claims hold, and the page gives no answer away
before its question.

Each claim is a function of a notebook's variables. The page is what a learner sees before a choice:
Markdown, the code of the cells, their output, the titles, and README. test_quiz.py tests that the
quizzes themselves give nothing away. `pytest --nbmake notebooks` runs them in their own kernels, as
for learners, without these checks: one of them every day (test_project.py), and all every night.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from IPython import get_ipython

import joinlab
from joinlab.course.moving import moving
from joinlab.course.questions import BLOCK, Question, of_notebook, questions
from tests import notebook_runs
from tests.course.test_notebooks import COURSE, FOLDER, NOTEBOOKS
from tests.pictures import drawn

TELLS = {
    "wait": r"puts? (the|its) all-reduce into|goes on at once",
    "unmatched": r"makes the fault visible",
    "counted": r"one too many",
    "last_barrier": r"met the barrier",
    "byte": r"9\.8e-45|tiny (number|float)",
    "same_size": r"11 and 11",
    "seeds": r"hands out rank 0's|need no seed",
    "exception": r"hang in the others",
    "its_turn": r"whose turn",
}
"""What would tell an answer too early, beside the words of the answers and explanations
themselves."""

ENDINGS = (
    "safe_loop",
    "launch(case.program",
    "on_nccl",
    "joinlab.check",
    "launched.ends",
    "emulate(mine",
    "View(runs[4]",
    "cases.documented(4)",
)
"""Words of the cells that may show how a run ended: they are asked about nowhere, or in a cell above."""


def plain(text: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", text).replace("`", "").replace("*", "").lower().split())


def shown(cell: Any) -> str:
    """What a run cell shows, quizzes and benches left out."""
    told = []
    for output in cell.get("outputs", ()):
        data = output.get("data", {})
        if "application/vnd.jupyter.widget-view+json" not in data:
            told += [
                output.get("text", ""),
                data.get("text/plain", ""),
                data.get("text/markdown", ""),
            ]
    return "\n".join(told)


def giveaways(question: Question) -> list[str]:
    """Its answer and the clauses of its explanation, where they are long enough to be no chance."""
    # a line of the code that it is about
    answer = "" if question.answer.startswith("`") else question.answer
    clauses = [answer, *re.split(r"[.:;,()]", question.why)]
    asked = plain(" ".join((question.ask, question.code)))
    return [one for one in map(plain, clauses) if len(one.split()) >= 4 and one not in asked]


def told_early(question: Question, page: str) -> list[str]:
    found = [one for one in giveaways(question) if one in plain(page)]
    pattern = TELLS.get(question.name)
    return found + ([pattern] if pattern and re.search(pattern, page, re.IGNORECASE) else [])


def front() -> str:
    """README, with its titles and its picture's caption."""
    return (FOLDER.parent / "README.md").read_text("utf-8")


def open_text(markdown: str) -> str:
    """What a reader sees of a markdown cell without a click, beside its questions."""
    return BLOCK.sub("", re.sub(r"<details>.*?</details>", "", markdown, flags=re.DOTALL))


every_page = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


@cache
def ran(path: Path) -> tuple[Any, dict[str, Any]]:
    """A notebook and its variables, with a shell that leaves nothing."""
    main = sys.modules["__main__"]
    found = notebook_runs.run(path)
    assert sys.modules["__main__"] is main and get_ipython() is None
    return found


@every_page
def test_it_runs_and_tells_nothing_before_it_is_asked(path: Path) -> None:
    notebook, _ = ran(path)
    for cell in notebook.cells:
        if re.search(r"\b(hangs|hung|raised)\b", shown(cell)):
            assert any(word in cell.source for word in ENDINGS), (
                f"{cell.id} shows an ending: {shown(cell)[:300]}"
            )
    page = "\n".join(
        open_text(cell.source) if cell.cell_type == "markdown" else f"{cell.source}\n{shown(cell)}"
        for cell in notebook.cells
    )
    asked = of_notebook(path.stem)
    page = f"{front()}\n{page}"
    assert {one.name: told for one in asked if (told := told_early(one, page))} == {}


def test_what_tells_an_answer_belongs_to_a_prediction() -> None:
    assert [name for name in TELLS if name not in questions()] == []
    assert told_early(questions()["same_size"], "Both sums are wrong: 11 and 11.")
    assert told_early(questions()["seeds"], "<b>No: all begin with rank 0's weights</b>")
    assert open_text("a <details>b\n</details> c") == "a  c"


@every_page
@pytest.mark.slow
def test_its_pictures_are_of_its_own_runs(path: Path) -> None:
    """`python -m tests.pictures` draws them again."""
    _, names = ran(path)
    files = {one.name: one.read_text("utf-8") for one, _ in drawn(path.stem, names)}
    now = {one.name: text for one, text in drawn(path.stem, names)}
    assert files == now, f"draw them again: python -m tests.pictures {path.stem}"


# ---------------- claims


def six_loops(even, one, two, three, four, five, real, runs):
    assert {str(end) for run in (even, one) for end in run.ends} == {"finished"}
    assert two.ends[1].pending and not two.ends[0].pending
    for run in (three, four, five):
        assert run.ends[0].kind == "finished" and run.ends[1].proven
    assert [end.proven for end in real.ends] == [True, True]
    kinds = {n: tuple(end.kind.value for end in run.ends) for n, run in runs.items()}
    if runs[1].meta["backend"] == "gloo":
        assert kinds[1] == kinds[6] == ("finished", "finished")
        assert kinds[2] == kinds[3] == ("finished", "raised")
        assert kinds[4] == kinds[5] == ("hung", "hung")


def case_4_call_by_call(four, looked, others, crossed, short, then, ways):
    assert [str(end) for end in four.ends] == [str(end) for end in then.ends][::-1]
    assert then.ends[0].proven and then.ends[1].kind == "finished" and len(ways) >= 3
    assert {end.kind for run in (others[0], others[3]) for end in run.ends} == {"finished"}
    assert crossed[0] == 0 < crossed[-1]
    assert looked.ends[1].proven
    assert "is through" in looked.output[1] and "gradient" not in looked.output[1]
    assert "rebuild" in short.call(1, short.ends[1].call)["origin"]
    assert short.ends[0].kind == "finished"


def join_options(
    by_all, by_those_left, alone, counts, drift, failed, late, limit, thrown, together
):
    calls = [late.calls.filter(rank=rank).height for rank in (0, 1)]
    assert calls[0] == calls[1]
    sums = [6, 5, 3, 3]
    assert np.allclose(by_all, [number / 3 for number in sums])
    assert np.allclose(by_those_left, [6 / 3, 5 / 2, 3, 3])
    assert np.allclose(together.returns[0], [one.item() for one in alone.returns[0]], atol=1e-6)
    first, second = drift["SGD"].returns
    assert first == second
    first, second = drift["Adam"].returns
    assert first[0] == second[0] and all(map(float.__ne__, first[1:], second[1:]))
    assert failed.ends[0].proven and "a bad input" in failed.ends[1].text
    assert all(end.kind == "raised" for end in thrown.ends)
    assert any(slot.met and not slot.expected for slot in joinlab.match(limit))


def build_join(launched, real):
    for rank in (0, 1):
        own = real.calls.filter(rank=rank)["origin"].to_list()
        # two inputs, and none is left
        assert sum("forward() 1" in one or "nonjoined" in one for one in own) == 2 + 1
        assert sum("_find_common_rank" in one for one in own) == 1
    assert len(launched.ends) == 2  # the starter does not join; the check judges its ending


def when_your_job_hangs(hung, on_nccl, quiet, seen, shares, today):
    assert hung.ends[0].proven and hung.ends[1].proven
    assert "0.5" in on_nccl.output[0] and all(end.pending for end in on_nccl.ends)
    assert [end.proven for end in quiet.ends] == [False, False]
    assert shares == [[0, 2, 4], [1, 3, 0]]  # padded with sample 0
    assert seen.returncode == 1 and "hang" in seen.stdout
    assert [end.kind.value for end in today.ends] == ["hung", "hung"]


def collectives(met, refused, times):
    assert refused.ends[0].proven and "raised" in str(refused.ends[1])
    assert times[1] < times[0]
    assert met.calls["op"].unique().to_list() == ["all_reduce"]


def inside(built, calls, reductions, run, summed, toy):
    assert toy.returns[0] != toy.returns[1]
    (before_0, after_0), (before_1, after_1) = built.returns
    assert before_0 != before_1 and after_0 == after_1 == before_0
    reduced = [call["input"] for call in calls if "backward" in call["origin"]]
    assert reduced.count(0) == 1 < reduced.count(1) == reduced.count(2)
    assert {call["input"] for call in calls if "rebuild" in call["origin"]} == {1}
    assert reductions == len(summed.returns[0]) == 2
    assert summed.returns[0] == summed.returns[1] == [(1 + 1 + 2 + 2) / 2] * 2


def build(apart, calls, mine, real):
    assert len(set(apart.returns)) == 2
    origins = [call["origin"] for call in calls]
    assert sum("backward" in one for one in origins) == 1 + 2
    assert sum("rebuild" in one for one in origins) == 2
    construction = [call for call in calls if "construction" in call["origin"]]
    assert construction[-1]["shape"] == [[10]]
    assert len(set(map(tuple, real.returns))) == 1 and len(mine.returns) == 2


def joinable(alone, counted, even, for_oneself, names, refused, two, uneven, zero):
    assert alone.ends[1].proven
    assert set(counted.returns) == {sum(counted.meta["inputs"])}
    known = for_oneself.returns
    assert known[0] < known[2] < max(known) == max(counted.returns)
    assert sum("notify" in name for name in names) == two.meta["inputs"][1]
    assert any("ZeRO join" in origin for origin in zero.calls["origin"])
    assert "multiple process groups" in refused["two_process_groups"]
    assert "at least one joinable" in refused["nothing_to_join"]
    assert "constructor" in refused["without_init"]
    assert {str(end) for end in even.ends} == {"finished"} != {str(end) for end in uneven.ends}


def order(destroyed, mixed, named, on_nccl, one_thread, rows, threads):
    for run in (threads, one_thread):
        first = run.calls.filter(seq=0)["shape"].to_list()
        assert first[0] != first[1]
    assert all(end.kind == "hung" for end in threads.ends + one_thread.ends + on_nccl.ends)
    assert mixed.returns[0] == mixed.returns[1] == [[11.0], [11.0]]
    assert all(slot.expected for slot in joinlab.match(mixed))
    assert named.returns[0] == named.returns[1] == [[2.0], [2.0, 2.0, 2.0]]
    assert [row[1:] == ("finished", "finished") for row in rows] == [True, True, False]
    assert destroyed.ends[1].proven


def cost(documented, real, shadowed):
    per_input = {key: run.calls.filter(rank=0, input=20).height for key, run in real.items()}
    assert {number for (name, _), number in per_input.items() if name == "enabled"} == {3}
    assert {number for (name, _), number in per_input.items() if name != "enabled"} == {1}
    assert all(len(set(calls)) == 1 for calls in shadowed.values())
    assert shadowed[2, 40][0] - shadowed[2, 20][0] == 3 * 20
    assert len(documented) == 6


CLAIMS: dict[str, Callable[..., None]] = dict(
    zip(
        COURSE,
        (
            *(six_loops, case_4_call_by_call, join_options, build_join, when_your_job_hangs),
            *(collectives, inside, build, joinable, order, cost),
        ),
        strict=True,
    )
)


@pytest.mark.slow
@every_page
@pytest.mark.filterwarnings("ignore")
def test_its_claims_hold(path):
    _, names = ran(path)
    claims = CLAIMS[path.stem]
    claims(**{name: names[name] for name in inspect.signature(claims).parameters})


# ---- README, and the pages behind it

ROOT = FOLDER.parent
MARKDOWN = [
    ROOT / "README.md",
    ROOT / "data" / "README.md",
    *sorted(FOLDER.glob("*.md")),
    *sorted((ROOT / "joinlab" / "docs").glob("*.md")),
]


def test_readme_is_read_in_a_minute() -> None:
    assert len(front().split()) <= 500


def test_readme_s_picture_is_of_today_s_runs_and_moves_by_css_alone() -> None:
    text = (ROOT / "data" / "one_more_input.svg").read_text("utf-8")
    assert text == f"{moving()}\n", (
        "draw it again: python -m joinlab.course.moving data/one_more_input.svg"
    )
    assert len(text.encode()) <= 200_000
    assert re.findall(r"animation:([\d.]+)s", text) == ["12"]
    assert "@media(prefers-reduced-motion:reduce){.frame,.barrier{animation:none}}" in text
    assert not re.search(r"<script|<foreignObject|@import|\burl\((?!#)|\bhref=", text)


@pytest.mark.parametrize("path", MARKDOWN, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_of_a_page_lead_to_files(path: Path) -> None:
    text = re.sub(r"^( {4}|```).*", "", path.read_text("utf-8"), flags=re.M)
    links = re.findall(r"\]\(([^)#\s]+)", text)
    lost = [
        link for link in links if "://" not in link and not (path.parent / link).resolve().exists()
    ]
    assert lost == []


def test_each_file_of_data_is_explained() -> None:
    known = set(re.findall(r"^\| `([^`]+)`", (ROOT / "data" / "README.md").read_text(), re.M))
    assert known == {path.name for path in (ROOT / "data").iterdir()} - {"README.md"}
