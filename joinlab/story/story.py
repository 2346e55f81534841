"""The story of a run: typed lines that can be printed.

story = joinlab.diagnose(timeline)
story.headline                    WrongAnswer(ranks=(0, 1), calls=(...), ...)
story.of(LineKind.FIX)            the fixes
story.ranks[1].proven             True
print(story)                      in sentences
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from joinlab.story.lines import EndingLine, Headline, Line, LineKind
from joinlab.story.writers import html_of, text_of


@dataclass(frozen=True, slots=True, repr=False)
class Story:
    """The story of a run. `str` and `repr` make sentences of it, which Jupyter shows, too.

    lines       the headline first, then in reading order
    ranks       every rank's ending
    provenance  "modelled", "recorded" or "imported"
    """

    lines: tuple[Line, ...]
    ranks: tuple[EndingLine, ...]
    provenance: str

    def __post_init__(self) -> None:
        kinds = [line.kind for line in self.lines]
        assert kinds[:1] == [LineKind.HEADLINE] and LineKind.HEADLINE not in kinds[1:], (
            "the headline comes first"
        )

    @property
    def headline(self) -> Headline:
        """The line of the ending and its cause."""
        headline = self.lines[0]
        assert isinstance(headline, Headline)
        return headline

    @property
    def sentence(self) -> str:
        """The headline in words."""
        return self.headline.sentence

    def of(self, kind: LineKind) -> tuple[Line, ...]:
        """The lines of one kind."""
        return tuple(line for line in self.lines if line.kind is kind)

    def texts(self, kind: LineKind) -> tuple[str, ...]:
        """The lines of one kind in words."""
        return tuple(line.sentence for line in self.of(kind))

    def ending(self, rank: int) -> str:
        """How one rank ended, and why, in a sentence or two."""
        return next((line.sentence for line in self.of(LineKind.FATE) if rank in line.ranks), "")

    def plain(self) -> dict[str, object]:
        """The story as plain data, which `json.dumps` takes; each line with its words as "text" and
        as "pieces"."""
        return {
            "provenance": self.provenance,
            "lines": [line.plain() for line in self.lines],
            "ranks": list(map(asdict, self.ranks)),
        }

    def json(self) -> str:
        return json.dumps(self.plain())

    def __str__(self) -> str:
        return text_of(self.lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_of(self.lines)
