"""The network that carries gloo's messages: who meets whom, who waits, who aborts, and what a
closed connection does.

messages.py defines, from gloo's sources, which messages a collective posts and where it waits.
`play` carries them out: it posts sends and recvs to the `Network`, and yields (buffer, "send" or
"recv") where gloo's waitSend or waitRecv does not return at once. So a mismatch ends here as it
does there: it hangs at the same wait, fills the same part of a buffer, or aborts the same process.
The emulator's buffers hold bytes; the rule plays the same messages without any.

    Network         gloo/transport/tcp/pair.cc, context.cc and unbound_buffer.cc, in third_party/gloo of PyTorch v2.13.0
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, TypeVar, assert_never

from joinlab.gloo.messages import ARRIVED, WORK, MessageWait, Post, Steps, Sum


class NetworkPart:
    """One rank's part of a collective, as far as the network knows it.

    at_ns     how far it has come, on the virtual clock
    program   its messages, once it has begun
    waits_on  the buffer and the direction that `program` waits for
    """

    def __init__(self) -> None:
        self.at_ns = 0
        self.program: Waits | None = None
        self.waits_on: tuple[Buffer, str] | None = None


Waits = Generator[tuple["Buffer", str], None, None]
Slot = tuple[str, int]
"""What a message is sent under: the kind of collective and its number, or ("tag", tag).

Gloo packs the same pair into 64 bits (Slot::build in gloo/types.h); a send or recv of a program
uses its tag alone.
"""


class Buffer:
    """Memory that messages are sent from and received into: UnboundBuffer in
    gloo/transport/tcp/unbound_buffer.cc.

    A wait does not name a message. It takes one completed send (or recv) off the buffer's count,
    whichever it was:

        recv(0:4)  recv(4:8)         two recvs are posted
        4:8 arrives                  counts["recv"] == 1
        waitRecv()                   returns, though 0:4 has not come

    data       its bytes, a numpy array; None in the rule
    counts     completed messages that no wait has taken yet
    error      set when the connection of one of its messages closes; every later wait raises it
    scratch    gloo allocates it without setting it, so what no message fills is undefined
    undefined  part of it was never filled
    source     group rank of the sender of the last message that came
    """

    __slots__ = ("_data", "at_ns", "counts", "error", "scratch", "source", "task", "undefined")

    def __init__(self, task: NetworkPart, data: object = None, scratch: bool = False) -> None:
        self.task = task
        self.scratch = scratch
        self._data = data
        self.counts = {"send": 0, "recv": 0}
        self.error: str | None = None
        self.source = -1
        self.at_ns = 0
        self.undefined = False

    @property
    def data(self) -> Any:
        return self._data

    def completed(self, direction: str) -> bool:
        """Take one completed message off the count; False if there is none, or a connection has
        closed."""
        if not self.counts[direction] or self.error is not None:
            return False
        self.counts[direction] -= 1
        self.task.at_ns = max(self.task.at_ns, self.at_ns)
        return True


class _PostedMessage:
    """A send or recv that waits for its counterpart: bytes `low` to `high` of a buffer, of the rank
    at `group_rank`."""

    __slots__ = ("at_ns", "buffer", "group_rank", "high", "low")

    def __init__(self, group_rank: int, buffer: Buffer, low: int, size: int) -> None:
        self.group_rank = group_rank
        self.buffer = buffer
        self.low = low
        self.high = low + size
        self.at_ns = buffer.task.at_ns


class Network:
    """The connections of one group. The k-th send from one rank to another under a slot meets the
    k-th recv.

    Invariant: of the sends and the recvs under one (from, to, slot), one side is always empty,
    since a post that finds its counterpart waiting meets it at once and is never queued. A send
    completes only when its recv is there: gloo announces it (NOTIFY_SEND_READY) and sends the bytes
    once the receiver has answered (Pair::send in pair.cc). Only what a process that aborts still
    has to send may stand beside a recv: it does not answer any more.

    awake  the parts that may go on, since a message that they wait for has met its counterpart, or failed
    """

    def __init__(self, size: int) -> None:
        self._sends: dict[tuple[int, int, Slot], list[_PostedMessage]] = {}
        self._recvs: dict[tuple[int, int, Slot], list[_PostedMessage]] = {}
        self._any: dict[tuple[int, Slot], list[_PostedMessage]] = {}
        self._closed: set[int] = set()
        self._cut: set[int] = set()  # group ranks whose process lives on without connections
        self.awake: deque[Any] = deque()
        self._aborts: list[tuple[int, str, int]] = []
        self._aborts_at: dict[int, int] = {}  # by group rank: when its process aborts
        self._size = size

    def post(
        self,
        direction: str,
        group_rank: int,
        peer: int,
        slot: Slot,
        buffer: Buffer,
        low: int,
        size: int,
    ) -> None:
        """Post a "send" or a "recv". ConnectionError if the peer has ended."""
        self.check(group_rank, peer)
        post = _PostedMessage(group_rank, buffer, low, size)
        if direction == "send":
            table, key = self._sends, (group_rank, peer, slot)
            waiting = _first(self._recvs, key) or _first(self._any, (peer, slot))
        else:
            table, key = self._recvs, (peer, group_rank, slot)
            waiting = _first(self._sends, key) if self._answers(peer, post.at_ns) else None
        if waiting is None:
            table.setdefault(key, []).append(post)
        elif direction == "send":
            self._meet(post, waiting)
        else:
            self._meet(waiting, post)

    def recv_any(self, group_rank: int, slot: Slot, buffer: Buffer) -> None:
        """Post a recv that takes the first message under `slot`, from any peer
        (Context::recvFromAny in context.cc)."""
        for peer in range(self._size):
            if self._sends.get((peer, group_rank, slot)) and self._answers(peer, buffer.task.at_ns):
                self.post("recv", group_rank, peer, slot, buffer, 0, len(buffer.data))
                return
        self._any.setdefault((group_rank, slot), []).append(
            _PostedMessage(group_rank, buffer, 0, len(buffer.data))
        )

    def unanswered(self) -> Iterator[tuple[int, int]]:
        """(group_rank, peer) of each posted message that has not met its counterpart."""
        for (source, target, _), posts in (*self._sends.items(), *self._recvs.items()):
            for post in posts:
                yield post.group_rank, source + target - post.group_rank

    def check(self, group_rank: int, peer: int) -> None:
        """ConnectionError if these two are no longer connected."""
        if group_rank in self._cut:
            raise ConnectionError(CUT_TEXT)
        if peer in self._closed or peer in self._cut:
            raise ConnectionError(closed_text(peer))

    def _answers(self, peer: int, at_ns: int) -> bool:
        """Whether the process at `peer` still sends when it hears of a recv that was posted at
        `at_ns`."""
        return peer not in self._aborts_at or at_ns < self._aborts_at[peer]

    def _meet(self, send: _PostedMessage, recv: _PostedMessage) -> None:
        """The bytes go over. The sender's length counts, as in Pair::readBuffer (pair.cc):

        send 4 B, recv 4 B      fits
        send 4 B, recv 8 B      fills the first 4, and both sides take it for complete
        send 8 B, recv 4 B      GLOO_ENFORCE_LE(op.preamble.length, op.nbytes) aborts the receiver's process
        """
        arrival_ns = max(send.at_ns, recv.at_ns)
        length, room = send.high - send.low, recv.high - recv.low
        self._complete(send, "send", arrival_ns)
        if length > room:
            text = f"what():  enforce fail: op.preamble.length <= op.nbytes. {length} vs {room}"
            self._aborts.append((recv.group_rank, text, arrival_ns))
            self._aborts_at.setdefault(recv.group_rank, arrival_ns)
            return
        self._complete(recv, "recv", arrival_ns)
        recv.buffer.source = send.group_rank
        recv.buffer.undefined |= send.buffer.undefined or (recv.buffer.scratch and length < room)
        into = recv.buffer.data
        if into is not None:
            into[recv.low : recv.low + length] = send.buffer.data[send.low : send.high]

    def _complete(self, post: _PostedMessage, direction: str, at_ns: int) -> None:
        buffer = post.buffer
        buffer.counts[direction] += 1
        buffer.at_ns = max(buffer.at_ns, at_ns)
        if buffer.task.waits_on == (buffer, direction):
            self.awake.append(buffer.task)

    def aborts(self) -> list[tuple[int, str, int]]:
        """Places whose process aborts, what it says, and when."""
        aborts, self._aborts = self._aborts, []
        return aborts

    def withdraw(self, task: NetworkPart) -> None:
        """Remove the posts of a task that has failed: no wait will take their messages."""
        for posts in (*self._sends.values(), *self._recvs.values(), *self._any.values()):
            for post in [post for post in posts if post.buffer.task is task]:
                posts.remove(post)

    def mute(self, group_rank: int) -> None:
        """Remove the sends of the process of `group_rank`, which is about to end: it answers no receiver
        any more."""
        for (source, _, _), posts in self._sends.items():
            if source == group_rank:
                posts.clear()

    def close(self, group_rank: int) -> None:
        """The process of `group_rank` has ended: its peers' messages to and from it fail.

        A recv from any peer stays as it is: it is no message of one connection, and so is never
        told.
        """
        self._closed.add(group_rank)
        self._drop(group_rank)

    def cut(self, group_rank: int) -> None:
        """The rank of `group_rank` closes its connections, though its process lives on: messages of both
        sides fail."""
        self._cut.add(group_rank)
        self._drop(group_rank)

    def _drop(self, group_rank: int) -> None:
        for table in (self._sends, self._recvs):
            for (source, target, _), posts in table.items():
                if group_rank in (source, target):
                    for post in posts:
                        if post.group_rank != group_rank or group_rank in self._cut:
                            if post.group_rank == group_rank:
                                post.buffer.error = CUT_TEXT
                            else:
                                post.buffer.error = closed_text(group_rank)
                            self.awake.append(post.buffer.task)
                    posts.clear()
        for (target, _), posts in self._any.items():
            if target in self._closed:
                posts.clear()


_Key = TypeVar("_Key")


def _first(table: dict[_Key, list[_PostedMessage]], key: _Key) -> _PostedMessage | None:
    """Take the oldest post out of a table of posts; None if there is none."""
    posts = table.get(key)
    if not posts:
        return None
    post = posts.pop(0)
    if not posts:  # each call has a slot of its own, so the tables would grow with every call
        del table[key]
    return post


CUT_TEXT = "Application timeout caused pair closure"
"""UnboundBuffer::waitRecv() in gloo/transport/tcp/unbound_buffer.cc: one wait that times out closes
all connections."""


def closed_text(group_rank: int) -> str:
    """What gloo says of a peer whose process has ended."""
    return f"Connection closed by peer [rank {group_rank} of the group has ended]"


def play(
    network: Network,
    slot: Slot,
    me: int,
    steps: Steps,
    buffers: Sequence[Buffer],
    add: Callable[[Any, Any], object] = lambda local, came: local,
) -> Waits:
    """Carry out the steps of the rank of group rank `me`; `add` combines the bytes that a rank has with
    those that came."""
    for step in steps:
        match step:
            case MessageWait():
                if not buffers[step.buffer].completed(step.direction):
                    yield buffers[step.buffer], step.direction
            case Post():
                buffer = buffers[step.buffer]
                network.post(step.direction, me, step.peer, slot, buffer, step.low, step.size)
            case Sum():
                work, arrived = buffers[WORK], buffers[ARRIVED]
                work.undefined |= arrived.undefined
                sums = work.data
                if sums is not None:
                    local = sums[step.low : step.low + step.size]
                    local[:] = add(local, arrived.data[step.at : step.at + step.size])
            case _:
                assert_never(step)


def advance(part: NetworkPart) -> bool:
    """Run `part` until it waits for a message that is not there; whether it has ended.
    ConnectionError: it fails."""
    assert part.program is not None
    while True:
        if part.waits_on is not None:
            buffer, direction = part.waits_on
            if not buffer.completed(direction):
                if buffer.error is not None:
                    raise ConnectionError(buffer.error)
                return False
        part.waits_on = next(part.program, None)
        if part.waits_on is None:
            return True
