"""`doctor`: report what works on this machine: versions, GPUs, and the backends that ranks can be
launched on."""

from __future__ import annotations

import argparse
import platform
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from joinlab._version import __version__
from joinlab.cli.command import Command
from joinlab.errors import LaunchError

PACKAGES = ("polars", "numpy", "plotly", "anywidget", "ipywidgets", "jupyterlab", "cloudpickle")


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--course",
        action="store_true",
        help="check in half a minute that the notebooks will work, and say what to run if not",
    )
    parser.add_argument(
        "--gpu", action="store_true", help="check what works on NVIDIA GPUs, in about five minutes"
    )
    parser.add_argument(
        "--file",
        type=Path,
        default=Path("joinlab-gpu.json"),
        help="with --gpu: where the results go; an interrupted run goes on from it (default: joinlab-gpu.json)",
    )
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="WORD", help="with --gpu: checks with such a word"
    )
    parser.add_argument("--again", action="store_true", help="with --gpu: also what the file has")


def _run(options: argparse.Namespace) -> int:
    if options.course:
        from joinlab.course.ready import check_course

        return check_course()
    if options.gpu:
        if find_spec("torch") is None:
            raise LaunchError("doctor --gpu needs torch: pip install 'joinlab[lab]'")
        from joinlab.launcher.gpu_checks import check_gpus

        return check_gpus(options.file, options.only, options.again)
    works = False
    for name, fact in _facts():
        print(f"{name:<15} {fact}")
        works = works or fact.startswith("yes")
    if works:
        return 0
    return 1


def _facts() -> Iterator[tuple[str, str]]:
    yield "joinlab", __version__
    yield "Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    yield "packages", ", ".join(f"{name} {_version(name)}" for name in PACKAGES)
    if find_spec("torch") is None:
        yield "PyTorch", "not installed: joinlab opens records here, but cannot launch or emulate"
        return
    import torch
    import torch.distributed as dist

    gpus = list(map(torch.cuda.get_device_name, range(torch.cuda.device_count())))
    nccl = None
    if gpus and dist.is_nccl_available():
        nccl = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    yield "PyTorch", torch.__version__
    yield "GPUs", ", ".join(gpus) or "none that PyTorch sees"
    yield "NCCL", nccl or "none, or no GPU for it"
    for backend in ("gloo", "nccl"):
        yield f"launch on {backend}", tried(backend)


def tried(backend: str) -> str:
    """Whether two ranks could be launched on a backend now: they are."""
    from joinlab.launcher.gpu_checks import smallest
    from joinlab.launcher.launcher import launch

    try:
        timeline = launch(smallest, (1, 1), backend, on_output=None, progress=False, timeout=60)
    except LaunchError as error:
        return f"no: {error}"
    if [end.kind.value for end in timeline.ends] == ["finished"] * 2:
        return "yes: two ranks did an all-reduce and a barrier just now"
    ended = " / ".join(f"{end} {end.text}".strip().partition("\n")[0] for end in timeline.ends)
    return f"no: two ranks were tried just now: {ended}"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "missing"


COMMAND = Command(
    "doctor",
    "say what works on this machine: versions, backends, GPUs",
    _options,
    _run,
    (
        ("", "what works on this machine"),
        ("--course", "whether it is ready for the notebooks"),
        ("--gpu", "what works on its GPUs, in a file to send"),
    ),
)
