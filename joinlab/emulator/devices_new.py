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
from types import SimpleNamespace
from typing import Any, NoReturn

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel, _init_utils
from torch.jit import _builtins
from torch.nn.parallel import DistributedDataParallel
from torch.utils._device import DeviceContext

from joinlab.emulator.link import Link
from joinlab.emulator.sync_batch_norm_new import patch_sync_batch_norm
from joinlab.emulator.virtual import Patches, RankState

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


def index_of(state: RankState, device: Any) -> int:
    """The number of the GPU that `device` names. Raises RuntimeError, like CUDA's "invalid device
    ordinal"."""
    if device is None or device == "cuda":
        return state.gpu
    index = device if isinstance(device, int) else torch.device(device).index
    if index is None:
        return state.gpu
    if not 0 <= index < state.ranks:
        raise RuntimeError(
            f"CUDA error: invalid device ordinal. The program asks for GPU {index}; an emulation of {state.ranks} "
            f"ranks has GPUs 0 to {state.ranks - 1}, one for each."
        )
    return int(index)


def patch_devices(patches: Patches) -> None:
    """Prepare the replacements that make those lines work in ranks."""
    state = patches.state

    def in_host_memory(device: Any) -> Any:
        """`device`, or "cpu" if it names a GPU."""
        if not is_gpu(device):
            return device
        index_of(state, device)
        return "cpu"

    def stays(value: Any, device: Any = None, *args: Any, **kwargs: Any) -> Any:
        index_of(state, device)
        return value

    def without_gpu(devices: Any) -> Any:
        """DDP: a module in the host's memory takes neither device_ids nor output_device."""
        several = isinstance(devices, (list, tuple)) and len(devices) == 1
        device = devices[0] if several else devices
        if not is_gpu(device):
            return devices
        index_of(state, device)
        return None

    def map_location(location: Any) -> Any:
        if isinstance(location, Mapping):
            return {name: in_host_memory(device) for name, device in location.items()}
        return location if callable(location) else in_host_memory(location)

    for owner, names in ((torch, _FACTORIES), (torch.Tensor, _METHODS)):
        for name in names:
            patches.wrap(owner, name, lambda make: _made(make, in_host_memory))
    patches.wrap(torch.Tensor, "to", lambda move: _moved(state, move, in_host_memory))
    patches.wrap(torch.nn.Module, "to", lambda move: _moved(None, move, in_host_memory))
    owners: tuple[Any, ...] = (torch.Tensor, torch.nn.Module)
    for owner in owners:
        patches.replace(owner, "cuda", stays)
    patches.replace(torch.Tensor, "pin_memory", lambda tensor, *args: tensor)
    patches.replace(torch.Tensor, "record_stream", lambda tensor, stream: None)
    patches.change_arguments(DeviceContext, "__init__", device=in_host_memory)
    patches.change_arguments(torch, "load", map_location=map_location)
    patches.change_arguments(
        DistributedDataParallel, "__init__", device_ids=without_gpu, output_device=without_gpu
    )
    # FSDP's choice of a device: without device_id it takes the machine's GPU, which is to be none
    # here.
    patches.change_arguments(
        _init_utils,
        "_init_device_handle",
        device_id=lambda device: torch.device("cpu") if device is None else device,
    )
    patches.wrap(
        FullyShardedDataParallel,
        "__init__",
        lambda init: _made(init, in_host_memory, "device_id"),
    )
    # A mesh of GPUs: what is sharded over it (fully_shard, DTensor) lies in the host's memory, too.
    patches.change_arguments(
        DeviceMesh, "__init__", device_type=lambda kind: "cpu" if is_gpu(kind) else kind
    )
    patches.change_arguments(torch.amp.grad_scaler.GradScaler, "__init__", device=in_host_memory)
    patches.wrap(torch.amp.autocast_mode.autocast, "__init__", _autocast)
    patch_sync_batch_norm(patches)
    _patch_cuda(patches)


# ---------------------------------------------------------------------------------------- tensors
# and modules


def _made(
    make: Callable[..., Any], in_host_memory: Callable[[Any], Any], name: str = "device"
) -> Callable[..., Any]:
    """A function that takes `device=`, or whatever it calls it."""

    def made(*args: Any, **kwargs: Any) -> Any:
        device = kwargs.get(name)
        if device is not None and is_gpu(device):
            kwargs[name] = torch.device(in_host_memory(device))
        return make(*args, **kwargs)

    made.__name__ = make.__name__
    # torch.jit.script knows torch.zeros and its like by identity (torch/jit/_builtins.py,
    # _builtin_table, v2.13.0), and ZeroRedundancyOptimizer's import scripts functions that call
    # them.
    if (builtin := _builtins._find_builtin(make)) is not None:  # type: ignore[no-untyped-call]
        _builtins._register_builtin(made, builtin)
    return made


def _moved(
    state: RankState | None, move: Callable[..., Any], in_host_memory: Callable[[Any], Any]
) -> Callable[..., Any]:
    """`.to()` of a tensor (on this rank) or a module: its device comes first, if it comes at
    all."""

    def to(value: Any, *args: Any, **kwargs: Any) -> Any:
        device = args[0] if args else kwargs.get("device")
        if is_gpu(device):
            if args:
                args = (in_host_memory(device), *args[1:])
            else:
                kwargs["device"] = in_host_memory(device)
        elif (
            state is not None
            and isinstance(device, (str, torch.device))
            and torch.device(device).type == "cpu"
        ):
            state.linked.sync()  # a copy from GPU to host
        return move(value, *args, **kwargs)

    to.__name__ = "to"
    return to


def _autocast(init: Callable[..., None]) -> Callable[..., None]:
    """Mixed precision: on the host with the type that a GPU would take."""

    def autocast(
        context: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.get_autocast_dtype("cuda")
        init(context, device_type, dtype, *args, **kwargs)

    return autocast


# ----------------------------------------------------------------------------------------
# torch.cuda


def _patch_cuda(patches: Patches) -> None:
    cuda, state = torch.cuda, patches.state

    def set_gpu(device: Any) -> None:
        state.gpu = index_of(state, device)

    def enter(context: Any) -> None:
        context.prev_idx, state.gpu = state.gpu, index_of(state, context.idx)

    def leave(context: Any, *_: Any) -> None:
        state.gpu = context.prev_idx

    patches.replace(cuda, "set_device", set_gpu)
    patches.replace(cuda, "synchronize", lambda device=None: state.linked.synchronize())
    patches.replace(cuda.device, "__enter__", enter)
    patches.replace(cuda.device, "__exit__", leave)
    answers: dict[str, Callable[[], Any]] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "is_bf16_supported": lambda: True,
        "device_count": lambda: state.ranks,
        "current_device": lambda: state.gpu,
        "get_device_name": lambda: NAME,
        "get_device_capability": lambda: CAPABILITY,
        "get_device_properties": _properties,
        "mem_get_info": lambda: (MEMORY_BYTES, MEMORY_BYTES),
        "current_stream": lambda: Stream(state.linked),
        "default_stream": lambda: Stream(state.linked),
        **{
            name: lambda: 0
            for name in ("memory_allocated", "max_memory_allocated", "memory_reserved")
        },
        **{
            name: lambda: None
            for name in ("init", "empty_cache", "ipc_collect", "reset_peak_memory_stats")
        },
    }
    for name, answer in answers.items():  # only to the program: torch must not take a GPU for real
        patches.for_programs(cuda, name, lambda *args, answer=answer, **kwargs: answer())
    for name in ("Stream", "stream"):
        patches.for_programs(cuda, name, _no_streams)
    patches.for_programs(cuda, "Event", lambda *args, **kwargs: Event(state.linked))
    for name in ("range_push", "range_pop", "mark"):
        patches.replace(cuda.nvtx, name, lambda *args: None)


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


def _no_streams(*args: Any, **kwargs: Any) -> NoReturn:
    raise RuntimeError(
        "an emulated rank has one stream for its computation, so torch.cuda.Stream is not modelled. Leave the stream "
        "out, or run the program with joinlab.launch on GPUs."
    )


class Stream:
    """The one stream of an emulated rank."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def synchronize(self) -> None:
        """The host waits for it."""
        self._link.sync()

    def query(self) -> bool:
        """Whether all that was queued on it is done."""
        return self._link.clock.stream_ns <= self._link.clock.host_ns

    def wait_stream(self, stream: Any) -> None:
        """There is no other."""

    def wait_event(self, event: Any) -> None:
        """An event of this stream is behind it already."""

    def record_event(self, event: Event | None = None) -> Event:
        """Record `event`, or a new one."""
        event = event or Event(self._link)
        event.record()
        return event


class Event:
    """torch.cuda.Event on virtual time."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._ns: int | None = None

    def record(self, stream: Any = None) -> None:
        """The event completes once the stream has finished the work that is queued on it now."""
        clock = self._link.clock
        self._ns = max(clock.host_ns, clock.stream_ns)

    def wait(self, stream: Any = None) -> None:
        """There is no other stream that could wait."""

    def synchronize(self) -> None:
        """The host waits for it."""
        self._link.sync()

    def query(self) -> bool:
        """Whether it has happened."""
        return self._ns is None or self._ns <= self._link.clock.host_ns

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds from this event to `end`."""
        if self._ns is None or end._ns is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        return (end._ns - self._ns) / 1e6
