"""gloo's rule: which of the calls issued so far can never complete. tests.proofs compares it with
emulated runs."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinlab.backend.calls import Blocker, IssuedCall, RuleContext, by_group, call_of
from joinlab.gloo import messages
from joinlab.gloo.network import Network, advance
from joinlab.gloo.rule import _RulePart, blocked

ROOTED = {"broadcast", "gather", "scatter", "reduce"}
EXACT = ["all_reduce", "all_gather", "all_to_all", "barrier", "broadcast", "gather", "scatter"]


def calls_of(lanes: list[list[tuple[str, int]]]) -> list[IssuedCall]:
    return [
        IssuedCall(rank, "0", k, op, None if op == "barrier" else "float32", None if op == "barrier" else [[1]],
             root=root if op in ROOTED else None)
        for rank, lane in enumerate(lanes) for k, (op, root) in enumerate(lane)
    ]  # fmt: skip


def stuck(lanes: list[list[tuple[str, int]]], gone: tuple[int, ...] = ()) -> set[tuple[int, int]]:
    return set(blocked(by_group(calls_of(lanes), {"0": range(len(lanes))})["0"], gone))


@st.composite
def programs(draw, ops=tuple(EXACT)):
    """Lanes of the ranks: mostly the same calls, some changed, some cut short."""
    size = draw(st.integers(2, 6))
    what = st.tuples(st.sampled_from(ops), st.integers(0, size - 1))
    common = draw(st.lists(what, max_size=4))
    lanes = []
    for _ in range(size):
        lane = common[: draw(st.integers(0, len(common)))] if draw(st.booleans()) else list(common)
        if lane and draw(st.integers(0, 3)) == 0:
            lane[draw(st.integers(0, len(lane) - 1))] = draw(what)
        lanes.append(lane)
    return lanes


MESSAGES = {
    "all_reduce": lambda me, size, nbytes: messages.all_reduce(me, size, nbytes, 4),
    "reduce": lambda me, size, nbytes: messages.reduce(me, size, 1, nbytes, 4),
    "broadcast": lambda me, size, nbytes: messages.broadcast(me, size, 1, nbytes),
    "gather": lambda me, size, nbytes: messages.gather(me, size, 1, nbytes),
    "scatter": lambda me, size, nbytes: messages.scatter(me, size, 1, [nbytes] * size),
    "all_gather": messages.all_gather,
    "all_to_all": lambda me, size, nbytes: messages.all_to_all(
        me, size, [nbytes] * size, [nbytes] * size
    ),
    "barrier": lambda me, size, nbytes: messages.barrier(me, size),
}


@pytest.mark.parametrize(
    ("op", "size", "nbytes"), list(product(MESSAGES, [2, 3, 4, 5, 8], [4, 40, 3 * 2**20]))
)
def test_the_messages_of_ranks_that_agree_all_meet(op, size, nbytes):
    network = Network(size)
    parts = [_RulePart(network, me, MESSAGES[op](me, size, nbytes), size) for me in range(size)]
    for _ in range(size * 100):
        if all(list(map(advance, parts))):
            break
    assert [part.waits_on for part in parts] == [None] * size
    assert list(network.unanswered()) == network.aborts() == []


@given(programs(ops=(*EXACT, "reduce")), st.data())
def test_further_calls_never_block_what_was_free(lanes, data):
    rank = data.draw(st.integers(0, len(lanes) - 1))
    extra = data.draw(st.tuples(st.sampled_from(EXACT), st.integers(0, len(lanes) - 1)))
    longer = [[*lane, extra] if index == rank else lane for index, lane in enumerate(lanes)]
    known = {(index, k) for index, lane in enumerate(lanes) for k in range(len(lane))}
    assert stuck(longer) & known <= stuck(lanes)


def test_blockers_name_the_call_that_stands_in_the_place():
    group = by_group(calls_of([[("all_reduce", 0)], [("barrier", 0)], []]), {"0": range(3)})["0"]
    assert blocked(group)[0, 0] == (Blocker(1, 0), Blocker(2, None))


def test_a_barrier_waits_behind_its_own_rank_s_call():
    lanes = [[("broadcast", 1), ("barrier", 0)], [("broadcast", 0), ("barrier", 0)]]
    group = by_group(calls_of(lanes), {"0": range(2)})["0"]
    assert blocked(group)[0, 1] == (Blocker(0, 0),)


def test_who_waits_for_a_process_that_ended_gets_an_error_and_does_not_hang():
    assert stuck([[("all_reduce", 0)], []], gone=(1,)) == set()
    assert stuck([[("broadcast", 1)], [("broadcast", 0)], []], gone=(2,)) == {(0, 0), (1, 0)}


def sized(op: str, *counts: int, size: int = 0, dtype: str = "float32") -> set[int]:
    """The blocked ranks of one collective (its root is 0), of which rank r has counts[r]
    elements."""
    root = 0 if op in ROOTED else None
    calls = [
        IssuedCall(rank, "0", 0, op, dtype, [[count]], root=root)
        for rank, count in enumerate(counts)
    ]
    return {rank for rank, _ in blocked(by_group(calls, {"0": range(size or len(counts))})["0"])}


def test_where_sizes_differ_the_messages_decide():
    """As measured: one element beside two waits for ever; beside eight, the receiver of too much
    aborts."""
    assert sized("all_reduce", 1, 2) == {0, 1}
    assert sized("all_reduce", 1, 8) == set()
    assert sized("all_reduce", 1, 2, size=3) == {0, 1}
    assert sized("broadcast", 1, 2) == set()  # it fills the first
    assert sized("broadcast", 2, 1) == set()  # rank 1 aborts
    assert sized("gather", 3, 1, 1) == set()
    assert sized("all_reduce", 1, 2, dtype="int16") == set()  # which gloo refuses to send
    assert sized("all_reduce", 1, 2, dtype="sparse float32") == set()  # its sizes are not recorded


def test_a_small_reduce_leaves_ranks_out():
    """One element is one chunk: rank 2 only sends it to rank 1, and the root has it from there."""
    assert sized("reduce", 1, 1, 1) == set()
    calls = [IssuedCall(rank, "0", 0, "reduce", "float32", [[1]], root=0) for rank in (1, 2)]
    assert {rank for rank, _ in blocked(by_group(calls, {"0": range(3)})["0"])} == {1}


def test_who_has_no_message_to_a_rank_that_has_ended_hangs():
    """Of two elements on 4 ranks, rank 3 only sends at first, to rank 2; nothing goes over from
    rank 0 to it."""
    calls = [IssuedCall(3, "0", 0, "all_reduce", "float32", [[2]])]
    group = by_group(calls, {"0": range(4)})["0"]
    assert {rank for rank, _ in blocked(group, gone=(2,))} == set()
    assert {rank for rank, _ in blocked(group, gone=(0,))} == {3}


def test_behind_as_many_stuck_calls_as_it_has_threads_a_rank_begins_no_other():
    wait, other = ("gather", 0), ("broadcast", 0)
    lanes = [[wait, wait, other], [("barrier", 0)] * 2 + [other]]
    group = by_group(calls_of(lanes), {"0": (0, 1)})["0"]
    assert set(blocked(group)) == {(0, 0), (0, 1), (1, 0), (1, 1)}
    group = by_group(calls_of(lanes), {"0": (0, 1)}, RuleContext(threads=2))["0"]
    assert set(blocked(group)) == {(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)}
    assert (blocked(group)[0, 2], blocked(group)[1, 2]) == ((Blocker(0, 0),), (Blocker(1, 0),))


def test_a_call_that_a_thread_refused_has_used_up_its_number():
    row = {
        "rank": 0,
        "group": "0",
        "seq": 0,
        "op": "all_reduce",
        "error": "RuntimeError: Invalid scalar type",
    }
    calls = [call_of(row), *(IssuedCall(rank, "0", rank == 0, "barrier") for rank in (0, 1))]
    assert set(blocked(by_group(calls, {"0": (0, 1)})["0"])) == {(0, 1), (1, 0)}
    calls.append(IssuedCall(1, "0", 1, "barrier"))
    assert (0, 1) in blocked(by_group(calls, {"0": (0, 1)})["0"])


def test_a_call_whose_own_refusal_may_be_on_its_way_is_not_blocked():
    """Rank 1 may have had the error of its call, and wait in its next one, a moment before rank
    0."""
    shorts = [
        IssuedCall(rank, "0", 0, "all_reduce", "int16", [[2 + rank]], "sum") for rank in (0, 1)
    ]
    refused = shorts[1]._replace(failed=True, void=True)
    then = IssuedCall(1, "0", 1, "all_reduce", "int32", [[2]], "sum")
    assert set(blocked(by_group([shorts[0], refused, then], {"0": (0, 1)})["0"])) == {(1, 1)}
    other = shorts[0]._replace(dtype="int32")  # which no thread refuses: it waits for ever
    assert (0, 0) in blocked(by_group([other, refused, then], {"0": (0, 1)})["0"])


def test_an_empty_all_reduce_waits_for_nobody():
    assert (
        blocked(
            by_group([IssuedCall(0, "0", 0, "all_reduce", "float32", [[0]])], {"0": (0, 1)})["0"]
        )
        == {}
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"op": "reduce_scatter"}, {"op": "all_reduce"}),  # to gloo they are the same
        # the root that was not recorded may be the right one
        (
            {"op": "broadcast", "root": 1},
            {"op": "broadcast"},
        ),
    ],
)
def test_calls_that_may_meet_are_not_blocked(one, other):
    calls = [
        IssuedCall(rank, "0", 0, dtype="float32", shape=[[2]], **columns)
        for rank, columns in ((0, one), (1, other))
    ]
    assert blocked(by_group(calls, {"0": (0, 1)})["0"]) == {}


def test_a_reduce_scatter_of_several_tensors_takes_a_number_for_each():
    """Launched on two ranks, these all complete: an all_gather behind a list of two, and behind two
    all-reduces."""
    parts = [
        IssuedCall(0, "0", 0, "reduce_scatter", "float32", [[1], [1]]),
        IssuedCall(0, "0", 1, "all_gather"),
    ]
    sums = [IssuedCall(1, "0", seq, "all_reduce", "float32", [[1]]) for seq in (0, 1)]
    last = IssuedCall(1, "0", 2, "all_gather")
    assert blocked(by_group([*parts, *sums, last], {"0": (0, 1)})["0"]) == {}
    one_short = blocked(by_group([*parts, sums[0], last._replace(seq=1)], {"0": (0, 1)})["0"])
    assert set(one_short) == {(0, 0), (0, 1), (1, 1)}
    unknown = [parts[0]._replace(shape=None), parts[1]]  # of how many tensors?
    assert blocked(by_group(unknown, {"0": (0, 1)})["0"]) == {}


def pair(rank: int, seq: int, op: str, peer: int | None, tag: int = 0, **rest) -> IssuedCall:
    return IssuedCall(rank, "0", seq, op, "float32", [[1]], peer=peer, tag=tag, **rest)


def test_sends_and_recvs_meet_by_pair_and_tag():
    def free(*calls: IssuedCall, gone: tuple[int, ...] = ()) -> set[tuple[int, int]]:
        return {(call.rank, call.seq) for call in calls} - set(
            blocked(by_group(calls, {"0": (0, 1, 2)})["0"], gone)
        )

    assert free(pair(0, 0, "send", 1), pair(1, 0, "recv", 0)) == {(0, 0), (1, 0)}
    assert free(pair(0, 0, "send", 1, tag=1), pair(1, 0, "recv", 0, tag=2)) == set()
    assert free(pair(0, 0, "send", 1), pair(0, 1, "send", 1), pair(1, 0, "recv", 0)) == {
        (0, 0),
        (1, 0),
    }
    assert free(pair(0, 0, "send", 1), pair(1, 0, "recv", None)) == {(0, 0), (1, 0)}
    assert free(pair(1, 0, "recv", None)) == set()
    assert free(pair(1, 0, "recv", None), gone=(2,)) == {(1, 0)}
    assert free(pair(1, 0, "recv", 0), gone=(0,)) == {(1, 0)}
    assert free(pair(1, 0, "recv", 0), gone=(2,)) == set()


def test_a_completed_call_that_the_rule_calls_stuck_silences_the_rule():
    ones = [
        IssuedCall(0, "0", 0, "all_reduce", "float32", [[1]]),
        IssuedCall(0, "0", 1, "all_reduce", "float32", [[1]], completed=True),
    ]
    assert blocked(by_group(ones, {"0": (0, 1)})["0"]) == {}
    assert blocked(by_group([pair(1, 0, "recv", 0, completed=True)], {"0": (0, 1)})["0"]) == {}


def test_an_average_of_integers_fails_after_its_data_has_moved():
    """A barrier behind it fails with the same words, and has sent nothing."""
    error = "RuntimeError: result type Float can't be cast to the desired output type Int"
    rows = [
        {"rank": rank, "group": "0", "seq": 0, "op": "reduce", "error": error, "root": 0}
        for rank in (0, 1)
    ]
    last = [IssuedCall(0, "0", 1, "all_gather"), IssuedCall(1, "0", 1, "broadcast", root=1)]
    assert set(blocked(by_group([*map(call_of, rows), *last], {"0": (0, 1)})["0"])) == {
        (0, 1),
        (1, 1),
    }
    barrier = call_of({"rank": 1, "group": "0", "seq": 1, "op": "barrier", "error": error})
    assert blocked(by_group([*map(call_of, rows), last[0], barrier], {"0": (0, 1)})["0"]) == {}


def test_a_failed_call_silences_the_rule():
    failed = [
        IssuedCall(0, "0", 0, "all_reduce", "float32", [[1]], failed=True),
        IssuedCall(0, "0", 1, "barrier"),
    ]
    assert blocked(by_group(failed, {"0": (0, 1)})["0"]) == {}
