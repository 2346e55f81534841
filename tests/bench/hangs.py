"""From "my job hangs" to rank, line and reason: joinlab's command beside flight recorder dumps, and beside py-spy.

The same program hangs twice, recorded and not; the cost of each, its processes included, is measured in turn.
A person's share is not: the recorded job prints its command, the dumps need a program that writes them on request (on
gloo no watchdog does), and py-spy the pids of the ranks. Rank 1 issues an all-reduce too many, in line EXTRA.
"""

from __future__ import annotations

import itertools
import os
import pickle
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import psutil

from tests.bench.figures import Figure

ROOT = Path(__file__).parent.parent.parent
ROUNDS = 5
GIVE_UP_S = 200.0
SCRIPT = """\
import itertools, os, pickle, threading, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def dump_when_asked(rank):
    for number in itertools.count():
        while not os.path.exists(f"asked-{number}"):
            time.sleep(0.01)
        dump = pickle.loads(torch._C._distributed_c10d._dump_fr_trace())
        # torchfrtrace raises KeyError on gloo's, which have no name for the default group
        dump["pg_config"] = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
        os.makedirs(f"dumps-{number}", exist_ok=True)
        with open(f"rank-{rank}.part", "wb") as file:
            pickle.dump(dump, file)
        os.rename(f"rank-{rank}.part", f"dumps-{number}/trace_rank_{rank}")

def average(x):
    dist.all_reduce(x)  # EXTRA

dist.init_process_group("gloo")
rank = dist.get_rank()
if "TORCH_FR_BUFFER_SIZE" in os.environ:  # beside a thread that might issue a call no hang is proven
    threading.Thread(target=dump_when_asked, args=(rank,), daemon=True).start()
model = DDP(torch.nn.Linear(4, 1))
for step in range(5):
    model(torch.ones(2, 4)).sum().backward()
    if step == 3 and rank == 1:
        average(torch.ones(1))
dist.barrier()
"""
EXTRA = f"train.py:{SCRIPT[: SCRIPT.index('# EXTRA')].count(chr(10)) + 1}"
ISSUED = {0: 10, 1: 11}
"""Calls of each rank, once both stand still."""


class Job:
    """The script under torchrun, in a folder of its own."""

    def __init__(self, folder: Path, *record: str) -> None:
        folder.mkdir()
        (folder / "train.py").write_text(SCRIPT)
        self.folder = folder
        self.out = folder / "out.txt"
        self.asked = itertools.count()
        torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        environ |= {} if record else {"TORCH_FR_BUFFER_SIZE": "2000"}
        with self.out.open("w") as out:
            command = [sys.executable, *torchrun, *record, "train.py"]
            self.torchrun = psutil.Popen(command, cwd=folder, env=environ, stdout=out, stderr=out)

    def printed(self) -> list[str]:
        """The command that the recorded job prints for the case that it hangs."""
        until(lambda: "If it hangs: python " in self.out.read_text(), "printed what to type")
        return shlex.split(self.out.read_text().partition("If it hangs: python ")[2].splitlines()[0])

    def run(self, *command: str) -> str:
        """What a command beside the job says."""
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.run(command, cwd=self.folder, text=True, **streams).stdout

    def python(self, *args: str) -> str:
        return self.run(sys.executable, *args)

    def dumps(self) -> Path:
        """The folder of the dumps that both ranks have written, now that they are asked."""
        number = next(self.asked)
        (self.folder / f"asked-{number}").touch()
        dumps = self.folder / f"dumps-{number}"
        until(lambda: len(list(dumps.glob("trace_rank_*"))) == 2, "dumped", every=0.01)
        return dumps

    def ranks(self) -> list[int]:
        return [child.pid for child in self.torchrun.children()]

    def end(self) -> None:
        for process in (*self.torchrun.children(recursive=True), self.torchrun):
            process.kill()
        self.torchrun.wait()


def measure() -> Iterator[Figure]:
    """The time of each way, what it names, and its time as a multiple of joinlab's."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as jobs:
        recorded, bare = (
            Job(Path(name, "recorded"), "-m", "joinlab", "record", "--into", "runs"),
            Job(Path(name, "bare")),
        )
        jobs.callback(recorded.end)
        jobs.callback(bare.end)
        show = recorded.printed()
        until(lambda: "BOTH HANG" in recorded.python(*show), "proven hung")
        until(lambda: issued(bare.dumps()) == ISSUED, "at a stand-still")
        analyzer = ("-m", "torch.distributed.flight_recorder.fr_trace")
        ways: dict[str, Callable[[], str]] = {
            "show": lambda: recorded.python(*show),
            "dumps, torchfrtrace": lambda: bare.python(*analyzer, str(bare.dumps()), "-p", "trace_rank_"),
        }
        if spy := shutil.which("py-spy"):
            ways["py-spy, each rank"] = lambda: "".join(bare.run(spy, "dump", "-p", str(pid)) for pid in bare.ranks())
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        said: dict[str, str] = {}
        for _ in range(ROUNDS):
            for way, run in ways.items():
                begun = time.perf_counter()
                said[way] = run()
                seconds[way].append(time.perf_counter() - begun)
    for way in ways:
        ratio = median(one / ours for one, ours in zip(seconds[way], seconds["show"], strict=True))
        yield Figure(f"a hung job: {way}", f"{median(seconds[way]):.2f} s, {named(said[way])}", f"{ratio:.2f}", "")
    if not spy:
        yield Figure("a hung job: py-spy, each rank", "not measured: pip install py-spy", "", "")


def named(said: str) -> str:
    """Which rank the text blames, and whether it has the line of the call too many."""
    blamed = re.search(r"(?:Culprit rank |^Rank )(\d)(?=;| issued one)", said, re.M)
    return f"{f'blames rank {blamed[1]}' if blamed else 'blames none'}, {'names' if EXTRA in said else 'not'} the line"


def issued(dumps: Path) -> dict[int, int]:
    """How many calls each rank's dump has."""
    return {rank: len(pickle.loads((dumps / f"trace_rank_{rank}").read_bytes())["entries"]) for rank in (0, 1)}


def until(done: Callable[[], bool], what: str, every: float = 0.1) -> None:
    """Ask until it is so; a bound, not a measure."""
    begun = time.monotonic()
    while not done():
        if time.monotonic() - begun > GIVE_UP_S:
            raise TimeoutError(f"never {what}")
        time.sleep(every)
