"""`record`: write down what this rank of a job of one's own does, whatever started it.

Each rank writes into files of its own in the folder; importers/recording.py makes a Timeline of them. No collective is
added and nothing waits. A job never fails because it is recorded: what goes wrong here is one warning.
"""

from __future__ import annotations

import atexit
import itertools
import os
import sys
import threading
import time
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from joinlab.recorder.bounded_log import BoundedLog, segment_name
from joinlab.recorder.events import EventLog
from joinlab.recorder.standstill import STILL_S

RANK_NAMES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
"""Environment variables in which a launcher tells a process its rank: torchrun, Open MPI, PMIx, MPICH, Slurm."""
SIZE_NAMES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
JOB_NAMES = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
"""Two records in one folder that differ in these are of two jobs."""

_begun = threading.Lock()


class Recording:
    """What `record` has set up in this process."""

    current: Recording | None = None

    def __init__(self, folder: Path, rank: int, everything: bool, still_s: float, ways: bool) -> None:
        import torch

        from joinlab.recorder import standstill
        from joinlab.recorder.install import install
        from joinlab.recorder.nccl_log import NcclLog
        from joinlab.recorder.recorder import Recorder

        self.rank = rank
        self.pid = os.getpid()
        folder = _unused(folder, rank)
        log = (
            EventLog(folder / segment_name(rank, 0), self._failed)
            if everything
            else BoundedLog(folder, rank, self._failed)
        )
        self.recorder = Recorder(log, rank)
        if torch.distributed.is_nccl_available():
            self.recorder.nccl_log = NcclLog(folder, rank)
        self.log = log
        self.over = False
        install(self.recorder, _about())
        self._excepthook = sys.excepthook
        sys.excepthook = self._raised
        atexit.register(self._exits)
        standstill.watch(self.recorder, still_s)
        if ways:
            from joinlab.recorder.ways import RecordedWay

            RecordedWay(log, lambda: self.recorder.issued).begin()

    def end(self, text: str | None = None, trace: str = "") -> None:
        """The program is over, by the exception `text` if there is one. The first word counts."""
        if self.over or self.pid != os.getpid():  # a forked child has no part in it
            return
        self.over = True
        self.recorder.completions.settle()
        self.log.write({"e": "return"} if text is None else {"e": "raise", "x": text, "tb": trace})

    def _exits(self) -> None:
        self.end()
        if self.pid == os.getpid():
            self.log.close()

    def _raised(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        from joinlab.program.outcome import text_of, traceback_text

        self.end(text_of(error), traceback_text(error))
        self._excepthook(kind, error, trace)

    def _failed(self, error: OSError) -> None:
        warn(self.rank, error)


def record(
    folder: str | os.PathLike[str], *, everything: bool = False, still_s: float = STILL_S, ways: bool = False
) -> None:
    """Record this rank into `folder` from now on. Call it once in each rank, before init_process_group.

    folder      shared by all ranks or not: files gathered from many hosts in one folder are as good. Where it has a
                record of this rank already, this one goes into job-2 in it, and so on
    everything  keep all calls, without a bound, and see each completion at once. Otherwise a rank takes at most 14 MB
                of disk, and of a long job the last 2,000 calls of each group are read, fewer of one that is seldom
                used; older ones are counted
    still_s     without an event for so long, the rank writes down where each of its threads stands
    ways        write down which of the program's lines the rank runs, and the numbers and short texts that its tests
                read

    A bucket of DDP that completes while the backward pass goes on is seen to be complete when the pass issues the next
    bucket or waits: its bar may be too long by that much.

    On NCCL the order of the ranks on its ring decides which calls can complete where they do not fit. Its log tells, so
    that is written into the folder, too, unless you have asked for it yourself (NCCL_DEBUG, NCCL_DEBUG_FILE).

    Nothing that goes wrong here is raised: there is one warning, and the job goes on unrecorded.

        joinlab.record("runs/today")
        dist.init_process_group("nccl")
        ...
        joinlab.load("runs/today")          # on any machine, also while the job runs
    """
    rank = _number(RANK_NAMES)
    with _begun:
        try:
            if Recording.current is not None:
                warnings.warn(f"joinlab already records rank {Recording.current.rank}", stacklevel=2)
            elif rank is not None:
                Recording.current = Recording(Path(folder), rank, everything, still_s, ways)
            else:
                _wait_for_rank(Path(folder), everything, still_s, ways)
        except Exception as error:
            warn(rank, error)


def _unused(folder: Path, rank: int) -> Path:
    """The folder, or the first of job-2, job-3, ... in it, without a record of this rank; it is made.

    An earlier record may be what somebody needs: that of the attempt before torchrun's restart, say. And its job may
    still run: cutting a file that it has mapped would end it with a SIGBUS.
    """
    for number in itertools.count(1):
        place = folder if number == 1 else folder / f"job-{number}"
        place.mkdir(parents=True, exist_ok=True)
        if not any(place.glob(f"rank-{rank}.*.jsonl")):
            with suppress(FileExistsError):  # another job took it just now
                os.close(os.open(place / segment_name(rank, 0), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
                break
    return place


def warn(rank: int | None, error: BaseException) -> None:
    """The one warning; where warnings are errors it is a line on stderr."""
    name = "this rank" if rank is None else f"rank {rank}"
    text = f"joinlab does not record {name} (any more): {type(error).__name__}: {error}. The job goes on without."
    try:
        warnings.warn(text, RuntimeWarning, stacklevel=3)
    except RuntimeWarning:
        print(text, file=sys.stderr)


def _wait_for_rank(folder: Path, everything: bool, still_s: float, ways: bool) -> None:
    """No launcher has told the rank, as under torch.multiprocessing.spawn: the first process group will."""
    from torch.distributed import distributed_c10d as c10d

    helper = c10d._new_process_group_helper

    def first(*args: Any, **kwargs: Any) -> Any:
        c10d._new_process_group_helper = helper
        atexit.unregister(say_if_nothing)
        rank = int(kwargs["group_rank"] if "group_rank" in kwargs else args[1])
        try:
            Recording.current = Recording(folder, rank, everything, still_s, ways)
        except Exception as error:
            warn(rank, error)
        return c10d._new_process_group_helper(*args, **kwargs)

    def say_if_nothing() -> None:
        if os.getpid() == pid and not any(folder.glob("rank-*.jsonl")):
            print(
                "joinlab recorded nothing: this process made no process group. A script that starts its ranks itself, "
                "as torch.multiprocessing.spawn does, calls joinlab.record(folder) in each of them.",
                file=sys.stderr,
            )

    pid = os.getpid()
    atexit.register(say_if_nothing)
    c10d._new_process_group_helper = first


def _about() -> dict[str, Any]:
    import psutil
    import torch

    from joinlab.program.outcome import versions

    nccl = torch.cuda.nccl.version() if torch.distributed.is_nccl_available() else None  # type: ignore[no-untyped-call]
    return {
        **versions(".".join(map(str, nccl)) if nccl else None),
        "command": sys.argv,
        "world": _number(SIZE_NAMES),
        "job": [os.environ.get(name) for name in JOB_NAMES],
        "wall": time.time_ns(),
        "process": psutil.Process().create_time(),  # with the pid it names this process, also when the pid is reused
    }


def _number(names: tuple[str, ...], environ: Mapping[str, str] = os.environ) -> int | None:
    found = (environ[name] for name in names if environ.get(name, "").isdecimal())
    return next((int(text) for text in found), None)
