"""Who keeps whom waiting: simulated jobs whose culprit is known, and hand-made Timelines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import parallel_jobs
import pytest
from dumps import Job, draw, dumps
from hypothesis import given
from hypothesis import strategies as st
from timelines import Writer, case_timeline

from joinlab import Timeline
from joinlab.analysis.waiting import WaitGraph, who_waits
from joinlab.importers.dump import Texts, check
from joinlab.importers.job import timeline_of
from joinlab.story.forms import said
from joinlab.story.judge import diagnose
from joinlab.story.lines import Line, LineKind
from joinlab.timeline import Ending, EndKind

FORMS: tuple[Mapping[str, Any], ...] = ({}, {"whole": False}, {"ring": 7})
"""A whole record, one of active entries alone, and a ring buffer that lost its beginning."""


def timeline(job: Job, **form: Any) -> Timeline:
    texts = Texts()
    return timeline_of([check(Path(f"rank_{rank}"), one, texts) for rank, one in dumps(job, **form).items()], texts)


def told(graph: WaitGraph) -> str:
    """What the graph shows, in the words of the story."""
    every = (*(culprit.why for culprit in graph.culprits), *graph.unclear)
    return "\n".join(said(Line(LineKind.CAUSE, why.form, facts=why.facts)) for why in every)


def stands_still(job: Job) -> bool:
    return any(entry["state"] == "scheduled" for one in dumps(job).values() for entry in one["entries"])


@given(st.integers(0, 100_000), st.sampled_from(FORMS))
def test_a_stopped_host_is_named_and_no_other_rank(seed: int, form: Mapping[str, Any]) -> None:
    job = draw(seed)
    if job.fault == "host" and stands_still(job):
        found = who_waits(timeline(job, **form))
        unsure = not found.ranks and any(job.culprit in ranks for ranks in found.either)
        assert found.ranks == (job.culprit,) or unsure


@given(st.integers(0, 100_000), st.sampled_from(FORMS))
def test_a_gpu_that_stands_still_is_named_where_a_peer_went_on_and_no_other_rank(seed: int, form: Any) -> None:
    job = draw(seed)
    if job.fault != "gpu" or not stands_still(job):
        return
    found = who_waits(timeline(job, **form))
    if any(waits.on == job.culprit for waits in found.waits):
        assert found.ranks == (job.culprit,)
        assert "Look at its GPU" in told(found)
    else:
        assert found.ranks == ()
        assert f"is not complete on rank {job.culprit} although" in told(found)


@pytest.mark.parametrize("fault", parallel_jobs.FAULTS)
def test_in_jobs_of_many_kinds_of_groups_no_innocent_rank_is_named(fault: str) -> None:
    """Seeds 0 to 149; `python -m tests.parallel_jobs` counts more."""
    jobs = [job for job in map(parallel_jobs.draw, range(150)) if job.fault == fault]
    found = Counter(said for job in jobs if (said := parallel_jobs.told(job)))
    assert found["another"] == 0
    if fault in ("sleep", "raised", "died"):
        assert found["exact"] == found.total() > 5
    elif fault != "root":  # a dump does not tell the root
        assert found["exact"] + found["some"] > 0


def meshed(calls: Mapping[int, Sequence[tuple[str, bool]]]) -> Timeline:
    """Ranks 0 to 3 in a group with a row, "1" or "2", and in one with a column, "3" or "4"; "r" and "c" name them."""
    groups = {"0": [0, 1, 2, 3], "1": [0, 1], "2": [2, 3], "3": [0, 2], "4": [1, 3]}
    writer = Writer(4, groups=groups)
    for rank, those in calls.items():
        for name, done in those:
            group = {"r": str(1 + rank // 2), "c": str(3 + rank % 2)}.get(name, name)
            writer.call(rank, "all_reduce", group=group, done=done)
    return writer.timeline([Ending(EndKind.UNKNOWN)] * 4, backend="nccl")


def test_of_two_ranks_that_wait_for_each_other_the_one_that_departs_from_its_peers_is_named() -> None:
    went = [("r", True), ("c", True), ("0", False)]
    found = who_waits(meshed({0: [("r", True), ("c", False)], 1: went, 2: [("r", True), ("0", False)], 3: went}))
    assert (found.ranks, found.either) == ((2,), ())
    assert "Rank 2 went another way than ranks 0, 1, 3" in told(found)
    story = diagnose(meshed({0: [("r", True), ("c", False)], 1: went, 2: [("r", True), ("0", False)], 3: went}))
    assert story.headline.ranks == (2,)


def test_of_two_ranks_that_wait_for_each_other_the_one_that_breaks_its_own_order_is_named() -> None:
    writer = Writer(groups={"0": [0, 1], "1": [0, 1], "2": [0, 1]})
    for rank in (0, 1):
        for group in "0120120":
            writer.call(rank, "all_reduce", group=group, line=int(group))
    writer.call(0, "all_reduce", group="1", done=False, line=1)
    writer.call(1, "all_reduce", group="2", done=False, line=2)
    found = who_waits(writer.timeline([Ending(EndKind.UNKNOWN)] * 2, backend="nccl"))
    assert (found.ranks, found.either) == ((1,), ())
    assert "Rank 1 broke its own order: after all_reduce (train.py:" in told(found)


def test_the_rank_whose_gpu_has_not_begun_a_call_that_its_peers_have_is_named() -> None:
    for begun, ranks in ((None, ()), (5, (1,))):
        writer = Writer(3, groups={"0": [0, 1, 2]})
        for rank in range(3):
            writer.call(rank, "all_reduce", done=False, started_ns=None if rank == 1 else begun)
        found = who_waits(writer.timeline([Ending(EndKind.UNKNOWN)] * 3, backend="nccl"))
        assert found.ranks == ranks
        assert ("its GPU has not begun it" in told(found)) == bool(ranks)


def test_where_the_rest_of_the_job_is_level_with_a_rank_it_is_not_said_to_be_behind() -> None:
    over = [("0", True), ("c", True)]
    found = who_waits(meshed({0: [*over, ("r", False)], 1: over, 2: over, 3: over}))
    assert (found.ranks, found.either) == ((), ((0, 1),))
    assert "Either they stand still, or it made a call" in told(found)


def test_where_one_rank_alone_waits_it_may_have_made_a_call_too_many() -> None:
    writer = Writer(3, groups={"0": [0, 1, 2], "1": [0, 1]})
    writer.call(0, "all_reduce", group="1", done=False)
    found = who_waits(writer.timeline([Ending(EndKind.UNKNOWN)] * 3, backend="nccl"))
    assert found.ranks == (1,)
    assert "Only rank 0 waits. If rank 1 does not stand still, then rank 0 made a call" in told(found)


def test_the_rank_whose_call_most_others_cannot_meet_is_named() -> None:
    writer = Writer(3, groups={"0": [0, 1, 2]})
    for rank in range(3):
        writer.call(rank, "all_reduce", shape=[[9 if rank == 1 else 4]], done=False)
    found = who_waits(writer.timeline([Ending(EndKind.UNKNOWN)] * 3, backend="nccl"))
    assert (found.ranks, found.culprits[0].waiting) == ((1,), (0, 2))
    assert "Rank 1 issued all_reduce of 9 elements" in told(found) and "ranks 0, 2 issued all_reduce of 4" in told(
        found
    )


@pytest.mark.parametrize("done", [(False, True, True), (True, False, False)])
def test_a_rank_is_named_whose_call_has_another_size_though_one_side_completed_it(done: tuple[bool, ...]) -> None:
    writer = Writer(3)
    for rank in range(3):  # on gloo the smaller call completes with a part of the larger one
        writer.call(rank, "all_reduce", shape=[[5 if rank == 0 else 1]], done=done[rank])
        if done[rank]:
            writer.call(rank, "all_reduce", shape=[[7]], done=False)
    found = who_waits(writer.timeline([Ending("unknown")] * 3))
    assert found.ranks == (0,) and found.culprits[0].waiting == (1, 2)
    assert "Rank 0 issued all_reduce of 5 elements" in told(found) and "of 1 element " in told(found)


def test_of_two_ranks_with_calls_of_another_size_neither_is_named_though_one_completed_it() -> None:
    writer = Writer(2)
    writer.call(0, "all_reduce", shape=[[5]], done=False)
    writer.call(1, "all_reduce", shape=[[1]])
    writer.call(1, "all_reduce", shape=[[5]], done=False)
    found = who_waits(writer.timeline([Ending("unknown")] * 2))
    assert found.ranks == () and found.either == ((0, 1),)


def test_the_rank_that_went_another_way_than_all_others_is_named() -> None:
    writer = Writer(3, groups={"0": [0, 1, 2], "1": [0, 1, 2]})
    for rank in range(3):
        writer.call(rank, "all_reduce", group="1" if rank == 1 else "0", done=False)
    found = who_waits(writer.timeline([Ending(EndKind.UNKNOWN)] * 3, backend="nccl"))
    assert found.ranks == (1,) and "It went another way than they" in told(found)


def test_no_rank_is_named_where_it_may_wait_for_one_without_a_record() -> None:
    writer = Writer(3, groups={"0": [0, 1], "1": [1, 2]})
    writer.call(0, "all_reduce", group="0", done=False)
    writer.call(1, "all_reduce", group="1", done=False)
    timeline = writer.timeline([Ending(EndKind.UNKNOWN)] * 3, backend="nccl")
    assert who_waits(timeline).ranks == (2,)
    timeline = replace(timeline, meta={**timeline.meta, "missing_ranks": [2]})
    assert who_waits(timeline).ranks == () and "Rank 1 may wait for rank 2" in told(who_waits(timeline))
    assert diagnose(timeline).sentence.startswith("Rank 1 may wait for rank 2")


def test_the_draw_has_jobs_of_both_kinds_that_stand_still() -> None:
    kinds = {job.fault for job in map(draw, range(40)) if stands_still(job)}
    assert kinds == {"host", "gpu"}


def test_ranks_that_wait_for_each_other_in_two_groups_are_named_together() -> None:
    writer = Writer(groups={"0": [0, 1], "1": [0, 1]})
    writer.call(0, "all_reduce", group="0", done=False)
    writer.call(1, "all_reduce", group="1", done=False)
    timeline = writer.timeline([Ending(EndKind.UNKNOWN)] * 2, backend="nccl")
    found = who_waits(timeline)
    assert [one.ranks for one in found.culprits] == [(0, 1)]
    assert (found.ranks, found.either) == ((), ((0, 1),))
    assert "Ranks 0, 1 wait for each other" in told(found)
    assert "Rank 0 or rank 1 went another way than the rest of the job: the record does not tell which." in told(found)
    assert diagnose(timeline).sentence == "Ranks 0, 1 wait for each other."


def test_a_rank_that_ended_is_named_with_its_ending() -> None:
    writer = Writer()
    writer.call(0, "all_reduce", done=False)
    found = who_waits(writer.timeline([Ending(EndKind.HUNG, call=0, proven=True), Ending(EndKind.FINISHED)]))
    assert found.ranks == (1,)
    assert told(found).splitlines()[0].endswith("but it has finished.")


def test_the_record_that_cannot_tell_ranks_apart_says_so() -> None:
    writer = Writer()
    for rank in (0, 1):
        writer.call(rank, "all_reduce", done=False)
    found = who_waits(writer.timeline([Ending(EndKind.UNKNOWN)] * 2, backend="nccl"))
    assert found.ranks == ()
    assert "does not tell the ranks apart" in told(found)


def test_calls_of_different_kinds_in_one_place_are_named() -> None:
    found = who_waits(case_timeline(4, n=2))
    assert found.ranks == ()
    assert "the ranks issued different calls: rank 0 all_reduce; rank 1 barrier" in told(found)


def test_a_send_without_its_recv_waits_for_the_receiver() -> None:
    writer = Writer()
    writer.call(0, "send", peer=1, done=False)
    found = who_waits(writer.timeline([Ending(EndKind.UNKNOWN)] * 2, backend="nccl"))
    assert found.ranks == (1,)
    assert "issued no counterpart" in told(found)


@pytest.mark.parametrize("case", [1, 6])
def test_nobody_is_blamed_in_a_run_that_finished(case: int) -> None:
    found = who_waits(case_timeline(case, n=2))
    assert (found.culprits, told(found)) == ((), "")


def test_the_verdict_and_the_diagnosis_name_the_culprit_of_a_record_without_endings() -> None:
    job = next(job for job in map(draw, range(100)) if job.fault == "host" and stands_still(job))
    found = timeline(job)
    story = diagnose(found)
    assert story.headline.ranks == (job.culprit,)
    assert story.sentence.startswith(f"Rank {job.culprit} keeps")
    assert f"for rank {job.culprit} in" in story.steps[0]


def test_ranks_that_wait_elsewhere_are_not_put_into_the_group() -> None:
    writer = Writer(3, groups={"0": [0, 1, 2], "73": [0, 2]})
    writer.call(0, "all_reduce", group="73", done=False)
    writer.call(1, "all_reduce", group="0", done=False)
    story = diagnose(writer.timeline([Ending(EndKind.UNKNOWN)] * 3, backend="nccl"))
    assert story.headline.ranks == (2,)
    (cause,) = story.texts(LineKind.CAUSE)
    assert "Rank 0 waits for rank 2 in collective 1 (all_reduce) of group 73" in cause or (
        "Rank 1 waits for rank 2 in collective 1 (all_reduce) of group 0" in cause
    )
    assert "elsewhere" in cause


def test_of_a_rank_that_raised_nothing_is_supposed() -> None:
    writer = Writer(3)
    writer.call(0, "all_reduce", done=False)
    ends = [Ending(EndKind.UNKNOWN), Ending(EndKind.RAISED, text="KeyError: 1"), Ending(EndKind.UNKNOWN)]
    story = diagnose(writer.timeline(ends, backend="nccl"))
    assert "does not stand still" not in str(story)


def test_a_rank_without_a_record_is_told_as_such() -> None:
    writer = Writer(2)
    writer.call(0, "all_reduce", done=False)
    timeline = writer.timeline([Ending(EndKind.UNKNOWN)] * 2, backend="nccl")
    timeline = replace(timeline, meta={**timeline.meta, "missing_ranks": [1]})
    assert diagnose(timeline).sentence.startswith("There is no record of rank 1; rank 0 waits in all-reduce, call 1")
