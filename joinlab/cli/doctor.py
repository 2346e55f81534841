"""`doctor`: report what works on this machine: versions, GPUs, and the backends that ranks can be
launched on."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec

from joinlab._version import __version__
from joinlab.cli.command import Command
from joinlab.errors import LaunchError

PACKAGES = ("polars", "numpy", "plotly", "anywidget", "ipywidgets", "jupyterlab", "cloudpickle")


def _run(options: argparse.Namespace) -> int:
    works = False
    for name, said in _facts():
        print(f"{name:<15} {said}")
        works = works or said.startswith("yes")
    return 0 if works else 1


def _facts() -> Iterator[tuple[str, str]]:
    yield "joinlab", __version__
    yield "Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    yield "packages", ", ".join(f"{name} {_version(name)}" for name in PACKAGES)
    if find_spec("torch") is None:
        yield "PyTorch", "not installed: joinlab opens records here, but cannot launch or emulate"
        return
    import torch
    import torch.distributed as dist

    gpus = [torch.cuda.get_device_name(gpu) for gpu in range(torch.cuda.device_count())]
    nccl = None
    if gpus and dist.is_nccl_available():
        nccl = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    yield "PyTorch", torch.__version__
    yield "GPUs", ", ".join(gpus) or "none that PyTorch sees"
    yield "NCCL", nccl or "none, or no GPU for it"
    for backend, there in (("gloo", dist.is_gloo_available()), ("nccl", nccl)):
        yield (
            f"launch on {backend}",
            launchable(backend, len(gpus) if nccl else 0, nccl, bool(there)),
        )


def launchable(backend: str, gpus: int, nccl: str | None, gloo: bool) -> str:
    """Whether `joinlab.launch` can run two ranks on a backend here, and why not."""
    from joinlab.launcher.launcher import choose_backend

    if not hasattr(os, "fork"):
        return (
            f"no: it needs fork, which {sys.platform} lacks; use Linux, macOS or Windows with WSL"
        )
    if backend == "gloo":
        return "yes, on the CPU" if gloo else "no: this PyTorch was built without gloo"
    try:
        _, settings = choose_backend({"gpus": gpus, "nccl": nccl}, backend, 2)
    except LaunchError as error:
        return f"no: {error}"
    return "yes, two ranks on one GPU" if settings else "yes, one GPU per rank"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "missing"


COMMAND = Command(
    "doctor",
    "say what works on this machine: versions, backends, GPUs",
    lambda parser: None,
    _run,
    (("", "what works on this machine"),),
)
