"""Hand-made segments of recorded ranks, in the format of recorder/events.py, with chosen times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def begin(rank: int, world: int, **about: Any) -> str:
    said = {
        "e": "begin",
        "rank": rank,
        "t": 1000,
        "pid": 1,
        "host": f"host{rank}",
        "world": world,
        "wall": 5000,
        **about,
    }
    group = {"e": "group", "name": "0", "ranks": list(range(world)), "backend": "gloo", "t": 1000}
    return json.dumps(said) + "\n" + json.dumps(group) + "\n"


def call(id: int, at: int, done: int | None, op: str = "all_reduce") -> str:
    event = {"e": "call", "id": id, "g": "0", "s": id, "n": id + 1, "op": op, "o": op, "i": None, "d": "float32",
             "sh": [[1]], "st": 0, "t": at}  # fmt: skip
    end = "" if done is None else json.dumps({"e": "done", "id": id, "t": done}) + "\n"
    return json.dumps(event) + "\n" + end


def write(folder: Path, rank: int, text: str, name: str | None = None) -> None:
    folder.mkdir(exist_ok=True)
    (folder / (name or f"rank-{rank}.0.jsonl")).write_text(text)
