"""Who keeps whom waiting: simulated jobs whose culprit is known, and hand-made Timelines."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from dumps import Job, draw, dumps
from hypothesis import given
from hypothesis import strategies as st
from timelines import Writer, case_timeline

import joinlab
from joinlab import Timeline
from joinlab.analysis.blame import blame
from joinlab.analysis.verdict import judge
from joinlab.importers.dump import Texts, check
from joinlab.importers.job import timeline_of
from joinlab.timeline import Ending, EndKind

FORMS: tuple[Mapping[str, Any], ...] = ({}, {"whole": False}, {"ring": 7})
"""A whole record, one of active entries alone, and a ring buffer that lost its beginning."""


def timeline(job: Job, **form: Any) -> Timeline:
    texts = Texts()
    return timeline_of([check(Path(f"rank_{rank}"), one, texts) for rank, one in dumps(job, **form).items()], texts)


def stands_still(job: Job) -> bool:
    return any(entry["state"] == "scheduled" for one in dumps(job).values() for entry in one["entries"])


@given(st.integers(0, 100_000), st.sampled_from(FORMS))
def test_a_stopped_host_is_named_and_no_other_rank(seed: int, form: Mapping[str, Any]) -> None:
    job = draw(seed)
    if job.fault == "host" and stands_still(job):
        assert blame(timeline(job, **form)).ranks == (job.culprit,)


@given(st.integers(0, 100_000), st.sampled_from(FORMS))
def test_a_gpu_that_stands_still_is_named_where_a_peer_went_on_and_no_other_rank(seed: int, form: Any) -> None:
    job = draw(seed)
    if job.fault != "gpu" or not stands_still(job):
        return
    found = blame(timeline(job, **form))
    if any(waits.on == job.culprit for waits in found.waits):
        assert found.ranks == (job.culprit,)
        assert "Look at its GPU" in str(found)
    else:
        assert found.ranks == ()
        assert f"is not complete on rank {job.culprit} although" in str(found)


def test_the_draw_has_jobs_of_both_kinds_that_stand_still() -> None:
    kinds = {job.fault for job in map(draw, range(40)) if stands_still(job)}
    assert kinds == {"host", "gpu"}


def test_ranks_that_wait_for_each_other_in_two_groups_are_named_together() -> None:
    writer = Writer(groups={"0": [0, 1], "1": [0, 1]})
    writer.call(0, "all_reduce", group="0", done=False)
    writer.call(1, "all_reduce", group="1", done=False)
    found = blame(writer.timeline([Ending(EndKind.UNKNOWN)] * 2, backend="nccl"))
    assert [one.ranks for one in found.culprits] == [(0, 1)]
    assert "Ranks 0, 1 wait for each other" in str(found)


def test_a_rank_that_ended_is_named_with_its_ending() -> None:
    writer = Writer()
    writer.call(0, "all_reduce", done=False)
    found = blame(writer.timeline([Ending(EndKind.HUNG, call=0, proven=True), Ending(EndKind.FINISHED)]))
    assert found.ranks == (1,)
    assert str(found).splitlines()[0].endswith("but its program has finished.")


def test_the_record_that_cannot_tell_ranks_apart_says_so() -> None:
    writer = Writer()
    for rank in (0, 1):
        writer.call(rank, "all_reduce", done=False)
    found = blame(writer.timeline([Ending(EndKind.UNKNOWN)] * 2, backend="nccl"))
    assert found.ranks == ()
    assert "does not tell the ranks apart" in str(found)


def test_calls_of_different_kinds_in_one_place_are_named() -> None:
    found = blame(case_timeline(4, n=2))
    assert found.ranks == ()
    assert "the ranks issued different calls: rank 0 all_reduce; rank 1 barrier" in str(found)


def test_a_send_without_its_recv_waits_for_the_receiver() -> None:
    writer = Writer()
    writer.call(0, "send", peer=1, done=False)
    found = blame(writer.timeline([Ending(EndKind.UNKNOWN)] * 2, backend="nccl"))
    assert found.ranks == (1,)
    assert "issued no counterpart" in str(found)


@pytest.mark.parametrize("case", [1, 6])
def test_nobody_is_blamed_in_a_run_that_finished(case: int) -> None:
    found = joinlab.blame(case_timeline(case, n=2))
    assert (found.culprits, found.innocent, str(found)) == ((), (), "No rank keeps another waiting.")


def test_the_verdict_and_the_diagnosis_name_the_culprit_of_a_record_without_endings() -> None:
    job = next(job for job in map(draw, range(100)) if job.fault == "host" and stands_still(job))
    found = timeline(job)
    verdict = judge(found)
    assert verdict.odd == (job.culprit,)
    assert verdict.headline.startswith(f"Rank {job.culprit} keeps")
    assert f"for rank {job.culprit} in" in verdict.steps[0]
    assert verdict.steps[0] in str(joinlab.diagnose(found))
