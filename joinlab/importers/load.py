"""`load`: open a file or a folder, whatever recorded it, and find out from its first bytes what it is.

a file that Timeline.save wrote                           a zip with a header of ours
a folder that ranks were recorded into                    files named rank-<rank>.<number>.jsonl
flight recorder dumps, one per rank: a folder, or one     a pickle, or JSON with "entries"
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path

from joinlab.archive import MAX_BYTES
from joinlab.errors import TimelineFileError
from joinlab.importers import dump, job, kineto
from joinlab.importers.reading import Readers, read, status_of
from joinlab.importers.recording import is_recording, load_recording
from joinlab.recorder.bounded_log import parse_segment_name
from joinlab.timeline import Timeline
from joinlab.timeline import load as load_saved

MAX_FILES = 100_000
"""A folder with more files than this is refused: it is not the folder of one job's dumps."""

_HEAD_BYTES = 512  # of a gzip file: the table of its code and the first words


def load(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> Timeline:
    """Open a Timeline, or what others recorded as one.

    path       a file that `Timeline.save` wrote; a folder of `joinlab.record`, also while the job runs: of several
               jobs the one that began last, another by the name of one of its files; PyTorch's flight recorder dump
               or profiler's trace, or a folder with one per rank
    max_bytes  a file of `Timeline.save` is not opened if it, or what it unpacks to, is larger

    What a folder holds besides is named in `meta["problems"]` and in a warning; the rest is read. Raises
    TimelineFileError, which names the file and says what is wrong with it.

        joinlab.load("run.joinlab")
        joinlab.load("runs/today")
        joinlab.load("dumps/")              # nccl_trace_rank_0, nccl_trace_rank_1, ...
    """
    place = Path(path)
    try:
        if place.is_dir():
            return _told(_recording(place) if is_recording(place) else _folder(place))
        if parse_segment_name(place.name) is not None and place.is_file():
            return _told(load_recording(place.parent, place))
        if _is_record(_head(place)):
            texts = dump.Texts()
            return _told(job.timeline_of([read(place, texts)], texts))
    except OSError as error:
        why = error.strerror or str(error)
        raise TimelineFileError(
            f"cannot open {str(place)!r}: it cannot be read ({why}). Check the path, and that you may read it."
        ) from error
    return load_saved(place, max_bytes)


def _recording(folder: Path) -> Timeline:
    """The recorded job of a folder; files of other forms beside it are named."""
    timeline = load_recording(folder)
    visible = [one for one in sorted(folder.iterdir()) if os.path.isfile(one) and not one.name.startswith(".")]
    others = [one for one in visible if parse_segment_name(one.name) is None]
    if others:
        them = f"{len(others)} other files such as {str(others[0])!r} were" if others[1:] else f"{str(others[0])!r} was"
        timeline.meta["problems"].append(f"{them} left out: the folder holds a recorded job")
    return timeline


def _folder(folder: Path) -> Timeline:
    files = sorted(one for one in folder.iterdir() if not one.name.startswith(".") and not os.path.isdir(one))
    if len(files) > MAX_FILES:
        raise TimelineFileError(
            f"cannot open {str(folder)!r}: it holds {len(files):,} files. Name the folder of one job."
        )
    problems: list[str] = []
    candidates = [one for one in files if _may_be_dump(one, problems)]
    series = _series(candidates)
    texts = dump.Texts()
    dumps: list[dump.Dump] = []
    while series and not dumps:
        dumps = _read(series.pop(0), texts, problems)
    for those in series:
        several = f"{len(those)} files such as {str(those[0])!r} were left out: they are"
        one = f"{str(those[0])!r} was left out: it is"
        problems.append(f"{several if len(those) > 1 else one} of another series")
    if not dumps:
        why = f" {problems[0].removesuffix('.')}." if problems else ""
        raise TimelineFileError(
            f"cannot open {str(folder)!r}: it holds no flight recorder dump and no profiler's trace.{why} "
            "joinlab.load opens files of Timeline.save, and folders with one such file per rank."
        )
    return job.timeline_of(dumps, texts, problems)


def _read(files: Sequence[Path], texts: dump.Texts, problems: list[str]) -> list[dump.Dump]:
    """Those that can be read, in the order of the files; `problems` names the others."""
    found: dict[str, dump.Dump] = {}
    wrong: dict[str, str] = {}

    def take(file: Path) -> None:
        try:
            found[str(file)] = read(file, texts)
        except (TimelineFileError, OSError) as error:
            wrong[str(file)] = _sentence(file, error)

    with dump.no_collection(), Readers(files) as readers:
        for one in readers.own():
            take(one)
        found |= {one.file: one for one in readers.results(texts)}
        for one in files:
            if str(one) not in found and str(one) not in wrong:
                take(one)
    names = list(map(str, files))
    problems += [wrong[name] for name in names if name in wrong]
    return [found[name] for name in names if name in found]


def _may_be_dump(file: Path, problems: list[str]) -> bool:
    try:
        head = _head(file)
    except (TimelineFileError, OSError) as error:
        problems.append(_sentence(file, error))
        return False
    if not _is_record(head):
        problems.append(f"{str(file)!r} is neither a flight recorder dump nor a profiler's trace")
    return _is_record(head)


def _sentence(file: Path, error: TimelineFileError | OSError) -> str:
    if isinstance(error, TimelineFileError):
        return str(error)
    return f"cannot open {str(file)!r}: it cannot be read ({error.strerror or error}). The others were read."


def _is_record(head: bytes) -> bool:
    return dump.looks_like_dump(head) or kineto.looks_zipped(head) or head.lstrip()[:1] == b"{"


def _series(files: Sequence[Path]) -> list[list[Path]]:
    """The files of each kind: the longest series first, pickles before JSON.

    Dumps are a series if their names differ in the rank alone. A trace says itself of which rank it is.
    """
    series: dict[tuple[str, str], list[Path]] = {}
    for one in files:
        head = kineto.unzipped_head(_head(one))
        dumped = dump.looks_like_dump(head) or (head.lstrip()[:1] == b"{" and b"schemaVersion" not in head)
        name = dump.around_rank(one.name.removesuffix(".gz"))
        series.setdefault(name if dumped else ("", "trace"), []).append(one)
    order = sorted(series, key=lambda key: (len(series[key]), "json" not in key[1], key), reverse=True)
    return [series[key] for key in order]


def _head(file: Path) -> bytes:
    status_of(file)
    with file.open("rb") as opened:
        return opened.read(_HEAD_BYTES)


def _told(timeline: Timeline) -> Timeline:
    for problem in timeline.meta.get("problems", ()):
        warnings.warn(problem, UserWarning, stacklevel=3)
    return timeline
