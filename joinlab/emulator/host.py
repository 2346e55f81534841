"""One rank of an emulation: its host and its stream, what it issues, and what it waits for.

On gloo a wait is the host's. On NCCL most waits are the stream's: the host runs on. Here, though, tensors lie in
the host's memory, and the program computes with them at once; so the thread of the rank does stop at a stream's
wait until the data is there, without its virtual host clock moving. If it turns out that the data will never be
there (every rank waits), the thread is let go, as the real host never stopped: from then on its stream is `stuck`,
nothing that it issues is carried out, and the next time that its host waits for the stream it waits for ever.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.autograd import Variable
from torch.distributed import distributed_c10d as c10d

from joinlab.emulator.buckets import BucketRebuild
from joinlab.emulator.calls import Call
from joinlab.emulator.clock import FORWARD_SHARE, ISSUE_NS, POLL_NS
from joinlab.emulator.group import EmulatedGroup, EmulatedWork, parts_of
from joinlab.emulator.isolation import Own
from joinlab.emulator.payload import Part, elements, values
from joinlab.emulator.scheduler import Lane, RankEnded, current
from joinlab.ops import POINT_TO_POINT, CallRow, Op, SpanRow
from joinlab.program.labels import line_of
from joinlab.program.process_group import METHODS, tensors_in
from joinlab.timeline import Ending

if TYPE_CHECKING:
    from joinlab.emulator.run import Run


class Host:
    """A rank: the methods below are called in its thread, while it holds the baton."""

    def __init__(self, run: Run, rank: int, own: Own) -> None:
        self.run = run
        self.rank = rank
        self.own = own
        self.steps: list[int] = []  # optimizer spans under way
        self.lane: Lane
        self.stream_ns = 0
        self.stuck = False
        self.gone = False
        self.input: int | None = None
        self.ending: Ending | None = None
        self.calls: list[Call] = []
        self.open_calls = 0  # of them, how many are neither complete nor failed
        self.spans: list[SpanRow] = []
        self.awaited: Sequence[Call] = ()  # what its thread stands still for
        self.soft = False  # and whether only its stream waits
        self.let_go = False
        self.key: str | None = None  # of the store, if it waits for one
        self.over = ""  # what is said of it once its program is over and its process waits
        self.why = ""  # what it waits for, where that is no call
        self._works: list[EmulatedWork] = []  # C++ must never outlive them
        self._streamed: dict[Call, None] = {}  # its stream has been made to wait for these
        self.typed_futures = False  # DDP was given one of C++'s own comm hooks
        self._open_futures: list[Call] = []
        self._handed_out: list[Call] = []  # their futures were, though no wait has been seen yet
        self._fulfilling = False
        self._in_backward: list[Call] | None = None
        self._input_used_ns = 0
        self._backward: list[int] = []  # budget of each backward pass under way that is not yet used, ns
        self._rebuild = BucketRebuild()
        self._ddp_bytes = 0
        self._bytes_of: dict[int, int] = {}

    @property
    def now(self) -> int:
        """The host's virtual clock, ns."""
        return self.lane.now

    def work_for(self, ns: int) -> None:
        """The host is busy for so long."""
        self.lane.now += ns

    # ------------------------------------------------------------------------------------ issuing

    def issue(self, group: EmulatedGroup, name: str, args: tuple[Any, ...]) -> EmulatedWork:
        """Write a call down, hand it to the group's fabric, and return its Work."""
        if self.run.judged:  # the program has caught how it was ended, and goes on: nobody is there any more
            raise RankEnded
        if current() is not self:
            raise self.run.threaded(self)
        call = self._describe(group, name, args, sys._getframe(2))
        try:
            group.fabric.check(call)
        except Exception as error:
            call.refuse(error)
            raise
        work = EmulatedWork(self, [call])
        self._works.append(work)
        if group.coalescing is not None:
            group.coalescing.append(call)
        elif not self.stuck:
            self._submit(group, [call])
        return work

    def submit_together(self, group: EmulatedGroup, calls: Sequence[Call]) -> EmulatedWork:
        """Hand calls to the fabric that were issued as one (a coalesced batch)."""
        if calls and not self.stuck:
            self._submit(group, calls)
        work = EmulatedWork(self, calls)
        self._works.append(work)
        return work

    def _submit(self, group: EmulatedGroup, calls: Sequence[Call]) -> None:
        try:
            group.fabric.submit(calls)
        except Exception as error:  # no backend raises here: what it refuses, `check` has refused
            raise self.run.unmodelled(calls[0], error) from error

    def _describe(self, group: EmulatedGroup, name: str, args: tuple[Any, ...], frame: FrameType) -> Call:
        method, streams = METHODS[name], group.fabric.streams
        if method.op is Op.BARRIER and streams:  # NCCL makes its barrier of an all-reduce
            ins = outs = [self.run.barrier_element()]
            parts = [Part(ins, outs)]
        else:
            ins = tensors_in(args[method.ins]) if method.ins is not None else []
            same = method.outs == method.ins
            outs = ins if same else tensors_in(args[method.outs]) if method.outs is not None else []
            parts = parts_of(name, args, len(group.ranks))
        kind = self.run.kinds.of(group, name, args, ins, outs, frame)
        row: CallRow = {
            **kind.columns,
            "rank": self.rank,
            "seq": group.next_seq(),
            "input": self.input,
            "value_in": values(ins) if kind.small and ins and not self.stuck else None,
            "enqueued_ns": self.lane.now,
        }
        call = Call(self, group, kind, row, parts)
        if kind.small:
            call.tensors_out = outs
        call.inflight = self.open_calls > 0
        self.open_calls += 1
        self.calls.append(call)
        if kind.bucket:
            self._charge_bucket(ins, row)
        self.lane.now += ISSUE_NS
        call.ready_ns = max(self.lane.now, self.stream_ns) if streams else self.lane.now
        if kind.in_backward:
            self._bracket_reducer(call)
        return call

    def _charge_bucket(self, ins: list[torch.Tensor], row: CallRow) -> None:
        """A gradient bucket is ready when the backward pass has got that far."""
        if not self._backward or not self._ddp_bytes:
            return
        share = sum(tensor.numel() * tensor.element_size() for tensor in ins) / self._ddp_bytes
        total = round(self.run.costs.input_ns[self.rank] * (1 - FORWARD_SHARE))
        used = min(self._backward[-1], round(total * share))
        self._backward[-1] -= used
        self._input_used_ns += used
        self.work_for(used)
        row["enqueued_ns"] = self.lane.now

    # ------------------------------------------------------------------------------------ waiting

    def wait(self, calls: Sequence[Call], explicit: bool = False) -> None:
        """Work.wait(): the host waits, or its stream; raises what the backend raises."""
        if explicit or any(call.host_waits for call in calls):
            self.wait_host(calls)
            if calls[0].kind.rebuilds:
                self._believe(calls[0])
            return
        self._wait_stream(calls)

    def _believe(self, call: Call) -> None:
        """The Reducer takes what came out of `call` for numbers of parameters; end the rank if they are none."""
        wrong = self._rebuild.believe(elements(call.parts[0].outs[0]))
        if wrong:
            told = f"DDP's Reducer took another call's data for {wrong}; what a process then does is undefined"
            self.run.kill(self, told)
            self.run.died_in(self, [call])
            raise RankEnded

    def wait_host(self, calls: Sequence[Call]) -> None:
        """The host waits until all of `calls` are complete."""
        late = [call for call in calls if not (call.done and call.error is None and call.ended_ns <= self.now)]
        if not late:
            for call in calls:
                call.settle()
            self._fulfil()
            return
        for call in late:
            call.row.setdefault("host_wait_begin_ns", self.now)
        self.stand_still(late)
        until = max(call.ended_ns for call in late)
        self.lane.now = max(self.lane.now, until)
        if self.streams_wait(late):
            self.stream_ns = max(self.stream_ns, until)
        for call in late:
            call.row.setdefault("host_wait_end_ns", self.now)
        self._fulfil()
        for call in late:
            if call.error is not None:
                raise RuntimeError(call.error)
        for call in calls:
            call.settle()

    def streams_wait(self, calls: Sequence[Call]) -> bool:
        """Whether these calls run on a stream."""
        return calls[0].group.fabric.streams

    def _wait_stream(self, calls: Sequence[Call]) -> None:
        if not self.stuck:
            self.stand_still([call for call in calls if not call.done], soft=True)
        for call in calls:
            self._streamed[call] = None
            if call.done:
                self.stream_ns = max(self.stream_ns, call.ended_ns)
        self._fulfil()

    def sync(self) -> None:
        """The host waits for its stream: .item(), .cpu(), print(tensor), torch.cuda.synchronize()."""
        late = [call for call in self._streamed if not (call.done and call.ended_ns <= self.now)]
        self._streamed = {}
        if late:
            self.wait_host(late)
        self.lane.now = max(self.lane.now, self.stream_ns)

    def flush(self, group: EmulatedGroup) -> None:
        """destroy_process_group: the host waits for all that is pending in the group."""
        if group.fabric.streams:
            pending = [call for call in self.calls if call.group is group and call.error is None]
            if pending:
                self.wait_host(pending)
        else:
            self.drain(group)

    def drain(self, group: EmulatedGroup | None = None, over: str = "") -> None:
        """Wait for the collectives in flight (of `group`), as a group on gloo does when it is taken down.

        Its destructor waits for its worker threads: when the group is destroyed, or when the process ends (`over`).
        """
        if self.run.streams:
            return
        self.over = over
        for call in self.calls:
            if call.op not in POINT_TO_POINT and (group is None or call.group is group) and not call.done:
                with suppress(RuntimeError):  # nobody is told that it has failed
                    self.wait_host([call])

    def stand_still(self, calls: Sequence[Call], soft: bool = False, why: str = "") -> None:
        """Stop this thread until all of `calls` are done (never, if the stream is stuck before them)."""
        if self.lane.doomed:  # its process has aborted meanwhile: this is where it dies
            self.run.died_in(self, calls)
        elif not why and all(call.done for call in calls):
            return
        self.awaited, self.soft, self.why = calls, soft, why
        self.run.baton.wait(self.lane)
        self.awaited, self.why = (), ""
        if self.let_go:
            self.let_go = False
            self.stuck = True

    def completed(self, call: Call) -> None:
        """One of this rank's calls is done: perhaps that is what its thread stands still for."""
        if self.stuck and call in self._streamed:
            self.run.overtaken(self, call)
        elif self.awaited and all(one.done for one in self.awaited):
            self.run.baton.wake(self.lane)

    def poll(self, calls: Sequence[Call]) -> bool:
        """Work.is_completed()."""
        if all(call.done and (call.error is not None or call.ended_ns <= self.now) for call in calls):
            return True
        if all(call.done for call in calls):
            self.lane.now = max(call.ended_ns for call in calls)
        else:
            self.work_for(POLL_NS)
            if not self.stuck:
                self.run.baton.yield_turn(self.lane)
        return False

    # ------------------------------------------------------------------------------------ futures

    def future_of(self, call: Call) -> torch.futures.Future[Any]:
        """A future for what `call` puts out.

        To a host, NCCL's is complete at once: what hangs on it runs behind the call, on a stream. Gloo's is complete
        when the call is, which this rank finds out when it next waits, unless C++ could not be stopped from waiting.
        """
        if call.future is None:
            tensors = [tensor for part in call.parts for tensor in part.outs]
            streams = call.group.fabric.streams
            if streams and not self.stuck:
                self.stand_still([call], soft=True)
            past = call.done and call.error is None and call.ended_ns <= self.now
            if streams or past or self.typed_futures or self._in_finalize():
                if not streams:
                    self.wait_host([call])
                call.future = torch._C.fork(lambda: tensors)  # of a type that C++ can read, too
                self._handed_out.append(call)
            else:
                call.future = torch.futures.Future()
                self._open_futures.append(call)
        return call.future  # type: ignore[no-any-return]

    def _in_finalize(self) -> bool:
        """Whether this is an engine callback: the Reducer, with a static graph, waits for its buckets right there."""
        return self._in_backward is not None and torch._C._current_autograd_node() is None

    def _fulfil(self, awaited: Call | None = None) -> None:
        """Fulfil the futures of calls that are complete, in the order of issue; within a callback only `awaited`."""
        while True:
            ready = [call for call in self._open_futures if call.done and (not self._fulfilling or call is awaited)]
            if not ready:
                return
            call = ready[0]
            self._open_futures.remove(call)
            before, self._fulfilling = self._fulfilling, True
            try:
                if call.error is not None:
                    call.future.set_exception(RuntimeError(call.error))
                else:
                    call.future.set_result([tensor for part in call.parts for tensor in part.outs])
            finally:
                self._fulfilling = before

    def wait_future(self, future: torch.futures.Future[Any]) -> None:
        """Before C++ waits for `future`: wait for the calls that it hangs on, oldest first, until it is fulfilled."""
        if self._handed_out and self.run.streams:
            handed, self._handed_out = self._handed_out, []
            self._wait_stream(handed)
        while not future.done() and self._open_futures:
            call = next((call for call in self._open_futures if call.future is future), self._open_futures[0])
            self.wait_host([call])
            self._fulfil(call)

    def _bracket_reducer(self, call: Call) -> None:
        """The Reducer will wait in C++, in an engine callback; ours comes before it, if it is queued now."""
        if self._in_backward is None:
            self._in_backward = [call]
            Variable._execution_engine.queue_callback(self._before_finalize)
        else:
            self._in_backward.append(call)

    def _before_finalize(self) -> None:
        """Wait for all that the backward pass issued, and for what that issues in turn (a comm hook's `then`)."""
        while self._in_backward:
            calls, self._in_backward = self._in_backward, []
            asked = [call for call in calls if call.future is not None]
            if asked:
                self.wait(asked)
            self._handed_out = [call for call in self._handed_out if call not in asked]
        self._in_backward = None

    # ------------------------------------------------------------------------------------ the program's progress

    def mark_input(self, index: int | None, done: int) -> None:
        """Input `index` is now being processed (None: none is), `done` before it."""
        if self.input is not None:
            self.work_for(max(0, self.run.costs.input_ns[self.rank] - self._input_used_ns))
        self._input_used_ns = 0
        self.input = index

    def forward(self, module: torch.nn.Module, frame: FrameType, run_it: Callable[[], Any]) -> Any:
        """A forward pass of DDP: `run_it()`."""
        if id(module) not in self._bytes_of:
            trained = [p for p in module.parameters() if p.requires_grad]
            self._bytes_of[id(module)] = sum(p.numel() * p.element_size() for p in trained)
        self._ddp_bytes = self._bytes_of[id(module)]
        span = self.begin_span("forward", frame)
        try:
            found = run_it()
            self._spend(round(self.run.costs.input_ns[self.rank] * FORWARD_SHARE))
            return found
        finally:
            self.end_span(span)

    def backward(self, frame: FrameType, run_it: Callable[[], None]) -> None:
        """A backward pass: `run_it()`."""
        self._backward.append(round(self.run.costs.input_ns[self.rank] * (1 - FORWARD_SHARE)))
        span = self.begin_span("backward", frame)
        try:
            run_it()
            self._spend(self._backward[-1])
        finally:
            self._backward.pop()
            self._in_backward = None
            self.end_span(span)

    def _spend(self, ns: int) -> None:
        self._input_used_ns += ns
        self.work_for(ns)

    def begin_span(self, name: str, frame: FrameType) -> int:
        """Begin a host span; returns its number."""
        site = line_of(frame)
        self.spans.append(
            {"rank": self.rank, "name": name, "input": self.input, "begin_ns": self.now, "call_site": site}
        )
        return len(self.spans) - 1

    def end_span(self, number: int) -> None:
        """End it."""
        if not self.lane.doomed:
            self.spans[number]["end_ns"] = self.now

    # ------------------------------------------------------------------------------------ the process it stands for

    def printed(self, text: str) -> None:
        """It wrote to its stdout or stderr."""
        if self.run.judged:
            return
        self.own.output.append(text)
        self.run.printed_lines.append((self.rank, text))

    def sleep(self, seconds: float) -> None:
        """time.sleep: virtual time passes, and others may run."""
        self.work_for(round(max(0.0, seconds) * 1e9))
        self.run.baton.yield_turn(self.lane)

    def exit_process(self, status: int) -> NoReturn:
        """os._exit."""
        self.die(f"its process ended with exit code {status} before the program returned (os._exit?)")

    def die_of(self, number: int) -> NoReturn:
        """It sent itself a signal."""
        self.die(f"its process was killed by {signal.Signals(number).name}")

    def die(self, text: str) -> NoReturn:
        """End the rank here and now, as killed."""
        self.run.kill(self, text)
        raise RankEnded

    def batch_isend_irecv(self, ops: list[Any]) -> list[Any]:
        """As torch does it on the real backend: NCCL runs the batch as one, gloo one by one."""
        c10d._check_p2p_op_list(ops)
        group: Any = ops[0].group or c10d._get_default_group()
        together = group.fabric.streams
        if together:
            group._start_coalescing(None)
        works = []
        for op in ops:
            peer = {"group_dst" if op.op.__name__ == "isend" else "group_src": op.group_peer}
            works.append(op.op(op.tensor, group=op.group, tag=op.tag, **peer))
        return [group._end_coalescing(None)] if together else [work for work in works if work]
