"""Reads the dumps and traces of a job's ranks, on as many cores as there are.

A job of 1,024 ranks leaves 400 MB of pickles, and one process uses one core to read them. So further
processes read a share of the files, and send back what dump.py makes of them: columns of numbers, and the
texts that these number. They import no more than this module does.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from itertools import chain
from pathlib import Path
from stat import S_ISREG

from joinlab.errors import TimelineFileError
from joinlab.interrupts import no_collection
from joinlab.jobs import dump, kineto

BYTES_EACH = 1 << 24
"""A process reads this much or more: that takes 0.3 s, and a process needs 0.1 s to begin."""

Outcome = dump.Dump | str
"""What became of a file: its dump, or a sentence that says why it was left out."""


def read_all(files: Sequence[Path], texts: dump.Texts, problems: list[str]) -> list[dump.Dump]:
    """The readable dumps, in the order of the files; `problems` names the others."""
    count = _processes(files)
    head = len(files) // (16 * count) if count > 1 else 0  # read here while the others begin
    shares = [files[head + first :: count] for first in range(count)]
    shares[0] = [*files[:head], *shares[0]]
    with ExitStack() as stack, no_collection():
        readers = [_begin(share, stack) for share in shares[1:]]
        outcomes = [_outcomes(shares[0], texts)]
        outcomes += map(_answer, readers, shares[1:], [texts] * len(readers))
    outcome_of = dict(zip(chain(*shares), chain(*outcomes), strict=True))
    dumps = []
    for file in files:
        outcome = outcome_of[file]
        if isinstance(outcome, str):
            problems.append(outcome)
        else:
            dumps.append(outcome)
    return dumps


def _processes(files: Sequence[Path]) -> int:
    """How many processes read these files, with this one: at most 8."""
    size = sum(file.stat().st_size for file in files if file.is_file())
    return max(1, min(size // BYTES_EACH, len(files), os.cpu_count() or 1, 8))


def _begin(files: Sequence[Path], stack: ExitStack) -> subprocess.Popen[bytes] | None:
    """A process that reads these files, until `stack` is closed; None if none can be started."""
    first = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r})"
    code = f"{first}; from {__name__} import main; main()"
    try:
        reader = subprocess.Popen(
            [sys.executable, "-P", "-c", code, *map(str, files)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        return None
    stack.enter_context(reader)
    stack.callback(reader.kill)
    return reader


def _answer(
    reader: subprocess.Popen[bytes] | None, files: Sequence[Path], texts: dump.Texts
) -> list[Outcome]:
    """What became of the files of a process, which are read here if it has ended without an answer."""
    if reader is not None and reader.stdout is not None:
        with suppress(EOFError, pickle.UnpicklingError):
            outcomes, texts_there = pickle.load(reader.stdout)
            return texts.renumbered(outcomes, texts_there)
    return _outcomes(files, texts)


def main() -> None:
    """In such a process: read the files that are named, and write what became of them to stdout."""
    files, texts = list(map(Path, sys.argv[1:])), dump.Texts()
    with no_collection():
        pickle.dump((_outcomes(files, texts), texts), sys.stdout.buffer, pickle.HIGHEST_PROTOCOL)


def _outcomes(files: Sequence[Path], texts: dump.Texts) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for file in files:
        try:
            outcomes.append(read(file, texts))
        except (TimelineFileError, OSError) as error:
            outcomes.append(sentence(file, error))
    return outcomes


def read(file: Path, texts: dump.Texts) -> dump.Dump:
    """The dump or trace in a file. Raises TimelineFileError, which names it, or OSError."""
    size = status_of(file).st_size
    if size > dump.MAX_BYTES:
        raise TimelineFileError(
            f"cannot open {str(file)!r}: it has {size:,} bytes, and a dump may have {dump.MAX_BYTES:,}. "
            "Set TORCH_FR_BUFFER_SIZE lower for the next run."
        )
    data, whole = file.read_bytes(), True
    if kineto.looks_zipped(data):
        data, whole = kineto.unzipped(file, data)
    if kineto.is_trace(data):
        return kineto.check(file, data, texts)
    if not whole:
        raise TimelineFileError(f"cannot open {str(file)!r}: it is cut short. Copy it again.")
    return dump.check(file, dump.parsed(file, data), texts)


def status_of(file: Path) -> os.stat_result:
    """The status of a regular file. A pipe or a device is refused, since reading it might never
    end."""
    status = file.stat()
    if not S_ISREG(status.st_mode):
        raise TimelineFileError(
            f"cannot open {str(file)!r}: it is not a regular file. Name a file or a folder."
        )
    return status


def sentence(file: Path, error: TimelineFileError | OSError) -> str:
    if isinstance(error, TimelineFileError):
        return str(error)
    return f"cannot open {str(file)!r}: it cannot be read ({error.strerror or error}). The others were read."
