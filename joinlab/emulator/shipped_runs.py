"""Emulations of the cases that ship with the package: every pair of 0 to 8 inputs, on each modelled
fabric.

Importing torch and the modules that DDP needs takes 3 to 8 s. Each run here equals an emulation of
it, and each run that goes wrong has its fix, which was tried. A file per fabric holds 486 Timelines
as lines of JSON, compressed together to 34 to 48 kB. `tests/notebook/test_shipped_runs.py` keeps them equal to
the emulator's, and `python -m tests.notebook.test_shipped_runs` writes them anew.
"""

from __future__ import annotations

import json
import lzma
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from joinlab.timeline import Ending, Timeline, timeline_from_rows

MOST = 8
"""Inputs of each of the two ranks, at most."""

FILES = {("nccl", "today"): "nccl", ("nccl", "1.9"): "nccl_1.9", ("gloo", "today"): "gloo"}
"""By (backend, era): the name of its file."""

PLACES = {"{joinlab}": "joinlab", "{torch}": "torch"}
"""Placeholders in the files for the folders of packages, which differ between machines."""


def torch_is_loaded() -> bool:
    """Whether an emulation could begin at once."""
    return "joinlab.emulator.emulate" in sys.modules and "torch._dynamo" in sys.modules


def is_of_this_torch(timeline: Timeline) -> bool:
    """Whether the installed PyTorch is the version that made this Timeline; its build (CPU, CUDA)
    does not matter."""
    return _is_installed((timeline.meta.get("versions") or {}).get("torch") or "")


def _is_installed(torch: str) -> bool:
    return torch.partition("+")[0] == _installed_torch().partition("+")[0]


@cache
def _installed_torch() -> str:
    """The version of PyTorch that is installed, from the package's metadata: reading it takes 1
    ms."""
    return version("torch")


@cache
def titles() -> Mapping[int, str]:
    """What each case is called, by number."""
    return {int(number): title for number, title in json.loads(_lines("nccl", "today")[0]).items()}


def shipped_run(
    case: int, inputs: Sequence[int], backend: str = "nccl", era: str = "today"
) -> Timeline | None:
    """The emulation of a case as it would come out on this machine, or None if it is not here.
    Imports no torch.

    shipped_run(4, (5, 6)).ends[1].kind            # hung
    """
    if not ships(case, inputs, backend, era):
        return None
    return _read(_lines(backend, era)[1 + position(case, inputs)])


def ships(
    case: int,
    inputs: Sequence[int],
    backend: str = "nccl",
    era: str = "today",
    of_this_torch: bool = False,
) -> bool:
    """Whether `shipped_run` has this emulation. It is not read for that.

    of_this_torch  and was made by the installed PyTorch
    """
    if case not in titles() or (backend, era) not in FILES:
        return False
    if len(inputs) != 2 or max(inputs) > MOST:
        return False
    return not of_this_torch or _is_installed(_made_by(backend, era))


@cache
def _made_by(backend: str, era: str) -> str:
    """The version of PyTorch that made the runs of a file, all of them in one sitting."""
    meta = json.loads(_lines(backend, era)[1])["meta"]
    return str(meta["versions"]["torch"])


@cache
def endings(backend: str, era: str) -> str:
    """How each run of a file ends, in the order of their positions: as `tone` of a first screen, by
    its first letter."""
    table = (files("joinlab.emulator") / "shipped" / "endings.json").read_text("utf-8")
    letters: str = json.loads(table)[FILES[backend, era]]
    return letters


def position(case: int, inputs: Sequence[int]) -> int:
    """The place of a run in its file."""
    return ((case - 1) * (MOST + 1) + inputs[0]) * (MOST + 1) + inputs[1]


@cache
def _lines(backend: str, era: str) -> list[str]:
    packed = (files("joinlab.emulator") / "shipped" / f"{FILES[backend, era]}.xz").read_bytes()
    return lzma.decompress(packed).decode().splitlines()


def _read(text: str) -> Timeline:
    for name, folder in folders().items():
        text = text.replace(name, json.dumps(folder)[1:-1])
    data = json.loads(text)
    ends = [Ending(**end) for end in data["ends"]]
    more = {name: data[name] for name in ("spans", "output", "returns")}
    return timeline_from_rows(data["calls"], ends, data["meta"], **more)


@cache
def folders() -> dict[str, str]:
    """By placeholder: the folder that it stands for here."""
    specs = {name: find_spec(package) for name, package in PLACES.items()}
    return {
        name: str(Path(spec.origin).parent) for name, spec in specs.items() if spec and spec.origin
    }
