"""What the verdict says of a training loop in which one rank does otherwise, as a beginner would write it."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext

import polars as pl
import pytest
import torch
import torch.distributed as dist
from timelines import Writer
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

from joinlab.analysis.verdict import judge
from joinlab.emulator.emulate import emulate
from joinlab.timeline import RUNNING, Ending


def train(rank, inputs, backward=lambda rank, step, loss: loss.backward(), after=lambda rank, step: None):
    model = DDP(torch.nn.Linear(4, 1))
    for step, _ in enumerate(inputs):
        backward(rank, step, model(torch.ones(2, 4)).sum())
        after(rank, step)


def leaves_an_all_reduce_out(rank, inputs):
    def validate(rank, step):
        loss = torch.ones(1)
        if rank == 0 and step == 2:
            return loss
        dist.all_reduce(loss)
        return loss

    train(rank, inputs, after=validate)


def issues_one_too_many(rank, inputs):
    def validate(rank, step):
        loss = torch.ones(1)
        dist.all_reduce(loss)
        if rank == 1 and step == 2:
            dist.all_reduce(loss)

    train(rank, inputs, after=validate)


def skips_a_bad_input(rank, inputs):
    def backward(rank, step, loss):
        if not (rank == 2 and step == 1):
            loss.backward()

    train(rank, inputs, backward)


def accumulates_alone(rank, inputs):
    model = DDP(torch.nn.Linear(4, 1))
    for step, _ in enumerate(inputs):
        with model.no_sync() if rank == 1 and step == 1 else nullcontext():
            model(torch.ones(2, 4)).sum().backward()


def gathers_uneven_sizes(rank, inputs):
    t = torch.ones(3 + rank)
    dist.all_gather([torch.empty_like(t) for _ in range(dist.get_world_size())], t)
    dist.barrier()


def reduces_metrics_in_its_own_order(rank, inputs):
    metrics = {"loss": torch.ones(1), "hits": torch.ones(3)}
    for name in sorted(metrics, reverse=rank == 1):
        dist.all_reduce(metrics[name])
    dist.barrier()


def receives_first(rank, inputs):
    t, n = torch.ones(1), dist.get_world_size()
    dist.recv(t, src=(rank - 1) % n)
    dist.send(t, dst=(rank + 1) % n)


def receives_from_one_that_never_sends(rank, inputs):
    if rank == 0:
        dist.recv(torch.ones(1), src=1)
    dist.barrier()


def has_another_dtype(rank, inputs):
    dist.all_reduce(torch.ones(2, dtype=torch.float64 if rank == 1 else torch.float32))
    dist.barrier()


def broadcasts_from_itself(rank, inputs):
    dist.broadcast(torch.ones(2), src=rank)
    dist.barrier()


def goes_on_after_an_error(rank, inputs):
    model = DDP(torch.nn.Linear(4, 1))
    for step, _ in enumerate(inputs):
        try:
            if rank == 1 and step == 1:
                raise ValueError("bad image")
            model(torch.ones(2, 4)).sum().backward()
        except ValueError:
            continue


def evaluates_on_one_rank(rank, inputs):
    model = DDP(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)))
    with model.join():
        for _ in inputs:
            model(torch.ones(2, 4)).sum().backward()
            if rank == 0:
                model(torch.ones(2, 4))


def has_an_uneven_loader(rank, inputs):
    model = DDP(torch.nn.Linear(4, 1))
    for (x,) in DataLoader(TensorDataset(torch.ones(4 + rank, 4))):
        model(x).sum().backward()
    dist.barrier()


def crosses_groups(rank, inputs):
    groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]
    for group in groups if rank == 0 else groups[::-1]:
        if rank < 2:
            dist.all_reduce(torch.ones(1), group=group)
    dist.barrier()


def leaves_a_send_out(rank, inputs):
    for step, _ in enumerate(inputs):
        if rank > 0:
            dist.recv(torch.ones(1), rank - 1)
        if rank < 2 and not (rank == 0 and step == 3):
            dist.send(torch.ones(1), rank + 1)


@pytest.mark.parametrize(
    ("program", "headline", "advice"),
    [
        (
            goes_on_after_an_error,
            "Rank 1 issued one backward fewer than ranks 0, 2.",
            "Rank 1 ran no backward pass for inputs[1]",
        ),
        (has_an_uneven_loader, "Rank 0 issued one backward fewer than ranks 1, 2.", "Rank 0 has no step 4"),
        (crosses_groups, "Ranks 0, 1 wait for each other: each in all-reduce.", "different process groups"),
        (leaves_a_send_out, "Rank 0 finished; nothing meets rank 1's recv.", None),
        (
            leaves_an_all_reduce_out,
            "Rank 0 issued one all-reduce fewer than ranks 1, 2.",
            "the branch on `rank == 0 and step == 2` leaves before it",
        ),
        (
            issues_one_too_many,
            "Rank 1 issued one all-reduce more than ranks 0, 2.",
            "out of the branch on `rank == 1 and step == 2`",
        ),
        (
            skips_a_bad_input,
            "Rank 2 issued one backward fewer than ranks 0, 1.",
            "Rank 2 ran no backward pass for inputs[1]",
        ),
        (accumulates_alone, "Rank 1 issued one backward fewer than ranks 0, 2.", "Enter no_sync() on every rank"),
        (
            gathers_uneven_sizes,
            "Rank 0 called all-gather with float32[3], rank 1 with float32[4] and rank 2 with float32[5].",
            "the same size on every rank",
        ),
        (
            reduces_metrics_in_its_own_order,
            "Rank 1 called all-reduce with float32[1], ranks 0, 2 with float32[3].",
            "Issue the all-reduce of float32[3] and that of float32[1] in the same order",
        ),
        (receives_first, "Ranks 0-2 wait for each other: each in recv.", "dist.batch_isend_irecv()"),
        (
            receives_from_one_that_never_sends,
            "Ranks 0-2 wait for each other: rank 0 in recv and ranks 1, 2 in barrier.",
            None,
        ),
        (
            has_another_dtype,
            "Rank 1 called all-reduce with float64[2], ranks 0, 2 with float32[2].",
            "the same dtype on every rank",
        ),
        (
            broadcasts_from_itself,
            "Rank 0 called broadcast with root 0, rank 1 with root 1 and rank 2 with root 2.",
            "the same root on every rank",
        ),
    ],
)
def test_what_one_rank_did_otherwise_is_named(program, headline, advice):
    told = judge(emulate(program, (4, 4, 4), "nccl"))
    assert told.headline == headline
    assert told.advice is None if advice is None else advice in str(told.advice)


def test_a_pass_for_other_inputs_than_the_peers_have_is_found_where_it_began():
    told = judge(emulate(evaluates_on_one_rank, (3, 2, 3), "nccl"))
    assert told.headline == 'Rank 0 called "forward 1", where ranks 1, 2 called backward.'
    assert "rank 0 is in inputs[0]" in told.causes[0] and "ranks 1, 2 are in inputs[1]" in told.causes[0]
    assert told.advice is not None and 'Take the "forward 1"' in told.advice.do and "`rank == 0`" in told.advice.do


def test_the_line_that_raised_an_error_is_named_and_its_traceback_is_output():
    def reads_a_missing_key(rank, inputs):
        if rank == 1:
            {}["loss"]
        dist.barrier()

    lines = []
    told = judge(emulate(reads_a_missing_key, (1, 1), "nccl", on_output=lambda rank, line: lines.append((rank, line))))
    (said,) = (fate.text for fate in told.fates if fate.ranks == (1,))
    at = reads_a_missing_key.__code__.co_firstlineno + 2
    assert said == f"Rank 1 raised KeyError: 'loss' (test_advice.py:{at})."
    assert lines[0] == (1, "Traceback (most recent call last):") and lines[-1] == (1, "KeyError: 'loss'")


def test_a_backward_pass_that_has_not_ended_lacks_nothing_yet():
    def other_order(rank, inputs):
        models = [DDP(torch.nn.Linear(2, 1)), DDP(torch.nn.Linear(3, 1))]
        for _ in inputs:
            for model in models if rank == 0 else reversed(models):
                model(torch.ones(1, model.module.in_features)).sum().backward()

    told = judge(emulate(other_order, (2, 2), "gloo"))
    assert "without all of its all-reduces" not in str(told.advice)


def test_a_call_in_which_a_rank_was_killed_is_not_said_to_fit():
    def gathers(rank, inputs):
        dist.gather(torch.ones(2 + rank), [torch.zeros(2)] * 2 if rank == 0 else None)

    assert judge(emulate(gathers, (0, 0), "gloo")).headline == "Rank 0 was killed."


def test_a_rank_that_ran_out_of_time_was_not_killed():
    def spins(rank, inputs):
        while rank == 1:
            torch.ones(1).add_(1)
        dist.barrier()

    told = judge(emulate(spins, (1, 1), "nccl", timeout=0.5))
    assert told.headline == "Rank 1 was still running when the time was over; nothing meets rank 0's barrier."
    assert told.advice is None  # waiting for the barrier would not end it


def test_killed_ranks_are_told_without_a_cause_that_nothing_shows():
    def leaves(rank, inputs):
        if rank == 0 and not inputs:
            return
        dist.all_reduce(torch.ones(1))
        dist.barrier()

    timeline = emulate(leaves, (1, 1), "gloo")
    calls = timeline.calls.filter((pl.col("rank") == 0) | (pl.col("seq") == 0))  # rank 1 never came to the barrier
    for first, told in (
        (Ending("killed", call=1, group="0"), "Ranks 0, 1 were killed; rank 1 had not come to rank 0's barrier."),
        (Ending("raised", call=1, group="0", text="reset"), "Rank 1 was killed; nothing meets rank 0's barrier."),
    ):
        verdict = judge(dataclasses.replace(timeline, calls=calls, ends=(first, Ending("killed"))))
        assert (verdict.headline, verdict.advice) == (told, None)


def test_a_rank_that_still_runs_is_said_to_be_in_its_call():
    writer = Writer(3)
    for rank in range(3):
        for size in (5,) if rank == 0 else (1, 5):
            writer.call(rank, "all_reduce", shape=[[size]], done=size == 1)
    ends = [Ending("unknown", call=0 if rank == 0 else 1, group="0", text=RUNNING) for rank in range(3)]
    told = judge(writer.timeline(ends))
    assert told.odd == (0,)
    assert told.fates[1].text.startswith("Ranks 1, 2 are in all-reduce, call 2")
    assert "rank 0 is in all-reduce, call 1 (train.py:11), and issued no call in its place" in told.fates[1].text
