"""Checks the table of tests/torchrun_jobs.py: the lines that it names, and the stories of two jobs."""

from __future__ import annotations

from functools import partial

import pytest

from tests import torchrun_jobs
from tests.forked import forked, starter


def test_the_lines_that_a_job_names_stand_in_its_script() -> None:
    for name, row in torchrun_jobs.jobs().items():
        for text in (*row.parts, *row.may, *row.calls, *row.raised, *row.stands):
            assert torchrun_jobs.place(name, text), name


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_what_is_said_of_a_job_is_so_and_names_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    # These ranks are forked: torch is loaded already.
    monkeypatch.setattr(torchrun_jobs, "QUIET_S", 10.0)
    with starter() as process:
        for name in ("02_early_stop", "19_lock_deadlock"):
            assert torchrun_jobs.check(name, partial(forked, process))[0] == [], name
