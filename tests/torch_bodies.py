"""PyTorch's own tests of torch.distributed as programs: their bodies, run on joinlab's two engines.

The bodies are the methods of `_DistTestBase` in
torch/testing/_internal/distributed/distributed_test.py. PyTorch runs each in several processes;
here each is a program for `emulate` and `launch`. Its assertions decide how it ends, and both
engines must agree.

`python -m tests.torch_bodies` runs all, prints the results, and exits with 1 if the engines differ,
or if a body fails that is not in UNFIT. `--backend nccl` only emulates the bodies that fit NCCL,
without a GPU.

The bodies are changed for both engines:

- they need no GPU. On gloo `.cuda()`, `device=rank` and the like leave a tensor in the host's memory; on NCCL, which is
  only emulated, they behave as in any emulated program
- four ranks are enough where a body wants eight
- calls are not profiled: PyTorch's helper `call_dist_op` also looks at the profiler's events
- a body's file-based barrier becomes `dist.barrier` on its own group, since emulated ranks share the class attribute
  that it counts in
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import unittest
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

RANKS = 4
COPY = "distributed_test_bodies"
"""PyTorch's file is copied to where it is no part of torch, so that its lines count as a
program's."""

SKIPPED = "skipped: "
"""How the result begins of a body that skips itself."""

PASSED = ("passed",) * RANKS

UNFIT: dict[str, tuple[str, ...]] = {
    "torch's profiler records a process, which emulated ranks share": (
        *(f"test_{name}_{profiler}" for name in (
            "send_recv", "send_recv_nccl", "send_recv_any_source", "send_recv_with_tag", "isend",
        ) for profiler in ("autograd_profiler", "torch_profiler")),
        "test_ddp_profiling_torch_profiler",
    ),
    "needs the streams and events of a GPU": (
        "test_ddp_apply_optim_in_backward", "test_ddp_apply_optim_in_backward_grad_as_bucket_view_false",
        "test_ddp_apply_optim_in_backward_ignored_params",
        "test_ddp_native_mixed_precision_ignored_params",
        "test_ddp_native_mixed_precision_no_grad_as_bucket_view_no_set_grad_none",
        "test_ddp_native_mixed_precision_grad_as_bucket_view_no_set_grad_none",
        "test_ddp_native_mixed_precision_grad_as_bucket_view_set_grad_to_none",
        "test_ddp_native_mixed_precision_no_grad_as_bucket_view_set_grad_to_none",
        "test_DistributedDataParallel_SyncBatchNorm_half", "test_nccl_high_priority_stream",
    ),
    "compares devices, and all tensors lie in the host's memory": ("test_ddp_device", "test_ddp_logging_data_gpu"),
    "reads the environment in C++, which is the process's, and so no rank's of its own": ("test_ddp_logging_data_cpu",),
    "races itself: rank 0 removes a file that the others may not have read": (
        "test_post_localSGD_optimizer_step_reload",
    ),
    "waits for the time limit of a monitored barrier beside a hang": (
        "test_monitored_barrier_allreduce_hang", "test_monitored_barrier_allreduce_hang_wait_all_ranks",
    ),
    "counts the process groups, of which the runner has one of its own": ("test_3_level_hierarchical_model_averager",),
    "needs torchvision": ("test_SyncBatchNorm_process_group",),
    "traces joinlab's process groups with torch.compile, which does not know them": (
        "test_ddp_compile_static_graph",
    ),
    "takes minutes": ("test_ddp_uneven_inputs",),
}  # fmt: skip
"""Bodies that are not run, and why. What a body's own decorators ask for in vain is printed with
its reason."""

UNFIT_ON_GLOO: dict[str, tuple[str, ...]] = {
    "SyncBatchNorm takes tensors on a GPU alone": (
        "test_DistributedDataParallel_SyncBatchNorm_Channels_Last", "test_DistributedDataParallel_SyncBatchNorm",
        "test_DistributedDataParallel_SyncBatchNorm_No_Affine", "test_DistributedDataParallel_SyncBatchNorm_2D_Input",
        "test_DistributedDataParallel_SyncBatchNorm_Single_Input_Per_Process",
        "test_DistributedDataParallel_SyncBatchNorm_Diff_Input_Sizes_Running_Value",
        "test_DistributedDataParallel_SyncBatchNorm_Diff_Input_Sizes_gradient",
        "test_ddp_uneven_inputs_stop_iteration_sync_bn", "test_ddp_inference", "test_sync_bn_logged",
    ),
    "makes a group on NCCL": ("test_average_parameters",),
}  # fmt: skip
"""Not run on gloo, but on emulated NCCL."""

UNFIT_ON_NCCL: dict[str, tuple[str, ...]] = {
    "waits for a group's time limit, which on NCCL ends the process": (
        "test_barrier_timeout_group", "test_barrier_timeout_full_group",
    ),
}  # fmt: skip
"""Not run on emulated NCCL, but on gloo."""


# ---------------- in every process


def load(backend: str, folder: Path) -> ModuleType:
    """The module with the bodies. It is for a process that does nothing else: torch stays
    changed."""
    if COPY in sys.modules:
        return sys.modules[COPY]
    os.environ.update(BACKEND=backend, WORLD_SIZE=str(RANKS), MASTER_ADDR="localhost")
    os.environ["PYTORCH_PRINT_REPRO_ON_FAILURE"] = "0"
    # torch.testing takes the base class of its TestCase from there
    if "expecttest" not in sys.modules:
        sys.modules["expecttest"] = ModuleType("expecttest")
        sys.modules["expecttest"].TestCase = unittest.TestCase  # type: ignore[attr-defined]
    sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type]  # slow to import, and not used
    argv, sys.argv[1:] = sys.argv[1:], []  # torch.testing reads options from it
    sys.path.insert(0, str(folder))
    try:
        _ask_for_no_gpu(backend)
        if backend == "gloo":
            _stay_in_host_memory()
        return import_module(COPY)
    finally:
        sys.path.remove(str(folder))
        sys.argv[1:] = argv


def _ask_for_no_gpu(backend: str) -> None:
    """The decorators that skip a body do not: they would look at this machine."""
    import torch.distributed as dist
    from torch.testing._internal import common_distributed as common

    for name in ("skip_if_no_gpu", "skip_if_small_worldsize", "skip_if_rocm_multiprocess"):
        setattr(common, name, lambda body: body)
    names = (
        "skip_if_lt_x_gpu",
        "nccl_skip_if_lt_x_gpu",
        "require_n_gpus_for_nccl_backend",
        "requires_nccl_version",
    )
    for name in names:
        setattr(common, name, lambda *args, **kwargs: lambda body: body)
    common.init_multigpu_helper = lambda size, backend: {rank: [rank] for rank in range(size)}
    if backend == "nccl":
        dist.is_nccl_available = lambda: True


def _stay_in_host_memory() -> None:
    """Lines that name a GPU mean the host's memory, in both engines."""
    import torch

    # it scripts functions, and torch.jit knows torch.zeros and its like by identity
    import torch.distributed.optim
    from torch.nn.parallel import DistributedDataParallel

    from joinlab.emulator.devices import _FACTORIES, _METHODS, is_gpu

    def replace(
        owner: Any, name: str, changed: Callable[..., tuple[tuple[Any, ...], dict[str, Any]]]
    ) -> None:
        """Call the function with other arguments."""
        before = getattr(owner, name)

        @wraps(before)
        def replaced(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = changed(*args, **kwargs)
            return before(*args, **kwargs)

        setattr(owner, name, replaced)

    def made(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return args, {**kwargs, "device": "cpu"} if is_gpu(kwargs.get("device")) else kwargs

    def moved(value: Any, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return made(value, *("cpu" if is_gpu(one) else one for one in args), **kwargs)

    def wrapped(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return args[:2], {**kwargs, "device_ids": None, "output_device": None}

    for name in _FACTORIES:
        replace(torch, name, made)
    for name in _METHODS:
        replace(torch.Tensor, name, made)
    for owner in (torch.Tensor, torch.nn.Module):
        replace(owner, "to", moved)
        owner.cuda = lambda value, *args, **kwargs: value  # type: ignore[assignment, method-assign]
    replace(DistributedDataParallel, "__init__", wrapped)
    for name in ("set_device", "synchronize", "manual_seed"):
        setattr(torch.cuda, name, lambda *args, **kwargs: None)
    torch.cuda.device = lambda *args: nullcontext()  # type: ignore[assignment, misc]
    torch.cuda.current_device = lambda: 0
    torch.cuda.device_count = lambda: RANKS


def names_of(bodies: ModuleType) -> list[str]:
    """All bodies, in the order of the file."""
    return [name for name in vars(bodies.DistributedTest._DistTestBase) if name.startswith("test_")]


def program_of(names: Sequence[str], backend: str, folder: Path) -> Callable[[int, Any], list[str]]:
    """Bodies as one program. It returns "passed", or why the body skips itself, for each."""

    def worker(rank: int, inputs: Any) -> list[str]:
        return [_run(name, rank, backend, folder) for name in names]

    worker.__name__ = names[0]
    return worker


def _run(name: str, rank: int, backend: str, folder: Path) -> str:
    import torch.distributed as dist

    bodies = load(backend, folder)
    os.environ.update(BACKEND=backend, MASTER_ADDR="localhost", TEMP_DIR=str(folder))
    fence = dist.new_group()  # connections of its own: a body may break the others

    class Case(bodies.DistributedTest._DistTestBase, bodies.TestDistBackend):  # type: ignore[misc, name-defined]
        def _barrier(self, *args: Any, **kwargs: Any) -> None:
            dist.barrier(fence)

        def call_dist_op(
            self,
            title: str,
            is_async: bool,
            op: Any,
            *args: Any,
            secondary_op_call: Any = None,
            **kwargs: Any,
        ) -> None:
            for name in ("expect_event", "profile_cuda", "tensor_shapes"):
                kwargs.pop(name, None)
            works = [op(*args, **kwargs)]
            if secondary_op_call is not None:
                works.append(secondary_op_call())
            if is_async:
                for work in works:
                    work.wait()

    body = getattr(Case, name)
    if getattr(body, "__unittest_skip__", False):
        return f"{SKIPPED}{body.__unittest_skip_why__}"
    case = Case(name)
    case.rank = rank
    case.file_name = str(folder / "store")
    try:
        getattr(case, name)()
    except unittest.SkipTest as skip:
        return f"{SKIPPED}{skip}"
    except SystemExit as end:
        reasons = {skip.exit_code: skip.message for skip in bodies.TEST_SKIPS.values()}
        if end.code not in reasons:
            raise
        return f"{SKIPPED}{reasons[end.code]}"
    case._barrier()  # as PyTorch's runner: no rank ends while another one still tests
    return "passed"


# ---------------- on both engines


TOGETHER = 20
"""Bodies that pass when they are emulated one by one are launched so many in a program: it spares
0.6 s of import for each rank of each. Where one of them does not pass, all of them are launched one
by one."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How one body ended on each rank, emulated and launched; () if it was not launched."""

    name: str
    emulated: tuple[str, ...]
    launched: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool:
        """Whether both engines say the same, as far as both were asked."""
        return self.launched in ((), self.emulated)


def run_on_both(names: Sequence[str], backend: str, folder: Path) -> list[Ended]:
    """Run each body: emulated, then launched, except on NCCL and where it skips itself."""
    emulated = {name: _emulated(name, backend, folder) for name in names}
    asked = (
        []
        if backend == "nccl"
        else [name for name in names if not emulated[name][0].startswith(SKIPPED)]
    )
    passing = [name for name in asked if emulated[name] == PASSED]
    together = [passing[at : at + TOGETHER] for at in range(0, len(passing), TOGETHER)]
    with ThreadPoolExecutor(2) as lanes:
        launched = dict.fromkeys(passing, PASSED)
        ends = lanes.map(lambda some: _launched(some, folder), together)
        alone = [
            name for some, end in zip(together, ends, strict=True) if end != PASSED for name in some
        ]
        alone += [name for name in asked if name not in launched]
        launched.update(
            zip(alone, lanes.map(lambda name: _launched([name], folder), alone), strict=True)
        )
    return [Ended(name, emulated[name], launched.get(name, ())) for name in names]


def _emulated(name: str, backend: str, folder: Path) -> tuple[str, ...]:
    from joinlab import emulate

    try:
        return _endings(
            emulate(program_of([name], backend, folder), (1,) * RANKS, backend, timeout=120)
        )
    except Exception as error:  # what joinlab refuses to model
        return (f"{type(error).__name__}: {error}",) * RANKS
    finally:
        _clear(folder)


def _launched(names: Sequence[str], folder: Path) -> tuple[str, ...]:
    from joinlab import launch

    _clear(folder)
    program = program_of(names, "gloo", folder)
    return _endings(
        launch(program, (1,) * RANKS, "gloo", no_progress=60, on_output=None, progress=False)
    )


def _clear(folder: Path) -> None:
    """Remove the files by which test_get_rank counts the ranks."""
    for file in (folder / "test_dir").iterdir():
        file.unlink()


def _endings(timeline: Any) -> tuple[str, ...]:
    """How each rank ended, in words that are the same in both engines."""
    from tests.agreement import what

    def of(end: Any, value: Any) -> str:
        if end.kind == "finished":
            return (
                "passed"
                if set(value) == {"passed"}
                else next(one for one in value if one != "passed")
            )
        return f"{end.kind}: {what(end.text)}" if end.kind == "raised" else str(end.kind)

    return tuple(of(end, value) for end, value in zip(timeline.ends, timeline.returns, strict=True))


def prepared(backend: str, folder: Path) -> list[str]:
    """Copy PyTorch's file into `folder`, and load it. Returns the names of its bodies."""
    import torch

    path = Path("testing", "_internal", "distributed", "distributed_test.py")
    (folder / "test_dir").mkdir()
    shutil.copy(Path(torch.__file__).parent / path, folder / f"{COPY}.py")
    return names_of(load(backend, folder))


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Run PyTorch's own distributed tests on both engines."
    )
    parser.add_argument("names", nargs="*", help="bodies to run (default: all)")
    parser.add_argument(
        "--backend", choices=("gloo", "nccl"), default="gloo", help="nccl: emulated only"
    )
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        unfit = {**UNFIT, **(UNFIT_ON_GLOO if asked.backend == "gloo" else UNFIT_ON_NCCL)}
        names = [
            name
            for name in prepared(asked.backend, folder)
            if not any(name in some for some in unfit.values())
        ]
        ended = run_on_both(asked.names or names, asked.backend, folder)
    wrong = 0
    skipped: dict[str, list[str]] = {}
    for one in ended:
        if one.emulated[0].startswith(SKIPPED):
            skipped.setdefault(one.emulated[0], []).append(one.name)
        elif not one.agrees or one.emulated != PASSED:
            wrong += 1
            print(f"{one.name}\n  emulated {one.emulated}\n  launched {one.launched}")
    for reason, names in {**skipped, **unfit}.items():
        print(f"{len(names):4} {reason}: {' '.join(names)}")
    run = len(ended) - sum(map(len, skipped.values()))
    print(f"{run} bodies run, {run - wrong} pass in all that ran them")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
