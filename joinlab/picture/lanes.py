"""Lanes: the picture of a Timeline as plain tuples, before anything is drawn.

Which box, where, and what it says: every renderer (the Plotly figure, the SVG picture) draws the same `Lanes`, and
their logic is tested here, without a browser. Each rank has two lanes. The host lane holds what the rank's Python
did (spans) and where it stood still (waits); the stream lane holds the collectives themselves. They are kept apart
because to wait for a call on a stream does not stop the host.

Two axes. "logical": one row per slot, that is per set of calls that met, in an order that agrees with every rank's
own order of issue. "time": the recorded clock, in nanoseconds. Positions are in the unit that `Lanes.unit` names
("rows" or "ns") and run from the top down.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from itertools import groupby, pairwise
from math import inf
from textwrap import wrap
from typing import NamedTuple

from joinlab.analysis.folding import Folding
from joinlab.analysis.folding import fold as fold_timeline
from joinlab.analysis.matching import Matched
from joinlab.analysis.meanings import asks_of
from joinlab.analysis.reading import Flags, left_out
from joinlab.analysis.reading import read as read_columns
from joinlab.analysis.source import CodeLine, SourceTexts
from joinlab.analysis.wording import at_input, tensor
from joinlab.picture.details import Details, call_details, moment, span_details, wait_details
from joinlab.picture.mismatches import notes
from joinlab.picture.rows import PictureRow, Row, RowKind, fold, kind, plan, stretches, unlike
from joinlab.timeline import CALL_COLUMNS, SPAN_COLUMNS, Ending, EndKind, Meta, SpanRow, Timeline

Place = tuple[float, float]
"""Where a box begins and ends along the axis."""


class Lane(StrEnum):
    """The two lanes of a rank."""

    HOST = "host"
    STREAM = "stream"


class Box(NamedTuple):  # made by the thousand, and so are bands: a frozen dataclass takes five times as long
    """One rectangle: a call, a wait or a span.

    label    what it says, in full; `short` is the same for narrow columns
    open     it never ended: `end` is only where the picture of its rank stops
    bad      it met a call that it should not have met
    failed   the backend raised instead of completing it
    track    calls of one rank can be under way at the same time; their boxes stand side by side: this is the
             track-th of `tracks`
    details  (name, text) of every column, for a tooltip
    slot     index into match(timeline), for a fold the first of several; None for a span
    lines    of the learner's code that it came from, innermost first; () if not known, or of several calls
    """

    rank: int
    lane: Lane
    kind: RowKind
    begin: float
    end: float
    label: str
    short: str
    open: bool = False
    bad: bool = False
    failed: bool = False
    track: int = 0
    tracks: int = 1
    details: Details = ()
    slot: int | None = None
    lines: tuple[CodeLine, ...] = ()

    def at(self, place: Place) -> Box:
        """The same box at another place."""
        return Box._make((*self[:3], *place, *self[5:]))


class Band(NamedTuple):
    """Joins two calls of one slot, from the stream lane of rank `a` to that of rank `b`; a < b.

    bad   they do not belong together; `text` says what each rank issued
    met   False: they are of kinds that never meet, and miss each other
    """

    slot: int
    a: int
    b: int
    at_a: Place
    at_b: Place
    met: bool
    bad: bool
    text: str


@dataclass(frozen=True, slots=True)
class Note:
    """Text below a row (logical axis only), across all ranks, or about the call of one rank.

    text   broken into lines that leave room for it; `line` is the same in one
    slot   index into match(timeline); None if it is about no slot
    whole  all there is to say: more than `line` where the row before was wrong already
    """

    rank: int | None
    begin: float
    end: float
    text: str
    bad: bool
    slot: int | None = None
    line: str = ""
    whole: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """The stretch in which one input was processed: on all ranks (rank None; logical axis), or on one (time axis)."""

    rank: int | None
    begin: float
    end: float
    label: str


@dataclass(frozen=True, slots=True)
class Cap:
    """How a rank ended, and where its lanes stop."""

    rank: int
    at: float
    ending: Ending
    text: str


@dataclass(frozen=True, slots=True)
class Lanes:
    """The whole picture, from `begin` to `end`. `modelled`: its times are of an emulated clock.

    lanes  their names: "rank 0", "ranks 1-7". The `rank` of a box, band, note, group or cap is an index of these
    ranks  the ranks of each lane
    """

    axis: str
    lanes: tuple[str, ...]
    ranks: tuple[tuple[int, ...], ...]
    begin: float
    end: float
    boxes: tuple[Box, ...]
    bands: tuple[Band, ...]
    notes: tuple[Note, ...]
    groups: tuple[Group, ...]
    caps: tuple[Cap, ...]
    modelled: bool

    @property
    def world_size(self) -> int:
        """Number of lanes."""
        return len(self.lanes)

    @property
    def unit(self) -> str:
        """Unit of every position: "rows" on the logical axis, "ns" on the time axis."""
        return "rows" if self.axis == "logical" else "ns"


AXES = ("logical", "time")
NO_CALL = "No call was recorded."
NARROW = 4  # from so many ranks on, columns are too narrow for full labels
GAP = 0.1  # free space above and below a box on the logical axis, in rows
LISTED = 8  # a fold's details name so many calls at either end
TAIL = 0.7  # by how much a call that never completes is drawn on, in rows
NOTE = 0.75  # height of a line of a note, in rows
LINE, SHORT_LINE = 120, 60  # its length across all ranks, and below one, in characters
MARGIN = 0.1  # of the extent of the time axis: how far what never ends is drawn on


def lanes(timeline: Timeline, axis: str = "logical", setup: bool = False) -> Lanes:
    """Lay out a Timeline.

    axis   "logical" (one row per slot) or "time" (the recorded clock)
    setup  False folds rounds that matched, and DDP's own setup, into one row each; True shows every row

    Raises ValueError for another axis.

        [note.text for note in lanes(timeline).notes]        # where calls met that should not have
    """
    if axis not in AXES:
        raise ValueError(f"axis must be 'logical' or 'time', not {axis!r}")
    return _lay_out(_Run(*read(timeline)), axis, setup)


def read(timeline: Timeline, ranks: bool = True) -> tuple[Matched, Folding, Flags | None]:
    """What a picture shows of a Timeline: its calls, matched, and folded; of one with many, those that tell the story.

    ranks  False: every rank has a lane of its own; else up to four have, and of more those alike share one

    The last of the three is None, or, where slots are left out, what `analysis.reading` finds odd in the whole.
    """
    folding, found = fold_timeline(timeline, ranks=ranks and timeline.world_size > NARROW), read_columns(timeline)
    return folding.every, folding, found.odd if found.is_part else None


def every_lanes(matched: Matched, folding: Folding, odd: Flags | None = None) -> dict[tuple[str, bool], Lanes]:
    """The lanes of a Timeline by (axis, setup): what a view needs that lets its reader choose. Cheaper than one by one.

    odd  as `read` gives it: of a large Timeline, there are the folded rows alone

    every_lanes(*read(timeline))["time", True]          # as lanes(timeline, "time", setup=True)
    """
    run = _Run(matched, folding, odd)
    if odd is not None:
        return {("logical", False): _lay_out(run, "logical", False)}
    return {(axis, setup): _lay_out(run, axis, setup) for axis in AXES for setup in (False, True)}


class _Run:
    """A Timeline with what every layout of it needs, looked up once.

    call_boxes, wait_boxes  by index of the call: its box, and that of the wait for it, at no place as yet
    span_boxes              the same of the spans
    issued                  per rank, when each of its calls was handed over, in that order, and the call's index
    begun                   when each call began
    call_times, span_times  the first and the last recorded time of each; () where there is none
    """

    def __init__(self, matched: Matched, folding: Folding, odd: Flags | None = None) -> None:
        self.timeline = matched.timeline
        self.odd = odd  # of the whole run, by slot; None: this is the whole
        self.folding = folding
        self.lane_of = {ranks[0]: lane for lane, ranks in enumerate(self.folding.classes)}
        self.calls = self.folding.matched.rows
        self.spans = [span for span in matched.timeline.rows("spans") if span["rank"] in self.lane_of]
        self.numbers = self.folding.numbers
        self.steps = plan(self.folding.matched, self.numbers, self.folding.lanes)
        meta = self.timeline.meta
        tells_start = any(call["started_ns"] is not None for call in self.calls)
        texts = SourceTexts.of(self.timeline)
        self.call_boxes: dict[int, Box] = {}
        self.wait_boxes: dict[int, Box] = {}
        for step in self.steps:
            for index in step.calls:
                call, slot = self.calls[index], step.slots[0]
                lines = texts.lines_of(call)
                self.call_boxes[index] = _call_box(call, slot, step.bad, tells_start, meta, lines)
                if call["host_wait_begin_ns"] is not None:
                    self.wait_boxes[index] = _wait_box(call, slot, lines)
        self.span_boxes = [_span_box(span, meta, texts.lines_of(span)) for span in self.spans]
        self.issued: dict[int, list[tuple[int, int]]] = {rank: [] for rank in self.lane_of}
        self.begun = [_begun(call) for call in self.calls]
        for index, call in enumerate(self.calls):
            at = self.begun[index] if call["enqueued_ns"] is None else call["enqueued_ns"]
            self.issued[call["rank"]].append((at, index))
        for of_rank in self.issued.values():
            of_rank.sort()
        self.call_times = [_first_and_last(call, _CALL_TIMES) for call in self.calls]
        self.span_times = [_first_and_last(span, _SPAN_TIMES) for span in self.spans]

    def lane(self, rank: int | None) -> int | None:
        """The lane that a rank stands for; None for what is about all of them."""
        return None if rank is None else self.lane_of[rank]


def _lay_out(run: _Run, axis: str, setup: bool) -> Lanes:
    timeline, calls, steps = run.timeline, run.calls, run.steps
    folded = steps if setup else fold(steps, run.folding.parts, run.numbers)
    ranks = list(run.lane_of)
    if not calls:
        layout = _Layout(
            stops=dict.fromkeys(ranks, 1.0), notes=[Note(None, 0.1, 0.9, NO_CALL, False, line=NO_CALL, whole=NO_CALL)]
        )
    elif axis == "logical":
        steps, layout = folded, _by_row(run, folded)
    else:  # a fold takes up no row here that is worth saving, unless it stands at the front
        front = folded[0] if folded and folded[0].fold is not None and len(folded) > 1 else None
        steps = steps if front is None else (front, *steps[len(front.slots) :])
        layout = _by_time(run, front)
    return Lanes(
        axis=axis,
        lanes=tuple(map(run.folding.name, ranks)),
        ranks=run.folding.classes,
        begin=layout.begin,
        end=layout.end,
        boxes=_in_lanes(run, _side_by_side([*_span_boxes(run, layout), *_call_boxes(run, steps, layout)])),
        bands=tuple(_bands(run, steps, layout)),
        notes=tuple(replace(one, rank=run.lane(one.rank)) for one in layout.notes),
        groups=tuple(replace(one, rank=run.lane(one.rank)) for one in layout.groups),
        caps=tuple(_cap(timeline, lane, rank, layout.stops[rank]) for lane, rank in enumerate(ranks)),
        modelled=timeline.meta.get("engine") == "emulated",
    )


# --- where things go --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Layout:
    """Places of calls, waits (by index of the call) and spans (by index), and where each rank's lanes stop."""

    begin: float = 0.0
    end: float = 1.0
    earlier: bool = False  # a fold stands for what came before the picture begins
    calls: dict[int, Place] = field(default_factory=dict)
    waits: dict[int, Place] = field(default_factory=dict)
    spans: dict[int, Place] = field(default_factory=dict)
    stops: dict[int, float] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)


def _by_row(run: _Run, steps: Sequence[PictureRow]) -> _Layout:
    calls, ranks = run.calls, run.issued.keys()
    layout = _Layout(stops=dict.fromkeys(ranks, 0.0))
    inside = {call for step in steps if step.fold is not None for call in step.calls}
    y, tops = 0.0, []
    if remark := run.folding.remark():
        lines = _wrapped(remark, LINE)
        layout.notes.append(Note(None, y, y + NOTE * len(lines), "\n".join(lines), False, None, remark, remark))
        y += NOTE * len(lines)
    told = None  # the last slot so far
    for step, (drawn, whole) in zip(steps, notes(calls, steps), strict=True):
        if run.odd is not None and (said := left_out(run.odd, told, step.slots[0])):
            layout.notes.append(Note(None, y, y + NOTE, said, False, step.slots[0] - 1, said, said))
            y += NOTE
        told = step.slots[-1]
        tops.append(y)
        tail = TAIL if any(_pending(calls[call]) for call in step.calls) else 0.0
        for call in step.calls:
            layout.calls[call] = (y + GAP, y + 1 - GAP + (tail if _pending(calls[call]) else 0.0))
        y += 1 + tail
        if drawn:
            about = calls[step.calls[0]]["rank"] if len(step.calls) == 1 and len(ranks) < NARROW else None
            lines = _wrapped(drawn, LINE if about is None else SHORT_LINE)
            text = "\n".join(lines)
            layout.notes.append(Note(about, y, y + NOTE * len(lines), text, step.bad, step.slots[0], drawn, whole))
            y += NOTE * len(lines)
        layout.stops.update({calls[call]["rank"]: y for call in step.calls})
    layout.end = max([y, *(stop + 1 for stop in layout.stops.values())])  # room for the last cap
    for index, box in run.wait_boxes.items():
        begin, end = layout.calls[index]
        layout.waits[index] = (begin, layout.stops[box.rank] if box.open else end)
    for index, span in enumerate(run.spans):
        of_rank, stop = run.issued[span["rank"]], span["end_ns"]
        first = bisect_left(of_rank, (span["begin_ns"], 0))
        behind = len(of_rank) if stop is None else bisect_left(of_rank, (max(stop, span["begin_ns"] + 1), 0))
        rows = [layout.calls[at] for _, at in of_rank[first:behind] if at not in inside]
        if rows:  # a span that issued no call, or only folded ones, has no place of its own in an order of calls
            end = max(place[1] for place in rows) if stop is not None else layout.stops[span["rank"]]
            layout.spans[index] = (min(place[0] for place in rows), end)
    edges = zip(stretches(calls, steps, run.timeline.meta), tops, [*tops[1:], y], strict=False)
    for label, stretch in groupby(edges, lambda edge: edge[0]):
        together = list(stretch)
        if label:
            layout.groups.append(Group(None, together[0][1], together[-1][2], label))
    return layout


@lru_cache(1024)  # two layouts say the same, and the next run says much of it again
def _wrapped(text: str, width: int) -> tuple[str, ...]:
    return tuple(wrap(text, width))


def _by_time(run: _Run, front: PictureRow | None) -> _Layout:
    calls, spans, ranks = run.calls, run.spans, run.issued.keys()
    hidden = set(front.calls) if front else set()
    shown = [(call, run.call_times[index]) for index, call in enumerate(calls) if index not in hidden]
    known = [(row, times) for row, times in (*shown, *zip(spans, run.span_times, strict=True)) if times]
    begin = min((times[0] for _, times in known), default=0)
    last = dict.fromkeys(ranks, begin)
    inputs: dict[tuple[int, int], list[int]] = {}
    for row, times in known:
        last[row["rank"]] = max(last[row["rank"]], times[1])
        if row["input"] is not None:
            inputs.setdefault((row["rank"], row["input"]), []).extend(times)
    margin = max(max(last.values()) - begin, 1) * MARGIN
    layout = _Layout(float(begin), max(last.values()) + margin)
    layout.stops = {rank: float(at) for rank, at in last.items()}
    layout.stops.update({call["rank"]: layout.end for call, _ in shown if _pending(call) or _waits_for_ever(call)})
    layout.stops.update({span["rank"]: layout.end for span in spans if span["end_ns"] is None})
    for index, call in enumerate(calls):
        if index in hidden:
            layout.calls[index] = (begin - margin, begin - margin / 3)
            continue
        done, stop = call["completed_ns"], layout.stops[call["rank"]]
        if done is None and call["error"] is not None:
            done = call["host_wait_end_ns"]
        layout.calls[index] = _until(run.begun[index], done, stop)
        if call["host_wait_begin_ns"] is not None:
            layout.waits[index] = _until(call["host_wait_begin_ns"], call["host_wait_end_ns"], stop)
    for index, span in enumerate(spans):
        layout.spans[index] = _until(span["begin_ns"], span["end_ns"], layout.stops[span["rank"]])
    if front is not None:
        layout.begin, layout.earlier = begin - margin * 1.05, True
    for (rank, number), at in sorted(inputs.items()):
        layout.groups.append(Group(rank, float(min(at)), float(max(at)), at_input(number, run.timeline.meta)))
    return layout


def _until(begin: int, end: int | None, stop: float) -> Place:
    return float(begin), stop if end is None else float(end)


_CALL_TIMES = tuple(name for name in CALL_COLUMNS if name.endswith("_ns"))
_SPAN_TIMES = tuple(name for name in SPAN_COLUMNS if name.endswith("_ns"))


def _first_and_last(row: Row | SpanRow, names: Sequence[str]) -> tuple[int, int] | tuple[()]:
    times = [at for name in names if isinstance(at := row.get(name), int)]
    return (min(times), max(times)) if times else ()


def _begun(call: Row) -> int:
    """When a call began; where the backend does not say (gloo), when it was handed over."""
    known = (call["started_ns"], call["enqueued_ns"], call["host_wait_begin_ns"], call["completed_ns"])
    return next((int(at) for at in known if at is not None), 0)


def _pending(call: Row) -> bool:
    return call["completed_ns"] is None and call["error"] is None


def _waits_for_ever(call: Row) -> bool:
    return call["host_wait_begin_ns"] is not None and call["host_wait_end_ns"] is None


# --- what is drawn there ----------------------------------------------------------------------------------------------


_NOWHERE = (0.0, 0.0)


def _call_box(call: Row, slot: int, bad: bool, tells_start: bool, meta: Meta, lines: tuple[CodeLine, ...]) -> Box:
    label = asks_of(call)
    return Box(
        call["rank"],
        Lane.STREAM,
        kind(call),
        *_NOWHERE,
        label,
        label,
        open=_pending(call),
        bad=bad,
        failed=call["error"] is not None,
        details=call_details(call, tells_start, meta),
        slot=slot,
        lines=lines,
    )


def _wait_box(call: Row, slot: int, lines: tuple[CodeLine, ...]) -> Box:
    return Box(
        call["rank"],
        Lane.HOST,
        RowKind.WAIT,
        *_NOWHERE,
        f"waits for {call['origin'] or call['op']}",
        "waits",
        open=_waits_for_ever(call),
        failed=call["error"] is not None,
        details=wait_details(call),
        slot=slot,
        lines=lines,
    )


def _span_box(span: SpanRow, meta: Meta, lines: tuple[CodeLine, ...]) -> Box:
    name, unended = str(span["name"]), span["end_ns"] is None
    told = span_details(span, meta)
    return Box(span["rank"], Lane.HOST, RowKind.SPAN, *_NOWHERE, name, name, unended, details=told, lines=lines)


def _call_boxes(run: _Run, steps: Sequence[PictureRow], layout: _Layout) -> Iterator[Box]:
    for step in steps:
        if step.fold is not None:
            yield from _fold_boxes(run, step, layout)
            continue
        for index in step.calls:
            yield run.call_boxes[index].at(layout.calls[index])
            if index in layout.waits:
                yield run.wait_boxes[index].at(layout.waits[index])


def _fold_boxes(run: _Run, step: PictureRow, layout: _Layout) -> Iterator[Box]:
    calls, fold = run.calls, step.fold
    assert fold is not None
    for rank, members_of in groupby(sorted(step.calls), lambda index: calls[index]["rank"]):
        members = list(members_of)
        begin, end = layout.calls[members[0]]
        what = run.folding.label(fold, rank)
        label = what + (", earlier (not to scale)" if layout.earlier else "")
        shown = members if len(members) <= 2 * LISTED else [*members[:LISTED], *members[-LISTED:]]
        listed = [f"call {calls[i]['number']}: {calls[i]['origin']}, {tensor(calls[i])}" for i in shown]
        if len(shown) < len(members):
            listed.insert(LISTED, f"... {len(members) - len(shown)} more ...")
        first, last = calls[members[0]]["enqueued_ns"], max(calls[index]["completed_ns"] or 0 for index in members)
        known = "not known" if first is None else moment(first)
        details = (
            ("folded", f"{what}: {_count(members)}, all matched"),
            ("rank", str(rank)),
            ("calls", "\n".join(listed)),
            ("enqueued, the first", known),
            ("completed, the last", moment(last)),
        )
        slot = step.slots[0]
        yield Box(rank, Lane.STREAM, RowKind.FOLD, begin, end, label, label, details=details, slot=slot)
        if waited := [index for index in members if index in layout.waits]:
            said = f"waits for {_count(waited)} of these"
            of = (("host", said), ("rank", str(rank)))
            yield Box(rank, Lane.HOST, RowKind.WAIT, begin, end, said, "waits", details=of, slot=slot)


def _count(members: Sequence[int]) -> str:
    return f"{len(members)} call" + "s" * (len(members) > 1)


def _span_boxes(run: _Run, layout: _Layout) -> Iterator[Box]:
    for index, place in layout.spans.items():
        yield run.span_boxes[index].at(place)


def _side_by_side(boxes: list[Box]) -> tuple[Box, ...]:
    """The boxes, each of those that overlap on a track of its own, so that none hides another."""
    lane: dict[tuple[int, Lane, bool], list[int]] = {}
    for index, box in enumerate(boxes):
        lane.setdefault((box.rank, box.lane, box.kind is RowKind.WAIT), []).append(index)
    for indices in lane.values():
        together: list[int] = []  # indices of boxes that overlap, directly or through others
        until = -inf  # where the last of them ends
        for index in sorted(indices, key=lambda index: boxes[index].begin):
            if boxes[index].begin >= until:
                _give_tracks(boxes, together)
                together = []
            together.append(index)
            until = max(until, boxes[index].end)
        _give_tracks(boxes, together)
    return tuple(boxes)


def _give_tracks(boxes: list[Box], together: Sequence[int]) -> None:
    if len(together) < 2:
        return
    busy: list[float] = []  # where each track is free again
    found = []
    for index in together:
        track = next((at for at, free in enumerate(busy) if free <= boxes[index].begin), len(busy))
        busy[track : track + 1] = [boxes[index].end]
        found.append(track)
    for index, track in zip(together, found, strict=True):
        boxes[index] = boxes[index]._replace(track=track, tracks=len(busy))


def _in_lanes(run: _Run, boxes: Sequence[Box]) -> tuple[Box, ...]:
    """The same boxes, each with the index of its lane in place of its rank."""
    if all(lane == rank for rank, lane in run.lane_of.items()):
        return tuple(boxes)
    return tuple(box._replace(rank=run.lane_of[box.rank]) for box in boxes)


def _bands(run: _Run, steps: Sequence[PictureRow], layout: _Layout) -> Iterator[Band]:
    calls, lane_of = run.calls, run.lane_of
    for step in steps:
        first = {calls[index]["rank"]: index for index in sorted(step.calls, reverse=True)}
        for a, b in pairwise(sorted(first)):
            one, other = first[a], first[b]
            bad = step.bad and unlike(calls[one], calls[other], step.differs)
            at_a, at_b = layout.calls[one], layout.calls[other]
            yield Band(
                step.slots[0], lane_of[a], lane_of[b], at_a, at_b, step.met or not bad, bad, step.text if bad else ""
            )


def _cap(timeline: Timeline, lane: int, rank: int, at: float) -> Cap:
    ending = timeline.ends[rank]
    text = "still running" if ending.runs else str(ending)
    if ending.kind in (EndKind.RAISED, EndKind.KILLED) and ending.text:
        text += ": " + ending.text.splitlines()[0]
    return Cap(lane, at, ending, text)
