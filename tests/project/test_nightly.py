"""What `make test` leaves out runs every night."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests import nightly

ROOT = Path(__file__).parents[2]


def test_make_test_leaves_out_what_is_marked_nightly_and_nothing_else() -> None:
    recipe = (ROOT / "Makefile").read_text("utf-8").partition("\ntest: ")[2].partition("\n\n")[0]
    chosen = re.findall(r'-m "([^"]+)"', recipe)
    assert chosen == ["browser and not nightly", "not browser and not nightly"]
    assert nightly.MARKED in nightly.CHECKS
    words = shlex.split(nightly.MARKED)
    assert words[words.index("-m") + 1 :] == ["nightly", "tests"]


def test_of_a_table_the_rest_is_marked() -> None:
    assert nightly.sampled("ab", "b".__eq__) == [pytest.param("a", marks=pytest.mark.nightly), "b"]
    rows = nightly.sampled([(1, 2), (3, 4)], lambda row: row[0] == 1)
    assert rows == [(1, 2), pytest.param(3, 4, marks=pytest.mark.nightly)]
    with pytest.raises(AssertionError, match="a sample of nothing"):
        nightly.sampled("ab", "c".__eq__)


def test_each_check_names_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []

    def run(words: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        ran.append(words)
        return subprocess.CompletedProcess(words, int("notebooks" in words))

    monkeypatch.setattr(subprocess, "run", run)
    assert nightly.main([]) == 1 and nightly.main(["nightly"]) == 0
    for python, option, module, *_ in ran:
        assert (python, option) == (sys.executable, "-m")
        assert module == "pytest" or (ROOT / f"{module.replace('.', '/')}.py").exists()
    assert len(ran) > len(nightly.CHECKS)
