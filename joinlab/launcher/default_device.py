"""The device of a rank's tensors: its GPU, so that one text of a program serves CPU and GPU.

Under torch.set_default_device("cuda") a DataLoader that shuffles, a DistributedSampler and
random_split raise "Expected a 'cuda' device type for generator but found 'cpu'": they draw numbers
from generators of the CPU, also where the program gives them none. So numbers that torch.utils.data
draws, and those from a generator of another device, are made there; a batch that it collates is a
program's tensor and goes to the GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._device import DeviceContext, _device_constructors

DRAWING = frozenset(
    f"torch.utils.data.{name}" for name in ("dataloader", "dataset", "distributed", "sampler")
)


class RankDevice(DeviceContext):
    """In the place of the context that torch.set_default_device enters."""

    def __torch_function__(
        self,
        func: Any,
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = dict(kwargs or {})
        if func in _device_constructors() and options.get("device") is None:
            generator, caller = options.get("generator"), sys._getframe(1)
            if generator is not None:
                options["device"] = generator.device
            elif caller.f_globals.get("__name__") not in DRAWING:
                options["device"] = self.device
        return func(*args, **options)


def make_default(device: torch.device) -> None:
    """Make tensors on this device from now on; torch.set_default_device in a program replaces it."""
    torch.set_default_device(None)
    context = RankDevice(device)
    context.__enter__()  # type: ignore[no-untyped-call]
    torch._GLOBAL_DEVICE_CONTEXT.device_context = context
