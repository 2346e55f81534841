"""The facts of a text, by rank: what the readers of its lines fill, and timeline_of_text.py
makes a Timeline of."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from joinlab.jobs.dump import op_of
from joinlab.jobs.text.reports import Report
from joinlab.ops import POINT_TO_POINT, CallRow, Stood
from joinlab.program.labels import Frame
from joinlab.program.log_events import MOST_RANKS

DEFAULT_GROUP = "0"

OF_HOST = "ranks count within a host"
OF_GROUP = "errors count ranks within a group"
PERHAPS_OF_GROUPS = "ranks may count within a group"
LAST_ATTEMPT = "of several attempts, the last"


@dataclass(slots=True)
class TextFacts:
    """The facts of a text, by rank.

    calls     by group, rank and number; 0: the line has no number
    progress  by group and rank: collectives enqueued, and at least completed
    sizes     by group: its number of ranks
    raised    type and message of an exception
    ended     the cause of the process's end
    late      ranks that missed a monitored barrier
    seen      ranks of any line of NCCL's log
    named     ranks in torch's prefix of any line
    heard     ranks of any line with a label of torchrun or srun, or of Lightning's beginning
    unread    ranks with tracebacks, none of which is known to have ended it
    stands    the frames of the main thread, innermost first
    sources   the kinds of lines that were found
    notes     assumptions about its ranks' numbers
    counted   by group: the text's own name for a call's number, if it counts from 0
    sends     by rank: the numbers of its last send and recv in NCCL's log, whose peers are not known
    rank_names  of GPUs of several hosts whose ranks no line gives, so that their numbers mean nothing
    mismatched  ranks at and around which NCCL found collectives that do not match
    asides    sentences about tracebacks that ended no rank for sure
    size      the number of ranks that the text proves
    reports   of each torchrun
    first     of each torchrun the local rank of the process that failed first, and its exit code
    dumped    it has stacks, perhaps of a rank that no line names
    """

    calls: dict[tuple[str, int, int], CallRow] = field(default_factory=dict)
    progress: dict[str, dict[int, tuple[int, int]]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    sizes: dict[str, int] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    raised: dict[int, str] = field(default_factory=dict)
    ended: dict[int, str] = field(default_factory=dict)
    stands: dict[int, tuple[Frame, ...]] = field(default_factory=dict)
    late: set[int] = field(default_factory=set)
    seen: set[int] = field(default_factory=set)
    named: set[int] = field(default_factory=set)
    heard: set[int] = field(default_factory=set)
    unread: dict[int, str] = field(default_factory=dict)
    sources: list[str] = field(default_factory=list)
    notes: set[str] = field(default_factory=set)
    counted: dict[str, str] = field(default_factory=dict)
    sends: dict[int, dict[str, str]] = field(default_factory=dict)
    rank_names: dict[int, str] = field(default_factory=dict)
    mismatched: set[int] = field(default_factory=set)
    asides: list[str] = field(default_factory=list)
    size: int = 0
    reports: list[Report] = field(default_factory=list)
    first: list[tuple[int, str]] = field(default_factory=list)
    dumped: bool = False
    backend: str = "nccl"

    def call(
        self,
        group: str,
        rank: int,
        number: int,
        name: str,
        shape: list[int] | None = None,
        error: str | None = None,
    ) -> CallRow | None:
        """The row of a call, added if it is new; None if the op is unknown or the rank is too
        large."""
        op = op_of(name)
        if op is None or rank >= MOST_RANKS:
            return None
        if op in POINT_TO_POINT:
            number = 0  # it counts the rank's own sends and recvs
        row = CallRow(
            rank=rank,
            group=group,
            seq=max(number - 1, 0),
            number=number or None,
            op=op,
            origin=op.words,
            error=error,
        )
        if shape is not None:
            row["shape"] = [shape]
        return self.calls.setdefault((group, rank, number), row)

    def got_to(self, group: str, rank: int, number: int) -> None:
        """Note that the rank has issued call `number` of the group."""
        self.progress[group][rank] = max(self.progress[group].get(rank, (0, 0)), (number, 0))

    def numbers(self, group: str, rank: int) -> list[int]:
        """Of the rank's calls in the group; 0 where a line gives none."""
        return [key[2] for key in self.calls if key[:2] == (group, rank)]

    def stood(self, rank: int) -> list[Stood]:
        """A rank's entry in `meta["stood"]`: where its main thread stood."""
        return [
            {
                "thread": "MainThread",
                "frames": list(map(str, reversed(self.stands[rank]))),
            }
        ]
