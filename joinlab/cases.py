"""The cases: one small DDP loop with and without `join()`, with and without a barrier.

They are the six loops of the forum thread "DDP join and uneven inputs"
(https://discuss.pytorch.org). Each is a plain function of two arguments: the rank, and `inputs`,
the rank's own inputs, which are tensors of one float. Rank 1 has one more than rank 0. The caller
sets up the process group and the default device, so the same code runs on CPU and GPU.

    timeline = joinlab.launch(joinlab.cases.case_4, inputs=(5, 6))
    joinlab.cases.DOCUMENTED[4].asker     # how the thread's author saw it end: ("hangs", "finishes")
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from joinlab.documentation import DOCUMENTED, Documentation

if TYPE_CHECKING:
    from joinlab.timeline import Timeline


def case_1(rank: int, inputs: Sequence[torch.Tensor]) -> int:
    """Case 1: join(), no barrier."""
    model = DDP(torch.nn.Linear(1, 1))
    num_inputs = 0
    with model.join():
        for input in inputs:
            num_inputs += 1
            loss = model(input)
            loss.backward()
    print(f"Rank {rank} has exhausted all {num_inputs} of its inputs!")
    return num_inputs


def case_2(rank: int, inputs: Sequence[torch.Tensor]) -> int:
    """Case 2: neither join() nor a barrier."""
    model = DDP(torch.nn.Linear(1, 1))
    num_inputs = 0
    for input in inputs:
        num_inputs += 1
        loss = model(input)
        loss.backward()
    print(f"Rank {rank} has exhausted all {num_inputs} of its inputs!")
    return num_inputs


def case_3(rank: int, inputs: Sequence[torch.Tensor]) -> int:
    """Case 3: no join(), a barrier inside the loop."""
    model = DDP(torch.nn.Linear(1, 1))
    num_inputs = 0
    for input in inputs:
        num_inputs += 1
        loss = model(input)
        loss.backward()
        dist.barrier()
    print(f"Rank {rank} has exhausted all {num_inputs} of its inputs!")
    return num_inputs


def case_4(rank: int, inputs: Sequence[torch.Tensor]) -> int:
    """Case 4: join(), and a barrier inside the loop."""
    model = DDP(torch.nn.Linear(1, 1))
    num_inputs = 0
    with model.join():
        for input in inputs:
            num_inputs += 1
            loss = model(input)
            loss.backward()
            dist.barrier()
    print(f"Rank {rank} has exhausted all {num_inputs} of its inputs!")
    return num_inputs


def case_5(rank: int, inputs: Sequence[torch.Tensor]) -> int:
    """Case 5: no join(), a barrier after the loop."""
    model = DDP(torch.nn.Linear(1, 1))
    num_inputs = 0
    for input in inputs:
        num_inputs += 1
        loss = model(input)
        loss.backward()
    dist.barrier()
    print(f"Rank {rank} has exhausted all {num_inputs} of its inputs!")
    return num_inputs


def case_6(rank: int, inputs: Sequence[torch.Tensor]) -> int:
    """Case 6: join(), and a barrier after the loop."""
    model = DDP(torch.nn.Linear(1, 1))
    num_inputs = 0
    with model.join():
        for input in inputs:
            num_inputs += 1
            loss = model(input).sum()
            loss.backward()
    dist.barrier()
    print(f"Rank {rank} has exhausted all {num_inputs} of its inputs!")
    return num_inputs


ALL_KNOBS: Mapping[str, tuple[str, ...]] = {"today": ("pad",), "1.9": ("barrier_value", "pad")}
"""By era of PyTorch: the knobs that can change a program on modelled NCCL. The barrier of 1.9
reduces an uninitialized byte (barrier_value); calls of different sizes that meet read memory beyond
the smaller one (pad)."""

_NO_KNOB: Mapping[str, tuple[str, ...]] = {"today": (), "1.9": ()}
_OF_1_9: Mapping[str, tuple[str, ...]] = {"today": (), "1.9": ("barrier_value", "pad")}
_NO_PAD: Mapping[str, tuple[str, ...]] = {"today": (), "1.9": ("barrier_value",)}


@dataclass(frozen=True, slots=True)
class Case:
    """One case. To add one, write its function and its line in CASES.

    program        the function, whose docstring is "Case N: what it does."
    knobs          by era, which of ALL_KNOBS change how it ends or what it reads on a modelled NCCL
    documentation  how the thread documents its end; None if the thread does not have the case
    """

    program: Callable[[int, Sequence[torch.Tensor]], int]
    knobs: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: ALL_KNOBS)
    documentation: Documentation | None = None

    @property
    def title(self) -> str:
        """The first line of its docstring, without the full stop."""
        return (self.program.__doc__ or self.program.__name__).partition("\n")[0].rstrip(".")


CASES: Mapping[int, Case] = {
    1: Case(case_1, _NO_KNOB, DOCUMENTED[1]),
    2: Case(case_2, _NO_KNOB, DOCUMENTED[2]),
    3: Case(case_3, _NO_PAD, DOCUMENTED[3]),
    4: Case(case_4, ALL_KNOBS, DOCUMENTED[4]),
    5: Case(case_5, _OF_1_9, DOCUMENTED[5]),
    6: Case(case_6, _NO_PAD, DOCUMENTED[6]),
}


def documented(case: int, inputs: Sequence[int] | None = None) -> Timeline:
    """The calls that the forum thread lists for a case, as a Timeline without times.

    case    its number
    inputs  of the two ranks; None: those for which the thread lists the calls (of case 2 there are two)

    Where the thread tells how a rank ends, its own words are the text of the ending.
    `meta["contradiction"]` says where it contradicts itself. Raises ProgramError for a case or
    inputs without a list.

        joinlab.compare(joinlab.emulate(case_4, (2, 3), era="1.9"), documented(4))
    """
    from joinlab.analysis.thread import documented

    return documented(case, inputs)
