"""The bench's map of endings agrees with the runs that the sliders show."""

from __future__ import annotations

import asyncio

import pytest

from joinlab.emulator import emulate as emulator
from joinlab.emulator.warm_up import warm_up
from joinlab.notebook.bench import Bench, bench
from joinlab.notebook.sweep import COUNTS, Overall
from tests.random_timelines import lane_data


def watched(made: Bench) -> Bench:
    """As if a browser showed it; the map is finished."""
    made._handle_custom_msg({"press": "shown"}, [])
    while made._map.left:
        made._map._step()
    return made


@pytest.fixture(scope="module", autouse=True)
def torch():
    warm_up()


@pytest.fixture(scope="module")
def made():
    return watched(bench(inputs=(5, 6)))


def test_it_says_how_every_cell_ends(made):
    cells = made.map["cells"]
    names = [kind["name"] for kind in made.map["kinds"]]
    assert len(cells) == len(COUNTS) ** 2 and made.map["note"] == ""
    for counts, kind in cells.items():
        one, other = counts.split(",")
        assert names[kind] == (Overall.FINISHES if one == other else Overall.HANGS)


def test_a_mapped_run_is_not_emulated_again(made, monkeypatch):
    monkeypatch.setattr(emulator, "emulate", lambda *_, **__: pytest.fail("emulated again"))
    made.set_state({"counts": [2, 2]})
    assert made.counts == (2, 2)
    assert [str(end) for end in made.timeline.ends] == ["finished", "finished"]


def unpacked(parcel: bytes) -> dict:
    return lane_data(parcel)[0]


def test_the_pictures_sent_ahead_are_those_that_python_would_answer(made):
    parcels = [unpacked(parcel) for parcel in made._map.sent]
    keys = [key for parcel in parcels for key in parcel["ahead"]]
    assert len(keys) == len(set(keys)) == len(COUNTS) ** 2
    for counts in ((5, 6), (5, 5), (0, 8)):
        made.counts = counts
        answer = unpacked(made._packed)
        parcel = next(one for one in parcels if made.shown in one["ahead"])
        at = parcel["ahead"][made.shown]
        ahead, drawn = parcel["runs"][at], answer["runs"][0]
        for name in ("columns", "ends", "story", "headline"):
            assert ahead["scene"][name] == drawn["scene"][name]
        assert ahead["title"] == drawn["title"]


def test_another_page_gets_the_pictures_once_more(made, monkeypatch):
    sent = []
    monkeypatch.setattr(made._map, "_send", sent.append)
    made._handle_custom_msg({"press": "shown"}, [])
    assert sent == made._map.sent and sent


def test_another_engine_has_another_map(made):
    made.engine = "emulated gloo"
    assert made.map["cells"] == {}
    made.engine = "emulated nccl"
    watched(made)
    assert len(made.map["cells"]) == len(COUNTS) ** 2


def test_it_is_computed_in_the_background_the_cells_around_first():
    async def cell() -> list[tuple[int, ...]]:
        opened = bench(case=1, inputs=(5, 6))
        opened._handle_custom_msg({"press": "shown"}, [])
        while opened._map.left and len(opened._map.cells) < 5:
            await asyncio.sleep(0)
        opened.close()
        return list(opened._map.cells)

    assert set(asyncio.run(cell())[:5]) == {(5, 6), (4, 6), (5, 5), (5, 7), (6, 6)}


def test_nothing_is_computed_until_it_is_seen():
    async def cell() -> int:
        opened = bench(case=1)
        for _ in range(3):
            await asyncio.sleep(0.02)
        return len(opened._map.cells)

    assert asyncio.run(cell()) == 0


@pytest.mark.parametrize(
    "options", [{"predict": True}, {"engine": "launched gloo"}, {"inputs": (1, 1, 1)}]
)
def test_there_is_no_map_that_would_reveal_a_run_or_is_impossible(options):
    assert bench(**options).map == {}


def quick(rank, inputs):
    pass


def test_the_key_of_a_sent_picture_has_everything_it_depends_on():
    made = bench(inputs=(5, 6))
    keys = {made.shown}
    for name, value in (
        ("engine", "emulated nccl 1.9"),
        ("barrier_value", 9),
        ("case", 5),
        ("counts", (2, 2)),
    ):
        setattr(made, name, value)
        keys.add(made.shown)
    assert len(keys) == 5 and "" not in keys


def test_a_program_of_ones_own_and_a_covered_run_are_never_named():
    opened = watched(bench(quick, inputs=(1, 1)))
    assert opened.shown == "" and opened.map == {} and opened._map.sent == []
    assert bench(predict=True).shown == ""
