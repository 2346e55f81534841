"""The possible endings of a program: it is emulated once for each value that real hardware leaves
undefined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from joinlab.emulator.emulate import emulate
from joinlab.errors import ProgramError
from joinlab.program.program import Program
from joinlab.timeline import Ending, EndKind, Timeline

BARRIER_VALUES = (0, 7, 0x100, 0x3F800000)
"""Values of an undefined word: zero, small, one whose lowest byte alone is zero, and a float's
1."""

PADS = (0, 1, 0x3F800000, 0x7FC00000, 0x80000000, 0xFFFFFFFF)
"""Values of the undefined half of a line: zero, small, a float's 1 and nan, and two that are
negative if signed."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One way in which a program can end.

    ends      one Ending per rank
    knobs     every setting of era, barrier_value, pad and gpu that was tried and led here
    timeline  of the first of them
    """

    ends: tuple[Ending, ...]
    knobs: tuple[Mapping[str, object], ...]
    timeline: Timeline

    def __repr__(self) -> str:
        ends = ", ".join(f"{rank}: {end}" for rank, end in enumerate(self.ends))
        return f"<Outcome {{{ends}}} for {len(self.knobs)} settings, first {dict(self.knobs[0])}>"


def endings(
    program: Program, inputs: Sequence[int] = (5, 6), **options: Any
) -> tuple[Outcome, ...]:
    """Emulate `program` on NCCL for each value of its undefined memory; return each distinct ending
    once.

    Two endings are the same if every rank ends in the same way, at the same call, with the same
    type of exception. Settings that make no difference to `program` are tried, too. `options` are
    those of `emulate`; era, barrier_value and pad are varied unless they are given, and for the
    first pad also gpu="P100", whose threads make progress together.

        for outcome in joinlab.endings(joinlab.cases.case_4, inputs=(2, 3)):
            print(outcome.ends, outcome.knobs)
    """
    if options.get("backend", "nccl") != "nccl":
        raise ProgramError(
            'endings() varies what NCCL leaves undefined, so it takes no other backend than "nccl"'
        )
    found: dict[tuple[Any, ...], tuple[list[dict[str, object]], Timeline]] = {}
    names = ("era", "barrier_value", "pad", "gpu")
    for knobs in _settings({name: options.pop(name) for name in names if name in options}):
        timeline = emulate(program, inputs, **knobs, **options)
        found.setdefault(tuple(map(_kind, timeline.ends)), ([], timeline))[0].append(knobs)
    return tuple(
        Outcome(timeline.ends, tuple(knobs), timeline) for knobs, timeline in found.values()
    )


def _settings(given: Mapping[str, object]) -> list[dict[str, Any]]:
    eras = [given["era"]] if "era" in given else ["today", "1.9"]
    pads = [given["pad"]] if "pad" in given else PADS
    if "gpu" in given:
        gpus = [{"gpu": given["gpu"]}]
    else:
        gpus = [{}, {"gpu": "P100"}]
    settings = []
    for era in eras:
        values = [given["barrier_value"]] if "barrier_value" in given else BARRIER_VALUES
        for value in values if era == "1.9" else [None]:  # only 1.9 has a word that no one had set
            for pad in pads:
                word = {} if value is None else {"barrier_value": value}
                for gpu in gpus if pad == pads[0] else gpus[:1]:
                    settings.append({"era": era, **word, "pad": pad, **gpu})
    return settings


def _kind(end: Ending) -> tuple[Any, ...]:
    if end.kind is EndKind.RAISED:
        text = end.text.partition(":")[0]
    else:
        text = end.text
    return end.kind, end.pending, end.group, end.call, end.proven, text
