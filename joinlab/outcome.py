"""What is left of a rank's run when it ends: what its program returned, as plain data, and the traceback it raised."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import torch

from joinlab.plain import Repr


def to_plain(value: Any) -> Any:
    """Tensors as numpy arrays (bfloat16 as float32), containers as dict, list or tuple, the rest as it is."""
    if isinstance(value, torch.Tensor):
        try:
            tensor = value.detach().cpu()
            return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy().copy()
        except Exception:  # a sparse or quantised tensor
            return Repr(repr(value))
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [to_plain(item) for item in value]
        return tuple(items) if isinstance(value, tuple) else items
    return value


def traceback_text(error: BaseException) -> str:
    """As Python would print it, without the frames of joinlab around the program."""
    at: TracebackType | None = error.__traceback__
    while at is not None and at.tb_frame.f_code.co_name != "call_program":
        at = at.tb_next
    if at is not None:
        at = at.tb_next
    return "".join(traceback.format_exception(type(error), error, at or error.__traceback__))


def text_of(error: BaseException) -> str:
    """Type and message of an exception, as an Ending says it."""
    return f"{type(error).__name__}: {error}".rstrip(": ")
