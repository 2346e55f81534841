"""A run beside the forum thread's own traces, call by call."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import joinlab
from joinlab.analysis.thread import beside_thread
from joinlab.cases import CASES, documented
from joinlab.errors import ProgramError
from joinlab.picture.tables import Table
from joinlab.timeline import EndKind
from tests.timelines import DOCUMENTED, documented_rows, same_timelines

ROOT = Path(__file__).parents[2]
LISTED = [
    (number, answer)
    for number, case in DOCUMENTED.items()
    for answer in (case["answer"] if isinstance(case["answer"], list) else [case["answer"]])
]
THEN = {"era": "1.9", "barrier_value": 7}


def test_the_package_has_the_thread_s_traces() -> None:
    shipped = json.loads((ROOT / "joinlab" / "analysis" / "thread.json").read_text())["cases"]
    assert shipped == [
        {name: case[name] for name in ("case", "answer")} for case in DOCUMENTED.values()
    ]


@pytest.mark.parametrize(("number", "answer"), LISTED)
def test_a_trace_is_a_timeline_without_times(number: int, answer: dict) -> None:
    n = answer["N"]
    timeline = documented(number, (n, n + 1))
    assert documented_rows(timeline) == [
        (row["input"], row["r0"], row["r1"]) for row in answer["trace"]
    ]
    assert [end.text for end in timeline.ends] == [answer["end"][f"r{rank}"] for rank in range(2)]
    assert timeline.calls["enqueued_ns"].null_count() == timeline.calls.height
    assert same_timelines(timeline, documented(number)) or (number, n) == (2, 1)


SHORTER = {(2, 1): 1, (5, 1): 1}
"""Rows of the thread that the model has, where the rebuild of buckets hangs before the others."""
LONGER = {(3, 2): 1, (4, 2): 1}
"""Rows that the model has beyond the thread: where a host hangs, it has issued one call more."""


@pytest.mark.parametrize(("number", "answer"), LISTED)
def test_each_row_of_the_thread_is_in_the_modelled_run(number: int, answer: dict) -> None:
    n, listed = answer["N"], len(answer["trace"])
    run = joinlab.emulate(CASES[number].program, (n, n + 1), pad=int(number == 4), **THEN)  # type: ignore[arg-type]
    beside = beside_thread(run, documented(number, (n, n + 1)))
    alike = SHORTER.get((number, n), listed)
    assert [row.alike for row in beside.rows[:alike]] == [True] * alike
    assert not any(row.alike for row in beside.rows[alike:])
    assert len(beside.rows) == listed + LONGER.get((number, n), 0)
    text = " ".join(beside.sentences)
    assert ("All" in text) == (alike == listed and (number, n) not in LONGER)
    assert "DDP sets itself up" in text
    ends = documented(number, (n, n + 1)).ends
    alike_ends = [own.kind is other.kind for own, other in zip(run.ends, ends, strict=True)]
    assert text.count(", as in the thread") - 1 == sum(alike_ends)
    assert ("bucket rebuild), which the thread leaves out" in text) == ((number, n) in SHORTER)


def test_where_the_thread_contradicts_itself_it_says_so() -> None:
    run = joinlab.emulate(CASES[2].program, (1, 2))
    assert "the answer's sentence says rank 0 hangs" in str(
        joinlab.compare(run, documented(2, (1, 2)))
    )
    later = str(joinlab.compare(joinlab.emulate(CASES[2].program, (2, 3)), documented(2)))
    assert "contradict" not in later and "without running destructors" in later


def test_compare_shows_a_tick_for_each_row() -> None:
    run = joinlab.emulate(CASES[4].program, (2, 3))
    assert run.ends[1].kind is EndKind.HUNG
    shown = joinlab.compare(run, documented(4))
    assert isinstance(shown, Table)
    assert [str(row[-1]) for row in shown.rows] == ["✓"] * 12 + ["✗"] * 2
    assert 'Rank 0 finishes; the thread says: "hangs"' in shown.caption
    assert "<caption" in shown._repr_html_() and "✗" in shown._repr_html_()


def test_counts_that_the_thread_does_not_list_get_a_sentence() -> None:
    shown = joinlab.compare(joinlab.emulate(CASES[4].program, (5, 6)), documented(4))
    assert str(shown).startswith(
        "The thread lists the calls of case_4 for 2 and 3 inputs, not for 5 and 6"
    )
    assert shown._repr_html_() and isinstance(shown, Table)
    with pytest.raises(ProgramError, match="It says only how they end: hangs / finishes"):
        documented(4, (5, 6))
    with pytest.raises(ProgramError, match="has the cases 1, 2, 3, 4, 5, 6; got 7"):
        documented(7)
