"""Runs each notebook unanswered: no cell fails, its claims hold, and the page gives no answer away
before its question.

Each claim is a function of a notebook's variables. The page is what a learner sees before a choice:
Markdown, the code of the cells, their output, the titles, and README. test_quiz.py tests that the
quizzes themselves give nothing away. `pytest --nbmake` runs the notebooks in their own kernels, as
for learners, without these checks.
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
import polars as pl
import pytest
from IPython import get_ipython

import joinlab
from joinlab.analysis.waiting import who_waits
from joinlab.cases import CASES
from joinlab.course.questions import Question, questions
from tests import running
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
"""What once told an answer too early, beside the words of the answers and explanations
themselves."""

ENDINGS = (
    "safe_loop",
    "named_on_nccl",
    "on_gloo",
    "joinlab.check",
    "launched.ends",
    "emulate(mine",
)
"""Words of the cells that may show how a run ended: they are asked about nowhere."""


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
    answer = (
        "" if question.answer.startswith("`") else question.answer
    )  # a line of the code that it is about
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
    return readme[
        readme.index("## The course") : readme.index("## ", readme.index("## The course") + 5)
    ]


every_page = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


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
            assert any(word in cell.source for word in ENDINGS), (
                f"{cell.id} shows an ending: {shown(cell)[:300]}"
            )
    page = "\n".join([front(), *(cell.source + "\n" + shown(cell) for cell in notebook.cells)])
    number = COURSE.index(path.stem) + 1
    asked = [one for one in questions().values() if one.name.startswith(f"{number}-")]
    assert {one.name: told for one in asked if (told := told_early(one, page))} == {}


def test_what_tells_an_answer_belongs_to_a_prediction() -> None:
    assert [name for name in TELLS if name not in questions()] == []
    assert told_early(questions()["10-same"], "Both sums are wrong: 11 and 11.")
    assert told_early(questions()["3-seeds"], "<b>No: all begin with rank 0's</b>")


# ---------------------------------------------------------------- claims


def first_look(even, real, without_barrier, without_both):
    hung = joinlab.emulate(CASES[4].program, inputs=(2, 3))
    assert (
        {str(end) for end in even.ends}
        == {str(end) for end in without_barrier.ends}
        == {"finished"}
    )
    assert [end.kind for end in hung.ends] == ["finished", "hung"]
    assert without_both.ends[1].pending and not without_both.ends[0].pending
    assert [end.proven for end in real.ends] == [True, True]


def collectives(one_by_one, real, run, refused, together, turns):
    assert joinlab.who_holds(real) == joinlab.who_holds(run) and refused.ends[0].proven
    assert sorted(together)[10] < sorted(one_by_one)[10]
    assert list(turns.returns) == sorted(turns.returns)


def ddp_inside(calls, last, reduces, seeds, summed, toy):
    assert toy.returns[0] != toy.returns[1]
    (before_0, after_0), (before_1, after_1) = seeds.returns
    assert before_0 != before_1 and after_0 == after_1 == before_0
    per_input = (
        calls.filter(pl.col("op") == "all_reduce")
        .group_by("input", maintain_order=True)
        .len()["len"]
    )
    assert per_input[0] == 1 < per_input[1] == per_input[2]
    assert calls.filter(pl.col("origin").str.contains("rebuild"))["input"].unique().to_list() == [1]
    assert last["before_the_end"].all() and last["begun_us"].is_sorted()
    assert reduces.filter(pl.col("rank") == 0).height == len(summed.returns[0]) == 2
    assert summed.returns[0] == summed.returns[1] == [(1 + 1 + 2 + 2) / 2] * 2


def six_cases(SIX, model, real, seen, short, words):
    assert seen["then"] == seen["asker"]
    assert [n for n in SIX if seen["then"][n] != seen["today"][n]] == [4]
    assert seen["today"][4] == seen["then"][4][::-1]
    on_gloo = words(real)
    assert on_gloo == words(model) and on_gloo[2][1] == on_gloo[3][1] == "raises"
    assert on_gloo[4] == on_gloo[5] == ("hangs", "hangs")
    assert short[3].ends[1].proven and short[5].ends[1].proven


def case_4_call_by_call(
    slots_of, by_counts, crossed, last, looked, now, one, run, slots, two, ways
):
    assert "barrier" in slots["rank 1"][4] and 0 < float(slots["out 0"][4]) < 1e-40
    assert (
        slots["out 0"][5] == slots["out 1"][5] == "0" and slots["dtype 1"][6] != slots["dtype 0"][6]
    )
    assert run.ends[0].proven and run.ends[1].kind == "finished" and len(ways) >= 3
    assert [str(end) for end in now.ends] == [str(end) for end in run.ends][::-1]
    barrier, common, last_row = slots_of(now, last=3).rows(named=True)
    assert "barrier" in barrier["rank 1"] and barrier["out 0"] == common["out 1"] == "0"
    assert (common["rank 0"], common["rank 1"]) == ("who is last?", "anyone left?")
    assert (last_row["rank 0"], last_row["rank 1"]) == (
        "final parameters",
        "who is last?",
    ) and not last_row["out 1"]
    assert {end.kind for n in [(2, 2), (2, 5)] for end in by_counts[n].ends} == {"finished"}
    assert crossed[0] == 0 < crossed[-1]
    assert two.ends[1].pending and last["completed_ns"][0] is last["host_wait_begin_ns"][0] is None
    assert (
        looked.ends[1].proven
        and "is through" in looked.output[1]
        and "gradient" not in looked.output[1]
    )
    assert "rebuild" in one.call(1, one.ends[1].call)["origin"] and one.ends[0].kind == "finished"


def join_options(
    by_all,
    by_those_left,
    disabled,
    failed,
    final,
    hand,
    late,
    limit,
    norm,
    parameters,
    skewed,
    thrown,
):
    assert (
        late.calls.filter(pl.col("rank") == 0).height
        == late.calls.filter(pl.col("rank") == 1).height
    )
    assert np.allclose([by_all, by_those_left], np.transpose(hand))
    assert [set(values) for values in final.values()] == [{2.0}, {0.0}]
    assert np.allclose(parameters["linear"], parameters["without_ddp"], atol=1e-6)
    assert norm.filter(pl.col("op") == "broadcast")["root"][-1] == 1
    assert (
        disabled.ends[1].proven and failed.ends[0].proven and "a bad input" in failed.ends[1].text
    )
    assert all(end.kind == "raised" for end in thrown.ends)
    assert {end.kind.value for end in skewed.ends} == {"finished"}
    assert any(slot.met and not slot.expected for slot in joinlab.match(limit))


def your_own_joinable(alone, counted, even, for_oneself, mine, refused, two, uneven, zero):
    assert alone.ends[1].proven
    assert set(counted.returns) == {sum(counted.meta["inputs"])}
    assert (
        for_oneself.returns[0]
        < for_oneself.returns[2]
        < max(for_oneself.returns)
        == max(counted.returns)
    )
    assert mine.filter(pl.col("origin").str.contains("notify")).height == two.meta["inputs"][1]
    assert zero.calls.filter(pl.col("origin").str.contains("ZeRO join")).height > 0
    assert "multiple process groups" in refused["two_process_groups"]
    assert (
        "at least one joinable" in refused["nothing_to_join"]
        and "constructor" in refused["without_init"]
    )
    assert {str(end) for end in even.ends} == {"finished"} != {str(end) for end in uneven.ends}


def order(meetings, cured, destroyed, mixed, named, named_on_nccl, on_gloo, queued, threads):
    first = [
        run.calls.filter(pl.col("seq") == 0)["shape"].to_list() for run in (threads, queued, cured)
    ]
    assert first[0][0] != first[0][1] and first[1][0] != first[1][1] and first[2][0] == first[2][1]
    assert all(end.kind == "hung" for end in threads.ends + queued.ends + named_on_nccl.ends)
    buckets = [[1.0], [10.0]]
    for run in mixed.values():
        assert run.returns[0] == run.returns[1] == [[sum(map(sum, buckets))]] * 2
        assert all(slot.expected for slot in joinlab.match(run))
    assert cured.returns[0] == cured.returns[1] == named.returns[0] == named.returns[1]
    assert meetings["1 number meets 2"] == ["finished", "finished"] != meetings["1 number meets 3"]
    assert destroyed.ends[1].proven
    assert {end.kind for end in on_gloo.ends} == {"finished"} and on_gloo.call(1, 0)["error"]


def what_join_costs(documented, even, old, per_input, real, shadowed, uneven):
    assert {number for (name, _), number in per_input.items() if name == "enabled"} == {3}
    assert {number for (name, _), number in per_input.items() if name != "enabled"} == {1}
    assert all(
        end.kind == "finished" for run in (*real.values(), *uneven.values()) for end in run.ends
    )
    assert all(len(set(counts.values())) == 1 for counts in shadowed.values())
    assert shadowed[2, 40][0] - shadowed[2, 20][0] == 3 * 20
    assert len(even) == 6 and all(len(times) == 25 and min(times) > 0 for times in even.values())
    assert old.height == len(documented)


def when_your_job_hangs(flight, hung, missing, on_nccl, quiet, said, timed_out):
    assert hung.ends[0].proven and hung.ends[1].proven
    assert "0.5" in on_nccl.output[0] and all(end.pending for end in on_nccl.ends)
    assert [end.proven for end in quiet.ends] == [False, False]
    assert (
        timed_out.ends[0].kind == "finished"
        and "Timed out waiting 1000ms" in timed_out.ends[1].text
    )
    assert "Rank 1 failed to pass" in missing.ends[0].text
    assert "ALLREDUCE" in said[0] and "BROADCAST" in said[0] and "differ" in said[1]
    assert [entry["profiling_name"] for entry in flight] == ["gloo:all_reduce", "gloo:broadcast"]
    assert {entry["state"] for entry in flight} == {"scheduled"}


def your_own_job(found, seen, shares, today):
    assert shares == [[0, 2, 4], [1, 3, 0]]  # padded with sample 0
    assert seen.returncode == 1 and "hang" in seen.stdout
    assert [end.kind.value for end in today.ends] == ["hung", "hung"]
    assert who_waits(found).ranks == (1,)


def build_ddp(apart, mine, real, rows):
    assert len(set(apart.returns)) == 2
    origins = rows["origin"].to_list()
    assert (
        sum("backward" in origin for origin in origins) == 1 + 2
        and sum("rebuild" in one for one in origins) == 2
    )
    assert rows.filter(pl.col("origin").str.contains("construction"))["shape"].to_list()[-1] == [
        [10]
    ]
    assert len(set(map(tuple, real.returns))) == 1 and len(mine.returns) == 2


def build_join(launched, real):
    questions = [[row["origin"] for row in rows_of(real, rank)] for rank in (0, 1)]
    for own in questions:
        assert (
            sum("forward() 1" in one or "nonjoined" in one for one in own) == 2 + 1
        )  # two inputs, and none is left
        assert sum("_find_common_rank" in one for one in own) == 1
    assert (
        len(launched.ends) == 2
    )  # the starter does not join; the exercise's check judges its ending


def rows_of(run, rank):
    return run.calls.filter(pl.col("rank") == rank).rows(named=True)


CLAIMS: dict[str, Callable[..., None]] = {
    one.__name__: one
    for one in (
        first_look,
        collectives,
        ddp_inside,
        six_cases,
        case_4_call_by_call,
        join_options,
        your_own_joinable,
        order,
        what_join_costs,
        when_your_job_hangs,
        your_own_job,
        build_ddp,
        build_join,
    )
}


def test_each_notebook_makes_claims():
    assert CLAIMS.keys() == {path.stem[3:] for path in NOTEBOOKS}


@pytest.mark.slow
@every_page
@pytest.mark.filterwarnings("ignore")
def test_its_claims_hold(path):
    _, names = ran(path)
    claims = CLAIMS[path.stem[3:]]
    claims(**{name: names[name] for name in inspect.signature(claims).parameters})
