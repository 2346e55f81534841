"""Lane data: the lanes of one or more Timelines as compact JSON, for the script that draws the live view.

Every position and every word is decided in `lanes`, `details` and the story; the script only draws. A text is
written once and named by its number after that, a box that stands in several layouts is described once, and the
whole is compressed: a run of 2 ranks with 5 inputs is about 6 kB, in all its layouts. Everything else has a name:
static/types.d.ts says the same in the script's language.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Hashable, Sequence
from typing import Any

from joinlab.analysis.folding import Folding
from joinlab.analysis.matching import Matched, Slot
from joinlab.analysis.source import CodeLine, SourceText, SourceTexts
from joinlab.analysis.wording import good, measured, shown, sign, title
from joinlab.picture.columns import columns
from joinlab.picture.details import MADE
from joinlab.picture.lanes import Box, Lanes, every_lanes, read
from joinlab.picture.layout import HOST, SPAN, STREAM, WAIT
from joinlab.picture.rows import RowKind
from joinlab.picture.scene import Piece, scene_of
from joinlab.picture.theme import BAND_NAMES, STYLES
from joinlab.story.scene import Scene
from joinlab.timeline import Timeline

KINDS = tuple(STYLES)
LAYOUTS = {"logical": ("logical", False), "logical setup": ("logical", True)} | {
    "time": ("time", False),
    "time setup": ("time", True),
}
"""The (axis, setup) of each of a run's layouts, by its name."""

LANE_OF = {RowKind.SPAN: "span", RowKind.WAIT: "wait"}  # any other kind stands in the stream's lane

LOOKS = {
    "kinds": [
        {
            "name": kind.value,
            "color": color,
            "pattern": pattern,
            "lane": LANE_OF.get(kind, "stream"),
            "fold": kind is RowKind.FOLD,
        }
        for kind, (color, pattern) in STYLES.items()
    ],
    "bands": [{"bad": bad, "met": met, "name": name} for (bad, met), name in BAND_NAMES.items()],
    "lanes": {"span": SPAN, "wait": WAIT, "host": HOST, "stream": STREAM},
    "first": ("dtype", "shape", "value in", "value out", MADE, "error"),  # what a reader looks for first
    "made": MADE,
}
"""Colours, hatchings and proportions, as `theme` has them."""


class Table:
    """Numbers the different values that it is given, in order."""

    def __init__(self) -> None:
        self._at: dict[Any, int] = {}

    def __call__(self, value: Hashable) -> int:
        """The number of `value`."""
        return self._at.setdefault(value, len(self._at))

    @property
    def values(self) -> list[Any]:
        """What was numbered, in that order."""
        return list(self._at)


class _Cited:
    """The texts that the boxes of one run refer to, and the lines in them: for each box all lines that led to it."""

    def __init__(self, known: SourceTexts) -> None:
        self._texts, self._lines = Table(), Table()
        self._lines(())  # number 0
        if known.program is not None:
            self._texts(known.program)

    def __call__(self, lines: tuple[CodeLine, ...]) -> int:
        """The number of these lines, as Box.lines has them; 0 for none."""
        return self._lines(tuple((self._texts(one.source), one.line) for one in lines))

    def sources(self) -> list[SourceText]:
        """The program's text first, if it is known."""
        return self._texts.values

    def lines(self) -> list[list[tuple[int, int]]]:
        """By number: of each line the number of its text, and its own, innermost first."""
        return self._lines.values


class LaneData:
    """Collects runs; what they have in common is held once.

    data = LaneData()
    data.add(timeline)
    data.packed()               # bytes: gzip of JSON
    """

    def __init__(self) -> None:
        self._texts = Table()
        self._facts = Table()  # (text of a name, text of what it says)
        self._told = Table()  # texts of a box: several facts
        self._runs: list[dict[str, Any]] = []
        self._columns: list[bytes] = []  # of the large ones among them

    def __len__(self) -> int:
        """How many runs there are."""
        return len(self._runs)

    def add(self, timeline: Timeline, ranks: bool = True) -> int:
        """Add a Timeline and return the number of its run: the same for what would look the same.

        ranks  False gives every rank a lane of its own, however many there are
        """
        run = self._run(timeline, ranks)
        if "columns" in run:
            self._runs.append(run)
            return len(self._runs) - 1
        if run not in self._runs:
            self._runs.append(run)
        return self._runs.index(run)

    def packed(self, **more: Any) -> bytes:
        """All of it and `more`, as compressed JSON, and behind a NUL the columns; the same runs give the same bytes."""
        parts = {
            "looks": LOOKS,
            "texts": [shown(text) for text in self._texts.values],
            "facts": self._facts.values,
            "told": self._told.values,
            "runs": self._runs,
        } | more
        text = json.dumps(parts, ensure_ascii=False, separators=(",", ":")).encode()
        if not self._columns:
            return gzip.compress(text, 6, mtime=0)
        return gzip.compress(b"\0".join([text, b"".join(self._columns)]), 1, mtime=0)  # 6 takes 4 times as long for 4 %

    def _run(self, timeline: Timeline, ranks: bool) -> dict[str, Any]:
        text, known, boxes = self._texts, SourceTexts.of(timeline), Table()
        cited = _Cited(known)
        more: dict[str, Any] = {}
        matched, folding, odd = read(timeline, ranks)
        layouts = every_lanes(matched, folding, odd)
        if odd is None:
            zero = layouts["time", True].begin
        else:
            more["columns"], zero = self._columns_of(timeline, folding, cited)
        lanes = layouts["logical", False].lanes
        first = [ranks[0] for ranks in folding.classes]
        caps = layouts["logical", False].caps
        numbers: dict[Hashable, int] = {}
        told = Scene(timeline, folding)
        places = {
            name: self._layout(layouts[at], boxes, numbers, cited, zero if at[0] == "time" else 0.0)
            for name, at in LAYOUTS.items()
            if at in layouts
        }
        return more | {
            "ranks": len(lanes),
            "lanes": [text(name) for name in lanes],
            "title": text(title(timeline)),
            "measured": text(measured(timeline)),
            "modelled": layouts["logical", False].modelled,
            "verdict": self._verdict(told.parting.first, folding, folding.numbers),
            "scene": _scene(timeline, layouts["logical", False], told, folding.numbers),
            "ends": [text(cap.text) for cap in caps],
            "good": [good(cap.ending) for cap in caps],
            "sign": "".join(sign(cap.ending) for cap in caps),
            "ended": [cited(_ended(matched, known)[rank]) for rank in first],
            "sources": [
                {"name": text(one.name), "first_line": one.first_line, "text": text(one.text) if one.lines else None}
                for one in cited.sources()
            ],
            "lines": cited.lines(),
            "zero": round(zero),
            "boxes": [dict(items) for items in boxes.values],
            "layouts": places,
        }

    def _columns_of(self, timeline: Timeline, folding: Folding, cited: _Cited) -> tuple[dict[str, Any], float]:
        """What is told of the columns of a large run, and where its clock begins."""
        told, codes, begin, written = columns(timeline, folding)
        self._columns.append(written)
        told["names"] = [self._texts(name) for name in told["names"]]
        told["codes"] = [
            {
                "kind": KINDS.index(one.kind),
                "label": self._texts(one.label),
                "lines": cited(one.lines),
                "facts": self._told(
                    tuple(self._facts((self._texts(name), self._texts(said))) for name, said in one.facts)
                ),
                "like": one.like,
            }
            for one in codes
        ]
        return told, float(begin)

    def _verdict(self, first: int | None, folding: Folding, numbers: Sequence[int]) -> dict[str, Any]:
        """Slots: the first difference, and all that did not go as meant."""
        wrong = [number for number, slot in zip(numbers, folding.slots, strict=True) if _went_wrong(folding, slot)]
        first = None if first is None else numbers[first]
        return {"first": first, "wrong": wrong if first is None or first in wrong else sorted([first, *wrong])}

    def _box(self, box: Box, cited: _Cited) -> tuple[tuple[str, int | bool | None], ...]:
        """A box wherever it stands, as items. Its facts are not its label and rank again, and nothing of a wait."""
        text = self._texts
        skip = len(box.details) if box.kind is RowKind.WAIT else 2
        facts = tuple(self._facts((text(name), text(said))) for name, said in box.details[skip:])
        found: dict[str, int | bool | None] = {
            "rank": box.rank,
            "kind": KINDS.index(box.kind),
            "label": text(box.label),
            "short": text(box.short),
            "slot": box.slot,
            "lines": cited(box.lines),
            "facts": self._told(facts),
        }
        found |= {name: True for name in ("open", "bad", "failed") if getattr(box, name)}
        return tuple(found.items())

    def _layout(
        self, picture: Lanes, described: Table, numbers: dict[Hashable, int], cited: _Cited, zero: float
    ) -> dict[str, Any]:
        """Where things stand in one layout; a box that no other layout had is added to those that are described."""
        unit = 0.01 if picture.unit == "rows" else 1.0

        def at(place: float) -> int:
            return round((place - zero) / unit)

        def number(box: Box) -> int:
            """Of its description, made once: the layouts share a box's details and lines. It saves 2 ms of a run."""
            same = (id(box.details), id(box.lines), box.label, box.short)
            key = (*same, box.rank, box.slot, box.kind, box.open, box.bad, box.failed)
            if key not in numbers:
                numbers[key] = described(self._box(box, cited))
            return numbers[key]

        text, boxes = self._texts, picture.boxes
        several = any(box.track for box in boxes)
        return {
            "unit": unit,
            "begin": at(picture.begin),
            "end": at(picture.end),
            "box": [number(box) for box in boxes],
            "from": [at(box.begin) for box in boxes],
            "to": [at(box.end) for box in boxes],
            "track": [box.track for box in boxes] if several else [],
            "tracks": [box.tracks for box in boxes] if several else [],
            "bands": [
                {"slot": one.slot, "a": one.a, "b": one.b, "met": one.met, "bad": one.bad, "text": text(one.text)}
                for one in picture.bands
            ],
            "notes": [
                {
                    "rank": note.rank,
                    "begin": at(note.begin),
                    "end": at(note.end),
                    "line": text(note.line),
                    "whole": text(note.whole),
                    "bad": note.bad,
                    "slot": note.slot,
                }
                for note in picture.notes
            ],
            "groups": [
                {"rank": one.rank, "begin": at(one.begin), "end": at(one.end), "label": text(one.label)}
                for one in picture.groups
            ],
            "stops": [at(cap.at) for cap in picture.caps],
        }


def pack(timeline: Timeline, ranks: bool = True) -> bytes:
    """The data of one Timeline. `ranks`: as LaneData.add takes it.

    len(pack(timeline))         # bytes on the wire
    """
    data = LaneData()
    data.add(timeline, ranks)
    return data.packed()


def _scene(timeline: Timeline, picture: Lanes, told: Scene, numbers: Sequence[int]) -> dict[str, Any]:
    """The first screen, as static/types.d.ts has it: boxes are places in the folded layout of calls."""

    def pieces(some: Sequence[Piece]) -> list[tuple[str, int, str]]:
        return [(shown(one.text), -1 if one.kind is None else KINDS.index(one.kind), one.tone) for one in some]

    made, counts = scene_of(picture, told, numbers), timeline.meta.get("inputs") or ()
    return {
        "head": pieces(made.headline),
        "columns": [
            {"slot": one.slot, "n": one.number, "boxes": one.boxes, "flag": one.flag}
            | {
                "stack": one.stack,
                "extra": one.extra,
                "missing": one.missing and (one.missing[0], shown(one.missing[1])),
            }
            for one in made.columns
        ],
        "focus": made.focus,
        "meant": made.meant,
        "readings": [(one.column, one.to, one.of, one.value, one.sent, one.taken) for one in made.readings],
        "odd": made.odd,
        "ends": [(sign, word, tone, shown(more)) for sign, word, tone, more in made.ends],
        "file": shown(made.file),
        "code": [(one.sign, one.number, shown(one.text), pieces(one.here)) for one in made.code],
        "tried": shown(made.tried),
        "story": [(kind.value, pieces(some)) for kind, some in made.story],
        "word": made.provenance,
        "ranks": picture.ranks,
        "world": timeline.world_size,
        "inputs": [counts[ranks[0]] if ranks[0] < len(counts) else None for ranks in picture.ranks],
    }


def _went_wrong(folding: Folding, slot: Slot) -> bool:
    rows = (folding.matched.row_of[rank, slot.group, seq] for rank, seq in slot.calls.items())
    return not slot.expected or any(row["completed_ns"] is None for row in rows)


def _ended(matched: Matched, known: SourceTexts) -> list[tuple[CodeLine, ...]]:
    """The lines that led to the call in which each rank ended; none if it ended in no call."""
    timeline = matched.timeline
    ended_in = [
        None if end.call is None else matched.row_of.get((rank, end.group or timeline.default_group, end.call))
        for rank, end in enumerate(timeline.ends)
    ]
    return [known.lines_of(row) if row else () for row in ended_in]
