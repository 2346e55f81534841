"""The bench without a browser: sets its controls as a browser would, and checks what it shows."""

from __future__ import annotations

import sys
import threading
import types
from typing import Any

import ipywidgets
import pytest

import joinlab
from joinlab import cases
from joinlab.emulator import emulate as emulator
from joinlab.emulator import shipped_runs
from joinlab.errors import LaunchInterrupted, ProgramError
from joinlab.launcher import launcher
from joinlab.notebook import bench as workbench
from joinlab.notebook import settings
from joinlab.notebook.bench import LINES, Bench, bench
from joinlab.notebook.settings import ENGINES
from joinlab.story.lines import LineKind
from joinlab.timeline import Ending, EndKind, timeline_from_rows
from tests.leftovers import assert_nothing_left
from tests.random_timelines import lane_data, unzipped


@pytest.fixture(autouse=True)
def fresh_kernel() -> None:
    """No cell has run yet."""
    workbench._latest.clear()
    workbench._made_by.clear()


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The emulated runs, in order."""
    asked: list[tuple[Any, ...]] = []
    real = emulator.emulate

    def noted(program: Any, counts: Any, backend: str, **options: Any) -> Any:
        asked.append((program.__name__, counts, backend, options["era"]))
        return real(program, counts, backend, **options)

    monkeypatch.setattr(emulator, "emulate", noted)
    return asked


def on_the_wire(made: Bench) -> str:
    """Everything sent to the browser: the state of every widget, unpacked."""
    told = []

    def walk(widget: Any) -> None:
        state = widget.get_state()
        told.append(
            repr({name: value for name, value in state.items() if not isinstance(value, bytes)})
        )
        for value in state.values():
            if isinstance(value, bytes) and value:
                told.append(unzipped(value).partition(b"\0")[0].decode())
        for child in getattr(widget, "children", ()):
            walk(child)

    walk(made)
    return "\n".join(told)


def press(made: Bench, **message: Any) -> None:
    """The browser's message for a pressed button."""
    made._handle_custom_msg(message, [])


def status(made: Bench) -> str:
    return made.status["text"]


# ---- emulated runs follow


def test_a_bench_opens_with_case_4_emulated():
    made = bench()
    assert (made.case, made.counts, made.engine) == (4, (5, 6), "emulated nccl")
    assert made.timeline is not None and made.timeline is made.timeline
    assert [str(end) for end in made.timeline.ends] == ["finished", "hung (proven)"]
    assert "Rank 0 has exhausted all 5" in made.printed[0][1]
    assert (made.controls["go"], made.controls["launches"], made.covered) == ("", False, [])
    assert repr(made).startswith(
        "<Bench: case_4, inputs (5, 6), emulated nccl; <Timeline of 'case_4'"
    )


def test_the_first_mismatch_is_selected():
    made = bench()
    assert set(made.calls["origin"].to_list()) == {
        "all-reduce (join() _get_num_nonjoined_procs())",
        "all-reduce (barrier)",
    }
    made.counts = (5, 5)
    assert made.selected is None


def test_a_slider_is_followed_at_once(emulated):
    made = bench(case=1)
    made.counts = [5, 7]
    assert made.timeline.meta["inputs"] == [5, 7] and made.timeline is made.timeline
    made.counts = [5, 9]
    made.counts = [5, 7, 1]
    assert made.timeline.world_size == 3
    made.case = 2
    made.engine = "emulated gloo"
    assert [asked[:3] for asked in emulated] == [  # those that do not ship
        ("case_1", (5, 9), "nccl"),
        ("case_1", (5, 7, 1), "nccl"),
        ("case_2", (5, 7, 1), "nccl"),
        ("case_2", (5, 7, 1), "gloo"),
    ]


def parcels_of_places(made: Bench, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the browser gets when it asks for the places of the barrier."""
    parcels: list[bytes] = []
    monkeypatch.setattr(made, "send", lambda message, buffers: parcels.extend(buffers))
    made._pressed(made, {"press": "places"}, [])
    return [lane_data(parcel)[0] for parcel in parcels]


def pictures_of_places(made: Bench, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """By key, the title of each run in it."""
    titles = {}
    for data in parcels_of_places(made, monkeypatch):
        for key, run in data["ahead"].items():
            titles[key] = data["runs"][run]["title"]
    return titles


def test_the_six_places_of_the_barrier_are_sent_before_one_is_chosen(monkeypatch):
    made = bench(case=2, inputs=(2, 3))
    assert pictures_of_places(made, monkeypatch) == {
        f"{case},emulated nccl,7,0,2,3": f"case_{case}, inputs (2, 3), emulated on nccl"
        for case in cases.DOCUMENTED
    }
    assert (
        made.controls["endings"] == shipped_runs.endings("nccl", "today")
        and len(made.controls["loop"]) == 6
    )
    made.engine = "emulated nccl 1.9"
    assert made.controls["endings"] == shipped_runs.endings("nccl", "1.9")
    assert [*pictures_of_places(made, monkeypatch)][3] == "4,emulated nccl 1.9,7,0,2,3"


def test_of_places_without_a_shipped_run_those_are_sent_that_were_emulated(monkeypatch):
    made = bench(case=1, inputs=(1, 1, 2))
    assert made.status["text"] == "Emulated here: no run of this place ships."
    assert [*pictures_of_places(made, monkeypatch)] == ["1,emulated nccl,7,0,1,1,2"]
    made.counts = (1, 2)
    assert made.status["text"] == ""
    made.barrier_value = 0
    assert made.controls["endings"] == ""


@pytest.mark.parametrize("options", [{"predict": True}, {"engine": "launched gloo"}])
def test_no_place_is_told_to_who_predicts_or_launches(options, monkeypatch):
    made = bench(**options)
    assert pictures_of_places(made, monkeypatch) == {} and made.controls["endings"] == ""


def test_where_a_fix_is_to_be_found_no_place_tells_it(monkeypatch):
    tried = "Tried: both finish."
    assert tried in str(parcels_of_places(bench(), monkeypatch)[0])
    made = bench(cure=False)
    (data,) = parcels_of_places(made, monkeypatch)
    assert made.controls["endings"] == "" and len(data["ahead"]) == 6 and tried not in str(data)


def test_what_was_emulated_lately_is_kept(emulated):
    made = bench(case=1, inputs=(1, 9))
    first = made.timeline
    made.counts = (9, 2)
    made.counts = (1, 9)
    assert made.run() is made.timeline is first and len(emulated) == 2


def test_what_ships_for_another_pytorch_is_shown_until_torch_is_loaded_and_no_longer(monkeypatch):
    monkeypatch.setattr(shipped_runs, "_installed_torch", lambda: "2.14.0")
    monkeypatch.setattr(settings, "torch_is_loaded", lambda: False)
    kept, setting = (
        settings.Emulations(),
        settings.BenchSetting(None, 4, (5, 6), ENGINES["emulated nccl"]),
    )
    shipped = kept.emulate(setting)
    monkeypatch.setattr(settings, "torch_is_loaded", lambda: True)
    assert kept.emulate(setting) is not shipped


def test_what_ships_for_another_pytorch_is_emulated(emulated, monkeypatch):
    monkeypatch.setattr(shipped_runs, "_installed_torch", lambda: "2.14.0")
    bench(case=1, inputs=(1, 2))
    assert len(emulated) == 1


def test_a_program_of_ones_own_is_emulated_each_time(emulated):
    def mine(rank, inputs):
        print(f"I have {len(inputs)}", *([] if flag else ["no"]))

    flag = True
    made = bench(mine, inputs=(1, 1))
    assert made.case == 0 and made.own_program is mine
    assert made.timeline.output == ("I have 1\n", "I have 1\n")
    flag = False
    made.counts = (2, 1)
    made.counts = (1, 1)
    assert made.timeline.output[0] == "I have 1 no\n"
    assert len(emulated) == 3
    made.case = 1
    assert made.timeline.meta["program"] == "case_1"
    made.case = 0
    assert made.timeline.meta["program"] == "mine"


def test_several_changes_from_python_are_one_emulation(emulated):
    bench(case=3, inputs=(1, 9), engine="emulated nccl 1.9")
    assert emulated == [("case_3", (1, 9), "nccl", "1.9")]


@pytest.mark.parametrize(
    ("engine", "case", "byte", "pad"),
    [
        ("emulated nccl 1.9", 4, True, True),
        ("launched gloo", 4, False, False),
    ],
)
def test_knobs_are_shown_where_they_matter(engine, case, byte, pad):
    made = bench(case=case, engine=engine, inputs=(1, 2))
    assert ["barrier_value" in made.controls["knobs"], "pad" in made.controls["knobs"]] == [
        byte,
        pad,
    ]


def test_the_knobs_reach_the_emulation():
    made = bench(engine="emulated nccl 1.9", inputs=(2, 3))
    assert [str(end) for end in made.timeline.ends] == ["hung (proven)", "finished"]
    made.barrier_value = 0
    assert [str(end) for end in made.timeline.ends] == ["finished", "hung (proven)"]
    made.barrier_value, made.pad = 7, 3
    assert made.timeline.meta["emulation"]["pad"] == 3 and made.barrier_value == 7 and made.pad == 3


# ---- from Python


def test_a_program_that_raises_shows_its_ending():
    def broken(rank, inputs):
        raise RuntimeError("no <b>")

    made = bench(broken, inputs=(1, 1))
    assert [end.kind for end in made.timeline.ends] == [EndKind.RAISED] * 2
    assert "no <b>" in made.printed[0][1]


def test_a_program_that_never_ends_is_ended(monkeypatch):
    monkeypatch.setattr(settings, "EMULATION_S", 0.05)

    def endless(rank, inputs):
        while True:
            pass

    made = bench(endless, inputs=(1, 1))
    assert [end.kind for end in made.timeline.ends] == [EndKind.KILLED] * 2
    assert "still running" in made.timeline.ends[0].text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"program": "train.py"}, "function worker"),
        ({"program": lambda: None}, "two arguments"),
        ({"case": 99}, "case="),
        ({"case": 0}, "case="),
        ({"inputs": ()}, "empty"),
        ({"inputs": (1, 21)}, "at most 20"),
        ({"inputs": (1,) * 9}, "at most 8"),
        ({"inputs": "56"}, "inputs="),
        ({"engine": "mpi"}, "engine="),
    ],
)
def test_what_the_bench_cannot_show_is_refused(options, message):
    with pytest.raises(ProgramError, match=message):
        bench(**options)


def test_what_cannot_be_set_is_refused_and_nothing_changes():
    made = bench(case=1)
    before = made.timeline
    for name, value in (
        ("counts", (1, -1)),
        ("case", 9),
        ("engine", "mpi"),
        ("said", ("hangs", "hangs")),
    ):
        with pytest.raises(ProgramError):
            setattr(made, name, value)
    assert made.timeline is before and made.counts == (5, 6)


def interrupt(*_: Any, **__: Any) -> Any:
    timeline = timeline_from_rows(
        [], [Ending("killed", text="interrupted by the user")], {"backend": "nccl"}
    )
    raise LaunchInterrupted("interrupted", timeline)


def test_an_interrupt_reaches_the_cell_but_not_a_control(monkeypatch):
    made = bench(case=1)
    monkeypatch.setattr(emulator, "emulate", interrupt)
    with pytest.raises(KeyboardInterrupt):
        made.counts = (1, 12)
    made.set_state({"counts": [1, 13]})
    assert "Interrupted" in status(made)
    monkeypatch.undo()
    made.counts = (1, 14)
    assert made.timeline.meta["inputs"] == [1, 14] and "Interrupted" not in status(made)


# ---- predict first


def test_what_is_covered_has_not_been_sent():
    made = bench(predict=True, engine="emulated nccl 1.9")
    assert made.covered and made.timeline is None and "covered" in repr(made)
    told = on_the_wire(made)
    assert "not shown yet" in told and "case_4" in told
    for secret in (
        "hung",
        "all-reduce (",
        "_find_common_rank",
        "exhausted all 5",
        "Documented",
        "hangs in",
    ):
        assert secret not in told
    made.said = ("hangs", "hangs")
    made.run()
    press(made, press="calls")
    told = on_the_wire(made)
    assert "hung" in told and "_find_common_rank" in told and "exhausted all" in told


def test_a_prediction_is_judged_and_every_change_covers_again():
    made = bench(predict=True)
    assert not made.controls["can_go"] and "Predict first" in status(made)
    made.said = ["finishes", ""]
    with pytest.raises(ProgramError, match="first predict for each rank"):
        made.run()
    assert made.timeline is None and made.covered
    made.said = ["finishes", "raises"]
    assert made.controls["can_go"] and made.controls["go"] == "Show"
    press(made, press="go")
    assert not made.covered and made.covered == [] and made.timeline is not None
    (found,) = made.scores
    assert (found.predicted, found.ended, found.right) == (
        ("finishes", "raises"),
        ("finishes", "hangs"),
        (True, False),
    )
    assert made.results == ("✓ it finishes", "✗ it hangs")
    assert "1 of 2 right" in status(made)
    for name, value in (("counts", (1, 1)), ("case", 2), ("engine", "emulated gloo"), ("pad", 1)):
        setattr(made, name, value)
        assert (
            made.covered and made.timeline is None and made.said == ("", "") and made.results == ()
        )
        assert made.covered == [0, 1] and made._seen.calls.height == 0
        made.said = ("finishes", "finishes")
        made.run()
    assert len(made.scores) == 5


def test_the_cover_holds_what_is_selected_and_compared_too():
    made = bench(predict=True, case=1, inputs=(1, 2))
    made.said = ("finishes", "finishes")
    made.run()
    made.selected = 3
    made.keep()

    def drawn():
        return "beside" in lane_data(made._packed)[0]["runs"][-1]

    assert drawn()
    made.counts = (1, 3)
    assert made.selected is None and not drawn()
    made.said = ("finishes", "finishes")
    made.run()
    assert drawn()


def test_said_can_be_only_one_of_three_words():
    made = bench(predict=True)
    with pytest.raises(ProgramError, match="finishes, hangs or raises"):
        made.said = ("explodes", "hangs")
    with pytest.raises(ProgramError, match="each of 2 ranks"):
        made.said = ("hangs",)


# ---- launched runs


def test_a_launched_case_4_shows_its_proven_hang():
    made = bench(engine="launched gloo", inputs=(1, 2))
    assert made.timeline is None and made._seen.calls.height == 0
    assert (made.controls["go"], made.controls["launches"]) == ("▶ Run", True)
    assert "Not run yet" in status(made)
    timeline = made.run()
    assert (
        made.timeline is timeline and [str(end) for end in timeline.ends] == ["hung (proven)"] * 2
    )
    assert "never meet" not in status(made)
    made.counts = (2, 3)
    assert made.timeline is None and "Not run yet" in status(made)
    assert_nothing_left()


def patient(rank, inputs):
    threading.Event().wait()


def waiting(monkeypatch, cell: str, run: str) -> Bench:
    """A bench made by that run of that notebook cell; its run is under way, and its ranks wait for
    ever."""

    in_cell(monkeypatch, cell, run)
    made = bench(patient, inputs=(1, 1), engine="launched gloo")
    heard = threading.Event()
    made.observe(
        lambda change: heard.set() if "Running" in change["new"]["text"] else None, "status"
    )
    press(made, press="go")
    assert heard.wait(100) and made.running
    return made


def in_cell(monkeypatch, cell: str, run: str) -> None:
    asked = {"header": {"msg_id": run}, "metadata": {"cellId": cell} if cell else {}}
    shell = types.SimpleNamespace(get_parent=lambda: asked)
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))


def test_the_bench_reports_and_stops_a_run_under_way(monkeypatch):
    made = waiting(monkeypatch, "one", "first")
    assert not made.controls["can_go"]
    press(made, press="go")  # a second click changes nothing
    with pytest.raises(ProgramError, match="under way"):
        made.counts = (2, 2)
    assert "Running" in status(made) and made.timeline is None
    made.stop()
    assert not made.running
    assert [(end.kind, end.text) for end in made.timeline.ends] == [
        (EndKind.KILLED, "stopped on request")
    ] * 2
    made.stop()
    assert_nothing_left()


def test_an_interrupted_cell_ends_the_run(monkeypatch):
    made = bench(patient, inputs=(1,), engine="launched gloo")

    def interrupted(*_: Any) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "join", interrupted)
    with pytest.raises(LaunchInterrupted):
        made.run()
    assert not made.running and made.timeline.ends[0].kind is EndKind.KILLED
    assert_nothing_left()


def test_a_stopped_run_is_not_counted_as_a_prediction(monkeypatch):
    ended = [Ending("killed", text="stopped on request"), Ending("finished")]
    stopped = timeline_from_rows(
        [], ended, {"program": "case_4", "backend": "gloo", "inputs": [5, 6]}
    )
    monkeypatch.setattr(launcher, "launch", lambda *_, **__: stopped)
    made = bench(predict=True, engine="launched gloo")
    made.said = ("hangs", "finishes")
    made.run()
    assert made.results == ("ended by joinlab: not counted", "✓ it finishes")
    assert "1 of 1 right" in status(made)


def test_a_launch_that_fails_says_why_and_the_bench_lives_on(monkeypatch):
    def refuse(*_: Any, **__: Any) -> Any:
        raise joinlab.LaunchError("no <fork> today")

    monkeypatch.setattr(launcher, "launch", refuse)
    made = bench(engine="launched gloo")
    with pytest.raises(joinlab.LaunchError, match="today"):
        made.run()
    assert "no <fork> today" in status(made) and not made.running
    made.engine = "emulated nccl"
    assert made.timeline is not None and "fork" not in status(made)


def test_the_bench_names_what_the_machine_lacks_and_starts_nothing(monkeypatch):
    monkeypatch.setattr(
        workbench, "missing", lambda one, ranks: "No GPU." if one.name == "launched nccl" else ""
    )
    made = bench(engine="launched nccl")
    assert "No GPU." in status(made) and not made.controls["can_go"]
    assert ("launched nccl", "▶ really, on NCCL", "No GPU.") in made.controls["engines"]
    with pytest.raises(ProgramError, match="No GPU"):
        made.run()


# ---- compare


def test_what_is_kept_stands_below_what_comes_next():
    made = bench(case=4, inputs=(2, 3), engine="emulated nccl 1.9")
    old = made.timeline
    press(made, press="compare")
    assert made.beside is old
    made.engine = "emulated nccl"
    assert made.beside is old
    made.keep()
    assert made.beside is None


def told(made: joinlab.View) -> tuple[dict[str, Any], dict[str, Any]]:
    """The data of a view that compares, and the run that it draws."""
    data, _ = lane_data(made._packed)
    return data, data["runs"][-1]


def test_two_pictures_have_one_axis():
    left, right = (joinlab.emulate(cases.case_4, (2, 3), era=era) for era in ("1.9", "today"))
    data, one = told(joinlab.compare(left, right))
    other = data["runs"][one["beside"]]
    assert one["apart"].startswith("They part")
    heads = ["".join(text for text, *_ in each["scene"]["headline"]) for each in (one, other)]
    assert [" ".join(head.split()) for head in heads] == [
        "1.9: Rank 0 hangs.",
        "today: Rank 1 hangs.",
    ]
    mine, yours = one["scene"]["columns"], other["scene"]["columns"]
    assert [(each["size"], each["far"]) for each in mine] == [
        (each["size"], each["far"]) for each in yours
    ]
    assert (
        one["scene"]["behind"] == other["scene"]["behind"]
        and one["scene"]["focus"] == other["scene"]["focus"]
    )
    with pytest.raises(ProgramError, match="compare takes a Timeline"):
        joinlab.compare(left, "right")
    with pytest.raises(ProgramError, match="diagnose takes a Timeline"):
        joinlab.diagnose(joinlab.cases.case_4)
    with pytest.raises(ProgramError, match="figure takes a Timeline"):
        joinlab.figure(None)


def test_a_call_that_one_run_lacks_leaves_its_place_empty():
    data, one = told(
        joinlab.compare(*(joinlab.emulate(cases.case_1, counts) for counts in ((1, 3), (1, 2))))
    )
    other = data["runs"][one["beside"]]
    assert len(one["scene"]["columns"]) == len(other["scene"]["columns"])
    empty = [[not any(each["boxes"]) for each in run["scene"]["columns"]] for run in (one, other)]
    assert not any(a and b for a, b in zip(*empty, strict=True))


# ---- several, and the end


def test_a_cell_that_runs_again_stops_what_its_old_bench_launched(monkeypatch):
    old = waiting(monkeypatch, "one", "first")
    # another cell; a second bench; not known
    for cell, run in (
        ("other", "second"),
        ("one", "first"),
        ("", "third"),
    ):
        in_cell(monkeypatch, cell, run)
        bench(case=1, inputs=(1, 1))
        assert old.running
    in_cell(monkeypatch, "one", "fourth")
    bench(case=1, inputs=(1, 1))
    assert not old.running and [end.text for end in old.timeline.ends] == ["stopped on request"] * 2
    assert_nothing_left()


def test_a_cell_that_runs_again_begins_with_what_its_bench_was_left_with(monkeypatch):
    in_cell(monkeypatch, "left", "first")
    one, other = bench(case=1), bench(case=1, engine="emulated nccl 1.9")
    one.counts, one.engine = (2, 3, 1), "emulated gloo"
    other.counts, other.barrier_value = (1, 1), 9
    in_cell(monkeypatch, "another", "second")
    assert bench(case=1).counts == (5, 6)
    in_cell(monkeypatch, "left", "third")
    again, also = bench(case=1), bench(case=1, engine="emulated nccl 1.9")
    assert (again.counts, again.engine) == ((2, 3, 1), "emulated gloo")
    assert again.timeline.meta["inputs"] == [2, 3, 1] and (also.counts, also.barrier_value) == (
        (1, 1),
        9,
    )
    in_cell(monkeypatch, "left", "fourth")
    # the cell's text asks for something else now
    assert bench(case=1, inputs=(4, 4)).counts == (
        4,
        4,
    )


def test_a_bench_that_is_closed_stops_what_it_launched(monkeypatch):
    made = waiting(monkeypatch, "one", "first")
    made.close()
    assert not made.running
    assert_nothing_left()


def test_two_benches_do_not_meet():
    one, other = bench(case=1, inputs=(1, 2)), bench(case=4, predict=True)
    one.counts = (3, 4)
    assert other.counts == (5, 6) and other.covered and other.scores == []
    other.said = ("finishes", "hangs")
    other.run()
    assert one.scores == [] and one.timeline.meta["program"] == "case_1"


def test_a_closed_bench_has_stopped_and_answers_no_more(emulated):
    made = bench(case=1, inputs=(1, 9))
    made.close()
    assert made.comm is None
    made.counts = [1, 1]
    assert len(emulated) == 1 and made.timeline.meta["inputs"] == [1, 9]


def test_a_closed_bench_leaves_no_widget():
    known = ipywidgets.widgets.widget._instances
    before = set(known)
    made = bench(case=1)
    made.keep()  # compares
    assert set(known) > before
    made.close()
    assert set(known) == before


def test_the_first_view_is_small_on_the_wire():
    made = bench(case=4)
    sent = made.get_state().values()
    size = sum(len(one) if isinstance(one, bytes) else len(str(one)) for one in sent)
    assert 40_000 < size < 85_000  # the names of the traits, and of the widgets around, come on top


# ---- output


def test_the_last_lines_of_a_rank_are_shown():
    def talks(rank, inputs):
        for at in range(LINES + 5):
            print(f"line {at}.")

    made = bench(talks, inputs=(1,))
    assert "line 204." in made.printed[0][1] and "line 4." not in made.printed[0][1]


def test_a_fix_that_was_found_is_in_the_picture_when_the_reader_comes_back():
    made = bench(case=4, inputs=(1, 2), engine="emulated nccl 1.9")
    made.barrier_value = 8  # nothing of this ships
    assert b"Tried: both finish" not in unzipped(made._packed)
    made._fix(made.timeline)
    for _ in range(2):
        assert b"Tried: both finish" in unzipped(made._packed)
        made.counts = (1, 1)
        made.counts = (1, 2)


def test_a_bench_without_a_cure_shows_no_fix() -> None:
    bench = joinlab.bench(case=4, inputs=(2, 3), cure=False)
    story = joinlab.diagnose(bench.timeline)
    assert story.sentence.endswith("Rank 1 hangs.") and not story.of(LineKind.FIX)


def test_a_cases_fix_is_applied_by_emulating_it_and_undone_by_a_move() -> None:
    made = bench(case=4, inputs=(2, 3))
    run = made.timeline
    assert not run.live.mended and "fixes" in run.meta  # it ships
    made.mended = True
    assert [end.kind for end in run.live.mended.ends] == ["finished"] * 2
    data, _ = lane_data(made._packed)
    assert data["runs"][data["runs"][-1]["mended"]]["scene"]["ends"][1][0] == "✓"
    made.counts = (2, 4)
    assert not made.mended
    made.close()


def test_a_bench_that_shows_no_cure_has_no_button_for_it() -> None:
    made = bench(case=4, inputs=(2, 3), cure=False)
    data, _ = lane_data(made._packed)
    assert data["runs"][-1]["mends"] is False
    made.mended = True
    assert made.mended is False
    made.close()
