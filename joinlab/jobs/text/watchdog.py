"""Lines of NCCL's watchdog in every rank:

    [rank5]:[E...] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=808, ...)
    [PG ID 0 PG GUID 0(default_pg) Rank 1] ... last enqueued work: 811, last completed work: 807

A call counts as completed only up to a line's "last completed work".
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping

from joinlab.jobs.text.facts import DEFAULT_GROUP, PERHAPS_OF_GROUPS, TextFacts
from joinlab.jobs.text.lines import ints, prefix, rank_of
from joinlab.ops import CallRow
from joinlab.timeline import STUCK

TIMEOUT = re.compile(
    r"\[Rank (?P<rank>\d+)\]\s+Watchdog\s+caught\s+collective\s+operation\s+timeout:\s+WorkNCCL\((?:SeqNum="
    r"(?P<number>\d+),\s+)?OpType=(?:(?P<op>\w+)(?=\s?[,)])|\w*$)(?:\s?,\s+NumelIn=(?P<count>\d+)(?=,)(?:,\s+NumelOut\s?=(?P<out>\d+))?)?(?:[^()\[]{0,60}Timeout\(ms\)=(?P<ms>\d+)\))?",
    re.MULTILINE,
)
"""PyTorch 1.9 to 2.14; old ones without the number; the sizes since 2.2, truncated in some pastes."""

PROGRESS = re.compile(
    r"\[PG (?:ID )?(?P<id>\d+)(?: PG GUID (?P<guid>[^\s(]+))? ?(?:\((?P<words>[^)]*)\))? "
    r"Rank (?P<rank>\d+)\]"
    r"(?:(?:(?!\[PG |enqueued)[\s\S]){0,200}?at(?: NCCL)? work(?: sequence id)?: (?P<work>\d+))?"
    r"(?:(?!\[PG )[\s\S]){0,260}?"
    r"[Ll]ast\s+enqueued\s+(?:NCCL\s+)?work:\s+(?P<enqueued>-?\d+),(?:\s+last\s+started\s+(?:NCCL\s+)?work:\s+-?\d+,)?"
    r"\s+last\s+completed\s+(?:NCCL\s+)?work:\s+(?P<completed>-?\d+)"
)
""""[PG 1 Rank 0]" in 2.3 to 2.5, "[PG ID 1 PG GUID 2(dp) Rank 0]" later; "last started" in some of them."""

SILENT = re.compile(
    r"\[PG [^\]\n]{0,200}Rank (?P<rank>\d+)\](?:(?!\[PG )[\s\S]){0,60}?"
    r"(?:watchdog\s+got\s+stuck\s+for\s+(?P<seconds>\d+)\s+seconds|Heartbeat\s+monitor\s+timed\s+out)"
)
"""The watchdog itself got stuck."""

BROKE = re.compile(
    r"Rank (?P<rank>\d+)\] (?:(?:Process group|NCCL) watchdog thread terminated with|"
    r"Collective WorkNCCL\(.{0,200}\) raised the following async) exception: "
    r"(?P<text>[^\[\s].*)"
)

DUMP = re.compile(r"collective timeout from\s+rank (?P<rank>\d+)")

# TORCH_NCCL_DESYNC_DEBUG: ranks that are out of step
STATES = re.compile(
    r"#(?P<number>\d+) (?:started|finished) ranks:\n(?P<lines>(?:[ \t]+\[\d[\d, ]*\] \w+ \w+\n?)+)"
)
STATE = re.compile(r"\[(?P<ranks>\d[\d, ]*)\] (?P<how>started|finished) (?P<op>\w+)")
LATE = re.compile(
    r"[ \t]\[(?P<ranks>\d[\d, ]*)\] (?:finished collective #\d+, but )?"
    r"didn't join collective #(?P<number>\d+)"
)
NEVER = re.compile(
    r"ranks \[(?P<ranks>\d[\d, ]*)\] are the lagging ranks .{0,40}They never joined any"
)

Groups = Mapping[tuple[int, int], str]
"""By rank and number of a call: the group in which the rank counts so."""


def read(text: str, facts: TextFacts) -> bool:
    """Add what the watchdog's lines say; False if there are none."""
    silent, broke = list(SILENT.finditer(text)), list(BROKE.finditer(text))
    for match in silent:
        rank = rank_of(text, match)
        facts.ended.setdefault(rank, STUCK)
        if match["seconds"]:
            facts.ended[rank] = f"{STUCK} for {match['seconds']} s"
    groups, at_work = _read_progress(text, facts)
    timed_out = _read_timeouts(text, facts, groups)
    for (rank, number), group in groups.items():
        enqueued, completed = facts.progress[group].get(rank, (0, 0))
        if completed < number <= enqueued:
            _add_call_of_others(facts, group, rank, number)
    for match in broke:
        why = f"its NCCL watchdog failed: {match['text']}"
        facts.ended.setdefault(rank_of(text, match), why)
    for rank, number in at_work:
        is_row = (groups[rank, number], rank, number) in facts.calls
        call_text = "it" if is_row else f"call {number}"
        facts.ended.setdefault(rank, f"NCCL's watchdog found it at work on {call_text}")
    for match in DUMP.finditer(text):
        facts.ended.setdefault(int(match["rank"]), "a collective timed out on it")
    return _read_desync(text, facts) or bool(silent or groups or timed_out or broke)


def _read_progress(text: str, facts: TextFacts) -> tuple[Groups, list[tuple[int, int]]]:
    """The groups that lines of progress name, and the calls that ranks were at work on, as rank and
    number."""
    groups: dict[tuple[int, int], str] = {}
    at_work: list[tuple[int, int]] = []
    for match in PROGRESS.finditer(text):
        group_rank, rank = int(match["rank"]), rank_of(text, match)
        group = match["guid"] or match["id"]
        if not match["guid"] and group_rank != rank:  # each process counts its own groups
            group = f"{group} of rank {rank}"
        if match["words"]:
            facts.names[group] = match["words"]
        enqueued = max(0, int(match["enqueued"]))  # -1: none yet
        completed = max(0, int(match["completed"]))
        if enqueued >= completed:  # otherwise sends were counted, too
            facts.progress[group][rank] = enqueued, completed
        number = int(match["work"] or completed + 1)
        groups[rank, number] = group
        if match["work"] and completed < number <= enqueued:
            at_work.append((rank, number))
    return groups, at_work


def _read_timeouts(text: str, facts: TextFacts, groups: Groups) -> bool:
    at_number: dict[int, set[str]] = defaultdict(set)
    for (_, number), group in groups.items():
        at_number[number].add(group)
    matched = False
    for match in TIMEOUT.finditer(text):
        matched, rank, number = True, rank_of(text, match), int(match["number"] or 0)
        if match["op"] == "_ALLGATHER_BASE" and match["out"]:
            facts.size = max(facts.size, int(match["out"]) // max(int(match["count"]), 1))
        group = DEFAULT_GROUP
        if (rank, number) in groups:
            group = groups[rank, number]
        elif len(at_number[number]) == 1:  # a line of another rank names the group
            (group,) = at_number[number]
        if not prefix(text, match):
            if group != DEFAULT_GROUP:
                facts.notes.add(f"ranks count within group {facts.names.get(group, group)}")
            elif (rank, number) not in groups:
                facts.notes.add(PERHAPS_OF_GROUPS)
        within = match["op"] or f"call {number}"
        if facts.call(group, rank, number, match["op"] or "", ints(match["count"]) or None):
            within = "it"
        facts.ended[rank] = "NCCL's watchdog gave up"
        if match["ms"]:
            facts.ended[rank] += f" after {int(match['ms']) / 1000:g} s"
        if match["ms"] or within != "it":
            facts.ended[rank] += f" in {within}"
    return matched


def _add_call_of_others(facts: TextFacts, group: str, rank: int, number: int) -> None:
    """The row of a rank that was at work on a call whose op only other ranks' lines give."""
    rows = [
        row
        for (row_group, _, row_number), row in facts.calls.items()
        if (row_group, row_number) == (group, number)
    ]
    if len({row["op"] for row in rows}) == 1:
        facts.calls.setdefault((group, rank, number), CallRow(**{**rows[0], "rank": rank}))


def _read_desync(text: str, facts: TextFacts) -> bool:
    states, late, never = (list(form.finditer(text)) for form in (STATES, LATE, NEVER))
    for match in states:
        number = int(match["number"])
        for state in STATE.finditer(match["lines"]):
            for rank in ints(state["ranks"]):
                facts.got_to(DEFAULT_GROUP, rank, number)
                if state["how"] == "started":
                    facts.call(DEFAULT_GROUP, rank, number, state["op"])
    for match in (*late, *never):
        reached = int(match["number"]) - 1 if match.re is LATE else 0
        for rank in ints(match["ranks"]):
            facts.got_to(DEFAULT_GROUP, rank, reached)
    return bool(states or late or never)
