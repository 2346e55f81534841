"""A rank's end of its conversation with its keeper: what it has issued, and what it waits for.

The modelled network lies in the keeper. A rank runs on until it has to know something: whether a
call is complete, what time it is after a sleep, the value of a key. Then it asks, and stands still
until the answer. With the answer comes what has ended meanwhile: outputs are written into its
tensors, futures are fulfilled.

On gloo a wait is the host's. On NCCL most waits are the stream's: the real host runs on. Here,
though, tensors lie in the host's memory and the program computes with them at once; so the process
does stand still at a stream's wait until the data is there, and its host's clock does not move. If
the data will never be there (every rank waits), the keeper lets it go, as the real host never
stopped. From then on its stream is `stuck`, nothing that it issues is carried out, and the next time
that its host waits for the stream it waits for ever.

    runs --stream wait--> stands still --the call completes--> runs
                             |  every rank waits: let go
                             +--> runs, stuck --host waits--> stands still for ever: a hang
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

import torch

from joinlab.emulator.clock import VirtualClock
from joinlab.emulator.messages import (
    CallEnded,
    CallSent,
    Lender,
    RankMessage,
    Reply,
    take_in,
)
from joinlab.emulator.shared_log import SharedLog
from joinlab.errors import LaunchError
from joinlab.ops import Op
from joinlab.recorder.call import RecordedCall
from joinlab.recorder.recorder import Recorder

MOST_ITEMS = 256
"""A rank that asks nothing sends what it has issued after so many calls, so that it does not pile up."""


class Fulfils(Protocol):
    """The futures of this rank's calls (model_work.Futures)."""

    def fulfil(self) -> None:
        """Fulfil those of calls that have ended."""


class Transport(Protocol):
    """How messages get to the keeper."""

    def send(self, message: RankMessage) -> None: ...

    def receive(self) -> Reply: ...


@dataclass(slots=True, eq=False)
class PendingCall:
    """A call of this rank, from its issue until the rank knows that it has ended.

    done    it has ended, as far as the rank knows; on the virtual clock perhaps later than now
    handed  its future was handed out
    """

    recorded: RecordedCall
    outs: list[torch.Tensor]
    streams: bool
    gathered: Sequence[Sequence[torch.Tensor]] = ()
    addresses: list[int] = field(default_factory=list)
    done: bool = False
    ended_ns: int = 0
    error: str | None = None
    source: int = -1
    future: Any = None

    @property
    def id(self) -> int:
        return self.recorded.id

    @property
    def op(self) -> Op:
        return self.recorded.kind.op

    @property
    def host_waits(self) -> bool:
        return self.recorded.kind.host_waits

    @property
    def results(self) -> list[torch.Tensor]:
        """What its future holds: the tensors that it writes. NCCL gathers a list in one tensor of
        its own (newLikeFlat in ProcessGroupNCCL::allgather, v2.13.0)."""
        return [torch.stack(list(outs)) for outs in self.gathered] or self.outs


class Link:
    """What a rank knows of its calls, and how it asks for more."""

    futures: Fulfils

    def __init__(self, transport: Transport, clock: VirtualClock, recorder: Recorder) -> None:
        assert isinstance(recorder.log, SharedLog)
        self._log = recorder.log
        self.clock = clock
        self.recorder = recorder
        self.stuck = False
        self.flush: Callable[[], None] = lambda: None
        """Writes what the program has printed: the keeper may end this process while it waits."""
        self.newest: RecordedCall | None = None
        self.kept: list[Any] = []
        """Works and groups: a Work that was collected makes C++ wait for ever."""
        self._transport = transport
        self._items: list[Any] = []
        self._lender = Lender()
        self._kinds: dict[int, int] = {}  # number of each kind of call, by its id
        self._calls: dict[int, PendingCall] = {}
        self.unfinished: dict[int, PendingCall] = {}
        """Calls that have not ended yet on the host's clock, or never."""
        self._streamed: dict[int, PendingCall] = {}  # its stream has been made to wait for these
        self._turn = threading.Condition()
        self._reading = False
        self._answers: dict[int, Reply] = {}

    # ------------------------------------------------------------------------------------ issuing

    def describe(
        self,
        call: PendingCall,
        group: str,
        method: str,
        args: Sequence[Any],
        ins: Sequence[torch.Tensor],
        enqueued_ns: int,
    ) -> CallSent:
        """A call as it is sent to the keeper."""
        recorded, kind = call.recorded, call.recorded.kind
        number, facts = self._kinds.get(id(kind)), None
        if number is None:
            number, facts = self._kinds.setdefault(id(kind), len(self._kinds)), kind
        own_args, tensors, call.addresses = self._lender.lend(args)
        numbering = recorded.group.numbering
        self._calls[recorded.id] = self.unfinished[recorded.id] = call
        return CallSent(
            recorded.id,
            number,
            facts,
            group,
            method,
            own_args,
            tensors,
            numbering.issued - 1,
            numbering.collectives if kind.collective else numbering.pairs,
            enqueued_ns,
            self.clock.host_ns,
            max(self.clock.host_ns, self.clock.stream_ns) if call.streams else self.clock.host_ns,
            kind.small and bool(ins) and not self.stuck,
        )

    def submit(self, calls: list[CallSent], batched: bool) -> None:
        """Hand calls to the network that are issued as one. They are sent with the next question:
        until then nothing that the network does could be known here.

        A rank that is killed before has issued them, and its log says so, but they meet nobody: as
        in a process that dies before its backend's own thread has sent anything.
        """
        self._items.append(("calls", self.clock.host_ns, calls, batched))
        if len(self._items) >= MOST_ITEMS:
            with self._turn:
                self._send(None)

    def note(self, *item: Any) -> None:
        """Tell the keeper something with the next message."""
        self._items.append((item[0], self.clock.host_ns, *item[1:]))

    # ------------------------------------------------------------------------------------ asking

    def ask(self, *request: Any) -> Any:
        """Ask the keeper, stand still until it answers, and return the answer, or raise it.

        Where every rank waits, the keeper answers that calls have ended meanwhile: callbacks on
        their futures may let another rank go on. On real gloo its own threads would have run them.
        """
        while True:
            with self._turn:
                self._send(request)
                answer = self._receive()
            self._take(answer)
            if not answer.again:
                break
            self.futures.fulfil()
        if answer.error is not None:
            raise answer.error
        return answer.value

    def tell(self, *request: Any) -> None:
        """Tell the keeper how this rank's process ends, which is does next."""
        with self._turn:
            self._send(request)

    def die(self, text: str) -> NoReturn:
        """End this process here and now, as killed."""
        self.tell("die", text)
        os._exit(1)

    def broken(self, text: str) -> LaunchError:
        """What real ranks would do is not modelled, or not known: the emulation returns no
        Timeline, but raises this error."""
        self.tell("broken", text)
        return LaunchError(text)

    def _send(self, request: tuple[Any, ...] | None) -> None:
        self.flush()
        items, self._items = self._items, []
        self._transport.send(
            RankMessage(
                self._log.end,
                self.clock.host_ns,
                threading.get_ident(),
                items,
                request,
            )
        )

    def _receive(self) -> Reply:
        """This thread's answer. One of the threads that wait reads for all."""
        thread = threading.get_ident()
        while thread not in self._answers:
            if self._reading:
                self._turn.wait()
                continue
            self._reading = True
            self._turn.release()
            try:
                answer = self._transport.receive()
            finally:
                self._turn.acquire()
                self._reading = False
            self._answers[answer.thread] = answer
            self._turn.notify_all()
        return self._answers.pop(thread)

    def _take(self, answer: Reply) -> None:
        for ended in answer.ended:
            self._note_ended(ended)
        self.stuck = self.stuck or answer.stuck
        self.clock.reach(answer.now)

    def _note_ended(self, ended: CallEnded) -> None:
        call = self._calls.pop(ended.id, None)
        if call is None:
            return
        self._lender.give_back(call.addresses)
        take_in(call.outs, ended.outs)
        call.done, call.ended_ns, call.source = True, ended.ended_ns, ended.source
        call.error = ended.error
        self.clock.at(ended.ended_ns, lambda: self._close(call))

    def _close(self, call: PendingCall) -> None:
        """The call has ended, and the host's clock is there."""
        self.unfinished.pop(call.id, None)
        self.recorder.completions.close(call.recorded)

    # ------------------------------------------------------------------------------------ waiting

    def is_past(self, call: PendingCall) -> bool:
        """Whether a call is complete by now, on the host's clock."""
        return call.done and call.error is None and call.ended_ns <= self.clock.host_ns

    @property
    def stuck_at(self) -> list[RecordedCall]:
        """Calls that the stream waits for, and that have not ended."""
        return [call.recorded for call in self._streamed.values() if not call.done]

    def for_host(self, calls: Sequence[PendingCall]) -> None:
        """Make the host wait until all of `calls` are complete; raises the backend's error."""
        late = [call for call in calls if not self.is_past(call)]
        if any(not call.done for call in late):
            ids = [call.id for call in calls if call.id in self._calls]
            waits = self.recorder.waits
            if threading.get_ident() in waits.open:
                self.ask("host", ids)
            else:  # C++ is about to wait, which the recorder does not see
                recorded = [call.recorded for call in late]
                waits.begin(recorded)
                self.ask("host", ids)
                waits.end(recorded, completed=all(call.error is None for call in late))
        for call in late:
            if call.error is None:
                self.clock.reach(call.ended_ns)
                if call.streams:
                    self.clock.stream_waits_until(call.ended_ns)
        self.futures.fulfil()
        for call in late:
            if call.error is not None:
                raise RuntimeError(call.error)

    def for_host_until(self, calls: Sequence[PendingCall], timeout_ns: int) -> None:
        """Make the host wait, but not longer than that (0: than the group's own timeout)."""
        try:
            self.ask("timed", [call.id for call in calls], timeout_ns)
        except Exception:
            for call in calls:  # its record says so, whatever comes later
                self._close(call)
            raise
        self.futures.fulfil()

    def for_stream(self, calls: Sequence[PendingCall]) -> None:
        """The stream waits until all of `calls` are complete."""
        late = [call.id for call in calls if not call.done]
        if late and not self.stuck:
            self.ask("stream", late)
        elif late:
            self.note("streamed", late)
        for call in calls:
            if call.done:
                self.clock.stream_waits_until(call.ended_ns)
            if not self.is_past(call):
                self._streamed[call.id] = call
        self.futures.fulfil()

    def sync(self) -> None:
        """The host waits for its stream: .item(), .cpu(), print(tensor)."""
        late = [call for call in self._streamed.values() if not self.is_past(call)]
        self._streamed.clear()
        if late:
            with self.recorder.waits.waiting([call.recorded for call in late]):
                self.for_host(late)
        self.clock.reach(self.clock.stream_ns)

    def sleep(self, seconds: float) -> None:
        """time.sleep: virtual time passes, and others may act."""
        self.ask("sleep", round(max(0.0, seconds) * 1e9))

    def synchronize(self, group: str | None = None) -> None:
        """torch.cuda.synchronize(): the host waits for all calls on NCCL (of one group)."""
        late = [
            call
            for call in self.unfinished.values()
            if call.streams and call.error is None and group in (None, call.recorded.group.label)
        ]
        if late:
            with self.recorder.waits.waiting([call.recorded for call in late]):
                self.for_host(late)
        if group is None:
            self.sync()
