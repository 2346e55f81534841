"""The view as Python sees it: its traits, what it sends, what it refuses."""

from __future__ import annotations

import gzip
import json

import pytest
import traitlets
from timelines import Writer, case_timeline

from joinlab.notebook.view import ENOUGH, View
from joinlab.picture.assets import script
from joinlab.picture.lane_data import LaneData
from joinlab.timeline import Ending


@pytest.fixture
def view():
    made = View(case_timeline(4, 5, "nccl", "1.9"))
    yield made
    made.close()


def title(view: View) -> str:
    """The title that the browser reads: the base's texts, then those of the run."""
    base, run = (json.loads(gzip.decompress(packed)) for packed in (view._base, view._packed))
    return (base["texts"] + run["texts"])[run["runs"][0]["title"]]


def test_another_timeline_is_sent_as_what_is_new_to_the_first(view):
    base = view._base
    assert "(5, 6)" in title(view)
    view.timeline = case_timeline(4, 2, "nccl", "1.9")
    assert "(2, 3)" in title(view) and view._base == base and len(view._packed) < ENOUGH


def test_a_timeline_that_has_little_in_common_starts_afresh(view):
    base = view._base
    writer = Writer(world_size=8)
    for at in range(100):
        for rank in range(8):
            writer.call(rank, "all_reduce", f"all-reduce (call {at})", values=([0.1 * at + rank], [0.7 * at * rank]))
    view.timeline = writer.timeline([Ending("finished")] * 8, program="large")
    assert view._base != base and title(view).startswith("large")


def test_the_selection_names_calls(view):
    assert view.calls.is_empty()
    view.selected = len(view.slots) - 1
    slot = view.slots[view.selected]
    assert dict(view.calls.select("rank", "seq").rows()) == slot.calls
    seen = []
    view.observe(lambda change: seen.append(change.new), "selected")
    view.selected = None
    assert seen == [None]


def test_a_selection_that_the_next_timeline_has_not_is_dropped(view):
    view.selected = len(view.slots) - 1
    view.timeline = case_timeline(4, 1, "nccl", "1.9")
    assert view.selected is None
    view.selected = 3
    view.timeline = case_timeline(4, 2, "nccl", "1.9")
    assert view.selected == 3


@pytest.mark.parametrize(
    "wrong",
    [{"selected": 999}, {"selected": -1}, {"axis": "sideways"}, {"hidden": ["bells"]}, {"covered": [-1]}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_what_cannot_be_is_refused(wrong):
    with pytest.raises(traitlets.TraitError):
        View(case_timeline(1, 1), **wrong)


def test_an_unknown_option_is_named():
    with pytest.raises(TypeError, match="View has no option colour"):
        View(case_timeline(1, 1), colour="red")


def test_the_first_view_is_small(view):
    state = view.get_state()
    sent = len(view._base) + len(view._packed) + len(view._script) + len(state["_esm"])
    assert sent < 30_000 < len(script())  # the script goes compressed
    travelled = gzip.decompress(view._script).decode()
    assert "// " in script() and "// " not in travelled and '"http://www.w3.org/2000/svg"' in travelled


def test_a_view_shows_itself_as_a_widget(view):
    data, *_ = view._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data


def test_base_and_run_together_hold_what_the_run_alone_would(view):
    data = LaneData()
    data.add(view.timeline)
    whole = json.loads(gzip.decompress(data.packed()))
    base, run = (json.loads(gzip.decompress(packed)) for packed in (view._base, view._packed))
    assert base["texts"] == whole["texts"] and run["texts"] == [] and base["runs"] == []
