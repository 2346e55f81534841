"""Stories are true, in plain words, and claim nothing unknown."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

import joinlab
from joinlab.cases import DOCUMENTED
from joinlab.program.outcome import text_of
from joinlab.story.evidence import Evidence
from joinlab.story.judge import diagnose
from joinlab.story.lines import LineKind
from joinlab.story.story import Story
from joinlab.timeline import NO_END, RUNNING, Ending, EndKind, timeline_from_rows
from tests.proofs import proof_of
from tests.random_timelines import timelines
from tests.timelines import SIZES, Writer, case_timeline

DONE = Ending(EndKind.FINISHED)


def hung(seq: int | None, text: str = "", proven: bool = True, group: str | None = "0") -> Ending:
    return Ending(
        EndKind.HUNG, call=seq, group=None if seq is None else group, proven=proven, text=text
    )


def causes(story: Story) -> list[str]:
    return list(story.texts(LineKind.CAUSE))


def check_form(story: Story, timeline: joinlab.Timeline) -> None:
    """What holds for every story: its pieces are its text, its ranks and calls are those of the
    run."""
    plain = json.loads(story.json())
    issued = set(timeline.calls.select("rank", "group", "seq").rows())
    for line, data in zip(story.lines, plain["lines"], strict=True):
        assert "".join(piece["text"] for piece in data["pieces"]) == data["text"]
        assert data["text"][:1] == data["text"][:1].upper() and data["text"].endswith((".", "?"))
        assert all((call.rank, call.group, call.seq) in issued for call in line.calls)
        assert all(piece.call is None or piece.call < len(line.calls) for piece in line.pieces())
    told = [rank for line in story.of(LineKind.FATE) for rank in line.ranks]
    assert sorted(told) == list(range(timeline.world_size))
    for rank, end in zip(story.ranks, timeline.ends, strict=True):
        assert (rank.kind, rank.proven, rank.text) == (end.kind.value, end.proven, end.text)
    if "Proven" in str(story):
        assert any(end.proven for end in timeline.ends)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("case", DOCUMENTED)
@pytest.mark.parametrize(
    ("backend", "era"), [("gloo", "today"), ("nccl", "today"), ("nccl", "1.9")]
)
def test_the_six_cases(case, n, backend, era):
    timeline = case_timeline(case, n, backend, era)
    story = diagnose(timeline)
    check_form(story, timeline)
    assert "Proven when" not in str(story)  # the calls alone prove it again
    assert "_get_num_nonjoined_procs" not in str(story)
    fine = story.sentence.startswith("Both ranks finished; every call met its counterpart")
    assert fine == (case in (1, 6))
    assert str(story).startswith(story.sentence)
    for rank, end in enumerate(timeline.ends):
        if end.call is not None:
            assert story.ranks[rank].call is not None and story.ranks[rank].call.seq == end.call


def test_case_4_on_gloo_names_both_calls():
    story = diagnose(case_timeline(4, 2))
    assert str(story).splitlines()[:5] == [
        'Rank 0 called "anyone left?", where rank 1 called barrier. Both ranks hang.',
        "WHY    Call 17: rank 0's \"anyone left?\" (train.py:28) can never meet rank 1's barrier (train.py:33): "
        "on gloo calls of different kinds never meet.",
        'FIX    No fix was tried: joinlab.emulate(case_4, (2, 3), "gloo") may find one.',
        'ENDED  Rank 0 hangs in "anyone left?", call 17 (train.py:28). Proven: no issued call can end this wait.',
        "       Rank 1 hangs in barrier, call 17 (train.py:33). Proven: no issued call can end this wait.",
    ]


def test_the_story_says_why_a_launched_program_cannot_be_emulated():
    def refused():
        raise joinlab.LaunchError("rank 0 has a thread (train.py:3). Use joinlab.launch.")

    timeline = case_timeline(4, 2)
    timeline.meta["seconds"] = 1.0
    timeline.live.rerun = refused
    assert diagnose(timeline).texts(LineKind.FIX) == (
        "No fix was tried, as the program cannot be emulated: rank 0 has a thread (train.py:3).",
    )


def test_case_4_on_nccl_says_what_each_took_the_value_to_mean():
    story = diagnose(case_timeline(4, 2, "nccl"))
    assert story.sentence == "Rank 0 asked: anyone left? Rank 1's barrier answered. Rank 1 hangs."
    assert (
        causes(story)[1]
        == "Rank 0 read 0 and concluded that all ranks have joined; rank 1 discarded the value."
    )
    (value,) = story.headline.values
    assert (value.ranks, value.value, value.taken) == ((0,), 0.0, "all ranks have joined")
    asked = next(piece for piece in story.headline.pieces() if piece.call == 0)
    assert (asked.text, asked.ranks) == ("anyone left?", (0,))
    assert 'Rank 1 hangs in "who is last?", call 19 (train.py:28)' in story.ending(1)


@pytest.mark.parametrize(
    ("case", "backend", "words"),
    [
        (2, "nccl", "Rank 1 finished, but left backward, call 8 (train.py:32) pending."),
        (
            3,
            "gloo",
            "in backward, call 10 (train.py:32): on gloo a process that ends closes its connections.",
        ),
        (
            3,
            "nccl",
            "Rank 1 hangs in barrier, call 11 (train.py:33), behind its own backward, call 10 (train.py:32)",
        ),
    ],
)
def test_the_story_says_how_the_rank_with_more_inputs_ended(case, backend, words):
    assert words in diagnose(case_timeline(case, 2, backend)).ending(1)


def test_what_never_completed_has_given_no_value():
    assert "discarded" not in str(diagnose(case_timeline(5, 1, "nccl")))


def test_a_rank_that_waits_for_one_that_waits_elsewhere():
    writer = Writer(3, groups={"0": [0, 1, 2], "pair": [0, 1]})
    for rank in (1, 2):
        writer.call(rank, "all_reduce", done=False, line=7)
    writer.call(0, "all_reduce", group="pair", done=False, line=9)
    story = diagnose(writer.timeline([hung(0, group="pair"), hung(0), hung(0)]))
    assert [one.proven for one in story.ranks] == [True, True, True]
    assert "all-reduce, call 1 of group 0 (train.py:7)" in str(story)
    assert "rank 0 in all-reduce (train.py:9)" in story.sentence


def test_a_hang_that_was_only_suspected_stays_so():
    writer = Writer()
    for rank in (0, 1):
        writer.call(rank, "all_reduce", shape=[[7 * rank + 1]], done=False)  # one would abort
    story = diagnose(writer.timeline([hung(0, "nothing happened for 30 s", proven=False)] * 2))
    assert [one.proven for one in story.ranks] == [False, False]
    assert story.ending(0).endswith("A hang is only suspected: nothing happened for 30 s.")
    assert "float32[1]" in causes(story)[0] and "float32[8]" in causes(story)[0]


def test_a_hang_that_its_recorder_proved_is_told_as_proven():
    writer = Writer()
    for rank in (0, 1):
        writer.call(rank, "all_reduce", done=False)
    story = diagnose(writer.timeline([hung(0), hung(0)]))
    assert (
        story.ending(0)
        == story.ending(1)
        == (
            "Ranks 0, 1 hang in all-reduce, call 1 (train.py:11). Proven: no issued call can end this wait."
        )
    )


def test_a_rank_that_still_runs_in_one_thread_is_not_proven_to_hang():
    writer = Writer()
    writer.call(0, "all_reduce", done=False)
    writer.call(1, "barrier", done=False)
    writer.call(0, "send", peer=1, tag=1, done=False)
    writer.call(1, "recv", peer=0, tag=1, done=False)  # these two can still meet
    assert proof_of(Evidence(writer.timeline([hung(0), hung(0)]))) is None


def test_ranks_that_are_still_running_have_done_nothing_wrong():
    writer = Writer()
    for rank in (0, 1):
        writer.call(rank, "all_reduce")
    story = diagnose(writer.timeline([Ending("unknown", text=RUNNING)] * 2))
    assert story.sentence == "Ranks 0, 1 are still running; every call fits so far."
    assert (
        story.ending(1)
        == "Ranks 0, 1 are still running, last seen after all-reduce, call 1 (train.py:11)."
    )


def test_a_rank_that_loops_for_ever_waits_in_no_call():
    writer = Writer()
    writer.call(0, "all_reduce", done=False)
    nothing = "nothing happened for 5 s"
    story = diagnose(writer.timeline([hung(0, nothing, False), hung(None, nothing, False)]))
    assert (
        story.ending(1)
        == f"Rank 1 makes no progress outside any recorded call. A hang is only suspected: {nothing}."
    )
    writer.call(1, "barrier")
    story = diagnose(
        writer.timeline(
            [hung(0, "-", False), Ending("killed", text="ended by joinlab: out of time")]
        )
    )
    assert (
        story.ending(1)
        == "Rank 1 was ended by joinlab: out of time, last seen after barrier, call 1 (train.py:11)."
    )


def test_a_rank_that_is_gone_was_last_seen_at_an_open_call_and_after_one_that_failed():
    writer = Writer()
    writer.call(0, "all_reduce", done=False, waits=False, shape=[[2]])
    writer.call(1, "all_reduce", done=False, shape=[[33]])
    gone = Ending(EndKind.KILLED, text=NO_END)
    story = diagnose(writer.timeline([gone, replace(gone, call=0, group="0")]))
    assert "last seen at all-reduce, call 1 (train.py:11)" in story.ending(0)
    aborts = "Gloo aborts a process that is sent more bytes than its call has room for."
    assert story.ending(0).endswith(aborts) and aborts not in story.ending(1)
    writer = Writer()
    writer.call(0, "barrier", done=False, error="RuntimeError: Connection reset by peer")
    story = diagnose(writer.timeline([gone, DONE]))
    assert ", last seen after barrier, call 1 (train.py:11), which failed: " in story.ending(0)


def test_ranks_that_caught_the_error_of_a_call_did_not_finish_by_luck():
    writer = Writer(3)
    for rank in (0, 2):
        writer.call(rank, "all_reduce", done=False, error="RuntimeError: Connection closed by peer")
    story = diagnose(writer.timeline([DONE] * 3))
    assert story.sentence.endswith(" Ranks 0, 2 finished, though a call had failed.")


def test_a_program_s_own_exception():
    writer = Writer()
    writer.call(1, "all_reduce", done=False, error="RuntimeError: Connection reset by peer")
    ends = [
        Ending(EndKind.RAISED, text="ValueError: bad <batch>\nTraceback ..."),
        Ending(EndKind.RAISED, call=0, group="0", text="RuntimeError: Connection reset by peer"),
    ]
    story = diagnose(writer.timeline(ends))
    assert story.ending(0) == "Rank 0 raised ValueError: bad <batch>."
    assert "bad &lt;batch&gt;" in story._repr_html_()
    assert "<batch>" not in story._repr_html_()


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError(), "ValueError"),
        (ValueError("\n"), "ValueError"),
        (ValueError("\n  a bad sample\n  3"), "ValueError: a bad sample"),
        (ValueError("a bad sample: "), "ValueError: a bad sample"),
        (KeyError(3), "KeyError: 3"),
    ],
)
def test_an_exception_is_told_with_the_first_line_of_its_message_if_it_has_one(error, text):
    ends = [Ending(EndKind.RAISED, text=text_of(error)), DONE]
    assert diagnose(Writer().timeline(ends)).ending(0) == f"Rank 0 raised {text}."


def test_an_exception_in_a_call_that_is_not_about_a_peer():
    writer = Writer()
    writer.call(0, "broadcast", root=0, error="ValueError: root out of range", done=False)
    ends = [Ending(EndKind.RAISED, call=0, group="0", text="ValueError: root out of range"), DONE]
    assert (
        diagnose(writer.timeline(ends))
        .ending(0)
        .startswith(
            "Rank 0 raised ValueError: root out of range, in broadcast, call 1 (train.py:11)"
        )
    )


def test_long_messages_are_cut():
    ends = [
        Ending(EndKind.RAISED, text="x" * 999),
        Ending(EndKind.RAISED, text="boom. This is typically caused by"),
    ]
    story = diagnose(Writer().timeline(ends))
    assert story.ending(0) == f"Rank 0 raised {'x' * 240} (cut)."
    assert story.ending(1) == "Rank 1 raised boom."


def test_killed_outside_any_call():
    story = diagnose(
        Writer().timeline([DONE, Ending(EndKind.KILLED, text="its process was killed by SIGKILL")])
    )
    assert [line.ranks for line in story.of(LineKind.FATE)] == [(1,), (0,)]
    assert story.ending(1) == "Rank 1 was ended: its process was killed by SIGKILL."


def test_two_sends_wait_for_each_other():
    writer = Writer()
    writer.call(0, "send", peer=1, done=False)
    writer.call(1, "send", peer=0, done=False)
    story = diagnose(writer.timeline([hung(0), hung(0)]))
    assert story.sentence.startswith("Ranks 0, 1 wait for each other, each in send (train.py:")
    (headline,) = story.of(LineKind.HEADLINE)
    assert [line.ranks for line in headline.lines] == [(0, 1)]


def test_a_story_has_crossed_values_of_three_ranks_once():
    writer = Writer(3, "nccl")
    for rank in range(3):
        origin = (
            "all-reduce (barrier)" if rank else "all-reduce (join() _get_num_nonjoined_procs())"
        )
        writer.call(rank, "all_reduce", origin, values=([0.0], [0.0]), line=5)
    assert causes(diagnose(writer.timeline([DONE] * 3))) == [
        "Call 1: rank 0's \"anyone left?\" (train.py:5) met ranks 1, 2's barrier (train.py:5).",
        "Rank 0 read 0 and concluded that all ranks have joined; ranks 1, 2 discarded the value.",
    ]


@pytest.mark.parametrize("backend", ["gloo", "nccl", "mpi", None])
def test_bare_rows_are_enough(backend):
    """Null in every column that may be null, an ending that names no call, ranks that issued
    nothing."""
    rows = [{"rank": rank, "group": "g", "seq": 0, "op": "all_reduce"} for rank in (2, 9)]
    raised = Ending(EndKind.RAISED, call=5, group="g", text="")
    ends = [DONE, DONE, hung(0, proven=False, group="g"), *[DONE] * 6, raised]
    timeline = timeline_from_rows(rows, ends, {"backend": backend})
    story = diagnose(timeline)
    check_form(story, timeline)
    assert "all-reduce, call 1" in story.ending(2)


def test_a_timeline_without_calls():
    assert diagnose(Writer(1).timeline([DONE])).sentence.startswith("The one rank finished")


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
    st.sampled_from(["gloo", "nccl"]),
    st.lists(st.tuples(st.lists(CALLS, max_size=4), ENDS), min_size=3, max_size=3),
)
def test_any_timeline_has_a_story_that_never_goes_beyond_what_its_endings_claim(backend, lanes):
    writer = Writer(3, backend)
    for rank, (calls, _) in enumerate(lanes):
        for op, other, done, error in calls:
            columns = (
                {"peer": other}
                if op in ("send", "recv")
                else {"root": other}
                if op in ("broadcast", "gather")
                else {}
            )
            writer.call(rank, op, done=done and error is None, error=error, **columns)
    timeline = writer.timeline([end for _, end in lanes])
    check_form(diagnose(timeline), timeline)


@given(timelines())
def test_any_drawn_timeline_has_a_story(timeline):
    check_form(diagnose(timeline), timeline)


def test_a_story_has_the_same_ending_of_many_ranks_once() -> None:
    writer = Writer(world_size=64)
    for rank in range(64):
        writer.call(rank, "all_reduce")
        if rank != 5:
            writer.call(rank, "barrier", done=False)
    ends = [DONE if rank == 5 else hung(1) for rank in range(64)]
    story = diagnose(writer.timeline(ends, backend="nccl"))
    assert len(story.ranks) == 64
    assert [line.ranks for line in story.of(LineKind.FATE)] == [(*range(5), *range(6, 64)), (5,)]
    for text in (str(story), story._repr_html_()):
        assert text.count("hang in") == 1


def test_the_headline_separates_a_rank_that_differs_from_ranks_that_agree() -> None:
    def program(rank: int, inputs: Any) -> None:
        if rank == 2:
            dist.barrier()
        else:
            dist.all_reduce(torch.ones(1))

    run = joinlab.emulate(program, (1, 1, 1), backend="gloo")
    killed = replace(
        run, ends=tuple(Ending(EndKind.KILLED, call=0, group=end.group) for end in run.ends)
    )
    assert diagnose(killed).sentence.startswith(
        "Rank 2 called barrier, where ranks 0, 1 called all-reduce."
    )


def swapped_models(rank: int, inputs: Any) -> None:
    models = [torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(n, 1)) for n in (2, 3)]
    for n in (0, 1) if rank else (1, 0):
        models[n](torch.ones(1, 2 + n)).sum().backward()


def test_the_headline_names_calls_in_another_order_though_nothing_hangs() -> None:
    story = diagnose(joinlab.emulate(swapped_models, (1, 1), "nccl"))
    assert "in the other order" in story.sentence and "float32[3]" in story.sentence


def one_too_many(rank: int, inputs: Any) -> None:
    t = torch.zeros(1)
    for i, _ in enumerate(inputs):
        dist.all_reduce(t)
        if rank == 5 and i == 3:
            dist.broadcast(t, 0)
        dist.broadcast(t, 0)
        dist.barrier()


def test_a_call_too_many_is_named_with_its_line_and_not_the_next() -> None:
    story = diagnose(joinlab.emulate(one_too_many, (6,) * 8, "nccl"))
    line = f"(test_judge.py:{one_too_many.__code__.co_firstlineno + 5})"
    assert story.sentence.startswith(
        f"Rank 5 issued one broadcast {line} more than ranks 0-4, 6, 7 (1 and 0)."
    )
    assert "if rank == 5 and i == 3:" in story.texts(LineKind.PARTING)[0]


def gathers_from_any(rank: int, inputs: Any) -> None:
    for _ in range(2 * (rank == 0)):
        dist.recv(torch.zeros(1))
    if rank:
        dist.send(torch.ones(1), 0)


def test_a_send_that_a_recv_from_any_rank_took_is_not_left_over() -> None:
    story = diagnose(joinlab.emulate(gathers_from_any, (1,) * 3, "gloo"))
    assert story.headline.form == "all_finished" and not story.of(LineKind.PARTING)


def fewer_sends(rank, inputs):
    for _ in inputs:
        if rank == 0:
            dist.send(torch.ones(1), 1)
        else:
            dist.recv(torch.ones(1), 0)


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
@pytest.mark.parametrize("counts", [(1, 2), (3, 2)])
def test_a_send_or_recv_that_nothing_meets_is_told_with_the_counts_of_both(counts, backend):
    story = str(diagnose(joinlab.emulate(fewer_sends, counts, backend), fix=False))
    times = {1: "once", 2: "2 times", 3: "3 times"}
    sent, received = (times[count] for count in counts)
    assert re.search(
        f"Rank 0 (called send|sent) {sent} .* rank 1, which (called recv|received) {received}",
        story,
    )
