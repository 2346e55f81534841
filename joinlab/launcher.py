"""`launch`: run a program as real processes, one a rank, and record it as a Timeline.

The ranks are forked from a warm server (forkserver.py), write what they do to files in the run's folder (events.py),
and end by themselves or by a verdict. While they run this process only looks: at sizes of files, and, once nothing
has been written for a moment, at what every living rank waits for. If the matching rule shows that none of it can
come, that is a proven hang, and the run is over (proof.py). Where the rule cannot tell, the run ends after
`no_progress` seconds without an event, and the Timeline says "suspected".
"""

from __future__ import annotations

import atexit
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from base64 import b64decode
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import cloudpickle

import joinlab
from joinlab.errors import LaunchError, LaunchInterrupted, ProgramError
from joinlab.events import LogTail, RankLog, log_name, now
from joinlab.plain import decode
from joinlab.programs import MAX_RANKS, Program, check_inputs, check_program, program_name, source_of
from joinlab.proof import Wait, prove
from joinlab.timeline import Ending, EndKind, Timeline, timeline_from_rows

POLL_S = 0.005
STILL_S = 0.03
"""No event for this long: time to ask whether the ranks can still go on."""
ECHO_LINES = 1000
"""`echo` shows this many lines of each rank; `timeline.output` has them all."""

Listener = Callable[[int, str], None]


def launch(
    program: Program,
    inputs: Sequence[int] = (5, 6),
    backend: str | None = None,
    *,
    seed: int | Sequence[int] | None = 0,
    timeout: float = 300.0,
    no_progress: float = 30.0,
    on_output: Listener | str | None = "echo",
    progress: bool = True,
) -> Timeline:
    """Run `program(rank, inputs)` in one process per rank and return what happened.

    inputs       one count per rank, 1 to 16 ranks: (5, 6) gives rank 0 five inputs and rank 1 six; 0 is allowed
    backend      "gloo" (CPU) or "nccl" (GPUs); None takes NCCL where the GPUs are there and gloo elsewhere, and
                 `timeline.meta["backend"]` says which
    seed         seeds torch, numpy and random on every rank: one int for all, one per rank, or None for random ones
    timeout      seconds after which a run that still goes on is ended; its living ranks are "killed"
    no_progress  seconds without any event after which living ranks are "hung (suspected)"; a hang that the matching
                 rule proves ends the run at once
    on_output    called with (rank, line) for each line that a rank prints, while it runs; "echo" prints them, None
                 is silent. `timeline.output` has everything in any case
    progress     show a progress bar if the run takes long

    How a rank ends is data: look at `timeline.ends` or `joinlab.diagnose(timeline)`. Raises ProgramError for what
    is no program or no inputs, LaunchError where the machine cannot run it, and LaunchInterrupted, which carries the
    Timeline so far, when the cell is interrupted. No process, port or file is left behind in any case.

        timeline = joinlab.launch(joinlab.cases.case_4, inputs=(5, 6))
    """
    check_program(program)
    counts = check_inputs(inputs, MAX_RANKS)
    seeds = _check_seed(seed, len(counts))
    for name, value in (("timeout", timeout), ("no_progress", no_progress)):
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not value > 0:
            raise ProgramError(f"{name}= is a number of seconds above 0; got {value!r}")
    if backend is not None and (not isinstance(backend, str) or backend.lower() not in ("gloo", "nccl")):
        raise ProgramError(f'backend= is "gloo", "nccl" or None; got {backend!r}')
    listener = Echo() if on_output == "echo" else on_output
    if listener is not None and not callable(listener):
        raise ProgramError(f'on_output= is "echo", None or a function of (rank, line); got {on_output!r}')
    pickled = _pickle(program)
    server = ForkServer.get()
    chosen, settings = choose_backend(server.hello, backend and backend.lower(), len(counts))
    folder = Path(tempfile.mkdtemp(prefix=f"joinlab-{os.getpid()}-"))
    try:
        (folder / "program.pickle").write_bytes(pickled)
        request = {
            "folder": str(folder),
            "program": program_name(program),
            "inputs": counts,
            "seeds": seeds,
            "backend": chosen,
            "gpus": server.hello["gpus"],
            "nccl": server.hello["nccl"],
            "settings": settings,
            "environ": dict(os.environ),
            "path": sys.path,
            "cwd": os.getcwd(),
        }
        meta = {
            "program": program_name(program),
            "source": source_of(program),
            "engine": "launched",
            "backend": chosen,
            "transport": "sockets" if "NCCL_SOCKET_IFNAME" in settings or chosen == "gloo" else None,
            "world_size": len(counts),
            "inputs": list(counts),
            "seeds": list(seeds),
            "verdict_ns": None,  # when the ranks that still lived were ended
        }
        run = _Run(folder, counts, meta, listener, progress)
        return run.watch(server.open(request), timeout, no_progress)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Echo:
    """Prints each rank's lines as they come, "rank 0: ...", up to ECHO_LINES per rank."""

    def __init__(self) -> None:
        self._lines: dict[int, int] = {}

    def __call__(self, rank: int, line: str) -> None:
        self._lines[rank] = self._lines.get(rank, 0) + 1
        if self._lines[rank] <= ECHO_LINES:
            print(f"rank {rank}: {line}", flush=True)
        elif self._lines[rank] == ECHO_LINES + 1:
            print(f"rank {rank}: (and more: timeline.output[{rank}] has all of it)", flush=True)


# ------------------------------------------------------------------------------------------ before the run


def _check_seed(seed: object, ranks: int) -> tuple[int | None, ...]:
    if seed is None:
        return (None,) * ranks
    if isinstance(seed, int) and not isinstance(seed, bool) and seed >= 0:
        return (seed,) * ranks
    if isinstance(seed, Sequence) and len(seed) == ranks and all(type(s) is int and s >= 0 for s in seed):
        return tuple(seed)
    raise ProgramError(f"seed= is one int of at least 0, {ranks} of them (one per rank), or None; got {seed!r}")


def _pickle(program: Program) -> bytes:
    try:
        return bytes(cloudpickle.dumps(program))
    except Exception as error:
        raise ProgramError(
            f"{program_name(program)} cannot be sent to another process ({type(error).__name__}: {error}). Something "
            "that it refers to is tied to this process, such as an open file, a lock or a process group: make it "
            "inside the program."
        ) from error


def choose_backend(machine: dict[str, Any], backend: str | None, ranks: int) -> tuple[str, dict[str, str]]:
    """The backend to use, and the environment variables that its ranks need.

    `machine` is what the fork server said of itself: {"gpus", "nccl", "gloo"}. NCCL takes one GPU a rank, or one GPU
    that two ranks share. Raises LaunchError where the machine cannot do what was asked.
    """
    gpus = int(machine["gpus"])
    enough = gpus >= max(ranks, 2) or (gpus == 1 and ranks <= 2) or (gpus >= 1 and ranks == 1)
    if backend is None:
        backend = "nccl" if enough else "gloo"
    if backend == "gloo":
        return "gloo", {"JOINLAB_GLOO_HOST": "127.0.0.1"}
    if not gpus:
        raise LaunchError(
            'backend="nccl" needs an NVIDIA GPU, and PyTorch sees none here. Use backend="gloo", which runs on the CPU.'
        )
    if not enough:
        raise LaunchError(
            f'backend="nccl" was asked to run {ranks} ranks on {gpus} GPU{"s" * (gpus > 1)}. It takes one GPU a rank, '
            'or two ranks on a single GPU. Ask for fewer ranks, or use backend="gloo".'
        )
    return "nccl", _sharing(machine["nccl"]) if gpus < ranks else {}


def _sharing(nccl: str) -> dict[str, str]:
    """What makes NCCL accept two ranks on one GPU, which it refuses by itself."""
    if tuple(int(part) for part in nccl.split(".")[:3]) >= (2, 30, 3):
        return {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}
    # Each rank claims to be another host (rank.py adds its number), so that they talk over loopback sockets.
    return {"JOINLAB_NCCL_HOSTS": "1", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}


class ForkServer:
    """The launcher's end of the fork server: one per process, started on first use, gone with it."""

    _shared: ForkServer | None = None

    def __init__(self) -> None:
        if not hasattr(os, "fork"):
            raise LaunchError(
                "launch needs a system with fork (Linux, macOS, or Windows with WSL). On Windows itself, open a "
                "Timeline that was recorded elsewhere with joinlab.load."
            )
        self.owner = os.getpid()
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the server)
        here, there = socket.socketpair()
        self.control = here
        root = str(Path(joinlab.__file__).parent.parent)
        code = f"import sys; sys.path.insert(0, {root!r}); from joinlab.forkserver import main; main({there.fileno()})"
        with there:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", code],
                pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._errors,
                stderr=self._errors,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # no thread may run where ranks are forked
                start_new_session=True,
            )
        try:
            self.hello = self._hear_hello()
        except BaseException:
            self.close()
            raise
        atexit.register(self.close)

    @classmethod
    def get(cls) -> ForkServer:
        """The running server, or a new one."""
        server = cls._shared
        if server is None or server.owner != os.getpid() or server.process.poll() is not None:
            server = cls._shared = cls()
        return server

    def _hear_hello(self) -> dict[str, Any]:
        with self.control.makefile("rb") as lines:
            line = lines.readline()
        hello = json.loads(line) if line else {}
        if "torch" not in hello:
            self._errors.seek(0)
            detail = hello.get("error") or self._errors.read().decode(errors="replace")
            raise LaunchError(f"the process that ranks are forked from did not start:\n{detail.strip()[-2000:]}")
        return dict(hello)

    def open(self, request: dict[str, Any]) -> socket.socket:
        """Begin a run; its socket tells how its ranks end, and closing it ends them."""
        here, there = socket.socketpair()
        try:
            with there:
                socket.send_fds(self.control, [b"r"], [there.fileno()])
            here.sendall(json.dumps(request).encode() + b"\n")
        except OSError as error:
            here.close()
            type(self)._shared = None
            raise LaunchError(f"the process that ranks are forked from is gone ({error}); call launch again") from error
        return here

    def close(self) -> None:
        """End the server, and with it every run."""
        if self.owner != os.getpid():
            return
        self.control.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._errors.close()


# ------------------------------------------------------------------------------------------ during the run


@dataclass
class _Run:
    """One run, watched until every rank has ended."""

    folder: Path
    counts: tuple[int, ...]
    meta: dict[str, Any]
    listener: Listener | None
    progress: bool
    origin_ns: int = field(default_factory=now)
    statuses: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ranks = range(len(self.counts))
        self.logs = [RankLog(rank, self.origin_ns) for rank in ranks]
        self.output = [_Tail(self.folder / f"rank-{rank}.out") for rank in ranks]
        self.events = [LogTail(self.folder / log_name(rank)) for rank in ranks]
        self.unread = [b""] * len(self.counts)
        self.sizes: tuple[int, ...] = ()
        self.lines = [b""] * len(self.counts)
        self.verdict: dict[int, Ending] = {}

    def watch(self, link: socket.socket, timeout: float, no_progress: float) -> Timeline:
        """Follow the run to its end and return its Timeline."""
        incoming = b""
        began = moved = asked = time.monotonic()
        bar = _Bar(sum(self.counts), self.meta["program"]) if self.progress else None
        killed = None
        try:
            while len(self.statuses) < len(self.counts):
                if select.select([link], [], [], POLL_S)[0]:
                    data = link.recv(1 << 16)
                    if not data:
                        raise LaunchError("the process that ranks are forked from died during the run")
                    incoming += data
                    while b"\n" in incoming:
                        line, incoming = incoming.split(b"\n", 1)
                        self._hear(json.loads(line))
                self._stream_output()
                at = time.monotonic()
                if self._moved():
                    moved = at
                    if bar is not None and bar.due(at):
                        self._read_events()
                        bar.show(sum(log.inputs_done for log in self.logs))
                elif at - moved >= STILL_S and asked < moved:
                    asked = at
                    self._read_events()
                    killed = self._prove()
                if killed is None and at - moved > no_progress:
                    killed = self._suspect(no_progress)
                if killed is None and at - began > timeout:
                    killed = self._give_up(f"ended by joinlab: still running after timeout={timeout:g} s")
                if killed is not None:
                    self.meta["verdict_ns"] = now() - self.origin_ns
                    link.sendall(b"kill\n")
                    self._await_ends(link, incoming)
            return self._timeline()
        except KeyboardInterrupt:
            self._read_events()
            self._give_up("interrupted by the user")
            with suppress(OSError):
                link.sendall(b"kill\n")
                self._await_ends(link, incoming)
            raise LaunchInterrupted(
                "the run was interrupted; what was recorded is in the `timeline` of this exception "
                "(sys.last_value.timeline in a notebook)",
                self._timeline(),
            ) from None
        finally:
            if bar is not None:
                bar.close()
            for tail in self.events:
                tail.close()
            link.close()

    def _await_ends(self, link: socket.socket, incoming: bytes) -> None:
        while len(self.statuses) < len(self.counts):
            data = link.recv(1 << 16)
            if not data:
                return
            incoming += data
            while b"\n" in incoming:
                line, incoming = incoming.split(b"\n", 1)
                self._hear(json.loads(line))

    def _hear(self, message: dict[str, Any]) -> None:
        if "error" in message:
            raise LaunchError(f"{message['error']}. This machine may not bear {len(self.counts)} ranks; try fewer.")
        if "rank" in message:
            self.statuses[message["rank"]] = message["status"]

    def _stream_output(self) -> None:
        if self.listener is None:
            return
        for rank, tail in enumerate(self.output):
            *lines, self.lines[rank] = (self.lines[rank] + tail.read()).split(b"\n")
            for line in lines:
                self.listener(rank, line.decode(errors="replace"))

    def _moved(self) -> bool:
        """True if any rank has recorded or printed something since the last time."""
        fresh = [tail.read() for tail in self.events]
        self.unread = [old + new for old, new in zip(self.unread, fresh, strict=True)]
        sizes = tuple(tail.size() for tail in self.output)
        moved = any(fresh) or sizes != self.sizes
        self.sizes = sizes
        return moved

    def _read_events(self) -> None:
        self._moved()
        for rank, log in enumerate(self.logs):
            log.feed(self.unread[rank])
            self.unread[rank] = b""

    # ------------------------------------------------------------------------------------ verdicts

    def _gone(self) -> set[int]:
        return {log.rank for log in self.logs if log.returned or log.raised or log.rank in self.statuses}

    def _prove(self) -> bool | None:
        """End the run if every living rank waits for what, by the matching rule, cannot come."""
        gone = self._gone()
        waits: list[Wait] = []
        for log in self.logs:
            if log.rank in gone:
                continue
            if not log.waits or len(log.waits) < log.threads:
                return None  # some thread of it does not wait: it may go on
            for ids in log.waits.values():
                waits.append(Wait(log.rank, tuple((log.calls[id]["group"], log.calls[id]["seq"]) for id in ids)))
        if not waits:
            return None
        calls = [call for log in self.logs for call in log.calls.values()]
        if prove(calls, self._groups(), self.meta["backend"], waits, gone, self.meta["transport"]) is None:
            return None
        for log in self.logs:
            if log.rank not in gone:
                self.verdict[log.rank] = _ending(EndKind.HUNG, _awaited(log), proven=True)
        return True

    def _suspect(self, no_progress: float) -> bool:
        self._read_events()
        gone = self._gone()
        for log in self.logs:
            if log.rank not in gone:
                text = f"nothing happened for {no_progress:g} s (no_progress={no_progress:g})"
                self.verdict[log.rank] = _ending(EndKind.HUNG, _awaited(log), text, proven=False)
        return True

    def _give_up(self, text: str) -> bool:
        self._read_events()
        gone = self._gone()
        for log in self.logs:
            if log.rank not in gone and log.rank not in self.verdict:
                call = _awaited(log)
                self.verdict[log.rank] = Ending(
                    EndKind.KILLED, call=call.get("seq"), group=call.get("group"), text=text
                )
        return True

    # ------------------------------------------------------------------------------------ the Timeline

    def _groups(self) -> dict[str, list[int]]:
        groups: dict[str, list[int]] = {}
        for log in self.logs:
            for name, group in log.groups.items():
                groups.setdefault(name, group["ranks"])
        return groups

    def _timeline(self) -> Timeline:
        self._read_events()
        self._stream_output()
        for rank, rest in enumerate(self.lines):
            if rest and self.listener is not None:
                self.listener(rank, rest.decode(errors="replace"))
        for log in self.logs:
            if log.refused is not None:
                raise ProgramError(
                    f"{self.meta['program']} could not be opened in its process: {log.refused}. What it refers to has "
                    "to be importable there, or defined beside it."
                )
        begin = next((log.begin for log in self.logs if log.begin), {})
        groups = self._groups() or {"0": list(range(len(self.counts)))}
        meta = {
            **self.meta,
            "groups": groups,
            "versions": {
                "joinlab": joinlab.__version__,
                "python": ".".join(map(str, sys.version_info[:3])),
                "torch": begin.get("torch"),
                "nccl": begin.get("nccl"),
            },
            "clock": {"domain": "monotonic", "origin_ns": self.origin_ns, "hosts": {begin.get("host", "?"): 0}},
        }
        return timeline_from_rows(
            calls=[call for log in self.logs for call in log.calls.values()],
            spans=[span for log in self.logs for span in log.spans.values()],
            ends=[self._end_of(log) for log in self.logs],
            meta=meta,
            returns=[self._returned(log.rank) for log in self.logs],
            output=[
                path.read_bytes().decode(errors="replace") if (path := tail.path).exists() else ""
                for tail in self.output
            ],
        )

    def _end_of(self, log: RankLog) -> Ending:
        if log.returned:
            pending = log.open_calls()
            return _ending(EndKind.FINISHED, pending[0] if pending else {}, pending=bool(pending))
        if log.raised is not None:
            failed = [call for call in log.calls.values() if call.get("error")]
            return _ending(EndKind.RAISED, failed[-1] if failed else {}, log.raised["x"])
        if log.rank in self.verdict:
            return self.verdict[log.rank]
        return _ending(EndKind.KILLED, _awaited(log), self._cause(log.rank, self.statuses.get(log.rank, 0)))

    def _cause(self, rank: int, status: int) -> str:
        if not os.WIFSIGNALED(status):
            return f"its process ended with exit code {os.WEXITSTATUS(status)} before the program returned (os._exit?)"
        name = signal.Signals(os.WTERMSIG(status)).name
        path = self.output[rank].path
        tail = path.read_bytes()[-4000:].decode(errors="replace").splitlines() if path.exists() else []
        said = next((line.strip() for line in reversed(tail) if "what():" in line or "terminate called" in line), "")
        return f"its process was killed by {name}" + (f": {said}" if said else "")

    def _returned(self, rank: int) -> Any:
        path = self.folder / f"rank-{rank}.return.json"
        if not self.logs[rank].returned or not path.exists():
            return None
        kept = json.loads(path.read_text())
        return decode(kept["value"], lambda name: b64decode(kept["arrays"][name]))


def _ending(
    kind: EndKind, call: dict[str, Any], text: str = "", *, pending: bool = False, proven: bool | None = None
) -> Ending:
    return Ending(kind, pending=pending, call=call.get("seq"), group=call.get("group"), text=text, proven=proven)


def _awaited(log: RankLog) -> dict[str, Any]:
    """The call that the rank waits for: the first of those that its (latest) wait needs; {} if it waits for none."""
    for ids in reversed(log.waits.values()):
        return next((log.calls[id] for id in ids if log.calls[id].get("completed_ns") is None), log.calls[ids[0]])
    return {}


class _Tail:
    """Reads what was appended to a file since the last time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._at = 0

    def size(self) -> int:
        """Bytes written so far."""
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def read(self) -> bytes:
        """The new bytes."""
        if self.size() == self._at:
            return b""
        with self.path.open("rb") as file:
            file.seek(self._at)
            data = file.read()
        self._at += len(data)
        return data


class _Bar:
    """A progress bar over all ranks' inputs, shown only if a run takes longer than a moment."""

    AFTER_S = 1.0
    EVERY_S = 0.2

    def __init__(self, total: int, name: str) -> None:
        self._total = total
        self._name = name
        self._next = time.monotonic() + self.AFTER_S
        self._bar: Any = None

    def due(self, at: float) -> bool:
        """True if it is time to show progress again."""
        return at >= self._next

    def show(self, done: int) -> None:
        """Show that `done` inputs of all ranks together are processed."""
        self._next = time.monotonic() + self.EVERY_S
        if self._bar is None:
            from tqdm.auto import tqdm

            self._bar = tqdm(total=self._total, desc=self._name, unit="input", leave=False, disable=None)
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()
