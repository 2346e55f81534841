"""Where a rank is that issues no call while a peer waits: in a lock, a sleep, a subprocess or a
dead mount.

The rank's recorder wrote the stacks of its threads; if it could not, the line says how to look.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePath

from joinlab.analysis.wording import by_key, short_site
from joinlab.ops import Stood
from joinlab.program.labels import kind_of
from joinlab.story.evidence import Evidence
from joinlab.story.lines import Line, LineKind, SourceLine
from joinlab.story.words import Text, listing, say, sides
from joinlab.timeline import EndKind

MOST_RANKS, MOST_THREADS = 4, 3
"""Most ranks, and most threads of each, that the lines show."""


def find(scene: Evidence) -> tuple[Line, ...]:
    """A line for each rank that is, or was to its end, outside any call while a peer is in one or
    has raised, or while all ranks stand; and for what ranks raise or call in other threads."""
    ends, stacks = scene.ends, scene.meta.get("stood", {})
    inside = [
        scene.awaited(rank) is not None and end.kind is not EndKind.FINISHED
        for rank, end in enumerate(ends)
    ]
    relevant = any(inside) or any(end.kind is EndKind.RAISED for end in ends) or all_stand(scene)
    processes, lines_found = scene.meta.get("processes", {}), list[Line]()
    for rank in sorted({*processes, *stacks}) if relevant else ():
        end, recorded = ends[rank], rank in processes
        goes_on = end.kind in (EndKind.UNKNOWN, EndKind.HUNG, EndKind.KILLED)
        if inside[rank] or not goes_on or (end.runs and not recorded):
            continue
        if recorded and processes[rank].get("stopped"):
            process = {"pid": processes[rank]["pid"], "host": processes[rank]["host"]}
            lines_found.append(Line(LineKind.CAUSE, "stopped_process", (rank,), facts=process))
        elif threads := standing_of(scene, rank):
            lines = tuple(
                SourceLine(thread.frames[0][0], "", (rank,), thread.callers) for thread in threads
            )
            texts = [[thread.name, thread.text()] for thread in threads]
            facts = {"threads": texts, "outside": recorded, "past": end.kind is EndKind.KILLED}
            lines_found.append(Line(LineKind.CAUSE, "stands", (rank,), lines=lines, facts=facts))
        elif end.runs and recorded and (pid := processes[rank]["pid"]) is not None:
            facts = {"host": processes[rank]["host"], "pid": pid}
            lines_found.append(Line(LineKind.FIX, "look", (rank,), facts=facts))
    return (*lines_found[:MOST_RANKS], *_raising(stacks), *_two_threads(scene))


def apart(scene: Evidence) -> tuple[Line, ...]:
    """The headline of ranks none of which is in a recorded call: before init_process_group, say."""
    if not all_stand(scene) or scene.parting.clash is not None:
        return ()
    unfinished = [rank for rank, end in enumerate(scene.ends) if end.kind is not EndKind.FINISHED]
    places = by_key((standing_of(scene, rank)[0].frames[0][0], rank) for rank in unfinished)
    if len(places) < 2:
        return ()
    sides = sorted(places.items(), key=lambda place: (len(place[1]), place[1]))[:2]
    lines = tuple(SourceLine(site, "", tuple(ranks)) for site, ranks in sides)
    facts = {"sides": [ranks for _, ranks in sides], "more": len(places) > 2}
    return (Line(LineKind.HEADLINE, "stand_apart", tuple(unfinished), lines=lines, facts=facts),)


def standing_of(scene: Evidence, rank: int) -> list[Standing]:
    """The threads of a rank that stand in the program's own code."""
    threads = map(Standing, scene.meta.get("stood", {}).get(rank, ()))
    return [thread for thread in threads if thread.frames][:MOST_THREADS]


def all_stand(scene: Evidence) -> bool:
    """Whether no rank was in a call, and each that had not finished wrote where it stands."""
    unfinished = [rank for rank, end in enumerate(scene.ends) if end.kind is not EndKind.FINISHED]
    return bool(unfinished) and all(
        scene.awaited(rank) is None and standing_of(scene, rank) for rank in unfinished
    )


def _raising(stacks: Mapping[int, Sequence[Stood]]) -> Iterator[Line]:
    """The exceptions that were on their way while ranks stood."""
    for rank, threads in stacks.items():
        for error in (thread["error"] for thread in threads if "error" in thread):
            yield Line(LineKind.CAUSE, "raising", (rank,), facts={"error": error})


def _two_threads(scene: Evidence) -> Iterator[Line]:
    """The first rank of which two threads stand in calls of torch.distributed."""
    for rank in sorted(scene.meta.get("stood", {})):
        inside = [thread for thread in standing_of(scene, rank) if thread.is_in_call]
        if len(inside) > 1:
            texts = [[thread.name, thread.text()] for thread in inside]
            lines = tuple(SourceLine(thread.frames[0][0], "", (rank,)) for thread in inside)
            yield Line(LineKind.NOTE, "two_threads", (rank,), lines=lines, facts={"threads": texts})
            return


class Standing:
    """One thread's stack: `frames`, site and function of the program's own, the innermost first."""

    def __init__(self, stack: Stood) -> None:
        self.name = stack["thread"]
        all_frames = [frame.rpartition(" ")[::2] for frame in reversed(stack["frames"])]
        self.frames = [
            (site, name)
            for site, name in all_frames
            if kind_of(site.rpartition(":")[0]) == "program"
        ]
        self.callers = tuple(SourceLine(site) for site, _ in self.frames[1:])
        self.is_in_call = any("distributed/distributed_c10d.py:" in site for site, _ in all_frames)
        self.library = ""
        if self.frames and all_frames[0] not in self.frames:
            site, name = all_frames[0]
            above = [site for site, _ in all_frames[: all_frames.index(self.frames[0])]]
            self.library = f"called {name} of {PurePath(site.rpartition(':')[0]).name}"
            if any(_LOADER in site for site in above):
                self.library = "its DataLoader waits for a worker"

    def text(self) -> str:
        """The innermost place of the program itself, and what it called: "load (data.py:61, called
        poll of ...)"."""
        (site, function), deep = self.frames[0], f", {self.library}" if self.library else ""
        return f"{function} ({short_site(site)}{deep})"


def _stands(line: Line) -> Text:
    threads = [
        ("" if not index else f"its thread {name} ", text)
        for index, (name, text) in enumerate(line.facts["threads"])
    ]
    parts = [say("{}in {}", name, text) for name, text in threads]
    verb = "stood" if line.facts["past"] else "stands"
    return say(
        "{} {}{} {}.",
        line.ranks,
        verb,
        " outside any call:" * line.facts["outside"],
        listing(parts),
    )


def _look(line: Line) -> Text:
    command, host = f"py-spy dump --pid {line.facts['pid']}", str(line.facts["host"])
    return say(
        "{} runs outside any recorded call. To see where: {} (on {}).", line.ranks, command, host
    )


def _apart_words(line: Line) -> Text:
    parts = []
    for ranks, source_line in zip(sides(line), line.lines, strict=True):
        parts.append(say("{} stand[s|] at {}", ranks, short_site(source_line.site)))
    elsewhere = say(", others elsewhere") if line.facts["more"] else ()
    return say("No rank is in a recorded call: {}{}.", listing(parts), elsewhere)


def _stopped_words(line: Line) -> Text:
    remedy = f"kill -CONT {line.facts['pid']} on {line.facts['host']} continues it"
    return say("{}'s process is stopped, by a signal or a debugger: {}.", line.ranks, remedy)


def _threads_words(line: Line) -> Text:
    parts = [say("{} in {}", name or "a thread", text) for name, text in line.facts["threads"]]
    return say("{} issues calls in two threads: {}.", line.ranks, listing(parts))


_LOADER = "torch/utils/data/dataloader.py:"

WORDS: Mapping[str, Callable[[Line], Text]] = {
    "stands": _stands,
    "look": _look,
    "stand_apart": _apart_words,
    "stopped_process": _stopped_words,
    "raising": lambda line: say("{} was raising {}.", line.ranks, line.facts["error"]),
    "two_threads": _threads_words,
}
