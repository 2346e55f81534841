"""The reports of the command line, 80 to 120 columns wide: the verdict first, then the calls, folded.

Texts from a run (an error of the backend, a label) are printed as they are, never as markup.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from textwrap import wrap
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from joinlab.analysis.first_difference import alike
from joinlab.analysis.folding import Fold, Part, fold
from joinlab.analysis.matching import Slot, wrong
from joinlab.analysis.meanings import asks
from joinlab.analysis.reading import left_out, read
from joinlab.analysis.wording import (
    by_key,
    good,
    group_text,
    number_text,
    ranks_text,
    shown,
    size_text,
)
from joinlab.ops import CallRow, Op, counted
from joinlab.showing import short_site
from joinlab.story.evidence import Evidence
from joinlab.story.judge import story_of, with_findings
from joinlab.story.lines import Headline, Line
from joinlab.story.words import ENDINGS
from joinlab.story.writers import ended_in_short, text_of
from joinlab.timeline import FROM_TEXT, LOST, Ending, EndKind, Timeline

if TYPE_CHECKING:
    # not at run time: it imports torch, which a saved run does not need
    from joinlab.cases import Case

WIDTH, WIDEST = 80, 120
"""Characters per line, as a mail or an issue has them; of one run, in a wider terminal."""

NARROWEST = 60
"""A narrower terminal wraps the lines."""

LANES, PER_LANE = 3, 20
"""Most lanes shown, and one more for so many characters beyond WIDTH; if there are more, those that
differ are chosen."""

WIDE_LANE = 30
"""Most characters of a lane: two calls that differ have to be seen together."""

REMARK, GAP = 16, 4
"""Characters for the remark on a row, and for the gap between two lanes, which has the sign of
inequality."""

BEFORE, AFTER = 4, 12
"""Rows shown before the first difference, and from it on; `--all` lists the rest."""


class Screen(Console):
    """stdout without markup. A closed pipe raises BrokenPipeError, as with print()."""

    def __init__(self) -> None:
        # Jupyter makes rich colour the output of a cell's child; a pipe gets plain text without
        # moving lines.
        terminal = None if sys.stdout.isatty() else False
        super().__init__(markup=False, emoji=False, highlight=False, force_terminal=terminal)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """rich's pieces of text and style, with the control characters of a run's texts made
        visible."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else shown(text), style, control)

    def on_broken_pipe(self) -> None:
        """Re-raise the BrokenPipeError that is being handled; rich itself would exit with 1."""
        raise


# ---- the six cases


@dataclass(frozen=True, slots=True)
class CaseRuns:
    """The runs of one case with the same inputs: modelled on the NCCL of PyTorch 1.9 and of today,
    and run here."""

    case: Case
    documented_on: Timeline
    today: Timeline
    here: Timeline

    def all(self) -> tuple[Timeline, ...]:
        return self.documented_on, self.today, self.here


def fabrics(local: str) -> list[tuple[str, str]]:
    """The columns of a table of cases: the fabric, and whether it is modelled or run."""
    return [("NCCL, PyTorch 1.9", "modelled"), ("NCCL today", "modelled"), (local, "run here")]


def cases_report(runs: Mapping[int, CaseRuns], n: int) -> Text:
    """How each case, by its number, ends with `n` and n + 1 inputs: one line per case."""
    on = " and ".join(sorted({str(case_runs.here.meta["backend"]) for case_runs in runs.values()}))
    lines = [f"rank 0: {counted(n, 'input')}, rank 1: {n + 1}"]
    lines += [
        f"{'':39}{'NCCL of':14}{'NCCL today':14}{on}",
        f"{'':39}{'PyTorch 1.9':14}{'modelled':14}run here",
    ]
    for number, case_runs in runs.items():
        cells = []
        for run in case_runs.all():
            cell = ended(run.ends)
            if any(end.pending for end in run.ends):
                cell += "*"
            cells.append(cell)
        mark = _mark(case_runs)[0]
        lines.append(
            f"{number:<2}{_cut(_program(case_runs.case), 34):35}{mark:2}{cells[0]:14}{cells[1]:14}{cells[2]}"
        )
    return Text("\n".join(_cut(line.rstrip()) for line in [*lines, ""]))


_PLURAL = {"finishes": "finish", "hangs": "hang", "raises": "raise", "killed": "are killed"}


def ended(ends: Sequence[Ending]) -> str:
    """How two ranks ended: "both hang", "rank 1 hangs", "hangs, raises"."""
    verbs = [ENDINGS[end.kind].trace.removeprefix("is ") for end in ends]
    ill = [(rank, word) for rank, word in enumerate(verbs) if word != "finishes"]
    if len(set(verbs)) == 1:
        return f"both {_PLURAL.get(verbs[0], verbs[0])}"
    if len(ill) == 1:
        return f"rank {ill[0][0]} {ill[0][1]}"
    return ", ".join(verbs)


def cases_notes(tables: Mapping[int, Mapping[int, CaseRuns]]) -> Text:
    """The legend of the tables' signs, and why the backend of this machine ends some cases
    differently."""
    all_runs = [
        (n, number, case_runs) for n, runs in tables.items() for number, case_runs in runs.items()
    ]
    marks = {_mark(case_runs)[0] for _, _, case_runs in all_runs}
    if "=" in marks:
        notes = ["=  as the forum thread documents it, for NCCL"]
    else:
        notes = []
    if any(
        end.pending for _, _, case_runs in all_runs for run in case_runs.all() for end in run.ends
    ):
        notes.append("*  a rank finished, and left a call pending")
    for n, number, case_runs in all_runs:
        mark, documented_text = _mark(case_runs)
        if mark not in ("", "="):
            notes.append(
                f"{mark}  case {number}, {n} and {n + 1} inputs, documented: {documented_text}"
            )
    why: dict[str, list[int]] = {}
    for _, number, case_runs in all_runs:
        documentation = case_runs.case.documentation
        if (
            documentation
            and documentation.gloo
            and case_runs.here.meta["backend"] == "gloo"
            and number not in why.get(documentation.gloo, ())
        ):
            why.setdefault(documentation.gloo, []).append(number)
    notes += [
        f"   {'cases' if len(numbers) > 1 else 'case'} {' and '.join(map(str, numbers))}: {note}"
        for note, numbers in why.items()
    ]
    return Text(
        "\n".join(line for note in notes for line in wrap(note, WIDTH, subsequent_indent="   "))
    )


def documented(runs: CaseRuns) -> str:
    """What the thread says of this case and these inputs; "" if nothing."""
    mark, text = _mark(runs)
    if mark == "=":
        return "as documented"
    if mark:
        return f"documented: {text}"
    return ""


def _mark(runs: CaseRuns) -> tuple[str, str]:
    """Compare the model of PyTorch 1.9 with the documentation: a sign, and the documented ending of
    each rank."""
    inputs = runs.documented_on.meta["inputs"]
    if runs.case.documentation:
        expected = runs.case.documentation.ends(inputs)
    else:
        expected = None
    if expected is None:
        return "", ""
    verbs = [ENDINGS[end.kind].trace for end in runs.documented_on.ends]
    matches = [a == b for a, b in zip(verbs, expected, strict=True)]
    plain = {ending.trace for ending in ENDINGS.values()}
    text = "; ".join(f"rank {rank} {end}" for rank, end in enumerate(expected))
    if all(matches):
        return "=", text
    contradicts = any(
        end in plain for end, matched in zip(expected, matches, strict=True) if not matched
    )
    return "≠" if contradicts else "~", text


def _program(case: Case) -> str:
    documentation = case.documentation
    if documentation is None:
        return case.title.removeprefix("Case ").lstrip("0123456789: ")
    if documentation.barrier:
        barrier = f"barrier {documentation.barrier}"
    else:
        barrier = "no barrier"
    return f"{'join()' if documentation.join else 'no join()'}, {barrier}"


# ---- one run


def run_report(run: Timeline, everything: bool = False, width: int = WIDTH) -> Text:
    """One run on one screen: what happened, why, what to do, and the calls, folded.

    everything  list every row and every lane
    width       of the terminal; lines have at most WIDEST characters
    """
    width = max(min(width, WIDEST), NARROWEST)
    evidence = Evidence(run, fold(run, whole=everything))
    evidence = with_findings(evidence)
    story = story_of(evidence)
    lines = [_title(run, story.headline, width), *text_of(story.lines, width).split("\n")]
    lines += ["", *_CallTable(evidence, story.headline, everything, width).lines()]
    report = Text("\n".join(line.rstrip() for line in lines))
    ill = not all(map(good, run.ends))
    begin = lines[0].rfind("  ")
    report.stylize("bold red" if ill else "bold green", max(begin, 0), len(lines[0]))
    return report


def _title(run: Timeline, headline: Headline, width: int) -> str:
    meta = run.meta
    counts = list(meta.get("inputs") or [])
    engine = f"{meta.get('engine', 'recorded')} {meta.get('backend', '')}".rstrip()
    heading = f"{meta.get('program', 'program')} · {engine}"
    if len(counts) == 2 or (0 < len(counts) <= 8 and len(set(counts)) > 1):
        heading += f" · inputs {', '.join(map(str, counts))}"
    elif meta.get("format") != FROM_TEXT:  # a text does not say how many there are
        heading += f" · {size_text(run)}"
    right = _cut(ended_in_short(headline).upper(), width - 14)
    heading = _cut(heading, max(width - len(right) - 2, 12))
    return f"{heading}{right:>{max(width - len(heading), len(right) + 2)}}"


class _CallTable:
    """The rows of one run as lines: matched rounds folded, the rows around the first difference in
    full."""

    def __init__(self, evidence: Evidence, headline: Line, everything: bool, width: int) -> None:
        run, folding = evidence.timeline, evidence.folding
        self.line_width = width
        max_lanes, remark = LANES + (width - WIDTH) // PER_LANE, REMARK
        if width < WIDTH:
            max_lanes, remark = LANES - 1, 0  # remarks go below the row
        self.run, self.folding, self.everything = run, folding, everything
        self.part = not everything and read(run).is_part
        self.first = evidence.difference.first
        lanes = [*folding.lanes]
        odd, named = evidence.difference.outliers, {call.rank for call in headline.calls}
        lanes.sort(
            key=lambda rank: (rank in odd, rank in named, len(folding.lanes[rank])), reverse=True
        )
        self.shown = sorted(lanes if everything else lanes[:max_lanes])
        self.left_out = len(lanes) - len(self.shown)
        lane = (width - 9 - remark) // max(min(len(self.shown), max_lanes), 1)
        self.width = min(lane - GAP, WIDE_LANE)
        rows = folding.matched.rows
        sites = {(row["call_site"] or "").rpartition(":")[0] for row in rows}
        self.one_file = len(sites) == 1
        self.groups = len({slot.group for slot in folding.slots}) > 1
        self.take_any = {  # a recv from any rank does not record whose send it took
            row["rank"] for row in rows if row["op"] == Op.RECV and row["peer"] is None
        }

    def lines(self) -> Iterator[str]:
        if not self.folding.slots:
            yield "No call was recorded."
            return
        parts = list(range(len(self.folding.slots)) if self.everything else self._parts())
        center = parts.index(self.first) if self.first in parts else len(parts) - 1
        begin, end = (
            (0, len(parts))
            if self.everything or sum(isinstance(part, int) for part in parts) <= BEFORE + AFTER
            else (max(center - BEFORE, 0), center + AFTER)
        )
        yield "   call  " + self._columns(list(map(self.folding.name, self.shown)))
        folded, before, hidden = False, None, 0
        for k, part in enumerate(parts):
            if self.part and (isinstance(part, Fold) or begin <= k < end):
                first_slot, last_slot = (
                    (part.begin, part.end - 1) if isinstance(part, Fold) else (part, part)
                )
                gap = left_out(wrong(self.run), before, self.folding.numbers[first_slot])
                if gap:
                    yield f"         {gap}"
                before = self.folding.numbers[last_slot]
            if isinstance(part, Fold):
                folded = True
                yield f"{self._numbers(part):>7}  {_cut(self.folding.label(part), self.line_width - 24)}: all matched"
            elif begin <= k < end:
                yield self._row(part)
            else:
                hidden += 1
        omitted = ["every row"] if self.part else []
        for count, noun in ((0 if self.part else hidden, "row"), (self.left_out, "lane")):
            if count:
                omitted.append(counted(count, f"more {noun}"))
        if folded and not self.part:
            omitted.append("the rows that matched")
        if omitted:
            text, pad = f"--all lists {' and '.join(omitted)}.", " " * 9
            yield from wrap(text, self.line_width - 9, initial_indent=pad, subsequent_indent=pad)

    def _parts(self) -> Iterator[Part]:
        """The parts to list. In a large run, a fold with a gap in it is listed row by row."""
        numbers = self.folding.numbers
        for part in self.folding.parts:
            if isinstance(part, Fold) and numbers[part.end - 1] - numbers[part.begin] >= len(part):
                yield from range(part.begin, part.end)
            else:
                yield part

    def _numbers(self, part: Fold) -> str:
        slots = self.folding.slots
        return f"{self._number(slots[part.begin])}-{self._number(slots[part.end - 1])}"

    def _number(self, slot: Slot) -> str:
        """The number of its calls as the record has it: the lowest, if they differ."""
        rows = self.folding.matched.calls_of(slot).values()
        number = min((row["number"] for row in rows if row["number"] is not None), default=None)
        return number_text(self.run.meta, slot.group, number).rpartition(" ")[2] or "-"

    def _row(self, index: int) -> str:
        slot = self.folding.slots[index]
        cells = [self._cell(slot, rank) for rank in self.shown]
        mark = ">" if index == self.first else " "
        columns = self._columns(cells, self._signs(slot))
        line = f"{mark}{self._number(slot):>6}  {columns}".rstrip()
        remark = self._remark(slot)
        if not remark:
            return line
        if len(line) + len(remark) + 2 <= self.line_width:
            return f"{line}  {remark}"
        return "\n         ".join(
            [line, *wrap(remark, self.line_width - 9, break_on_hyphens=False)]
        )

    def _columns(self, cells: Sequence[str], signs: Iterable[str] = repeat("")) -> str:
        return "".join(
            f"{sign:^{GAP}}{_cut(cell, self.width):{self.width}}"
            for sign, cell in zip(signs, cells, strict=False)
        )[GAP:]

    def _signs(self, slot: Slot) -> Iterator[str]:
        """Before the call of every lane how it differs from that to the left: "!=", or "(!)" if it
        is the same call from another line."""
        rows, left = self.folding.matched.calls_of(slot), None
        for rank in self.shown:
            row = rows.get(rank)
            if row is None or left is None:
                yield ""
            elif slot.differs:
                yield "" if alike(left, row, slot) else "!="
            elif row["origin"] == left["origin"] and row["call_site"] != left["call_site"]:
                yield "(!)"
            else:
                yield ""
            left = row or left

    def _cell(self, slot: Slot, rank: int) -> str:
        if rank not in slot.calls:
            return "-"
        row = self.folding.matched.calls_of(slot)[rank]
        site = row["call_site"] or ""
        if self.one_file and site:
            line = f":{site.rpartition(':')[2]}"
        else:
            line = short_site(site)
        return f"{asks(row['origin'], row['op'])} {line}".rstrip()

    def _remark(self, slot: Slot) -> str:
        rows = self.folding.matched.calls_of(slot)
        remarks = []
        if slot.differs and not slot.met:
            remarks.append("can never meet")
        if slot.pair and not slot.met and not slot.refused and not self._was_taken(slot):
            remarks.append("nothing meets it")
        elif not slot.pair:
            absent = [rank for rank in slot.absent if self.run.ends[rank].text != LOST]
            if absent:
                remarks.append(f"no call of {ranks_text(absent)}")
        open_ranks = by_key(
            (self._state(slot, row), rank)
            for rank, row in rows.items()
            if row["completed_ns"] is None
        )
        for state, ranks in open_ranks.items():
            stuck = [member for rank in ranks for member in self.folding.lanes[rank]]
            if len(ranks) == len(rows):
                remarks.append(state)
            else:
                verb = "never end" if len(stuck) > 1 and state == "never ends" else state
                remarks.append(f"{ranks_text(stuck)} {verb}")
        if self.groups:
            remarks.append(f"group {group_text(self.run.meta, slot.group)}")
        return ", ".join(remarks)

    def _state(self, slot: Slot, row: CallRow) -> str:
        """The state of an incomplete call, as the table shows it."""
        if row["error"]:
            return "refused" if slot.refused else "failed"
        end = self.run.ends[row["rank"]]
        if end.runs:
            return "not yet"
        return "no end on record" if end.kind is EndKind.UNKNOWN else "never ends"

    def _was_taken(self, slot: Slot) -> bool:
        """Whether a recv from any rank may have taken these sends, or been one of these calls."""
        rows = self.folding.matched.calls_of(slot).values()
        return all(
            row["completed_ns"] is not None and {row["rank"], row["peer"]} & self.take_any
            for row in rows
        )


def _cut(text: str, width: int = WIDTH) -> str:
    if len(text) <= width:
        return text
    return f"{text[: width - 1]}…"
