"""Lane data: what the view's script is told, read back as the script reads it."""

from __future__ import annotations

import gzip
import json
from itertools import accumulate

from drawn import timelines
from hypothesis import given, settings
from hypothesis import strategies as st
from timelines import SIZES, case_timeline

from joinlab.analysis.diagnosis import diagnose
from joinlab.picture.details import MADE
from joinlab.picture.lane_data import KINDS, LAYOUTS, LOOKS, LaneData, fresh, pack
from joinlab.picture.lanes import Lane, lanes
from joinlab.picture.rows import Kind
from joinlab.picture.theme import STYLES


def read(packed: bytes, base: bytes | None = None) -> dict:
    """As view.js reads it: tables joined to those of the base, facts numbered through."""
    data = json.loads(gzip.decompress(packed))
    known = read(base) if base else {"texts": [], "facts": [], "told": [], "looks": None}
    texts = known["texts"] + data["texts"]
    numbers = iter(data["facts"])
    facts = known["facts"] + [(texts[name], texts[said]) for name, said in zip(numbers, numbers, strict=True)]
    following = len(known["facts"])
    for told in data["told"]:
        for at, number in enumerate(told):
            told[at] = number - 1 if number else following
            following += not number
    for run in data["runs"]:
        run["told"] = list(accumulate(run["told"]))
        for layout in run["layouts"]:
            layout["thing"] = list(accumulate(layout["thing"]))
    told = known["told"] + data["told"]
    looks = data.get("looks", known["looks"])
    return {"looks": looks, "texts": texts, "facts": facts, "told": told, "runs": data["runs"]}


def boxes(data: dict, run: dict, layout: dict) -> list[tuple]:
    begins = accumulate(layout["from"])
    found = []
    for at, (thing, begin) in enumerate(zip(layout["thing"], begins, strict=True)):
        track = (layout["track"][at], layout["tracks"][at]) if layout["track"] else (0, 1)
        said = [data["facts"][number] for number in data["told"][run["told"][thing]]]
        kind, label = KINDS[run["kind"][thing]], data["texts"][run["label"][thing]]
        found.append((run["rank"][thing], kind, label, begin, begin + layout["for"][at], *track, said))
    return found


@settings(max_examples=25)
@given(timelines(), st.sampled_from(LAYOUTS))
def test_every_box_arrives_in_every_layout(timeline, at):
    data = read(pack(timeline))
    (run,) = data["runs"]
    picture, layout = lanes(timeline, *at), run["layouts"][LAYOUTS.index(at)]
    unit, zero = (0.01, 0.0) if at[0] == "logical" else (1.0, lanes(timeline, "time", True).begin)

    def place(along: float) -> int:
        return round((along - zero) / unit)

    arrived = boxes(data, run, layout)
    assert len(arrived) == len(picture.boxes)
    for (rank, kind, label, begin, end, track, tracks, said), box in zip(arrived, picture.boxes, strict=True):
        assert (rank, kind, label, track, tracks) == (box.rank, box.kind, box.label, box.track, box.tracks)
        assert (begin, end) == (place(box.begin), place(box.end))
        assert said == ([] if kind is Kind.WAIT else list(box.details[2:]))
    assert (layout["begin"], layout["end"]) == (place(picture.begin), place(picture.end))
    assert layout["stops"] == [place(cap.at) for cap in picture.caps]
    assert [band[:3] for band in layout["bands"]] == [[band.slot, band.a, band.b] for band in picture.bands]
    assert [data["texts"][note[3]] for note in layout["notes"]] == [note.line for note in picture.notes]
    wholes = [data["texts"][note[6] if len(note) > 6 else note[3]] for note in layout["notes"]]
    assert wholes == [note.whole for note in picture.notes]


@settings(max_examples=25)
@given(timelines(), timelines())
def test_what_refers_to_a_base_reads_as_what_stands_alone(one, other):
    base = LaneData()
    base.add(one)
    alone, referring = read(pack(other)), read(pack(other, base), base.packed(with_runs=False))
    for name in ("thing", "from", "for", "stops"):
        assert [layout[name] for layout in alone["runs"][0]["layouts"]] == [
            layout[name] for layout in referring["runs"][0]["layouts"]
        ]
    for data in (alone, referring):
        run = data["runs"][0]
        data["read"] = [boxes(data, run, layout) for layout in run["layouts"]], data["texts"][run["said"]]
    assert alone["read"] == referring["read"] and referring["looks"] == json.loads(json.dumps(LOOKS))


def test_the_diagnosis_and_the_lines_of_the_program_arrive():
    timeline = case_timeline(4, 2)
    source = {"file": "train.py", "first_line": 20, "text": "a\nb\n"}
    object.__setattr__(timeline, "meta", {**timeline.meta, "source": source})
    data = read(pack(timeline))
    (run,) = data["runs"]
    text = data["texts"]
    said = diagnose(timeline)
    assert text[run["said"]] == said.sentence and [text[why] for why in run["why"]] == [
        one.sentence for one in said.ranks
    ]
    assert run["ended"] == [28, 33] and run["sign"] == "✕✕" and run["good"] == [0, 0]
    assert [run["source"][1], text[run["source"][0]], text[run["source"][2]]] == [20, "train.py", "a\nb"]
    folded = [line for line, label in zip(run["line"], run["label"], strict=True) if text[label].endswith("calls")]
    assert {26, 28, 31, 32, 33} <= set(run["line"]) and set(folded) == {0}  # a fold has several


def test_what_looks_the_same_is_held_once():
    data = LaneData()
    assert [data.add(case_timeline(case, 1)) for case in (1, 4, 1, 4)] == [0, 1, 0, 1]
    assert len(read(data.packed())["runs"]) == 2


def test_the_same_runs_give_the_same_bytes():
    assert pack(case_timeline(4, 2)) == pack(case_timeline(4, 2))


def test_a_first_view_and_a_move_are_small():
    for case in range(1, 7):
        base = LaneData()
        base.add(case_timeline(case, 5, "nccl", "1.9"))
        assert len(base.packed()) < 8_000
        for n in SIZES:
            assert len(pack(case_timeline(case, n, "nccl", "1.9"), base)) < 4_000


def test_the_script_is_told_the_looks_that_the_other_pictures_have():
    assert [tuple(kind) for kind in LOOKS["kinds"]] == [(kind.value, *look) for kind, look in STYLES.items()]
    assert KINDS[-2:] == (Kind.WAIT, Kind.SPAN)  # the script takes the last two for the host's
    host = {box.kind for box in lanes(case_timeline(4, 2)).boxes if box.lane is Lane.HOST}
    assert host <= set(KINDS[-2:])
    names = {name for box in lanes(case_timeline(4, 2), setup=True).boxes for name, _ in box.details}
    assert set(LOOKS["first"]) - names == {"error"} and MADE in LOOKS["first"]


@given(st.lists(st.integers(0, 5)))
def test_fresh_numbers_can_be_read_back(drawn):
    order = list(dict.fromkeys(drawn))
    numbers = [order.index(one) for one in drawn]  # a table numbers what it is given in order
    known, found = 0, []
    for written in fresh(numbers):
        found.append(written - 1 if written else known)
        known += not written
    assert found == numbers
