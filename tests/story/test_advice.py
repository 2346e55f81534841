"""What the story of a recorded job advises, which is not run again, and how short its headline is:
here runs of the emulator that are told as records."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import joinlab
from joinlab.story.forms.mismatch import Alone
from joinlab.story.judge import tell
from joinlab.story.lines import LineKind, NamedCall, RankEnds
from joinlab.story.story import Story
from joinlab.timeline import INTERRUPTED, NO_END, RUNNING, Ending, EndKind
from tests.timelines import Writer


def uneven(rank: int, inputs: Sequence[torch.Tensor]) -> None:
    model = DDP(nn.Linear(1, 1))
    for x in inputs:
        model(x).sum().backward()
    dist.barrier()


def uneven_with_a_metric(rank: int, inputs: Sequence[torch.Tensor]) -> None:
    model = DDP(nn.Linear(1, 1))
    for x in inputs:
        loss = model(x).sum()
        loss.backward()
        dist.all_reduce(loss.detach())


def on_rank_0(rank: int, inputs: Sequence[torch.Tensor]) -> None:
    if rank == 0:
        dist.barrier()
    dist.all_reduce(torch.ones(1))


def sizes_differ(rank: int, inputs: Sequence[torch.Tensor]) -> None:
    dist.broadcast(torch.ones(1 + rank), 0)
    dist.barrier()


def unused(rank: int, inputs: Sequence[torch.Tensor]) -> None:
    layers = nn.ModuleList([nn.Linear(1, 1), nn.Linear(1, 1)])
    layers.forward = layers[0].forward  # type: ignore[method-assign]
    model = DDP(layers)
    for x in inputs:
        model(x).sum().backward()


def send_first(rank: int, inputs: Sequence[torch.Tensor]) -> None:
    dist.send(torch.ones(1), 1 - rank)
    dist.recv(torch.ones(1), 1 - rank)


def evaluates_once_more(rank: int, inputs: Sequence[torch.Tensor]) -> None:
    for step in range(4):
        dist.all_reduce(torch.ones(2))
        if rank == 0 and step == 1:
            dist.all_reduce(torch.ones(2))
    dist.barrier()


def advised(
    program: Callable[..., Any], inputs: Sequence[int], ways: bool = False, **meta: Any
) -> list[str]:
    """The story's advice about a run, as if it had been recorded, with its ranks' ways or without."""
    timeline = joinlab.emulate(program, inputs, backend="gloo")
    with patch("joinlab.story.fixes.find_fixes", lambda *_: None):
        joinlab.diagnose(timeline)
    if not ways:
        timeline.meta.pop("parting", None)
    timeline.meta.update({"engine": "recorded", "ways": ways, **meta})
    return [*tell(timeline).texts(LineKind.FIX)]


def test_ranks_with_fewer_inputs_are_given_as_many_or_join() -> None:
    (advice,) = advised(uneven, (2, 3), ways=True)
    assert advice.startswith("Give every rank as many rounds of for x in inputs: (test_advice.py:")
    assert advice.endswith(", or wrap it in with model.join():.")


def test_join_is_not_advised_where_it_would_not_shadow_a_call() -> None:
    (advice,) = advised(uneven_with_a_metric, (2, 3), ways=True)
    assert advice.startswith("Give every rank as many rounds of for x in inputs:")
    assert "join" not in advice


def test_a_branch_is_named_where_the_ways_were_recorded() -> None:
    (advice,) = advised(on_rank_0, (1, 1), ways=True)
    assert advice.startswith("Let all ranks go the same way at if rank == 0: (test_advice.py:")


def test_without_ways_it_says_where_to_look_and_how_to_see_more() -> None:
    (advice,) = advised(on_rank_0, (1, 1))
    assert advice.startswith("All ranks have to issue the same calls in one order. Look at what ")
    assert "rank 0 to barrier" in advice and "rank 1 to all-reduce" in advice
    assert advice.endswith("Recorded with joinlab record --ways, the job can name the branch.")


def test_the_line_of_the_first_extra_call_is_named_not_where_the_ranks_stand_at_last() -> None:
    (advice,) = advised(evaluates_once_more, (1, 1))
    first = evaluates_once_more.__code__.co_firstlineno
    line_of = f"all-reduce (test_advice.py:{first + 4}) and rank 1 to all-reduce (:{first + 2})"
    assert f"Look at what leads rank 0 to {line_of}" in advice


def test_traces_are_not_asked_for_twice() -> None:
    (advice,) = advised(on_rank_0, (1, 1), ways=True, parting={"tests": []})
    assert "--ways" not in advice and "Look at what leads" in advice


def test_calls_with_unlike_data_are_to_be_given_the_same() -> None:
    (advice,) = advised(sizes_differ, (1, 1))
    assert advice.startswith("Let all ranks give broadcast (test_advice.py:")
    assert advice.endswith(") the same size.")


def test_the_cure_that_ddp_names_is_said() -> None:
    first, *_ = advised(unused, (2, 2))
    assert "DDP(..., find_unused_parameters=True)" in first


def test_sends_that_wait_for_each_other_are_to_take_turns() -> None:
    (advice,) = advised(send_first, (1, 1))
    assert advice.startswith("Each send needs a recv that its peer issues before it waits")
    assert advice.endswith("--ways, the job can name the branch.")


def killed_in_its_second_step(rank: int, inputs: Sequence[torch.Tensor]) -> None:
    for index, x in enumerate(inputs):
        if rank == 1 and index == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(x)


def test_the_last_output_of_a_killed_rank_is_to_be_looked_at_without_ways() -> None:
    (advice,) = advised(killed_in_its_second_step, (2, 2))
    assert advice == "Look at the last output of rank 1, and whether its host ran out of memory."


def told_as_record(writer: Writer, ends: Sequence[Ending], **meta: Any) -> Story:
    timeline = writer.timeline(ends)
    return tell(replace(timeline, meta={**timeline.meta, "engine": "recorded", **meta}))


GONE = Ending(EndKind.RAISED, text="RuntimeError: Connection closed by peer [10.0.0.1]:29")
TIMED_OUT = Ending(EndKind.RAISED, text="RuntimeError: Timed out waiting 10000ms for recv")


def waits_for_rank_2() -> Writer:
    writer = Writer(3, "gloo")
    for rank in (0, 1):
        writer.call(rank, "all_reduce", done=False, line=4)
    return writer


@pytest.mark.parametrize(
    ("others", "how", "advice"),
    [
        (GONE, "ended by SIGSEGV", ["Look at the last output of rank 2."]),
        (
            GONE,
            NO_END,
            ["Look at the last output of rank 2, and whether its host ran out of memory."],
        ),
        (TIMED_OUT, "ended by SIGKILL", []),
    ],
)
def test_a_rank_that_died_is_asked_for_its_output_if_it_did_so_before_the_others(
    others: Ending, how: str, advice: list[str]
) -> None:
    killed = Ending(EndKind.KILLED, text=how)
    story = told_as_record(waits_for_rank_2(), [others, others, killed])
    assert [*story.texts(LineKind.FIX)] == advice


def test_no_branch_is_to_be_mended_where_a_rank_died_behind_it() -> None:
    sides = [
        {"ranks": [0, 1], "how": "line", "line": 9, "text": ""},
        {"ranks": [2], "how": "line", "line": 8, "text": ""},
    ]
    test = {"file": "t.py", "line": 7, "text": "if rank == 2:", "values": [], "sides": sides}
    parting = {"tests": [test]}
    for others, words in (
        (GONE, "Look at the last output of rank 2"),
        (TIMED_OUT, "Let all ranks"),
    ):
        ends = [others, others, Ending(EndKind.KILLED, text=NO_END)]
        story = told_as_record(waits_for_rank_2(), ends, ways=True, parting=parting)
        assert story.texts(LineKind.FIX)[0].startswith(words)


def test_calls_of_two_lines_are_not_to_be_given_the_same_size() -> None:
    writer = Writer(2, "gloo")
    for rank in range(2):
        writer.call(rank, "all_reduce", shape=[[1 + rank]], line=3 + rank, done=False)
    (advice,) = told_as_record(writer, [GONE, GONE]).texts(LineKind.FIX)
    assert "the same size" not in advice and "Look at what leads rank 0 to all-reduce" in advice


def test_groups_that_wait_crosswise_are_named() -> None:
    writer = Writer(3, "gloo", groups={"0": [0, 1, 2], "1": [0, 1], "2": [1, 2], "3": [0, 2]})
    for rank, group in enumerate("123"):
        writer.call(rank, "all_reduce", group=group, line=4, done=False)
    ends = [Ending(EndKind.HUNG, call=0, group=group, proven=True) for group in "123"]
    story = told_as_record(writer, ends)
    assert "each in all-reduce" in story.sentence and ", of different groups." in story.sentence
    (advice,) = story.texts(LineKind.FIX)
    assert "rank 1 to all-reduce, call 1 of group 2 (train.py:4) and rank 2 to" in advice


def test_each_line_at_which_ranks_stand_is_said_but_not_of_a_job_that_was_well() -> None:
    def stood(line: int) -> list[dict[str, Any]]:
        return [{"thread": "MainThread", "frames": [f"t.py:{line} read"]}]

    cut = Ending(EndKind.UNKNOWN, text=INTERRUPTED)
    meta = {
        "cut": {"why": INTERRUPTED, "still_ns": 0},
        "processes": {rank: {"host": "a", "pid": 1, "stopped": False} for rank in range(3)},
        "stood": {1: stood(10), 2: stood(14)},
    }
    writer = Writer(3, "gloo")
    writer.call(0, "all_reduce", line=4, done=False)
    waits = replace(cut, call=0, group="0")
    story = told_as_record(writer, [waits, cut, cut], **meta)
    assert [*story.texts(LineKind.FIX)] == [
        "Look at t.py:10, where rank 1 stood, and at t.py:14, where rank 2 stood."
    ]
    meta["stood"] = dict.fromkeys(range(3), stood(10))
    story = told_as_record(Writer(3, "gloo"), [cut] * 3, **meta)
    assert story.of(LineKind.CAUSE) and not story.of(LineKind.FIX)


def test_of_processes_that_are_all_stopped_it_is_said_how_to_continue_them() -> None:
    processes = {rank: {"host": "a", "pid": 7 + rank, "stopped": True} for rank in range(2)}
    running = Ending(EndKind.UNKNOWN, text=RUNNING)
    story = told_as_record(Writer(2, "gloo"), [running] * 2, processes=processes)
    first, second = story.texts(LineKind.CAUSE)
    assert first.startswith("Rank 0's process is stopped") and "kill -CONT 8 on a" in second


def test_of_a_job_that_was_interrupted_no_call_is_called_out_of_order() -> None:
    writer = Writer(2, "gloo")
    writer.call(0, "all_reduce", line=4, done=False)
    ends = [Ending(EndKind.UNKNOWN, call=0, group="0", text=INTERRUPTED)]
    ends.append(Ending(EndKind.UNKNOWN, text=INTERRUPTED))
    cut = {"why": INTERRUPTED, "still_ns": 20 * 10**9}
    story = told_as_record(writer, ends, cut=cut)
    assert story.sentence.startswith("Rank 1 keeps rank 0 waiting")
    assert not story.of(LineKind.FIX)


@pytest.mark.parametrize("end", [Ending(EndKind.FINISHED), Ending(EndKind.UNKNOWN, text=RUNNING)])
def test_nothing_is_advised_where_nothing_is_wrong_or_the_job_goes_on(end: Ending) -> None:
    timeline = joinlab.emulate(uneven, (2, 2), backend="gloo")
    calls = timeline.calls.head(timeline.calls.height - (end.kind is EndKind.UNKNOWN))
    meta: Any = {**timeline.meta, "engine": "recorded"}
    told = tell(replace(timeline, calls=calls, ends=(timeline.ends[0], end), meta=meta))
    assert told.of(LineKind.FIX) == ()


def test_a_headline_counts_ranks_that_did_not_end_well_where_it_would_be_long() -> None:
    call = NamedCall(
        4, "6", 5, 6, "all-reduce", "all_reduce", "train_with_tensor_parallelism.py:17"
    )
    raised = RankEnds((0, 1, 4, 6, 7, 9, 11, 13), EndKind.RAISED)
    killed = RankEnds((2, 3), EndKind.KILLED)
    finished = RankEnds((5, 8, 10, 12), EndKind.FINISHED, good=True)
    headline = Alone(
        [5],
        "finished",
        ranks=(4, 5, 6, 7),
        sides=((4, 6, 7),),
        calls=(call,),
        ends=(raised, killed, finished),
    )
    assert headline.sentence == (
        "Rank 5 finished; nothing meets ranks 4, 6, 7's all-reduce "
        "(train_with_tensor_parallelism.py:17). 8 ranks raised an error; ranks 2, 3 were killed."
    )
    few = replace(headline, ends=(killed, finished))
    assert few.sentence.endswith(":17). Ranks 2, 3 were killed.")
