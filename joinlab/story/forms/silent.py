"""Failures although every call met one of its kind: nothing hangs, or only a library's own check
raises.

A rank that did not come to monitored_barrier, a send that nobody received, gradients of different
inputs or models, an all-to-all whose sizes do not add up, and replicas that differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from joinlab.analysis.matching import Slot, key_of
from joinlab.analysis.meanings import averages_gradients
from joinlab.analysis.splits import misfits
from joinlab.analysis.wording import at_input, by_key
from joinlab.ops import Op
from joinlab.program.replicas import Replica
from joinlab.story.evidence import AboutSides, Evidence
from joinlab.story.forms import meeting
from joinlab.story.lines import Cause, Headline, Line, form
from joinlab.story.words import Text, code, listing, say
from joinlab.timeline import EndKind

_EARLY = re.compile(r"Rank (\d+) exhausted all inputs")
# ProcessGroupGloo::monitoredBarrier, v2.13.0: what rank 0 of the group raises, and the others that came
_MISSING = re.compile(r"Ranks? ([\d, ]+) failed to pass monitoredBarrier")
_CAME = re.compile(r"Rank (\d+) successfully reached monitoredBarrier")


class NotCome(Headline):
    def words(self) -> Text:
        return say("{} did not come to monitored_barrier.", self.ranks)


def not_come(evidence: Evidence) -> tuple[Line, ...]:
    """The ranks that the error of a group's first rank names, by their numbers in that group, often
    the first alone, and those that stand in other calls."""
    for rank, end in enumerate(evidence.ends):
        if end.kind is EndKind.RAISED and (match := _MISSING.search(end.text)):
            missing = set[tuple[int, ...]]()
            for ranks in _groups_of(evidence, rank):
                named = list(map(int, match[1].replace(",", " ").split()))
                if max(named) < len(ranks):
                    elsewhere = (rank for rank in ranks if evidence.awaited(rank) is not None)
                    missing.add(tuple(sorted({*map(ranks.__getitem__, named), *elsewhere})))
            if len(missing) == 1:
                return (NotCome(**evidence.about([*missing])),)
    return ()


def _groups_of(evidence: Evidence, first: int) -> Iterator[Sequence[int]]:
    """The members of each group whose first rank this is, and in which all that came to a
    monitored_barrier have the numbers that they say."""
    numbers = dict[int, int]()
    for rank, end in enumerate(evidence.ends):
        if match := _CAME.search(end.text):
            numbers[rank] = int(match[1])
    for ranks in evidence.meta["groups"].values() or [range(len(evidence.ends))]:
        if ranks[0] == first and all([*ranks[n : n + 1]] == [r] for r, n in numbers.items()):
            yield ranks


class Early(Headline):
    def words(self) -> Text:
        join = code("join(throw_on_early_termination=True)")
        return say("{} ran out of inputs, where {} asks all ranks to raise.", self.ranks, join)


def early(evidence: Evidence) -> tuple[Line, ...]:
    """The ranks at whose end join(throw_on_early_termination=True) raised on all ranks."""
    ranks = evidence.ranks_that(lambda end: bool(_EARLY.search(end.text)))
    if not ranks:
        return ()
    return (Early(**evidence.about([ranks])),)


@form
class LeftOver(Headline):
    """A send that was not received, and how many were sent and received."""

    sent: int
    received: int

    def words(self) -> Text:
        nearest = say(", beside {}", self.with_site(1)) if self.calls[1:] else ""
        template = "{} sent {} to {}, which received {}: a {} is left over{}."
        sender, receiver = self.ranks[:1], self.ranks[1:]
        sent, received = times(self.sent), times(self.received)
        return say(template, sender, sent, receiver, received, self.with_site(0), nearest)


def times(count: int) -> str:
    return {0: "nothing", 1: "once"}.get(count, f"{count} times")


def left_over(evidence: Evidence) -> tuple[Line, ...]:
    """The first pair of ranks of which one sent more often than the other received."""
    for sent, received in evidence.unpaired:
        row = next(row for _, row in sent if not evidence.slot_of(key_of(row)).met)
        peer = row["peer"]
        is_sent = row["op"] == Op.SEND and row["completed_ns"] is not None
        if is_sent and peer is not None and not evidence.ends[peer].runs:
            rows = [row, *(last for _, last in received[-1:])]
            lines_of_rows = (evidence.line_of(end_row, (end_row["rank"],)) for end_row in rows)
            lines = tuple(filter(None, lines_of_rows))
            sides = [[end_row["rank"]] for end_row in rows]
            return (
                LeftOver(
                    len(sent),
                    len(received),
                    lines=lines,
                    **evidence.about(sides, rows, (row["rank"], peer)),
                ),
            )
    return ()


def _averaged(
    evidence: Evidence, slot: Slot, sides: Iterable[list[int]]
) -> tuple[AboutSides, Line]:
    """What a headline about gradients that met in a slot is about, and the line about the calls."""
    present = list(map(tuple, sides))
    rows = [evidence.difference.call(slot, side[0]) for side in present]
    return evidence.about(evidence.sides(present), rows), meeting.met(evidence, slot, present)


@form
class OutOfPhase(Headline):
    """Gradients of different inputs that met."""

    inputs: Sequence[str]

    def words(self) -> Text:
        parts = []
        for ranks, input_text in zip(self.sides, self.inputs, strict=True):
            parts.append(say("{}'s of {}", ranks, input_text))
        return say("Gradients of different inputs were averaged: {}.", listing(parts))


def out_of_phase(evidence: Evidence) -> tuple[Line, ...]:
    """The first gradients that met of two inputs, where both ranks ran the backward pass of both,
    by no_sync()."""
    ran = set()
    for span in evidence.timeline.rows("spans"):
        if span["name"] == "backward":
            ran.add((span["rank"], span["input"]))
    rows_of_all = evidence.folding.matched.rows
    only_ran = ran - {(row["rank"], row["input"]) for row in rows_of_all if averages_gradients(row)}
    for slot in evidence.difference.slots:
        rows = [evidence.difference.call(slot, rank) for rank in slot.calls]
        by_input = by_key(
            (row["input"], row["rank"])
            for row in rows
            if averages_gradients(row) and row["input"] is not None
        )
        if len(by_input) != 2:
            continue
        (first_input, first_ranks), (second_input, second_ranks) = by_input.items()
        if all((rank, second_input) in only_ran for rank in first_ranks) and all(
            (rank, first_input) in only_ran for rank in second_ranks
        ):
            inputs = [at_input(number, evidence.meta) for number in by_input]
            of_sides, met = _averaged(evidence, slot, by_input.values())
            return OutOfPhase(inputs, **of_sides), met
    return ()


class TwoModels(Headline):
    def words(self) -> Text:
        parts = []
        for index, ranks in enumerate(self.sides):
            parts.append(say("{}'s {}", ranks, self.with_site(index)))
        return say("Gradients of two models were averaged: {}.", listing(parts))


def two_models(evidence: Evidence) -> tuple[Line, ...]:
    """The first gradients of two models that met, if their parameters were observed."""
    mixed, index_of = evidence.meta.get("mixed", ()), evidence.folding.matched.index_of
    indices = {index_of.get((call["rank"], call["group"], call["seq"])) for call in mixed}
    index = indices.pop() if len(indices) == 1 else None
    if index is None:
        return ()
    sides = ([gradient["rank"]] for gradient in mixed)
    of_sides, met = _averaged(evidence, evidence.difference.slots[index], sides)
    return TwoModels(**of_sides), met


@form
class Splits(Headline):
    """An all-to-all of which a part does not fit, and perhaps others."""

    parts: Sequence[Sequence[int]]

    def words(self) -> Text:
        return say("The splits of {} do not fit: {}.", self.with_site(0), _part(self.parts[0]))


@form
class OtherParts(Cause):
    """The other parts that do not fit."""

    parts: Sequence[Sequence[int]]

    def words(self) -> Text:
        parts = list(map(_part, self.parts))
        left_out = len(parts) - FEW_PARTS
        omitted = [say("{} more parts do not fit", f"{left_out}")] if left_out > 0 else []
        return say("Also, {}.", listing([*parts[:FEW_PARTS], *omitted], "; "))


FEW_PARTS = 3
"""As many parts that do not fit are named, beside the first."""


def _part(part: Sequence[int]) -> Text:
    sender, receiver, sent, expected = part
    if sender == receiver:
        return say("{} keeps {} and expects {} of itself", [sender], f"{sent}", f"{expected}")
    return say(
        "{} sends {} to {}, which expects {}", [sender], f"{sent}", [receiver], f"{expected}"
    )


def splits(evidence: Evidence) -> tuple[Line, ...]:
    """The first call that does not fit, an all-to-all: a part between two ranks, and others."""
    slot = evidence.mismatch
    assert slot is not None
    rows = evidence.matched.calls_of(slot)
    parts = misfits([*rows.values()], evidence.groups[slot.group])
    first, *others = sorted(parts, key=lambda part: part[0] == part[1])
    both = [rows[rank] for rank in dict.fromkeys(first[:2])]
    by_line = {row["call_site"]: row for row in both[::-1]}
    lines = tuple(filter(None, (evidence.line_of(row, ()) for row in [*by_line.values()][::-1])))
    sides = [[row["rank"]] for row in both]
    headline = Splits([first], lines=lines, **evidence.about(sides, both))
    if not others:
        return (headline,)
    ranks = sorted({rank for part in others for rank in part[:2]})
    return (headline, OtherParts(others, **evidence.about([ranks])))


@form
class ReplicasDiffer(Headline):
    inner = "replica"
    replica: Replica

    def words(self) -> Text:
        steps = sorted((step, int(rank)) for rank, step in self.replica["steps"].items())
        by_step = by_key(steps)
        steps_text = [say("step {} of {}", str(step), ranks) for step, ranks in by_step.items()]
        if len(steps_text) == 1:
            steps_text = [say(f"step {next(iter(by_step))}")]
        emulated = " (emulated)" if self.replica.get("emulated") else ""
        word = "at" if self.replica.get("late") else "since"
        since = say("{} {}{}", word, listing(steps_text), emulated)
        when = since if steps_text else "at the end"
        template = "{} finished, but their replicas differ {}: {}."
        return say(template, self.ranks, when, differing(self.replica))


def differing(replica: Replica) -> Text:
    """What differs between replicas: "weight and 3 more"."""
    what = "the optimizer's state of " if replica["what"] == "state" else ""
    more = f" and {replica['more']} more" if replica.get("more") else ""
    return say("{}{}{}", what, code(replica["name"]), more)


@form
class OtherRates(Cause):
    """The learning rates, by rank, where replicas parted."""

    rates: Mapping[str, float]

    def words(self) -> Text:
        by_rate = by_key((rate, int(rank)) for rank, rate in self.rates.items())
        rates_text = [say("{} on {}", f"{rate:g}", ranks) for rate, ranks in by_rate.items()]
        return say("The learning rate of that step was {}.", listing(rates_text))


def replicas(evidence: Evidence) -> tuple[Line, ...]:
    """DDP's replicas differ, though every rank finished: each goes on with weights or momentum of
    its own."""
    difference = evidence.meta.get("replicas")
    if difference is None or any(end.kind is not EndKind.FINISHED for end in evidence.ends):
        return ()
    if "over" in difference:  # by design: a note says so
        return ()
    ranks = list(evidence.groups.get(difference["group"], range(len(evidence.ends))))
    headline = ReplicasDiffer(difference, **evidence.about(difference.get("sides", [ranks])))
    if "rates" not in difference:
        return (headline,)
    return headline, OtherRates(difference["rates"], ranks=tuple(ranks))
