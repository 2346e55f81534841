"""Reads the values of small tensors where they lie in the host's memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from joinlab.program.process_group import values_in
from joinlab.recorder.call import RecordedCall


class HostReader:
    """Reads at once; every completion is told by the Work's future. See call.Reader for what the methods mean."""

    late = False

    def before(self, call: RecordedCall, tensors: Sequence[torch.Tensor]) -> list[list[Any]] | None:
        return None if tensors[0].is_cuda else values_in(tensors)  # reading a GPU's would make the host wait

    def after(self, call: RecordedCall) -> list[list[Any]] | None:
        return values_in(call.outs) if call.outs and not call.outs[0].is_cuda else None

    def after_wait(self, call: RecordedCall) -> None:
        """Nothing left to read."""

    def watch(self, call: RecordedCall) -> bool:
        return False

    def settle(self) -> None:
        """Nothing is read late."""
