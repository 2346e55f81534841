"""Errors of monitored_barrier on gloo:

[Rank 0]: Ranks 1, 2 failed to pass monitoredBarrier in 2000 ms
Rank 1 successfully reached monitoredBarrier, but received errors while waiting ...
"""

from __future__ import annotations

import re

from joinlab.analysis.wording import ranks_text
from joinlab.jobs.text.facts import DEFAULT_GROUP, OF_GROUP, PERHAPS_OF_GROUPS, TextFacts
from joinlab.jobs.text.lines import ints, prefix, rank_of

GAVE_UP = re.compile(
    r"\[Rank (?P<rank>\d+)\]: Ranks? (?P<late>[\d, ]+) failed to pass monitoredBarrier in (?P<ms>\d+) ms"
)
REACHED = re.compile(
    r"Rank (?P<rank>\d+) (?:successfully reached monitoredBarrier|timed out in monitoredBarrier)"
)


def read(text: str, facts: TextFacts) -> bool:
    """Add who gave up in a barrier, and who was late. If a line's prefix shows that the lines count
    ranks within a smaller group, which ranks were late is not known."""
    lines = [*GAVE_UP.finditer(text), *REACHED.finditer(text)]
    of_group = any(rank_of(text, match) != int(match["rank"]) for match in lines)
    for match in lines:
        rank, error = rank_of(text, match), match[0]
        if match.re is GAVE_UP:
            late = ints(match["late"])
            who = f"{ranks_text(late)} of its group" if of_group else ranks_text(late)
            error = f"{who} failed to pass monitoredBarrier in {match['ms']} ms"
            missed = f"it did not come to rank {rank}'s barrier within {match['ms']} ms"
            if not of_group:
                facts.late.update(late)
                facts.ended = dict.fromkeys(late, missed) | facts.ended
        group = f"of rank {rank}" if of_group else DEFAULT_GROUP
        facts.call(group, rank, 0, "BARRIER", error=f"RuntimeError: {error}")
        if of_group:
            facts.notes.add(OF_GROUP)
        elif not prefix(text, match):
            facts.notes.add(PERHAPS_OF_GROUPS)
    if lines:
        facts.backend = "gloo"
    return bool(lines)
