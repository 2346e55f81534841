"""A sample of the fault drills: see drills.py."""

from __future__ import annotations

import pytest

from tests import drills


@pytest.mark.timeout(600)
def test_a_sample_of_the_drills_leaves_nothing_and_ends_as_it_should(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The surrounding is one that broke launch: its streams are closed. test_isolation has every
    misdeed."""
    counts = ["--launches", "17", "--files", "12", "--programs", "4"]
    code = drills.main([*counts, "--surroundings", "stdin, stdout and stderr closed"])
    assert code == 0, capsys.readouterr().out
