"""The first screen of a run as plain data: a headline, lanes of calls, the one that goes wrong, the line it came from.

A column is a row of the folded picture (`lanes`): a stack of rounds in which all agree, or the calls of one place. The
scripts in static/ draw it in either direction; every word, every link and every reading is decided here.

    scene(timeline).columns[3].flag         # "met", "wrong", "apart" or "open"
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, takewhile
from typing import Literal

from joinlab.analysis.folding import Fold
from joinlab.analysis.meanings import asks_of, conclusion, number
from joinlab.analysis.source import SourceText
from joinlab.analysis.wording import input_or_step, ranks_text
from joinlab.ops import CallRow, decode_values
from joinlab.picture.lanes import Box, Lane, Lanes, lanes, read
from joinlab.picture.rows import RowKind, kind
from joinlab.story.forms import pieces_of, said
from joinlab.story.judge import story_of
from joinlab.story.lines import Edit, Line, LineKind
from joinlab.story.scene import Scene as Told
from joinlab.timeline import EndKind, Timeline

Flag = Literal["met", "wrong", "apart", "open"]
"""How the calls of a column fit: as meant; met, but should not have; never meet; somebody never came."""

Tone = Literal["", "good", "warn", "bad"]


@dataclass(frozen=True, slots=True)
class Piece:
    """Words, and the kind of call whose colour they have, or the tone."""

    text: str
    kind: RowKind | None = None
    tone: Tone = ""


@dataclass(slots=True)
class Column:
    """What stands at one place of the lanes.

    slot     the first that it holds, as `joinlab.match` counts
    number   of its calls: "28", of a stack "0-24"
    boxes    per lane the place of its box in Lanes.boxes; None: it issued no call here
    stack    what a stack holds: "5 inputs"; "" for calls
    extra    the lane whose call is the one too many
    missing  (lane, call): that lane never issued this one, which should stand here
    """

    slot: int
    number: str
    boxes: list[int | None]
    flag: Flag = "met"
    stack: str = ""
    extra: int | None = None
    missing: tuple[int, str] | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """At a column lane `to` reads `value`, which lane `of` sent as `sent`, and takes it for its own answer."""

    column: int
    to: int
    of: int
    value: str
    sent: str
    taken: str


@dataclass(frozen=True, slots=True)
class CodeLine:
    """A line of the program with the ranks that stand there, and the call that they issue; sign "-" goes, "+" comes."""

    sign: str
    number: int | None
    text: str
    here: tuple[Piece, ...] = ()


@dataclass(frozen=True, slots=True)
class Scene:
    """All that the first screen says. `focus`: the column where the ranks part.

    meant   (column, lane, column, lane): calls that should have met
    odd     the lane of the ranks that did otherwise than most
    ends    per lane (sign, word, tone, more)
    file    of the lines in `code`
    tried   what came of the edit that `code` shows; "" where none was tried
    story   every other line of the story
    """

    headline: tuple[Piece, ...]
    columns: tuple[Column, ...]
    focus: int | None
    meant: tuple[tuple[int, int, int, int], ...]
    readings: tuple[Reading, ...]
    odd: int | None
    ends: tuple[tuple[str, str, Tone, str], ...]
    file: str
    code: tuple[CodeLine, ...]
    tried: str
    story: tuple[tuple[LineKind, tuple[Piece, ...]], ...]
    provenance: str


def scene(timeline: Timeline, ranks: bool = True) -> Scene:
    """The first screen of a Timeline. `ranks`: as `lanes.read` has it."""
    _, folding, _ = read(timeline, ranks)
    return scene_of(lanes(timeline), Told(timeline, folding), folding.numbers)


def scene_of(picture: Lanes, told: Told, numbers: Sequence[int]) -> Scene:
    """The same of what is at hand: the folded picture in the order of calls, and what its slots are called."""
    return _Scene(picture, told, numbers).made()


class _Scene:
    def __init__(self, picture: Lanes, told: Told, numbers: Sequence[int]) -> None:
        self.picture, self.told, self.story, self.folding, self.parting = (
            picture,
            told,
            story_of(told),
            told.folding,
            told.parting,
        )
        self.timeline = told.timeline
        self.first = [ranks[0] for ranks in picture.ranks]
        self.lane = {rank: lane for lane, rank in enumerate(self.first)}
        self.row_of_slot = {number: row for row, number in enumerate(numbers)}
        self.columns = list(self._columns())

    def made(self) -> Scene:
        focus = self._mark()
        return Scene(
            self._headline(),
            tuple(self.columns),
            focus,
            tuple(self._meant()),
            tuple(self._readings()),
            self._lane_of(self.parting.odd),
            tuple(map(self._end, self.first)),
            *self._code(),
            self._tried(),
            tuple((line.kind, self._pieces(line)) for line in self.story.lines[1:]),
            self.story.provenance,
        )

    # ---- columns

    def _columns(self) -> Iterator[Column]:
        streams = [(box.begin, at, box) for at, box in enumerate(self.picture.boxes) if box.lane is Lane.STREAM]
        folds: list[tuple[list[int | None], list[int]]] = []  # neighbouring stacks are one
        for _, some in groupby(sorted(streams, key=lambda one: one[:2]), key=lambda one: one[0]):
            boxes = [(at, box) for _, at, box in some]
            places: list[int | None] = [None] * len(self.first)
            for at, box in boxes:
                places[box.rank] = at
            slot = boxes[0][1].slot
            assert slot is not None
            if boxes[0][1].kind is RowKind.FOLD:
                folds.append((places, [slot]))
                continue
            if folds:
                yield self._stack(folds)
                folds = []
            yield Column(slot, self._number([box for _, box in boxes]), places, self._flag([box for _, box in boxes]))
        if folds:
            yield self._stack(folds)

    def _stack(self, folds: Sequence[tuple[list[int | None], list[int]]]) -> Column:
        first, last = self._fold_at(folds[0][1][0]), self._fold_at(folds[-1][1][0])
        rows = [row for at in (first.begin, last.end - 1) for row in self._rows(at)]
        inputs = {
            row["input"] for at in range(first.begin, last.end) for row in self._rows(at) if row["input"] is not None
        }
        what = input_or_step(self.timeline.meta)
        if inputs and (len(inputs) == last.times or last.times == 1):
            said = f"{len(inputs)} {what}{'s' * (len(inputs) > 1)}"
        elif last.times > 1:
            said = f"{last.times} rounds"
        else:
            said = "setup" if kind(rows[0]) is RowKind.SETUP else f"{last.end - first.begin} calls"
        numbers = sorted({row["number"] for row in rows if row["number"] is not None})
        span = f"{numbers[0]}-{numbers[-1]}" if numbers else ""
        return Column(folds[0][1][0], span, folds[-1][0], stack=said)

    def _fold_at(self, slot: int) -> Fold:
        row = self.row_of_slot[slot]
        return next(part for part in self.folding.parts if isinstance(part, Fold) and part.begin <= row < part.end)

    def _rows(self, at: int) -> list[CallRow]:
        slot = self.folding.slots[at]
        return [self.folding.matched.row_of[rank, slot.group, seq] for rank, seq in slot.calls.items()]

    def _call(self, column: Column, lane: int) -> CallRow | None:
        slot = self.folding.slots[self.row_of_slot[column.slot]]
        seq = None if column.boxes[lane] is None or column.stack else slot.calls.get(self.first[lane])
        return None if seq is None else self.folding.matched.row_of[self.first[lane], slot.group, seq]

    def _number(self, boxes: Sequence[Box]) -> str:
        assert boxes[0].slot is not None
        slot = self.folding.slots[self.row_of_slot[boxes[0].slot]]
        rows = (self.folding.matched.row_of[rank, slot.group, slot.calls[rank]] for rank in self._ranks(boxes))
        found = {row["number"] for row in rows if row["number"] is not None}
        return "/".join(map(str, sorted(found)))

    def _ranks(self, boxes: Sequence[Box]) -> list[int]:
        return [self.first[box.rank] for box in boxes]

    def _flag(self, boxes: Sequence[Box]) -> Flag:
        if any(box.bad for box in boxes):
            bands = [band for band in self.picture.bands if band.slot == boxes[0].slot and band.bad]
            return "wrong" if bands and all(band.met for band in bands) else "apart"
        return "open" if any(box.open or box.failed for box in boxes) else "met"

    # ---- where they part

    def _lane_of(self, ranks: Sequence[int]) -> int | None:
        return next((lane for lane, of in enumerate(self.picture.ranks) if ranks and set(of) == set(ranks)), None)

    def _mark(self) -> int | None:
        """Find where the ranks part, and mark the call that is too many there, or put in the one that is missing."""
        if self.parting.first is None:
            return None
        focus = next((at for at, one in enumerate(self.columns) if self._holds(one, self.parting.first)), None)
        shift, odd = self.parting.shift, self.parting.odd
        if focus is None or shift is None or shift.by != 1 or not odd:
            return focus
        extra = self.parting.extra[0]
        if odd == self.parting.ranks(shift.ahead):
            at = self._at(shift.ahead[0], shift.at)
            if at is not None:
                self.columns[at].extra = self.lane[shift.ahead[0]]
                return at
        elif odd == self.parting.ranks(shift.behind) and (at := self._at(shift.ahead[0], shift.at)) is not None:
            there = self.columns[at]
            places: list[int | None] = [None] * len(self.first)
            missing = (self.lane[shift.behind[0]], asks_of(extra))
            self.columns.insert(at, Column(there.slot, "", places, "open", missing=missing))
            return at
        return focus

    def _holds(self, column: Column, row: int) -> bool:
        return not column.stack and not column.missing and self.row_of_slot[column.slot] == row

    def _at(self, rank: int, place: int) -> int | None:
        """The column of a rank's collective of the clash's group, by its place there."""
        rows = self.parting.collectives(rank)
        if place >= len(rows):
            return None
        wanted = rows[place]
        for at, column in enumerate(self.columns):
            if not column.missing and self._call(column, self.lane[rank]) is wanted:
                return at
        return None

    def _meant(self) -> Iterator[tuple[int, int, int, int]]:
        shift = self.parting.shift if self.parting.first is not None else None
        if shift is None:
            return
        ahead, behind = shift.ahead[0], shift.behind[0]
        gap = next((at for at, one in enumerate(self.columns) if one.missing), None)
        if gap is not None and (at := self._at(ahead, shift.at)) is not None:
            yield gap, self.lane[behind], at, self.lane[ahead]
        for k in range(shift.at, len(self.parting.collectives(behind))):
            one, other = self._at(behind, k), self._at(ahead, k + shift.by)
            if one is not None and other is not None:
                yield one, self.lane[behind], other, self.lane[ahead]

    def _readings(self) -> Iterator[Reading]:
        """What ranks took for an answer, which was another call's data: first the one that asked, then in turn."""
        last: int | None = None
        for at, column in enumerate(self.columns):
            calls = [(lane, self._call(column, lane)) for lane in range(len(self.first))]
            here = [(lane, row) for lane, row in calls if row is not None]
            if column.flag != "wrong" or len(here) != 2:
                continue
            for (to, row), (of, other) in (here, here[::-1]):
                made = conclusion(row["origin"], row["value_out"]) if row["completed_ns"] is not None else None
                value, sent = _single(row["value_out"]), _single(other["value_in"])
                if to == last or made is None or " concluded that " not in made or value is None or sent is None:
                    continue
                taken = "nobody" if made.endswith("all ranks have joined") else ""
                yield Reading(at, to, of, value, sent, taken)
                last = to
                break
            else:
                if last is None:
                    return

    # ---- words

    def _pieces(self, line: Line) -> tuple[Piece, ...]:
        """The words of a line of the story, each noun with the kind of the call that it names."""
        found = []
        for piece in pieces_of(line):
            call = None if piece.call is None else line.calls[piece.call]
            row = None if call is None else self.folding.matched.row_of.get((call.rank, call.group, call.seq))
            text = f"`{piece.text}`" if piece.code else piece.text
            found.append(Piece(text, None if row is None else kind(row)))
        return tuple(found)

    def _headline(self) -> tuple[Piece, ...]:
        line = self.story.headline
        ends = line.facts.get("ends", ())
        if all(one["good"] for one in ends) and self.parting.first is None:
            return (Piece(self.story.sentence, tone="good"),)
        alone = "".join(piece.text for piece in pieces_of(replace(line, facts={**line.facts, "ends": ()})))
        tone: Tone = "warn" if all(one["good"] or one["pending"] for one in ends) else "bad"
        found, length = [], 0
        for piece in self._pieces(line):
            cut = max(0, min(len(piece.text), len(alone) - length))
            found += [Piece(piece.text[:cut], piece.kind), Piece(piece.text[cut:], tone=tone)]
            length += len(piece.text)
        return tuple(piece for piece in found if piece.text)

    def _tried(self) -> str:
        """What came of the edit that the code shows; the story says it at length."""
        edit = next((one for line in self.story.of(LineKind.FIX) for one in line.edits), None)
        if edit is None or edit.tried is None or edit.tried.finished < edit.tried.counts:
            return "".join(said(line) for line in self.story.of(LineKind.FIX)[:1])
        return "Tried: both ranks finish." if self.timeline.world_size == 2 else "Tried: every rank finishes."

    def _end(self, rank: int) -> tuple[str, str, Tone, str]:
        end, count = self.timeline.ends[rank], len(self.folding.lanes[rank])
        many = f"{count} " if count > 1 else ""
        if end.runs:
            return "…", f"{many}running", "", ""
        match end.kind:
            case EndKind.FINISHED:
                return "✓", f"{many}left", "warn" if end.pending else "good", "call pending" if end.pending else ""
            case EndKind.HUNG:
                said = "waits" if count == 1 else "wait"
                return "✕", f"{many}{said}", "bad", "" if end.proven else "as far as is seen"
            case EndKind.RAISED:
                return "✕", f"{many}raise{'s' * (count == 1)}", "bad", end.text.partition(":")[0]
            case EndKind.KILLED:
                return "✕", f"{many}killed", "bad", ""
        return "?", f"{many}not known", "warn", ""

    def _code(self) -> tuple[str, tuple[CodeLine, ...]]:
        """The lines that the story rests on, with who stands there, and the edit; else those that make DDP's calls."""
        here: dict[int, dict[str, Piece]] = {}
        told = [line for line in self.story.lines if line.kind in (LineKind.HEADLINE, LineKind.CAUSE, LineKind.PARTING)]
        told += [line for line in self.story.of(LineKind.FATE) if line.form == "raised"]
        edit: Edit | None = next((one for line in self.story.of(LineKind.FIX) for one in line.edits), None)
        file = edit.file if edit else ""
        for line in told:
            for source in line.lines:
                site, _, at = source.site.rpartition(":")
                if not at.isdigit() or (file and site != file):
                    continue
                file = site
                call = next((one for one in line.calls if one.site == source.site and one.rank in source.ranks), None)
                row = call and self.folding.matched.row_of.get((call.rank, call.group, call.seq))
                mark = Piece(ranks_text(source.ranks), kind(row) if row else None, "" if row else "bad")
                if source.ranks:
                    here.setdefault(int(at), {}).setdefault(mark.text, mark)
        texts = self.told.sources
        wanted = set(here) | (set(range(edit.begin, edit.begin + len(edit.removed))) if edit else set())
        holding = [one for one in texts.all if one.file == file and min(wanted, default=0) in _numbers(one)]
        source_text = min(holding, key=lambda one: len(one.lines), default=texts.program)
        if source_text is None or not source_text.lines:
            return file, ()
        body = dict(enumerate(source_text.lines, source_text.first_line))
        wanted = wanted & body.keys() or {at for at, text in body.items() if _CALLS.match(text)}
        found = [CodeLine("", at, body[at], tuple(here.get(at, {}).values())) for at in sorted(wanted)]
        return source_text.name, tuple(found if edit is None else _edited(found, edit))


_CALLS = re.compile(r"\s*(with .*join\(|for |.*backward\(|.*barrier\()")
"""Lines of a program that matter to who sees it for the first time."""


def _edited(lines: Sequence[CodeLine], edit: Edit) -> Iterator[CodeLine]:
    """The lines with an edit in them: what goes is struck through, what comes follows."""
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(edit.removed, edit.added, strict=False)))
    removed = range(edit.begin + same, edit.begin + len(edit.removed))
    left = list(lines)
    while left and (left[0].number or 0) < removed.start:
        yield left.pop(0)
    while left and (left[0].number or 0) in removed:
        line = left.pop(0)
        yield replace(line, sign="" if line.text in edit.added else "-")
    for text in edit.added[same:]:
        if text not in edit.removed:
            yield CodeLine("+", None, text)
    yield from left


def _numbers(source: SourceText) -> range:
    return range(source.first_line, source.first_line + len(source.lines))


def _single(text: str | None) -> str | None:
    """The one value of a call, as it is read; None of none, of several and of what is no number."""
    values = [value for tensor in decode_values(text) or () for value in tensor]
    return number(values[0]) if len(values) == 1 and isinstance(values[0], int | float) else None
