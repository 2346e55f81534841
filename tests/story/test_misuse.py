"""Works that nobody waits for, and calls of groups that a rank is not in."""

from __future__ import annotations

import inspect
import time
from functools import partial

import pytest
import torch
import torch.distributed as dist

import joinlab
from joinlab.errors import LaunchError
from joinlab.program.log_events import GroupMade, GroupNamed
from joinlab.program.misuse import unlike_groups
from joinlab.recorder.rank_log import RankLog, groups_of
from joinlab.timeline import Ending, EndKind
from tests.timelines import Writer

WAYS = {
    "wait": lambda work: work.wait(),
    "polled": lambda work: work.is_completed(),
    "future": lambda work: work.get_future().wait(),
    "dropped": lambda work: None,
}


def reduces(rank, inputs, way):
    t = torch.ones(1)
    WAYS[way](dist.all_reduce(t, async_op=True))
    WAYS["dropped"](dist.barrier(async_op=True))  # which writes nothing
    dist.barrier()


def meta_of(program, backend, launched=False, ranks=2):
    if launched:
        timeline = joinlab.launch(program, (1,) * ranks, backend, progress=False, on_output=None)
    else:
        timeline = joinlab.emulate(program, (1,) * ranks, backend)
    assert [str(end) for end in timeline.ends] == ["finished"] * ranks
    return timeline


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
@pytest.mark.parametrize("way", WAYS)
def test_a_work_is_dropped_where_nobody_asks_it(way, backend):
    timeline = meta_of(partial(reduces, way=way), backend)
    ranks = [one["rank"] for one in timeline.meta.get("unwaited", ())]
    assert ranks == ([0, 1] if way == "dropped" else [])
    healthy = joinlab.diagnose(timeline).sentence.endswith("every call met its counterpart.")
    assert healthy == (way != "dropped")


def test_a_launched_rank_tells_of_the_work_that_it_dropped():
    timeline = meta_of(partial(reduces, way="dropped"), "gloo", launched=True)
    assert [one["rank"] for one in timeline.meta["unwaited"]] == [0, 1]
    story = joinlab.diagnose(timeline)
    assert story.sentence.startswith(
        "Both ranks finished, but nobody waited for ranks 0, 1's all-r"
    )
    assert "Call wait() on what the call returned" in str(story)


def sends(rank, inputs, waits_before):
    buffer, works = torch.zeros(2), []
    for i in range(3):
        if rank == 1:
            dist.recv(buffer, 0)
            continue
        if waits_before:
            works and works[-1].wait()
        buffer[1] = i
        works.append(dist.isend(buffer, 1))
    works and works[-1].wait()


@pytest.mark.parametrize("waits_before", [True, False])
def test_a_send_whose_tensor_was_changed_before_its_wait_is_no_good_news(waits_before):
    story = joinlab.diagnose(meta_of(partial(sends, waits_before=waits_before), "nccl"))
    assert waits_before == story.sentence.endswith("every call met its counterpart.")
    changed = "rank 1's recv got 2.0 where rank 0 gave 1.0: a tensor was changed before wait()"
    assert waits_before != (changed in story.sentence)


def ends_before_its_send(rank, inputs, waits):
    if rank == 0:
        work = dist.isend(torch.ones(4), 1)
        return work.wait() if waits else None
    time.sleep(1)
    dist.recv(torch.zeros(4), 0)


@pytest.mark.parametrize("waits", [True, False])
def test_a_send_that_its_rank_did_not_wait_for_is_the_cause_and_not_its_peer(waits):
    program = partial(ends_before_its_send, waits=waits)
    story = joinlab.diagnose(joinlab.emulate(program, (1, 1), "gloo"))
    assert waits == story.sentence.endswith("every call met its counterpart.")
    assert waits != story.sentence.startswith("Rank 0 ended before its send to rank 1 (test_misuse")
    assert waits != ("Call wait() on what the call returned" in str(story))


def calls_outside(rank, inputs):
    alone = dist.new_group([0])
    dist.all_reduce(torch.ones(1), group=alone)
    dist.barrier()


@pytest.mark.parametrize("launched", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_a_call_outside_its_group_is_no_good_news(launched):
    timeline = meta_of(calls_outside, "gloo", launched)
    (outside,) = timeline.meta["outside"]
    assert (outside["rank"], outside["name"]) == (1, "all_reduce")
    assert "rank 1 called all_reduce (test_misuse.py:" in joinlab.diagnose(timeline).sentence


def groups_made(rank, inputs, alike, local):
    dist.new_group(None)
    for members in ([0], [1]):
        dist.new_group(members)
    if rank < 2 or alike:
        dist.new_group([1, 0], use_local_synchronization=local)
    dist.barrier()  # a rank that has connected must not end before its peer has


@pytest.mark.parametrize("launched", [False, True])
def test_a_group_that_only_some_ranks_make_is_no_good_news(launched):
    program = partial(groups_made, local=False, alike=False)
    timeline = meta_of(program, "gloo", launched, ranks=3)
    (grouping,) = timeline.meta["grouped"]
    assert (grouping["group"], grouping["members"], grouping["ranks"]) == ("4", [0, 1], [0, 1])
    story = joinlab.diagnose(timeline)
    assert "Ranks 0, 1 called new_group" in story.sentence


@pytest.mark.parametrize(
    "options", [{"alike": True, "local": False}, {"alike": False, "local": True}]
)
def test_groups_that_all_ranks_make_or_only_their_members_are_good_news(options):
    timeline = meta_of(partial(groups_made, **options), "nccl", ranks=3)
    assert joinlab.diagnose(timeline).headline.form == "all_finished"


def test_groups_of_one_name_and_other_members_are_told_apart():
    logs = [RankLog(rank=rank) for rank in range(4)]
    for log in logs:
        members = [log.rank // 2 * 2, log.rank // 2 * 2 + 1]
        log.take(GroupNamed(name="1", ranks=members, site="train.py:3"))
        log.take(GroupMade(name="1", ranks=members, backend="gloo"))
    assert groups_of(logs) == {"1": [0, 1], "1 of ranks 2, 3": [2, 3]}
    hung = [Ending(EndKind.HUNG, proven=False)] * 4
    timeline = Writer(4).timeline(
        hung, grouped=unlike_groups({log.rank: log.named for log in logs})
    )
    assert joinlab.diagnose(timeline).sentence == (
        "Ranks 0, 1 called new_group (train.py:3) for ranks 0, 1 and ranks 2, 3 for ranks 2, 3: "
        "every rank has to, alike. All 4 ranks hang."
    )


def shares_a_slot(rank, inputs):
    dist.all_gather([torch.zeros(1)] * 2, torch.full((1,), float(rank)))


def divides_before_wait(rank, inputs):
    t = torch.full((1,), 1.0 + rank)
    work = dist.all_reduce(t, async_op=True)
    t.div_(4)
    work.wait()


def broadcasts_a_column(rank, inputs):
    matrix = torch.arange(4.0).reshape(2, 2) + 10 * (1 - rank)
    dist.broadcast(matrix[:, 0], src=0)


def gives_each_call_its_own(rank, inputs):
    t = torch.full((1,), float(rank))
    dist.all_reduce(t, dist.ReduceOp.SUM, async_op=True).wait()
    t.div_(4)
    dist.all_gather([torch.zeros(1), torch.zeros(1)], t)
    dist.broadcast(t, src=1)
    dist.gather(t, [torch.zeros(1), torch.zeros(1)] if rank == 0 else None, dst=0)
    dist.all_reduce(torch.tensor([0.1, float("nan"), float("inf"), 3e38]))  # the last sum is inf
    dist.all_reduce(torch.full((1,), 6e4, dtype=torch.float16))


@pytest.mark.parametrize(
    ("program", "got"),
    [
        (shares_a_slot, "rank 0's all-gather got 1.0 where rank 0 gave 0.0."),
        (broadcasts_a_column, "rank 1's broadcast got 2.0 where rank 0 gave 12.0."),
        (divides_before_wait, "rank 0's all-reduce got 2.25 where ranks 0, 1 gave 1.0, 2.0."),
        (gives_each_call_its_own, "every call met its counterpart."),
    ],
)
def test_a_collective_that_got_what_nobody_gave_is_no_good_news(program, got):
    story = joinlab.diagnose(meta_of(program, "gloo"))
    assert got in story.sentence
    assert ("tensors of its own" in str(story)) == (program is not gives_each_call_its_own)


def begins_again(rank, inputs):
    dist.destroy_process_group()
    dist.init_process_group("gloo", rank=rank, world_size=2)


def sends_beyond(rank, inputs):
    dist.send(torch.ones(1), dst=2)


@pytest.mark.parametrize("run", [joinlab.emulate, joinlab.launch])
@pytest.mark.parametrize(
    ("program", "told"),
    [
        (
            begins_again,
            r"rank [01] calls init_process_group \(test_misuse.py:{}\): it has destroyed",
        ),
        (sends_beyond, r"rank [01] calls send( or recv)? \(test_misuse.py:{}\): no rank 2 is in"),
    ],
)
def test_what_no_run_can_follow_is_refused_with_its_line(run, program, told):
    last = program.__code__.co_firstlineno + len(inspect.getsource(program).splitlines()) - 1
    with pytest.raises(LaunchError, match=told.format(last)):
        run(program, (1, 1), "gloo")
