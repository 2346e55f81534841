"""`load`: open a file or a folder from any producer, recognized by name and first bytes.

READERS has one reader per kind of record. The first reader that recognizes files of a folder reads
it. A file that no reader recognizes is opened as a file of Timeline.save.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from joinlab.archive import MAX_BYTES
from joinlab.errors import TimelineFileError
from joinlab.jobs import dump, kineto, text, timeline_of_dumps
from joinlab.jobs.parallel import read, read_all, sentence, status_of
from joinlab.jobs.recording import has_record, is_recording, load_recording
from joinlab.recorder.bounded_log import parse_segment_name
from joinlab.timeline import Timeline
from joinlab.timeline import load as load_saved

MAX_FILES = 100_000
"""A folder with more files is refused, since it cannot be the folder of one job."""

_HEAD_BYTES = 512  # enough of a gzip file to unzip its first words
_JSON_BYTES = 1 << 16

TEXT = "text of ranks, NCCL or torchrun"


@dataclass(frozen=True, slots=True)
class RecordFormat:
    """One kind of record.

    what        its name in sentences
    looks_like  whether a file is one, by its path and first bytes
    read        the Timeline of such files, of one job or more; appends sentences about omitted files to the list
    """

    what: str
    looks_like: Callable[[Path, bytes], bool]
    read: Callable[[Sequence[Path], list[str]], Timeline]


def load(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> Timeline:
    """Open a saved Timeline, or read another tool's record as one.

    path       one of
               - a file of `Timeline.save`
               - a folder of `joinlab.record`, even while the job runs; if it has several jobs, the one that began last
                 is read, or name a file of another
               - a flight recorder dump or profiler's trace of PyTorch, or a folder with one per rank
               - text of ranks, NCCL or torchrun, also torchrun's --log-dir; beside records, it says where a rank stood
                 and how it ended (jobs/text has a reader per kind of line)
    max_bytes  largest size of a file of `Timeline.save`, and of its unpacked content

    `meta["problems"]` and warnings name the files of a folder that were left out. Raises
    TimelineFileError, which names the file and the fault.

        joinlab.load("run.joinlab")
        joinlab.load("runs/today")
        joinlab.load("dumps/")              # nccl_trace_rank_0, nccl_trace_rank_1, ...
        joinlab.load("train.log")           # what NCCL's watchdog, torchrun and the ranks wrote
    """
    source = Path(path)
    problems: list[str] = []
    try:
        if source.is_dir():
            return _warn_of_problems(_folder(source, problems))
        head = _head(source)
        if not head:
            raise TimelineFileError(
                f"cannot open {str(source)!r}: it is empty. Open it when its writer has written to it."
            )
        reader = _reader(source, head)
        if reader is not None and reader.what == TEXT and has_record(source.parent):
            return _warn_of_problems(text.beside(load_recording(source.parent), [source]))
        if reader is not None:
            return _warn_of_problems(reader.read([source], problems))
    except OSError as error:
        why = error.strerror or str(error)
        raise TimelineFileError(
            f"cannot open {str(source)!r}: it cannot be read ({why}). Check the path, and that you may read it."
        ) from error
    return load_saved(source, max_bytes)


def _folder(folder: Path, problems: list[str]) -> Timeline:
    """The Timeline of a folder, made by the first reader that recognizes files in it; `problems`
    names the others."""
    files = _files(folder.iterdir())
    if len(files) > MAX_FILES:
        raise TimelineFileError(
            f"cannot open {str(folder)!r}: it holds {len(files):,} files. Name the folder of one job."
        )
    if is_recording(folder):  # in the folder itself, or in its subfolders
        other_files = [
            path for path in files if os.path.isfile(path) and parse_segment_name(path.name) is None
        ]
        return text.beside(load_recording(folder), other_files)
    files_of: dict[str, list[Path]] = {}
    if not files:  # a folder for each host, or torchrun's --log-dir
        files = _files(folder.glob("*/*")) or _files(_last_attempt(folder).glob("*/*"))
    for file in files[:MAX_FILES]:
        try:
            head = _head(file)
        except (TimelineFileError, OSError) as error:
            problems.append(sentence(file, error))
            continue
        reader = _reader(file, head)
        if not head:
            problems.append(f"{str(file)!r} is empty")
        elif reader is None:
            problems.append(
                f"{str(file)!r} is neither {' nor '.join(candidate.what for candidate in READERS)}"
            )
        else:
            files_of.setdefault(reader.what, []).append(file)
    for reader in READERS:
        if reader.what in files_of:
            timeline = reader.read(files_of[reader.what], problems)
            if reader.what == TEXT:
                return timeline
            return text.beside(timeline, files_of.get(TEXT, ()))
    why = f" {problems[0].removesuffix('.')}." if problems else ""
    raise TimelineFileError(
        f"cannot open {str(folder)!r}: it holds no record of a job.{why} joinlab.load opens files of Timeline.save, "
        f"and one file or a folder of any of these: {'; '.join(candidate.what for candidate in READERS)}."
    )


def _last_attempt(folder: Path) -> Path:
    """The folder of the last attempt in torchrun's --log-dir, or in a job's folder of it."""
    attempts = [*folder.glob("attempt_*"), *folder.glob("*/attempt_*")]
    jobs = sorted({path.parent for path in attempts})
    if len(jobs) > 1:
        raise TimelineFileError(
            f"cannot open {str(folder)!r}: it holds logs of {len(jobs)} jobs. Name the folder of one, such as "
            f"{str(jobs[-1])!r}."
        )
    return max(attempts, key=lambda path: dump.rank_in(path.name) or 0, default=folder)


def _files(paths: Iterable[Path]) -> list[Path]:
    return [path for path in sorted(paths) if path.name[0] != "." and not os.path.isdir(path)]


def _reader(file: Path, head: bytes) -> RecordFormat | None:
    return next((reader for reader in READERS if reader.looks_like(file, head)), None)


def _head(file: Path) -> bytes:
    status_of(file)
    with file.open("rb") as opened:
        return opened.read(_HEAD_BYTES)


def _warn_of_problems(timeline: Timeline) -> Timeline:
    for problem in timeline.meta.get("problems", ()):
        warnings.warn(problem, UserWarning, stacklevel=3)
    return timeline


# ---- dumps and traces


def _is_record(file: Path, head: bytes) -> bool:
    """Whether a file is a dump or a trace, and no log whose lines are JSON."""
    head = kineto.unzipped_head(head)
    if head.lstrip()[:1] == b"{":  # a log's first record may be long
        with file.open("rb") as opened:
            head = kineto.unzipped_head(opened.read(_JSON_BYTES))
    is_log = text.DOCKER.match(head.decode(errors="replace")) or re.search(rb"\}\s*\n\s*\{", head)
    is_json = head.lstrip()[:1] == b"{" and not is_log and file.name != "error.json"  # torchrun's
    return dump.looks_like_dump(head) or kineto.looks_zipped(head) or is_json


def _records(files: Sequence[Path], problems: list[str]) -> Timeline:
    """The job of the longest series of files that can be read."""
    if len(files) == 1:
        texts = dump.Texts()
        return timeline_of_dumps.timeline_of([read(files[0], texts)], texts, problems)
    series = _series(files)
    texts = dump.Texts()
    dumps: list[dump.Dump] = []
    while series and not dumps:
        dumps = read_all(series.pop(0), texts, problems)
    for paths in series:
        problems.append(f"{dump.left_out(paths)}: part of another series")
    if not dumps:
        raise TimelineFileError(problems[0])
    return timeline_of_dumps.timeline_of(dumps, texts, problems)


def _series(files: Sequence[Path]) -> list[list[Path]]:
    """The files of each series: the longest first, pickles before JSON.

    Dumps are a series if their names differ only in the rank, or in the host and the rank. All
    traces are one series, since a trace contains its rank.
    """
    series: dict[tuple[str, str], list[Path]] = {}
    for path in files:
        head = kineto.unzipped_head(_head(path))
        dumped = dump.looks_like_dump(head) or (
            head.lstrip()[:1] == b"{" and b"schemaVersion" not in head
        )
        name = dump.around_rank(path.name.removesuffix(".gz"))
        series.setdefault(name if dumped else ("", "trace"), []).append(path)
    series = _of_all_hosts(series)
    order = sorted(
        series, key=lambda key: (len(series[key]), "json" not in key[1], key), reverse=True
    )
    return [series[key] for key in order]


def _of_all_hosts(series: dict[tuple[str, str], list[Path]]) -> dict[tuple[str, str], list[Path]]:
    """Series that end alike and share no rank are one: nccl_trace_rank_node1_0,
    nccl_trace_rank_node2_8."""
    joined: dict[tuple[str, str], list[Path]] = {}
    for (before, after), files in sorted(series.items()):
        ranks = {dump.rank_in(path.name) for path in files}
        for key, paths in joined.items():
            if key[1] == after and ranks.isdisjoint(dump.rank_in(path.name) for path in paths):
                paths += files
                break
        else:
            joined[before, after] = list(files)
    return joined


READERS: tuple[RecordFormat, ...] = (
    RecordFormat(
        "a record of joinlab.record",
        lambda file, head: parse_segment_name(file.name) is not None,
        lambda files, problems: load_recording(files[0].parent, files[0]),
    ),
    RecordFormat("a flight recorder dump or a profiler's trace", _is_record, _records),
    RecordFormat(TEXT, text.looks_like, text.read),
)
"""The first that recognizes a file of a folder reads the folder."""
