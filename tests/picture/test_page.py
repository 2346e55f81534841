"""The page: its content, its safety, and that it is written whole or not at all."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser

import pytest

from joinlab import cases
from joinlab.analysis.wording import measured, sign, title
from joinlab.emulator.emulate import emulate
from joinlab.picture.page import MAX_OUTPUT, Position, page, slider_page, write_html
from joinlab.timeline import Ending, timeline_from_rows
from tests.random_timelines import lane_data
from tests.timelines import Writer, case_timeline

SOURCE = {
    "file": "project/train.py",
    "first_line": 30,
    "text": "for x in inputs:\n    model(x) < 1\n\n    barrier()\n",
}


def text_of(*timelines):
    """The page for names "run 1", "run 2", ..."""
    return page([(f"run {at}", one) for at, one in enumerate(timelines, 1)])


def data_of(made):
    """The lane data that a page holds."""
    return lane_data(base64.b64decode(re.search(r'id="data">(.*?)</script>', made)[1]))[0]


def hung(**meta):
    writer = Writer()
    writer.call(0, "all_reduce", done=False, call_site="project/train.py:31")
    writer.call(1, "barrier", done=False, call_site="project/train.py:33")
    return writer.timeline([Ending("hung", call=0, group="0", proven=True)] * 2, **meta)


class Outline(HTMLParser):
    """Collects tags, headings, ids and where links point."""

    VOID = frozenset({"meta", "input", "br", "link"})

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.ids, self.targets = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        at = dict(attrs)
        self.ids += [at["id"]] if "id" in at else []
        self.targets += [
            at[name][1:] for name in ("href", "aria-labelledby") if at.get(name, "").startswith("#")
        ]
        assert not {"src", "srcset"} & at.keys()
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_every_link_has_a_target():
    outline = Outline(text_of(case_timeline(1, 2), hung(source=SOURCE)))
    assert outline.open == []
    assert len(outline.ids) == len(set(outline.ids))
    assert set(outline.targets) <= set(outline.ids)
    for tag in ("header", "nav", "main", "h1", "h2", "h3", "section"):
        assert tag in outline.tags
    assert outline.tags.count("h1") == 1


def test_the_title_of_a_single_run_is_once_on_its_page():
    made = page([("The job now", hung())])
    assert re.findall(r"<(title|h1|h2)[^>]*>The job now<", made) == ["title", "h2"]


def test_each_run_has_its_title_diagnosis_data_and_table():
    made = text_of(case_timeline(4, 2), case_timeline(1, 2))
    assert made.count('<section class="run"') == 2
    assert re.findall(r'data-run="(\d)"', made) == ["0", "1"]
    data = data_of(made)
    assert [run["title"][:6] for run in data["runs"]] == ["case_4", "case_1"]
    assert "Both ranks" in made and "can never meet" in made
    assert made.count("<summary>The same as a table") == 2


def test_the_script_is_embedded_once_and_nothing_is_asked_of_a_network():
    made = page([("a", case_timeline(1, 1)), ("b", case_timeline(2, 1))])
    assert made.count("export class First ") == 1
    assert "default-src 'none'" in made
    assert not re.search(r"<(script|img|link|iframe)[^>]+(src|href)=", made)


def test_the_source_has_its_line_numbers_and_says_where_ranks_ended():
    made = text_of(hung(source=SOURCE))
    assert "The program, from train.py" in made
    assert re.search(r'<span class="no">30</span>for x in inputs:', made)
    assert re.search(
        r'<span class="no">31</span>    model\(x\) &lt; 1<span class="said">◂ rank 0 hung \(proven\) here',
        made,
    )
    assert re.search(
        r'<span class="no">33</span>    barrier\(\)<span class="said">◂ rank 1 hung', made
    )
    assert "Its source is not known." in text_of(hung())


def test_output_is_shown_escaped_and_its_end_is_kept():
    timeline = timeline_from_rows(
        [], [Ending("finished")] * 2, {"backend": "gloo"}, output=("<b>hi</b>\n", "")
    )
    made = text_of(timeline)
    assert "What rank 0 printed, 1 line<" in made and "&lt;b&gt;hi&lt;/b&gt;" in made
    assert "What rank 1 printed" not in made
    long = timeline_from_rows(
        [], [Ending("finished")], {"backend": "gloo"}, output=("x" * MAX_OUTPUT + "the end",)
    )
    made = text_of(long)
    assert "(7 characters left out" in made and "the end</pre>" in made


def test_nothing_from_a_program_is_taken_for_markup():
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"
    writer = Writer()
    writer.call(0, "all_reduce", evil, call_site=evil, done=False, error=evil)
    writer.call(1, "all_reduce", evil)
    source = {"file": evil, "first_line": 1, "text": evil}
    timeline = writer.timeline(
        [Ending("raised", call=0, group="0", text=evil), Ending("finished")],
        program=evil,
        source=source,
        backend="gloo",
    )
    made = page([(evil, timeline), (evil, timeline)])
    made += slider_page(
        evil, [(Position(evil, evil, (1, 2)), timeline)], Position(evil, evil, (1, 2))
    )
    assert "alert(1)</script>" not in made and "<img" not in made


def test_it_says_what_is_measured_and_what_is_modelled():
    versions = {"torch": "2.13.0"}
    assert measured(hung(versions=versions)).startswith(
        "Measured: 2 real processes on gloo, PyTorch 2.13.0."
    )
    assert measured(hung(engine="emulated")).startswith("Modelled: ")
    knobs = {"era": "1.9", "barrier_value": 7, "pad": 3}
    assert "one byte that nobody set, here 7, and 3 as" in measured(
        hung(engine="emulated", backend="nccl", emulation=knobs)
    )
    assert "with today's barrier" in measured(
        hung(engine="emulated", backend="nccl", emulation={"era": "today"})
    )
    assert "barrier" not in measured(hung(engine="emulated", backend="gloo", emulation=knobs))
    assert measured(hung(engine="imported")).startswith("Imported: 2 ranks on gloo")


@pytest.mark.parametrize(
    "make", [lambda t: t, lambda t: [t], lambda t: iter([t]), lambda t: {"my run": t}]
)
def test_one_several_or_named_timelines(tmp_path, make):
    path = write_html(make(case_timeline(1, 1)), tmp_path / "runs.html")
    made = path.read_text(encoding="utf-8")
    assert made.count('<section class="run"') == 1 and path.name == "runs.html"
    assert "<h2" in made and ("my run" in made or "case_1, inputs (1, 2), launched on gloo" in made)


def test_the_same_timelines_give_the_same_bytes(tmp_path):
    runs = {"a": case_timeline(4, 2), "b": case_timeline(5, 2)}
    one, other = (
        write_html(runs, tmp_path / "one.html"),
        write_html(runs, str(tmp_path / "other.html")),
    )
    assert one.read_bytes() == other.read_bytes()


def test_nothing_to_write_is_refused(tmp_path):
    for nothing in ([], {}):
        with pytest.raises(ValueError, match="at least one timeline"):
            write_html(nothing, tmp_path / "x.html")
    with pytest.raises(TypeError, match="it got a str"):
        write_html(["case_1"], tmp_path / "x.html")
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*missing\. Make it"):
        write_html(case_timeline(1, 1), tmp_path / "missing" / "x.html")
    with pytest.raises(IsADirectoryError, match="Name a file"):
        write_html(case_timeline(1, 1), tmp_path)


def test_a_timeline_without_calls_is_shown():
    made = text_of(timeline_from_rows([], [Ending("killed", text="SIGKILL")], {"backend": "gloo"}))
    assert "No call was recorded." in made and "SIGKILL" in made


def positions(most=1):
    for program, case in (("one", 1), ("four", 4)):
        for era in ("today", "1.9"):
            for a in range(1, most + 2):
                inputs = (a, a + 1)
                yield Position(program, era, inputs), case_timeline(case, a, "nccl", era)


def test_a_page_with_sliders_has_a_run_at_every_position():
    start = Position("four", "1.9", (2, 3))
    made = slider_page("Cases", positions(), start)
    data = data_of(made)
    runs = data["positions"]["runs"]
    for position, timeline in positions():
        run = data["runs"][
            runs[position.program][position.setting][",".join(map(str, position.inputs))]
        ]
        assert run["ends"] == [f"{sign(end)} {end}" for end in timeline.ends]
    assert runs["one"]["today"] == runs["one"]["1.9"]  # what looks the same is held once
    assert data["positions"]["start"] == ["four", "1.9", [2, 3]]


def test_a_position_without_a_run_is_refused():
    with pytest.raises(ValueError, match="the controls can be moved to"):
        slider_page("Cases", list(positions())[:-1], Position("four", "today", (2, 3)))
    with pytest.raises(ValueError, match="the controls start at"):
        slider_page("Cases", positions(), Position("four", "today", (3, 4)))


def test_a_page_names_ranks_that_did_the_same_once():
    writer = Writer(64)
    for rank in range(64):
        writer.call(rank, "barrier" if rank == 5 else "all_reduce", done=False, line=1)
    hung = [Ending("hung", call=0, group="0", proven=True)] * 64
    written = page([("64 ranks", writer.timeline(hung, inputs=[4] * 64))])
    assert written.count("<li>✕") == 2 and "✕ Ranks 0-4, 6-63 hang in" in written
    assert (
        title(writer.timeline(hung, inputs=[4] * 64))
        == "hand-made, 64 ranks with 4 inputs, launched on gloo"
    )


def test_a_page_of_a_run_that_nobody_has_read_shows_the_fix(tmp_path):
    made = write_html(emulate(cases.case_4, (2, 3)), tmp_path / "run.html").read_text()
    assert "Tried: both finish." in str(data_of(made)["runs"])
