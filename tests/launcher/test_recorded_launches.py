"""Emulates the programs of the launches in data/, and compares the endings with the recorded
ones."""

from __future__ import annotations

import datetime
import gzip
import re
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

import joinlab
from joinlab import cases, emulate
from joinlab.timeline import Ending, EndKind, Timeline
from tests.agreement import differences, disagreements, what
from tests.recordings import (
    DATA,
    RANDOM_PROGRAMS,
    Recording,
    Subject,
    how_to_record_anew,
    load_recordings,
    record,
    save_recordings,
    subjects,
)

pytestmark = pytest.mark.filterwarnings("ignore")

GLOO = DATA / "recorded_gloo.json.gz"
FILES = {path: load_recordings(path) for path in sorted(DATA.glob("recorded_*"))}
EACH = [
    pytest.param(path, recording, id=f"{file.about['backend']}: {recording.subject}")
    for path, file in FILES.items()
    for recording in file.all
]
each_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)


@pytest.mark.parametrize(("path", "recording"), EACH)
def test_the_emulator_ends_it_as_the_recorded_processes_did(
    path: Path, recording: Recording
) -> None:
    subject = recording.subject
    assert recording.plan == subject.plan, (
        f"tests/random_programs.py draws another program for {subject} than was recorded. {how_to_record_anew(path)}"
    )
    found = disagreements(subject.program, recording.timeline)
    assert found == [], (
        f"recorded with {recording.timeline.meta['versions']}; {how_to_record_anew(path)}"
    )


def test_gloo_is_recorded() -> None:
    assert GLOO in FILES


@each_file
def test_a_file_has_the_six_cases_and_enough_random_programs(path: Path) -> None:
    file = FILES[path]
    assert path.name == f"recorded_{file.about['backend']}.json.gz"
    recorded = Counter(one.subject.case for one in file.all)
    assert recorded == {
        None: RANDOM_PROGRAMS[file.about["backend"]],
        **dict.fromkeys(cases.DOCUMENTED, 3),
    }
    assert len({one.subject for one in file.all}) == len(file.all)
    assert {one.timeline.world_size for one in file.all} == {2}


@each_file
def test_a_file_says_when_and_with_what_it_was_made(path: Path) -> None:
    about = FILES[path].about
    assert datetime.date.fromisoformat(about["date"]) >= datetime.date(2026, 1, 1)
    assert about["versions"].keys() == {"joinlab", "python", "torch", "nccl"}
    assert all(about["versions"][name] for name in ("joinlab", "python", "torch"))
    on_gpu = about["backend"] == "nccl"
    assert bool(about["versions"]["nccl"]) == on_gpu
    assert bool(about["gpu"]) == on_gpu


@each_file
def test_a_file_is_small_and_names_no_machine(path: Path) -> None:
    assert path.stat().st_size < 300_000
    text = gzip.decompress(path.read_bytes()).decode()
    assert re.findall(r"(?<![\w.])/(?:work|tmp|home|root|mnt|usr|var|Users)/", text) == []
    assert [
        place
        for place in (str(DATA.parent), sys.prefix, str(Path.home()))
        if len(place) > 1 and place in text
    ] == []
    assert ".py" not in text


@each_file
def test_a_file_has_something_to_disagree_with(path: Path) -> None:
    calls = pl.concat([one.timeline.calls for one in FILES[path].all])
    completed = calls.filter(pl.col("completed_ns").is_not_null() & (pl.col("op") != "barrier"))
    assert completed["value_out"].count() > 0.5 * completed.height
    assert {end.kind for one in FILES[path].all for end in one.timeline.ends} >= {
        EndKind.FINISHED,
        EndKind.HUNG,
    }


# ---------------- recording


def pretend(subject: Subject, backend: str) -> Timeline:
    """What a launch would give, from the emulator: with these tests, nobody needs a GPU."""
    timeline = emulate(subject.program, subject.inputs, backend=backend)
    return replace(timeline, meta={**timeline.meta, "transport": None})


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "recorded_nccl.json.gz"
    wanted = subjects("nccl", programs=3)[::4]
    told: list[str] = []
    assert record("nccl", path, wanted, pretend, told.append) == 0
    assert [line.partition(":")[0] for line in told] == [str(subject) for subject in wanted]
    file = load_recordings(path)
    assert [one.subject for one in file.all] == wanted
    assert file.about["versions"]["joinlab"] == joinlab.__version__
    for one in file.all:
        made = pretend(one.subject, "nccl")
        left_out = ["call_site", "stack"]
        assert one.timeline.calls.drop(left_out).equals(made.calls.drop(left_out))
        assert [replace(end, text=what(end.text) or "") for end in made.ends] == list(
            one.timeline.ends
        )
        assert repr(one.timeline.returns) == repr(made.returns)
        assert differences(made, one.timeline) == []
    again = tmp_path / "again.json.gz"
    save_recordings(file, again)
    assert again.read_bytes() == path.read_bytes()


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "recorded_gloo.json.gz"
    path.write_bytes(gzip.compress(b'{"format": "joinlab-recordings 0", "columns": []}'))
    with pytest.raises(ValueError, match="To record anew"):
        load_recordings(path)


def test_what_gloo_refuses_at_once_is_not_recorded() -> None:
    for recording in FILES[GLOO].all:
        ends = recording.timeline.ends
        assert not any("result type" in end.text for end in ends), recording.subject


# ---------------- comparing


def changed(timeline: Timeline, rank: int, index: int, **values: object) -> Timeline:
    """The same, but for one call: the `index`-th of `rank`."""
    calls = timeline.calls.with_row_index("at")
    at = calls.filter(pl.col("rank") == rank)["at"][index]
    new = [
        pl.when(pl.col("at") == at)
        .then(pl.lit(value, dtype=calls.schema[name]))
        .otherwise(pl.col(name))
        .alias(name)
        for name, value in values.items()
    ]
    return replace(timeline, calls=calls.with_columns(new).drop("at"))


def case(number: int, backend: str) -> Timeline:
    return pretend(Subject((2, 3), case=number), backend)


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_another_value_or_ending_is_a_disagreement(backend: str) -> None:
    launched = case(1, backend)
    program = cases.case_1
    assert disagreements(program, launched) == []
    for values in (
        {"value_out": "[[9.0]]"},
        {"value_in": "[[9.0]]"},
        {"op": "reduce"},
        {"completed_ns": None},
    ):
        (found,) = disagreements(
            program, changed(launched, 1, 3, **{**values, "host_wait_begin_ns": 1})
        )
        assert found.startswith("rank 1, call 3: ")
    (found,) = disagreements(
        program, replace(launched, ends=(launched.ends[0], Ending(EndKind.HUNG, proven=True)))
    )
    assert found.startswith("rank 1 ends ")
    (found,) = disagreements(program, replace(launched, returns=(2, 2)))
    assert found == "they return (2, 3) / (2, 2)"


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_the_parameters_that_ddp_draws_are_not_compared(backend: str) -> None:
    launched = changed(case(1, backend), 0, 2, value_in="[[0.1,0.2]]", value_out="[[0.1,0.2]]")
    assert launched.call(0, 2)["origin"] == "broadcast (DDP construction)"
    assert disagreements(cases.case_1, launched) == []
    assert len(differences(case(1, backend), launched)) == 1


def test_what_lies_in_unset_memory_is_not_compared_on_nccl() -> None:
    """On rank 1 the search for a common rank meets a barrier's float, and reads 4 bytes that nobody
    had set."""
    for pad in (0, 1, 12345):
        timeline = emulate(cases.case_4, (2, 3), backend="nccl", pad=pad)
        launched = replace(timeline, meta={**timeline.meta, "transport": None})
        found = disagreements(cases.case_4, launched)
        assert found == []


def test_a_value_that_was_not_copied_in_time_is_not_compared_on_nccl() -> None:
    for backend, count in (("nccl", 0), ("gloo", 1)):
        launched = changed(case(1, backend), 1, 3, value_in=None, value_out=None)
        assert len(disagreements(cases.case_1, launched)) == count


def test_a_call_that_nobody_waits_for_may_be_open_when_its_rank_returns_on_nccl() -> None:
    """Case 2 has no item() at its end: its last all-reduce may still run."""
    launched = case(2, "nccl")
    last = launched.calls.filter(pl.col("rank") == 0).height - 1
    still_open = changed(
        launched, 0, last, completed_ns=None, value_out=None, host_wait_begin_ns=None
    )
    pending = Ending(EndKind.FINISHED, pending=True, call=last, group="0")
    assert disagreements(cases.case_2, replace(still_open, ends=(pending, launched.ends[1]))) == []
    # But a call that never completes in the emulator must not have completed.
    one_more = launched.calls.filter(pl.col("rank") == 1).height - 1
    assert launched.call(1, one_more)["completed_ns"] is None
    (found,) = disagreements(cases.case_2, changed(launched, 1, one_more, completed_ns=1))
    assert found.startswith(f"rank 1, call {one_more}: ")


def test_over_sockets_the_end_of_a_peer_is_an_error_on_nccl() -> None:
    launched = case(3, "nccl")
    assert [end.kind for end in launched.ends] == [EndKind.FINISHED, EndKind.HUNG]
    text = "its process was killed by SIGABRT: what():  NCCL error: remote process exited or there was a network error"
    ends = (launched.ends[0], Ending(EndKind.KILLED, text=text))
    assert len(disagreements(cases.case_3, replace(launched, ends=ends))) == 1
    assert (
        disagreements(
            cases.case_3,
            replace(launched, ends=ends, meta={**launched.meta, "transport": "sockets"}),
        )
        == []
    )
