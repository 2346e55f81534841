"""The modelled NCCL against NCCL's own kernels: which calls complete, and every byte of their
output; and its arithmetic by itself."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pytest
import torch

from joinlab.nccl.kernels import Kernels
from tests.nccl_lines import CHOSEN, DRAWN, difference, programs, run

DRAWN_PROGRAMS = programs(DRAWN)
SHOWN = {
    what: list(group) for what, group in groupby(programs(CHOSEN), lambda program: program["shows"])
}


def test_the_table_covers_what_it_says():
    assert sum(map(len, SHOWN.values())) >= 90
    assert {
        "AVG of integers",
        "AVG in half precision",
        "AVG of an undefined half",
        "order of a reduce",
    } <= set(SHOWN)
    assert {"neighbours, 2.29.7", "neighbours, 2.7.8", "threads of one warp"} <= set(SHOWN)


@pytest.mark.parametrize("what", SHOWN)
def test_every_ending_and_every_byte_is_that_of_nccl(what):
    assert [program for program in SHOWN[what] if difference(program, run(program))] == []


@pytest.mark.parametrize("version", ["2.29.7", "2.7.8"])
def test_a_thousand_drawn_programs_end_as_in_nccl(version):
    drawn = [program for program in DRAWN_PROGRAMS if program["nccl"] == version]
    assert len(drawn) >= 200
    assert [program for program in drawn if difference(program, run(program))] == []


def test_another_ending_and_another_byte_would_be_seen():
    completed = (program for program in DRAWN_PROGRAMS if any(program["done"]))
    program = next(completed)
    played = run(program)
    done = [count + 1 for count in program["done"]]
    assert difference({**program, "done": done}, played) == "ending"
    after = [["00" + text[2:] + "ff" for text in texts] for texts in program["after"]]
    assert difference({**program, "after": after}, played) == "bytes"


def test_on_pascal_the_threads_of_a_warp_wait_for_each_other():
    for program in SHOWN["threads of one warp"]:
        assert sum(run(program, gpu="P100").done) < sum(program["done"]), program


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
