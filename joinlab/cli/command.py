"""The class of commands, and the options that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Command:
    """One command of the command line.

    name      its word on the command line
    what      what it does, for `--help`: lower case, no full stop
    options   adds its arguments to its parser
    run       does it and returns the exit code; errors are exceptions, which main() turns into one line
    examples  pairs of arguments and what they do; the tests parse each
    """

    name: str
    what: str
    options: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    examples: tuple[tuple[str, str], ...] = ()


def counts(text: str) -> tuple[int, ...]:
    """The inputs of each rank.

    >>> counts("5,6")
    (5, 6)
    """
    try:
        return tuple(map(int, text.split(",")))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not one number per rank, such as 5,6"
        ) from None


def whole(text: str) -> int:
    """A number of inputs, 0 or more."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of inputs")
    return int(text)


def add_backend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--backend",
        choices=("gloo", "nccl"),
        help="gloo runs on the CPU (default: nccl if there are enough GPUs)",
    )


def add_html(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--html",
        type=Path,
        metavar="FILE",
        help="write the swimlanes as one page that works offline",
    )
