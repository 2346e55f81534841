"""What gloo refuses, what memory it works on, and what its Works say: emulated as it is in real processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import joinlab
from joinlab import Timeline, emulate
from joinlab.timeline import EndKind
from tests import gloo_probes as probes
from tests.agreement import differences, what
from tests.gloo_probes import Probe, answers

pytestmark = pytest.mark.filterwarnings("ignore")

SETS = {
    "refused": probes.REFUSED,
    "by dtype": probes.BY_DTYPE,
    "strided": probes.STRIDED,
    "uneven": probes.UNEVEN,
    "sparse": probes.SPARSE,
    "works": probes.WORKS,
}


def launch(program: Any, ranks: int) -> Timeline:
    return joinlab.launch(program, (1,) * ranks, "gloo", no_progress=2.0, on_output=None, progress=False)


def told(timeline: Timeline) -> list[list[str | None]]:
    return [[what(answer) for answer in answered] for answered in timeline.returns]


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("asked", SETS.values(), ids=SETS)
def test_it_answers_as_real_processes_do(asked: Sequence[Probe], ranks: int) -> None:
    launched = launch(answers(asked), ranks)
    assert {end.kind for end in launched.ends} == {EndKind.FINISHED}
    emulated = emulate(answers(asked), (1,) * ranks, "gloo")
    assert {end.kind for end in emulated.ends} == {EndKind.FINISHED}, emulated.ends
    for mine, real in zip(told(emulated), told(launched), strict=True):
        for one, other in zip(mine, real, strict=True):
            assert one == other
    assert differences(emulated, launched) == []


def test_every_probe_is_asked() -> None:
    written = {value for value in vars(probes).values() if getattr(value, "__module__", "") == probes.__name__}
    asked = {probe for asked in SETS.values() for probe in asked}
    helpers = {probes.answers}
    assert {one.__name__ for one in written - asked - helpers if not one.__name__.startswith("_")} == set()
