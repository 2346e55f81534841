"""The content of the gallery's page; test_first_screen.py tests its drawing and controls."""

from __future__ import annotations

import re

import pytest

from joinlab.picture.gallery import side_by_side
from tests.first_screen import gallery
from tests.picture.test_page import data_of


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return gallery(tmp_path_factory.mktemp("gallery") / "demo.html")


def test_every_run_says_how_it_ended_where_no_script_runs(written):
    page = written.read_text("utf-8")
    ends = re.findall(r'<span class="small">(.*?)</span>', page)
    assert len(ends) == 18 and ends[:3] == ["✓ both finish"] * 3
    assert ends[3:6] == ["… both finish, a call left pending"] * 2 + ["✕ rank 1 raises"]
    # case 4 on the three fabrics
    assert ends[9:12] == [
        "✕ rank 0 hangs",
        "✕ rank 1 hangs",
        "✕ both hang",
    ]
    assert page.count('<input type="radio"') == 18 and page.count("checked>") == 1
    runs = data_of(page)["gallery"]["runs"].values()
    notes = [note for table in runs for row in table for _, _, note in row]
    assert "as documented" in notes
    assert any(
        note.startswith("documented: rank 0 hangs; rank 1 error from a garbage") for note in notes
    )


def test_the_lines_that_differ_are_marked_row_by_row(written):
    loops = re.findall(r"</b><code>(.*?)</code>", written.read_text("utf-8"))
    assert len({loop.count("<span") for loop in loops}) == 1
    marked = [re.findall("<span class=differs>(.*?)</span>", loop) for loop in loops]
    join, inside, after = "with model.join():", "\tdist.barrier()", "dist.barrier()"
    assert marked == [[join], [], [inside], [join, "\t" + inside], [after], [join, after]]


def test_a_line_that_occurs_twice_is_shown_twice():
    one, other = side_by_side([["f()", "g()", "f()"], ["f()", "h()"]])
    assert [line for line, _ in one] == ["f()", "", "g()", "f()"]
    assert [line for line, _ in other] == ["f()", "h()", "", ""]
