"""`make bench`: each row is printed once measured, and a part that cannot run does not stop the
others."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.bench import __main__ as measuring
from tests.bench.__main__ import PARTS, main, measure
from tests.bench.figures import Figure


def one(name: str) -> Figure:
    return Figure(name, "2 ms / 1 ms", "2.0", "at most 3")


def test_rows_are_printed_as_they_come_and_what_fails_or_cannot_run_is_named_at_the_end(
    capsys,
) -> None:
    seen = []

    def fails() -> Iterator[Figure]:
        yield one("before")
        seen.append(capsys.readouterr().out)
        raise OSError("no such thing\nand more")

    def unwanted() -> Iterator[Figure]:
        raise AssertionError("it must not run")
        yield

    parts = {"launches": fails, "steps": lambda: iter([one("after")]), "sizes": unwanted}
    assert measure(parts, browser=None) == 1
    assert "before" in seen[0] and "after" not in seen[0]
    rows = capsys.readouterr().out
    assert "after" in rows and "left out: sizes, which needs Chromium" in rows
    assert rows.rstrip().endswith("failed: launches: OSError: no such thing")
    assert measure({"sizes": unwanted, "steps": parts["steps"]}, browser=None) == 0


def test_each_part_is_a_module_that_measures() -> None:
    for name in PARTS:
        module = pytest.importorskip(f"tests.bench.{name}", exc_type=ImportError)
        assert callable(module.measure)


def test_an_unknown_part_names_those_that_there_are(capsys) -> None:
    assert main(["nothing"]) == 2
    assert "no part 'nothing'; there are launches, steps" in capsys.readouterr().err


def test_a_part_that_finds_nothing_in_time_is_ended_and_says_so(capsys, monkeypatch) -> None:
    monkeypatch.setattr(measuring, "LIMIT_S", 1)

    def waits() -> Iterator[Figure]:
        yield one("before")
        threading.Event().wait(60)
        yield one("never")

    assert measure({"steps": waits, "dumps": lambda: iter([one("after")])}, browser=None) == 1
    rows = capsys.readouterr().out
    assert "before" in rows and "never" not in rows and "after" in rows
    assert "failed: steps: TimeoutError: found nothing for 1 s" in rows
