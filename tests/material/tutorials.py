"""Training scripts as tutorials have them, each as one function of (rank, inputs). None knows of joinlab.

Each takes GPUs and NCCL where `torch.cuda` has any, else the CPU and gloo, and returns numbers that every step changes.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.model_averaging import averagers
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def setup(rank: int) -> tuple[torch.device, dict[str, Any]]:
    """Device, and options of DDP on it."""
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "12355"
    gpus = torch.cuda.is_available()
    if gpus:
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if gpus else "gloo", rank=rank, world_size=2)
    torch.manual_seed(0)
    return (torch.device("cuda", rank), {"device_ids": [rank]}) if gpus else (torch.device("cpu"), {})


def numbers(model: nn.Module, *more: float) -> list[float]:
    """What is compared: the sum of each parameter, and more."""
    full = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return [round(p.detach().double().sum().item(), 5) for p in full] + [round(float(one), 5) for one in more]


class ToyModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net1 = nn.Linear(10, 10)
        self.relu = nn.ReLU()
        self.net2 = nn.Linear(10, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net2(self.relu(self.net1(x)))


def toy_model(rank: int, inputs: Any) -> list[float]:
    device, options = setup(rank)
    model = ToyModel().to(device)
    ddp_model = DDP(model, **options)
    loss_fn = nn.MSELoss()
    optimizer = torch.optim.SGD(ddp_model.parameters(), lr=0.001)
    for _ in range(3):
        optimizer.zero_grad()
        outputs = ddp_model(torch.randn(20, 10) * (rank + 1))
        labels = torch.randn(20, 5).to(device)
        loss = loss_fn(outputs, labels)
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()
    return numbers(model, loss.item())


def checkpoint(rank: int, inputs: Any) -> list[float]:
    device, options = setup(rank)
    ddp_model = DDP(ToyModel().to(device), **options)
    folder = [tempfile.mkdtemp() if rank == 0 else ""]
    dist.broadcast_object_list(folder)
    path = os.path.join(folder[0], "model.checkpoint")
    if rank == 0:
        torch.save(ddp_model.state_dict(), path)
    dist.barrier()
    with torch.no_grad():
        for p in ddp_model.parameters():
            p.add_(1)
    ddp_model.load_state_dict(torch.load(path, map_location={"cuda:0": f"cuda:{rank}"}, weights_only=True))
    optimizer = torch.optim.SGD(ddp_model.parameters(), lr=0.001)
    loss = F.mse_loss(ddp_model(torch.randn(20, 10).to(device)), torch.randn(20, 5).to(device))
    loss.backward()
    optimizer.step()
    dist.barrier()
    if rank == 0:
        os.remove(path)
        os.rmdir(folder[0])
    dist.destroy_process_group()
    return numbers(ddp_model, loss.item())


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3)
        self.bn1 = nn.BatchNorm2d(4)
        self.dropout = nn.Dropout(0.25)
        self.fc1 = nn.Linear(4 * 13 * 13, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 2)
        return F.log_softmax(self.fc1(self.dropout(torch.flatten(x, 1))), dim=1)


def digits() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(
        torch.randn(33, 1, 28, 28, generator=generator), torch.randint(0, 10, (33,), generator=generator)
    )


def mnist(rank: int, inputs: Any) -> list[float]:
    device, options = setup(rank)
    dataset = digits()
    sampler = DistributedSampler(dataset, num_replicas=2, rank=rank, shuffle=True)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler)
    model = DDP(Net().to(device), **options)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        model.train()
        for data, target in loader:
            data, target = data.to(device), target.to(device)
            optimizer.zero_grad()
            loss = F.nll_loss(model(data), target)
            loss.backward()
            optimizer.step()
        scheduler.step()
        model.eval()
        correct = torch.zeros(1, device=device)
        with torch.no_grad():
            for data, target in loader:
                correct += (model(data.to(device)).argmax(1) == target.to(device)).sum()
        dist.all_reduce(correct, op=dist.ReduceOp.SUM)
        print(f"epoch {epoch}: {correct.item():.0f} correct")
    return numbers(model, correct.item(), model.module.bn1.running_mean.sum())


def transformer(rank: int, inputs: Any) -> list[float]:
    device, options = setup(rank)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    model = DDP(
        nn.Sequential(nn.Embedding(50, 16), nn.TransformerEncoder(layer, 2), nn.Linear(16, 50)).to(device), **options
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    text = torch.randint(0, 50, (8, 2, 12), generator=torch.Generator().manual_seed(rank)).to(device)
    norms = 0.0
    for step, tokens in enumerate(text):
        accumulating = (step + 1) % 4 != 0
        with model.no_sync() if accumulating else nullcontext():
            logits = model(tokens[:, :-1])
            (F.cross_entropy(logits.reshape(-1, 50), tokens[:, 1:].reshape(-1)) / 4).backward()
        if not accumulating:
            norms += torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
            optimizer.step()
            optimizer.zero_grad()
    return numbers(model, norms)


def zero(rank: int, inputs: Any) -> list[float]:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    device, options = setup(rank)
    model = DDP(nn.Sequential(*[nn.Linear(20, 20) for _ in range(4)]).to(device), **options)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        F.mse_loss(model(torch.randn(20, 20).to(device)), torch.randn(20, 20).to(device)).backward()
        optimizer.step()
    optimizer.consolidate_state_dict(to=0)
    return numbers(model, len(optimizer.state_dict()["state"]) if rank == 0 else 0)


def amp(rank: int, inputs: Any) -> list[float]:
    device, options = setup(rank)
    model = DDP(ToyModel().to(device), **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler(device.type)
    for _ in range(3):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device_type=device.type, dtype=torch.bfloat16):
            loss = F.mse_loss(model(torch.randn(8, 10, device=device)), torch.randn(8, 5, device=device))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
    return numbers(model, loss.item(), scaler.get_scale())


def fsdp1(rank: int, inputs: Any) -> list[float]:
    device, _ = setup(rank)
    model = FSDP(ToyModel().to(device), use_orig_params=True, device_id=device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 10, device=device) + rank).square().mean()
        loss.backward()
        model.clip_grad_norm_(1.0)
        optimizer.step()
    with FSDP.summon_full_params(model):
        return numbers(model)


def fsdp2(rank: int, inputs: Any) -> list[float]:
    device, _ = setup(rank)
    model = ToyModel().to(device)
    mesh = dist.device_mesh.init_device_mesh(device.type, (2,))
    for layer in (model.net1, model.net2):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(3):
        model(torch.randn(4, 10, device=device) + rank).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return numbers(model)


def tensor_parallel(rank: int, inputs: Any) -> list[float]:
    device, _ = setup(rank)
    mesh = dist.device_mesh.init_device_mesh(device.type, (2,))
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 6)).to(device)
    model = parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    for step in range(3):
        torch.manual_seed(step)
        model(torch.rand(20, 10, device=device)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return numbers(model)


class Squares(Dataset):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.full((10,), float(index)), torch.full((5,), float(index) ** 2)


def loader_workers(rank: int, inputs: Any) -> list[float]:
    device, options = setup(rank)
    dataset = Squares()
    loader = DataLoader(dataset, batch_size=3, sampler=DistributedSampler(dataset), num_workers=2, drop_last=True)
    model = DDP(ToyModel().to(device), **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for x, y in loader:
        optimizer.zero_grad()
        F.mse_loss(model(x.to(device, non_blocking=True)), y.to(device, non_blocking=True)).backward()
        optimizer.step()
    return numbers(model)


def uneven(rank: int, inputs: Any) -> list[float]:
    device, options = setup(rank)
    model = DDP(ToyModel().to(device), **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    steps = 0
    with model.join():
        for _ in range(3 + 2 * rank):
            optimizer.zero_grad()
            model(torch.randn(4, 10, device=device)).sum().backward()
            optimizer.step()
            steps += 1
    return numbers(model, steps)


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.head = nn.Linear(10, 10), nn.Linear(10, 10), nn.Linear(10, 1)

    def forward(self, x: torch.Tensor, left: bool) -> torch.Tensor:
        return self.head(F.relu(self.left(x) if left else self.right(x)))


def unused_parameters(rank: int, inputs: Any) -> list[float]:
    device, options = setup(rank)
    model = DDP(Branches().to(device), find_unused_parameters=True, gradient_as_bucket_view=True, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for step in range(4):
        optimizer.zero_grad()
        model(torch.randn(4, 10, device=device), (step + rank) % 2 == 0).sum().backward()
        optimizer.step()
    return numbers(model)


def comm_hook(rank: int, inputs: Any) -> list[float]:
    device, options = setup(rank)
    model = DDP(ToyModel().to(device), **options)
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 10, device=device) * (rank + 1)).sum().backward()
        optimizer.step()
    return numbers(model)


def model_averaging(rank: int, inputs: Any) -> list[float]:
    device, _ = setup(rank)
    model = ToyModel().to(device)
    averager = averagers.PeriodicModelAverager(period=2, warmup_steps=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(4, 10, device=device) * (rank + 1)).sum().backward()
        optimizer.step()
        averager.average_parameters(model.parameters())
    return numbers(model)


def pipeline(rank: int, inputs: Any) -> list[float]:
    device, _ = setup(rank)
    stage = nn.Linear(6, 6).to(device)
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.1)
    for _ in range(3):
        if rank == 0:
            out = stage(torch.ones(2, 6, device=device))
            dist.send(out.detach(), dst=1)
            grad = torch.empty_like(out)
            dist.recv(grad, src=1)
            out.backward(grad)
        else:
            taken = torch.empty(2, 6, device=device)
            dist.recv(taken, src=0)
            taken.requires_grad_()
            stage(taken).sum().backward()
            dist.send(taken.grad, dst=0)
        optimizer.step()
        optimizer.zero_grad()
    return numbers(stage)


def metrics(rank: int, inputs: Any) -> list[float]:
    device, options = setup(rank)
    model = DDP(ToyModel().to(device), **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 10, device=device) + rank).square().mean()
        loss.backward()
        optimizer.step()
    mean = loss.detach().clone()
    dist.all_reduce(mean, op=dist.ReduceOp.SUM)
    mean /= dist.get_world_size()
    gathered = [torch.zeros(2, device=device) for _ in range(2)]
    dist.all_gather(gathered, torch.full((2,), float(rank + 1), device=device))
    objects: list[Any] = [None, None]
    dist.all_gather_object(objects, {"rank": rank, "loss": round(loss.item(), 4)})
    if rank == 0:
        print(f"mean loss {mean.item():.4f}")
    return numbers(model, mean.item(), torch.cat(gathered).sum(), *[one["loss"] for one in objects])


def compiled(rank: int, inputs: Any) -> list[float]:
    device, options = setup(rank)
    warnings.filterwarnings("ignore", "Guards may run slower on Python 3.13.0")  # each process says so once
    model = torch.compile(ToyModel().to(device), backend="eager")
    model = DDP(model, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 10, device=device)).sum().backward()
        optimizer.step()
    return numbers(model)


SCRIPTS: tuple[Callable[[int, Any], list[float]], ...] = (
    *(toy_model, checkpoint, mnist, transformer, zero, amp, fsdp1, fsdp2, tensor_parallel, loader_workers),
    *(uneven, unused_parameters, comm_hook, model_averaging, pipeline, metrics, compiled),
)
