"""The lines of a program that name a GPU. Emulated on NCCL they work: rank r has GPU r, tensors
stay in host memory.

    model = Net().to(rank)                    the module itself: nothing moves
    DDP(model, device_ids=[rank])             DDP without device_ids
    torch.zeros(1, device="cuda")             a tensor in the host's memory
    torch.cuda.set_device(rank)               remembered, for torch.cuda.current_device()
    torch.cuda.synchronize(), x.to("cpu")     the host waits for its stream, as `.item()` and `.cpu()` do
    torch.cuda.is_available()                 True where the program asks; torch itself sees the machine as it is
    torch.cuda.Event                          reads the stream's virtual clock

`x.device` says "cpu", and `x.to(rank)` returns `x` itself, not a copy. A program that makes streams
of its own cannot be emulated, since a rank has one: `torch.cuda.Stream` raises, and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from types import SimpleNamespace
from typing import Any, NoReturn

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel, _init_utils
from torch.jit import _builtins
from torch.nn.parallel import DistributedDataParallel
from torch.utils._device import DeviceContext

from joinlab.emulator.patches import Patches
from joinlab.emulator.scheduler import current
from joinlab.emulator.sync_batch_norm import patch_sync_batch_norm

NAME = "a GPU that joinlab emulates"
MEMORY_BYTES = 80 * 2**30
CAPABILITY = (9, 0)
"""Properties of an H100 (NVIDIA H100 data sheet), by which programs choose between code paths."""

_FACTORIES = (
    "tensor", "as_tensor", "scalar_tensor", "zeros", "ones", "full", "empty", "empty_strided", "rand", "randn",
    "randint", "randperm", "arange", "linspace", "logspace", "eye", "normal", "zeros_like", "ones_like", "full_like",
    "empty_like", "rand_like", "randn_like", "randint_like",
)  # fmt: skip
_METHODS = ("new_tensor", "new_zeros", "new_ones", "new_full", "new_empty")
"""Functions of torch, and methods of a tensor, that take `device=`."""


def is_gpu(device: object) -> bool:
    """Whether `device` names a GPU, in any of the ways that torch allows.

    >>> [is_gpu(device) for device in (0, "cuda", "cuda:1", torch.device("cuda", 1), "cpu", None, True)]
    [True, True, True, True, False, False, False]
    """
    if isinstance(device, torch.device):
        return device.type == "cuda"
    if isinstance(device, str):
        return device == "cuda" or device.startswith("cuda:")
    return isinstance(device, int) and not isinstance(device, bool)


def index_of(host: Any, device: Any) -> int:
    """The number of the GPU that `device` names. Raises RuntimeError, like CUDA's "invalid device
    ordinal"."""
    if device is None or device == "cuda":
        return int(host.state.gpu)
    if isinstance(device, int):
        index = device
    else:
        index = torch.device(device).index
    if index is None:
        return int(host.state.gpu)
    if not 0 <= index < host.state.ranks:
        raise RuntimeError(
            f"CUDA error: invalid device ordinal. The program asks for GPU {index}; an emulation of {host.state.ranks} "
            f"ranks has GPUs 0 to {host.state.ranks - 1}, one for each."
        )
    return int(index)


def in_host_memory(host: object, device: object) -> Any:
    """`device`, or "cpu" if it names a GPU."""
    if not is_gpu(device):
        return device
    index_of(host, device)
    return "cpu"


def patch_devices(patches: Patches) -> None:
    """Make those lines work in ranks."""
    for owner, names in ((torch, _FACTORIES), (torch.Tensor, _METHODS)):
        for name in names:
            patches.set(owner, name, _made(getattr(owner, name)))
    patches.set(torch.Tensor, "to", _moved(torch.Tensor.to, synced=True))
    patches.set(torch.nn.Module, "to", _moved(torch.nn.Module.to, synced=False))
    owners: tuple[Any, ...] = (torch.Tensor, torch.nn.Module)
    for owner in owners:
        patches.for_ranks(
            owner,
            "cuda",
            lambda host: lambda value, device=None, *args, **kwargs: _stay(host, value, device),
        )
    patches.for_ranks(torch.Tensor, "pin_memory", lambda host: lambda value, *args: value)
    patches.for_ranks(torch.Tensor, "record_stream", lambda host: lambda value, stream: None)
    patches.given(DeviceContext, "__init__", device=in_host_memory)
    patches.given(torch, "load", map_location=_map_location)
    patches.given(
        DistributedDataParallel, "__init__", device_ids=_without_gpu, output_device=_without_gpu
    )
    patches.given(_init_utils, "_init_device_handle", device_id=_for_fsdp)
    patches.set(
        FullyShardedDataParallel, "__init__", _made(FullyShardedDataParallel.__init__, "device_id")
    )
    # A mesh of GPUs: what is sharded over it (fully_shard, DTensor) lies in the host's memory, too.
    patches.given(
        DeviceMesh, "__init__", device_type=lambda host, kind: "cpu" if is_gpu(kind) else kind
    )
    patches.given(torch.amp.grad_scaler.GradScaler, "__init__", device=in_host_memory)
    patches.set(
        torch.amp.autocast_mode.autocast,
        "__init__",
        _autocast(torch.amp.autocast_mode.autocast.__init__),
    )
    patch_sync_batch_norm(patches)
    _patch_cuda(patches)


# ---------------- tensors and modules


@cache
def _made(make: Callable[..., object], name: str = "device") -> Callable[..., object]:
    """A function that takes `device=`, or whatever it calls it. Made once per process: see its last
    lines."""

    def made(*args: object, **kwargs: object) -> object:
        device = kwargs.get(name)
        if device is not None:
            host = current()
            if host is not None and is_gpu(device):
                kwargs[name] = torch.device(in_host_memory(host, device))
        return make(*args, **kwargs)

    made.__name__ = make.__name__
    # torch.jit.script knows torch.zeros and its like by identity (torch/jit/_builtins.py,
    # _builtin_table, v2.13.0), and ZeroRedundancyOptimizer's import scripts functions that call
    # them. The table keeps ids, so `made` must live on.
    builtin = _builtins._find_builtin(make)  # type: ignore[no-untyped-call]
    if builtin is not None:
        _builtins._register_builtin(made, builtin)
    return made


def _moved(move: Callable[..., object], synced: bool) -> Callable[..., object]:
    """`.to()` of a tensor or module: its device comes first, if it comes at all."""

    def to(value: object, *args: object, **kwargs: object) -> object:
        host = current()
        if host is None:
            return move(value, *args, **kwargs)
        device = args[0] if args else kwargs.get("device")
        if is_gpu(device):
            index_of(host, device)
            if args:
                args = ("cpu", *args[1:])
            else:
                kwargs["device"] = "cpu"
        elif (
            synced
            and isinstance(device, (str, torch.device))
            and torch.device(device).type == "cpu"
        ):
            host.sync()  # a copy from GPU to host
        return move(value, *args, **kwargs)

    return to


def _stay(host: object, value: object, device: object) -> object:
    index_of(host, device)
    return value


def _map_location(host: object, location: object) -> object:
    if isinstance(location, Mapping):
        return {name: in_host_memory(host, device) for name, device in location.items()}
    return location if callable(location) else in_host_memory(host, location)


def _without_gpu(host: object, given: object) -> object:
    """DDP: a module in the host's memory takes neither device_ids nor output_device."""
    if isinstance(given, (list, tuple)) and len(given) == 1:
        device = given[0]
    else:
        device = given
    if not is_gpu(device):
        return given
    index_of(host, device)
    return None


def _for_fsdp(host: object, device: object) -> object:
    """FSDP's choice of a device: without device_id it takes the machine's GPU, which is to be none
    here."""
    return torch.device("cpu") if device is None else device


def _autocast(init: Callable[..., None]) -> Callable[..., None]:
    """Mixed precision: on the host with the type that a GPU would take."""

    def autocast(
        context: object, device_type: str, dtype: object = None, *args: object, **kwargs: object
    ) -> None:
        if current() is not None and device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.get_autocast_dtype("cuda")
        init(context, device_type, dtype, *args, **kwargs)

    return autocast


# ---------------- torch.cuda


def _patch_cuda(patches: Patches) -> None:
    cuda = torch.cuda
    patches.for_ranks(
        cuda, "set_device", lambda host: lambda device: _set_gpu(host, index_of(host, device))
    )
    patches.for_ranks(cuda, "synchronize", lambda host: lambda device=None: host.synchronize())
    patches.for_ranks(cuda.device, "__enter__", lambda host: lambda context: _enter(host, context))
    patches.for_ranks(
        cuda.device, "__exit__", lambda host: lambda context, *_: _set_gpu(host, context.prev_idx)
    )
    answers: dict[str, Callable[[Any], object]] = {
        "is_available": lambda host: True,
        "is_initialized": lambda host: True,
        "is_bf16_supported": lambda host: True,
        "device_count": lambda host: host.state.ranks,
        "current_device": lambda host: host.state.gpu,
        "get_device_name": lambda host: NAME,
        "get_device_capability": lambda host: CAPABILITY,
        "get_device_properties": lambda host: _properties(),
        "mem_get_info": lambda host: (MEMORY_BYTES, MEMORY_BYTES),
        "current_stream": Stream,
        "default_stream": Stream,
        **{
            name: lambda host: 0
            for name in ("memory_allocated", "max_memory_allocated", "memory_reserved")
        },
        **{
            name: lambda host: None
            for name in ("init", "empty_cache", "ipc_collect", "reset_peak_memory_stats")
        },
    }
    for name, tell in answers.items():  # only to the program: torch must not take a GPU for real
        patches.for_programs(cuda, name, lambda host, tell=tell: lambda *args, **kwargs: tell(host))  # type: ignore[misc]
    for name in ("Stream", "stream"):
        patches.for_programs(cuda, name, lambda host: _no_streams)
    patches.for_programs(cuda, "Event", lambda host: lambda *args, **kwargs: GpuEvent(host))
    for name in ("range_push", "range_pop", "mark"):
        patches.for_ranks(cuda.nvtx, name, lambda host: lambda *args: None)


def _set_gpu(host: Any, index: int) -> None:
    host.state.gpu = index


def _enter(host: Any, context: Any) -> None:
    context.prev_idx, host.state.gpu = host.state.gpu, index_of(host, context.idx)


def _properties() -> SimpleNamespace:
    major, minor = CAPABILITY
    return SimpleNamespace(
        name=NAME,
        total_memory=MEMORY_BYTES,
        major=major,
        minor=minor,
        multi_processor_count=132,
        warp_size=32,
    )


def _no_streams(*args: object, **kwargs: object) -> NoReturn:
    raise RuntimeError(
        "an emulated rank has one stream for its computation, so torch.cuda.Stream is not modelled. Leave the stream "
        "out, or run the program with joinlab.launch on GPUs."
    )


class Stream:
    """The one stream of an emulated rank."""

    def __init__(self, host: Any) -> None:
        self._host = host

    def synchronize(self) -> None:
        """The host waits for it."""
        self._host.sync()

    def query(self) -> bool:
        """Whether all that was queued on it is done."""
        return bool(self._host.stream_ns <= self._host.now)

    def wait_stream(self, stream: object) -> None:
        """There is no other."""

    def wait_event(self, event: object) -> None:
        """An event of this stream is behind it already."""

    def record_event(self, event: GpuEvent | None = None) -> GpuEvent:
        """Record `event`, or a new one."""
        event = event or GpuEvent(self._host)
        event.record()
        return event


class GpuEvent:
    """torch.cuda.Event on virtual time."""

    def __init__(self, host: Any) -> None:
        self._host = host
        self._ns: int | None = None

    def record(self, stream: object = None) -> None:
        """The event completes once the stream has finished the work that is queued on it now."""
        self._ns = max(self._host.now, self._host.stream_ns)

    def wait(self, stream: object = None) -> None:
        """There is no other stream that could wait."""

    def synchronize(self) -> None:
        """The host waits for it."""
        self._host.sync()

    def query(self) -> bool:
        """Whether it has happened."""
        return self._ns is None or bool(self._ns <= self._host.now)

    def elapsed_time(self, end: GpuEvent) -> float:
        """Milliseconds from this event to `end`."""
        if self._ns is None or end._ns is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        return (end._ns - self._ns) / 1e6
