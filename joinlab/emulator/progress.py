"""A rank's progress through its program: the current input, its forward and backward passes, and
their times.

input i   |-- forward --|------------- backward -------------|-- rest, if DDP did less than one pass --|
          costs / 3       2/3 of the costs, a share of it      so that every input takes input_ns
                          at each bucket by its bytes
"""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any

import torch

from joinlab.backend.clock import FORWARD_SHARE
from joinlab.backend.turns import ActingRank
from joinlab.emulator.reducer import Reducer
from joinlab.program.labels import call_site, calling_frame, walk
from joinlab.program.log_events import Event, FunctionText, InputBegins, SpanBegins, SpanEnds
from joinlab.program.sources import source_at
from joinlab.program.steps import Steps


class InputProgress:
    """The inputs and passes of one rank."""

    def __init__(
        self, take: Callable[[Event], None], input_ns: int, host: ActingRank, reducer: Reducer
    ) -> None:
        """`take` takes the events of the rank."""
        self.input: int | None = None
        self.steps = Steps()
        self._take = take
        self._spans = itertools.count()
        self._forward_ns = round(input_ns * FORWARD_SHARE)
        self._backward_ns = round(input_ns * (1 - FORWARD_SHARE))
        self._input_ns = input_ns
        self._input_used_ns = 0
        self._host = host  # weakly
        self._reducer = reducer
        # for each backward pass in progress: the time that remains of it, ns
        self._budgets: list[int] = []
        self._steps: list[int] = []  # spans of optimizer steps under way
        # by id and line: the code that a span was called from
        self._callers: dict[tuple[int, int], CodeType] = {}
        self._ddp_bytes = 0  # of the gradients of the module whose forward pass came last
        self._bytes_of: weakref.WeakKeyDictionary[torch.nn.Module, int] = (
            weakref.WeakKeyDictionary()
        )

    def mark_input(self, index: int | None, done: int) -> None:
        """Input `index` is now being processed (None: none is), `done` before it."""
        self.steps.mark()
        self._take(InputBegins(index=index, done=done))
        if self.input is not None:
            self._host.work_for(max(0, self._input_ns - self._input_used_ns))
        self._input_used_ns = 0
        self.input = index

    def forward(
        self, run: Callable[..., object], module: torch.nn.Module, *args: object, **kwargs: object
    ) -> Any:
        """A forward pass of DDP: `run(module, ...)`."""
        nbytes = self._bytes_of.get(module)
        if nbytes is None:
            trained = [p for p in module.parameters() if p.requires_grad]
            nbytes = self._bytes_of[module] = sum(p.numel() * p.element_size() for p in trained)
        self._ddp_bytes = nbytes
        self.steps.begin_forward()
        span = self._begin("forward")
        try:
            output = run(module, *args, **kwargs)
            self._reducer.forward_over(
                bool(module.require_backward_grad_sync) and torch.is_grad_enabled()
            )
            self._spend(self._forward_ns)
            return output
        finally:
            self._end(span)

    def backward(self, run: Callable[..., None], *args: object, **kwargs: object) -> None:
        """A backward pass: `run(...)`."""
        self._budgets.append(self._backward_ns)
        self.steps.begin_backward()
        span = self._begin("backward")
        try:
            run(*args, **kwargs)
            self._spend(self._budgets[-1])
        except RuntimeError:
            if self._reducer.failed is None:
                raise
            raise self._reducer.failed from None  # C++ words it otherwise
        finally:
            self._budgets.pop()
            self.steps.end_backward()
            self._reducer.backward_over()
            self._end(span)

    def bucket_ready(self, tensors: Sequence[torch.Tensor]) -> None:
        """A bucket of gradients is issued: the backward pass has come so far, by the bucket's share
        of all bytes."""
        if not self._budgets or not self._ddp_bytes:
            return
        share = sum(tensor.numel() * tensor.element_size() for tensor in tensors) / self._ddp_bytes
        used = min(self._budgets[-1], round(self._backward_ns * share))
        self._budgets[-1] -= used
        self._spend(used)

    def begin_step(self) -> None:
        self._steps.append(self._begin("optimizer"))

    def end_step(self) -> None:
        if self._steps:
            self._end(self._steps.pop())

    def _spend(self, ns: int) -> None:
        self._input_used_ns += ns
        self._host.work_for(ns)

    def _begin(self, name: str) -> int:
        frame = sys._getframe(1)  # its own would hold itself, and with it the emulation
        caller, now = calling_frame(frame), self._host.now
        if caller is None:
            site = call_site(walk(frame))
        else:
            code, line = caller.f_code, caller.f_lineno
            site = f"{code.co_filename}:{line}"
            if (id(code), line) not in self._callers:
                # keeps the code, so that no other one gets its id
                self._callers[id(code), line] = code
                source = source_at(code, line)
                if source is not None:
                    self._take(FunctionText.of(source))
        number, step = next(self._spans), self.steps.now
        self._take(
            SpanBegins(
                span=number, name=name, input=self.input, step=step, call_site=site, time_ns=now
            )
        )
        return number

    def _end(self, number: int) -> None:
        if not self._host.turn.doomed:
            self._take(SpanEnds(span=number, time_ns=self._host.now))
