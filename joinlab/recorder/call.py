"""An open recorded call, the reader of its values, and the facts shared by all calls of one process
group.

The other modules of this room import this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from joinlab.program.kinds import CallKind, GroupFacts
from joinlab.program.process_group import Numbering, values_in


@dataclass(slots=True, eq=False)
class RecordedCall:
    """One issued call, while it is open."""

    id: int
    kind: CallKind
    group: RecordedGroup
    line: str = ""  # its event; "" before it is written
    outs: list[torch.Tensor] | None = None  # the tensors to read at completion; only if small
    work: Any = None  # the backend's own Work; None if it gave none
    # the RecordedWork, kept alive until the call is done, or longer: see KEPT_WORKS
    kept: object = None
    done: bool = False
    called_back: bool = False  # its future reports it, in a callback
    below: Any = None  # the Turn of the thread that waits for it below Python
    begun: object = None  # the event at its begin, if it runs on the program's stream
    waited: bool = False  # the program has made the stream (NCCL) or the host (gloo) wait for it


class ValueReader:
    """Reads the values of small tensors in host memory; cuda_reader.py reads those on a GPU.

    late    outputs are read when the stream has been made to wait for the call (`after_wait`), not at completion
    """

    late = False

    def barrier_element(self) -> list[torch.Tensor]:
        """The tensor that a barrier all-reduces, if it is known: NCCL's is its own, see model."""
        return []

    def capturing(self) -> bool:
        """Whether a CUDA graph is captured now, so that calls do not run."""
        return False

    def begins(self, call: RecordedCall) -> None:
        """Called before a call is issued."""

    def before(
        self, call: RecordedCall, tensors: Sequence[torch.Tensor]
    ) -> list[list[object]] | None:
        """The input values; None if they cannot be read, or are read later."""
        # reading GPU memory would make the host wait
        return None if tensors[0].is_cuda else values_in(tensors)

    def after(self, call: RecordedCall) -> list[list[object]] | None:
        """The output values, at completion; None if they cannot be read, or are read later."""
        if call.outs and not call.outs[0].is_cuda:
            return values_in(call.outs)
        return None

    def after_wait(self, call: RecordedCall) -> None:
        """Called just after the stream was made to wait for `call`."""

    def awaited_with(self, calls: Sequence[RecordedCall]) -> Sequence[RecordedCall]:
        """All calls that the host waits for when it waits for these."""
        return calls

    def watch(self, call: RecordedCall) -> bool:
        """Begin to poll for the completion of `call`; False if its future reports it."""
        return False

    def settle(self, patience_s: float = 0.0) -> None:
        """Write what has arrived of completions and values; wait so long for the rest."""


class RecordedGroup(GroupFacts):
    """A process group, or its part on one backend ("cpu:gloo,cuda:nccl" has two parts)."""

    def __init__(
        self,
        label: str,
        backend: str,
        ranks: Sequence[int],
        reader: ValueReader,
        host_waits: bool,
        numbering: Numbering | None = None,
    ) -> None:
        super().__init__(label, backend, ranks, host_waits, numbering)
        self.reader = reader
        self.of_reducer: dict[tuple[object, ...], CallKind] = {}
        """Kinds of calls that DDP's Reducer issues itself, whose options are fixed, by stack, dtype
        and shape."""
