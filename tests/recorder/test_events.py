"""The event log: appended events are read back whole at any time, even if the writer was killed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from joinlab.backend.calls import setting_of
from joinlab.program.log_events import InputBegins
from joinlab.recorder.events import CHUNK, EventLog, LogTail
from joinlab.recorder.rank_log import RankLog, about_ranks
from joinlab.timeline import Ending, EndKind


def test_a_log_grows_past_its_chunks(tmp_path: Path) -> None:
    log, tail = EventLog(tmp_path / "log", print), LogTail(tmp_path / "log")
    lines = ["x" * 1000, "y" * (3 * CHUNK), "z" * (CHUNK - 1), "end"]
    for line in lines:
        log.write_text(line + "\n")
    assert tail.read().decode().splitlines() == lines
    tail.close()


def test_a_killed_writer_loses_nothing_it_has_appended(tmp_path: Path) -> None:
    pid = os.fork()
    if pid == 0:
        log = EventLog(tmp_path / "log", print)
        for i in range(5000):
            log.write(InputBegins(index=i, done=i))
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    tail = LogTail(tmp_path / "log")
    assert [json.loads(line)["i"] for line in tail.read().splitlines()] == list(range(5000))
    tail.close()


EVENTS = [
    {"e": "begin", "rank": 1, "t": 100},
    {"e": "group", "name": "0", "ranks": [0, 1], "backend": "gloo", "t": 110},
    {"e": "stack", "id": 0, "f": ["a.py:1 worker"], "site": "a.py:1"},
    {"e": "input", "i": 0, "k": 0, "t": 120},
    {"e": "span+", "id": 0, "n": "backward", "i": 0, "site": "a.py:1", "t": 125},
    {"e": "call", "id": 0, "g": "0", "s": 0, "n": 1, "op": "all_reduce", "o": "all-reduce", "i": 0, "d": "float32",
     "sh": [[1]], "st": 0, "reduce_op": "sum", "v": [[1.0]], "t": 130},
    {"e": "wait", "id": [0], "th": 7, "n": 1, "t": 140},
    {"e": "done", "id": 0, "v": [[2.0]], "t": 150},
    {"e": "wake", "id": [0], "th": 7, "t": 160},
    {"e": "span-", "id": 0, "t": 170},
    {"e": "call", "id": 1, "g": "0", "s": 1, "n": 2, "op": "barrier", "o": "barrier", "i": 0, "d": None, "sh": [],
     "st": 0, "t": 180},
    {"e": "fail", "id": 1, "x": "RuntimeError: gone", "t": 190},
    {"e": "raise", "x": "RuntimeError: gone", "tb": "", "t": 195},
]  # fmt: skip
TEXT = "".join(json.dumps(event) + "\n" for event in EVENTS).encode()


def read(data: bytes, cuts: list[int] = []) -> RankLog:  # noqa: B006
    log = RankLog(1, origin_ns=100)
    at = 0
    for cut in [*sorted(cuts), len(data)]:
        log.feed(data[at:cut])
        at = cut
    return log


def test_events_become_rows_on_the_runs_own_clock() -> None:
    log = read(TEXT)
    first, second = log.calls.values()
    assert (first["enqueued_ns"], first["completed_ns"]) == (30, 50)
    assert (first["host_wait_begin_ns"], first["host_wait_end_ns"]) == (40, 60)
    assert (first["value_in"], first["value_out"]) == ("[[1.0]]", "[[2.0]]")
    assert first["call_site"] == "a.py:1"
    assert second["error"] == "RuntimeError: gone"
    assert log.spans[0]["end_ns"] == 70
    assert Ending.finished(log.calls.values()) == Ending(EndKind.FINISHED)
    assert log.waits == {}
    assert log.raised is not None


@given(st.lists(st.integers(0, len(TEXT)), max_size=8))
def test_a_log_reads_the_same_in_whatever_portions_it_comes(cuts: list[int]) -> None:
    assert read(TEXT, cuts).calls == read(TEXT).calls


@given(st.integers(0, len(TEXT)))
def test_a_log_cut_anywhere_keeps_every_whole_line(cut: int) -> None:
    log = read(TEXT[:cut])
    whole = TEXT[:cut].count(b"\n")
    assert len(log.calls) == sum(event["e"] == "call" for event in EVENTS[:whole])


def test_a_wake_completes_what_its_host_waited_for_and_had_not_ended() -> None:
    form = {"g": "0", "op": "all_reduce", "o": "", "i": None, "d": None, "sh": [], "st": 0}
    calls = [{"e": "call", "t": id, "id": id, "s": id, **form} for id in range(4)]
    ends = [
        {"e": "done", "id": 0, "t": 7, "v": [[1.0]]},
        {"e": "fail", "id": 1, "t": 8, "x": "gone"},
    ]
    wake = {
        "e": "wake",
        "id": [0, 1, 2, 3],
        "v": [None, None, [[3.0]], None],
        "open": [3],
        "t": 9,
        "th": 7,
    }
    log = RankLog(0)
    log.feed("".join(json.dumps(event) + "\n" for event in [*calls, *ends, wake]).encode())
    assert [call.get("completed_ns") for call in log.calls.values()] == [7, None, 9, None]
    assert [call.get("value_out") for call in log.calls.values()] == [
        "[[1.0]]",
        None,
        "[[3.0]]",
        None,
    ]
    assert [call["host_wait_end_ns"] for call in log.calls.values()] == [9] * 4
    assert log.damaged == 0


def test_waits_of_a_stream_are_reported_for_calls_that_never_completed() -> None:
    def call(id: int, **more: object) -> dict[str, object]:
        form = {"op": "all_reduce", "o": "", "i": None, "d": None, "sh": [], "st": 0}
        return {"e": "call", "t": id, "id": id, "g": "0", "s": id, **form, **more}

    events = [call(0), call(1), call(2, w=[0, 1]), call(3, w=[2]), {"e": "done", "id": 0, "t": 9}]
    logs = [
        read("".join(json.dumps(one) + "\n" for one in [*events, *more]).encode())
        for more in ([], [{"e": "streams"}])
    ]
    assert [about_ranks([log], "nccl")["stream_waits"] for log in logs] == [
        [[1, "0", 1, "0", 2], [1, "0", 2, "0", 3]],
        [],
    ]
    assert setting_of({"stream_waits": [[1, "0", 1, "0", 2]]}).streamed == {
        (1, "0", 2): [(1, "0", 1)]
    }


def test_an_open_wait_says_for_what() -> None:
    log = read("".join(json.dumps(event) + "\n" for event in EVENTS[:7]).encode())
    assert log.waits == {7: (0,)}
    assert Ending.finished(log.calls.values()) == Ending(
        EndKind.FINISHED, pending=True, call=0, group="0"
    )
