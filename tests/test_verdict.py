"""The verdict: what happened, why, where, what to do. Every program here is run, and fails as its name says."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from drawn import timelines
from hypothesis import given, settings
from timelines import Writer, case_timeline
from torch.nn.parallel import DistributedDataParallel as DDP

from joinlab.analysis.documented import documented
from joinlab.analysis.verdict import judge
from joinlab.cases import case_1, case_2, case_3, case_4, case_5
from joinlab.emulator.emulate import emulate
from joinlab.timeline import Ending

DONE = Ending("finished")


def one_too_many(rank, inputs):
    t = torch.zeros(1)
    for i, _ in enumerate(inputs):
        dist.all_reduce(t)
        if rank == 5 and i == 3:
            dist.broadcast(t, 0)
        dist.broadcast(t, 0)
        dist.barrier()


def saves_on_one_rank(rank, inputs):
    t = torch.zeros(1)
    dist.all_reduce(t)
    if rank == 0:
        dist.barrier()


def other_order(rank, inputs):
    t = torch.zeros(1)
    calls = [lambda: dist.all_reduce(t), lambda: dist.barrier()]
    for call in calls if rank else calls[::-1]:
        call()


def other_size(rank, inputs):
    dist.all_reduce(torch.zeros(3 - 2 * rank))


def breaks_out(rank, inputs):
    t = torch.zeros(1)
    for i, _ in enumerate(inputs):
        if (rank, i) == (1, 2):
            break
        dist.all_reduce(t)


def raises(rank, inputs):
    t = torch.zeros(1)
    for i, _ in enumerate(inputs):
        if (rank, i) == (1, 2):
            raise ValueError("no such file")
        dist.all_reduce(t)


def syncs_on_one_rank(rank, inputs):
    model = DDP(torch.nn.Linear(1, 1))
    for i, input in enumerate(inputs):
        if i == 1 and rank == 1:
            with model.no_sync():
                model(input).backward()
        else:
            model(input).backward()
    dist.barrier()


class TwoLayers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)

    def forward(self, x, both):
        return self.b(self.a(x)) if both else self.a(x)


def leaves_a_layer_out_at(number):
    def worker(rank, inputs):
        model = DDP(TwoLayers())
        for i, input in enumerate(inputs):
            model(input, both=(rank, i) != (1, number)).sum().backward()
        dist.barrier()

    return worker


def a_fine_one(rank, inputs):
    t = torch.zeros(1)
    for _ in inputs:
        if rank == 0:
            dist.all_reduce(t)
        else:
            dist.all_reduce(t)


def test_one_rank_is_a_call_ahead():
    """Its extra call meets the others' next one unnoticed; the verdict names the rank and that line, not the next."""
    told = judge(emulate(one_too_many, (6,) * 8, "nccl"))
    assert told.headline == "Rank 5 issued one broadcast more than ranks 0-4, 6, 7."
    assert told.odd == (5,)
    assert told.steps[0].startswith("Rank 5 is one call ahead since call 11 (test_verdict.py:")
    extra = next(line for line in told.lines if line.ranks == (5,))
    assert extra.text == "dist.broadcast(t, 0)" and extra.site.endswith(f":{one_too_many.__code__.co_firstlineno + 5}")
    assert told.advice is not None and "branch on `rank == 5 and i == 3`" in told.advice.do


def test_case_4_says_who_asked_and_what_answered():
    told = judge(emulate(case_4, (5, 6), "nccl"))
    assert told.headline == "Rank 0 asked: anyone left? Rank 1's barrier answered."
    assert [one.text for one in told.endings] == ["rank 0 finished", "rank 1 hangs"]
    assert told.steps[1] == "Rank 0 read 0 and concluded that all ranks have joined; rank 1 discarded the value."
    assert [line.text for line in told.lines] == ["with model.join():", "dist.barrier()"]
    assert told.first == 28 and told.advice is not None
    assert told.advice.do == "Move the barrier behind the with block of join()."


def test_what_never_meets_has_not_answered():
    told = judge(emulate(case_4, (5, 6), "gloo"))
    assert told.headline == 'Rank 0 called "anyone left?", where rank 1 called barrier.'
    assert "can never meet" in told.steps[0]


@pytest.mark.parametrize(
    ("program", "inputs", "advice", "notebook"),
    [
        (case_2, (5, 6), "Wrap the loop in model.join()", "04"),
        (case_3, (5, 6), "Give every rank the same number of inputs", "05"),  # with join() it would be case 4
        (case_5, (5, 6), "Wrap the loop in model.join()", "04"),
        (saves_on_one_rank, (1, 1), "out of the branch on `rank == 0`", "08"),
        (other_order, (1, 1), "in the same order on every rank", "08"),
        (other_size, (1, 1), "the same size on every rank", "02"),
        (breaks_out, (4, 4), "Let all ranks stop together", "06"),
        (raises, (4, 4), "Let all ranks stop together", "06"),
        (syncs_on_one_rank, (3, 3), "no_sync() on every rank", "03"),
        (leaves_a_layer_out_at(1), (3, 3), "find_unused_parameters=True", "03"),  # the next forward pass raises
        (leaves_a_layer_out_at(2), (3, 3), "find_unused_parameters=True", "03"),  # the rank goes on to its barrier
    ],
)
def test_advice_by_rule(program, inputs, advice, notebook):
    found = judge(emulate(program, inputs, "nccl")).advice
    assert found is not None and advice in found.do and found.notebook.startswith(notebook) and found.reason


def test_a_run_that_went_well_needs_no_advice():
    for program in (case_1, a_fine_one):
        told = judge(emulate(program, (2, 3) if program is case_1 else (2, 2), "nccl"))
        assert told.headline == "Both ranks finished; every call met its partner."
        assert (told.advice, told.first, told.steps, told.odd) == (None, None, (), ())


def test_where_no_rule_fits_there_is_no_advice():
    writer = Writer(2)
    writer.call(0, "barrier", done=False)
    writer.call(1, "all_reduce", done=False)
    hung = Ending("hung", call=0, group="0", proven=True)
    assert judge(writer.timeline([hung, hung])).advice is None


def test_many_ranks_that_hang_alike_are_told_of_once():
    told = judge(emulate(breaks_out, (4,) * 16, "nccl"))
    assert told.headline == "Rank 1 finished; nothing meets ranks 0, 2-15's all-reduce."
    assert len(told.endings) == 2 and len(told.steps) <= 3 and told.odd == (1,)


def test_two_sends_wait_for_each_other():
    writer = Writer(2)
    writer.call(0, "send", peer=1, done=False)
    writer.call(1, "send", peer=0, done=False)
    hung = Ending("hung", call=0, group="0", proven=True)
    assert judge(writer.timeline([hung, hung])).headline == "Ranks 0, 1 wait for each other: each in send."


@settings(max_examples=40)
@given(timelines())
def test_any_timeline_is_judged_and_never_beyond_what_it_holds(timeline):
    told = judge(timeline)
    assert told.headline.endswith((".", "?")) and len(told.steps) <= 3
    assert sorted(rank for one in told.endings for rank in one.ranks) == list(range(timeline.world_size))
    sites = set(timeline.calls["call_site"].to_list())
    assert all(line.site in sites or not line.site for line in told.lines)
    if "Proven" in " ".join(told.steps):
        assert any(end.proven for end in timeline.ends)


@pytest.mark.parametrize("case", range(1, 7))
@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_every_step_is_one_sentence_of_a_few_words(case, backend):
    told = judge(case_timeline(case, 2, backend))
    for step in (told.headline, *told.steps):
        assert len(step) < 160 and "_get_num_nonjoined_procs" not in step


def test_an_ending_that_differs_from_the_documented_one_is_explained_in_one_sentence():
    told = emulate(case_4, (5, 6), "nccl")
    assert (
        judge(told).then
        == documented(told)
        == (
            "Documented, on NCCL with PyTorch 1.9: rank 0 hangs; rank 1 finishes. Its barrier all-reduced a byte that "
            "nobody set; today's is a float zero."
        )
    )
    assert documented(emulate(case_4, (5, 6), "nccl", era="1.9")) == "As documented, on NCCL with PyTorch 1.9."
    assert documented(emulate(case_4, (3, 4), "nccl")) == ""
    assert "no all-reduce can meet" in documented(emulate(case_4, (5, 6), "gloo"))
    assert documented(emulate(raises, (5, 6), "nccl")) == ""
