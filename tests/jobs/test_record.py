"""Users' own jobs: recorded under torchrun, loaded during and after the run, bounded in size, and
never harmed."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import psutil
import pytest
import torch

import joinlab
from joinlab.analysis.source import SourceTexts
from joinlab.cli import watch
from joinlab.cli.main import main
from joinlab.cli.report import run_report
from joinlab.errors import TimelineFileError
from joinlab.jobs import record, recording
from joinlab.jobs.clocks import offsets
from joinlab.jobs.recording import RecordedFolder, load_recording
from joinlab.jobs.timeline_of_logs import GONE, is_over
from joinlab.ops import CallRow
from joinlab.program.log_events import InputBegins
from joinlab.recorder import bounded_log, events, interrupts, standstill
from joinlab.recorder.bounded_log import MOST_BYTES, BoundedLog, parse_segment_name
from joinlab.story.lines import LineKind
from joinlab.timeline import INTERRUPTED, LOST, RUNNING, EndKind, Timeline
from tests.forked import Job, forked, said_by, starter
from tests.handmade_logs import begin, call, write
from tests.nightly import sampled
from tests.timelines import same_timelines

ROOT = Path(__file__).parents[2]
ENV = {name: value for name, value in os.environ.items() if name not in record.RANK_NAMES}
ENV |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}

TRAIN = """
import os, signal, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

how = sys.argv[1]
dist.init_process_group("gloo")
rank = dist.get_rank()
model = DDP(torch.nn.Linear(4, 1))
sgd = torch.optim.SGD(model.parameters(), lr=0.1) if how == "sleeping" and rank == 0 else None  # 1.3 s of imports
with model.join(enable=how == "case 4"):
    for i in range(4 + (rank if how == "case 4" else 0)):
        if i == 3 and rank == 1:
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "raising":
                raise ValueError("a bad batch")
            while how == "sleeping" and not os.path.exists("go on"):
                time.sleep(0.01)
        model(torch.ones(2, 4)).sum().backward()
        if sgd:
            sgd.step()
    if how == "case 4":
        dist.barrier()
"""


@pytest.fixture(scope="module")
def ranks_from() -> Iterator[subprocess.Popen[bytes]]:
    """What starts ranks: see forked.py."""
    with starter() as process:
        yield process


@pytest.fixture
def job_of(
    ranks_from: subprocess.Popen[bytes], tmp_path: Path
) -> Callable[..., AbstractContextManager[Job]]:
    """A job of `ranks` that records itself into tmp_path/runs; killed in the end."""

    def start(how: str, ranks: int, script: str = TRAIN, *more: str) -> AbstractContextManager[Job]:
        (tmp_path / "train.py").write_text(script)
        return forked(
            ranks_from, tmp_path, ranks, ["record", "--into", "runs", *more, "train.py", how]
        )

    return start


def python(folder: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """The output and exit code of a fresh Python without a launcher's variables, except those in
    `environ`."""
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**ENV, **environ},
        capture_output=True,
        text=True,
        check=False,
    )


def loaded(folder: Path, name: str = "runs") -> Timeline:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return joinlab.load(folder / name)


def until(folder: Path, wanted: Any) -> Timeline:
    """Load until the Timeline is as wanted; a bound, not a measure."""
    give_up, timeline = time.monotonic() + 200, None
    while time.monotonic() < give_up:
        with suppress(TimelineFileError):  # no rank has begun to write yet
            timeline = loaded(folder)
            if wanted(timeline):
                return timeline
        time.sleep(0.2)
    raise AssertionError(f"never so: {timeline}")


def ends(timeline: Timeline) -> list[str]:
    return [str(end) for end in timeline.ends]


STANDING = """
import sys, threading, time
import torch, torch.distributed as dist

def load_shard(lock):
    with lock:  # the line
        return torch.ones(1)

dist.init_process_group("gloo")
x = torch.ones(1)
dist.all_reduce(x)
if dist.get_rank() == 1:
    lock = threading.Lock()
    lock.acquire()
    load_shard(lock)
dist.all_reduce(x)
"""


CALLS_BACK = """
import os, time
import torch, torch.distributed as dist

dist.init_process_group("gloo")
other = dist.new_group()
if dist.get_rank() == 1:
    def send(future):
        while not os.path.exists("go on"):
            time.sleep(0.05)
        dist.send(torch.ones(1), 0, group=other)
        return future.value()
    sent = dist.all_reduce(torch.ones(1), async_op=True).get_future().then(send)
    dist.recv(torch.zeros(1), 0)
    sent.wait()
else:
    dist.all_reduce(torch.ones(1))
    dist.recv(torch.zeros(1), 1, group=other)
    dist.send(torch.zeros(1), 1)
"""


# ---------------- as under torchrun


def test_a_job_of_8_is_read_while_one_rank_sleeps_and_when_all_have_finished(
    tmp_path: Path, job_of: Any
) -> None:
    ranks = 8
    with job_of("sleeping", ranks) as job:
        others_wait = [False, True, *[False] * 6]
        timeline = until(
            tmp_path, lambda timeline: [end.call is None for end in timeline.ends] == others_wait
        )
        assert {end.kind for end in timeline.ends} == {EndKind.UNKNOWN}
        assert timeline.ends[1].text == "still running when its record was read"
        assert timeline.call(0, timeline.ends[0].call)["completed_ns"] is None  # type: ignore[arg-type]
        (tmp_path / "go on").touch()
        assert job.wait(200) == 0
    timeline = loaded(tmp_path).raise_for_ending()
    assert ends(timeline) == ["finished"] * ranks
    assert (
        timeline.calls.filter(pl.col("rank") == ranks - 1)["origin"]
        .to_list()
        .count("all-reduce (DDP backward())")
        == 4
    )
    backward = timeline.calls.filter(pl.col("origin") == "all-reduce (DDP backward())")
    assert backward["input"].to_list() == [0, 1, 2, 3] * ranks
    assert timeline.meta["input_column"] == "backward passes"
    assert timeline.calls["completed_ns"].null_count() == 0
    assert set(timeline.spans["name"]) == {"forward", "backward", "optimizer"}
    assert timeline.calls["call_site"].str.contains("train.py:").all()
    meta = timeline.meta
    assert (meta["engine"], meta["backend"], meta["program"]) == ("recorded", "gloo", "train.py")
    assert meta["processes"][1]["command"] == ["train.py", "sleeping"]
    assert meta["versions"]["torch"]
    assert meta["problems"] == []
    assert [one["file"] for one in meta["functions"]] == [str(tmp_path / "train.py")] * len(
        meta["functions"]
    )
    texts = SourceTexts.of(timeline)
    assert all(
        any(line.source.lines for line in texts.lines_of(row)) for row in timeline.rows("calls")
    )


@pytest.mark.parametrize("first", [0, 1])
def test_a_hung_job_is_proven_hung_while_it_stands_and_after_its_ranks_were_ended(
    tmp_path: Path, job_of: Any, capsys: pytest.CaptureFixture[str], first: int
) -> None:
    with job_of("case 4", 2) as job:
        timeline = until(tmp_path, lambda timeline: timeline.ends[0].kind is EndKind.HUNG)
        assert ends(timeline) == ["hung (proven)"] * 2
        assert "barrier" in joinlab.diagnose(timeline).ending(0)
        assert main(["watch", str(tmp_path / "runs"), "--exit-code"]) == 1
        said = capsys.readouterr().out
        assert "The job has stalled." in said and "BOTH RANKS HANG" in said
        assert main(["watch", str(tmp_path / "runs"), "--once", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["state"] == "stuck"
        assert job.poll() is None
        os.kill(job.pids[first], signal.SIGTERM if first else signal.SIGKILL)
        assert job.wait(200) is not None  # the call of the other fails
    after = loaded(tmp_path)
    assert ends(after) == ["hung (proven)"] * 2
    assert {end.text for end in after.ends} == {GONE}
    assert after.calls["error"].null_count() == len(after.calls)
    assert "both ranks hang" in joinlab.diagnose(after).sentence.lower()
    assert is_over(after) and not is_over(timeline)


CLOSED = "RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:1234"


def waiting(op: str, issued: int = 3000) -> str:
    wait = {"e": "wait", "id": [1], "t": issued + 10, "th": 1, "n": 1}
    return call(0, 1500, 1600) + call(1, issued, None, op) + json.dumps(wait) + "\n"


def failing(op: str, failed: int = 6000) -> str:
    fail = {"e": "fail", "id": 1, "x": CLOSED, "t": failed}
    wake = {"e": "wake", "id": [1], "t": failed + 1, "th": 1}
    return waiting(op) + json.dumps(fail) + "\n" + json.dumps(wake) + "\n"


def raising(error: str) -> str:
    return json.dumps({"e": "raise", "x": error, "tb": "", "t": 7000}) + "\n"


HUNG, KILLED, RAISED = EndKind.HUNG, EndKind.KILLED, EndKind.RAISED


@pytest.mark.parametrize(
    ("first", "second", "kinds"),
    [
        pytest.param(
            waiting("barrier"),
            failing("all_reduce") + raising(CLOSED),
            [HUNG, HUNG],
            id="hung, and ended one after the other",
        ),
        pytest.param(
            waiting("barrier"), failing("all_reduce"), [HUNG, HUNG], id="the other was killed, too"
        ),
        pytest.param(
            failing("barrier", 6010) + raising(CLOSED),
            failing("all_reduce") + raising(CLOSED),
            [HUNG, HUNG],
            id="a third rank had to be ended first, say: both have failed",
        ),
        pytest.param(
            waiting("all_reduce"),
            failing("all_reduce") + raising(CLOSED),
            [KILLED, RAISED],
            id="killed in a call that would have completed",
        ),
        pytest.param(
            call(0, 1500, 1600),
            failing("all_reduce") + raising(CLOSED),
            [KILLED, RAISED],
            id="killed outside a call",
        ),
        pytest.param(
            call(0, 1500, 1600) + raising("ValueError: a bad batch"),
            failing("all_reduce") + raising(CLOSED),
            [RAISED, RAISED],
            id="a rank had raised",
        ),
        pytest.param(
            waiting("barrier"),
            failing("all_reduce") + call(2, 8000, 8100, "send") + raising("ValueError: alone"),
            [KILLED, RAISED],
            id="the other went on alone",
        ),
    ],
)
def test_a_job_has_hung_if_no_rank_could_go_on_when_the_first_process_ended(
    tmp_path: Path, first: str, second: str, kinds: list[EndKind]
) -> None:
    for rank, text in enumerate((first, second)):
        write(tmp_path, rank, begin(rank, 2, host=socket.gethostname()) + text)
    timeline = loaded(tmp_path, "")
    assert [end.kind for end in timeline.ends] == kinds
    sentence = joinlab.diagnose(timeline).sentence.lower()
    assert ("hang" in sentence) == (HUNG in kinds)
    assert ("rank 0 ended abruptly" in sentence) == (KILLED in kinds)
    assert "killed" not in sentence  # it may have been aborted, or have called os._exit
    assert is_over(timeline)


def test_ranks_whose_calls_never_meet_hang_though_another_goes_on(tmp_path: Path) -> None:
    group = json.dumps({"e": "group", "name": "1", "ranks": [0, 1], "backend": "gloo", "t": 1000})
    for rank, op in enumerate(("barrier", "all_reduce")):
        calls = waiting(op).replace('"g": "0"', '"g": "1"')
        write(tmp_path, rank, f"{begin(rank, 3, host=socket.gethostname())}{group}\n{calls}")
    about = {"pid": os.getpid(), "process": psutil.Process().create_time()}
    stood = json.dumps({"e": "stacks", "th": [{"n": "MainThread", "f": ["train.py:9 poll"]}]})
    write(tmp_path, 2, begin(2, 3, host=socket.gethostname(), **about) + stood + "\n")
    timeline = loaded(tmp_path, "")
    assert [end.kind for end in timeline.ends] == [HUNG, HUNG, EndKind.UNKNOWN]
    assert timeline.ends[2].runs and "train.py:9" not in str(joinlab.diagnose(timeline))


@pytest.mark.parametrize("runs", [True, False])
def test_a_send_is_left_over_once_its_receiver_runs_no_more(tmp_path: Path, runs: bool) -> None:
    about = {"pid": os.getpid(), "process": psutil.Process().create_time()} if runs else {}
    for rank, op in enumerate(("send", "recv")):
        calls = "".join(call(id, 1500 + id, 1600, op) for id in range(2 - rank))
        calls = calls.replace('"s": ', f'"peer": {1 - rank}, "s": ')
        write(tmp_path, rank, begin(rank, 2, host=socket.gethostname(), **about) + calls)
    sentence = joinlab.diagnose(loaded(tmp_path, "")).sentence
    assert ("left over" in sentence) != runs, sentence


@pytest.mark.parametrize("since_s", [-3600, 3])  # however long the test takes
def test_in_a_job_that_moves_no_rank_is_late_since_its_record_was_read_first(
    tmp_path: Path, since_s: int
) -> None:
    def of_this_process(rank: int) -> str:
        wall = time.time_ns() - since_s * 10**9
        pid, made = os.getpid(), psutil.Process().create_time()
        return begin(rank, 2, host=socket.gethostname(), wall=wall, pid=pid, process=made)

    write(tmp_path, 0, of_this_process(0) + call(0, 1500, 1600) + call(1, 1700, None))
    calls = call(0, 1500, 1600) + call(1, 1700, 1800) + call(2, 1900, None)
    write(tmp_path, 1, of_this_process(1) + calls)
    timeline = loaded(tmp_path, "")
    assert timeline.calls.height == (5 if since_s > 0 else 2)
    still = "Ranks 0, 1 are still running; every call fits so far."
    assert (joinlab.diagnose(timeline).sentence == still) == (since_s < 0)
    assert {end.text for end in timeline.ends} == {RUNNING}


def test_a_job_that_went_on_while_its_records_were_read_is_told_as_it_was_when_reading_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wall = time.time_ns()
    pid, made = os.getpid(), psutil.Process().create_time()
    for rank in (0, 1):
        about = {"host": socket.gethostname(), "wall": wall, "pid": pid, "process": made}
        write(tmp_path, rank, begin(rank, 2, **about) + call(0, 1500, 1600) + call(1, 1700, None))
    second, read = 10**9, events.LogTail.read
    between = "".join(call(id, id * second, id * second + 10) for id in range(2, 6))
    sent = call(6, 6 * second, 6 * second + 10, "send")

    def slowly(tail: events.LogTail) -> bytes:
        data = read(tail)
        if tail._path.name == "rank-0.0.jsonl":  # six seconds pass, and rank 1 goes on
            with (tmp_path / "rank-1.0.jsonl").open("a") as file:
                file.write('{"e":"done","id":1,"t":1800}\n' + between + sent)
            monkeypatch.setattr(recording.time, "time_ns", lambda: wall + 7 * second)
        return data

    monkeypatch.setattr(events.LogTail, "read", slowly)
    timeline = loaded(tmp_path, "")
    still = "Ranks 0, 1 are still running; every call fits so far."
    assert joinlab.diagnose(timeline).sentence == still


def test_a_process_that_ended_while_its_record_was_read_is_not_called_killed(
    tmp_path: Path,
) -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        made = psutil.Process(process.pid).create_time()
        about = {"host": socket.gethostname(), "pid": process.pid, "process": made}
        write(tmp_path, 0, begin(0, 1, **about) + call(0, 1500, 1600))
        recorded = RecordedFolder(tmp_path)
        recorded.refresh()
        process.kill()
    assert [end.text for end in recorded.timeline().ends] == [RUNNING]
    with (tmp_path / "rank-0.0.jsonl").open("a") as file:
        file.write('{"e":"return"}\n')
    recorded.refresh()
    assert ends(recorded.timeline()) == ["finished"]


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ('{"e":"return"}\n', "Ranks 0, 1 finished; no call was recorded."),
        (raising("KeyboardInterrupt"), "Ranks 0, 1 were interrupted; no call was recorded."),
        (
            raising("SystemExit: 130").replace(
                '"tb": ""',
                '"tb": "Traceback ...\\nKeyboardInterrupt\\n\\nDuring ...\\nSystemExit: 130"',
            ),
            "Ranks 0, 1 were interrupted; no call was recorded.",
        ),
        (raising("SystemExit: 130"), "Ranks 0, 1 raised an error."),
    ],
)
def test_a_job_without_a_call_is_not_told_that_its_calls_fit(
    tmp_path: Path, end: str, said: str
) -> None:
    for rank in (0, 1):
        write(tmp_path, rank, begin(rank, 2) + end)
    assert joinlab.diagnose(loaded(tmp_path, "")).sentence == said


@pytest.mark.parametrize(
    ("by", "perhaps"), [("Killed", ": perhaps its host ran out of memory"), ("Aborted", "")]
)
def test_a_line_that_the_signal_of_a_killed_worker_met_is_not_the_one_to_look_at(
    tmp_path: Path, by: str, perhaps: str
) -> None:
    """torch raises where its handler of SIGCHLD runs, which is any line."""
    error = f"RuntimeError: DataLoader worker (pid 6707) is killed by signal: {by}. "
    frame = (
        f'Traceback (most recent call last):\n  File "{tmp_path / "train.py"}", line 15, in step\n'
    )
    end = json.dumps({"e": "raise", "x": error, "tb": frame, "t": 7000}) + "\n"
    write(tmp_path, 0, begin(0, 2) + failing("all_reduce") + raising(CLOSED))
    write(tmp_path, 1, begin(1, 2) + end)
    story = joinlab.diagnose(loaded(tmp_path, ""))
    assert f"killed by signal: {by} (train.py:15)" in str(story)
    (fix,) = story.texts(LineKind.FIX)
    assert fix == f"Look at what killed a DataLoader worker of rank 1{perhaps}."


@pytest.mark.parametrize(("host", "stands"), [("one", False), ("two", True)])
def test_a_rank_that_wrote_no_stacks_does_not_stand_where_it_was_interrupted(
    tmp_path: Path, host: str, stands: bool
) -> None:
    script = tmp_path / "train.py"
    stacks = {"e": "stacks", "th": [{"n": "MainThread", "f": [f"{script}:9 step"]}]}
    end = json.dumps(
        {
            "e": "raise",
            "x": "KeyboardInterrupt",
            "tb": f'Traceback (most recent call last):\n  File "{script}", line 12, in pause\n',
            "t": 20 * 10**9,
        }
    )
    stood = json.dumps(stacks) + "\n"
    write(tmp_path, 0, begin(0, 2, host="one") + waiting("all_reduce") + stood + end + "\n")
    write(tmp_path, 1, begin(1, 2, host=host) + call(0, 1500, 1600) + end + "\n")
    causes = joinlab.diagnose(loaded(tmp_path, "")).texts(LineKind.CAUSE)
    assert ("Rank 1 stands outside any call: in pause (train.py:12)." in causes) == stands
    met = "or its host was too busy. Ctrl-C met it at train.py:12."
    assert any(met in cause for cause in causes) != stands


@pytest.mark.parametrize(
    ("kinds", "stands"), [(["call", "raise", "line"], True), (["line", "raise"], False)]
)
def test_steps_on_the_way_of_an_interrupt_do_not_hide_where_a_rank_stood(
    tmp_path: Path, kinds: list[str], stands: bool
) -> None:
    """They have no time: they are known to come behind the cut by the exception that they begin with."""
    script = str(tmp_path / "train.py")
    stacks = {"e": "stacks", "at": 10**9, "th": [{"n": "MainThread", "f": [f"{script}:9 step"]}]}
    stood, end = (
        json.dumps(stacks) + "\n",
        raising("KeyboardInterrupt").replace("7000", "20000000000"),
    )
    steps = ""
    for kind in kinds:
        steps += json.dumps({"e": "way", "s": [kind, 1, script, "step", 9, []]}) + "\n"
    write(tmp_path, 0, begin(0, 2, host="one") + waiting("all_reduce") + stood + end)
    write(tmp_path, 1, begin(1, 2, host="one") + call(0, 1500, 1600) + stood + steps + end)
    causes = joinlab.diagnose(loaded(tmp_path, "")).texts(LineKind.CAUSE)
    assert ("Rank 1 stands outside any call: in step (train.py:9)." in causes) == stands


def test_of_a_job_that_was_started_again_it_is_said_what_ended_the_attempt_before(
    tmp_path: Path,
) -> None:
    def attempt(rank: int, count: int, folder: Path, then: str, began: int) -> None:
        job = ["a run", None, "localhost", "29500", str(count)]
        write(folder, rank, begin(rank, 2, job=job, wall=began) + call(0, 1500, 1600) + then)

    (tmp_path / "job-2").mkdir()
    (tmp_path / "job-3").mkdir()
    attempt(1, 0, tmp_path, raising("KeyError: 'an older job of these names'"), 5000)
    attempt(1, 0, tmp_path / "job-2", raising(CLOSED).replace("7000", "6000"), 10**9)
    attempt(0, 0, tmp_path / "job-2", raising("RuntimeError: bad node"), 10**9)
    for rank in (0, 1):
        attempt(rank, 1, tmp_path / "job-3", '{"e":"return"}\n', 2 * 10**9)
    (problem,) = (timeline := loaded(tmp_path, "")).meta["problems"]
    assert "part of another attempt of this job" in problem
    story = joinlab.diagnose(timeline)
    assert story.sentence == "Both ranks finished; every call met its counterpart."
    assert "torchrun then started again, rank 0 raised RuntimeError: bad node." in str(story)
    assert "KeyError" not in str(story) and "closed by peer" not in str(story)


@pytest.mark.parametrize(
    ("after_s", "sentence"),
    [
        (3, "Ranks 0, 1 were interrupted; until then every call fits."),
        (20, "Rank 1 keeps rank 0 waiting, and waits for no other rank."),
    ],
)
def test_an_interrupt_of_a_job_that_has_stood_for_long_leaves_the_finding(
    tmp_path: Path, after_s: int, sentence: str
) -> None:
    end = raising("KeyboardInterrupt").replace("7000", str(after_s * 10**9))
    write(tmp_path, 0, begin(0, 2) + waiting("all_reduce") + end)
    write(tmp_path, 1, begin(1, 2) + call(0, 1500, 1600) + end)
    assert joinlab.diagnose(loaded(tmp_path, "")).sentence == sentence


def interrupted(at_ns: int) -> str:
    return json.dumps({"e": "interrupt", "t": at_ns}) + "\n"


@pytest.mark.parametrize(
    ("ending", "story"),
    [
        (raising("ValueError: bad row"), "but it has raised an error."),
        (interrupted(6500) + raising("KeyboardInterrupt"), "it waits for no other rank."),
        (interrupted(6500), "it waits for no other rank."),
    ],
)
def test_an_interrupt_leaves_what_was_so_when_it_came(
    tmp_path: Path, ending: str, story: str
) -> None:
    """A rank that waits in C++ only hears the signal; the error that follows is a consequence."""
    gone = call(0, 1500, 1600) + call(1, 3000, 4000)
    write(tmp_path, 0, begin(0, 2) + gone + ending)
    fail = json.dumps({"e": "fail", "id": 2, "x": CLOSED, "t": 8 * 10**9}) + "\n"
    end = raising("KeyboardInterrupt").replace("7000", str(8 * 10**9))
    last = call(2, 5000, None) + json.dumps({"e": "wait", "id": [2], "t": 5010, "th": 1, "n": 1})
    write(tmp_path, 1, begin(1, 2) + gone + last + "\n" + interrupted(2 * 10**9) + fail + end)
    timeline = loaded(tmp_path, "")
    assert timeline.ends[1].text == INTERRUPTED and is_over(timeline)
    assert main(["watch", str(tmp_path), "--exit-code"]) == 1  # it ends, too
    assert story in str(joinlab.diagnose(timeline)) or "ValueError" not in ending


def test_a_rank_that_interrupted_itself_raised_an_error(tmp_path: Path) -> None:
    """The others were not interrupted: they waited, and their peer was gone."""
    write(tmp_path, 0, begin(0, 2) + failing("all_reduce") + raising(CLOSED))
    itself = interrupted(5000) + raising("KeyboardInterrupt")
    write(tmp_path, 1, begin(1, 2) + call(0, 1500, 1600) + itself)
    timeline = loaded(tmp_path, "")
    assert (timeline.ends[1].kind, timeline.ends[1].text) == (RAISED, "KeyboardInterrupt")
    write(tmp_path, 0, begin(0, 2) + waiting("all_reduce") + interrupted(5001))
    assert INTERRUPTED in loaded(tmp_path, "").ends[1].text


def test_what_a_rank_calls_on_its_way_out_of_an_interrupt_is_no_cause(tmp_path: Path) -> None:
    """As `finally: dist.barrier()` does."""
    write(tmp_path, 0, begin(0, 2) + waiting("all_reduce") + interrupted(5001))
    barrier = call(1, 6000, None, "barrier")
    write(tmp_path, 1, begin(1, 2) + call(0, 1500, 1600) + interrupted(5000) + barrier)
    timeline = loaded(tmp_path, "")
    assert "barrier" not in timeline.calls["op"].to_list()
    assert {end.text for end in timeline.ends} == {INTERRUPTED}


def test_a_program_that_goes_on_after_ctrl_c_is_read_to_its_end(tmp_path: Path) -> None:
    """Its handler saves a checkpoint, say."""
    for rank in (0, 1):
        calls = call(0, 1500, 1600) + interrupted(1700) + call(1, 3000, 4000)
        write(tmp_path, rank, begin(rank, 2) + calls + raising("ValueError: later"))
    timeline = loaded(tmp_path, "")
    assert timeline.calls.height == 4 and [end.kind for end in timeline.ends] == [RAISED, RAISED]


def test_what_ended_a_thread_that_the_program_goes_on_without_is_a_note(tmp_path: Path) -> None:
    died = {
        "e": "thread",
        "n": "prefetch",
        "x": "OSError: stale file",
        "at": "a/data.py:9",
        "t": 1700,
    }
    late = {**died, "x": "KeyError: 1", "t": 9000}  # perhaps an effect of the interrupt
    calls = call(0, 1500, 1600) + json.dumps(died) + "\n" + interrupted(8000)
    write(tmp_path, 0, begin(0, 1) + calls + json.dumps(late) + "\n" + raising("KeyboardInterrupt"))
    notes = joinlab.diagnose(loaded(tmp_path, "")).texts(LineKind.NOTE)
    assert notes == ("Rank 0's thread prefetch raised OSError: stale file (data.py:9).",)


def test_a_recorded_rank_writes_what_ended_its_thread(tmp_path: Path, alone: Any) -> None:
    done = alone(
        "import threading\n"
        "thread = threading.Thread(target=lambda: 1 / 0, name='prefetch')\n"
        "thread.start()\nthread.join()\n"
    )
    assert "Exception in thread prefetch" in done.stderr
    (aside,) = loaded(tmp_path).meta["asides"]
    assert aside.startswith("Rank 0's thread prefetch raised ZeroDivisionError: division by zero (")


def test_a_rank_that_died_in_two_threads_calls_is_no_effect_of_its_peers_error(
    tmp_path: Path,
) -> None:
    """Which of the two calls gloo took for its first is not known."""
    threads = {
        0: ["/lib/threading.py:1002 _bootstrap", "/train.py:8 log"],
        1: ["/train.py:15 <module>"],
    }
    stacks = "".join(
        json.dumps({"e": "stack", "id": id, "f": frames, "site": frames[-1].partition(" ")[0]})
        + "\n"
        for id, frames in threads.items()
    )
    thread_call = call(1, 1500, None)
    wait = json.dumps({"e": "wait", "id": [1], "t": 1510, "th": 1, "n": 2}) + "\n"
    main_call = call(0, 1400, None).replace('"st": 0', '"st": 1')
    here = begin(0, 2, host=socket.gethostname())
    write(tmp_path, 0, here + stacks + main_call + thread_call + wait)
    fail = json.dumps({"e": "fail", "id": 0, "x": CLOSED, "t": 1700}) + "\n"
    write(tmp_path, 1, begin(1, 2) + stacks + main_call + fail + raising(CLOSED))
    story = joinlab.diagnose(loaded(tmp_path, ""))
    assert story.sentence == (
        "Rank 0 ended abruptly in all_reduce (train.py:8), and rank 1 lost the connection."
    )
    assert "MainThread in <module> (train.py:15) and a thread in log (train.py:8)." in str(story)
    (fix,) = story.texts(LineKind.FIX)
    assert fix.startswith("Look at the last output of rank 0")


def test_the_line_in_which_a_rank_waited_for_one_that_never_began_is_no_fix(tmp_path: Path) -> None:
    error = "DistStoreError: Timed out after 11 seconds waiting for clients. 2/3 clients joined."
    trace = {
        "e": "raise",
        "x": error,
        "tb": 'Traceback:\n  File "train.py", line 9, in f\n',
        "t": 7000,
    }
    for rank in (0, 1):
        write(tmp_path, rank, begin(rank, 3) + json.dumps(trace) + "\n")
    story = joinlab.diagnose(loaded(tmp_path, ""))
    assert not story.texts(LineKind.FIX)
    assert "No call of rank 2 is known: no record was found." in str(story)


def test_ranks_that_all_compute_in_one_line_are_no_place_to_look_at(tmp_path: Path) -> None:
    process = psutil.Process()
    about = {"host": socket.gethostname(), "pid": process.pid, "process": process.create_time()}
    for line in (9, 10):
        for rank in (0, 1):
            frames = [f"/train.py:{line if rank else 9} step"]
            stood = json.dumps({"e": "stacks", "th": [{"n": "MainThread", "f": frames}]}) + "\n"
            write(tmp_path, rank, begin(rank, 2, **about) + call(0, 1500, 1600) + stood)
        fixes = joinlab.diagnose(loaded(tmp_path, "")).texts(LineKind.FIX)
        assert bool(fixes) == (line == 10)


def test_of_a_hung_rank_on_another_host_nothing_is_said_of_its_process(tmp_path: Path) -> None:
    write(tmp_path, 0, begin(0, 2) + waiting("barrier"))
    write(tmp_path, 1, begin(1, 2) + failing("all_reduce") + raising(CLOSED))
    assert {(end.kind, end.text) for end in loaded(tmp_path, "").ends} == {(HUNG, "")}


def test_a_job_whose_futures_callback_will_send_is_not_called_hung(
    tmp_path: Path, job_of: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with job_of("", 2, CALLS_BACK) as job:
        until(tmp_path, lambda timeline: set(timeline.calls["op"]) >= {"all_reduce", "recv"})
        words = ["watch", str(tmp_path / "runs"), "--exit-code", "--still", "1"]
        assert main(words) == watch.STILL and "hung" not in capsys.readouterr().out
        (tmp_path / "go on").touch()
        assert job.wait(200) == 0
    assert ends(loaded(tmp_path)) == ["finished"] * 2


def test_a_rank_outside_any_call_says_where_it_is(tmp_path: Path, job_of: Any) -> None:
    with job_of("", 2, STANDING, "--still", "0.5") as job:
        # A rank that did something in the last second still runs, wherever it stands.
        timeline = until(
            tmp_path,
            lambda timeline: (
                "load_shard" in str(timeline.meta.get("stood", {}).get(1))
                and "load_shard" in joinlab.diagnose(timeline).json()
            ),
        )
        seen = python(tmp_path, "-m", "joinlab", "watch", "runs", "--exit-code", "--still", "1")
        assert job.poll() is None
        assert seen.returncode == watch.STILL  # a stand-still, no verdict
        assert "Nothing has moved for 1 s." in seen.stdout
        assert "not yet" in seen.stdout and "never ends" not in seen.stdout
        assert ends(timeline)[1].startswith("unknown")
        main, *_ = timeline.meta["stood"][1]
        line = STANDING[: STANDING.index("  # the line")].count("\n") + 1
        assert main["frames"][-1] == f"{tmp_path / 'train.py'}:{line} load_shard"
        recorded = RecordedFolder(tmp_path / "runs")
        recorded.refresh()
        assert not recorded.refresh()  # recording where it stands does not count as a move
    again = joinlab.load(timeline.save(tmp_path / "saved"))
    assert again.meta["stood"] == timeline.meta["stood"]


def test_a_rank_says_once_per_standstill_where_it_is(tmp_path: Path) -> None:
    log = events.EventLog(tmp_path / "log", lambda error: None)
    threading.Thread(target=standstill.follow, args=(log, 0.05), daemon=True).start()

    def said() -> int:
        return (tmp_path / "log").read_bytes().count(b'"e":"stacks"')

    def wait_for(count: int) -> None:
        give_up = time.monotonic() + 60
        while said() < count and time.monotonic() < give_up:
            time.sleep(0.01)
        assert said() == count

    wait_for(1)
    log.write(InputBegins(done=1))
    wait_for(2)
    log.close()


def test_an_error_of_a_worker_is_said_with_its_message(tmp_path: Path) -> None:
    text = "ValueError: Caught ValueError in worker 1.\nOriginal Traceback (most recent call last):\n  ..."
    end = json.dumps({"e": "raise", "x": f"{text}\nValueError: bad image", "t": 1900})
    write(tmp_path, 0, begin(0, 1) + end + "\n")
    assert "worker 1. ValueError: bad image." in str(joinlab.diagnose(loaded(tmp_path, ".")))


def test_a_file_of_the_program_that_took_the_log_s_number_is_left_alone(tmp_path: Path) -> None:
    log = events.EventLog(tmp_path / "log", lambda error: None)
    checkpoint = tmp_path / "checkpoint"
    checkpoint.write_bytes(b"x" * 100_000)
    number = log._fd
    with checkpoint.open("rb") as file:
        os.dup2(file.fileno(), number)
    log.close()
    assert os.fstat(number).st_size == checkpoint.stat().st_size == 100_000
    os.close(number)


def test_a_record_that_begins_in_a_thread_hears_no_interrupt() -> None:
    with ThreadPoolExecutor() as pool:
        assert not pool.submit(lambda: interrupts.Interrupts().came()).result()


def test_a_rank_stands_where_its_coroutine_waits() -> None:
    loop = asyncio.new_event_loop()
    end = loop.create_future()

    async def load() -> None:
        await end

    async def train() -> None:
        await load()

    running = threading.Thread(target=loop.run_until_complete, args=(train(),), name="loop")
    running.start()
    give_up, frames = time.monotonic() + 60, [""]
    while not frames[-1].endswith(" load") and time.monotonic() < give_up:
        (frames,) = [stood["frames"] for stood in standstill.stacks() if stood["thread"] == "loop"]
    loop.call_soon_threadsafe(end.set_result, None)
    running.join()
    loop.close()
    assert [frame.rpartition(" ")[2] for frame in frames[-2:]] == ["train", "load"]


def test_a_killed_rank_and_those_whom_it_leaves(tmp_path: Path, job_of: Any) -> None:
    with job_of("killed", 2) as job:
        assert job.wait(200) != 0
    timeline = loaded(tmp_path)
    assert timeline.ends[1].kind is EndKind.KILLED
    assert timeline.ends[0].kind in (EndKind.RAISED, EndKind.KILLED)  # KILLED: gloo aborted it
    assert "hang" not in joinlab.diagnose(timeline).sentence
    assert (
        "rank 1 ended abruptly" in joinlab.diagnose(timeline).sentence.lower()
        or timeline.ends[0].kind is EndKind.KILLED
    )


def test_a_rank_that_raises_is_named_with_its_error_and_torchrun_fails(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    run = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    assert (
        python(
            tmp_path, *run, "-m", "joinlab", "record", "--into", "runs", "train.py", "raising"
        ).returncode
        != 0
    )
    timeline = loaded(tmp_path)
    assert str(timeline.ends[1]) == "raised"
    assert timeline.ends[1].text == "ValueError: a bad batch"


MANY_GROUPS = """
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group()
rank = dist.get_rank()
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
fully_shard(net, mesh=mesh["dp"])
sgd = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(2):
    net(torch.ones(2, 8)).sum().backward()
    sgd.step()
first = mesh["pp"].get_local_rank() == 0
x = torch.ones(4)
dist.send(x, rank + 1) if first else dist.recv(x, rank - 1)
dist.all_reduce(x, group=mesh["pp"].get_group())
dist.barrier()
dist.destroy_process_group()
"""


def test_fsdp2_a_device_mesh_and_send_and_recv_are_matched_by_group(
    tmp_path: Path, job_of: Any
) -> None:
    with job_of("", 4, script=MANY_GROUPS) as job:
        assert job.wait(200) == 0
    timeline = loaded(tmp_path).raise_for_ending()
    groups = {tuple(ranks): name for name, ranks in timeline.meta["groups"].items()}
    assert set(groups) == {(0, 1, 2, 3), (0, 2), (1, 3), (0, 1), (2, 3)}
    calls = timeline.calls.filter(pl.col("rank") == 3)
    ops = {name: set(calls.filter(pl.col("group") == name)["op"]) for name in groups.values()}
    assert ops[groups[1, 3]] == {"all_gather", "reduce_scatter"}
    assert ops[groups[2, 3]] == {"all_reduce"}
    assert ops[groups[0, 1, 2, 3]] == {"recv", "barrier"}
    assert all(slot.met and slot.expected for slot in joinlab.match(timeline))


@pytest.mark.parametrize("safe", [False, True])
def test_a_module_is_recorded_and_wrong_usage_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], safe: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    names = (name for name in dir(sys.flags) if name[0] != "_")
    flags = {name: getattr(sys.flags, name) for name in names} | {"safe_path": safe}
    monkeypatch.setattr(sys, "flags", SimpleNamespace(**flags))
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    given: list[tuple[Path, bool]] = []
    monkeypatch.setattr(
        "joinlab.jobs.record.record",
        lambda folder, *, everything, **_: given.append((folder, everything)),
    )
    (tmp_path / "a_module_to_record.py").write_text("import sys; print(__name__, sys.argv[1:])")
    assert main(["record", "--quiet", "--everything", "-m", "a_module_to_record", "--lr", "1"]) == 0
    assert (capsys.readouterr().out, given) == (
        "__main__ ['--lr', '1']\n",
        [(Path("runs/today"), True)],
    )
    assert sys.path[0] == ("" if safe else str(tmp_path))
    assert main(["record", "nofile.py"]) == 2
    assert capsys.readouterr().err.startswith("joinlab: nofile.py: there is no such script.")
    assert main(["watch", "nofolder", "--exit-code", "--still", "0"]) == 2
    assert "nofolder: No such file" in capsys.readouterr().err


def test_rank_0_says_where_it_records_and_at_the_end_how_to_see_it(
    tmp_path: Path, ranks_from: subprocess.Popen[bytes]
) -> None:
    (tmp_path / "script.py").write_text("print('the script')")
    words = ("record", "--into", "my runs", "script.py")
    first, other = said_by(ranks_from, tmp_path, 2, words)
    assert first.stderr.splitlines() == [
        "joinlab: recording into my runs. If it hangs: python -m joinlab show 'my runs'",
        "joinlab: to see what was recorded: python -m joinlab show 'my runs'",
    ]
    assert (first.stdout, other.stdout, other.stderr) == ("the script\n", "the script\n", "")


def test_ctrl_c_says_how_to_see_a_job_whose_rank_waits_in_c(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import ctypes\nlock, c = ctypes.create_string_buffer(64), ctypes.CDLL(None)\nc.pthread_mutex_lock(lock)\n"
        "print('waits', flush=True)\nc.pthread_mutex_lock(lock)\n"
    )
    command = [sys.executable, "-m", "joinlab", "record", "script.py"]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True, env={**ENV, "RANK": "0"}
    ) as job:
        assert job.stdout and job.stderr
        assert job.stdout.readline() == "waits\n"
        job.send_signal(signal.SIGINT)
        said = "joinlab: to see what was recorded: python -m joinlab show runs/today\n"
        # behind a traceback, if the signal came before the wait
        assert any(line == said for line in job.stderr)
        job.kill()


def test_a_job_of_more_ranks_than_a_process_may_open_files_is_read(tmp_path: Path) -> None:
    for rank in range(60):
        write(tmp_path, rank, begin(rank, 60))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 30, hard)
    )
    try:
        assert load_recording(tmp_path).meta["missing_ranks"] == []
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_recorded_script_ends_and_sees_itself_as_without_a_recorder(tmp_path: Path) -> None:
    (tmp_path / "probe.py").write_text(
        "import atexit, os, pickle, sys\nclass C: pass\natexit.register(lambda: print(pickle.dumps(C())))\n"
        "os.chdir('/')\nprint(__file__, __name__, __spec__, sys.argv, sys.path[0])\nraise KeyboardInterrupt\n"
    )
    bare, recorded = (
        python(tmp_path, *words, "probe.py", "--lr", RANK="0")
        for words in ((), ("-m", "joinlab", "record", "--quiet", "--into", str(tmp_path / "runs")))
    )
    assert (recorded.returncode, recorded.stdout, recorded.stderr) == (
        bare.returncode,
        bare.stdout,
        bare.stderr,
    )
    assert bare.returncode


def test_a_recorded_script_gets_the_checks_that_it_asks_torch_for(tmp_path: Path) -> None:
    (tmp_path / "probe.py").write_text(
        "import os\nos.environ['TORCH_DISTRIBUTED_DEBUG'] = 'DETAIL'\nimport torch.distributed as dist\n"
        "dist.init_process_group('gloo', init_method=f'file://{os.getcwd()}/store', rank=0, world_size=1)\n"
        "print(dist.get_debug_level())\n"
    )
    recorded = python(tmp_path, "-m", "joinlab", "record", "probe.py", RANK="0")
    assert recorded.stdout == "DebugLevel.DETAIL\n"


def test_a_job_that_has_just_started_is_read_before_any_rank_has_begun(tmp_path: Path) -> None:
    for rank in range(3):
        (tmp_path / f"rank-{rank}.0.jsonl").touch()
    timeline = loaded(tmp_path, "")
    assert [one.partition("was left out: ")[2] for one in timeline.meta["problems"]] == [
        "it has no beginning yet"
    ] * 3
    assert [(end.kind, end.text) for end in timeline.ends] == [
        (EndKind.UNKNOWN, "its record has no beginning yet")
    ] * 3
    assert "no beginning yet" in str(joinlab.diagnose(timeline))


# ---------------- one line

SPAWNED = """
import sys, warnings
import joinlab, torch, torch.distributed as dist, torch.multiprocessing as mp

def main(rank, folder, store):
    joinlab.record(folder)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    x = torch.tensor([rank + 1.0])
    if rank:
        dist.send(x, 0)
    else:
        dist.recv(x, 1)
    pair = dist.new_group([0, 1])
    dist.all_reduce(x, group=pair)
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(main, (sys.argv[1], sys.argv[2]), nprocs=2)
"""


def test_one_line_records_a_job_that_no_launcher_has_told_its_ranks(tmp_path: Path) -> None:
    (tmp_path / "spawned.py").write_text(SPAWNED)
    done = python(tmp_path, "spawned.py", str(tmp_path / "runs"), str(tmp_path / "store"))
    assert done.returncode == 0, done.stderr
    timeline = loaded(tmp_path)
    assert timeline.world_size == 2
    rows = timeline.calls.filter(pl.col("rank") == 0).select("op", "peer", "value_out").rows()
    assert rows == [("recv", 1, "[[2.0]]"), ("all_reduce", None, "[[4.0]]")]
    assert len(timeline.meta["groups"]) == 2
    assert "Ranks 0, 1 finished." in str(joinlab.diagnose(timeline))


def test_a_record_that_begins_behind_init_process_group_warns(tmp_path: Path, alone: Any) -> None:
    line = "joinlab.record(sys.argv[1])\n"
    done = alone(script=ALONE.replace(line, "").replace("HARM", line + "dist.new_group([0])"))
    assert (done.returncode, done.stdout) == (0, "the job has finished\n"), done.stderr
    assert "joinlab.record came after init_process_group" in done.stderr


AGAIN = """
import sys
import joinlab, torch, torch.distributed as dist

joinlab.record(sys.argv[1])
for again in range(3):
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}{again}", rank=0, world_size=1)
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()
"""


def test_groups_that_a_process_makes_again_are_told_apart(tmp_path: Path, alone: Any) -> None:
    assert alone(script=AGAIN).returncode == 0
    timeline = loaded(tmp_path)
    assert timeline.calls["group"].to_list() == ["0", "0 of init 2", "0 of init 3"]
    assert timeline.meta["problems"] == []


def test_a_record_without_a_call_that_the_others_completed_ends_early(tmp_path: Path) -> None:
    calls = call(0, 1500, 1600) + call(1, 1700, 1800)
    write(tmp_path, 0, begin(0, 2) + calls + '{"e":"return","t":1900}\n')
    for last, reach in ((call(0, 1500, 1600), "after all_reduce, call 1"), (calls, "call 2")):
        write(tmp_path, 1, begin(1, 2) + last)
        story = str(joinlab.diagnose(loaded(tmp_path, ".")))
        assert ("their records end early" in story) == (last != calls) and reach in story
        assert "FIX" not in story and "nothing meets" not in story
    # a file of a process that is gone ends within a line
    write(tmp_path, 1, begin(1, 2, host=socket.gethostname()) + calls + '{"e":')
    assert "their records end early" in str(joinlab.diagnose(loaded(tmp_path, ".")))


def test_a_rank_that_did_not_come_to_the_first_call_is_named(tmp_path: Path) -> None:
    write(tmp_path, 0, begin(0, 2))
    assert "no record of rank 1 is here: was it started?" in str(
        joinlab.diagnose(loaded(tmp_path, "."))
    )
    write(tmp_path, 1, begin(1, 2))
    assert "every call fits" not in str(joinlab.diagnose(loaded(tmp_path, ".")))


def test_the_calls_of_ranks_without_a_record_are_not_known(tmp_path: Path) -> None:
    for rank, op in ((1, "all_reduce"), (2, "barrier")):
        calls = call(0, 1500, 1600) + call(1, 1700, None, op)
        write(tmp_path, rank, begin(rank, 3) + calls)
    timeline = loaded(tmp_path, ".")
    assert timeline.meta["missing_ranks"] == [0]
    shown = str(run_report(timeline))
    assert "no call of rank 0" not in shown and "not rank 0" not in shown


@pytest.mark.parametrize(
    ("ending", "text", "method"),
    sampled(
        [
            ("raise ValueError('a bad label')", "ValueError: a bad label", "spawn"),
            ("raise ValueError('a bad label')", "ValueError: a bad label", "fork"),
            ("sys.exit(3)", "SystemExit: 3", "spawn"),
        ],
        lambda row: row[2] == "fork",
    ),
)
def test_a_spawned_rank_that_fails_has_the_error_that_it_failed_by(
    tmp_path: Path, ending: str, text: str, method: str
) -> None:
    script = SPAWNED.replace("    dist.destroy_process_group()", f"    if rank: {ending}")
    script = script.replace("nprocs=2", f"nprocs=2, start_method={method!r}")
    script = script.replace("mp.spawn", "mp.start_processes")
    (tmp_path / "spawned.py").write_text(script)
    done = python(tmp_path, "spawned.py", str(tmp_path / "runs"), str(tmp_path / "store"))
    assert done.returncode == 1
    line = next(n for n, row in enumerate(script.splitlines(), 1) if ending in row)
    ends = loaded(tmp_path).ends
    assert (ends[1].kind, ends[1].text) == (EndKind.RAISED, text)
    assert f"spawned.py:{line}" in str(joinlab.diagnose(loaded(tmp_path)))


@pytest.mark.parametrize("method", sampled(["spawn", "fork"], "fork".__eq__))
def test_a_spawned_rank_that_ctrl_c_ended_did_not_finish(tmp_path: Path, method: str) -> None:
    """torch.multiprocessing.spawn takes KeyboardInterrupt for a return."""
    ending = "signal.raise_signal(signal.SIGINT)"
    script = SPAWNED.replace("    dist.destroy_process_group()", f"    if rank: {ending}")
    script = script.replace("nprocs=2", f"nprocs=2, start_method={method!r}")
    script = script.replace("mp.spawn", "mp.start_processes")
    (tmp_path / "spawned.py").write_text("import signal\n" + script)
    done = python(tmp_path, "spawned.py", str(tmp_path / "runs"), str(tmp_path / "store"))
    assert done.returncode == 0
    assert INTERRUPTED in loaded(tmp_path).ends[1].text


def test_an_exit_that_the_program_caught_is_none(tmp_path: Path, alone: Any) -> None:
    harm = "try: sys.exit(4)\nexcept SystemExit: pass\ndist.all_reduce(torch.ones(1))"
    assert alone(harm).returncode == 0
    assert loaded(tmp_path).ends[0].kind is EndKind.FINISHED


@pytest.mark.parametrize(
    ("ending", "code", "text"),
    sampled(
        [
            ("sys.exit(3)", 3, "SystemExit: 3"),
            ("raise ValueError('no') # behind a hook", 1, "ValueError: no"),
        ],
        lambda row: row[1] == 3,
    ),
)
def test_a_script_that_fails_has_its_line_whatever_hook_it_has_set(
    tmp_path: Path, ending: str, code: int, text: str
) -> None:
    script = ALONE.replace("HARM", f"sys.excepthook = print\n{ending}")
    (tmp_path / "leaves.py").write_text(script)
    words = (str(tmp_path / "runs"), str(tmp_path / "store"))
    assert python(tmp_path, "leaves.py", *words, RANK="0", WORLD_SIZE="1").returncode == code
    timeline = loaded(tmp_path)
    assert timeline.ends[0].text == text
    line = script.splitlines().index(ending) + 1
    assert f"leaves.py:{line}" in str(joinlab.diagnose(timeline))


@pytest.mark.parametrize(
    ("environ", "said"),
    sampled(
        [
            ({}, "joinlab recorded nothing: this process made no process group."),
            ({"RANK": "0", record.CHILD_OF: "1"}, ""),
        ],
        lambda row: not row[0],
    ),
)
def test_a_process_that_makes_no_group_is_not_recorded_unless_it_is_a_rank(
    tmp_path: Path, environ: dict[str, str], said: str
) -> None:
    done = python(tmp_path, "-c", "import joinlab; joinlab.record('runs')", **environ)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith(said) and ("joinlab" in done.stderr) == bool(said)
    assert not list(tmp_path.glob("runs/*"))


UNWAITED = """
import os, torch, torch.distributed as dist

rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method="file://" + os.path.abspath("store"), rank=rank, world_size=2)
dist.all_reduce(torch.ones(1))
if rank == 0:
    work = dist.all_reduce(torch.ones(1), async_op=True)
"""


def test_a_rank_that_waits_for_no_call_leaves_as_it_does_unrecorded(tmp_path: Path) -> None:
    """gloo's thread finds rank 1 gone while rank 0's Python shuts down, which a callback of ours
    would abort."""
    (tmp_path / "unwaited.py").write_text(UNWAITED)
    command = [sys.executable, "-m", "joinlab", "record", "--into", "runs", "unwaited.py"]
    processes = [
        subprocess.Popen(
            command,
            cwd=tmp_path,
            env={**ENV, "RANK": rank, "WORLD_SIZE": "2"},
            stderr=subprocess.PIPE,
        )
        for rank in ("0", "1")
    ]
    said = [process.communicate(timeout=100)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    timeline = loaded(tmp_path)
    assert [end.pending for end in timeline.ends] == [True, False]


def test_a_script_that_ends_before_it_makes_a_group_has_no_record_to_see(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import no_such_module")
    done = python(tmp_path, "-m", "joinlab", "record", "broken.py")
    assert "joinlab recorded nothing" in done.stderr
    assert "to see what was recorded" not in done.stderr


def test_a_folder_that_cannot_be_written_is_one_warning_and_the_job_goes_on(
    tmp_path: Path, alone: Any
) -> None:
    (tmp_path / "runs").write_text("a file stands where the folder should be")
    done = alone()
    assert done.returncode == 0
    assert done.stdout == "the job has finished\n"
    assert done.stderr.count("joinlab cannot record rank 0") == 1


def test_a_folder_that_is_removed_under_the_job_does_not_harm_it(
    tmp_path: Path, alone: Any
) -> None:
    done = alone("shutil.rmtree(sys.argv[1])")
    assert (done.returncode, done.stdout) == (0, "the job has finished\n"), done.stderr


ALONE = """
import shutil, sys
import joinlab, torch, torch.distributed as dist
from joinlab.recorder import bounded_log

bounded_log.SEGMENT_BYTES = 1000
joinlab.record(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=0, world_size=1)
dist.all_reduce(torch.ones(1))
HARM
for _ in range(20):  # several segments
    dist.all_reduce(torch.ones(1))
dist.destroy_process_group()
print("the job has finished")
"""


@pytest.fixture
def alone(
    ranks_from: subprocess.Popen[bytes], tmp_path: Path
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a job of one rank, to whose record something happens."""

    def run(harm: str = "", script: str = ALONE) -> subprocess.CompletedProcess[str]:
        (tmp_path / "alone.py").write_text(script.replace("HARM", harm))
        words = ("alone.py", str(tmp_path / "runs"), str(tmp_path / "store"))
        (done,) = said_by(ranks_from, tmp_path, 1, words)
        return done

    return run


def test_a_disk_that_fills_up_is_one_warning_and_the_job_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = BoundedLog(tmp_path, 0, lambda error: record.warn(0, error))

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(20_000):
            log.write_text("x" * 999 + "\n")
    (warning,) = [str(one.message) for one in found]
    assert warning == (
        "joinlab cannot record rank 0: OSError: [Errno 28] No space left on device. The job goes on unrecorded."
    )
    assert log.failed
    lines = (tmp_path / "rank-0.0.jsonl").read_bytes().partition(b"\0")[0].decode().splitlines()
    assert json.loads(lines[-1])["x"] == "OSError: [Errno 28] No space left on device"


def test_a_rank_whose_record_was_lost_is_not_said_to_be_killed_and_its_gpu_is_told(
    tmp_path: Path,
) -> None:
    gpu = '{"e":"gpu","x":"cuda:3 (NVIDIA H100)"}\n'
    lost = '{"e":"lost","x":"OSError: [Errno 28] No space left on device","t":1700}\n'
    write(tmp_path, 0, begin(0, 1, host=socket.gethostname()) + gpu + call(0, 1500, 1600) + lost)
    timeline = load_recording(tmp_path)
    assert timeline.meta["processes"][0]["gpu"] == "cuda:3 (NVIDIA H100)"
    assert (timeline.ends[0].kind, timeline.ends[0].text) == (EndKind.UNKNOWN, LOST)
    assert "the record of rank 0 ends early: OSError" in "\n".join(timeline.meta["problems"])


@pytest.mark.parametrize(
    ("environ", "rank"),
    [
        ({"RANK": "3"}, 3),
        ({"OMPI_COMM_WORLD_RANK": "2"}, 2),
        ({"SLURM_PROCID": "5"}, 5),
        ({}, None),
    ],
)
def test_the_rank_is_what_the_launcher_says(environ: dict[str, str], rank: int | None) -> None:
    assert record._number(record.RANK_NAMES, environ) == rank


# ---------------- bounds

AHEAD_NS = 3_000_000_000
BUSY = f"""
import socket, sys, time

rank = int(sys.argv[3])
clock = time.monotonic_ns  # each rank is a host of its own, and the clock of the second is ahead
time.monotonic_ns = lambda: clock() + rank * {AHEAD_NS}
socket.gethostname = lambda: f"host{{rank}}"

import joinlab, torch, torch.distributed as dist
from joinlab.recorder import bounded_log

bounded_log.SEGMENT_BYTES = 20_000
joinlab.record(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{{sys.argv[2]}}", rank=rank, world_size=2)
x = torch.ones(1)
seldom = dist.new_group([0, 1])
for i in range(5 * rank):  # what the backend refuses takes no place in the order
    try:
        dist.all_gather([torch.zeros(2)] * 2, x, group=seldom)
    except RuntimeError:
        pass
for i in range(60):
    dist.all_reduce(x, group=seldom)
weight = torch.ones((), requires_grad=True)
for i in range(1000):
    weight.backward()
    dist.all_reduce(x)
"""


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a long job on two hosts."""
    tmp_path = tmp_path_factory.mktemp("busy")
    ranks = [
        subprocess.Popen([sys.executable, "-c", BUSY, str(tmp_path / "runs"), str(tmp_path / "store"), str(rank)],
                         env={**ENV, "RANK": str(rank), "WORLD_SIZE": "2"})
        for rank in (0, 1)
    ]  # fmt: skip
    assert [process.wait(100) for process in ranks] == [0, 0]
    return tmp_path


def test_clocks_of_a_real_job_are_set_right_within_the_stated_bound(busy: Path) -> None:
    clock = loaded(busy).meta["clock"]
    bound = clock["bounds_ns"]["host1"]
    assert bound is not None
    assert abs(clock["hosts"]["host1"] + AHEAD_NS) <= bound < AHEAD_NS / 10


def test_a_long_job_keeps_the_last_calls_and_counts_the_others(busy: Path) -> None:
    timeline = loaded(busy).raise_for_ending()
    default, seldom = timeline.meta["groups"]
    # None of its calls is kept, and refused calls do not count.
    assert timeline.meta["skipped"][seldom] == {0: 60, 1: 60}
    for rank in (0, 1):
        mine = timeline.calls.filter(pl.col("rank") == rank)
        assert set(mine["group"]) == {default} and mine.height > 10
        before = timeline.meta["skipped"][default][rank]
        # a step each
        assert mine["seq"].to_list() == mine["input"].to_list() == list(range(before, 1000))
        assert mine["stack"].list.len().min() > 0  # type: ignore[operator]
        assert mine["completed_ns"].null_count() == 0
    assert any("only the last calls" in problem for problem in timeline.meta["problems"])
    written = [
        path
        for path in (busy / "runs").iterdir()
        if (parse_segment_name(path.name) or (1,))[0] == 0
    ]
    assert len(written) == 2
    assert all(slot.expected for slot in joinlab.match(timeline))


def test_of_a_long_job_no_call_before_a_gap_is_read(tmp_path: Path) -> None:
    issued = '{"e":"issued","g":"0","k":900}\n'
    text = (
        begin(0, 1) + issued + call(3, 1500, None) + call(900, 1600, 1700) + call(901, 1800, 1900)
    )
    write(tmp_path, 0, text + interrupted(2000), "rank-0.7.jsonl")
    timeline = load_recording(tmp_path)
    assert not any("later calls" in problem for problem in timeline.meta["problems"])
    assert timeline.calls["seq"].to_list() == [900, 901]
    assert timeline.meta["skipped"] == {"0": {0: 900}}


def test_a_link_that_someone_puts_in_a_segment_s_place_is_not_written_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_log, "SEGMENT_BYTES", 1000)
    other = tmp_path / "precious"
    other.write_text("as it was")
    lost: list[OSError] = []
    log = BoundedLog(tmp_path, 0, lost.append)
    log.preamble = lambda: ["preamble\n"]
    (tmp_path / "rank-0.1.jsonl").symlink_to(other)
    for _ in range(100):
        log.write_text("x" * 50 + "\n")
    log.close()
    assert other.read_text() == "as it was"
    assert [type(one) for one in lost] == [FileExistsError]
    assert '{"e":"lost"' in (tmp_path / "rank-0.0.jsonl").read_text()


def test_threads_lose_no_line_while_segments_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_log, "SEGMENT_BYTES", 40_000)
    monkeypatch.setattr(events, "CHUNK", 5_000)
    monkeypatch.setattr(events, "MOST_AHEAD", 5_000)
    log = BoundedLog(tmp_path, 0, lambda error: pytest.fail(str(error)))
    log.preamble = lambda: ["preamble\n"]

    def fill(name: str) -> None:
        for i in range(20_000):
            log.write_text(f"{name} {i}\n")

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=fill, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(interval)
    log.close()
    segments = sorted(tmp_path.iterdir(), key=lambda path: parse_segment_name(path.name) or (0, 0))
    texts = [path.read_text().splitlines() for path in segments]
    assert len(texts) == 2 and all(
        lines[0] == "preamble" and "preamble" not in lines[1:] for lines in texts
    )
    for name in "abc":
        kept = [int(line[2:]) for lines in texts for line in lines if line.startswith(f"{name} ")]
        assert kept == list(range(20_000 - len(kept), 20_000))


def test_a_rank_never_takes_more_disk_than_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MOST_BYTES <= 15e6  # what the docstring of record says
    log = BoundedLog(tmp_path, 0, lambda error: pytest.fail(str(error)))
    log.preamble = lambda: ["p" * bounded_log.PREAMBLE_BYTES + "\n"]
    most = 0
    for _ in range(30_000):
        log.write_text("x" * 999 + "\n")
        most = max(most, log.segment)
        assert len(list(tmp_path.iterdir())) <= 2
    assert most > 5
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= MOST_BYTES


# ---------------- what is missing


def test_calls_whose_damaged_number_is_another_ones_are_left_out(tmp_path: Path) -> None:
    again = call(1, 2500, 3000).replace('"s": 1', '"s": 0')
    below = call(2, 3500, 4000).replace('"s": 2', '"s": -2')
    assert '"s": 0' in again and '"s": -2' in below
    write(tmp_path, 0, begin(0, 1) + call(0, 1500, 2000) + again + below)
    timeline = load_recording(tmp_path)
    assert timeline.calls["seq"].to_list() == [0]
    problems = "\n".join(timeline.meta["problems"])
    assert "1 calls of rank 0 were left out: other calls have the same numbers" in problems
    assert "1 damaged lines" in problems


@pytest.mark.parametrize(
    ("right", "wrong", "left"),
    [
        ('"ranks": [0, 1]', '"ranks": [0, 0]', 4),
        ('"sh": [[1]]', '"sh": [[-1]]', 2),
        ('"i": null', f'"n": {10**20}, "i": null', 2),
        ('"t": 1500', f'"t": {1 - 2**62}', 2),
        ('"i": null', f'"v": [["{"9" * 70_000}"]], "i": null', 2),
    ],
)
def test_a_damaged_line_leaves_a_timeline_that_can_be_judged_and_saved(
    tmp_path: Path, right: str, wrong: str, left: int
) -> None:
    for rank in (0, 1):
        text = begin(rank, 2) + call(0, 1500, 2000) + call(1, 2500, None)
        assert right in text
        write(tmp_path, rank, text.replace(right, wrong, 1))
    timeline = load_recording(tmp_path)
    assert timeline.calls.height == left
    str(joinlab.diagnose(timeline))
    assert same_timelines(joinlab.load(timeline.save(tmp_path / "saved.joinlab")), timeline)


def test_missing_ranks_cut_lines_and_damage_are_named_and_the_rest_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # one line, never ended
    write(tmp_path, 0, begin(0, 4) + call(0, 1500, 2000) + '{"e":"' + "x" * (20 << 20))
    write(tmp_path, 1, begin(1, 4) + "no event\n" + "[" * 3000 + "\n" + call(0, 1500, 2000))
    timeline = load_recording(tmp_path)
    assert timeline.world_size == 4
    assert timeline.calls.height == 2
    problems = "\n".join(timeline.meta["problems"])
    assert "there is no record of ranks 2, 3" in problems
    assert "rank-0.0.jsonl' ends within a line" in problems
    assert "rank-1.0.jsonl': 2 damaged lines were left out" in problems
    assert [end.kind for end in timeline.ends] == [EndKind.UNKNOWN] * 4
    assert timeline.meta["missing_ranks"] == [2, 3]
    assert (
        main(["watch", str(tmp_path), "--once"]) == 0
        and "no record of ranks 2, 3" in capsys.readouterr().out
    )


def test_a_record_of_another_job_or_a_second_one_of_a_rank_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, 0, begin(0, 2))
    write(tmp_path, 1, begin(1, 2))
    write(tmp_path, 7, begin(7, 8, wall=10))
    write(tmp_path / "host", 1, begin(1, 2, wall=4000))
    write(tmp_path / "copy", 0, begin(0, 2))
    timeline = load_recording(tmp_path)
    assert timeline.world_size == 2
    problems = "\n".join(timeline.meta["problems"])
    assert "rank-7.0.jsonl' was left out: part of another job" in problems
    assert "rank-1.0.jsonl' was left out: it is a second record of rank 1" in problems
    assert "copy/rank-0.0.jsonl' was left out: part of a copy" in problems


def test_no_record_is_overwritten_and_each_job_is_read_by_the_name_of_a_file(
    tmp_path: Path,
) -> None:
    # the first two jobs begin together
    for attempt, rank in (
        (0, 0),
        (1, 1),
        (0, 1),
        (1, 0),
        (2, 0),
        (2, 1),
    ):
        place = record._unused(tmp_path, rank)
        job = [None, None, None, None, str(attempt)]
        write(
            place,
            rank,
            begin(rank, 2, wall=5000 + attempt, job=job) + call(0, 1500, 1600) * (attempt == 1),
        )
    assert place == tmp_path / "job-3"
    newest = load_recording(tmp_path)
    assert (newest.world_size, newest.calls.height, newest.meta["missing_ranks"]) == (2, 0, [])
    problem = newest.meta["problems"][0]
    assert problem.startswith("4 files such as ") and problem.endswith(
        "Load that file to read its job"
    )
    for file, ranks in (
        ("rank-1.0", [0, 1]),
        ("job-2/rank-0.0", [0, 1]),
        ("rank-0.0", []),
        ("job-2/rank-1.0", []),
    ):
        assert loaded(tmp_path, f"{file}.jsonl").calls["rank"].to_list() == ranks


def test_without_a_name_of_the_job_a_record_belongs_to_those_that_began_with_it(
    tmp_path: Path,
) -> None:
    for rank in (0, 1):
        write(tmp_path, rank, begin(rank, 2, wall=5000 + rank))
    write(tmp_path / "job-2", 0, begin(0, 2, wall=9000) + call(0, 1500, None))
    timeline = load_recording(tmp_path)
    assert timeline.meta["missing_ranks"] == [1]
    assert timeline.calls.height == 1
    assert loaded(tmp_path, "rank-1.0.jsonl").meta["missing_ranks"] == []


def test_files_of_another_form_beside_a_record_are_named_and_a_pipe_is_not_read(
    tmp_path: Path,
) -> None:
    write(tmp_path, 0, begin(0, 2))
    os.mkfifo(tmp_path / "rank-1.0.jsonl")
    (tmp_path / "nccl_trace_rank_0").write_bytes(b"\x80\x02}.")
    problems = "\n".join(loaded(tmp_path, ".").meta["problems"])
    assert "nccl_trace_rank_0' was left out: no line says what a rank did" in problems
    assert "there is no record of rank 1" in problems


@pytest.mark.parametrize("text", ["no events\n", '{"e":5}\n[]\n7\n'])
def test_a_folder_without_a_beginning_is_refused(tmp_path: Path, text: str) -> None:
    write(tmp_path, 0, text)
    with pytest.raises(TimelineFileError, match="it has no beginning"):
        load_recording(tmp_path)


@pytest.mark.gpu
def test_a_rank_on_a_gpu_says_on_which(tmp_path: Path, alone: Any) -> None:
    script = ALONE.replace('"gloo"', '"nccl"').replace(
        "torch.ones(1)", 'torch.ones(1, device="cuda")'
    )
    done = alone(script=script)
    assert done.returncode == 0, done.stderr
    assert (
        loaded(tmp_path).meta["processes"][0]["gpu"] == f"cuda:0 ({torch.cuda.get_device_name(0)})"
    )


def test_watch_gives_the_story_as_a_line_of_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    write(tmp_path / "runs" / "today", 0, begin(0, 1) + call(0, 1500, 1600) + '{"e":"return"}\n')
    assert main(["watch", "--json"]) == 0  # the folder into which `record` writes by itself
    (line,) = capsys.readouterr().out.splitlines()
    story = json.loads(line)
    assert (story["state"], story["ranks"][0]["kind"]) == ("over", "finished")


def test_a_folder_grows_while_it_is_followed(tmp_path: Path) -> None:
    write(tmp_path, 0, begin(0, 1) + call(0, 1500, 1600))
    recorded = RecordedFolder(tmp_path)
    assert recorded.refresh()
    assert not recorded.refresh()
    # the next segment
    write(tmp_path, 0, begin(0, 1) + call(0, 1500, 1600) + call(1, 1700, 1800), "rank-0.1.jsonl")
    assert recorded.refresh()
    assert recorded.timeline().calls["seq"].to_list() == [0, 1]
    assert recorded.progress(0) == (2, "all_reduce")


# ---------------- clocks


def test_clocks_that_are_3_s_apart_are_set_right_within_the_stated_bound(tmp_path: Path) -> None:
    """Host 1's monotonic clock is 3 s ahead, and the wall clocks hide it."""
    ahead, text = 3_000_000_000, {0: begin(0, 2), 1: begin(1, 2)}
    for i in range(20):
        issued = {0: 10_000_000 * i + 40_000 * (i % 3), 1: 10_000_000 * i + 30_000 * (i % 5)}
        done = max(issued.values()) + 50_000
        for rank in (0, 1):
            shift = ahead * rank + 2000
            text[rank] += call(i, issued[rank] + shift, done + 1000 * rank + shift)
    for rank in (0, 1):
        write(tmp_path, rank, text[rank])
    clock = load_recording(tmp_path).meta["clock"]
    bound = clock["bounds_ns"]["host1"]
    assert bound is not None
    assert bound < 100_000
    assert abs(clock["hosts"]["host1"] + ahead) <= bound
    assert clock["bounds_ns"]["host0"] == 0


def test_a_bound_over_a_third_host_counts() -> None:
    def row(rank: int, group: str, at: int, done: int) -> CallRow:
        call: CallRow = {"rank": rank, "group": group, "seq": 0, "number": 1, "op": "barrier"}
        return {**call, "enqueued_ns": at, "completed_ns": done}

    rows = [
        row(0, "a", 0, 10),
        row(1, "a", 100, 110),
        row(1, "b", 200, 210),
        row(2, "b", 5200, 5210),
    ]
    groups = {"a": [0, 1], "b": [1, 2]}
    found = offsets(rows, {0: "x", 1: "y", 2: "z"}, groups, {"x": 0, "y": 0, "z": 0}, "x")
    assert (found["y"].offset_ns, found["z"].offset_ns) == (-100, -5100)
    assert found["z"].bound_ns == 21


def test_refused_calls_and_sends_do_not_shift_which_collectives_bound_a_clock() -> None:
    def row(
        rank: int, seq: int, number: int | None, op: str, at: int, error: str | None = None
    ) -> CallRow:
        call: CallRow = {
            "rank": rank,
            "group": "a",
            "seq": seq,
            "number": number,
            "op": op,
            "error": error,
        }
        return {**call, "enqueued_ns": at, "completed_ns": None if error else at + 10}

    barriers = [row(0, n, n + 1, "barrier", 100 * n) for n in range(3)]
    others = [
        row(1, 0, 1, "send", 5000),
        row(1, 1, None, "all_gather", 5000, "ValueError: Tensors must be contiguous"),
    ]
    # its first one was dropped
    others += [row(1, n + 2, n + 1, "barrier", 5000 + 100 * n) for n in range(1, 3)]
    found = offsets([*barriers, *others], {0: "x", 1: "y"}, {"a": [0, 1]}, {"x": 0, "y": 0}, "x")
    assert (found["y"].offset_ns, found["y"].bound_ns) == (-5000, 11)


def test_without_a_call_that_met_wall_clocks_are_compared_and_it_is_said(tmp_path: Path) -> None:
    write(tmp_path, 0, begin(0, 2))
    write(tmp_path, 1, begin(1, 2, wall=9000))
    timeline = load_recording(tmp_path)
    assert timeline.meta["clock"]["hosts"] == {"host0": 0, "host1": 4000}
    assert any(
        "no call bounds the clock of host host1" in problem for problem in timeline.meta["problems"]
    )
