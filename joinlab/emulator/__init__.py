"""The emulator: real DDP code on a modelled NCCL or gloo, without a GPU, in milliseconds.

It replaces PyTorch's own process groups, whose methods change between PyTorch versions. It refuses
a version on which its tests have not passed, since its results there might be false.
"""

from __future__ import annotations

from importlib import metadata

from joinlab.errors import LaunchError

KNOWN = ("2.13", "2.14", "2.15")
"""The versions of PyTorch that the emulator's tests pass on; pyproject.toml has the same."""


def check_version(version: str) -> None:
    """Raise LaunchError if the emulator does not know this version of PyTorch."""
    if ".".join(version.split(".")[:2]) not in KNOWN:
        raise LaunchError(
            f"joinlab emulates PyTorch {KNOWN[0]} to {KNOWN[-1]}, and this is {version}. Launch the program, or take "
            "one of these: pip install 'joinlab[lab]'"
        )


try:
    check_version(metadata.version("torch"))
except metadata.PackageNotFoundError as _error:
    raise ModuleNotFoundError("No module named 'torch'", name="torch") from _error
