"""`record`: run a script as this rank of a job, and record it.

    torchrun --nproc-per-node 8 -m joinlab record train.py --args

The script runs as without joinlab: as __main__, with its own arguments, folder first on the path,
traceback and exit code.
"""

from __future__ import annotations

import argparse
import builtins
import errno
import os
import runpy
import shlex
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from joinlab.cli.command import Command
from joinlab.recorder import interrupts
from joinlab.recorder.standstill import STILL_S

FOLDER = "runs/today"


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--into",
        type=Path,
        default=Path(FOLDER),
        metavar="FOLDER",
        help=f"where the ranks write (default: {FOLDER})",
    )
    parser.add_argument(
        "--everything",
        action="store_true",
        help="keep all calls, without a bound, instead of the last 2,000 per group",
    )
    parser.add_argument(
        "--still",
        type=float,
        metavar="S",
        default=STILL_S,
        help="after S seconds without an event, a rank records its threads' stacks (default: 5)",
    )
    parser.add_argument(
        "--ways",
        action="store_true",
        help="record which of the script's lines each rank runs, and the values in its tests",
    )
    parser.add_argument(
        "--quiet", action="store_true", help="do not print where it records and how to read it"
    )
    parser.add_argument(
        "-m",
        dest="module",
        action="store_true",
        help="SCRIPT.py is a module's name, as in python -m",
    )
    parser.add_argument("script", metavar="SCRIPT.py", help="what torchrun would run")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="...", help=argparse.SUPPRESS
    )


def _run(options: argparse.Namespace) -> int:
    from joinlab.jobs.record import RANK_NAMES, Recording, record

    if not options.module and not Path(options.script).is_file():
        raise FileNotFoundError(
            errno.ENOENT,
            "there is no such script. Name the one that torchrun would run.",
            options.script,
        )
    sys.argv = [options.script, *options.arguments]
    rank = next((os.environ[name] for name in RANK_NAMES if name in os.environ), "0")
    if options.quiet or rank != "0":
        voice = None
    else:
        voice = _Voice(options.into)
    record(options.into, everything=options.everything, still_s=options.still, ways=options.ways)
    try:
        _run_as_main(options.script, options.module)
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next  # show only the script's frames
        error.with_traceback(trace)
        if Recording.current is not None:  # the script may have a hook of its own
            Recording.current.end(error)
        if isinstance(error, SystemExit):
            raise
        sys.excepthook(type(error), error, trace)
        if isinstance(error, KeyboardInterrupt):
            # the traceback is printed; Python will end this process by SIGINT
            sys.excepthook = lambda *_: None
            raise
        return 1
    finally:
        if voice is not None:
            voice.say_end()
    return 0


class _Voice:
    """Rank 0's messages on stderr: where it records, and at the end or at Ctrl-C, how to read the
    record."""

    def __init__(self, into: Path) -> None:
        self._into = into
        self._show = f"python -m joinlab show {shlex.quote(str(into))}"
        self._ended = threading.Lock()
        _say(f"recording into {into}. If it hangs: {self._show}")
        interrupts.of_process().listeners.append(self.say_end)

    def say_end(self) -> None:
        if any(self._into.glob("rank-*.jsonl")) and self._ended.acquire(blocking=False):
            _say(f"to see what was recorded: {self._show}")


def _say(text: str) -> None:
    # the job may have closed stderr, or set it to None
    with suppress(OSError, ValueError, AttributeError):
        # one write: the other thread may print a traceback at the same time
        sys.stderr.write(f"joinlab: {text}\n")
        sys.stderr.flush()


def _run_as_main(script: str, is_module: bool) -> None:
    """Run it as Python would, as the module __main__, which exists until the process ends."""
    sys.modules["__main__"] = main = ModuleType("__main__")
    vars(main)["__builtins__"] = builtins
    path = Path(script).absolute()
    if not sys.flags.safe_path:  # else the first entry is one of PYTHONPATH
        sys.path[0] = os.getcwd() if is_module else str(path.resolve().parent)
    if is_module:
        run: Any = runpy
        run._run_module_as_main(script)  # what `python -m` calls
    else:
        main.__file__ = str(path)
        exec(compile(path.read_bytes(), path, "exec", dont_inherit=True), vars(main))


COMMAND = Command(
    "record",
    "run a script as one rank of a job, and record it: under torchrun, mpirun or srun",
    _options,
    _run,
    (("train.py --args", "as `torchrun --nproc-per-node 8 -m joinlab record train.py --args`"),),
)
