"""The recorder: writes down what one rank's calls, waits and host spans were, and when.

install.py puts it into the process, recording_group.py listens at the process-group seam and tells it.

What is recorded must not change how a program ends. So nothing here waits, nothing raises into the program, no
large tensor is kept alive, and the real Work decides about completion and errors. Three places need care:

- Values out are read once, under the lock, either when the backend reports completion or when the waiting host
  is about to be let go, whichever is first: after that the program may overwrite the tensor.
- The Reducer waits in C++, on futures that no Python sees. But it does so in an autograd callback, and callbacks run
  in order: ours, queued before it and (from within the first) after it, bracket that wait.
- A Python Work that C++ alone holds is forgotten by Python, so works are kept alive here: those on large tensors
  until they are done, the last KEPT_WORKS on small ones beyond that.
"""

from __future__ import annotations

import itertools
import os
import socket
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import Variable

from joinlab.ops import MAX_VALUES, POINT_TO_POINT, Op
from joinlab.program.labels import Frame, Stacks, call_site, from_reducer, kind_of, label
from joinlab.program.process_group import Method, dtype_of, options_key, options_of, tensors_in
from joinlab.recorder.events import EventLog, now, to_json
from joinlab.recorder.reader import Reader

if TYPE_CHECKING:
    from joinlab.recorder.group import RecordedWork, RecordingGroup

KEPT_WORKS = 65_536
"""The last works on small tensors that are kept alive. C++ may hold one without Python knowing (DDP does so with the
first all-reduce of a forward pass), and wait for ever once Python has forgotten it."""


class Call:
    """One issued call, while it is open."""

    __slots__ = (
        "done",
        "group",
        "host_waits",
        "id",
        "op",
        "origin",
        "outs",
        "recorded",
        "small",
        "waited",
        "waited_at_once",
        "work",
    )

    def __init__(self, id: int, op: Op, origin: str, group: RecordingGroup, small: bool) -> None:
        self.id = id
        self.op = op
        self.origin = origin
        self.group = group
        self.small = small  # its tensors are, so that they can be kept alive
        self.outs: list[torch.Tensor] | None = None  # what comes out, to be read; only if small
        self.work: Any = None
        self.recorded: RecordedWork | None = None  # kept alive until done; small ones longer, see KEPT_WORKS
        self.done = False
        self.waited = False  # the stream (NCCL) or the host (gloo) has been made to wait for it
        self.host_waits = group.host_waits or op is Op.BARRIER
        self.waited_at_once = False  # the host waits for it next: its waking tells when it completed


class _Thread(threading.local):
    """What a thread of the program has come to: its last call, and its backward pass."""

    unwaited: Call | None = None  # the last call, if it is one that the host waits for at once
    pending: list[Call] | None = None  # calls of the Reducer in this pass; None: there is none yet
    waiting: Sequence[Call] = ()  # those that it waits for now, at the end of the pass
    buckets = 0  # how many the pass before issued


class Recorder:
    """Writes the events of one rank. One per process; the groups, works and patches of `install` share it."""

    def __init__(self, log: EventLog, rank: int) -> None:
        self.log = log
        self.rank = rank
        self.input: int | None = None
        self.own_threads = 0
        """Threads that the recorder itself runs: no program's thread, which may go on while another waits."""
        self._lock = threading.RLock()
        self._ids = itertools.count()
        self._spans = itertools.count()
        self._span_sites: dict[tuple[Any, ...], tuple[str | None, str]] = {}
        self._stacks = Stacks()
        self._works: deque[RecordedWork] = deque(maxlen=KEPT_WORKS)
        self._open: dict[int, Call] = {}
        self._thread = _Thread()
        self._backward_site: str | None = None
        self.join_hook: deque[Call] = deque()
        """Calls of the join hook whose futures nobody has waited on yet, in the order of issue."""
        self._cuda_reader: Reader | None = None

    # ---------------------------------------------------------------- calls

    def describe(
        self, group: RecordingGroup, method: Method, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType
    ) -> Call:
        """Write down a call that is about to be issued from `frame`."""
        unwaited, self._thread.unwaited = self._thread.unwaited, None
        if unwaited is not None and not unwaited.done:  # a coalescing manager holds the wait back
            self._watch(unwaited)
        ins = tensors_in(args[method.ins]) if method.ins is not None else []
        outs = ins if method.outs == method.ins else tensors_in(args[method.outs]) if method.outs is not None else []
        tensors = ins or outs
        rest = (*args, *kwargs.values())
        stack, frames = self._stack(frame)
        asynchronous = bool(getattr(rest[-1], "asyncOp", True)) if rest else True
        key: tuple[Any, ...] = (stack, method, asynchronous, options_key(method.op, rest))
        every = ins if ins is outs else [*ins, *outs]
        for tensor in every:
            key += (tensor.dtype, tensor.shape)
        known = group.known.get(key)
        if known is None:
            numel = sum(t.numel() for t in every)
            known = group.known[key] = (
                *self._describe_once(group, method, tensors, frames, asynchronous, rest),
                numel <= MAX_VALUES,
            )
        origin, text, reducer, small = known
        call = Call(next(self._ids), method.op, origin, group, small)
        values = ""
        if small:
            call.outs = outs
            if ins:
                values = _values(group.reader.before(call, ins))
        call.waited_at_once = not asynchronous and call.host_waits
        if reducer:
            self._bracket_reducer_wait(call)
            if not frames and self._backward_site is not None:  # the autograd thread of a GPU: no Python below it
                text += f',"site":{to_json(self._backward_site)}'
        index = "null" if self.input is None else self.input
        with self._lock:
            self._open[call.id] = call
            self.log.write_text(
                f'{{"e":"call","id":{call.id},"s":{group.next_seq()},"i":{index},"st":{stack},{text}{values},"t":{now()}}}'
            )
        return call

    def track(self, call: Call, work: RecordedWork) -> None:
        """Follow a call that was issued: see to it that its completion is written down, and its Work kept alive."""
        if call.small:
            self._works.append(work)
        else:
            call.recorded = work
        if call.origin.endswith("(join() hook)"):
            self.join_hook.append(call)
        if call.waited_at_once:
            self._thread.unwaited = call
        else:
            self._watch(call)

    @staticmethod
    def _describe_once(
        group: RecordingGroup,
        method: Method,
        tensors: list[torch.Tensor],
        frames: tuple[Frame, ...],
        asynchronous: bool,
        args: tuple[Any, ...],
    ) -> tuple[str, str, bool]:
        """What is the same each time a call is issued from there: label, text of the event, whether by the Reducer."""
        dtype = dtype_of(tensors)
        nccl = group.backend == "nccl"
        origin = label(method.op, frames, asynchronous=asynchronous, dtype=dtype, all_reduce_barrier=nccl)
        event = {
            "g": group.label,
            "op": Op.ALL_REDUCE if method.op is Op.BARRIER and nccl else method.op,
            "o": origin,
            "d": dtype,
            "sh": [list(t.shape) for t in tensors],
            **options_of(method.op, group.ranks, args),
        }
        if nccl and method.op is Op.BARRIER:  # inside NCCL's group it is an all-reduce of this, which passes no seam
            event |= {"d": "float32", "sh": [[1]], "reduce_op": "sum"}
        return origin, to_json(event)[1:-1], from_reducer(frames)

    def _stack(self, frame: FrameType) -> tuple[int, tuple[Frame, ...]]:
        number, new = self._stacks.intern(frame)
        frames = self._stacks.frames[number]
        if new:
            outward = [str(f) for f in reversed(frames)]
            self.log.write({"e": "stack", "id": number, "f": outward, "site": call_site(frames)})
        return number, frames

    def _watch(self, call: Call) -> None:
        if call.group.reader.watch(call):
            return
        with suppress(Exception):  # send and recv of gloo have no future: their wait tells
            call.work.get_future().add_done_callback(lambda future: self._completed(call, future))

    def _completed(self, call: Call, future: Any) -> None:
        try:
            future.value()
        except Exception as error:
            self.fail(call, error)
        else:
            self.finish(call)

    def finish(self, call: Call) -> None:
        """Record completion, with the values that came out, once."""
        with self._lock:
            if call.done:
                return
            at = now()
            values = _values(call.group.reader.after(call)) if call.outs else ""
            self.log.write_text(f'{{"e":"done","id":{call.id},"t":{at}{values}}}')
            self._close(call)

    def fail(self, call: Call, error: BaseException) -> None:
        """Record that the backend raised instead of completing the call."""
        with self._lock:
            if call.done:
                return
            self.log.write({"e": "fail", "id": call.id, "t": now(), "x": f"{type(error).__name__}: {error}"})
            self._close(call)

    def _close(self, call: Call) -> None:
        """Let go of what an open call holds. `done` comes last: who sees it may overwrite the tensors and end."""
        self._open.pop(call.id, None)
        if not call.group.reader.late:  # else it may be complete long before the program waits for it
            call.outs = None
        call.recorded = None
        call.done = True

    def settle(self) -> None:
        """Record what completed without anyone having been told. Called before the rank ends."""
        for reader in {call.group.reader for call in list(self._open.values())}:
            reader.settle()
        for call in list(self._open.values()):
            try:
                if call.work is not None and call.work.is_completed() and call.work.is_success():
                    self.finish(call)
            except Exception:
                continue
        with self._lock:  # a completion that another thread is just writing down
            pass

    def end_program(self, how: str) -> None:
        """The program is over: its process ends when nothing is in flight any more. `how` is said if it cannot."""
        self.drain(how=how)
        self.settle()

    def drain(self, group: RecordingGroup | None = None, how: str = "") -> None:
        """Wait for the collectives in flight (of `group`), as a group on gloo does when it is taken down.

        Its destructor waits for its worker threads. In a script that is when the group is destroyed, or the process
        ends; here others hold the group longer.
        """
        calls = self._in_flight(group)
        if not calls:
            return
        if how:
            self.log.write({"e": "over", "x": how})
        self.begin_wait(calls)
        for call in calls:
            try:
                call.work.wait()
            except Exception as error:  # nobody is told
                self.fail(call, error)
            else:
                self.finish(call)
        self.end_wait(calls)

    def _in_flight(self, group: RecordingGroup | None = None) -> list[Call]:
        return [
            call
            for call in list(self._open.values())
            if call.group.backend == "gloo"
            and call.op not in POINT_TO_POINT
            and call.work is not None
            and (group is None or call.group is group)
        ]

    # ---------------------------------------------------------------- waits

    @contextmanager
    def waiting(self, calls: Sequence[Call]) -> Iterator[None]:
        """Record that the host waits for `calls` while the body runs; an error of the body is theirs."""
        self.begin_wait(calls)
        try:
            yield
        except Exception as error:
            for call in calls:
                self.fail(call, error)
            self.end_wait(calls)
            raise
        for call in calls:
            self.finish(call)
        self.end_wait(calls)

    def begin_wait(self, calls: Sequence[Call]) -> None:
        """Record that the host begins to wait for all of `calls`."""
        ids = ",".join(str(call.id) for call in calls)
        thread, live = threading.get_ident(), threading.active_count() - self.own_threads
        self.log.write_text(f'{{"e":"wait","id":[{ids}],"t":{now()},"th":{thread},"n":{live}}}')

    def end_wait(self, calls: Sequence[Call]) -> None:
        """Record that the host was let go."""
        ids = ",".join(str(call.id) for call in calls)
        self.log.write_text(f'{{"e":"wake","id":[{ids}],"t":{now()},"th":{threading.get_ident()}}}')

    def waits_now(self, call: Call) -> None:
        """The program waits for `call`, its host or its stream."""
        call.waited = True
        self._thread.unwaited = None

    def streamed(self) -> list[Call]:
        """Open calls that this rank's stream has been made to wait for: a host sync now waits for them."""
        return [call for call in list(self._open.values()) if call.waited]

    def _bracket_reducer_wait(self, call: Call) -> None:
        """See to it that the Reducer's wait for `call`, at the end of the backward pass, is recorded."""
        thread = self._thread
        if thread.pending is None:
            thread.pending = []
            Variable._execution_engine.queue_callback(self._before_reducer_waits)
        else:
            before = thread.pending[-1]
            if before.waited_at_once:  # it was not the last bucket after all
                before.waited_at_once = False
                self._watch(before)
        thread.pending.append(call)
        call.waited_at_once = call.host_waits and len(thread.pending) == thread.buckets

    def _before_reducer_waits(self) -> None:
        thread = self._thread
        issued, thread.pending = thread.pending or [], None
        calls = [call for call in issued if not call.done or call.outs]
        thread.buckets = len(issued)
        if calls:
            thread.waiting = calls
            if calls[0].host_waits:
                self.begin_wait(calls)
            Variable._execution_engine.queue_callback(self._after_reducer_waited)

    def _after_reducer_waited(self) -> None:
        calls, self._thread.waiting = self._thread.waiting, []
        if not calls[0].host_waits:  # NCCL: it was the stream that has been made to wait
            for call in calls:
                call.waited = True
                call.group.reader.after_wait(call)
            return
        for call in calls:
            self.finish(call)
        self._thread.unwaited = None
        self.end_wait(calls)

    def reducer_gave_up(self, error: BaseException) -> None:
        """The backward pass raised: the callbacks after the Reducer's own never ran."""
        calls, self._thread.waiting, self._thread.pending = self._thread.waiting, [], None
        if not calls:
            return
        for call in calls:  # the Reducer waits for one bucket after the other, and stops at the first that fails
            future = call.work.get_future()
            if not future.done():
                self.fail(call, error)
                break
            self._completed(call, future)
        self.end_wait(calls)

    # ---------------------------------------------------------------- host spans

    def begin_span(self, name: str, frame: FrameType | None) -> int:
        """Record that the host began what `name` says, called from `frame`; returns the span's number."""
        number = next(self._spans)
        while frame is not None and kind_of(frame.f_code.co_filename) != "program":
            frame = frame.f_back
        key = (name, frame.f_code, frame.f_lasti) if frame is not None else (name, None, 0)
        known = self._span_sites.get(key)
        if known is None:
            site = None if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
            known = self._span_sites[key] = (site, f'"n":"{name}","site":{to_json(site)}')
        site, text = known
        if name == "backward":
            self._backward_site = site
        index = "null" if self.input is None else self.input
        self.log.write_text(f'{{"e":"span+","id":{number},"i":{index},{text},"t":{now()}}}')
        return number

    def end_span(self, number: int) -> None:
        """Record that the host ended it."""
        self.log.write_text(f'{{"e":"span-","id":{number},"t":{now()}}}')

    def cuda_reader(self) -> Reader:
        """The reader of this process's groups on GPUs, made on first use."""
        if self._cuda_reader is None:
            from joinlab.recorder.cuda_reader import CudaReader

            self._cuda_reader = CudaReader(self)
        return self._cuda_reader

    # ---------------------------------------------------------------- the program's progress

    def begin(self, versions: dict[str, str | None]) -> None:
        """Record who this rank is."""
        self.log.write(
            {"e": "begin", "rank": self.rank, "pid": os.getpid(), "host": socket.gethostname(), "t": now(), **versions}
        )

    def mark_input(self, index: int | None, done: int) -> None:
        """Record that input `index` is now being processed (None: none is), `done` before it."""
        self.input = index
        self.log.write_text(f'{{"e":"input","i":{"null" if index is None else index},"k":{done},"t":{now()}}}')


def _values(values: list[list[Any]] | None) -> str:
    """The field of an event that holds `values`. Python writes most lists as JSON does, and faster."""
    if values is None:
        return ""
    text = repr(values)
    plain = not any(letter in text for letter in "naTF(")  # nan, inf, True, False, complex
    return f',"v":{text if plain else to_json(values)}'
