"""The six cases: one small DDP loop with and without `join()`, with and without a barrier.

They are the six loops of the forum thread "DDP join and uneven inputs" (https://discuss.pytorch.org), each a plain
function of two arguments. `inputs` holds this rank's inputs, tensors of one float each, and rank 1 has one more than
rank 0. Whoever calls a case has set up the process group and the default device before, so that one text serves CPU
and GPU.

    timeline = joinlab.launch(joinlab.cases.case_4, inputs=(5, 6))
    joinlab.cases.CASES[4].asker          # how the thread's author saw it end: ("hangs", "finishes")

This module needs PyTorch and nothing else of joinlab.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


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


@dataclass(frozen=True, slots=True)
class Case:
    """One case and how the thread documents its end: PyTorch 1.9.1, NCCL, two GPUs of one machine.

    program  the function above
    join     whether the loop is under `join()`
    barrier  None, "inside the loop" or "after the loop"
    asker    how rank 0 and rank 1 ended for the thread's author, with 5 and 6 inputs
    answer   the same in the thread's answer: {N: (rank 0, rank 1)} for N and N + 1 inputs
    gloo     why gloo ends it differently; "" where it does not
    """

    program: Callable[[int, Sequence[torch.Tensor]], int]
    join: bool
    barrier: str | None
    asker: tuple[str, str]
    answer: Mapping[int, tuple[str, str]]
    gloo: str = ""


_PEER_GONE = (
    "On gloo the host itself waits until a call is done, and a peer that has ended is an error, since its connections "
    "close. On NCCL within one machine, the end of a peer went unnoticed"
)
_NEVER_MEET = (
    "On NCCL the barrier is an all-reduce like any other, so it met the other rank's all-reduce. On gloo it is a call "
    "of its own kind, which no all-reduce can meet: each rank waits for the other"
)

CASES: Mapping[int, Case] = {
    1: Case(case_1, True, None, ("finishes", "finishes"), {2: ("finishes", "finishes")}),
    2: Case(
        case_2,
        False,
        None,
        ("finishes", "finishes"),
        {
            1: ("finishes", "hangs"),
            2: ("finishes", "finishes its loop, then the program errors: NCCL process group destroyed"),
        },
        f"{_PEER_GONE}; and its gradient all-reduce waits on the GPU's stream, not on the host, so the loop ran on.",
    ),
    3: Case(
        case_3,
        False,
        "inside the loop",
        ("finishes", "hangs"),
        {2: ("finishes", "hangs")},
        f"{_PEER_GONE}, so rank 1 waited for ever.",
    ),
    4: Case(
        case_4,
        True,
        "inside the loop",
        ("hangs", "finishes"),
        {
            2: (
                "hangs",
                "error from a garbage authoritative rank, in the answer's own run; finishes, in the asker's",
            )
        },
        f"{_NEVER_MEET}.",
    ),
    5: Case(
        case_5,
        False,
        "after the loop",
        ("finishes", "hangs"),
        {1: ("finishes", "hangs")},
        f"{_NEVER_MEET}.",
    ),
    6: Case(case_6, True, "after the loop", ("finishes", "finishes"), {2: ("finishes", "finishes")}),
}
"""The six cases by number."""
