"""A sample of the fault drills: see drills.py."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from joinlab.program.parquet_footer import room
from tests import drills
from tests.drill_files import MAX_BYTES, page


@pytest.mark.timeout(600)
def test_a_sample_of_the_drills_leaves_nothing_and_ends_as_it_should(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The surrounding is one that broke launch: its streams are closed. test_isolation has every
    misdeed."""
    counts = ["--launches", "17", "--files", "12", "--programs", "4"]
    code = drills.main([*counts, "--surroundings", "stdin, stdout and stderr closed"])
    assert code == 0, capsys.readouterr().out


def test_a_page_that_claims_more_than_its_column_is_refused_before_polars_makes_room_for_it() -> (
    None
):
    """polars makes room for -1 values, 2**61 bytes, and the process ends."""
    said = set()
    for seed in range(60):
        try:
            said.add("too large" if room(page(random.Random(seed))) > MAX_BYTES else "")
        except ValueError as error:
            said.add(str(error))
    another, more = (
        "a parquet footer of another form",
        "a page of a parquet file that claims more values than its column has",
    )
    assert {"", "too large", another, more} <= said  # -1 values are of another form


def test_a_table_of_joinlabs_own_takes_the_room_of_its_values(tmp_path: Path) -> None:
    import polars as pl

    path = tmp_path / "x.parquet"
    pl.DataFrame({"a": [1] * 5000, "b": [[1, 2]] * 5000}).write_parquet(path, row_group_size=100)
    assert room(path.read_bytes()) == 8 * 3 * 5000
