"""Finds who issued a collective: from the Python stack to the label of the documented traces, and
the learner's line.

The labels are those of the forum answer ("all-reduce (DDP forward() 1)"). They follow from the
names of torch's functions between the learner's line and the call. Calls of the C++ Reducer have no
frame of their own, so the innermost Python frame, through which the Reducer was entered, identifies
them.

Recorder and emulator share this file. It does not import torch, since file names are enough. The
names are those of torch v2.13.0, each unique in its file:

    torch/distributed/algorithms/join.py   notify_join_context, _notify_procs_to_terminate, _get_num_nonjoined_procs
    torch/nn/parallel/distributed.py       _pre_forward, _post_forward, _lazy_init, _sync_buffers, _find_common_rank,
                                           _check_global_requires_backward_grad_sync, _match_all_reduce_for_bwd_pass,
                                           _match_unused_params_allreduce, _sync_final_model, main_hook, post_hook
    torch/distributed/utils.py             _sync_params_and_buffers
    torch/autograd/graph.py                _engine_run_backward: the way into the Reducer's hooks
    torch/distributed/distributed_c10d.py  the functions for objects, which issue several calls each
"""

from __future__ import annotations

import os
import re
import sysconfig
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FrameType

from joinlab.ops import Op, Source
from joinlab.program.log_events import StackSeen
from joinlab.program.program import call_program
from joinlab.program.sources import source_at

MAX_FRAMES = 64
"""Deeper stacks are cut at their outer end, so that recursion in a program cannot make a call
expensive."""

_PROGRAM_CALLER = call_program.__code__
_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_STDLIB = tuple(
    os.path.realpath(path) + os.sep
    for path in {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
)
LIBRARY = (
    r"[/\\](site|dist)-packages[/\\]|[/\\]lib(64)?[/\\]python3\.\d+[/\\]|^<frozen"
    r"|[/\\]joinlab[/\\](cli|jobs|launcher|program|recorder)[/\\]"
    r"|^(torch|multiprocessing|concurrent|asyncio)[/\\]|^(threading|selectors|socket|subprocess|queue|runpy)\.py$"
)
"""Files that are not the learner's, on any machine. py-spy writes torch/... and threading.py."""

_LIBRARY = re.compile(LIBRARY)
_TEACHING = (_HERE + "cases.py", _HERE + "scenarios" + os.sep)  # ours, but the learner's text


@dataclass(frozen=True, slots=True)
class Frame:
    """One Python frame: file, line and function."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function}"


def walk(frame: FrameType | None) -> tuple[Frame, ...]:
    """The frames from `frame` outwards, innermost first, without joinlab's own, except those of its
    cases."""
    walked: list[Frame] = []
    while frame is not None and len(walked) < MAX_FRAMES:
        file = frame.f_code.co_filename
        if not is_ours(file):
            walked.append(Frame(file, frame.f_lineno, frame.f_code.co_name))
        elif frame.f_code is _PROGRAM_CALLER:
            break  # frames further out started the rank; they are not the learner's program
        frame = frame.f_back
    return tuple(walked)


def is_ours(file: str) -> bool:
    """True for joinlab's own files, except its teaching programs."""
    return file.startswith(_HERE) and not file.startswith(_TEACHING)


@lru_cache(maxsize=4096)
def owner_of(file: str) -> str:
    """Where a file belongs: "torch", "library" (stdlib, site-packages, joinlab) or "program" (the
    learner's)."""
    if file.startswith(_TEACHING):
        return "program"
    if f"{os.sep}torch{os.sep}" in file and (
        "site-packages" in file or "dist-packages" in file or "pytorch" in file
    ):
        return "torch"
    if file.startswith((_HERE, *_STDLIB)) or _LIBRARY.search(file):
        return "library"
    return "program"


def call_site(frames: Iterable[Frame]) -> str | None:
    """ "file:line" of the innermost frame of the learner's own code; failing that, of the innermost
    outside torch."""
    frames = tuple(frames)
    for wanted in ("program", "library"):
        for frame in frames:
            if owner_of(frame.file) == wanted and not frame.file.startswith("<frozen"):
                return f"{frame.file}:{frame.line}"
    return None


def calling_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of the learner's own code, from `frame` outwards."""
    while frame is not None and frame.f_code is not _PROGRAM_CALLER:
        if owner_of(frame.f_code.co_filename) == "program":
            return frame
        frame = frame.f_back
    return None


def sources_under(frame: FrameType | None) -> tuple[Source, ...]:
    """The texts of the learner's functions on the stack from `frame` outwards, innermost first."""
    sources: list[Source] = []
    while (frame := calling_frame(frame)) is not None and len(sources) < MAX_FRAMES:
        source = source_at(frame.f_code, frame.f_lineno)
        if source is not None and source not in sources:
            sources.append(source)
        frame = frame.f_back
    return tuple(sources)


def label(
    op: Op,
    frames: tuple[Frame, ...],
    *,
    asynchronous: bool,
    dtype: str | None,
    all_reduce_barrier: bool,
) -> str:
    """The label of the documented traces for a call of `op` issued under `frames` (innermost
    first).

    asynchronous        issued with async_op=True, which distinguishes the two all-reduces of notify_join_context
    dtype               of its tensor, which distinguishes the Reducer's map of unused parameters (int32) from a bucket
    all_reduce_barrier  the backend's barrier is an all-reduce (NCCL), as in the documented label

    >>> label(Op.ALL_REDUCE, (), asynchronous=False, dtype="float32", all_reduce_barrier=True)
    'all-reduce'
    """
    if op is Op.BARRIER:
        if all_reduce_barrier:
            return "all-reduce (barrier)"
        return "barrier"
    caller = _who(frames, asynchronous, dtype)
    return f"{op.words} ({caller})" if caller else op.words


def from_reducer(frames: tuple[Frame, ...]) -> bool:
    """True if DDP's Reducer issues the call, itself or through a comm hook of torch, and therefore
    waits for it.

    A stack without frames is that of an autograd engine's thread, as for tensors on a GPU.
    """
    for frame in frames:
        if frame.function == "_engine_run_backward":
            return True
        if owner_of(frame.file) == "program":
            return False
    return not frames


def issued_in_backward(frames: tuple[Frame, ...]) -> bool:
    """True if C++ issues the call within a backward pass: DDP's Reducer itself, not a comm hook in
    Python."""
    return not frames or frames[0].function == "_engine_run_backward"


def _who(frames: tuple[Frame, ...], asynchronous: bool, dtype: str | None) -> str | None:
    inner: list[Frame] = []  # torch's frames between the call and the learner's line
    for frame in frames:
        if owner_of(frame.file) == "program":
            break
        inner.append(frame)
    names = {frame.function for frame in inner}
    if not inner:
        return None

    def within(file: str) -> bool:
        return any(frame.file.endswith(file) for frame in inner)

    innermost = next(
        (frame for frame in inner if frame.function not in _WRAPPERS), inner[0]
    ).function
    in_ddp = within("distributed.py") and bool(names & _DDP_FUNCTIONS)
    in_forward = "_pre_forward" in names or "_post_forward" in names
    if "notify_join_context" in names:
        if not asynchronous:
            return "throw check"
        if in_forward:
            return "DDP forward() 1"
        return "notify_join_context()"
    if "_notify_procs_to_terminate" in names:
        return "join() throw check"
    if "_check_global_requires_backward_grad_sync" in names:
        if in_forward:
            return "DDP forward() 2"
        return "join() check bwd grad sync"
    if "_get_num_nonjoined_procs" in names:
        return "join() _get_num_nonjoined_procs()"
    if "_match_all_reduce_for_bwd_pass" in names:
        return "join() hook"
    if "_match_unused_params_allreduce" in names:
        return "join() hook, unused parameters"
    if names & {"_sync_buffers", "_sync_module_buffers", "_check_and_sync_module_buffers"}:
        if in_forward:
            caller = "DDP forward(), buffers"
        else:
            caller = "join() hook, buffers"
        if "_find_common_rank" in names:
            return f"_find_common_rank(), {caller}"
        return caller
    if "_find_common_rank" in names:
        return "_find_common_rank()"
    if "_sync_final_model" in names:
        return "sync final model params"
    if within("zero_redundancy_optimizer.py") and not names & _COMPOSITE:
        if "main_hook" in names or "post_hook" in names:
            return "ZeRO join() hook"
        return "ZeRO"
    if in_ddp and innermost in {"_pre_forward", "main_hook"}:
        return "DDP bucket rebuild"
    if (
        in_ddp
        and ("__init__" in names or "_lazy_init" in names)
        and "_engine_run_backward" not in names
    ):
        return "DDP construction"
    if inner[0].function == "_engine_run_backward":
        if dtype == "int32":
            return "DDP backward(), unused parameters"
        return "DDP backward()"
    if "_engine_run_backward" in names and within("_hooks.py"):
        return "DDP backward(), comm hook"
    # the public function that the learner called, where it issues several calls
    for frame in reversed(inner):
        if frame.function in _COMPOSITE:
            return frame.function
    return None


# Frames between a call and the function that asked for it: c10d_logger.py's wrapper,
# distributed_c10d.py's functions.
_WRAPPERS = {
    "wrapper",
    "all_reduce",
    "broadcast",
    "_broadcast_coalesced",
    "_sync_params_and_buffers",
}
_DDP_FUNCTIONS = {
    "_pre_forward",
    "_post_forward",
    "main_hook",
    "post_hook",
    "__init__",
    "_lazy_init",
}
# Functions that issue several collectives for one call of the program.
_COMPOSITE = {
    "all_gather_object",
    "gather_object",
    "scatter_object_list",
    "broadcast_object_list",
    "send_object_list",
    "recv_object_list",
    "consolidate_state_dict",
}


class Stacks:
    """Numbers each distinct stack, so that a recorder writes it once: walking is cheap, formatting
    is not."""

    __slots__ = ("_codes", "_ids", "_last", "_lock", "events", "frames", "sources")

    def __init__(self) -> None:
        self._ids: dict[tuple[int, ...], int] = {}
        self._last: tuple[tuple[tuple[CodeType, int], ...], int] = (), 0
        """Codes and places of the latest stack, and its number. The next stack is often the same,
        and a comparison takes half the time of making a key."""
        # codes of the known stacks, kept so that no other code gets one of their ids
        self._codes: list[list[CodeType]] = []
        self._lock = threading.Lock()
        self.frames: list[tuple[Frame, ...]] = []
        """By number: the frames of each stack, innermost first."""
        self.events: list[StackSeen] = []
        """By number: the event of each stack."""
        self.sources: list[tuple[Source, ...]] = []
        """By number: the texts of the learner's functions in each stack."""

    def intern(self, frame: FrameType | None) -> int:
        """The stack's number."""
        last, number = self._last
        at = frame
        for code, instruction in last:
            if at is None or at.f_code is not code or at.f_lasti != instruction:
                break
            at = at.f_back
        else:
            if last and (at is None or code is _PROGRAM_CALLER or len(last) == MAX_FRAMES):
                return number
        return self._look_up(frame)

    def _look_up(self, frame: FrameType | None) -> int:
        instructions: list[int] = []
        codes: list[CodeType] = []
        at = frame
        while at is not None and len(codes) < MAX_FRAMES:
            instructions.append(at.f_lasti)
            codes.append(at.f_code)
            at = None if at.f_code is _PROGRAM_CALLER else at.f_back
        # the hash of a code is computed each time, from all it holds: 4 us a stack
        key = (*map(id, codes), *instructions)
        known = self._ids.get(key)
        if known is None:
            with self._lock:
                known = self._ids.get(key)
                if known is None:  # and no other thread was first
                    known = self._add(frame, codes)
                    self._ids[key] = known
        self._last = tuple(zip(codes, instructions, strict=True)), known
        return known

    def _add(self, frame: FrameType | None, codes: list[CodeType]) -> int:
        """Give the stack a number, once all that belongs to it is made: near the recursion limit
        each line can raise, and whatever an interrupted call has left is overwritten here."""
        number = len(self._codes)
        frames = walk(frame)
        outward = list(map(str, reversed(frames)))
        event = StackSeen(stack=number, frames=outward, call_site=call_site(frames))
        sources = sources_under(frame)
        self.frames[number:] = [frames]
        self.events[number:] = [event]
        self.sources[number:] = [sources]
        self._codes.append(codes)
        return number
