"""The keeper's end of an emulation: the network between the ranks, and the answers to what they ask.

Each rank runs in a process of its own, and computes beside the others. The network looks at what
they have issued only when every rank that lives stands in a question; then it is the turn of the one
furthest behind on its virtual clock, with all that it has issued since its last turn:

    rank 0   runs ── all_reduce, wait ┐                            ┌ runs ──
    rank 1   runs ────── all_reduce, wait ┐                        ├ runs ──
    keeper                   every rank asks: rank 0's turn,       │
                             then rank 1's, by which both are done ┘

So a run depends on no clock but the virtual one: the same program has the same Timeline, as long as
its ranks talk through torch.distributed alone. A rank whose wait is over is answered at once, since
no other rank can change its answer any more.
"""

from __future__ import annotations

import heapq
import mmap
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from joinlab.backend.model import EmulatedCall, Knobs
from joinlab.backend.payload import Part, parts_of
from joinlab.backend.session import End, RankOver, Session, SessionRank, Wait
from joinlab.emulator.messages import (
    Borrower,
    CallEnded,
    CallSent,
    Range,
    RankMessage,
    Reply,
    held,
)
from joinlab.emulator.shared_log import LogReader
from joinlab.errors import LaunchError
from joinlab.gloo.fabric import GlooFabric
from joinlab.gloo.monitored import monitored_barrier
from joinlab.nccl.fabric import NcclFabric, watchdog_text
from joinlab.ops import POINT_TO_POINT, Op
from joinlab.program.kinds import CallKind
from joinlab.program.log_events import (
    CallDone,
    CallFailed,
    CallStarted,
    Event,
    ValuesRead,
    encode,
)
from joinlab.program.process_group import METHODS
from joinlab.recorder.events import to_json

FABRICS: Mapping[str, Any] = {"nccl": NcclFabric, "gloo": GlooFabric}

DEFAULT_GROUP = "0"
"""Name that torch.distributed gives to the group of all ranks."""


class Lost(NamedTuple):
    """What a rank's process leaves behind that ends without a word.

    text  how it ended
    """

    text: str


class ProcessRank(SessionRank):
    """A rank whose program runs in another process.

    text   its log so far, with the events of the network among its own
    calls  those that its process does not know to have ended
    away   its process runs: it has asked nothing since the last answer
    """

    session: Exchange

    def __init__(self, session: Session, rank: int) -> None:
        super().__init__(session, rank)
        self.text: list[str] = []
        self.away = True
        self.eager = False
        """It stands in a plain wait: once that is over, its turn is to be answered."""
        self.called = False
        """No rank can go on: its process is told what has ended, and runs callbacks."""
        self.woken = False
        self.key = 0
        """Its clock when it last began to wait: the rank furthest behind has the next turn."""
        self.returned: tuple[Any, ...] = ()
        """What its process left when it ended."""
        self.bound = False
        """A GPU is bound to its process, so that its groups connect when they are made."""
        self.inbox: deque[RankMessage | Lost] = deque()
        self._thread = 0  # that asked
        self._fresh: list[EmulatedCall] = []  # ended, and its process does not know it yet
        self._sent: dict[int, EmulatedCall] = {}
        self._lent: dict[int, tuple[Sequence[Any], list[Range]]] = {}
        self._kinds: list[CallKind] = []
        self._borrower = Borrower()

    # ------------------------------------------------------------------------------------ its turn

    def act(self) -> None:
        """Reply what its process asks, until that ends."""
        while True:
            message = self._next_message()
            if message.request is None:
                self._take_items(message)
                continue
            name, *rest = message.request
            value, error = None, None
            try:
                self._take_items(message)
                if name == "end":
                    self.returned = tuple(rest)
                    return
                value = getattr(self, f"on_{name}")(*rest)
            except LaunchError:
                raise
            except Exception as raised:
                error = raised
            if not self.eager:  # its turn goes on
                self.key = -1
            self.eager = False
            self._answer(value, error)

    def _next_message(self) -> RankMessage:
        """What its process has sent, once it has sent something."""
        while not self.inbox:
            self.away = True
            self._hand_over()
        message = self.inbox.popleft()
        if isinstance(message, Lost):
            self.end = End("killed", None, message.text)
            raise RankOver
        self._thread = message.thread
        return message

    def _answer(self, value: Any, error: Exception | None, again: bool = False) -> None:
        fresh, self._fresh = self._fresh, []
        ended = [self._told(call) for call in fresh]
        self.away = True
        answer = Reply(value, error, self.now, self.stuck, ended, again, self._thread)
        self.session.answer(self.rank, answer)

    def _told(self, call: EmulatedCall) -> CallEnded:
        """Tell its process that a call has ended; the process's memory is the true one again."""
        outs, lent = self._lent.pop(call.id)
        ended = CallEnded(call.id, call.ended_ns, held(outs), call.error, call.source_place)
        self._borrower.give_back(lent)
        self.calls.remove(call)
        call.parts, call.args, call.tensors_in, call.tensors_out = [], (), (), ()
        return ended

    def wake(self) -> None:
        if self.eager and not self.queued and not self.gone:
            self.queued = True
            self.session.answerable.append(self)
        else:
            super().wake()
        self.woken = True

    def _stand(self, wait: Wait, until: int | None = None) -> None:
        while True:
            self.key = self.now
            super()._stand(wait, until)
            if not self.called:
                return
            self.called = self.woken = False
            self._answer(None, None, again=True)
            asked = False
            while not asked:
                message = self._next_message()
                self._take_items(message)
                asked = message.request is not None
            if wait.over or (wait.why and self.woken):
                return

    def yield_if_ready(self) -> None:
        """Let the others act that are behind, those too whose processes compute just now."""
        self.eager = False
        self._yield_turn(asks=False)

    def call_back(self) -> bool:
        """Every rank waits: let its process run the callbacks of what has ended. False if there is
        nothing that it does not know."""
        if self.standing is None or not self._fresh:
            return False
        self.called = True
        self.wake()
        return True

    # ---------------------------------------------------------------- what it has issued

    def _take_items(self, message: RankMessage) -> None:
        for kind, now, *rest in message.items:
            self.reach(now)
            getattr(self, f"take_{kind}")(*rest)
        self.reach(message.now)

    def take_calls(self, sent: Sequence[CallSent], batched: bool) -> None:
        """It issues these, as one."""
        calls = [self._described(call, batched) for call in sent]
        self.submit(self.groups[sent[0].group], calls)

    def take_streamed(self, ids: Sequence[int]) -> None:
        """Its stream, which is stuck, was made to wait for these, too."""
        self.for_stream([self._sent[id] for id in ids])

    def take_timeout(self, label: str, ns: int) -> None:
        """It gives a group this timeout."""
        self.groups[label].set_timeout(ns)

    def _described(self, sent: CallSent, batched: bool) -> EmulatedCall:
        if sent.facts is not None:
            self._kinds.append(sent.facts)
        kind, group = self._kinds[sent.kind], self.groups[sent.group]
        method = METHODS[sent.method]
        args, ins, outs, lent = self._borrower.borrow(method, sent.args, sent.tensors)
        if method.op is Op.BARRIER and group.fabric.streams:
            ins = outs = [self.session.knobs.barrier_element()]
            parts = [Part(ins, outs)]
        else:
            parts = parts_of(sent.method, args, len(group.ranks), group.fabric.streams)
        facts = kind.facts
        row: Any = {
            "rank": self.rank,
            "group": sent.group,
            "seq": sent.seq,
            "number": sent.number,
            "op": kind.op.value,
            "dtype": facts["dtype"],
            "root": facts.get("root"),
            "peer": facts.get("peer"),
            "tag": facts.get("tag"),
            "value_in": sent.readable or None,
            "enqueued_ns": sent.enqueued_ns,
        }
        call = EmulatedCall(
            weakref.proxy(self),
            group,
            kind,
            sent.id,
            row,
            parts,
            sent.method,
            args,
            batched=batched,
        )
        if kind.small:
            call.tensors_in, call.tensors_out = ins, outs
        call.inflight = self.open_calls > 0
        call.ready_ns = sent.ready_ns
        self._lent[call.id] = outs, lent
        self._sent[call.id] = call
        if call.op in POINT_TO_POINT and isinstance(group.fabric, GlooFabric):
            group.fabric.check_connection(call)
        self.open_calls += 1
        self.calls.append(call)
        return call

    # ---------------------------------------------------------------- what the network tells it

    def take(self, event: Event) -> None:
        """Write what happened to a call into its log."""
        if not isinstance(event, (CallStarted, CallDone, CallFailed, ValuesRead)):
            raise TypeError(f"no event of a call: {event!r}")
        if event.call < 0:  # no call of the program, as in monitored_barrier
            return
        call = self._sent[event.call]
        self.text.append(to_json(encode(event)) + "\n")
        if isinstance(event, CallDone):
            call.row["completed_ns"] = event.time_ns
            self._fresh.append(call)
        elif isinstance(event, CallFailed):
            call.row["error"] = event.text
            if not call.expired:
                self._fresh.append(call)

    # ---------------------------------------------------------------- what it asks

    def on_submitted(self) -> None:
        """Its host is through with the calls that it has just issued."""

    def on_host(self, ids: Sequence[int]) -> None:
        """The host waits for these. Their errors are told with their ends."""
        calls = [self._sent[id] for id in ids]
        self.eager = not all(call.done for call in calls)
        with suppress(RuntimeError):
            self.for_host(calls)

    def on_stream(self, ids: Sequence[int]) -> None:
        """The stream waits for these."""
        calls = [self._sent[id] for id in ids]
        self.eager = not all(call.done for call in calls)
        self.for_stream(calls)

    def on_timed(self, ids: Sequence[int], timeout_ns: int) -> None:
        """Work.wait() with a time limit, its own or the group's."""
        self.wait([self._sent[id] for id in ids], timeout_ns)

    def on_poll(self, ids: Sequence[int]) -> bool:
        """Work.is_completed()."""
        return self.poll([self._sent[id] for id in ids])

    def on_sleep(self, ns: int) -> None:
        self.sleep(ns)

    def on_connect(self, label: str) -> None:
        """init_process_group(device_id=...): NCCL makes the communicator at once, and those of
        later groups, too.

        _new_process_group_helper calls eager_connect_single_device where a device is bound
        (distributed_c10d.py, PyTorch v2.13.0).
        """
        self.bound = True
        group = self.groups[label]
        group.fabric.connect(group.place, self, self.now)

    def on_group(self, name: str, ranks: Sequence[int], backend: str, timeout_ns: int) -> str:
        """It makes a process group; returns its label. On gloo its ranks connect first, and so
        wait."""
        label = self.session.label(self.rank, name, tuple(ranks), backend)
        group = self.open_group(label, ranks, FABRICS[backend], self.bound)
        if timeout_ns:
            group.set_timeout(timeout_ns)
        if not group.fabric.streams and label != DEFAULT_GROUP:
            self.meet(label)
        return label

    def on_store(self, name: str, *args: Any) -> Any:
        """It asks the store that all ranks share."""
        return getattr(self.session.store, name)(self, *args)

    def on_monitored_barrier(self, label: str, timeout_ns: int, all_ranks: bool) -> None:
        group = self.groups[label]
        assert isinstance(group.fabric, GlooFabric)
        monitored_barrier(group.fabric, weakref.proxy(self), group, timeout_ns, all_ranks)

    def on_die(self, text: str) -> None:
        """Its process ends here and now."""
        self.end = End("killed", self.awaited, text)
        raise RankOver

    def on_broken(self, text: str) -> None:
        """What a real rank would do is not known."""
        raise LaunchError(text)


class SharedStore:
    """The keys and values that the ranks share. A key that no rank can set any more is a hang."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._waiting: dict[str, list[SessionRank]] = {}

    def set(self, host: SessionRank, key: str, value: bytes) -> None:
        self._values[key] = value
        for waiting in self._waiting.pop(key, ()):
            waiting.wake()

    def get(self, host: SessionRank, key: str) -> bytes:
        self._await(host, key)
        return self._values[key]

    def add(self, host: SessionRank, key: str, amount: int) -> int:
        total = int(self._values.get(key, b"0")) + amount
        self.set(host, key, str(total).encode())
        return total

    def compare_set(self, host: SessionRank, key: str, expected: bytes, desired: bytes) -> bytes:
        """Set a key if it has the expected value (or none, and none is expected); returns what it
        has then."""
        if self._values.get(key, b"") == expected:
            self.set(host, key, desired)
        return self._values.get(key, expected)

    def wait(self, host: SessionRank, keys: Sequence[str]) -> None:
        for key in keys:
            self._await(host, key)

    def check(self, host: SessionRank, keys: Sequence[str]) -> bool:
        return all(key in self._values for key in keys)

    def delete_key(self, host: SessionRank, key: str) -> bool:
        return self._values.pop(key, None) is not None

    def num_keys(self, host: SessionRank) -> int:
        return len(self._values)

    def _await(self, host: SessionRank, key: str) -> None:
        while key not in self._values:
            self._waiting.setdefault(key, []).append(host)
            host.wait_inside((), f"for the key {key!r} of the store")


class Exchange(Session):
    """The ranks of one emulation, in processes, and the fabrics between them.

    answer      called with (rank, Reply)
    hear        waits until processes have sent something; returns what, by rank
    answerable  ranks whose wait is over
    """

    host_type = ProcessRank
    hosts: list[ProcessRank]  # type: ignore[assignment]

    def __init__(
        self,
        knobs: Knobs,
        logs: Sequence[mmap.mmap],
        answer: Callable[[int, Reply], None],
        hear: Callable[[], Iterable[tuple[int, RankMessage | Lost]]],
    ) -> None:
        """`logs`: the memory of each rank's log."""
        super().__init__(knobs, len(logs))
        self._logs = [LogReader(memory) for memory in logs]
        self.answer = answer
        self.answerable: deque[ProcessRank] = deque()
        self.store = SharedStore()
        self._hear = hear
        self._backend_of: dict[str, str] = {}

    def go(self) -> None:
        """Run until every rank has ended, or none can go on. LaunchError: what real ranks would do
        is not modelled."""
        self.run([lambda _, host=host: host.act() for host in self.hosts])  # type: ignore[misc]

    def listen(self) -> None:
        while True:
            while self.answerable:
                host = self.answerable.popleft()
                host.queued = False
                if not host.gone:
                    assert host.turn is not None
                    host.turn.switch()
            if not any(host.away and not host.gone for host in self.hosts):
                return
            for rank, message in self._hear():
                self._take(self.hosts[rank], message)

    def _take(self, host: ProcessRank, message: RankMessage | Lost) -> None:
        log = self._logs[host.rank]
        if isinstance(message, Lost):
            host.text.append(log.take_rest())
        else:
            host.text.append(log.take(message.log_end))
            if message.request == ("log",):  # its log is full: it goes on at once
                log.restart()
                self.answer(host.rank, Reply(None, None, 0, False, [], thread=message.thread))
                return
        host.inbox.append(message)
        if isinstance(message, Lost) or message.request is not None:
            host.away = False
            if not host.queued:
                host.queued = True
                heapq.heappush(self.ready, (host.key, host.rank))

    def take_rest(self) -> None:
        """Every process has ended: take what those wrote that were ended before they could tell."""
        for host, log in zip(self.hosts, self._logs, strict=True):
            host.text.append(log.take_rest())

    @property
    def awake(self) -> bool:
        return bool(self.ready or self.answerable)

    def call_back(self) -> bool:
        called = [host.call_back() for host in self.hosts if not host.gone]
        return any(called)

    def label(self, rank: int, name: str, ranks: tuple[int, ...], backend: str) -> str:
        """What a group is called here. LaunchError if ranks mean different groups by one name."""
        others = self.ranks_of.get(name, ranks)
        if others != ranks and len(others) == len(ranks) == 1:
            name = f"{name} of rank {rank}"  # such a group needs no peer, so its name may repeat
        elif others != ranks:
            raise LaunchError(
                f"the ranks name different groups {name!r}: rank {rank} that of ranks {list(ranks)}, others that of "
                f"{list(others)}. Real ranks would connect to the wrong peers, with unknown results. Every rank, also "
                "one outside the group, has to call new_group for every group in the same order, or pass "
                "use_local_synchronization=True."
            )
        if self._backend_of.setdefault(name, backend) != backend:
            name = f"{name} on {backend}"  # or asked for different backends
            self._backend_of[name] = backend
        return name

    def watched(self) -> list[tuple[int, float, str]]:
        """How NCCL's watchdog would end the ranks that hang: rank, seconds, text.

        Today it does so by default (TORCH_NCCL_ASYNC_ERROR_HANDLING=3, ProcessGroupNCCL.cpp,
        PyTorch v2.13.0): the process aborts when a call has not completed within its group's
        timeout. 1.9 waits for ever.
        """
        found = []
        for host in self.hosts if self.knobs.era == "today" else ():
            if host.end is None or host.end.kind != "hung":
                continue
            pending = [call for call in host.calls if call.group.watchdog_ns and not call.done]
            first = min(
                pending,
                key=lambda call: (call.row["enqueued_ns"] or 0) + call.group.watchdog_ns,
                default=None,
            )
            if first is not None:
                ns = first.group.watchdog_ns
                found.append((host.rank, ns / 1e9, watchdog_text(first, ns // 1_000_000)))
        return found
