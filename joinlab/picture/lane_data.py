"""Lane data: the lanes of one or more Timelines as compact JSON, for the script that draws the live view.

Every position and every word is decided in `lanes`, `details` and `diagnosis`; the script only draws. A text is
written once and named by its number after that, a box that stands in several layouts is described once, and the
whole is compressed: a run of 2 ranks with 5 inputs is about 4 kB, in all its layouts.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from joinlab.analysis.diagnosis import diagnose_matched
from joinlab.analysis.matching import Matched
from joinlab.picture.details import MADE
from joinlab.picture.lanes import Box, Lanes, every_lanes
from joinlab.picture.rows import Kind
from joinlab.picture.theme import BAND_NAMES, HOST, INK, SPAN, STREAM, STYLES, WAIT, WRONG, good, measured, sign, title
from joinlab.timeline import Timeline

KINDS = tuple(STYLES)
LAYOUTS = (("logical", False), ("logical", True), ("time", False), ("time", True))
"""The (axis, setup) of each entry of a run's "layouts"."""

OPEN, BAD, FAILED = 1, 2, 4  # flags of a box
MET = 1  # flag of a band; BAD is the other

LOOKS = {
    "kinds": [[kind.value, *STYLES[kind]] for kind in KINDS],
    "bands": [[bad, met, name] for (bad, met), name in BAND_NAMES.items()],
    "wrong": WRONG,
    "ink": INK,
    "wait": WAIT,
    "span": SPAN,
    "host": HOST,
    "stream": STREAM,
    "white": [KINDS.index(Kind.FINAL)],  # on this kind alone, text is white
    "first": ("dtype", "shape", "value in", "value out", MADE, "error"),  # what a reader looks for first
    "made": MADE,
}
"""Colours, hatchings and proportions, as `looks` has them."""


class Table:
    """Numbers the different values that it is given, in order."""

    def __init__(self, values: Iterable[Hashable] = ()) -> None:
        self._at: dict[Any, int] = {value: at for at, value in enumerate(values)}

    def __call__(self, value: Hashable) -> int:
        """The number of `value`."""
        return self._at.setdefault(value, len(self._at))

    def __len__(self) -> int:
        return len(self._at)

    @property
    def values(self) -> list[Any]:
        """What was numbered, in that order."""
        return list(self._at)


def fresh(numbers: Iterable[int], known: int = 0) -> list[int]:
    """Numbers of a table, each that comes for the first time written as 0 and any other one higher: these repeat.

    known  how many the table held before

    >>> fresh([0, 1, 0, 2])
    [0, 0, 1, 0]
    """
    found = []
    for number in numbers:
        found.append(0 if number == known else number + 1)
        known += number == known
    return found


class LaneData:
    """Collects runs; what they have in common is held once.

    base  another LaneData that the reader has already: only what is new to it is written

        data = LaneData()
        data.add(timeline)
        data.packed()               # bytes: gzip of JSON
    """

    def __init__(self, base: LaneData | None = None) -> None:
        self._texts: Table = Table(base._texts.values if base else ())
        self._facts: Table = Table(base._facts.values if base else ())
        self._told: Table = Table(base._told.values if base else ())  # what is to be said of a box: several facts
        self._pairs: list[int] = []  # of each new fact, the numbers of its name and of what it says
        self._runs: list[dict[str, Any]] = []
        self._known = len(self._texts), len(self._facts), len(self._told)

    def add(self, timeline: Timeline) -> int:
        """Add a Timeline and return the number of its run: the same for what would look the same."""
        run = self._run(timeline)
        new = self._facts.values[self._known[1] + len(self._pairs) // 2 :]
        self._pairs += [self._texts(said) for pair in new for said in pair]
        if run not in self._runs:
            self._runs.append(run)
        return self._runs.index(run)

    def packed(self, with_runs: bool = True) -> bytes:
        """All of it, as compressed JSON; the same runs give the same bytes. Without runs it can still be a base."""
        texts, known, told = self._known
        new = self._told.values[told:]
        flat = iter(fresh((fact for facts in new for fact in facts), known))
        parts = {
            "texts": self._texts.values[texts:],
            "facts": self._pairs,
            "told": [[next(flat) for _ in facts] for facts in new],
            "runs": self._runs if with_runs else [],
        }
        looks = {} if texts else {"looks": LOOKS}
        return gzip.compress(json.dumps(looks | parts, ensure_ascii=False, separators=(",", ":")).encode(), 6, mtime=0)

    def _run(self, timeline: Timeline) -> dict[str, Any]:
        matched, text = Matched(timeline), self._texts
        said, layouts = diagnose_matched(matched), every_lanes(matched)
        caps = layouts["logical", False].caps
        source = Source.of(timeline)
        things = Table()
        zero = layouts["time", True].begin
        boxes: list[Box] = []
        places = [self._layout(layouts[at], things, boxes, zero if at[0] == "time" else 0.0) for at in LAYOUTS]
        return {
            "ranks": timeline.world_size,
            "title": text(title(timeline)),
            "measured": text(measured(timeline)),
            "modelled": int(layouts["logical", False].modelled),
            "said": text(said.sentence),
            "why": [text(one.sentence) for one in said.ranks],
            "ends": [text(cap.text) for cap in caps],
            "good": [int(good(cap)) for cap in caps],
            "sign": "".join(sign(cap) for cap in caps),
            "ended": _ended(matched, source),
            "source": [text(source.name), source.first_line, text(source.text)] if source.text else [],
            "zero": round(zero),
            "rank": [box.rank for box in boxes],
            "kind": [KINDS.index(box.kind) for box in boxes],
            "label": [text(box.label) for box in boxes],
            "short": [text(box.short) for box in boxes],
            "flags": [OPEN * box.open + BAD * box.bad + FAILED * box.failed for box in boxes],
            "slot": [_or(box.slot) for box in boxes],
            "line": [source.line(box.site) for box in boxes],
            "told": _steps([self._tell(box) for box in boxes]),
            "layouts": places,
        }

    def _tell(self, box: Box) -> int:
        """The number of what is to be said of a box: not its label and rank again, and nothing of a wait."""
        skip = len(box.details) if box.kind is Kind.WAIT else 2
        return self._told(tuple(map(self._facts, box.details[skip:])))

    def _layout(self, picture: Lanes, things: Table, described: list[Box], zero: float) -> dict[str, Any]:
        """Where things stand in one layout; a box that no other layout had is added to those that are described."""
        unit = 0.01 if picture.unit == "rows" else 1.0

        def at(place: float) -> int:
            return round((place - zero) / unit)

        text, boxes, bands = self._texts, picture.boxes, picture.bands
        numbers = []
        for box in boxes:
            numbers.append(things(id(box.details)))  # made once, and the same object in every layout
            described += [box] * (numbers[-1] == len(described))
        return {
            "unit": unit,
            "begin": at(picture.begin),
            "end": at(picture.end),
            "thing": _steps(numbers),
            "from": _steps([at(box.begin) for box in boxes]),
            "for": [at(box.end) - at(box.begin) for box in boxes],
            "track": [box.track for box in boxes] if any(box.track for box in boxes) else [],
            "tracks": [box.tracks for box in boxes] if any(box.track for box in boxes) else [],
            "bands": [[band.slot, band.a, band.b, MET * band.met + BAD * band.bad, text(band.text)] for band in bands],
            "notes": [
                [_or(note.rank), at(note.begin), at(note.end), text(note.line), int(note.bad), _or(note.slot)]
                + [text(note.whole)] * (note.whole != note.line)
                for note in picture.notes
            ],
            "groups": [[_or(one.rank), at(one.begin), at(one.end), text(one.label)] for one in picture.groups],
            "stops": [at(cap.at) for cap in picture.caps],
        }


@dataclass(frozen=True, slots=True)
class Source:
    """The program that is shown beside the lanes; `text` is "" where it is not known."""

    file: str
    first_line: int
    text: str

    @classmethod
    def of(cls, timeline: Timeline) -> Source:
        known = timeline.meta.get("source") or {}
        text = str(known.get("text") or "").rstrip("\n")
        return cls(str(known.get("file") or "the program"), int(known.get("first_line") or 1), text)

    @property
    def name(self) -> str:
        """The file, without its folder."""
        return self.file.replace("\\", "/").rpartition("/")[2]

    def line(self, site: str) -> int:
        """The line of a "file:line" within the program; 0 if it lies elsewhere."""
        file, _, number = site.rpartition(":")
        return int(number) if self.text and file == self.file and number.isdecimal() else 0


def pack(timeline: Timeline, base: LaneData | None = None) -> bytes:
    """The data of one Timeline, for a reader who has `base`.

    len(pack(timeline))         # bytes on the wire
    """
    data = LaneData(base)
    data.add(timeline)
    return data.packed()


def _steps(numbers: Sequence[int]) -> list[int]:
    """Each number's distance from the one before: these repeat."""
    return [number - before for before, number in zip((0, *numbers), numbers, strict=False)]


def _or(value: int | None) -> int:
    return -1 if value is None else value


def _ended(matched: Matched, source: Source) -> list[int]:
    """The line of the call in which each rank ended; 0 if it ended in none, or in one that lies elsewhere."""
    timeline = matched.timeline
    keys = [(rank, end.group or timeline.default_group, end.call) for rank, end in enumerate(timeline.ends)]
    ended_in = [matched.row_of.get(key) for key in keys]  # none, for an end without a call
    return [source.line(row["call_site"] or "" if row else "") for row in ended_in]
