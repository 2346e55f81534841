"""Large Timelines: reading by columns gives the same matches and stories as row by row, and no call
is lost."""

from __future__ import annotations

import gc
import re
import weakref
from dataclasses import replace
from itertools import pairwise

import numpy as np
import polars as pl
import pytest

import joinlab
from joinlab.analysis import reading
from joinlab.analysis.folding import fold
from joinlab.analysis.matching import match, wrong
from joinlab.analysis.reading import read
from joinlab.cli.report import run_report
from joinlab.notebook.view import View
from joinlab.picture.figures import figure
from joinlab.picture.first_screen import first_screen
from joinlab.picture.lane_data import pack
from joinlab.picture.page import page, write_html
from joinlab.story.evidence import Evidence
from joinlab.story.judge import diagnose
from tests import parallel_jobs
from tests.bench.large import large as made
from tests.dumps import write
from tests.random_timelines import lane_data


@pytest.fixture(scope="module")
def timeline():
    found = made(3, 2000)
    assert found.calls.height > reading.MOST
    return found


@pytest.fixture(scope="module")
def packed(timeline) -> bytes:
    return pack(timeline)


def pairing(calls: pl.DataFrame, nccl: bool) -> list[object]:
    """Per call, a key that it shares with the calls it meets: its number, or its index among the
    calls of its pair."""
    counts: dict[object, int] = {}
    found: list[object] = []
    for row in calls.rows(named=True):
        if row["op"] not in ("send", "recv"):
            found.append((row["group"], row["number"]))
            continue
        sends = row["op"] == "send"
        pair = (row["rank"], row["peer"]) if sends else (row["peer"], row["rank"])
        key = (row["group"], *pair, None if nccl else row["tag"])
        nth = counts[sends, key] = counts.get((sends, key), 0) + 1
        found.append((*key, nth))
    return found


@pytest.mark.filterwarnings("ignore:there is no record of")
@pytest.mark.parametrize("seed", [None, 0, *range(2, 10)])
def test_calls_share_a_slot_if_they_meet_and_slots_follow_each_ranks_order(
    seed, timeline, tmp_path
):
    if seed is not None:
        timeline = joinlab.load(write(tmp_path, parallel_jobs.dumps(parallel_jobs.draw(seed))))
    slot, keys = (
        read(timeline).slot.tolist(),
        pairing(timeline.calls, timeline.meta["backend"] == "nccl"),
    )
    assert (
        len(set(zip(keys, slot, strict=True))) == len(set(keys)) == len(set(slot)) == max(slot) + 1
    )
    later = [
        b > a
        for (a, r), (b, q) in pairwise(zip(slot, timeline.calls["rank"].to_list(), strict=True))
        if r == q
    ]
    assert sum(later) >= 0.99 * len(later)  # the drawn jobs may have circles
    assert wrong(timeline).tolist() == [not one.expected for one in match(timeline)]


@pytest.mark.parametrize(("ranks", "each"), [(2, 2100), (5, 900)])
def test_the_few_slots_that_are_kept_tell_the_same_story(ranks, each):
    timeline = made(ranks, each)
    every, few = fold(timeline, whole=True), fold(timeline)
    assert str(diagnose(timeline)) == str(diagnose(timeline, every))
    assert (
        few.numbers[Evidence(timeline).difference.first]
        == every.numbers[Evidence(timeline, every).difference.first]
    )
    assert len(few.slots) < len(every.slots) / 5 and read(timeline).is_part


def test_the_story_and_the_page_of_a_large_job_make_no_row_of_every_call(monkeypatch):
    """Dicts of all calls of 256 ranks took 9 s for each story."""
    timeline = made(2, 2100)
    heights = []
    rows = pl.DataFrame.rows
    monkeypatch.setattr(
        pl.DataFrame, "rows", lambda table, **how: heights.append(len(table)) or rows(table, **how)
    )
    assert diagnose(timeline).lines and page([("a job", timeline)])
    assert max(heights, default=0) < timeline.calls.height / 5


def test_a_record_that_lost_its_beginning_is_matched_as_the_whole_of_it(timeline):
    calls = timeline.calls.filter((pl.col("rank") != 1) | (pl.col("seq") >= 1500))
    cut = replace(timeline, calls=calls, meta={**timeline.meta, "skipped": {"default": {1: 1500}}})
    matched = fold(cut).every
    assert str(diagnose(cut)) == str(diagnose(cut, fold(cut, whole=True)))
    whole = match(cut)
    for number, slot in zip(matched.numbers, matched.slots, strict=True):
        assert (slot.calls, slot.lost, slot.expected) == (
            whole[number].calls,
            whole[number].lost,
            whole[number].expected,
        )


@pytest.mark.filterwarnings("ignore:there is no record of")
@pytest.mark.parametrize("seed", [22, 51, 89, 100, 111])
def test_a_mesh_is_judged_by_few_slots_as_by_all(seed, tmp_path, monkeypatch):
    timeline = joinlab.load(write(tmp_path, parallel_jobs.dumps(parallel_jobs.draw(seed))))

    def told():
        listing = re.compile("^   call  .*", re.DOTALL | re.MULTILINE)
        report = listing.sub("", str(run_report(timeline)))
        story = diagnose(timeline)
        return str(story), story.ranks, report

    whole = told()
    monkeypatch.setattr(reading, "MOST", 50)
    monkeypatch.setattr(reading, "KEPT", 0)
    timeline = replace(timeline)
    folding = fold(timeline)
    assert len(folding.every.slots) < len(match(timeline))
    assert list(folding.numbers) == sorted(folding.numbers) and set(folding.numbers) <= set(
        folding.every.numbers
    )
    assert told() == whole


def test_a_job_of_which_no_rank_recorded_some_collectives_is_cut_short(tmp_path, monkeypatch):
    timeline = joinlab.load(write(tmp_path, parallel_jobs.dumps(parallel_jobs.draw(335))))
    monkeypatch.setattr(reading, "MOST", 0)
    monkeypatch.setattr(reading, "KEPT", 0)
    short, whole = fold(timeline).every, match(timeline)
    assert timeline.meta["skipped"]["1"] == {0: 0, 1: 3}
    assert [slot.calls for slot in short.slots] == [whole[number].calls for number in short.numbers]


def test_a_report_counts_the_rows_that_it_leaves_out(timeline):
    lines = str(run_report(timeline)).splitlines()
    begin, at, gaps = (
        lines.index(next(line for line in lines if line.startswith("   call"))) + 1,
        0,
        0,
    )
    for line in lines[begin : lines.index("         --all lists every row.")]:
        if left := re.fullmatch(" {9}… ([0-9,]+) rows (before|between), all matched", line):
            at, gaps = at + int(left[1].replace(",", "")), gaps + 1
        else:
            assert int(line[1:7]) == at + 1  # one group, so rows are numbered as its calls
            at += 1
    assert gaps > 1


def test_every_call_comes_back_from_its_columns(timeline, packed):
    data, rest = lane_data(packed)
    (run,) = data["runs"]
    columns = {}
    for name, size, n in run["columns"]["planes"]:
        planes = np.frombuffer(rest[: size * n], np.uint8).reshape(size, n)
        columns[name] = sum(plane.astype(np.int64) << (8 * at) for at, plane in enumerate(planes))
        rest = rest[size * n :]
    assert rest == b""
    signed = {
        name: np.where(columns[name] % 2, -(columns[name] + 1) // 2, columns[name] // 2)
        for name in columns
    }
    assert run["columns"]["unit"] == 1
    begun, slots = [], []
    edges = np.cumsum([0, *run["columns"]["counts"]])
    for first, behind in pairwise(edges):
        begun += (np.cumsum(signed["begun"][first:behind]) + run["zero"]).tolist()
        slots += np.cumsum(signed["slot"][first:behind] + 1).tolist()
    calls = timeline.calls
    assert begun == calls["started_ns"].to_list()
    assert slots == read(timeline).slot.tolist()
    took = (calls["completed_ns"] - calls["started_ns"]).fill_null(0)
    assert columns["took"].tolist() == took.to_list()
    assert ((columns["flags"] & 1) > 0).tolist() == calls["completed_ns"].is_null().to_list()


def test_a_view_finds_the_calls_of_a_slot(timeline):
    view = View(timeline)
    view.selected = 1500
    assert view.calls.select("rank", "seq").rows() == [(0, 1500), (1, 1500), (2, 1500)]
    with pytest.raises(Exception, match="from 0 to 1999"):
        view.selected = 2000


def test_the_table_of_a_page_holds_what_tells(timeline, tmp_path):
    text = write_html(timeline, tmp_path / "run.html").read_text()
    assert "of 2,000 rows those where ranks part, begin or end" in text
    assert 20 < text.count('<tr><th scope="row">') + text.count("<tr class=wrong") < 200


def test_a_figure_holds_the_rows_that_tell_the_story_and_says_so(timeline):
    drawn = figure(timeline)
    assert 0 < sum(len(trace.x) for trace in drawn.data if trace.type == "bar") < 3000
    assert f"{len(read(timeline).listed):,} of 2,000 rows" in drawn.layout.title.subtitle.text
    assert any("Met, but should not have" in str(trace.customdata) for trace in drawn.data)


@pytest.mark.parametrize("many", [False, True])
def test_results_derived_from_a_timeline_are_freed_with_it(many):
    """Neither a cache nor a reference cycle keeps it: a dropped Timeline is freed at once."""
    run = made(5, 1000) if many else joinlab.emulate(joinlab.cases.case_4, (5, 6))
    frame = weakref.ref(run.calls)
    diagnose(run), pack(run), first_screen(run)
    gc.collect()
    gc.disable()
    try:
        del run
        assert frame() is None
    finally:
        gc.enable()
