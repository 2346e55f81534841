"""Where a rank is that issues no call while a peer waits: in a lock, a sleep, a subprocess or a
dead mount.

The rank's recorder wrote the stacks of its threads; if it could not, the line says how to look.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath

import polars as pl

from joinlab.analysis.wording import by_key
from joinlab.ops import Stood
from joinlab.program.labels import owner_of
from joinlab.showing import short_site
from joinlab.story.evidence import Evidence
from joinlab.story.lines import Cause, Fix, Headline, Line, Note, SourceLine, form
from joinlab.story.words import Text, listing, say
from joinlab.timeline import EndKind

MOST_RANKS, MOST_THREADS = 4, 3
"""Most ranks, and most threads of each, that the lines show."""


Threads = Sequence[tuple[str, str]]
"""The name of each thread, and where it stands."""


@form
class Stands(Cause):
    """Where the threads of a rank stand.

    outside  whether that is outside any recorded call
    past     whether the rank has been killed since
    """

    threads: Threads
    outside: bool
    past: bool

    def words(self) -> Text:
        threads = [
            ("" if not index else f"its thread {name} ", text)
            for index, (name, text) in enumerate(self.threads)
        ]
        parts = [say("{}in {}", name, text) for name, text in threads]
        verb = "stood" if self.past else "stands"
        outside = " outside any call:" if self.outside else ""
        return say("{} {}{} {}.", self.ranks, verb, outside, listing(parts))


@form
class StoppedProcess(Cause):
    pid: int | None
    host: str

    def words(self) -> Text:
        remedy = f"kill -CONT {self.pid} on {self.host} continues it"
        return say("{}'s process is stopped, by a signal or a debugger: {}.", self.ranks, remedy)


@form
class Silent(Cause):
    """site: where Ctrl-C met it"""

    site: str

    def words(self) -> Text:
        met = f" Ctrl-C met it at {short_site(self.site)}." if self.site else ""
        return say(
            "{} could not write where it stood: its process was stopped, a call held the "
            "interpreter, or its host was too busy.{}",
            self.ranks,
            met,
        )


@form
class Look(Fix):
    """How to see where a rank is that wrote no stacks."""

    host: str
    pid: int

    def words(self) -> Text:
        return say(
            "{} runs outside any recorded call. To see where: {} (on {}).",
            self.ranks,
            f"py-spy dump --pid {self.pid}",
            self.host,
        )


def find(evidence: Evidence) -> tuple[Line, ...]:
    """A line for each rank whose process is stopped, and for each that is, or was to its end, outside
    any call while a peer is in one or has raised, or while all ranks stand; and for what ranks raise
    or call in other threads. A rank that may go on ends no proven hang of others."""
    ends, stacks = evidence.ends, evidence.meta.get("stood", {})
    inside = [
        evidence.awaited(rank) is not None and end.kind is not EndKind.FINISHED
        for rank, end in enumerate(ends)
    ]
    relevant = any(inside) or any(end.kind is EndKind.RAISED for end in ends) or all_stand(evidence)
    processes, lines_found = evidence.meta.get("processes", {}), list[Line]()
    for rank in sorted({*processes, *stacks}):
        end, recorded = ends[rank], rank in processes
        goes_on = end.kind in (EndKind.HUNG, EndKind.KILLED)
        goes_on |= end.kind is EndKind.UNKNOWN and not any(peer_end.proven for peer_end in ends)
        if recorded and processes[rank].get("stopped"):
            pid, host = processes[rank]["pid"], processes[rank]["host"]
            lines_found.append(StoppedProcess(pid, host, ranks=(rank,)))
        elif inside[rank] or not (relevant and goes_on) or (end.runs and not recorded):
            continue
        elif threads := standing_of(evidence, rank):
            lines = tuple(
                SourceLine(thread.frames[0][0], "", (rank,), thread.callers) for thread in threads
            )
            texts, past = _texts(threads), end.kind is EndKind.KILLED
            lines_found.append(Stands(texts, recorded, past, ranks=(rank,), lines=lines))
        elif recorded and "silent" in processes[rank]:
            lines_found.append(Silent(processes[rank]["silent"], ranks=(rank,)))
        elif end.runs and recorded and (pid := processes[rank]["pid"]) is not None:
            lines_found.append(Look(processes[rank]["host"], pid, ranks=(rank,)))
    return (*lines_found[:MOST_RANKS], *_raising(stacks), *_two_threads(evidence))


@form
class StandInOtherCalls(Headline):
    """more: whether others stand elsewhere"""

    says_ends = True
    more: bool

    def words(self) -> Text:
        parts = []
        for ranks, source_line in zip(self.sides, self.lines, strict=True):
            parts.append(say("{} stand[s|] at {}", ranks, short_site(source_line.site)))
        elsewhere = say(", others elsewhere") if self.more else ()
        return say("No rank is in a recorded call: {}{}.", listing(parts), elsewhere)


class NotStarted(Headline):
    def words(self) -> Text:
        return say(
            "No call was recorded, and no record of {} is here: [was it|were they] started?",
            self.ranks,
        )


def outside_calls(evidence: Evidence) -> tuple[Line, ...]:
    """The headline of ranks none of which is in a recorded call: before init_process_group, say."""
    missing = evidence.meta.get("missing_ranks")
    if missing and not evidence.timeline.calls.height:
        return (NotStarted(ranks=tuple(missing)),)
    if not all_stand(evidence) or evidence.difference.slot_index is not None:
        return ()
    unfinished = _unfinished(evidence)
    by_site = by_key((standing_of(evidence, rank)[0].frames[0][0], rank) for rank in unfinished)
    if len(by_site) < 2:
        return ()
    sides = sorted(by_site.items(), key=lambda item: (len(item[1]), item[1]))[:2]
    lines = tuple(SourceLine(site, "", tuple(ranks)) for site, ranks in sides)
    about = evidence.about((ranks for _, ranks in sides), ranks=unfinished)
    return (StandInOtherCalls(len(by_site) > 2, lines=lines, **about),)


def standing_of(evidence: Evidence, rank: int) -> list[Standing]:
    """The threads of a rank that stand in the program's own code."""
    threads = map(Standing, evidence.meta.get("stood", {}).get(rank, ()))
    return [thread for thread in threads if thread.frames][:MOST_THREADS]


def all_stand(evidence: Evidence) -> bool:
    """Whether no rank was in a call, and each that had not finished wrote where it stands."""
    unfinished = _unfinished(evidence)
    return bool(unfinished) and all(
        evidence.awaited(rank) is None and standing_of(evidence, rank) for rank in unfinished
    )


def _unfinished(evidence: Evidence) -> list[int]:
    """Ranks that have a record, and had not finished."""
    ranks = evidence.ranks_that(lambda end: end.kind is not EndKind.FINISHED)
    return [rank for rank in ranks if rank not in evidence.meta.get("missing_ranks", ())]


@form
class Raising(Cause):
    error: str

    def words(self) -> Text:
        return say("{} was raising {}.", self.ranks, self.error)


def _raising(stacks: Mapping[int, Sequence[Stood]]) -> Iterator[Line]:
    """The exceptions that were on their way while ranks stood."""
    for rank, threads in stacks.items():
        for error in (thread["error"] for thread in threads if "error" in thread):
            yield Raising(error, ranks=(rank,))


@form
class TwoThreads(Note):
    threads: Threads

    def words(self) -> Text:
        parts = [say("{} in {}", name or "a thread", text) for name, text in self.threads]
        return say("{} issues calls in two threads: {}.", self.ranks, listing(parts))


def _two_threads(evidence: Evidence) -> Iterator[Line]:
    """The first rank of which two threads stand in calls of torch.distributed, or have open calls of
    one group."""
    open_calls = evidence.timeline.calls.filter(pl.col("completed_ns").is_null())
    for rank in sorted(evidence.meta.get("processes", {})):
        threads = [thread for thread in standing_of(evidence, rank) if thread.is_in_call]
        for _, rows in open_calls.filter(rank=rank).group_by("group", maintain_order=True):
            if len(threads) > 1:
                break
            by_thread = {
                "a thread" if _BEGINS_THREAD.search(stack[0]) else "MainThread": stack
                for stack in rows["stack"].to_list()
                if stack
            }
            threads = [Standing(Stood(thread=name, frames=by_thread[name])) for name in by_thread]
        if len(threads) > 1 and all(thread.frames for thread in threads):
            lines = tuple(SourceLine(thread.frames[0][0], "", (rank,)) for thread in threads)
            yield TwoThreads(_texts(threads), ranks=(rank,), lines=lines)
            return


def _texts(threads: Iterable[Standing]) -> Threads:
    return [(thread.name, thread.text()) for thread in threads]


class Standing:
    """One thread's stack: `frames`, site and function of the program's own, the innermost first."""

    def __init__(self, stack: Stood) -> None:
        self.name = stack["thread"]
        all_frames = [frame.rpartition(" ")[::2] for frame in reversed(stack["frames"])]
        self.frames = [
            (site, name)
            for site, name in all_frames
            if owner_of(site.rpartition(":")[0]) == "program"
        ]
        self.callers = tuple(SourceLine(site) for site, _ in self.frames[1:])
        self.is_in_call = any("distributed/distributed_c10d.py:" in site for site, _ in all_frames)
        self.library = ""
        # What the recorder calls in its turn is not the program's.
        recorder = [i for i, (site, _) in enumerate(all_frames) if _RECORDER in site]
        called = all_frames[recorder[-1] + 1 :] if recorder else all_frames
        if self.frames and called[0] not in self.frames:
            site, name = called[0]
            above = [site for site, _ in all_frames[: all_frames.index(self.frames[0])]]
            self.library = f"called {name} of {PurePath(site.rpartition(':')[0]).name}"
            if any(_LOADER in site for site in above):
                self.library = "its DataLoader waits for a worker"

    def text(self) -> str:
        """The innermost place of the program itself, and what it called: "load (data.py:61, called
        poll of ...)"."""
        (site, function), deep = self.frames[0], f", {self.library}" if self.library else ""
        return f"{function} ({short_site(site)}{deep})"


_RECORDER = "/joinlab/recorder/"
_BEGINS_THREAD = re.compile(r"\bthreading\.py:\d+ _bootstrap$")
_LOADER = "torch/utils/data/dataloader.py:"
