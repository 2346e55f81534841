"""The story of a pasted log. A log names some ranks and some calls; the story says nothing about
the others.

For some ranks the text gives the number of calls they had enqueued: a rank that had enqueued fewer
than the number of a call in which others wait has not reached that call. For every other rank the
text only says in which call it waits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain
from statistics import mode
from typing import ClassVar

from joinlab.analysis.wording import by_key
from joinlab.backend.calls import NOT_MET, is_peer_gone
from joinlab.ops import ONE_SIZE, Op, counted
from joinlab.showing import short_site
from joinlab.story.evidence import Evidence
from joinlab.story.forms.fates import TIMED_OUT
from joinlab.story.forms.standing import Standing
from joinlab.story.lines import Cause, Headline, Line, Note, SourceLine, form
from joinlab.story.words import Text, listing, say
from joinlab.timeline import (
    FIRST_FAILED,
    FROM_TEXT,
    INTERRUPTED,
    NOTHING_RECORDED,
    STUCK,
    UNTOLD,
    WROTE,
    CallRow,
    EndKind,
)

ISSUED_LAST = "{} issued {} last, as far as the text reaches"


class FromText(Headline):
    """A headline from a text, which also says how ranks ended."""

    says_ends = True


@form
class TextErrors(FromText):
    """What ranks raised, or where they stood: the text of each side, of the second in the words of
    `second` if there are some."""

    template: ClassVar[str]
    second: ClassVar[str] = ""
    further: ClassVar[str]
    texts: Sequence[str]

    def words(self) -> Text:
        templates = self.template, self.second or self.template
        parts = list(map(say, templates, self.sides, self.texts))  # of the first two sides
        if self.sides[2:]:
            parts.append(say(self.further, sorted(chain(*self.sides[2:]))))
        return say("{}.", listing(parts))


class TextFailed(TextErrors):
    template = "{} failed first: {}"


class TextFailedOnHost(TextErrors):
    template = "{} failed first on [its|their] host: {}"
    further = "{} failed first on other hosts"


class TextRaised(TextErrors):
    template = "{} raised {}"
    further = "{} raised other errors"


class TextEnded(TextErrors):
    template = "{} ended: {}"
    further = "{} ended otherwise"


@form
class TextStuck(FromText):
    def words(self) -> Text:
        return say(
            "{} stood still, perhaps in a call of CUDA or NCCL: "
            "[its|their] NCCL watchdog made no progress.",
            self.ranks,
        )


class TextVictims(TextErrors):
    template = "{} waited for another rank, which the text does not name: {}"
    second = "{} waited, too: {}"
    further = "{} waited, too"


class TextVictimsOf(TextVictims):
    """Victims, where some rank wrote a traceback of which no more is known."""

    template = "{} waited for another rank: {}"


class TextWithoutId(TextErrors):
    template = "{} got no NCCL id from rank 0 of [its|their] group: {}"
    second = "{} got none, either: {}"
    further = "{} got none, either"


class TextStood(TextErrors):
    template = "{} stood in {}"
    further = "{} stood elsewhere"


class TextSends(TextErrors):
    template = ISSUED_LAST
    further = "{} issued other calls"


@form
class TextCalls(FromText):
    """A call of each side, with its number and size in words."""

    template: ClassVar[str]
    numbers: Sequence[str]
    sizes: Sequence[str]

    def words(self) -> Text:
        return self.all_sides()

    def all_sides(self, numbered: bool = True, end: str = "") -> Text:
        """Each side with its call."""
        parts = [
            say(self.template, ranks, self.call(index, numbered))
            for index, ranks in enumerate(self.sides)
        ]
        return say("{}{}.", listing(parts), end)

    def call(self, index: int, numbered: bool = True) -> Text:
        number = self.numbers[index] if numbered else ""
        return say("{}{}{}", self.noun(index), f" {number}" if number else "", self.sizes[index])


class TextUnmatched(TextCalls):
    template = "{} waited in {}"


class TextLast(TextCalls):
    template = ISSUED_LAST


class TextWaits(TextCalls):
    template = "{} waited in {}; the text names no rank that had not come to it"


class TextAwaited(TextCalls):
    template = "{} waited in {}, to which a rank of [its|their] group had not come"


class TextRefused(TextCalls):
    template = "{} issued {}, and not every rank's call matched it"


class TextDiffer(TextCalls):
    template = "{} issued {}"

    def words(self) -> Text:
        label = self.numbers[0]
        if len(set(self.numbers)) > 1:
            return self.all_sides()
        if label.isdecimal():
            label = f"call {label}"
        return self.all_sides(False, f", as {label}" if label else "")


class DetailDiffers(TextDiffer):
    """Of a recorded job. Such calls have no number."""

    def words(self) -> Text:
        return self.all_sides(False, ", and torch refused to run them")


class TextBehind(TextCalls):
    """Ranks, the last side, that had not come to a call."""

    def words(self) -> Text:
        waiting, behind = self.sides
        return say("{} had not come to {}, where {} waited.", behind, self.call(0), waiting)


class TextFurther(TextCalls):
    """Ranks, the last side, of which the text has no such call yet."""

    def words(self) -> Text:
        issued, others = self.sides
        return say(
            "{} issued {}, and {} had not, as far as the text reaches.",
            issued,
            self.call(0),
            others,
        )


@form
class TextAlike(FromText):
    """numbers: how many calls"""

    numbers: Sequence[int]

    def words(self) -> Text:
        return say(
            "{} issued the same calls, {} of them, as far as the text reaches.",
            self.ranks,
            str(self.numbers[0]),
        )


class TextSilent(TextAlike):
    def words(self) -> Text:
        return say("the text names no collective of {}.", self.ranks)


class TextMismatched(FromText):
    def words(self) -> Text:
        return say("NCCL found collectives that do not match, at and around {}.", self.ranks)


@form
class TextEnqueued(Cause):
    """How many calls each side had enqueued."""

    numbers: Sequence[int]

    def words(self) -> Text:
        parts = [
            say("{} had enqueued {}", ranks, counted(number, "call"))
            for ranks, number in zip(self.sides, self.numbers, strict=True)
        ]
        return say("{}.", listing(parts))


@form
class TextReach(Note):
    """The kind of text that was read, and the ranks that none of its lines names."""

    of: str

    def words(self) -> Text:
        missing = say("; no line is of {}", self.ranks) if self.ranks else ""
        return say("this was read from {}. What it leaves out is not known{}.", self.of, missing)


SIZED = ONE_SIZE | {Op.ALL_GATHER, Op.REDUCE_SCATTER}
"""Ops whose tensors NCCL takes in one size: of uneven ones torch makes calls of another kind."""

NO_ID = "but store->get("

WAITED = (
    *TIMED_OUT,
    "timed out in monitoredBarrier",
    "in store based barrier",
    "NCCL communicator was aborted",
    "remote process exited",
    "ncclRemoteError",
    NO_ID,
    "NCCL's watchdog gave up",
    "NCCL's watchdog found it at work",
    "a collective timed out on it",
    STUCK,
)
"""Parts of errors that a rank raises because another rank did not come or is gone."""

FAULTS = (
    "Out Of Memory",
    "Segmentation fault",
    "Bus error",
    "Illegal instruction",
    "Floating point exception",
    "its NCCL watchdog failed",
)
"""Words of srun and NCCL's watchdog for the end of a process that no launcher brought about."""

OF_CHILDREN = "(Lightning)", "(Composer)"
"""In how a process ended that its launcher says before it ends the others."""

ENDED_BY_LAUNCHERS = ("SIGTERM", "Terminated")
"""How launchers end the ranks that are left once another one has failed."""

_ANOTHER = re.compile(r" \[[\w.:]+\]:\d+|\[\d+\] (?=is setting up)")
"""The parts in which one error differs between ranks: the rank's own address and number."""


def find(evidence: Evidence) -> tuple[Line, ...]:
    """The headline of a text, and lines about the ranks' places."""
    if evidence.meta.get("format") != FROM_TEXT:
        return ()
    rows = evidence.timeline.rows("calls")
    open_ = [row for row in rows if row["completed_ns"] is None]
    still = evidence.ranks_that(lambda end: STUCK in end.text)
    headline = (
        _failed(evidence)
        or _waiting(evidence, open_, still)
        or _victims(evidence)
        or (None if rows else _stood(evidence) or _hints(evidence))
        or _killed(evidence)
        or _alike(evidence, rows)
    )
    missing = {*evidence.meta.get("missing_ranks", ())}.difference(evidence.meta.get("heard", ()))
    reach = TextReach(evidence.meta.get("program", "text"), ranks=tuple(sorted(missing)))
    return (headline, *_beyond(evidence, open_), reach)


def refused(evidence: Evidence) -> tuple[Line, ...]:
    """The headline of a job whose calls torch compared, and refused since they differ (DETAIL)."""
    calls = evidence.timeline.calls
    not_met = calls.filter(calls["error"].str.contains(NOT_MET, literal=True))
    rows: list[CallRow] = not_met.rows(named=True)  # type: ignore[assignment]
    last = {row["rank"]: row for row in rows}
    kinds = _kinds([*last.values()])
    if len(kinds) < 2 or len({row["group"] for row in last.values()}) > 1:
        return ()
    return (_calls(evidence, DetailDiffers, kinds),)


def _failed(evidence: Evidence) -> Line | None:
    """Ranks that raised errors of their own; the one that was the first to fail, where torchrun
    says which."""
    errors = {row["rank"] for row in evidence.timeline.rows("calls") if row["error"]}
    own_errors = [
        rank
        for rank, end in enumerate(evidence.ends)
        if rank not in errors
        and (FIRST_FAILED in end.text or end.kind is EndKind.RAISED)
        and not waited(end.text)
    ]
    first = [rank for rank in own_errors if FIRST_FAILED in evidence.ends[rank].text]
    fell = evidence.ranks_that(
        lambda end: (
            (end.text.startswith(FAULTS) or end.text.endswith(OF_CHILDREN)) and not waited(end.text)
        )
    )
    if first:
        reported = evidence.ranks_that(lambda end: f"{FIRST_FAILED} on " in end.text)
        of_host = first[1:] or reported == first  # the other host's, a victim, or not read
        return _texts_headline(evidence, TextFailedOnHost if of_host else TextFailed, first)
    return _texts_headline(evidence, TextRaised, own_errors) or _texts_headline(
        evidence, TextEnded, fell
    )


def _victims(evidence: Evidence) -> Line | None:
    if evidence.ranks_that(lambda end: end.text == INTERRUPTED):  # that ended the others, too
        return None
    victims = evidence.ranks_that(lambda end: waited(end.text))
    timed_out = [rank for rank in victims if not is_peer_gone(evidence.ends[rank].text)]
    victims = timed_out or victims  # the others lost those, perhaps
    wrote = any(end.text == WROTE for end in evidence.ends)
    without_id = [rank for rank in victims if NO_ID in evidence.ends[rank].text]
    return _texts_headline(evidence, TextWithoutId, without_id) or _texts_headline(
        evidence, TextVictimsOf if wrote else TextVictims, victims
    )


def _killed(evidence: Evidence) -> Line | None:
    """Ranks that a launcher saw end, but for those that it ended itself, if there are others."""
    ended = evidence.ranks_that(lambda end: end.kind is EndKind.KILLED or "exit code" in end.text)
    fell = [rank for rank in ended if not evidence.ends[rank].text.startswith(ENDED_BY_LAUNCHERS)]
    return _texts_headline(evidence, TextEnded, fell or ended)


def waited(error: str) -> bool:
    return is_peer_gone(error) or any(phrase in error for phrase in WAITED)


def _texts_headline(
    evidence: Evidence, form: type[TextErrors], ranks: Sequence[int]
) -> Line | None:
    """A headline of what some ranks raised, those of one error together."""
    if not ranks:
        return None
    texts: dict[str, list[int]] = {}
    by_text = by_key((_ANOTHER.sub("", _error(evidence, rank)), rank) for rank in ranks)
    for text, side in by_text.items():
        texts[text if side[1:] else _error(evidence, side[0])] = side
    lines = tuple(SourceLine(site, "", (ranks[0],)) for site in _stood_at(evidence, ranks[0]))
    return form([*texts], lines=lines, **evidence.about(texts.values()))


def _error(evidence: Evidence, rank: int) -> str:
    text = (
        evidence.ends[rank]
        .text.partition("\n")[0]
        .partition(f" ({FIRST_FAILED}")[0]
        .removesuffix(".")
    )
    return text + "".join(f" ({short_site(site)})" for site in _stood_at(evidence, rank))


def _stood(evidence: Evidence) -> Line | None:
    """Where the main threads stood, of fewest ranks first."""
    main = (
        (rank, Standing(threads[0]))
        for rank, threads in sorted(evidence.meta.get("stood", {}).items())
    )
    texts = by_key((thread.text(), rank) for rank, thread in main if thread.frames)
    by_size = sorted(texts.items(), key=lambda item: (len(item[1]), item[1]))
    if by_size:
        frames, sides = zip(*by_size, strict=True)
        return TextStood(frames, **evidence.about(sides))
    return None


def _hints(evidence: Evidence) -> Line | None:
    """What a text without collectives says: which do not match, or the last sends and recvs."""
    mismatched = evidence.meta.get("mismatched")
    if mismatched:
        return TextMismatched(ranks=tuple(mismatched))
    texts = by_key((text, rank) for rank, text in evidence.meta.get("sends", {}).items())
    if texts:
        return TextSends([*texts], **evidence.about(texts.values()))
    return None


def _waiting(evidence: Evidence, open_: list[CallRow], still: Sequence[int]) -> Line | None:
    """Ranks that wait: in calls that differ, for ranks that did not come or stood `still`, or in calls
    of which no more is told."""
    stuck = sorted({*still}.difference(row["rank"] for row in open_))
    if not open_:
        return TextStuck(ranks=tuple(stuck)) if stuck else None
    refused = [row for row in open_ if NOT_MET in (row["error"] or "")]
    if refused:
        kinds = _kinds(refused, numbers=True)
        return _calls(evidence, TextDiffer if kinds[1:] else TextRefused, kinds)
    group = mode(row["group"] for row in open_)
    by_number = by_key((row["number"] or 0, row) for row in open_ if row["group"] == group)
    for number in sorted(by_number):
        kinds = _kinds(by_number[number])
        if number and kinds[1:]:
            return _calls(evidence, TextDiffer, kinds)
    rows_of_group = [*chain(*by_number.values())]
    failed = any(row["error"] for row in open_)
    untold = any(evidence.ends[row["rank"]].text in (UNTOLD, WROTE) for row in rows_of_group)
    text_ends = untold and not failed
    exact = _exact(evidence, group)
    for number in sorted(by_number):
        waiting = by_number[number]
        reached = {row["rank"] for row in waiting}
        reached.update(rank for rank, count in exact.items() if count >= (number or 1))
        behind = [rank for rank in exact if rank not in reached]
        if behind:
            of_log = text_ends and group in evidence.meta.get("counted", {})
            return _calls(evidence, TextFurther if of_log else TextBehind, [waiting], [behind])
    # where the text has one rank of the group, each rank has a name of its own for its group
    one_rank = len({row["rank"] for row in rows_of_group}) == 1
    kinds = _first_calls(open_ if one_rank else rows_of_group)
    if text_ends:
        return _calls(evidence, TextLast, kinds)
    if any("of its group failed" in (row["error"] or "") for row in open_):
        return _calls(evidence, TextAwaited, kinds)
    if stuck and not kinds[1:]:
        return TextStuck(ranks=tuple(stuck))
    return _calls(evidence, TextUnmatched if kinds[1:] else TextWaits, kinds)


def _first_calls(rows: Sequence[CallRow]) -> list[list[CallRow]]:
    """The call of lowest number of each rank: ranks of one call together, by number."""
    in_order = sorted(rows, key=lambda row: row["number"] or 0)
    first: dict[int, int | None] = {}
    for row in in_order:
        first.setdefault(row["rank"], row["number"])
    by_number = by_key(
        (row["number"], row) for row in in_order if first[row["rank"]] == row["number"]
    )
    return [*chain(*map(_kinds, by_number.values()))]


def _kinds(rows: Sequence[CallRow], numbers: bool = False) -> list[list[CallRow]]:
    """Rows of calls that differ: in the op, in the size where all ranks must have one, and in the
    number if asked."""
    kinds: dict[str, list[CallRow]] = {}
    for row in rows:
        sized = row["op"] in SIZED and all(other_row["shape"] for other_row in rows)
        sized = sized or NOT_MET in (row["error"] or "")
        dtype = row["dtype"] if NOT_MET in (row["error"] or "") else None
        shape, number = row["shape"] if sized else None, row["number"] if numbers else None
        key = (row["origin"], dtype, shape, number)
        kinds.setdefault(repr(key), []).append(row)
    return list(kinds.values())


def _calls(
    evidence: Evidence,
    form: type[TextCalls],
    sides: list[list[CallRow]],
    without_call: Sequence[list[int]] = (),
) -> TextCalls:
    """A headline with one call of each side; `without_call`: ranks without a call."""
    ranks = [sorted({row["rank"] for row in rows}) for rows in sides]
    first = [rows[0] for rows in sides]
    sizes = list(map(_size, first))
    kinds = {(row["origin"], row["number"], size) for row, size in zip(first, sizes, strict=True)}
    if len(kinds) < len(first):
        sizes = [f"{size} ({row['dtype']})" for row, size in zip(first, sizes, strict=True)]
    return form(
        [evidence.call(row).label for row in first],
        sizes,
        **evidence.about([*ranks, *without_call], first),
    )


def _alike(evidence: Evidence, rows: list[CallRow]) -> Line:
    ranks = sorted(set(range(len(evidence.ends))).difference(evidence.meta["missing_ranks"]))
    calls = len({(row["group"], row["seq"]) for row in rows})
    return (TextAlike if calls else TextSilent)([calls], ranks=tuple(ranks))


def _beyond(evidence: Evidence, open_: list[CallRow]) -> Iterator[Line]:
    """How many calls the ranks had enqueued, in groups where some wait, if not all had enqueued as
    many."""
    enqueued = evidence.meta.get("progress", {})
    groups = {row["group"] for row in open_} if evidence.timeline.calls.height else enqueued
    for group in sorted(groups):
        progress = sorted(enqueued.get(group, {}).items())
        by_count = by_key((counts["enqueued"], rank) for rank, counts in progress)
        if len(by_count) > 1:
            yield TextEnqueued([*by_count], **evidence.about(by_count.values()))


def _exact(evidence: Evidence, group: str) -> dict[int, int]:
    """By rank: how many calls of the group it had enqueued, where the text says so."""
    skipped = evidence.meta.get("skipped", {}).get(group, {})
    rows = {row["rank"] for row in evidence.timeline.rows("calls") if row["group"] == group}
    exact = {
        rank: before
        for rank, before in skipped.items()
        if before < NOTHING_RECORDED and rank not in rows
    }
    return exact | {
        rank: counts["enqueued"]
        for rank, counts in evidence.meta.get("progress", {}).get(group, {}).items()
    }


def _size(row: CallRow) -> str:
    if row["shape"] is None:
        return ""
    sizes = row["shape"][0]
    noun = "number" if sizes == [1] else "numbers"
    return f" of {'×'.join(f'{size:,}' for size in sizes)} {noun}"


def _stood_at(evidence: Evidence, rank: int) -> list[str]:
    """The line of the program in which a rank's main thread stood, if it is known."""
    main = evidence.meta.get("stood", {}).get(rank, ())[:1]
    return [site for thread in main for site, _ in Standing(thread).frames[:1]]
