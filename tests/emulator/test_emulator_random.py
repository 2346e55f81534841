"""Random programs have the same endings, calls and values emulated as in real processes on gloo."""

from __future__ import annotations

import pytest

from joinlab import emulate
from tests import wild_programs
from tests.against_gloo import EXPLAINED, compare
from tests.nightly import sampled
from tests.random_programs import draw, program_of
from tests.timelines import same_timelines

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.slow
def test_on_gloo_they_agree_with_real_processes():
    """`python -m tests.nightly` compares 400, and test_recorded_launches.py 40 that were recorded."""
    assert [str(outcome) for outcome in compare("random", range(8)) if outcome.found] == []


WILD = 100
"""`python -m tests.nightly` compares 1,000."""


@pytest.mark.slow
@pytest.mark.parametrize("first", sampled(range(0, WILD, 10), (0).__eq__))
def test_wild_programs_agree_with_real_processes(first):
    seeds = [seed for seed in range(first, first + 10) if seed not in EXPLAINED]
    assert [str(outcome) for outcome in compare("wild", seeds) if outcome.found] == []


def test_wild_programs_hold_what_they_promise():
    """Every kind of step is drawn in the programs that are compared."""
    plans = [wild_programs.draw(seed) for seed in range(WILD)]
    steps = [step for plan in plans for steps in plan.lists for step in steps]
    ops = {*wild_programs.COLLECTIVES, *wild_programs.WAITS, "send", "recv", "group", "sleep"}
    assert {step.op for step in steps} == ops
    assert {step.layout for step in steps} == set(wild_programs.LAYOUTS)
    assert {step.dtype for step in steps} == set(wild_programs.DTYPES)
    overlapping = [
        plan for plan in plans if len(plan.groups) > 1 and set(plan.groups[0]) & set(plan.groups[1])
    ]
    assert len(overlapping) > 15


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_without_mismatch_they_finish(backend):
    """`test_network.py` plays lists of calls that agree; these have DDP, join() and loops, too."""
    for seed in range(16):
        plan = draw(seed, mismatch=0)
        if len(set(plan.counts)) > 1 or (backend == "gloo" and "AVG" in str(plan)):
            continue  # without join, uneven counts are a mismatch; gloo has no AVG of integers
        ends = emulate(program_of(plan), plan.counts, backend=backend).ends
        assert {str(end) for end in ends} == {"finished"}, plan


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_the_same_program_gives_the_same_timeline_with_times_in_order(backend):
    for seed in range(10):
        plan = draw(seed)
        timeline, other = (
            emulate(program_of(plan), plan.counts, backend=backend) for _ in range(2)
        )
        assert same_timelines(timeline, other), plan
        for row in timeline.calls.rows(named=True):
            steps = [
                row[name]
                for name in ("enqueued_ns", "started_ns", "completed_ns")
                if row[name] is not None
            ]
            assert steps == sorted(steps), (plan, row)
            begin, end = row["host_wait_begin_ns"], row["host_wait_end_ns"]
            if end is not None:
                assert row["enqueued_ns"] <= begin <= end, (plan, row)
                assert row["error"] or end >= row["completed_ns"], (plan, row)
        for _, mine in timeline.calls.group_by("rank", maintain_order=True):
            assert mine["enqueued_ns"].is_sorted()
