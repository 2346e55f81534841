"""Fault drills: faults in launches, files, emulated programs and joinlab's environment.

    python -m tests.drills --n 1000        # an hour; CI runs a sample, see test_drills.py
    python -m tests.drills --launches 100 --files 0 --programs 0 --surroundings "IPv6 only" --seed 7

launches      ranks, other processes or the caller are killed or interrupted. After each: no process, folder, port,
              descriptor, thread or shared memory is left, the caller was not delayed, and the endings are true
files         damaged or hostile (drill_files.py): read whole, or refused by name
programs      emulated and misbehaving (drill_programs.py): the process is unchanged
surroundings  limits, languages, users, networks (drill_surroundings.py): it works, or one sentence says why not

Prints the count of each ending; the exit code is 1 if any was wrong.
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
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

import joinlab
from joinlab import cases
from joinlab.emulator.warm_up import warm_up
from joinlab.errors import LaunchError, LaunchInterrupted
from joinlab.launcher import descendants, isolated
from joinlab.launcher.forkclient import ForkServer
from joinlab.launcher.spares import SPARES
from joinlab.timeline import EndKind, Timeline
from tests import drill_surroundings
from tests.drill_files import FILES, open_one
from tests.drill_programs import misbehave
from tests.leftovers import alive, listening, run_folders

ROOT = Path(__file__).parent.parent
TIMEOUT_S = 30.0
HELD_UP_S = TIMEOUT_S + 60
"""A caller that comes back later was held up. On a loaded machine a new fork server alone takes 20
s."""

NO_PROGRESS_S = 8.0
SHARED_MEMORY = Path("/dev/shm")


def steps(victim: int, last: int, start_child: bool) -> Callable[[int, Any], int]:
    """A program of DDP steps in which the rank `victim` is killed after `last` steps (-1: none
    is)."""

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
    return joinlab.launch(
        program,
        inputs,
        "gloo",
        on_output=None,
        progress=False,
        timeout=TIMEOUT_S,
        no_progress=NO_PROGRESS_S,
    )


def healthy(draw: random.Random) -> str:
    """Cases that finish are never called hung, and those that hang are proven."""
    number, n = draw.choice(list(cases.CASES)), draw.randint(1, 4)
    kinds = [str(end) for end in launch(cases.CASES[number].program, (n, n + 1)).ends]
    wanted = {
        1: ["finished"] * 2,
        6: ["finished"] * 2,
        4: ["hung (proven)"] * 2,
        5: ["hung (proven)"] * 2,
    }
    assert kinds == wanted.get(number, ["finished", "raised"]), f"case {number}, n={n}: {kinds}"
    return "ended as documented"


def loaded(draw: random.Random) -> str:
    """The same with every CPU busy: no healthy run is called hung."""
    burners = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(os.cpu_count() or 2)
    ]
    try:
        return healthy(draw)
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def freed(draw: random.Random) -> str:
    """A script's last lines: it destroys the group, and the model goes with the function."""

    def program(rank: int, inputs: Any) -> None:
        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel as DDP

        model = DDP(torch.nn.Linear(10, 10))
        for _ in inputs:
            model(torch.ones(20, 10)).sum().backward()
        dist.destroy_process_group()

    assert [str(end) for end in launch(program, (3, 3)).ends] == ["finished"] * 2
    return "finished"


def rank_killed(draw: random.Random) -> str:
    """The victim is killed, the others raise, and the record has every call up to there.

    Of three ranks or more, one can wait for ever: its send is taken out of the queue, or is being
    written, when the connection breaks, and gloo tells only those that are still queued
    (Pair::signalException in gloo/transport/tcp/pair.cc). Seen 3 times with torch 2.13.0, the rank
    standing in waitSend. That is a hang, which nothing proves.
    """
    ranks, last = draw.choice((2, 2, 2, 3, 4)), draw.randint(0, 3)
    victim = draw.randrange(ranks)
    timeline = launch(steps(victim, last, draw.random() < 0.5), (4,) * ranks)
    assert timeline.ends[victim].kind is EndKind.KILLED, timeline.ends
    assert "SIGKILL" in timeline.ends[victim].text, timeline.ends
    others = {str(end) for rank, end in enumerate(timeline.ends) if rank != victim}
    assert "raised" in others, timeline.ends
    assert others <= (
        {"raised"} if ranks == 2 else {"raised", "hung (suspected)", "hung (proven)"}
    ), timeline.ends
    assert timeline.calls.height > 0 or last == 0
    return (
        "killed, and the others raised"
        if len(others) == 1
        else "killed, and gloo left a third rank waiting"
    )


def killed_by(pid: Callable[[], int]) -> Callable[[random.Random], str]:
    """A process that the run needs is killed meanwhile: a LaunchError, or the run was over
    before."""

    def drill(draw: random.Random) -> str:
        launch(cases.case_2, (1, 1))  # the server runs

        def strike() -> None:
            with suppress(IndexError, psutil.NoSuchProcess, ProcessLookupError, ChildProcessError):
                os.kill(victim := pid(), signal.SIGKILL)
                # so that the next launch finds it gone
                os.waitid(os.P_PID, victim, os.WEXITED | os.WNOWAIT)

        timer = threading.Timer(draw.uniform(0, 0.4), strike)
        timer.start()
        try:
            launch(steps(-1, 0, True), (300, 300))
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
    """Ctrl-C once or twice, at any moment: LaunchInterrupted with a Timeline, or the run was over
    before."""

    def drill(draw: random.Random) -> str:
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts background jobs
            return "tested nothing: SIGINT is ignored here"
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
        except KeyboardInterrupt as stop:  # one that came before or after the launch
            within = [frame.filename for frame in traceback.extract_tb(stop.__traceback__)]
            assert not [file for file in within if "launcher" in file], (
                f"an interrupt without a Timeline: {within}"
            )
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
    with subprocess.Popen(
        [sys.executable, "-c", CALLER], stdout=subprocess.PIPE, env=env
    ) as caller:
        assert caller.stdout is not None
        for _ in range(2):  # the server is warm at the second
            caller.stdout.readline()
        time.sleep(draw.uniform(0, 0.3))
        below = psutil.Process(caller.pid).children(recursive=True)
        caller.kill()
    assert (left := alive(one.pid for one in below)) == [], left
    launch(cases.case_2, (1, 1))  # sweeps its folder
    assert run_folders(caller.pid) == []
    return "nothing left"


DRILLS: dict[str, tuple[int, Callable[[random.Random], str]]] = {
    "healthy": (8, healthy),
    "healthy, loaded": (3, loaded),
    "model freed": (3, freed),
    "rank killed": (14, rank_killed),
    "interrupted": (4, interrupted(1)),
    "interrupted twice": (3, interrupted(2)),
    "keeper killed": (2, killed_by(_keeper)),
    "fork server killed": (2, killed_by(_server)),
    "caller killed": (1, caller_killed),
}
"""How often each is drawn, of 40, and what it does."""


def one_launch(name: str, draw: random.Random) -> str:
    """Drill once; returns how it ended, or "WRONG: ..."."""
    before, earlier = _now(), psutil.Process().children()
    began = time.monotonic()
    try:
        said = DRILLS[name][1](draw)
        assert time.monotonic() - began < HELD_UP_S, (
            f"the caller was held up for {time.monotonic() - began:.0f} s"
        )
        assert (left := processes(earlier)) == [], left
        assert listening() == []
        assert run_folders() == [], run_folders()
        launch(cases.case_2, (1, 1))  # which replaces a server that was killed
        after = _now()
        assert all(now <= then for now, then in zip(after, before, strict=True)), (before, after)
        server = psutil.Process(_server())
        assert server.num_fds() < 20
        # a thread would not survive a fork, and what it held would stay locked
        assert server.num_threads() == 1
    except BaseException as error:
        return f"WRONG: {type(error).__name__}: {error}"
    return said


def processes(earlier: list[psutil.Process]) -> list[psutil.Process]:
    """Every process that is left below this one, the fork server and its own children from earlier
    excepted: multiprocessing keeps one, which a test before this may have started. A keeper ends a
    moment after its run."""
    isolated.leave()
    SPARES.close()
    servers = {server.process.pid for server in ForkServer.running()}
    below = psutil.Process().children(recursive=True)
    return alive(
        process.pid for process in below if process.pid not in servers and process not in earlier
    )


def _now() -> tuple[set[str], int, int]:
    """Shared memory, threads and descriptors of this process."""
    segments = {path.name for path in SHARED_MEMORY.iterdir()} if SHARED_MEMORY.is_dir() else set()
    torchs = {name for name in segments if name.startswith(("torch_", "psm_"))}
    return torchs, threading.active_count(), len(os.listdir("/proc/self/fd"))


def one_file(name: str, draw: random.Random) -> str:
    """Write one and open it."""
    with tempfile.TemporaryDirectory() as folder:
        return open_one(FILES[name][1](draw, Path(folder)))


def one_program(_: str, draw: random.Random) -> str:
    """Emulate one."""
    try:
        return misbehave(draw)
    except BaseException as error:
        return f"WRONG: {type(error).__name__}: {error}"


def drawn(
    often: dict[str, tuple[int, Any]], n: int, seed: str
) -> Iterator[tuple[str, random.Random]]:
    """n names and what each draws from: each once if there are n, and about as often as it is asked
    for if n is small."""
    names = [name for name, (count, _) in often.items() for _ in range(count)]
    if n == len(often):
        names = [*often]
    for at in range(n):
        draw = random.Random(f"{seed} {at}")
        yield names[at * len(names) // n] if n <= len(names) else draw.choice(names), draw


def main(argv: list[str] | None = None) -> int:
    """Drill, print the counts, and say whether anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--n", type=int, default=1000, help="launches; 10 times as many files, a fifth of programs"
    )
    for name, what in (("launches", "n"), ("files", "10 n"), ("programs", "n / 5")):
        parser.add_argument(f"--{name}", type=int, help=f"default: {what}")
    parser.add_argument(
        "--surroundings", nargs="*", choices=list(drill_surroundings.SURROUNDINGS), metavar="NAME"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    isolated.leave()  # the course's kept process is not a drill's leftover
    launches, files, programs = (
        default if given is None else given
        for given, default in (
            (options.launches, options.n),
            (options.files, 10 * options.n),
            (options.programs, options.n // 5),
        )
    )
    surroundings = (
        list(drill_surroundings.SURROUNDINGS)
        if options.surroundings is None
        else options.surroundings
    )
    found: Counter[tuple[str, str]] = Counter()

    def note(kind: str, said: str) -> None:
        found[kind, "WRONG" if said.startswith("WRONG") else said] += 1
        if said.startswith("WRONG"):
            print(f"{kind}: {said}", flush=True)

    descendants.adopt()  # orphans become our children, so we see them
    if launches:
        launch(cases.case_2, (1, 1))
        for name, draw in drawn(DRILLS, launches, f"launch {options.seed}"):
            note(name, one_launch(name, draw))
    for name, draw in drawn(FILES, files, f"file {options.seed}"):
        note(name, one_file(name, draw))
    if programs:
        warm_up()
        for name, draw in drawn({"program": (1, None)}, programs, f"program {options.seed}"):
            note(name, one_program(name, draw))
    rooted = drill_surroundings.can_have_namespaces()
    for name in surroundings:
        if drill_surroundings.SURROUNDINGS[name].needs and not rooted:
            note("surroundings", "skipped: they need root, namespaces, setpriv and ip")
        else:
            said = drill_surroundings.try_one(name)
            note("surroundings", f"WRONG: {name}: {said}" if said.startswith("WRONG") else said)
    for (name, said), count in sorted(found.items()):
        print(f"{count:6,}  {name}: {said}")
    return int(any(said == "WRONG" for _, said in found))


if __name__ == "__main__":
    sys.exit(main())
