"""Symptoms: programs that fail as users' jobs did, one for each cause.

course/symptoms.toml has the reports, the cause, the cure and the inputs that show it. Where a real
job would read different data from its shard, a program has a table by rank.

    joinlab.emulate(joinlab.scenarios.symptoms.early_stopping, inputs=(5, 5), backend="gloo")
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP

Inputs = Sequence[torch.Tensor]


# ---- ranks with unequal numbers of inputs


def uneven_shards(rank: int, inputs: Inputs) -> None:
    """One rank's shard has an extra batch; two epochs."""
    model = DDP(torch.nn.Linear(1, 1))
    for _epoch in range(2):
        for x in inputs:
            model(x).backward()
    print(next(model.parameters()).grad.sum().item())  # type: ignore[union-attr]


def loss_averaged_under_join(rank: int, inputs: Inputs) -> None:
    """The loop averages the loss over the ranks inside join()."""
    model = DDP(torch.nn.Linear(1, 1))
    with model.join():
        for x in inputs:
            loss = model(x)
            loss.backward()
            mean = loss.detach() / dist.get_world_size()
            dist.all_reduce(mean)


def batch_norm_under_join(rank: int, inputs: Inputs) -> None:
    """SyncBatchNorm makes its own calls in each forward, and join() cannot repeat them."""
    net = torch.nn.Sequential(torch.nn.Linear(1, 2), torch.nn.BatchNorm1d(2))
    model = DDP(torch.nn.SyncBatchNorm.convert_sync_batchnorm(net))  # type: ignore[no-untyped-call]
    with model.join():
        for x in inputs:
            model(torch.stack([x, 2 * x])).sum().backward()


def sharded_optimizer_under_join(rank: int, inputs: Inputs) -> None:
    """A ZeroRedundancyOptimizer communicates too, but Join has only the model."""
    from torch.distributed.optim import ZeroRedundancyOptimizer  # slow to import

    model = DDP(torch.nn.Linear(1, 1))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    with Join([model]):
        for x in inputs:
            model(x).backward()
            optimizer.step()


def adam_under_join(rank: int, inputs: Inputs) -> list[float]:
    """The moments of a rank that ran out fall behind, so its weights differ after the next
    epoch."""
    model = DDP(torch.nn.Linear(1, 1, bias=False))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _epoch in range(2):
        with model.join():
            for x in inputs:
                optimizer.zero_grad()
                model(x).square().backward()
                optimizer.step()
        for x in inputs[:1]:  # an even epoch: every rank has this batch
            optimizer.zero_grad()
            model(x).square().backward()
            optimizer.step()
    return [parameter.item() for parameter in model.parameters()]


def decode_until_done(rank: int, inputs: Inputs) -> None:
    """Each rank generates until its own text is done; each token gathers a sharded layer."""
    length = (2, 5)[rank]  # tokens of this rank's answer
    for _token in range(length):
        shards = [torch.zeros(1) for _ in range(dist.get_world_size())]
        dist.all_gather(shards, torch.ones(1))
    print(shards[0].item())


def microbatches_differ(rank: int, inputs: Inputs) -> None:
    """Each stage of a pipeline counts the microbatches of its own data."""
    for x in inputs:
        if rank == 0:
            dist.send(x, dst=1)
        else:
            dist.recv(x, src=0)
    print(x.item())


# ---- calls that only some ranks make


def rank_0_only(rank: int, inputs: Inputs) -> None:
    """Rank 0 saves, and the barrier after it is in the same branch."""
    model = DDP(torch.nn.Linear(1, 1))
    for x in inputs:
        model(x).backward()
    if rank == 0:
        model.state_dict()  # torch.save(model.state_dict(), path)
        dist.barrier()


def validation_on_rank_0(rank: int, inputs: Inputs) -> None:
    """Rank 0 validates with the wrapped model, whose forward broadcasts buffers."""
    model = DDP(torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.BatchNorm1d(1)))
    batch = torch.stack([inputs[0], 2 * inputs[0]])
    for _step in range(2):
        model(batch).sum().backward()
        if rank == 0:
            model(batch)
    model(batch).sum().backward()
    print(next(model.parameters()).grad.sum().item())  # type: ignore[union-attr]


def early_stopping(rank: int, inputs: Inputs) -> None:
    """Each rank stops by the validation loss of its own shard."""
    losses = ((0.9, 0.7, 0.6, 0.5, 0.4), (0.9, 0.7, 0.8, 0.8, 0.7))[rank]
    model = DDP(torch.nn.Linear(1, 1))
    best = 1.0
    for x, loss in zip(inputs, losses, strict=False):
        model(x).backward()
        if loss > best:
            break
        best = loss
    print(next(model.parameters()).grad.sum().item())  # type: ignore[union-attr]


def metric_of_an_empty_shard(rank: int, inputs: Inputs) -> None:
    """A rank reduces the metric only if it has seen something."""
    scores = ([0.5, 0.7], [])[rank]
    total = torch.tensor([sum(scores), len(scores)], dtype=torch.float32)
    if len(scores) > 0:
        dist.all_reduce(total)
    dist.barrier()


def log_keys_differ(rank: int, inputs: Inputs) -> None:
    """The ranks reduce each entry of their logs, and one rank has an extra key."""
    logs = ({"loss": 1.0}, {"loss": 2.0, "grad_norm": 3.0})[rank]
    for value in logs.values():
        dist.all_reduce(torch.tensor([value]))
    counts = torch.zeros(2)
    dist.all_reduce(counts)
    print(counts.sum().item())


def nan_batch_skipped(rank: int, inputs: Inputs) -> None:
    """Only the rank with the NaN loss skips its batch."""
    bad = (None, 1)[rank]  # the batch of this rank's shard that is broken
    model = DDP(torch.nn.Linear(1, 1))
    for step, x in enumerate(inputs):
        loss = model(x * float("nan") if step == bad else x)
        if torch.isnan(loss):
            continue
        loss.backward()
    print(next(model.parameters()).grad.sum().item())  # type: ignore[union-attr]


def best_decided_by_each(rank: int, inputs: Inputs) -> None:
    """reduce() gives the loss to rank 0, but every rank compares it with the best."""
    best = torch.tensor([1.5])
    loss = torch.tensor([1.0])
    dist.reduce(loss, dst=0)
    if loss < best:
        dist.barrier()  # before the best model is saved
    dist.all_reduce(loss)
    print(loss.item())


def file_seen_by_some(rank: int, inputs: Inputs) -> None:
    """A file exists on one node, but not yet on the other."""
    exists = (True, False)[rank]  # path.exists(), on a network drive
    if not exists:
        dist.barrier()  # until rank 0 has written it
    dist.all_reduce(torch.ones(1))


def log_by_the_clock(rank: int, inputs: Inputs) -> None:
    """The ranks average a loss once a second, each by its own clock."""
    seconds = ((0.4, 0.8, 1.2), (0.5, 1.0, 2.0))[rank]  # when each step of this rank was done
    last = 0.0
    for now in seconds:
        if now - last >= 1.0:
            dist.all_reduce(torch.ones(1))
            last = now
    dist.barrier()


def error_swallowed(rank: int, inputs: Inputs) -> None:
    """A broken sample raises on one rank, which goes on with the next sample."""
    broken = (None, 1)[rank]
    model = DDP(torch.nn.Linear(1, 1))
    for step, x in enumerate(inputs):
        try:
            if step == broken:
                raise ValueError("broken sample")
            model(x).backward()
        except ValueError:
            print(f"rank {rank} skips a sample")
    dist.barrier()


def resumed_on_one_rank(rank: int, inputs: Inputs) -> None:
    """Only one rank found a checkpoint, and begins at the checkpoint's step."""
    start = (0, 1)[rank]  # checkpoint["step"]
    model = DDP(torch.nn.Linear(1, 1))
    for x in inputs[start:]:
        model(x).backward()
    print(next(model.parameters()).grad.sum().item())  # type: ignore[union-attr]


def expert_without_tokens(rank: int, inputs: Inputs) -> None:
    """A mixture of experts: without tokens, an expert's parameters get no gradient."""
    experts = torch.nn.ModuleList([torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)])
    model = DDP(_Routed(experts))
    chosen = ((0, 1), (0,))[rank]  # the experts that this rank's tokens take
    for x in inputs:
        model(x, chosen).backward()


def frozen_on_one_rank(rank: int, inputs: Inputs) -> None:
    """One rank freezes a layer after DDP's constructor."""
    model = DDP(torch.nn.Linear(1, 1))
    if rank == 1:
        model.module.bias.requires_grad = False
    for x in inputs:
        model(x).backward()


def no_sync_out_of_step(rank: int, inputs: Inputs) -> list[float]:
    """A skipped batch puts one rank's counter for accumulation out of step."""
    skipped = (None, 0)[rank]
    model = DDP(torch.nn.Linear(1, 1))
    count = 0
    for step, x in enumerate(inputs):
        count += step != skipped
        model.require_backward_grad_sync = count % 2 == 0
        model(x * (step + 1)).backward()
    return [parameter.grad.item() for parameter in model.parameters() if parameter.grad is not None]


def unused_layer(rank: int, inputs: Inputs) -> None:
    """The loss does not use a layer, on any rank."""
    layers = torch.nn.ModuleList([torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)])
    model = DDP(_Routed(layers))
    for x in inputs:
        model(x, (0,)).backward()


class _Routed(torch.nn.Module):
    """The sum of the outputs of the experts in `taken`."""

    def __init__(self, experts: torch.nn.ModuleList) -> None:
        super().__init__()
        self.experts = experts

    def forward(self, x: torch.Tensor, chosen: Sequence[int]) -> torch.Tensor:
        return torch.stack([self.experts[expert](x) for expert in chosen]).sum()


# ---- calls that meet the wrong call, or none


def models_in_other_order(rank: int, inputs: Inputs) -> list[float]:
    """The ranks step two models of the same size in different orders."""
    models = {name: DDP(torch.nn.Linear(1, 1)) for name in ("generator", "critic")}
    order = (["generator", "critic"], ["critic", "generator"])[rank]
    for x in inputs:
        for name in order:
            models[name](x * (2 if name == "critic" else 1)).backward()
    return [model.module.weight.grad.item() for model in models.values()]


def metrics_in_other_order(rank: int, inputs: Inputs) -> list[float]:
    """Each rank reduces its metrics in its own order. The sums are swapped, and nothing hangs."""
    metrics = ({"loss": 1.0, "accuracy": 100.0}, {"accuracy": 100.0, "loss": 1.0})[rank]
    sums = {}
    for name in metrics:
        value = torch.tensor([metrics[name]])
        dist.all_reduce(value)
        sums[name] = value.item()
    return [sums["loss"], sums["accuracy"]]


def groups_in_other_order(rank: int, inputs: Inputs) -> None:
    """The ranks use two groups in different orders, and read a result in between."""
    groups = {name: dist.new_group([0, 1]) for name in ("data", "tensor")}
    for name in (("data", "tensor"), ("tensor", "data"))[rank]:
        value = torch.ones(1)
        dist.all_reduce(value, group=groups[name])
        value.item()


def lengths_differ(rank: int, inputs: Inputs) -> None:
    """The ranks gather unequal numbers of predictions."""
    predictions = torch.ones(2 + rank)
    everyone = [torch.zeros_like(predictions) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, predictions)
    dist.barrier()


def half_on_one_rank(rank: int, inputs: Inputs) -> float:
    """One rank reduces a half-precision loss, the other a float."""
    loss = torch.ones(2, dtype=(torch.float32, torch.float16)[rank])
    dist.all_reduce(loss)
    return loss.sum().item()


def each_its_own_root(rank: int, inputs: Inputs) -> None:
    """Each rank names itself as the source of the broadcast."""
    config = torch.tensor([0.1, 0.2])
    dist.broadcast(config, src=rank)
    dist.all_reduce(config)
    config.sum().item()


def all_receive_first(rank: int, inputs: Inputs) -> None:
    """A ring in which every rank receives before it sends."""
    size = dist.get_world_size()
    got = torch.zeros(1)
    dist.recv(got, src=(rank - 1) % size)
    dist.send(torch.ones(1), dst=(rank + 1) % size)


def read_before_wait(rank: int, inputs: Inputs) -> float:
    """The program reads the result of an asynchronous call without a wait."""
    total = torch.tensor([1.0 + rank])
    dist.all_reduce(total, async_op=True)
    return total.item()


def destroyed_behind_a_call(rank: int, inputs: Inputs) -> None:
    """An uneven loop without join(), followed by destroy_process_group() as in tutorials."""
    model = DDP(torch.nn.Linear(1, 1))
    for x in inputs:
        model(x).backward()
    dist.destroy_process_group()


def group_under_an_if(rank: int, inputs: Inputs) -> None:
    """Only rank 0 runs the set-up code, including new_group()."""
    group = None
    if rank == 0:
        group = dist.new_group()
    dist.all_reduce(torch.ones(1), group=group)
