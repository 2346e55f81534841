"""The futures that a program got from a rank's calls, and the call that fulfils each."""

from __future__ import annotations

import torch

from joinlab.backend.model import EmulatedCall


class Futures:
    """Open futures of one rank, in the order of issue."""

    def __init__(self) -> None:
        self._open: list[EmulatedCall] = []
        self._fulfilling = False

    @property
    def open(self) -> bool:
        """Whether any future is still open."""
        return bool(self._open)

    @property
    def ready(self) -> bool:
        """Whether callbacks could run that wait for no call, nor for another callback."""
        return not self._fulfilling and any(call.done for call in self._open)

    def add(self, call: EmulatedCall) -> None:
        """Give `call` a future, which `fulfil` will fulfil."""
        call.future = torch.futures.Future()
        self._open.append(call)

    def behind(self, future: object) -> EmulatedCall:
        """The call of this future; for a derived one the oldest open call, since chained callbacks
        run in order."""
        return next((call for call in self._open if call.future is future), self._open[0])

    def fulfil(self, awaited: EmulatedCall | None = None) -> None:
        """Fulfil the futures of calls that are complete, in the order of issue.

        Fulfilling one runs its callbacks, which may wait for a call and so come here again: from
        within a callback only the future of `awaited` is fulfilled, as no other callback may run
        inside this one.
        """
        while True:
            ready = [
                call
                for call in self._open
                if call.done and (not self._fulfilling or call is awaited)
            ]
            if not ready:
                return
            call = ready[0]
            self._open.remove(call)
            before, self._fulfilling = self._fulfilling, True
            try:
                if call.error is not None:
                    call.future.set_exception(failure(call.error))
                else:
                    call.future.set_result(outputs(call))
            finally:
                self._fulfilling = before


def failure(text: str) -> RuntimeError:
    """The error of a call. C++ that looks for tensors in it, as if it were the call's result, raises
    another one."""

    def reduce(protocol: int) -> None:
        raise RuntimeError(text)

    error = RuntimeError(text)
    vars(error)["__reduce_ex__"] = reduce
    return error


def outputs(call: EmulatedCall) -> list[torch.Tensor]:
    """The tensors that a call's future holds: those that it writes. NCCL gathers a list in one
    tensor of its own."""
    # newLikeFlat in ProcessGroupNCCL::allgather, v2.13.0
    if call.method == "allgather" and call.group.fabric.streams:
        return [torch.stack(part.outs) for part in call.parts]
    return [tensor for part in call.parts for tensor in part.outs]
