"""The six cases and random programs end emulated as they do on real NCCL, which is skipped where there
is no GPU; test_standin.py launches some of them over the stand-in for it.

tests/agreement.py says what cannot be compared. `python -m tests.recordings --backend nccl`
launches the same programs and saves the records, for tests without a GPU.
"""

from __future__ import annotations

import pytest

from tests.agreement import disagreements
from tests.recordings import Subject, launch, subjects

pytestmark = [pytest.mark.filterwarnings("ignore")]


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("subject", subjects("nccl"), ids=str)
def test_the_emulator_agrees_with_real_nccl(subject: Subject) -> None:
    assert disagreements(subject.program, launch(subject, "nccl")) == []
