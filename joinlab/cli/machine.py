"""What joinlab finds on this machine, and what therefore works here: the facts that `doctor` prints."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from joinlab._version import __version__
from joinlab.errors import LaunchError

PACKAGES = ("polars", "numpy", "plotly", "anywidget", "ipywidgets", "jupyterlab", "cloudpickle")


@dataclass(frozen=True, slots=True)
class Fact:
    """One line of the report. `works` is None where nothing can work or fail."""

    name: str
    text: str
    works: bool | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """What PyTorch says of this machine; `torch` is None where it is not installed.

    nccl  version of the NCCL that PyTorch was built with; None without NCCL or without a GPU
    gpus  name of each GPU that PyTorch sees
    """

    torch: str | None = None
    gloo: bool = False
    nccl: tuple[int, ...] | None = None
    gpus: tuple[str, ...] = ()
    fork: bool = hasattr(os, "fork")


def examine() -> Machine:
    """Ask PyTorch. Imports it, if it is installed."""
    try:
        import torch
        import torch.distributed as dist
    except ImportError:
        return Machine()
    if not dist.is_available():
        return Machine(torch.__version__)
    gpus = tuple(torch.cuda.get_device_name(gpu) for gpu in range(torch.cuda.device_count()))
    has_nccl = dist.is_nccl_available() and bool(gpus)
    version: Any = torch.cuda.nccl.version() if has_nccl else None  # type: ignore[no-untyped-call]
    return Machine(torch.__version__, dist.is_gloo_available(), version and tuple(version), gpus)


def facts(machine: Machine) -> list[Fact]:
    """The report, line by line."""
    found = [
        Fact("joinlab", __version__),
        Fact("Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}", True),
        Fact("PyTorch", machine.torch or "not installed: saved runs open here, launch cannot run", bool(machine.torch)),
        Fact("packages", ", ".join(f"{name} {_version(name)}" for name in PACKAGES)),
        Fact("GPUs", ", ".join(machine.gpus) or "none that PyTorch sees"),
        Fact("NCCL", ".".join(map(str, machine.nccl)) if machine.nccl else "none, or no GPU for it"),
    ]
    found += [Fact(f"launch on {backend}", *launchable(machine, backend)) for backend in ("gloo", "nccl")]
    found += [Fact("two ranks on one GPU", *shareable(machine))]
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    found += [Fact("chromium", chromium or "not found; only joinlab's own browser tests need it")]
    return found


def launchable(machine: Machine, backend: str) -> tuple[str, bool]:
    """Whether `joinlab.launch` can run two ranks on `backend` here, and why, or why not."""
    if not machine.torch:
        return "no: PyTorch is not installed", False
    if not machine.fork:
        return f"no: it needs a system with fork, and {sys.platform} has none; Windows with WSL has", False
    if backend == "gloo":
        return ("yes, on the CPU", True) if machine.gloo else ("no: this PyTorch was built without gloo", False)
    if not machine.nccl:
        return "no: it needs an NVIDIA GPU, and PyTorch sees none here", False
    from joinlab.launcher.launcher import choose_backend

    try:
        asked = {"gpus": len(machine.gpus), "nccl": ".".join(map(str, machine.nccl)), "gloo": machine.gloo}
        _, settings = choose_backend(asked, "nccl", 2)
    except LaunchError as error:
        return f"no: {error}", False
    return ("yes, two ranks on one GPU" if settings else "yes, one GPU a rank"), True


NATIVE_SHARING = (2, 30, 3)
"""The first NCCL that lets two ranks share a GPU, if NCCL_MULTI_RANK_GPU_ENABLE=1 is set."""


def shareable(machine: Machine) -> tuple[str, bool | None]:
    """Whether two ranks can share one GPU here."""
    if not machine.nccl:
        return "does not apply: no NCCL here", None
    if machine.nccl >= NATIVE_SHARING:
        return "yes: launch sets NCCL_MULTI_RANK_GPU_ENABLE=1 where it has to", True
    return (
        "only over loopback sockets, each rank posing as a host of its own (NCCL 2.30.3 and newer can do without)",
        None,
    )


def can_launch(machine: Machine) -> bool:
    """Whether `joinlab.launch` can run anything here."""
    return any(launchable(machine, backend)[1] for backend in ("gloo", "nccl"))


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "missing"
