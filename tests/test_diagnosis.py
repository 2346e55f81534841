"""What the diagnosis says: true, in plain words, and never more than is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from timelines import SIZES, Writer, case_timeline

import joinlab
from joinlab.analysis.diagnosis import diagnose
from joinlab.analysis.matching import Matched
from joinlab.analysis.reasons import Reasons
from joinlab.analysis.wording import good
from joinlab.cases import DOCUMENTED
from joinlab.timeline import RUNNING, Ending, EndKind, timeline_from_rows

DONE = Ending(EndKind.FINISHED)


def hung(seq: int | None, text: str = "", proven: bool = True, group: str | None = "0") -> Ending:
    return Ending(EndKind.HUNG, call=seq, group=None if seq is None else group, proven=proven, text=text)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("case", DOCUMENTED)
@pytest.mark.parametrize(("backend", "era"), [("gloo", "today"), ("nccl", "today"), ("nccl", "1.9")])
def test_the_six_cases(case, n, backend, era):
    timeline = case_timeline(case, n, backend, era)
    told = diagnose(timeline)
    assert "Proven when" not in str(told)  # the calls alone prove it again
    assert [one.ending for one in told.ranks] == list(timeline.ends)
    for one in told.ranks:
        assert one.sentence.startswith(f"Rank {one.rank} ")
        if one.ending.call is not None:
            cited = [(call.rank, call.seq) for call in one.evidence]
            assert (one.rank, one.ending.call) in cited
            assert f", call {one.ending.call} (train.py:" in one.sentence
    fine = told.sentence == "Both ranks finished; every call met its partner."
    assert fine == (case in (1, 6))
    assert str(told).startswith(told.sentence) and sum(len(fate.ranks) for fate in told.verdict.fates) == 2


def test_case_4_on_gloo_names_both_calls():
    told = diagnose(case_timeline(4, 2))
    assert str(told).splitlines() == [
        'Rank 0 called "anyone left?", where rank 1 called barrier.',
        "  1. Call 14: rank 0's \"anyone left?\" (train.py:28) can never meet rank 1's barrier (train.py:33): on gloo "
        "calls of different kinds never meet.",
        '  Rank 0 hangs in "anyone left?", call 14 (train.py:28). Proven: no issued call can end this wait.',
        "  Rank 1 hangs in barrier, call 14 (train.py:33). Proven: no issued call can end this wait.",
        f"  Do: {told.verdict.advice}",
    ]
    assert told.ranks[1].sentence == (
        'Rank 1 hangs in barrier, call 14 (train.py:33): rank 0 issued "anyone left?" (train.py:28) instead, and '
        "on gloo calls of different kinds never meet. Proven: no issued call can end this wait."
    )
    assert [(one.rank, one.seq, one.call_site) for one in told.ranks[1].evidence] == [
        (1, 14, "train.py:33"),
        (0, 14, "train.py:28"),
    ]


def test_case_4_on_nccl_says_what_each_took_the_value_to_mean():
    told = diagnose(case_timeline(4, 2, "nccl"))
    assert told.ranks[0].sentence == "Rank 0 finished: its program returned."
    assert (0, 14) in [(one.rank, one.seq) for one in told.ranks[0].evidence]  # the call that crossed
    assert "rank 0 read 0 and concluded that all ranks have joined; rank 1 discarded" in str(told).replace(
        "Rank", "rank"
    )
    assert 'hangs in "who is last?", call 16 (train.py:28)' in told.ranks[1].sentence


def test_case_2_on_nccl_leaves_a_call_behind():
    told = diagnose(case_timeline(2, 2, "nccl")).ranks[1]
    assert told.verdict == "finished, with a call still pending"
    assert told.sentence == (
        "Rank 1 finished, but left backward, call 5 (train.py:32) pending: rank 0 has finished, and issued no call to "
        "meet it. Its program returned without having waited for it."
    )


def test_case_3_on_gloo_is_an_error_because_the_peer_is_gone():
    told = diagnose(case_timeline(3, 2))
    assert told.ranks[1].sentence == (
        "Rank 1 raised an error in backward, call 7 (train.py:32), because rank 0 has finished without a call to meet "
        "it; on gloo a process that ends closes its connections, and whoever waits for it gets an error: RuntimeError: "
        "[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4711."
    )
    assert told.verdict.fates[0].text == (
        "Rank 1 raised an error in backward, call 7 (train.py:32): on gloo a process that ends closes its connections."
    )


def test_case_3_on_nccl_hangs_behind_its_own_call():
    assert (
        "Rank 1 hangs in barrier, call 8 (train.py:33), behind its own backward, call 7 (train.py:32): rank 0 has "
        "finished, and issued no call to meet it."
    ) in diagnose(case_timeline(3, 2, "nccl")).ranks[1].sentence


def test_what_never_completed_has_given_no_value():
    told = diagnose(case_timeline(5, 1, "nccl"))
    assert "discarded" not in str(told)
    assert "instead. Proven" in told.ranks[0].sentence


def test_the_minority_is_named_only_where_there_is_one():
    writer = Writer(5)
    for rank in range(5):
        writer.call(rank, "barrier" if rank == 3 else "all_reduce", done=False)
    told = diagnose(writer.timeline([hung(0)] * 5))
    assert told.verdict.odd == (3,)
    assert "ranks 0-2, 4 issued all-reduce instead" in told.ranks[3].sentence
    even = Writer(4)
    for rank in range(4):
        even.call(rank, "barrier" if rank > 1 else "all_reduce", done=False)
    assert diagnose(even.timeline([hung(0)] * 4)).verdict.odd == ()


def test_a_rank_that_waits_for_one_that_waits_elsewhere():
    writer = Writer(3, groups={"0": [0, 1, 2], "pair": [0, 1]})
    for rank in (1, 2):
        writer.call(rank, "all_reduce", done=False, line=7)
    writer.call(0, "all_reduce", group="pair", done=False, line=9)
    told = diagnose(writer.timeline([hung(0, group="pair"), hung(0), hung(0)]))
    assert [one.proven for one in told.ranks] == [True, True, True]
    assert (
        "Rank 1 hangs in all-reduce, call 0 of group 0 (train.py:7): rank 0 waits in all-reduce, call 0 of group pair "
        "(train.py:9), and issued no call to meet it."
    ) in told.ranks[1].sentence


def test_a_hang_that_was_only_suspected_stays_so():
    writer = Writer()
    for rank in (0, 1):
        writer.call(rank, "all_reduce", shape=[[7 * rank + 1]], done=False)  # one would abort
    told = diagnose(writer.timeline([hung(0, "nothing happened for 30 s", proven=False)] * 2))
    assert [one.proven for one in told.ranks] == [False, False]
    assert [one.verdict for one in told.ranks] == ["hung (suspected)"] * 2
    assert "in its place rank 1 issued all-reduce, call 0 (train.py:11); they differ in shape" in told.ranks[0].sentence
    assert told.ranks[0].sentence.endswith("A hang is only suspected: nothing happened for 30 s.")


def test_a_proof_that_the_calls_alone_do_not_give_again_is_left_to_who_recorded_it():
    writer = Writer()
    for rank in (0, 1):
        writer.call(rank, "all_reduce", done=False)
    told = diagnose(writer.timeline([hung(0), hung(0)]))
    assert [(one.proven, one.verdict) for one in told.ranks] == [(True, "hung (proven)")] * 2
    assert [fate.text for fate in told.verdict.fates] == [
        "Ranks 0, 1 hang in all-reduce, call 0 (train.py:11). Proven when it was recorded."
    ]


def test_a_rank_that_still_runs_in_one_thread_is_not_proven_to_hang():
    writer = Writer()
    writer.call(0, "all_reduce", done=False)
    writer.call(1, "barrier", done=False)
    writer.call(0, "send", peer=1, tag=1, done=False)
    writer.call(1, "recv", peer=0, tag=1, done=False)  # these two can still meet
    reasons = Reasons(Matched(writer.timeline([hung(0), hung(0)])))
    assert [reasons.proven_again(rank) for rank in (0, 1)] == [False, False]


def test_ranks_that_are_still_running_have_done_nothing_wrong():
    writer = Writer()
    for rank in (0, 1):
        writer.call(rank, "all_reduce")
    told = diagnose(writer.timeline([Ending("unknown", text=RUNNING)] * 2)).verdict
    assert told.headline == "Ranks 0, 1 are still running; every call fits its partner so far."
    assert told.steps == ("Ranks 0, 1 are still running, last seen after all-reduce, call 0 (train.py:11).",)
    assert [(one.text, good(one.ending)) for one in told.endings] == [("ranks 0, 1 are still running", True)]


def test_a_rank_that_loops_for_ever_waits_in_no_call():
    writer = Writer()
    writer.call(0, "all_reduce", done=False)
    told = diagnose(
        writer.timeline([hung(0, "nothing happened for 5 s", False), hung(None, "nothing happened for 5 s", False)])
    )
    assert told.ranks[1].sentence == (
        "Rank 1 makes no progress outside any recorded call. A hang is only suspected: nothing happened for 5 s."
    )
    assert "rank 1 makes no progress outside any recorded call, and issued no call to meet it" in told.ranks[0].sentence
    writer.call(1, "barrier")
    told = diagnose(writer.timeline([hung(0, "-", False), Ending("killed", text="ended by joinlab: out of time")]))
    assert told.ranks[1].sentence == (
        "Rank 1 was ended by joinlab: out of time, last seen after barrier, call 0 (train.py:11)."
    )


def test_a_program_s_own_exception():
    writer = Writer()
    writer.call(1, "all_reduce", done=False, error="RuntimeError: Connection reset by peer")
    ends = [
        Ending(EndKind.RAISED, text="ValueError: bad <batch>\nTraceback ..."),
        Ending(EndKind.RAISED, call=0, group="0", text="RuntimeError: Connection reset by peer"),
    ]
    told = diagnose(writer.timeline(ends))
    assert told.ranks[0].sentence == "Rank 0 raised ValueError: bad <batch>."
    assert "because rank 0 has raised an error without a call to meet it" in told.ranks[1].sentence
    assert "bad &lt;batch&gt;" in told._repr_html_()
    assert "<batch>" not in told._repr_html_() + told._repr_markdown_()


def test_an_exception_in_a_call_that_is_not_about_a_peer():
    writer = Writer()
    writer.call(0, "broadcast", root=0, error="ValueError: root out of range", done=False)
    ends = [Ending(EndKind.RAISED, call=0, group="0", text="ValueError: root out of range"), DONE]
    assert diagnose(writer.timeline(ends)).ranks[0].sentence == (
        "Rank 0 raised ValueError: root out of range, in broadcast, call 0 (train.py:11): "
        "rank 1 has finished, and issued no call in its place."
    )


def test_an_abort_of_gloo_is_explained_by_what_the_calls_differ_in():
    writer = Writer()
    writer.call(0, "all_reduce", done=False)
    writer.call(1, "all_reduce", dtype="int64", done=False, error="RuntimeError: Connection reset by peer")
    ends = [
        Ending(EndKind.KILLED, call=0, group="0", text="its process was killed by SIGABRT"),
        Ending(EndKind.RAISED, call=0, group="0", text="RuntimeError: Connection reset by peer"),
    ]
    told = diagnose(writer.timeline(ends))
    assert "killed by SIGABRT" in told.ranks[0].sentence
    assert "they differ in dtype. Gloo aborts a process that is sent more bytes" in told.ranks[0].sentence
    assert "because rank 0 was killed;" in told.ranks[1].sentence


def test_long_messages_are_cut():
    ends = [Ending(EndKind.RAISED, text="x" * 999), Ending(EndKind.RAISED, text="boom. This is typically caused by")]
    told = diagnose(Writer().timeline(ends))
    assert told.ranks[0].sentence == f"Rank 0 raised {'x' * 240} (cut)."
    assert told.ranks[1].sentence == "Rank 1 raised boom."


def test_killed_outside_any_call():
    told = diagnose(Writer().timeline([DONE, Ending(EndKind.KILLED, text="its process was killed by SIGKILL")]))
    assert [(fate.who, fate.ended) for fate in told.verdict.fates] == [("rank 1", "killed"), ("rank 0", "finished")]
    assert told.ranks[1].sentence == "Rank 1 was ended: its process was killed by SIGKILL."


def test_a_send_without_its_recv():
    writer = Writer()
    writer.call(0, "send", peer=1, done=False)
    writer.call(1, "send", peer=0, done=False)
    told = diagnose(writer.timeline([hung(0), hung(0)]))
    assert (
        "Rank 0 hangs in send, call 0 (train.py:11): rank 1 waits in send, call 0 (train.py:11), and issued no recv to "
        "meet it."
    ) in told.ranks[0].sentence


def test_broadcasts_with_two_roots():
    writer = Writer()
    for rank in (0, 1):
        writer.call(rank, "broadcast", root=1 - rank, done=False)
    told = diagnose(writer.timeline([hung(0), hung(0)])).ranks[0]
    assert "with root 0 where rank 0 has root 1" in told.sentence
    assert told.proven


def test_values_that_crossed_on_three_ranks_are_told_once():
    writer = Writer(3, "nccl")
    for rank in range(3):
        origin = "all-reduce (barrier)" if rank else "all-reduce (join() _get_num_nonjoined_procs())"
        writer.call(rank, "all_reduce", origin, values=([0.0], [0.0]), line=5)
    assert diagnose(writer.timeline([DONE] * 3)).verdict.causes == (
        "Call 0: rank 0's \"anyone left?\" (train.py:5) met ranks 1, 2's barrier (train.py:5).",
        "Rank 0 read 0 and concluded that all ranks have joined; ranks 1, 2 discarded the value.",
    )


@pytest.mark.parametrize("backend", ["gloo", "nccl", "mpi", None])
def test_bare_rows_are_enough(backend):
    """Null in every column that may be null, an ending that names no call, ranks that issued nothing."""
    rows = [{"rank": rank, "group": "g", "seq": 0, "op": "all_reduce"} for rank in (2, 9)]
    ends = [
        DONE,
        DONE,
        hung(0, proven=False, group="g"),
        *[DONE] * 6,
        Ending(EndKind.RAISED, call=5, group="g", text=""),
    ]
    told = diagnose(timeline_from_rows(rows, ends, {"backend": backend}))
    assert len(told.ranks) == 10
    assert "all-reduce, call 0" in told.ranks[2].sentence


def test_a_timeline_without_calls():
    assert diagnose(Writer(1).timeline([DONE])).sentence == "The one rank finished; every call met its partner."


def test_it_shows_itself():
    told = diagnose(case_timeline(4, 2))
    assert told._repr_markdown_().count("- **rank") == 2
    assert told._repr_html_().count("<tr>") == 3
    for shown in (str(told), told._repr_markdown_(), told._repr_html_()):
        assert shown.count("Rank 1 hangs in barrier") == 1 and "_get_num_nonjoined_procs" not in shown
        assert told.verdict.advice.do in shown


ENDS = st.sampled_from(
    [
        DONE,
        Ending(EndKind.FINISHED, pending=True, call=0, group="0"),
        hung(0),
        hung(1, "nothing happened", False),
        hung(None, "", False),
        Ending(EndKind.RAISED, call=0, group="0", text="RuntimeError: Connection closed by peer"),
        Ending(EndKind.RAISED, text="boom"),
        Ending(EndKind.KILLED, call=1, group="0", text="SIGABRT"),
    ]
)
CALLS = st.tuples(
    st.sampled_from(["all_reduce", "barrier", "broadcast", "send", "recv", "gather"]),
    st.integers(0, 2),
    st.booleans(),
    st.sampled_from([None, "RuntimeError: Read error"]),
)


@given(
    st.sampled_from(["gloo", "nccl"]), st.lists(st.tuples(st.lists(CALLS, max_size=4), ENDS), min_size=3, max_size=3)
)
def test_any_timeline_is_diagnosed_and_never_beyond_what_its_endings_claim(backend, lanes):
    writer = Writer(3, backend)
    for rank, (calls, _) in enumerate(lanes):
        for op, other, done, error in calls:
            columns = (
                {"peer": other} if op in ("send", "recv") else {"root": other} if op in ("broadcast", "gather") else {}
            )
            writer.call(rank, op, done=done and error is None, error=error, **columns)
    timeline = writer.timeline([end for _, end in lanes])
    told = diagnose(timeline)
    for one in told.ranks:
        assert one.sentence.startswith(f"Rank {one.rank} ")
        assert one.sentence.endswith(".")
        assert (one.proven is None) == (one.ending.kind is not EndKind.HUNG)
        for call in one.evidence:
            rows = timeline.calls.filter(pl.col("rank") == call.rank, pl.col("seq") == call.seq)
            assert rows.height == 1


def test_of_many_ranks_the_same_is_told_once() -> None:
    writer = Writer(world_size=64)
    for rank in range(64):
        writer.call(rank, "all_reduce")
        if rank != 5:
            writer.call(rank, "barrier", done=False)
    hung = Ending(EndKind.HUNG, call=1, group="0", proven=True)
    ends = [Ending(EndKind.FINISHED) if rank == 5 else hung for rank in range(64)]
    diagnosis = diagnose(writer.timeline(ends, backend="nccl"))
    assert len(diagnosis.ranks) == 64
    assert [fate.who for fate in diagnosis.verdict.fates] == ["ranks 0-4, 6-63", "rank 5"]
    for text in (str(diagnosis), diagnosis._repr_html_(), diagnosis._repr_markdown_()):
        assert text.count("hang in") == 1


def test_a_rank_that_issued_the_same_is_not_told_among_those_that_differ() -> None:
    def program(rank: int, inputs: Any) -> None:
        if rank == 2:
            dist.barrier()
        else:
            dist.all_reduce(torch.ones(1))

    run = joinlab.emulate(program, (1, 1, 1), backend="gloo")
    killed = replace(run, ends=tuple(Ending(EndKind.KILLED, call=0, group=end.group) for end in run.ends))
    first, _, last = (rank.sentence for rank in diagnose(killed).ranks)
    assert "in its place rank 2 issued barrier, call 0" in first
    assert "in its place ranks 0, 1 issued all-reduce, call 0" in last
