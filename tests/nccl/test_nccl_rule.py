"""The ring model against what NCCL's source predicts for two ranks, and the rule for more."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinlab.backend.calls import Blocker, IssuedCall, RuleContext, by_group
from joinlab.nccl.ring import Ring, steps
from joinlab.nccl.rule import blocked

AR, BC, AG = "all_reduce", "broadcast", "all_gather"


def call(
    rank: int,
    seq: int,
    op: str,
    count: int = 1,
    dtype: str = "float32",
    root: int | None = None,
    **rest,
) -> IssuedCall:
    return IssuedCall(rank, "0", seq, op, dtype, [[count]], root=root, **rest)


def stuck(
    *lanes: list[tuple], gone: tuple[int, ...] = (), ranks: tuple[int, ...] | None = None, **told
) -> set[tuple[int, int]]:
    """(rank, seq) of the blocked calls of lanes of (op, count, dtype, root); `told` are fields of a
    Setting."""
    ranks = tuple(range(len(lanes))) if ranks is None else ranks
    calls = [
        call(rank, seq, *what)
        for rank, lane in zip(ranks, lanes, strict=True)
        for seq, what in enumerate(lane)
    ]
    return set(blocked(by_group(calls, {"0": ranks}, RuleContext(**told))["0"], gone))


def test_no_call_after_a_stuck_one_completes():
    group = by_group([call(0, 0, AR), call(0, 1, AR)], {"0": (0, 1)})["0"]
    assert blocked(group) == {(0, 0): (Blocker(1, None),), (0, 1): (Blocker(0, 0),)}


OPS = ["all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter"]


@given(
    size=st.integers(2, 6),
    program=st.lists(
        st.tuples(
            st.sampled_from(OPS), st.integers(0, 5), st.sampled_from([1, 4, 8, 12, 40, 4096])
        ),
        max_size=6,
    ),
    data=st.data(),
)
def test_the_same_calls_on_all_ranks_complete_in_any_order_of_issue(size, program, data):
    ring = Ring(size)
    left = dict.fromkeys(range(size), 0)
    while open_ranks := [rank for rank in left if left[rank] < len(program)]:
        rank = data.draw(st.sampled_from(open_ranks))
        op, root, nbytes = program[left[rank]]
        ring.issue(rank, steps(op, rank, size, root % size, nbytes))
        left[rank] += 1
    assert ring.done == [len(program)] * size


def test_more_ranks_only_claim_what_every_algorithm_shares():
    same = [(AR, 1)]
    assert stuck([*same, (AR, 1)], [*same, (AR, 1)], same) == {(0, 1), (1, 1)}
    for root, found in ((0, set()), (2, {(0, 1), (1, 1)})):
        assert (
            stuck([*same, (BC, 1, "float32", root)], [*same, (BC, 1, "float32", root)], same)
            == found
        )
    reduce = ("reduce", 1, "float32", 0)
    assert stuck([*same, reduce], [*same, reduce], same) == {(0, 1)}
    # they do not fit, and take several channels
    assert stuck([(AR, 4096)], [(AR, 4096)], [(AR, 2048)]) == set()


def test_of_more_ranks_is_claimed_what_holds_in_every_order_on_the_ring():
    assert stuck([(AR, 1)], [(AR, 3)], [(AR, 2)]) == {(1, 0)}
    apart = [(BC, 1, "float32", 0)], [(BC, 1, "float32", 1)], [(BC, 1, "float32", 0)]
    # if rank 2 follows rank 0, it gets its data there; else rank 1's will do
    assert stuck(*apart) == set()
    assert stuck(*apart[:2], [(AR, 1)]) == {(2, 0)}
    many = [[(AR, 1)]] * 6 + [[(AR, 1), (AR, 1)]]
    assert stuck(*many) == {(6, 1)}
    # seven that all differ have too many orders
    assert stuck(*[[(AR, k)] for k in range(1, 8)]) == set()
    # more ranks than the tuner is known for
    assert stuck(*[[(BC, 1, "float32", k % 2)] for k in range(17)]) == set()
    split = by_group(
        [call(rank, 0, AR, 1 + 2 * rank) for rank in (0, 1)],
        {"0": (0, 1)},
        RuleContext(one_node=False),
    )
    assert blocked(split["0"]) == {}


def test_the_order_of_the_ring_decides_where_it_is_known():
    """Rank 1 gets what rank 2 broadcasts only if it is the next one on the ring, not if rank 0 is,
    which sums."""
    apart = [(AR, 1)], [(BC, 1, "float32", 2)], [(BC, 1, "float32", 2)]
    assert stuck(*apart) == {(0, 0)}
    assert stuck(*apart, rings={"0": (0, 1, 2)}) == {(0, 0), (1, 0)}
    assert stuck(*apart, rings={"0": (0, 2, 1)}) == {(0, 0)}
    # one circle, another beginning
    assert stuck(*apart, rings={"0": (2, 0, 1)}) == {
        (0, 0),
        (1, 0),
    }
    assert stuck(*apart, rings={"0": (0, 1)}) == {(0, 0)}  # not all of its ranks: nothing is known


def test_version_and_kind_of_gpu_decide_where_they_are_known():
    """Of 32 bytes on 3 ranks the first part is all in 2.7.8, and 16 today, so that the second does
    not come."""
    odd = [(AR, 8)], [(AR, 1)], [(AR, 1)]
    assert stuck(*odd) == stuck(*odd, version="2.7.8") == stuck(*odd, version="2.12.10") == {(0, 0)}
    assert stuck(*odd, version="2.29.7") == {(0, 0), (1, 0), (2, 0)}
    wider = [(AR, 3)], [(AR, 1)]
    assert stuck(*wider) == {(0, 0)}
    # before Volta no line goes on before all have come
    assert stuck(*wider, warps_apart=False) == {
        (0, 0),
        (1, 0),
    }


def test_a_list_to_scatter_is_one_collective_where_none_was_coalesced():
    parts = [IssuedCall(rank, "0", 0, "reduce_scatter", "float32", [[2], [2]]) for rank in (0, 1)]
    calls = [parts[0], call(1, 0, BC, root=1), call(0, 1, AR), call(1, 1, AR)]

    def found(coalesced):
        return set(blocked(by_group(calls, {"0": (0, 1)}, RuleContext(coalesced=coalesced))["0"]))

    assert found(None) == found(["0"]) == set()
    assert found([]) == {(1, 1)}


def pairs(*lanes: list[tuple], **told) -> set[tuple[int, int]]:
    """(rank, seq) of the blocked of two ranks' sends and recvs, (op, count), in a group of
    three."""
    calls = [
        IssuedCall(rank, "0", seq, op, "float32", [[count]], peer=1 - rank)
        if op in ("send", "recv")
        else call(rank, seq, op, count, root=1)
        for rank, lane in enumerate(lanes)
        for seq, (op, count) in enumerate(lane)
    ]
    return set(blocked(by_group(calls, {"0": (0, 1, 2)}, RuleContext(coalesced=(), **told))["0"]))


def test_sends_that_were_in_no_batch_have_a_communicator_for_each_two_ranks():
    send, recv = ("send", 1), ("recv", 1)
    assert pairs([send, send, recv], [recv]) == {(0, 2)}
    assert pairs([("send", 2)], [("recv", 4)]) == {(1, 0)}  # it waits for a second line
    # not LL: not known
    assert pairs([("send", 10**6)], [("recv", 4)]) == pairs([send], [("recv", 10**6)]) == set()
    # 16 KiB take LL on every machine, where a receiver waits for all of its lines
    at_most = 16 * 1024 // 4
    assert pairs([("send", at_most - 2)], [("recv", at_most)]) == {(1, 0)}
    # with more channels, more do: not known
    assert pairs([("send", at_most)], [("recv", at_most + 1)]) == set()
    assert pairs([send], []) == {(0, 0)}  # the two must make it first
    # which does not help: that needs the group's
    assert pairs([send], [("gather", 1)]) == {
        (0, 0),
        (1, 0),
    }
    assert pairs([send], [("gather", 1)], eager=("0",)) == {(1, 0)}
    assert pairs([send] * 10, [recv]) == {(0, 9)}  # a FIFO holds eight


@pytest.mark.parametrize("count", [1, 10**7])
def test_two_ranks_that_both_begin_with_a_send_never_receive(count):
    both = [("send", count), ("recv", count)]
    assert pairs(both, both) == {(0, 1), (1, 1)}
    assert pairs(both[::-1], both[::-1]) == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert pairs(both, both[::-1]) == set()
    assert pairs([("send", 0), *both], both) == set()  # of an empty send it is not known


def test_the_first_send_to_a_rank_waits_for_its_recv_though_the_other_direction_is_connected():
    send, recv = ("send", 1), ("recv", 1)
    assert pairs([recv, send], [send]) == pairs([send, recv], [recv]) == {(0, 1)}
    assert pairs([send, recv, send], [recv, send]) == set()  # connected, and buffered
    # it issued more, so its first send did not wait
    assert pairs([recv, send, send], [send]) == set()


def test_a_send_that_only_some_machines_buffer_is_known_to_wait_in_the_emulator_alone():
    lanes = [("send", 1), ("send", 10**6)], [("recv", 1)]
    assert pairs(*lanes) == set()
    assert pairs(*lanes, sends_wait=True) == {(0, 1)}
    assert pairs([("send", 1), ("send", 10**4)], [("recv", 1)], sends_wait=True) == set()


def test_a_send_in_a_batch_may_be_what_a_gather_waits_for():
    same = call(0, 0, AR), call(1, 0, AR)
    gather, send = (
        call(0, 1, "gather", root=0),
        IssuedCall(1, "0", 1, "send", "float32", [[1]], peer=0),
    )
    assert set(blocked(by_group([*same, gather], {"0": (0, 1)})["0"])) == {(0, 1)}
    assert (0, 1) not in blocked(by_group([*same, gather, send], {"0": (0, 1)})["0"])
    alone = by_group([*same, gather, send], {"0": (0, 1)}, RuleContext(coalesced=()))["0"]
    assert set(blocked(alone)) == {(0, 1), (1, 1)}
    recv, swap = IssuedCall(0, "0", 1, "recv", "float32", [[1]], peer=1), call(1, 1, "all_to_all")
    assert (0, 1) not in blocked(
        by_group([*same, recv, swap._replace(shape=[[1], [1]])], {"0": (0, 1)})["0"]
    )


def test_a_gather_that_all_ranks_have_completed_feeds_no_recv():
    recv = IssuedCall(0, "0", 1, "recv", "float32", [[1]], peer=1)
    for completed in (False, True):
        gathers = [call(rank, 0, "gather", root=0, completed=completed) for rank in (0, 1)]
        assert ((0, 1) in blocked(by_group([*gathers, recv], {"0": (0, 1)})["0"])) == completed


def test_a_gather_connects_whoever_of_the_two_sends():
    """Rank 1's gather to rank 0 connects the two, so rank 0's send in a batch is buffered."""
    calls = [
        call(0, 0, AR),
        call(1, 0, AR),
        IssuedCall(0, "0", 1, "send", "float32", [[1]], peer=1),
    ]
    assert (0, 1) in blocked(by_group(calls, {"0": (0, 1)})["0"])
    assert (0, 1) not in blocked(
        by_group([*calls, call(1, 1, "gather", root=0)], {"0": (0, 1)})["0"]
    )


def test_a_gather_or_scatter_of_more_than_is_sent_waits():
    """The root of a scatter has a part for each rank."""
    parts = IssuedCall(0, "0", 0, "scatter", "float32", [[1], [1], [1]], root=0)
    for counts, hung in (((1, 1), set()), ((3, 1), {(1, 0)})):
        others = [call(rank, 0, "scatter", count, root=0) for rank, count in enumerate(counts, 1)]
        group = by_group([parts, *others], {"0": (0, 1, 2)}, RuleContext(coalesced=()))["0"]
        assert set(blocked(group)) == hung
    assert stuck([("gather", 8, "float32", 0)], [("gather", 1, "float32", 0)]) == {(0, 0)}


def test_a_host_meets_its_peer_inside_the_first_gather():
    """Rank 1 stands inside its first gather until rank 0 connects; what it sends later is
    buffered."""
    gather, other = ("gather", 1, "float32", 0), (AR, 1)
    assert stuck([other], [other, gather]) == {(1, 1)}
    assert stuck([gather, other], [gather, other, gather]) == set()
    assert stuck([gather, other, other], [gather, other, gather]) == {(0, 2)}


def test_an_eager_communicator_connects_its_rings_in_the_first_collective():
    """init_process_group(device_id=...) makes it; a root that has sent its data needs no one, but
    for the rings."""
    alone, groups = [call(0, 0, BC, root=0), call(0, 1, AR)], {"0": (0, 1)}
    eager = RuleContext(eager=("0",))
    assert set(blocked(by_group(alone, groups)["0"])) == {(0, 0), (0, 1)}
    assert set(blocked(by_group(alone, groups, eager)["0"])) == {(0, 0), (0, 1)}
    first = [call(rank, 0, AR, completed=True) for rank in (0, 1)]
    later = [call(0, 1, BC, root=0), call(0, 2, AR)]
    assert set(blocked(by_group([*first, *later], groups, eager)["0"])) == {(0, 2)}
    old = RuleContext(eager=("0",), version="2.20.5")
    assert set(blocked(by_group(alone, groups, old)["0"])) == {(0, 1)}


def test_a_refused_call_takes_no_place():
    refused = call(1, 0, AR, failed=True, refused=True)
    assert blocked(by_group([call(0, 0, AR), refused, call(1, 1, AR)], {"0": (0, 1)})["0"]) == {}
    assert set(blocked(by_group([call(0, 0, AR), refused], {"0": (0, 1)})["0"])) == {(0, 0)}


@pytest.mark.parametrize("large", [1, 10**7])
def test_a_slot_that_a_rank_never_reaches_completes_nowhere_that_needs_it(large):
    same = [(AR, 1)]
    # though they do not fit
    assert stuck([*same, (AR, large)], [*same, (AG, 3)], same) == {
        (0, 1),
        (1, 1),
    }
    # a root sends once
    assert stuck([*same, (AR, large)], [*same, (BC, 3, "float32", 1)], same) == {(0, 1)}
    assert stuck([*same, (AR, 0)], [*same, (AG, 3)], same) == {(1, 1)}


@pytest.mark.parametrize(
    "what", [(AR, 1), (AR, 10**7), (AR, 0), (BC, 1, "float32", 0), ("all_to_all", 5)]
)
def test_a_communicator_whose_ranks_never_all_call_is_never_made(what):
    assert stuck([what, (AR, 1)], []) == {(0, 0), (0, 1)}
    assert stuck([what], [(AG, 3)], []) == {(0, 0), (1, 0)}


@pytest.mark.parametrize(
    ("calls", "hung"),
    [
        # flags on one side, a counter on the other
        (
            ([(AR, 1)], [(AR, 2 * 10**6)]),
            {(0, 0), (1, 0)},
        ),
        (([(AR, 1)], [(BC, 2 * 10**6, "float32", 1)]), {(0, 0)}),  # a root only sends
        (([(BC, 2 * 10**6, "float32", 1)], [(AR, 1)]), {(0, 0), (1, 0)}),
        (([(AR, 2 * 10**6)], [(AR, 4 * 10**6)]), set()),  # how far their chunks get is not modelled
        # rank 0's second never begins
        (
            ([(AR, 1), (AR, 2 * 10**6)], [(AR, 2 * 10**6), (AR, 2 * 10**6)]),
            {(0, 0), (1, 0)},
        ),
        # here it does, and feeds rank 1
        (
            ([(BC, 1, "float32", 0), (AR, 2 * 10**6)], [(AR, 2 * 10**6), (AR, 2 * 10**6)]),
            set(),
        ),
        (([(AR, 1)], [(AR, 10**5)]), set()),  # by LL or not: it depends on the GPU
    ],
)
def test_a_large_message_never_meets_a_small_ones_lines(calls, hung):
    common = [(AR, 1)]
    found = stuck(*([*common, *lane] for lane in calls))
    assert {(rank, seq - 1) for rank, seq in found if seq == 1} == hung


def test_large_mismatched_messages_are_left_undecided():
    assert stuck([(AR, 5000)], [(AR, 5001)]) == set()
    # rank 0 reaches a call the ring cannot tell of
    assert stuck([(AR, 1), (AR, 5000)], [(AR, 3), (AR, 5000)]) == set()
    assert stuck([(AR, 1), (AR, 5000)], [(BC, 1, "float32", 0), (AR, 5000)]) == {
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    }
    assert stuck([("all_to_all", 1)], [(AR, 1)]) == set()


def test_empty_tensors_and_single_ranks_wait_for_nobody():
    assert stuck([(AR, 1), (AR, 0)], [(AR, 1)]) == set()
    assert stuck([(AR, 1)]) == set()


def test_recv_needs_its_send_whatever_the_tag():
    recv = IssuedCall(1, "0", 0, "recv", "float32", [[1]], peer=0, tag=3)
    send = IssuedCall(0, "0", 0, "send", "float32", [[1]], peer=1, tag=9)
    assert blocked(by_group([recv], {"0": (0, 1)})["0"]) == {(1, 0): (Blocker(0, None),)}
    assert blocked(by_group([recv, send], {"0": (0, 1)})["0"]) == {}
    # no communicator
    assert blocked(by_group([send], {"0": (0, 1)})["0"]) == {(0, 0): (Blocker(1, None),)}
    other = recv._replace(peer=1, rank=0, seq=1)
    # may be buffered
    assert blocked(by_group([send, other, send._replace(rank=1, peer=0)], {"0": (0, 1)})["0"]) == {}


def test_a_completed_call_that_the_rule_calls_stuck_silences_the_rule():
    lanes = [call(0, 0, AR, completed=True), call(0, 1, AR)]
    assert blocked(by_group(lanes, {"0": (0, 1)})["0"]) == {}


def test_a_failed_call_silences_the_rule():
    assert (
        blocked(by_group([call(0, 0, AR, failed=True), call(0, 1, AR)], {"0": (0, 1)})["0"]) == {}
    )


@given(data=st.data())
def test_further_calls_never_block_what_was_free(data):
    what = st.tuples(
        st.sampled_from([AR, BC, AG]),
        st.sampled_from([1, 2, 3]),
        st.just("float32"),
        st.integers(0, 1),
    )
    lanes = [data.draw(st.lists(what, max_size=4)) for _ in range(2)]
    more = [data.draw(st.lists(what, max_size=3)) for _ in range(2)]
    before = stuck(*lanes)
    after = stuck(*([*lane, *extra] for lane, extra in zip(lanes, more, strict=True)))
    assert {(rank, seq) for rank, seq in after if seq < len(lanes[rank])} <= before
