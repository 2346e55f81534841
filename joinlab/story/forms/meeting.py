"""Which calls met where the ranks part, and what each rank made of it: causes that several kinds of
divergence share."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from operator import itemgetter

from joinlab.analysis.first_difference import Side
from joinlab.analysis.matching import Slot
from joinlab.analysis.meanings import asks_of, conclusion, is_own
from joinlab.analysis.wording import by_key, splits_text, tensor
from joinlab.ops import Op, flat_values
from joinlab.story.evidence import Evidence
from joinlab.story.lines import Cause, Line, Value, form
from joinlab.story.words import Text, code, listing, say
from joinlab.timeline import CallRow, backend_of


@form
class Met(Cause):
    """The calls that met in a slot, or can never meet.

    given       what each gave of what differs
    gloo_kinds  why they never meet: on gloo they are of different kinds
    """

    met: bool
    completed: bool
    given: Sequence[str] = ()
    gloo_kinds: bool = False

    def words(self) -> Text:
        gave = self.given or [""] * len(self.calls)
        parts = []
        for index, (ranks, values) in enumerate(zip(self.sides, gave, strict=True)):
            with_values = f" with {values}" if values else ""
            parts.append(say("{}'s {}{}", ranks, self.with_site(index), with_values))
        if self.met:
            verb = "met"
        elif self.completed:
            verb = "does not fit"
        else:
            verb = "can never meet"
        first = self.calls[0]
        return say(
            "{}{} {} {}{}.",
            "" if first.number is None else f"Call {first.label or first.number}: ",
            parts[0],
            verb,
            listing(parts[1:]),
            ": on gloo calls of different kinds never meet" if self.gloo_kinds else "",
        )


@form
class MadeOfIt(Cause):
    """What ranks concluded from their calls. got: the origin and the value of each call"""

    got: Sequence[tuple[str | None, str | None]]

    def words(self) -> Text:
        parts = []
        for ranks, got in zip(self.sides, self.got, strict=True):
            parts.append(say("{} {}", ranks, str(conclusion(*got) or "")))
        return say("{}.", listing(parts, "; "))


class Keys(Cause):
    """The keys that selected the data of each side."""

    def words(self) -> Text:
        parts = []
        for value in self.values:
            parts.append(say("{} on {}", code(f"{value.name} = {value.value!r}"), value.ranks))
        return say("The keys of their data differ: {}.", listing(parts))


def causes(evidence: Evidence) -> Iterator[Line]:
    """The lines about the mismatch: which calls met, and what the ranks made of it."""
    difference, slot = evidence.difference, evidence.difference.slot
    present = difference.present
    if len(present) < 2:
        return
    rows = difference.rows
    yield met(evidence, slot, present)
    yield from _other_group(evidence, slot)
    made = []
    for side, row in zip(present, rows, strict=True):
        concluded = conclusion(row["origin"], row["value_out"])
        if row["completed_ns"] is not None and concluded:
            made.append((side, row, concluded))
    if any(concluded.meaning for *_, concluded in made):
        sides, rows = evidence.sides(side for side, *_ in made), [row for _, row, _ in made]
        values = tuple(value_of(evidence, side, row) for side, row, _ in made)
        got = [(row["origin"], row["value_out"]) for row in rows]
        yield MadeOfIt(got, values=values, **evidence.about(sides, rows))


class OtherGroup(Cause):
    """The call of members of a group from a line from which others called that group."""

    def words(self) -> Text:
        return say("From the same line {} called another group: {}.", self.ranks, self.full(0))


def _other_group(evidence: Evidence, slot: Slot) -> Iterator[Line]:
    """The first call in another group from the line of a call in this slot, by members of its group
    that never called it from there; none where a rank called several groups from it."""
    calls = (evidence.difference.call(slot, rank) for rank in slot.calls)
    for site in filter(None, dict.fromkeys(map(itemgetter("call_site"), calls))):
        rows = evidence.timeline.calls.filter(call_site=site)
        pairs = rows.select("rank", "group").unique().sort("rank").rows()
        ranks = by_key((group, rank) for rank, group in pairs if rank in slot.needs)
        if slot.group in ranks and len(ranks) > 1 and len(pairs) == len(dict(pairs)):
            del ranks[slot.group]
            group, members = next(iter(ranks.items()))
            seq = rows.filter(rank=members[0])["seq"][0]
            call = evidence.matched.row_of[members[0], group, seq]
            if is_own(call["origin"] or ""):
                yield OtherGroup(**evidence.about([members], [call]))


def keys(evidence: Evidence) -> Iterator[Line]:
    """The keys that selected the data of each side."""
    values: list[Value] = []
    for key in evidence.meta.get("parting", {}).get("data", ()):
        values.append(Value((key["rank"],), key["name"], key["value"]))
    if any(value.ranks != (value.value,) for value in values):  # each rank's part is its own
        yield Keys(values=tuple(values))


def met(evidence: Evidence, slot: Slot, present: Sequence[Side]) -> Line:
    """The line about the calls that met in a slot, or can never meet."""
    rows = [row_of(evidence, slot, side) for side in present]
    kinds, differs, given_texts = {row["op"] for row in rows}, {*slot.differs} - {"splits"}, []
    if (len(kinds) == 1 or slot.pair) and differs & {"dtype", "shape", "root", "reduce_op"}:
        given_texts = [given(row, differs) for row in rows]
    on_gloo = backend_of(evidence.meta, slot.group) == "gloo"
    return Met(
        slot.met,
        any(row["completed_ns"] is not None for row in rows),
        given_texts,
        not slot.met and on_gloo and len(kinds) > 1,
        lines=evidence.lines_at(slot),
        **evidence.about(evidence.sides(present), rows),
    )


def row_of(evidence: Evidence, slot: Slot, side: Side) -> CallRow:
    """The call of a side; without a line, if its ranks issued it from several."""
    rows = [evidence.difference.call(slot, rank) for rank in side if rank in slot.calls]
    if len({row["call_site"] for row in rows}) == 1:
        return rows[0]
    return {**rows[0], "call_site": None}


def given(row: CallRow, names: Collection[str]) -> str:
    """What a call gave for each of `names`, see Slot.differs: "float32[2] and root 1"."""
    # Of a scatter, only the root gives all parts.
    call: CallRow = {**row, "shape": (row["shape"] or [])[:1]} if row["op"] == Op.SCATTER else row
    part = tensor(call)
    texts = {
        "dtype": part,
        "shape": part,
        "root": f"root {row['root']}",
        "reduce_op": row["reduce_op"] or "",
        "splits": f"splits ({splits_text(row['splits'])})" if row["splits"] else "",
    }
    given_texts = dict.fromkeys(text for name, text in texts.items() if name in names)
    return " and ".join(filter(None, given_texts))


def value_of(evidence: Evidence, side: Side, row: CallRow) -> Value:
    """The value that a call gave its ranks, and its meaning to them: "" if they discarded it."""
    values = flat_values(row["value_out"])
    concluded = conclusion(row["origin"], row["value_out"])
    return Value(
        evidence.difference.ranks(side),
        asks_of(row),
        values[0] if len(values) == 1 else None,
        concluded.meaning if concluded else "",
    )
