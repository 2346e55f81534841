"""What a search for a divergence begins with: the ranks of each side, and the windows of their traces."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from joinlab.program.traces import Window


@dataclass(frozen=True, slots=True)
class Search:
    """Ranks that did not issue the same calls, or calls that were not meant for each other.

    sides    the ranks of each side
    windows  by rank: its steps from the last call that all made from one line to the first that they did not
    positions  by rank: the position of each call of the group among all calls of the rank; {} if join() makes
             calls of its own, since a rank that has issued more calls is then not ahead
    one_call  the first side issued a call that the second has not, and its window ends there
    turns    of one_call: positions of the second side's calls that met such calls, and, in `met`, of these;
             `lacks`: how many more it lacks
    replicas  all calls are alike, but the sides' replicas differ
    keys     names that selected the data of two calls from one line, which met: only what set them is sought
    """

    sides: Sequence[Sequence[int]]
    windows: Mapping[int, Window]
    positions: Mapping[int, Sequence[int]] = field(default_factory=dict)
    one_call: bool = False
    turns: tuple[int, ...] = ()
    met: tuple[int, ...] = ()
    lacks: int = 0
    replicas: bool = False
    keys: frozenset[str] = frozenset()

    def count(self, rank: int, issued: int) -> int:
        """How many of a rank's first `issued` calls are in the group."""
        return bisect_left(self.positions[rank], issued)
