"""The same calls in another order: over a few rounds two ranks issue the same calls, and each meets
the wrong one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from joinlab.analysis.alignment import Place, departure, place_of
from joinlab.analysis.matching import key_of
from joinlab.analysis.wording import counts_steps, tensor
from joinlab.backend.calls import elements_of
from joinlab.ops import POINT_TO_POINT
from joinlab.program.divergence import Key, are_gradients
from joinlab.story.evidence import Evidence
from joinlab.story.forms import meeting
from joinlab.story.lines import Headline, Line, Value, form
from joinlab.story.words import Text, code, say
from joinlab.timeline import CallRow


@form
class OtherOrder(Headline):
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
            first.place,
        )


def find(evidence: Evidence) -> tuple[Line, ...]:
    """The first calls that two lanes issued in different orders, if the ranks have not parted
    before."""
    keys = evidence.meta.get("parting", {}).get("keys")
    if keys:
        return _other_keys(evidence, keys)
    if evidence.folding.matched.is_part or evidence.meta.get("skipped"):
        return ()
    lanes = sorted(
        evidence.parting.lanes, key=lambda rank: (len(evidence.parting.lanes[rank]), -rank)
    )
    largest = lanes[-1]
    for group, paths in _paths(evidence).items():
        for lane in lanes[:-1]:
            path, largest_path = paths.get(lane, []), paths.get(largest, [])
            places, largest_places = (
                [step.place for step in path] for path in (path, largest_path)
            )
            turn = departure(places, largest_places)
            if not turn or not turn.turned or _comes_too_late(evidence, group, turn.at):
                continue
            left, right = places[turn.at], largest_places[turn.at]
            if any(places.count(place) != largest_places.count(place) for place in (left, right)):
                # one rank has issued more of them, so the two that fit may be of different rounds
                continue
            if left[:-1] != right[:-1]:  # not merely for another input
                return _other_order(evidence, path[turn.at :], largest_path[turn.at :])
    return ()


class StepCall(NamedTuple):
    """A call, with the facts that are equal for two calls of one step of the program."""

    row: CallRow
    place: Place


def _paths(evidence: Evidence) -> dict[str, dict[int, list[StepCall]]]:
    """The collectives of each lane, by group. Gradients have no lines: a backward pass issues
    them."""
    paths: dict[str, dict[int, list[StepCall]]] = {}
    for row in evidence.folding.matched.rows:
        if row["op"] not in POINT_TO_POINT and row["rank"] in evidence.parting.lanes:
            label, site, op, root, *callers = place_of(row, evidence.parting.joins)
            input = None  # gradients of another epoch are no step that was taken in another order
            if are_gradients([row]):
                site, callers, input = "", [], None if counts_steps(evidence.meta) else row["input"]
            place = (
                label,
                site,
                op,
                root,
                row["dtype"],
                elements_of(row["shape"]),
                *callers,
                input,
            )
            paths.setdefault(row["group"], {}).setdefault(row["rank"], []).append(
                StepCall(row, place)
            )
    return paths


def _comes_too_late(evidence: Evidence, group: str, index: int) -> bool:
    """Whether the ranks part before, or in another group."""
    parting = evidence.parting
    if parting.clash is None or parting.slot.pair or parting.slot.group != group:
        return parting.clash is not None
    return index > sum(
        slot.group == group and not slot.pair for slot in parting.slots[: parting.clash]
    )


def _other_order(
    evidence: Evidence, path: Sequence[StepCall], other_path: Sequence[StepCall]
) -> tuple[Line, ...]:
    first, third = path[0].row, other_path[0].row
    second = next(step.row for step in path if step.place == other_path[0].place)
    fourth = next(step.row for step in other_path if step.place == path[0].place)
    rows = (first, second, third, fourth)
    both = evidence.sides(((first["rank"],), (third["rank"],)))
    one_line = first["call_site"] == second["call_site"]
    tensors = list(map(tensor, rows)) if one_line else ()
    sides = [both[0], both[0], both[1], both[1]]
    return (
        OtherOrder(tensors, meant=((0, 3), (1, 2)), **evidence.about(sides, rows)),
        *_met(evidence, first, third),
        *meeting.keys(evidence),
    )


def _met(evidence: Evidence, first: CallRow, peer_call: CallRow) -> Iterator[Line]:
    slot = evidence.folding.matched.slot_of(key_of(first))
    if slot.calls.get(peer_call["rank"]) == peer_call["seq"]:
        yield meeting.met(evidence, slot, ((first["rank"],), (peer_call["rank"],)))


def _other_keys(evidence: Evidence, keys: Sequence[Key]) -> tuple[Line, ...]:
    rows = [evidence.timeline.call(key["rank"], key["seq"], key["group"]) for key in keys]
    lines = tuple(filter(None, [evidence.line_of(rows[0], [key["rank"] for key in keys])]))
    values = tuple(Value((key["rank"],), key["name"], key["value"]) for key in keys)
    sides = [[key["rank"]] for key in keys]
    return (OtherKey(lines=lines, values=values, **evidence.about(sides, rows)),)
