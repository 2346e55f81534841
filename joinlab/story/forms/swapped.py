"""The same calls in another order: over a few rounds two ranks issue the same calls, and each meets
the wrong one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from joinlab.analysis.alignment import Place, departure, place_of
from joinlab.analysis.wording import counts_steps, tensor
from joinlab.backend.calls import elements_of
from joinlab.ops import POINT_TO_POINT
from joinlab.program.parting import Key, are_gradients
from joinlab.story.forms import meeting
from joinlab.story.lines import Line, Value
from joinlab.story.scene import Scene
from joinlab.story.words import Text, brief, code, noun, place, say, sides
from joinlab.timeline import CallRow


def find(scene: Scene) -> tuple[Line, ...]:
    """The first calls that two lanes issued in different orders, if the ranks have not parted
    before."""
    if keys := scene.meta.get("parting", {}).get("keys"):
        return _other_keys(scene, keys)
    if scene.folding.matched.is_part or scene.meta.get("skipped"):
        return ()
    lanes = sorted(scene.parting.lanes, key=lambda rank: (len(scene.parting.lanes[rank]), -rank))
    most = lanes[-1]
    for group, paths in _paths(scene).items():
        for lane in lanes[:-1]:
            mine, theirs = paths.get(lane, []), paths.get(most, [])
            places, others = ([step.place for step in path] for path in (mine, theirs))
            found = departure(places, others)
            if not found or not found.turned or _comes_too_late(scene, group, found.at):
                continue
            one, other = places[found.at], others[found.at]
            if any(places.count(each) != others.count(each) for each in (one, other)):
                # one rank has issued more of them, so the two that fit may be of different rounds
                continue
            if one[:-1] != other[:-1]:  # not merely for another input
                return _told(scene, mine[found.at :], theirs[found.at :])
    return ()


class Step(NamedTuple):
    """A call, with the facts that are equal for two calls of one step of the program."""

    row: CallRow
    place: Place


def _paths(scene: Scene) -> dict[str, dict[int, list[Step]]]:
    """The collectives of each lane, by group. Gradients have no lines: a backward pass issues
    them."""
    found: dict[str, dict[int, list[Step]]] = {}
    for row in scene.folding.matched.rows:
        if row["op"] not in POINT_TO_POINT and row["rank"] in scene.parting.lanes:
            label, site, op, root, *callers = place_of(row, scene.parting.joins)
            of = None  # gradients of another epoch are no step that was taken in another order
            if are_gradients([row]):
                site, callers, of = "", [], None if counts_steps(scene.meta) else row["input"]
            place = (label, site, op, root, row["dtype"], elements_of(row["shape"]), *callers, of)
            found.setdefault(row["group"], {}).setdefault(row["rank"], []).append(Step(row, place))
    return found


def _comes_too_late(scene: Scene, group: str, at: int) -> bool:
    """Whether the ranks part before, or in another group."""
    parting = scene.parting
    if parting.clash is None or parting.slot.pair or parting.slot.group != group:
        return parting.clash is not None
    return at > sum(one.group == group and not one.pair for one in parting.slots[: parting.clash])


def _told(scene: Scene, mine: Sequence[Step], theirs: Sequence[Step]) -> tuple[Line, ...]:
    first, other = mine[0].row, theirs[0].row
    second = next(step.row for step in mine if step.place == theirs[0].place)
    fourth = next(step.row for step in theirs if step.place == mine[0].place)
    rows = (first, second, other, fourth)
    both = scene.sides(((first["rank"],), (other["rank"],)))
    one_line = first["call_site"] == second["call_site"]
    facts = {"tensors": [tensor(row) for row in rows]} if one_line else {}
    sides = [both[0], both[0], both[1], both[1]]
    return (
        scene.headline("other_order", sides, rows, meant=((0, 3), (1, 2)), **facts),
        *_met(scene, first, other),
    )


def _met(scene: Scene, first: CallRow, other: CallRow) -> Iterator[Line]:
    for slot in scene.parting.slots:
        if slot.group == first["group"] and slot.calls.get(first["rank"]) == first["seq"]:
            if slot.calls.get(other["rank"]) == other["seq"]:
                yield meeting.met(scene, slot, ((first["rank"],), (other["rank"],)))
            return


def _other_keys(scene: Scene, keys: Sequence[Key]) -> tuple[Line, ...]:
    rows = [scene.timeline.call(key["rank"], key["seq"], key["group"]) for key in keys]
    lines = tuple(filter(None, [scene.line_of(rows[0], [key["rank"] for key in keys])]))
    values = tuple(Value((key["rank"],), key["name"], key["value"]) for key in keys)
    return (
        scene.headline(
            "other_key", [[key["rank"]] for key in keys], rows, lines=lines, values=values
        ),
    )


def _key_words(line: Line) -> Text:
    (one, key), (other, theirs) = (
        (ranks, code(f"{value.name} = {value.value!r}"))
        for ranks, value in zip(sides(line), line.values, strict=True)
    )
    second = say(" {}", noun(line, 1)) if line.calls[1].name != line.calls[0].name else ""
    said = "{}'s {} of {} met {}'s{} of {}{}: both have both, in another order."
    return say(said, one, noun(line, 0), key, other, second, theirs, place(line.calls[0]))


def _words(line: Line) -> Text:
    tensors = line.facts.get("tensors")
    one, two = (
        say("{} of {}", noun(line, at), tensors[at]) if tensors else brief(line, at)
        for at in (0, 1)
    )
    return say(
        "{} issued {} before {}, {} in the other order.", sides(line)[0], one, two, sides(line)[2]
    )


WORDS: Mapping[str, Callable[[Line], Text]] = {"other_order": _words, "other_key": _key_words}
