"""The command line: `python -m joinlab`, or `joinlab` where the package is installed.

Exit codes: 0 it worked (and, for `run`, every rank finished), 1 a rank did not finish (`run`) or nothing can be
launched here (`doctor`), 2 it could not be done (wrong usage, no such file, no GPU), 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import joinlab
from joinlab._version import __version__
from joinlab.errors import JoinlabError, LaunchInterrupted, ProgramError

if TYPE_CHECKING:
    from joinlab.timeline import Timeline

INTERRUPTED = 130
BROKEN_PIPE = 141

EXAMPLES = """examples:
  python -m joinlab cases                                  the six cases, rank 0 with 5 inputs, rank 1 with 6
  python -m joinlab cases --n 1 2 5 --html out/cases.html  for three N, and the swimlanes as one page
  python -m joinlab run train.py:worker --inputs 5,6 --save run.joinlab
  python -m joinlab show run.joinlab                       what met what, and why each rank ended as it did
  python -m joinlab handout out/six.html                   the six cases as a page with sliders, for a class
  python -m joinlab doctor                                 what works on this machine

exit codes: 0 done, and for run every rank finished; 1 a rank did not finish, or nothing can be launched here;
2 could not be done: wrong usage, no such file, no GPU; 130 interrupted
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. Errors are one line on stderr."""
    options = parser().parse_args(argv)
    try:
        code = int(options.command(options))
        sys.stdout.flush()
        return code
    except LaunchInterrupted as interrupted:
        return _say(str(interrupted), INTERRUPTED)
    except KeyboardInterrupt:
        return _say("interrupted", INTERRUPTED)
    except BrokenPipeError:  # the reader, such as `head`, has gone; Python must not complain at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except JoinlabError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return _say(" ".join(lines if len(lines) < 3 else [lines[0], lines[-1]]), 2)
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        return _say(f"{place}{error.strerror or error}", 2)


def _say(text: str, code: int) -> int:
    print(f"joinlab: {text}", file=sys.stderr)
    return code


# ---- commands


def cases(options: argparse.Namespace) -> int:
    """Run the six cases and say how they ended, beside what was documented."""
    from joinlab.cases import CASES
    from joinlab.cli import report

    chosen = {number: CASES[number] for number in sorted(set(options.only or CASES))}
    counts = list(dict.fromkeys(options.n))
    pages: dict[str, Timeline] = {}
    screen = report.Screen()
    for n in counts:
        runs = {}
        for number, case in chosen.items():
            with screen.status(f"case {number}, inputs {n} and {n + 1}"):
                timeline = joinlab.launch(
                    case.program, inputs=(n, n + 1), backend=options.backend, on_output=None, progress=False
                )
            runs[number] = case, timeline
            pages[f"Case {number}, inputs {n} and {n + 1}"] = timeline
        screen.print(report.cases_table(runs, n))
        if n == counts[-1]:
            screen.print(*(report.case_notes(number, *run) for number, run in runs.items()), sep="\n")
    if options.html:
        _write_html(pages, options.html)
    return 0


def run(options: argparse.Namespace) -> int:
    """Run somebody's own program and say how each rank ended."""
    from joinlab.cli import report

    program = load_program(options.program)
    settings = {"timeout": options.timeout, "no_progress": options.no_progress, "seed": options.seed}
    try:
        timeline = joinlab.launch(
            program,
            inputs=options.inputs,
            backend=options.backend,
            **{name: value for name, value in settings.items() if value is not None},
        )
    except LaunchInterrupted as interrupted:
        _keep(interrupted.timeline, options)
        raise
    report.Screen().print(report.endings(timeline))
    _keep(timeline, options)
    return 0 if all(end.kind == "finished" for end in timeline.ends) else 1


def show(options: argparse.Namespace) -> int:
    """Print a saved run: which calls met, how each rank ended, and why."""
    from joinlab.cli import report

    timeline = joinlab.load(options.file)
    report.Screen().print(report.calls_table(timeline, options.setup), report.endings(timeline))
    _keep(timeline, options)
    return 0


def handout(options: argparse.Namespace) -> int:
    """Write the six cases as one page with sliders, every position of which was emulated."""
    options.file.parent.mkdir(parents=True, exist_ok=True)
    print(f"wrote {joinlab.write_handout(options.file)}")
    return 0


def doctor(options: argparse.Namespace) -> int:
    """Say what works on this machine."""
    from joinlab.cli import report
    from joinlab.cli.doctor import can_launch, examine, facts

    machine = examine()
    report.Screen().print(report.facts_table(facts(machine)))
    return 0 if can_launch(machine) else 1


def _keep(timeline: Timeline, options: argparse.Namespace) -> None:
    if getattr(options, "save", None):
        print(f"saved {timeline.save(options.save)}")
    if options.html:
        _write_html({str(timeline.meta.get("program", "run")): timeline}, options.html)


def _write_html(timelines: dict[str, Timeline], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    joinlab.write_html(timelines, path)
    print(f"wrote {path}")


# ---- the program to run


def load_program(text: str) -> Any:
    """The function that "FILE:FUNCTION" or "package.module:FUNCTION" names. Raises ProgramError if there is none.

    The file is run as a module, so what stands under `if __name__ == "__main__":` is not.
    """
    place, colon, name = text.rpartition(":")
    if not (colon and place and name):
        raise ProgramError(f"{text!r} names no function: write FILE:FUNCTION, such as train.py:worker")
    module = _load_module(place)
    try:
        return getattr(module, name)
    except AttributeError:
        functions = [key for key, value in vars(module).items() if callable(value) and _is_from(value, module)]
        listed = ", ".join(functions) or "none"
        raise ProgramError(f"{place} has no function {name!r}; it has {listed}") from None


def _load_module(place: str) -> ModuleType:
    path = Path(place)
    is_file = path.suffix == ".py" or path.exists()
    if is_file and not path.is_file():
        raise ProgramError(f"there is no file {place}")
    # As for any script, its neighbours can be imported; as for `python -m`, so can what is here.
    sys.path.insert(0, str(path.resolve().parent) if is_file else os.getcwd())
    try:
        module = _run_file(path) if is_file else importlib.import_module(place)
    except (Exception, SystemExit) as error:
        raise ProgramError(f"{place} cannot be imported: {type(error).__name__}: {error}") from error
    import cloudpickle

    cloudpickle.register_pickle_by_value(module)  # the ranks need not find the file
    return module


def _run_file(path: Path) -> ModuleType:
    name = f"joinlab_program_{path.stem}"  # never the name of a module that the program itself wants
    module = ModuleType(name)
    module.__file__ = str(path.resolve())
    sys.modules[name] = module
    SourceFileLoader(name, module.__file__).exec_module(module)
    return module


def _is_from(value: Any, module: ModuleType) -> bool:
    return getattr(value, "__module__", None) == module.__name__


# ---- options


def counts(text: str) -> tuple[int, ...]:
    """The inputs of each rank, from "5,6"."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not one number a rank, such as 5,6") from None


def whole(text: str) -> int:
    """A count of inputs of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of inputs")
    return int(text)


def parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    top = argparse.ArgumentParser(
        prog="python -m joinlab",
        description="See what really happens when the ranks of a PyTorch DDP job get uneven inputs.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"joinlab {__version__}")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")

    one = _command(commands, "cases", cases, "run the six documented cases and say how each rank ended, and why")
    one.add_argument(
        "--n", type=whole, nargs="+", default=[5], metavar="N", help="rank 0 gets N inputs, rank 1 N + 1 (default: 5)"
    )
    one.add_argument(
        "--only", type=int, nargs="+", choices=range(1, 7), metavar="CASE", help="only these cases, 1 to 6"
    )
    _add_backend(one)
    _add_html(one)

    one = _command(commands, "run", run, "run a program of your own: a function worker(rank, inputs)")
    one.add_argument("program", metavar="FILE:FUNCTION", help="such as train.py:worker; a module's name will do, too")
    one.add_argument(
        "--inputs", type=counts, default=(5, 6), metavar="5,6", help="how many inputs each rank gets (default: 5,6)"
    )
    _add_backend(one)
    one.add_argument("--save", type=Path, metavar="FILE", help="keep the recorded run, for `show` and joinlab.load")
    _add_html(one)
    one.add_argument("--seed", type=int, metavar="INT", help="seeds every rank (default: 0)")
    one.add_argument("--timeout", type=float, metavar="S", help="end the run after so many seconds")
    one.add_argument(
        "--no-progress", type=float, metavar="S", help="call it a suspected hang after so many seconds without an event"
    )

    one = _command(commands, "show", show, "print a saved run: which calls met, how each rank ended, and why")
    one.add_argument("file", metavar="FILE", help="written by `run --save` or Timeline.save")
    one.add_argument("--setup", action="store_true", help="with the calls of DDP's construction and bucket rebuild")
    _add_html(one)

    one = _command(commands, "handout", handout, "write the six cases, emulated, as one page with sliders")
    one.add_argument("file", type=Path, metavar="FILE", help="such as out/cases.html")

    _command(commands, "doctor", doctor, "say what works on this machine: versions, backends, GPUs")
    return top


def _command(commands: Any, name: str, function: Any, text: str) -> argparse.ArgumentParser:
    one: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    one.set_defaults(command=function)
    return one


def _add_backend(one: argparse.ArgumentParser) -> None:
    one.add_argument(
        "--backend", choices=("gloo", "nccl"), help="gloo runs on the CPU (default: nccl where the GPUs are there)"
    )


def _add_html(one: argparse.ArgumentParser) -> None:
    one.add_argument("--html", type=Path, metavar="FILE", help="write the swimlanes as one page that works offline")


if __name__ == "__main__":
    sys.exit(main())
