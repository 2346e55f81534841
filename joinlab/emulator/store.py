"""The store that the ranks of an emulation share: as torch's own, but a waiting rank hands the
baton on."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from joinlab.emulator.scheduler import current

if TYPE_CHECKING:
    from joinlab.emulator.host import Host


PREFIX = "default_pg/0/"
"""What init_process_group puts before each key of the default group; a "/" follows."""


class SharedKeys:
    """What all ranks see. `waiting`, by key: the ranks that wait for it."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.waiting: dict[str, list[Host]] = {}


class RankStore(dist.Store):  # type: ignore[name-defined,misc]
    """Keys and values as one rank has them, with the errors of a TCPStore.

    A wait with a limit of the program's own ends then, in virtual time. One with the default limit,
    of minutes, has none here: a key that no rank can set any more is a hang.
    """

    def __init__(self, keys: SharedKeys) -> None:
        super().__init__()
        self._values, self._waiting = keys.values, keys.waiting
        self._default = self.timeout

    def set(self, key: str, value: Any) -> None:
        """Set a key, and let the ranks go on that wait for it."""
        self._values[key] = value.encode() if isinstance(value, str) else bytes(value)
        setter = current()
        for host in self._waiting.get(key, ()):
            if not host.gone:
                if setter is not None:
                    host.reach(setter.now)
                host.wake()

    def get(self, key: str) -> bytes:
        """The value of a key, once it is there."""
        self.wait([key])
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
        """Wait until all keys are there. DistStoreError when the limit has passed."""
        limit, host = timeout or self.timeout, current()
        for key in keys:
            if key not in self._values and host is None:
                raise KeyError(key)
        until = None
        if host is not None and limit != self._default:
            until = host.now + round(limit.total_seconds() * 1e9)
        for key in keys:
            while key not in self._values:
                if until is not None and host.now >= until:
                    host.sleep(0)  # it may try again, for ever: so the others get their turns
                    names = ", ".join(f"/{name}" for name in keys)
                    milliseconds = round(limit.total_seconds() * 1000)
                    text = f"wait timeout after {milliseconds}ms, keys: {names}"
                    raise dist.DistStoreError(text)
                waiting = self._waiting.setdefault(key, [])
                waiting.append(host)
                host.wait_inside(
                    (), f"for the key {key.removeprefix(PREFIX)[1:]!r} of the store", until
                )
                waiting.remove(host)

    def check(self, keys: list[str]) -> bool:
        """Whether all keys are there."""
        return all(key in self._values for key in keys)

    def delete_key(self, key: str) -> bool:
        """Forget a key; whether it was there."""
        return self._values.pop(key, None) is not None

    def num_keys(self) -> int:
        """How many keys there are."""
        return len(self._values)

    # under these names a PrefixStore looks for them (PythonStore in torch/csrc/distributed/c10d/init.cpp)
    deleteKey = delete_key
    getNumKeys = num_keys
