"""Programs whose calls do not match, as NCCL's own kernels ran them: which calls complete, and every byte.

    python -m tests.nccl_lines

plays all programs of data/nccl_lines.jsonl.gz and tests/material/nccl_programs.jsonl.gz on the modelled NCCL and counts
those that differ. They ran on the LL device code of NCCL 2.29.7 and 2.7.8, compiled for a CPU; the results did not
depend on the order in which threads ran. A line is a JSON object:

    nccl    the version
    pad     the value of an undefined register
    near    8 bytes that are repeated in the memory around every tensor, hex
    ranks   per rank its calls: op, dtype, count, root, reduce_op, and the bytes of its tensors before the call, hex;
            `in` is None where the op works in place
    done    how many of its calls each rank completed
    after   per rank, the bytes of the output of each completed call
    warp    the ending rests on threads of one warp making progress apart, as since Volta
    shows   what the program is there for (data/nccl_lines.jsonl.gz alone)
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from joinlab.nccl.fabric import NcclFabric
from tests.play import Call, Played, Synchronize, Wait, play

CHOSEN = Path(__file__).parent.parent / "data" / "nccl_lines.jsonl.gz"
DRAWN = Path(__file__).parent / "material" / "nccl_programs.jsonl.gz"
BLOCK = 512
METHODS = {"all_gather": "_allgather_base", "reduce_scatter": "_reduce_scatter_base"}

Program = dict[str, Any]


def programs(path: Path) -> list[Program]:
    """Those of a file."""
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def run(program: Program, **knobs: Any) -> Played:
    """Play a program; each rank issues all its calls, then waits for them."""
    lanes = [[_call(call, program["near"]) for call in calls] for calls in program["ranks"]]
    steps = [[*calls, *[Wait(calls)] * bool(calls), Synchronize()] for calls in lanes]
    era = "1.9" if program["nccl"].startswith("2.7") else "today"
    return play(steps, NcclFabric, era=era, pad=program["pad"], **knobs)


def difference(program: Program, played: Played) -> str:
    """ "" if all calls complete, and all bytes are, as in NCCL; otherwise "ending" or "bytes"."""
    if played.done != program["done"]:
        return "ending"
    for results, after in zip(played.calls, program["after"], strict=True):
        if [result.held for result in results[: len(after)]] != list(map(content, after)):
            return "bytes"
    return ""


def content(text: str) -> bytes:
    """Bytes from their text in a line."""
    return b"" if text == "-" else bytes.fromhex(text)


def _call(call: dict[str, Any], near: str) -> Call:
    own, out = (
        None if call[side] is None else _tensor(content(call[side]), call["dtype"], near)
        for side in ("in", "out")
    )
    assert out is not None
    return Call(
        call["op"],
        [out if own is None else own],
        None if own is None else [out],
        root=call["root"] or 0,
        reduce_op=call["reduce_op"] or "sum",
        method=METHODS.get(call["op"], ""),
        waits=False,
    )


def _tensor(data: bytes, dtype: str, near: str) -> torch.Tensor:
    """A tensor at the beginning of a block of memory that is filled with `near`."""
    size = -(-(len(data) + BLOCK) // BLOCK) * BLOCK
    block = bytearray((bytes.fromhex(near)[::-1] * size)[:size])
    block[: len(data)] = data
    whole = torch.frombuffer(block, dtype=torch.uint8).clone()
    return whole[: len(data)].view(getattr(torch, dtype))


def main() -> int:
    """Play all; the exit status is 1 if any differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--show", type=int, default=3, help="print this many that differ")
    show = parser.parse_args().show
    counts: Counter[tuple[str, str]] = Counter()
    for path in (CHOSEN, DRAWN):
        for number, program in enumerate(programs(path)):
            played = run(program)
            what = difference(program, played)
            counts[f"{path.name}, NCCL {program['nccl']}", what or "as in NCCL"] += 1
            if what and sum(counts.values()) <= show:
                print(f"{path.name}, line {number + 1}: {what} differs: {played}")
    for (name, what), count in sorted(counts.items()):
        print(f"{name}: {count} programs: {what}")
    return int(any(what != "as in NCCL" for _, what in counts))


if __name__ == "__main__":
    sys.exit(main())
