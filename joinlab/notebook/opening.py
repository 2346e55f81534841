"""The first picture in a fresh kernel: an emulation that ships with the package, while torch is loaded.

torch and what DDP needs take 3 to 8 s to import. Case 4 with 5 and 6 inputs, on today's NCCL, is drawn meanwhile from
a recorded file; tests/test_opening.py keeps it equal to what the emulator says, and rewrites it on request.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from joinlab.timeline import Ending, Timeline, timeline_from_rows

CASE, COUNTS, ENGINE = 4, (5, 6), "emulated nccl"
"""What was recorded."""

PLACES = {"{joinlab}": "joinlab", "{torch}": "torch"}
"""In the file these stand for the folders of packages: where they lie differs from machine to machine."""


@dataclass(frozen=True, slots=True)
class Opening:
    """What the bench shows before torch is there.

    timeline  of the recorded emulation
    titles    what each case is called, by number
    """

    timeline: Timeline
    titles: Mapping[int, str]


def torch_is_loaded() -> bool:
    """Whether an emulation could begin at once."""
    return "joinlab.emulator.emulate" in sys.modules and "torch._dynamo" in sys.modules


@cache
def opening() -> Opening:
    """The recorded emulation, as it would come out on this machine. Imports no torch."""
    text = (files("joinlab.notebook") / "opening.json").read_text("utf-8")
    for name, folder in _folders().items():
        text = text.replace(name, json.dumps(folder)[1:-1])
    data = json.loads(text)
    meta = data["meta"] | {"versions": _versions()}
    ends = [Ending(**end) for end in data["ends"]]
    timeline = timeline_from_rows(
        data["calls"], ends, meta, spans=data["spans"], output=data["output"], returns=data["returns"]
    )
    return Opening(timeline, {int(number): title for number, title in data["titles"].items()})


def written(timeline: Timeline, titles: Mapping[int, str]) -> str:
    """The text of the file, for this Timeline."""
    meta = {name: value for name, value in timeline.meta.items() if name != "versions"}
    ends = [
        {"kind": end.kind, "pending": end.pending, "call": end.call, "group": end.group, "text": end.text}
        | {"proven": end.proven}
        for end in timeline.ends
    ]
    data = {
        "titles": titles,
        "meta": meta,
        "ends": ends,
        "output": list(timeline.output),
        "returns": list(timeline.returns),
        "calls": [_without_nothing(row) for row in timeline.rows("calls")],
        "spans": [_without_nothing(row) for row in timeline.rows("spans")],
    }
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    for name, folder in _folders().items():
        text = text.replace(json.dumps(folder)[1:-1], name)
    return text + "\n"


def _without_nothing(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None}


def _folders() -> dict[str, str]:
    found = {}
    for name, package in PLACES.items():
        spec = find_spec(package)
        if spec is not None and spec.origin is not None:
            found[name] = str(Path(spec.origin).parent)
    return found


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {"python": ".".join(map(str, sys.version_info[:3]))}
    packages: Sequence[str] = ("joinlab", "torch")
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found
