"""Failures although every call met one of its kind: nothing hangs, or only a library's own check
raises.

A rank that did not come to monitored_barrier, a send that nobody received, gradients of different
inputs or models, an all-to-all whose sizes do not add up, and replicas that differ.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from joinlab.analysis.matching import Slot
from joinlab.analysis.splits import misfits
from joinlab.analysis.wording import at_input, by_key
from joinlab.ops import Op
from joinlab.program.divergence import are_gradients
from joinlab.program.replicas import Replica
from joinlab.story.differences import unpaired
from joinlab.story.evidence import Evidence
from joinlab.story.forms import meeting
from joinlab.story.lines import Line, LineKind
from joinlab.story.words import Text, at_place, code, listing, say, sides
from joinlab.timeline import EndKind

_EARLY = re.compile(r"Rank (\d+) exhausted all inputs")
_MISSING = re.compile(
    r"Ranks? ([\d, ]+) failed to pass monitoredBarrier"
)  # ProcessGroupGloo::monitoredBarrier, v2.13.0


def not_come(scene: Evidence) -> tuple[Line, ...]:
    """The ranks that rank 0's error names."""
    for end in scene.ends:
        if end.kind is EndKind.RAISED and (match := _MISSING.search(end.text)):
            missing = list(map(int, match[1].replace(",", " ").split()))
            if all(rank < len(scene.ends) for rank in missing):
                return (scene.headline("not_come", [missing]),)
    return ()


def early(scene: Evidence) -> tuple[Line, ...]:
    """The ranks at whose end join(throw_on_early_termination=True) raised on all ranks."""
    ranks = [rank for rank, end in enumerate(scene.ends) if _EARLY.search(end.text)]
    if not ranks:
        return ()
    return (scene.headline("early", [ranks]),)


def left_over(scene: Evidence) -> tuple[Line, ...]:
    """The first pair of ranks of which one sent more often than the other received."""
    if scene.meta.get("skipped") or scene.matched.is_part:
        return ()
    for sent, received in unpaired(scene.timeline):
        unmet = (
            row for _, row in sent if not scene.slot_of[row["rank"], row["group"], row["seq"]].met
        )
        row = next(unmet)
        if row["op"] == Op.SEND and row["completed_ns"] is not None:
            rows = [row, *(last for _, last in received[-1:])]
            lines_of_rows = (scene.line_of(end_row, (end_row["rank"],)) for end_row in rows)
            lines = tuple(filter(None, lines_of_rows))
            details = {
                "ranks": (row["rank"], row["peer"]),
                "sent": len(sent),
                "received": len(received),
            }
            return (
                scene.headline(
                    "left_over",
                    [[end_row["rank"]] for end_row in rows],
                    rows,
                    lines=lines,
                    **details,
                ),
            )
    return ()


def out_of_phase(scene: Evidence) -> tuple[Line, ...]:
    """The first gradients that met of two inputs, where both ranks ran the backward pass of both,
    by no_sync()."""
    ran = set()
    for span in scene.timeline.rows("spans"):
        if span["name"] == "backward":
            ran.add((span["rank"], span["input"]))
    rows_of_all = scene.folding.matched.rows
    only_ran = ran - {(row["rank"], row["input"]) for row in rows_of_all if are_gradients([row])}
    for slot in scene.parting.slots:
        rows = [scene.parting.call(slot, rank) for rank in slot.calls]
        by_input = by_key(
            (row["input"], row["rank"])
            for row in rows
            if are_gradients([row]) and row["input"] is not None
        )
        if len(by_input) != 2:
            continue
        (first_input, first_ranks), (second_input, second_ranks) = by_input.items()
        if all((rank, second_input) in only_ran for rank in first_ranks) and all(
            (rank, first_input) in only_ran for rank in second_ranks
        ):
            inputs = [at_input(number, scene.meta) for number in by_input]
            return _averaged(scene, slot, "out_of_phase", by_input.values(), inputs=inputs)
    return ()


def two_models(scene: Evidence) -> tuple[Line, ...]:
    """The first gradients of two models that met, if their parameters were observed."""
    mixed = scene.meta.get("mixed", ())
    for slot in scene.parting.slots if mixed else ():
        if all(
            slot.group == gradient["group"]
            and slot.calls.get(gradient["rank"], -1) == gradient["seq"]
            for gradient in mixed
        ):
            return _averaged(scene, slot, "two_models", [[gradient["rank"]] for gradient in mixed])
    return ()


def _averaged(
    scene: Evidence, slot: Slot, form: str, sides: Iterable[list[int]], **facts: object
) -> tuple[Line, ...]:
    present = list(map(tuple, sides))
    rows = [scene.parting.call(slot, side[0]) for side in present]
    headline = scene.headline(form, scene.sides(present), rows, **facts)
    return (headline, meeting.met(scene, slot, present))


def splits(scene: Evidence) -> tuple[Line, ...]:
    """The first call that does not fit, an all-to-all: a part between two ranks, and others."""
    slot = scene.clash
    if slot is None or "splits" not in slot.differs:
        return ()
    rows = scene.matched.calls_of(slot)
    parts = misfits([*rows.values()], scene.groups[slot.group])
    first, *others = sorted(parts, key=lambda part: part[0] == part[1])
    both = [rows[rank] for rank in dict.fromkeys(first[:2])]
    by_line = {row["call_site"]: row for row in both[::-1]}
    lines = tuple(filter(None, (scene.line_of(row, ()) for row in [*by_line.values()][::-1])))
    sides = [[row["rank"]] for row in both]
    headline = scene.headline("splits", sides, both, parts=[first], lines=lines)
    if not others:
        return (headline,)
    ranks = sorted({rank for part in others for rank in part[:2]})
    return (headline, scene.line(LineKind.CAUSE, "other_parts", [ranks], parts=others))


def replicas(scene: Evidence) -> tuple[Line, ...]:
    """DDP's replicas differ, though every rank finished: each goes on with weights or momentum of
    its own."""
    difference = scene.meta.get("replicas")
    if difference is None or any(end.kind is not EndKind.FINISHED for end in scene.ends):
        return ()
    if "over" in difference:  # by design: a note says so
        return ()
    ranks = list(scene.groups.get(difference["group"], range(len(scene.ends))))
    rates = difference.get("rates")
    if rates:
        cause = [Line(LineKind.CAUSE, "other_rates", tuple(ranks), facts={"rates": rates})]
    else:
        cause = []
    facts: Any = dict(difference)
    return (scene.headline("replicas_differ", facts.pop("sides", [ranks]), **facts), *cause)


FIRST = (not_come, early)
"""Finders that come before the comparison of the calls' order."""
FINDERS = (left_over, out_of_phase, two_models, replicas)


# ---------------------------------------------------------------- words


def _times(count: int) -> str:
    return {0: "nothing", 1: "once"}.get(count, f"{count} times")


def _left_over(line: Line) -> Text:
    sent, received = (_times(line.facts[name]) for name in ("sent", "received"))
    nearest = say(", beside {}", at_place(line, 1)) if line.calls[1:] else ""
    template = "{} sent {} to {}, which received {}: a {} is left over{}."
    return say(template, line.ranks[:1], sent, line.ranks[1:], received, at_place(line, 0), nearest)


def _out_of_phase(line: Line) -> Text:
    parts = []
    for ranks, input_text in zip(sides(line), line.facts["inputs"], strict=True):
        parts.append(say("{}'s of {}", ranks, input_text))
    return say("Gradients of different inputs were averaged: {}.", listing(parts))


def _two_models(line: Line) -> Text:
    parts = []
    for index, ranks in enumerate(sides(line)):
        parts.append(say("{}'s {}", ranks, at_place(line, index)))
    return say("Gradients of two models were averaged: {}.", listing(parts))


def _splits(line: Line) -> Text:
    part = _part(line.facts["parts"][0])
    return say("The splits of {} do not fit: {}.", at_place(line, 0), part)


def _part(part: Sequence[int]) -> Text:
    sender, receiver, sent, expected = part
    if sender == receiver:
        return say("{} keeps {} and expects {} of itself", [sender], f"{sent}", f"{expected}")
    template = "{} sends {} to {}, which expects {}"
    return say(template, [sender], f"{sent}", [receiver], f"{expected}")


def _other_parts(line: Line) -> Text:
    parts = list(map(_part, line.facts["parts"]))
    left_out = len(parts) - FEW_PARTS
    omitted = [say("{} more parts do not fit", f"{left_out}")] if left_out > 0 else []
    return say("Also, {}.", listing([*parts[:FEW_PARTS], *omitted], "; "))


FEW_PARTS = 3
"""As many parts that do not fit are named, beside the first."""


def _replicas(line: Line) -> Text:
    facts: Any = line.facts
    by_step = by_key(sorted((step, int(rank)) for rank, step in facts["steps"].items()))
    steps_text = [say("step {} of {}", str(step), ranks) for step, ranks in by_step.items()]
    if len(steps_text) == 1:
        since = say(f"since step {next(iter(by_step))}")
    else:
        since = say("since {}", listing(steps_text))
    template = "{} finished, but their replicas differ {}: {}."
    return say(template, line.ranks, since if steps_text else "at the end", differing(facts))


def differing(replica: Replica) -> Text:
    """What differs between replicas: "weight and 3 more"."""
    what = "the optimizer's state of " * (replica["what"] == "state")
    more = f" and {replica['more']} more" if replica.get("more") else ""
    return say("{}{}{}", what, code(replica["name"]), more)


def _rates(line: Line) -> Text:
    by_rate = by_key((rate, int(rank)) for rank, rate in line.facts["rates"].items())
    rates_text = [say("{} on {}", f"{rate:g}", ranks) for rate, ranks in by_rate.items()]
    return say("The learning rate of that step was {}.", listing(rates_text))


WORDS: Mapping[str, Callable[[Line], Text]] = {
    "not_come": lambda line: say("{} did not come to monitored_barrier.", line.ranks),
    "early": lambda line: say(
        "{} ran out of inputs, where {} asks all ranks to raise.",
        line.ranks,
        code("join(throw_on_early_termination=True)"),
    ),
    "left_over": _left_over,
    "out_of_phase": _out_of_phase,
    "two_models": _two_models,
    "splits": _splits,
    "other_parts": _other_parts,
    "replicas_differ": _replicas,
    "other_rates": _rates,
}
