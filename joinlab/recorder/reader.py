"""How the values of small tensors are read, where they lie in the host's memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from joinlab.program.process_group import values_in

if TYPE_CHECKING:
    from joinlab.recorder.recorder import Call


class Reader:
    """Reads at once. The one for GPUs, which must not wait, is in recorder_cuda.py.

    late    what comes out is read when the stream has been made to wait for it (`after_wait`), not at completion
    """

    late = False

    def before(self, call: Call, tensors: Sequence[torch.Tensor]) -> list[list[Any]] | None:
        """The values that go in; None if they cannot be read, or come later."""
        return values_in(tensors)

    def after(self, call: Call) -> list[list[Any]] | None:
        """The values that came out, at completion; None if they cannot be read, or come later."""
        return values_in(call.outs) if call.outs else None

    def after_wait(self, call: Call) -> None:
        """The stream has just been made to wait for `call`."""

    def watch(self, call: Call) -> bool:
        """Begin to look for the completion of `call`; False: its future will tell."""
        return False

    def settle(self) -> None:
        """Write down what has completed by now and is not yet written."""
