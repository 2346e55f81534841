"""The recorder's reader of calls on a GPU, with events and streams in the test's hands.

What it must not do cannot be seen on a GPU that behaves: allocate behind a stuck kernel, hold the GIL
while the driver holds back its answer, ask anything while a CUDA graph is captured.
"""

from __future__ import annotations

import gc
import json
import threading
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from joinlab.recorder import cuda_clock, cuda_reader
from joinlab.recorder.call import RecordedCall, RecordedGroup
from joinlab.recorder.cuda_reader import SLOTS, CudaReader
from joinlab.recorder.events import EventLog
from joinlab.recorder.recorder import Recorder


class FakeGpu:
    """A GPU with a clock of its own, whose stream may be stuck, and a driver that may not answer."""

    def __init__(self) -> None:
        self.now_ns = 5_000_000
        self.asked: list[str] = []
        self.stream = 0
        self.capturing = False
        self.stuck = False
        self.driver_answers = threading.Event()
        self.driver_answers.set()


class FakeEvent:
    gpu: FakeGpu

    def __init__(self, enable_timing: bool = False) -> None:
        self.timed = enable_timing
        self.at_ns, self.passed = 0, True

    def record(self, stream: Any = None) -> None:
        self.at_ns, self.passed = self.gpu.now_ns, stream is not None or not self.gpu.stuck

    def query(self) -> bool:
        self.gpu.asked.append("event")
        return self.passed

    def synchronize(self) -> None:
        assert self.gpu.driver_answers.wait(20)

    def elapsed_time(self, later: FakeEvent) -> float:
        assert self.timed and later.timed and self.passed and later.passed
        return (later.at_ns - self.at_ns) / 1e6


class FakeWork:
    def __init__(self, gpu: FakeGpu, ms: float | None = None) -> None:
        self.gpu, self.ms = gpu, ms
        self.done = False
        self.result: int | None = 0

    def is_completed(self) -> bool:
        self.gpu.asked.append("work")
        return self.done

    def get_future_result(self) -> Any:
        return SimpleNamespace(done=lambda: self.result is not None, value=lambda: self.result)

    def exception(self) -> str:
        self.gpu.asked.append("exception")
        return "the communicator was aborted"

    def _get_duration(self) -> float:
        if self.ms is None:
            raise RuntimeError("getDuration only works if timing was enabled")
        return self.ms


@dataclass
class Bench:
    """A reader that polls only when the test says so."""

    gpu: FakeGpu
    recorder: Recorder
    reader: CudaReader
    allocated: list[int]
    path: Path

    def call(self, id: int, work: Any = None, outs: Any = None) -> RecordedCall:
        group = RecordedGroup("0", "nccl", [0, 1], self.reader, False)
        kind: Any = SimpleNamespace(host_waits=False, on_stream=work is None)
        call = RecordedCall(id, kind, group, outs=outs, work=work)
        self.recorder.completions.issue(call, f'{{"e":"call","id":{id}}}\n')
        self.reader.begins(call)
        return call

    def told(self, *kinds: str) -> list[dict[str, Any]]:
        text = self.path.read_bytes().partition(b"\0")[0].decode()
        events = [json.loads(line) for line in text.splitlines()]
        return [event for event in events if event["e"] in kinds]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bench:
    gpu, allocated = FakeGpu(), list[int]()

    def pinned(nbytes: int) -> torch.Tensor:
        allocated.append(nbytes)
        return torch.empty(nbytes, dtype=torch.uint8)

    class OfThisGpu(FakeEvent):
        pass

    OfThisGpu.gpu = gpu
    stream = SimpleNamespace(cuda_stream=0)
    monkeypatch.setattr(torch.cuda, "Event", OfThisGpu)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: stream)
    monkeypatch.setattr(
        torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=gpu.stream)
    )
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: gpu.capturing)
    for name in ("capture_begin", "capture_end"):  # replaced by the reader
        monkeypatch.setattr(torch.cuda.CUDAGraph, name, lambda *_: None)
    for owner in (c10d, dist):
        monkeypatch.setattr(owner, "batch_isend_irecv", owner.batch_isend_irecv)
    monkeypatch.setattr(cuda_reader, "_mark_host_syncs", lambda waits: None)
    monkeypatch.setattr(cuda_reader, "pinned", pinned)
    monkeypatch.setattr(cuda_reader, "POLL_S", 3600)
    monkeypatch.setattr(cuda_clock, "now", lambda: gpu.now_ns + OFFSET_NS)
    monkeypatch.setattr(cuda_reader, "now", lambda: gpu.now_ns + OFFSET_NS)
    path = tmp_path / "log"
    recorder = Recorder(EventLog(path, print), 0)
    reader = CudaReader(recorder.log, recorder.completions, recorder.waits, recorder.note_streams)
    recorder._cuda_reader = reader
    return Bench(gpu, recorder, reader, allocated, path)


OFFSET_NS = 70_000_000
"""What the host's clock shows when the GPU's shows 0."""


def test_a_synchronous_call_is_timed_by_events_before_and_behind_it(bench: Bench) -> None:
    call = bench.call(0)
    bench.gpu.now_ns += 300_000
    assert bench.reader.watch(call)
    bench.gpu.now_ns += 900_000  # when it is asked
    bench.reader.settle()
    assert [(event["e"], event["t"]) for event in bench.told("begun", "done")] == [
        ("begun", 5_000_000 + OFFSET_NS),
        ("done", 5_300_000 + OFFSET_NS),
    ]


def test_of_a_refused_call_no_event_is_kept(bench: Bench) -> None:
    def events() -> int:
        return sum(issubclass(type(item), FakeEvent) for item in gc.get_objects())

    bench.call(0)
    before = events()
    for id in range(1, 4):
        bench.recorder.completions.fail(bench.call(id), RuntimeError("refused"), refused=True)
    assert events() == before


def test_an_asynchronous_call_ends_when_it_is_seen_or_when_its_stream_went_on(bench: Bench) -> None:
    """Its Work tells how long it ran, where NCCL times its calls."""
    plain, timed = (bench.call(id, FakeWork(bench.gpu, ms)) for id, ms in ((0, None), (1, 0.25)))
    for call in (plain, timed):
        bench.reader.watch(call)
    bench.gpu.now_ns += 400_000
    bench.reader.after_wait(timed)  # the stream went on at 5.4 ms
    for call in (plain, timed):
        call.work.done = True
    bench.gpu.now_ns += 600_000
    bench.reader.settle()
    assert [
        (event["e"], event["id"], event["t"] - OFFSET_NS) for event in bench.told("begun", "done")
    ] == [
        ("done", 0, 6_000_000),
        ("begun", 1, 5_150_000),
        ("done", 1, 5_400_000),
    ]


def test_without_a_look_at_the_clock_nothing_is_called_measured(bench: Bench, monkeypatch) -> None:
    """An event on a stream of its own may wait behind the program's, if these share a queue."""
    monkeypatch.setattr(FakeEvent, "query", lambda event: event.passed)
    monkeypatch.setattr(
        FakeEvent, "record", lambda event, stream=None: setattr(event, "passed", stream is None)
    )
    times = iter(range(0, 10**9, 50_000))
    monkeypatch.setattr(cuda_clock, "now", lambda: next(times))
    call = bench.call(0)
    bench.reader.watch(call)
    bench.reader.settle()
    assert bench.told("begun") == [] and len(bench.told("done")) == 1


@pytest.mark.parametrize("result", [0, 1, None])
def test_a_work_is_asked_for_its_error_only_if_it_has_failed(
    bench: Bench, result: int | None
) -> None:
    """Work.exception() prints a warning into every rank's output."""
    work = FakeWork(bench.gpu)
    work.result, work.done = result, True
    bench.reader.watch(bench.call(0, work))
    bench.reader.settle()
    bench.reader.settle()
    assert ("exception" in bench.gpu.asked) == (result == 1)
    (event,) = bench.told("done", "fail")
    assert event["e"] == ("fail" if result == 1 else "done")


def test_an_error_that_the_watchdog_tells_a_moment_later_is_not_missed(bench: Bench) -> None:
    work = FakeWork(bench.gpu)
    work.result, work.done = None, True
    bench.reader.watch(bench.call(0, work))
    bench.reader.settle()
    assert bench.told("done", "fail") == []
    work.result = 1
    bench.reader.settle()
    assert [event["x"] for event in bench.told("done", "fail")] == [
        "RuntimeError: the communicator was aborted"
    ]


def test_values_travel_through_memory_that_was_pinned_before_the_first_call(bench: Bench) -> None:
    """Behind a kernel that never ends nothing is freed: further calls are recorded without
    values."""
    x = torch.tensor([1.5, 2.5])
    bench.reader.before(bench.call(0), [x, torch.tensor(True)])
    assert len(bench.allocated) == 1
    bench.reader.settle()
    assert bench.told("value")[0]["v"] == [[1.5, 2.5], [True]]
    bench.gpu.stuck = True
    for id in range(1, SLOTS + 10):
        bench.reader.before(bench.call(id), [x])
    bench.reader.settle()
    assert len(bench.allocated) == 1 and len(bench.told("value")) == 1
    assert not bench.recorder.log.failed


def test_nothing_is_asked_with_the_gil_held_while_the_driver_holds_back_its_answers(
    bench: Bench,
) -> None:
    bench.reader.watch(bench.call(0, FakeWork(bench.gpu)))
    bench.gpu.asked.clear()
    bench.gpu.driver_answers.clear()
    polling = threading.Thread(target=bench.reader.settle)
    polling.start()
    polling.join(0.2)
    assert polling.is_alive() and bench.gpu.asked == []
    bench.gpu.driver_answers.set()
    polling.join(20)
    assert bench.gpu.asked == ["work"]


def test_nothing_is_asked_while_a_graph_is_captured(bench: Bench) -> None:
    graph: Any = None
    bench.reader.watch(bench.call(0, FakeWork(bench.gpu)))
    bench.gpu.asked.clear()
    torch.cuda.CUDAGraph.capture_begin(graph)
    bench.reader.settle()
    assert bench.gpu.asked == []
    torch.cuda.CUDAGraph.capture_end(graph)
    bench.reader.settle()
    assert bench.gpu.asked == ["work"]


def test_a_call_says_what_its_stream_waits_for(bench: Bench) -> None:
    """A call that is known to have completed holds nothing up, and is left out."""
    for stream, id, done in ((0, 1, False), (0, 2, True), (7, 3, False)):
        bench.gpu.stream = stream
        call = bench.call(id, FakeWork(bench.gpu))
        call.done = done
        bench.reader.watch(call)
        bench.reader.after_wait(call)
    assert bench.recorder.waits.newly_streamed == [1, 3]
    assert len(bench.told("streams")) == 1


def test_what_comes_out_is_kept_from_completion_until_the_program_waits(bench: Bench) -> None:
    """A poll may find a call complete long before the program waits for it."""
    work = FakeWork(bench.gpu)
    work.done = True
    call = bench.call(0, work, outs=[torch.tensor([3.0])])
    bench.reader.watch(call)
    bench.reader.settle()
    assert call.done and bench.told("value") == []
    for _ in range(2):  # a second wait reads nothing again
        bench.reader.after_wait(call)
    bench.reader.settle()
    assert [event["v"] for event in bench.told("value")] == [[[3.0]]]


def test_a_wait_of_cpp_ends_when_its_call_is_complete(bench: Bench) -> None:
    """The rebuild of buckets copies to the host what it received, and no Python code sees that."""
    work = FakeWork(bench.gpu)
    call = bench.call(0, work)
    bench.reader.watch(call)
    bench.recorder.waits.begin_below([call])
    assert [event["id"] for event in bench.told("wait", "wake")] == [[0]]
    work.done = True
    bench.reader.settle()
    (wake,) = bench.told("wake")
    assert wake["id"] == [0] and wake["th"] == threading.get_ident()
    bench.recorder.waits.end_turns_below(bench.recorder.own.turn)  # the thread goes on
    assert len(bench.told("wake")) == 1


def test_a_wait_of_cpp_ends_when_its_thread_does_something_else(bench: Bench) -> None:
    first, second = (bench.call(id, FakeWork(bench.gpu)) for id in range(2))
    bench.recorder.waits.begin_below([first])
    bench.recorder.waits.begin([second])
    assert [(event["e"], event["id"]) for event in bench.told("wait", "wake")] == [
        ("wait", [0]),
        ("wake", [0]),
        ("wait", [1]),
    ]


def test_a_copy_between_host_and_gpu_makes_the_host_wait_unless_told_not_to(monkeypatch) -> None:
    """A batch's `.to(device)` is where a rank stands whose stream is stuck. "meta" stands for a
    GPU's tensors."""
    monkeypatch.setattr(cuda_reader, "on_gpu", lambda tensor: tensor.is_meta)
    there, here = torch.ones(2, device="meta"), torch.ones(2)
    to, cuda, copy = (cuda_reader.CROSSINGS[name] for name in ("to", "cuda", "copy_"))
    assert to(here, "cuda:1") and to(here, torch.device("cuda")) and to(there, "cpu")
    assert to(here, device="cuda", dtype=torch.float16)
    assert not to(here, "cpu") and not to(there, "cuda") and not to(here, torch.float64)
    assert not to(here, "cuda", non_blocking=True) and not to(here, here)
    assert cuda(here) and not cuda(there) and not cuda(here, non_blocking=True)
    assert copy(there, here) and copy(here, there) and not copy(here, here)
    assert not copy(there, here, non_blocking=True)
