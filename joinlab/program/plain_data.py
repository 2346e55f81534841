"""Plain data as JSON, without loss: a program's return values, and a Timeline's metadata.

JSON has no tuple, bytes, nan or array, so these are written as an object with the only key "$",
which plain objects may not have. Any other object is written as its `repr` and read as a `Repr`: no
class is ever looked up by name, and no pickle is ever read.

    encode((1, nan))         {"$": ["tuple", [1, {"$": ["float", "nan"]}]]}
"""

from __future__ import annotations

import base64
import io
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

MAX_DEPTH = 50
"""Containers nested deeper than this are kept as their repr."""


@dataclass(frozen=True, slots=True)
class Repr:
    """The repr of a value that could not be kept as data; its own repr is that text."""

    text: str

    def __repr__(self) -> str:
        return self.text


def encode(value: Any, store: Callable[[bytes], str], _outer: tuple[int, ...] = ()) -> object:
    """What `json.dumps` accepts, from any value; `store` keeps the npy bytes of an array and
    returns their name.

    Kept exactly: None, bool, int, float, str, bytes, list, tuple, dict, numpy arrays and scalars
    (without objects in them). Everything else, subclasses of these included, becomes a `Repr`.
    Never raises.
    """
    kind = type(value)
    if value is None or kind in (bool, str):
        return value
    if kind is int:  # JSON is not safe for more than 64 bits
        if -(2**63) <= value < 2**63:
            return value
        return {"$": ["int", hex(value)]}
    if kind is float:
        if math.isfinite(value):
            return value
        return {"$": ["float", str(value)]}
    if kind is bytes:
        return {"$": ["bytes", base64.b64encode(value).decode("ascii")]}
    if kind is np.ndarray or isinstance(value, np.generic):
        try:
            buffer = io.BytesIO()
            np.save(buffer, value, allow_pickle=False)
        except ValueError:  # it holds Python objects
            return _encode_repr(value)
        return {"$": ["array" if kind is np.ndarray else "scalar", store(buffer.getvalue())]}
    if kind in (list, tuple, dict) and id(value) not in _outer and len(_outer) < MAX_DEPTH:
        inner = (*_outer, id(value))
        if kind is dict:
            if all(type(key) is str and key != "$" for key in value):
                return {key: encode(item, store, inner) for key, item in value.items()}
            pairs = [
                [encode(key, store, inner), encode(item, store, inner)]
                for key, item in value.items()
            ]
            return {"$": ["dict", pairs]}
        items = [encode(item, store, inner) for item in value]
        if kind is list:
            return items
        return {"$": ["tuple", items]}
    return _encode_repr(value)


def _encode_repr(value: object) -> object:
    try:
        text = repr(value)
    except Exception as error:  # a learner's own __repr__ may fail
        text = f"<{type(value).__name__} whose repr raised {type(error).__name__}>"
    return {"$": ["repr", text]}


_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00(..)\{'descr': '([^']{2,20})', 'fortran_order': (True|False), 'shape': \(([\d, ]*)\), \} *\n",
    re.DOTALL,
)
"""The header that np.save writes before plain numbers. numpy reads it with ast.literal_eval, with
which two threads at the same time cause a SystemError in Python 3.11 (AST constructor recursion
depth mismatch)."""


def _array(npy: bytes) -> np.ndarray[Any, Any]:
    # Not np.load, which also opens archives and, if allowed, pickles. The size is checked first:
    # numpy would allocate whatever shape the header claims.
    simple = _HEADER.match(npy)
    if simple is not None:
        dtype = np.dtype(simple[2].decode())
        shape = tuple(int(length) for length in simple[4].split(b",") if length.strip())
        if not dtype.hasobject and math.prod(shape) * dtype.itemsize == len(npy) - simple.end():
            order: Any = "F" if simple[3] == b"True" else "C"
            return np.ndarray(shape, dtype, bytearray(npy[simple.end() :]), order=order)
    file = io.BytesIO(npy)
    header = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    version = np.lib.format.read_magic(file)
    if version not in header:
        raise ValueError(f"an array in npy version {version}")
    shape, _, dtype = header[version](file)
    if not dtype.hasobject and math.prod(shape) * dtype.itemsize != len(npy) - file.tell():
        raise ValueError(f"an array of shape {shape} and {dtype} in {len(npy)} bytes")
    return np.lib.format.read_array(io.BytesIO(npy), allow_pickle=False)


def decode(data: object, fetch: Callable[[str], bytes]) -> object:
    """The value that `encode` wrote; `fetch` returns the npy bytes of a name. ValueError for what
    it never wrote."""
    if isinstance(data, list):
        return [decode(item, fetch) for item in data]
    if not isinstance(data, dict):
        return data
    if "$" not in data:
        return {key: decode(item, fetch) for key, item in data.items()}
    match data:
        case {"$": ["int", str(text)]}:
            return int(text, 16)
        case {"$": ["float", str(text)]}:
            return float(text)
        case {"$": ["bytes", str(text)]}:
            return base64.b64decode(text, validate=True)
        case {"$": ["array", str(name)]}:
            return _array(fetch(name))
        case {"$": ["scalar", str(name)]}:
            return _array(fetch(name))[()]
        case {"$": ["tuple", list(items)]}:
            return tuple(decode(item, fetch) for item in items)
        case {"$": ["dict", list(pairs)]}:
            return {decode(key, fetch): decode(item, fetch) for key, item in pairs}
        case {"$": ["repr", str(text)]}:
            return Repr(text)
    raise ValueError(f"a value of an unknown kind: {str(data)[:100]}")
