"""The recorder of one rank: describes each call, and holds the parts that write down what becomes of it.

    install.py   puts the recorder into the process
    group.py     listens at the process-group seam, and tells the recorder of every call
    completions, waits, reducer, spans   each write one kind of event into the log (events.py)

Recording must not change how a program ends. So nothing here waits, nothing raises into the program, no large tensor
is kept alive, and the backend's own Work decides about completion and errors.

A Python Work that only C++ still holds is forgotten by Python, and C++ then waits for ever. So the recorder keeps works
alive: those on large tensors until they are done, the last KEPT_WORKS on small ones.
"""

from __future__ import annotations

import itertools
import os
import socket
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any

from joinlab.ops import MAX_VALUES, POINT_TO_POINT, Op, Source
from joinlab.program.labels import Frame, Stacks, call_site, from_reducer, label
from joinlab.program.outcome import text_of
from joinlab.program.process_group import Method, dtype_of, options_key, options_of, tensors_in
from joinlab.program.sources import MAX_TEXTS
from joinlab.program.steps import Steps
from joinlab.recorder.bounded_log import History
from joinlab.recorder.call import Description, Reader, RecordedCall, RecordedGroup
from joinlab.recorder.completions import Completions
from joinlab.recorder.events import Log, now, to_json, values_field
from joinlab.recorder.nccl_log import NcclLog
from joinlab.recorder.reducer import ReducerWaits
from joinlab.recorder.spans import Spans
from joinlab.recorder.waits import Waits

if TYPE_CHECKING:
    import torch

KEPT_WORKS = 1024
"""How many works on small tensors are kept alive. DDP's C++ holds the first all-reduce of a forward pass alone, until
the backward pass ends. 65,536 of them took a page of new memory each step, and a third of the recorder's time.
"""


class Recorder:
    """Writes the events of one rank. One per process; the groups, works and patches of `install` share it."""

    def __init__(self, log: Log, rank: int, history: History | None = None) -> None:
        """`history` belongs to a log of bounded size, and fills its segments' preambles."""
        self.log = log
        self.history = history
        self.rank = rank
        self.input: int | None = None
        self.steps = Steps()
        self.completions = Completions(log)
        self.waits = Waits(log, self.completions)
        self.reducer = ReducerWaits(self.completions, self.waits)
        self.spans = Spans(log, self._note_sources)
        self.join_hook: deque[RecordedCall] = deque()
        """Calls of the join hook whose futures the program has not waited on yet, in the order of issue."""
        self._ids = itertools.count()
        self._stacks = Stacks()
        self._stack_segments: dict[int, int] = {}  # by number of a stack: the last segment that has it
        self._known: dict[tuple[str, int], Source] = {}  # texts of functions, by file and first line
        self._beginnings: list[str] = []  # the events of the rank, its groups, its GPU and its program's texts
        self._gpu: torch.device | None = None
        self._one_stream = True
        self.nccl_log: NcclLog | None = None
        self._coalesced: set[str] = set()
        self._input_event = ""
        self._works: deque[Any] = deque(maxlen=KEPT_WORKS)
        self.held: list[object] = []
        """Groups that DDP's Reducer uses: they live as long as the process, see RecordingGroup.getBackendName."""
        self._cuda_reader: Reader | None = None

    # ---------------------------------------------------------------- the program's progress

    def begin(self, about: Mapping[str, Any]) -> None:
        """Record who this rank is."""
        where = {"rank": self.rank, "pid": os.getpid(), "host": socket.gethostname()}
        self._begin({"e": "begin", **where, "coalesced": [], **about})  # a group in which calls are says so later

    def begin_group(self, group: RecordedGroup, desc: str = "", eager: bool = False) -> None:
        """Record that this rank is in a new process group, or that the timeout of one has changed."""
        place = {"e": "group", "name": group.label, "ranks": group.ranks}
        event = {**place, "backend": group.backend, "limit": group.limit_ns}
        self._begin({**event, **({"desc": desc} if desc else {}), **({"eager": True} if eager else {})})

    def _begin(self, event: dict[str, Any]) -> None:
        line = to_json({**event, "t": now()})
        self._beginnings.append(line)
        self.log.write_text(line)

    def mark_input(self, index: int | None, done: int) -> None:
        """Record that the rank now processes input `index` (None: none), and has processed `done` inputs before."""
        self.input = index
        self.steps.mark()
        self._input_event = f'{{"e":"input","i":{"null" if index is None else index},"k":{done},"t":{now()}}}'
        self.log.write_text(self._input_event)

    def place(self) -> str:
        """Fields of an event: the input that the rank processes, or the step, where it has marked none."""
        if self.steps.now is not None:
            return f'"i":null,"b":{self.steps.now}'
        return '"i":null' if self.input is None else f'"i":{self.input}'

    def preamble(self) -> Iterator[str]:
        """What the next segment of a bounded log begins with, see bounded_log.py."""
        assert self.history is not None
        yield from self._beginnings
        if self._input_event:
            yield self._input_event
        still_open = [call.history for call in self.completions.open_calls() if call.history is not None]
        carried = self.history.carried(still_open, sum(map(len, self._beginnings)))
        for stack in {one.stack for one in carried}:
            yield self._stack_event(stack)
        for one in carried:
            yield one.call
            if one.end:
                yield one.end
        yield from list(self.waits.open.values())

    def give_up(self, error: Exception) -> None:
        """Stop recording: a call could not be described. What is written so far stays."""
        if not self.log.failed:
            self.log.write({"e": "lost", "x": text_of(error), "t": now()})
            self.log.close()
            warnings.warn(f"joinlab stops recording rank {self.rank}: {text_of(error)}", RuntimeWarning, stacklevel=3)

    def end_program(self, how: str) -> None:
        """The program is over; its process ends once nothing is in flight. The log says `how` if something is."""
        self.drain(how=how)
        self.completions.settle()

    # ---------------------------------------------------------------- calls

    def describe(
        self, group: RecordedGroup, method: Method, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType
    ) -> RecordedCall:
        """Write down a call that is about to be issued from `frame`."""
        self.completions.end_deferral(waits=False)
        ins = tensors_in(args[method.ins]) if method.ins is not None else []
        outs = ins if method.outs == method.ins else tensors_in(args[method.outs]) if method.outs is not None else []
        rest = (*args, *kwargs.values())
        stack, frames = self._stack(frame)
        asynchronous = bool(getattr(rest[-1], "asyncOp", True)) if rest else True
        key: tuple[Any, ...] = (stack, method, asynchronous, options_key(method.op, rest))
        every = ins if ins is outs else [*ins, *outs]
        for tensor in every:
            key += (tensor.dtype, tensor.shape)
        known = group.known.get(key)
        if known is None:
            small = sum(t.numel() for t in every) <= MAX_VALUES
            known = group.known[key] = _describe(group, method, ins or outs, frames, asynchronous, rest, small)
            self._note_gpu(every)
        call = RecordedCall(next(self._ids), method.op, known.origin, group, known.small)
        text, values = known.text, ""
        if known.small:
            call.outs = outs
            if ins:
                values = values_field(group.reader.before(call, ins))
        call.waited_at_once = not asynchronous and call.host_waits
        if known.by_reducer:
            self.reducer.bracket(call)
            if not frames and self.spans.backward_site is not None:  # an autograd thread of a GPU has no Python frame
                text += f',"site":{to_json(self.spans.backward_site)}'
        place = f'"id":{call.id},"s":{group.numbering.next_seq()},{self.place()}'
        streamed = self.waits.newly_streamed
        if streamed:
            place += f',"w":{streamed}'
            streamed.clear()
        if self.history is not None:
            call.history = self.history.begin(group.label, stack)
            place += f',"k":{group.numbering.collectives}'  # a reader may not have all collectives that came before
        if method.op not in POINT_TO_POINT:
            group.numbering.collectives += 1
        self.completions.issue(call, f'{{"e":"call",{place},"st":{stack},{text}{values},"t":{now()}}}')
        return call

    def refuse(self, call: RecordedCall, error: BaseException) -> None:
        """The backend raised when it was handed the call, which so has no place in the order of its group."""
        if call.op not in POINT_TO_POINT:
            call.group.numbering.collectives -= 1
        self.completions.fail(call, error)

    def track(self, call: RecordedCall, work: Any) -> None:
        """Follow an issued call until its completion is written down; keep `work`, its RecordedWork, alive."""
        if call.small:
            self._works.append(work)
        else:
            call.kept = work
        if call.origin.endswith("(join() hook)"):
            self.join_hook.append(call)
        if call.waited_at_once:
            self.completions.defer(call)
        else:
            self.completions.watch(call)

    def _note_gpu(self, tensors: list[torch.Tensor]) -> None:
        """Record which GPU this rank computes on: that of the first tensor on one."""
        device = next((tensor.device for tensor in tensors if tensor.is_cuda), None)
        if device is not None and self._gpu is None:
            import torch

            self._gpu = device
            major, _ = torch.cuda.get_device_capability(device)
            self._begin({"e": "gpu", "x": f"{device} ({torch.cuda.get_device_name(device)})", "cc": major})
        elif device not in (None, self._gpu):
            self.note_streams()

    def note_streams(self) -> None:
        """Record that not all calls are issued and waited for on one stream, so that one may overtake another."""
        if self._one_stream:
            self._one_stream = False
            self._begin({"e": "streams"})

    def note_coalesced(self, group: RecordedGroup) -> None:
        """Record that calls of this group were issued as one."""
        if group.label not in self._coalesced:
            self._coalesced.add(group.label)
            self._begin({"e": "coalesced", "g": group.label})

    def note_ring(self, group: RecordedGroup, ranks: list[int]) -> None:
        """Record the order in which the ranks of this group stand on NCCL's ring."""
        self._begin({"e": "ring", "g": group.label, "r": ranks})

    def _stack(self, frame: FrameType) -> tuple[int, tuple[Frame, ...]]:
        number, new = self._stacks.intern(frame)
        if new:
            self._note_sources(self._stacks.sources[number])
        if new or (self.history is not None and self._stack_segments.get(number) != self.history.segment):
            self._stack_segments[number] = self.log.write_text(self._stack_event(number))
        return number, self._stacks.frames[number]

    def _note_sources(self, sources: Iterable[Source]) -> None:
        """Write down the texts of functions that are not written yet, while they are small enough together."""
        for source in sources:
            key = source["file"], source["first_line"]
            if key in self._known or sum(len(one["text"]) for one in self._known.values()) > MAX_TEXTS:
                continue
            self._known[key] = source
            self._begin({"e": "text", "f": key[0], "n": key[1], "x": source["text"]})

    def _stack_event(self, number: int) -> str:
        frames = self._stacks.frames[number]
        outward = [str(frame) for frame in reversed(frames)]
        return to_json({"e": "stack", "id": number, "f": outward, "site": call_site(frames)})

    # ---------------------------------------------------------------- what is in flight at the end

    def drain(self, group: RecordedGroup | None = None, how: str = "") -> None:
        """Wait for gloo's collectives in flight (of `group`), as its process group does when it is destroyed.

        Its destructor joins the worker threads (ProcessGroupGloo.cpp, v2.13.0). In a script that happens when the group
        is destroyed or the process ends; in a recorded process the recorder holds the group longer.
        """
        calls = self._in_flight(group)
        if not calls:
            return
        if how:
            self.log.write({"e": "over", "x": how})
        self.waits.begin(calls)
        for call in calls:
            try:
                call.work.wait()
            except Exception as error:  # the program has ended, so there is no one to raise it to
                self.completions.fail(call, error)
            else:
                self.completions.finish(call)
        self.waits.end(calls)

    def _in_flight(self, group: RecordedGroup | None) -> list[RecordedCall]:
        return [
            call
            for call in self.completions.open_calls()
            if call.group.backend == "gloo"
            and call.op not in POINT_TO_POINT
            and call.work is not None
            and (group is None or call.group is group)
        ]

    def cuda_reader(self) -> Reader:
        """The reader of this process's groups on GPUs, made on first use."""
        if self._cuda_reader is None:
            from joinlab.recorder.cuda_reader import CudaReader

            self._cuda_reader = CudaReader(self.log, self.completions, self.waits, self.note_streams)
        return self._cuda_reader


def _describe(
    group: RecordedGroup,
    method: Method,
    tensors: list[torch.Tensor],
    frames: tuple[Frame, ...],
    asynchronous: bool,
    args: tuple[Any, ...],
    small: bool,
) -> Description:
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
    if nccl and method.op is Op.BARRIER:  # ProcessGroupNCCL::barrier is an all-reduce of one float, below the seam
        event |= {"d": "float32", "sh": [[1]], "reduce_op": "sum"}
    return Description(origin, to_json(event)[1:-1], from_reducer(frames), small)
