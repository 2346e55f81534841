"""The bench's map of endings: what it computes is what a slider shows."""

from __future__ import annotations

import asyncio

import pytest
from drawn import lane_data

from joinlab.emulator import emulate as emulator
from joinlab.notebook import ahead, ending_map, session
from joinlab.notebook.ahead import MOST_BYTES
from joinlab.notebook.bench import Bench, bench
from joinlab.notebook.ending_map import TRIES
from joinlab.notebook.sweep import COUNTS, Overall


def watched(made: Bench) -> Bench:
    """As if a browser showed it; the map is finished."""
    made.view._handle_custom_msg({"press": "shown"}, [])
    made._map.finish()
    return made


@pytest.fixture(scope="module")
def made():
    return watched(bench(inputs=(5, 6)))


def test_it_says_how_every_cell_ends(made):
    cells = made.view.map["cells"]
    names = [kind["name"] for kind in made.view.map["kinds"]]
    assert len(cells) == len(COUNTS) ** 2 and made.view.map["note"] == ""
    for counts, kind in cells.items():
        one, other = counts.split(",")
        assert names[kind] == (Overall.FINISHES if one == other else Overall.HANGS)


def test_what_is_on_the_map_is_not_emulated_again(made, monkeypatch):
    monkeypatch.setattr(emulator, "emulate", lambda *_, **__: pytest.fail("emulated again"))
    made.view._handle_custom_msg({"counts": [2, 2]}, [])
    assert made.counts == (2, 2) and made.view.counts == [2, 2]
    assert [str(end) for end in made.timeline.ends] == ["finished", "finished"]


def unpacked(parcel: bytes) -> dict:
    return lane_data(parcel)[0]


def test_the_pictures_sent_ahead_are_those_that_python_would_answer(made):
    parcels = [unpacked(parcel) for parcel in made._map._ahead._sent]
    keys = [key for parcel in parcels for key in parcel["ahead"]]
    assert len(keys) == len(set(keys)) == len(COUNTS) ** 2 and made._map._ahead.size <= MOST_BYTES
    for counts in ((5, 6), (5, 5), (0, 8)):
        made.counts = counts
        answer = unpacked(made.view._packed)
        parcel = next(one for one in parcels if made.view.shown in one["ahead"])
        at = parcel["ahead"][made.view.shown]
        assert spelled(parcel, parcel["runs"][at]) == spelled(answer, answer["runs"][0])


def spelled(data: dict, run: dict) -> list:
    """What a run shows, in words: runs that travel together number their texts together."""
    texts, facts = data["texts"], data["facts"]
    told = [
        [slot, lane, [[texts[name], texts[said]] for fact in data["told"][at] for name, said in [facts[fact]]]]
        for slot, lane, at in run["told"]
    ]
    columns = run["scene"]["columns"]
    boxes = [[one and (one[0], texts[one[1]], one[2]) for one in column["boxes"]] for column in columns]
    flags = [(column["slot"], column["n"], column["flag"], column["size"]) for column in columns]
    ends = [texts[end] for end in run["ends"]]
    return [told, boxes, flags, ends, texts[run["title"]], run["columns"]["counts"]]


def test_another_page_gets_the_pictures_once_more(made, monkeypatch):
    sent = []
    monkeypatch.setattr(made._map._ahead, "_send", sent.append)
    made.view._handle_custom_msg({"press": "shown"}, [])
    assert sent == made._map._ahead._sent and sent


def test_what_does_not_fit_the_budget_is_not_sent(made, monkeypatch):
    monkeypatch.setattr(ahead, "MOST_BYTES", 8_000)
    sent = []
    one = ahead.Ahead(sent.append)
    for _ in range(2):
        one.add(made._setting(), made.timeline)
        one.flush()
    assert len(sent) == 1 and one.size == len(sent[0]) <= 8_000


def test_another_engine_has_another_map(made):
    made.engine = "emulated gloo"
    assert made.view.map["cells"] == {}
    made.engine = "emulated nccl"
    watched(made)
    assert len(made.view.map["cells"]) == len(COUNTS) ** 2


def test_it_is_computed_in_the_background_the_cells_around_first():
    async def cell() -> list[str]:
        opened = bench(case=1, inputs=(5, 6))
        opened.view._handle_custom_msg({"press": "shown"}, [])
        while opened._map._left and len(opened._map._cells) < 5:
            await asyncio.sleep(0)
        opened.close()
        return list(opened._map._cells)

    assert set(asyncio.run(cell())[:5]) == {"5,6", "4,6", "5,5", "5,7", "6,6"}


def test_of_more_ranks_the_next_steps_of_the_sliders_are_sent_ahead(monkeypatch):
    opened = watched(bench(case=1, inputs=(2, 2, 0)))
    assert opened.view.map == {} and set(opened._map._cells) == {"3,2,0", "2,3,0", "2,2,1", "1,2,0", "2,1,0"}
    opened.counts = (2, 3, 0)
    opened._map.finish()
    monkeypatch.setattr(emulator, "emulate", lambda *_, **__: pytest.fail("emulated again"))
    for counts in ((2, 4, 0), (2, 5, 0), (2, 2, 0), (3, 2, 0)):  # two steps on, and one back
        opened.counts = counts
        parcels = [unpacked(parcel)["ahead"] for parcel in opened._map._ahead._sent]
        assert opened.view.shown in [key for parcel in parcels for key in parcel] or counts == (2, 2, 0)


def test_nothing_is_computed_until_it_is_seen():
    async def cell() -> int:
        opened = bench(case=1)
        for _ in range(3):
            await asyncio.sleep(0.02)
        return len(opened._map._cells)

    assert asyncio.run(cell()) == 0


@pytest.mark.parametrize("options", [{"predict": True}, {"engine": "launched gloo"}, {"inputs": (1, 1, 1)}])
def test_there_is_no_map_where_it_would_tell_or_cannot_be(options):
    assert bench(**options).view.map == {}


def quick(rank, inputs):
    pass


def test_the_map_of_a_slow_program_begins_with_the_fewest_inputs(monkeypatch):
    monkeypatch.setattr(ending_map, "SLOW_S", -1.0)  # every emulation counts as a slow one
    opened = bench(quick, inputs=(5, 5))
    opened._map.finish()
    order = [sum(map(int, cell.split(","))) for cell in opened.view.map["cells"]]
    assert len(order) == len(COUNTS) ** 2 and order[TRIES:] == sorted(order[TRIES:]) and order[TRIES] == 0
    assert opened.view.map["note"] == "" and "stop" not in opened.view.map


def test_the_map_of_a_slow_program_says_how_far_it_is_and_can_be_stopped(monkeypatch):
    monkeypatch.setattr(ending_map, "SLOW_S", -1.0)
    opened = bench(quick, inputs=(5, 5))
    for _ in range(TRIES + 1):
        opened._map._step()
    opened._map._tell("")
    assert opened.view.map["note"] == f"{TRIES + 1} of 81" and opened.view.map["stop"] is True
    opened.view._handle_custom_msg({"press": "end map"}, [])
    assert opened.view.map["note"].startswith(f"Stopped at {TRIES + 1} of 81") and "stop" not in opened.view.map
    opened._map.finish()
    assert len(opened.view.map["cells"]) == TRIES + 1


def test_the_map_of_a_slow_program_takes_a_bounded_time(monkeypatch):
    monkeypatch.setattr(ending_map, "SLOW_S", -1.0)
    monkeypatch.setattr(ending_map, "MOST_S", 0.0)
    opened = watched(bench(quick, inputs=(5, 5)))
    assert len(opened.view.map["cells"]) == TRIES
    assert opened.view.map["note"].startswith(f"This program is slow, so its map ends at {TRIES} of 81")


def test_a_rank_that_raises_has_a_colour_of_its_own():
    def third(rank, inputs):
        if len(inputs) == 3:
            raise RuntimeError("three")

    opened = watched(bench(third, inputs=(1, 1)))
    names = [kind["name"] for kind in opened.view.map["kinds"]]
    assert names[opened.view.map["cells"]["3,1"]] == Overall.RAISES


def test_a_program_that_was_cut_off_is_neither_on_the_map_nor_kept(monkeypatch):
    monkeypatch.setattr(session, "EMULATION_S", 0.05)

    def endless(rank, inputs):
        while len(inputs) == 2:
            pass

    opened = watched(bench(endless, inputs=(1, 1)))
    assert "slow" in opened.view.map["note"] and all("2" not in counts for counts in opened.view.map["cells"])
    assert all(len(kept.counts) and 2 not in kept.counts for kept in opened._session._kept)


def test_what_is_sent_ahead_is_named_by_all_that_it_depends_on():
    made = bench(inputs=(5, 6))
    keys = {made.view.shown}
    for name, value in (("engine", "emulated nccl 1.9"), ("barrier_value", 9), ("case", 5), ("counts", (2, 2))):
        setattr(made, name, value)
        keys.add(made.view.shown)
    assert len(keys) == 5 and "" not in keys


def test_a_program_of_ones_own_and_a_covered_run_are_never_named():
    opened = watched(bench(quick, inputs=(1, 1)))
    assert opened.view.shown == "" and opened._map._ahead.size == 0
    assert bench(predict=True).view.shown == ""
