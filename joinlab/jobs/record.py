"""`record` records the rank that calls it, in a job that any launcher may have started.

Each rank writes its own files in the folder; jobs/recording.py makes a Timeline of them. The
recorder adds no collective and no wait. If recording fails, the job continues after one warning.
"""

from __future__ import annotations

import atexit
import dataclasses
import itertools
import multiprocessing.util
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NoReturn

from joinlab.program.log_events import Interrupted, ProgramRaised, ProgramReturned
from joinlab.recorder import interrupts
from joinlab.recorder.bounded_log import BoundedLog, segment_name
from joinlab.recorder.events import EventLog, now
from joinlab.recorder.standstill import STILL_S

RANK_NAMES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
"""Environment variables with a process's rank: of torchrun, Open MPI, PMIx, MPICH and Slurm."""
SIZE_NAMES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
CHILD_OF = "JOINLAB_RECORDS"
"""Environment variable that a recorded rank leaves its children: its pid."""
JOB_NAMES = (
    "TORCHELASTIC_RUN_ID",
    "SLURM_JOB_ID",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT",
)
"""Records in one folder that differ in these variables belong to different jobs."""

_begun = threading.Lock()


class Recording:
    """The active recording of this process."""

    current: Recording | None = None

    def __init__(
        self, folder: Path, rank: int, everything: bool, still_s: float, ways: bool
    ) -> None:
        import torch

        from joinlab.recorder import standstill
        from joinlab.recorder.install import install
        from joinlab.recorder.nccl_log import NcclLog
        from joinlab.recorder.recorder import Recorder

        self.rank = rank
        self.pid = os.getpid()
        os.environ[CHILD_OF] = str(self.pid)
        self._interrupts = interrupts.of_process()
        folder = _unused(folder, rank)
        failed = partial(warn, rank)
        if everything:
            log = EventLog(folder / segment_name(rank, 0), failed)
        else:
            log = BoundedLog(folder, rank, failed)
        self.recorder = Recorder(log, rank)
        if torch.distributed.is_nccl_available():
            self.recorder.nccl_log = NcclLog(folder, rank)
        self.log = log
        self.over = False
        install(self.recorder, _about())
        self._excepthook, self._exit = sys.excepthook, sys.exit
        self._thread_hook, threading.excepthook = threading.excepthook, self._thread_raised
        self._left: tuple[int, ProgramReturned | ProgramRaised] | None = None
        self._interrupts.listeners.append(lambda: log.write(Interrupted(time_ns=now())))
        sys.excepthook, sys.exit = self._raised, self._leaves
        atexit.register(self._exits)
        multiprocessing.util.Finalize(None, self._child_ends, exitpriority=0)
        standstill.watch(self.recorder, still_s)
        if ways:
            from joinlab.recorder.recorded_traces import RecordedTrace

            RecordedTrace(log, lambda: self.recorder.issued).begin()

    def end(self, error: BaseException | None = None) -> None:
        """Record the end of the program, which returned, or left by this exception. Later calls do
        nothing."""
        self._end(_ending(error))

    def _end(self, ending: ProgramReturned | ProgramRaised) -> None:
        if self.over or self.pid != os.getpid():  # a forked child does not write its parent's end
            return
        self.over = True
        self._interrupts.came()  # its thread may not have run yet
        self.recorder.completions.settle()
        if isinstance(ending, ProgramReturned):
            self.recorder.misuse.ended()
        self.log.write(dataclasses.replace(ending, time_ns=now()))

    def _leaves(self, code: Any = None) -> NoReturn:
        """sys.exit: keeps how the program leaves until the process ends. In an `except`, it leaves
        by that exception, as in torch.multiprocessing's processes.

        It keeps texts: an exception would keep the program's tensors from being freed."""
        caller = sys._getframe(1)
        if caller.f_globals.get("__name__") != "multiprocessing.spawn":  # see `_child_ends`
            error = sys.exc_info()[1]
            ending = _ending(error) if code and error else _exit_from(caller, code)
            self._left = self.recorder.issued, ending
        self._exit(code)

    def _child_ends(self) -> None:
        """multiprocessing calls this behind the function of its process, which runs no exit functions
        if it was forked."""
        error = sys.exc_info()[1]
        if error is None and self._interrupts.came():
            # torch.multiprocessing takes KeyboardInterrupt for a return
            error = KeyboardInterrupt()
        if error is not None and not (self._left and isinstance(error, SystemExit)):
            self._left = self.recorder.issued, _ending(error)
        threads = threading.enumerate()
        if all(thread.daemon for thread in threads if thread is not threading.main_thread()):
            self._program_ends()

    def _exits(self) -> None:
        self._program_ends()
        if self.pid == os.getpid():
            self.recorder.completions.outlast()

    def _program_ends(self) -> None:
        issued, ending = self._left or (None, _ending(None))
        if issued != self.recorder.issued:
            # No exit, or one that the program caught, as it issued calls since. Python notes an error
            # that ends it, which a hook of the program may hide; so do prompts, which go on.
            error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
            ending = _ending(error)
        self._end(ending)
        if self.pid == os.getpid():
            self.log.close()

    def _raised(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        self.end(error)
        self._excepthook(kind, error, trace)

    def _thread_raised(self, error: threading.ExceptHookArgs) -> None:
        from joinlab.program.outcome import site_of, text_of

        if error.exc_value is not None and not isinstance(error.exc_value, SystemExit):
            name = error.thread.name if error.thread else ""
            text, site = text_of(error.exc_value), site_of(error.exc_value)
            self.recorder.note_thread_error(name, text, site)
        self._thread_hook(error)


def _ending(error: BaseException | None) -> ProgramReturned | ProgramRaised:
    """The end of a program that returned, or that this exception left."""
    from joinlab.program.outcome import site_of, text_of, traceback_text

    if error is None:
        return ProgramReturned()
    if isinstance(error, SystemExit) and not error.code:
        return ProgramReturned(left_at=site_of(error))
    return ProgramRaised(text=text_of(error), traceback=traceback_text(error))


def _exit_from(caller: FrameType, code: object) -> ProgramReturned | ProgramRaised:
    """The end of a program that calls sys.exit(code) in this frame. The exception has no traceback
    yet, so the stack stands for it."""
    from joinlab.program.labels import is_ours, owner_of
    from joinlab.program.outcome import text_of

    stack = traceback.extract_stack(caller)
    frames = [frame for frame in stack if not is_ours(frame.filename)]
    if not code:
        sites = [
            f"{at.filename}:{at.lineno}" for at in frames if owner_of(at.filename) == "program"
        ]
        return ProgramReturned(left_at=sites[-1] if sites else None)
    text = text_of(SystemExit(code))
    trace = "".join(traceback.StackSummary.from_list(frames).format())
    head = "Traceback (most recent call last):\n"
    return ProgramRaised(text=text, traceback=f"{head}{trace}{text}\n")


def record(
    folder: str | os.PathLike[str],
    *,
    everything: bool = False,
    still_s: float = STILL_S,
    ways: bool = False,
) -> None:
    """Record this rank into `folder` from now on. Call it once in each rank, before
    init_process_group.

    folder      may be shared by all ranks; you can also gather the files of several hosts in one folder later. If it
                already has a record of this rank, the new one goes into its subfolder job-2, and so on
    everything  keep all calls, without a bound, and note each completion at once. Otherwise a rank uses at most 14 MB
                of disk; of a long job, the last 2,000 calls of each group are read (fewer of a group that is seldom
                used) and older ones are only counted
    still_s     after so many seconds without an event, the rank writes the stack of each of its threads
    ways        record which lines of the program the rank runs, and the numbers and short texts that its conditions
                read

    If a DDP bucket completes during the backward pass, the recorder notices when the pass issues
    the next bucket or waits, so the bucket's bar may be too long by that time.

    If calls on NCCL do not fit, the order of the ranks on NCCL's ring decides which of them can
    complete. The recorder reads that order from NCCL's log, which it has NCCL write into the
    folder, unless you set NCCL_DEBUG or NCCL_DEBUG_FILE yourself.

    This function raises nothing: if it fails, it warns once and the job continues unrecorded.

        joinlab.record("runs/today")
        dist.init_process_group("nccl")
        ...
        joinlab.load("runs/today")          # on any machine, also while the job runs
    """
    rank = _number(RANK_NAMES)
    with _begun:
        try:
            if Recording.current is not None:
                say(f"joinlab already records rank {Recording.current.rank}")
                return
            from torch import distributed as dist

            if dist.is_initialized():
                rank = dist.get_rank()
                say(
                    "joinlab.record came after init_process_group: calls in the groups that exist "
                    "already go on unrecorded"
                )
            # A rank's child, such as its DataLoader's worker, is no rank unless it makes a group.
            if rank is not None and os.environ.get(CHILD_OF) in (None, str(os.getpid())):
                Recording.current = Recording(Path(folder), rank, everything, still_s, ways)
            else:
                _wait_for_rank(Path(folder), everything, still_s, ways)
        except Exception as error:
            warn(rank, error)


def _unused(folder: Path, rank: int) -> Path:
    """The folder, or the first of job-2, job-3, ... in it, without a record of this rank; it is
    made.

    An earlier record is kept, since somebody may need it: for example, that of the attempt before
    torchrun's restart. Its job may also still run: truncating a file that it has mapped would kill
    it with SIGBUS.
    """
    for number in itertools.count(1):
        job_folder = folder if number == 1 else folder / f"job-{number}"
        job_folder.mkdir(parents=True, exist_ok=True)
        if not any(job_folder.glob(f"rank-{rank}.*.jsonl")):
            with suppress(FileExistsError):  # another job took it just now
                os.close(
                    os.open(
                        job_folder / segment_name(rank, 0),
                        os.O_CREAT | os.O_EXCL | os.O_WRONLY,
                        0o600,
                    )
                )
                break
    return job_folder


def warn(rank: int | None, error: BaseException) -> None:
    """Warn once that nothing is recorded."""
    name = "this rank" if rank is None else f"rank {rank}"
    say(
        f"joinlab cannot record {name}: {type(error).__name__}: {error}. The job goes on unrecorded.",
        RuntimeWarning,
    )


def say(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn; if warnings are errors, print a line to stderr instead."""
    try:
        warnings.warn(text, category, stacklevel=3)
    except category:
        print(text, file=sys.stderr)


def _wait_for_rank(folder: Path, everything: bool, still_s: float, ways: bool) -> None:
    """Take the rank from the first process group; torch.multiprocessing.spawn sets no variable for
    it."""
    from torch.distributed import distributed_c10d as c10d

    helper = c10d._new_process_group_helper

    def first(*args: Any, **kwargs: Any) -> object:
        c10d._new_process_group_helper = helper
        atexit.unregister(say_if_nothing)
        rank = int(kwargs["group_rank"] if "group_rank" in kwargs else args[1])
        try:
            Recording.current = Recording(folder, rank, everything, still_s, ways)
        except Exception as error:
            warn(rank, error)
        return c10d._new_process_group_helper(*args, **kwargs)

    def say_if_nothing() -> None:
        of_rank = CHILD_OF in os.environ
        if os.getpid() == pid and not of_rank and not any(folder.glob("rank-*.jsonl")):
            print(
                "joinlab recorded nothing: this process made no process group. If your script starts the ranks itself, "
                "for example with torch.multiprocessing.spawn, call joinlab.record(folder) in each of them.",
                file=sys.stderr,
            )

    pid = os.getpid()
    atexit.register(say_if_nothing)
    c10d._new_process_group_helper = first


def _about() -> dict[str, object]:
    import psutil
    import torch

    from joinlab.program.outcome import versions

    nccl = torch.cuda.nccl.version() if torch.distributed.is_nccl_available() else None  # type: ignore[no-untyped-call]
    return {
        **versions(".".join(map(str, nccl)) if nccl else None),
        "command": sys.argv,
        "world_size": _number(SIZE_NAMES),
        "job": list(map(os.environ.get, JOB_NAMES)),
        # identifies this process even if its pid is reused
        "process": psutil.Process().create_time(),
    }


def _number(names: tuple[str, ...], environ: Mapping[str, str] = os.environ) -> int | None:
    texts = (environ[name] for name in names if environ.get(name, "").isdecimal())
    return next(map(int, texts), None)
