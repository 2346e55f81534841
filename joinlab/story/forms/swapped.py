"""The same calls in another order: over a few rounds two ranks issue the same calls, and each meets
the wrong one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from joinlab.analysis.matching import key_of
from joinlab.analysis.wording import tensor
from joinlab.program.divergence import Key
from joinlab.story.evidence import Evidence
from joinlab.story.forms import meeting
from joinlab.story.forms.mismatch import Mismatch
from joinlab.story.lines import Headline, Line, Value, form
from joinlab.story.words import Text, code, say
from joinlab.timeline import CallRow


@form
class OtherOrder(Mismatch):
    """Calls that two lanes issued in different orders. tensors: of all calls, where they came from
    one line"""

    tensors: Sequence[str] = ()

    def words(self) -> Text:
        first, two = (
            say("{} of {}", self.noun(index), self.tensors[index])
            if self.tensors
            else self.brief(index)
            for index in (0, 1)
        )
        return say(
            "{} issued {} before {}, {} in the other order.",
            self.sides[0],
            first,
            two,
            self.sides[2],
        )


class OtherKey(Headline):
    """Two calls on data of different keys that met."""

    def words(self) -> Text:
        (left, key), (right, right_key) = (
            (ranks, code(f"{value.name} = {value.value!r}"))
            for ranks, value in zip(self.sides, self.values, strict=True)
        )
        first, other = self.calls
        second = say(" {}", self.noun(1)) if other.name != first.name else ""
        return say(
            "{}'s {} of {} met {}'s{} of {}{}: both have both, in another order.",
            left,
            self.noun(0),
            key,
            right,
            second,
            right_key,
            first.site_text,
        )


def other_order(evidence: Evidence) -> tuple[Line, ...]:
    """The first calls that two lanes issued in different orders."""
    rows = evidence.difference.turned
    assert rows is not None
    one_line = rows.first["call_site"] == rows.second["call_site"]
    tensors = list(map(tensor, rows)) if one_line else ()
    sides = evidence.sides((row["rank"],) for row in rows)
    return (
        OtherOrder(tensors, meant=((0, 3), (1, 2)), **evidence.about(sides, rows)),
        *_met(evidence, rows.first, rows.largest_first),
        *meeting.keys(evidence),
    )


def _met(evidence: Evidence, first: CallRow, peer_call: CallRow) -> Iterator[Line]:
    slot = evidence.folding.matched.slot_of(key_of(first))
    if slot.calls.get(peer_call["rank"]) == peer_call["seq"]:
        yield meeting.met(evidence, slot, ((first["rank"],), (peer_call["rank"],)))


def other_key(evidence: Evidence) -> tuple[Line, ...]:
    """The first two calls that met with different keys, if ranks were followed to find them."""
    keys: Sequence[Key] = evidence.meta.get("parting", {}).get("keys", ())
    if not keys:
        return ()
    rows = [evidence.timeline.call(key["rank"], key["seq"], key["group"]) for key in keys]
    lines = tuple(filter(None, [evidence.line_of(rows[0], [key["rank"] for key in keys])]))
    values = tuple(Value((key["rank"],), key["name"], key["value"]) for key in keys)
    sides = [[key["rank"]] for key in keys]
    return (OtherKey(lines=lines, values=values, **evidence.about(sides, rows)),)
