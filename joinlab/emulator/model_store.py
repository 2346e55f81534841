"""The store that the ranks of an emulation share: it lies in the keeper, which answers in the order of
virtual time."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from joinlab.emulator.link import Link


class ModelStore(dist.Store):  # type: ignore[name-defined,misc]
    """A rank's end of it. Waiting has no timeout here: a key that no rank can set any more is a
    hang."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link = link

    def set(self, key: str, value: Any) -> None:
        """Set a key, and let the ranks go on that wait for it."""
        self._ask("set", key, _bytes(value))

    def get(self, key: str) -> bytes:
        """The value of a key, once it is there."""
        return bytes(self._ask("get", key))

    def add(self, key: str, amount: int) -> int:
        """Add to a number; returns the sum."""
        return int(self._ask("add", key, amount))

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        """Set a key if it has the expected value (or none, and none is expected); returns what it
        has then."""
        return bytes(self._ask("compare_set", key, _bytes(expected), _bytes(desired)))

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys are there."""
        self._ask("wait", list(keys))

    def check(self, keys: list[str]) -> bool:
        """Whether all keys are there."""
        return bool(self._ask("check", list(keys)))

    def delete_key(self, key: str) -> bool:
        return bool(self._ask("delete_key", key))

    def num_keys(self) -> int:
        """How many keys there are."""
        return int(self._ask("num_keys"))

    def _ask(self, name: str, *args: Any) -> Any:
        return self._link.ask("store", name, *args)


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
