"""A tutorial's lines that name GPUs, processes and groups work on an emulated NCCL, without a
GPU."""

from __future__ import annotations

import os
import time

import polars as pl
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from joinlab import cases, emulate, launch
from joinlab.timeline import EndKind

JOINED = {1: True, 2: False, 3: False, 4: True, 5: False, 6: True}
"""The cases of the thread, and whether each is under join()."""


def worker(rank, number, join):
    """The thread's own program: each case is a loop of it. BACKEND is "nccl", WORLD_SIZE 2,
    NUM_INPUTS 5."""
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "29500"
    dist.init_process_group("nccl", rank=rank, world_size=2)
    model = DDP(torch.nn.Linear(1, 1).to(rank), device_ids=[rank])
    inputs = [torch.tensor([1]).float() for _ in range(5 + rank)]
    num_inputs = 0
    if join:
        with model.join():
            for input in inputs:
                num_inputs += 1
                loss = model(input)
                loss.backward()
                if number == 4:
                    dist.barrier()
    else:
        for input in inputs:
            num_inputs += 1
            loss = model(input)
            loss.backward()
            if number == 3:
                dist.barrier()
    if number in (5, 6):
        dist.barrier()
    print(f"Rank {rank} has exhausted all {num_inputs} of its inputs!")


@pytest.mark.parametrize(("number", "join"), JOINED.items())
def test_the_six_cases_in_the_thread_s_own_form_are_the_six_cases(number, join):
    own = emulate(lambda rank, inputs: worker(rank, number, join), (0, 0))
    ours = emulate(cases.CASES[number].program, (5, 6))
    assert [str(end) for end in own.ends] == [str(end) for end in ours.ends]
    columns = [
        "rank",
        "group",
        "seq",
        "op",
        "origin",
        "dtype",
        "shape",
        "reduce_op",
        "value_in",
        "value_out",
    ]
    assert own.calls.select(columns).equals(ours.calls.select(columns))


def run(program, **options):
    timeline = emulate(program, (2, 2), **options)
    assert [(str(end), end.text) for end in timeline.ends] == [("finished", "")] * 2
    return timeline.returns


DEVICES = [
    lambda rank: rank,
    lambda rank: "cuda",
    lambda rank: f"cuda:{rank}",
    lambda rank: torch.device("cuda", rank),
    lambda rank: torch.device(f"cuda:{rank}"),
    lambda rank: torch.device("cuda"),
]


@pytest.mark.parametrize("device_of", DEVICES)
def test_every_way_to_name_a_gpu_works(device_of):
    def program(rank, inputs):
        device = device_of(rank)
        torch.cuda.set_device(device)
        net = torch.nn.Sequential(torch.nn.Linear(2, 3, device=device), torch.nn.ReLU()).to(device)
        model = DDP(net, device_ids=[device], output_device=device)
        made = [
            torch.ones(1, 2, device=device),
            torch.zeros(1, 2).to(device),
            torch.rand(1, 2).cuda(device),
        ]
        made += [
            made[0].new_ones(1, 2, device=device),
            torch.ones(1, 2).to(device, torch.float32, non_blocking=True),
        ]
        made += [torch.ones(1, 2).to(device=device), torch.ones_like(made[0], device=device)]
        with torch.device(device) if not isinstance(device, int) else torch.cuda.device(device):
            made.append(torch.full((1, 2), 3.0))
        for tensor in made:
            model(tensor).sum().backward()
        dist.barrier(device_ids=[rank])
        return torch.cuda.current_device()

    assert run(program) == (0, 1)


def test_torch_cuda_shows_the_program_one_gpu_per_rank():
    def program(rank, inputs):
        device = "cuda" if torch.cuda.is_available() else "cpu"
        with torch.cuda.device(1 - rank):
            inside = torch.cuda.current_device()
        torch.cuda.empty_cache()
        torch.cuda.manual_seed_all(1)
        assert torch.cuda.get_device_properties(device).total_memory > 2**30
        return (
            device,
            torch.cuda.device_count(),
            inside,
            torch.cuda.current_device(),
            torch.cuda.memory_allocated(),
        )

    assert run(program) == (("cuda", 2, 1, 0, 0), ("cuda", 2, 0, 1, 0))
    assert torch.cuda.device_count() == 0 or torch.cuda.is_available()


def test_a_gpu_that_no_rank_has_is_named():
    for ask in (
        lambda: torch.ones(1).to(2),
        lambda: torch.cuda.set_device(5),
        lambda: torch.ones(1, device="cuda:9"),
    ):
        for end in emulate(lambda rank, inputs, ask=ask: ask(), (1, 1)).ends:
            assert end.kind == EndKind.RAISED
            assert "invalid device ordinal" in end.text and "GPUs 0 to 1" in end.text


def test_a_stream_of_the_program_s_own_is_refused():
    for end in emulate(lambda rank, inputs: torch.cuda.Stream(), (1, 1)).ends:
        assert (
            end.kind == EndKind.RAISED
            and "not modelled" in end.text
            and "joinlab.launch" in end.text
        )


def test_synchronize_and_a_copy_to_the_host_wait_for_the_stream():
    def program(rank, inputs):
        dist.barrier()  # makes the communicator, for which hosts wait
        time.sleep(rank)
        tensor = torch.ones(1, device="cuda")
        dist.all_reduce(tensor)
        began = time.perf_counter()
        if rank == 0:
            torch.cuda.synchronize()
        else:
            tensor.to("cpu")
        return time.perf_counter() - began

    first, second = run(program, latency=0.5)
    assert first == pytest.approx(1.5, abs=0.01)
    assert second == pytest.approx(0.5, abs=0.01)


def test_events_are_on_the_stream_s_clock():
    def program(rank, inputs):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        dist.all_reduce(torch.ones(1))
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end)

    for milliseconds in run(program, latency=0.25):
        assert milliseconds == pytest.approx(250, abs=1)


def test_a_default_device_and_mixed_precision():
    def program(rank, inputs):
        torch.set_default_device("cuda")
        model = DDP(torch.nn.Linear(4, 2), device_ids=[rank])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda")
        for _ in range(2):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                out = model(torch.ones(3, 4))
            scaler.scale(out.float().sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return str(out.dtype), scaler.is_enabled(), next(model.parameters()).abs().sum().item()

    first, second = run(program)
    assert first == second and first[:2] == ("torch.bfloat16", True)


def test_sync_batch_norm_normalises_over_all_ranks():
    def net():
        torch.manual_seed(0)
        return torch.nn.Sequential(
            torch.nn.Conv1d(2, 3, 2), torch.nn.BatchNorm1d(3), torch.nn.Linear(4, 1)
        )

    data = torch.randn(5, 2, 5, generator=torch.Generator().manual_seed(1))

    def program(rank, inputs):
        model = DDP(
            torch.nn.SyncBatchNorm.convert_sync_batchnorm(net()).to(rank), device_ids=[rank]
        )
        mine = data[:2] if rank == 0 else data[2:]
        for _ in range(2):
            (model(mine).square().sum() * 2 / 15).backward()  # DDP divides by the 2 ranks
        return [p.grad for p in model.parameters()] + list(model.buffers())

    first, second = run(program)
    alone = net()
    for _ in range(2):
        alone(data).square().mean().backward()
    for mine, other, whole in zip(
        first, second, [p.grad for p in alone.parameters()] + list(alone.buffers()), strict=True
    ):
        assert torch.equal(torch.as_tensor(mine), torch.as_tensor(other))
        assert torch.allclose(torch.as_tensor(mine), whole, atol=1e-5)


def test_sync_batch_norm_under_join_wants_throw_on_early_termination():
    def program(rank, inputs):
        net = torch.nn.SyncBatchNorm.convert_sync_batchnorm(
            torch.nn.Sequential(torch.nn.Linear(1, 2), torch.nn.BatchNorm1d(2))
        )
        model = DDP(net.to(rank), device_ids=[rank])
        with model.join(throw_on_early_termination=inputs is not None):
            for input in inputs:
                model(input.expand(3, 1)).sum().backward()

    timeline = emulate(program, (2, 3))
    assert [end.kind for end in timeline.ends] == [EndKind.RAISED] * 2
    assert "exhausted inputs" in timeline.ends[1].text


def test_an_uneven_loop_hangs_in_sync_batch_norm():
    def program(rank, inputs):
        net = torch.nn.SyncBatchNorm.convert_sync_batchnorm(
            torch.nn.Sequential(torch.nn.Linear(1, 2), torch.nn.BatchNorm1d(2))
        ).to(rank)
        for input in inputs:
            net(input.expand(3, 1).to(rank)).sum().backward()

    timeline = emulate(program, (1, 2))
    finished, hung = timeline.ends
    assert (finished.kind, hung.kind, hung.proven) == (EndKind.FINISHED, EndKind.HUNG, True)
    (unmet,) = timeline.calls.filter(pl.col("completed_ns").is_null()).iter_rows(named=True)
    assert (unmet["rank"], unmet["op"], unmet["seq"]) == (1, "all_gather", hung.call)


def test_a_checkpoint_is_loaded_to_a_gpu(tmp_path):
    def program(rank, inputs):
        model = torch.nn.Linear(1, 1).to(rank)
        if rank == 0:
            torch.save(model.state_dict(), tmp_path / "model.pt")
        dist.barrier()
        for place in ({"cuda:0": f"cuda:{rank}"}, f"cuda:{rank}", torch.device("cuda", rank)):
            model.load_state_dict(torch.load(tmp_path / "model.pt", map_location=place))

    run(program)


def begin_and_end(rank, inputs):
    dist.init_process_group(BACKEND, rank=rank, world_size=2)
    total = torch.ones(1)
    dist.all_reduce(total)
    dist.destroy_process_group()
    return total.item(), dist.is_initialized()


BACKEND = "gloo"
ENGINES = {
    "emulate": emulate,
    "launch": lambda *args: launch(*args, on_output=None, progress=False),
}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_program_may_make_its_group_and_take_it_down(engine):
    timeline = ENGINES[engine](begin_and_end, (1, 1), "gloo")
    assert timeline.returns == ((2.0, False),) * 2


GROUPS_OF_OTHERS = [
    ({"backend": "mpi"}, "backend='mpi'"),
    ({"world_size": 3, "rank": 0}, "one count per rank"),
    ({"rank": 7}, "one count per rank"),
    ({}, ""),
    ({"backend": "cpu:gloo,cuda:nccl"}, "twice"),
]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_group_that_is_not_that_of_the_run_is_refused(engine):
    def program(rank, inputs):
        refusals = []
        for asked, _ in GROUPS_OF_OTHERS:
            try:
                dist.init_process_group(**asked)
                refusals.append("")
            except Exception as error:
                refusals.append(str(error))
        return refusals

    for refusals in ENGINES[engine](program, (1, 1), "gloo").returns:
        for (_, words), refusal in zip(GROUPS_OF_OTHERS, refusals, strict=True):
            assert words in refusal and bool(words) == bool(refusal)


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_a_model_may_be_made_on_the_meta_device(backend):
    """As FSDP's users do. torch keeps which functions make tensors from the first use on: an
    emulation's own must not be among them, nor be missed after it."""

    def program(rank, inputs):
        with torch.device("meta"):
            net = torch.nn.Linear(2, 2)
        return net.weight.is_meta, net.to_empty(device="cpu").weight.sum().item()

    assert run(program, backend=backend) == ((True, 0),) * 2
    with torch.device("meta"):
        assert torch.nn.Linear(2, 2).weight.is_meta
