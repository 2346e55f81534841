"""The tests at which the ranks' traces diverge, and the values in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import ClassVar

from joinlab.analysis.wording import by_key, good
from joinlab.program.divergence import Branch, Read, Test
from joinlab.showing import short_site
from joinlab.story.evidence import Evidence
from joinlab.story.lines import Line, LineKind, Note, SourceLine, Value, form
from joinlab.story.words import EMULATED, Text, code, listing, say
from joinlab.timeline import EndKind

FEW = 4
"""Up to this many values of a name are listed per side."""

LONGEST = 80
"""Characters of a test that are quoted."""


@form
class AtTest(Line):
    """A test, the first of `lines`, at which the traces diverge.

    line      its number
    emulated  whether it was found by emulating a launched run
    went      where each side went
    """

    line: int
    emulated: bool
    went: Sequence[Branch]
    kind: LineKind = field(default=LineKind.PARTING, kw_only=True)

    before: ClassVar[str] = ""

    def words(self) -> Text:
        test, sides_text = self.lines[0], [_side(self, side) for side in self.went]
        text, location = code(quoted(test.text)), short_site(test.site)
        emulated = EMULATED if self.emulated and not self.before else ""
        template = "{}{} ({}): {}{}."
        return say(template, self.before, text, location, listing(sides_text, "; "), emulated)


class AtDivergence(AtTest):
    """The test at which the traces finally diverge."""


class AtEarlierTest(AtTest):
    """A test that set a value for a later one."""

    before = "Before, "


@form
class NotFollowed(Note):
    why: str

    def words(self) -> Text:
        return say("Where the ranks' paths part is unknown: {}.", self.why)


@form
class LeftOut(Note):
    """How many ranks were not followed."""

    count: int

    def words(self) -> Text:
        return say("The paths of {} more ranks were not compared.", str(self.count))


def find(evidence: Evidence) -> tuple[Line, ...]:
    """A line for the test at which the traces finally diverge, then for the tests that set the values it
    read."""
    divergence = evidence.meta.get("parting")
    if divergence is None:
        return ()
    if "why" in divergence:
        return (NotFollowed(divergence["why"]),)
    if divergence["tests"]:
        last = divergence["tests"][-1]
        if _stands_there(evidence, last) or _replicas_differed(evidence, last):
            return ()
    emulated = evidence.meta.get("parting_emulated", False)
    lines = _lines(list(filter(_branches, divergence["tests"])), emulated)
    if divergence.get("left_out"):
        return (*lines, LeftOut(divergence["left_out"]))
    return tuple(lines)


def _stands_there(evidence: Evidence, test: Test) -> bool:
    """Whether a rank's way only ends at the line: it stood there outside any call, so it may yet
    have gone where its peers went."""
    for side in test["sides"]:
        for rank in side["ranks"]:
            if (
                side["how"] == "issue"
                and evidence.awaited(rank) is None
                and evidence.ends[rank].kind in (EndKind.UNKNOWN, EndKind.HUNG, EndKind.KILLED)
                and evidence.timeline.calls.filter(rank=rank).height <= side.get("issued", 0)
            ):
                return True
    return False


def _replicas_differed(evidence: Evidence, test: Test) -> bool:
    """Whether the replicas of a run that finished differed before the traces diverged there: it is not
    why."""
    steps = evidence.meta.get("replicas", {}).get("steps", {})
    if not steps or not all(map(good, evidence.ends)):
        return False
    for side in test["sides"]:
        for rank in side["ranks"]:
            calls = evidence.timeline.calls.filter(rank=rank)["enqueued_ns"].sort()
            spans = evidence.timeline.spans.filter(rank=rank, name="optimizer")["begin_ns"].sort()
            step, issued = steps.get(str(rank), 0), side.get("issued", 0)
            if not (0 < step <= len(spans) and 0 < issued <= len(calls)):
                return False
            if calls[issued - 1] < spans[step - 1]:
                return False
    return True


def _branches(test: Test) -> bool:
    """Whether a rank left the line there; two calls from one line are no branch of it."""
    return any(
        side["how"] not in ("issue", "line") or side["line"] != test["line"]
        for side in test["sides"]
    )


def _lines(tests: Sequence[Test], emulated: bool) -> Iterator[Line]:
    for index, test in enumerate(reversed(tests)):
        ranks = tuple(sorted(rank for side in test["sides"] for rank in side["ranks"]))
        form = AtEarlierTest if index else AtDivergence
        yield form(
            test["line"],
            emulated,
            sorted(test["sides"], key=lambda side: min(side["ranks"])),
            ranks=ranks,
            lines=(SourceLine(f"{test['file']}:{test['line']}", test["text"], ranks),),
            values=tuple(_differing(test)),
        )


def _differing(test: Test) -> list[Value]:
    """The values in a test that differ; if none does, those of names that one side alone read, or
    that two loops did."""
    by_name = by_key((read["name"], read) for read in test["values"])
    telling: list[Read] = []
    one_sided: list[Read] = []
    for name, reads in by_name.items():
        readers = {rank for read in reads for rank in read["ranks"]}
        if len({repr(read["value"]) for read in reads}) > 1:
            telling += reads
        elif name[:5] != "type(":
            for side in test["sides"]:
                if readers <= {*side["ranks"]} or side["how"] == "round":  # of another loop
                    one_sided += reads
                    break
    return [
        Value(tuple(read["ranks"]), read["name"], read["value"]) for read in telling or one_sided
    ]


# ---------------- words


def quoted(text: str) -> str:
    """A test, cut if it is long."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _side(line: AtTest, side: Branch) -> Text:
    """What some ranks had in the test, and where they went: "rank 0 had len(inputs) = 3 and went to
    line 7"."""
    ranks = side["ranks"]
    had: dict[str, list[Value]] = {}
    for value in line.values:
        had.setdefault(value.name, []).extend([value] if {*value.ranks} & {*ranks} else [])
    texts = []
    for name, values_of in had.items():
        if {*ranks} <= {rank for value in values_of for rank in value.ranks}:
            texts.append(f"{name} = {_listed([_shown(name, value.value) for value in values_of])}")
    values = listing([say("{}", code(text)) for text in texts])
    kind, _, location = side["text"].partition(" ")  # of an exception
    went = _WENT.get(side["how"], "went on").format(**side, kind=kind, where=location)
    if side["how"] == "line" and side["line"] == line.line:
        went = _WENT["in"]
    return say("{} {}" + went, ranks, say("had {} and ", values) if values else "")


_WENT = {
    "line": "went to line {line}",
    "call": "called the function at line {line}",
    "resume": "resumed the function at line {line}",
    "return": "returned",
    "leave": "left the block of line {line}",
    "raise": "raised {text}",
    "caught": "raised {text}, which line {line} caught",
    "swallowed": "raised {text}, which line {line} swallowed",
    "in flight": "raised {kind}; on its way out, line {line} ({where}) issued the next call",
    "issue": "issued the call there",
    "over": "[was|were] done with it",
    "in": "went on in it",
    "round": "began another round of line {line}",
    "end": "ended there",
    "block": "found its condition true",
    "past": "found its condition false",
}


def _listed(values: Sequence[str]) -> str:
    """Different values: "1, 2"; of more than FEW the first and the last: "0 ... 15"."""
    distinct = [*dict.fromkeys(values)]
    if len(distinct) <= FEW:
        return ", ".join(distinct)
    return f"{distinct[0]} ... {distinct[-1]}"


def _shown(name: str, value: object) -> str:
    if name.endswith(".shape") or value in ("nan", "inf", "-inf"):
        return str(value)
    long = isinstance(value, float) and abs(value) > 1e6  # a time: only the decimals differ
    if long:
        return f"{value:.3f}"
    return f"{value:.6g}" if isinstance(value, float) else repr(value)
