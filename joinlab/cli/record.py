"""`record`: run a script as this rank of a job, and record it.

    torchrun --nproc-per-node 8 -m joinlab record train.py --args

The script runs as it does without joinlab: as __main__, with its own arguments, its own folder first on the path, its
own traceback and exit code.
"""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path

from joinlab.cli.command import Command

FOLDER = "runs/today"


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--into", type=Path, default=Path(FOLDER), metavar="FOLDER", help=f"where the ranks write (default: {FOLDER})"
    )
    parser.add_argument("--keep", metavar="N", default="2000", help='calls kept per group and rank, or "all"')
    parser.add_argument("script", metavar="SCRIPT.py", help="what torchrun would run; -m MODULE works, too")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def _run(options: argparse.Namespace) -> int:
    from joinlab.program.outcome import text_of
    from joinlab.recorder.record import Recording, record

    keep = None if options.keep == "all" else int(options.keep) if options.keep.isdecimal() else 0
    module = options.script == "-m"
    sys.argv = options.arguments[:] if module else [options.script, *options.arguments]
    record(options.into, keep=keep)
    code = 0
    try:
        if module:
            sys.path[0] = ""
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = str(Path(options.script).resolve().parent)
            runpy.run_path(options.script, run_name="__main__")
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
        if code and Recording.current is not None:
            Recording.current.end(text_of(error))
        raise
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, runpy.__file__):
            trace = trace.tb_next  # the script's own frames remain
        sys.excepthook(type(error), error, trace or error.__traceback__)
        code = 130 if isinstance(error, KeyboardInterrupt) else 1
    return code


COMMAND = Command(
    "record",
    "run a script as one rank of a job, and record it: under torchrun, mpirun or srun",
    _options,
    _run,
    (("train.py --args", "as `torchrun --nproc-per-node 8 -m joinlab record train.py --args`"),),
)
