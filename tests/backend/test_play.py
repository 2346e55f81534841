"""Lists of calls played on a modelled network: what they may say, and what comes back."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from joinlab.errors import LaunchError, ProgramError
from joinlab.gloo.fabric import GlooFabric
from joinlab.nccl.fabric import NcclFabric
from joinlab.ops import FACTS
from joinlab.program.process_group import METHODS, options_of
from tests.play import (
    Batch,
    Call,
    Destroy,
    Poll,
    Sleep,
    Sync,
    Synchronize,
    Wait,
    arguments,
    method_of,
    play,
)

BOTH = pytest.mark.parametrize("fabric", [NcclFabric, GlooFabric])


def ones(count: int = 1) -> torch.Tensor:
    return torch.ones(count)


def bytes_of(*values: float) -> bytes:
    return torch.tensor(values).numpy().tobytes()


@BOTH
def test_each_call_has_its_times_and_the_bytes_that_it_held_when_it_completed(fabric):
    x, y = torch.tensor([1.0]), torch.tensor([2.0])
    twice = [Call("all_reduce", [x])] * 2, [Call("all_reduce", [y])] * 2
    played = play(twice, fabric)
    assert played.kinds == ["finished", "finished"] and played.done == [2, 2]
    for results in played.calls:
        assert [result.held for result in results] == [bytes_of(3.0), bytes_of(6.0)]
        assert [result.error for result in results] == [None, None]
        first, second = results
        assert (
            first.row["enqueued_ns"] < second.row["enqueued_ns"]
            and first.completed_ns < second.completed_ns
        )
        assert (second.row["enqueued_ns"] < first.completed_ns) == (fabric is NcclFabric)


def test_the_tensors_of_a_hung_rank_can_be_read():
    """NCCL's rank 0 has summed the first half of its data when it stops."""
    x, y = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([5.0])
    played = play([[Call("all_reduce", [x])], [Call("all_reduce", [y])]], NcclFabric)
    (mine,), (theirs,) = played.calls
    assert (mine.completed, theirs.completed) == (False, True)
    assert (mine.held, theirs.held) == (bytes_of(*x.tolist()), bytes_of(6.0))
    assert played.done == [0, 1]


@BOTH
def test_a_rank_hangs_in_the_call_that_its_host_waits_for(fabric):
    """No root sends to rank 1, so rank 0's barrier misses it, too."""
    lanes = [[Call("all_reduce", [ones()])] for _ in range(2)]
    lanes[0] += [Call("barrier"), Call("barrier")]
    lanes[1] += [Call("broadcast", [ones()]), Sync()]
    for end in play(lanes, fabric).ends:
        assert (end.kind, end.call) == ("hung", 1)


def test_on_nccl_only_the_stream_waits_until_the_host_reads():
    alone = Call("all_reduce", [ones()])
    first = [Call("all_reduce", [ones()]) for _ in range(2)]
    for last, kind in ((), "finished"), ((Sync(),), "hung"), ((Synchronize(),), "hung"):
        played = play([[first[0], alone, *last], [first[1]]], NcclFabric)
        assert (played.ends[0].kind, played.calls[0][1].completed) == (kind, False)


def test_on_gloo_a_rank_waits_at_its_end_for_calls_in_flight_and_its_end_closes_connections():
    played = play([[Call("all_reduce", [ones()], waits=False)], []], GlooFabric)
    (result,) = played.calls[0]
    assert "Connection closed" in result.error and played.kinds == ["finished", "finished"]
    played = play([[Call("all_reduce", [ones()], waits=False)], [Call("barrier")]], GlooFabric)
    assert played.kinds == ["hung", "hung"]


def test_a_refused_call_raises_and_what_gloo_cannot_take_aborts():
    refused = Call("all_gather", [ones()], [ones()])
    played = play([[refused, Call("barrier")], []], GlooFabric)
    (end, _) = played.ends
    assert (end.kind, end.call, end.steps) == ("raised", 0, 0)
    assert end.text.startswith("RuntimeError: ProcessGroupGloo::allgather: invalid output tensor")
    assert played.calls[0][0].error == end.text and len(played.calls[0]) == 1
    played = play([[Call("all_reduce", [ones()])], [Call("all_reduce", [ones(8)])]], GlooFabric)
    assert played.kinds == ["killed", "raised"] and "op.preamble.length" in played.ends[0].text


def test_generators_may_read_what_has_come_and_later_steps_name_earlier_calls():
    def lane(rank):
        x = torch.tensor([float(rank + 1)])
        work = Call("all_reduce", [x], waits=False)
        yield work
        yield Poll(work) if rank else Wait([work])
        yield Sync()
        for _ in range(int(x.item())):
            yield Call("barrier")
        yield Destroy()

    for fabric in NcclFabric, GlooFabric:
        played = play([lane(0), lane(1)], fabric)
        assert played.kinds == ["finished", "finished"] and played.done == [4, 4]


@BOTH
def test_groups_have_calls_of_their_own_and_may_lie_on_another_fabric(fabric):
    x = [torch.tensor([float(rank)]) for rank in range(3)]
    lanes = [[Call("all_reduce", [x[0]], group="a")], [], [Call("all_reduce", [x[2]], group="a")]]
    other = GlooFabric if fabric is NcclFabric else NcclFabric
    for fabrics in {}, {"a": other}:
        played = play(lanes, fabric, groups={"a": (0, 2)}, fabrics=fabrics)
        assert played.done == [1, 0, 1] and played.kinds == ["finished"] * 3
    assert x[0].item() == x[2].item() == 4.0
    with pytest.raises(ProgramError, match="rank 1 is not in a group 'a'"):
        play([[], [Call("barrier", group="a")], []], fabric, groups={"a": (0, 2)})


def test_a_wait_with_a_limit_passes_in_virtual_time():
    x, y = ones(), ones()
    late = Call("all_reduce", [x], waits=False)
    played = play(
        [[late, Wait([late], timeout_s=0.1)], [Sleep(1), Call("all_reduce", [y])]], GlooFabric
    )
    assert (played.ends[0].kind, played.ends[0].text) == (
        "raised",
        "RuntimeError: Operation timed out!",
    )
    limited = play(
        [[Call("barrier")], [Sleep(2), Call("barrier")]], GlooFabric, limits_s={"0": 1.0}
    )
    assert (
        limited.kinds == ["raised", "raised"] and "Timed out waiting 1000ms" in limited.ends[0].text
    )
    late = [Call("barrier"), Sleep(2), Call("barrier")]
    watched = play([[Call("barrier"), Call("barrier")], late], NcclFabric, limits_s={"0": 1.0})
    assert watched.kinds == ["killed", "hung"] and "Watchdog" in watched.ends[0].text


def test_calls_issued_as_one_wait_for_none_of_their_own():
    big = [torch.full((2_500_000,), float(rank)) for rank in range(2)]
    came = [torch.zeros(2_500_000) for _ in range(2)]
    lanes = [
        [
            Batch(
                [
                    Call("recv", outs=[came[rank]], peer=1 - rank),
                    Call("send", [big[rank]], peer=1 - rank),
                ]
            )
        ]
        for rank in range(2)
    ]
    assert play(lanes, NcclFabric).kinds == ["finished", "finished"]
    assert [tensor[0].item() for tensor in came] == [1.0, 0.0]


def test_what_the_model_cannot_tell_is_an_error_and_not_an_ending(monkeypatch):
    def fault(*args):
        raise KeyError("no such thing")

    monkeypatch.setattr(NcclFabric, "submit", fault)
    with pytest.raises(LaunchError, match="could not model <all_reduce 0 of rank 0 in '0'>"):
        play([[Call("all_reduce", [ones()])], []], NcclFabric)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (Call("all_sum", [ones()]), "no call 'all_sum'"),
        (Call("all_reduce", [ones()], method="broadcast"), "by a method 'broadcast'"),
        (Call("send", [ones()], peer=7), "no rank -1 is in its group"),
        (Wait([Call("barrier")]), "has not issued the barrier"),
    ],
)
def test_a_step_that_cannot_be_is_an_error(call, text):
    with pytest.raises(ProgramError, match=text):
        play([[call], []], NcclFabric)


@pytest.mark.parametrize("name", METHODS)
def test_the_arguments_of_a_method_mean_what_the_call_says(name):
    """`arguments` is the inverse of what the recorder and the emulator read from them."""
    method, ranks = METHODS[name], (3, 5)
    pair = [ones(), ones()]
    peer = None if "any" in name else 5
    meant = {"reduce_op": "max", "root": 5, "peer": 5, "tag": 4}
    call = Call(method.op, pair, pair, method=name, **{**meant, "peer": peer})
    assert method_of(call) == name
    given = arguments(call, name, ranks)
    options = options_of(method.op, ranks, given)
    assert options == {key: meant[key] for key in options}
    facts = FACTS[method.op]
    assert ("root" in options, "reduce_op" in options) == (facts.rooted, facts.reduces)
    whole = len(pair) if "coalesced" in name or name in ("allgather", "gather", "scatter") else 1
    assert all(len(side) in (0, whole, 2) for side in method.tensors(given))


def test_nothing_of_it_lives_on():
    x, y = ones(), ones()
    freed = weakref.ref(x)
    gc.disable()
    try:
        play([[Call("all_reduce", [x])], [Call("all_reduce", [y])]], NcclFabric)
        play([[Call("all_reduce", [x])], [Call("all_reduce", [y])]], GlooFabric)
        play([[Call("all_reduce", [x]), Sync()], []], NcclFabric)  # it hangs
        del x
        assert freed() is None
    finally:
        gc.enable()
