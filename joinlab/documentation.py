"""Documentation: how the forum thread "DDP join and uneven inputs" says that the six cases end. It needs no PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Documentation:
    """How the thread documents the end of a case: PyTorch 1.9.1, NCCL, two GPUs of one machine.

    join     whether the loop is under `join()`
    barrier  None, "inside the loop" or "after the loop"
    asker    how rank 0 and rank 1 ended for the thread's author, with 5 and 6 inputs
    answer   the same in the thread's answer: {N: (rank 0, rank 1)} for N and N + 1 inputs
    gloo     why gloo ends it differently; "" where it does not
    """

    join: bool
    barrier: str | None
    asker: tuple[str, str]
    answer: Mapping[int, tuple[str, str]]
    gloo: str = ""

    def ends(self, inputs: Sequence[int]) -> tuple[str, str] | None:
        """How both ranks ended with these inputs; None if the thread does not say."""
        if len(inputs) != 2 or inputs[1] != inputs[0] + 1:
            return None
        return self.asker if inputs[0] == 5 else self.answer.get(inputs[0])


_PEER_GONE = (
    "On gloo the host itself waits until a call is done, and a peer that has ended is an error, since its connections "
    "close. On NCCL within one machine, the end of a peer went unnoticed"
)
_NEVER_MEET = (
    "On NCCL the barrier is an all-reduce like any other, so it met the other rank's all-reduce. On gloo it is a call "
    "of its own kind, which no all-reduce can meet: each rank waits for the other"
)

_BOTH_FINISH = ("finishes", "finishes")
_RANK_1_HANGS = ("finishes", "hangs")

DOCUMENTED: Mapping[int, Documentation] = {
    1: Documentation(True, None, _BOTH_FINISH, {2: _BOTH_FINISH}),
    2: Documentation(
        False,
        None,
        _BOTH_FINISH,
        {
            1: _RANK_1_HANGS,
            2: ("finishes", "finishes its loop, then the program errors: NCCL process group destroyed"),
        },
        f"{_PEER_GONE}; and its gradient all-reduce waits on the GPU's stream, not on the host, so the loop ran on.",
    ),
    3: Documentation(
        False, "inside the loop", _RANK_1_HANGS, {2: _RANK_1_HANGS}, f"{_PEER_GONE}, so rank 1 waited for ever."
    ),
    4: Documentation(
        True,
        "inside the loop",
        ("hangs", "finishes"),
        {2: ("hangs", "error from a garbage authoritative rank, in the answer's own run; finishes, in the asker's")},
        f"{_NEVER_MEET}.",
    ),
    5: Documentation(False, "after the loop", _RANK_1_HANGS, {1: _RANK_1_HANGS}, f"{_NEVER_MEET}."),
    6: Documentation(True, "after the loop", _BOTH_FINISH, {2: _BOTH_FINISH}),
}
"""By number of the case."""
