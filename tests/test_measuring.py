"""`make bench`: each row is printed once measured, and a part that cannot run does not stop the others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.bench.__main__ import PARTS, main, measure
from tests.bench.figures import Figure


def one(name: str) -> Figure:
    return Figure(name, "2 ms / 1 ms", "2.0", "at most 3")


def test_a_row_stands_there_before_the_next_is_measured(capsys) -> None:
    seen = []

    def part() -> Iterator[Figure]:
        yield one("first")
        seen.append(capsys.readouterr().out)
        yield one("second")

    assert measure({"launches": part}, browser=None) == 0
    assert "first" in seen[0] and "second" not in seen[0]
    assert "second" in capsys.readouterr().out


def test_a_part_that_fails_is_named_and_the_others_stand(capsys) -> None:
    def fails() -> Iterator[Figure]:
        yield one("before")
        raise OSError("no such thing\nand more")

    assert measure({"launches": fails, "steps": lambda: iter([one("after")])}, browser=None) == 1
    rows = capsys.readouterr().out
    assert rows.index("before") < rows.index("after") < rows.index("failed: launches: OSError: no such thing\n")


def test_without_a_browser_its_parts_are_left_out_and_nothing_has_failed(capsys) -> None:
    def unwanted() -> Iterator[Figure]:
        raise AssertionError("it must not run")
        yield

    assert measure({"views": unwanted, "steps": lambda: iter([one("kept")])}, browser=None) == 0
    out = capsys.readouterr().out
    assert "kept" in out and "left out: views, which needs Chromium" in out


def test_each_part_is_a_module_that_measures() -> None:
    for name in PARTS:
        module = pytest.importorskip(f"tests.bench.{name}", exc_type=ImportError)
        assert callable(module.measure)


def test_an_unknown_part_names_those_that_there_are(capsys) -> None:
    assert main(["nothing"]) == 2
    assert "no part 'nothing'; there are launches, steps" in capsys.readouterr().err
