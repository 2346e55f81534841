"""Errors and lines of TORCH_DISTRIBUTED_DEBUG=DETAIL, which compares the calls of all ranks:

Rank 1 is running collective: CollectiveFingerPrint(SequenceNumber=3, OpType=BROADCAST, ...)
[Rank 1] Running collective: CollectiveFingerPrint(...)
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain

from joinlab.analysis.wording import ranks_text
from joinlab.backend.calls import NOT_MET
from joinlab.jobs.text.facts import DEFAULT_GROUP, OF_GROUP, PERHAPS_OF_GROUPS, TextFacts
from joinlab.jobs.text.lines import ints, prefix
from joinlab.ops import CallRow

PRINT = re.compile(
    r"(?:Rank (?P<rank>\d+) is running(?: inconsistent)?|\[Rank (?P<of>\d+)\] Running) collective:\s+"
    r"CollectiveFingerPrint\((?:SequenceNumber=(?P<number>\d+),? ?)?OpType=(?P<op>\w+)"
    r"(?:,\s+TensorShape=\[(?P<shape>[\d, ]*)\])?(?:,\s+TensorDtypes=(?P<dtype>\w+))?"
)

INTO_TENSOR = {
    "_ALLGATHER_BASE": "all_gather_into_tensor",
    "_REDUCE_SCATTER_BASE": "reduce_scatter_tensor",
}
"""The functions that move the same data as another one, and do not meet it under DETAIL."""


def read(text: str, facts: TextFacts) -> bool:
    """Add the calls of errors, and the last that each rank began to check before it ran it."""
    prints = list(PRINT.finditer(text))
    if _read_of_group(text, prints, facts):
        return True
    running: dict[int, re.Match[str]] = {}
    empty: dict[int, re.Match[str]] = {}
    for match in prints:
        if not prefix(text, match):
            facts.notes.add(PERHAPS_OF_GROUPS)
        if match["of"]:
            running[int(match["of"])] = match
        elif "," not in match[0] and match["number"]:
            empty[int(match["rank"])] = match
        else:
            _add(facts, match, int(match["rank"]), NOT_MET)
    for rank, match in empty.items():  # without tensors: of a rank that sent none, perhaps
        if not any(call_rank == rank for _, call_rank, _ in facts.calls):
            _add(facts, match, rank, NOT_MET)
    for rank, match in running.items():
        row = _add(facts, match, rank, None)
        if row is not None and row["number"]:
            facts.got_to(DEFAULT_GROUP, rank, row["number"])
    return bool(prints)


def _read_of_group(text: str, prints: Sequence[re.Match[str]], facts: TextFacts) -> bool:
    """The calls of lines whose prefix shows that they count ranks within a smaller group; False
    if none does. Of the ranks that they name the job's rank is known only if they wrote it."""
    lines: list[tuple[int, re.Match[str]]] = []
    numbers: dict[int, set[object]] = defaultdict(set)
    kinds: dict[int, set[object]] = defaultdict(set)
    of_group = False
    for match in prints:
        group_rank, before = int(match["of"] or match["rank"]), prefix(text, match)
        kinds[group_rank].add(match.group("number", "op", "shape"))
        by_itself = match["of"] or match.start() - text.rfind("on ranks.", 0, match.start()) < 12
        if before and by_itself:
            rank = int(before["rank"])
            lines.append((rank, match))
            numbers[group_rank].add(rank)
            of_group |= rank != group_rank
    if not of_group:
        return False
    facts.notes.add(OF_GROUP)
    together = max(map(len, chain(numbers.values(), kinds.values()))) == 1
    for rank, match in lines:
        members = sorted(dict(lines)) if together else [rank]
        group = f"of {ranks_text(members)}"
        row = _add(facts, match, rank, None if match["of"] else NOT_MET, group)
        if row is not None and row["number"] and match["of"]:
            facts.got_to(group, rank, row["number"])
    return True


def _add(
    facts: TextFacts,
    match: re.Match[str],
    rank: int,
    error: str | None,
    group: str = DEFAULT_GROUP,
) -> CallRow | None:
    # the number counts the earlier calls
    number = int(match["number"]) + 1 if match["number"] else 0
    facts.counted[group] = "SequenceNumber"
    row = facts.call(group, rank, number, match["op"], ints(match["shape"]) or None, error)
    if row is not None:
        row["dtype"] = (match["dtype"] or "").lower() or None
        if match["op"] in INTO_TENSOR:
            row["origin"] = f"all-gather ({INTO_TENSOR[match['op']]})"
    return row
