"""Text that ranks, NCCL and torchrun wrote, such as people paste, as one Timeline.

A reader per kind of line, each with the lines' forms at its head, adds facts to `TextFacts`; written.py
takes off what tools put around the lines, and timeline_of_text.py makes the Timeline of the facts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from joinlab.jobs.dump import left_out, rank_in
from joinlab.jobs.kineto import looks_zipped, unzipped, unzipped_head
from joinlab.jobs.text import barrier, detail, launchers, nccl_log, ncclras, tracebacks, watchdog
from joinlab.jobs.text.facts import TextFacts
from joinlab.jobs.text.lines import PREFIX
from joinlab.jobs.text.reports import FAILED
from joinlab.jobs.text.timeline_of_text import end_by, timeline_of
from joinlab.jobs.text.written import as_written, last_attempt, last_job
from joinlab.timeline import NO_END, EndKind, Timeline

MOST_BYTES = 1 << 28

DOCKER = re.compile(r'\{"log": ?"')
"""The beginning of each line that Docker writes into its own file."""

UTF_16 = (b"\xff\xfe", b"\xfe\xff")
"""The first bytes of a file in UTF-16."""

READERS: Mapping[str, Callable[[str, TextFacts], bool]] = {
    "NCCL's watchdog": watchdog.read,
    "TORCH_DISTRIBUTED_DEBUG=DETAIL": detail.read,
    "NCCL's log": nccl_log.read,
    "ncclras": ncclras.read,
    "monitored_barrier": barrier.read,
    "the launcher's report": launchers.read,
    "srun's lines": launchers.read_srun,
}
"""By the name of a kind of lines: what adds their facts, and returns whether there are any."""

ROLE = re.compile(
    r"\[(\w+)\] (?:[Ss]tarting workers|Rendezvous'ed|Rendezvous complete|[Ww]orker group)"
)
"""The name of torchrun's workers where it has one, which stands in their labels in place of "default"."""


def looks_like(file: Path, head: bytes) -> bool:
    """Whether a file is text: UTF-16, or without null bytes and not a zip. A log may have bytes
    that are not UTF-8, and may be zipped."""
    head = unzipped_head(head)
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
        parts_begin = file.with_suffix(".0") not in files  # else these are of ranks, say
        if parts_begin and file.suffix[1:].isdigit() and file.with_suffix("") in files:
            newer = str(file.with_suffix(""))
            problems.append(f"{str(file)!r} was left out: an older part of {newer!r}")
            continue
        in_folder = re.fullmatch(r"rank\D?\d+", file.parent.name)
        name = file.parent.name if in_folder and rank_in(file.stem) is None else file.stem
        named = files[1:] or re.search(r"rank\D?\d", name)
        if not take(_text_of(file), facts, rank_in(name) if named else None):
            problems.append(f"{str(file)!r} was left out: no line of it says what a rank did")
    source = repr(str(files[0]))
    if len(files) > 1:
        source = f"{len(files)} files such as {source}"
    return timeline_of(facts, source, problems)


def read_text(text: str, source: str) -> Timeline:
    """The Timeline of a text; errors call it `source`."""
    facts = TextFacts()
    take(text, facts)
    return timeline_of(facts, source)


def beside(timeline: Timeline, files: Sequence[Path]) -> Timeline:
    """`timeline`, with the facts of text files beside its records: where a rank stood, and what
    ended it."""
    facts, ends = TextFacts(), list(timeline.ends)
    silent = [
        path
        for path in files
        if not (_is_text(path) and take(_text_of(path), facts, rank_in(path.stem)))
    ]
    launchers.take_reports(facts)
    if silent:
        problem = f"{left_out(silent)}: no line says what a rank did"
        timeline.meta.setdefault("problems", []).append(problem)
    for rank, end in enumerate(timeline.ends):
        text = facts.raised.get(rank) or facts.ended.get(rank)
        if text and (end.kind is EndKind.UNKNOWN or end.text == NO_END):
            kind = EndKind.RAISED if rank in facts.raised else end_by(text)
            ends[rank] = replace(end, kind=kind, text=text)
    stacks = {rank: facts.stood(rank) for rank in sorted(facts.stands) if rank < len(ends)}
    if stacks:
        timeline.meta["stood"] = timeline.meta.get("stood", {}) | stacks
    if facts.asides:
        timeline.meta["asides"] = [*timeline.meta.get("asides", ()), *dict.fromkeys(facts.asides)]
    merged = replace(timeline, ends=tuple(ends))
    merged.live.traces = timeline.live.traces
    return merged


def _is_text(file: Path) -> bool:
    if file.stat().st_size > MOST_BYTES:
        return False
    with file.open("rb") as opened:
        return looks_like(file, opened.read(512))


def _text_of(file: Path) -> str:
    data = file.read_bytes()
    if looks_zipped(data):
        data, _ = unzipped(file, data)
    return data.decode("utf-16" if data.startswith(UTF_16) else "utf-8", errors="replace")


def take(text: str, facts: TextFacts, file_rank: int | None = None) -> bool:
    """Add the facts of a text; False if it has none. `file_rank`: the rank in the name of its file,
    whose lines it has unless they are of others or of torchrun: the name may number hosts."""
    text = last_job(last_attempt(as_written(text), facts), facts)
    for role in sorted(set(ROLE.findall(text))):
        text = re.sub(rf"(?m)^([ \t]*\[){role}(?=\d+\]:)", r"\1default", text)
    if file_rank is not None:
        for match in chain(PREFIX.finditer(text), FAILED.finditer(text)):
            rank = match["rank"] or match["local"]
            if rank and int(rank) != file_rank:
                file_rank = None
                break
    facts.dumped |= bool(tracebacks.THREAD.search(text))
    sources = [source for source, read_lines in READERS.items() if read_lines(text, facts)]
    if tracebacks.read(text, facts, file_rank):
        sources.append("tracebacks and stacks")
    facts.sources += sources
    return bool(sources)
