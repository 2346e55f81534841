"""Case 2 with a line that makes it hang."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def case_2_item(rank: int, inputs: Sequence[torch.Tensor]) -> None:
    """Case 2, and a result is read after the loop."""
    model = DDP(torch.nn.Linear(1, 1))
    for input in inputs:
        loss = model(input)
        loss.backward()
    print(f"rank {rank} ends with the loss {loss.item()}")
