"""Where a rank is that issues no call while a peer waits: in a lock, a sleep, a subprocess or a
dead mount.

The rank's recorder wrote the stacks of its threads; if it could not, the line says how to look.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import PurePath

from joinlab.analysis.wording import short_site
from joinlab.ops import Stood
from joinlab.program.labels import kind_of
from joinlab.story.lines import Line, LineKind, SourceLine
from joinlab.story.scene import Scene
from joinlab.story.words import Text, listing, say
from joinlab.timeline import EndKind

MOST_RANKS, MOST_THREADS = 4, 3
"""Most ranks, and most threads of each, that the lines show."""


def find(scene: Scene) -> tuple[Line, ...]:
    """A line for each rank that is, or was to its end, outside any call while a peer is in one or
    has raised."""
    ends = scene.ends
    inside = [
        scene.awaited(rank) is not None and end.kind is not EndKind.FINISHED
        for rank, end in enumerate(ends)
    ]
    kept = any(inside) or any(end.kind is EndKind.RAISED for end in ends)
    found = []
    processes, stood = scene.meta.get("processes", {}), scene.meta.get("stood", {})
    for rank in sorted({*processes, *stood}) if kept else ():
        end, recorded = ends[rank], rank in processes
        goes_on = end.runs if recorded else end.kind is EndKind.UNKNOWN
        if inside[rank] or not (goes_on or end.kind in (EndKind.HUNG, EndKind.KILLED)):
            continue
        threads = [Standing(one) for one in stood.get(rank, ())]
        threads = [one for one in threads if one.frames][:MOST_THREADS]
        if threads:
            lines = tuple(SourceLine(one.frames[0][0], "", (rank,), one.callers) for one in threads)
            told = [[one.name, one.text()] for one in threads]
            facts = {"threads": told, "outside": recorded, "past": end.kind is EndKind.KILLED}
            found.append(Line(LineKind.CAUSE, "stands", (rank,), lines=lines, facts=facts))
        elif end.runs and recorded and (pid := processes[rank]["pid"]) is not None:
            found.append(
                Line(
                    LineKind.NOTE,
                    "look",
                    (rank,),
                    facts={"host": processes[rank]["host"], "pid": pid},
                )
            )
    return tuple(found[:MOST_RANKS])


class Standing:
    """One thread's stack: `frames`, site and function of the program's own, the innermost first."""

    def __init__(self, stood: Stood) -> None:
        self.name = stood["thread"]
        every = [frame.rpartition(" ")[::2] for frame in reversed(stood["frames"])]
        self.frames = [
            (site, name) for site, name in every if kind_of(site.rpartition(":")[0]) == "program"
        ]
        self.callers = tuple(SourceLine(site) for site, _ in self.frames[1:])
        self.library = ""
        if every and every[0] not in self.frames:
            site, name = every[0]
            self.library = f"{name} of {PurePath(site.rpartition(':')[0]).name}"

    def text(self) -> str:
        """The innermost place of the program itself, and what it called: "load (data.py:61, called
        poll of ...)"."""
        (site, function), deep = self.frames[0], f", called {self.library}" if self.library else ""
        return f"{function} ({short_site(site)}{deep})"


def _stands(line: Line) -> Text:
    threads = [
        ("" if not at else f"its thread {name} ", text)
        for at, (name, text) in enumerate(line.facts["threads"])
    ]
    told = [say("{}in {}", name, text) for name, text in threads]
    verb = "stood" if line.facts["past"] else "stands"
    return say(
        "{} {}{} {}.", line.ranks, verb, " outside any call:" * line.facts["outside"], listing(told)
    )


def _look(line: Line) -> Text:
    command, host = f"py-spy dump --pid {line.facts['pid']}", str(line.facts["host"])
    return say(
        "{} runs outside any recorded call. To see where: {} (on {}).", line.ranks, command, host
    )


WORDS: Mapping[str, Callable[[Line], Text]] = {"stands": _stands, "look": _look}
