"""A folder of recorded ranks as a Timeline, even while the job runs, if ranks are missing or lines
are truncated."""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cached_property, partial
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from joinlab.analysis.matching import key_of
from joinlab.analysis.wording import ranks_text
from joinlab.backend.calls import is_peer_gone, setting_of
from joinlab.errors import TimelineFileError
from joinlab.jobs.clocks import Offset, offsets
from joinlab.jobs.dump import left_out
from joinlab.ops import NEEDS_ALL, POINT_TO_POINT, CallRow, SpanRow, Stood
from joinlab.program.log_events import MOST_RANKS, NOT_BEGUN, ProgramRaised, RankBegins
from joinlab.proof import BlockedThread, Proof, prove
from joinlab.recorder.bounded_log import parse_segment_name
from joinlab.recorder.events import LogTail
from joinlab.recorder.rank_log import RankLog, about_calls, about_ranks, groups_of
from joinlab.recorder.recorded_traces import keep_traces
from joinlab.showing import site_text
from joinlab.story.forms.fates import frames_of, raised_at
from joinlab.timeline import (
    INTERRUPTED,
    LOST,
    NO_END,
    NOTHING_RECORDED,
    RUNNING,
    Clock,
    Ending,
    EndKind,
    Meta,
    Process,
    Timeline,
    timeline_from_rows,
)

MOST_FILE_BYTES = 4 << 30
"""A larger file is not read; a bounded log has a thousandth of this."""

FIRST_BYTES = 1 << 20
"""Most bytes of a record's first event, which has the command."""

MOST_CALLS = 2000
"""Of a bounded log that has dropped segments, this many last calls per group and rank are read."""

NO_BEGINNING = "its record has no beginning yet"
NO_WORD = "its record has no end: it may still be running on its host"
GONE = "its process has been ended since"
MOVING_NS = 1_000_000_000
"""A job moves if each of its ranks has done something so short a time ago."""

LONG_AFTER_NS = 1_000_000_000
"""An interrupt may reach a rank this long before another has ended by it."""


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
        self.ranks: dict[
            Path, RankFiles
        ] = {}  # by the folder and name that all segments of one rank share
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
            files.log.read_ns, files.log.process = read_ns, _status(files.begun)
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
        return max((files.begun for files in candidates), key=_wall)

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
        cut = _cut(self.job)
        if cut is None:
            timeline = self._ended(files, problems) or _timeline(self.job, problems)
        else:
            before = {rank: files[rank].until(cut) for rank in self.job}
            silent = _take_places(before, self.job)
            timeline = _timeline(before, problems, cut)
            for rank, site in silent.items():
                timeline.meta["processes"][rank]["silent"] = site
        asides = [*_errors_before(self)]
        if asides:
            timeline.meta["asides"] = asides
        if cut is None:
            return timeline
        later = sum(len(log.calls) for log in self.job.values()) - timeline.calls.height
        if later > 0:
            problems.append(f"{later} later calls were left out: {cut.why}")
        return timeline

    def _ended(self, files: dict[int, RankFiles], problems: list[str]) -> Timeline | None:
        """Of a job that hung until its processes were ended one after the other: the hang.

        Then the calls of the others fail. When the first one fails, every rank waits or has
        returned, and the rule proves that none of the waits ends. None of any other job.
        """
        logs = self.job.values()
        failures = [log.left_ns + _behind(log) for log in logs if log.left_ns is not None]
        if not failures:
            return None
        all_gone = all(log.returned or log.raised or _lives(log) is False for log in logs)
        cut = ReadUntil(min(failures), GONE if all_gone else "")
        before = {rank: files[rank].until(cut) for rank in self.job}
        if not all(map(_has_only_ended, self.job.values(), before.values())):
            return None
        timeline = _timeline(before, list(problems), cut)
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
        log = RankLog(self.log.rank, until_ns=cut.time_ns - _behind(self.log))
        for number in sorted(self.paths):
            log.feed(self.paths[number].read_bytes())
        log.take_held()
        return log


def _take_places(before: dict[int, RankLog], logs: dict[int, RankLog]) -> dict[int, str]:
    """Let ranks that wrote no stacks before a cut stand where KeyboardInterrupt came. Gives back that
    line of those that should have written some, since a rank of their host has that stood for no
    longer: they may not have run."""
    silent: dict[int, str] = {}
    wrote: dict[str | None, int] = {}
    for log in before.values():
        if log.stood:
            newest = max(wrote.get(log.begin.host, 0), log.last_ns + _behind(log))
            wrote[log.begin.host] = newest
    for rank, log in before.items():
        if log.stood or logs[rank].raised is None:
            continue
        traceback = _interrupted_at(logs[rank]) or _traceback(logs[rank])
        if log.last_ns + _behind(log) <= wrote.get(log.begin.host, 0):
            silent[rank] = next(iter(raised_at(traceback)), "")
        elif frames := frames_of(traceback):
            log.stood = [Stood(thread="MainThread", frames=list(map(str, frames)))]
    return silent


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


# ---------------------------------------------------------------- the Timeline


def _behind(log: RankLog) -> int:
    """The wall clock at time 0 of a rank's own."""
    return _wall(log.begin) - log.begin.time_ns


class ReadUntil(NamedTuple):
    """Where a job is read up to: what its ranks did afterwards only follows from it.

    time_ns  on the wall clock
    why      the ending of the ranks that had not ended before
    """

    time_ns: int
    why: str


def _cut(logs: dict[int, RankLog]) -> ReadUntil | None:
    """The first Ctrl-C, or the first record that broke off; None if a rank had failed before, or
    without either."""
    cuts, failed = list[ReadUntil](), list[int]()
    done = _done_by_all(logs)
    for log in logs.values():
        last = log.last_ns + _behind(log)
        if log.lost is not None:
            cuts.append(ReadUntil(last, LOST))
        elif _is_short(log, done):
            cuts.append(ReadUntil(last + 1, LOST))
        elif log.raised is None:
            continue
        elif _interrupted_at(log) is not None:
            cuts.append(ReadUntil(last - LONG_AFTER_NS, INTERRUPTED))
        else:
            failed.append(last)
    first = min(cuts, default=None)
    if first is None or min(failed, default=first.time_ns) < first.time_ns:
        return None
    return first


def _done_by_all(logs: dict[int, RankLog]) -> dict[str, int]:
    """By group, the number of its last collective that needs every rank and that some rank completed
    a while ago: every rank of the group has issued it."""
    done: dict[str, int] = {}
    for log in logs.values():
        until = _recent(log)
        for call in log.calls.values():
            over = (call.get("completed_ns") or until) < until
            if over and call["op"] in NEEDS_ALL:
                done[call["group"]] = max(done.get(call["group"], 0), call.get("number") or 0)
    return done


def _is_short(log: RankLog, done: dict[str, int]) -> bool:
    """Whether a rank did more than its record has, as in a copy that broke off: `done`, what every
    rank has issued, is not in it."""
    if log.returned or log.raised or _lives(log):
        return False
    last = dict(log.issued)
    for call in log.calls.values():
        if call["op"] not in POINT_TO_POINT:
            last[call["group"]] = max(last.get(call["group"], 0), call.get("number") or 0)
    return any(done.get(group, 0) > number for group, number in last.items())


def _has_only_ended(log: RankLog, before: RankLog) -> bool:
    """Whether a rank that waited, or had returned, did no more than end since `before`."""
    further = [call for id, call in log.calls.items() if id not in before.calls]
    return bool(
        (before.returned or before.standing())
        and (log.returned or log.raised or not _lives(log))
        and all(call.get("completed_ns") is None for call in further)
    )


def _timeline(
    logs: dict[int, RankLog], problems: list[str], cut: ReadUntil | None = None
) -> Timeline:
    first = next(iter(logs.values()))
    groups = groups_of(logs.values())
    world = max(log.begin.world_size or 0 for log in logs.values())
    size = max(world, 1 + max(chain(logs, *groups.values())))
    groups = groups or {"0": list(range(size))}
    backend = next(
        (group.backend for log in logs.values() for group in log.groups.values()), "unknown"
    )
    facts_of_ranks = about_ranks(logs.values(), backend)
    of_calls = about_calls(logs.values())  # before rows are copied, since it may reset their steps
    missing = sorted(set(range(size)) - set(logs))
    if missing:
        problems.append(f"there is no record of {ranks_text(missing)}: what they did is unknown")
    calls, skipped = _kept_calls(logs, problems)
    # While a job moves, its files were read at different moments. Unless a hang is proven all the same,
    # only what every rank had reached is shown.
    moves = cut is None and all(map(_moves, logs.values()))
    settled = _settled(calls, logs, groups) if moves else calls
    host_of = {rank: log.begin.host or "?" for rank, log in logs.items()}
    shifts = _clock_offsets(logs, calls, host_of, groups, problems)
    origin = min(
        (
            log.begin.time_ns + shifts[host_of[rank]].offset_ns
            for rank, log in logs.items()
            if log.begin is not NOT_BEGUN
        ),
        default=0,
    )
    spans = [SpanRow(**span) for rank in sorted(logs) for span in logs[rank].spans.values()]
    rows: list[CallRow | SpanRow] = [*calls, *spans]
    for call in calls:
        for name in ("peer", "root"):  # damaged lines may have other values
            if call.get(name) not in range(size):
                call[name] = None
    for row in rows:
        _move_times(row, shifts[host_of[row["rank"]]].offset_ns - origin)
    transport = "sockets" if backend == "gloo" else None
    if any(skips for by_rank in skipped.values() for skips in by_rank.values()):
        problems.append(
            "only the last calls of each group and rank are kept; older ones are counted (--everything keeps all)"
        )
    clock: Clock = {
        "domain": "monotonic",
        "origin_ns": origin,
        "hosts": {host: shift.offset_ns for host, shift in shifts.items()},
        "bounds_ns": {host: shift.bound_ns for host, shift in shifts.items()},
    }
    command = first.begin.command or []
    meta: Meta = {
        "program": os.path.basename(command[0]) if command else "a recorded job",
        "engine": "recorded",
        "backend": backend,
        "transport": transport,
        "world_size": size,
        "groups": groups,
        "clock": clock,
        "processes": {
            rank: Process(
                host=host_of[rank],
                pid=log.begin.pid,
                gpu=log.gpu,
                command=list(log.begin.command or ()),
                stopped=cut is None and log.process == psutil.STATUS_STOPPED,
            )
            for rank, log in logs.items()
        },
        "skipped": skipped,
        "missing_ranks": missing,
        "problems": problems,
    }
    for group, ranks in groups.items():
        for rank in set(missing).intersection(ranks):
            skipped.setdefault(group, {})[rank] = NOTHING_RECORDED
    meta.update({**facts_of_ranks, **of_calls})  # type: ignore[typeddict-item]
    if any(log.trace for log in logs.values()):
        meta["ways"] = True
    if cut is not None:
        moved = max((log.last_ns + _behind(log) for log in logs.values()), default=0)
        meta["cut"] = {"why": cut.why, "still_ns": max(0, cut.time_ns - moved)}
    prover = partial(prove, calls, groups, backend, setting=setting_of(meta))
    ends = _ends(logs, size, calls, prover, cut)
    if moves and not any(end.proven for end in ends):
        calls = settled
        ends = _ends(logs, size, calls, prover, cut)
    printed = [_traceback(logs[rank]) if rank in logs else "" for rank in range(size)]
    timeline = timeline_from_rows(
        calls=calls, ends=ends, meta=meta, spans=spans, output=printed if any(printed) else ()
    )
    issued = Counter(
        row["rank"] for row in calls
    )  # a trace counts calls, so it is useless once some were dropped
    return keep_traces(
        timeline, {rank: log.trace for rank, log in logs.items() if issued[rank] == len(log.calls)}
    )


def _of_one_job(recorded: RecordedFolder, problems: list[str]) -> dict[int, RankFiles]:
    """The files of one job, by rank."""
    chosen: dict[int, RankFiles] = {}
    wanted = recorded.begun()
    foreign: list[RankFiles] = []
    attempts: list[RankFiles] = []
    second: list[RankFiles] = []

    def distance(files: RankFiles, begin: int = _wall(wanted)) -> int:
        """How far its beginning is from `begin`."""
        return abs(_wall(files.begun) - begin)

    for files in sorted(recorded.ranks.values(), key=distance):
        log = files.log
        if files.begun is NOT_BEGUN:
            late = "" if log.damaged or log.calls else " yet"
            problems.append(f"{str(files.path)!r} was left out: it has no beginning{late}")
        elif _is_attempt(files.begun, wanted):
            attempts.append(files)
        elif not _same_job(files.begun, wanted):
            foreign.append(files)
        elif log.rank in chosen:
            second.append(files)
        else:
            chosen[log.rank] = files
    # Not every launcher names its jobs: a record that began nearer to a rank's second record is of
    # that job.
    earlier = {_wall(files.begun) for files in second}
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
        chosen = {
            files.log.rank: files for files in recorded.ranks.values()
        }  # the job has just started
    return chosen


def _errors_before(recorded: RecordedFolder) -> Iterator[str]:
    """What ended the attempts of a job after which torchrun started it again: the first error of each
    that did not follow from another rank's end."""
    wanted = recorded.begun()
    newest: dict[tuple[int, int], RankFiles] = {}  # another job may have had the same names
    for files in sorted(recorded.ranks.values(), key=lambda files: _wall(files.begun)):
        if _is_attempt(files.begun, wanted) and _wall(files.begun) < _wall(wanted):
            newest[_attempt(files.begun), files.log.rank] = files
    errors: dict[int, list[tuple[int, int, ProgramRaised]]] = {}
    for (attempt, rank), files in newest.items():
        raised = files.raised
        if raised is not None and not is_peer_gone(raised.text):
            time_ns = _wall(files.begun) + (raised.time_ns or 0) - files.begun.time_ns
            errors.setdefault(attempt, []).append((time_ns, rank, raised))
    for attempt in sorted(errors, reverse=True):
        _, rank, raised = min(errors[attempt], key=itemgetter(0))
        site = next(iter(raised_at(raised.traceback or "")), None)
        error = raised.text.partition("\n")[0]
        raising = f"rank {rank} raised {error}{site_text(site)}"
        yield f"In attempt {attempt + 1} of this job, which torchrun then started again, {raising}."


def _attempt(begun: RankBegins) -> int:
    """How often torchrun had started the job again before."""
    count = (begun.job or [None])[-1]
    return int(count) if count and count.isdecimal() else 0


def _is_attempt(first: RankBegins, second: RankBegins) -> bool:
    """Whether two ranks are of one job of torchrun, but not of one attempt."""
    if not (first.job and second.job and first.job[0]) or first.job[-1] == second.job[-1]:
        return False
    return (first.job[:-1], first.world_size) == (second.job[:-1], second.world_size)


def _traceback(log: RankLog) -> str:
    return "" if log.raised is None else log.raised.traceback or ""


def _interrupted_at(log: RankLog) -> str | None:
    """The traceback of the KeyboardInterrupt that ended a rank, also if the program answered it by
    sys.exit; None if none did."""
    error = log.raised.text if log.raised else ""
    before, interrupted, _ = _traceback(log).partition("\nKeyboardInterrupt\n")
    if error.startswith("KeyboardInterrupt") or (interrupted and error.startswith("SystemExit")):
        return before
    return None


def _same_job(first: RankBegins, second: RankBegins) -> bool:
    return (first.job, first.world_size) == (second.job, second.world_size)


def _wall(begun: RankBegins) -> int:
    return begun.wall_ns or 0


def _kept_calls(
    logs: dict[int, RankLog], problems: list[str]
) -> tuple[list[CallRow], dict[str, dict[int, int]]]:
    """The last calls of each group and rank, and the number of collectives before them."""
    calls: list[CallRow] = []
    skipped: dict[str, dict[int, int]] = {}
    for rank, log in logs.items():
        by_group: dict[str, list[int]] = {}
        for id in sorted(log.calls):
            by_group.setdefault(log.calls[id]["group"], []).append(id)
        before = {group: number for group, number in log.issued.items() if group in log.groups}
        for group, ids in by_group.items():
            if log.issued:  # a preamble repeats open calls, but not later ones that had ended
                del ids[:-MOST_CALLS]
                seqs = [log.calls[id]["seq"] for id in ids]
                del ids[
                    : max(
                        (
                            index
                            for index in range(1, len(ids))
                            if seqs[index] > seqs[index - 1] + 1
                        ),
                        default=0,
                    )
                ]
            before[group] = log.before.get(ids[0], 0)
        for group, lost in before.items():
            if lost:
                skipped.setdefault(group, {})[rank] = lost
        repeated = 0
        numbers_seen: set[tuple[str, bool | None, int | None]] = set()
        for id in sorted(chain.from_iterable(by_group.values())):
            call = CallRow(**log.calls[id])  # a copy, since its times will be shifted
            pair, number = call["op"] in POINT_TO_POINT, call.get("number")
            names = {
                (call["group"], None, call["seq"]),
                *([(call["group"], pair, number)] if number else ()),
            }
            if names & numbers_seen:
                repeated += 1
            else:
                calls.append(call)
            numbers_seen |= names
        if repeated:  # a damaged line may have a wrong digit
            problems.append(
                f"{repeated} calls of rank {rank} were left out: other calls have the same numbers"
            )
    for group, by_rank in skipped.items():
        for rank, log in logs.items():
            if group in log.groups:
                by_rank.setdefault(rank, 0)
    return calls, skipped


def _moves(log: RankLog) -> bool:
    """Whether a rank that has not ended did something in the second before it was read."""
    if log.returned or log.raised is not None or log.lost is not None:
        return False
    return log.last_ns > _recent(log)


def _recent(log: RankLog) -> int:
    """By the rank's own clock, MOVING_NS before the job's records were read."""
    return log.read_ns - _behind(log) - MOVING_NS


def _settled(
    calls: list[CallRow], logs: dict[int, RankLog], groups: dict[str, list[int]]
) -> list[CallRow]:
    """The calls of a job that moves, without those that another rank of their group had not issued
    or ended when its record was read, and without sends and recvs since a second before that."""

    def is_new(call: CallRow) -> bool:
        recent = (call["enqueued_ns"] or 0) > _recent(logs[call["rank"]])
        return recent and (call["op"] in POINT_TO_POINT or call.get("completed_ns") is None)

    older = [call for call in calls if not is_new(call)]
    reached: dict[tuple[str, int], int] = {}
    for call in older:
        if call["op"] not in POINT_TO_POINT and call.get("number"):
            reached[call["group"], call["rank"]] = call["number"] or 0
    common = {
        group: min((reached.get((group, rank), 0) for rank in ranks), default=0)
        for group, ranks in groups.items()
    }
    return [
        call
        for call in older
        if call["op"] in POINT_TO_POINT or (call.get("number") or 0) <= common.get(call["group"], 0)
    ]


def _clock_offsets(
    logs: dict[int, RankLog],
    calls: list[CallRow],
    host_of: dict[int, str],
    groups: dict[str, list[int]],
    problems: list[str],
) -> dict[str, Offset]:
    wall: dict[str, int] = {}
    for rank, log in logs.items():
        wall.setdefault(host_of[rank], _behind(log))
    shifts = offsets(calls, host_of, groups, wall, host_of[min(logs)])
    for host, shift in shifts.items():
        if shift.bound_ns is None:
            problems.append(
                f"no call bounds the clock of host {host}: its times come from its wall clock"
            )
    return shifts


def _move_times(row: CallRow | SpanRow, by: int) -> None:
    times: Any = row
    for name in (
        "enqueued_ns",
        "completed_ns",
        "host_wait_begin_ns",
        "host_wait_end_ns",
        "begin_ns",
        "end_ns",
    ):
        if times.get(name) is not None:
            times[name] += by


# ---------------------------------------------------------------- endings


def has_open_call(timeline: Timeline) -> bool:
    """Whether some call has neither completed nor failed. A quiet job without one is computing or
    starting."""
    calls = timeline.calls
    return bool((calls["completed_ns"].is_null() & calls["error"].is_null()).any())


def is_over(timeline: Timeline) -> bool:
    """Whether no process of a recorded job can go on."""
    over = (EndKind.FINISHED, EndKind.RAISED, EndKind.KILLED)
    return all(end.kind in over or end.text == GONE for end in timeline.ends)


Prover = Callable[[list[BlockedThread], set[int]], Proof | None]
"""`prove` with the job's calls: a function of the waits and of the ranks that are gone."""


def _ends(
    logs: dict[int, RankLog], size: int, calls: list[CallRow], prover: Prover, cut: ReadUntil | None
) -> list[Ending]:
    """How each rank ended, by its record and its process; at a cut, all others were running."""
    over = {rank for rank, log in logs.items() if log.returned or log.raised is not None}
    lives = {
        rank: _lives(log) if cut is None else True for rank, log in logs.items() if rank not in over
    }
    if len(logs) == size:
        stuck = _stuck(logs, over, lives, prover)
    else:
        stuck = {}
    ends = []
    for rank in range(size):
        log = logs.get(rank)
        rank_calls = () if log is None else [call for call in calls if call["rank"] == rank]
        awaited = None if log is None else log.awaited()
        if awaited is not None and key_of(awaited) not in map(key_of, rank_calls):
            awaited = None  # it was left out
        if log is None:
            ends.append(Ending(EndKind.UNKNOWN, text="no record was found"))
        elif log.returned:
            ends.append(Ending.finished(rank_calls))
        elif log.raised is not None:
            ends.append(Ending.raised(rank_calls, log.raised.text))
        elif rank in stuck:
            if cut:
                gone = cut.why
            elif lives[rank] is not False:
                gone = ""
            else:
                gone = GONE
            ends.append(Ending.at(EndKind.HUNG, stuck[rank], gone, proven=True))
        elif cut is not None:
            ends.append(Ending.at(EndKind.UNKNOWN, awaited, cut.why))
        elif log.lost is not None or log.begin is NOT_BEGUN:
            ends.append(Ending(EndKind.UNKNOWN, text=NO_BEGINNING if log.lost is None else LOST))
        elif lives[rank] is False:
            ends.append(Ending.at(EndKind.KILLED, awaited, NO_END))
        else:
            ends.append(Ending.at(EndKind.UNKNOWN, awaited, RUNNING if lives[rank] else NO_WORD))
    return ends


def _stuck(
    logs: dict[int, RankLog], over: set[int], lives: dict[int, bool | None], prover: Prover
) -> dict[int, CallRow]:
    """The call that each rank waits for, if the matching rule proves that none of them can ever
    complete.

    A rank whose process ended during a wait counts as waiting.
    """
    if any(log.lost is not None for log in logs.values()):
        return {}
    waits: list[BlockedThread] = []
    gone = set(over)
    for rank, alive in lives.items():
        log = logs[rank]
        standing = log.standing()
        if standing:
            waits += [BlockedThread(rank, calls_of, inside) for calls_of, inside in standing]
        elif alive is False:
            gone.add(rank)
        else:
            return {}
    if prover(waits, gone) is None:
        return {}
    awaited = {wait.rank: logs[wait.rank].awaited() for wait in waits}
    return {rank: call for rank, call in awaited.items() if call is not None}


def _lives(log: RankLog) -> bool | None:
    """Whether the rank's process existed when its record was read; None if on another host."""
    return None if log.process is None else log.process not in ("gone", psutil.STATUS_ZOMBIE)


def _status(begin: RankBegins) -> str | None:
    """The state of a rank's process, by psutil, or "gone"; None if it ran on another host."""
    if begin.host != socket.gethostname():
        return None
    try:
        process = psutil.Process(begin.pid or 0)
        is_same = abs(process.create_time() - (begin.process or 0)) < 1
        return str(process.status()) if is_same else "gone"
    except (psutil.Error, ValueError):
        return "gone"
