"""Programs with DDP run in the emulator as in real processes on gloo; test_scenarios.py has more of
them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP

import joinlab
from joinlab import emulate, scenarios
from joinlab.errors import LaunchError
from tests.agreement import differences
from tests.timelines import same_timelines

Program = Callable[[int, Sequence[torch.Tensor]], Any]


# what torch itself deprecates is not our concern here
pytestmark = pytest.mark.filterwarnings("ignore")
# to import this module takes a rank 0.3 s
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def layers() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(1, 7), torch.nn.ReLU(), torch.nn.Linear(7, 9), torch.nn.Linear(9, 1)
    )


def parameters(model: torch.nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in (*model.parameters(), *model.buffers())]


def train(
    model: DDP, inputs: Sequence[torch.Tensor], optimizer: Any = None, join: bool = True
) -> Any:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join(enable=join):
        for index, input in enumerate(inputs):
            optimizer.zero_grad()
            loss = ((model(input * (index + 1 + dist.get_rank())) - 1) ** 2).sum()
            loss.backward()
            optimizer.step()
    return parameters(model)


def view_of_buckets(rank, inputs):
    return train(DDP(layers(), gradient_as_bucket_view=True), inputs)


class Half(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)

    def forward(self, x):
        return self.used(x) if dist.get_rank() == 0 else self.unused(x)


def unused_parameters(rank, inputs):
    return train(DDP(Half(), find_unused_parameters=True), inputs)


def never_used_parameters(rank, inputs):
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(1, 1), "b": torch.nn.Linear(1, 1)})
    model.forward = model["a"].forward
    return train(DDP(model, find_unused_parameters=True), inputs)


def static_graph(rank, inputs):
    return train(DDP(layers(), static_graph=True), inputs, join=False)


def hooked(hook: Any, state: Any = None) -> Program:
    def program(rank, inputs):
        model = DDP(layers(), bucket_cap_mb=1e-5)
        model.register_comm_hook(state() if state else None, hook)
        return train(model, inputs)

    return program


def fp16_hook(rank, inputs):
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    return hooked(fp16_compress_hook)(rank, inputs)


def power_sgd_hook(rank, inputs):
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as hooks

    def state():
        return hooks.PowerSGDState(
            None, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=0.1
        )

    return hooked(hooks.powerSGD_hook, state)(rank, inputs)


def own_hook(rank, inputs):
    def hook(state, bucket):
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda future: future.value()[0] / 3)

    return hooked(hook)(rank, inputs)


def builtin_hook(rank, inputs):
    model = DDP(layers())
    model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    return train(model, inputs)


def adam(rank, inputs):
    model = DDP(layers())
    return train(model, inputs, torch.optim.Adam(model.parameters()))


def several_joinables(rank, inputs):
    counter, one, two = scenarios.Counter(), DDP(layers()), DDP(torch.nn.Linear(1, 1))
    with Join([counter, one, two]):
        for input in inputs:
            counter()
            one(input).sum().backward()
            two(input).sum().backward()
    return counter.count, [p.grad for p in (*one.parameters(), *two.parameters())]


def two_forwards(rank, inputs):
    model = DDP(layers())
    for input in inputs:
        (model(input) + model(input * 2)).sum().backward()
    return [p.grad for p in model.parameters()]


def subgroup_ddp(rank, inputs):
    pairs = [dist.new_group([0, 1]), dist.new_group([2])]
    return train(DDP(layers(), process_group=pairs[rank // 2]), inputs)


EVEN = [static_graph, two_forwards, power_sgd_hook]
UNEVEN = [
    view_of_buckets, unused_parameters, never_used_parameters, fp16_hook, own_hook, builtin_hook, adam,
    several_joinables, subgroup_ddp,
]  # fmt: skip
CASES = [(program, (3, 3, 3)) for program in EVEN] + [(program, (2, 4, 3)) for program in UNEVEN]


def flat(value: Any) -> list[np.ndarray]:
    if isinstance(value, np.ndarray):
        return [value]
    return (
        [array for item in value for array in flat(item)]
        if isinstance(value, (list, tuple))
        else []
    )


REAL = [case for case in CASES if case[0] is not power_sgd_hook]
"""PowerSGD waits inside the callbacks of futures. Gloo runs those in its two worker threads, which
can then block each other; that is not modelled."""


@pytest.mark.parametrize(("program", "inputs"), REAL, ids=[program.__name__ for program, _ in REAL])
def test_it_does_what_real_processes_do(program, inputs):
    launched = joinlab.launch(program, inputs, backend="gloo", on_output=None, progress=False)
    emulated = emulate(program, inputs, backend="gloo")
    assert differences(emulated, launched) == []
    assert (
        "all-reduce (DDP backward(), comm hook)" in launched.calls["origin"]
        or program is not fp16_hook
    )
    for one, other in zip(emulated.returns, launched.returns, strict=True):
        assert [array.tolist() for array in flat(one)] == [array.tolist() for array in flat(other)]


@pytest.mark.parametrize(
    ("program", "inputs"), CASES, ids=[program.__name__ for program, _ in CASES]
)
def test_on_nccl_it_finishes_with_the_same_parameters(program, inputs):
    nccl, gloo = (emulate(program, inputs, backend=backend) for backend in ("nccl", "gloo"))
    assert [str(end) for end in nccl.ends] == ["finished"] * 3
    for one, other in zip(nccl.returns, gloo.returns, strict=True):
        for left, right in zip(flat(one), flat(other), strict=True):
            precise = program not in (fp16_hook, builtin_hook)  # 16 bits, summed in another order
            np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-6 if precise else 1e-3)


def test_on_gloo_what_needs_a_gpu_says_so():
    def sync_batch_norm(rank, inputs):
        model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(torch.nn.BatchNorm1d(2))
        DDP(model)(torch.ones(3, 2))

    for end in emulate(sync_batch_norm, (1, 1), backend="gloo").ends:
        assert end.kind == "raised"
        assert "SyncBatchNorm" in end.text


@pytest.mark.parametrize(
    ("value", "taken_for"),
    [
        (3.0, "the parameters 0, 1074266112 in 0 buckets"),  # the doubles' bytes, read as ints
        (0.0, "the parameters 0, 0 in 0 buckets"),
    ],
)
def test_invalid_numbers_of_parameters_end_the_rank_and_not_this_process(value, taken_for):
    def worker(rank, inputs):
        model = DDP(torch.nn.Linear(1, 1))
        for input in inputs:
            model(input).backward()
            if rank == 0:
                dist.all_reduce(torch.full((8,), value, dtype=torch.float64))

    timeline = emulate(worker, (2, 2))
    assert timeline.ends[1].kind == "killed"
    assert taken_for in timeline.ends[1].text
    assert timeline.call(1, timeline.ends[1].call)["origin"] == "broadcast (DDP bucket rebuild)"


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_invalid_numbers_of_parameters_end_the_rank_of_a_group_with_a_timeout_too(backend):
    def worker(rank, inputs):
        group = dist.new_group(timeout=timedelta(seconds=5))
        model = DDP(torch.nn.Linear(1, 1), process_group=group)
        model(torch.ones(1)).backward()
        if rank == 0:
            dist.broadcast(torch.tensor([7, 0, 1], dtype=torch.int32), 0, group=group)
        else:
            model(torch.ones(1)).backward()

    ending = emulate(worker, (1, 1), backend).ends[1]
    assert ending.kind == "killed"
    assert "the parameters 7, 0 in 1 buckets" in ending.text


def test_one_line_may_send_to_several_peers():
    def worker(rank, inputs):
        for peer in (1, 2):
            if rank == 0:
                dist.send(torch.ones(1), peer, tag=peer + 4)
            elif rank == peer:
                dist.recv(torch.zeros(1), 0, tag=peer + 4)

    runs = [emulate(worker, (1, 1, 1), backend) for backend in ("nccl", "gloo")]
    for timeline in (*runs, joinlab.launch(worker, (1, 1, 1), "gloo", on_output=None)):
        sent = timeline.raise_for_ending().calls.filter(timeline.calls["op"] == "send")
        assert sent.select("peer", "tag").rows() == [(1, 5), (2, 6)]


def test_errors_contain_no_address_and_are_the_same_each_time():
    def worker(rank, inputs):
        dist._broadcast_coalesced(dist.group.WORLD, [torch.ones(1)], 1 << 20, 1 << 40)

    one, other = emulate(worker, (1, 1)), emulate(worker, (1, 1))
    assert "the process group '0' of ranks [0, 1]" in one.ends[0].text
    assert same_timelines(one, other)


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_a_size_read_from_the_data_of_another_call_does_not_fill_the_memory(backend):
    def worker(rank, inputs):
        if rank == 0:
            dist.all_gather_object([None, None], "what is as long as this")
        else:
            sizes = [torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)]
            # in place of the length of its own object
            dist.all_gather(sizes, torch.tensor([1 << 33]))

    end = emulate(worker, (1, 1), backend=backend).ends[0]
    assert end.kind == "killed"
    assert "it asked for a tensor of 16.0 GiB, and an emulation gives at most 0.5 GiB" in end.text


def test_a_send_arrives_if_it_precedes_the_end_of_its_process():
    """The root of the gather raises, as rank 1 has ended; but rank 2 has handed over its part by
    then."""

    def worker(rank, inputs):
        if rank != 1:
            dist.gather(
                torch.ones(1), [torch.zeros(1) for _ in range(3)] if rank == 0 else None, dst=0
            )

    ends = emulate(worker, (1, 1, 1), backend="gloo").ends
    assert [str(end) for end in ends] == ["raised", "finished", "finished"]


def test_after_a_backward_pass_that_failed_there_may_be_another_forward_pass():
    """finalize_backward has reset the Reducer before it raises."""

    def worker(rank, inputs):
        model, text = DDP(torch.nn.Linear(1, 1)), ""
        for _ in inputs:
            try:
                model(torch.ones(1, 1)).sum().backward()
            except RuntimeError as error:
                text = str(error)
                model(torch.ones(1, 1))
        return text

    timeline = emulate(worker, (2, 3), backend="gloo")
    assert [end.kind for end in timeline.ends] == ["finished", "finished"]
    assert "onnection" in timeline.returns[1]


def in_a_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_a_collective_from_a_thread_of_the_program_raises():
    def worker(rank, inputs):
        in_a_thread(lambda: dist.all_reduce(torch.ones(1)))

    with pytest.raises(
        LaunchError,
        match=r"rank 0 calls .* from a thread .* \(test_emulator_ddp\.py:\d+\)\. .* Use joinlab\.launch",
    ):
        emulate(worker, (1, 1))


def test_a_thread_of_the_program_knows_whose_it_is_and_its_output_is_kept():
    def worker(rank, inputs):
        in_a_thread(lambda: print("a thread of rank", dist.get_rank(), flush=True))

    assert emulate(worker, (1, 1)).output == ("a thread of rank 0\n", "a thread of rank 1\n")


def leaves_a_call_that_is_met_later(rank, inputs):
    work = dist.all_reduce(torch.ones(1), async_op=True)
    if rank == 1:
        dist.barrier(dist.new_group([1]))
        work.wait()


def test_a_process_on_gloo_waits_for_its_calls_in_flight_before_it_ends():
    program = leaves_a_call_that_is_met_later
    launched = joinlab.launch(program, (1, 1), backend="gloo", on_output=None, progress=False)
    emulated = emulate(program, (1, 1), backend="gloo")
    assert differences(emulated, launched) == []
    assert [str(end) for end in launched.ends] == ["finished"] * 2


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_pad_stands_for_the_map_of_used_parameters_that_a_rank_without_a_backward_pass_hands_out(
    backend: str,
) -> None:
    def program(rank, inputs):
        model = DDP(Half(), find_unused_parameters=True)
        with model.join():
            for input in inputs:
                model(input).sum().backward()
        return [
            None if p.grad is None else p.grad.tolist() for p in model.module.unused.parameters()
        ]

    for pad, left in ((0, [None, None]), (7, [[[0.0]], [0.0]]), (2**32 - 1, [[[0.0]], [0.0]])):
        found = emulate(program, (2, 0), backend, pad=pad)
        assert found.returns[0] == left
        assert found.meta["emulation"].get("pad", 0) == pad


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_a_compiled_model_issues_the_calls_of_one_that_is_not_compiled(backend):
    def program(compiled, rank, inputs):
        torch._dynamo.reset()
        model = DDP(torch.nn.Linear(2, 2))
        called = torch.compile(model, backend="eager") if compiled else model
        for scale in (1.0, 2.0):
            called(torch.full((1, 2), scale * (rank + 1))).sum().backward()
        return [parameter.grad.tolist() for parameter in model.parameters()]

    plain, compiled = (
        emulate(partial(program, choice), (1, 1), backend) for choice in (False, True)
    )
    assert [str(end) for end in compiled.ends] == ["finished"] * 2, compiled.ends[0].text
    assert compiled.returns == plain.returns
    columns = ["rank", "seq", "op", "origin", "shape", "value_in", "value_out"]
    assert compiled.calls.select(columns).equals(plain.calls.select(columns))


def test_a_static_graph_that_begins_in_no_sync_raises_before_it_waits():
    """finalize_backward asserts that a forward pass has prepared it, before it waits."""

    def program(find_unused, rank, inputs):
        model = DDP(torch.nn.Linear(1, 1), find_unused_parameters=find_unused, static_graph=True)
        with model.join():
            for index, input in enumerate(inputs):
                with nullcontext() if index else model.no_sync():
                    model(input).sum().backward()

    for find_unused in (False, True):
        emulated = emulate(partial(program, find_unused), (2, 0), "gloo")
        assert "expect_autograd_hooks_ INTERNAL ASSERT FAILED" in emulated.ends[0].text
    launched = joinlab.launch(partial(program, True), (2, 0), "gloo", on_output=None)
    assert emulated.ends == launched.ends
