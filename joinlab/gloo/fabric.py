"""Gloo as a fabric: messages under a number and a kind, and hosts that wait.

PyTorch numbers the collectives of a group, all kinds with one counter, and gives them to two worker
threads per rank. Gloo sends every message of a collective under that number and the kind. So calls
of two ranks meet if they have the same number and kind, whatever else they disagree in:

    rank 0   all_reduce (0)   barrier (1)      all_reduce (2)
    rank 1   all_reduce (0)   all_reduce (1)   all_reduce (2)
                   meet          never meet         meet

Each rank's part of a collective runs message by message, as `collectives.messages_of` posts them: a send waits
for its receiver; a message that is too long for its receiver aborts that process; one that is too
short fills a part, silently. When a rank's process ends, its connections close, and every rank that
has posted a message to it, or does so later, gets an error. A message that is on its way just then
arrives here if its recv is posted within EXIT_NS (clock.py); of launched ranks, which race, it is
often lost.

    queued -> working, message by message -> done
         `-> empty, or alone in the group: done

Sources: torch/csrc/distributed/c10d/ProcessGroupGloo.cpp of PyTorch v2.13.0, by function: nextTag()
numbers, enqueue() and runLoop() are the queue and its workers, AsyncBarrierWork::run() waits for
what is before it, reduce_scatter_tensor_coalesced() makes all-reduces of copies,
~ProcessGroupGloo() waits at the end of the process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from joinlab.backend.machine import Machine
from joinlab.backend.model import EmulatedCall, Fabric
from joinlab.backend.payload import len_of, read, write
from joinlab.gloo.checks import check
from joinlab.gloo.collectives import Task, collectives_of, messages_of
from joinlab.gloo.network import Buffer, Network, NetworkPart, Waits, advance
from joinlab.ops import FACTS, GLOO_THREADS, POINT_TO_POINT, Op


class GlooFabric(Fabric):
    """The network between the ranks of one group on gloo, which connect when they make it. Each
    rank's part runs as soon as it is issued; a task is in at most one of `_queued` and `_working`.
    """

    backend = "gloo"
    streams = False

    def __init__(self, run: Machine, ranks: Sequence[int]) -> None:
        self._run = run
        self._ranks = tuple(ranks)
        self.size = len(ranks)
        self._network = Network(self.size)
        self._counters = [0] * self.size
        self._queued: list[deque[Task]] = [deque() for _ in ranks]
        # by group rank: what its workers carry out
        self._working: list[list[Task]] = [[] for _ in ranks]
        # by group rank: when its process aborts; it issues nothing any more
        self._aborts: dict[int, int] = {}
        # by group rank: when a task of it failed, and how
        self._failures: list[list[tuple[int, str]]] = [[] for _ in ranks]

    def check(self, call: EmulatedCall) -> None:
        """Raise what gloo refuses when it is handed the call."""
        check(call)
        self.check_connection(call)

    def check_connection(self, call: EmulatedCall) -> None:
        """Raise what a send or recv raises at once if the connection to its peer is closed."""
        peer = call.row.get("peer")
        if call.op in POINT_TO_POINT and peer is not None:
            try:
                self._network.check(call.group_rank, self._ranks.index(peer))
            except ConnectionError as error:
                raise RuntimeError(str(error)) from None

    def submit(self, calls: Sequence[EmulatedCall]) -> None:
        """A rank issues these."""
        for call in calls:
            if call.group_rank in self._aborts:
                continue
            for group_rank in [
                group_rank for group_rank, at_ns in self._aborts.items() if at_ns < call.ready_ns
            ]:
                self.freeze(group_rank)
            if call.op in POINT_TO_POINT:
                self._network.awake.append(Message(self._network, self._ranks, call))
            else:  # PyTorch may make several collectives of a call, each with a number of its own
                collectives = collectives_of(call)
                numbers = self.next_numbers(call.group_rank, len(collectives))
                self._queued[call.group_rank] += [
                    Task(call, *collective_and_number)
                    for collective_and_number in zip(collectives, numbers, strict=True)
                ]
                self._start_next(call.group_rank)
            self._advance()

    def leave(self, group_rank: int) -> None:
        """The process of the rank of `group_rank` has ended: its connections close."""
        self.freeze(group_rank)
        self._network.close(group_rank)
        self._advance()

    def abort(self, group_rank: int, at_ns: int) -> None:
        """The process of `group_rank` aborts at that time: what others have issued by then may still
        meet its calls."""
        self._aborts.setdefault(group_rank, at_ns)

    def freeze(self, group_rank: int) -> None:
        """The process of `group_rank` is about to end: no message of it goes any more.

        A send to a recv that it has posted still goes, and completes: gloo has told the sender
        (NOTIFY_RECV_READY).
        """
        self._aborts.setdefault(group_rank, 0)
        for task in self._working[group_rank]:
            task.done = True
        self._working[group_rank].clear()
        self._queued[group_rank].clear()
        self._network.mute(group_rank)

    def timed_out(self, call: EmulatedCall, ms: int) -> RuntimeError:
        """The host stops waiting for `call`.

        A collective goes on without it (Work::wait). A send or recv is waited for in gloo itself
        (SendWork::wait), which then closes all connections of the rank in this group
        (UnboundBuffer::waitSend).
        """
        if call.op not in POINT_TO_POINT:
            return RuntimeError("Operation timed out!")
        self.cut(call.group_rank)
        return _timed_out(str(call.op), ms)

    def group_timed_out(self, call: EmulatedCall, ms: int) -> RuntimeError:
        """The timeout of a call's group has passed: its worker fails, and its rank's connections in
        the group close."""
        direction = self._direction_of(call)
        self.cut(call.group_rank)
        return _timed_out(direction, ms)

    def _direction_of(self, call: EmulatedCall) -> str:
        """Whether a call that is under way waits in "send" or in "recv"."""
        waits = (
            task.waits_on
            for task in self._working[call.group_rank]
            if task.call is call and task.waits_on
        )
        return next((direction for _, direction in waits), "send" if call.op is Op.SEND else "recv")

    def cut(self, group_rank: int) -> None:
        """The rank of `group_rank` closes its connections; its process lives on."""
        self._network.cut(group_rank)
        self._advance()

    def next_numbers(self, group_rank: int, count: int) -> list[int]:
        """Use up this many of a rank's numbers, as its collectives do."""
        first = self._counters[group_rank]
        self._counters[group_rank] += count
        return list(range(first, first + count))

    # ---------------- collectives

    def _start_next(self, group_rank: int, at_ns: int = 0) -> None:
        """Give queued tasks to the workers of a rank that are free, in the order of issue."""
        queue, working = self._queued[group_rank], self._working[group_rank]
        while queue and len(working) < GLOO_THREADS:
            task = queue[0]
            if task.op is Op.BARRIER and working:
                return  # a barrier waits for everything that its rank has issued before it
            queue.popleft()
            working.append(task)
            task.at_ns = max(task.call.ready_ns, at_ns)
            if task.collective.refusal:
                self._fail(task, task.collective.refusal, at_once=True)
            else:
                self._start(task)

    def _start(self, task: Task) -> None:
        """A worker begins with `task`."""
        call = task.call
        if task.op is Op.BARRIER:
            late = next(
                (
                    text
                    for ended_ns, text in self._failures[call.group_rank]
                    if ended_ns > call.ready_ns
                ),
                None,
            )
            # what it waited for has failed after it was issued: it fails with that error
            if late is not None:
                self._fail(task, late)
                return
        call.begin(task.at_ns)
        task.part = task.collective.prepare()
        if _is_empty(task) or self.size == 1:
            run_alone(task, self.size)
            self._finish(task)
            return
        task.program = messages_of(self._network, task, self.size)
        # not at once: another worker may begin with the next one meanwhile
        self._network.awake.append(task)

    def _finish(self, task: Task | Message) -> None:
        """`task` has succeeded. Its call completes with the last of its tasks; the worker takes the
        next one."""
        if task.done:
            return
        if isinstance(task, Message):
            task.done = True
            task.call.complete(task.at_ns + self._run.costs.call_ns(task.call.nbytes()))
            return
        try:
            task.collective.end()
        except RuntimeError as error:
            self._fail(task, str(error))
            return
        task.done = True
        group_rank = task.call.group_rank
        if task in self._working[group_rank]:
            self._working[group_rank].remove(task)
        call = task.call
        call.small = call.small and not task.undefined
        end_ns = task.at_ns + self._run.costs.call_ns(call.nbytes())
        if not any(
            pending.call is call
            for pending in (*self._working[group_rank], *self._queued[group_rank])
        ):
            call.complete(end_ns)
        self._start_next(group_rank, end_ns)

    def _fail(self, task: Task | Message, text: str, at_once: bool = False) -> None:
        """`task` has raised: its call fails with `text`, and the worker takes the next one."""
        if isinstance(task, Message):
            task.done = True
            task.call.fail(text, task.at_ns)
            return
        group_rank = task.call.group_rank
        task.done = True
        self._network.withdraw(task)
        if task in self._working[group_rank]:
            self._working[group_rank].remove(task)
        end_ns = task.at_ns + (0 if at_once else self._run.costs.call_ns(task.call.nbytes()))
        self._failures[group_rank].append((end_ns, text))
        task.call.fail(text, end_ns)
        self._start_next(group_rank)

    # ---------------- message by message

    def _advance(self) -> None:
        """Run every part whose messages have gone, come or failed, until all of them wait.

        End the processes that receive a message which is too long for them.
        """
        awake = self._network.awake
        while awake:
            task = awake.popleft()
            if task.done or task.program is None:
                continue
            try:
                if advance(task):
                    self._finish(task)
            except ConnectionError as error:
                self._fail(task, str(error))
        for group_rank, text, at_ns in self._network.aborts():
            self._run.abort_rank(self._ranks[group_rank], text, at_ns)


class Message(NetworkPart):
    """A send or recv of the program: one message, under its tag, posted when it is issued and not
    by a worker.

    Source: send(), recv() and recvAnysource() in ProcessGroupGloo.cpp, PyTorch v2.13.0.
    """

    def __init__(self, network: Network, ranks: Sequence[int], call: EmulatedCall) -> None:
        super().__init__()
        self.call = call
        self.at_ns = call.ready_ns
        self.done = False
        sending = call.op is Op.SEND
        self._buffer = Buffer(self, read(call.parts[0].ins if sending else call.parts[0].outs))
        self.program = self._messages(network, ranks, "send" if sending else "recv")
        # a Work of a send or recv learns only in wait() that it is complete, or failed
        call.when_waited = lambda: None
        call.begin(self.at_ns)

    def _messages(self, network: Network, ranks: Sequence[int], direction: str) -> Waits:
        peer, group_rank = self.call.row.get("peer"), self.call.group_rank
        tag = ("tag", self.call.row.get("tag") or 0)
        if peer is None:
            network.recv_any(group_rank, tag, self._buffer)
        else:
            size = len(self._buffer.data)
            network.post(direction, group_rank, ranks.index(peer), tag, self._buffer, 0, size)
        yield self._buffer, direction
        if direction == "recv":
            write(self.call.parts[0].outs, self._buffer.data)
            self.call.source_group_rank = self._buffer.source


def run_alone(task: Task, size: int) -> None:
    """An empty tensor, or a group of one: the call only copies."""
    part = task.part
    if size == 1 and part.ins and part.outs:
        write(part.outs, read(part.ins))


def _is_empty(task: Task) -> bool:
    """Whether gloo returns at once: what comes out has no bytes."""
    returns = FACTS[task.op].empty_returns and task.collective.sparse is None
    return returns and not sum(map(len_of, task.part.outs))


def _timed_out(direction: str, ms: int) -> RuntimeError:
    """UnboundBuffer::waitRecv and waitSend in gloo/transport/tcp/unbound_buffer.cc, in torch
    v2.13.0 as it is built."""
    line = 129 if direction == "send" else 78
    return RuntimeError(
        f"[unbound_buffer.cc:{line}] Timed out waiting {ms}ms for {direction} operation to complete"
    )
