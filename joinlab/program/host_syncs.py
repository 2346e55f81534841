"""Operations that make the host wait for a GPU's stream, since it must know something of a result.

`t[mask]`, torch.where(c) and SyncBatchNorm all come to nonzero, whose output has a row per element
that is not zero: the host waits until the GPU has counted them. They come to it inside C++, so it
is caught where PyTorch dispatches operations, not by its names in Python:

    t[mask] ── aten::index ── aten::nonzero ──► this module: sync() ──► the device's own nonzero

A dispatch key ahead of all others is included in the threads that `observe`. An operation without a
kernel for it falls through, at no cost that could be measured; other threads do not have the key.

What C++ reads of a tensor with one element, as in x[i] with a tensor i or torch.full(size, t), is
not caught: on the CPU many operations read an element where a GPU's do not.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.utils.data
from torch.optim import asgd
from torch.optim.optimizer import _get_value

from joinlab.program.uncompiled import exclude

Waits = Callable[..., bool]


def _always(*args: object, **kwargs: object) -> bool:
    return True


SYNCING_OPS: Mapping[str, Waits] = {
    "nonzero": _always,
    "masked_select": _always,
    "_unique": _always,
    "_unique2": _always,
    "unique_dim": _always,
    "unique_consecutive": _always,
    "unique_dim_consecutive": _always,
    "equal": _always,
    "allclose": _always,
    "is_nonzero": _always,
    "bincount": _always,
    "_linalg_check_errors": _always,
    "repeat_interleave.Tensor": lambda repeats, *, output_size=None: output_size is None,
    "one_hot": lambda tensor, num_classes=-1: num_classes == -1,
    "multinomial": lambda tensor, num_samples, replacement=False, **options: (
        num_samples == 1 or not replacement
    ),
}
"""By name in aten: whether a call with these arguments makes the host wait on a GPU.

In aten/src/ATen/native, PyTorch v2.13.0: nonzero_out_cuda in cuda/Nonzero.cu, to which index and
masked_select come (cuda/IndexKernel.cpp); cuda/Unique.cu; cuda_equal in cuda/Equal.cpp; allclose
and is_nonzero in TensorCompare.cpp; _bincount_cuda in cuda/SummaryOps.cu; _linalg_check_errors in
BatchLinearAlgebra.cpp, for inv, solve, cholesky, svd and eigh; repeat_interleave_common in
Repeat.cpp; one_hot in Onehot.cpp; multinomial in Distributions.cpp.
"""

_KEY_NAME = "TESTING_ONLY_GenericMode"
"""The one key that stands for no device and no feature: PyTorch has no kernel for it."""

_KEY = torch._C._dispatch_key_parse(_KEY_NAME)
_BELOW = torch._C._dispatch_keyset_full_after(_KEY)
_DATA = str(Path(torch.utils.data.__file__).parent)
_here = threading.local()


def observe(sync: Callable[[], object] | None) -> None:
    """Call `sync` ahead of each such operation of this thread from now on; None: no more."""
    _kernels()
    _here.sync = sync
    torch._C._dispatch_tls_set_dispatch_key_included(_KEY, sync is not None)


def reads_host_memory(frame: FrameType) -> bool:
    """Whether the code at `frame` reads tensors that lie in the host's memory with GPUs, too.

    Samplers and loaders draw their seeds and permutations there (torch/utils/data), and optimizers
    count their steps there: _get_value in torch/optim/optimizer.py, PyTorch v2.13.0, is called for
    them where `capturable` is not set. ASGD alone calls it for what lies with its parameters.
    """
    if frame.f_code is _get_value.__code__:
        caller = frame.f_back
        return caller is None or caller.f_code.co_filename != asgd.__file__
    return frame.f_code.co_filename.startswith(_DATA)


@cache
def _kernels() -> tuple[object, object]:
    """Register the kernels. They stay, and are called in threads that observe alone."""
    fallthrough: Any = torch.library.Library("_", "IMPL", _KEY_NAME)  # type: ignore[no-untyped-call]
    fallthrough.fallback(torch.library.fallthrough_kernel, _KEY_NAME)
    aten: Any = torch.library.Library("aten", "IMPL", _KEY_NAME)  # type: ignore[no-untyped-call]
    for name, waits in SYNCING_OPS.items():
        packet, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, packet), overload or "default")
        aten.impl(name, _synced(op, waits), _KEY_NAME, with_keyset=True)
    return fallthrough, aten


def _synced(op: Any, waits: Waits) -> Callable[..., object]:
    def synced(keys: Any, *args: object, **kwargs: object) -> object:
        sync = getattr(_here, "sync", None)
        frame = sys._getframe(1)
        if sync is not None and waits(*args, **kwargs) and not reads_host_memory(frame):
            sync()
        return op.redispatch(keys & _BELOW, *args, **kwargs)

    exclude(synced, within=True)
    return synced
