"""Which calls met where the ranks part, and what each rank made of it: causes that several kinds of
parting share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain

from joinlab.analysis.first_difference import Side
from joinlab.analysis.matching import Slot
from joinlab.analysis.meanings import asks_of, conclusion
from joinlab.analysis.wording import tensor
from joinlab.ops import Op, decode_values
from joinlab.story.evidence import Evidence
from joinlab.story.lines import Line, LineKind, Value
from joinlab.story.words import Text, at_place, code, listing, say, sides
from joinlab.timeline import CallRow, backend_of


def causes(scene: Evidence) -> Iterator[Line]:
    """The lines about the clash: which calls met, and what the ranks made of it."""
    parting, slot = scene.parting, scene.parting.slot
    present = parting.present
    if len(present) < 2:
        return
    rows = [parting.call(slot, side[0]) for side in present]
    yield met(scene, slot, present)
    made = []
    for side, row in zip(present, rows, strict=True):
        text = conclusion(row["origin"], row["value_out"])
        if row["completed_ns"] is not None and text:
            made.append((side, row, text))
    if any("concluded" in text for *_, text in made):
        sides, rows = scene.sides(side for side, *_ in made), [row for _, row, _ in made]
        values = tuple(value_of(scene, side, row) for side, row, _ in made)
        got = [[row["origin"], row["value_out"]] for row in rows]
        yield scene.line(LineKind.CAUSE, "made_of_it", sides, rows, values=values, got=got)


def keys(scene: Evidence) -> Iterator[Line]:
    """The keys that selected the data of each side."""
    values: list[Value] = []
    for key in scene.meta.get("parting", {}).get("data", ()):
        values.append(Value((key["rank"],), key["name"], key["value"]))
    if values:
        yield Line(LineKind.CAUSE, "keys", values=tuple(values))


def met(scene: Evidence, slot: Slot, present: Sequence[Side]) -> Line:
    """The line about the calls that met in a slot, or can never meet."""
    rows = [placed(scene, slot, side) for side in present]
    facts: dict[str, object] = {
        "met": slot.met,
        "completed": any(row["completed_ns"] is not None for row in rows),
    }
    kinds = {row["op"] for row in rows}
    if not slot.met and backend_of(scene.meta, slot.group) == "gloo" and len(kinds) > 1:
        facts["gloo_kinds"] = True
    differs = set(slot.differs)
    if (len(kinds) == 1 or slot.pair) and differs & {"dtype", "shape", "root", "reduce_op"}:
        facts["given"] = [given(row, differs) for row in rows]
    return scene.line(
        LineKind.CAUSE, "met", scene.sides(present), rows, lines=scene.lines_at(slot), **facts
    )


def placed(scene: Evidence, slot: Slot, side: Side) -> CallRow:
    """The call of a side; without a line, if its ranks issued it from several."""
    rows = [scene.parting.call(slot, rank) for rank in side if rank in slot.calls]
    if len({row["call_site"] for row in rows}) == 1:
        return rows[0]
    return {**rows[0], "call_site": None}


def given(row: CallRow, names: Collection[str]) -> str:
    """What a call gave for each of `names`, see Slot.differs: "float32[2] and root 1"."""
    # Of a scatter, only the root gives all parts.
    call: CallRow = {**row, "shape": (row["shape"] or [])[:1]} if row["op"] == Op.SCATTER else row
    part = tensor(call)
    texts = {
        "root": f"root {row['root']}",
        "reduce_op": row["reduce_op"] or "",
        "dtype": part,
        "shape": part,
    }
    return " and ".join(dict.fromkeys(text for name, text in texts.items() if name in names))


def value_of(scene: Evidence, side: Side, row: CallRow) -> Value:
    """The value that a call gave its ranks, and its meaning to them: "" if they discarded it."""
    values = list(chain.from_iterable(decode_values(row["value_out"]) or ()))
    _, _, meaning = (conclusion(row["origin"], row["value_out"]) or "").partition("concluded that ")
    return Value(
        scene.parting.ranks(side), asks_of(row), values[0] if len(values) == 1 else None, meaning
    )


# ---------------------------------------------------------------- words


def _met_words(line: Line) -> Text:
    gave = line.facts.get("given") or [""] * len(line.calls)
    parts = []
    for index, (ranks, values) in enumerate(zip(sides(line), gave, strict=True)):
        parts.append(
            say("{}'s {}{}", ranks, at_place(line, index), f" with {values}" * bool(values))
        )
    if line.facts["met"]:
        verb = "met"
    elif line.facts["completed"]:
        verb = "does not fit"
    else:
        verb = "can never meet"
    number = line.calls[0].number
    why = ": on gloo calls of different kinds never meet" * bool(line.facts.get("gloo_kinds"))
    return say(
        "{}{} {} {}{}.",
        "" if number is None else f"Call {line.calls[0].label or number}: ",
        parts[0],
        verb,
        listing(parts[1:]),
        why,
    )


def _made_words(line: Line) -> Text:
    got = line.facts["got"]
    parts = []
    for index, ranks in enumerate(sides(line)):
        parts.append(say("{} {}", ranks, conclusion(*got[index]) or ""))
    return say("{}.", listing(parts, "; "))


def _keys_words(line: Line) -> Text:
    parts = []
    for value in line.values:
        parts.append(say("{} on {}", code(f"{value.name} = {value.value!r}"), value.ranks))
    return say("The keys of their data differ: {}.", listing(parts))


WORDS: Mapping[str, Callable[[Line], Text]] = {
    "met": _met_words,
    "made_of_it": _made_words,
    "keys": _keys_words,
}
