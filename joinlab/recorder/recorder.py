"""The recorder of one rank: describes each call, and holds the parts that record its progress.

    install.py   puts the recorder into the process
    group.py     listens at the process-group seam, and tells the recorder of every call
    completions, waits, reducer, spans   each write one kind of event into the log (events.py)

Recording must not change how a program ends. So nothing here waits, nothing raises into the
program, no large tensor is kept alive, and the backend's own Work decides about completion and
errors.

A Python Work that only C++ still holds is forgotten by Python, and C++ then waits for ever. So the
recorder keeps works alive: those on large tensors until they are done, the last KEPT_WORKS on small
ones.
"""

from __future__ import annotations

import itertools
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any

from joinlab.ops import Op, Source
from joinlab.program.kinds import ALL_REDUCE, CallKind, kind_of
from joinlab.program.labels import Stacks
from joinlab.program.log_events import (
    LINE_END,
    CallIssued,
    CallsCaptured,
    CallsCoalesced,
    CollectivesIssued,
    Event,
    FunctionText,
    GpuUsed,
    GroupMade,
    InputBegins,
    ProgramOver,
    RankBegins,
    RingOrder,
    SeveralStreams,
    ThreadRaised,
    encode_fields,
    first_field,
    next_field,
)
from joinlab.program.misuse import Misuse
from joinlab.program.process_group import Method, Numbering
from joinlab.program.replicas import Models
from joinlab.program.sources import MAX_TEXTS
from joinlab.program.steps import Steps
from joinlab.recorder.bounded_log import BoundedLog
from joinlab.recorder.call import RecordedCall, RecordedGroup, ValueReader
from joinlab.recorder.completions import Completions, Turn
from joinlab.recorder.events import EventLog, harmless, line_of, now, to_json, values_text
from joinlab.recorder.nccl_log import NcclLog
from joinlab.recorder.reducer import ReducerWaits
from joinlab.recorder.spans import Spans
from joinlab.recorder.waits import WaitRecorder

if TYPE_CHECKING:
    import torch
import torch.distributed as dist

KEPT_WORKS = 1024
"""Number of works on small tensors that are kept alive. DDP's C++ is the only holder of the first
all-reduce of a forward pass, until the backward pass ends. Keeping 65,536 took a new page of memory
per step, and a third of the recorder's time.
"""

_CALL = first_field(CallIssued, "call")
_SEQ, _NUMBER, _BEFORE, _INPUT, _STEP, _VALUES, _CALL_SITE, _STREAMED, _MODEL, _TIME = (
    next_field(CallIssued, name)
    for name in [
        "seq",
        "number",
        "before",
        "input",
        "step",
        "values",
        "call_site",
        "streamed",
        "model",
        "time_ns",
    ]
)
_NO_INPUT = f"{_INPUT}null"
_INPUT_BEGINS, _DONE = first_field(InputBegins, "index"), next_field(InputBegins, "done")
_INPUT_TIME = next_field(InputBegins, "time_ns")

# Recording costs cache misses: between two calls the model's tensors fill the caches. Code that
# takes 0.2 us in a loop of its own takes 1 us in a step of 0.3 ms, and 4 us in one of 2 million
# parameters. So a call that repeats an earlier one runs few lines of Python, makes few calls into
# torch, and allocates nothing that stays.


class Recorder:
    """Writes the events of one rank. One per process; the groups, works and patches of `install`
    share it."""

    def __init__(self, log: EventLog, rank: int) -> None:
        self.start(log, rank)

    def start(self, log: EventLog, rank: int) -> None:
        """Begin to record rank `rank` of a run.

        The patches of `install` are made once per process and find everything below through this
        object. So a fork server makes them, and each rank that is forked from it starts anew.
        Completions are recorded when they happen; in a bounded log, those of buckets may be
        recorded later.
        """
        if isinstance(log, BoundedLog):
            log.preamble = self._preamble
        self.log = log
        self._now = now
        self.rank = rank
        self.input: int | None = None
        self.steps = Steps()
        self.step_fields = _NO_INPUT
        """Text of an event's fields: the input that the rank processes, or the step if the program
        marks no inputs."""
        self.completions = Completions(log, now, prompt=not isinstance(log, BoundedLog))
        self.own = self.completions.own
        self.waits = WaitRecorder(log, self.completions)
        self.reducer = ReducerWaits(self.completions, self.waits)
        self.spans = Spans(log, now, self._note_sources)
        self.models = Models()
        self.misuse = Misuse(log.write)
        self.join_hook: deque[RecordedCall] = deque()
        """Calls of the join hook whose futures the program has not waited on yet, in the order of
        issue."""
        self._ids = itertools.count()
        self._stacks = Stacks()
        self._numberings: dict[str, Numbering] = {}  # by group
        self._texts: dict[tuple[str, int], Source] = {}  # of functions, by file and first line
        # the events of the rank, its groups, its GPU and its program's texts
        self._beginnings: list[str] = []
        self._gpu: torch.device | None = None
        self.nccl_log: NcclLog | None = None
        # facts of the rank, its groups and its threads
        self._noted: set[tuple[type[Event], str]] = set()
        self._input_event = ""
        self._works: deque[object] = deque(maxlen=KEPT_WORKS)
        self.held: list[object] = []
        """Groups that DDP's Reducer uses, kept alive until the process ends, see
        RecordingGroup.getBackendName."""
        self._cuda_reader: ValueReader | None = None
        self.rehearsal: Callable[[object], dist.ProcessGroup] | None = None
        """Makes the process groups of a rehearsal (launcher/rehearsal.py), from torch's options."""
        self.default_backends: dict[str, str] = {}
        """Backends of the process's first group, by device: new_group() without one takes them."""
        self.newest: RecordedCall | None = None
        """The call described last."""

    @property
    def issued(self) -> int:
        """Number of calls that the rank has issued."""
        if self.newest is None:
            return 0
        return self.newest.id + 1

    # ---------------- the program's progress

    def begin(self, about: Mapping[str, Any]) -> None:
        """Record who this rank is."""
        self._begin(
            RankBegins(
                rank=self.rank,
                time_ns=self._now(),
                wall_ns=time.time_ns(),  # read next to time_ns, since their difference aligns ranks
                pid=os.getpid(),
                host=socket.gethostname(),
                **about,
            )
        )

    def label_of(self, name: str) -> str:
        """The name of a new group in the record: after destroy_process_group, torch gives the same
        names again."""
        label, init = name, itertools.count(2)
        while label in self._numberings:
            label = f"{name} of init {next(init)}"
        return label

    def begin_group(self, group: RecordedGroup, desc: str = "", eager: bool = False) -> None:
        """Record that this rank is in a new process group, or that the timeout of one has
        changed."""
        self._numberings[group.label] = group.numbering
        self._begin(
            GroupMade(
                name=group.label,
                ranks=list(group.ranks),
                backend=group.backend,
                timeout_ns=group.limit_ns,
                description=desc or None,
                eager=eager or None,
            )
        )

    def _begin(self, event: Event) -> None:
        line = line_of(event)
        self._beginnings.append(line)
        self.log.write_text(line)

    def mark_input(self, index: int | None, done: int) -> None:
        """Record that the rank now processes input `index` (None: none), and has processed `done`
        inputs before."""
        self.input = index
        self.steps.mark()
        index_text = "null" if index is None else index
        self.step_fields = f"{_INPUT}{index_text}"
        self._input_event = (
            f"{_INPUT_BEGINS}{index_text}{_DONE}{done}{_INPUT_TIME}{self._now()}{LINE_END}"
        )
        self.log.write_text(self._input_event)

    @harmless
    def begin_step(self) -> None:
        """Note that the rank begins step `steps.now`."""
        self.step_fields = f"{_NO_INPUT}{_STEP}{self.steps.now}"

    def _preamble(self) -> Iterator[str]:
        """The preamble of a bounded log's next segment, see bounded_log.py."""
        yield from self._beginnings
        if self._input_event:
            yield self._input_event
        for group, numbering in self._numberings.items():
            yield line_of(CollectivesIssued(group=group, count=numbering.collectives))
        still_open = [call for call in self.completions.open_calls() if call.line]
        for stack in {call.kind.stack for call in still_open}:
            yield self._stack_event(stack)
        for call in still_open:
            yield call.line
        yield from list(self.waits.open.values())

    def end_program(self, how: str) -> None:
        """Wait for calls in flight after the program's end; if there are any, the log says `how` it
        ended."""
        self.drain(how=how)
        self.completions.settle()

    # ---------------- calls

    def describe(
        self,
        group: RecordedGroup,
        method: Method,
        args: tuple[Any, ...],
        kwargs: dict[str, object],
        frame: FrameType | None,
        turn: Turn,
    ) -> RecordedCall:
        """Record a call that is about to be issued from `frame`; None for a thread without Python
        frames."""
        if id(frame) == turn.frame:
            stack = turn.stack
        else:
            stack = self._stacks.intern(frame)
        ins = outs = args[0] if args else None
        kind = None
        if method is ALL_REDUCE and type(ins) is list and len(ins) == 1:
            tensor = ins[0]
            kind = group.of_reducer.get((stack, tensor.dtype, tensor.shape))
        if kind is None:
            ins, outs = method.tensors(args)
            if method.op is Op.BARRIER:
                ins = outs = group.reader.barrier_element()
            kind = kind_of(group, self._stacks, stack, method, (*args, *kwargs.values()), ins, outs)
            if not kind.text:
                self._know(kind, group, ins, outs)
        if turn.below is not None:
            self.waits.end_turns_below(turn)
        if turn.deferred:
            self.completions.before_issue(kind, turn)
        id_ = next(self._ids)
        self.newest = call = RecordedCall(id_, kind, group)
        numbering = group.numbering
        seq = numbering.next_seq()
        fields = f"{_NUMBER}{numbering.next_number(kind.collective)}"
        if not kind.collective:  # a bounded log may have dropped the earlier collectives
            fields += f"{_BEFORE}{numbering.collectives}"
        if kind.small:
            call.outs = outs
            if ins:
                before = group.reader.before(call, ins)
                if before is not None:
                    fields += f"{_VALUES}{values_text(before)}"
        if frame is None and kind.by_reducer:  # a thread of autograd, for tensors on a GPU
            fields += f"{_CALL_SITE}{to_json(self.spans.backward.site)}"
        if not group.host_waits and self.waits.newly_streamed:
            fields += f"{_STREAMED}{self.waits.newly_streamed}"
            self.waits.newly_streamed.clear()
        if kind.by_reducer and (model := self.models.of(group.label)) is not None:
            fields += f"{_MODEL}{model}"
        line = f"{_CALL}{id_}{kind.text}{_SEQ}{seq}{self.step_fields}{fields}{_TIME}{self._now()}{LINE_END}"
        if kind.segment == self.log.segment:
            self.completions.issue(call, line)
        else:
            kind.segment = self.completions.issue(call, line, self._stack_event(stack))
        return call

    def _know(
        self,
        kind: CallKind,
        group: RecordedGroup,
        ins: list[torch.Tensor],
        outs: list[torch.Tensor],
    ) -> None:
        """Record the facts that can be read only at the first call of a kind."""
        kind.text = "," + to_json(encode_fields(CallIssued, kind.facts))[1:-1]
        self._note_sources(self._stacks.sources[kind.stack])
        self._note_gpu([*ins, *outs])
        if kind.direct and len(ins) == 1:
            group.of_reducer[kind.stack, ins[0].dtype, ins[0].shape] = kind

    @harmless
    def refuse(self, call: RecordedCall, error: BaseException) -> None:
        """Record that the backend refused the call, which therefore gets no number in its group."""
        call.group.numbering.take_back(call.kind.collective)
        self.completions.fail(call, error, refused=True)

    @harmless
    def follow_enqueued(self, calls: Iterable[RecordedCall]) -> None:
        """Follow calls without a Work: their stream has been made to wait for them, or their host
        has waited."""
        for call in calls:
            self.waits.begin_expected(call)
            self.completions.watch(call)
            call.group.reader.after_wait(call)

    @harmless
    def follow_batch(self, calls: Iterable[RecordedCall], work: object) -> None:
        """Follow calls that were issued as one, with one Work for all."""
        for call in calls:
            call.work = work
            self.completions.watch(call)

    @harmless
    def track(self, call: RecordedCall, work: object, frame: FrameType | None, turn: Turn) -> None:
        """Follow a call that was issued from `frame` until it has ended; keep `work`, a
        RecordedWork, alive.

        The Reducer's own calls have no RecordedWork; `reducer.bracket` follows them.
        """
        kind = call.kind
        if kind.small:
            self._works.append(work)
        else:
            call.kept = work
        if kind.of_join_hook:
            self.join_hook.append(call)
        if kind.by_reducer:
            self.reducer.bracket(call, turn, frame)
        else:
            self.completions.follow(call, turn, kind.waited_at_once)

    def _note_gpu(self, tensors: list[torch.Tensor]) -> None:
        """Record which GPU this rank computes on: that of the first tensor on one."""
        device = next((tensor.device for tensor in tensors if tensor.is_cuda), None)
        if device is not None and self._gpu is None:
            import torch

            self._gpu = device
            major, _ = torch.cuda.get_device_capability(device)
            text = f"{device} ({torch.cuda.get_device_name(device)})"
            self._begin(GpuUsed(text=text, capability=major))
        elif device not in (None, self._gpu):
            self.note_streams()

    def note_streams(self) -> None:
        """Record that calls use several streams, so that one may overtake another."""
        self._note_once(SeveralStreams())

    def note_coalesced(self, group: RecordedGroup) -> None:
        """Record that calls of this group were issued as one."""
        self._note_once(CallsCoalesced(group=group.label), group.label)

    def note_captured(self, group: RecordedGroup) -> None:
        """Record that calls of this group are captured into a CUDA graph: they run when it is
        replayed, unseen."""
        self._note_once(CallsCaptured(group=group.label), group.label)

    def note_thread_error(self, name: str, text: str, site: str | None) -> None:
        """Record what ended a thread of the program."""
        error = ThreadRaised(name=name, text=text, site=site, time_ns=self._now())
        self._note_once(error, f"{text} {site}")

    def _note_once(self, event: Event, about: str = "") -> None:
        if (type(event), about) not in self._noted:
            self._noted.add((type(event), about))
            self._begin(event)

    def note_ring(self, group: RecordedGroup, ranks: list[int]) -> None:
        """Record the order of this group's ranks on NCCL's ring."""
        self._begin(RingOrder(group=group.label, ranks=ranks))

    def _note_sources(self, sources: Iterable[Source]) -> None:
        """Record the texts of functions that are not recorded yet, up to a total size."""
        for source in sources:
            key = source["file"], source["first_line"]
            if (
                key in self._texts
                or sum(len(noted["text"]) for noted in self._texts.values()) > MAX_TEXTS
            ):
                continue
            self._texts[key] = source
            self._begin(FunctionText.of(source))

    def _stack_event(self, number: int) -> str:
        return line_of(self._stacks.events[number])

    # ---------------- calls in flight at the end

    def drain(self, group: RecordedGroup | None = None, how: str = "") -> None:
        """Wait for gloo's collectives in flight (of `group`), as its process group does when it is
        destroyed.

        Its destructor joins the worker threads (ProcessGroupGloo.cpp, v2.13.0). In a script that
        happens when the group is destroyed or the process ends; in a recorded process the recorder
        holds the group longer.
        """
        calls = self._in_flight(group)
        if not calls:
            return
        if how:
            self.log.write(ProgramOver(text=how))
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
        calls = []
        for call in self.completions.open_calls():
            collective = call.group.backend == "gloo" and call.kind.collective
            asked = group is None or call.group is group
            if collective and asked and call.work is not None:
                calls.append(call)
        return calls

    def cuda_reader(self) -> ValueReader:
        """The reader of this process's groups on GPUs, made on first use."""
        if self._cuda_reader is None:
            from joinlab.recorder.cuda_reader import CudaReader

            self._cuda_reader = CudaReader(
                self.log, self.completions, self.waits, self.note_streams
            )
        return self._cuda_reader
