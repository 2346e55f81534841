"""A launch leaves nothing behind when the launching process itself is interrupted, terminated or
killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from joinlab.launcher.keeper import Keeper
from tests.leftovers import alive, run_folders
from tests.nightly import sampled

ROOT = Path(__file__).parents[2]

HANGING = """
import os, subprocess, sys, time
import joinlab
from joinlab.errors import LaunchInterrupted

def program(rank, inputs):
    import torch, torch.distributed as dist

    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    dist.barrier()
    work = dist.all_reduce(torch.ones(1), async_op=True) if rank else None
    print("pids", os.getpid(), child.pid)  # all three calls are made by then
    if rank == 0:
        time.sleep(600)
    work.wait()

try:
    joinlab.launch(program, (1, 1), backend="gloo", no_progress=600)
except LaunchInterrupted as stop:
    print("interrupted", [end.kind.value for end in stop.timeline.ends], stop.timeline.calls.height, flush=True)
    raise SystemExit(130)
"""


@contextmanager
def hanging_launch() -> Iterator[tuple[subprocess.Popen[str], set[int]]]:
    """A process that launches a program which never ends, and the pids of everything below it."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", HANGING], stdout=subprocess.PIPE, text=True, env=env
    ) as parent:
        assert parent.stdout is not None
        pids: set[int] = set()
        for _ in range(2):
            line = parent.stdout.readline().split()
            assert line[2] == "pids", line
            pids |= {int(line[3]), int(line[4])}
        pids |= {p.pid for p in psutil.Process(parent.pid).children(recursive=True)}
        try:
            yield parent, pids
        finally:
            parent.kill()


def test_an_interrupt_ends_every_process_and_keeps_the_timeline() -> None:
    with hanging_launch() as (parent, pids):
        parent.send_signal(signal.SIGINT)
        out, _ = parent.communicate(timeout=200)
        assert "interrupted ['killed', 'killed'] 3" in out
        assert parent.returncode == 130
        assert alive(pids) == []
        assert run_folders(parent.pid) == []


@pytest.mark.parametrize(
    "sign", sampled([signal.SIGTERM, signal.SIGKILL], lambda sign: sign == signal.SIGKILL)
)
def test_the_launching_process_dying_takes_everything_with_it(sign: signal.Signals) -> None:
    with hanging_launch() as (parent, pids):
        assert len(run_folders(parent.pid)) == 1
        parent.send_signal(sign)
        parent.wait(200)
        assert alive(pids) == []
        assert run_folders(parent.pid) == []


def test_all_ranks_are_stopped_before_the_first_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr("os.killpg", lambda pid, sign: sent.append((pid, sign)))
    monkeypatch.setattr("os.kill", lambda pid, sign: None)
    keeper = Keeper.__new__(Keeper)
    keeper.living = {7: object(), 8: object()}
    keeper.kill()
    assert sent == [
        (7, signal.SIGSTOP),
        (8, signal.SIGSTOP),
        (7, signal.SIGKILL),
        (8, signal.SIGKILL),
    ]
