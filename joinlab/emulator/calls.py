"""One call of one rank in an emulation: its row of the Timeline, and what the fabric needs to carry it out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from joinlab.emulator.payload import Part, values
from joinlab.ops import CallRow

if TYPE_CHECKING:
    import torch

    from joinlab.emulator.group import EmulatedGroup
    from joinlab.emulator.host import Host
    from joinlab.emulator.kinds import Kind


class Call:
    """A call from its issue to its end. `row` becomes its row of the Timeline; times are virtual, in ns."""

    __slots__ = (
        "done",
        "ended_ns",
        "error",
        "future",
        "group",
        "host",
        "host_waits",
        "inflight",
        "kind",
        "look",
        "op",
        "parts",
        "place",
        "ready_ns",
        "reduce_op",
        "root",
        "row",
        "small",
        "source_place",
        "tensors_out",
        "when_waited",
    )

    def __init__(self, host: Host, group: EmulatedGroup, kind: Kind, row: CallRow, parts: list[Part]) -> None:
        self.host = host
        self.group = group
        self.kind = kind
        self.op = kind.op
        self.look = kind.look
        self.root = kind.root
        self.reduce_op = kind.reduce_op
        self.host_waits = kind.host_waits
        self.small = kind.small
        self.row = row
        self.parts = parts
        self.place = group.place
        self.done = False
        self.error: str | None = None
        self.future: Any = None
        self.inflight = False  # it was issued behind a call that was still open: its input may not have been there
        self.tensors_out: list[torch.Tensor] = []
        self.ready_ns = 0  # when the backend can begin with it
        self.ended_ns = 0  # when it completed or failed, once it is done
        self.source_place = -1
        self.when_waited: Callable[[], None] | None = None  # the rest of it, if it completes only when waited for

    def nbytes(self) -> int:
        """Bytes that it moves, for the clock."""
        return self.kind.nbytes

    def begin(self, at_ns: int) -> None:
        """The backend carries it out now; whatever it reads is there."""
        if self.inflight and self.small and self.row["value_in"] is not None:
            self.row["value_in"] = values([tensor for part in self.parts for tensor in part.ins])
        if self.group.fabric.streams:
            self.row["started_ns"] = at_ns

    def complete(self, at_ns: int) -> None:
        """It completed; its output is written."""
        if self.done:
            return
        self._end()
        self.ended_ns = at_ns
        if self.when_waited is None:
            self.settle()
        self.host.completed(self)

    def settle(self) -> None:
        """Write down that it completed, and what came out."""
        if self.when_waited is not None:
            finish, self.when_waited = self.when_waited, None
            try:
                finish()
            except RuntimeError as error:
                self.error = str(error)
                self.row["error"] = f"RuntimeError: {error}"
                raise
        elif self.row.get("completed_ns") is not None:
            return
        self.row["completed_ns"] = self.ended_ns
        if self.small and self.tensors_out:
            self.row["value_out"] = values(self.tensors_out)

    def fail(self, text: str, at_ns: int) -> None:
        """The backend raises instead of completing it."""
        if self.done or self.host.gone:
            return
        self._end()
        if self.when_waited is not None:  # which is when it finds out

            def late() -> None:
                raise RuntimeError(text)

            self.when_waited = late
            self.ended_ns = max(self.ready_ns, at_ns)
            self.host.completed(self)
            return
        self.error = text
        self.row["error"] = f"RuntimeError: {text}"
        self.ended_ns = max(self.ready_ns, at_ns)
        self.host.completed(self)

    def refuse(self, error: Exception) -> None:
        """The backend has raised when it was handed the call."""
        self._end()
        self.row["error"] = f"{type(error).__name__}: {error}"

    def _end(self) -> None:
        self.done = True
        self.host.open_calls -= 1

    def __repr__(self) -> str:
        return f"<{self.op} {self.row['seq']} of rank {self.host.rank} in {self.group.label!r}>"


class Fabric(Protocol):
    """What lies between the ranks of one group: it decides which calls meet, and carries them out."""

    streams: bool
    """Whether Work.wait() makes a stream wait instead of the host."""

    def check(self, call: Call) -> None:
        """Raise what this backend raises at once for such a call."""

    def submit(self, calls: Sequence[Call]) -> None:
        """A rank has issued these calls, as one; carry out what can be."""

    def flush(self) -> bool:
        """Nobody can go on: carry out what needs less than all ranks. True if that completed anything."""

    def leave(self, place: int) -> None:
        """The rank at `place` has ended."""
