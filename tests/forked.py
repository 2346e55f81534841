"""Starts the ranks of a job as torchrun does, but forked from a process with torch: 0.5 s per rank
instead of 3 s.

    starter ── rank 0: python -m joinlab record ...
        └───── rank 1

The starter takes jobs one after the other, each a line of JSON, and reports the ranks' pids and at
the end their statuses.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import select
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

import psutil

from joinlab.interrupts import no_collection
from joinlab.launcher import descendants
from joinlab.program.program import call_program

ROOT = Path(__file__).parent.parent


class Job:
    """The ranks of a job: `poll` and `wait` as of a Popen; the code is 0 if all ranks ended so."""

    def __init__(
        self, starter: subprocess.Popen[bytes], environ: Mapping[str, str], more: object
    ) -> None:
        assert starter.stdin and starter.stdout
        self.said, self.code = starter.stdout, None
        starter.stdin.write(json.dumps([*more, dict(environ)]).encode() + b"\n")
        self.pids = [int(word) for word in self.said.readline().split()]

    def poll(self) -> int | None:
        return self.wait(0)

    def wait(self, seconds: float) -> int | None:
        if self.code is None and select.select([self.said], [], [], seconds)[0]:
            self.code = max(map(int, self.said.readline().split()))
        return self.code


@contextmanager
def starter() -> Iterator[subprocess.Popen[bytes]]:
    """The process that ranks are forked from."""
    command = [sys.executable, "-m", "tests.forked"]
    with subprocess.Popen(command, cwd=ROOT, stdin=-1, stdout=-1, bufsize=0) as process:
        try:
            yield process
        finally:
            process.kill()


def said_by(
    starter: subprocess.Popen[bytes], folder: Path, ranks: int, words: Sequence[str]
) -> list[subprocess.CompletedProcess[str]]:
    """What each of `ranks` processes said that ran WORDS, and the highest of their exit codes."""
    with forked(starter, folder, ranks, words, said=True) as job:
        code = job.wait(100)
    assert code is not None
    done = []
    for rank in range(ranks):
        out, err = ((folder / f"{name}-{rank}").read_text("utf-8") for name in SAID)
        exit_code = os.waitstatus_to_exitcode(code)
        done.append(subprocess.CompletedProcess([*words], exit_code, out, err))
    return done


SAID = ("stdout", "stderr")
"""The files of a folder that have what a rank said: stdout-0."""


@contextmanager
def forked(
    starter: subprocess.Popen[bytes],
    folder: Path,
    ranks: int,
    words: Sequence[str],
    said: bool = False,
) -> Iterator[Job]:
    """`ranks` processes that run `python -m joinlab WORDS` in the folder, or a script that WORDS
    begin with; killed in the end. What they say goes into SAID if it is asked for."""
    from torch.distributed import TCPStore

    # as torchrun has one for its ranks
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environ = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": str(ranks)}
    job = Job(starter, environ, [str(folder), ranks, list(words), said])
    try:
        yield job
    finally:
        for pid in job.pids if job.poll() is None else ():
            with suppress(psutil.NoSuchProcess):
                psutil.Process(pid).kill()
        job.wait(60)


# ---- in the starter


def main() -> None:
    with no_collection():
        import torch._dynamo  # DDP's constructor imports it
        import torch.distributed.fsdp
        import torch.distributed.optim

        import joinlab.cli.main
        import joinlab.cli.record
        import joinlab.recorder.install

    assert joinlab.cli and joinlab.recorder and torch.distributed
    descendants.die_with_parent()
    gc.freeze()
    for line in sys.stdin:
        folder, ranks, words, said, environ = json.loads(line)
        pids = [os.fork() or _be(rank, folder, words, said, environ) for rank in range(ranks)]
        print(*pids, flush=True)
        print(*(os.waitpid(pid, 0)[1] for pid in pids), flush=True)


def _be(
    rank: int, folder: str, words: Sequence[str], said: bool, environ: Mapping[str, str]
) -> NoReturn:
    code = 1
    try:
        descendants.die_with_parent()
        here = {"RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"}
        os.environ |= (
            environ
            | here
            | {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
        )
        os.chdir(folder)
        null = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(null, stream)
        for stream, name in enumerate(SAID, 1):
            if said:
                os.dup2(os.open(f"{name}-{rank}", os.O_WRONLY | os.O_CREAT), stream)
        if words[0].endswith(".py"):  # as nobody records it
            sys.argv = list(words)
            runpy.run_path(words[0], run_name="__main__")
            code = 0
        else:
            sys.argv = ["joinlab", *words]
            as_main = partial(runpy.run_module, run_name="__main__", alter_sys=True)
            call_program(as_main, "joinlab", None)  # frames further out are not the script's
    except SystemExit as error:
        code = int(error.code or 0)
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
