"""NCCL's own log (NCCL_DEBUG=INFO with NCCL_DEBUG_SUBSYS=COLL):

host:pid:tid [2] NCCL INFO AllReduce: opCount f7 ... count 128 ... comm 0x7f [nranks=16]
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field

from joinlab.jobs.dump import op_of
from joinlab.jobs.text.facts import TextFacts
from joinlab.ops import POINT_TO_POINT, Op

COLL = re.compile(
    r"(?<![^\s:])(?P<host>[^\s:]{1,255}):(?P<pid>\d+):\d+ \[(?P<device>\d+)\] NCCL INFO (?P<op>\w+): "
    r"opCount (?P<number>[0-9a-f]+) .{0,200}?count (?P<count>\d+) datatype \d+ op \d+ root (?P<root>\d+) "
    r"comm (?P<comm>0x[0-9a-f]+) \[nranks=(?P<size>\d+)\](?:.{0,200}? globalrank (?P<rank>\d+))?"
)
COMM = re.compile(
    r"(?<![^\s:])(?P<host>[^\s:]{1,255}):(?P<pid>\d+):\d+ \[\d+\] NCCL INFO .{0,400}?comm "
    r"(?P<comm>0x[0-9a-f]+) rank (?P<rank>\d+) n[rR]anks (?P<size>\d+)(?:.{0,200}? commId (?P<id>0x[0-9a-f]+))?"
)
MISMATCH = re.compile(
    r"Mismatched collective detected, please check your collective calls at and around rank (?P<rank>\d+)"
)


@dataclass(slots=True)
class NcclProcess:
    """A process of the log.

    size, rank  of its largest communicator, and its rank there: that of the job
    ids         by address of a communicator: NCCL's id of it, which is the same on all its ranks
    comms       by number of ranks: the addresses of its communicators, in the order of their first calls
    """

    size: int = 0
    rank: int | None = None
    ids: dict[str, str] = field(default_factory=dict)
    comms: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def group(self, match: re.Match[str]) -> str:
        """The name of a call's communicator. Two of one size are distinguished by commId, or by their
        order in the process."""
        size, comm = match["size"], match["comm"]
        if comm not in self.comms[size]:
            self.comms[size].append(comm)
        if comm in self.ids:
            return f"{size} ranks of {self.ids[comm]}"
        index = self.comms[size].index(comm)
        return f"{size} ranks, {index}" if index else f"{size} ranks"


def read(text: str, facts: TextFacts) -> bool:
    """Add the collectives of each communicator; False if there are none."""
    lines = list(COLL.finditer(text))
    processes: dict[tuple[str, str], NcclProcess] = defaultdict(NcclProcess)
    for match in (*COMM.finditer(text), *lines):
        process, size = processes[match["host"], match["pid"]], int(match["size"])
        facts.size = max(facts.size, size)
        if match["rank"] is not None and (size, int(match["rank"])) >= (
            process.size,
            process.rank or 0,
        ):
            process.size, process.rank = size, int(match["rank"])
        if match.re is COMM and match["id"]:
            process.ids[match["comm"]] = match["id"]
    _number_by_gpu(lines, processes, facts)
    rows: dict[str, list[tuple[int, re.Match[str]]]] = defaultdict(list)
    for match in lines:
        process = processes[match["host"], match["pid"]]
        rank = process.rank or 0
        group = process.group(match)
        facts.seen.add(rank)
        op = op_of(match["op"])
        if op in POINT_TO_POINT:  # it has the number of the next collective
            facts.sends.setdefault(rank, {})[str(op)] = match["number"]
        else:
            facts.sizes[group] = int(match["size"])
            rows[group].append((rank, match))
    for group, calls in rows.items():
        if len({rank for rank, _ in calls}) > facts.sizes[group]:
            facts.notes.add(
                f"communicators of {group} are left out: no line says which ranks share one"
            )
            del facts.sizes[group]
            continue
        for rank, match in calls:
            number = int(match["number"], 16) + 1
            row = facts.call(group, rank, number, match["op"], [int(match["count"])])
            facts.got_to(group, rank, number)
            if row is not None and op_of(match["op"]) in (Op.BROADCAST, Op.REDUCE):
                row["root"] = int(match["root"])
    for group in facts.sizes:
        facts.counted[group] = "opCount"
    mismatched = {int(match["rank"]) for match in MISMATCH.finditer(text)}
    facts.mismatched |= mismatched
    facts.seen |= mismatched
    return bool(lines or facts.mismatched)


def _number_by_gpu(
    lines: list[re.Match[str]], processes: dict[tuple[str, str], NcclProcess], facts: TextFacts
) -> None:
    """Where no line gives a process's rank, number it by its GPU: that of one host is assumed to be the
    rank; the GPUs of several hosts are counted, and named as what they are."""
    gpus = sorted({(match["host"], int(match["device"]), match["pid"]) for match in lines})
    several = len({host for host, _, _ in gpus}) > 1
    if all(processes[host, pid].rank is not None for host, _, pid in gpus):
        return
    if several:
        facts.notes.add("no line gives the ranks of these GPUs")
    else:
        facts.notes.add("ranks are assumed to be the GPUs of one host")
    for index, (host, device, pid) in enumerate(gpus):
        if several:
            facts.rank_names[index] = f"GPU {device} of {host}"
        process = processes[host, pid]
        if process.rank is None:
            process.rank = index if several else device
