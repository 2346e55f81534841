"""Gloo's arithmetic: how two runs of elements are combined, dtype by dtype.

Source: gloo/math.h (sum, product, min, max) in third_party/gloo of PyTorch v2.13.0, and band, bor, bxor in
torch/csrc/distributed/c10d/ProcessGroupGlooDetail.hpp. In the ring `one` is what the rank has, `other` what arrived.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from joinlab.backend.payload import Bytes

_NUMPY: dict[torch.dtype, Any] = {
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.float16: np.float16,
    torch.int64: np.int64,
    torch.int32: np.int32,
    torch.int8: np.int8,
    torch.uint8: np.uint8,
    torch.bool: np.bool_,
    torch.complex64: np.float32,  # PyTorch gives gloo the real and imaginary parts (at::view_as_real)
    torch.complex128: np.float64,
}

_OPS: dict[str, Callable[..., Any]] = {
    "sum": np.add,
    "product": np.multiply,
    "min": lambda one, other: np.where(other < one, other, one),  # std::min: with a NaN it is not symmetric
    "max": lambda one, other: np.where(one < other, other, one),
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}

_TORCH_OPS: dict[str, Callable[..., torch.Tensor]] = {
    "sum": torch.add,
    "product": torch.mul,
    "min": lambda one, other: torch.where(other < one, other, one),
    "max": lambda one, other: torch.where(one < other, other, one),
}

DTYPES = frozenset({*_NUMPY, torch.bfloat16})
"""What gloo can send: GENERATE_ALL_TYPES in ProcessGroupGlooDetail.hpp, and complex ones where they are split."""

_numpy = torch._C.TensorBase.numpy


def combine(dtype: torch.dtype, reduce_op: str, one: Bytes, other: Bytes) -> Bytes:
    """Reduce two runs of whole elements of `dtype`; returns the bytes of the result.

    >>> one, other = (np.array(values, np.float32).view(np.uint8) for values in ([1, np.nan], [np.nan, 1]))
    >>> combine(torch.float32, "min", one, other).view(np.float32)
    array([ 1., nan], dtype=float32)
    """
    kind = _NUMPY.get(dtype)
    if kind is not None:
        with np.errstate(all="ignore"):
            return _OPS[reduce_op](one.view(kind), other.view(kind)).view(np.uint8)  # type: ignore[no-any-return]
    left, right = (torch.from_numpy(np.ascontiguousarray(part)).view(dtype) for part in (one, other))
    return _numpy(_TORCH_OPS[reduce_op](left, right).view(torch.uint8))
