"""The notebooks' form: short cells, few words, no outputs, and a link from each to the next.

test_pages.py tests that they run and give no answer away.
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from joinlab.course.exercises import EXERCISES
from joinlab.course.questions import questions

FOLDER = Path(__file__).parent.parent / "notebooks"
COURSE = (
    "01_first_look",
    "02_collectives",
    "03_ddp_inside",
    "04_build_ddp",
    "05_six_cases",
    "06_case_4_call_by_call",
    "07_join_options",
    "08_build_join",
    "09_your_own_joinable",
    "10_order",
    "11_what_join_costs",
    "12_when_your_job_hangs",
    "13_your_own_job",
)
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def load(path: Path) -> dict[str, Any]:
    notebook: dict[str, Any] = json.loads(path.read_text())
    return notebook


def cells(path: Path, kind: str) -> list[str]:
    return ["".join(cell["source"]) for cell in load(path)["cells"] if cell["cell_type"] == kind]


def lines(code: str) -> int:
    """Lines of code, without empty ones."""
    return sum(bool(line.strip()) for line in code.splitlines())


def words(text: str) -> int:
    return len(re.findall(r"\w+", text))


def test_every_notebook_is_one_of_the_course():
    assert tuple(path.stem for path in NOTEBOOKS) == COURSE


@every_notebook
def test_outputs_are_stripped(path):
    for cell in load(path)["cells"]:
        assert cell["metadata"] == {}
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)


@every_notebook
def test_cells_have_stable_names(path):
    ids = [cell["id"] for cell in load(path)["cells"]]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(rf"{path.stem[:2]}-[\w-]+", name) for name in ids)


@every_notebook
def test_cells_are_short(path):
    lengths = [lines(code) for code in cells(path, "code")]
    assert max(lengths) <= 12
    assert median(lengths) <= 4


@every_notebook
def test_imports_stand_in_the_first_cell(path):
    first, *rest = cells(path, "code")
    assert all(isinstance(node, ast.Import | ast.ImportFrom) for node in ast.parse(first).body)
    for code in rest:
        assert not [
            node
            for node in ast.walk(ast.parse(code))
            if isinstance(node, ast.Import | ast.ImportFrom)
        ], code


def prose(path: Path) -> list[str]:
    """Without the line with the links to the other notebooks."""
    return [re.sub(r"(?m)^The course: .*$", "", text) for text in cells(path, "markdown")]


def test_the_course_is_for_doing_and_its_words_are_few():
    assert sum(len(text.split()) for path in NOTEBOOKS for text in prose(path)) <= 6000
    asked = [" ".join((one.ask, one.code, *one.choices, one.why)) for one in questions().values()]
    assert sum(len(text.split()) for text in asked) <= 5565
    assert sum("-" in name for name in questions()) >= 60


@every_notebook
def test_there_is_no_wall_of_prose(path):
    for text in prose(path):
        assert all(words(paragraph) <= 90 for paragraph in text.split("\n\n")), text
        assert words(text) <= 170, text


@every_notebook
def test_it_says_its_question_its_source_and_where_in_the_course_one_is(path):
    number = COURSE.index(path.stem) + 1
    first = cells(path, "markdown")[0]
    assert first.startswith(f"# {number}. ")
    assert "**The question: " in first
    assert re.search(r"\*Sources?: ", first)
    links = set(re.findall(r"\]\((\w+)\.ipynb", first))
    assert links == set(COURSE) - {path.stem}
    assert re.search(rf"\*\*{number} ", first)


@every_notebook
def test_it_states_the_minutes_that_are_estimated_for_it(path):
    from tests.minutes import minutes

    assert f"About {minutes(path)} minutes" in " ".join(cells(path, "markdown")[0].split())


@every_notebook
def test_one_types_at_least_every_ten_minutes_and_in_the_first_five(path):
    from tests.minutes import stretches

    found = stretches(path)
    assert max(found) <= 10
    assert COURSE.index(path.stem) > 0 or found[0] <= 5


@every_notebook
def test_the_teaching_page_has_the_minute_in_which_each_part_begins(path):
    from tests.minutes import sections

    assert f"| {int(path.stem[:2])} | {sections(path)} |" in (FOLDER / "00_teaching.md").read_text()


def test_the_route_of_three_hours_takes_three_hours():
    text = (
        (FOLDER / "00_teaching.md").read_text().partition("## Three hours")[2].partition("\n## ")[0]
    )
    assert sum(map(int, re.findall(r"(?m)^\| (\d+) \|", text))) == 3 * 60


@every_notebook
def test_it_asks_for_a_prediction_before_it_runs(path):
    assert sum("**Predict" in text for text in cells(path, "markdown")) >= 3


@every_notebook
def test_it_leads_to_the_next(path):
    number = COURSE.index(path.stem) + 1
    if number < len(COURSE):
        assert f"]({COURSE[number]}.ipynb)**" in cells(path, "markdown")[-1]


@every_notebook
def test_links_lead_to_notebooks_of_the_course(path):
    targets = re.findall(r"\]\(([^)\s]+\.ipynb)", "\n".join(cells(path, "markdown")))
    assert {target.removesuffix(".ipynb") for target in targets} <= set(COURSE)


@every_notebook
def test_it_ends_with_its_questions(path):
    assert cells(path, "code")[-1] == f"joinlab.quiz({COURSE.index(path.stem) + 1})"


@every_notebook
def test_its_predictions_are_asked_where_they_can_be_answered(path):
    number = COURSE.index(path.stem) + 1
    asked = re.findall(r'joinlab\.quiz\("([\w-]+)"|ask="([\w-]+)"', "\n".join(cells(path, "code")))
    names = [first or second for first, second in asked]
    assert names == [name for name in questions() if name.startswith(f"{number}-")]


@every_notebook
def test_its_code_reads_no_file_beside_it_names_no_device_and_asserts_nothing(path):
    assert not re.search(
        r"\.\./|data/|\.cuda\b|\.to\(|\bdevice=|is_available|\bassert ",
        "\n".join(cells(path, "code")),
    )


@every_notebook
def test_exercises_and_solutions_exist_and_solutions_are_only_for_those_who_ask(path):
    text = "\n".join(cells(path, "code") + cells(path, "markdown"))
    assert set(re.findall(r'(?:check|solution)\("(\w+)"', text)) <= set(EXERCISES)
    assert "solution" not in "\n".join(cells(path, "code"))


def code_of_all() -> str:
    return "\n".join(code for path in NOTEBOOKS for code in cells(path, "code"))


def test_every_exercise_is_asked_in_a_notebook():
    assert [name for name in EXERCISES if f'"{name}"' not in code_of_all()] == []
