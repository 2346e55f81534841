"""A Timeline's display in a notebook, in a real IPython shell."""

from __future__ import annotations

import base64
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from types import SimpleNamespace

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

import joinlab
from joinlab.notebook import display, stills
from joinlab.timeline import Ending, timeline_from_rows
from tests.bench.large import large
from tests.timelines import case_timeline

WIDGET = "application/vnd.jupyter.widget-view+json"


def shown(timeline, media=("text/html", WIDGET, "image/svg+xml"), person=True):
    """The outputs of a cell that ends in `timeline`: printed text, and the media types of each
    output."""
    shell = InteractiveShell.instance()
    try:
        shell.display_formatter.active_types = ["text/plain", *media]
        assert display.register()
        shell.kernel = SimpleNamespace(_allow_stdin=person)
        with capture_output() as said:
            shell.display_formatter.format(timeline)
        return said.stdout, [output.data for output in said.outputs]
    finally:
        InteractiveShell.clear_instance()


def drawn(still) -> list[str]:
    """The pictures in a still."""
    found = re.findall(r'src="data:image/svg\+xml;base64,([^"]*)"', still["text/html"])
    return [base64.b64decode(one).decode() for one in found]


def test_a_notebook_shows_the_view_and_a_verdict_and_a_picture_where_the_view_cannot_live():
    _, (still, view) = shown(case_timeline(4, 2))
    assert still["text/html"].count("Rank 1 hangs in barrier") == 1
    assert view[WIDGET]["model_id"] and "image/svg+xml" not in view
    (picture,) = drawn(still)
    assert ET.fromstring(picture).tag.endswith("svg") and "Measured: 2 real processes" in picture
    assert (
        stills.AGAIN in still["text/html"] and 'alt="Swimlanes. Rank 0 called' in still["text/html"]
    )
    assert (
        still["text/plain"].startswith("<Timeline of 'case_4'") and "kernel" in view["text/plain"]
    )


def test_the_view_knows_the_id_of_its_still():
    view = joinlab.View(case_timeline(4, 2))
    _, (still, _) = shown(view)
    assert f'data-view="{view._still}"' in still["text/html"] and len(drawn(still)) == 1
    _, (again, _) = shown(view)  # in two cells it is one view
    assert f'data-view="{view._still}"' in again["text/html"]


def test_a_still_does_not_reveal_a_covered_run():
    _, (still, _) = shown(joinlab.View(case_timeline(4, 2), covered=[0, 1]))
    assert (
        drawn(still) == []
        and "hung" not in str(still)
        and "Run the cell again" in still["text/html"]
    )


def test_a_comparison_leaves_both_pictures_and_its_sentence():
    made = joinlab.compare(case_timeline(4, 2, "nccl", "1.9"), case_timeline(4, 2, "nccl"))
    _, (still, view) = shown(made)
    assert len(drawn(still)) == 2 and "They part" in still["text/html"]
    one, other = (ET.fromstring(picture).get("width") for picture in drawn(still))
    assert one == other and view[WIDGET]["model_id"] == made.model_id


def test_a_bench_leaves_its_picture():
    made = joinlab.bench(case=1, inputs=(1, 2))
    _, (still, view) = shown(made)
    assert stills.AGAIN in still["text/html"] and len(drawn(still)) == 1
    assert (
        f'data-view="{made._still}"' in still["text/html"]
        and view[WIDGET]["model_id"] == made.model_id
    )
    made.close()


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda run: run, "Rank 1 hangs"),
        (joinlab.View, "Run the cell again"),
        (lambda run: joinlab.compare(run, run), "Run the cell again"),
    ],
)
def test_a_terminal_shows_text(made, words):
    printed, outputs = shown(made(case_timeline(4, 2)), media=())
    assert outputs == [] and "<Timeline of 'case_4'" in printed and words in printed


def test_without_a_person_a_notebook_shows_only_the_picture():
    _, (diagnosis, picture) = shown(case_timeline(4, 2), person=False)
    assert "Rank 1 hangs" in diagnosis["text/html"]
    assert picture.keys() == {"image/svg+xml", "text/plain"}


def test_a_timeline_without_calls_is_shown():
    _, outputs = shown(timeline_from_rows([], [Ending("finished")], {"backend": "gloo"}))
    assert "No call was recorded." in drawn(outputs[0])[0]


def test_of_a_large_timeline_the_picture_holds_what_tells():
    _, outputs = shown(large(2, 2100))
    assert " rows, all matched" in drawn(outputs[0])[0] and len(outputs[0]["text/html"]) < 400_000


def test_registering_without_a_shell_does_nothing():
    assert display.register() is False


def test_registering_imports_nothing_heavy():
    code = (
        "import sys, IPython; from joinlab.notebook import display;"
        "from IPython.core.interactiveshell import InteractiveShell as S; S.instance();"
        "assert display.register(); print(*{'torch', 'plotly', 'polars', 'ipywidgets', 'anywidget'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == ""


def test_a_notebook_made_into_a_page_shows_the_picture_where_the_view_cannot_live():
    nbformat, nbconvert = pytest.importorskip("nbformat"), pytest.importorskip("nbconvert")
    _, outputs = shown(case_timeline(4, 2))
    assert WIDGET in outputs[1]
    kept = [nbformat.v4.new_output("display_data", one) for one in outputs]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("timeline", outputs=kept)])
    text, _ = nbconvert.HTMLExporter().from_notebook_node(notebook)
    (picture,) = re.findall(r'src="data:image/svg\+xml;base64,([^"]*)"', text)
    assert "Rank 1 hangs in barrier" in text and "✕ waits…" in base64.b64decode(picture).decode()
