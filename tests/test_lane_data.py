"""Lane data: what the view's script is told, read back as the script reads it."""

from __future__ import annotations

import gzip
import json

from drawn import timelines
from hypothesis import given, settings
from hypothesis import strategies as st
from timelines import SIZES, case_timeline

import joinlab
from joinlab.cases import DOCUMENTED
from joinlab.picture.details import MADE
from joinlab.picture.lane_data import KINDS, LAYOUTS, LOOKS, LaneData, pack
from joinlab.picture.lanes import Lane, lanes
from joinlab.picture.rows import RowKind
from joinlab.picture.theme import STYLES


def read(packed: bytes) -> dict:
    """As layout.js reads it."""
    return json.loads(gzip.decompress(packed))


def boxes(data: dict, run: dict, layout: dict) -> list[tuple]:
    text = data["texts"]
    found = []
    for at, number in enumerate(layout["box"]):
        box = run["boxes"][number]
        track = (layout["track"][at], layout["tracks"][at]) if layout["track"] else (0, 1)
        said = [tuple(text[n] for n in data["facts"][fact]) for fact in data["told"][box["facts"]]]
        flags = tuple(bool(box.get(name)) for name in ("open", "bad", "failed"))
        kind, label = KINDS[box["kind"]], text[box["label"]]
        found.append((box["rank"], kind, label, layout["from"][at], layout["to"][at], *track, *flags, said))
    return found


@settings(max_examples=25)
@given(timelines(), st.sampled_from(list(LAYOUTS)))
def test_every_box_arrives_in_every_layout(timeline, name):
    at = LAYOUTS[name]
    data = read(pack(timeline))
    (run,) = data["runs"]
    picture, layout = lanes(timeline, *at), run["layouts"][name]
    unit, zero = (0.01, 0.0) if at[0] == "logical" else (1.0, lanes(timeline, "time", True).begin)

    def place(along: float) -> int:
        return round((along - zero) / unit)

    arrived = boxes(data, run, layout)
    assert len(arrived) == len(picture.boxes)
    for (rank, kind, label, begin, end, track, tracks, opened, bad, failed, said), box in zip(
        arrived, picture.boxes, strict=True
    ):
        assert (rank, kind, label, track, tracks) == (box.rank, box.kind, box.label, box.track, box.tracks)
        assert (opened, bad, failed) == (box.open, box.bad, box.failed)
        assert (begin, end) == (place(box.begin), place(box.end))
        assert said == ([] if kind is RowKind.WAIT else list(box.details[2:]))
    assert (layout["begin"], layout["end"]) == (place(picture.begin), place(picture.end))
    assert layout["stops"] == [place(cap.at) for cap in picture.caps]
    assert [(band["slot"], band["a"], band["b"]) for band in layout["bands"]] == [
        (band.slot, band.a, band.b) for band in picture.bands
    ]
    assert [data["texts"][note["line"]] for note in layout["notes"]] == [note.line for note in picture.notes]
    wholes = [data["texts"][note["whole"]] for note in layout["notes"]]
    assert wholes == [note.whole for note in picture.notes]


def test_the_verdict_and_the_lines_of_the_program_arrive():
    timeline = case_timeline(4, 2)
    lines = [f"line {number}" for number in range(18, 34)]
    source = {"file": "train.py", "first_line": 18, "text": "\n".join(lines) + "\n"}
    object.__setattr__(timeline, "meta", {**timeline.meta, "source": source})
    data = read(pack(timeline))
    (run,) = data["runs"]
    text = data["texts"]
    story = joinlab.diagnose(timeline)
    assert "".join(piece for piece, _, _ in run["scene"]["head"]) == story.sentence
    assert [kind for kind, _ in run["scene"]["story"]] == [line.kind for line in story.lines[1:]]
    assert [run["lines"][at] for at in run["ended"]] == [[[0, 28]], [[0, 33]]]
    assert run["sign"] == "✕✕" and run["good"] == [False, False]
    (source,) = run["sources"]
    assert (source["first_line"], text[source["name"]], text[source["text"]]) == (18, "train.py", "\n".join(lines))
    folded = [run["lines"][box["lines"]] for box in run["boxes"] if data["looks"]["kinds"][box["kind"]]["fold"]]
    assert all(one == [] for one in folded) and folded  # a fold has several
    assert {26, 28, 31, 32, 33} <= {line for box in run["boxes"] for _, line in run["lines"][box["lines"]]}


def test_what_looks_the_same_is_held_once():
    data = LaneData()
    assert [data.add(case_timeline(case, 1)) for case in (1, 4, 1, 4)] == [0, 1, 0, 1]
    assert len(read(data.packed())["runs"]) == 2


def test_the_same_runs_give_the_same_bytes():
    assert pack(case_timeline(4, 2)) == pack(case_timeline(4, 2))


def test_a_move_is_small():
    for case in DOCUMENTED:
        for n in SIZES:
            assert len(pack(case_timeline(case, n, "nccl", "1.9"))) < 15_000


def test_the_script_is_told_the_looks_that_the_other_pictures_have():
    looks = [(kind["name"], kind["color"], kind["pattern"]) for kind in LOOKS["kinds"]]
    assert looks == [(kind.value, *look) for kind, look in STYLES.items()]
    for box in lanes(case_timeline(4, 2)).boxes:
        lane = LOOKS["kinds"][KINDS.index(box.kind)]["lane"]
        assert (lane == "stream") == (box.lane is not Lane.HOST)
    names = {name for box in lanes(case_timeline(4, 2), setup=True).boxes for name, _ in box.details}
    assert set(LOOKS["first"]) - names == {"error"} and MADE in LOOKS["first"]
