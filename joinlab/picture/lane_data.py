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
from collections.abc import Hashable
from typing import Any

from joinlab.analysis.source import CodeLine, SourceTexts
from joinlab.analysis.wording import good, measured, ranks_text, shown, sign, title
from joinlab.picture.columns import columns
from joinlab.picture.compared import compared
from joinlab.picture.details import MADE, Details, call_details
from joinlab.picture.first_screen import first_screen, folded
from joinlab.picture.layout import before, behind
from joinlab.picture.rows import RowKind
from joinlab.picture.screen import Column, FirstScreen, fate_of
from joinlab.picture.theme import FILLS, THEME
from joinlab.timeline import Ending, EndKind, Timeline

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

LOOKS = {"kinds": [kind.value for kind in KINDS], **THEME["shared"]}
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


class ValueTable:
    """Numbers distinct values in order of first use."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}

    def __call__(self, value: Hashable) -> int:
        """The number of `value`."""
        return self._numbers.setdefault(value, len(self._numbers))

    @property
    def values(self) -> list[Any]:
        return list(self._numbers)


class LaneData:
    """Collects runs, and stores their common parts once."""

    def __init__(self) -> None:
        self._facts = ValueTable()  # (name, what it says)
        self._calls = ValueTable()  # of a call: its facts
        self._runs: list[tuple[dict[str, object], bytes]] = []  # each with its columns

    def add(
        self,
        timeline: Timeline,
        share_lanes: bool = True,
        beside: Timeline | None = None,
        calls: bool = True,
    ) -> int:
        """Add a Timeline and return the number of its run: the same for what would look the same.

        ranks   False gives every rank a lane of its own, however many there are
        beside  another one, which is drawn below it on the same axis
        calls   False leaves out what only "…" and the details of a call show; a run with another one `beside` has it
        """
        if beside is None:
            run, packed = self._run(timeline, share_lanes, calls)
            if timeline.live.mended is not None:
                run["mended"] = self._add(*self._run(timeline.live.mended, share_lanes, calls))
            return self._add(run, packed)
        both, sentence = compared(timeline, beside)
        (run, packed), below = (
            self._run(side, False, True, screen)
            for side, screen in zip((timeline, beside), both, strict=True)
        )
        return self._add(run | {"beside": self._add(*below), "apart": sentence}, packed)

    def _add(self, run: dict[str, object], packed: bytes) -> int:
        if (run, packed) not in self._runs:
            self._runs.append((run, packed))
        return self._runs.index((run, packed))

    def packed(self, **extra: object) -> bytes:
        """All of it and `extra` as JSON, and behind a NUL the columns; the same runs give the same
        bytes."""
        parts = {
            "looks": LOOKS,
            "facts": self._facts.values,
            "told": self._calls.values,
            "runs": [run for run, _ in self._runs],
        } | extra
        text = json.dumps(_safe(parts), ensure_ascii=False, separators=(",", ":")).encode()
        numbers = b"".join(packed for _, packed in self._runs)
        whole = b"\0".join([text, numbers])
        if len(whole) < SMALL:
            return whole
        return gzip.compress(whole, 6 if len(numbers) < LARGE else 1, mtime=0)

    def _run(
        self,
        timeline: Timeline,
        share_lanes: bool,
        calls: bool,
        screen: FirstScreen | None = None,
    ) -> tuple[dict[str, object], bytes]:
        folding = folded(timeline, share_lanes)
        screen = screen or first_screen(timeline, share_lanes)
        run = {
            "title": title(timeline),
            "measured": measured(timeline),
            "mends": bool(timeline.live.mended or timeline.live.rerun)
            and not timeline.meta.get("fixes_hidden")
            and not all(map(good, timeline.ends)),
            "scene": _screen(screen, timeline),
        }
        if not calls:
            return run, b""
        data, codes, zero, packed = columns(timeline, folding)
        texts = SourceTexts.of(timeline)
        sources, lines = ValueTable(), ValueTable()
        if texts.program is not None:
            sources(texts.program)  # the first

        def cited(code_lines: tuple[CodeLine, ...]) -> int:
            """The number of the lines that led to a call."""
            return lines(tuple((sources(line.source), line.line) for line in code_lines))

        cited(())  # number 0
        data["codes"] = [
            code._asdict()
            | {
                "lines": cited(code.lines),
                "facts": self._facts_of(code.facts) if folding.every.is_part else 0,
            }
            for code in codes
        ]
        data["names"] = [(name, cited(code_lines)) for name, code_lines in data["names"]]
        class_of = {rank: index for index, ranks in enumerate(folding.classes) for rank in ranks}
        ends = [timeline.ends[ranks[0]] for ranks in folding.classes]
        queues = timeline.calls["started_ns"].null_count() < timeline.calls.height
        single_calls = []
        for number, slot in zip(folding.numbers, folding.slots, strict=True):
            for rank, row in folding.matched.calls_of(slot).items():
                facts = self._facts_of(call_details(row, queues, timeline.meta)[2:])
                single_calls.append((number, class_of[rank], facts))
        return run | {
            "told": single_calls,
            "names": list(map(ranks_text, folding.classes)),
            "ends": list(map(_ending, ends)),
            "fates": [fate_of(sign(end)) for end in ends],
            "queues": queues,
            "lanes": [class_of[ranks[0]] for ranks in screen.ranks],
            "columns": data,
            "zero": zero if zero < FAR else 0,
            "sources": [
                {
                    "name": source.name,
                    "first_line": source.first_line,
                    "text": source.text if source.lines else None,
                }
                for source in sources.values
            ],
            "lines": lines.values,
        }, packed

    def _facts_of(self, facts: Details) -> int:
        """The number of a call's facts: what a reader looks for first, the rest, the stack, and what
        the rank made of it; -1: none."""
        numbers = {fact[0]: self._facts(fact) for fact in facts}
        stack, made = numbers.pop("stack", -1), numbers.pop(MADE, -1)
        first = tuple(numbers.pop(name) for name in FIRST if name in numbers)
        return self._calls((first, tuple(numbers.values()), stack, made))


def _safe(part: object) -> object:
    """The same with every text as `shown`, and every kind of call as its number."""
    if isinstance(part, RowKind):
        return KINDS.index(part)
    if isinstance(part, str):
        return shown(part)
    if isinstance(part, dict):
        return {name: _safe(value) for name, value in part.items()}
    if isinstance(part, list | tuple):
        return list(map(_safe, part))
    return part


def _screen(screen: FirstScreen, timeline: Timeline) -> dict[str, object]:
    """The first screen, as static/types.d.ts has it."""
    lanes = range(len(screen.ranks))
    columns = []
    for index, column in enumerate(screen.columns):
        columns.append(
            vars(column)
            | {
                "numbers": column.number,
                "boxes": [_box(screen, index, lane) for lane in lanes],
                "title": screen.title(column),
                "how": _how(screen, column),
                "remark": column.remark or MEANINGS["missing" if column.missing else column.flag],
            }
        )
    return vars(screen) | {
        "short": list(map(screen.short, lanes)),
        "world": timeline.world_size,
        "inputs": list(map(screen.had, lanes)),
        "under": list(map(screen.under, lanes)),
        "columns": columns,
        "tone": screen.tone,
        "before": before(screen),
        "behind": behind(screen),
        "tried": [screen.tried],
    }


def _box(screen: FirstScreen, index: int, lane: int) -> dict[str, object] | None:
    box = screen.columns[index].boxes.get(lane)
    if box is None:
        return None
    facts = box._asdict() | {"row": None, "below": screen.below(index, lane)}
    return {name: fact for name, fact in facts.items() if fact}


def pack(
    timeline: Timeline, share_lanes: bool = True, beside: Timeline | None = None, calls: bool = True
) -> bytes:
    """The data of one Timeline. `share_lanes`, `beside`, `calls`: as LaneData.add takes them."""
    data = LaneData()
    data.add(timeline, share_lanes, beside, calls)
    return data.packed()


def _how(screen: FirstScreen, column: Column) -> str:
    """What went wrong in a column, read aloud behind its title."""
    if column.flag in ("wrong", "apart"):
        return ", here the calls do not match"
    fates = dict.fromkeys(screen.fate(column, lane) for lane in sorted(column.boxes))
    return "".join(f", {fate}" for fate in fates if fate)


def _ending(end: Ending) -> str:
    if end.runs:
        return "… still running"
    text = f"{sign(end)} {end}"
    if end.kind in (EndKind.RAISED, EndKind.KILLED) and end.text:
        text += f": {end.text.splitlines()[0]}"
    return text
