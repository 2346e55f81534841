"""Tracebacks and stacks of Python, rich, faulthandler and py-spy. The line's prefix or the file's name
gives the rank.

Which of its tracebacks ended a rank is a question of what follows: one that goes on with its program, or
whose watchdog gives up later, survived its error.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

from joinlab.jobs.text.facts import OF_HOST, TextFacts
from joinlab.jobs.text.lines import FRAME, PREFIX, SIGNALLED, TASK_IS_HOST, frames, prefix
from joinlab.jobs.text.reports import FAILED, exit_text
from joinlab.jobs.text.watchdog import TIMEOUT
from joinlab.jobs.text.written import OF_LIBRARY
from joinlab.program.labels import Frame, call_site
from joinlab.showing import short_site
from joinlab.timeline import INTERRUPTED, WROTE

TORCHRUN = "distributed/run.py"
LAUNCHERS = ("torch.distributed.elastic.", "torch.multiprocessing.spawn.ProcessRaised")
"""How errors begin that say no more than that a process failed, whose own error is elsewhere."""

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

HEAD = r"Traceback \(most recent call last\):\n"

RAISED = re.compile(
    rf"(?P<broken>{HEAD}(?:[ \t].*\n)*(?={HEAD}))?"
    r"(?:(?P<aside>Exception in thread .{0,200}?|Task exception was never retrieved|Exception ignored .*?|"
    r"Error in atexit.{0,80}?|--- Logging error ---|Process \w+-\d+|"
    r"Process \d+ terminated with the following error):?\n(?:future: .*\n)?)?"
    r"(?P<chained>(?:During handling of the above exception, another exception occurred|"
    r"The above exception was the direct cause of the following exception):\s*\n|Original )?"
    rf"(?<!\| )(?P<hook>\[rank\d+\]: ?)?{HEAD}(?P<frames>(?:[ \t].*\n)+"
    rf"(?:{OTHER_LINES}{{1,5}}(?:[ \t].*\n)+){{0,4}}(?:{OTHER_LINES}{{0,5}}(?={ERROR})|(?=(?P<word>{ONE_WORD}))))"
    r"(?P<text>.*)",
    re.MULTILINE,
)
"""A traceback.

broken   another one begins just before, so that the lines may be of two processes
chained  it belongs to the traceback before it
hook     torch's own prefix, which only its sys.excepthook writes, unless a launcher writes one like it
word     its class is one word, as Python writes one of __main__
"""

OF_LOGURU = re.compile(rf"(?m)^{HEAD}(?=\n)(?:(?:[ >].*)?\n)+")
"""A traceback of loguru: with empty lines between frames, "> " before the one that caught it, and values
below a line."""

TORN = re.compile(
    r"(?m)^(?: {1,2}File [^\n]+, line \d+, in [^\n]+\n(?: {3,}[^\n]*\n){0,2}|(?=torch\.(?!distributed\.elastic\.)))"
    r"(?P<text>[^\W\d][\w.]{0,80}(?:Error|Exception): .*)"
)
"""The end of a traceback that is cut."""

OWN = re.compile(
    r"(?P<text>(?:[\w.]{0,80}Error: (?:\[|DDP expects same model across all ranks, but Rank |"
    r"Timed out initializing process group in store based barrier on rank:? )(?P<rank>\d+)"
    r"(?:\] is setting up NCCL communicator |\]: params\[| has |, for key)|Gloo connectFullMesh failed with ).*)"
)
"""An error that names its rank."""

LAST_ERROR = re.compile(
    r"(?P<error>[\w.]+: NCCL error) in: [^,\n]+, (?P<kind>(?!remote process)[^(,\n]+?)"
    r"(?: \([^)\n]*\))?, NCCL version .*\nnccl\w+: .*\nLast error: *\n(?P<why>.+)"
)
"""What NCCL found follows torch's words for its error."""

WORKER_LEFT = re.compile(
    r"DataLoader worker \(pid.*(?:exited unexpectedly|killed by signal: Interrupt)"
)
WORKER_KILLED = re.compile(
    r"(?m)^RuntimeError: DataLoader worker \(pid \d+\) is killed by signal: .*"
)
OF_EXCEPTION_GROUP = re.compile(r"(?m)^  (?:\+ Exception Group (?=Traceback )|\| )")
DEEPSPEED = re.compile(r"(?m)sigkill_handler\] .* exits with return code = (?P<code>-?\d+)$")

LABEL = re.compile(r"(?m)^[ \t]*\[default(?P<local>\d+)\]:.*?\[rank(?P<rank>\d+)\]:")
THREAD = re.compile(r"(?m)^(?:Current thread|Thread) .*$")
SPY_FRAME = re.compile(r"(?m)^ {4,}(?P<function>\S+) \((?P<file>[^()\n]+):(?P<line>\d+)\)$")
SPY_PROCESS = re.compile(r"(?m)^Process \d+: (?:.*--local[-_]rank[= ](?P<local>\d+))?")

Owner = int | str
"""Who wrote a line: a rank, or in words a process whose rank is not known."""


@dataclass(slots=True)
class Clues:
    """What the text says elsewhere about whether a traceback ended its rank.

    signals       that torchrun received
    first_failed  ranks that a torchrun calls the root cause
    labelled      torchrun put labels before the lines, so that earlier ones may follow later ones
    running       lines of programs that go on, as `_shapes` gives them
    last_lines    of ranks that wrote no traceback
    """

    signals: set[str]
    first_failed: set[int]
    labelled: bool
    running: set[str] = field(default_factory=set)
    last_lines: set[str] = field(default_factory=set)

    def went_on(self, match: re.Match[str], rest: str) -> bool:
        """Whether the rank of a traceback wrote more lines of its program behind it, `rest`. torch's
        hook writes only what ended its rank."""
        if match["hook"] and self.labelled:
            return False
        shapes = _shapes(rest)
        last_line = _last_line(match["text"] + rest)
        return (
            len(set(shapes)) < len(shapes)
            or not self.running.isdisjoint(shapes)
            or (last_line in self.last_lines and not OF_LIBRARY.match(last_line))
        )


def read(text: str, facts: TextFacts, file_rank: int | None) -> bool:
    """Add what raised or stood on each rank; False if there is nothing. `file_rank`: the rank that wrote
    all lines, if one did."""
    asides: list[tuple[str, re.Match[str]]] = []
    if file_rank is None:  # the pattern meets only lines without a prefix
        for match in _tracebacks(_as_python_writes_it(text), of_torchrun=True):
            between = re.search(r"^(?!ray\.)\S", match["frames"], re.MULTILINE)
            if not (between or match["broken"] or match["word"]):  # of one process for sure
                process = "A process whose rank no line gives"
                if TORCHRUN in match["frames"]:
                    process = "torchrun"
                asides.append((process, match))
    matched = _read_errors_with_ranks(text, facts, file_rank)
    lines_by_owner = _lines_by_owner(text, facts, file_rank)
    clues = Clues(
        signals={match["signal"] for match in SIGNALLED.finditer(text)},
        first_failed={int(report.root["rank"]) for report in facts.reports if report.root},
        labelled=bool(LABEL.search(text)),
    )
    for lines in lines_by_owner.values():
        before, *after = RAISED.split(lines)
        clues.running.update(_shapes(before))
        if not after and 'File "' not in before:
            clues.last_lines.add(_last_line(before))
    for owner, lines in lines_by_owner.items():
        if isinstance(owner, str):
            asides += [(f"A process of {owner}", match) for match in _tracebacks(lines)]
            continue
        known, others = _read_rank(owner, lines, facts, clues)
        matched |= known
        asides += [(f"Rank {owner}", match) for match in others]
    for who, match in asides:
        site = call_site(frames(match["frames"])[::-1])
        if site and match["text"] not in facts.raised.values():
            error = f"{match['aside'] or 'Traceback'}: {match['text']}"
            if match["word"]:  # perhaps a line of another kind
                error = "a traceback"
            facts.asides.append(f"{who} wrote {error} ({short_site(site)}).")
            matched = True
    for match in DEEPSPEED.finditer(text):  # its command is that of the last process
        facts.asides.append(
            f"DeepSpeed's launcher ended all ranks, since one ended: {exit_text(match)}."
        )
    return matched


def _tracebacks(text: str, of_torchrun: bool = False) -> list[re.Match[str]]:
    """The tracebacks in a text but for those of launchers that say no more than that a process failed;
    of torchrun's own errors only if asked."""
    return [
        match
        for match in RAISED.finditer(text)
        if not match["text"].startswith(LAUNCHERS)
        and (of_torchrun or TORCHRUN not in match["frames"])
    ]


def _read_errors_with_ranks(text: str, facts: TextFacts, file_rank: int | None) -> bool:
    matched = False
    for match in OWN.finditer(text):
        before = prefix(text, match)
        number = (before or match)["rank"] if file_rank is None else file_rank
        if number is None:
            continue
        facts.raised.setdefault(int(number), match["text"])
        matched = True
        if file_rank is None and before is None:
            facts.notes.add("ranks count within their group")
    return matched


def _lines_by_owner(text: str, facts: TextFacts, file_rank: int | None) -> dict[Owner, str]:
    """The lines of each rank, without the prefix that names it; all are `file_rank`'s unless that is
    None.

    A prefix of torchrun gives the rank within a host. If the text also gives such ranks' numbers
    in the job, they count from a number of their host; of several hosts it may be any's, as are
    the ranks of a task of srun that has several.
    """
    offsets = {
        int(match["rank"]) - int(match["local"])
        for match in (*LABEL.finditer(text), *FAILED.finditer(text))
    }
    of_hosts = bool(TASK_IS_HOST.search(text))
    bodies: dict[Owner, list[str]] = defaultdict(list)
    owner: Owner | None
    # local rank of the process whose stacks py-spy shows, from its command line
    process: str | None = None
    for line in text.split("\n"):
        match = PREFIX.match(line)
        dumped = SPY_PROCESS.match(line)
        if dumped:
            process = dumped["local"]
        body = line[match.end() :] if match else line
        local = match["local"] if match else process
        owner = file_rank
        if file_rank is None and local:
            if not offsets and ("Traceback" in line or dumped):
                facts.notes.add(OF_HOST)
            owner = int(local) + sum(offsets)
            if len(offsets) > 1:
                owner = f"local rank {local}"
        elif file_rank is None and match:
            owner = int(match["rank"] or match["task"])
            if match["task"] and of_hosts:
                owner = f"task {owner}"
        if match and match["rank"]:
            facts.named.add(int(match["rank"]))
            if body.startswith("Traceback "):
                body = match["hook"] + body
        if owner is not None:
            bodies[owner].append(body)
        if isinstance(owner, int):
            facts.heard.add(owner)
    return {owner: _as_python_writes_it("\n".join(lines) + "\n") for owner, lines in bodies.items()}


def _as_python_writes_it(text: str) -> str:
    """The text without what exception groups and loguru add to tracebacks."""

    def without_values(match: re.Match[str]) -> str:
        lines = (line for line in match[0].splitlines() if line and line.lstrip()[:1] not in "│└")
        return "".join(f" {line[1:]}\n" if line[0] == ">" else f"{line}\n" for line in lines)

    return OF_LOGURU.sub(without_values, OF_EXCEPTION_GROUP.sub("", text))


def _read_rank(
    rank: int, lines: str, facts: TextFacts, clues: Clues
) -> tuple[bool, list[re.Match[str]]]:
    """Add what ended a rank, or where it stood. Returns whether anything did, and its tracebacks that
    did not end it for sure."""
    chains, others = _last_tracebacks(lines, clues)
    end = _end_of(chains)
    others += [match for match in chain(*chains) if match not in end]
    if end:
        _take_end(rank, end, lines, facts, clues)
    torn = None if chains or others else TORN.search(lines)
    if torn:
        facts.raised[rank] = torn["text"]
        stack = frames(torn[0])
        if stack:
            facts.stands.setdefault(rank, stack[::-1])
    if chains or ("Traceback (most" in lines and not RAISED.search(lines)):
        facts.unread[rank] = WROTE
    main_thread = _main_thread(lines)
    if main_thread:
        facts.stands[rank] = main_thread
    return bool(end or torn or main_thread), others


def _last_tracebacks(
    lines: str, clues: Clues
) -> tuple[list[list[re.Match[str]]], list[re.Match[str]]]:
    """The tracebacks that may have ended a rank, each with those chained to it, and those that it
    survived: after its end no rank writes more lines of its program, nor does its watchdog give up."""
    chains: list[list[re.Match[str]]] = []
    survived: list[re.Match[str]] = []
    is_alive = False
    for match in _tracebacks(lines):
        rest = lines[match.end() :]
        is_alive = bool(
            match["aside"]
            or clues.went_on(match, rest)
            or (is_alive and match["chained"])
            or TIMEOUT.search(rest)
        )
        if is_alive:
            survived.append(match)
        elif chains and match["chained"]:
            chains[-1].append(match)
        else:
            chains.append([match])
    return chains, survived


def _end_of(chains: Sequence[list[re.Match[str]]]) -> list[re.Match[str]]:
    """The tracebacks that ended a process, of all that it may have ended by: the last that torch's hook
    wrote, or one that alone can have done so; else []."""
    hooked: list[re.Match[str]] = []
    errors: set[str] = set()
    for tracebacks in chains:
        errors.add(tracebacks[-1]["text"])
        if tracebacks[0]["hook"]:
            hooked = tracebacks
    return hooked if hooked or len(errors) != 1 else chains[-1]


def _take_end(
    rank: int, end: Sequence[re.Match[str]], lines: str, facts: TextFacts, clues: Clues
) -> None:
    """Add the error that ended a rank, or that Ctrl-C did."""
    ended_by = end[-1]
    facts.raised[rank] = ended_by["text"]
    of_nccl = LAST_ERROR.match(lines, ended_by.start("text"))
    if of_nccl:
        facts.raised[rank] = "{error}: {kind}: {why}".format(**of_nccl.groupdict())
    killed = WORKER_KILLED.search(lines)
    if killed and "exited unexpectedly" in ended_by["text"]:  # by that signal
        facts.raised[rank] = killed[0].rstrip()
    by_user = bool(clues.signals & {"2", "SIGINT"} and WORKER_LEFT.search(ended_by["text"]))
    for match in end:
        if match["text"].startswith("KeyboardInterrupt"):
            # Ctrl-C would have reached torchrun, too
            ended_by, by_user = match, bool(clues.signals) or rank not in clues.first_failed
    if by_user:
        facts.ended[rank] = INTERRUPTED
        facts.raised.pop(rank, None)
    facts.stands[rank] = frames(ended_by["frames"])[::-1]


def _shapes(text: str) -> list[str]:
    """The different lines of a program that goes on, as "step 41 loss 2.1": those with numbers, which
    are made 0, and not of a library."""
    shapes = []
    for line in dict.fromkeys(text.splitlines()):
        shape = re.sub(r"\d[\d.]*", "0", line)
        if "0" in shape and not OF_LIBRARY.match(shape):
            shapes.append(shape)
    return shapes


def _last_line(text: str) -> str:
    return text.rstrip().rpartition("\n")[2]


def _main_thread(text: str) -> tuple[Frame, ...]:
    """The frames of the main thread, innermost first, from faulthandler or py-spy; () if there are
    none."""
    last: tuple[Frame, ...] = ()
    bodies = THREAD.split(text)[1:]
    for head, body in zip(THREAD.findall(text), bodies, strict=True):
        stack = frames(body, FRAME if "most recent call first" in head else SPY_FRAME)
        if '"MainThread"' in head or (stack and stack[-1].function == "<module>"):
            return stack
        last = stack or last
    return last
