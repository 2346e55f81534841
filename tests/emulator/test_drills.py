"""A sample of the fault drills: see drills.py."""

from __future__ import annotations

import pytest

from tests import drills


@pytest.mark.timeout(600)
def test_a_sample_of_the_drills_leaves_nothing_and_ends_as_it_should(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each drill of launches once, but four: a healthy launch ends each of the others, one keeps
    every CPU busy, one is the first half of another, and test_launcher_process kills a caller. The
    surrounding is one that broke launch: its streams are closed. `python -m tests.nightly` draws
    300 launches and has every surrounding; test_isolation has every misdeed."""
    for name in ("healthy", "healthy, loaded", "interrupted", "caller killed"):
        monkeypatch.delitem(drills.DRILLS, name)
    counts = ["--launches", str(len(drills.DRILLS)), "--files", "12", "--programs", "4"]
    code = drills.main([*counts, "--surroundings", "stdin, stdout and stderr closed"])
    assert code == 0, capsys.readouterr().out
