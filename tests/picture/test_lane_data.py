"""Lane data for the view's script, read back as the script reads it."""

from __future__ import annotations

from hypothesis import given

import joinlab
from joinlab.cases import DOCUMENTED
from joinlab.picture.columns import columns
from joinlab.picture.details import MADE, call_details
from joinlab.picture.first_screen import first_screen, folded
from joinlab.picture.lane_data import FIRST, KINDS, MEANINGS, SMALL, LaneData, pack
from joinlab.story.writers import TAGS
from tests.random_timelines import lane_data, timelines
from tests.timelines import SIZES, case_timeline


@given(timelines())
def test_every_box_and_every_fact_arrives(timeline):
    data, _ = lane_data(pack(timeline))
    (run,) = data["runs"]
    made = first_screen(timeline)
    for index, (sent, one) in enumerate(zip(run["scene"]["columns"], made.columns, strict=True)):
        assert (sent["slot"], sent["until"], sent["numbers"], sent["flag"]) == (
            one.slot,
            one.until,
            one.number,
            one.flag,
        )
        assert (sent["stack"], sent["remark"], sent["size"]) == (
            one.stack,
            one.remark or MEANINGS["missing" if one.missing else one.flag],
            one.size,
        )
        assert sent["title"] == made.title(one)
        for lane, arrived in enumerate(sent["boxes"]):
            box = one.boxes.get(lane)
            expected = box and {
                "kind": KINDS.index(box.kind),
                "label": box.label,
                "line": box.line,
                "open": box.open,
                "failed": box.failed,
                "below": made.below(index, lane),
            }
            absent = {"line": 0, "open": False, "failed": False, "below": ""}
            assert (arrived and absent | arrived) == expected
    tells_start = timeline.calls["started_ns"].null_count() < timeline.calls.height
    told = sorted(
        sorted(tuple(data["facts"][fact]) for fact in [*first, *rest, stack, made] if fact >= 0)
        for *_, at in run["told"]
        for first, rest, stack, made in [data["told"][at]]
    )
    rows = timeline.calls.to_dicts()
    assert told == sorted(sorted(call_details(row, tells_start, timeline.meta)[2:]) for row in rows)
    assert sum(run["columns"]["counts"]) == len(rows)


def test_a_new_detail_of_one_call_is_not_told_of_others_of_its_kind(monkeypatch):
    timeline = case_timeline(4, 2)
    issued = columns(timeline, folded(timeline))[1]
    monkeypatch.setattr(
        "joinlab.picture.columns.call_details",
        lambda row, *_: (*call_details(row, *_), ("issued as", f"call {row['seq']}")),
    )
    assert columns(timeline, folded(timeline))[1] == issued
    assert {"op", "dtype", "shape"} < {name for name, _ in issued[0].facts}


def test_the_verdict_and_the_lines_of_the_program_arrive():
    timeline = case_timeline(4, 2)
    lines = [f"line {number}" for number in range(18, 34)]
    source = {"file": "train.py", "first_line": 18, "text": "\n".join(lines) + "\n"}
    object.__setattr__(timeline, "meta", {**timeline.meta, "source": source})
    data, _ = lane_data(pack(timeline))
    (run,) = data["runs"]
    story = joinlab.diagnose(timeline)
    assert "".join(piece for piece, _, _ in run["scene"]["headline"]) == story.sentence
    kinds = [TAGS[line.kind] for line in story.lines[1:]]
    assert [kind for kind, _ in run["scene"]["story"]] == kinds
    assert run["ends"] == ["✕ hung (proven)"] * 2
    (source,) = run["sources"]
    assert (source["first_line"], source["name"], source["text"]) == (
        18,
        "train.py",
        "\n".join(lines),
    )
    cited = {line for code in run["columns"]["codes"] for _, line in run["lines"][code["lines"]]}
    assert {26, 28, 31, 32, 33} <= cited


def test_what_looks_the_same_is_held_once():
    data = LaneData()
    assert [data.add(case_timeline(case, 1)) for case in (1, 4, 1, 4)] == [0, 1, 0, 1]
    assert len(lane_data(data.packed())[0]["runs"]) == 2


def test_a_move_is_small():
    for case in DOCUMENTED:
        for n in SIZES:
            assert len(pack(case_timeline(case, n, "nccl", "1.9"))) < 10_000


def test_what_a_reader_looks_for_first_are_names_of_facts():
    names = {
        name for row in case_timeline(4, 2).rows("calls") for name, _ in call_details(row, True, {})
    }
    assert {*FIRST, MADE} - names == {"error"}


def test_the_boxes_alone_say_the_same_and_are_not_compressed():
    timeline = case_timeline(4, 2, "nccl", "1.9")
    packed = pack(timeline, calls=False)
    assert packed.startswith(b"{") and len(packed) < SMALL
    (whole,), (boxes,) = (lane_data(one)[0]["runs"] for one in (pack(timeline), packed))
    assert whole["scene"]["columns"] and not {"columns", "told", "lines"} & boxes.keys()
    assert lane_data(packed)[0]["told"] == []
