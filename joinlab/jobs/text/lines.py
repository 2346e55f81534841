"""What the readers of lines share: whose line it is, numbers in it, and the frames of a stack.

"[Rank 1]" in a line is a rank of the process group (ProcessGroupNCCL.cpp: rank_); "[rank5]:", which
torch writes before a line, is one of the job.
"""

from __future__ import annotations

import re

from joinlab.program.labels import Frame

PREFIX = re.compile(
    r"^.*?(?:\[rank\d+\]:)*(?P<hook>\[rank(?P<rank>\d+)\]: ?)|"
    r"^[ \t]*(?:\[default(?P<local>\d+)\]:|(?P<task>\d+): ) ?",
    re.MULTILINE,
)
"""torch's own "[rank3]:", after any text of launchers; torchrun's "[default3]:"; srun's "3: "."""

LAST_RANK = re.compile(r".*\[rank(?P<rank>\d+)\]:")

FRAME = re.compile(
    r'File "(?P<file>[^"]+)", line (?P<line>\d+)(?:,? in (?P<function>\S+)|[ \t]*$)', re.MULTILINE
)
"""That of a SyntaxError names no function."""

SIGNALLED = re.compile(
    r" Received (?:Signals\.)?(?P<signal>\w+) death signal, shutting down workers"
)

TASK_IS_HOST = re.compile(r"(?m)^(\d+): .*?\[rank(?!\1\])|elastic")
"""Labels of srun's tasks that are not those of ranks."""


def prefix(text: str, match: re.Match[str]) -> re.Match[str] | None:
    """torch's "[rank5]:" before a match, in the same line: the last, as two ranks may have written into
    one line."""
    begin = text.rfind("\n", 0, match.start()) + 1
    return LAST_RANK.match(text, begin, match.start())


def rank_of(text: str, match: re.Match[str]) -> int:
    """The job's rank of a line that names a rank of a group: from the prefix, or else the group's
    rank."""
    return int((prefix(text, match) or match)["rank"])


def ints(text: str | None) -> list[int]:
    """The numbers of a part of a match, between commas or spaces."""
    return list(map(int, (text or "").replace(",", " ").split()))


def frames(text: str, form: re.Pattern[str] = FRAME) -> tuple[Frame, ...]:
    """The frames of a stack, in the order of its lines."""
    return tuple(
        Frame(match["file"], int(match["line"]), match["function"] or "<module>")
        for match in form.finditer(text)
    )
