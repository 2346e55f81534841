"""How launchers saw processes end, for ranks that wrote no error of their own:

torchrun    rank      : 1 (local_rank: 1)   exitcode  : -9 (pid: 24703)  (SIGKILL)
            W1127 ...] Received 15 death signal, shutting down workers
srun        srun: error: gpu012: task 5: Out Of Memory
Lightning   [rank: 3] Child process with PID 4021 terminated with code 1
Composer    Rank 5 crashed with exit code -9
mpirun      mpirun noticed that process rank 3 with PID 7 on node gpu01 exited on signal 9 (Killed)
"""

from __future__ import annotations

import re
from datetime import datetime

from joinlab.jobs.text.facts import OF_HOST, TextFacts
from joinlab.jobs.text.lines import SIGNALLED, TASK_IS_HOST, frames
from joinlab.jobs.text.reports import exit_text, reports, signal_text
from joinlab.jobs.text.tracebacks import RAISED
from joinlab.timeline import FIRST_FAILED, INTERRUPTED

CLOCKS_DIFFER = 5
"""Seconds by which two hosts' times of one moment may differ: torchrun may look every 5 s."""

FIRST = re.compile(
    r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<rank>\d+) \(pid: \d+\) of binary"
)
MEMBER = re.compile(r"(?m)GLOBAL_RANK: (?P<rank>\d+), MEMBER: \d+/(?P<size>\d{1,5})$")
CHILD = re.compile(
    r"(?:\[rank: |(?P<of_job>Rank ))(?P<rank>\d+)(?:\] Child process with PID \d+ terminated with|"
    r" crashed with exit) code (?P<code>-?\d+)"
)
MPIRUN = re.compile(
    r"process rank (?P<rank>\d+) with PID \d+ on node \S+\s+exited\s+on\s+signal (?P<signal>\d+)"
)
SRUN = re.compile(
    r"srun: error: [^\s:]+: tasks? (?P<tasks>\d{1,5}(?:[,-]\d{1,5}){0,99}): (?:Exited with )?"
    r"(?P<how>\w+(?: \w+)*)"
)
CANCELLED = re.compile(
    r"slurmstepd: error: \*{3} (?:JOB|STEP) \S+ ON \S+ CANCELLED AT \S+ DUE TO (?P<why>[A-Z ]+)"
)
"""Slurm itself ended the job."""

TASK_IS_RANK = re.compile(r"(?m)^([1-9]\d*): .*?\[rank\1\]:|srun: error: [^\s:\[,]+: tasks ")
SENT_MORE = re.compile(r"op\.preamble\.length <= op\.nbytes\. (?P<sent>\d+) vs (?P<room>\d+)")


def read(text: str, facts: TextFacts) -> bool:
    """Add what torchrun, Lightning, Composer and mpirun say; False if they say nothing."""
    listed = reports(re.sub(r"(?m)^ *\d+: ", "", text))
    facts.reports += listed
    for failures, _ in listed:
        for match in failures:
            for raised in RAISED.finditer(re.sub("(?m)^  ", "", match["raised"] or "")):
                facts.raised[int(match["rank"])] = raised["text"]
                facts.stands[int(match["rank"])] = frames(raised["frames"])[::-1]
    signals, children, first = (list(form.finditer(text)) for form in (SIGNALLED, CHILD, FIRST))
    for match in first:
        facts.first.append((int(match["rank"]), exit_text(match)))
    for match in MEMBER.finditer(text):
        facts.heard.add(int(match["rank"]))
        facts.size = max(facts.size, int(match["size"]))
    for match in signals:
        facts.asides.append(f"torchrun received signal {match['signal']} and ended its ranks.")
    for match in CANCELLED.finditer(text):
        facts.asides.append(f"Slurm ended the job: {match['why'].strip().lower()}.")
    for match in SENT_MORE.finditer(text):
        sizes = f"{match['sent']} bytes where its call expected {match['room']}"
        facts.asides.append(f"gloo ended a process that was sent {sizes}.")
    noticed = [] if TASK_IS_HOST.search(text) else list(MPIRUN.finditer(text))
    for match in noticed:
        facts.ended[int(match["rank"])] = f"{signal_text(-int(match['signal']))} (mpirun)"
    for match in children:
        if match["of_job"]:
            launcher = "Composer"
        else:
            launcher = "Lightning"
            facts.notes.add(OF_HOST)
        facts.ended.setdefault(int(match["rank"]), f"{exit_text(match)} ({launcher})")
    return bool(listed or signals or children or first or noticed)


def read_srun(text: str, facts: TextFacts) -> bool:
    """Add how srun's tasks ended, where their labels are their ranks or several are on one host: a
    task may also be torchrun, with all ranks of its host."""
    if not TASK_IS_RANK.search(text) or TASK_IS_HOST.search(text):
        return False
    lines = list(SRUN.finditer(text))
    cancelled = CANCELLED.search(text)
    for match in lines:
        by_slurm = cancelled and cancelled.start() < match.start()
        source = "(srun), since Slurm ended the job" if by_slurm else "(srun)"
        for first, last in re.findall(r"(\d+)-?(\d*)", match["tasks"]):
            for rank in range(int(first), int(last or first) + 1):
                facts.ended.setdefault(rank, f"{match['how']} {source}")
    return bool(lines)


def take_reports(facts: TextFacts) -> None:
    """Add how torchrun saw ranks end, once all texts are read. Of several torchruns, each with a report
    of its own, one saw the first failure if it was earlier than the others' by more than their clocks
    may differ."""
    roots: dict[int, re.Match[str]] = {}
    unread = [report.failures for report in facts.reports if report.root is None]
    for _, root in facts.reports:
        if root and exit_text(root) != "SIGTERM":
            roots[int(root["rank"])] = root
    earliest, *later = sorted(root["time"] or "" for root in roots.values()) or [""]
    if (
        earliest
        and later
        and not unread
        and _seconds(later[0]) - _seconds(earliest) > CLOCKS_DIFFER
    ):
        roots = {rank: root for rank, root in roots.items() if root["time"] == earliest}
    for failures, report_root in facts.reports:
        for match in failures:
            rank, how, source = int(match["rank"]), exit_text(match), "torchrun"
            if rank in roots and roots[rank][0] == match[0]:  # a report may be written twice
                others = unread or roots.keys() - {rank}
                source = f"{FIRST_FAILED} on {match['host']}" if others else FIRST_FAILED
            elif how == "SIGTERM" and report_root and exit_text(report_root) != how:
                how += ", since another rank had failed"
            before, ending = facts.ended.get(rank, ""), f"{how} ({source})"
            if before != INTERRUPTED and ending not in before:
                facts.ended[rank] = f"{before}; {ending}" if before else ending


def _seconds(time: str) -> float:
    return datetime.strptime(time, "%Y-%m-%d_%H:%M:%S").timestamp()
