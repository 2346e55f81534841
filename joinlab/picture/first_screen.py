"""The first screen of a run as plain data: a headline, lanes of calls, the one that goes wrong, the
line it came from.

A column is a stack of rounds in which all agree, or the calls of one place; it has a box in every
lane that takes part. All pictures draw these boxes: the scripts in static/, in either direction,
`svg` and `figure`. Every word, every link and every reading is decided here.

    first_screen(timeline).columns[3].flag         # "met", "wrong", "apart" or "open"
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, pairwise
from typing import Literal, NamedTuple

from joinlab.analysis.folding import Fold, Folding
from joinlab.analysis.folding import fold as fold_timeline
from joinlab.analysis.matching import wrong
from joinlab.analysis.meanings import asks_of, conclusion, number
from joinlab.analysis.source import SourceText, SourceTexts
from joinlab.analysis.wording import input_or_step, ranks_text
from joinlab.ops import COUNTERPART, CallRow, decode_values
from joinlab.picture.rows import DrawnSlot, RowKind, kind, label, plan, unlike
from joinlab.story.evidence import Evidence
from joinlab.story.forms.even import Even
from joinlab.story.forms.fates import Raised
from joinlab.story.forms.mismatch import WrongAnswer
from joinlab.story.forms.parted import LeftOut
from joinlab.story.judge import story_of
from joinlab.story.lines import Edit, Line, LineKind
from joinlab.timeline import FROM_TEXT, STOPPED, EndKind, Timeline

Flag = Literal["met", "wrong", "apart", "open"]
"""How the calls of a column fit: as meant; met, but should not have; never meet; somebody never
came."""

Tone = Literal["", "good", "warn", "bad"]

Size = Literal["stack", "slim", "mid", "big", "ghost"]
"""How much room a column has: what agrees is slim, what does not has room for words, and the
parting is big."""

MOST = 32
"""Of more columns than these, those that neither part nor end are stacked, whatever they hold."""

BEFORE, BEHIND = 3, 8
"""Columns that are kept before the one where the lanes part, or before the end; and from there
on."""

AFTER = 1
"""After the column where the lanes part, so many columns with mismatches are labelled; later ones
on hover."""

NARROW = 4
"""More lanes than these are shared by ranks that did the same, or of which the picture shows the
same."""

LANES = 8
"""Of more lanes than these, the last one holds all ranks that the story does not name."""


class Box(NamedTuple):
    """One lane of a column: a call, or a stack of calls.

    open    it never ended
    bad     it met a call that it should not have met, or can never meet the one that it faces
    failed  the backend raised instead of completing it
    stack   what a stack holds in this lane, if not what its column says
    line    of the program shown, from which it comes, of a stack its last call; 0: unknown
    row     the call; None: it is a stack
    """

    kind: RowKind
    label: str
    open: bool = False
    bad: bool = False
    failed: bool = False
    stack: str = ""
    line: int = 0
    row: CallRow | None = None


@dataclass(frozen=True, slots=True)
class ScreenPiece:
    """Words, and the kind of call whose colour they have, or the tone."""

    text: str
    kind: RowKind | None = None
    tone: Tone = ""


@dataclass(slots=True)
class Column:
    """A column: the calls at one place of the lanes.

    slot     the first that it holds, as `joinlab.match` counts; `until` the last
    number   of its calls: "28", of a stack "0-24"
    boxes    one a lane; None: it issued no call here
    stack    what a stack holds: "5 inputs"; "" for calls
    said     what differs between its calls, or who never came
    clashes  pairs of lanes, one below the other, whose calls do not belong together
    absent   lanes that should have come, and never did
    lacks    of sends or recvs that nothing meets: "no recv", "no send"
    extra    the lane whose call is the one too many
    missing  (lane, call): that lane never issued this one, which should stand here
    far      whether room is left around it
    """

    slot: int
    until: int
    number: str
    boxes: list[Box | None]
    flag: Flag = "met"
    stack: str = ""
    said: str = ""
    clashes: tuple[tuple[int, int], ...] = ()
    absent: tuple[int, ...] = ()
    lacks: str = ""
    extra: int | None = None
    missing: tuple[int, str] | None = None
    size: Size = "slim"
    far: bool = False

    @property
    def drawn(self) -> list[Box]:
        """The boxes that there are."""
        return [box for box in self.boxes if box is not None]


@dataclass(frozen=True, slots=True)
class MisreadValue:
    """At a column lane `to` reads `value`, which lane `of` sent as `sent`, and takes it for its own
    answer."""

    column: int
    to: int
    of: int
    value: str
    sent: str
    taken: str


@dataclass(frozen=True, slots=True)
class ScreenLine:
    """A line of the program with the ranks that stand there, and the call that they issue; sign "-"
    goes, "+" comes."""

    sign: str
    number: int | None
    text: str
    here: tuple[ScreenPiece, ...] = ()


@dataclass(frozen=True, slots=True)
class FirstScreen:
    """All that the first screen says. `focus`: the column where the ranks part.

    ranks   of each lane; `names` of the lanes: "ranks 0-4, 6, 7"; `inputs` of each, None if they differ
    meant   (column, lane, column, lane): calls that should have met
    odd     the lane of the ranks that did otherwise than most, if they did not finish well
    ends    per lane (sign, word, tone, more)
    file    of the lines in `code`
    tried   what came of the edit that `code` shows, or why none was tried
    story   every other line of the story
    """

    ranks: tuple[tuple[int, ...], ...]
    names: tuple[str, ...]
    inputs: tuple[int | None, ...]
    headline: tuple[ScreenPiece, ...]
    columns: tuple[Column, ...]
    focus: int | None
    meant: tuple[tuple[int, int, int, int], ...]
    readings: tuple[MisreadValue, ...]
    odd: int | None
    ends: tuple[tuple[str, str, Tone, str], ...]
    file: str
    code: tuple[ScreenLine, ...]
    tried: ScreenPiece
    story: tuple[tuple[LineKind, tuple[ScreenPiece, ...]], ...]
    provenance: str

    @property
    def tone(self) -> Tone:
        """How all ended: the worst of the lanes; "warn", too, if calls met that should not have."""
        tones: list[Tone] = [tone for _, _, tone, _ in self.ends]
        if any(column.flag == "wrong" for column in self.columns):
            tones.append("warn")
        return max(tones, key=_WORST.index)

    def short(self, lane: int) -> str:
        """A lane's name where there is little room."""
        count, name = len(self.ranks[lane]), self.names[lane]
        return f"{count} ranks" if count > 3 and name.startswith("ranks") else name

    def had(self, lane: int) -> str:
        """How many inputs each rank of a lane had, unless that tells nothing: of many lanes, all had as
        many."""
        inputs = self.inputs[lane]
        if inputs is None or (len(self.inputs) > 4 and len({*self.inputs}) == 1):
            return ""
        return f"{inputs} input{'s' * (inputs != 1)}"

    def under(self, lane: int) -> str:
        """The text below a lane's name: how many inputs each rank had, and the ranks if there are
        many."""
        name, had = self.names[lane], self.had(lane)
        if len(self.ranks[lane]) < 4 or not name.startswith("ranks "):
            return had
        return f"{had}: {name.removeprefix('ranks ')}".removeprefix(": ")

    def title(self, column: Column) -> str:
        """A column in words: "call 12: barrier meets anyone left?"."""
        if column.missing is not None:
            return f"{self.names[column.missing[0]]} never issued {column.missing[1]}"
        labels = list(dict.fromkeys(box.label for box in column.drawn))
        if not labels:
            return "no call here"
        number = f"call{'s' * bool(column.stack)} {column.number}: " if column.number else ""
        if column.stack:
            return f"{number}{' · '.join(labels)}, {column.said}"
        if len(column.drawn) > 1 and (column.flag != "open" or len(labels) < 2):
            return number + (" faces " if column.flag == "apart" else " meets ").join(labels)
        calls = []
        for name, box in zip(self.names, column.boxes, strict=True):
            if box is not None:
                of_many = name.endswith("s")
                calls.append(f"{box.label} of {name}" if of_many else f"{name}'s {box.label}")
        return number + ", ".join(calls)

    def fate(self, column: Column, lane: int) -> str:
        """What became of a lane's call there, if it did not complete."""
        box = column.boxes[lane]
        if box is None or not box.open:
            return "fails" * (box is not None and box.failed)
        return fate_of(self.ends[lane][0])

    def below(self, index: int, lane: int) -> str:
        """The text below the label of a lane's big box. The renderers drop the part behind ": ", what
        the value was taken for, where it does not fit."""
        column = self.columns[index]
        box = column.boxes[lane]
        if column.size != "big" or box is None:
            return ""
        for reading in self.readings:
            if reading.column != index:
                continue
            asker = column.boxes[reading.to]
            alike = asker is not None and asker.label == box.label
            if lane == reading.to or (lane != reading.of and alike):
                return f"reads {reading.value}: {reading.taken}".removesuffix(": ")
            return f"puts in {reading.sent}" if lane == reading.of else ""
        return self.fate(column, lane)


_WORST: tuple[Tone, ...] = ("good", "", "warn", "bad")
_FATES = {"✓": "left pending", "!": "left pending", "…": "not ended", "?": "no end on record"}


def fate_of(sign: str) -> str:
    """What became of a call that did not complete, by the sign of its rank's ending."""
    return _FATES.get(sign, "never ends")


def first_screen(timeline: Timeline, ranks: bool = True, unfold: bool = False) -> FirstScreen:
    """The first screen of a Timeline.

    ranks   False: every rank has a lane of its own; else up to four have, and of more those alike share one
    unfold  True: no rounds are stacked, and DDP's own setup is shown
    """
    return screen_of(Evidence(timeline, folded(timeline, ranks)), ranks, unfold)


def folded(timeline: Timeline, ranks: bool = True) -> Folding:
    """What a picture shows of a Timeline; of one with many calls, those that tell the story.
    `ranks`: as `first_screen`."""
    return fold_timeline(timeline, ranks=ranks and timeline.world_size > NARROW)


def screen_of(evidence: Evidence, ranks: bool = True, unfold: bool = False) -> FirstScreen:
    """The same, of evidence that is at hand."""
    return _ScreenBuilder(evidence, ranks, unfold).made()


class _ScreenBuilder:
    def __init__(self, evidence: Evidence, share: bool, unfold: bool) -> None:
        self.evidence, self.story, self.folding, self.difference = (
            evidence,
            story_of(evidence),
            evidence.folding,
            evidence.difference,
        )
        self.timeline, self.unfold = evidence.timeline, unfold
        self.unknown = {*self.timeline.meta.get("missing_ranks", ())}  # nothing is recorded of them
        self.odd = tuple(self.unknown) or tuple(self.difference.outliers)
        self.numbers, self.drawn_slots = (
            self.folding.numbers,
            plan(self.folding.matched, self.folding.lanes),
        )
        folds = () if unfold else (part for part in self.folding.parts if isinstance(part, Fold))
        self.fold_of = {index: part for part in folds for index in range(part.begin, part.end)}
        self.rest: int | None = None
        known = self._known()
        focus = self._laid([(ranks[0],) for ranks in self.folding.classes if known & {*ranks}])
        if share and len(self.lanes) > NARROW and not unfold:
            focus = self._laid(self._shared(focus))
        self.focus = focus

    def _known(self) -> set[int]:
        """The ranks of which there is something to draw: all, but for those of which a text tells no call
        that they made or missed."""
        ranks = set(range(self.timeline.world_size))
        if self.timeline.meta.get("format") != FROM_TEXT or self.unknown:
            return ranks
        called = {row["rank"] for row in self.folding.matched.rows}
        called.update(*(slot.absent for slot in self.folding.slots))
        return called | {*self.odd, *self.story.headline.ranks} if called else ranks

    def _laid(self, lanes: Sequence[tuple[int, ...]]) -> int | None:
        """Make the columns, for lanes of ranks that each stand for a class; returns the one where
        they part."""
        self.lanes = lanes
        self.ranks = [
            tuple(sorted(rank for class_rank in lane for rank in self.folding.lanes[class_rank]))
            for lane in lanes
        ]
        self.lane = {rank: index for index, lane in enumerate(lanes) for rank in lane}
        self.columns = list(self._columns())
        focus = self._mark()
        return focus if self.unfold else self._shortened(focus)

    def _shared(self, focus: int | None) -> list[tuple[int, ...]]:
        """Lanes that look the same are one; of too many, those that the story does not name are the
        last one."""
        named, ranks = {*self.odd}, self.story.headline.ranks
        named |= {*ranks} if len(ranks) < LANES else set()
        classes_by_look: dict[object, list[int]] = {}
        for lane, (first,) in enumerate(self.lanes):
            boxes = [column.boxes[lane] for column in self.columns]
            absent = tuple(lane in column.absent for column in self.columns)
            sign, _, tone, detail = self._end((first,))
            drawn = tuple(box and box[:-1] for box in boxes)  # less their rows
            look = sign, tone, detail, first in self.odd, absent, drawn
            classes_by_look.setdefault(look, []).append(first)
        groups = [*map(tuple, classes_by_look.values())]
        if len(groups) <= LANES:
            return groups
        largest = max(groups, key=lambda lane: sum(len(self.folding.lanes[rank]) for rank in lane))

        def tells(lane: tuple[int, ...]) -> tuple[bool, bool, bool]:
            lane_index = self.lane[lane[0]]
            in_focus = focus is not None and (
                self.columns[focus].boxes[lane_index] or lane_index in self.columns[focus].absent
            )
            ended = self._end(lane[:1])[0] != self._end(largest[:1])[0]
            return not named & {*self.folding.lanes[lane[0]]}, not ended, not in_focus

        shown_lanes = sorted(groups, key=tells)[: LANES - 1]
        self.rest = LANES - 1
        return [
            *(lane for lane in groups if lane in shown_lanes),
            tuple(chain(*(lane for lane in groups if lane not in shown_lanes))),
        ]

    def made(self) -> FirstScreen:
        counts, focus = self.timeline.meta.get("inputs") or (), self.focus
        input_counts = [
            {counts[rank] if rank < len(counts) else None for rank in ranks} for ranks in self.ranks
        ]
        meant, ends = tuple(self._meant()), tuple(map(self._end, self.lanes))
        for index, column in enumerate(
            self.columns
        ):  # whose partner comes one call later is not alone
            if meant and index != focus:
                column.absent = ()
        self._give_sizes(focus)
        self._count_up(focus)
        return FirstScreen(
            tuple(self.ranks),
            tuple(
                ranks_text(ranks) if index != self.rest else f"{len(ranks)} others"
                for index, ranks in enumerate(self.ranks)
            ),
            tuple(
                lane_counts.pop() if len(lane_counts) == 1 else None for lane_counts in input_counts
            ),
            self._headline(),
            tuple(self.columns),
            focus,
            meant,
            tuple(self._readings()),
            next(
                (
                    lane
                    for lane, ranks in enumerate(self.ranks)
                    if ranks == tuple(sorted(self.odd)) != () and ends[lane][2] != "good"
                ),
                None,
            ),
            ends,
            *self._code(),
            self._tried(),
            tuple((line.kind, self._pieces(line)) for line in self.story.lines[1:]),
            self.story.provenance,
        )

    # ---- columns

    def _columns(self) -> Iterator[Column]:
        for stacked, drawn_slots in groupby(
            self.drawn_slots, lambda drawn_slot: drawn_slot.slot in self.fold_of
        ):
            if stacked:
                yield self._stack(list(drawn_slots))
                continue
            before: Column | None = None
            for column in map(self._drawn_column, drawn_slots):
                if before and not self.unfold and self._side_by_side(before, column):
                    before.until, before.said = column.until, "Nothing meets these calls."
                    both = zip(before.boxes, column.boxes, strict=True)
                    before.boxes = [box or next_box for box, next_box in both]
                    absent = {*before.absent, *column.absent}
                    before.absent = tuple(lane for lane in absent if before.boxes[lane] is None)
                else:
                    before = column
                    yield column

    def _side_by_side(self, before: Column, column: Column) -> bool:
        """Whether two columns are one: ranks that wait at the same time in sends, or in recvs, that
        nothing meets."""
        both = enumerate(zip(before.boxes, column.boxes, strict=True))
        free = all(not all(boxes) or lane == self.rest for lane, boxes in both)
        return (
            bool(column.lacks)
            and before.lacks == column.lacks
            and before.until + 1 == column.slot
            and free
        )

    def _drawn_column(self, drawn_slot: DrawnSlot) -> Column:
        rows = [self.folding.matched.rows[call] for call in drawn_slot.calls]
        slot = self.folding.slots[drawn_slot.slot]
        bad = not slot.expected
        boxes: list[Box | None] = [None] * len(self.lanes)
        for row in rows:
            open_ = row["completed_ns"] is None and row["error"] is None
            lane_index = self.lane[row["rank"]]
            text = asks_of(row) if lane_index == self.rest else label(row)
            boxes[lane_index] = boxes[lane_index] or Box(
                kind(row), text, open_, bad, row["error"] is not None, row=row
            )
        drawn = [
            (lane_index, box.row)
            for lane_index, box in enumerate(boxes)
            if box is not None and box.row is not None
        ]
        clashes = tuple(
            (a, b)
            for (a, first), (b, second) in pairwise(drawn)
            if bad and unlike(first, second, slot.differs)
        )
        flag: Flag = "wrong" if slot.met and clashes else "apart" if bad else "met"
        if flag == "met" and any(box.open or box.failed for box in boxes if box is not None):
            flag = "open"
        gone = slot.absent if flag == "open" else ()
        absent = tuple(
            lane_index
            for lane_index, ranks in enumerate(self.ranks)
            if boxes[lane_index] is None and {*gone} & {*ranks}
        )
        numbers = {row["number"] for row in rows if row["number"] is not None}
        number = "/".join(map(str, sorted(numbers)))
        lane_index = self.numbers[drawn_slot.slot]
        lacks = f"no {COUNTERPART[rows[0]['op']]}" if slot.pair and gone else ""
        return Column(
            lane_index, lane_index, number, boxes, flag, "", drawn_slot.text, clashes, absent, lacks
        )

    def _stack(self, drawn_slots: Sequence[DrawnSlot]) -> Column:
        """Neighbouring folds are one stack."""
        folds = [
            *{
                part.begin: part
                for part in (self.fold_of[drawn_slot.slot] for drawn_slot in drawn_slots)
            }.values()
        ]
        rows = [
            self.folding.matched.rows[call]
            for drawn_slot in drawn_slots
            for call in drawn_slot.calls
        ]
        inputs = {row["input"] for row in rows if row["input"] is not None}
        unit = input_or_step(self.timeline.meta)
        times = sum(part.times for part in folds if part.times > 1)  # the others are setup
        if inputs and times in (0, len(inputs)):
            label = f"{len(inputs)} {unit}{'s' * (len(inputs) > 1)}"
        elif times:
            label = f"{times} rounds"
        else:
            if kind(rows[0]) is RowKind.SETUP:
                label = "setup"
            else:
                label = f"{sum(map(len, folds))} calls"
        numbers = sorted({row["number"] for row in rows if row["number"] is not None})
        span = f"{numbers[0]}-{numbers[-1]}" if numbers else ""
        ranks = {row["rank"] for row in rows}
        stack_ranks = [next((rank for rank in lane if rank in ranks), None) for lane in self.lanes]
        boxes: list[Box | None] = [None] * len(self.lanes)
        for lane, rank in enumerate(stack_ranks):
            if rank is None:
                continue
            lane_rows = [row for row in rows if row["rank"] == rank]
            # a rank that shadows the others' calls has none of their inputs
            shadows = bool(inputs) and all(row["input"] is None for row in lane_rows)
            boxes[lane] = self._stack_box(folds, rank)._replace(
                stack=f"{len(lane_rows)} calls" * shadows
            )
        first, last = (
            self.numbers[drawn_slot.slot] for drawn_slot in (drawn_slots[0], drawn_slots[-1])
        )
        return Column(first, last, span, boxes, stack=label, said="all matched")

    def _stack_box(self, folds: Sequence[Fold], rank: int) -> Box:
        labels = dict.fromkeys(self.folding.label(fold_drawn, rank) for fold_drawn in folds)
        return Box(RowKind.FOLD, "; ".join(filter(None, labels)))

    def _shortened(self, focus: int | None) -> int | None:
        """Of many columns, keep those that tell where the lanes part and end; the others become
        stacks, too."""
        columns, part = self.columns, self.folding.every.is_part
        if len(columns) <= MOST and not part:
            return focus
        first_open = self._first_open()
        if focus is None:
            near = range(0)
        else:
            near = range(focus - BEFORE, focus + BEHIND)
        shown: list[Column] = []
        hidden: list[Column] = []
        begin, focus_at = 0, None  # the slot behind the last column that is kept
        for index, column in enumerate(columns):
            mark = column.missing is not None or column.extra is not None
            if not (mark or index in near or index in first_open or index >= len(columns) - BEFORE):
                hidden.append(column)
                continue
            if hidden or (part and column.slot > begin):
                shown.append(
                    self._stack_of_slots(shown[-1:], column, begin, max(column.slot, begin + 1))
                )
                hidden = []
            if index == focus:
                focus_at = len(shown)
            shown.append(column)
            begin = column.until + 1
        self.columns = shown
        return focus_at

    def _stack_of_slots(
        self, before: Sequence[Column], behind: Column, begin: int, end: int
    ) -> Column:
        """A stack of the slots from `begin` until before `end`, between two columns."""
        bad = int(wrong(self.timeline)[begin:end].sum())
        if bad:
            label = f"{bad:,} did not match"
        elif self.unknown:
            label = "all that is recorded matched"
        else:
            label = "all matched"
        pile = Box(RowKind.FOLD, f"{end - begin:,} rows")
        boxes = [None if self.unknown.issuperset(ranks) else pile for ranks in self.ranks]
        first, last = (
            [*(column.number.split("-")[-1] for column in before), "0"][0],
            behind.number.split("-")[0],
        )
        if first.isdigit() and last.isdigit():
            number = f"{int(first) + 1}-{int(last) - 1}"
        else:
            number = ""
        stack = f"{end - begin:,} {'rows' if end - begin > 1 else 'row'}"
        return Column(begin, end - 1, number, boxes, "wrong" if bad else "met", stack, label)

    def _first_open(self) -> set[int]:
        """The first column of each lane with a call that never ends; -1 where all end."""
        first = set()
        for lane in range(len(self.lanes)):
            boxes = (column.boxes[lane] for column in self.columns)
            open_ = (index for index, box in enumerate(boxes) if box is not None and box.open)
            first.add(next(open_, -1))
        return first

    def _give_sizes(self, focus: int | None) -> None:
        ends = self._first_open()
        for index, column in enumerate(self.columns):
            column.far = index == focus
            loud = column.flag in ("wrong", "apart") or any(box.failed for box in column.drawn)
            loud = (
                index in ends
                or index == focus
                or (loud and (focus is None or index <= focus + AFTER))
            )
            if column.stack:
                column.size = "stack"
            elif column.missing:
                column.size = "ghost"
            elif index == focus and column.extra is None:
                column.size = "big"
            elif loud:
                column.size = "mid"
            else:
                column.size = "slim"

    def _count_up(self, focus: int | None) -> None:
        """Drop the numbers that do not count up: those of sends, and of calls in several groups.

        The column where the lanes part keeps its number, by which the headline may name it.
        """
        last = -1
        for index, column in enumerate(self.columns):
            sends = any(box.kind is RowKind.PAIR for box in column.drawn)
            numbers = list(map(int, re.findall(r"\d+", column.number)))
            if numbers and not sends and numbers[0] > last:
                last = numbers[-1]
            elif index != focus:
                column.number = ""

    # ---- where they part

    def _mark(self) -> int | None:
        """Find where the ranks part, and mark the call that is too many there, or put in the one
        that is missing."""
        if self.difference.first is None:
            return None
        focus = self._column_with(self.difference.first)
        lead, odd = self.difference.lead, self.difference.outliers
        # its calls met: none is loud for its absence
        all_met = isinstance(self.story.headline, WrongAnswer)
        if focus is None or lead is None or lead.by != 1 or not odd or all_met:
            if focus is None or self.columns[focus].flag != "met":
                return focus
            mismatch = self._column_with(self.difference.mismatch)
            return focus if mismatch is None else mismatch
        extra = self.difference.extra[0]
        index = self._column_of(extra)
        if index is not None and odd == self.difference.ranks(lead.ahead):
            self.columns[index].extra = self.lane[extra["rank"]]
            return index
        if index is not None and odd == self.difference.ranks(lead.behind):
            slot_there = self.columns[index].slot
            none: list[Box | None] = [None] * len(self.lanes)
            missing = (self.lane[lead.behind[0]], asks_of(extra))
            self.columns.insert(
                index, Column(slot_there, slot_there, "", none, "open", missing=missing)
            )
            return index
        return focus

    def _column_with(self, row: int | None) -> int | None:
        """Where a row of the story's folding is drawn; None where it is within a stack."""
        for index, column in enumerate(self.columns):
            alone = not column.stack and not column.missing
            if row is not None and alone and column.slot <= self.numbers[row] <= column.until:
                return index
        return None

    def _column_of(self, row: CallRow) -> int | None:
        """Where a call stands; None where it is within a stack."""
        lane = self.lane[row["rank"]]
        for index, column in enumerate(self.columns):
            box = column.boxes[lane]
            if box is not None and box.row is row:
                return index
        return None

    def _meant(self) -> Iterator[tuple[int, int, int, int]]:
        difference, pairs = self.difference, list[tuple[CallRow, CallRow]]()
        lead = None if difference.first is None else difference.lead
        if difference.turned:
            first, like_second, second, like_first = difference.turned
            pairs = [(first, like_first), (like_second, second)]
        elif lead is not None:
            ahead, behind = lead.ahead[0], lead.behind[0]
            gap = next((index for index, column in enumerate(self.columns) if column.missing), None)
            extra_column = self._column_of(difference.extra[0])
            if gap is not None and extra_column is not None:
                yield gap, self.lane[behind], extra_column, self.lane[ahead]
            late = difference.collectives(behind)[lead.at :]
            early = difference.collectives(ahead)[lead.at + lead.by :]
            pairs = [*zip(late, early, strict=False)]
        for call, other_call in pairs:
            index, other_index = self._column_of(call), self._column_of(other_call)
            if index is not None and other_index is not None:
                lanes = self.lane[call["rank"]], self.lane[other_call["rank"]]
                yield index, lanes[0], other_index, lanes[1]

    def _readings(self) -> Iterator[MisreadValue]:
        """What ranks took for an answer, which was another call's data: first the one that asked,
        then in turn."""
        last: int | None = None
        for index, column in enumerate(self.columns):
            if column.flag != "wrong":
                continue
            pairs = [(to, sender) for pair in column.clashes for to, sender in (pair, pair[::-1])]
            answers = (_reading(index, column, to, sender) for to, sender in pairs if to != last)
            reading = next((answer for answer in answers if answer is not None), None)
            if reading is not None:
                yield reading
                last = reading.to
            elif last is None:
                return

    # ---- words

    def _pieces(self, line: Line) -> tuple[ScreenPiece, ...]:
        """The words of a line of the story, each noun with the kind of the call that it names."""
        pieces = []
        for piece in line.pieces():
            if piece.call is None:
                call = None
            else:
                call = line.calls[piece.call]
            if call is None:
                row = None
            else:
                row = self.folding.matched.row_of.get(call.key)
            text = f"`{piece.text}`" if piece.code else piece.text
            pieces.append(ScreenPiece(text, None if row is None else kind(row)))
        return tuple(pieces)

    def _headline(self) -> tuple[ScreenPiece, ...]:
        line = self.story.headline
        well = all(group.good for group in line.ends)
        if well and isinstance(line, Even):
            return (ScreenPiece(self.story.sentence, tone="good"),)
        without_endings = replace(line, ends=())
        cause = "".join(piece.text for piece in self._pieces(without_endings))
        if not line.sentence.startswith(without_endings.sentence):  # its words are its endings
            cause = ""
        plain: Tone = (
            "warn" if well and not line.calls else ""
        )  # replicas that differ: no noun has a colour
        tone: Tone = "warn" if all(group.pending for group in line.bad_ends()) else "bad"
        pieces, length = [], 0
        for piece in self._pieces(line):
            cut = max(0, min(len(piece.text), len(cause) - length))
            pieces += [
                ScreenPiece(piece.text[:cut], piece.kind, plain),
                ScreenPiece(piece.text[cut:], tone=tone),
            ]
            length += len(piece.text)
        return tuple(piece for piece in pieces if piece.text)

    @property
    def _edit(self) -> Edit | None:
        """The edit that the code shows."""
        edits = (edit for line in self.story.of(LineKind.FIX) for edit in line.edits)
        return next(edits, None)

    def _tried(self) -> ScreenPiece:
        """The result of the edit shown in the code; the story has the details."""
        if self._edit is None:
            line = next(iter(self.story.of(LineKind.FIX)), None)
            pieces = self._pieces(line) if line else ()
            return ScreenPiece("".join(piece.text for piece in pieces))
        many = self.timeline.world_size > 2
        if self.timeline.meta.get("engine") == "launched":
            how = "Tried, emulated"
        else:
            how = "Tried"
        finish = "every rank finishes" if many else "both finish"
        if any(end.pending for end in self.timeline.ends):
            finish += ", no call pending"
        return ScreenPiece(f"{how}: {finish}.", tone="good")

    def _end(self, lane: Sequence[int]) -> tuple[str, str, Tone, str]:
        """How most ranks of a lane ended."""
        ranks = [rank for class_rank in lane for rank in self.folding.lanes[class_rank]]
        ends = [self.timeline.ends[rank] for rank in ranks]
        kind, count = Counter(end.kind for end in ends).most_common(1)[0]
        end = next(end for end in ends if end.kind is kind)
        many = f"{count} " if count > 1 else ""
        if self.unknown.issuperset(ranks):
            return "?", f"{many}no record", "warn", ""
        if end.runs:
            return "…", f"{many}running", "", ""
        match end.kind:
            case EndKind.FINISHED:
                return (
                    "✓",
                    f"{many}finished",
                    "warn" if end.pending else "good",
                    "call pending" if end.pending else "",
                )
            case EndKind.HUNG:
                verb = "waits" if count == 1 else "wait"
                key = self.timeline.ended_in(ranks[0])
                row = self.folding.matched.row_of.get(key) if key and count == 1 else None
                waits_for = "" if row is None or row["peer"] is None else f"for rank {row['peer']}"
                detail = waits_for if end.proven else "as far as is seen"
                return "✕", f"{many}{verb}", "bad", detail
            case EndKind.RAISED:
                return "✕", f"{many}raise{'s' * (count == 1)}", "bad", end.text.partition(":")[0]
            case EndKind.KILLED:
                verb = "stopped" if end.how == STOPPED else "killed"
                return "✕", f"{many}{verb}", "bad", ""
        return "?", f"{many}not known", "warn", ""

    def _lines_of_boxes(self, texts: SourceTexts, file: str, body: Mapping[int, str]) -> set[int]:
        """The lines of `body` from which the boxes come; each box gets its own, a stack that of its
        last call."""
        issued: set[int] = set()
        for column in self.columns:
            for lane, box in enumerate(column.boxes):
                if box is None:
                    row = None
                else:
                    row = box.row or self._last_row(column, lane)
                if box is None or row is None:
                    continue
                sites = (line for line in texts.lines_of(row) if line.source.file == file)
                line_number = next((line.line for line in sites if line.line in body), 0)
                column.boxes[lane] = box._replace(line=line_number)
                if box.row is not None:
                    issued.add(line_number)
        return issued - {0}

    def _last_row(self, column: Column, lane: int) -> CallRow | None:
        """The last call of a lane in a stack, if the stack's last slot is known."""
        index = bisect_right(self.numbers, column.until)
        while index and column.slot <= self.numbers[index - 1] <= column.until:
            index -= 1
            calls = self.folding.matched.calls_of(self.folding.slots[index])
            row = next((row for rank, row in calls.items() if self.lane[rank] == lane), None)
            if row is not None:
                return row
        return None

    def _who(self, ranks: Sequence[int], kind: LineKind) -> str:
        """The ranks that stand at a line, in a few characters."""
        notes = self.story.of(LineKind.NOTE)
        left_out = sum(note.count for note in notes if isinstance(note, LeftOut))
        if kind is LineKind.PARTING and left_out:
            return f"{len(ranks)} of {len(ranks) + left_out} ranks compared"
        if len(ranks) == self.timeline.world_size > NARROW:
            return f"all {len(ranks)} ranks"
        text = ranks_text(ranks)
        return text if len(text) < 32 else f"{len(ranks)} ranks"

    def _code(self) -> tuple[str, tuple[ScreenLine, ...]]:
        """The lines that the story rests on, with who stands there, and the edit; else those that
        make DDP's calls."""
        marks: dict[int, dict[str, ScreenPiece]] = {}
        lines = [
            line
            for line in self.story.lines
            if line.kind in (LineKind.HEADLINE, LineKind.CAUSE, LineKind.PARTING)
        ]
        lines += [line for line in self.story.of(LineKind.FATE) if isinstance(line, Raised)]
        edit = self._edit
        file = edit.file if edit else ""
        for line in lines:
            for source in line.lines:
                site, _, line_number = source.site.rpartition(":")
                if not line_number.isdigit() or (file and site != file):
                    continue
                file = site
                call = next(
                    (
                        call_cited
                        for call_cited in line.calls
                        if call_cited.site == source.site and call_cited.rank in source.ranks
                    ),
                    None,
                )
                row = call and self.folding.matched.row_of.get(call.key)
                ranks = source.ranks
                if (
                    line.kind is LineKind.FATE and int(line_number) not in marks
                ):  # nothing else says who raised there
                    ranks = line.ranks
                subject = self._who(ranks, line.kind)
                mark = ScreenPiece(subject, kind(row) if row else None, "" if row else "bad")
                if ranks:
                    marks.setdefault(int(line_number), {}).setdefault(mark.text, mark)
        texts = self.evidence.sources
        wanted = set(marks) | (
            set(range(edit.begin, edit.begin + len(edit.removed))) if edit else set()
        )
        holding = [
            text_held
            for text_held in texts.all
            if text_held.file == file and min(wanted, default=0) in _numbers(text_held)
        ]
        source_text = min(
            holding, key=lambda text_held: len(text_held.lines), default=texts.program
        )
        if source_text is None or not source_text.lines:
            return file, ()
        body = dict(enumerate(source_text.lines, source_text.first_line))
        for text_held in texts.all:  # of a script, each statement is a text
            if text_held.file == source_text.file:
                for number in wanted.intersection(_numbers(text_held)) - body.keys():
                    body[number] = text_held.lines[number - text_held.first_line]
        if edit and edit.removed and edit.begin in body:  # a method's text is kept dedented
            indent = len(edit.removed[0]) - len(body[edit.begin])
            removed, added = (
                tuple(text[indent:] for text in texts) for texts in (edit.removed, edit.added)
            )
            edit = replace(edit, removed=removed, added=added)
        issued = self._lines_of_boxes(texts, source_text.file, body)
        loop = {number for number, text in body.items() if _CALLS.match(text)}
        wanted &= body.keys()
        choices = (wanted | issued | loop, wanted | issued, wanted or loop)
        wanted = next((lines for lines in choices if len(lines) <= MOST_LINES), choices[-1])
        wanted |= {number for number in body if {number - 1, number + 1} <= wanted}
        code_lines = [
            ScreenLine("", number, body[number], tuple(marks.get(number, {}).values()))
            for number in sorted(wanted)
        ]
        return source_text.name, tuple(code_lines if edit is None else _edited(code_lines, edit))


def _reading(index: int, column: Column, to: int, sender: int) -> MisreadValue | None:
    """What lane `to` took for an answer in a column, of which lane `sender` sent it; None if it asked nothing."""
    asking, answering = column.boxes[to], column.boxes[sender]
    if asking is None or answering is None or asking.row is None or answering.row is None:
        return None
    row = asking.row
    if row["completed_ns"] is not None:
        made = conclusion(row["origin"], row["value_out"])
    else:
        made = None
    value, sent = _single(row["value_out"]), _single(answering.row["value_in"])
    if made is None or " concluded that " not in made or value is None or sent is None:
        return None
    return MisreadValue(
        index, to, sender, value, sent, "nobody" * made.endswith("all ranks have joined")
    )


MOST_LINES = 9
"""Of more lines, only those that the story rests on are shown."""

_CALLS = re.compile(r"\s*(with .*join\(|for |.*= model\(|.*backward\(|.*barrier\()")
"""Lines of a program that matter to who sees it for the first time."""


def _edited(lines: Sequence[ScreenLine], edit: Edit) -> Iterator[ScreenLine]:
    """The code lines after an edit: removed lines are marked "-" and added lines "+". A line that is
    only indented further keeps its number and gets no mark."""
    by_number = {line.number or 0: line for line in lines}
    yield from (line for number, line in by_number.items() if number < edit.begin)
    for hunk in edit.hunks():
        for index in range(len(hunk.removed)):
            old = by_number.get(hunk.begin + index)
            if old and hunk.kept:
                yield replace(old, text=hunk.added[index])
            elif old:
                yield replace(old, sign="-")
        if not hunk.kept:
            yield from (ScreenLine("+", None, text) for text in hunk.added)
    yield from (
        line for number, line in by_number.items() if number >= edit.begin + len(edit.removed)
    )


def _numbers(source: SourceText) -> range:
    return range(source.first_line, source.first_line + len(source.lines))


def _single(text: str | None) -> str | None:
    """The one value of a call, as it is read; None of none, of several and of what is no number."""
    values = list(chain.from_iterable(decode_values(text) or ()))
    if len(values) == 1 and isinstance(values[0], int | float):
        return number(values[0])
    return None
