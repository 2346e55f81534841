"""Makes a Timeline of a folder of recorded ranks, even while the job runs, or if ranks are missing or
lines are truncated. This module chooses the files of one job, and reads what is new in them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from operator import itemgetter
from pathlib import Path

from joinlab.backend.calls import is_peer_gone
from joinlab.errors import TimelineFileError
from joinlab.jobs.cut import ReadUntil, find_cut, has_only_ended, place_at_interrupt
from joinlab.jobs.dump import left_out
from joinlab.jobs.rank_process import is_alive, process_status, wall_of, wall_offset
from joinlab.jobs.timeline_of_logs import GONE, timeline_of_logs
from joinlab.program.log_events import MOST_RANKS, NOT_BEGUN, ProgramRaised, RankBegins
from joinlab.recorder.bounded_log import parse_segment_name
from joinlab.recorder.events import LogTail
from joinlab.recorder.rank_log import RankLog
from joinlab.showing import site_text
from joinlab.story.forms.fates import raised_at
from joinlab.timeline import Timeline

MOST_FILE_BYTES = 4 << 30
"""A larger file is not read; a bounded log has a thousandth of this."""

FIRST_BYTES = 1 << 20
"""Most bytes of a record's first event, which has the command."""


def is_recording(folder: Path) -> bool:
    """True if the folder or one of its subfolders has a rank's record."""
    return next(_segments(folder), None) is not None


def has_record(folder: Path) -> bool:
    """True if the folder itself has a rank's record."""
    return any(map(parse_segment_name, os.listdir(folder)))


class RecordedFolder:
    """Reads the records of one folder, and the events added to them while the job runs."""

    def __init__(self, folder: str | os.PathLike[str], of: Path | None = None) -> None:
        """If the folder has several jobs, reads the one that wrote the file `of`, or else the one
        that began last."""
        self.folder = Path(folder)
        self.of = of
        # by the folder and name that all segments of one rank share
        self.ranks: dict[Path, RankFiles] = {}
        self.job: dict[int, RankLog] = {}
        """By rank, the logs of the last `timeline`."""

    def refresh(self) -> bool:
        """Read the job's events written since the last time; True if a rank has moved."""
        for path, rank, number in sorted(
            _segments(self.folder), key=lambda segment: (segment[1], segment[2])
        ):
            files = self.ranks.setdefault(path.parent / f"rank-{rank}", RankFiles(rank))
            files.add(path, number)
        if not self.ranks:
            raise TimelineFileError(
                f"cannot open {str(self.folder)!r}: it has no record of a rank. `python -m joinlab record` and "
                "joinlab.record(folder) write rank-<rank>.<number>.jsonl."
            )
        wanted = self.begun()
        job = [
            files
            for files in self.ranks.values()
            if files.begun is NOT_BEGUN or _same_job(files.begun, wanted)
        ]
        # All files first: while one is taken apart, its rank goes on.
        read_ns = time.time_ns()
        for files in job:
            files.log.read_ns, files.log.process = read_ns, process_status(files.begun)
            files.fetch()
        news = False
        for files in job:
            news |= files.read()
        return news

    def begun(self) -> RankBegins:
        """The job's identity: the first event of the rank that began last."""
        candidates = [
            files for files in self.ranks.values() if self.of in files.paths.values()
        ] or self.ranks.values()
        return max((files.begun for files in candidates), key=wall_of)

    def progress(self, rank: int) -> tuple[int, str]:
        """The number of calls that the rank has issued, and the label of the last."""
        calls = self.job[rank].calls if rank in self.job else {}
        if not calls:
            return 0, "none"
        last = max(calls)
        return last + 1, str(calls[last]["origin"])

    def timeline(self) -> Timeline:
        """The Timeline of the events read so far; of a job that was interrupted, or whose record
        broke off, of those until then."""
        problems: list[str] = []
        files = _of_one_job(self, problems)
        self.job = {rank: files[rank].log for rank in sorted(files)}
        cut = find_cut(self.job)
        if cut is None:
            timeline = self._ended(files, problems) or timeline_of_logs(self.job, problems)
        else:
            before = {rank: files[rank].until(cut) for rank in self.job}
            silent = place_at_interrupt(before, self.job)
            timeline = timeline_of_logs(before, problems, cut)
            for rank, site in silent.items():
                timeline.meta["processes"][rank]["silent"] = site
        asides = [*_errors_before(self), *_errors_of_threads(self.job if cut is None else before)]
        if asides:
            timeline.meta["asides"] = asides
        if cut is None:
            return timeline
        later = sum(len(self.job[rank].calls) - len(log.calls) for rank, log in before.items())
        if later > 0:
            problems.append(f"{later} later calls were left out: {cut.why}")
        return timeline

    def _ended(self, files: dict[int, RankFiles], problems: list[str]) -> Timeline | None:
        """Of a job that hung until its processes were ended one after the other: the hang.

        Then the calls of the others fail. When the first one fails, every rank waits or has
        returned, and the rule proves that none of the waits ends. None of any other job.
        """
        logs = self.job.values()
        failures = [log.left_ns + wall_offset(log) for log in logs if log.left_ns is not None]
        if not failures:
            return None
        all_gone = all(log.returned or log.raised or is_alive(log) is False for log in logs)
        cut = ReadUntil(min(failures), GONE if all_gone else "")
        before = {rank: files[rank].until(cut) for rank in self.job}
        if not all(map(has_only_ended, self.job.values(), before.values())):
            return None
        timeline = timeline_of_logs(before, list(problems), cut)
        return timeline if any(end.proven for end in timeline.ends) else None


class RankFiles:
    """The segments of one rank's log."""

    def __init__(self, rank: int) -> None:
        self.log = RankLog(rank)
        self.problems: list[str] = []
        self.path = Path()  # of the newest segment
        self.paths: dict[int, Path] = {}  # segments to read, by number
        self._tails: dict[int, LogTail] = {}
        self._fetched: list[tuple[int, bytes]] = []  # of each segment, what `read` takes next
        self._begun = NOT_BEGUN

    @property
    def begun(self) -> RankBegins:
        """The first event, which identifies the job; NOT_BEGUN if there is none yet."""
        if self._begun is NOT_BEGUN and self.paths:
            first = RankLog(self.log.rank)
            with suppress(OSError), self.paths[max(self.paths)].open("rb") as opened:
                first.feed(opened.readline(FIRST_BYTES))
            self._begun = first.begin
        if self._begun is NOT_BEGUN:
            return self.log.begin
        return self._begun

    @cached_property
    def raised(self) -> ProgramRaised | None:
        """What ended the rank, by the last bytes of its newest segment; its process is gone."""
        log = RankLog(self.log.rank)
        with suppress(OSError), self.path.open("rb") as opened:
            opened.seek(max(0, self.path.stat().st_size - FIRST_BYTES))
            log.feed(opened.read())
        return log.raised

    def add(self, path: Path, number: int) -> None:
        if path == self.paths.get(number):
            return
        self.path = path
        status = path.lstat()
        if not path.is_file() or status.st_size > MOST_FILE_BYTES:
            problem = f"{str(path)!r} was left out: not a regular file of at most {MOST_FILE_BYTES:,} bytes"
            self.problems += [problem] if problem not in self.problems else []
            return
        self.paths[number] = path
        self._tails[number] = LogTail(path)

    def fetch(self) -> None:
        """Get the bytes appended since the last time."""
        for number in sorted(self._tails):
            tail = self._tails[number]
            self._fetched.append((number, tail.read()))
            tail.close()  # a job of 1,100 ranks has more files than a process may have open

    def read(self) -> bool:
        """Take the events fetched, segment by segment; True if the rank has moved since the last
        time."""
        moves = self.log.moves
        for number, data in self._fetched:
            # the previous segment ended within a line
            if data and self.log.cut and number != max(self._tails):
                data = b"\n" + data
            self.log.feed(data)
        self._fetched.clear()
        return self.log.moves > moves

    def until(self, cut: ReadUntil) -> RankLog:
        """The rank's log as it was at a cut."""
        until_ns = cut.time_ns - wall_offset(self.log)
        log = RankLog(self.log.rank, read_ns=cut.time_ns, until_ns=until_ns)
        for number in sorted(self.paths):
            log.feed(self.paths[number].read_bytes())
        log.take_held()
        return log


def load_recording(folder: str | os.PathLike[str], of: Path | None = None) -> Timeline:
    """The Timeline of the records in `folder` so far. Raises TimelineFileError if there are none.

    `of` selects a job as in RecordedFolder. meta["problems"] names ranks without a record,
    truncated lines and files of other jobs.
    """
    above = Path(folder).parent
    if of and Path(folder).name.startswith("job-") and has_record(above):
        folder = above  # where two jobs begin together, each has ranks in both folders
    recorded = RecordedFolder(folder, of)
    recorded.refresh()
    return recorded.timeline()


def _segments(folder: Path, deep: int = 0) -> Iterator[tuple[Path, int, int]]:
    """Path, rank and number of every segment in the folder, its subfolders (of hosts, say), and
    their job-2, ..."""
    with os.scandir(folder) as entries:
        sorted_entries = sorted(entries, key=lambda entry: entry.name)
    for entry in sorted_entries:
        parsed = parse_segment_name(entry.name)
        if parsed is not None and parsed[0] < MOST_RANKS:
            yield (Path(entry.path), *parsed)
    for entry in sorted_entries:
        # entry.is_dir() raises on a link to itself
        if (deep == 0 or (deep == 1 and entry.name.startswith("job-"))) and os.path.isdir(
            entry.path
        ):
            with suppress(PermissionError, FileNotFoundError):
                yield from _segments(Path(entry.path), deep + 1)


def _of_one_job(recorded: RecordedFolder, problems: list[str]) -> dict[int, RankFiles]:
    """The files of one job, by rank."""
    chosen: dict[int, RankFiles] = {}
    wanted = recorded.begun()
    foreign: list[RankFiles] = []
    attempts: list[RankFiles] = []
    second: list[RankFiles] = []
    copies: list[RankFiles] = []

    def distance(files: RankFiles, begin: int = wall_of(wanted)) -> int:
        """How far its beginning is from `begin`."""
        return abs(wall_of(files.begun) - begin)

    longest_first = sorted(recorded.ranks.values(), key=lambda files: -files.log.moves)
    for files in sorted(longest_first, key=distance):
        log = files.log
        if files.begun is NOT_BEGUN:
            late = "" if log.damaged or log.calls else " yet"
            problems.append(f"{str(files.path)!r} was left out: it has no beginning{late}")
        elif _is_attempt(files.begun, wanted):
            attempts.append(files)
        elif not _same_job(files.begun, wanted):
            foreign.append(files)
        elif log.rank in chosen and files.begun == chosen[log.rank].begun:
            copies.append(files)
        elif log.rank in chosen:
            second.append(files)
        else:
            chosen[log.rank] = files
    # Not every launcher names its jobs: a record that began nearer to a rank's second record is of
    # that job.
    earlier = {wall_of(files.begun) for files in second}
    stale = [
        files
        for files in chosen.values()
        if any(distance(files, begin) < distance(files) for begin in earlier)
    ]
    for files in stale:
        del chosen[files.log.rank]
    if len(second) == 1 and not stale:
        problems.append(
            f"'{second[0].path}' was left out: it is a second record of rank {second[0].log.rank}"
        )
    else:
        foreign += second + stale
    if foreign:
        them = left_out([files.path for files in foreign])
        problems.append(f"{them}: part of another job. Load that file to read its job")
    if copies:
        problems.append(f"{left_out([files.path for files in copies])}: part of a copy")
    if attempts:
        them = left_out([files.path for files in attempts])
        problems.append(f"{them}: part of another attempt of this job. Load that file to read it")
    for files in chosen.values():
        log = files.log
        if log.damaged:
            problems.append(f"{str(files.path)!r}: {log.damaged} damaged lines were left out")
        if log.cut:
            problems.append(f"{str(files.path)!r} ends within a line")
        if log.lost is not None:
            problems.append(f"the record of rank {log.rank} ends early: {log.lost}")
        problems += files.problems
    if not chosen:
        if any(
            files.log.damaged or files.log.calls or files.problems
            for files in recorded.ranks.values()
        ):
            raise TimelineFileError(f"cannot open {str(recorded.folder)!r}: {problems[0]}")
        # the job has just started
        chosen = {files.log.rank: files for files in recorded.ranks.values()}
    return chosen


def _errors_before(recorded: RecordedFolder) -> Iterator[str]:
    """What ended the attempts of a job after which torchrun started it again: the first error of each
    that did not follow from another rank's end."""
    wanted = recorded.begun()
    newest: dict[tuple[int, int], RankFiles] = {}  # another job may have had the same names
    for files in sorted(recorded.ranks.values(), key=lambda files: wall_of(files.begun)):
        if _is_attempt(files.begun, wanted) and wall_of(files.begun) < wall_of(wanted):
            newest[_attempt(files.begun), files.log.rank] = files
    errors: dict[int, list[tuple[int, int, ProgramRaised]]] = {}
    for (attempt, rank), files in newest.items():
        raised = files.raised
        if raised is not None and not is_peer_gone(raised.text):
            time_ns = wall_of(files.begun) + (raised.time_ns or 0) - files.begun.time_ns
            errors.setdefault(attempt, []).append((time_ns, rank, raised))
    for attempt in sorted(errors, reverse=True):
        _, rank, raised = min(errors[attempt], key=itemgetter(0))
        site = next(iter(raised_at(raised.traceback or "")), None)
        error = raised.text.partition("\n")[0]
        raising = f"rank {rank} raised {error}{site_text(site)}"
        yield f"In attempt {attempt + 1} of this job, which torchrun then started again, {raising}."


def _errors_of_threads(logs: dict[int, RankLog]) -> Iterator[str]:
    """What ended threads of programs that went on without them."""
    for rank, log in logs.items():
        for error in log.thread_errors:
            text = error.text.partition("\n")[0]
            yield f"Rank {rank}'s thread {error.name} raised {text}{site_text(error.site)}."


def _attempt(begun: RankBegins) -> int:
    """How often torchrun had started the job again before."""
    count = (begun.job or [None])[-1]
    return int(count) if count and count.isdecimal() else 0


def _is_attempt(first: RankBegins, second: RankBegins) -> bool:
    """Whether two ranks are of one job of torchrun, but not of one attempt."""
    if not (first.job and second.job and first.job[0]) or first.job[-1] == second.job[-1]:
        return False
    return (first.job[:-1], first.world_size) == (second.job[:-1], second.world_size)


def _same_job(first: RankBegins, second: RankBegins) -> bool:
    return (first.job, first.world_size) == (second.job, second.world_size)
