"""NCCL's report of a job from outside (ncclras), which counts the operations of each communicator:

Communicator ranks have different AllReduce operation counts
  30 ranks have launched up to operation 640
"""

from __future__ import annotations

import re

from joinlab.jobs.text.facts import TextFacts

COUNTS = re.compile(
    r"Communicator ranks have different (?:(?P<op>\w+) |collective )?operation counts(?P<lines>(?:\n[^\n#]+)+)"
)
COUNT = re.compile(r"ranks? (?:has|have) launched up to operation (?P<number>\d+)")
RANK = re.compile(r"(?m)^\s*Rank (?P<rank>\d+) --")
SIZE = re.compile(r"(?m)^ +\d+(?: +\d+){4} +(?P<size>\d+) +[A-Z].*$")


def read(text: str, facts: TextFacts) -> bool:
    """Add the numbers of its last calls. The report names the ranks of its small sides; a single side
    without names has all other ranks."""
    size = max((int(match["size"]) for match in SIZE.finditer(text)), default=0)
    facts.size = max(size, facts.size)
    matched = False
    for match in COUNTS.finditer(text):
        matched = True
        sides: list[tuple[int, set[int]]] = []
        for line in match["lines"].splitlines():
            count = COUNT.search(line)
            if count:
                sides.append((int(count["number"]), set()))
            elif sides and (rank := RANK.match(line)):
                sides[-1][1].add(int(rank["rank"]))
        group = f"{size} ranks"
        facts.sizes[group] = size
        unnamed = [ranks for _, ranks in sides if not ranks]
        if len(unnamed) == 1:
            unnamed[0].update(set(range(size)).difference(*(ranks for _, ranks in sides)))
        for number, ranks in sides:
            for side_rank in sorted(ranks):
                facts.call(group, side_rank, number, match["op"] or "")
                facts.got_to(group, side_rank, number)
    return matched
