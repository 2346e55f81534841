"""A sample of the fault drills: see drills.py."""

from __future__ import annotations

import pytest

from tests import drills


@pytest.mark.timeout(600)
def test_a_sample_of_the_drills_leaves_nothing_and_ends_as_it_should(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each drill of launches once, but that which keeps every CPU busy. The surrounding is one that
    broke launch: its streams are closed. `python -m tests.nightly` draws 300 launches and has every
    surrounding; test_isolation has every misdeed."""
    monkeypatch.delitem(drills.DRILLS, "healthy, loaded")
    counts = ["--launches", str(len(drills.DRILLS)), "--files", "12", "--programs", "4"]
    code = drills.main([*counts, "--surroundings", "stdin, stdout and stderr closed"])
    assert code == 0, capsys.readouterr().out
