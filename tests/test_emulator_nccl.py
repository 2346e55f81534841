"""Emulated NCCL follows NCCL's source for two ranks whose calls do not match: values, completion
and waits."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from joinlab import diagnose, emulate
from joinlab.errors import LaunchError
from joinlab.gloo.fabric import GlooFabric
from joinlab.nccl.fabric import NcclFabric
from joinlab.ops import decode_values

F32, I64, U8 = torch.float32, torch.int64, torch.uint8
TINY = 2**-149  # the float whose bits are 1


def call(what):
    """Issue (op, values, dtype, more)."""
    op, values, dtype, *more = what
    tensor = torch.tensor(values, dtype=dtype)
    match op:
        case "AR":
            dist.all_reduce(tensor, *more)
        case "BC":
            dist.broadcast(tensor, *more)
        case "AG":
            out = [torch.zeros_like(tensor) for _ in range(2)]
            dist.all_gather(out, tensor)
        case "barrier":
            dist.barrier()


def run(zero, one, **options):
    """[(kind of ending, what came out)] per rank, for lists of calls behind a fitting first one."""

    def program(rank, inputs):
        dist.all_reduce(torch.ones(1))  # creates the communicator
        for what in (zero, one)[rank]:
            call(what)
        torch.zeros(1).item()  # the host waits for the stream

    timeline = emulate(program, (0, 0), **options)
    outs = []
    for rank in (0, 1):
        texts = timeline.calls.filter(timeline.calls["rank"] == rank)["value_out"][1:].to_list()
        outs.append([decode_values(text) for text in texts])
    return [(str(end.kind), out) for end, out in zip(timeline.ends, outs, strict=True)]


DONE, HUNG = "finished", "hung"
MAX = dist.ReduceOp.MAX
TABLE = [
    (("AR", [0], F32), ("AR", [1], I64, MAX), (DONE, [[TINY]]), (DONE, [[1]])),
    (("AR", [-1], I64, MAX), ("AR", [0], F32), (DONE, [[0]]), (DONE, [[0.0]])),
    (("AR", [5], F32), ("AR", [7, 8], F32), (DONE, [[12.0]]), (DONE, [[12.0, 8.0]])),
    (("AR", [5], F32), ("AR", [1, 2, 3], F32), (DONE, [[6.0]]), (HUNG, None)),
    (("AR", [1, 2, 3], F32), ("AR", [5], F32), (HUNG, None), (DONE, [[6.0]])),
    (("AR", [5], F32), ("BC", [7, 8], F32, 1), (DONE, [[12.0]]), (DONE, [[7.0, 8.0]])),
    (("BC", [5], F32, 0), ("AR", [7], F32), (DONE, [[5.0]]), (HUNG, None)),
    (("AR", [7], F32), ("BC", [5], F32, 0), (HUNG, None), (HUNG, None)),
    (("BC", [5], F32, 0), ("BC", [7], F32, 1), (DONE, [[5.0]]), (DONE, [[7.0]])),
    (("BC", [5], F32, 1), ("BC", [7], F32, 0), (HUNG, None), (HUNG, None)),
    (("AG", [5], F32), ("AR", [7], F32), (DONE, [[5.0], [7.0]]), (HUNG, None)),
    (("AR", [5], F32), ("AG", [7], F32), (DONE, [[12.0]]), (HUNG, None)),
    (("AR", [5], F32), ("barrier", [0], F32), (DONE, [[5.0]]), (DONE, [[5.0]])),
]


@pytest.mark.parametrize(
    ("zero", "one", "first", "second"), TABLE, ids=[f"{a} with {b}" for a, b, *_ in TABLE]
)
def test_two_calls_that_do_not_fit(zero, one, first, second):
    assert run([zero], [one]) == [(kind, [out]) for kind, out in (first, second)]


@pytest.mark.parametrize(
    ("own", "unset", "read", "byte"), [(1, 0x3F800000, 2.0, 0), (0, 7, 7 * TINY, 7)]
)
def test_a_float_that_meets_the_one_byte_barrier_of_1_9_reads_the_whole_word(
    own, unset, read, byte
):
    found = run([("AR", [own], F32)], [("barrier", [0], F32)], era="1.9", barrier_value=unset)
    assert [out for _, out in found] == [[[[read]]], [[[byte]]]]


def test_the_pad_is_the_upper_half_of_what_a_wider_reader_gets():
    (_, [[[read]]]), (_, [[[wide]]]) = run([("AR", [0], F32)], [("AR", [1], I64, MAX)], pad=3)
    assert (read, wide) == (TINY, 1 + (3 << 32))


def test_a_skewed_pair_poisons_the_next():
    again = ("AR", [1], F32)
    (zero, _), (one, outs) = run([("AR", [5], F32), again], [("BC", [7, 8], F32, 1), again])
    assert (zero, one, outs[1]) == (HUNG, DONE, [[12.0]])


@pytest.mark.parametrize(("n", "op"), list(product([1, 2, 3, 5], ["SUM", "MAX", "AVG", "PRODUCT"])))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "float64"])
def test_the_ring_sums_as_the_direct_path_does(n, op, dtype, monkeypatch):
    from joinlab.nccl.fabric import Communicator

    def program(rank, inputs):
        found = []
        for count in (1, 3, 40):
            x = torch.arange(1, count + 1).add(rank).to(getattr(torch, dtype))
            dist.all_reduce(x, getattr(dist.ReduceOp, op))
            parts = [torch.zeros_like(x) for _ in range(n)]
            dist.all_gather(parts, x)
            y = torch.zeros_like(x)
            dist.reduce_scatter(y, parts, getattr(dist.ReduceOp, op))
            dist.broadcast(y, n - 1)
            z = x.clone()
            dist.reduce(z, n - 1, getattr(dist.ReduceOp, op))
            swapped = [torch.zeros_like(x) for _ in range(n)]
            dist.all_to_all(swapped, [p + rank for p in parts])
            gathered = [torch.zeros_like(x) for _ in range(n)] if rank == 0 else None
            dist.gather(y + rank, gathered, 0)
            dist.scatter(y, gathered, 0)
            found += [x, *parts, y, z, *swapped, *(gathered or [])]
        return [t.double().tolist() for t in found]

    direct = emulate(program, (0,) * n)
    monkeypatch.setattr(Communicator, "_fit", lambda self, heads: False)
    assert [str(end) for end in emulate(program, (0,) * n).ends] == [DONE] * n
    assert emulate(program, (0,) * n).returns == direct.returns


def test_a_broadcast_needs_no_receiver_for_eight_steps():
    def program(rank, inputs):
        dist.all_reduce(torch.ones(1))
        if rank == 0:
            for _ in range(inputs.__len__()):
                dist.broadcast(torch.ones(1), 0)
        torch.zeros(1).item()

    assert [str(end) for end in emulate(program, (8, 0)).ends] == ["finished", "finished"]
    zero, one = emulate(program, (9, 0)).ends
    assert (str(zero), zero.call, str(one)) == ("hung (proven)", 9, "finished")


def test_the_host_runs_on_behind_an_all_reduce_and_waits_at_item():
    def runs_on(rank, inputs):
        dist.all_reduce(torch.ones(1))
        if rank == 0:
            x = torch.ones(1)
            dist.all_reduce(x)
            print("on")
            return None if inputs.__len__() else x.item()

    goes, waits = emulate(runs_on, (1, 0)), emulate(runs_on, (0, 0))
    assert (str(goes.ends[0]), goes.output[0]) == ("finished (a call still pending)", "on\n")
    assert (str(waits.ends[0]), waits.ends[0].call, waits.output[0]) == ("hung (proven)", 1, "on\n")


@pytest.mark.parametrize(
    "sync",
    [
        lambda x: x.item(), lambda x: x.cpu(), lambda x: x.tolist(), lambda x: x.numpy(), lambda x: bool(x),
        lambda x: float(x), lambda x: str(x), lambda x: f"{x}", lambda x: torch.cuda.synchronize(),
        lambda x: torch.equal(x, x), lambda x: dist.barrier(), lambda x: dist.destroy_process_group(),
    ],
)  # fmt: skip
def test_what_makes_the_host_wait_for_the_stream(sync):
    def program(rank, inputs):
        dist.all_reduce(torch.ones(1))
        if rank == 0:
            x = torch.ones(1)
            dist.all_reduce(x)
            sync(x)

    assert emulate(program, (0, 0)).ends[0].kind == "hung"


def test_the_first_call_waits_for_the_communicator():
    def program(rank, inputs):
        if rank == 0:
            dist.broadcast(
                torch.ones(1), 0
            )  # it needs nobody, but NCCL has to make the communicator first

    zero, one = emulate(program, (0, 0)).ends
    assert (zero.kind, one.kind) == ("hung", "finished")
    assert "communicator" in zero.text


@pytest.mark.parametrize(
    ("count", "kind"), [(1, "finished"), (2**18, "finished"), (2**18 + 1, "hung")]
)
def test_a_send_that_every_machine_buffers_does_not_wait_for_its_recv(count, kind):
    def program(rank, inputs):
        first, x = torch.ones(1), torch.ones(count)
        if rank == 0:
            dist.send(first, 1)  # makes the communicator of the two
            dist.send(x, 1)
            dist.all_reduce(first)
        else:
            dist.recv(first, 0)
            dist.all_reduce(first)
            dist.recv(x, 0)
        return first.item()

    timeline = emulate(program, (0, 0))
    assert [end.kind for end in timeline.ends] == [kind] * 2
    assert ("more than 1 MiB" in timeline.meta["emulation"].get("assumes", "")) == (kind == "hung")


@pytest.mark.parametrize("count", [1, 2_500_000])
@pytest.mark.parametrize("first", [dist.isend, dist.irecv])
def test_two_ranks_that_both_send_or_receive_first_connect_the_wrong_ends(first, count):
    order = dist.isend, dist.irecv

    def program(rank, inputs):
        mine, theirs = torch.full((count,), float(rank)), torch.zeros(count)
        sends_first = (first is dist.isend) != bool(len(inputs))
        works = [
            do(mine if do is dist.isend else theirs, 1 - rank)
            for do in order[:: 1 if sends_first else -1]
        ]
        for work in works:
            work.wait()
        return theirs.sum().item()

    apart = emulate(program, (0, 0))
    assert [end.kind for end in apart.ends] == ["hung", "hung"] and all(
        end.proven for end in apart.ends
    )
    assert "both send, or both receive" in apart.meta["emulation"]["assumes"]
    assert "wait for each other" in str(diagnose(apart))
    assert emulate(program, (0, 1)).returns == (count, 0.0)  # rank 1 does it the other way round


def test_a_batch_waits_for_none_of_its_own():
    def around(rank, inputs):
        mine, theirs = torch.full((2_500_000,), float(rank)), torch.zeros(2_500_000)
        ops = [dist.P2POp(dist.irecv, theirs, 1 - rank), dist.P2POp(dist.isend, mine, 1 - rank)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        return theirs.sum().item()

    assert emulate(around, (0, 0)).returns == (2_500_000, 0.0)


def test_batches_that_tell_each_other_of_different_connections_are_not_modelled():
    def program(rank, inputs):
        ops = [dist.P2POp(dist.isend if rank else dist.irecv, torch.ones(1), 1 - rank)]
        if rank:
            ops.append(dist.P2POp(dist.irecv, torch.ones(1), 0))
        dist.batch_isend_irecv(ops)

    with pytest.raises(LaunchError, match="Message truncated"):
        emulate(program, (0, 0))


@pytest.mark.parametrize("batch", [True, False])
def test_a_pipeline_sends_to_the_next_stage(batch):
    def stage(rank, inputs):
        came, ops = torch.zeros(1), []
        if rank < 2:  # the first stage and the last have a batch of one
            ops.append(dist.P2POp(dist.isend, torch.full((1,), 5.0 + rank), rank + 1))
        if rank > 0:
            ops.append(dist.P2POp(dist.irecv, came, rank - 1))
        works = dist.batch_isend_irecv(ops) if batch else [op.op(op.tensor, op.peer) for op in ops]
        for work in works:
            work.wait()
        return came.item()

    assert emulate(stage, (0, 0, 0)).returns == (0.0, 5.0, 6.0)

    def first_two(rank, inputs):
        if rank < 2:
            op = dist.P2POp(dist.irecv if rank else dist.isend, torch.ones(1), 1 - rank)
            work = dist.batch_isend_irecv([op])[0] if batch else op.op(op.tensor, op.peer)
            work.wait()

    kinds = [end.kind for end in emulate(first_two, (0, 0, 0)).ends]
    assert kinds == [
        *["hung" if batch else "finished"] * 2,
        "finished",
    ]  # a batch makes the group's communicator first


def test_values_that_are_not_known_are_not_shown():
    def program(rank, inputs):
        dist.all_reduce(torch.ones(1))
        if rank == 0:
            x = torch.ones(1)
            dist.all_reduce(x)  # rank 1 never comes
            dist.all_reduce(x)  # of a value that is never computed

    rows = emulate(program, (0, 0)).calls.filter(rank=0).rows(named=True)
    assert [row["value_in"] for row in rows] == ["[[1.0]]", "[[1.0]]", None]
    assert [row["value_out"] for row in rows] == ["[[2.0]]", None, None]
    assert math.isfinite(rows[0]["completed_ns"])


def test_the_first_scatter_of_two_ranks_is_a_meeting_of_their_hosts():
    def program(rank, inputs):
        dist.all_reduce(torch.ones(1))
        if rank == 0:
            dist.scatter(torch.zeros(1), [torch.ones(1)] * 2, 0, async_op=True)
            print("on")
        elif len(inputs):
            dist.scatter(torch.zeros(1), None, 0, async_op=True)

    alone, both = emulate(program, (0, 0)), emulate(program, (0, 1))
    assert (alone.ends[0].kind, alone.output[0], alone.ends[1].kind) == ("hung", "", "finished")
    assert "to connect" in alone.ends[0].text or alone.ends[0].proven
    assert [end.kind for end in both.ends] == ["finished", "finished"]
    assert both.output[0] == "on\n"


def test_once_two_ranks_are_connected_a_send_between_them_is_buffered():
    def program(rank, inputs):
        for _ in range(2 if rank == 0 else 1):
            dist.scatter(
                torch.zeros(1), [torch.ones(1)] * 2 if rank == 0 else None, 0, async_op=True
            )
        print("on")

    timeline = emulate(program, (0, 0))
    assert (timeline.output, [end.kind for end in timeline.ends]) == (
        ("on\n", "on\n"),
        ["finished", "finished"],
    )


def test_hosts_connect_one_distance_after_the_other():
    def program(rank, inputs):
        dist.all_reduce(torch.ones(1))
        if rank < 2:
            parts = [torch.zeros(1) for _ in range(3)] if rank == 0 else None
            dist.gather(torch.ones(1), parts, 0, async_op=True)
            print("on")

    timeline = emulate(program, (0, 0, 0))
    assert [end.kind for end in timeline.ends] == ["hung", "hung", "finished"]
    assert timeline.output == ("", "", "")


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        ("int16", "Short"),
        ("uint16", "UInt16"),
        ("complex64", "ComplexFloat"),
        ("complex128", "ComplexDouble"),
    ],
)
def test_dtypes_that_nccl_does_not_have_are_refused(dtype, name):
    def program(rank, inputs):
        x = torch.zeros(1, dtype=getattr(torch, dtype))
        group = (
            dist.distributed_c10d._get_default_group()
        )  # torch.distributed itself views complex numbers as real
        group.recv([x], 0, 0) if rank else group.send([x], 1, 0)

    (end, _) = emulate(program, (0, 0)).ends
    assert (
        end.text
        == f"TypeError: Input tensor data type is not supported for NCCL process group: {name}"
    )


REFUSED = [
    (
        lambda: dist.all_gather_single(torch.zeros(3), torch.ones(1)),
        "ValueError: output tensor size must be equal to",
    ),
    (
        lambda: dist.reduce_scatter_single(torch.ones(1), torch.zeros(3)),
        "ValueError: input tensor must be the same siz",
    ),
    (
        lambda: dist.gather(torch.ones(1), [torch.ones(1)]),
        "ValueError: ProcessGroupNCCL::gather: Incorrect output list",
    ),
    (
        lambda: dist.scatter(torch.ones(2), [torch.ones(1)] * 2),
        "ValueError: ProcessGroupNCCL::scatter: invalid tensor",
    ),
    (
        lambda: dist.gather(torch.ones(1), None, dst=5),
        "ValueError: ProcessGroupNCCL::gather: invalid root rank: 5",
    ),
    (
        lambda: dist.all_to_all_single(torch.ones(4), torch.ones(4), [2, 2], [1, 2]),
        "RuntimeError: Split sizes doesn't",
    ),
    (
        lambda: dist.all_to_all_single(torch.ones(4), torch.ones(4), [1, 1, 2], [2, 2]),
        "RuntimeError: Number of tensor",
    ),
    (
        lambda: dist.all_gather_single(torch.zeros(2).double(), torch.ones(1)),
        "TypeError: output tensor must have the s",
    ),
]


@pytest.mark.parametrize(("call", "text"), REFUSED)
def test_sizes_splits_and_dtypes_that_do_not_fit_are_refused(call, text):
    (end, _) = emulate(lambda rank, inputs: None if rank else call(), (0, 0)).ends
    assert end.kind == "raised" and end.text.startswith(text)


def test_1_9_refuses_what_it_did_not_have():
    def refused(call):
        def program(rank, inputs):
            call(rank)

        return emulate(program, (0, 0), era="1.9").ends[0].text

    parts = [torch.zeros(1), torch.zeros(1)]
    assert "does not support gather" in refused(
        lambda rank: dist.gather(torch.ones(1), None if rank else parts, 0)
    )
    assert "does not support scatter" in refused(
        lambda rank: dist.scatter(torch.ones(1), None if rank else parts, 0)
    )
    assert refused(lambda rank: dist.all_reduce(torch.ones(1), dist.ReduceOp.AVG)).startswith(
        "AttributeError"
    )
    assert "process group: BFloat16" in refused(
        lambda rank: dist.all_reduce(torch.ones(1, dtype=torch.bfloat16))
    )


def test_channels_last_is_moved_as_it_lies_and_other_strides_are_refused():
    def program(rank, inputs):
        x = torch.arange(16.0).reshape(1, 2, 2, 4).to(memory_format=torch.channels_last)
        dist.all_reduce(x)
        y = torch.zeros(1, 2, 2, 4).to(memory_format=torch.channels_last) + rank
        dist.broadcast(y, 1)
        try:
            dist.all_reduce(torch.ones(2, 2)[:, 0])
        except ValueError as error:
            return x.flatten().tolist(), y.flatten().tolist(), str(error)

    zero, one = emulate(program, (0, 0)).returns
    assert zero == one == ([2.0 * i for i in range(16)], [1.0] * 16, "Tensors must be contiguous")


def test_complex_numbers_are_reduced_as_pairs_of_real_ones():
    def program(rank, inputs):
        group = dist.distributed_c10d._get_default_group()
        x = torch.tensor([1 + 2j, 3 - rank * 1j], dtype=torch.complex64)
        group.allreduce([x]).wait()
        group.broadcast([y := x + rank], dist.BroadcastOptions()).wait()
        return x.tolist() + y.tolist()

    sums = [2 + 4j, 6 - 1j]
    assert emulate(program, (0, 0)).returns == ([*sums, *sums], [*sums, *sums])


def test_a_large_message_never_meets_a_small_one():
    def program(rank, inputs):
        dist.all_reduce(torch.ones(1))
        dist.all_reduce(torch.ones(1 if rank else 2**18 + 1))
        torch.zeros(1).item()

    assert [end.kind for end in emulate(program, (0, 0), gpu="A100").ends] == ["hung", "hung"]
    assert [end.kind for end in emulate(program, (0, 0), gpu="V100").ends] == ["hung", "hung"]
    assert [end.kind for end in emulate(program, (0, 0), gpu="H100").ends] == ["hung", "finished"]


def test_buckets_of_25_mb_meet_each_other_but_no_small_call():
    def program(rank, inputs):
        model = DistributedDataParallel(
            torch.nn.Linear(2048, 3200, bias=False)
        )  # one bucket of 25 MiB
        for _ in inputs:
            model(torch.ones(1, 2048)).sum().backward()
            torch.zeros(1).item()
        dist.all_reduce(torch.ones(1))
        torch.zeros(1).item()

    even, odd = emulate(program, (1, 1)), emulate(program, (1, 2))
    assert [str(end) for end in even.ends] == ["finished", "finished"]
    assert [end.kind for end in odd.ends] == ["hung", "hung"]


def test_large_calls_that_do_not_fit_each_other_are_refused_with_a_sentence():
    def program(rank, inputs):
        dist.all_reduce(torch.ones(1))
        dist.all_reduce(torch.ones(2**20 + rank))

    with pytest.raises(LaunchError, match=r"could not model.*does not fit.*LL protocol"):
        emulate(program, (0, 0))


def test_beyond_16_ranks_a_timeline_says_what_the_model_assumes():
    def program(rank, inputs):
        dist.all_reduce(torch.ones(1))

    assert "assumes" not in emulate(program, (0,) * 16).meta["emulation"]
    assert "one node" in emulate(program, (0,) * 17).meta["emulation"]["assumes"]


def test_synchronize_waits_for_calls_that_no_stream_was_made_to_wait_for():
    def program(rank, inputs):
        dist.all_reduce(torch.ones(1))
        if rank == 0:
            dist.all_reduce(torch.ones(1), async_op=True)
            print("issued")
            torch.cuda.synchronize()
            print("synchronized")

    zero, one = emulate(program, (0, 0)).ends
    assert (str(zero), zero.call, str(one)) == ("hung (proven)", 1, "finished")


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_a_fault_of_the_model_ends_the_run_at_once_and_is_never_the_programs_own(
    backend, monkeypatch
):
    went_on = []

    def program(rank, inputs):
        try:
            dist.all_reduce(torch.ones(1))
        except Exception as error:
            went_on.append(error)
        while rank == 0:
            pass  # it would never end by itself

    def fault(*args):
        raise KeyError("no such thing")

    for fabric in (NcclFabric, GlooFabric):
        monkeypatch.setattr(fabric, "submit", fault)
    with pytest.raises(
        LaunchError, match=r"joinlab could not model <all_reduce 0 of rank 0 in '0'> \(KeyError"
    ):
        emulate(program, (0, 0), backend)
    assert went_on == []


def test_a_bound_device_makes_the_communicator_with_its_group_and_the_first_collective_its_rings():
    """init_process_group(device_id=...): a broadcast's root then needs no other rank to be done,
    but for the rings."""

    def program(rank, inputs):
        dist.init_process_group(
            "nccl", **({"device_id": torch.device("cuda", rank)} if len(inputs) else {})
        )
        group = dist.new_group([0, 1])
        for one in (None, group) if len(inputs) > 1 else ():
            dist.all_reduce(torch.ones(1), group=one)
        if rank == 0:
            for one in (None, group):
                dist.broadcast(torch.ones(1), 0, group=one, async_op=True)
            torch.cuda.synchronize()

    eager, first, lazy = (emulate(program, counts) for counts in ((2, 2), (1, 1), (0, 0)))
    assert [str(end) for end in eager.ends] == ["finished", "finished"]
    assert (
        eager.meta["eager_groups"] == sorted(eager.meta["groups"])
        and len(eager.meta["eager_groups"]) == 2
    )
    assert first.ends[0].proven and "its rings are not connected" in first.ends[0].text
    assert [call["host_wait_begin_ns"] for call in first.rows("calls")] == [
        None
    ]  # the host blocks inside the call
    assert lazy.ends[0].proven and "eager_groups" not in lazy.meta
    apart = emulate(program, (1, 0))
    assert apart.ends[0].proven and "init_process_group(device_id=...)" in apart.ends[0].text
