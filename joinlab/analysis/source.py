"""Source: the texts of a run's program and of its helpers, and the lines that a call came from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

from joinlab.ops import Source
from joinlab.program.labels import owner_of
from joinlab.showing import file_name
from joinlab.timeline import Timeline

_FRAME = re.compile(r"(.*):(\d+) (.*)", re.DOTALL)  # of a stack: "file:line function"


@dataclass(frozen=True, slots=True)
class SourceText:
    """A function: its file, the number of its first line, and its lines (none where they are not
    known)."""

    file: str
    first_line: int
    lines: tuple[str, ...]

    @property
    def name(self) -> str:
        """The file without its folder, or the cell: "train.py", "In [2]"."""
        return file_name(self.file) or "the program"

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


class CodeLine(NamedTuple):
    """A line of the learner's code; `line` is its number in the file."""

    source: SourceText
    line: int

    @property
    def text(self) -> str:
        """The line itself, without its indentation; "" if it is not known."""
        index = self.line - self.source.first_line
        if self.source.lines:
            return self.source.lines[index].strip()
        return ""

    @property
    def site(self) -> str:
        return f"{self.source.file}:{self.line}"


@dataclass(slots=True)
class SourceTexts:
    """All texts that a Timeline carries.

    program  that of the program itself; None where it is not known
    others   those of the learner's other functions that calls came from
    """

    program: SourceText | None
    others: tuple[SourceText, ...] = ()
    _known: dict[object, tuple[CodeLine, ...]] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(cls, timeline: Timeline) -> SourceTexts:
        source = timeline.meta.get("source")
        return cls(
            _text(source) if source else None,
            tuple(map(_text, timeline.meta.get("functions") or ())),
        )

    @property
    def all(self) -> tuple[SourceText, ...]:
        """The program's first."""
        return ((self.program,) if self.program else ()) + self.others

    def lines_of(self, row: Mapping[str, Any]) -> tuple[CodeLine, ...]:
        """The lines of the learner's code that a call or span came from, innermost first; () if
        none is known.

        A line with several frames, such as that of a list comprehension, is listed once.

        row  of `Timeline.calls` or `Timeline.spans`
        """
        site, stack = row["call_site"] or "", row.get("stack") or ()
        key = (site, *stack)
        lines = self._known.get(key)
        if lines is None:
            lines = self._known[key] = tuple(line for line, _ in groupby(self._read(site, stack)))
        return lines

    def _read(self, site: str, stack: Sequence[str]) -> Iterator[CodeLine]:
        file, _, number = site.rpartition(":")
        if not file or not number.isdecimal():
            return
        yield self.line(file, int(number))
        matches = filter(None, map(_FRAME.fullmatch, reversed(stack)))
        frames = [match.groups() for match in matches]
        # Frames inside the call site are of libraries. The stack of an autograd thread does not
        # contain the call site.
        inner = next(
            (depth for depth, frame in enumerate(frames) if frame[:2] == (file, number)),
            len(frames),
        )
        for file, number, function in frames[inner + 1 :]:
            line = self.line(file, int(number))
            if line.source.lines or (owner_of(file) == "program" and function != "<module>"):
                yield line

    def line(self, file: str, line: int) -> CodeLine:
        """A line of a file, in the shortest text that has it; of none, in one without lines."""
        # several where a statement outside of functions holds one
        holding = [
            source
            for source in self.all
            if source.file == file and 0 <= line - source.first_line < len(source.lines)
        ]
        return CodeLine(
            min(holding, key=lambda source: len(source.lines), default=SourceText(file, 1, ())),
            line,
        )


def _text(source: Source) -> SourceText:
    text = str(source.get("text") or "").rstrip("\n")
    lines = tuple(text.split("\n")) if text else ()
    return SourceText(str(source.get("file") or ""), int(source.get("first_line") or 1), lines)
