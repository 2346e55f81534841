"""Makes the first screen of a run: a headline, lanes of calls, the one that goes wrong, the line it
came from.

A column is a stack of rounds in which all agree, or the calls of one slot; it has a box in every
lane that takes part. All pictures draw these boxes: the scripts in static/, in either direction,
`svg` and `figure`. Every word, every link and every reading is decided here.

    first_screen(timeline).columns[3].flag         # "met", "wrong", "apart" or "open"
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, groupby, pairwise

from joinlab.analysis.folding import Fold, Folding
from joinlab.analysis.folding import fold as fold_timeline
from joinlab.analysis.matching import differences, key_of, wrong
from joinlab.analysis.meanings import asks_of, conclusion, number
from joinlab.analysis.wording import by_key, input_or_step, ranks_text
from joinlab.ops import COUNTERPART, CallRow, counted, flat_values
from joinlab.picture.rows import DrawnSlot, RowKind, kind, label, plan
from joinlab.picture.screen import (
    Box,
    Column,
    FirstScreen,
    Flag,
    LaneEnd,
    MisreadValue,
    ScreenLine,
    ScreenPiece,
    Tone,
)
from joinlab.story.evidence import Evidence
from joinlab.story.forms.divergence import LeftOut
from joinlab.story.forms.even import Even
from joinlab.story.forms.fates import Raised
from joinlab.story.forms.mismatch import WrongAnswer
from joinlab.story.judge import story_of
from joinlab.story.lines import Edit, Line, LineKind
from joinlab.story.writers import TAGS
from joinlab.timeline import FROM_TEXT, STOPPED, EndKind, Timeline

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


def first_screen(timeline: Timeline, share_lanes: bool = True, unfold: bool = False) -> FirstScreen:
    """The first screen of a Timeline.

    share_lanes  False: every rank has a lane of its own; else up to four have, and of more those alike share one
    unfold       True: no rounds are stacked, and DDP's own setup is shown
    """
    return _ScreenBuilder(
        Evidence(timeline, folded(timeline, share_lanes)), share_lanes, unfold
    ).build()


def folded(timeline: Timeline, share_lanes: bool = True) -> Folding:
    """What a picture shows of a Timeline; of one with many calls, those that tell the story.
    `share_lanes`: as `first_screen`."""
    return fold_timeline(timeline, share_lanes and timeline.world_size > NARROW)


class _ScreenBuilder:
    """Lays the lanes, which each hold some classes of ranks, and makes the columns of their calls.

    lanes  of each the classes, by their first ranks; `ranks`: all of them
    lane   by the first rank of a class: its lane
    rest   the lane of all ranks that the story does not name, where there are too many lanes
    """

    def __init__(self, evidence: Evidence, share: bool, unfold: bool) -> None:
        self.evidence, self.story, self.unfold = evidence, story_of(evidence), unfold
        self.timeline, self.difference = evidence.timeline, evidence.difference
        self.folding, self.matched = evidence.folding, evidence.folding.matched
        self.numbers, self.classes = self.folding.numbers, self.folding.lanes
        self.unknown = {*self.timeline.meta.get("missing_ranks", ())}  # nothing is recorded of them
        self.outliers = tuple(self.unknown) or self.difference.outliers
        self.drawn_slots = plan(self.matched, self.classes)
        self.fold_of: dict[int, Fold] = {}
        for part in self.folding.parts:
            if isinstance(part, Fold) and not unfold:
                self.fold_of.update(dict.fromkeys(range(part.begin, part.end), part))
        self.rest: int | None = None
        known = self._known()
        self._lay_out([(rank,) for rank, ranks in self.classes.items() if known & {*ranks}])
        if share and len(self.lanes) > NARROW and not unfold:
            self._lay_out(self._merged_lanes())

    def _known(self) -> set[int]:
        """The ranks of which there is something to draw: all, but for those of which a text tells no call
        that they made or missed."""
        ranks = set(range(self.timeline.world_size))
        if self.timeline.meta.get("format") != FROM_TEXT or self.unknown:
            return ranks
        called = {row["rank"] for row in self.matched.rows}
        called.update(*(slot.absent for slot in self.folding.slots))
        return called | {*self.outliers, *self.story.headline.ranks} if called else ranks

    def _lay_out(self, lanes: Sequence[tuple[int, ...]]) -> None:
        """Make the columns of these lanes, and find the one where they part."""
        self.lanes, self.ranks = lanes, [self.difference.ranks(lane) for lane in lanes]
        self.lane = {rank: index for index, lane in enumerate(lanes) for rank in lane}
        self.columns = list(self._columns())
        self.focus = self._find_focus()
        if not self.unfold and (len(self.columns) > MOST or self.folding.every.is_part):
            self._shorten()

    def _merged_lanes(self) -> list[tuple[int, ...]]:
        """Lanes that look the same are one; of too many, those that the story does not name are the
        last one."""
        by_look: dict[object, list[int]] = {}
        for lane, (first,) in enumerate(self.lanes):
            sign, _, tone, detail = self._end((first,))
            look: list[object] = [sign, tone, detail, first in self.outliers]
            for column in self.columns:
                box = column.boxes.get(lane)
                look += [lane in column.absent, box and box._replace(row=None)]
            by_look.setdefault(tuple(look), []).append(first)
        groups = [*map(tuple, by_look.values())]
        if len(groups) <= LANES:
            return groups
        self.rest = LANES - 1
        named = {*self.outliers}
        if len(self.story.headline.ranks) < LANES:
            named |= {*self.story.headline.ranks}
        largest = max(groups, key=lambda lane: len(self.difference.ranks(lane)))
        usual = self._end(largest[:1])[0]

        def tells_nothing(lane: tuple[int, ...]) -> tuple[bool, bool, bool]:
            first, in_focus = self.lane[lane[0]], False
            if self.focus is not None:
                column = self.columns[self.focus]
                in_focus = first in column.boxes or first in column.absent
            as_usual = self._end(lane[:1])[0] == usual
            return named.isdisjoint(self.classes[lane[0]]), as_usual, not in_focus

        shown_lanes = sorted(groups, key=tells_nothing)[: self.rest]
        rest_lanes = [lane for lane in groups if lane not in shown_lanes]
        return [*(lane for lane in groups if lane in shown_lanes), tuple(chain(*rest_lanes))]

    def build(self) -> FirstScreen:
        meant, ends = tuple(self._meant_pairs()), tuple(map(self._end, self.lanes))
        for first, _, second, _ in meant:  # whose partner comes one call later is not alone
            for index in {first, second} - {self.focus}:
                self.columns[index].absent = ()
        self._give_sizes()
        self._count_up()
        names = list(map(ranks_text, self.ranks))
        counts = dict(enumerate(self.timeline.meta.get("inputs") or ()))
        if self.rest is not None:
            names[self.rest] = f"{len(self.ranks[self.rest])} others"
        inputs: list[int | None] = []
        outlier = None
        for lane, ranks in enumerate(self.ranks):
            of_ranks = {counts.get(rank) for rank in ranks}
            inputs.append(of_ranks.pop() if len(of_ranks) == 1 else None)
            if ranks == tuple(sorted(self.outliers)) and ends[lane][2] != "good":
                outlier = lane
        return FirstScreen(
            tuple(self.ranks),
            tuple(names),
            tuple(inputs),
            self._headline(),
            tuple(self.columns),
            self.focus,
            meant,
            tuple(self._readings()),
            outlier,
            ends,
            *self._code(),
            self._tried(),
            tuple((TAGS[line.kind], self._pieces(line)) for line in self.story.lines[1:]),
            self.story.provenance,
        )

    # ---- columns

    def _columns(self) -> Iterator[Column]:
        in_fold = groupby(self.drawn_slots, lambda drawn_slot: drawn_slot.slot in self.fold_of)
        for stacked, drawn_slots in in_fold:
            if stacked:
                yield self._stack(list(drawn_slots))
                continue
            before: Column | None = None
            for column in map(self._column, drawn_slots):
                if before is None or self.unfold or not self._side_by_side(before, column):
                    before = column
                    yield column
                    continue
                before.until, before.remark = column.until, "Nothing meets these calls."
                before.boxes = column.boxes | before.boxes
                absent = {*before.absent, *column.absent} - before.boxes.keys()
                before.absent = tuple(absent)

    def _side_by_side(self, before: Column, column: Column) -> bool:
        """Whether two columns are one: ranks that wait at the same time in sends, or in recvs, that
        nothing meets."""
        free = before.boxes.keys() & column.boxes.keys() <= {self.rest}
        follows = before.until + 1 == column.slot
        return bool(column.lacks) and before.lacks == column.lacks and follows and free

    def _column(self, drawn_slot: DrawnSlot) -> Column:
        slot, rows = self.folding.slots[drawn_slot.slot], dict[int, CallRow]()
        for row in drawn_slot.rows:
            rows.setdefault(self.lane[row["rank"]], row)
        boxes = {}
        for lane, row in rows.items():
            text = asks_of(row) if lane == self.rest else label(row)
            failed = row["error"] is not None
            open_ = row["completed_ns"] is None and not failed
            boxes[lane] = Box(kind(row), text, open_, failed, row=row)
        clashes = []
        for above, below in pairwise(sorted(rows)) if slot.differs else ():
            if "splits" in slot.differs or differences((rows[above], rows[below])):
                clashes.append((above, below))
        flag: Flag = "met"
        if slot.differs:
            flag = "wrong" if slot.met and clashes else "apart"
        elif any(box.open or box.failed for box in boxes.values()):
            flag = "open"
        gone = {*slot.absent} if flag == "open" else set()
        absent = []
        for lane, ranks in enumerate(self.ranks):
            if lane not in boxes and not gone.isdisjoint(ranks):
                absent.append(lane)
        index = self.numbers[drawn_slot.slot]
        return Column(
            index,
            index,
            _numbers_of(drawn_slot.rows),
            boxes,
            flag,
            remark=drawn_slot.text,
            clashes=tuple(clashes),
            absent=tuple(absent),
            lacks=f"no {COUNTERPART[drawn_slot.rows[0]['op']]}" if slot.pair and gone else "",
        )

    def _stack(self, drawn_slots: Sequence[DrawnSlot]) -> Column:
        """Neighbouring folds are one stack."""
        folds = [*dict.fromkeys(self.fold_of[drawn_slot.slot] for drawn_slot in drawn_slots)]
        rows = [row for drawn_slot in drawn_slots for row in drawn_slot.rows]
        inputs = {row["input"] for row in rows if row["input"] is not None}
        times = sum(part.times for part in folds if part.times > 1)  # the others are setup
        if inputs and times in (0, len(inputs)):
            unit = input_or_step(self.timeline.meta)
            stack = counted(len(inputs), unit)
        elif times:
            stack = f"{times} rounds"
        elif kind(rows[0]) is RowKind.SETUP:
            stack = "setup"
        else:
            stack = f"{sum(map(len, folds))} calls"
        numbers = _numbers_of(rows)
        rows_of = by_key((row["rank"], row) for row in rows)
        boxes = {}
        for lane, classes in enumerate(self.lanes):
            rank = next((rank for rank in classes if rank in rows_of), None)
            if rank is None:
                continue
            labels = dict.fromkeys(self.folding.label(part, rank) for part in folds)
            # a rank that shadows the others' calls has none of their inputs
            shadows = inputs and all(row["input"] is None for row in rows_of[rank])
            content = f"{len(rows_of[rank])} calls" if shadows else ""
            boxes[lane] = Box(
                RowKind.FOLD,
                "; ".join(filter(None, labels)),
                stack=content,
                row=rows_of[rank][-1],
            )
        first, last = self.numbers[drawn_slots[0].slot], self.numbers[drawn_slots[-1].slot]
        return Column(
            first, last, numbers[:1] + numbers[-1:], boxes, stack=stack, remark="all matched"
        )

    def _shorten(self) -> None:
        """Of many columns, keep those that tell where the lanes part and end; the others become
        stacks, too."""
        columns, part = self.columns, self.folding.every.is_part
        telling = self._first_open() | {*range(len(columns) - BEFORE, len(columns))}
        if self.focus is not None:
            telling |= {*range(self.focus - BEFORE, self.focus + BEHIND)}
        self.columns, hidden, focus = [], list[Column](), None
        begin = 0  # the slot behind the last column that is kept
        for index, column in enumerate(columns):
            if index not in telling and column.missing is None and column.extra is None:
                hidden.append(column)
                continue
            if hidden or (part and column.slot > begin):
                self._stack_up(hidden, begin, max(column.slot, begin + 1), column)
            if index == self.focus:
                focus = len(self.columns)
            self.columns.append(column)
            begin, hidden = column.until + 1, []
        self.focus = focus

    def _stack_up(self, hidden: Sequence[Column], begin: int, end: int, behind: Column) -> None:
        """Add a stack of the slots from `begin` until before `end`, with the hidden columns, if they
        are known, before the column `behind`."""
        bad, count = int(wrong(self.timeline)[begin:end].sum()), end - begin
        remark = "all matched"
        if bad:
            remark = f"{bad:,} did not match"
        elif self.unknown:
            remark = "all that is recorded matched"
        last_rows = {lane: box.row for column in hidden for lane, box in column.boxes.items()}
        boxes = {}
        for lane, ranks in enumerate(self.ranks):
            if not self.unknown.issuperset(ranks):
                boxes[lane] = Box(RowKind.FOLD, f"{count:,} rows", row=last_rows.get(lane))
        first = self.columns[-1].numbers[-1:] if self.columns else (0,)
        last, numbers = behind.numbers[:1], tuple[int, ...]()
        if first and last:
            numbers = first[0] + 1, last[0] - 1
        stack = f"{count:,} {'rows' if count > 1 else 'row'}"
        flag: Flag = "wrong" if bad else "met"
        self.columns.append(Column(begin, end - 1, numbers, boxes, flag, stack, remark))

    def _first_open(self) -> set[int]:
        """The first column of each lane with a call that never ends."""
        first: dict[int, int] = {}
        for index, column in enumerate(self.columns):
            for lane, box in column.boxes.items():
                if box.open:
                    first.setdefault(lane, index)
        return {*first.values()}

    def _give_sizes(self) -> None:
        loud = self._first_open()
        last = len(self.columns) if self.focus is None else self.focus + AFTER
        for index, column in enumerate(self.columns):
            column.far = index == self.focus
            fails = column.flag in ("wrong", "apart") or any(box.failed for box in column.drawn)
            if column.stack:
                column.size = "stack"
            elif column.missing:
                column.size = "ghost"
            elif column.far and column.extra is None:
                column.size = "big"
            elif column.far or index in loud or (fails and index <= last):
                column.size = "mid"

    def _count_up(self) -> None:
        """Drop the numbers that do not count up: those of sends, and of calls in several groups.

        The column where the lanes part keeps its number, by which the headline may name it.
        """
        last = -1
        for index, column in enumerate(self.columns):
            sends = any(box.kind is RowKind.PAIR for box in column.drawn)
            if column.numbers and not sends and column.numbers[0] > last:
                last = column.numbers[-1]
            elif index != self.focus:
                column.numbers = ()

    # ---- where they part

    def _find_focus(self) -> int | None:
        """Find where the ranks part, and mark the call that is too many there, or put in the one
        that is missing."""
        if self.difference.first is None:
            return None
        focus = self._column_with(self.difference.first)
        lead, outliers = self.difference.lead, self.difference.outliers
        # its calls met: none is loud for its absence
        all_met = isinstance(self.story.headline, WrongAnswer)
        if focus is None or lead is None or lead.by != 1 or not outliers or all_met:
            if focus is None or self.columns[focus].flag != "met":
                return focus
            mismatch = self._column_with(self.difference.slot_index)
            return focus if mismatch is None else mismatch
        extra = self.difference.extra[0]
        index = self._column_of(extra)
        if index is not None and outliers == self.difference.ranks(lead.ahead):
            self.columns[index].extra = self.lane[extra["rank"]]
            return index
        if index is not None and outliers == self.difference.ranks(lead.behind):
            slot, missing = self.columns[index].slot, (self.lane[lead.behind[0]], asks_of(extra))
            self.columns.insert(index, Column(slot, slot, (), {}, "open", missing=missing))
            return index
        return focus

    def _column_with(self, slot: int | None, lane: int | None = None) -> int | None:
        """Where a slot of the story's folding is drawn, and where a lane's call in it: it can be taken
        apart. None where it is within a stack."""
        for index, column in enumerate(self.columns):
            alone = not (column.stack or column.missing) and (lane is None or lane in column.boxes)
            if slot is not None and alone and column.slot <= self.numbers[slot] <= column.until:
                return index
        return None

    def _column_of(self, row: CallRow) -> int | None:
        """Where a call stands; None where it is within a stack."""
        return self._column_with(self.matched.index_of[key_of(row)], self.lane[row["rank"]])

    def _meant_pairs(self) -> Iterator[tuple[int, int, int, int]]:
        difference, pairs = self.difference, list[tuple[CallRow, CallRow]]()
        lead = None if difference.first is None else difference.lead
        turned = difference.turned
        if turned:
            pairs = [
                (turned.first, turned.largest_second),
                (turned.second, turned.largest_first),
            ]
        elif lead is not None:
            ahead, behind = lead.ahead[0], lead.behind[0]
            extra_column = self._column_of(difference.extra[0])
            for gap, column in enumerate(self.columns):
                if column.missing and extra_column is not None:
                    yield gap, self.lane[behind], extra_column, self.lane[ahead]
            late = difference.collectives(behind)[lead.at :]
            early = difference.collectives(ahead)[lead.at + lead.by :]
            pairs = [*zip(late, early, strict=False)]
        for call, other_call in pairs:
            index, other_index = self._column_of(call), self._column_of(other_call)
            if index is not None and other_index is not None:
                yield index, self.lane[call["rank"]], other_index, self.lane[other_call["rank"]]

    def _readings(self) -> Iterator[MisreadValue]:
        """What ranks took for an answer, which was another call's data: first the one that asked,
        then in turn."""
        last: int | None = None
        for index, column in enumerate(self.columns):
            if column.flag != "wrong":
                continue
            pairs = [(to, sender) for pair in column.clashes for to, sender in (pair, pair[::-1])]
            for to, sender in pairs:
                reading = _reading(index, to, sender, column)
                if reading is not None and to != last:
                    yield reading
                    last = to
                    break
            if last is None:
                return

    # ---- words

    def _pieces(self, line: Line) -> tuple[ScreenPiece, ...]:
        """The words of a line of the story, each noun with the kind of the call that it names."""
        pieces = []
        for piece in line.pieces():
            row = None
            if piece.call is not None:
                row = self.matched.row_of.get(line.calls[piece.call].key)
            text = f"`{piece.text}`" if piece.code else piece.text
            pieces.append(ScreenPiece(text, None if row is None else kind(row)))
        return tuple(pieces)

    def _headline(self) -> tuple[ScreenPiece, ...]:
        line = self.story.headline
        well = all(group.good for group in line.ends)
        if well and isinstance(line, Even):
            return (ScreenPiece(self.story.sentence, tone="good"),)
        # of replicas that differ, no noun has a colour
        plain: Tone = "warn" if well and not line.calls else ""
        tone: Tone = "warn" if all(group.pending for group in line.bad_ends()) else "bad"
        cause, pieces, endings = replace(line, ends=()), list[ScreenPiece](), line.sentence
        if endings.startswith(cause.sentence):
            endings = endings.removeprefix(cause.sentence)
            pieces += (piece._replace(tone=plain) for piece in self._pieces(cause))
        if endings:
            pieces.append(ScreenPiece(endings, tone=tone))
        return tuple(pieces)

    @property
    def _edit(self) -> Edit | None:
        """The edit that the code shows."""
        edits = (edit for line in self.story.of(LineKind.FIX) for edit in line.edits)
        return next(edits, None)

    def _tried(self) -> ScreenPiece:
        """The result of the edit shown in the code; the story has the details."""
        if self._edit is None:
            pieces = [self._pieces(line) for line in self.story.of(LineKind.FIX)[:1]]
            return ScreenPiece("".join(piece.text for piece in chain(*pieces)))
        launched = self.timeline.meta.get("engine") == "launched"
        how = "Tried, emulated" if launched else "Tried"
        finish = "every rank finishes" if self.timeline.world_size > 2 else "both finish"
        if any(end.pending for end in self.timeline.ends):
            finish += ", no call pending"
        return ScreenPiece(f"{how}: {finish}.", tone="good")

    def _end(self, lane: Sequence[int]) -> LaneEnd:
        """How most ranks of a lane ended."""
        ranks = self.difference.ranks(lane)
        ends = by_key((self.timeline.ends[rank].kind, self.timeline.ends[rank]) for rank in ranks)
        end, *alike = max(ends.values(), key=len)
        many = f"{1 + len(alike)} " if alike else ""
        if self.unknown.issuperset(ranks):
            return "?", f"{many}no record", "warn", ""
        if end.runs:
            return "…", f"{many}running", "", ""
        word, detail, s = "", "", "" if alike else "s"
        match end.kind:
            case EndKind.FINISHED if end.pending:
                return "✓", f"{many}finished", "warn", "call pending"
            case EndKind.FINISHED:
                return "✓", f"{many}finished", "good", ""
            case EndKind.UNKNOWN:
                return "?", f"{many}not known", "warn", ""
            case EndKind.HUNG:
                word, key = f"wait{s}", self.timeline.ended_in(ranks[0])
                row = None if alike or key is None else self.matched.row_of.get(key)
                if not end.proven:
                    detail = "as far as is seen"
                elif row is not None and row["peer"] is not None:
                    detail = f"for rank {row['peer']}"
            case EndKind.RAISED:
                word, detail = f"raise{s}", end.text.partition(":")[0]
            case EndKind.KILLED:
                word = "stopped" if end.how == STOPPED else "killed"
        return "✕", many + word, "bad", detail

    def _lines_of_boxes(self, file: str, body: Mapping[int, str]) -> set[int]:
        """The lines of `body` from which the boxes come; each box gets its own, a stack that of its
        last call."""
        issued: set[int] = set()
        for column in self.columns:
            for lane, box in column.boxes.items():
                sites = self.evidence.sources.lines_of(box.row) if box.row else ()
                lines = (site.line for site in sites if site.source.file == file)
                number = next((line for line in lines if line in body), 0)
                column.boxes[lane] = box._replace(line=number)
                if not column.stack:
                    issued.add(number)
        return issued - {0}

    def _subject(self, ranks: Sequence[int], kind: LineKind) -> str:
        """The ranks that stand at a line, in a few characters."""
        notes = self.story.of(LineKind.NOTE)
        left_out = sum(note.count for note in notes if isinstance(note, LeftOut))
        if kind is LineKind.PARTING and left_out:
            return f"{len(ranks)} of {len(ranks) + left_out} ranks compared"
        if len(ranks) == self.timeline.world_size > NARROW:
            return f"all {len(ranks)} ranks"
        text = ranks_text(ranks)
        return text if len(text) < 32 else f"{len(ranks)} ranks"

    def _cited_lines(self, file: str) -> tuple[str, dict[int, dict[str, ScreenPiece]]]:
        """By line on which the story rests, who stands there, and the file of these lines: `file`, or
        that of the first one."""
        marks: dict[int, dict[str, ScreenPiece]] = {}
        for line in self.story.lines:
            raised = isinstance(line, Raised)
            if line.kind not in CITING and not raised:
                continue
            for source in line.lines:
                site_file, _, number = source.site.rpartition(":")
                if not number.isdigit() or (file and site_file != file):
                    continue
                file, ranks, row = site_file, source.ranks, None
                if raised and int(number) not in marks:
                    ranks = line.ranks  # nothing else says who raised there
                for call in line.calls:
                    if row is None and call.site == source.site and call.rank in source.ranks:
                        row = self.matched.row_of.get(call.key)
                who = self._subject(ranks, line.kind)
                mark = ScreenPiece(who, kind(row) if row else None, "" if row else "bad")
                if ranks:
                    marks.setdefault(int(number), {}).setdefault(who, mark)
        return file, marks

    def _code(self) -> tuple[str, tuple[ScreenLine, ...]]:
        """The lines that the story rests on, with who stands there, and the edit; else those that
        make DDP's calls."""
        edit, texts = self._edit, self.evidence.sources
        file, marks = self._cited_lines(edit.file if edit else "")
        wanted = {*marks}
        if edit:
            wanted |= {*range(edit.begin, edit.begin + len(edit.removed))}
        source = texts.line(file, min(wanted, default=0)).source
        if not source.lines:
            if texts.program is None or not texts.program.lines:
                return file, ()
            source = texts.program
        body = dict(enumerate(source.lines, source.first_line))
        for line_number in wanted - body.keys():  # of a script, each statement is a text
            text_held = texts.line(source.file, line_number).source
            if text_held.lines:
                body[line_number] = text_held.lines[line_number - text_held.first_line]
        if edit and edit.removed and edit.begin in body:  # a method's text is kept dedented
            indent = len(edit.removed[0]) - len(body[edit.begin])
            removed, added = (
                tuple(text[indent:] for text in texts) for texts in (edit.removed, edit.added)
            )
            edit = replace(edit, removed=removed, added=added)
        issued = self._lines_of_boxes(source.file, body)
        loop = {number for number, text in body.items() if _CALLS.match(text)}
        wanted &= body.keys()
        choices = (wanted | issued | loop, wanted | issued, wanted or loop)
        wanted = next((lines for lines in choices if len(lines) <= MOST_LINES), choices[-1])
        wanted |= {number for number in body if {number - 1, number + 1} <= wanted}
        lines = []
        for line_number in sorted(wanted):
            marks_here = tuple(marks.get(line_number, {}).values())
            lines.append(ScreenLine("", line_number, body[line_number], marks_here))
        return source.name, tuple(lines if edit is None else _edited(lines, edit))


def _reading(index: int, to: int, sender: int, column: Column) -> MisreadValue | None:
    """What lane `to` took for an answer in a column, of which lane `sender` sent it; None if it asked nothing."""
    row, sent_row = column.boxes[to].row, column.boxes[sender].row
    if row is None or sent_row is None or row["completed_ns"] is None:
        return None
    made, sent = conclusion(row["origin"], row["value_out"]), _single(sent_row["value_in"])
    if made is None or not made.meaning or sent is None:
        return None
    answer = "nobody" if made.meaning == "all ranks have joined" else ""
    return MisreadValue(index, to, sender, made.value, sent, answer)


def _numbers_of(rows: Iterable[CallRow]) -> tuple[int, ...]:
    """The numbers of calls in their groups, each once."""
    return tuple(sorted({row["number"] for row in rows if row["number"] is not None}))


CITING = (LineKind.HEADLINE, LineKind.CAUSE, LineKind.PARTING)
"""Kinds of lines of the story of whose lines of the program the picture shows who stands there."""

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
            if old is not None:
                yield old._replace(text=hunk.added[index]) if hunk.kept else old._replace(sign="-")
        if not hunk.kept:
            yield from (ScreenLine("+", None, text) for text in hunk.added)
    end = edit.begin + len(edit.removed)
    yield from (line for number, line in by_number.items() if number >= end)


def _single(text: str | None) -> str | None:
    """The one value of a call, as it is read; None of none, of several and of what is no number."""
    values = flat_values(text)
    if len(values) == 1 and isinstance(values[0], int | float):
        return number(values[0])
    return None
