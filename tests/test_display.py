"""What a notebook shows of a Timeline, in a real IPython shell."""

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
from timelines import Writer, case_timeline

from joinlab import display
from joinlab.timeline import Ending, timeline_from_rows

WIDGET = "application/vnd.jupyter.widget-view+json"


def shown(timeline, media=("text/html", WIDGET, "image/svg+xml"), person=True):
    """What `timeline` at the end of a cell puts out: printed text, and the media types of each output."""
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


def test_a_notebook_shows_the_diagnosis_and_the_view():
    _, (diagnosis, picture) = shown(case_timeline(4, 2))
    assert "Both ranks" in diagnosis["text/html"]
    assert picture[WIDGET]["model_id"]
    assert ET.fromstring(picture["image/svg+xml"]).tag.endswith("svg")
    assert "Measured: 2 real processes" in picture["image/svg+xml"]
    assert picture["text/plain"].startswith("<Timeline of 'case_4'")


def test_where_nobody_can_answer_a_notebook_shows_the_picture_alone():
    _, (diagnosis, picture) = shown(case_timeline(4, 2), person=False)
    assert "Both ranks" in diagnosis["text/html"]
    assert picture.keys() == {"image/svg+xml", "text/plain"}


def test_a_terminal_shows_text():
    printed, outputs = shown(case_timeline(4, 2), media=())
    assert outputs == [] and "<Timeline of 'case_4'" in printed and "Both ranks" in printed


def test_a_timeline_without_calls_is_shown():
    _, outputs = shown(timeline_from_rows([], [Ending("finished")], {"backend": "gloo"}))
    assert "No call was recorded." in outputs[1]["image/svg+xml"]


def test_a_timeline_that_would_choke_the_browser_is_not_drawn_unasked(monkeypatch):
    monkeypatch.setattr(display, "MAX_CALLS", 1)
    writer = Writer()
    for rank in (0, 1):
        writer.call(rank, "all_reduce")
    printed, outputs = shown(writer.timeline([Ending("finished")] * 2))
    assert len(outputs) == 1 and "joinlab.View(timeline) draws them" in printed


def test_registering_without_a_shell_does_nothing():
    assert display.register() is False


def test_registering_imports_nothing_heavy():
    code = (
        "import sys, IPython; from joinlab import display;"
        "from IPython.core.interactiveshell import InteractiveShell as S; S.instance();"
        "assert display.register(); print(*{'torch', 'plotly', 'polars', 'ipywidgets', 'anywidget'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == ""


def test_a_notebook_made_into_a_page_shows_the_picture_where_the_view_cannot_live():
    nbformat, nbconvert = pytest.importorskip("nbformat"), pytest.importorskip("nbconvert")
    _, outputs = shown(case_timeline(4, 2))
    assert WIDGET in outputs[1]
    kept = [nbformat.v4.new_output("display_data", one) for one in outputs]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("timeline", outputs=kept)])
    text, _ = nbconvert.HTMLExporter().from_notebook_node(notebook)
    (picture,) = re.findall(r'src="data:image/svg\+xml;base64,([^"]*)"', text)
    assert "Both ranks" in text and "hung (proven)" in base64.b64decode(picture).decode()
