"""The lines of a text as the processes wrote them, and of several attempts or jobs only the last.

Tools put labels before lines, JSON around them, colours into them and boxes about them. All readers
see what is left when these are gone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import partial
from itertools import filterfalse
from textwrap import indent

from joinlab.jobs.text.facts import LAST_ATTEMPT, TextFacts
from joinlab.jobs.text.lines import SIGNALLED, prefix
from joinlab.jobs.text.reports import FAILED, reports
from joinlab.jobs.text.watchdog import PROGRESS

# "^" and "$" match at lines: (?m).

COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")

LABEL_OF_TEXT = re.compile(
    r"(?m)^(?:    |(?:>|(?!\d+:|\w*rank)[\w.-]*\d:|[a-z][\w.-]*-\w+ [a-z][\w.-]*)(?: |$))"
)
"""Where most lines have one: a mark of a quote, "10.0.0.4: " of pdsh, "train-worker-0 pytorch " of stern."""

LABEL_OF_LINE = re.compile(
    r"(?m)^(?:(?:\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:?\d\d)(?: std(?:out|err) [FP])?|\[pod/[^\]\s]+\]|"
    r"[A-Z][a-z]{2} [ \d]\d [\d:]{8} \S+ [^\s:\[]+\[\d+\]:|[\w.-]+-\d+ +\|)(?: |$))+"
)
"""The time, of containerd with " stderr F", "[pod/train-worker-0/pytorch] " of kubectl, "Mar 05 10:00:01
gpu1 train[4021]: " of a journal, "trainer-1  | " of Docker."""

LABEL_OF_RANK = re.compile(
    r"(?m)^(?:\[(?:[^\]\n]{1,80},)?(?:mpirank:)?(?=\d+(?:,[\w-]+)?\]<std)|\[[^\]\n]{1,40}\] \w+ \[rank=(?=\d+\] \|\|)|"
    r"\(\w+ rank=(?=\d+ pid=))(\d+)(?:(?:,[\w-]+)?\]<std(?:err|out)>:|\] \|\| ?| pid=\d+\) \w+ \S+ \S+ \[[^\]\n]+\] ?)"
)
""""[1,2]<stderr>:" of Open MPI, "[1,mpirank:2,algo-1]<stderr>:" of SageMaker, "[2]<stderr>:" of Horovod,
"[2027-02-27T21:35:28Z] fa88a9df [rank=2] ||" of Determined, "(VllmWorker rank=2 pid=7) ERROR 07-23 19:34:51
[executor.py:487] " of vLLM."""

NUMBER = re.compile(r"(?m)^\[(\d+)\](?: |$)")
"""Of a rank, "[1] " of MPICH's and Intel's mpirun -l, or of a process."""

PROCESS = re.compile(r"local_rank: (\d+)\)?(?:\s+exitcode\s+: -?\d+)? \(pid: (\d+)\)")

RICH_HEAD = re.compile(
    r"(?m)^(?P<before>[^╭\n]*)╭─+ Traceback \(most recent call last\) ─+╮[ \t]*$"
)

RICH_FRAME = re.compile(
    r"(?m)^(?P<before>[^│\n]*)│ (?P<file>[^\s:│]+):(?P<line>\d+)(?P<within> in \S+)?(?: in)? {2,}│[ \t]*$"
)
"""Where it fills the box, its number may go on in the next line."""

RICH_LINE = re.compile(r"(?m)^(?P<before>[^│╰\n]*)[│╰].*[│╯][ \t]*$")

IN_JSON = ("log", "textPayload", "message", "msg", "event")
"""Where Docker, Google's logging, structlog and others put what a process wrote."""

ERROR_IN_JSON = ("exc_info", "exception")
"""Where loggers put a traceback."""

RANK_IN_JSON = re.compile(r'(?m)^\{.*"rank": ?\d')

RECORDED = "joinlab: recording into "

ATTEMPT = re.compile(
    r"(?m)^.*attempts left; will restart worker group|"
    r"^.*?(?P<agent> \d+(?= \S*torch/distributed/elastic/multiprocessing/api\.py:\d+\] failed \(exitcode)|"
    r"torch\.distributed\.elastic(?=\.multiprocessing\.api: ?(?:\[ERROR\] )?failed \(exitcode)).*"
)
"""agent: the number of a torchrun, which it did not write up to PyTorch 2.2"""

RESTARTED = re.compile(
    rf"{SIGNALLED.pattern}(?:(?!distributed/run\.py)[\s\S])*? Sending process \d+ closing signal"
)
"""A signal that met ranks which had been started again."""

STARTS = re.compile("Setting OMP_NUM_THREADS environment variable for each process")
"""What a torchrun writes before it starts its ranks."""

OF_RANK = re.compile(r"\[[Rr]ank ?(?P<rank>\d+)\]")

FAILING = re.compile(r"\[rank(?P<rank>\d+)\]: ?(?:\[[EF]\d|Traceback )")

OF_LIBRARY = re.compile(
    r"(?m)$|\[|\s|wandb|slurmstepd|terminate called|.*(?:Warning|\bFile |Traceback|[A-Za-z]:0)"
)
"""How lines of libraries begin, beside those of the program."""


def as_written(text: str) -> str:
    """The lines as the processes wrote them, without JSON around them, colours, spaces at their ends,
    labels of tools and the boxes of rich. Labels that give the rank become those of srun."""
    text = _without_labels(text)
    for _ in range(2):  # Docker puts a logger's JSON into its own
        if not text.lstrip().startswith("{"):
            break
        records = text.splitlines()
        # of fewer lines it may be the rank of something else
        of_ranks = len(RANK_IN_JSON.findall(text)) > 0.9 * len(records)
        text = _without_labels("".join(_out_of_json(record, of_ranks) for record in records))
    text = LABEL_OF_RANK.sub(r"\1: ", text)
    numbers, lines = NUMBER.findall(text), len(re.findall(".+", text))
    if len(numbers) == lines and "0" in numbers:
        text = NUMBER.sub(r"\1: ", text)
    elif len(numbers) > 0.9 * lines:
        text = _by_process(text)
    if RICH_HEAD.search(text):
        text = RICH_HEAD.sub(r"\g<before>Traceback (most recent call last):", text)
        text = RICH_FRAME.sub(r'\g<before>  File "\g<file>", line \g<line>\g<within>', text)
        text = RICH_LINE.sub(r"\g<before>    ", text)
    return text


def _by_process(text: str) -> str:
    """Lines that had the number of their process: torchrun gives the local ranks of those that failed."""
    local_ranks = {pid: local for local, pid in PROCESS.findall(NUMBER.sub("", text))}
    return NUMBER.sub(
        lambda match: f"[default{local_ranks[match[1]]}]:" if match[1] in local_ranks else "", text
    )


def _without_labels(text: str) -> str:
    text = re.sub("\r\n?", "\n", COLOUR.sub("", text))
    text = "\n".join(map(str.rstrip, text.split("\n")))
    if len(LABEL_OF_TEXT.findall(text)) > 0.9 * len(re.findall(".+", text)):
        text = LABEL_OF_TEXT.sub("", text)
    return LABEL_OF_LINE.sub("", text)


def _out_of_json(line: str, of_ranks: bool) -> str:
    """What a process wrote, of a line of JSON around it; the line itself if it is cut or another one.
    `of_ranks`: the lines have a field with the rank that wrote them."""
    try:
        record = json.loads(line)
        written = str(next(record[name] for name in IN_JSON if name in record))
    except (ValueError, TypeError, RecursionError, StopIteration):
        return f"{line}\n"
    if "log" in record:
        return written  # Docker cuts long lines
    errors = filter(None, map(record.get, ERROR_IN_JSON))
    label = f"{record['rank']}: " if of_ranks and "rank" in record else ""
    return indent("\n".join(map(str, (written, *errors))) + "\n", label)


def last_attempt(text: str, facts: TextFacts) -> str:
    """What follows the lines by which a recording begins, or a torchrun says that it starts its ranks
    again: what came before is of another attempt."""
    begin = text.rfind(RECORDED)  # rank 0 says so once, when an attempt or a job begins
    if begin > text.find(RECORDED):
        facts.notes.add(LAST_ATTEMPT)
        text = text[begin:]
    ends = list(ATTEMPT.finditer(text))
    agents = {end["agent"] for end in ends} - {None}
    one_agent = len(agents) == 1 and agents.isdisjoint({"torch.distributed.elastic"})
    following: dict[str, int] = {}
    for end in reversed(ends):
        agent = end["agent"]
        if not agent or _is_restart(end, following.get(agent), one_agent):
            facts.notes.add(LAST_ATTEMPT)
            return text[end.end() :]
        following[agent] = end.start()
    return text


def _is_restart(end: re.Match[str], following: int | None, one_agent: bool) -> bool:
    """Whether a torchrun started its ranks again behind its line that one had failed: without that, its
    own traceback and report follow. It did if a signal met such ranks, or if it wrote such a line again,
    `following`; but one of another host, with a report of its own, may have the same number. Or if it is
    alone in the text and its ranks, which were gone, wrote lines as before."""
    before, after = end.string[: end.start()], end.string[end.end() : following]
    if one_agent and RESTARTED.search(after):
        return True
    if "distributed/run.py" in after or "ChildFailedError" in after or "Root Cause" in after:
        return False
    if following and end.string.count("Root Cause", following) < 2:
        return True
    again = set(_lines_of_programs(after))
    return one_agent and bool(again) and not again.isdisjoint(_lines_of_programs(before))


def _lines_of_programs(text: str) -> Iterable[str]:
    """The lines of no library, with 0 in place of each number."""
    shapes = map(partial(re.sub, r"\d[\d.]*", "0"), text.splitlines())
    return filterfalse(OF_LIBRARY.match, shapes)


def last_job(text: str, facts: TextFacts) -> str:
    """What follows the report of a torchrun whose ranks fail once more: they were gone when it
    was written. It names some of them; all between are of its host. Also what follows the counts of a
    rank's calls that fall, since another process has counted from 0, or another torchrun's start."""
    begin = max(_last_counted_anew(text), _last_started(text))
    failing = [*FAILED.finditer(text), *FAILING.finditer(text)]
    for failures, root in reports(text):
        if root is None:
            break
        ranks: set[int] = set()
        texts = []
        for match in failures:
            ranks |= {int(match["rank"]), int(match["rank"]) - int(match["local"])}
            texts.append(match[0])
        for match in failing:
            follows = match.start() > root.start() and match[0] not in texts
            if follows and min(ranks) <= int(match["rank"]) <= max(ranks):
                begin = root.end()
    if begin:
        facts.notes.add("of several jobs, the last")
    return text[begin:]


def _last_started(text: str) -> int:
    """Where the last torchrun starts of whose ranks there are lines before, too; 0 if none does. Those
    of another host have ranks of their own."""
    lines: dict[str, list[int]] = {}
    for match in OF_RANK.finditer(text):
        lines.setdefault(match["rank"], []).append(match.start())
    starts = [match.start() for match in STARTS.finditer(text)]
    restarts = (
        start
        for start in starts
        if any(offsets[0] < start < offsets[-1] for offsets in lines.values())
    )
    return max(restarts, default=0)


def _last_counted_anew(text: str) -> int:
    """The end of the last line about a call of a process after which its rank's counts are lower; 0
    if they never fall."""
    end = 0
    counted: dict[tuple[str, str], re.Match[str]] = {}
    for match in PROGRESS.finditer(text):
        of_rank = prefix(text, match)
        if of_rank is None:  # its rank may be one of several groups
            continue
        before = counted.get((of_rank["rank"], match["id"]), match)
        if all(int(match[count]) < int(before[count]) for count in ("enqueued", "completed")):
            number = int(before["completed"]) + 1
            named = text.rfind(f"SeqNum={number},", 0, match.start())
            end = max(end, before.end(), text.find("\n", named))
        counted[of_rank["rank"], match["id"]] = match
    return end
