"""Who keeps whom waiting: simulated jobs whose culprit is known, and hand-made Timelines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from joinlab import Timeline
from joinlab.analysis.waiting import WaitGraph, who_waits
from joinlab.story.forms.kept_waiting import KeepsWaiting, Shows
from joinlab.story.judge import diagnose
from joinlab.story.lines import LineKind
from joinlab.timeline import Ending, EndKind
from tests import parallel_jobs
from tests.timelines import Writer, case_timeline


def told(graph: WaitGraph) -> str:
    """What the graph shows, in the words of the story."""
    every = (*(culprit.why for culprit in graph.culprits), *graph.unclear)
    return "\n".join(Shows(why).sentence for why in every)


@pytest.mark.parametrize("fault", parallel_jobs.FAULTS)
def test_in_jobs_of_many_kinds_of_groups_no_innocent_rank_is_named(fault: str) -> None:
    """Seeds 0 to 149; `python -m tests.parallel_jobs` counts more."""
    jobs = [job for job in map(parallel_jobs.draw, range(150)) if job.fault == fault]
    found = Counter(said for job in jobs if (said := parallel_jobs.told(job)))
    assert found["another"] == 0
    if fault in ("sleep", "raised", "died"):
        assert found["exact"] == found.total() > 5
    elif fault != "root":  # a dump does not tell the root
        assert found["exact"] + found["some"] + found["either"] > 0


def call(group: str = "0", done: bool = False, **more: Any) -> dict[str, Any]:
    """An all-reduce, or what `more` says."""
    return {"op": "all_reduce", "group": group, "done": done, **more}


def hand_made(
    ranks: Sequence[Sequence[dict[str, Any]]], groups: dict[str, list[int]], **meta: Any
) -> Timeline:
    """A job on NCCL of which no rank's ending is known, given each rank's calls and the groups but
    that of all."""
    writer = Writer(len(ranks), groups={"0": list(range(len(ranks))), **groups})
    for rank, calls in enumerate(ranks):
        for one in calls:
            writer.call(rank, **one)
    return writer.timeline([Ending(EndKind.UNKNOWN)] * len(ranks), backend="nccl", **meta)


MESH = {"a": [0, 1], "b": [2, 3], "c": [0, 2], "d": [1, 3]}
OVER = [[call("0", True), call(column, True)] for column in "cdcd"]
# by name: each rank's calls, the groups, the ranks that are named, one of which is to blame, and
# what is said
JOBS = {
    "peers": (
        [
            [call("a", True), call("c")],
            [call("a", True), call("d", True), call()],
            [call("b", True), call()],
            [call("b", True), call("d", True), call()],
        ],
        MESH, (2,), (), "Rank 2 took a different path from ranks 0, 1, 3",
    ),
    "GPU": ([[call(started_ns=5)], [call()], [call(started_ns=5)]], {}, (1,), (), "its GPU has not begun it"),
    "GPU behind": ([[call(done=True), call()], [call(), call()]], {}, (1,), (), "Look at its GPU"),
    "GPU?": ([[call()]] * 3, {}, (), (), "does not tell the ranks apart"),
    "level": ([[*OVER[0], call("a")], *OVER[1:]], MESH, (), ((0, 1),), "Either rank 1 has stalled, or rank 0 made a"),
    "more": ([[call("1")], [], []], {"1": [0, 1]}, (), ((0, 1),), "Rank 0 alone waits, in collective 1 (all_re"),
    "fewer": (
        [[call("1")], [], *([[call("2", True)]] * 2)],
        {"1": [0, 1], "2": [2, 3]}, (1,), (), "It stopped after 0, and it waits for no other rank",
    ),
    "left out": (
        [
            [call("1", True, op="send", peer=1), call()],
            [call("1", True, op="recv", peer=0), call("1", op="recv", peer=0)],
            [*[call("2", True, op="send", peer=3)] * 2, call()],
            [*[call("2", True, op="recv", peer=2)] * 2, call()],
        ],
        {"1": [0, 1], "2": [2, 3]}, (0,), (), "Rank 0 took a different path from rank 2, which has the same part",
    ),
    "size": (
        [[call(shape=[[4]])], [call(shape=[[9]])], [call(shape=[[4]])]],
        {}, (1,), (), "Rank 1 issued all_reduce of 9 elements (float32) as collective 1 of group 0, where ranks 0, 2 i",
    ),
    "size of two": (
        [[call(shape=[[5]])], [call(done=True, shape=[[1]]), call(shape=[[5]])]],
        {}, (), ((0, 1),), "the ranks issued different calls",
    ),
    "other group": ([[call()], [call("1")], [call()]], {"1": [0, 1, 2]}, (1,), (), "It took a different path"),
    "circle": (
        [[call()], [call("1")]],
        {"1": [0, 1]}, (), ((0, 1),),
        "Rank 0 or rank 1 took a different path from the rest of the job: the record does not show which.",
    ),
    "send": ([[call(op="send", peer=1)], []], {}, (1,), (), "issued no counterpart"),
    "a send without a time": (
        [[call(op="send", peer=2, enqueued_ns=None)], [call(op="send", peer=2)], []], {}, (2,), (), "no counterpart",
    ),
    "chain": ([[call("1")], [call("2")], []], {"1": [0, 1], "2": [1, 2]}, (2,), (), "Rank 1 waits for rank 2"),
}  # fmt: skip


@pytest.mark.parametrize("name", JOBS)
def test_who_is_named_in_a_small_job(name: str) -> None:
    ranks, groups, named, either, words = JOBS[name]
    timeline = hand_made(ranks, groups)
    found = who_waits(timeline)
    assert (found.ranks, found.either) == (named, either)
    assert words in told(found)
    assert {*named} <= {*diagnose(timeline).headline.ranks}


def test_a_group_that_meta_does_not_name_has_the_ranks_that_issued_in_it() -> None:
    timeline = hand_made([[call("1")], [call("1")], []], {})
    assert "1" not in timeline.meta["groups"]
    assert who_waits(timeline).either == ((0, 1),)


def test_no_rank_is_named_where_it_may_wait_for_one_without_a_record() -> None:
    ranks, groups, *_ = JOBS["chain"]
    timeline = hand_made(ranks, groups, missing_ranks=[2])
    found = who_waits(timeline)
    assert found.ranks == () and "Rank 1 may wait for rank 2" in told(found)
    assert diagnose(timeline).sentence.startswith("Rank 1 may wait for rank 2")


@pytest.mark.parametrize("done", [(False, True, True), (True, False, False)])
def test_a_rank_is_named_whose_call_has_another_size_though_one_side_completed_it(
    done: tuple[bool, ...],
) -> None:
    sizes = [[call(done=over, shape=[[1 if rank else 5]])] for rank, over in enumerate(done)]
    # on gloo the smaller call may complete
    more = [[call(shape=[[7]])] if over else [] for over in done]
    found = who_waits(hand_made([[*one, *two] for one, two in zip(sizes, more, strict=True)], {}))
    assert found.ranks == (0,) and found.culprits[0].waiting == (1, 2)
    assert "Rank 0 issued all_reduce of 5 elements" in told(found) and "of 1 element " in told(
        found
    )


def test_a_rank_that_ended_is_named_with_its_ending() -> None:
    writer = Writer()
    writer.call(0, "all_reduce", done=False)
    found = who_waits(
        writer.timeline([Ending(EndKind.HUNG, call=0, proven=True), Ending(EndKind.FINISHED)])
    )
    assert found.ranks == (1,)
    assert told(found).splitlines()[0].endswith("but it has finished.")


@pytest.mark.parametrize("case", [1, 6])
def test_nobody_is_blamed_in_a_run_that_finished(case: int) -> None:
    found = who_waits(case_timeline(case, n=2))
    assert (found.culprits, told(found)) == ((), "")


def test_the_story_of_a_record_without_endings_names_the_culprit() -> None:
    ranks, groups, *_ = JOBS["chain"]
    story = diagnose(hand_made(ranks, groups))
    assert (
        story.sentence.startswith("Rank 2 keeps")
        and "for rank 2 in" in story.texts(LineKind.CAUSE)[0]
    )


def test_a_rank_that_alone_waits_keeps_no_others_waiting() -> None:
    line = KeepsWaiting(circle=False, waits=True, ranks=(3,), sides=((3,), ()))
    assert line.sentence == "Rank 3 waits, and no other rank does."


def test_ranks_that_wait_elsewhere_are_not_put_into_the_group() -> None:
    writer = Writer(3, groups={"0": [0, 1, 2], "73": [0, 2]})
    writer.call(0, "all_reduce", group="73", done=False, enqueued_ns=5)
    writer.call(1, "all_reduce", group="0", done=False, enqueued_ns=9)
    story = diagnose(writer.timeline([Ending(EndKind.UNKNOWN)] * 3, backend="nccl"))
    assert story.headline.ranks == (2,)
    (cause,) = story.texts(LineKind.CAUSE)
    assert cause.startswith(
        "Rank 0 waits for rank 2 in collective 1 (all_reduce) of group 73, and rank 1 elsewhere."
    )


def test_of_a_rank_that_raised_nothing_is_supposed() -> None:
    writer = Writer(3)
    writer.call(0, "all_reduce", done=False)
    ends = [
        Ending(EndKind.UNKNOWN),
        Ending(EndKind.RAISED, text="KeyError: 1"),
        Ending(EndKind.UNKNOWN),
    ]
    story = diagnose(writer.timeline(ends, backend="nccl"))
    assert "stalled" not in str(story)


def test_the_headline_names_a_rank_without_a_record() -> None:
    timeline = hand_made([[call()], []], {}, missing_ranks=[1])
    assert diagnose(timeline).sentence.startswith(
        "There is no record of rank 1; rank 0 waits in all-reduce (train.py:11)"
    )
