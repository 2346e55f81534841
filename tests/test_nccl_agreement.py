"""The six cases and random programs end emulated as they do on real NCCL. Skipped where there is no
GPU.

tests/agreement.py says what cannot be compared. `python -m tests.recordings --backend nccl`
launches the same programs and saves the records, for tests without a GPU.
"""

from __future__ import annotations

import pytest

from tests.agreement import disagreements
from tests.recordings import Subject, launch, subjects

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("subject", subjects("nccl"), ids=str)
def test_the_emulator_agrees_with_real_nccl(subject: Subject) -> None:
    assert disagreements(subject.program, launch(subject, "nccl")) == []
