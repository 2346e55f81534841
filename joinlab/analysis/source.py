"""Source: the text of a run's program, and its lines by call site."""

from __future__ import annotations

from dataclasses import dataclass

from joinlab.analysis.wording import file_name
from joinlab.timeline import Timeline


@dataclass(frozen=True, slots=True)
class SourceText:
    """The program of a run: its file, the number of its first line, and its text ("" where it is not known)."""

    file: str
    first_line: int
    text: str

    @classmethod
    def of(cls, timeline: Timeline) -> SourceText:
        known = timeline.meta.get("source")
        if known is None:
            return cls("", 1, "")
        text = str(known.get("text") or "").rstrip("\n")
        return cls(str(known.get("file") or ""), int(known.get("first_line") or 1), text)

    @property
    def name(self) -> str:
        """The file without its folder, or the cell: "train.py", "In [2]"."""
        return file_name(self.file) or "the program"

    def line(self, site: str) -> int:
        """The number of the line of a "file:line" within the program; 0 if it lies elsewhere."""
        file, _, number = site.rpartition(":")
        return int(number) if self.text and file == self.file and number.isdecimal() else 0

    def at(self, site: str) -> str:
        """The text of that line, without its indentation; "" if it lies elsewhere."""
        at, lines = self.line(site) - self.first_line, self.text.split("\n")
        return lines[at].strip() if 0 <= at < len(lines) else ""
