"""The virtual clock of an emulated rank, which its work moves.

input i   |-- forward --|------------- backward -------------|-- rest, if DDP did less than one pass --|
          costs / 3       2/3 of the costs, a share of it      so that every input takes input_ns
                          at each bucket by its bytes

A rank has two clocks: the host's, and on NCCL that of the GPU's stream, which waits for collectives
while the host runs on.
"""

from __future__ import annotations

import heapq
import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from joinlab.backend.clock import FORWARD_SHARE
from joinlab.recorder.clock import Clock

if TYPE_CHECKING:
    import torch


class VirtualClock(Clock):
    """The host's clock and the stream's, in ns since the run began."""

    virtual = True

    def __init__(self, input_ns: int) -> None:
        """`input_ns`: what the forward and backward pass of one input cost."""
        self.host_ns = 0
        self.stream_ns = 0
        self._input_ns = input_ns
        self._forward_ns = round(input_ns * FORWARD_SHARE)
        self._backward_ns = round(input_ns * (1 - FORWARD_SHARE))
        self._used_ns = 0  # of this input's time
        self._in_input = False
        self._budgets: list[int] = []  # what is left of each backward pass under way, ns
        self._model_bytes = 0  # of the gradients of the module whose forward pass came last
        self._bytes_of: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self.after_backward: Callable[[], None] = lambda: None
        self._due: list[tuple[int, int, Callable[[], object]]] = []
        self._order = itertools.count()

    def now(self) -> int:
        return self.host_ns

    # ------------------------------------------------------------------------------ moving it

    def work_for(self, ns: int) -> None:
        """The host is busy for so long."""
        self.reach(self.host_ns + ns)

    def reach(self, ns: int) -> None:
        """The host has come to this time, if it was not there yet."""
        if ns > self.host_ns:
            self.host_ns = ns
        while self._due and self._due[0][0] <= self.host_ns:
            heapq.heappop(self._due)[2]()

    def at(self, ns: int, act: Callable[[], object]) -> None:
        """Do this as soon as the host has come to that time."""
        if ns <= self.host_ns:
            act()
        else:
            heapq.heappush(self._due, (ns, next(self._order), act))

    def stream_waits_until(self, ns: int) -> None:
        """The stream does not go on before that time."""
        self.stream_ns = max(self.stream_ns, ns)

    # ------------------------------------------------------------- the work that the recorder sees

    def input_begins(self, index: int | None) -> None:
        if self._in_input:
            self.work_for(max(0, self._input_ns - self._used_ns))
        self._used_ns, self._in_input = 0, index is not None

    def forward_over(self, module: Any) -> None:
        nbytes = self._bytes_of.get(module)
        if nbytes is None:
            trained = [weight for weight in module.parameters() if weight.requires_grad]
            nbytes = sum(weight.numel() * weight.element_size() for weight in trained)
            self._bytes_of[module] = nbytes
        self._model_bytes = nbytes
        self._spend(self._forward_ns)

    def backward_begins(self) -> None:
        self._budgets.append(self._backward_ns)

    def bucket_ready(self, gradients: Sequence[torch.Tensor]) -> None:
        if not self._budgets or not self._model_bytes:
            return
        nbytes = sum(gradient.numel() * gradient.element_size() for gradient in gradients)
        used = min(self._budgets[-1], round(self._backward_ns * nbytes / self._model_bytes))
        self._budgets[-1] -= used
        self._spend(used)

    def backward_over(self, returned: bool) -> None:
        left = self._budgets.pop()
        if returned:
            self._spend(left)
        self.after_backward()

    def _spend(self, ns: int) -> None:
        self._used_ns += ns
        self.work_for(ns)
