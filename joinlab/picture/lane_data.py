"""Lane data: the lanes of one or more Timelines as compact JSON, for the script that draws the live
view.

`first_screen`, `details` and the story decide every box and every word; the script only draws. Every call
is a row of numbers (`columns`). Larger data is compressed, which also finds texts that repeat: a run
of 2 ranks with 5 inputs takes about 5 kB. static/types.d.ts
declares the same types for the script.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Hashable, Sequence
from typing import Any

from joinlab.analysis.folding import Folding
from joinlab.analysis.matching import Matched
from joinlab.analysis.source import CodeLine, SourceText, SourceTexts
from joinlab.analysis.wording import good, measured, shown, sign, title
from joinlab.picture.columns import columns
from joinlab.picture.compared import compared
from joinlab.picture.details import MADE, Details, call_details
from joinlab.picture.first_screen import (
    Column,
    FirstScreen,
    ScreenPiece,
    fate_of,
    folded,
    screen_of,
)
from joinlab.picture.places import GIVES, SIZES, before, behind
from joinlab.picture.theme import FILLS
from joinlab.story.evidence import Evidence
from joinlab.story.writers import TAGS
from joinlab.timeline import EndKind, Timeline

SMALL = 2**13
"""Fewest bytes to compress: unpacking fewer takes the browser as long as drawing them."""

LARGE = 2**20
"""From this many bytes of columns on, use fast compression: a better one takes 4 times as long and
saves 4 %."""

FAR = 3_600 * 10**9
"""ns: a clock that begins later than this counts from some day long ago, and the picture from the first
event."""

KINDS = tuple(FILLS)

FIRST = ("dtype", "shape", "value in", "value out", "error")
"""Names of the facts of a call that a reader looks for first, in this order."""

LOOKS = {
    "kinds": [kind.value for kind in KINDS],
    "sizes": SIZES,
    "gives": GIVES,
    "taken": "value taken for an answer, and its reader's next calls",
    "mixed": "several kinds, too short to be seen",
    "keys": "arrows on the dots and on the scrubber; Enter tells of a call; Space plays; c: order or clock; "
    "t turns the lanes; on the clock w s zoom, a d pan, f shows all.",
}
"""Data for the script that all runs share: the kinds of calls, which name the colours of `theme`,
box lengths, and the words of the legend and of the menu "…"."""


MEANINGS = {
    "missing": "It was never issued: the next call came in its place.",
    "met": "They met, as they should.",
    "wrong": "They met, but should not have.",
    "apart": "They face each other, and can never meet.",
    "open": "It did not complete.",
}
"""What the details of a call say, where nothing more is known of it."""


class ColumnTable:
    """Numbers distinct values in order of first use."""

    def __init__(self) -> None:
        self._at: dict[object, int] = {}

    def __call__(self, value: Hashable) -> int:
        """The number of `value`."""
        return self._at.setdefault(value, len(self._at))

    @property
    def values(self) -> list[Any]:
        return list(self._at)


class _Cited:
    """The texts that the boxes of one run refer to, and the lines in them: for each box all lines
    that led to it."""

    def __init__(self, texts: SourceTexts) -> None:
        self._texts, self._lines = ColumnTable(), ColumnTable()
        self._lines(())  # number 0
        if texts.program is not None:
            self._texts(texts.program)

    def __call__(self, lines: tuple[CodeLine, ...]) -> int:
        """The number of these lines, as Box.lines has them; 0 for none."""
        return self._lines(tuple((self._texts(line.source), line.line) for line in lines))

    def sources(self) -> list[SourceText]:
        """The program's text first, if it is known."""
        return self._texts.values

    def lines(self) -> list[list[tuple[int, int]]]:
        """By number: of each line the number of its text, and its own, innermost first."""
        return self._lines.values


class LaneData:
    """Collects runs, and stores their common parts once."""

    def __init__(self) -> None:
        self._facts = ColumnTable()  # (name, what it says)
        self._told = ColumnTable()  # of a call: its facts
        self._runs: list[tuple[dict[str, object], bytes]] = []  # each with its columns
        self._extra = 0  # of these, runs with the fix of another, or beside it

    def __len__(self) -> int:
        """How many runs were added."""
        return len(self._runs) - self._extra

    def add(
        self,
        timeline: Timeline,
        ranks: bool = True,
        beside: Timeline | None = None,
        calls: bool = True,
    ) -> int:
        """Add a Timeline and return the number of its run: the same for what would look the same.

        ranks   False gives every rank a lane of its own, however many there are
        beside  another one, which is drawn below it on the same axis
        calls   False leaves out what only "…" and the details of a call show; a run with another one `beside` has it
        """
        if beside is None:
            run, packed = self._run(timeline, ranks, calls)
            for mended in timeline.mended:
                before = len(self._runs)
                run["mended"] = self._add(*self._run(mended, ranks, calls))
                self._extra += len(self._runs) - before
            return self._add(run, packed)
        both = compared(timeline, beside)
        before = len(self._runs)
        below = self._add(*self._run(beside, False, True, both.scenes[1], both.behind))
        self._extra += len(self._runs) - before
        extra = {"beside": below, "apart": shown(both.sentence)}
        run, packed = self._run(timeline, False, True, both.scenes[0], both.behind)
        return self._add(run | extra, packed)

    def _add(self, run: dict[str, object], packed: bytes) -> int:
        if (run, packed) not in self._runs:
            self._runs.append((run, packed))
        return self._runs.index((run, packed))

    def packed(self, **extra: object) -> bytes:
        """All of it and `extra` as JSON, and behind a NUL the columns; the same runs give the same
        bytes."""
        parts = {
            "looks": LOOKS,
            "facts": [(shown(name), shown(value)) for name, value in self._facts.values],
            "told": self._told.values,
            "runs": [run for run, _ in self._runs],
        } | extra
        text = json.dumps(parts, ensure_ascii=False, separators=(",", ":")).encode()
        numbers = b"".join(packed for _, packed in self._runs)
        whole = b"\0".join([text, numbers])
        if len(whole) < SMALL:
            return whole
        return gzip.compress(whole, 6 if len(numbers) < LARGE else 1, mtime=0)

    def _run(
        self,
        timeline: Timeline,
        ranks: bool,
        calls: bool = True,
        made: FirstScreen | None = None,
        least: int = 0,
    ) -> tuple[dict[str, object], bytes]:
        folding = folded(timeline, ranks)
        screen = made or screen_of(Evidence(timeline, folding), ranks)
        run = {
            "title": shown(title(timeline)),
            "measured": shown(measured(timeline)),
            "mends": bool(timeline.mended or timeline.rerun)
            and not timeline.meta.get("fixes_hidden")
            and not all(map(good, timeline.ends)),
            "scene": self._screen(screen, timeline, least),
        }
        if not calls:
            return run, b""
        cited = _Cited(SourceTexts.of(timeline))
        columns, zero, packed = self._columns_of(timeline, folding, cited)
        names, ends, fates = list[str](), list[str](), list[str]()
        for rank, *_ in folding.classes:
            names.append(shown(folding.name(rank)))
            ends.append(shown(_ending(timeline, rank)))
            fates.append(fate_of(sign(timeline.ends[rank])))
        return run | {
            "told": self._single_calls(timeline, folding),
            "names": names,
            "ends": ends,
            "fates": fates,
            "queues": timeline.calls["started_ns"].null_count() < timeline.calls.height,
            "lanes": [
                next(index for index, ranks in enumerate(folding.classes) if {*ranks} & {*lane})
                for lane in screen.ranks
            ],
            "columns": columns,
            "zero": zero if zero < FAR else 0,
            "sources": [
                {
                    "name": shown(source.name),
                    "first_line": source.first_line,
                    "text": shown(source.text) if source.lines else None,
                }
                for source in cited.sources()
            ],
            "lines": cited.lines(),
        }, packed

    def _columns_of(
        self, timeline: Timeline, folding: Folding, cited: _Cited
    ) -> tuple[dict[str, object], int, bytes]:
        """Every call as a number of its code and of its times, and when the clock begins."""
        data, codes, begin, packed = columns(timeline, folding)
        data["codes"] = [
            {
                "kind": KINDS.index(code.kind),
                "label": shown(code.label),
                "lines": cited(code.lines),
                "facts": self._facts_of(code.facts) if folding.every.is_part else 0,
            }
            for code in codes
        ]
        data["names"] = [(shown(name), cited(lines)) for name, lines in data["names"]]
        return data, begin, packed

    def _single_calls(self, timeline: Timeline, folding: Folding) -> list[tuple[int, int, int]]:
        """(slot, lane, facts) of the calls that are told one by one: of all of them, unless there
        are many."""
        lane_of = {ranks[0]: lane for lane, ranks in enumerate(folding.classes)}
        tells_start = any(row["started_ns"] is not None for row in folding.matched.rows)
        facts_of_calls = []
        for number, slot in zip(folding.numbers, folding.slots, strict=True):
            for rank, seq in slot.calls.items():
                row = folding.matched.row_of[rank, slot.group, seq]
                facts = self._facts_of(call_details(row, tells_start, timeline.meta)[2:])
                facts_of_calls.append((number, lane_of[rank], facts))
        return facts_of_calls

    def _facts_of(self, facts: Details) -> int:
        """The number of a call's facts: what a reader looks for first, the rest, the stack, and what
        the rank made of it; -1: none."""
        numbers = {fact[0]: self._facts(fact) for fact in facts}
        stack, made = numbers.pop("stack", -1), numbers.pop(MADE, -1)
        first = tuple(numbers.pop(name) for name in FIRST if name in numbers)
        return self._told((first, tuple(numbers.values()), stack, made))

    def _screen(self, made: FirstScreen, timeline: Timeline, least: int) -> dict[str, object]:
        """The first screen, as static/types.d.ts has it."""

        def pieces(pieces: Sequence[ScreenPiece]) -> list[tuple[str, int, str]]:
            texts: list[tuple[str, int, str]] = []
            for piece in pieces:
                kind = -1 if piece.kind is None else KINDS.index(piece.kind)
                texts.append((shown(piece.text), kind, piece.tone))
            return texts

        def box(index: int, lane: int) -> dict[str, object] | None:
            box_drawn = made.columns[index].boxes[lane]
            if box_drawn is None:
                return None
            kind, label = KINDS.index(box_drawn.kind), shown(box_drawn.label)
            extras = {
                "open": box_drawn.open,
                "failed": box_drawn.failed,
                "stack": box_drawn.stack,
                "below": made.below(index, lane),
            }
            present = {name: value for name, value in extras.items() if value}
            return {"kind": kind, "label": label, "line": box_drawn.line} | present

        return {
            "names": list(map(shown, made.names)),
            "short": list(map(shown, map(made.short, range(len(made.ranks))))),
            "ranks": made.ranks,
            "world": timeline.world_size,
            "inputs": list(map(made.had, range(len(made.ranks)))),
            "under": list(map(made.under, range(len(made.ranks)))),
            "head": pieces(made.headline),
            "columns": [
                {
                    "slot": column.slot,
                    "until": column.until,
                    "n": column.number,
                    "boxes": [box(index, lane) for lane in range(len(column.boxes))],
                    "title": shown(made.title(column)),
                    "how": _how(made, column),
                    "flag": column.flag,
                    "size": column.size,
                    "stack": shown(column.stack),
                    "said": shown(
                        column.said or MEANINGS["missing" if column.missing else column.flag]
                    ),
                    "clashes": column.clashes,
                    "absent": column.absent,
                    "lacks": column.lacks,
                    "extra": column.extra,
                    "far": column.far,
                    "missing": column.missing and (column.missing[0], shown(column.missing[1])),
                }
                for index, column in enumerate(made.columns)
            ],
            "focus": made.focus,
            "meant": made.meant,
            "readings": [
                (reading.column, reading.to, reading.of, reading.value, reading.sent)
                for reading in made.readings
            ],
            "odd": made.odd,
            "tone": made.tone,
            "ends": [
                (sign, shown(word), tone, shown(detail)) for sign, word, tone, detail in made.ends
            ],
            "before": before(made),
            "behind": max(least, behind(made)),
            "file": shown(made.file),
            "code": [
                (line.sign, line.number, shown(line.text), pieces(line.here)) for line in made.code
            ],
            "tried": pieces([made.tried]),
            "story": [(TAGS.get(kind, ""), pieces(parts)) for kind, parts in made.story],
            "word": shown(made.provenance),
        }


def pack(
    timeline: Timeline, ranks: bool = True, beside: Timeline | None = None, calls: bool = True
) -> bytes:
    """The data of one Timeline. `ranks`, `beside`, `calls`: as LaneData.add takes them."""
    data = LaneData()
    data.add(timeline, ranks, beside, calls)
    return data.packed()


def _how(screen: FirstScreen, column: Column) -> str:
    """What went wrong in a column, read aloud behind its title."""
    if column.flag in ("wrong", "apart"):
        return ", here the calls do not match"
    fates = dict.fromkeys(screen.fate(column, lane) for lane in range(len(column.boxes)))
    return "".join(f", {fate}" for fate in fates if fate)


def _ending(timeline: Timeline, rank: int) -> str:
    end = timeline.ends[rank]
    if end.kind in (EndKind.RAISED, EndKind.KILLED) and end.text:
        detail = f": {end.text.splitlines()[0]}"
    else:
        detail = ""
    if end.runs:
        return "… still running"
    return f"{sign(end)} {end}{detail}"


def lines_of_end(matched: Matched, rank: int) -> tuple[CodeLine, ...]:
    """The lines that led to the call in which a rank ended; none if it ended in no call, or it was
    not recorded."""
    key = matched.timeline.ended_in(rank)
    row = None if key is None else matched.row_of.get(key)
    return SourceTexts.of(matched.timeline).lines_of(row) if row else ()
