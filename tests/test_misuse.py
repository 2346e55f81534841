"""Works that nobody waits for, and calls of groups that a rank is not in."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.distributed as dist

import joinlab

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


def meta_of(program, backend, launched=False):
    if launched:
        timeline = joinlab.launch(program, (1, 1), backend, progress=False, on_output=None)
    else:
        timeline = joinlab.emulate(program, (1, 1), backend)
    assert [str(end) for end in timeline.ends] == ["finished"] * 2
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
