"""The modelled NCCL follows NCCL's source for calls that do not match: values, completion and
waits."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
import torch.distributed as dist

from joinlab.errors import LaunchError
from joinlab.nccl.fabric import Communicator, NcclFabric
from tests.play import Batch, Call, Destroy, Sync, Synchronize, Wait, play

F32, I64 = torch.float32, torch.int64
TINY = 2**-149  # the float whose bits are 1
DONE, HUNG = "finished", "hung"


def ones(count=1, **options):
    return torch.ones(count, **options)


def both(*make):
    """A list of calls for each of two ranks, with tensors of their own."""
    return [[one() for one in make] for _ in range(2)]


def first():
    """Creates the communicator."""
    return Call("all_reduce", [ones()])


def on_nccl(*lanes, **knobs):
    return play(lanes, NcclFabric, **knobs)


def call(op, values, dtype=F32, more=None):
    """A call of TABLE."""
    tensor = torch.tensor(values, dtype=dtype)
    match op:
        case "AR":
            return Call("all_reduce", [tensor], reduce_op=more or "sum")
        case "BC":
            return Call("broadcast", [tensor], root=more)
        case "AG":
            return Call("all_gather", [tensor], [torch.zeros_like(tensor) for _ in range(2)])
        case _:
            return Call("barrier")


def run(zero, one, **knobs):
    """(kind of ending, [what came out of each call that completed]) per rank, for calls behind a
    fitting first one."""
    lanes = [[call(*what) for what in calls] for calls in (zero, one)]
    played = on_nccl(*[[first(), *lane, Sync()] for lane in lanes], **knobs)
    found = []
    for end, results in zip(played.ends, played.calls, strict=True):
        outs = [
            torch.frombuffer(bytearray(result.held), dtype=(result.call.ins or [ones()])[0].dtype)
            for result in results[1:]
            if result.completed
        ]
        found.append((end.kind, [out.tolist() for out in outs]))
    return found


TABLE = [
    (("AR", [0]), ("AR", [1], I64, "max"), (DONE, [[TINY]]), (DONE, [[1]])),
    (("AR", [-1], I64, "max"), ("AR", [0]), (DONE, [[0]]), (DONE, [[0.0]])),
    (("AR", [5]), ("AR", [7, 8]), (DONE, [[12.0]]), (DONE, [[12.0, 8.0]])),
    (("AR", [5]), ("AR", [1, 2, 3]), (DONE, [[6.0]]), (HUNG, [])),
    (("AR", [1, 2, 3]), ("AR", [5]), (HUNG, []), (DONE, [[6.0]])),
    (("AR", [5]), ("BC", [7, 8], F32, 1), (DONE, [[12.0]]), (DONE, [[7.0, 8.0]])),
    (("BC", [5], F32, 0), ("AR", [7]), (DONE, [[5.0]]), (HUNG, [])),
    (("AR", [7]), ("BC", [5], F32, 0), (HUNG, []), (HUNG, [])),
    (("BC", [5], F32, 0), ("BC", [7], F32, 1), (DONE, [[5.0]]), (DONE, [[7.0]])),
    (("BC", [5], F32, 1), ("BC", [7], F32, 0), (HUNG, []), (HUNG, [])),
    (("AG", [5]), ("AR", [7]), (DONE, [[5.0, 7.0]]), (HUNG, [])),
    (("AR", [5]), ("AG", [7]), (DONE, [[12.0]]), (HUNG, [])),
    (("AR", [5]), ("barrier", [0]), (DONE, [[5.0]]), (DONE, [[5.0]])),
]


@pytest.mark.parametrize(
    ("zero", "one", "expected_0", "expected_1"), TABLE, ids=[f"{a} with {b}" for a, b, *_ in TABLE]
)
def test_two_calls_that_do_not_fit(zero, one, expected_0, expected_1):
    assert run([zero], [one]) == [expected_0, expected_1]


@pytest.mark.parametrize(
    ("own", "unset", "read", "byte"), [(1, 0x3F800000, 2.0, 0), (0, 7, 7 * TINY, 7)]
)
def test_a_float_that_meets_the_one_byte_barrier_of_1_9_reads_the_whole_word(
    own, unset, read, byte
):
    lanes = [first(), call("AR", [own])], [first(), Call("barrier")]
    played = on_nccl(*lanes, era="1.9", barrier_value=unset)
    assert lanes[0][1].ins[0].tolist() == [read] and played.calls[1][1].held == bytes([byte])


def test_the_pad_is_the_upper_half_of_what_a_wider_reader_gets():
    (_, [[read]]), (_, [[wide]]) = run([("AR", [0])], [("AR", [1], I64, "max")], pad=3)
    assert (read, wide) == (TINY, 1 + (3 << 32))


def test_a_skewed_pair_poisons_the_next():
    again = ("AR", [1])
    (zero, _), (one, outs) = run([("AR", [5]), again], [("BC", [7, 8], F32, 1), again])
    assert (zero, one, outs[1]) == (HUNG, DONE, [12.0])


def every_collective(n, dtype, reduce_op):
    """Per rank the calls of all collectives, of 1, 3 and 40 elements."""
    for rank in range(n):
        calls = []
        for count in (1, 3, 40):
            x = torch.arange(1, count + 1).add(rank).to(dtype)
            y = torch.zeros_like(x)
            parts, swapped, gathered = ([torch.zeros_like(x) for _ in range(n)] for _ in range(3))
            calls += [
                Call("all_reduce", [x], reduce_op=reduce_op),
                Call("all_gather", [x], parts),
                Call("reduce_scatter", parts, [y], reduce_op=reduce_op),
                Call("broadcast", [y], root=n - 1),
                Call("reduce", [x.clone().add(rank)], root=n - 1, reduce_op=reduce_op),
                Call("all_to_all", [part + rank for part in parts], swapped),
                Call("gather", [x.clone() + rank], gathered if rank == 0 else None),
                Call("scatter", gathered if rank == 0 else [], [y]),
            ]
        yield calls


@pytest.mark.parametrize(("n", "op"), list(product([1, 2, 3, 5], ["sum", "max", "avg", "product"])))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "float64"])
def test_the_ring_sums_as_the_direct_path_does(n, op, dtype, monkeypatch):
    direct = on_nccl(*every_collective(n, getattr(torch, dtype), op))
    monkeypatch.setattr(Communicator, "_fit", lambda self, heads: False)
    on_ring = on_nccl(*every_collective(n, getattr(torch, dtype), op))
    assert on_ring.kinds == [DONE] * n
    held, on_ring_held = (
        [[result.held for result in results] for results in played.calls]
        for played in (direct, on_ring)
    )
    assert held == on_ring_held and len(held[0]) == 24


def test_a_broadcast_needs_no_receiver_for_eight_steps():
    def broadcasts(count):
        sent = [Call("broadcast", [ones()]) for _ in range(count)]
        return on_nccl([first(), *sent, Sync()], [first(), Sync()])

    assert broadcasts(8).kinds == [DONE, DONE]
    zero, one = broadcasts(9).ends
    assert (zero.kind, zero.call, one.kind) == (HUNG, 9, DONE)


def test_the_host_runs_on_behind_an_all_reduce_and_waits_at_item():
    def alone(*then):
        return on_nccl([first(), first(), *then], [first()]).ends[0]

    goes, waits = alone(), alone(Sync())
    assert (goes.kind, goes.steps) == (DONE, 2)
    assert (waits.kind, waits.call, waits.steps) == (HUNG, 1, 2)
    for then in Synchronize(), Destroy(), Call("barrier"):
        assert alone(then).kind == HUNG


def test_the_first_call_waits_for_the_communicator():
    """The broadcast needs nobody, but NCCL has to make the communicator first."""
    zero, one = on_nccl([Call("broadcast", [ones()])], []).ends
    assert (zero.kind, zero.call, one.kind) == (HUNG, 0, DONE)
    assert "communicator" in zero.text


@pytest.mark.parametrize(("count", "kind"), [(1, DONE), (2**18, DONE), (2**18 + 1, HUNG)])
def test_a_send_that_every_machine_buffers_does_not_wait_for_its_recv(count, kind):
    x, y = ones(count), ones(count)
    # the first send makes the communicator of the two
    zero = [Call("send", [ones()], peer=1), Call("send", [x], peer=1), first(), Sync()]
    one = [Call("recv", outs=[ones()], peer=0), first(), Call("recv", outs=[y], peer=0), Sync()]
    played = on_nccl(zero, one)
    assert played.kinds == [kind] * 2
    assert ("more than 1 MiB" in played.assumes) == (kind == HUNG)


@pytest.mark.parametrize("count", [1, 2_500_000])
@pytest.mark.parametrize("order", [["send", "recv"], ["recv", "send"]])
def test_two_ranks_that_both_send_or_receive_first_connect_the_wrong_ends(order, count):
    def lane(rank, order):
        mine, theirs = torch.full((count,), float(rank)), torch.zeros(count)
        sides = {"send": ([mine], None), "recv": ([], [theirs])}
        calls = [Call(op, *sides[op], peer=1 - rank, waits=False) for op in order]
        return [*calls, Wait(calls), Sync()], theirs

    (zero, _), (one, _) = (lane(rank, order) for rank in range(2))
    apart = on_nccl(zero, one)
    assert apart.kinds == [HUNG, HUNG] and "both send, or both receive" in apart.assumes
    (zero, came_0), (one, came_1) = lane(0, order), lane(1, order[::-1])
    assert on_nccl(zero, one).kinds == [DONE, DONE]
    assert (came_0.sum().item(), came_1.sum().item()) == (count, 0.0)


def test_batches_that_tell_each_other_of_different_connections_are_not_modelled():
    swap = [Call("send", [ones()], peer=0), Call("recv", outs=[ones()], peer=0)]
    with pytest.raises(LaunchError, match="Message truncated"):
        on_nccl([Batch([Call("recv", outs=[ones()], peer=1)])], [Batch(swap)])


@pytest.mark.parametrize("batch", [True, False])
def test_a_pipeline_sends_to_the_next_stage(batch):
    came = [torch.zeros(1) for _ in range(3)]

    def stage(rank, last=2):
        calls = []
        if rank < last:  # the first stage and the last have a batch of one
            calls.append(Call("send", [torch.full((1,), 5.0 + rank)], peer=rank + 1, waits=False))
        if rank > 0:
            calls.append(Call("recv", outs=[came[rank]], peer=rank - 1, waits=False))
        return [*([Batch(calls)] if batch else [*calls, Wait(calls)]), Sync()]

    assert on_nccl(*map(stage, range(3))).kinds == [DONE] * 3
    assert [tensor.item() for tensor in came] == [0.0, 5.0, 6.0]
    # a batch makes the group's communicator first
    kinds = on_nccl(stage(0, last=1), stage(1, last=1), []).kinds
    assert kinds == [*[HUNG if batch else DONE] * 2, DONE]


def scatter(rank, root=0, **options):
    """The root's own tensors for two ranks, or none."""
    ins = [ones(), ones()] if rank == root else []
    return Call("scatter", ins, [torch.zeros(1)], root=root, **options)


def test_the_first_scatter_of_two_ranks_is_a_meeting_of_their_hosts():
    alone = on_nccl([first(), scatter(0, waits=False)], [first()])
    assert (alone.ends[0].kind, alone.ends[0].steps, alone.ends[1].kind) == (HUNG, 1, DONE)
    assert "to connect" in alone.ends[0].text
    met = on_nccl([first(), scatter(0, waits=False)], [first(), scatter(1, waits=False)])
    assert [(end.kind, end.steps) for end in met.ends] == [(DONE, 2)] * 2


def test_once_two_ranks_are_connected_a_send_between_them_is_buffered():
    played = on_nccl([scatter(0, waits=False) for _ in range(2)], [scatter(1, waits=False)])
    assert [(end.kind, end.steps) for end in played.ends] == [(DONE, 2), (DONE, 1)]


def test_hosts_connect_one_distance_after_the_other():
    def gather(rank):
        outs = [torch.zeros(1) for _ in range(3)] if rank == 0 else None
        return Call("gather", [ones()], outs, waits=False)

    played = on_nccl([first(), gather(0)], [first(), gather(1)], [first()])
    assert [(end.kind, end.steps) for end in played.ends] == [(HUNG, 1), (HUNG, 1), (DONE, 1)]


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
    x = torch.zeros(1, dtype=getattr(torch, dtype))
    (end, _) = on_nccl([Call("send", [x], peer=1)], []).ends
    text = f"TypeError: Input tensor data type is not supported for NCCL process group: {name}"
    assert (end.kind, end.text) == ("raised", text)


def uneven_splits(*splits):
    args = (ones(4), ones(4), *splits, dist.AllToAllOptions())
    return Call("all_to_all", args=args, method="alltoall_base")


GATHER, SCATTER = "ValueError: ProcessGroupNCCL::gather", "ValueError: ProcessGroupNCCL::scatter"
REFUSED = [
    (
        Call("all_gather", [ones()], [ones(3)], method="all_gather_single"),
        "ValueError: output tensor size must be equal to",
    ),
    (
        Call("reduce_scatter", [ones(3)], [ones()], method="reduce_scatter_single"),
        "ValueError: input tensor must be the same siz",
    ),
    (Call("gather", [ones()], [ones()]), f"{GATHER}: Incorrect output list"),
    (Call("scatter", [ones(), ones()], [ones(2)]), f"{SCATTER}: invalid tensor"),
    (Call("gather", [ones()], root=5), f"{GATHER}: invalid root rank: 5"),
    (uneven_splits([2, 2], [1, 2]), "RuntimeError: Split sizes doesn't"),
    (uneven_splits([1, 1, 2], [2, 2]), "RuntimeError: Number of tensor"),
    (
        Call("all_gather", [ones()], [ones(2).double()], method="_allgather_base"),
        "TypeError: output tensor must have the s",
    ),
]


@pytest.mark.parametrize(("refused", "text"), REFUSED)
def test_sizes_splits_and_dtypes_that_do_not_fit_are_refused(refused, text):
    (end, _) = on_nccl([refused], []).ends
    assert end.kind == "raised" and end.text.startswith(text)


@pytest.mark.parametrize(
    ("refused", "text"),
    [
        (Call("gather", [ones()], [ones(), ones()]), "RuntimeError: ProcessGroupNCCL does not sup"),
        (scatter(0), "RuntimeError: ProcessGroupNCCL does not support scatter"),
        (Call("all_reduce", [ones()], reduce_op="avg"), "AttributeError: PyTorch 1.9 has no"),
        (
            Call("all_reduce", [ones(dtype=torch.bfloat16)]),
            "TypeError: Input tensor data type is not supported for NCCL process group: BFloat16",
        ),
    ],
)
def test_1_9_refuses_what_it_did_not_have(refused, text):
    (end, _) = on_nccl([refused], [], era="1.9").ends
    assert end.kind == "raised" and end.text.startswith(text)


LISTS = [
    Call("all_gather", [ones()], [ones(), ones(), ones()]),
    Call("reduce_scatter", [ones(), ones(), ones()], [ones()]),
    Call("all_gather", [ones(2)], [ones(2)]),
    Call("all_to_all", [ones()], [ones()]),
]


@pytest.mark.parametrize("wrong", LISTS)
def test_a_list_that_is_not_for_all_ranks_is_not_modelled(wrong):
    with pytest.raises(LaunchError, match="more or fewer tensors than the group's 2 ranks"):
        on_nccl([wrong], [wrong])
    right = Call(wrong.op, [ones(), ones()], [ones(), ones()])
    if wrong.op == "all_gather":
        right = Call(wrong.op, [ones()], [ones(), ones()])
    elif wrong.op == "reduce_scatter":
        right = Call(wrong.op, [ones(), ones()], [ones()])
    with pytest.raises(LaunchError, match="beyond the memory of the list"):
        on_nccl([wrong], [right])


def test_a_list_of_one_tensor_for_all_ranks_is_as_good():
    whole = torch.zeros(2)
    run = on_nccl(*[[Call("all_gather", [ones()], [whole])] for _ in range(2)])
    assert run.ends[0].kind == "finished" and whole.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("wrong", LISTS[:3])
def test_1_9_refused_a_list_that_is_not_for_all_ranks(wrong):
    (end, _) = on_nccl([wrong], [], era="1.9").ends
    assert end.text.startswith("RuntimeError: Tensor list input to scatter/gather must match")


def test_channels_last_is_moved_as_it_lies_and_other_strides_are_refused():
    images = torch.channels_last
    x = [torch.arange(16.0).reshape(1, 2, 2, 4).to(memory_format=images) for _ in range(2)]
    y = [torch.full((1, 2, 2, 4), float(rank)).to(memory_format=images) for rank in range(2)]
    strided = Call("all_reduce", [ones((2, 2))[:, 0]])
    lanes = [[Call("all_reduce", [x[r]]), Call("broadcast", [y[r]], root=1), strided] for r in (0, 1)]  # fmt: skip
    played = on_nccl(*lanes)
    for rank in range(2):
        assert x[rank].flatten().tolist() == [2.0 * i for i in range(16)]
        assert y[rank].flatten().tolist() == [1.0] * 16
        assert played.ends[rank].text == "ValueError: Tensors must be contiguous"


def test_a_send_moves_the_memory_behind_its_tensors_first_element():
    """PyTorch warns of strides and passes the address on (check_gpu_single_tensor)."""
    column, row = torch.arange(6.0).view(2, 3).t(), torch.zeros(3, 2)
    send, recv = Call("send", [column], peer=1), Call("recv", outs=[row], peer=0)
    on_nccl([send], [recv])
    assert row.tolist() == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
    turned = torch.zeros(2, 3)
    on_nccl([Call("send", [torch.arange(6.0)], peer=1)], [Call("recv", outs=[turned.t()], peer=0)])
    assert turned.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]


def test_a_send_of_more_than_its_tensors_memory_is_refused_with_a_sentence():
    one_element = Call("send", [torch.ones(1).expand(4)], peer=1)
    with pytest.raises(LaunchError, match="beyond its memory"):
        on_nccl([one_element], [Call("recv", outs=[ones(4)], peer=0)])


def test_complex_numbers_are_reduced_as_pairs_of_real_ones():
    x = [torch.tensor([1 + 2j, 3 - rank * 1j], dtype=torch.complex64) for rank in range(2)]
    played = on_nccl(*[[Call("all_reduce", [x[r]]), Call("broadcast", [x[r]])] for r in range(2)])
    sums = np.array([2 + 4j, 6 - 1j], np.complex64)
    for results in played.calls:
        assert [result.held for result in results] == [sums.tobytes()] * 2


def test_a_large_message_never_meets_a_small_one():
    def sizes(gpu):
        lanes = [[first(), Call("all_reduce", [ones(count)]), Sync()] for count in (2**18 + 1, 1)]
        return on_nccl(*lanes, gpu=gpu).kinds

    assert sizes("A100") == sizes("V100") == [HUNG, HUNG]
    assert sizes("H100") == [HUNG, DONE]


def test_large_calls_that_do_not_fit_each_other_are_refused_with_a_sentence():
    lanes = [[first(), Call("all_reduce", [ones(2**20 + rank)])] for rank in range(2)]
    with pytest.raises(LaunchError, match=r"could not model.*does not fit.*LL protocol"):
        on_nccl(*lanes)


def test_beyond_16_ranks_it_says_what_the_model_assumes():
    assert on_nccl(*[[first()] for _ in range(16)]).assumes == ""
    assert "one node" in on_nccl(*[[first()] for _ in range(17)]).assumes


def test_synchronize_waits_for_calls_that_no_stream_was_made_to_wait_for():
    issued = Call("all_reduce", [ones()], waits=False)
    zero, one = on_nccl([first(), issued, Sync(), Synchronize()], [first()]).ends
    assert (zero.kind, zero.call, zero.steps, one.kind) == (HUNG, 1, 3, DONE)


def test_a_bound_device_makes_the_communicator_with_its_group_and_the_first_collective_its_rings():
    """A broadcast's root then needs no other rank to be done, but for the rings."""

    def root(group):
        return Call("broadcast", [ones()], group=group, waits=False)

    def bound(before, bound=True):
        common = [[Call("all_reduce", [ones()], group=g) for g in before] for _ in range(2)]
        lanes = [*common[0], root("0"), root("a"), Synchronize()], common[1]
        return on_nccl(*lanes, groups={"a": (0, 1)}, bound=bound)

    assert bound(["0", "a"]).kinds == [DONE, DONE]
    alone = bound([])
    assert alone.kinds == [HUNG, DONE] and "its rings are not connected" in alone.ends[0].text
    assert alone.ends[0].steps == 0  # the host blocks inside the call
    lazy = bound([], bound=False)
    assert lazy.kinds == [HUNG, DONE] and "first call on this communicator" in lazy.ends[0].text


def stuck(rank, **options):
    """An all_reduce in group "a" that rank 1 never joins."""
    return [] if rank else [Call("all_reduce", [ones()], group="a", **options)]


@pytest.mark.parametrize("group", ["0", "a"])
@pytest.mark.parametrize("stuck_waits", [False, True])
@pytest.mark.parametrize("waits", [False, True])
def test_a_communicator_runs_calls_in_order_whichever_stream_they_are_launched_on(
    group, stuck_waits, waits
):
    """Behind a call that never completes: one of the same group waits, on any stream; one of another
    group waits if the current stream does."""

    def lane(rank):
        common = [Call("all_reduce", [ones()], group=name) for name in ("0", "a")]
        return [*common, *stuck(rank, waits=stuck_waits), *behind[rank]]

    behind = [[Call("broadcast", [ones()], root=0, group=group, waits=waits)] for _ in range(2)]
    behind[0].append(Sync())
    if group == "a":
        behind[1] = []  # a broadcast's root needs nobody, and is stuck all the same
    played = on_nccl(lane(0), lane(1), groups={"a": (0, 1)})
    runs = group == "0" and not stuck_waits
    assert played.calls[0][-1].completed == runs
    assert played.ends[0].kind == (DONE if runs or not (waits or stuck_waits) else HUNG)
