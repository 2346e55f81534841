"""Libraries that keep state per process get state per rank. They are not dependencies: tests skip without them."""

from __future__ import annotations

import pytest
import torch

from joinlab import emulate, launch


@pytest.mark.filterwarnings("ignore")
def test_each_rank_has_the_state_of_accelerate_for_itself():
    """Its classes share a dict each: both ranks were process 0, and a barrier under is_main_process met its partner."""
    pytest.importorskip("accelerate")

    def program(rank, inputs):
        from accelerate import Accelerator

        accelerator = Accelerator(cpu=True)
        accelerator.wait_for_everyone()
        return accelerator.process_index, accelerator.is_main_process, accelerator.num_processes

    expected = ((0, True, 2), (1, False, 2))
    assert [emulate(program, (1, 1), "gloo").returns for _ in range(2)] == [expected] * 2
    assert launch(program, (1, 1), "gloo").returns == expected


def test_a_metric_of_torchmetrics_is_that_of_all_ranks():
    torchmetrics = pytest.importorskip("torchmetrics")

    def program(rank, inputs):
        metric = torchmetrics.MeanMetric()
        for _ in inputs:
            metric.update(torch.tensor(float(rank)))
        return metric.compute().item()

    expected = (0.75, 0.75)
    assert emulate(program, (1, 3), "gloo").returns == expected
    assert launch(program, (1, 3), "gloo").returns == expected
