"""Flight recorder dumps: their facts are read, damaged or hostile parts are refused, and the rest
is used."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import joinlab
from joinlab.analysis.matching import match
from joinlab.analysis.waiting import who_waits
from joinlab.errors import TimelineFileError
from joinlab.jobs import safe_pickle
from joinlab.jobs.dump import Texts, check
from joinlab.timeline import EndKind
from tests.dumps import batches, nccl_trace, of_pairs, quietly, write
from tests.parallel_jobs import dumps, standing
from tests.timelines import same_timelines

GROUPS = {"0": (0, 1, 2, 3), "1": (0, 1), "2": (2, 3)}
CALLS = (("0", "all_reduce"), ("1", "_all_gather_base"), ("2", "_all_gather_base")) * 3
JOB = standing(GROUPS, CALLS, culprit=3, at=5)


def test_a_folder_of_dumps_is_a_timeline(tmp_path: Path) -> None:
    timeline, told = quietly(write(tmp_path, dumps(JOB)))
    assert told == []
    assert timeline.meta["groups"] == {"0": [0, 1, 2, 3], "1": [0, 1], "2": [2, 3]}
    assert timeline.meta["group_names"]["1"] == "G1"
    assert {end.kind for end in timeline.ends} == {EndKind.UNKNOWN}
    row = timeline.call(0, 0, "1")
    assert (row["op"], row["dtype"], row["shape"]) == ("all_gather", "float32", [[8]])
    assert (row["call_site"], row["stack"]) == ("train.py:11", ["train.py:11 step"])
    assert row["completed_ns"] - row["enqueued_ns"] > 0
    assert who_waits(timeline).ranks == (3,)
    assert "rank 3" in str(joinlab.diagnose(timeline))


def test_it_is_saved_and_drawn_like_any_other(tmp_path: Path) -> None:
    timeline, _ = quietly(write(tmp_path / "dumps", dumps(JOB)))
    again = joinlab.load(timeline.save(tmp_path / "job.joinlab"))
    assert same_timelines(again, timeline)
    assert who_waits(again) == who_waits(timeline)
    assert joinlab.write_html({"job": again}, tmp_path / "job.html").stat().st_size > 10_000


@pytest.mark.parametrize("form", [{"form": "active"}, {"form": "ring", "ring": 4}])
def test_calls_are_matched_by_their_number_when_the_beginning_is_lost(
    tmp_path: Path, form: dict[str, Any]
) -> None:
    whole, _ = quietly(write(tmp_path / "whole", dumps(JOB)))
    part, _ = quietly(write(tmp_path / "part", dumps(replace(JOB, **form))))

    def stacks(timeline: joinlab.Timeline) -> dict[tuple[str, int], set[int]]:
        return {
            (slot.group, seq): set(slot.calls)
            for slot in match(timeline)
            for seq in slot.calls.values()
        }

    for place, ranks in stacks(part).items():
        assert ranks <= stacks(whole)[place]
    assert all(slot.expected for slot in match(part))


def test_json_and_pickle_say_the_same_but_for_the_stacks(tmp_path: Path) -> None:
    pickled, _ = quietly(write(tmp_path / "pickle", dumps(JOB)))
    (tmp_path / "json").mkdir()
    for rank, one in dumps(JOB).items():
        for entry in one["entries"]:
            del entry["frames"]
            for name in ("time_discovered_started_ns", "time_discovered_completed_ns"):
                entry[name] = entry[name] or 0
        (tmp_path / "json" / f"fr_{rank}.json").write_text(json.dumps(one))
    text, _ = quietly(tmp_path / "json")
    without = ["stack", "call_site", "origin"]
    assert text.calls.drop(without).equals(pickled.calls.drop(without))
    assert text.ends == pickled.ends


def test_a_retired_gloo_call_is_complete_at_a_time_that_is_not_known(tmp_path: Path) -> None:
    found = dumps(JOB)
    for one in found.values():
        for entry in one["entries"]:
            entry["profiling_name"] = entry["profiling_name"].replace("nccl:", "gloo:")
            entry.update(state="scheduled", time_discovered_completed_ns=None)
    timeline, _ = quietly(write(tmp_path, found))
    assert timeline.meta["backend"] == "gloo"
    assert "lower bound" in timeline.meta["clock"]["completed"]
    retired = sum(entry["retired"] for one in found.values() for entry in one["entries"])
    assert timeline.calls["completed_ns"].drop_nulls().len() == retired


def test_a_retired_nccl_call_that_is_not_complete_has_timed_out(tmp_path: Path) -> None:
    found = dumps(JOB)
    before, _ = quietly(write(tmp_path / "before", found))
    for one in found.values():
        for entry in one["entries"]:
            entry["retired"] = True
    timeline, _ = quietly(write(tmp_path / "retired", found))
    assert timeline.calls["completed_ns"].equals(before.calls["completed_ns"])


def test_sends_and_recvs_of_a_batch_are_as_complete_as_the_batch(tmp_path: Path) -> None:
    found = of_pairs()
    timeline, _ = quietly(write(tmp_path / "whole", found))
    assert timeline.calls["completed_ns"].is_null().to_list() == [False, False, True, True] * 2
    assert timeline.meta["progress"]["0"][0] == {"enqueued": 7, "completed": 7}
    for one in found.values():
        one["entries"] = [entry for entry in one["entries"] if entry["state"] != "completed"]
    timeline, _ = quietly(write(tmp_path / "active", found))
    assert timeline.calls["completed_ns"].is_null().to_list() == [False, False, True, True] * 2


@pytest.mark.parametrize(
    ("end", "op"), [("coalesced", "broadcast"), ("ALLGATHER_coalesced", "all_gather")]
)
def test_collectives_of_a_batch_are_one_call(tmp_path: Path, end: str, op: str) -> None:
    parts = [
        ("_broadcast_oop", 8, 0, "scheduled"),
        ("_broadcast_oop", 8, 0, "scheduled"),
        (end, 8, 0, "completed"),
    ]
    calls = [("all_reduce", 7, 0, "completed"), *parts, ("all_reduce", 9, 0, "scheduled")]
    timeline, problems = quietly(write(tmp_path, {rank: batches(rank, calls) for rank in (0, 1)}))
    mine = timeline.calls.filter(pl.col("rank") == 0)
    assert mine["op"].to_list() == ["all_reduce", op, "all_reduce"]
    assert mine["shape"].to_list()[1] == [[5], [6]]
    assert mine["completed_ns"].is_null().to_list() == [False, False, True]
    assert problems == []


def test_fields_that_a_dump_lacks_are_null(tmp_path: Path) -> None:
    found = dumps(JOB)
    for one in found.values():
        for entry in one["entries"]:
            for name in ("input_dtypes", "op_id", "time_discovered_started_ns", "retired"):
                del entry[name]
    timeline, _ = quietly(write(tmp_path, found))
    assert timeline.calls["dtype"].is_null().all()
    assert who_waits(timeline).ranks == (3,)


def test_sends_and_recvs_name_their_peers_by_global_rank(tmp_path: Path) -> None:
    found = dumps(JOB)
    for rank, title in ((2, "nccl:send 0->1"), (3, "nccl:recv 1<-0")):
        entry = dict(
            found[rank]["entries"][-1], op_id=90, collective_seq_id=0, p2p_seq_id=1, is_p2p=True
        )
        entry.update(
            profiling_name=title,
            process_group=("2", "G2"),
            pg_id=1,
            state="scheduled",
            retired=False,
        )
        entry["time_discovered_completed_ns"] = None
        found[rank]["entries"].append(entry)
    timeline, _ = quietly(write(tmp_path, found))
    pairs = (
        timeline.calls.filter(pl.col("op").is_in(["send", "recv"]))
        .select("rank", "op", "peer")
        .rows()
    )
    assert pairs == [(2, "send", 3), (3, "recv", 2)]


# ---- what is missing, doubled, foreign


def test_a_missing_rank_is_named_and_no_culprit(tmp_path: Path) -> None:
    folder = write(tmp_path, dumps(JOB))
    (folder / "nccl_trace_rank_2").unlink()
    timeline, told = quietly(folder)
    assert told == ["there is no record of rank 2: what happened there is unknown"]
    assert timeline.meta["missing_ranks"] == [2]
    found = who_waits(timeline)
    assert 2 not in found.ranks
    assert "there is no record of rank 2" in str(joinlab.diagnose(timeline)).replace(
        "There", "there"
    )


def test_files_of_other_jobs_are_named_and_the_rest_is_read(tmp_path: Path) -> None:
    folder = write(tmp_path, dumps(JOB))
    write(folder, {10: dumps(standing({"0": tuple(range(12))}, CALLS[:1], 3, 1))[0]})
    (folder / "notes.txt").write_text("restarted at 2:14")
    (folder / "nccl_trace_rank_11").write_bytes(b"\x80\x02}garbage")
    (folder / "nccl_trace_rank_03").write_bytes((folder / "nccl_trace_rank_3").read_bytes())
    os.mkfifo(folder / "pipe_1")
    timeline, told = quietly(folder)
    assert timeline.world_size == 4
    for name in (
        "nccl_trace_rank_10",
        "notes.txt",
        "nccl_trace_rank_11",
        "nccl_trace_rank_3",
        "pipe_1",
    ):
        assert [one for one in told if name in one], name
    assert who_waits(timeline).ranks == (3,)


@pytest.mark.parametrize(("hours", "later"), [(72, "3 days"), (36, "1 day")])
def test_a_dump_of_another_day_and_a_link_to_nowhere_are_named_and_the_rest_is_read(
    hours: int, later: str, tmp_path: Path
) -> None:
    found = dumps(JOB)
    for entry in found[1]["entries"]:
        entry["time_created_ns"] += hours * 3600 * 10**9
    write(tmp_path, found)
    (tmp_path / "nccl_trace_rank_2").unlink()
    (tmp_path / "nccl_trace_rank_2").symlink_to(tmp_path / "nowhere")
    timeline, told = quietly(tmp_path)
    assert timeline.meta["missing_ranks"] == [1, 2]
    assert any(
        f"rank_1' is of another job: its last call is {later} later than those of most" in one
        for one in told
    )
    assert any("rank_2': it cannot be read (No such file or directory)" in one for one in told)


def test_a_dump_whose_own_times_contradict_each_other_is_read(tmp_path: Path) -> None:
    content = dumps(JOB)[0]
    for entry in content["entries"]:
        entry["time_discovered_completed_ns"] = entry["time_discovered_completed_ns"] and 1
        entry["time_created_ns"] += 10**15
    (tmp_path / "dump_0").write_bytes(pickle.dumps(content))
    assert quietly(tmp_path / "dump_0")[0].calls.height == len(content["entries"])


@pytest.mark.parametrize(
    ("field", "value"), [("time_created_ns", -1), ("time_discovered_started_ns", 2**62)]
)
def test_times_that_no_clock_shows_are_left_out(tmp_path: Path, field: str, value: int) -> None:
    found = dumps(JOB)
    for entry in found[1]["entries"][:3]:
        entry[field] = value
    timeline, told = quietly(write(tmp_path / "dumps", found))
    assert told == ["3 times of rank 1 were left out: they are impossible"]
    assert same_timelines(joinlab.load(timeline.save(tmp_path / "saved.joinlab")), timeline)


def test_a_longer_series_of_other_files_does_not_hide_the_dumps(tmp_path: Path) -> None:
    write(tmp_path, {0: dumps(JOB)[0]})
    for number in range(3):
        (tmp_path / f"step_{number}.json").write_text('{"loss": 0.5}')
    (tmp_path / "zipped.gz").write_bytes(gzip.compress(b"loss 0.5"))
    (tmp_path / "link").symlink_to(tmp_path / "link")
    timeline, told = quietly(tmp_path)
    assert timeline.calls["rank"].unique().to_list() == [0]
    for name in ("step_0.json", "step_2.json", "zipped.gz", "link"):
        assert [one for one in told if name in one], name


def test_the_dumps_of_several_hosts_are_one_job(tmp_path: Path) -> None:
    plain, _ = quietly(write(tmp_path / "plain", dumps(JOB)))
    folder = write(tmp_path / "hosts", dumps(JOB))
    for rank in range(4):
        (folder / f"nccl_trace_rank_{rank}").rename(
            folder / f"nccl_trace_rank_container-node0{rank // 2}_{rank}"
        )
    timeline, told = quietly(folder)
    assert told == [] and same_timelines(timeline, plain)
    for rank in range(4):
        (folder / f"node{rank // 2}").mkdir(exist_ok=True)
        (folder / f"nccl_trace_rank_container-node0{rank // 2}_{rank}").rename(
            folder / f"node{rank // 2}" / f"fr_{rank}"
        )
    assert same_timelines(quietly(folder)[0], plain)


def test_two_dumps_of_one_rank_are_two_series(tmp_path: Path) -> None:
    write(tmp_path, dumps(JOB))
    for rank in (0, 1):
        (tmp_path / f"older_{rank}").write_bytes(
            (tmp_path / f"nccl_trace_rank_{rank}").read_bytes()
        )
    timeline, told = quietly(tmp_path)
    assert timeline.meta["missing_ranks"] == []
    assert [one for one in told if "older_0' were left out: part of another series" in one]


@pytest.mark.parametrize("ahead", [-500, 0, 500])
def test_dumps_of_an_earlier_run_of_the_same_size_are_named_and_left_out(
    tmp_path: Path, ahead: int
) -> None:
    found = dumps(replace(standing(GROUPS, CALLS * 4, culprit=3, at=30), form="ring", ring=9))
    for rank, one in found.items():
        for entry in one["entries"]:
            for name in ("collective_seq_id", "op_id"):
                entry[name] += 1000 + ahead * (rank == 1)
            # rank 1: ten minutes before
            for name in (
                "time_created_ns",
                "time_discovered_completed_ns",
            ):
                entry[name] = entry[name] and entry[name] + 600 * 10**9 * (rank != 1)
    timeline, told = quietly(write(tmp_path, found))
    assert timeline.meta["missing_ranks"] == [1]
    assert [one for one in told if "nccl_trace_rank_1' is of another run than" in one]


def test_zipped_dumps_are_read_beside_plain_ones(tmp_path: Path) -> None:
    plain, _ = quietly(write(tmp_path, dumps(JOB)))
    for rank in (1, 2):
        file = tmp_path / f"nccl_trace_rank_{rank}"
        file.with_suffix(".gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    timeline, told = quietly(tmp_path)
    assert told == [] and same_timelines(timeline, plain)


def test_a_folder_without_a_dump_says_what_it_could_open(tmp_path: Path) -> None:
    with pytest.raises(TimelineFileError, match=r"it holds no record of a job\."):
        joinlab.load(tmp_path)


@pytest.mark.parametrize("name", ["nccl:teleport", "nccl:send 0->99", "nccl:send 0->-1"])
def test_an_unknown_kind_of_call_is_reported(name: str, tmp_path: Path) -> None:
    found = dumps(JOB)
    found[0]["entries"][0]["profiling_name"] = name
    timeline, told = quietly(write(tmp_path, found))
    assert any(f"1 calls of the unknown kind '{name}'" in one for one in told)
    assert 0 in set(timeline.calls["rank"])


# ---- traces of the profiler


@pytest.mark.parametrize("zipped", [False, True])
def test_traces_of_nccl_are_matched_by_their_numbers(tmp_path: Path, zipped: bool) -> None:
    for rank, seqs in ((0, (4, 5, 6)), (1, (5, 6))):
        text = json.dumps(nccl_trace(rank, seqs)).encode()
        name = f"host_{rank}_17.pt.trace.json" + ".gz" * zipped
        (tmp_path / name).write_bytes(gzip.compress(text) if zipped else text)
    timeline, told = quietly(tmp_path)
    assert told == []
    assert timeline.meta["group_names"] == {"7": "mesh_dp"}
    found = [(slot.calls, slot.lost) for slot in match(timeline)]
    assert found == [({0: 0}, (1,)), ({0: 1, 1: 0}, ()), ({0: 2, 1: 1}, ())]
    row = timeline.call(1, 1)
    assert (row["op"], row["dtype"], row["shape"]) == ("all_gather", "bfloat16", [[12]])
    assert (row["started_ns"] - row["enqueued_ns"], row["completed_ns"] - row["started_ns"]) == (
        1000,
        2250,
    )


def test_a_trace_of_a_rank_that_no_job_has_is_left_out(tmp_path: Path) -> None:
    for rank in (0, 1):
        content = nccl_trace(rank, (1, 2))
        if rank:
            content["distributedInfo"]["rank"] = 2**31
        (tmp_path / f"trace_{rank}.json").write_text(json.dumps(content))
    timeline, _ = quietly(tmp_path)
    assert timeline.world_size == 2 and timeline.meta["missing_ranks"] == [1]
    assert any(
        "trace_1.json" in one and "does not name its rank" in one
        for one in timeline.meta["problems"]
    )


@pytest.mark.parametrize("zipped", [False, True])
def test_a_trace_that_is_cut_short_is_read_up_to_there(tmp_path: Path, zipped: bool) -> None:
    text = json.dumps(nccl_trace(0, (4, 5, 6)), indent=2).encode()
    text = text[: text.index(b'"ts": 107.5')]
    data = gzip.compress(text) if zipped else text
    (tmp_path / "trace_0.json").write_bytes(data[:-8] if zipped else data)
    timeline, told = quietly(tmp_path)
    assert timeline.calls.filter(pl.col("rank") == 0).height == 3
    assert any(
        "trace_0.json': it is cut short or damaged after 6 events: calls after them" in one
        for one in told
    )


def test_what_a_trace_leaves_out_is_taken_from_its_name_and_from_where_ranks_stand(
    tmp_path: Path,
) -> None:
    for rank in (0, 2):
        content = nccl_trace(rank, (4, 5))
        del content["distributedInfo"]
        for event in content["traceEvents"][1:]:
            event["args"] |= {
                "Process Group Ranks": "[0, 2, ...]",
                "Global rank start": 0,
                "Global rank stride": 2,
            }
        (tmp_path / f"host_rank{rank}.1795307244663158625.pt.trace.json").write_text(
            json.dumps(content)
        )
    timeline, _ = quietly(tmp_path)
    assert timeline.meta["groups"] == {"7": [0, 2]}
    (tmp_path / "of.1795307244663158625.pt.trace.json").write_text(json.dumps(content))
    with pytest.raises(TimelineFileError, match="it does not name its rank"):
        joinlab.load(tmp_path / "of.1795307244663158625.pt.trace.json")


def test_calls_whose_kernel_a_batch_launched_are_not_pending(tmp_path: Path) -> None:
    content = nccl_trace(0, (4, 5, 6, 7))
    kernels = [event for event in content["traceEvents"] if event.get("cat") == "kernel"]
    kernels[1]["args"]["External id"] = 70  # of the end of a batch
    for kernel in kernels[2:]:
        content["traceEvents"].remove(kernel)
    (tmp_path / "trace_0.json").write_text(json.dumps(content))
    timeline, _ = quietly(tmp_path)
    assert timeline.calls["completed_ns"].is_null().to_list() == [False, False, True, True]


def test_calls_that_name_no_group_are_those_of_the_whole_job(tmp_path: Path) -> None:
    content = nccl_trace(0, (4, 5, 6))
    for event in content["traceEvents"][1:]:
        event["args"].pop("Process Group Name", None)
    content["traceEvents"][1]["args"]["Group size"] = 1
    (tmp_path / "trace_0.json").write_text(json.dumps(content))
    timeline, told = quietly(tmp_path)
    assert timeline.calls.height == 2
    assert any(
        "1 calls were left out: they do not say in which of the smaller groups" in one
        for one in told
    )


def test_an_nccl_trace_that_names_no_group_is_not_read_as_gloo(tmp_path: Path) -> None:
    """As torch before 2.4 wrote them: the events of c10d's operators, and what the job was in
    distributedInfo."""
    for rank in (0, 1):
        events = [
            {
                "ph": "X",
                "cat": "cpu_op",
                "name": name,
                "ts": 100.5 + at,
                "dur": 3,
                "args": {"Input Dims": [[[4]]]},
            }
            for at, name in enumerate(("c10d::allreduce_", "c10d::alltoall_")[:: 1 - 2 * rank])
        ]
        events.append(
            {
                "ph": "X",
                "cat": "cpu_op",
                "name": "record_param_comms",
                "ts": 100,
                "dur": 9,
                "args": {},
            }
        )
        info = {"backend": "nccl", "rank": rank, "world_size": 128}
        content = {"schemaVersion": 1, "distributedInfo": info, "traceEvents": events}
        (tmp_path / f"trace_{rank}.json").write_text(json.dumps(content))
    with pytest.raises(TimelineFileError, match="2 calls were left out: traces of gloo, and of"):
        joinlab.load(tmp_path)


def test_a_zip_bomb_is_refused_by_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("joinlab.jobs.kineto.MAX_BYTES", 1000)
    (tmp_path / "trace_0.json.gz").write_bytes(gzip.compress(b"{" + b" " * 10_000 + b"}"))
    with pytest.raises(
        TimelineFileError, match=r"trace_0.json.gz.* unpacks to more than 1,000 bytes"
    ):
        joinlab.load(tmp_path / "trace_0.json.gz")
    (tmp_path / "trace_1.json.gz").write_bytes(gzip.compress(b"{}")[:-6])
    with pytest.raises(TimelineFileError, match="cut short"):
        joinlab.load(tmp_path / "trace_1.json.gz")


# ---- damaged and hostile files


class Evil:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, ("evil",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"pg_config": {}, "entries": [Evil()]}, "mkdir"),
        *(
            ({"pg_config": config, "entries": []}, "trace_0")
            for config in (
                "__import__('os').mkdir('evil')",
                "[1 for _ in range(10**9)]",
                "(" * 100_000,
                {"0": {"ranks": "print(1)"}},
                7,
                [1],
            )
        ),
    ],
)
def test_a_pickle_that_is_a_program_runs_nothing(
    tmp_path: Path, monkeypatch: Any, content: Any, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "trace_0"
    file.write_bytes(pickle.dumps({"version": "2.10", **content}, protocol=2))
    with pytest.raises(TimelineFileError, match=message):
        joinlab.load(file)
    assert [one.name for one in tmp_path.iterdir()] == ["trace_0"]


def test_a_process_group_given_as_text_is_parsed() -> None:
    config = str({"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}})
    found = check(Path("trace_0"), {"version": "2.10", "pg_config": config, "entries": []}, Texts())
    assert found.groups == {"0": ("default_pg", (0, 1))}


@pytest.mark.parametrize("place", ["before", "within"])
def test_a_pickle_cannot_ask_for_more_memory_than_there_is(place: str) -> None:
    bomb = b"\x80\x02}r" + struct.pack("<I", 2**32 - 1) + b"."
    with pytest.raises(safe_pickle.UNREADABLE):
        safe_pickle.load(bomb if place == "before" else b"\x80\x02]" + bomb[2:])
    assert safe_pickle.load(pickle.dumps([1, 2], protocol=2)) == [1, 2]  # the limit is gone again


@settings(
    max_examples=4 * settings().max_examples,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.data())
def test_a_damaged_dump_is_read_or_refused_by_name(tmp_path: Path, data: st.DataObject) -> None:
    whole = bytearray(pickle.dumps(dumps(JOB)[0], protocol=2))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    file = tmp_path / "trace_0"
    file.write_bytes(whole[: data.draw(st.integers(1, len(whole)))])
    try:
        timeline, _ = quietly(file)
    except TimelineFileError as error:
        assert "trace_0" in str(error)
    else:
        str(joinlab.diagnose(timeline))


@given(
    st.fixed_dictionaries(
        {"version": st.just("2.10")},
        optional={
            "pg_config": st.one_of(
                st.none(), st.text(), st.dictionaries(st.text(), st.integers() | st.text())
            ),
            "pg_status": st.one_of(
                st.none(),
                st.text(),
                st.dictionaries(st.text(), st.dictionaries(st.text(), st.text())),
            ),
            "entries": st.lists(
                st.dictionaries(
                    st.sampled_from(["profiling_name", "process_group", "op_id"]), st.text()
                )
            ),
        },
    )
)
def test_any_json_is_read_or_refused_by_name(content: dict[str, Any]) -> None:
    try:
        check(Path("trace_0"), content, Texts())
    except TimelineFileError as error:
        assert "trace_0" in str(error)
