"""Programs of libraries that keep state per process end as they do when launched. Only the tests
install these."""

from __future__ import annotations

import pytest
import torch

from joinlab import emulate, launch


def with_accelerate(rank, inputs):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)  # its classes keep their state in one dict each
    model, optimizer = trained = accelerator.prepare(*model_and_optimizer())
    for x in inputs:
        accelerator.backward(model(x).sum())
        optimizer.step()
    accelerator.wait_for_everyone()
    return (
        accelerator.process_index,
        accelerator.is_main_process,
        accelerator.num_processes,
        weight(*trained),
    )


def with_fabric(rank, inputs):
    from lightning_fabric import Fabric
    from lightning_fabric.plugins.environments import TorchElasticEnvironment

    fabric = Fabric(
        accelerator="cpu", devices=2, strategy="ddp", plugins=[TorchElasticEnvironment()]
    )
    fabric.launch()
    model, optimizer = trained = fabric.setup(*model_and_optimizer())
    for x in inputs:
        fabric.backward(model(x).sum())
        optimizer.step()
    return fabric.global_rank, fabric.is_global_zero, fabric.world_size, weight(*trained)


def with_torchmetrics(rank, inputs):
    from torchmetrics import MeanMetric

    metric = MeanMetric()
    for _ in inputs:
        metric.update(torch.tensor(float(rank)))
    return metric.compute().item()


def model_and_optimizer():
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    return model, torch.optim.SGD(model.parameters(), lr=0.5)


def weight(model, optimizer):
    return model.module.weight.item()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("program", "inputs", "expected"),
    [
        (with_accelerate, (1, 1), ((0, True, 2, 0.5), (1, False, 2, 0.5))),
        (with_fabric, (1, 1), ((0, True, 2, 0.5), (1, False, 2, 0.5))),
        (with_torchmetrics, (1, 3), (0.75, 0.75)),
    ],
)
def test_each_rank_has_the_state_of_a_library_for_itself(program, inputs, expected, monkeypatch):
    """Ranks once shared what Accelerate keeps per process: both were process 0."""
    # IPython, in other tests, sets it, and Fabric then refuses DDP
    monkeypatch.delattr("sys.ps1", raising=False)
    for run in (emulate, emulate, launch):
        found = run(program, inputs, "gloo")
        assert ([end.text for end in found.ends], found.returns) == (["", ""], expected)
