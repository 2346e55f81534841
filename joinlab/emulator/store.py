"""The store that the ranks of an emulation share: as torch's own, but a waiting rank hands the
baton on."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from joinlab.backend.model import Rank
from joinlab.emulator.scheduler import current


class SharedStore(dist.Store):  # type: ignore[name-defined,misc]
    """Keys and values. Waiting has no timeout here: a key that no rank can set any more is a
    hang."""

    def __init__(self) -> None:
        super().__init__()
        self._values: dict[str, bytes] = {}
        self._waiting: dict[str, list[Rank]] = {}  # by key: the ranks that wait for it

    def set(self, key: str, value: Any) -> None:
        """Set a key, and let the ranks go on that wait for it."""
        self._values[key] = value.encode() if isinstance(value, str) else bytes(value)
        for host in self._waiting.pop(key, ()):
            if not host.gone:
                host.wake()

    def get(self, key: str) -> bytes:
        """The value of a key, once it is there."""
        self._await(key)
        return self._values[key]

    def add(self, key: str, amount: int) -> int:
        """Add to a number; returns the sum."""
        total = int(self._values.get(key, b"0")) + amount
        self.set(key, str(total))
        return total

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        """Set a key if it has the expected value (or none, and none is expected); returns what it
        has then."""
        expected, desired = (
            one.encode() if isinstance(one, str) else bytes(one) for one in (expected, desired)
        )
        if self._values.get(key, b"") == expected:
            self.set(key, desired)
        value: bytes = self._values.get(key, expected)
        return value

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys are there."""
        for key in keys:
            self._await(key)

    def check(self, keys: list[str]) -> bool:
        """Whether all keys are there."""
        return all(key in self._values for key in keys)

    def delete_key(self, key: str) -> bool:
        return self._values.pop(key, None) is not None

    def num_keys(self) -> int:
        """How many keys there are."""
        return len(self._values)

    def _await(self, key: str) -> None:
        host = current()
        while key not in self._values:
            if host is None:
                raise KeyError(key)
            self._waiting.setdefault(key, []).append(host)
            host.wait_inside((), f"for the key {key!r} of the store")
