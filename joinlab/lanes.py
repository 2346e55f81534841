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
from itertools import groupby, pairwise
from textwrap import wrap

from joinlab.details import Details, call_details, moment, span_details, tensor, wait_details
from joinlab.steps import Kind, Row, Step, fold, kind, plan, short, stretches, unlike
from joinlab.timeline import CALL_COLUMNS, SPAN_COLUMNS, Ending, EndKind, Timeline

Place = tuple[float, float]
"""Where a box begins and ends along the axis."""


class Lane(StrEnum):
    """The two lanes of a rank."""

    HOST = "host"
    STREAM = "stream"


@dataclass(frozen=True, slots=True)
class Box:
    """One rectangle: a call, a wait or a span.

    label    what it says, in full; `short` is the same for narrow columns
    open     it never ended: `end` is only where the picture of its rank stops
    bad      it met a call that it should not have met
    failed   the backend raised instead of completing it
    track    calls of one rank can be under way at the same time; their boxes stand side by side: this is the
             track-th of `tracks`
    details  (name, text) of every column, for a tooltip
    slot     index into match(timeline), for a fold the first of several; None for a span
    site     "file:line" of the learner's code that it came from; "" if not known, or of several calls
    """

    rank: int
    lane: Lane
    kind: Kind
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
    site: str = ""


@dataclass(frozen=True, slots=True)
class Band:
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

    text   broken into lines that leave room for it; `whole` is the same in one
    slot   index into match(timeline); None if it is about no slot
    """

    rank: int | None
    begin: float
    end: float
    text: str
    bad: bool
    slot: int | None = None
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
    """The whole picture, from `begin` to `end`. `modelled`: its times are of an emulated clock."""

    axis: str
    world_size: int
    begin: float
    end: float
    boxes: tuple[Box, ...]
    bands: tuple[Band, ...]
    notes: tuple[Note, ...]
    groups: tuple[Group, ...]
    caps: tuple[Cap, ...]
    modelled: bool

    @property
    def unit(self) -> str:
        """Unit of every position: "rows" on the logical axis, "ns" on the time axis."""
        return "rows" if self.axis == "logical" else "ns"


AXES = ("logical", "time")
NO_CALL = "No call was recorded."
NARROW = 4  # from so many ranks on, columns are too narrow for full labels
GAP = 0.1  # free space above and below a box on the logical axis, in rows
TAIL = 0.7  # by how much a call that never completes is drawn on, in rows
NOTE = 0.75  # height of a line of a note, in rows
LINE, SHORT_LINE = 120, 60  # its length across all ranks, and below one, in characters
MARGIN = 0.1  # of the extent of the time axis: how far what never ends is drawn on


def lanes(timeline: Timeline, axis: str = "logical", setup: bool = False) -> Lanes:
    """Lay out a Timeline.

    axis   "logical" (one row per slot) or "time" (the recorded clock)
    setup  False folds the calls of DDP's construction and bucket rebuild, which the documented traces leave out,
           into one box a stretch; one that went wrong is never folded

    Raises ValueError for another axis.

        [note.text for note in lanes(timeline).notes]        # where calls met that should not have
    """
    if axis not in AXES:
        raise ValueError(f"axis must be 'logical' or 'time', not {axis!r}")
    return _lay_out(_Run(timeline), axis, setup)


def every_lanes(timeline: Timeline) -> dict[tuple[str, bool], Lanes]:
    """The lanes of a Timeline by (axis, setup): what a view needs that lets its reader choose. Cheaper than one by one.

    every_lanes(timeline)["time", True]         # as lanes(timeline, "time", setup=True)
    """
    run = _Run(timeline)
    return {(axis, setup): _lay_out(run, axis, setup) for axis in AXES for setup in (False, True)}


class _Run:
    """A Timeline with what every layout of it needs, looked up once."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.calls, self.spans = timeline.calls.to_dicts(), timeline.spans.to_dicts()
        self.steps = plan(timeline)
        tells_start = any(call["started_ns"] is not None for call in self.calls)
        self.call_details = [call_details(call, tells_start) for call in self.calls]
        self.wait_details = [wait_details(call) for call in self.calls]
        self.span_details = [span_details(span) for span in self.spans]


def _lay_out(run: _Run, axis: str, setup: bool) -> Lanes:
    timeline, calls, spans, steps = run.timeline, run.calls, run.spans, run.steps
    folded = steps if setup else fold(calls, steps)
    ranks = range(timeline.world_size)
    if not calls:
        layout = _Layout(stops=dict.fromkeys(ranks, 1.0), notes=[Note(None, 0.1, 0.9, NO_CALL, False, whole=NO_CALL)])
    elif axis == "logical":
        steps, layout = folded, _by_row(calls, spans, folded, ranks)
    else:  # a fold takes up no row here that is worth saving, unless it stands at the front
        front = folded[0] if folded and folded[0].folded and len(folded) > 1 else None
        steps = steps if front is None else (front, *steps[len(front.slots) :])
        layout = _by_time(calls, spans, front, ranks)
    return Lanes(
        axis=axis,
        world_size=timeline.world_size,
        begin=layout.begin,
        end=layout.end,
        boxes=tuple(_side_by_side([*_span_boxes(run, layout), *_call_boxes(run, steps, layout)])),
        bands=tuple(_bands(calls, steps, layout)),
        notes=tuple(layout.notes),
        groups=tuple(layout.groups),
        caps=tuple(_cap(timeline, rank, layout.stops[rank]) for rank in ranks),
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


def _by_row(calls: Sequence[Row], spans: Sequence[Row], steps: Sequence[Step], ranks: range) -> _Layout:
    layout = _Layout(stops=dict.fromkeys(ranks, 0.0))
    y, tops = 0.0, []
    for step in steps:
        tops.append(y)
        tail = TAIL if any(_pending(calls[call]) for call in step.calls) else 0.0
        for call in step.calls:
            layout.calls[call] = (y + GAP, y + 1 - GAP + (tail if _pending(calls[call]) else 0.0))
        y += 1 + tail
        if step.text:
            about = calls[step.calls[0]]["rank"] if len(step.calls) == 1 and len(ranks) < NARROW else None
            lines = wrap(step.text, LINE if about is None else SHORT_LINE)
            text = "\n".join(lines)
            layout.notes.append(Note(about, y, y + NOTE * len(lines), text, step.bad, step.slots[0], step.text))
            y += NOTE * len(lines)
        layout.stops.update({calls[call]["rank"]: y for call in step.calls})
    layout.end = max([y, *(stop + 1 for stop in layout.stops.values())])  # room for the last cap
    issued: dict[int, list[tuple[int, int]]] = {rank: [] for rank in ranks}
    for index, row in enumerate(calls):
        issued[row["rank"]].append((_begun(row) if row["enqueued_ns"] is None else row["enqueued_ns"], index))
        if row["host_wait_begin_ns"] is not None:
            begin, end = layout.calls[index]
            layout.waits[index] = (begin, layout.stops[row["rank"]] if _waits_for_ever(row) else end)
    for of_rank in issued.values():
        of_rank.sort()
    for index, span in enumerate(spans):
        of_rank, stop = issued[span["rank"]], span["end_ns"]
        first = bisect_left(of_rank, (span["begin_ns"], 0))
        behind = len(of_rank) if stop is None else bisect_left(of_rank, (max(stop, span["begin_ns"] + 1), 0))
        rows = [layout.calls[at] for _, at in of_rank[first:behind]]
        if rows:  # a span that issued no call has no place in an order of calls
            end = max(place[1] for place in rows) if stop is not None else layout.stops[span["rank"]]
            layout.spans[index] = (min(place[0] for place in rows), end)
    edges = zip(stretches(calls, steps), tops, [*tops[1:], y], strict=False)
    for label, run in groupby(edges, lambda edge: edge[0]):
        together = list(run)
        if label:
            layout.groups.append(Group(None, together[0][1], together[-1][2], label))
    return layout


def _by_time(calls: Sequence[Row], spans: Sequence[Row], front: Step | None, ranks: range) -> _Layout:
    hidden = set(front.calls) if front else set()
    shown = [call for at, call in enumerate(calls) if at not in hidden]
    known = [(row, _moments(row)) for row in (*shown, *spans)]
    begin = min((at for _, moments in known for at in moments), default=0)
    last = dict.fromkeys(ranks, begin)
    inputs: dict[tuple[int, int], list[int]] = {}
    for row, moments in known:
        last[row["rank"]] = max([last[row["rank"]], *moments])
        if row["input"] is not None:
            inputs.setdefault((row["rank"], row["input"]), []).extend(moments)
    margin = max(max(last.values()) - begin, 1) * MARGIN
    layout = _Layout(float(begin), max(last.values()) + margin)
    layout.stops = {rank: float(at) for rank, at in last.items()}
    layout.stops.update({row["rank"]: layout.end for row in (*shown, *spans) if _never(row)})
    for index, call in enumerate(calls):
        if index in hidden:
            layout.calls[index] = (begin - margin, begin - margin / 3)
            continue
        done, stop = call["completed_ns"], layout.stops[call["rank"]]
        if done is None and call["error"] is not None:
            done = call["host_wait_end_ns"]
        layout.calls[index] = _until(_begun(call), done, stop)
        if call["host_wait_begin_ns"] is not None:
            layout.waits[index] = _until(
                call["host_wait_begin_ns"], call["host_wait_end_ns"], layout.stops[call["rank"]]
            )
    for index, span in enumerate(spans):
        layout.spans[index] = _until(span["begin_ns"], span["end_ns"], layout.stops[span["rank"]])
    if front is not None:
        layout.begin, layout.earlier = begin - margin * 1.05, True
    for (rank, number), at in sorted(inputs.items()):
        layout.groups.append(Group(rank, float(min(at)), float(max(at)), f"inputs[{number}]"))
    return layout


def _until(begin: int, end: int | None, stop: float) -> Place:
    return float(begin), stop if end is None else float(end)


_TIMES = tuple(name for name in (*CALL_COLUMNS, *SPAN_COLUMNS) if name.endswith("_ns"))


def _moments(row: Row) -> list[int]:
    """Every recorded time of a call or span."""
    return [row[name] for name in _TIMES if row.get(name) is not None]


def _begun(call: Row) -> int:
    """When a call began; where the backend does not say (gloo), when it was handed over."""
    known = (call["started_ns"], call["enqueued_ns"], call["host_wait_begin_ns"], call["completed_ns"])
    return next((int(at) for at in known if at is not None), 0)


def _never(row: Row) -> bool:
    """True for a call that never completed, and a span that never ended."""
    if "end_ns" in row:
        return row["end_ns"] is None
    return _pending(row) or _waits_for_ever(row)


def _pending(call: Row) -> bool:
    return call["completed_ns"] is None and call["error"] is None


def _waits_for_ever(call: Row) -> bool:
    return call["host_wait_begin_ns"] is not None and call["host_wait_end_ns"] is None


# --- what is drawn there ----------------------------------------------------------------------------------------------


def _call_boxes(run: _Run, steps: Sequence[Step], layout: _Layout) -> Iterator[Box]:
    calls = run.calls
    for step in steps:
        if step.folded:
            yield from _fold_boxes(calls, step, layout)
            continue
        for index in step.calls:
            call, (begin, end) = calls[index], layout.calls[index]
            rank, slot, failed = call["rank"], step.slots[0], call["error"] is not None
            label = str(call["origin"] or call["op"])
            yield Box(
                rank=rank,
                lane=Lane.STREAM,
                kind=kind(call),
                begin=begin,
                end=end,
                label=label,
                short=short(label),
                open=_pending(call),
                bad=step.bad,
                failed=failed,
                details=run.call_details[index],
                slot=slot,
                site=call["call_site"] or "",
            )
            if index in layout.waits:
                begin, end = layout.waits[index]
                yield Box(
                    rank=rank,
                    lane=Lane.HOST,
                    kind=Kind.WAIT,
                    begin=begin,
                    end=end,
                    label=f"waits for {label}",
                    short="waits",
                    open=_waits_for_ever(call),
                    failed=failed,
                    details=run.wait_details[index],
                    slot=slot,
                    site=call["call_site"] or "",
                )


def _fold_boxes(calls: Sequence[Row], step: Step, layout: _Layout) -> Iterator[Box]:
    for rank, run in groupby(sorted(step.calls), lambda index: calls[index]["rank"]):
        members = list(run)
        begin, end = layout.calls[members[0]]
        what = " and ".join(dict.fromkeys(short(str(calls[index]["origin"])) for index in members))
        label = f"{what}: {_count(members)}" + (", earlier (not to scale)" if layout.earlier else "")
        listed = "\n".join(f"seq {calls[i]['seq']}: {calls[i]['origin']}, {tensor(calls[i])}" for i in members)
        first, last = calls[members[0]]["enqueued_ns"], max(calls[index]["completed_ns"] for index in members)
        known = "not known" if first is None else moment(first)
        details = (
            ("folded", label),
            ("rank", str(rank)),
            ("calls", listed),
            ("enqueued, the first", known),
            ("completed, the last", moment(last)),
        )
        yield Box(rank, Lane.STREAM, Kind.SETUP, begin, end, label, label, details=details, slot=step.slots[0])
        if waited := [index for index in members if index in layout.waits]:
            said = f"waits for {_count(waited)} of these"
            of = (("host", said), ("rank", str(rank)))
            yield Box(rank, Lane.HOST, Kind.WAIT, begin, end, said, "waits", details=of, slot=step.slots[0])


def _count(members: Sequence[int]) -> str:
    return f"{len(members)} call" + "s" * (len(members) > 1)


def _span_boxes(run: _Run, layout: _Layout) -> Iterator[Box]:
    for index, (begin, end) in layout.spans.items():
        span = run.spans[index]
        name, unended, site = str(span["name"]), span["end_ns"] is None, span["call_site"] or ""
        told = run.span_details[index]
        yield Box(span["rank"], Lane.HOST, Kind.SPAN, begin, end, name, name, unended, details=told, site=site)


def _side_by_side(boxes: Sequence[Box]) -> Iterator[Box]:
    """Gives each of the boxes that overlap a track of its own, so that none hides another."""
    lane: dict[tuple[int, Lane, bool], list[int]] = {}
    for index, box in enumerate(boxes):
        lane.setdefault((box.rank, box.lane, box.kind is Kind.WAIT), []).append(index)
    found: dict[int, tuple[int, int]] = {}
    for indices in lane.values():
        together: list[int] = []  # indices of boxes that overlap, directly or through others
        busy: list[float] = []  # where each track is free again
        for index in sorted(indices, key=lambda index: (boxes[index].begin, index)):
            box = boxes[index]
            if together and box.begin >= max(busy):
                found.update({at: (found[at][0], len(busy)) for at in together})
                together, busy = [], []
            track = next((at for at, free in enumerate(busy) if free <= box.begin), len(busy))
            busy[track : track + 1] = [box.end]
            found[index] = (track, len(busy))
            together.append(index)
        found.update({at: (found[at][0], len(busy)) for at in together})
    for index, box in enumerate(boxes):
        track, tracks = found[index]
        yield replace(box, track=track, tracks=tracks) if tracks > 1 else box


def _bands(calls: Sequence[Row], steps: Sequence[Step], layout: _Layout) -> Iterator[Band]:
    for step in steps:
        first = {calls[index]["rank"]: index for index in sorted(step.calls, reverse=True)}
        for a, b in pairwise(sorted(first)):
            one, other = first[a], first[b]
            bad = step.bad and unlike(calls[one], calls[other], step.differs)
            at_a, at_b = layout.calls[one], layout.calls[other]
            yield Band(step.slots[0], a, b, at_a, at_b, step.met or not bad, bad, step.text if bad else "")


def _cap(timeline: Timeline, rank: int, at: float) -> Cap:
    ending = timeline.ends[rank]
    text = str(ending)
    if ending.kind in (EndKind.RAISED, EndKind.KILLED) and ending.text:
        text += ": " + ending.text.splitlines()[0]
    return Cap(rank, at, ending, text)
