"""Text that ranks, NCCL and torchrun wrote, such as people paste, as one Timeline.

    watchdog            [rank5]:[E...] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=808, ...)
                        [PG ID 0 PG GUID 0(default_pg) Rank 1] ... last enqueued work: 811, last completed work: 807
    DETAIL              Rank 1 is running collective: CollectiveFingerPrint(SequenceNumber=3, OpType=BROADCAST, ...)
    NCCL_DEBUG=INFO     host:pid:tid [2] NCCL INFO AllReduce: opCount f7 ... count 128 ... comm 0x7f [nranks=16]
    ncclras             30 ranks have launched up to operation 640
    monitored_barrier   [Rank 0]: Ranks 1, 2 failed to pass monitoredBarrier in 2000 ms
    torchrun            rank      : 1 (local_rank: 1)   exitcode  : -9 (pid: 24703)  (SIGKILL)
                        W1127 ...] Received 15 death signal, shutting down workers
    srun                srun: error: gpu012: task 5: Out Of Memory
    Lightning           [rank: 3] Child process with PID 4021 terminated with code 1
    Composer            Rank 5 crashed with exit code -9
    mpirun              mpirun noticed that process rank 3 with PID 7 on node gpu01 exited on signal 9 (Killed)
    tracebacks, stacks  of Python, rich, faulthandler and py-spy; the line's prefix or the file's name gives the rank

A paste may be cut and wrapped anywhere, so only explicit facts count: a call that no line names has
no row, a rank that no line names is missing, and calls count as completed only up to a line's "last
completed work". "[Rank 1]" is a rank of the process group (ProcessGroupNCCL.cpp: rank_), "[rank5]:"
one of the job.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from itertools import chain, filterfalse, repeat
from operator import itemgetter
from pathlib import Path
from signal import Signals

import polars as pl

from joinlab.analysis.wording import ranks_text
from joinlab.backend.calls import NOT_MET
from joinlab.errors import TimelineFileError
from joinlab.jobs.dump import left_out, op_of, rank_in
from joinlab.ops import POINT_TO_POINT, CallRow, Op, Stood
from joinlab.program.labels import Frame, call_site
from joinlab.program.log_events import MOST_RANKS
from joinlab.showing import short_site
from joinlab.timeline import (
    FIRST_FAILED,
    FROM_TEXT,
    INTERRUPTED,
    NO_END,
    NOTHING_RECORDED,
    STUCK,
    UNTOLD,
    WROTE,
    Ending,
    EndKind,
    Meta,
    Timeline,
    timeline_from_rows,
)

MOST_BYTES = 1 << 28
DEFAULT_GROUP = "0"
PERHAPS_OF_GROUPS = "ranks may count within a group"
LAUNCHERS = ("torch.distributed.elastic.", "torch.multiprocessing.spawn.ProcessRaised")
"""How errors begin that say no more than that a process failed, whose own error is elsewhere."""

CLOCKS_DIFFER = 5
"""Seconds by which two hosts' times of one moment may differ: torchrun may look every 5 s."""

Report = tuple[list[re.Match[str]], re.Match[str] | None]
"""The failures that one torchrun lists, and the last of them if it is called the root cause."""

ERROR = (
    r"(?:(?:(?:[^\W\d]\w*|<locals>)\.)+(?:_*[A-Z]\w*|\w*(?:error|timeout|exception))"
    r"|[A-Z]\w{0,80}?(?:[a-z]\w{0,80}?[A-Z]\w*|Error|Warning)|\w{0,80}?Exception)(?:\(\w+\))?(?::(?: .*)?|[ \t]*)$"
)
"""The line of an exception: its class, with its module or named as classes are, and its message.

Any other line of a process may come between the lines of its traceback.
"""

ONE_WORD = r"[A-Z]\w*(?::(?: .*)?|[ \t]*)$"
"""The line of an exception whose class only its place shows: directly after the frames."""

OTHER_LINES = rf"(?:(?:ray\.exceptions\.RayTask|(?!{ERROR}|.*Traceback )\S).*\n)"

NEXT = r"\s*\n(?:(?!.*\b(?:time|host|rank|exitcode)\s+: ).*\n)??.{0,80}?"
"""The way to the next line of a block of torchrun's report, perhaps behind a line of another process."""

HEAD = r"Traceback \(most recent call last\):\n"

PATTERNS: Mapping[str, str] = {
    "timeout": r"\[Rank (?P<rank>\d+)\]\s+Watchdog\s+caught\s+collective\s+operation\s+timeout:\s+WorkNCCL\((?:SeqNum="
    r"(?P<number>\d+),\s+)?OpType=(?:(?P<op>\w+)(?=\s?[,)])|\w*$)(?:\s?,\s+NumelIn=(?P<count>\d+)(?=,)(?:,\s+NumelOut\s?=(?P<out>\d+))?)?(?:[^()\[]{0,60}Timeout\(ms\)=(?P<ms>\d+)\))?",
    "progress": r"\[PG (?:ID )?(?P<id>\d+)(?: PG GUID (?P<guid>[^\s(]+))? ?(?:\((?P<words>[^)]*)\))? "
    r"Rank (?P<rank>\d+)\]"
    r"(?:(?:(?!\[PG |enqueued)[\s\S]){0,200}?at(?: NCCL)? work(?: sequence id)?: (?P<work>\d+))?"
    r"(?:(?!\[PG )[\s\S]){0,260}?"
    r"[Ll]ast\s+enqueued\s+(?:NCCL\s+)?work:\s+(?P<enqueued>-?\d+),(?:\s+last\s+started\s+(?:NCCL\s+)?work:\s+-?\d+,)?"
    r"\s+last\s+completed\s+(?:NCCL\s+)?work:\s+(?P<completed>-?\d+)",
    "stuck": r"\[PG [^\]\n]{0,200}Rank (?P<rank>\d+)\](?:(?!\[PG )[\s\S]){0,60}?"
    r"(?:watchdog\s+got\s+stuck\s+for\s+(?P<seconds>\d+)\s+seconds|Heartbeat\s+monitor\s+timed\s+out)",
    "broke": r"Rank (?P<rank>\d+)\] (?:(?:Process group|NCCL) watchdog thread terminated with|"
    r"Collective WorkNCCL\(.{0,200}\) raised the following async) exception: "
    r"(?P<text>[^\[\s].*)",
    "print": r"(?:Rank (?P<rank>\d+) is running(?: inconsistent)?|\[Rank (?P<of>\d+)\] Running) collective:\s+"
    r"CollectiveFingerPrint\((?:SequenceNumber=(?P<number>\d+),? ?)?OpType=(?P<op>\w+)"
    r"(?:,\s+TensorShape=\[(?P<shape>[\d, ]*)\])?(?:,\s+TensorDtypes=(?P<dtype>\w+))?",
    "desync": r"[ \t]\[(?P<ranks>\d[\d, ]*)\] (?:finished collective #\d+, but )?"
    r"didn't join collective #(?P<number>\d+)",
    "states": r"#(?P<number>\d+) (?:started|finished) ranks:\n(?P<lines>(?:[ \t]+\[\d[\d, ]*\] \w+ \w+\n?)+)",
    "state": r"\[(?P<ranks>\d[\d, ]*)\] (?P<how>started|finished) (?P<op>\w+)",
    "mismatch": r"Mismatched collective detected, please check your collective calls at and around rank (?P<rank>\d+)",
    "coll": r"(?<![^\s:])(?P<host>[^\s:]{1,255}):(?P<pid>\d+):\d+ \[(?P<device>\d+)\] NCCL INFO (?P<op>\w+): "
    r"opCount (?P<number>[0-9a-f]+) .{0,200}?count (?P<count>\d+) datatype \d+ op \d+ root (?P<root>\d+) "
    r"comm (?P<comm>0x[0-9a-f]+) \[nranks=(?P<size>\d+)\](?:.{0,200}? globalrank (?P<rank>\d+))?",
    "comm": r"(?<![^\s:])(?P<host>[^\s:]{1,255}):(?P<pid>\d+):\d+ \[\d+\] NCCL INFO .{0,400}?comm "
    r"(?P<comm>0x[0-9a-f]+) rank (?P<rank>\d+) n[rR]anks (?P<size>\d+)(?:.{0,200}? commId (?P<id>0x[0-9a-f]+))?",
    "barrier": r"\[Rank (?P<rank>\d+)\]: Ranks? (?P<late>[\d, ]+) failed to pass monitoredBarrier in (?P<ms>\d+) ms",
    "reached": r"Rank (?P<rank>\d+) (?:successfully reached monitoredBarrier|timed out in monitoredBarrier)",
    "failed": rf"(?:\btime\s+: (?P<time>\d{{4}}-\d\d-\d\d_\d\d:\d\d:\d\d){NEXT}\bhost\s+: (?P<host>\S+){NEXT})?"
    rf"\brank\s+: (?P<rank>\d+) \(local_rank: (?P<local>\d+)\){NEXT}exitcode\s+: (?P<code>-?\d+) \(pid: \d+\)"
    r"(?:(?:.*\n){2,3}?  traceback : (?P<raised>Traceback .*\n(?:  .*\n)+))?",
    "srun": r"srun: error: [^\s:]+: tasks? (?P<tasks>\d{1,5}(?:[,-]\d{1,5}){0,99}): (?:Exited with )?"
    r"(?P<how>\w+(?: \w+)*)",
    "task_is_rank": r"^([1-9]\d*): .*?\[rank\1\]:|srun: error: [^\s:\[,]+: tasks ",
    "task_is_host": r"^(\d+): .*?\[rank(?!\1\])|elastic",
    "ras": r"Communicator ranks have different (?:(?P<op>\w+) |collective )?operation counts(?P<lines>(?:\n[^\n#]+)+)",
    "ras_count": r"ranks? (?:has|have) launched up to operation (?P<number>\d+)",
    "ras_rank": r"^\s*Rank (?P<rank>\d+) --",
    "ras_size": r"^ +\d+(?: +\d+){4} +(?P<size>\d+) +[A-Z].*$",
    "prefix": r"^.*?(?:\[rank\d+\]:)*(?P<hook>\[rank(?P<rank>\d+)\]: ?)|"
    r"^[ \t]*(?:\[default(?P<local>\d+)\]:|(?P<task>\d+): ) ?",
    "role": r"\[(\w+)\] (?:[Ss]tarting workers|Rendezvous'ed|Rendezvous complete|[Ww]orker group)",
    "label": r"^[ \t]*\[default(?P<local>\d+)\]:.*?\[rank(?P<rank>\d+)\]:",
    "failing": r"\[rank(?P<rank>\d+)\]: ?(?:\[[EF]\d|Traceback )",
    "of_library": r"$|\[|\s|wandb|slurmstepd|terminate called|.*(?:Warning|\bFile |Traceback|[A-Za-z]:0)",
    "dump": r"collective timeout from\s+rank (?P<rank>\d+)",
    "raised": rf"(?P<broken>{HEAD}(?:[ \t].*\n)*(?={HEAD}))?"
    r"(?:(?P<aside>Exception in thread .{0,200}?|Task exception was never retrieved|Exception ignored .*?|"
    r"Error in atexit.{0,80}?|--- Logging error ---|Process \w+-\d+|"
    r"Process \d+ terminated with the following error):?\n(?:future: .*\n)?)?"
    r"(?P<chained>(?:During handling of the above exception, another exception occurred|"
    r"The above exception was the direct cause of the following exception):\s*\n|Original )?"
    rf"(?<!\| )(?P<hook>\[rank\d+\]: ?)?{HEAD}(?P<frames>(?:[ \t].*\n)+"
    rf"(?:{OTHER_LINES}{{1,5}}(?:[ \t].*\n)+){{0,4}}(?:{OTHER_LINES}{{0,5}}(?={ERROR})|(?=(?P<word>{ONE_WORD}))))"
    r"(?P<text>.*)",
    "worker_left": r"DataLoader worker \(pid.*(?:exited unexpectedly|killed by signal: Interrupt)",
    "worker_killed": r"^RuntimeError: DataLoader worker \(pid \d+\) is killed by signal: .*",
    "of_exception_group": r"^  (?:\+ Exception Group (?=Traceback )|\| )",
    "member": r"GLOBAL_RANK: (?P<rank>\d+), MEMBER: \d+/(?P<size>\d{1,5})$",
    "torn": r"^(?: {1,2}File [^\n]+, line \d+, in [^\n]+\n(?: {3,}[^\n]*\n){0,2}|(?=torch\.(?!distributed\.elastic\.)))"
    r"(?P<text>[^\W\d][\w.]{0,80}(?:Error|Exception): .*)",
    "rich_head": r"^(?P<before>[^╭\n]*)╭─+ Traceback \(most recent call last\) ─+╮[ \t]*$",
    "rich_frame": r"^(?P<before>[^│\n]*)│ (?P<file>[^\s:│]+):(?P<line>\d+)(?P<within> in \S+)?(?: in)? {2,}│[ \t]*$",
    "rich_line": r"^(?P<before>[^│╰\n]*)[│╰].*[│╯][ \t]*$",
    "label_of_text": r"^(?:    |(?:>|(?!\d+:|\w*rank)[\w.-]*\d:|[a-z][\w.-]*-\w+ [a-z][\w.-]*)(?: |$))",
    "label_of_line": r"^(?:(?:\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:?\d\d)|\[pod/[^\]\s]+\]|"
    r"[A-Z][a-z]{2} [ \d]\d [\d:]{8} \S+ [^\s:\[]+\[\d+\]:|[\w.-]+-\d+ +\|)(?: |$))+",
    "label_of_rank": r"^(?:\[(?:[^\]\n]{1,80},)?(?=\d+\]<std)|\[[^\]\n]{1,40}\] \w+ \[rank=(?=\d+\] \|\|)|"
    r"\(\w+ rank=(?=\d+ pid=))(\d+)(?:\]<std(?:err|out)>:|\] \|\| ?| pid=\d+\) \w+ \S+ \S+ \[[^\]\n]+\] ?)",
    "numbered": r"(?:\[\d+\](?: .*)?\n|\n)*\[\d+\](?: .*)?\n*",
    "number": r"^\[(\d+)\](?: |$)",
    "deepspeed": r"sigkill_handler\] .* exits with return code = (?P<code>-?\d+)$",
    "mpirun": r"process rank (?P<rank>\d+) with PID \d+ on node \S+\s+exited\s+on\s+signal (?P<signal>\d+)",
    "sent_more": r"op\.preamble\.length <= op\.nbytes\. (?P<sent>\d+) vs (?P<room>\d+)",
    "recorded": r"joinlab: recording into ",
    "lagging": r"ranks \[(?P<ranks>\d[\d, ]*)\] are the lagging ranks .{0,40}They never joined any",
    "own": r"(?P<text>(?:[\w.]{0,80}Error: (?:\[|DDP expects same model across all ranks, but Rank )(?P<rank>\d+)"
    r"(?:\] is setting up NCCL communicator |\]: params\[| has )|Gloo connectFullMesh failed with ).*)",
    "frame": r'File "(?P<file>[^"]+)", line (?P<line>\d+)(?:,? in (?P<function>\S+)|[ \t]*$)',
    "spy_frame": r"^ {4,}(?P<function>\S+) \((?P<file>[^()\n]+):(?P<line>\d+)\)$",
    "thread": r"^(?:Current thread|Thread) .*$",
    "process": r"^Process \d+: (?:.*--local[-_]rank[= ](?P<local>\d+))?",
    "attempt": r"^.*attempts left; will restart worker group|^.* (?P<agent>\d+) \S*torch/distributed/elastic/"
    r"multiprocessing/api\.py:\d+\] failed \(exitcode.*",
    "signalled": r" Received (?:Signals\.)?(?P<signal>\w+) death signal, shutting down workers",
    "first": r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<rank>\d+) \(pid: \d+\) of binary",
    "child": r"(?:\[rank: |(?P<of_job>Rank ))(?P<rank>\d+)(?:\] Child process with PID \d+ terminated with|"
    r" crashed with exit) code (?P<code>-?\d+)",
    "colour": r"\x1b\[[0-9;]*[A-Za-z]",
}
"""The lines that are read, as regular expressions; "^" and "$" match at lines.

timeout   PyTorch 1.9 to 2.14; old ones without the number; the sizes since 2.2, truncated in some pastes
progress  "[PG 1 Rank 0]" in 2.3 to 2.5, "[PG ID 1 PG GUID 2(dp) Rank 0]" later; "last started" in some of them
prefix    torch's own "[rank3]:", after any text of launchers; torchrun's "[default3]:"; srun's "3: "
raised    hook: torch's own prefix, which only its sys.excepthook writes, unless a launcher writes one like it
          word: its class is one word, as Python writes one of __main__
          chained: it belongs to the traceback before it
          broken: another traceback begins just before, so that the lines may be of two processes
frame     that of a SyntaxError names no function
rich_frame  where it fills the box, its number may go on in the next line
label_of_text  where most lines have one: a mark of a quote, "10.0.0.4: " of pdsh, "train-worker-0 pytorch " of stern
label_of_line  the time, "[pod/train-worker-0/pytorch] " of kubectl, "Mar 05 10:00:01 gpu1 train[4021]: " of a journal,
          "trainer-1  | " of Docker
label_of_rank  "[1,2]<stderr>:" of Open MPI, "[2]<stderr>:" of Horovod, "[2027-02-27T21:35:28Z] fa88a9df [rank=2] ||"
          of Determined, "(VllmWorker rank=2 pid=7) ERROR 07-23 19:34:51 [executor.py:487] " of vLLM
numbered  a text whose lines all have "[1] " of MPICH's and Intel's mpirun -l
"""

_FIND = {name: re.compile(pattern, re.MULTILINE) for name, pattern in PATTERNS.items()}


DOCKER = re.compile(r'\{"log": ?"')
"""The beginning of each line that Docker writes into its own file."""

IN_JSON = ("log", "textPayload", "message", "msg")
"""Where Docker, Google's logging and others put what a process wrote."""

UTF_16 = (b"\xff\xfe", b"\xfe\xff")
"""The first bytes of a file in UTF-16."""


def looks_like(file: Path, head: bytes) -> bool:
    """Whether a file is text: UTF-16, or without null bytes and not a zip. A log may have bytes
    that are not UTF-8."""
    return head.startswith(UTF_16) or (
        bool(head) and not head.startswith(b"PK") and b"\0" not in head
    )


def read(files: Sequence[Path], problems: list[str]) -> Timeline:
    """The Timeline of one job's text files. Raises TimelineFileError if no line is about a rank."""
    facts = TextFacts()
    for file in files:
        size = file.stat().st_size
        if size > MOST_BYTES:
            problems.append(
                f"{str(file)!r} was left out: it has {size:,} bytes, more than {MOST_BYTES:,}"
            )
            continue
        named = files[1:] or re.search(r"rank\D?\d", file.stem)
        if not facts.take(_text_of(file), rank_in(file.stem) if named else None):
            problems.append(f"{str(file)!r} was left out: no line of it says what a rank did")
    source = f"{len(files)} files such as " * (len(files) > 1) + repr(str(files[0]))
    return facts.timeline(source, problems)


def read_text(text: str, source: str) -> Timeline:
    """The Timeline of a text; errors call it `source`."""
    facts = TextFacts()
    facts.take(text)
    return facts.timeline(source)


def beside(timeline: Timeline, files: Sequence[Path]) -> Timeline:
    """`timeline`, with the facts of text files beside its records: where a rank stood, and what
    ended it."""
    facts, ends = TextFacts(), list(timeline.ends)
    silent = [
        path
        for path in files
        if not (_is_text(path) and facts.take(_text_of(path), rank_in(path.stem)))
    ]
    facts.take_reports()
    if silent:
        problem = f"{left_out(silent)}: no line says what a rank did"
        timeline.meta.setdefault("problems", []).append(problem)
    for rank, end in enumerate(timeline.ends):
        text = facts.raised.get(rank) or facts.ended.get(rank)
        if text and (end.kind is EndKind.UNKNOWN or end.text == NO_END):
            kind = EndKind.RAISED if rank in facts.raised else _end_by(text)
            ends[rank] = replace(end, kind=kind, text=text)
    stacks = {rank: facts.stood(rank) for rank in sorted(facts.stands) if rank < len(ends)}
    if stacks:
        timeline.meta["stood"] = timeline.meta.get("stood", {}) | stacks
    if facts.asides:
        timeline.meta["asides"] = [*timeline.meta.get("asides", ()), *dict.fromkeys(facts.asides)]
    merged = replace(timeline, ends=tuple(ends))
    merged.again.extend(timeline.again)
    return merged


def _is_text(file: Path) -> bool:
    if file.stat().st_size > MOST_BYTES:
        return False
    with file.open("rb") as opened:
        return looks_like(file, opened.read(512))


def _text_of(file: Path) -> str:
    data = file.read_bytes()
    return data.decode("utf-16" if data.startswith(UTF_16) else "utf-8", errors="replace")


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
    reports   of each torchrun the failures that it lists, and the one that it calls the root cause
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

    def take(self, text: str, rank: int | None = None) -> bool:
        """Add the facts of a text; False if it has none. `rank`: the rank in the name of its file,
        whose lines it has unless they are of others or of torchrun: the name may number hosts."""
        text = _as_written(text)
        begun = _all("recorded", text)
        if begun[1:]:  # rank 0 says so once, when an attempt or a job begins
            self.notes.add("of several attempts, the last")
            text = text[begun[-1].start() :]
        ends = _all("attempt", text)
        one_agent = len({end["agent"] for end in ends} - {None}) == 1
        following: dict[str, int] = {}
        for end in reversed(ends):
            agent = end["agent"]
            if not agent or _is_restart(end, following.get(agent), one_agent):
                self.notes.add("of several attempts, the last")
                text = text[end.end() :]  # what came before is of another attempt
                break
            following[agent] = end.start()
        text = self._last_job(text)
        for role in sorted(set(_FIND["role"].findall(text))):  # in place of "default" in its labels
            text = re.sub(rf"(?m)^([ \t]*\[){role}(?=\d+\]:)", r"\1default", text)
        if rank is not None:
            for match in chain(_FIND["prefix"].finditer(text), _FIND["failed"].finditer(text)):
                named = match["rank"] or match["local"]
                if named and int(named) != rank:
                    rank = None
                    break
        before = len(self.sources)
        self.dumped |= bool(_all("thread", text))
        for source, count in (
            ("NCCL's watchdog", self._watchdog(text)),
            ("TORCH_DISTRIBUTED_DEBUG=DETAIL", self._fingerprints(text)),
            ("NCCL's log", self._nccl_log(text)),
            ("ncclras", self._ras(text)),
            ("monitored_barrier", self._barrier(text)),
            ("the launcher's report", self._torchrun(text)),
            ("srun's lines", self._srun(text)),
            ("tracebacks and stacks", self._stacks(text, rank)),
        ):
            self.sources += [source] * count
        return len(self.sources) > before

    def _last_job(self, text: str) -> str:
        """What follows the report of a torchrun whose ranks fail once more: they were gone when it
        was written. It names some of them; all between are of its host."""
        begin = 0
        failing = [*_all("failed", text), *_all("failing", text)]
        for failures, root in _reports(text):
            if root is None:
                break
            ranks: set[int] = set()
            for match in failures:
                ranks |= {int(match["rank"]), int(match["rank"]) - int(match["local"])}
            texts = list(map(itemgetter(0), failures))
            for match in failing:
                follows = match.start() > root.start() and match[0] not in texts
                if follows and min(ranks) <= int(match["rank"]) <= max(ranks):
                    begin = root.end()
        if begin:
            self.notes.add("of several jobs, the last")
        return text[begin:]

    def _watchdog(self, text: str) -> bool:
        group_of: dict[tuple[int, int], str] = {}
        at_work: list[tuple[int, int]] = []
        still = _all("stuck", text)
        for match in still:
            rank = _whose(text, match)
            self.ended.setdefault(rank, STUCK)
            if match["seconds"]:
                self.ended[rank] = f"{STUCK} for {match['seconds']} s"
        for match in _all("progress", text):
            group_rank, rank = int(match["rank"]), _whose(text, match)
            group = match["guid"] or match["id"]
            if not match["guid"] and group_rank != rank:  # each process counts its own groups
                group = f"{group} of rank {rank}"
            if match["words"]:
                self.names[group] = match["words"]
            enqueued = max(0, int(match["enqueued"]))  # -1: none yet
            completed = max(0, int(match["completed"]))
            if enqueued >= completed:  # otherwise sends were counted, too
                self.progress[group][rank] = enqueued, completed
            group_of[rank, int(match["work"] or completed + 1)] = group
            if match["work"] and completed < int(match["work"]) <= enqueued:
                at_work.append((rank, int(match["work"])))
        matched = bool(group_of or still)
        at_number: dict[int, set[str]] = defaultdict(set)
        for (_, number), group in group_of.items():
            at_number[number].add(group)
        for match in _all("timeout", text):
            matched, rank, number = True, _whose(text, match), int(match["number"] or 0)
            if match["op"] == "_ALLGATHER_BASE" and match["out"]:
                self.size = max(self.size, int(match["out"]) // max(int(match["count"]), 1))
            near = at_number.get(number, set())  # a line of another rank may name the group
            group = group_of.get((rank, number), *near if len(near) == 1 else (DEFAULT_GROUP,))
            if not _prefix(text, match):
                if group != DEFAULT_GROUP:
                    self.notes.add(f"ranks count within group {self.names.get(group, group)}")
                elif (rank, number) not in group_of:
                    self.notes.add(PERHAPS_OF_GROUPS)
            within = match["op"] or f"call {number}"
            if self._call(group, rank, number, match["op"] or "", _ints(match["count"]) or None):
                within = "it"
            self.ended[rank] = "NCCL's watchdog gave up"
            if match["ms"]:
                self.ended[rank] += f" after {int(match['ms']) / 1000:g} s"
            if match["ms"] or within != "it":
                self.ended[rank] += f" in {within}"
        for (rank, number), group in group_of.items():
            enqueued, completed = self.progress[group].get(rank, (0, 0))
            if completed < number <= enqueued:
                self._same_call(group, rank, number)
        broke = _all("broke", text)
        for match in broke:
            self.ended.setdefault(_whose(text, match), f"its NCCL watchdog failed: {match['text']}")
        for rank, number in at_work:
            is_row = (group_of[rank, number], rank, number) in self.calls
            call_text = "it" if is_row else f"call {number}"
            self.ended.setdefault(rank, f"NCCL's watchdog found it at work on {call_text}")
        for match in _all("dump", text):
            self.ended.setdefault(int(match["rank"]), "a collective timed out on it")
        return self._desync(text) or matched or bool(broke)

    def _same_call(self, group: str, rank: int, number: int) -> None:
        """The row of a rank that was at work on a call whose op only other ranks' lines give."""
        rows = [
            row
            for (row_group, _, row_number), row in self.calls.items()
            if (row_group, row_number) == (group, number)
        ]
        if len({row["op"] for row in rows}) == 1:
            self.calls.setdefault((group, rank, number), CallRow(**{**rows[0], "rank": rank}))

    def _desync(self, text: str) -> bool:
        """PyTorch's report of ranks that are out of step (TORCH_NCCL_DESYNC_DEBUG)."""
        states, late, never = (_all(name, text) for name in ("states", "desync", "lagging"))
        for match in states:
            for state in _all("state", match["lines"]):
                for rank in _ints(state["ranks"]):
                    number = int(match["number"])
                    self._got_to(DEFAULT_GROUP, rank, number)
                    if state["how"] == "started":
                        self._call(DEFAULT_GROUP, rank, number, state["op"], None)
        for match in late:
            for rank in _ints(match["ranks"]):
                self._got_to(DEFAULT_GROUP, rank, int(match["number"]) - 1)
        for match in never:
            for rank in _ints(match["ranks"]):
                self._got_to(DEFAULT_GROUP, rank, 0)
        return bool(states or late or never)

    def _fingerprints(self, text: str) -> bool:
        """The calls of errors, and the last that each rank began to check before it ran it."""
        prints = _all("print", text)
        running: dict[int, re.Match[str]] = {}
        empty: dict[int, re.Match[str]] = {}
        if self._fingerprints_of_group(text, prints):
            return True
        for match in prints:
            if not _prefix(text, match):
                self.notes.add(PERHAPS_OF_GROUPS)
            if match["of"]:
                running[int(match["of"])] = match
            elif "," not in match[0] and match["number"]:
                empty[int(match["rank"])] = match
            else:
                self._fingerprint(match, int(match["rank"]), NOT_MET)
        for rank, match in empty.items():  # without tensors: of a rank that sent none, perhaps
            if not any(call_rank == rank for _, call_rank, _ in self.calls):
                self._fingerprint(match, rank, NOT_MET)
        for rank, match in running.items():
            row = self._fingerprint(match, rank, None)
            if row is not None and row["number"]:
                self._got_to(DEFAULT_GROUP, rank, row["number"])
        return bool(prints)

    def _fingerprints_of_group(self, text: str, prints: Sequence[re.Match[str]]) -> bool:
        """The calls of lines whose prefix shows that they count ranks within a smaller group; False
        if none does. Of the ranks that they name the job's rank is known only if they wrote it."""
        lines: list[tuple[int, re.Match[str]]] = []
        numbers: dict[int, set[object]] = defaultdict(set)
        kinds: dict[int, set[object]] = defaultdict(set)
        of_group = False
        for match in prints:
            group_rank, prefix = int(match["of"] or match["rank"]), _prefix(text, match)
            kinds[group_rank].add(match.group("number", "op", "shape"))
            by_itself = (
                match["of"] or match.start() - text.rfind("on ranks.", 0, match.start()) < 12
            )
            if prefix and by_itself:
                rank = int(prefix["rank"])
                lines.append((rank, match))
                numbers[group_rank].add(rank)
                of_group |= rank != group_rank
        if not of_group:
            return False
        self.notes.add("errors count ranks within a group")
        together = max(map(len, chain(numbers.values(), kinds.values()))) == 1
        for rank, match in lines:
            members = sorted(dict(lines)) if together else [rank]
            group = f"of {ranks_text(members)}"
            row = self._fingerprint(match, rank, None if match["of"] else NOT_MET, group)
            if row is not None and row["number"] and match["of"]:
                self._got_to(group, rank, row["number"])
        return True

    def _fingerprint(
        self, match: re.Match[str], rank: int, error: str | None, group: str = DEFAULT_GROUP
    ) -> CallRow | None:
        # the number counts the earlier calls
        number = int(match["number"]) + 1 if match["number"] else 0
        shape = _ints(match["shape"]) or None
        self.counted[group] = "SequenceNumber"
        row = self._call(group, rank, number, match["op"], shape, error)
        if row is not None:
            row["dtype"] = (match["dtype"] or "").lower() or None
            if match["op"] in _INTO_TENSOR:
                row["origin"] = f"all-gather ({_INTO_TENSOR[match['op']]})"
        return row

    def _nccl_log(self, text: str) -> bool:
        """Collectives of each communicator. The job's rank is the rank in the largest communicator
        of the process.

        Two communicators of one size are distinguished by commId, or by their order in the process.
        """
        lines = _all("coll", text)
        ids: dict[tuple[str, str, str], str] = {}
        size_and_rank: dict[
            tuple[str, str], tuple[int, int]
        ] = {}  # size of the communicator, and the rank in it
        for match in (*_all("comm", text), *lines):
            process, comm_rank = (match["host"], match["pid"]), match["rank"]
            self.size = max(self.size, int(match["size"]))
            if comm_rank is not None:
                size_and_rank[process] = max(
                    size_and_rank.get(process, (0, 0)), (int(match["size"]), int(comm_rank))
                )
            if match.re is _FIND["comm"] and match["id"]:
                ids[*process, match["comm"]] = match["id"]
        devices = sorted({(match["host"], int(match["device"]), match["pid"]) for match in lines})
        several = len({host for host, _, _ in devices}) > 1
        if any((host, pid) not in size_and_rank for host, _, pid in devices):
            if several:
                self.notes.add("no line gives the ranks of these GPUs")
                self.rank_names = {
                    index: f"GPU {device} of {host}"
                    for index, (host, device, _) in enumerate(devices)
                }
            else:
                self.notes.add("ranks are assumed to be the GPUs of one host")
        place = {
            (host, pid): index if several else device
            for index, (host, device, pid) in enumerate(devices)
        }
        comms: dict[tuple[str, str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        rows: dict[str, list[tuple[int, re.Match[str]]]] = defaultdict(list)
        for match in lines:
            process = match["host"], match["pid"]
            process_comms = comms[process][match["size"]]
            process_comms += [match["comm"]] * (match["comm"] not in process_comms)
            group = f"{match['size']} ranks" + f", {process_comms.index(match['comm'])}" * (
                process_comms[0] != match["comm"]
            )
            if (*process, match["comm"]) in ids:
                group = f"{match['size']} ranks of {ids[*process, match['comm']]}"
            rank = size_and_rank.get(process, (0, place[process]))[1]
            self.seen.add(rank)
            op = op_of(match["op"])
            if op in POINT_TO_POINT:  # it has the number of the next collective
                self.sends.setdefault(rank, {})[str(op)] = match["number"]
            else:
                self.sizes[group] = int(match["size"])
                rows[group].append((rank, match))
        for group, mine_of in rows.items():
            if len({rank for rank, _ in mine_of}) > self.sizes[group]:
                self.notes.add(
                    f"communicators of {group} are left out: no line says which ranks share one"
                )
                del self.sizes[group]
                continue
            for rank, match in mine_of:
                number = int(match["number"], 16) + 1
                row = self._call(group, rank, number, match["op"], [int(match["count"])])
                self._got_to(group, rank, number)
                if row is not None and op_of(match["op"]) in (Op.BROADCAST, Op.REDUCE):
                    row["root"] = int(match["root"])
        for group in self.sizes:
            self.counted[group] = "opCount"
        self.mismatched |= {int(match["rank"]) for match in _all("mismatch", text)}
        self.seen |= self.mismatched
        return bool(lines or self.mismatched)

    def _ras(self, text: str) -> bool:
        """The report names the ranks of its small sides; a single side without names has all other
        ranks."""
        size = max((int(match["size"]) for match in _all("ras_size", text)), default=0)
        self.size = max(size, self.size)
        reports = _all("ras", text)
        for match in reports:
            sides: list[tuple[int, set[int]]] = []
            for line in match["lines"].splitlines():
                count = _FIND["ras_count"].search(line)
                if count:
                    sides.append((int(count["number"]), set()))
                elif sides and (rank := _FIND["ras_rank"].match(line)):
                    sides[-1][1].add(int(rank["rank"]))
            group = f"{size} ranks"
            self.sizes[group] = size
            unnamed = [ranks for _, ranks in sides if not ranks]
            if len(unnamed) == 1:
                unnamed[0].update(set(range(size)).difference(*(ranks for _, ranks in sides)))
            for number, ranks in sides:
                for side_rank in sorted(ranks):
                    self._call(group, side_rank, number, match["op"] or "", None)
                    self._got_to(group, side_rank, number)
        return bool(reports)

    def _barrier(self, text: str) -> bool:
        """Who gave up in a barrier, and who was late. If a line's prefix shows that the lines count
        ranks within a smaller group, which ranks were late is not known."""
        gave_up, reached = _all("barrier", text), _all("reached", text)
        lines = [*gave_up, *reached]
        of_group = any(_whose(text, match) != int(match["rank"]) for match in lines)
        for match in lines:
            rank, error = _whose(text, match), match[0]
            if match.re is _FIND["barrier"]:
                late = _ints(match["late"])
                who = ranks_text(late) + " of its group" * of_group
                error = f"{who} failed to pass monitoredBarrier in {match['ms']} ms"
                missed = f"it did not come to rank {rank}'s barrier within {match['ms']} ms"
                if not of_group:
                    self.late.update(late)
                    self.ended = dict.fromkeys(late, missed) | self.ended
            group = f"of rank {rank}" if of_group else DEFAULT_GROUP
            self._call(group, rank, 0, "BARRIER", None, f"RuntimeError: {error}")
            if of_group:
                self.notes.add("errors count ranks within a group")
            elif not _prefix(text, match):
                self.notes.add(PERHAPS_OF_GROUPS)
        if lines:
            self.backend = "gloo"
        return bool(lines)

    def _torchrun(self, text: str) -> bool:
        reports = _reports(re.sub(r"(?m)^ *\d+: ", "", text))
        self.reports += reports
        for failures, _ in reports:
            for match in failures:
                for raised in _all("raised", re.sub("(?m)^  ", "", match["raised"] or "")):
                    self.raised[int(match["rank"])] = raised["text"]
                    self.stands[int(match["rank"])] = _frames(raised["frames"])[::-1]
        signals, children, first_ones = (
            _all(name, text) for name in ("signalled", "child", "first")
        )
        for match in first_ones:
            self.first.append((int(match["rank"]), _exit(match)))
        for match in _all("member", text):
            self.heard.add(int(match["rank"]))
            self.size = max(self.size, int(match["size"]))
        for match in signals:
            self.asides.append(f"torchrun received signal {match['signal']} and ended its ranks.")
        for match in _all("sent_more", text):
            sizes = f"{match['sent']} bytes where its call expected {match['room']}"
            self.asides.append(f"gloo ended a process that was sent {sizes}.")
        noticed = [] if _all("task_is_host", text) else _all("mpirun", text)
        for match in noticed:
            self.ended[int(match["rank"])] = f"{_signal(-int(match['signal']))} (mpirun)"
        for match in children:
            if match["of_job"]:
                launcher = "Composer"
            else:
                launcher = "Lightning"
                self.notes.add("ranks count within a host")
            self.ended.setdefault(int(match["rank"]), f"{_exit(match)} ({launcher})")
        return bool(reports or signals or children or first_ones or noticed)

    def take_reports(self) -> None:
        """Add how torchrun saw ranks end. Of several torchruns, each with a report of its own, one saw
        the first failure if it was earlier than the others' by more than their clocks may differ."""
        roots: dict[int, re.Match[str]] = {}
        unread = [failures for failures, root in self.reports if root is None]
        for _, root in self.reports:
            if root and _exit(root) != "SIGTERM":
                roots[int(root["rank"])] = root
        earliest, *later = sorted(root["time"] or "" for root in roots.values()) or [""]
        if (
            earliest
            and later
            and not unread
            and _seconds(later[0]) - _seconds(earliest) > CLOCKS_DIFFER
        ):
            for rank, root in tuple(roots.items()):
                if root["time"] != earliest:
                    del roots[rank]
        for failures, report_root in self.reports:
            for match in failures:
                rank, by, source = int(match["rank"]), _exit(match), "torchrun"
                if rank in roots and roots[rank][0] == match[0]:  # a report may be written twice
                    others = unread or roots.keys() - {rank}
                    source = FIRST_FAILED + f" on {match['host']}" * bool(others)
                elif by == "SIGTERM" and report_root and _exit(report_root) != by:
                    by += ", since another rank had failed"
                before = self.ended.get(rank, "")
                exit_text = f"{by} ({source})"
                if before != INTERRUPTED and exit_text not in before:
                    self.ended[rank] = before + "; " * bool(before) + exit_text

    def _srun(self, text: str) -> bool:
        """How srun's tasks ended, where their labels are their ranks or several are on one host: a
        task may also be torchrun, with all ranks of its host."""
        if not _all("task_is_rank", text) or _all("task_is_host", text):
            return False
        lines = _all("srun", text)
        for match in lines:
            for first, last in re.findall(r"(\d+)-?(\d*)", match["tasks"]):
                for rank in range(int(first), int(last or first) + 1):
                    self.ended.setdefault(rank, f"{match['how']} (srun)")
        return bool(lines)

    def _stacks(self, text: str, rank: int | None) -> bool:
        matched = False
        asides: list[tuple[str, re.Match[str]]] = []
        if rank is None:  # the pattern meets only lines without a prefix
            for match in _tracebacks(text):
                between = re.search(r"^(?!ray\.)\S", match["frames"], re.MULTILINE)
                if not (between or match["broken"] or match["word"]):  # of one process for sure
                    asides.append(("A process whose rank no line gives", match))
        for match in _all("own", text):
            prefix = _prefix(text, match)
            number = (prefix or match)["rank"] if rank is None else rank
            if number is None:
                continue
            self.raised.setdefault(int(number), match["text"])
            matched = True
            if rank is None and prefix is None:
                self.notes.add("ranks count within their group")
        by_rank = self._by_rank(text, rank)
        labelled = bool(_all("label", text))
        signals = set(_FIND["signalled"].findall(text))
        first_failed = {int(root["rank"]) for _, root in self.reports if root}
        running: set[str] = set()
        last_words: set[str] = set()
        for lines in by_rank.values():
            before, *after = _FIND["raised"].split(lines)
            running.update(_progress(before))
            if not after and 'File "' not in before:
                last_words.add(_last_line(before))
        for line_rank, lines in by_rank.items():
            whole = _tracebacks(lines)
            if isinstance(line_rank, str):
                asides += zip(repeat(f"A process of {line_rank}"), whole)
                continue
            ends: list[list[re.Match[str]]] = []
            survived = False
            for match in whole:
                # after its end no rank writes more lines of its program, and its watchdog does not give up
                rest = lines[match.end() :]
                shapes = _progress(rest)
                went_on = len(set(shapes)) < len(shapes) or not running.isdisjoint(shapes)
                last_line = _last_line(match["text"] + rest)  # as a rank that wrote no traceback
                went_on |= last_line in last_words and not _FIND["of_library"].match(last_line)
                # torch's hook writes only what ended it; torchrun may write earlier lines after that
                went_on &= not (match["hook"] and labelled)
                survived = bool(
                    match["aside"]
                    or went_on
                    or (survived and match["chained"])
                    or _FIND["timeout"].search(rest)
                )
                if survived:
                    asides.append((f"Rank {line_rank}", match))
                elif ends and match["chained"]:
                    ends[-1].append(match)
                else:
                    ends.append([match])
            end = _end_of(ends)
            for match in chain(*ends):
                if match not in end:
                    asides.append((f"Rank {line_rank}", match))
            if end:
                ended_by = end[-1]
                self.raised[line_rank] = ended_by["text"]
                by_user = bool(
                    signals & {"2", "SIGINT"} and _FIND["worker_left"].search(ended_by["text"])
                )
                killed = _FIND["worker_killed"].search(lines)
                if killed and "exited unexpectedly" in ended_by["text"]:  # by that signal
                    self.raised[line_rank] = killed[0].rstrip()
                for match in end:
                    if match["text"].startswith("KeyboardInterrupt"):
                        # Ctrl-C would have reached torchrun, too
                        ended_by, by_user = match, bool(signals) or line_rank not in first_failed
                if by_user:
                    self.ended[line_rank] = INTERRUPTED
                    self.raised.pop(line_rank, None)
                self.stands[line_rank] = _frames(ended_by["frames"])[::-1]
                matched = True
            torn = _FIND["torn"].search(lines)
            if torn and not whole:
                self.raised[line_rank], matched = torn["text"], True
                frames = _frames(torn[0])
                if frames:
                    self.stands.setdefault(line_rank, frames[::-1])
            if ends or ("Traceback (most" in lines and not _FIND["raised"].search(lines)):
                self.unread[line_rank] = WROTE
            stack = _main_thread(lines)
            if stack:
                self.stands[line_rank], matched = stack, True
        for who, match in asides:
            site = call_site(_frames(match["frames"])[::-1])
            if site and match["text"] not in self.raised.values():
                error = f"{match['aside'] or 'Traceback'}: {match['text']}"
                if match["word"]:  # perhaps a line of another kind
                    error = "a traceback"
                self.asides.append(f"{who} wrote {error} ({short_site(site)}).")
                matched = True
        for match in _all("deepspeed", text):  # its command is that of the last process
            self.asides.append(
                f"DeepSpeed's launcher ended all ranks, since one ended: {_exit(match)}."
            )
        return matched

    def _by_rank(self, text: str, rank: int | None) -> dict[int | str, str]:
        """The lines of each rank, without the prefix that names it; all are `rank`'s unless that is
        None.

        A prefix of torchrun gives the rank within a host. If the text also gives such ranks' numbers
        in the job, they count from a number of their host; of several hosts it may be any's, as are
        the ranks of a task of srun that has several.
        """
        offsets: set[int] = set()
        for pair in (*_all("label", text), *_all("failed", text)):
            offsets.add(int(pair["rank"]) - int(pair["local"]))
        of_hosts = bool(_all("task_is_host", text))
        lines: dict[int | str, list[str]] = defaultdict(list)
        owner: int | str | None
        # local rank of the process whose stacks py-spy shows, from its command line
        process: str | None = None
        for line in text.split("\n"):
            match = _FIND["prefix"].match(line)
            dumped = _FIND["process"].match(line)
            if dumped:
                process = dumped["local"]
            body = line[match.end() :] if match else line
            local = match["local"] if match else process
            owner = rank
            if rank is None and local:
                if not offsets and ("Traceback" in line or dumped):
                    self.notes.add("ranks count within a host")
                owner = int(local) + sum(offsets)
                if len(offsets) > 1:
                    owner = f"local rank {local}"
            elif rank is None and match:
                owner = int(match["rank"] or match["task"])
                if match["task"] and of_hosts:
                    owner = f"task {owner}"
            if match and match["rank"] and body.startswith("Traceback "):
                body = match["hook"] + body
            if owner is not None:
                lines[owner].append(body)
            if isinstance(owner, int):
                self.heard.add(owner)
            if match and match["rank"]:
                self.named.add(int(match["rank"]))
        whole: dict[int | str, str] = {}
        for owner, bodies in lines.items():
            whole[owner] = _FIND["of_exception_group"].sub("", "\n".join(bodies) + "\n")
        return whole

    def _call(
        self,
        group: str,
        rank: int,
        number: int,
        name: str,
        shape: list[int] | None,
        error: str | None = None,
    ) -> CallRow | None:
        """The row of a call, added if it is new; None if the op is unknown or the rank is too
        large."""
        op = op_of(name)
        if op is None or rank >= MOST_RANKS:
            return None
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

    def _got_to(self, group: str, rank: int, number: int) -> None:
        """Note that the rank has issued call `number` of the group."""
        self.progress[group][rank] = max(self.progress[group].get(rank, (0, 0)), (number, 0))

    def timeline(self, source: str, problems: Iterable[str] = ()) -> Timeline:
        self.take_reports()
        ranks = {rank for _, rank, _ in self.calls} | set(
            chain.from_iterable(self.progress.values())
        )
        ranks |= self.late | self.seen | set(self.raised) | set(self.ended) | set(self.stands)
        if not ranks | self.named:
            for rank, exit_text in self.first:
                if len(self.first) == 1:
                    self.ended[rank] = f"{exit_text} ({FIRST_FAILED})"
                    self.notes.add("ranks count within a host")
                    ranks = {rank}
                else:
                    self.asides.append(f"torchrun's local rank {rank} failed first: {exit_text}.")
        if not any(rank < MOST_RANKS for rank in ranks):
            raise TimelineFileError(
                " ".join((f"cannot open {source}: no line says what a rank did.", *self.asides[:1]))
                + " Lines that do: those of NCCL's watchdog, of TORCH_DISTRIBUTED_DEBUG=DETAIL, of NCCL_DEBUG=INFO "
                "with NCCL_DEBUG_SUBSYS=COLL, and torchrun's report."
                + " A folder with one file of stacks per rank, rank_0.txt and so on, is read, too."
                * self.dumped
            )
        ranks = {rank for rank in ranks | self.named if rank < MOST_RANKS}
        notes = f" ({'; '.join(sorted(self.notes))})" * bool(self.notes)
        size = max(max(ranks) + 1, self.size, *self.sizes.values())
        groups = self._groups(size)
        met = self._met()
        for (group, rank, number), row in self.calls.items():
            if not number:  # a monitored_barrier, which raised behind all others
                row["seq"] = max(self._numbers(group, rank))
            if (group, number) in met or 0 < number <= self.progress[group].get(rank, (0, 0))[1]:
                row["completed_ns"] = 0
        rows = sorted(self.calls.values(), key=itemgetter("rank", "group", "seq"))
        meta: Meta = {
            "program": f"text of {', '.join(dict.fromkeys(self.sources))}" + notes,
            "engine": "imported",
            "format": FROM_TEXT,
            "backend": "gloo" if "gloo/transport" in str(self.raised) else self.backend,
            "world_size": size,
            "groups": groups,
            "group_names": {group: name for group, name in self.names.items() if group in groups},
            "versions": {},
            "clock": {
                "domain": "wall",
                "completed": "unknown: calls that every rank issued alike count as completed",
            },
            "skipped": {
                group: {rank: self._before(group, rank) for rank in members}
                for group, members in groups.items()
            },
            "progress": {
                group: {
                    rank: {"enqueued": enqueued, "completed": completed}
                    for rank, (enqueued, completed) in by.items()
                }
                for group, by in self.progress.items()
                if by
            },
            "missing_ranks": sorted(set(range(size)) - ranks),
            "heard": sorted(self.heard.intersection(range(size))),
            "problems": list(problems),
            "counted": {name: by for name, by in self.counted.items() if name in groups},
            "sends": {
                rank: " and ".join(f"a {op} (opCount {number})" for op, number in last.items())
                for rank, last in sorted(self.sends.items())
            },
            "rank_names": self.rank_names,
            "mismatched": sorted(self.mismatched),
            "asides": [*dict.fromkeys(self.asides)],
            "stood": {rank: self.stood(rank) for rank in sorted(self.stands)},
        }
        if meta["backend"] == "nccl" and not (rows or meta["progress"]):
            del meta["backend"]  # no line names one
        timeline = timeline_from_rows(
            rows, [self._ending(rank, rows) for rank in range(size)], meta
        )
        numbers = pl.Series(
            "number", [row["number"] for row in rows], pl.Int64
        )  # null if the line has no number
        return replace(timeline, calls=timeline.calls.with_columns(numbers))

    def _met(self) -> set[tuple[str, int]]:
        """(group, number) of calls that every rank of the group issued with the same op and
        shape."""
        kinds: dict[tuple[str, int], list[object]] = defaultdict(list)
        for (group, _, number), row in self.calls.items():
            kinds[group, number].append((row["op"], row.get("shape")))
        met = set()
        for (group, number), kinds_issued in kinds.items():
            alike = kinds_issued.count(kinds_issued[0])
            if alike == len(kinds_issued) == self.sizes.get(group):
                met.add((group, number))
        return met

    def stood(self, rank: int) -> list[Stood]:
        """A rank's entry in `meta["stood"]`: where its main thread stood."""
        return [
            {
                "thread": "MainThread",
                "frames": list(map(str, reversed(self.stands[rank]))),
            }
        ]

    def _groups(self, size: int) -> dict[str, list[int]]:
        """Ranks by group: all ranks for the default group and any as large as the job; else those
        that lines name."""
        groups = {}
        for group in sorted({group for group, _, _ in self.calls} | set(self.progress)):
            ranks_named = {rank for call_group, rank, _ in self.calls if call_group == group} | set(
                self.progress.get(group, ())
            )
            whole = group == DEFAULT_GROUP or self.sizes.get(group) == size
            groups[group] = list(range(size)) if whole else sorted(ranks_named)
        return groups or {DEFAULT_GROUP: list(range(size))}

    def _numbers(self, group: str, rank: int) -> list[int]:
        """Of the rank's calls in the group; 0 where a line gives none."""
        return [key[2] for key in self.calls if key[:2] == (group, rank)]

    def _before(self, group: str, rank: int) -> int:
        numbers = self._numbers(group, rank)
        if numbers:
            return max(min(numbers) - 1, 0)
        counts = self.progress[group].get(rank)
        if counts:
            return counts[0]
        return 0 if rank in self.late else NOTHING_RECORDED

    def _ending(self, rank: int, rows: Sequence[CallRow]) -> Ending:
        rank_rows = [row for row in rows if row["rank"] == rank]
        if rank in self.raised:
            first = re.search(rf" \({FIRST_FAILED}[^)]*\)", self.ended.get(rank, ""))
            return Ending.raised(rank_rows, self.raised[rank] + (first[0] if first else ""))
        waits = next((row for row in rank_rows if row.get("completed_ns") is None), None)
        text = self.ended.get(rank, self.unread.get(rank, UNTOLD))
        return Ending.at(_end_by(text), waits, text)


def _exit(match: re.Match[str]) -> str:
    return _signal(int(match["code"]))


def _signal(code: int) -> str:
    """An exit code in words: a negative one is the signal that ended the process."""
    names = {-signal: signal.name for signal in Signals}
    return names.get(code, f"exit code {code}")


def _as_written(text: str) -> str:
    """The lines as the processes wrote them, without JSON around them, colours, spaces at their ends,
    labels of tools and the boxes of rich. Labels that give the rank become those of srun."""
    text = _without_labels(text)
    if text.lstrip().startswith("{"):
        text = _without_labels("".join(map(_out_of_json, text.splitlines())))
    text = _FIND["label_of_rank"].sub(r"\1: ", text)
    if _FIND["numbered"].fullmatch(text):
        text = _FIND["number"].sub(r"\1: ", text)
    if _FIND["rich_head"].search(text):
        text = _FIND["rich_head"].sub(r"\g<before>Traceback (most recent call last):", text)
        text = _FIND["rich_frame"].sub(
            r'\g<before>  File "\g<file>", line \g<line>\g<within>', text
        )
        text = _FIND["rich_line"].sub(r"\g<before>    ", text)
    return text


def _without_labels(text: str) -> str:
    text = re.sub("\r\n?", "\n", _FIND["colour"].sub("", text))
    text = "\n".join(map(str.rstrip, text.split("\n")))
    if len(_all("label_of_text", text)) > 0.9 * len(re.findall(".+", text)):
        text = _FIND["label_of_text"].sub("", text)
    return _FIND["label_of_line"].sub("", text)


def _out_of_json(line: str) -> str:
    """What a process wrote, of a line of JSON around it; the line itself if it is cut or another one."""
    try:
        record = json.loads(line)
        written = next(record[name] for name in IN_JSON if name in record)
    except (ValueError, TypeError, RecursionError, StopIteration):
        return f"{line}\n"
    return str(written) if "log" in record else f"{written}\n"  # Docker cuts long lines


def _end_by(text: str) -> EndKind:
    killed = re.search(r"SIG|[a-z] \(srun", text)  # not "exit code 1 (srun)"
    return EndKind.KILLED if killed else EndKind.UNKNOWN


_INTO_TENSOR = {
    "_ALLGATHER_BASE": "all_gather_into_tensor",
    "_REDUCE_SCATTER_BASE": "reduce_scatter_tensor",
}
"""The functions that move the same data as another one, and do not meet it under DETAIL."""


def _tracebacks(text: str) -> list[re.Match[str]]:
    """The tracebacks in a text but for those of launchers, which say no more than that a process failed."""
    tracebacks = []
    for match in _all("raised", text):
        if not match["text"].startswith(LAUNCHERS) and "distributed/run.py" not in match["frames"]:
            tracebacks.append(match)
    return tracebacks


def _end_of(chains: Sequence[list[re.Match[str]]]) -> list[re.Match[str]]:
    """The tracebacks that ended a process, of all that it may have ended by, each with those chained
    to it: the last that torch's hook wrote, or one that alone can have done so; else []."""
    hooked: list[re.Match[str]] = []
    errors: set[str] = set()
    for tracebacks in chains:
        errors.add(tracebacks[-1]["text"])
        if tracebacks[0]["hook"]:
            hooked = tracebacks
    return hooked if hooked or len(errors) != 1 else chains[-1]


def _is_restart(end: re.Match[str], following: int | None, one_agent: bool) -> bool:
    """Whether a torchrun started its ranks again behind its line that one had failed: without that, its
    own traceback and report follow. It did if it wrote such a line again, `following`; but one of
    another host, with a report of its own, may have the same number. Or if it is alone in the text and
    its ranks, which were gone, wrote lines as before."""
    before, after = end.string[: end.start()], end.string[end.end() : following]
    if "distributed/run.py" in after or "ChildFailedError" in after or "Root Cause" in after:
        return False
    if following and end.string.count("Root Cause", following) < 2:
        return True
    again = set(_lines_of_programs(after))
    return one_agent and bool(again) and not again.isdisjoint(_lines_of_programs(before))


def _lines_of_programs(text: str) -> Iterable[str]:
    """The lines of no library, with 0 in place of each number."""
    shapes = map(partial(re.sub, r"\d[\d.]*", "0"), text.splitlines())
    return filterfalse(_FIND["of_library"].match, shapes)


def _last_line(text: str) -> str:
    return text.rstrip().rpartition("\n")[2]


def _progress(text: str) -> list[str]:
    """The different lines of a program that goes on, as "step 41 loss 2.1": those with numbers, which
    are made 0, and not of a library."""
    shapes = []
    for line in dict.fromkeys(text.splitlines()):
        shape = re.sub(r"\d[\d.]*", "0", line)
        if "0" in shape and not _FIND["of_library"].match(shape):
            shapes.append(shape)
    return shapes


def _reports(text: str) -> list[Report]:
    reports: list[Report] = []
    failures: list[re.Match[str]] = []
    end = 0
    for match in _all("failed", text):
        cause = text.rfind("Root Cause", end, match.start())
        if cause >= 0 and text.count("\n", cause, match.start()) > 7:  # it cannot be read
            reports.append((failures, None))
            failures, cause = [], -1
        failures.append(match)
        if cause >= 0:
            reports.append((failures, match))
            failures = []
        end = match.end()
    return reports + [(failures, None)] * bool(failures)


def _seconds(time: str) -> float:
    return datetime.strptime(time, "%Y-%m-%d_%H:%M:%S").timestamp()


def _all(name: str, text: str) -> list[re.Match[str]]:
    return list(_FIND[name].finditer(text))


def _ints(text: str | None) -> list[int]:
    """The numbers of a part of a match, between commas or spaces."""
    return list(map(int, (text or "").replace(",", " ").split()))


def _prefix(text: str, match: re.Match[str]) -> re.Match[str] | None:
    """torch's "[rank5]:" before a match, in the same line."""
    before = _FIND["prefix"].match(text[text.rfind("\n", 0, match.start()) + 1 : match.start()])
    return before if before and before["rank"] else None


def _whose(text: str, match: re.Match[str]) -> int:
    """The job's rank of a line that names a rank of a group: from the prefix, or else the group's
    rank."""
    return int((_prefix(text, match) or match)["rank"])


def _main_thread(text: str) -> tuple[Frame, ...]:
    """The frames of the main thread, innermost first, from faulthandler or py-spy; () if there are
    none."""
    threads = _all("thread", text)
    last: tuple[Frame, ...] = ()
    for head, body in zip(threads, _FIND["thread"].split(text)[1:], strict=True):
        frames = _frames(body, "frame" if "most recent call first" in head[0] else "spy_frame")
        if '"MainThread"' in head[0] or (frames and frames[-1].function == "<module>"):
            return frames
        last = frames or last
    return last


def _frames(text: str, form: str = "frame") -> tuple[Frame, ...]:
    return tuple(
        Frame(match["file"], int(match["line"]), match["function"] or "<module>")
        for match in _all(form, text)
    )
