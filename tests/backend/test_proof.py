"""The proof of a hang: never where a rank could still go on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinlab import diagnose, emulate
from joinlab.backend.calls import Blocker, IssuedCall, RuleContext, call_of
from joinlab.cases import DOCUMENTED
from joinlab.proof import BlockedThread, Proof, blocked_calls, prove
from joinlab.timeline import EndKind
from tests.proofs import judge, runs
from tests.timelines import SIZES, case_timeline

BACKENDS = ("gloo", "nccl")
OPS = [
    "all_reduce",
    "all_gather",
    "all_to_all",
    "barrier",
    "broadcast",
    "gather",
    "scatter",
    "reduce",
    "pair",
]


def ar(rank: int, seq: int, group: str = "0", **rest) -> IssuedCall:
    return IssuedCall(rank, group, seq, "all_reduce", "float32", [[1]], "sum", **rest)


def waits(*places: tuple[int, int]) -> list[BlockedThread]:
    return [BlockedThread(rank, (("0", seq),)) for rank, seq in places]


@st.composite
def same_programs(draw):
    """One program that all ranks run, over overlapping groups, and how far each rank has come in
    it."""
    size = draw(st.integers(2, 5))
    groups = {"0": tuple(range(size))}
    for name in ("a", "b"):
        groups[name] = tuple(draw(st.permutations(range(size)))[: draw(st.integers(1, size))])
    program = []
    for _ in range(draw(st.integers(1, 8))):
        name = draw(st.sampled_from(sorted(groups)))
        members = draw(st.permutations(groups[name]))
        op = draw(st.sampled_from(OPS))
        if op != "pair" or len(members) > 1:
            program.append(
                (
                    name,
                    op,
                    members,
                    draw(st.sampled_from([0, 1, 2, 3, 500])),
                    draw(st.integers(0, 1)),
                )
            )
    came = [draw(st.integers(0, len(program))) for _ in range(size)]
    return groups, program, came


def issue(groups, program, came) -> tuple[list[IssuedCall], list[list[tuple[str, int]]]]:
    calls, last = [], []
    for rank, far in enumerate(came):
        seqs = dict.fromkeys(groups, 0)
        mine = []
        for name, op, members, count, tag in program[:far]:
            if rank not in (members[:2] if op == "pair" else groups[name]):
                continue
            columns = {
                "root": members[0] if op in ("broadcast", "gather", "scatter", "reduce") else None
            }
            if op == "pair":
                is_send = rank == members[0]
                columns = {"peer": members[1] if is_send else members[0], "tag": tag}
                op = "send" if is_send else "recv"
            calls.append(IssuedCall(rank, name, seqs[name], op, "float32", [[count]], **columns))
            mine.append((name, seqs[name]))
            seqs[name] += 1
        last.append(mine)
    return calls, last


@pytest.mark.parametrize("backend", BACKENDS)
@given(same_programs(), st.data())
def test_ranks_that_run_the_same_program_are_never_proven_to_hang(backend, made, data):
    """In every state, the first awaited call of the program has been issued by every rank that it
    needs."""
    groups, program, came = made
    calls, issued = issue(groups, program, came)
    waiting = [BlockedThread(rank, (mine[-1],)) for rank, mine in enumerate(issued) if mine]
    gone = {rank for rank, mine in enumerate(issued) if not mine and came[rank] == len(program)}
    assert prove(calls, groups, backend, waiting, gone) is None


@pytest.mark.parametrize("backend", BACKENDS)
@given(st.integers(2, 5), st.integers(0, 4), st.data())
def test_the_missing_call_destroys_the_proof(backend, size, common, data):
    late = data.draw(st.integers(0, size - 1))
    other = (late + 1) % size
    groups = {"0": range(size), "1": (other, late)}
    calls = [ar(rank, seq) for rank in range(size) for seq in range(common + (rank != late))]
    calls.append(ar(late, 0, "1"))  # it waits in another group, for a rank that waits for it
    stuck = [
        BlockedThread(rank, (("1", 0) if rank == late else ("0", common),)) for rank in range(size)
    ]
    proof = prove(calls, groups, backend, stuck)
    assert [blocker.rank for blocker in proof.of(other).because] == [late]
    assert [blocker.rank for blocker in proof.of(late).because] == [other]
    assert prove([*calls, ar(late, common)], groups, backend, stuck) is None
    assert prove([*calls, ar(other, 0, "1")], groups, backend, stuck) is None


def test_who_still_runs_prevents_a_proof():
    calls = [ar(0, 0), ar(1, 0)]
    groups = {"0": (0, 1, 2)}
    assert prove(calls, groups, "nccl", waits((0, 0), (1, 0))) is None  # rank 2 does not wait
    assert prove(calls, groups, "nccl", waits((0, 0), (1, 0)), gone={2}) is not None
    assert prove(calls, groups, "nccl", [*waits((0, 0), (1, 0)), BlockedThread(2, ())]) is None
    assert prove(calls, groups, "nccl", []) is None


def test_every_thread_of_a_rank_must_be_stuck():
    calls = [ar(0, 0), ar(1, 0), ar(0, 1)]
    assert prove(calls, {"0": (0, 1)}, "nccl", waits((0, 1)), gone={1}) is not None
    assert prove(calls, {"0": (0, 1)}, "nccl", waits((0, 1), (0, 0)), gone={1}) is None


def test_a_wait_is_stuck_if_one_of_its_calls_is():
    calls = [ar(0, 0), ar(1, 0), ar(0, 1)]
    proof = prove(calls, {"0": (0, 1)}, "nccl", [BlockedThread(0, (("0", 0), ("0", 1)))], gone={1})
    assert proof.of(0).seq == 1
    assert proof.of(1) is None


def test_unknown_facts_prove_nothing():
    calls, stuck = [ar(0, 0), IssuedCall(1, "0", 0, "barrier")], waits((0, 0), (1, 0))
    assert isinstance(prove(calls, {"0": (0, 1)}, "gloo", stuck), Proof)
    assert prove(calls, {"0": (0, 1)}, "mpi", stuck) is None  # a backend without a rule
    assert prove(calls, {"other": (0, 1)}, "gloo", stuck) is None  # a group that was not named
    # a rank that is not in the group
    assert prove([*calls, ar(7, 0)], {"0": (0, 1)}, "gloo", stuck) is None
    # a wait for no recorded call
    assert prove(calls, {"0": (0, 1)}, "gloo", waits((0, 0), (1, 5))) is None


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("case", DOCUMENTED)
@pytest.mark.parametrize(
    ("backend", "era"), [("gloo", "today"), ("nccl", "today"), ("nccl", "1.9")]
)
def test_the_six_cases_are_proven_where_they_hang_and_nowhere_else(case, n, backend, era):
    timeline = case_timeline(case, n, backend, era)
    rows = timeline.calls.rows(named=True)
    groups = timeline.meta["groups"]
    hung = {rank: end for rank, end in enumerate(timeline.ends) if end.kind is EndKind.HUNG}
    gone = set(range(2)) - hung.keys()
    proof = prove(
        rows, groups, backend, waits(*((rank, end.call) for rank, end in hung.items())), gone
    )
    assert (proof is None) == (not hung)
    calls = [call_of(row)._replace(completed=False) for row in rows]
    for k in range(
        min((end.call for end in hung.values()), default=max(call.seq for call in calls))
    ):
        common = [call for call in calls if call.seq <= k]
        if {(call.rank, call.seq) for call in common} >= {(0, k), (1, k)}:
            reached = prove(common, groups, backend, waits((0, k), (1, k)))
            assert reached is None, f"both ranks did get past call {k}"


def test_over_sockets_a_peer_that_has_ended_is_an_error_of_nccl_and_no_hang() -> None:
    calls, alone = [ar(0, 0), ar(1, 0), ar(1, 1)], waits((1, 1))
    assert prove(calls, {"0": [0, 1]}, "nccl", alone, gone={0}) is not None
    assert (
        prove(
            calls, {"0": [0, 1]}, "nccl", alone, gone={0}, setting=RuleContext(transport="sockets")
        )
        is None
    )


@pytest.mark.parametrize(("backend", "least"), [("gloo", [0.9]), ("nccl", [1, 0.8, 0.8])])
def test_random_programs_are_proven_from_what_is_recorded_and_never_wrongly(backend, least):
    """Ranks that the emulation shows to hang are mostly proven to; `python -m tests.proofs` says
    why others are not.

    Without being told which calls completed, the rules claim of none that did that it cannot, which
    test_network.py asks of lists of calls.
    """
    for found, share in zip(zip(*runs(backend, range(30)), strict=True), least, strict=True):
        assert [(one.seed, one.false) for one in found if one.false] == []
        hung, proven = sum(one.hung for one in found), sum(one.proven for one in found)
        assert hung > 20 and proven >= share * hung


CROSSED = [ar(0, 0, "a"), ar(0, 0, "b"), ar(1, 0, "b")]
"""Rank 1 never calls in a. Rank 0 has made its stream wait for its call there before it called in
b, or it has not."""
TWO = {"a": (0, 1), "b": (0, 1)}


def test_a_stream_that_waits_for_a_stuck_call_holds_up_every_later_call_of_its_rank():
    behind = RuleContext(streamed={(0, "b", 0): [(0, "a", 0)]})
    assert blocked_calls(CROSSED, TWO, "nccl") == {"a": {(0, 0): (Blocker(1, None),)}, "b": {}}
    held = blocked_calls(CROSSED, TWO, "nccl", setting=behind)
    assert held["b"] == {(0, 0): (Blocker(0, 0, "a"),), (1, 0): (Blocker(0, 0, "a"),)}
    standing = [BlockedThread(0, (("a", 0), ("b", 0))), BlockedThread(1, (("b", 0),))]
    assert prove(CROSSED, TWO, "nccl", standing) is None
    assert prove(CROSSED, TWO, "nccl", standing, setting=behind) is not None
    # it does call there
    assert prove([*CROSSED, ar(1, 1, "a")], TWO, "nccl", standing, setting=behind) is None
    assert blocked_calls(CROSSED, TWO, "gloo", setting=behind)["b"] == {}  # gloo has no streams
    apart = RuleContext(streamed=behind.streamed, backends={"b": "gloo"})
    assert blocked_calls(CROSSED, TWO, "nccl", setting=apart)["b"] == {}


def test_a_call_that_completed_behind_a_stuck_one_ran_on_another_stream():
    behind = RuleContext(streamed={(0, "b", 0): [(0, "a", 0)]})
    overtook = [CROSSED[0], CROSSED[1]._replace(completed=True), CROSSED[2]]
    assert blocked_calls(overtook, TWO, "nccl", setting=behind)["b"] == {}


def test_a_held_call_still_makes_its_communicator():
    """Hosts make it, and rank 0's does; rank 2 sees a broadcast of rank 1, for which rank 0 is not
    needed."""
    behind = RuleContext(streamed={(0, "b", 0): [(0, "a", 0)]})
    sent = [IssuedCall(rank, "b", 0, "broadcast", "float32", [[1]], root=1) for rank in (0, 1, 2)]
    found = blocked_calls(
        [ar(0, 0, "a"), *sent], {"a": (0, 1), "b": (0, 1, 2)}, "nccl", setting=behind
    )
    assert found["b"] == {(0, 0): (Blocker(0, 0, "a"),)}


def test_an_emulation_says_what_a_stuck_stream_holds_up():
    def program(rank, inputs):
        import torch
        import torch.distributed as dist

        a, b = dist.new_group([0, 1]), dist.new_group([0, 1])
        for _ in range(2 - rank):  # the first one makes the communicator
            dist.all_reduce(torch.ones(1), group=a)
        value = torch.ones(1)
        dist.all_reduce(value, group=b)
        value.item()

    timeline = emulate(program, (1, 1))
    assert timeline.meta["stream_waits"] == [[0, "1", 1, "2", 0]]
    assert judge(timeline).proven == 2
    said = [diagnose(timeline).ending(rank) for rank in (0, 1)]
    assert "rank 0 waits in" in said[1] and "call 2 of group 1" in said[1]


def test_a_host_inside_a_first_call_goes_on_once_all_ranks_have_come() -> None:
    """NCCL connects ranks inside the call: both below never complete, but their hosts go on."""
    calls = [
        IssuedCall(0, "0", 0, "all_reduce", "float32", [[1]], "sum"),
        IssuedCall(1, "0", 0, "broadcast", "float32", [[1]], root=0),
    ]
    waits = [BlockedThread(rank, (("0", 0),), inside=True) for rank in range(2)]
    assert prove(calls, {"0": [0, 1]}, "nccl", waits) is None
    for_them = [BlockedThread(rank, (("0", 0),)) for rank in range(2)]
    assert prove(calls, {"0": [0, 1]}, "nccl", for_them) is not None
    groups = {"0": [0, 1], "1": [0, 1]}
    apart = [calls[0], IssuedCall(1, "1", 0, "all_reduce", "float32", [[1]], "sum")]
    alone = [BlockedThread(0, (("0", 0),), inside=True), BlockedThread(1, (("1", 0),), inside=True)]
    assert prove(apart, groups, "nccl", alone) is not None
