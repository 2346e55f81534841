"""The virtual clock: stragglers, overlap of backward and all-reduce, and who waits for whom."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import timedelta
from functools import partial

import polars as pl
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from joinlab import cases, diagnose, emulate, launch
from joinlab.backend.clock import ISSUE_NS

SECOND = 1_000_000_000


def of(timeline, rank, origin):
    found = timeline.calls.filter((pl.col("rank") == rank) & (pl.col("origin") == origin))
    return found.rows(named=True)


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_everybody_waits_for_the_straggler(backend):
    timeline = emulate(
        cases.case_1, (3, 3), backend=backend, seconds_per_input=(1.0, 2.0), latency=0.0
    )
    quick, slow = (of(timeline, rank, "all-reduce (DDP backward())") for rank in (0, 1))
    for index, (one, other) in enumerate(zip(quick, slow, strict=True)):
        assert one["completed_ns"] == other["completed_ns"]
        assert other["completed_ns"] - other["enqueued_ns"] < SECOND // 100
        waited = one["completed_ns"] - one["enqueued_ns"]
        # On NCCL the fast host runs ahead of its stream, an input after the other; on gloo it waits
        # each time.
        assert waited > SECOND // 2
        behind = backend == "nccl" and index < 2  # after the last one, join() makes the host wait
        assert (one["host_wait_end_ns"] is None) == behind
    spans = timeline.spans.filter(name="backward")
    for rank, seconds in ((0, 1.0), (1, 2.0)):
        mine = spans.filter(rank=rank)
        lengths = (mine["end_ns"] - mine["begin_ns"]).to_list()
        # Two thirds of an input's time; gloo's host waits inside it, too.
        assert min(lengths) >= int(seconds * SECOND * 2 / 3)


def two_layers(rank, inputs):
    model = DDP(
        torch.nn.Sequential(torch.nn.Linear(1, 64), torch.nn.Linear(64, 64)), bucket_cap_mb=1e-5
    )
    for input in inputs:
        model(input).sum().backward()


def test_buckets_are_reduced_while_the_backward_pass_goes_on():
    timeline = emulate(two_layers, (3, 3), seconds_per_input=0.3, latency=1e-3)
    for rank in (0, 1):
        last = [
            call for call in of(timeline, rank, "all-reduce (DDP backward())") if call["input"] == 2
        ]
        (span,) = timeline.spans.filter(name="backward", rank=rank, input=2).rows(named=True)
        assert len(last) > 1
        first, final = last[0], last[-1]
        assert (
            span["begin_ns"]
            < first["enqueued_ns"]
            < first["completed_ns"]
            < final["enqueued_ns"]
            <= span["end_ns"]
        )
        assert final["host_wait_begin_ns"] is None  # the stream waits, not the host


def test_on_gloo_the_host_waits_at_the_end_of_the_backward_pass():
    timeline = emulate(two_layers, (3, 3), backend="gloo", seconds_per_input=0.3, latency=0.05)
    last = [call for call in of(timeline, 0, "all-reduce (DDP backward())") if call["input"] == 2]
    waits = [call["host_wait_begin_ns"] for call in last if call["host_wait_begin_ns"] is not None]
    assert waits and min(waits) >= last[-1]["enqueued_ns"]


def test_the_wait_at_a_barrier_is_the_host_s():
    timeline = emulate(cases.case_3, (2, 2), seconds_per_input=(0.1, 0.3), latency=0.0)
    for quick, slow in zip(
        *(of(timeline, rank, "all-reduce (barrier)") for rank in (0, 1)), strict=True
    ):
        assert quick["host_wait_end_ns"] == slow["host_wait_end_ns"]
        assert quick["host_wait_end_ns"] - quick["host_wait_begin_ns"] > SECOND // 6
        assert slow["host_wait_end_ns"] - slow["host_wait_begin_ns"] < SECOND // 100


def test_a_call_costs_latency_and_bytes():
    def program(rank, inputs):
        for count in (1, 1000):
            dist.barrier()
            dist.all_reduce(torch.ones(count))

    calls = emulate(program, (0, 0), latency=1e-3, bytes_per_second=1e6).calls.filter(
        rank=0, origin="all-reduce"
    )
    assert (calls["completed_ns"] - calls["started_ns"]).to_list() == [1_004_000, 5_000_000]


def test_issuing_costs_the_host_a_little_so_calls_are_in_order():
    def program(rank, inputs):
        works = [dist.all_reduce(torch.ones(1), async_op=True) for _ in range(3)]
        for work in works:
            work.wait()

    times = emulate(program, (0, 0)).calls.filter(rank=0)["enqueued_ns"].to_list()
    assert times[2] - times[1] == ISSUE_NS


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_a_rank_that_sleeps_is_waited_for(backend):
    def program(rank, inputs):
        first = dist.all_reduce(torch.ones(1), async_op=True) if rank == 0 else None
        time.sleep(2 * rank)  # rank 0's stream waits for rank 1 meanwhile
        if first is None:
            first = dist.all_reduce(torch.ones(1), async_op=True)
        first.wait()
        dist.all_reduce(torch.ones(1))

    timeline = emulate(program, (0, 0), backend=backend)
    assert [str(end) for end in timeline.ends] == ["finished"] * 2
    assert timeline.call(1, 0)["enqueued_ns"] == 2 * SECOND
    assert timeline.calls["completed_ns"].null_count() == 0


def test_a_rank_that_looks_and_sleeps_for_ever_lets_the_others_go_on():
    def program(rank, inputs):
        store = dist.distributed_c10d._get_default_store()
        dist.all_reduce(torch.ones(1))
        if rank == 0:
            # makes the stream wait, not the host
            dist.all_reduce(torch.ones(1), async_op=True).wait()
            store.set("key", "value")
            return None
        while not store.check(["key"]):
            time.sleep(0.01)
        return "seen"

    assert emulate(program, (0, 0), timeout=60).returns[1] == "seen"


def test_asking_for_completion_takes_time_until_it_is_there():
    def program(rank, inputs):
        if rank:
            time.sleep(0.1)
        work = dist.all_reduce(torch.ones(1), async_op=True)
        asked = 0
        while not work.is_completed():
            asked += 1
        return asked

    for backend in ("nccl", "gloo"):
        timeline = emulate(program, (0, 0), backend=backend, timeout=60)
        assert [str(end) for end in timeline.ends] == ["finished"] * 2
        assert timeline.returns[0] >= 1


def test_the_store_of_the_group_is_shared():
    def program(rank, inputs):
        store = dist.distributed_c10d._get_default_store()
        if rank:
            time.sleep(1)
            store.set("key", "value")
            return store.add("sum", 2)
        found = store.get("key")
        store.wait(["sum"])
        return found

    timeline = emulate(program, (0, 0))
    assert timeline.returns == (b"value", 2)
    never = emulate(
        lambda rank, inputs: dist.distributed_c10d._get_default_store().get("never"), (0, 0)
    )
    assert [end.kind for end in never.ends] == ["hung", "hung"]
    assert "'never'" in never.ends[0].text


def wait_for_keys_in_vain(rank, inputs):
    store = dist.PrefixStore("run", dist.distributed_c10d._get_default_store())
    if rank:
        store.wait(["rank 0 has tried often"])
        store.set("late", "1")
        store.wait(["rank 0 is through"])
        return store.delete_key("late"), store.delete_key("late"), store.check(["late"])
    tries, errors = 0, []
    while not errors:
        try:
            store.wait(["late"], timedelta(milliseconds=50))
            store.set_timeout(timedelta(milliseconds=100))
            store.get("never")
        except dist.DistStoreError as error:
            tries += 1
            if "late" not in str(error):
                errors.append(str(error).splitlines()[0])
            elif tries == 3:
                store.set("rank 0 has tried often", "")
    store.set_timeout(timedelta(minutes=5))
    store.set("rank 0 is through", "")
    return tries > 3, errors


@pytest.mark.parametrize(
    "run", [partial(emulate, backend="nccl"), partial(emulate, backend="gloo"), launch]
)
def test_a_wait_for_a_key_ends_with_the_limit_that_the_program_gave(run):
    timeline = run(wait_for_keys_in_vain, (0, 0))
    assert [end.kind for end in timeline.ends] == ["finished"] * 2
    vain = ["wait timeout after 100ms, keys: /default_pg/0//run/never"]
    assert timeline.returns == ((True, vain), (True, False, False))


def test_a_rank_whose_key_came_too_late_is_not_woken_from_its_next_wait():
    def program(rank, inputs):
        store = dist.distributed_c10d._get_default_store()
        if rank:
            time.sleep(2)
            store.set("late", "1")
            time.sleep(2)
            store.set("second", "1")
            return None
        with suppress(dist.DistStoreError):
            store.wait(["late"], timedelta(seconds=1))
        begin = time.monotonic()
        store.wait(["second"])
        return round(time.monotonic() - begin)

    assert emulate(program, (0, 0)).returns[0] == 3


def test_a_wait_with_a_time_limit_on_nccl_gives_the_communicator_up():
    def program(rank, inputs):
        dist.all_reduce(torch.ones(1))
        if rank == 1:
            time.sleep(len(inputs))
            dist.all_reduce(torch.ones(1))
            return None
        work, value = dist.all_reduce(torch.ones(1), async_op=True), torch.ones(1)
        try:
            work.wait(timedelta(seconds=2))
        except dist.DistBackendError as error:
            with pytest.raises(dist.DistBackendError, match="aborted on rank 0"):
                dist.all_reduce(value)
            return str(error), time.perf_counter()
        return "came"

    assert emulate(program, (0, 1)).returns[0] == "came"
    late = emulate(program, (0, 3))
    text, at = late.returns[0]
    assert "OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=2000)" in text and at >= 2
    assert late.ends[1].pending  # the sum was to come from rank 0


def test_a_root_that_has_sent_needs_no_time_limit():
    def program(rank, inputs):
        dist.all_reduce(torch.ones(1))
        if rank == 0:
            return dist.broadcast(torch.ones(1), 0, async_op=True).wait(timedelta(seconds=2))

    assert emulate(program, (0, 0)).returns[0] is True


@pytest.mark.parametrize("how", ["new_group", "init_process_group"])
def test_a_group_of_gloo_has_the_timeout_that_it_was_given(how):
    def program(rank, inputs):
        if how == "init_process_group":
            dist.init_process_group("gloo", timeout=timedelta(seconds=1))
        group = (
            None if how == "init_process_group" else dist.new_group(timeout=timedelta(seconds=1))
        )
        if rank == 0:
            time.sleep(len(inputs))
        dist.all_reduce(torch.ones(1), group=group)

    assert [str(end) for end in emulate(program, (0, 0), "gloo").ends] == ["finished"] * 2
    for late in (emulate(program, (2, 0), "gloo"), launch(program, (2, 0))):
        # of its first part
        assert "Timed out waiting 1000ms for send operation to complete" in late.ends[1].text
        assert [str(end) for end in late.ends] == ["raised"] * 2


def test_a_hang_ends_by_its_group_s_timeout_where_that_is_shorter_than_the_run():
    def program(rank, inputs):
        both = dist.new_group(timeout=timedelta(seconds=len(inputs)))
        if rank == 0:
            dist.barrier(both)
        else:
            with pytest.raises(RuntimeError):  # rank 0 has ended
                dist.all_reduce(torch.ones(1))

    for run in (emulate(program, (1, 1), "gloo"), launch(program, (1, 1))):
        assert [str(end) for end in run.ends] == ["raised", "finished"]
        assert "Timed out waiting 1000ms" in run.ends[0].text
    # by its timeout this run would be over
    assert launch(program, (90, 90), timeout=60).ends[0].proven


def test_a_rank_that_aborts_meets_what_was_sent_by_then_and_nothing_after():
    def program(rank, inputs):
        # too much for the recv, which aborts rank 1 a moment after rank 2's message has come
        if rank == 0:
            dist.send(torch.ones(2), 1)
        elif rank == 1:
            dist.irecv(torch.zeros(5), 2)
            dist.isend(torch.ones(2), 0)
            dist.recv(torch.zeros(1), 0)
        else:
            dist.send(torch.ones(5), 1)

    timeline = emulate(program, (0, 0, 0), backend="gloo")
    assert [str(end) for end in timeline.ends] == ["finished", "killed", "finished"]
    assert "SIGABRT" in timeline.ends[1].text

    def later(rank, inputs):
        dist.barrier()
        if rank:
            dist.send(torch.ones(2), 0)
            with pytest.raises(RuntimeError, match="Connection closed by peer"):
                dist.recv(torch.zeros(2), 0, tag=1)  # was sent, but rank 0 has aborted since
        else:
            dist.isend(torch.ones(2), 1, tag=1)
            dist.recv(torch.zeros(1), 1)

    assert [str(end) for end in emulate(later, (0, 0), backend="gloo").ends] == [
        "killed",
        "finished",
    ]


def test_a_rank_that_aborts_hears_of_no_recv_that_is_posted_when_its_message_comes():
    """Of 6 launches rank 2 got what rank 0 had for it in one: mostly rank 0 is gone before it could
    send that."""

    def program(rank, inputs):
        data = torch.ones(3, dtype=torch.uint8)
        if rank == 0:
            dist.all_to_all_single(
                torch.zeros(0, dtype=torch.uint8), data[:2], [0, 0, 0], [0, 0, 2]
            )
        else:  # a byte too many for rank 0, while rank 0's two are one too many for rank 2
            dist.all_to_all(
                [torch.zeros(1, dtype=torch.uint8) for _ in range(3)], list(data.split(1))
            )

    timeline = emulate(program, (0, 0, 0), backend="gloo")
    assert [str(end) for end in timeline.ends] == ["killed", "finished", "raised"]
    assert "Connection closed by peer" in timeline.ends[2].text


def test_a_hang_on_nccl_says_how_the_watchdog_would_end_it():
    def program(rank, inputs):
        pair = dist.new_group(timeout=timedelta(seconds=90))
        dist.barrier(group=pair)
        dist.barrier()
        if rank == 0:
            dist.all_gather([torch.zeros(3)] * 2, torch.zeros(3), group=pair)
        dist.reduce_scatter(torch.zeros(2), [torch.zeros(2)] * 2)
        torch.zeros(1).item()

    hung = emulate(program, (0, 0))
    assert [str(end) for end in hung.ends] == ["hung (proven)"] * 2
    first, second = hung.meta["emulation"]["watchdog"]
    begin = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2, OpType="
    assert first == {
        "rank": 0,
        "after_s": 90.0,
        "text": f"[Rank 0] {begin}ALLGATHER, NumelIn=3, NumelOut=6, Timeout(ms)=90000) ran for 90000 "
        "milliseconds before timing out.",
    }
    assert (
        second["after_s"] == 600.0
        and f"{begin}REDUCE_SCATTER, NumelIn=4, NumelOut=2," in second["text"]
    )
    assert "NCCL's watchdog, after the group's timeout of 90 s, aborts rank 0" in str(
        diagnose(hung)
    )

    def makes_none(rank, inputs):
        if rank == 0:  # inside the call, which makes the communicator: no work is enqueued
            dist.all_reduce(torch.zeros(1))

    for other in (
        emulate(program, (0, 0), era="1.9"),
        emulate(program, (0, 0), "gloo"),
        emulate(makes_none, (0, 0)),
        emulate(cases.case_1, (1, 1)),
    ):
        assert "watchdog" not in other.meta["emulation"]
