"""The Python side of the view: its traits, the messages it sends, the values it refuses."""

from __future__ import annotations

import pytest
import traitlets

from joinlab import cases
from joinlab.analysis.matching import match
from joinlab.emulator.emulate import emulate
from joinlab.notebook import stills
from joinlab.notebook.view import View
from joinlab.story.judge import diagnose
from joinlab.timeline import load
from tests.random_timelines import lane_data
from tests.timelines import case_timeline


@pytest.fixture
def view():
    made = View(case_timeline(4, 5, "nccl", "1.9"))
    yield made
    made.close()


def title(view: View) -> str:
    """The title that the browser reads."""
    data, _ = lane_data(view._packed)
    return data["runs"][0]["title"]


def test_another_timeline_is_sent_alone_and_is_small(view):
    assert "(5, 6)" in title(view)
    view.timeline = case_timeline(4, 2, "nccl", "1.9")
    assert "(2, 3)" in title(view) and len(view._packed) < 10_000


def test_the_selection_names_calls(view):
    assert view.calls.is_empty()
    view.selected = len(match(view.timeline)) - 1
    slot = match(view.timeline)[view.selected]
    assert dict(view.calls.select("rank", "seq").rows()) == slot.calls
    seen = []
    view.observe(lambda change: seen.append(change.new), "selected")
    view.selected = None
    assert seen == [None]


def test_a_selection_that_the_next_timeline_has_not_is_dropped(view):
    view.selected = len(match(view.timeline)) - 1
    view.timeline = case_timeline(4, 1, "nccl", "1.9")
    assert view.selected is None
    view.selected = 3
    view.timeline = case_timeline(4, 2, "nccl", "1.9")
    assert view.selected == 3


@pytest.mark.parametrize(
    "wrong",
    [{"selected": 999}, {"selected": -1}, {"axis": "sideways"}, {"covered": [-1]}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_what_cannot_be_is_refused(wrong):
    with pytest.raises(traitlets.TraitError):
        View(case_timeline(1, 1), **wrong)


def test_an_unknown_option_is_named():
    with pytest.raises(TypeError, match="View has no option colour"):
        View(case_timeline(1, 1), colour="red")


def test_the_widget_that_is_shown_has_the_fix_of_a_run_that_nobody_has_read(monkeypatch):
    monkeypatch.setattr(stills, "is_terminal", lambda: False)
    monkeypatch.setattr(stills, "put", lambda what: None)
    shown = View(emulate(cases.case_4, (2, 3)))
    stills.show_live(shown)
    *_, run = lane_data(shown._packed)[0]["runs"]
    assert "Tried: both finish." in str(run["scene"]["tried"])
    shown.close()


def test_the_run_with_the_fix_is_drawn_in_its_place_until_it_is_undone():
    timeline = emulate(cases.case_4, (2, 3))
    diagnose(timeline)
    view = View(timeline)
    data, _ = lane_data(view._packed)
    assert data["runs"][-1]["mends"] and data["runs"][-1]["mended"] == 0  # the page has both
    view.selected = len(match(timeline)) - 1
    view.mended = True
    assert view.selected is None
    view.selected = len(match(timeline.live.mended)) - 1
    # of the run that one sees
    assert view.calls["origin"].to_list() == ["all-reduce (barrier)"] * 2
    view.mended = False
    view.mended = True
    view.timeline = case_timeline(1, 2)
    assert not view.mended
    view.close()


def test_a_run_that_ends_well_or_was_opened_from_a_file_has_nothing_to_mend(tmp_path):
    for timeline in (emulate(cases.case_1, (2, 3)), load(failed().save(tmp_path / "run.joinlab"))):
        view = View(timeline)
        data, _ = lane_data(view._packed)
        assert data["runs"][-1]["mends"] is False and "mended" not in data["runs"][-1]
        view.mended = True
        assert view.mended is False
        view.close()


def failed():
    return emulate(cases.case_4, (2, 3))
