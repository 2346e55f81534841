"""The recorder on real gloo runs: it records every call of every rank with the right label, and
changes nothing."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import joinlab
from joinlab.recorder import completions, reducer
from joinlab.recorder.bounded_log import BoundedLog, segment_name
from joinlab.recorder.call import RecordedCall, ValueReader
from joinlab.recorder.events import EventLog
from joinlab.recorder.recorder import Recorder
from joinlab.timeline import Timeline


def run(program: Callable[..., Any], inputs: tuple[int, ...] = (1, 2), **options: Any) -> Timeline:
    return joinlab.launch(program, inputs, **{"backend": "gloo", "on_output": None, **options})


def of(timeline: Timeline, rank: int = 0, *columns: str) -> list[Any]:
    rows = timeline.calls.filter(pl.col("rank") == rank).select(columns)
    return rows.to_series().to_list() if len(columns) == 1 else rows.rows()


def test_every_collective_is_recorded_with_its_columns() -> None:
    def program(rank: int, inputs: Any) -> list[Any]:
        n = dist.get_world_size()
        x = torch.tensor([rank + 1.0, 10.0])
        some = [torch.zeros(2) for _ in range(n)]
        dist.all_reduce(x.clone(), op=dist.ReduceOp.MAX)
        dist.broadcast(x.clone(), 1)
        dist.reduce(x.clone(), 2, op=dist.ReduceOp.PRODUCT)
        dist.all_gather(some, x)
        dist.all_gather_into_tensor(torch.zeros(2 * n), x)
        dist.gather(x, some if rank == 1 else None, 1)
        dist.scatter(torch.zeros(2), [x * i for i in range(n)] if rank == 0 else None, 0)
        dist.reduce_scatter_tensor(torch.zeros(1), torch.arange(n).float())
        dist.all_to_all_single(torch.zeros(n), torch.arange(n).float() + 10 * rank)
        dist.barrier()
        objects: list[Any] = [None] * n
        dist.all_gather_object(objects, {"rank": rank})
        return objects

    timeline = run(program, (1, 1, 1)).raise_for_ending()
    rows = of(timeline, 2, "op", "origin", "reduce_op", "root", "shape", "value_in", "value_out")
    assert rows[:10] == [
        ("all_reduce", "all-reduce", "max", None, [[2]], "[[3.0,10.0]]", "[[3.0,10.0]]"),
        ("broadcast", "broadcast", None, 1, [[2]], "[[3.0,10.0]]", "[[2.0,10.0]]"),
        ("reduce", "reduce", "product", 2, [[2]], "[[3.0,10.0]]", "[[6.0,1000.0]]"),
        (
            "all_gather",
            "all-gather",
            None,
            None,
            [[2]],
            "[[3.0,10.0]]",
            "[[1.0,10.0],[2.0,10.0],[3.0,10.0]]",
        ),
        (
            "all_gather",
            "all-gather",
            None,
            None,
            [[2]],
            "[[3.0,10.0]]",
            "[[1.0,10.0,2.0,10.0,3.0,10.0]]",
        ),
        ("gather", "gather", None, 1, [[2]], "[[3.0,10.0]]", None),
        ("scatter", "scatter", None, 0, [[2]], None, "[[2.0,20.0]]"),
        ("reduce_scatter", "reduce-scatter", "sum", None, [[3]], "[[0.0,1.0,2.0]]", "[[6.0]]"),
        ("all_to_all", "all-to-all", None, None, [[3]], "[[20.0,21.0,22.0]]", "[[2.0,12.0,22.0]]"),
        ("barrier", "barrier", None, None, [], None, None),
    ]
    assert {origin for _, origin, *_ in rows[10:]} == {"all-gather (all_gather_object)"}
    assert timeline.returns[0] == [{"rank": 0}, {"rank": 1}, {"rank": 2}]
    assert timeline.calls["completed_ns"].null_count() == 0
    assert timeline.calls.filter(pl.col("enqueued_ns") > pl.col("completed_ns")).is_empty()
    assert timeline.calls["started_ns"].null_count() == timeline.calls.height  # gloo does not say


def test_point_to_point_calls_name_their_peer_and_tag() -> None:
    def program(rank: int, inputs: Any) -> None:
        x = torch.tensor([7.0 + rank])
        if rank == 0:
            dist.send(x, 2, tag=5)
            dist.isend(x, 1).wait()
        else:
            dist.recv(x, 0, tag=5) if rank == 2 else dist.recv(x)

    timeline = run(program, (1, 1, 1)).raise_for_ending()
    columns = ("op", "peer", "tag", "value_in", "value_out")
    assert of(timeline, 0, *columns) == [
        ("send", 2, 5, "[[7.0]]", None),
        ("send", 1, 0, "[[7.0]]", None),
    ]
    assert of(timeline, 1, *columns) == [("recv", None, 0, None, "[[7.0]]")]
    assert of(timeline, 2, *columns) == [("recv", 0, 5, None, "[[7.0]]")]
    assert timeline.calls["completed_ns"].null_count() == 0


def test_calls_of_subgroups_are_recorded_with_global_ranks() -> None:
    def program(rank: int, inputs: Any) -> Any:
        pair = dist.new_group([2, 1])
        other = dist.new_group([0, 2], backend="gloo")
        assert "joinlab" not in f"{dist.group.WORLD!r} {dist.group.WORLD.name()}"  # in errors, say
        x = torch.tensor([float(rank)])
        if rank:
            dist.broadcast(x, src=2, group=pair)
        if rank != 1:
            dist.all_reduce(x, group=other)
        return float(x), dist.get_backend(), dist.get_backend(other) if rank != 1 else None

    timeline = run(program, (1, 1, 1)).raise_for_ending()
    assert timeline.returns == ((2.0, "gloo", "gloo"), (2.0, "gloo", None), (2.0, "gloo", "gloo"))
    groups = [tuple(ranks) for ranks in timeline.meta["groups"].values()]
    assert groups[0] == (0, 1, 2)
    assert sorted(groups[1:]) == [(0, 2), (1, 2)]
    assert of(timeline, 2, "op", "root", "seq") == [("broadcast", 2, 0), ("all_reduce", None, 0)]
    assert len(set(of(timeline, 2, "group"))) == 2


def test_functional_and_coalesced_collectives_are_recorded() -> None:
    def program(rank: int, inputs: Any) -> tuple[float, float]:
        import torch.distributed._functional_collectives as functional

        x = functional.all_reduce(torch.tensor([1.0 + rank]), "sum", dist.group.WORLD)
        tensors = [torch.ones(2), torch.ones(3)]
        dist.all_reduce_coalesced(tensors)
        return float(x), float(tensors[1][2])

    timeline = run(program, (1, 1)).raise_for_ending()
    assert timeline.returns == ((3.0, 2.0),) * 2
    assert of(timeline, 0, "op", "shape") == [("all_reduce", [[1]]), ("all_reduce", [[2], [3]])]


# ---------------- DDP and Join


def origins(timeline: Timeline, rank: int = 0) -> list[str]:
    return [o for o in of(timeline, rank, "origin") if "construction" not in o]


def test_buffers_and_unused_parameters_have_their_own_names() -> None:
    def program(rank: int, inputs: Any) -> None:
        net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
        model = DDP(net, find_unused_parameters=True)
        with model.join():
            for _ in inputs:
                model(torch.ones(3, 2)).sum().backward()

    timeline = run(program).raise_for_ending()
    assert origins(timeline) == [
        "all-reduce (DDP forward() 1)",
        "all-reduce (_find_common_rank(), DDP forward(), buffers)",
        "broadcast (DDP forward(), buffers)",
        "broadcast (DDP forward(), buffers)",
        "all-reduce (DDP forward() 2)",
        "all-reduce (DDP backward())",
        "all-reduce (DDP backward(), unused parameters)",
        "all-reduce (join() _get_num_nonjoined_procs())",
        "all-reduce (_find_common_rank(), join() hook, buffers)",
        "broadcast (join() hook, buffers)",
        "broadcast (join() hook, buffers)",
        "all-reduce (join() check bwd grad sync)",
        "all-reduce (join() hook)",
        "all-reduce (join() hook, unused parameters)",
        "all-reduce (join() _get_num_nonjoined_procs())",
        "all-reduce (_find_common_rank())",
        "broadcast (sync final model params)",
        "broadcast (sync final model params)",
    ]
    # No host waits for the last map's all-reduce, yet its completion is recorded as it happens, not
    # at the end.
    mine = timeline.calls.filter(pl.col("rank") == 0)
    told = mine.filter(pl.col("origin") == "all-reduce (join() hook, unused parameters)")[
        "completed_ns"
    ].item()
    assert told < mine["completed_ns"].to_list()[-1]


def test_a_hang_behind_the_reducers_own_wait_is_seen_and_proven() -> None:
    def program(rank: int, inputs: Any) -> None:
        model = DDP(torch.nn.Linear(1, 1))
        model(torch.ones(1)).backward()
        if rank == 0:
            dist.barrier()
        else:
            with model.no_sync():
                model(torch.ones(1)).backward()
            dist.broadcast(torch.ones(1), 0)

    timeline = run(program, (1, 1))
    assert [str(end) for end in timeline.ends] == ["hung (proven)"] * 2


def test_a_thread_that_feeds_a_queue_hides_no_hang() -> None:
    def program(rank: int, inputs: Any) -> None:
        queue: Any = multiprocessing.Queue()  # as a DataLoader with workers has one for each
        queue.put(rank)
        if rank == 0:
            dist.barrier()
        dist.all_reduce(torch.ones(1))

    assert [end.proven for end in run(program).ends] == [True, True]


def test_who_listens_to_torchs_dispatcher_hears_ddps_calls() -> None:
    def program(rank: int, inputs: Any) -> list[Any]:
        from torch.autograd import profiler
        from torch.utils._python_dispatch import TorchDispatchMode

        heard: list[str] = []

        class Listener(TorchDispatchMode):
            def __torch_dispatch__(
                self, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                heard.append(str(func))
                return func(*args, **(kwargs or {}))

        model = DDP(torch.nn.Linear(1, 1))
        model(torch.ones(1)).sum().backward()
        with profiler.profile(use_kineto=False) as profiled:
            model(torch.ones(1)).sum().backward()
        with Listener():
            model(torch.ones(1)).sum().backward()
        names = {event.name for event in profiled.function_events}
        return ["c10d::allreduce_" in names, heard.count("c10d.allreduce_.default")]

    assert run(program, (1, 1)).raise_for_ending().returns == ([True, 1],) * 2


def test_a_compiled_program_runs_and_is_recorded() -> None:
    def program(rank: int, inputs: Any) -> list[float]:
        torch.manual_seed(0)
        model = torch.compile(DDP(torch.nn.Linear(1, 1)), backend="eager")

        @torch.compile(backend="eager")
        def total(x: torch.Tensor) -> torch.Tensor:
            dist.all_reduce(x)
            return x + 1

        for _ in range(2):
            model(torch.ones(1, 1)).sum().backward()
        return total(torch.ones(1)).tolist()

    timeline = run(program).raise_for_ending()
    assert list(timeline.returns) == [[3.0], [3.0]]
    assert of(timeline, 0, "op").count("all_reduce") == 3


def test_a_rank_that_ends_inside_a_span_leaves_it_open() -> None:
    def program(rank: int, inputs: Any) -> None:
        class Net(torch.nn.Linear):
            def forward(self, x: Any) -> Any:
                os._exit(1)

        DDP(Net(1, 1))(torch.ones(1))

    spans = run(program, (1,)).spans
    assert spans.select("name", "end_ns").rows() == [("forward", None)]


def test_several_buckets_overlap_the_backward_pass() -> None:
    def program(rank: int, inputs: Any) -> None:
        layers = [torch.nn.Linear(200, 200) for _ in range(4)]
        model = DDP(torch.nn.Sequential(*layers), bucket_cap_mb=0.1)
        for _ in inputs:
            model(torch.ones(2, 200)).sum().backward()

    timeline = run(program, (3, 3)).raise_for_ending()
    last = timeline.calls.filter(pl.col("rank") == 0, pl.col("input") == 2)
    backward = timeline.spans.filter(
        pl.col("rank") == 0, pl.col("input") == 2, pl.col("name") == "backward"
    ).row(0, named=True)
    assert last.height == 4
    assert last["value_in"].null_count() == 4  # too large to keep
    assert last["enqueued_ns"].min() > backward["begin_ns"]  # type: ignore[operator]
    assert last["completed_ns"].max() < backward["end_ns"]  # type: ignore[operator]


# ---------------- values, and leaving no mark


def test_values_out_are_those_of_the_collective_even_if_overwritten_at_once() -> None:
    def program(rank: int, inputs: Any) -> None:
        x = torch.zeros(1)
        for i in range(200):
            x.fill_(i)
            dist.all_reduce(x)
            x.fill_(-1)

    timeline = run(program, (1, 1)).raise_for_ending()
    assert of(timeline, 1, "value_out") == [f"[[{2.0 * i}]]" for i in range(200)]


def test_small_values_of_any_dtype_are_kept_exactly() -> None:
    kept = [
        (torch.tensor([2**62 + 1]), f"[[{2**62 + 1}]]"),
        (torch.tensor([float("nan"), float("-inf")]), "[[NaN,-Infinity]]"),
        (torch.tensor([True, False]), "[[true,false]]"),
        (torch.ones(17), None),
        (torch.ones(0), "[[]]"),
        # gloo refuses it, and the rank raises
        (
            torch.tensor([[1, 2], [3, 4]], dtype=torch.int16).t(),
            "[[1,3,2,4]]",
        ),
    ]

    def program(rank: int, inputs: Any) -> None:
        for tensor, _ in kept:
            dist.broadcast(tensor, 0)

    assert of(run(program, (1,)), 0, "value_in") == [text for _, text in kept]


def test_a_call_with_the_same_input_but_another_output_is_measured_anew() -> None:
    def program(rank: int, inputs: Any) -> None:
        for n in (1, 40):  # from one line: what rank 0 receives differs, what it sends does not
            sizes, received = ([1, 1], [1, n]) if rank == 0 else ([n, 1], [1, 1])
            dist.all_to_all_single(
                torch.zeros(sum(received)), torch.ones(sum(sizes)), received, sizes
            )

    assert of(run(program, (1, 1)).raise_for_ending(), 0, "value_out") == ["[[1.0,1.0]]", None]


def test_recording_keeps_no_large_tensor_alive() -> None:
    def program(rank: int, inputs: Any) -> int:
        import gc
        import weakref

        alive = []
        for _ in range(30):
            big = torch.ones(1000)
            dist.all_reduce(big)
            alive.append(weakref.ref(big))
        del big
        gc.collect()
        return sum(one() is not None for one in alive)

    kept = run(program, (1, 1)).raise_for_ending().returns
    assert max(kept) <= 4  # gloo's threads keep a work until they begin the next


def test_works_answer_as_without_a_recorder() -> None:
    def program(rank: int, inputs: Any) -> tuple[Any, ...]:
        x = torch.ones(2)
        work = dist.all_reduce(x, async_op=True)
        future = work.get_future()
        value = future.wait()[0].tolist()
        doubled = work.get_future().then(lambda f: f.value()[0] * 2).wait().tolist()
        return (
            work.wait(),
            work.is_completed(),
            work.is_success(),
            value,
            doubled,
            [t.tolist() for t in work.result()],
        )

    assert run(program, (1, 1)).raise_for_ending().returns[0] == (
        True,
        True,
        True,
        [2.0, 2.0],
        [4.0, 4.0],
        [[2.0, 2.0]],
    )


def test_a_check_that_torch_was_asked_for_still_raises() -> None:
    def program(rank: int, inputs: Any) -> None:
        dist.set_debug_level(dist.DebugLevel.DETAIL)
        group = dist.new_group()
        dist.all_reduce(torch.ones(2 + rank), group=group)

    timeline = run(program)
    assert all(
        "Detected mismatch between collectives on ranks" in end.text for end in timeline.ends
    )
    assert joinlab.diagnose(timeline).sentence == (
        "Rank 0 issued all-reduce of 2 numbers and rank 1 issued all-reduce of 3 numbers, and torch "
        "refused to run them."
    )


@pytest.fixture
def buckets(tmp_path, monkeypatch):
    """The recorder's view of buckets that DDP's Reducer issues, without a process group: (make,
    listeners, log)."""
    monkeypatch.setattr(
        reducer.Variable, "_execution_engine", SimpleNamespace(queue_callback=lambda _: None)
    )
    monkeypatch.setattr(
        completions, "_add_done_callback", lambda future, told: future.add_done_callback(told)
    )
    kind: Any = SimpleNamespace(
        by_reducer=True,
        direct=True,
        host_waits=True,
        waited_at_once=False,
        of_join_hook=False,
        small=False,
        stack=0,
    )
    group: Any = SimpleNamespace(reader=ValueReader())
    listeners: dict[int, Any] = {}
    completed: set[int] = set()

    path = tmp_path / segment_name(0, 0)

    def make(bounded: bool) -> tuple[Recorder, Any]:
        recorder = Recorder(BoundedLog(tmp_path, 0, print) if bounded else EventLog(path, print), 0)
        turn = recorder.own.turn

        def issue(id: int) -> None:
            recorder.completions.before_issue(kind, turn)
            call = RecordedCall(id, kind, group)
            future = SimpleNamespace(
                add_done_callback=lambda told: listeners.update({id: told}),
                done=lambda: id in completed,
                value=lambda: None,
            )
            call.work = SimpleNamespace(get_future=lambda: future)
            recorder.completions.issue(call, f'{{"id":{id}}}\n')
            recorder.reducer.expect(turn)
            recorder.reducer.bracket(call, turn, None)

        return recorder, issue

    return make, listeners, completed, lambda: path.read_bytes().partition(b"\0")[0].decode()


def test_a_later_bucket_is_recorded_complete_while_the_first_stands_still(buckets) -> None:
    make, listeners, _, log = buckets
    recorder, issue = make(False)
    for first in (1, 3):  # two passes of two buckets; the first pass tells how many there are
        issue(first)
        issue(first + 1)
        if first == 3:
            assert set(listeners) == {1, 2, 3}  # the host is expected to wait for the last one
        recorder.reducer._before()
        if first == 1:
            recorder.reducer.after(recorder.own.turn)
    assert set(listeners) == {1, 2, 3, 4}
    listeners[4](SimpleNamespace(value=lambda: None))
    assert [call.id for call in recorder.completions.open_calls()] == [3]
    assert '{"e":"done","id":4,' in log()


def test_a_bounded_log_learns_of_a_bucket_when_the_next_is_issued(buckets) -> None:
    make, listeners, completed, log = buckets
    recorder, issue = make(True)
    issue(1)
    completed.add(1)
    assert '"done"' not in log()
    issue(2)
    assert '{"e":"done","id":1,' in log() and not listeners
    issue(3)
    recorder.reducer._before()
    assert set(listeners) == {2, 3}  # while the host waits for both, either may complete first
    listeners[3](SimpleNamespace(value=lambda: None))
    assert [call.id for call in recorder.completions.open_calls()] == [2]


def test_a_bucket_in_flight_when_the_pass_raises_is_still_listened_to(buckets) -> None:
    make, listeners, _, _ = buckets
    recorder, issue = make(True)
    issue(1)
    recorder.reducer.gave_up(RuntimeError("a hook failed"))
    assert set(listeners) == {1}


def test_a_rank_s_clock_and_the_wall_clock_are_read_together(tmp_path, monkeypatch):
    """What a job says of itself may take long to find out, and ranks are compared by the
    difference."""
    path = tmp_path / "rank-0.0.jsonl"
    reads = []
    log = EventLog(path, print)
    recorder = Recorder(log, 0)
    monkeypatch.setattr(recorder, "_now", lambda: reads.append("own") or 5)
    monkeypatch.setattr(
        "joinlab.recorder.recorder.time.time_ns", lambda: reads.append("wall") or 1005
    )
    recorder.begin({"command": ["train.py"]})
    log.close()
    begun = json.loads(path.read_text().splitlines()[0])
    assert (begun["t"], begun["wall"], reads) == (5, 1005, ["own", "wall"])
