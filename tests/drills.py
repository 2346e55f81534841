"""Fault drills: launches whose ranks, other processes or caller are killed or interrupted, and damaged records.

    python -m tests.drills --n 1000        # CI runs a sample of 40, see test_drills.py

Each launch is drawn from DRILLS. After it: no process, folder, descriptor or shared memory is left, the caller was not
held up beyond its timeout, and the endings are true. Each damaged record opens, or is refused by its name. Prints how
often each ended how; the exit code is 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

import joinlab
from joinlab import cases
from joinlab.errors import LaunchError, LaunchInterrupted, TimelineFileError
from joinlab.importers.recording import load_recording
from joinlab.launcher.forkclient import ForkServer
from joinlab.timeline import EndKind, Timeline
from tests.leftovers import rank_processes, run_folders

ROOT = Path(__file__).parent.parent
TIMEOUT_S = 30.0
HELD_UP_S = TIMEOUT_S + 60
"""A caller that comes back later was held up. On a loaded machine a new fork server alone takes 20 s."""

SHARED_MEMORY = Path("/dev/shm")


def steps(victim: int, last: int, start_child: bool) -> Callable[[int, Any], int]:
    """A program of DDP steps in which the rank `victim` is killed after `last` steps (-1: none is)."""

    def program(rank: int, inputs: Any) -> int:
        import torch
        from torch.nn.parallel import DistributedDataParallel as DDP

        if start_child:
            subprocess.Popen(["sleep", "600"], start_new_session=True)
        model = DDP(torch.nn.Linear(1, 1))
        for at, x in enumerate(inputs):
            if rank == victim and at == last:
                os.kill(os.getpid(), signal.SIGKILL)
            model(x).backward()
        return len(inputs)

    return program


def launch(program: Callable[..., Any], inputs: tuple[int, ...]) -> Timeline:
    return joinlab.launch(program, inputs, "gloo", on_output=None, progress=False, timeout=TIMEOUT_S)


def healthy(draw: random.Random) -> str:
    """Cases that finish are never called hung, and those that hang are proven."""
    number, n = draw.choice(list(cases.CASES)), draw.randint(1, 4)
    kinds = [str(end) for end in launch(cases.CASES[number].program, (n, n + 1)).ends]
    wanted = {1: ["finished"] * 2, 6: ["finished"] * 2, 4: ["hung (proven)"] * 2, 5: ["hung (proven)"] * 2}
    assert kinds == wanted.get(number, ["finished", "raised"]), f"case {number}, n={n}: {kinds}"
    return "ended as documented"


def rank_killed(draw: random.Random) -> str:
    """The victim is killed, the others raise, and the record has every call up to there."""
    victim, last = draw.randint(0, 1), draw.randint(0, 3)
    # Two ranks: with more, gloo sometimes leaves one waiting for a third that has raised, and tells it nothing.
    timeline = launch(steps(victim, last, draw.random() < 0.5), (4, 4))
    assert timeline.ends[victim].kind is EndKind.KILLED, timeline.ends
    assert "SIGKILL" in timeline.ends[victim].text, timeline.ends
    assert all(end.kind is EndKind.RAISED for rank, end in enumerate(timeline.ends) if rank != victim), timeline.ends
    assert timeline.calls.height > 0 or last == 0
    return "killed, and the others raised"


def killed_by(pid: Callable[[], int]) -> Callable[[random.Random], str]:
    """A process that the run needs is killed meanwhile: a LaunchError, or the run was over before."""

    def drill(draw: random.Random) -> str:
        launch(cases.case_2, (1, 1))  # the server runs

        def strike() -> None:
            with suppress(IndexError, psutil.NoSuchProcess, ProcessLookupError):
                os.kill(pid(), signal.SIGKILL)

        timer = threading.Timer(draw.uniform(0, 0.4), strike)
        timer.start()
        try:
            launch(steps(-1, 0, True), (30, 30))
            return "finished before"
        except LaunchError as error:
            assert "forked from" in str(error), error
            return "LaunchError"
        finally:
            timer.join()

    return drill


def _server() -> int:
    return ForkServer.get().process.pid


def _keeper() -> int:
    return psutil.Process(_server()).children()[0].pid


def interrupted(times: int) -> Callable[[random.Random], str]:
    """Ctrl-C once or twice, at any moment: LaunchInterrupted with a Timeline, or the run was over before."""

    def drill(draw: random.Random) -> str:
        moments = sorted(draw.uniform(0, 0.5) for _ in range(times))
        began, over = time.monotonic(), threading.Event()

        def strike() -> None:
            for moment in moments:
                if over.wait(max(began + moment - time.monotonic(), 0)):
                    return
                os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=strike)
        said = "finished before"
        try:
            try:
                thread.start()
                launch(steps(-1, 0, True), (30, 30))
            except LaunchInterrupted as stop:
                assert len(stop.timeline.ends) == 2
                said = "LaunchInterrupted"
            finally:
                over.set()
                thread.join()
        except KeyboardInterrupt:  # the second one, while the first was handled
            said = "KeyboardInterrupt"
        assert times == 2 or said != "KeyboardInterrupt", "an interrupt without a Timeline"
        return said

    return drill


CALLER = """
from tests.drills import launch, steps
while True:
    print("next", flush=True)
    launch(steps(-1, 0, True), (3, 3))
"""


def caller_killed(draw: random.Random) -> str:
    """Everything below a killed caller ends by itself."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", CALLER], stdout=subprocess.PIPE, env=env) as caller:
        assert caller.stdout is not None
        for _ in range(2):  # the server is warm at the second
            caller.stdout.readline()
        time.sleep(draw.uniform(0, 0.3))
        below = psutil.Process(caller.pid).children(recursive=True)
        caller.kill()
    _, alive = psutil.wait_procs(below, timeout=60)
    assert not [one for one in alive if one.status() != psutil.STATUS_ZOMBIE], alive
    launch(cases.case_2, (1, 1))  # sweeps its folder
    assert run_folders(caller.pid) == []
    return "nothing left"


DRILLS: dict[str, tuple[int, Callable[[random.Random], str]]] = {
    "healthy": (14, healthy),
    "rank killed": (14, rank_killed),
    "interrupted": (5, interrupted(1)),
    "interrupted twice": (3, interrupted(2)),
    "keeper killed": (2, killed_by(_keeper)),
    "fork server killed": (1, killed_by(_server)),
    "caller killed": (1, caller_killed),
}
"""How often each is drawn, of 40, and what it does."""


def one_launch(name: str, draw: random.Random) -> str:
    """Drill once; returns how it ended, or "WRONG: ..."."""
    segments = _segments()
    began = time.monotonic()
    try:
        said = DRILLS[name][1](draw)
        assert time.monotonic() - began < HELD_UP_S, f"the caller was held up for {time.monotonic() - began:.0f} s"
        assert rank_processes() == [], rank_processes()
        assert run_folders() == [], run_folders()
        assert _segments() <= segments, _segments() - segments
    except BaseException as error:
        return f"WRONG: {type(error).__name__}: {error}"
    return said


def _segments() -> set[str]:
    return {path.name for path in SHARED_MEMORY.iterdir()} if SHARED_MEMORY.is_dir() else set()


RECORD = (
    b'{"e":"begin","rank":0,"t":100,"pid":1,"host":"a","world":2,"wall":5,"keep":2000}\n'
    b'{"e":"group","name":"0","ranks":[0,1],"backend":"gloo","t":110}\n'
    b'{"e":"stack","id":0,"f":["a.py:1 worker"],"site":"a.py:1"}\n'
    b'{"e":"call","id":0,"s":0,"i":0,"k":0,"st":0,"g":"0","op":"all_reduce","o":"all-reduce","d":"float32","sh":[[1]],'
    b'"v":[[1.0]],"t":130}\n'
    b'{"e":"wait","id":[0],"t":140,"th":7,"n":1}\n{"e":"done","id":0,"t":150,"v":[[2.0]]}\n'
    b'{"e":"wake","id":[0],"t":160,"th":7}\n{"e":"return"}\n'
)
WORDS = (b"null", b"-1", b"[]", b"{}", b'"x"', b"1e999", b"99999999999999999999", b"\xff\xfe", b"\n", b"\0")


def damaged(draw: random.Random, folder: Path) -> str:
    """A record with a few places overwritten, cut or doubled: read, or refused by name."""
    text = bytearray(RECORD)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(text))
        end = min(at + draw.choice((0, 1, 1, 5, 40)), len(text))
        text[at:end] = draw.choice((*WORDS, bytes([draw.randrange(256)]), text[at:end] * 2, b""))
    (folder / "rank-0.0.jsonl").write_bytes(bytes(text))
    try:
        timeline = load_recording(folder)
        joinlab.diagnose(timeline)
    except TimelineFileError as error:
        return "refused" if str(folder) in str(error) else f"WRONG: {error} does not name the file"
    except Exception as error:
        return f"WRONG: {type(error).__name__}: {error} for {bytes(text)!r}"
    return "read"


def main(argv: list[str] | None = None) -> int:
    """Drill, print the counts, and say whether anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--n", type=int, default=1000, help="launches; ten times as many damaged records")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    draw = random.Random(options.seed)
    names = [name for name, (often, _) in DRILLS.items() for _ in range(often)]
    launch(cases.case_2, (1, 1))
    descriptors = len(psutil.Process().net_connections("all"))
    found: Counter[tuple[str, str]] = Counter()
    for at in range(options.n):
        name = names[at % len(names)] if options.n <= len(names) else draw.choice(names)
        said = one_launch(name, draw)
        found[name, said] += 1
        if said.startswith("WRONG"):
            print(f"{name}: {said}", flush=True)
    launch(cases.case_2, (1, 1))
    if len(psutil.Process().net_connections("all")) > descriptors:
        found["sockets", "WRONG: more are open than before"] += 1
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(10 * options.n):
            said = damaged(draw, Path(folder))
            found["damaged record", said] += 1
            if said.startswith("WRONG"):
                print(said, flush=True)
    for (name, said), count in sorted(found.items()):
        print(f"{count:6,}  {name}: {said}")
    return int(any(said.startswith("WRONG") for _, said in found))


if __name__ == "__main__":
    sys.exit(main())
