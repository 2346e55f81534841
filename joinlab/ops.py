"""The words of a Timeline's calls: the ops, and how the values of small tensors are written.

Apart from timeline.py, because a rank's process needs these and must not import polars: its threads would not
survive the fork.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

MAX_VALUES = 16
"""Values are kept for calls whose tensors hold at most this many elements together."""


class Op(StrEnum):
    """The collectives and point-to-point calls, under the names of torch.distributed."""

    ALL_REDUCE = "all_reduce"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    ALL_GATHER = "all_gather"
    GATHER = "gather"
    SCATTER = "scatter"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    BARRIER = "barrier"
    SEND = "send"
    RECV = "recv"


POINT_TO_POINT = frozenset({Op.SEND, Op.RECV})


_ENCODE = json.JSONEncoder(separators=(",", ":"), default=str).encode


def encode_values(tensors: Sequence[Sequence[Any]]) -> str:
    """The text of value_in and value_out: one flat list per tensor. Exact for every int and float.

    >>> encode_values([[1.0], [2, 3]])
    '[[1.0],[2,3]]'
    """
    texts = []
    for values in tensors:
        for value in values:  # a number whose repr is its JSON, in nearly all calls
            kind = type(value)
            if kind is not int and (kind is not float or value - value != 0.0):  # of inf and nan, too
                return _ENCODE([list(values) for values in tensors])
        texts.append(f"[{','.join(map(repr, values))}]")
    return f"[{','.join(texts)}]"


def decode_values(text: str | None) -> list[list[Any]] | None:
    """The flat lists that `encode_values` wrote; None for a null.

    >>> decode_values('[[1.0],[2,3]]')
    [[1.0], [2, 3]]
    """
    return None if text is None else json.loads(text)
