"""A sample of the fault drills: see drills.py."""

from __future__ import annotations

import pytest

from tests import drills


@pytest.mark.timeout(600)
def test_forty_drills_leave_nothing_and_end_as_they_should(capsys: pytest.CaptureFixture[str]) -> None:
    code = drills.main(["--n", "40"])
    assert code == 0, capsys.readouterr().out
