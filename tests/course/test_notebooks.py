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
from joinlab.course.questions import BLOCK, of_notebook, with_questions

FOLDER = Path(__file__).parents[2] / "notebooks"
COURSE = (
    "01_six_loops",
    "02_case_4_call_by_call",
    "03_join_options",
    "04_build_join",
    "05_when_your_job_hangs",
    "ddp_1_collectives",
    "ddp_2_inside",
    "ddp_3_build",
    "further_1_joinable",
    "further_2_order",
    "further_3_cost",
)
NOTEBOOKS = [FOLDER / f"{stem}.ipynb" for stem in COURSE]
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
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == sorted(COURSE)


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
    track, number = path.stem.split("_")[:2]
    begin = track if track.isdigit() else track + number
    assert all(re.fullmatch(rf"{begin}-[\w-]+", name) for name in ids)


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
    """The markdown cells without the links to the other notebooks, the questions, and the words that
    stand for a picture."""
    from tests.notebook_minutes import prose_of

    return [prose_of(BLOCK.sub("", text)) for text in cells(path, "markdown")]


@every_notebook
def test_there_is_no_wall_of_prose(path):
    for text in prose(path):
        assert all(words(paragraph) <= 90 for paragraph in text.split("\n\n")), text
        assert words(text) <= 220, text


@every_notebook
def test_it_says_its_question_its_source_and_where_in_the_course_one_is(path):
    first = cells(path, "markdown")[0]
    name = re.match(r"# ((?:DDP |Further )?\d)\. (.*)\n", first)
    assert name and f"**{name[1]} {name[2]}**" in first
    assert "**The question: " in first
    assert re.search(r"\*Sources?: ", first)
    links = set(re.findall(r"\]\((\w+)\.ipynb", first))
    assert links == set(COURSE) - {path.stem}


@every_notebook
def test_it_states_the_minutes_that_are_estimated_for_it(path):
    from tests.notebook_minutes import minutes

    assert f"About {minutes(path)} minutes" in " ".join(cells(path, "markdown")[0].split())


@every_notebook
def test_one_decides_or_types_something_every_few_minutes(path):
    from tests.notebook_minutes import stretches

    assert max(stretches(path)) <= 5


@every_notebook
def test_the_teaching_page_has_the_minute_in_which_each_part_begins(path):
    from tests.notebook_minutes import sections

    title = re.match(r"# (.*)\.", cells(path, "markdown")[0])[1]
    assert f"| {title} | {sections(path)} |" in (FOLDER / "00_teaching.md").read_text()


def test_the_main_line_takes_three_hours_as_is_said():
    from tests.notebook_minutes import exact_minutes

    assert 170 <= sum(map(exact_minutes, NOTEBOOKS[:5])) <= 180
    assert "main line takes three hours" in (FOLDER.parent / "README.md").read_text()


def test_the_route_of_three_hours_takes_three_hours():
    text = (
        (FOLDER / "00_teaching.md").read_text().partition("## Three hours")[2].partition("\n## ")[0]
    )
    assert sum(map(int, re.findall(r"(?m)^\| (\d+) \|", text))) == 3 * 60


@every_notebook
def test_it_leads_to_the_next(path):
    number = COURSE.index(path.stem) + 1
    following = COURSE[number % len(COURSE)]
    assert f"]({following}.ipynb)" in cells(path, "markdown")[-1] or number == 8


# ---- questions and pictures


@every_notebook
def test_each_question_stands_as_text_directly_above_its_widget(path):
    asked = []
    above: list[str] = []
    for cell in load(path)["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            above = re.findall(r"<!-- question (\w+) -->", text)
            assert with_questions(text) == text, "run python -m joinlab.course.questions"
        for name in re.findall(r'joinlab\.quiz\("(\w+)"', text):
            assert above == [name]
            asked.append(name)
    assert asked == [question.name for question in of_notebook(path.stem)] and len(asked) >= 6


@every_notebook
def test_github_shows_three_pictures_with_words_for_those_who_do_not_see_them(path):
    shown = re.findall(r"!\[([^]]*)\]\(([^)]*)\)", "\n".join(cells(path, "markdown")))
    assert len(shown) >= 3
    for text, target in shown:
        assert len(text.split()) >= 8
        assert (FOLDER / target).is_file() and target.startswith("pictures/")
    assert "](pictures/" not in "\n".join(
        line
        for text in cells(path, "markdown")
        for line in text.splitlines()
        if not line.startswith("![")
    )


def test_every_picture_is_shown_and_has_light_and_dark_colours():
    text = "\n".join(text for path in NOTEBOOKS for text in cells(path, "markdown"))
    for picture in (FOLDER / "pictures").iterdir():
        assert f"](pictures/{picture.name})" in text
        assert "prefers-color-scheme:dark" in picture.read_text("utf-8")


@every_notebook
def test_no_cell_is_for_the_machinery(path):
    code = "\n".join(cells(path, "code"))
    assert "pl.Config" not in code and "polars" not in code
    assert cells(path, "code")[-1] != "" and f'joinlab.progress("{path.stem}")' in code


@every_notebook
def test_links_lead_to_notebooks_of_the_course(path):
    targets = re.findall(r"\]\(([^)\s]+\.ipynb)", "\n".join(cells(path, "markdown")))
    assert {target.removesuffix(".ipynb") for target in targets} <= set(COURSE)


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
