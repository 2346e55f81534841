"""The command line: `python -m joinlab`, or `joinlab` where the package is installed.

EXIT_CODES lists the exit codes. To add a command, write a module here that ends in a COMMAND, and
list it in COMMANDS.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence

from joinlab._version import __version__
from joinlab.cli import cases, doctor, handout, record, run, show, watch
from joinlab.errors import JoinlabError, with_extra

COMMANDS = (
    cases.COMMAND,
    run.COMMAND,
    record.COMMAND,
    watch.COMMAND,
    show.COMMAND,
    handout.COMMAND,
    doctor.COMMAND,
)
"""In the order of `--help`."""

_COLUMN = 60
"""Where the explanation of an example begins."""

INTERRUPTED = 130
BROKEN_PIPE = 141

EXIT_CODES = """exit codes: 0 done, and for run every rank finished; 1 a rank did not finish, or nothing can be
launched here; 2 wrong usage, no such file, or no GPU; 3 (watch) nothing moves,
but no hang is proven; 130 interrupted
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. Errors are one line on stderr."""
    argv = sys.argv[1:] if argv is None else argv
    if not argv:
        parser().print_help()
        return 0
    options = parser().parse_args(argv)
    if options.command is not record.COMMAND:  # leave a script's streams as they are
        _make_writable()
    try:
        code = int(options.command.run(options))
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        if options.command is record.COMMAND:
            raise  # as without joinlab
        return _say("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # the reader, such as `head`, has gone; Python must not complain at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except ModuleNotFoundError as error:
        named = with_extra(f"python -m joinlab {options.command.name}", error)
        if named is error:
            raise
        return _say(str(named), 2)
    except JoinlabError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return _say(" ".join(lines if len(lines) < 3 else [lines[0], lines[-1]]), 2)
    except OSError as error:
        path = f"{error.filename}: " if error.filename else ""
        return _say(f"{path}{error.strerror or error}", 2)


def _make_writable() -> None:
    """Let stdout and stderr accept every character (as "?" under LC_ALL=C), and replace them if
    they are closed."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, io.StringIO())
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _say(text: str, code: int) -> int:
    from joinlab.analysis.wording import shown

    print(f"joinlab: {shown(text)}", file=sys.stderr)
    return code


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m joinlab",
        description="See what really happens when the ranks of a PyTorch DDP job get uneven inputs.",
        epilog=f"{examples()}\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"joinlab {__version__}")
    subparsers = top.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in COMMANDS:
        subparser = subparsers.add_parser(
            command.name,
            help=command.what,
            description=f"{command.what[0].upper()}{command.what[1:]}.",
        )
        subparser.set_defaults(command=command)
        command.options(subparser)
    return top


def examples() -> str:
    """The examples of all commands with their explanations, one per line."""
    lines = ["examples:"]
    for command in COMMANDS:
        for arguments, text in command.examples:
            line = f"  python -m joinlab {command.name} {arguments}".rstrip()
            lines.append(
                f"{line:<{_COLUMN}}{text}"
                if len(line) < _COLUMN - 1
                else f"{line}\n{'':{_COLUMN}}{text}"
            )
    return "\n".join(line.rstrip() for line in lines) + "\n"
