"""How the six cases end according to the forum thread "DDP join and uneven inputs". Importing it
needs no PyTorch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Documentation:
    """How the thread documents the end of a case: PyTorch 1.9.1, NCCL, two GPUs of one machine.

    join     whether the loop is under `join()`
    barrier  None, "inside the loop" or "after the loop"
    asker    how rank 0 and rank 1 ended for the thread's author, with 5 and 6 inputs
    answer   the same in the thread's answer: {N: (rank 0, rank 1)} for N and N + 1 inputs
    gloo     why gloo ends it differently; "" if it does not
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
        if inputs[0] == 5:
            return self.asker
        return self.answer.get(inputs[0])

    @property
    def switches(self) -> tuple[bool, str]:
        """Whether the loop is under join(), and where its barrier is, as the pictures say it."""
        return self.join, self.barrier or "left out"


_PEER_GONE = (
    "On gloo the host waits until a call is done, and gets an error when a peer has ended, since the peer's "
    "connections close. On NCCL within one machine, no rank noticed that a peer had ended"
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
            2: (
                "finishes",
                "finishes its loop, then the program errors: NCCL process group destroyed",
            ),
        },
        f"{_PEER_GONE}, and the gradient all-reduce waits on the GPU's stream, not on the host, so the loop went on.",
    ),
    3: Documentation(
        False,
        "inside the loop",
        _RANK_1_HANGS,
        {2: _RANK_1_HANGS},
        f"{_PEER_GONE}, so rank 1 waited forever.",
    ),
    4: Documentation(
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
    5: Documentation(False, "after the loop", _RANK_1_HANGS, {1: _RANK_1_HANGS}, f"{_NEVER_MEET}."),
    6: Documentation(True, "after the loop", _BOTH_FINISH, {2: _BOTH_FINISH}),
}


def documented_case(text: str) -> int | None:
    """The number of the case that a program's source text is, word for word; None of any other
    program, whatever its name."""
    named = re.match(r"def case_([1-6])\(", text)
    if named is None or f"\n{text.strip()}\n" not in _text_of_cases():
        return None
    return int(named[1])


@cache
def _text_of_cases() -> str:
    return (files("joinlab") / "cases.py").read_text("utf-8")
