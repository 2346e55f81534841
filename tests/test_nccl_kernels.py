"""The emulated NCCL against NCCL's own kernels: which calls complete, and every byte of their
output.

data/nccl_lines.jsonl.gz has programs whose calls do not match, run on the LL device code of NCCL
2.29.7 and 2.7.8, compiled for a CPU. Each line is a JSON object: its purpose; the version; `pad`,
the value of an undefined register; `near`, 8 bytes that are repeated in the memory around every
tensor; per rank its calls, with the bytes before; `done`, the number of calls that each rank
completed; `after`, the output bytes of each completed call; and whether the ending depends on
threads of one warp progressing independently, as since Volta.
"""

from __future__ import annotations

import gzip
import json
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from joinlab import emulate
from joinlab.nccl.kernels import Kernels

FILE = Path(__file__).parent.parent / "data" / "nccl_lines.jsonl.gz"
PROGRAMS = [json.loads(line) for line in gzip.decompress(FILE.read_bytes()).splitlines()]
SHOWN = {
    what: list(programs) for what, programs in groupby(PROGRAMS, lambda program: program["shows"])
}
BLOCK = 512


def tensor(data: bytes, dtype: str, near: str) -> torch.Tensor:
    """A tensor at the beginning of a block of memory that is filled with `near`."""
    size = -(-(len(data) + BLOCK) // BLOCK) * BLOCK
    block = bytearray((bytes.fromhex(near)[::-1] * size)[:size])
    block[: len(data)] = data
    return (
        torch.frombuffer(block, dtype=torch.uint8).clone()[: len(data)].view(getattr(torch, dtype))
    )


def content(text: str) -> bytes:
    return b"" if text == "-" else bytes.fromhex(text)


def run(program: dict, **knobs: object) -> tuple[list[int], list[list[bytes]]]:
    """How many calls each rank completes, and the bytes of every output."""
    torch.kept = (
        kept
    ) = {}  # by rank its outputs, also of one that hangs: ranks share modules of others, and nothing else

    def worker(rank, inputs):
        works, outs = [], torch.kept.setdefault(rank, [])
        for call in program["ranks"][rank]:
            out = tensor(content(call["out"]), call["dtype"], program["near"])
            into = (
                None
                if call["in"] is None
                else tensor(content(call["in"]), call["dtype"], program["near"])
            )
            outs.append(out)
            reduce_op, root = getattr(dist.ReduceOp, call["reduce_op"].upper()), call["root"]
            match call["op"]:
                case "all_reduce":
                    works.append(dist.all_reduce(out, reduce_op, async_op=True))
                case "broadcast":
                    works.append(dist.broadcast(out, root, async_op=True))
                case "reduce":
                    works.append(dist.reduce(out, root, reduce_op, async_op=True))
                case "all_gather":
                    works.append(dist.all_gather_single(out, into, async_op=True))
                case "reduce_scatter":
                    works.append(dist.reduce_scatter_single(out, into, reduce_op, async_op=True))
        for work in works:
            work.wait()
        torch.cuda.synchronize()

    era = "1.9" if program["nccl"].startswith("2.7") else "today"
    timeline = emulate(worker, (1,) * len(program["ranks"]), era=era, pad=program["pad"], **knobs)
    done = [0] * len(program["ranks"])
    for rank, completed in timeline.calls.select("rank", "completed_ns").iter_rows():
        done[rank] += completed is not None
    return done, [
        [out.view(torch.uint8).numpy().tobytes() for out in kept.get(rank, [])]
        for rank in range(len(done))
    ]


def test_the_table_covers_what_it_says():
    assert len(PROGRAMS) >= 90
    assert {
        "AVG of integers",
        "AVG in half precision",
        "AVG of an undefined half",
        "order of a reduce",
    } <= set(SHOWN)
    assert {"neighbours, 2.29.7", "neighbours, 2.7.8", "threads of one warp"} <= set(SHOWN)


@pytest.mark.parametrize("what", SHOWN)
def test_every_ending_and_every_byte_is_that_of_nccl(what):
    for program in SHOWN[what]:
        done, outs = run(program)
        assert done == program["done"], program
        after = [[content(text) for text in each] for each in program["after"]]
        assert [each[: len(known)] for each, known in zip(outs, after, strict=True)] == after, (
            program
        )


def test_on_pascal_the_threads_of_a_warp_wait_for_each_other():
    for program in SHOWN["threads of one warp"]:
        done, _ = run(program, gpu="P100")
        assert sum(done) < sum(program["done"]), program


def bits(values, dtype):
    return torch.tensor(values, dtype=dtype).view(torch.uint8).numpy()


def word(data):
    return int.from_bytes(bytes(data), "little")


INF = float("inf")
NAN = float("nan")


@pytest.mark.parametrize("op", ["sum", "product"])
@pytest.mark.parametrize(
    ("dtype", "nan"),
    [(torch.float32, 0x7FFFFFFF), (torch.float16, 0x7FFF), (torch.bfloat16, 0x7FFF)],
)
def test_a_gpu_knows_one_nan(dtype, nan, op):
    kernels = Kernels(old=False, pad=0)
    other = -INF if op == "sum" else 0.0
    assert word(kernels.reduce(dtype, op, bits([INF], dtype), bits([other], dtype))) == nan
    payload = bits([NAN], dtype).copy()
    payload[0] |= 1
    assert word(kernels.reduce(dtype, op, payload, bits([1.0], dtype))) == nan


def test_float64_keeps_the_payload_of_a_nan():
    payload = np.array([0x7FF0000000000123], np.uint64).view(np.uint8)
    found = Kernels(old=False, pad=0).reduce(
        torch.float64, "sum", payload, bits([1.0], torch.float64)
    )
    assert word(found) == 0x7FF8000000000123


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("op", "zero"), [("min", -0.0), ("max", 0.0)])
def test_min_and_max_prefer_a_number(dtype, op, zero):
    kernels = Kernels(old=False, pad=0)
    one, other = bits([NAN, 2.0, NAN, 0.0, -0.0], dtype), bits([1.0, NAN, NAN, -0.0, 0.0], dtype)
    found = torch.from_numpy(kernels.reduce(dtype, op, one, other).copy()).view(dtype).double()
    assert found[:2].tolist() == [1.0, 2.0]
    assert found[2].isnan()
    assert [str(value) for value in found[3:].tolist()] == [str(zero)] * 2


def test_in_2_7_8_a_nan_is_compared_like_a_number():
    kernels = Kernels(old=True, pad=0)
    incoming, own = bits([NAN, 1.0], torch.float32), bits([2.0, NAN], torch.float32)
    least, most = (
        kernels.reduce(torch.float32, op, incoming, own).view(np.float32) for op in ("min", "max")
    )
    assert (least[0], bool(np.isnan(least[1]))) == (2.0, True)  # (x < y) ? x : y
    assert (bool(np.isnan(most[0])), most[1]) == (True, 1.0)  # (x < y) ? y : x


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64, torch.uint8])
@pytest.mark.parametrize("size", [2, 3, 7])
def test_avg_of_integers_rounds_towards_zero(dtype, size):
    info = torch.iinfo(dtype)
    values = (
        [info.min, info.max, -7, -1, 0, 1, 5, 100]
        if info.min < 0
        else [0, 1, 5, 100, info.max, 2, 3, 4]
    )
    found = Kernels(old=False, pad=0).finish(dtype, "avg", bits(values, dtype), size)
    assert torch.from_numpy(found).view(dtype).tolist() == [
        int(abs(v) // size) * (1 if v >= 0 else -1) for v in values
    ]


def test_a_tensor_can_be_resized_after_a_collective():
    def program(rank, inputs):
        x = torch.ones(4)
        dist.all_reduce(x)
        dist.broadcast(x, 0)
        x.untyped_storage().resize_(0)
        x.untyped_storage().resize_(32)
        return x.untyped_storage().nbytes()

    assert emulate(program, (0, 0)).returns == (32, 32)
    assert emulate(program, (0, 0), "gloo").returns == (32, 32)
