"""The clock of a rank's events.

A real rank has the monotonic clock of its machine, one for all ranks of a host. An emulated rank
has a virtual one, which its work moves; so the recorder tells the clock of the work that it sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from joinlab.recorder.events import now

if TYPE_CHECKING:
    import torch


class Clock:
    """The machine's clock, which runs by itself: telling it of work changes nothing."""

    virtual = False
    now = staticmethod(now)
    """The time, in ns."""

    def input_begins(self, index: int | None) -> None:
        """The rank goes on to this input (None: it has no more)."""

    def forward_over(self, module: Any) -> None:
        """A forward pass of `module`, wrapped in DDP, has returned."""

    def backward_begins(self) -> None:
        """A backward pass begins."""

    def bucket_ready(self, gradients: Sequence[torch.Tensor]) -> None:
        """The backward pass has filled a bucket: DDP issues its call next."""

    def backward_over(self, returned: bool) -> None:
        """The backward pass has returned, or raised."""
