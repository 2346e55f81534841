"""`record`: run a script as this rank of a job, and record it.

    torchrun --nproc-per-node 8 -m joinlab record train.py --args

The script runs as it does without joinlab: as __main__, with its own arguments, its own folder first on the path, its
own traceback and exit code.
"""

from __future__ import annotations

import argparse
import builtins
import errno
import os
import runpy
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from joinlab.cli.command import Command
from joinlab.recorder.standstill import STILL_S

FOLDER = "runs/today"


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--into", type=Path, default=Path(FOLDER), metavar="FOLDER", help=f"where the ranks write (default: {FOLDER})"
    )
    parser.add_argument(
        "--keep", metavar="N", type=_kept, default="2000", help='calls kept per group and rank, or "all"'
    )
    parser.add_argument(
        "--still",
        type=float,
        metavar="S",
        default=STILL_S,
        help="without an event for so long, a rank writes down where its threads stand (default: 5)",
    )
    parser.add_argument(
        "-m", dest="module", action="store_true", help="SCRIPT.py is the name of a module, as python -m"
    )
    parser.add_argument("script", metavar="SCRIPT.py", help="what torchrun would run")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help=argparse.SUPPRESS)


def _kept(text: str) -> int | None:
    if text != "all" and not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f'{text!r} is neither a number of calls of at least 1 nor "all"')
    return None if text == "all" else int(text)


def _run(options: argparse.Namespace) -> int:
    from joinlab.program.outcome import text_of
    from joinlab.recorder.record import Recording, record

    if not options.module and not Path(options.script).is_file():
        raise FileNotFoundError(
            errno.ENOENT, "there is no such script. Name the one that torchrun would run.", options.script
        )
    sys.argv = [options.script, *options.arguments]
    record(options.into, keep=options.keep, still_s=options.still)
    try:
        _run_as_main(options.script, options.module)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
        if code and Recording.current is not None:
            Recording.current.end(text_of(error))
        raise
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next  # the script's own frames remain
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        if isinstance(error, KeyboardInterrupt):
            sys.excepthook = lambda *_: None  # it is told; Python itself will end this process by SIGINT
            raise
        return 1
    return 0


def _run_as_main(script: str, is_module: bool) -> None:
    """Run it as Python would: as the module __main__, which stays until the process ends."""
    sys.modules["__main__"] = main = ModuleType("__main__")
    vars(main)["__builtins__"] = builtins
    if is_module:
        sys.path[0] = os.getcwd()
        run: Any = runpy
        run._run_module_as_main(script)  # what `python -m` calls
    else:
        path = Path(script).absolute()
        sys.path[0] = str(path.resolve().parent)
        main.__file__ = str(path)
        exec(compile(path.read_bytes(), path, "exec", dont_inherit=True), vars(main))


COMMAND = Command(
    "record",
    "run a script as one rank of a job, and record it: under torchrun, mpirun or srun",
    _options,
    _run,
    (("train.py --args", "as `torchrun --nproc-per-node 8 -m joinlab record train.py --args`"),),
)
