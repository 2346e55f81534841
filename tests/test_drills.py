"""A sample of the fault drills: see drills.py."""

from __future__ import annotations

import pytest

from tests import drills


@pytest.mark.timeout(600)
def test_forty_drills_leave_nothing_and_end_as_they_should(capsys: pytest.CaptureFixture[str]) -> None:
    """17 launches, 12 files and 10 programs; the surrounding is one that broke launch: its streams are closed."""
    counts = ["--launches", "17", "--files", "12", "--programs", "10"]
    code = drills.main([*counts, "--surroundings", "stdin, stdout and stderr closed"])
    assert code == 0, capsys.readouterr().out
