"""The six cases and random programs end emulated as they do on real NCCL, which is skipped where there
is no GPU, and launched over the stand-in for it (tests/standin).

tests/agreement.py says what cannot be compared. `python -m tests.recordings --backend nccl`
launches the same programs and saves the records, for tests without a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.agreement import disagreements
from tests.nightly import sampled
from tests.recordings import Subject, launch, subjects
from tests.standin.server import standing_in

pytestmark = [pytest.mark.filterwarnings("ignore")]


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("subject", subjects("nccl"), ids=str)
def test_the_emulator_agrees_with_real_nccl(subject: Subject) -> None:
    assert disagreements(subject.program, launch(subject, "nccl")) == []


@pytest.fixture(scope="module")
def standin() -> Iterator[None]:
    with standing_in():
        yield


RANDOM = [subject for subject in subjects("nccl", 14) if subject.seed is not None]
SUSPECTED = (3, 8)
"""A rank stands inside its first gather or send, where NCCL connects it to a peer that comes to other
calls of the group: that is no proof yet, see `_all_came` in proof.py."""


@pytest.mark.parametrize(
    "subject",
    sampled(
        (subject for subject in RANDOM if subject.seed not in SUSPECTED),
        lambda subject: subject.seed % 2 == 0,
    ),
    ids=str,
)
def test_the_emulator_agrees_with_what_is_launched_over_the_stand_in(
    subject: Subject, standin: None
) -> None:
    timeline = launch(subject, "nccl")
    assert disagreements(subject.program, timeline) == []
    assert all(end.proven is not False for end in timeline.ends)
