"""The steps of a program that iterates over its own DataLoader, not over its `inputs`: counted by
backward passes.

    step      null               | 0                               | 1                                      | 1
    rank      DDP's construction | forward, backward, an optimizer | forward, forward of another, backward  | the rest

A step begins with DDP's forward pass, or with a backward pass that follows no forward pass of DDP,
and lasts until the next one begins. So it has one backward pass, and the program's work on its
gradients. With gradient accumulation every backward pass is a step, as every input is in a loop
over `inputs`. Forward passes without a backward pass belong to the step that they are in; a
backward pass within another (reentrant checkpointing) begins none. Calls that join() makes for a
rank that has run out are in no step of that rank.

If any rank marks an input, the rows of all ranks number inputs: see `settle_steps`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Literal, Protocol

from joinlab.ops import CallRow, SpanRow

BY_BACKWARD: Literal["backward passes"] = "backward passes"
"""meta["input_column"] of a Timeline whose `input` column counts steps; absent if the column
numbers inputs."""


class Steps:
    """Counts the steps of one rank."""

    def __init__(self) -> None:
        self.now: int | None = None
        """The step that the rank is in: None before the first one, and once it has marked an
        input."""
        self.marked = False
        self._passes = 0  # backward passes under way, one within the other
        self._over = False  # the step has had its backward pass

    def mark(self) -> None:
        """The rank iterates over its inputs, so these are its steps."""
        self.marked, self.now = True, None

    def begin_forward(self) -> bool:
        """Note that DDP's forward pass begins; True if a step begins with it."""
        begins = not self.marked and (self._over or self.now is None)
        if begins:
            self.now = 0 if self.now is None else self.now + 1
            self._over = False
        return begins

    def begin_backward(self) -> bool:
        """Note that a backward pass begins; True if a step begins with it."""
        begins = not self._passes and self.begin_forward()
        self._passes += 1
        return begins

    def end_backward(self) -> None:
        """Note that a backward pass has ended."""
        self._passes -= 1
        self._over = not self._passes


class Counted(Protocol):
    """Facts about one rank for `settle_steps`; `numbered`: the rows whose `input` is a step."""

    @property
    def marked(self) -> bool: ...

    @property
    def numbered(self) -> Collection[CallRow | SpanRow]: ...


def settle_steps(ranks: Collection[Counted]) -> bool:
    """Whether the rows of these ranks number steps. If a rank has marked an input, the steps of all
    are removed."""
    if not any(rank.marked for rank in ranks):
        return any(rank.numbered for rank in ranks)
    for rank in ranks:
        for row in rank.numbered:
            row["input"] = None
    return False


def is_made_by_join(stack: Iterable[str]) -> bool:
    """Whether a call of this stack is one that join() makes when the rank leaves its with block.

    Source: Join.__exit__ in torch/distributed/algorithms/join.py, PyTorch v2.13.0.
    """
    return any(frame.endswith(" __exit__") and "algorithms/join.py:" in frame for frame in stack)
