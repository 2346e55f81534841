"""Checks whether plain data from a file conforms to a type: a TypedDict, lists and dicts, and their
items."""

from __future__ import annotations

from itertools import starmap
from types import NoneType, UnionType
from typing import (
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)


def misfit(value: object, kind: Any, path: str = "") -> str | None:
    """The first place where a value is not of a type, "clock.hosts['a'] is 'x'", or None. A tuple
    counts as a list.

    Keys that a TypedDict does not name are accepted, since a later version may have added them.

    >>> misfit({"a": [1, None]}, dict[str, list[int | None]]), misfit({"a": [True]}, dict[str, list[int]], "skipped")
    (None, "skipped['a'][0] is True")
    """
    origin, inner = get_origin(kind), get_args(kind)
    text = f"{path} is {value!r:.40}"
    parts: list[tuple[Any, Any, str]] = []
    if kind is Any:
        return None
    if origin in (Required, NotRequired):
        return misfit(value, inner[0], path)
    if origin in (Union, UnionType):
        if any(misfit(value, option) is None for option in inner):
            return None
        return text
    if origin is Literal:
        if value in inner:
            return None
        return text
    if is_typeddict(kind):
        if not isinstance(value, dict):
            return text
        hints = get_type_hints(kind, include_extras=True)
        # __required_keys__ does not see through annotations that are text
        for name, hint in hints.items():
            needed = get_origin(hint) is Required or (
                kind.__total__ and get_origin(hint) is not NotRequired
            )
            if needed and name not in value:
                return f"{path} has no {name}"
        parts = [
            (member, hints[name], f"{path}.{name}".lstrip("."))
            for name, member in value.items()
            if name in hints
        ]
    elif origin is list:
        if not isinstance(value, list | tuple):
            return text
        parts = [(item, inner[0], f"{path}[{index}]") for index, item in enumerate(value)]
    elif origin is dict:
        if not isinstance(value, dict):
            return text
        parts = [(key, inner[0], f"{path} with a key that") for key in value]
        parts += [(item, inner[1], f"{path}[{key!r:.40}]") for key, item in value.items()]
    else:
        if kind is None:
            kind = NoneType
        elif kind is float:
            kind = int | float
        fits = isinstance(value, kind) and not (
            isinstance(value, bool) and kind not in (bool, object)
        )
        if fits:
            return None
        return text
    return next(filter(None, starmap(misfit, parts)), None)
