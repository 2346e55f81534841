"""Texts in joinlab's output: no text from a program or a file can control the terminal."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace

import pytest
from ipykernel.compiler import XCachingCompiler

from joinlab.cli import report
from joinlab.picture.first_screen import first_screen
from joinlab.picture.lane_data import pack
from joinlab.picture.page import write_html
from joinlab.picture.svg import svg
from joinlab.showing import short_site
from joinlab.story.judge import diagnose
from joinlab.timeline import Ending, EndKind, timeline_from_rows
from tests.random_timelines import unzipped


def test_what_controls_a_screen_leaves_as_escapes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control characters, writing directions and lone surrogates, in every text that a program or a
    stranger chose."""
    hostile = "\x1b]52;c;eA==\x07\x1b[2J\x00\x9b \udce9\ud800 \u202eabc\r"
    call = {
        "rank": 0,
        "group": "0",
        "seq": 0,
        "op": "all_reduce",
        "dtype": "float32",
        "enqueued_ns": 1,
    }
    call |= {
        "origin": hostile,
        "error": hostile,
        "call_site": f"{hostile}.py:1",
        "stack": [hostile],
    }
    meta = {"program": hostile, "engine": "launched", "backend": "gloo", "inputs": [1, 1]}
    meta["source"] = {"file": f"{hostile}.py", "first_line": 1, "text": hostile}
    timeline = timeline_from_rows(
        [call],
        [Ending(EndKind.RAISED, call=0, group="0", text=hostile), Ending(EndKind.FINISHED)],
        meta,
        output=(hostile, ""),
    )
    diagnosis = diagnose(timeline)
    report.Screen().print(report.run_report(timeline))
    monkeypatch.setenv("FORCE_COLOR", "1")
    report.Screen().print(report.run_report(timeline))
    texts = [
        capsys.readouterr().out,
        str(diagnosis),
        diagnosis._repr_html_(),
        svg(first_screen(timeline), heading=hostile),
        write_html({hostile: timeline}, tmp_path / "page.html").read_text(),
        unzipped(pack(timeline)).partition(b"\0")[0].decode(),
    ]
    ET.fromstring(texts[3])
    for text in texts:
        assert "\\x1b]52;c;eA==" in text.replace("\\\\", "\\"), text
        assert not {sign for sign in hostile if not sign.isprintable()} & set(text), text


def test_a_line_of_a_notebook_is_named_by_its_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the compiler of a notebook's kernel knows its cells; of another kernel's, no number is
    known."""
    compiler = XCachingCompiler()
    file = compiler.cache("import joinlab\n", 2)
    shell = SimpleNamespace(compile=compiler)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert short_site(f"{file}:6") == "In [2], line 6"
    assert short_site("folder/ipykernel_7/186561581.py:6") == "a notebook's cell, line 6"
    assert short_site("folder/train.py:6") == "train.py:6"
