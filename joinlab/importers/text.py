"""What ranks, NCCL and torchrun wrote as text: the lines that people paste, as one Timeline of what they tell.

    watchdog            [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=808, ...)
                        [PG ID 0 PG GUID 0(default_pg) Rank 1] ... last enqueued work: 811, last completed work: 807
    DETAIL              Rank 1 is running collective: CollectiveFingerPrint(SequenceNumber=3, OpType=BROADCAST, ...)
    NCCL_DEBUG=INFO     host:pid:tid [2] NCCL INFO AllReduce: opCount f7 ... count 128 ... comm 0x7f [nranks=16]
    ncclras             30 ranks have launched up to operation 640
    monitored_barrier   [Rank 0]: Ranks 1, 2 failed to pass monitoredBarrier in 2000 ms
    torchrun            rank      : 1 (local_rank: 1)   exitcode  : -9 (pid: 24703)  (SIGKILL)
    tracebacks, stacks  of Python, faulthandler and py-spy; of the rank in the line's prefix or the file's name

A paste is cut and wrapped anywhere, so only what stands there is taken: a call that no line names has no row, a rank
that no line names is missing, and no line says that a call completed, but for the numbers below the last completed.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from joinlab.analysis.wording import ranks_text
from joinlab.errors import TimelineFileError
from joinlab.importers.dump import rank_in
from joinlab.importers.job import NOTHING_RECORDED
from joinlab.ops import CallRow, Op, Stood
from joinlab.program.labels import Frame
from joinlab.recorder.rank_log import MOST_RANKS
from joinlab.timeline import FIRST_FAILED, FROM_TEXT, Ending, EndKind, Meta, Progress, Timeline, timeline_from_rows

MOST_BYTES = 1 << 28
DEFAULT_GROUP = "0"

_TIMEOUT = re.compile(
    r"\[Rank (?P<rank>\d+)\] Watchdog caught collective operation timeout:\s+WorkNCCL\(SeqNum=(?P<number>\d+), "
    r"OpType=(?P<op>\w+),(?: NumelIn=(?P<count>\d+),)?(?: NumelOut=\d+,)? Timeout\(ms\)=(?P<limit>\d+)\)"
)
_PROGRESS = re.compile(
    r"\[PG (?:ID )?\d+(?: PG GUID (?P<guid>[^\s(]+))? ?(?:\((?P<words>[^)]*)\))? Rank (?P<rank>\d+)\]"
    r"(?:(?!\[PG ).){0,200}?(?:at(?: NCCL)? work(?: sequence id)?: (?P<at>\d+))?(?:(?!\[PG ).){0,60}?"
    r"last\s+enqueued\s+(?:NCCL )?work: "
    r"(?P<enqueued>\d+),\s+last\s+completed\s+(?:NCCL )?work: (?P<completed>\d+)",
    re.DOTALL,
)
_PRINT = re.compile(
    r"Rank (?P<rank>\d+) is running(?: inconsistent)? collective:\s+CollectiveFingerPrint\("
    r"(?:SequenceNumber=(?P<number>\d+), ?)?OpType=(?P<op>\w+)"
    r"(?:, TensorShape=\[(?P<shape>[\d, ]*)\])?(?:, TensorDtypes=(?P<dtype>\w+))?"
)
_COLL = re.compile(
    r"(?P<host>[^\s:]+):(?P<pid>\d+):\d+ \[(?P<device>\d+)\] NCCL INFO (?P<op>\w+): opCount (?P<number>[0-9a-f]+) .*?"
    r"count (?P<count>\d+) datatype \d+ op \d+ root (?P<root>\d+) comm (?P<comm>0x[0-9a-f]+) \[nranks=(?P<size>\d+)\]"
)
_COMM = re.compile(
    r"(?P<host>[^\s:]+):(?P<pid>\d+):\d+ \[\d+\] NCCL INFO .*?comm (?P<comm>0x[0-9a-f]+) "
    r"rank (?P<rank>\d+) n[rR]anks \d+"
)
_BARRIER = re.compile(
    r"\[Rank (?P<rank>\d+)\]: Ranks? (?P<late>[\d, ]+) failed to pass monitoredBarrier in (?P<ms>\d+) ms"
)
_REACHED = re.compile(r"Rank (?P<rank>\d+) successfully reached monitoredBarrier")
_FAILED = re.compile(
    r"rank\s+: (?P<rank>\d+) \(local_rank: \d+\)\s+(?:\S+ )?exitcode\s+: (?P<code>-?\d+) \(pid: \d+\)"
    r"(?:\s+\((?P<signal>SIG\w+)\))?"
)
_RAS = re.compile(
    r"Communicator ranks have different (?:(?P<op>\w+) |collective )?operation counts(?P<lines>(?:\n[^\n#]+)+)"
)
_RAS_COUNT = re.compile(r"ranks? (?:has|have) launched up to operation (\d+)")
_RAS_RANK = re.compile(r"\s*Rank (\d+) --")
_RAS_TABLE = re.compile(r"^ +\d+(?: +\d+){5} +[A-Z].*$", re.MULTILINE)
_PREFIX = re.compile(r"^\s*(?:\[(?:rank|default)?(\d+)\]:|(\d+):) ?", re.MULTILINE)  # torch's, torchrun's and srun's
_RAISED = re.compile(r"Traceback \(most recent call last\):\n(?P<frames>(?:[ \t].*\n)+)(?P<text>\S.*)")
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+),? in (?P<function>\S+)')
_SPY_FRAME = re.compile(r"^ {4,}(?P<function>\S+) \((?P<file>[^()]+):(?P<line>\d+)\)$", re.MULTILINE)
_THREAD = re.compile(r"^(?:Current thread|Thread) .*$", re.MULTILINE)

_OPS = {op.value.replace("_", ""): op for op in Op}


def op_of(name: str) -> Op | None:
    """The op of a name in c10d's OpType or in NCCL's log: "_ALLGATHER_BASE", "ALLREDUCE_COALESCED", "AllReduce".

    >>> op_of("_REDUCE_SCATTER_BASE"), op_of("AllReduce"), op_of("COALESCED")
    (<Op.REDUCE_SCATTER: 'reduce_scatter'>, <Op.ALL_REDUCE: 'all_reduce'>, None)
    """
    plain = name.lower().strip("_").removesuffix("_coalesced").removesuffix("_base").removesuffix("anysource")
    return _OPS.get(plain.replace("_", ""))


def looks_like(file: Path, head: bytes) -> bool:
    """Whether a file is text: no byte that no text has, and not one of those formats that begin as text."""
    return bool(head) and not head.startswith(b"PK") and b"\0" not in head and _decodes(head)


def _decodes(head: bytes) -> bool:
    try:
        head.decode()
    except UnicodeDecodeError as error:
        return error.start > len(head) - 4  # cut within a letter
    return True


def read(files: Sequence[Path], problems: list[str]) -> Timeline:
    """The Timeline of the text in some files, of one job. Raises TimelineFileError where nothing tells of a rank."""
    told = Told()
    for file in files:
        size = file.stat().st_size
        if size > MOST_BYTES:
            problems.append(f"{str(file)!r} was left out: it has {size:,} bytes, and at most {MOST_BYTES:,} are read")
            continue
        if not told.take(_text_of(file), rank_in(file.stem) if files[1:] else None):
            problems.append(f"{str(file)!r} was left out: it holds nothing that says what a rank did")
    where = repr(str(files[0])) if len(files) == 1 else f"{len(files)} files such as {str(files[0])!r}"
    return told.timeline(where, problems)


def read_text(text: str, where: str) -> Timeline:
    """The Timeline of a text that comes from no file; `where`: its name in errors."""
    told = Told()
    told.take(text)
    return told.timeline(where)


def beside(timeline: Timeline, files: Sequence[Path]) -> Timeline:
    """A Timeline, and what the text in files beside its records says: where a rank stood, and what ended it."""
    told, problems, ends = Told(), timeline.meta.setdefault("problems", []), list(timeline.ends)
    silent = [one for one in files if not (_is_text(one) and told.take(_text_of(one), rank_in(one.stem)))]
    if silent:
        them = f"{len(silent)} files such as {str(silent[0])!r} were" if silent[1:] else f"{str(silent[0])!r} was"
        problems.append(f"{them} left out: nothing there says what a rank did")
    for rank in told.raised.keys() | told.ended.keys():
        if rank < len(ends) and ends[rank].kind is EndKind.UNKNOWN:
            text = told.raised.get(rank) or told.ended[rank]
            kind = EndKind.RAISED if rank in told.raised else EndKind.KILLED if "SIG" in text else EndKind.UNKNOWN
            ends[rank] = replace(ends[rank], kind=kind, text=text)
    if stood := {rank: told.stood(rank) for rank in sorted(told.stands) if rank < len(ends)}:
        timeline.meta["stood"] = timeline.meta.get("stood", {}) | stood
    found = replace(timeline, ends=tuple(ends))
    if timeline.again is not None:
        found.keep(timeline.again)
    return found


def _is_text(file: Path) -> bool:
    if file.stat().st_size > MOST_BYTES:
        return False
    with file.open("rb") as opened:
        return looks_like(file, opened.read(512))


def _text_of(file: Path) -> str:
    return file.read_text("utf-8", errors="replace")


@dataclass(slots=True)
class Told:
    """What a text tells, by rank.

    calls     by group, rank and number
    progress  by group and rank
    sizes     ranks of a group, where a line says how many it has
    raised    type and message of an exception
    ended     what ended the process
    late      it did not come to a monitored barrier
    stands    the frames of the main thread, innermost first
    sources   the kinds of lines that said anything
    """

    calls: dict[tuple[str, int, int], CallRow] = field(default_factory=dict)
    progress: dict[str, dict[int, Progress]] = field(default_factory=lambda: defaultdict(dict))
    sizes: dict[str, int] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    raised: dict[int, str] = field(default_factory=dict)
    ended: dict[int, str] = field(default_factory=dict)
    stands: dict[int, tuple[Frame, ...]] = field(default_factory=dict)
    late: set[int] = field(default_factory=set)
    sources: list[str] = field(default_factory=list)
    backend: str = "nccl"

    def take(self, text: str, rank: int | None = None) -> bool:
        """Add what a text says; `rank`: whose it is, where all of it is one rank's. False if it says nothing."""
        text = re.sub(r"\x1b\[[0-9;]*m", "", text)
        before = len(self.sources)
        for source, taken in (
            ("NCCL's watchdog", self._watchdog(text)),
            ("TORCH_DISTRIBUTED_DEBUG=DETAIL", self._fingerprints(text)),
            ("NCCL's log", self._nccl_log(text)),
            ("ncclras", self._ras(text)),
            ("monitored_barrier", self._barrier(text)),
            ("torchrun's report", self._torchrun(text)),
            ("tracebacks and stacks", self._stacks(text, rank)),
        ):
            self.sources += [source] * taken
        return len(self.sources) > before

    def _watchdog(self, text: str) -> bool:
        group_of: dict[tuple[int, int], str] = {}
        for found in _PROGRESS.finditer(text):
            rank, group = int(found["rank"]), found["guid"] or DEFAULT_GROUP
            self.names.update({group: found["words"]} if found["words"] else {})
            self.progress[group][rank] = {"enqueued": int(found["enqueued"]), "completed": int(found["completed"])}
            group_of[rank, int(found["at"] or int(found["completed"]) + 1)] = group
        for found in _TIMEOUT.finditer(text):
            rank, number = int(found["rank"]), int(found["number"])
            group = group_of.get((rank, number), DEFAULT_GROUP)
            self._call(group, rank, number, found["op"], [int(found["count"])] if found["count"] else None)
            self.ended[rank] = f"NCCL's watchdog gave up after {int(found['limit']) / 1000:g} s in it"
        return bool(self.progress or self.calls)

    def _fingerprints(self, text: str) -> bool:
        some = False
        for found in _PRINT.finditer(text):  # a print of another length is garbled: "SequenceNumber=0OpType=SCATTER"
            rank, number = int(found["rank"]), int(found["number"] or 0) + 1  # it counts the calls before
            shape = [int(size) for size in found["shape"].split(",")] if found["shape"] else None
            row = self._call(DEFAULT_GROUP, rank, number, found["op"], shape)
            if row is not None:
                row["error"] = "RuntimeError: Detected mismatch between collectives on ranks."
                row["dtype"] = (found["dtype"] or "").lower() or None
            some = True
        return some

    def _nccl_log(self, text: str) -> bool:
        ranks = {(found["host"], found["pid"], found["comm"]): int(found["rank"]) for found in _COMM.finditer(text)}
        comms: dict[tuple[str, str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        lines = list(_COLL.finditer(text))
        devices = sorted({(found["host"], int(found["device"]), found["pid"]) for found in lines})
        place = {(host, pid): at for at, (host, _, pid) in enumerate(devices)}
        for found in lines:
            process = found["host"], found["pid"]
            rank = ranks.get((*process, found["comm"]))
            if rank is None:
                rank = place[process] if len({host for host, _, _ in devices}) > 1 else int(found["device"])
            mine = comms[process][found["size"]]
            mine += [found["comm"]] * (found["comm"] not in mine)
            group = f"{found['size']} ranks" + f", {mine.index(found['comm'])}" * (mine[0] != found["comm"])
            self.sizes[group] = int(found["size"])
            row = self._call(group, rank, int(found["number"], 16) + 1, found["op"], [int(found["count"])])
            if row is not None and op_of(found["op"]) in (Op.BROADCAST, Op.REDUCE):
                row["root"] = int(found["root"])
        return bool(lines)

    def _ras(self, text: str) -> bool:
        """It names the ranks of the small sides; where one side alone is not named, it is all the others."""
        size = max((int(line.split()[5]) for line in _RAS_TABLE.findall(text)), default=0)
        reports = list(_RAS.finditer(text))
        for found in reports:
            sides: list[tuple[int, set[int]]] = []
            for line in found["lines"].splitlines():
                if count := _RAS_COUNT.search(line):
                    sides.append((int(count[1]), set()))
                elif sides and (rank := _RAS_RANK.match(line)):
                    sides[-1][1].add(int(rank[1]))
            group = f"{size} ranks"
            self.sizes[group] = size
            named = set[int]().union(*(ranks for _, ranks in sides))
            for number, ranks in sides:
                others = set(range(size)) - named if sum(not mine for _, mine in sides) == 1 else set()
                for whose in sorted(ranks or others):
                    self._call(group, whose, number, found["op"] or "", None)
        return bool(reports)

    def _barrier(self, text: str) -> bool:
        some = False
        for found in _BARRIER.finditer(text):
            late = [int(rank) for rank in re.findall(r"\d+", found["late"])]
            row = self._call(DEFAULT_GROUP, int(found["rank"]), 1, "BARRIER", None)
            assert row is not None
            row["error"] = f"RuntimeError: {ranks_text(late)} failed to pass monitoredBarrier in {found['ms']} ms"
            self.late.update(late)
            for rank in late:
                self.ended.setdefault(
                    rank, f"it did not come to rank {found['rank']}'s barrier within {found['ms']} ms"
                )
            self.backend, some = "gloo", True
        for found in _REACHED.finditer(text):
            row = self._call(DEFAULT_GROUP, int(found["rank"]), 1, "BARRIER", None)
            assert row is not None
            row["error"] = f"RuntimeError: {found[0]}"
        return some

    def _torchrun(self, text: str) -> bool:
        cause = text.rfind("Root Cause")
        some = False
        for found in _FAILED.finditer(text):
            rank, first = int(found["rank"]), 0 <= cause < found.start()
            by = found["signal"] or f"exit code {found['code']}"
            if first or rank not in self.ended:
                self.ended[rank] = f"{by} ({FIRST_FAILED if first else 'torchrun'})"
            some = True
        return some

    def _stacks(self, text: str, rank: int | None) -> bool:
        some = False
        for whose, lines in _by_rank(text, rank):
            for found in _RAISED.finditer(lines):
                self.raised[whose] = found["text"]
                self.stands[whose] = tuple(reversed([_frame(one) for one in _FRAME.finditer(found["frames"])]))
                some = True
            stack = _main_thread(lines)
            if stack:
                self.stands[whose], some = stack, True
        return some

    def _call(self, group: str, rank: int, number: int, name: str, shape: list[int] | None) -> CallRow | None:
        """The row of a call; None where its kind is not known, or no job has such a rank."""
        op = op_of(name)
        if op is None or rank >= MOST_RANKS:
            return None
        row = CallRow(rank=rank, group=group, seq=max(number - 1, 0), number=number, op=op, enqueued_ns=0)
        row["origin"] = op.words
        if shape is not None:
            row["shape"] = [shape]
        return self.calls.setdefault((group, rank, number), row)

    def timeline(self, where: str, problems: Iterable[str] = ()) -> Timeline:
        """The Timeline of what was told."""
        told = list(problems)
        ranks = {rank for _, rank, _ in self.calls} | {rank for by in self.progress.values() for rank in by}
        ranks |= self.late | set(self.raised) | set(self.ended) | set(self.stands)
        ranks = {rank for rank in ranks if rank < MOST_RANKS}
        if not ranks:
            raise TimelineFileError(
                f"cannot open {where}: it holds nothing that says what a rank did. Lines that do: NCCL's watchdog's, "
                "TORCH_DISTRIBUTED_DEBUG=DETAIL's, NCCL_DEBUG=INFO with NCCL_DEBUG_SUBSYS=COLL, torchrun's report."
            )
        size = max([max(ranks) + 1, *self.sizes.values()])
        missing = sorted(set(range(size)) - ranks)
        groups = {group: list(range(self.sizes.get(group, size))) for group in self._groups()}
        rows = [self.calls[key] for key in sorted(self.calls, key=lambda key: (key[1], key[0], key[2]))]
        met = self._met()
        for group, rank, number in self.calls:
            done = self.progress.get(group, {}).get(rank)
            if (group, number) in met or (done and number <= done["completed"]):
                self.calls[group, rank, number]["completed_ns"] = 0
        skipped = {group: {rank: self._before(group, rank) for rank in ranks} for group, ranks in groups.items()}
        meta: Meta = {
            "program": f"text of {', '.join(dict.fromkeys(self.sources))}",
            "engine": "imported",
            "format": FROM_TEXT,
            "backend": self.backend,
            "world_size": size,
            "groups": groups,
            "group_names": {group: words for group, words in self.names.items() if group in groups},
            "versions": {},
            "clock": {"domain": "wall", "completed": "not told: what every rank issued alike counts as completed"},
            "skipped": skipped,
            "progress": {group: dict(by) for group, by in self.progress.items()},
            "missing_ranks": missing,
            "problems": told,
        }
        if self.stands:
            meta["stood"] = {rank: self.stood(rank) for rank in sorted(self.stands)}
        return timeline_from_rows(rows, [self._ending(rank, rows) for rank in range(size)], meta)

    def _met(self) -> set[tuple[str, int]]:
        """Groups and numbers of calls that every rank of the group issued alike."""
        kinds: dict[tuple[str, int], list[object]] = defaultdict(list)
        for (group, _, number), row in self.calls.items():
            kinds[group, number].append((row["op"], row.get("shape")))
        return {
            key
            for key, found in kinds.items()
            if len(found) == self.sizes.get(key[0]) and all(one == found[0] for one in found)
        }

    def stood(self, rank: int) -> list[Stood]:
        """Where a rank's main thread stood, as `meta["stood"]` has it."""
        return [{"thread": "MainThread", "frames": [str(frame) for frame in reversed(self.stands[rank])]}]

    def _groups(self) -> list[str]:
        return sorted({group for group, _, _ in self.calls} | set(self.progress)) or [DEFAULT_GROUP]

    def _before(self, group: str, rank: int) -> int:
        numbers = [number for one, whose, number in self.calls if (one, whose) == (group, rank)]
        if numbers:
            return min(numbers) - 1
        known = self.progress.get(group, {}).get(rank)
        return known["enqueued"] if known else 0 if rank in self.late else NOTHING_RECORDED

    def _ending(self, rank: int, rows: Sequence[CallRow]) -> Ending:
        mine = [row for row in rows if row["rank"] == rank]
        if rank in self.raised:
            return Ending.raised(mine, self.raised[rank])
        waits = next((row for row in mine if row.get("completed_ns") is None), None)
        text = self.ended.get(rank, "no line says how it ended")
        return Ending.at(EndKind.KILLED if "SIG" in text else EndKind.UNKNOWN, waits, text)


def _by_rank(text: str, rank: int | None) -> Iterator[tuple[int, str]]:
    """The lines of each rank, without the prefix that names it; all are of `rank` where that is known."""
    if rank is not None:
        yield rank, _PREFIX.sub("", text)
        return
    lines: dict[int, list[str]] = defaultdict(list)
    for line in text.splitlines():
        found = _PREFIX.match(line)
        if found:
            lines[int(found[1] or found[2])].append(line[found.end() :])
    for whose in sorted(lines):
        yield whose, "\n".join(lines[whose]) + "\n"


def _main_thread(text: str) -> tuple[Frame, ...]:
    """The frames of the main thread, innermost first, as faulthandler and py-spy write it; nothing where none is."""
    threads = [*_THREAD.finditer(text)]
    stacks: list[tuple[Frame, ...]] = []
    for at, head in enumerate(threads):
        body = text[head.end() : threads[at + 1].start() if at + 1 < len(threads) else len(text)]
        form = _FRAME if "most recent call first" in head[0] else _SPY_FRAME
        frames = tuple(_frame(one) for one in form.finditer(body))
        if '"MainThread"' in head[0] or (frames and frames[-1].function == "<module>"):
            return frames
        stacks += [frames] if frames else []
    return stacks[-1] if stacks else ()


def _frame(found: re.Match[str]) -> Frame:
    return Frame(found["file"], int(found["line"]), found["function"])
