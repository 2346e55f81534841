"""Replicas: the parameters of DDP's copies of a model are compared at optimizer steps and at the
end."""

from __future__ import annotations

import warnings
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import joinlab
from joinlab.story.lines import LineKind


def train(rank, inputs, make, epochs=2):
    torch.manual_seed(0)
    model = DDP(nn.Linear(1, 1, bias=False))
    optimizer = make(model.parameters())
    for _ in range(epochs):
        with model.join():
            for x in inputs:
                optimizer.zero_grad()
                (model(x * (rank + 1)) ** 2).sum().backward()
                optimizer.step()


def sgd(parameters):
    return torch.optim.SGD(parameters, 0.05)


def momentum(parameters):
    return torch.optim.SGD(parameters, 0.05, momentum=0.9)


def adam(parameters):
    return torch.optim.Adam(parameters, 0.1)


def zero(parameters):
    with warnings.catch_warnings():  # torch's own module uses what torch has deprecated
        warnings.simplefilter("ignore", DeprecationWarning)
        from torch.distributed.optim import ZeroRedundancyOptimizer
    return ZeroRedundancyOptimizer(parameters, torch.optim.Adam, lr=0.1)


def replica(program, inputs, backend="nccl"):
    timeline = joinlab.emulate(program, inputs, backend)
    assert [str(end) for end in timeline.ends] == ["finished"] * len(inputs)
    return timeline.meta.get("replicas")


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
@pytest.mark.parametrize("make", [momentum, adam])
def test_an_optimizer_that_remembers_lets_replicas_differ_after_an_uneven_epoch(make, backend):
    found = replica(partial(train, make=make), (2, 4), backend)
    expected = {
        "name": "weight",
        "what": "parameter",
        "model": 0,
        "group": "0",
        "steps": {"0": 3, "1": 5},
        "sides": [[0], [1]],
    }
    assert found == expected


def test_an_optimizer_state_that_differs_at_the_end_is_named_without_a_step():
    found = replica(partial(train, make=adam, epochs=1), (2, 4))
    assert (found["name"], found["what"], found["steps"]) == ("weight", "state", {})


@pytest.mark.parametrize(("make", "what"), [(momentum, "state"), (sgd, None)])
def test_launched_replicas_are_compared_where_ranks_return(make, what):
    timeline = joinlab.launch(
        partial(train, make=make), (2, 4), "gloo", progress=False, on_output=None
    )
    replica = timeline.meta.get("replicas")
    assert (replica and (replica["what"], replica["name"], replica["steps"])) == (
        what and (what, "weight", {})
    )


@pytest.mark.parametrize(("make", "inputs"), [(sgd, (2, 4)), (adam, (3, 3)), (zero, (3, 3))])
def test_replicas_that_are_alike_leave_no_finding(make, inputs):
    assert replica(partial(train, make=make) if make is not zero else with_zero, inputs) is None


def with_zero(rank, inputs):
    """Each rank has the state of its own shard alone, and sends what it has stepped afterwards."""
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 1)))
    optimizer = zero(model.parameters())
    for x in inputs:
        optimizer.zero_grad()
        model(x * (rank + 1)).sum().backward()
        optimizer.step()


def one_alone(rank, inputs):
    first, second = DDP(nn.Linear(1, 1)), DDP(nn.Linear(1, 1, bias=False))
    for x in inputs:
        (first(x) + second(x)).sum().backward()
    if rank == 1:
        with torch.no_grad():
            second.module.weight.add_(1.0)
    dist.barrier()


def test_the_model_and_the_parameter_are_named():
    found = replica(one_alone, (2, 2, 2))
    assert found is not None and found.pop("sides") == [[0, 2], [1]]
    assert found == {"name": "weight", "what": "parameter", "model": 1, "group": "0", "steps": {}}


def test_buffers_are_not_compared():
    def program(rank, inputs):
        model = DDP(nn.BatchNorm1d(2))
        for x in inputs:
            model(x * torch.randn(3, 2) + rank).sum().backward()

    assert replica(program, (2, 2)) is None


def in_another_order(rank, inputs):
    models = [DDP(nn.Linear(1, 1)), DDP(nn.Linear(1, 1))]
    for model in models if rank != 1 else models[::-1]:
        model(inputs[0]).sum().backward()


@pytest.mark.parametrize("run", [joinlab.emulate, joinlab.launch])
def test_gradients_of_two_models_of_one_size_that_met_are_kept(run):
    found = run(in_another_order, (1, 1, 1), "gloo").meta["mixed"]
    assert [(one["rank"], one["group"], one["model"]) for one in found] == [
        (0, "0", 0),
        (1, "0", 1),
    ]
    assert found[0]["seq"] == found[1]["seq"]


def test_learning_rates_that_differ_are_kept():
    def each_its_own_rate(rank, inputs):
        net = DDP(nn.Linear(1, 1))
        optimizer = torch.optim.SGD(net.parameters(), 0.1 if rank == 0 else 0.2)
        net(torch.ones(1, 1)).sum().backward()
        optimizer.step()

    found = replica(each_its_own_rate, (1, 1))
    assert found["steps"] == {"0": 1, "1": 1} and found["rates"] == {"0": 0.1, "1": 0.2}


def skips_a_step(rank, inputs):
    net = DDP(nn.Linear(1, 1))
    optimizer = sgd(net.parameters())
    for i, x in enumerate(inputs):
        net(x).sum().backward()
        if rank != 1 or i != 1:
            optimizer.step()


def test_steps_that_a_rank_left_out_leave_open_since_when_replicas_differ():
    timeline = joinlab.emulate(skips_a_step, (3, 3, 3))
    found = timeline.meta["replicas"]
    assert (found["steps"], found["late"]) == ({"0": 3, "1": 2, "2": 3}, True)
    told = "their replicas differ at step 2 of rank 1 and step 3 of ranks 0, 2: weight"
    assert told in joinlab.diagnose(timeline).sentence


def local_sgd(rank, inputs, average):
    model = DDP(nn.Linear(1, 1, bias=False))
    optimizer = sgd(model.parameters())
    for x in inputs:
        optimizer.zero_grad()
        with model.no_sync():
            (model(x * (rank + 1)) ** 2).sum().backward()
        optimizer.step()
        if average:
            dist.all_reduce(model.module.weight.data, dist.ReduceOp.AVG)


@pytest.mark.parametrize(("average", "over"), [(True, "again"), (False, None)])
def test_steps_without_an_average_are_meant_if_replicas_are_made_equal_again(average, over):
    found = replica(partial(local_sgd, average=average), (3, 3))
    assert found.get("over") == over


def changed_at_the_end(rank, inputs, extra_step):
    model = DDP(nn.Linear(1, 2))
    optimizer = sgd(model.parameters())
    for x in inputs:
        optimizer.zero_grad()
        (model(x) ** 2).sum().backward()
        optimizer.step()
    if rank == 0:
        with torch.no_grad():
            model.module.weight.mul_(2)
            model.module.bias.mul_(2)
        if extra_step:
            optimizer.step()


@pytest.mark.parametrize(("extra_step", "over"), [(False, "training"), (True, None)])
def test_replicas_that_part_after_the_last_step_of_all_are_no_fault(extra_step, over):
    found = replica(partial(changed_at_the_end, extra_step=extra_step), (2, 2))
    assert (found["name"], found["more"], found.get("over")) == ("weight", 1, over)


def test_of_a_launch_an_emulation_tells_when_replicas_parted():
    program = partial(changed_at_the_end, extra_step=False)
    timeline = joinlab.launch(program, (2, 2), "gloo", progress=False, on_output=None)
    assert timeline.meta["replicas"]["steps"] == {} and "over" not in timeline.meta["replicas"]
    headline, _, note = joinlab.diagnose(timeline).lines
    assert headline.sentence == "Both ranks finished; every call met its counterpart."
    assert note.sentence.endswith(
        "equal up to the last step, emulated; the emulation ended as this run did."
    )


def rates_of_its_length(rank, inputs):
    model = DDP(nn.Linear(1, 1))
    optimizer = sgd(model.parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=len(inputs))
    with model.join():
        for x in inputs:
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
            schedule.step()


def clips_on_one_rank(rank, inputs):
    model = DDP(nn.Linear(1, 1))
    optimizer = sgd(model.parameters())
    for x in inputs:
        optimizer.zero_grad()
        (model(x) * 9).sum().backward()
        if rank == 1:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()


@pytest.mark.parametrize(
    ("program", "inputs", "tells"),
    [(rates_of_its_length, (3, 5), False), (clips_on_one_rank, (3, 3), True)],
)
def test_ways_that_part_after_the_replicas_did_are_not_why(program, inputs, tells):
    story = joinlab.diagnose(joinlab.emulate(program, inputs))
    assert "replicas differ since step" in story.sentence
    assert bool(story.of(LineKind.PARTING)) == tells
