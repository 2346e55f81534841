"""The emulator against the documentation: the six cases match the thread, call by call."""

from __future__ import annotations

import ast
import gc
import json
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

import joinlab
from joinlab import cases
from joinlab.emulator.emulate import emulate
from joinlab.emulator.host import Host
from joinlab.emulator.run import Emulation
from joinlab.errors import ProgramError
from joinlab.gloo.fabric import GlooFabric
from joinlab.nccl.fabric import Communicator, NcclFabric
from joinlab.timeline import Timeline
from tests.timelines import DOCUMENTED, documented_rows

TRACES = [
    (number, answer["N"], [(row["input"], row["r0"], row["r1"]) for row in answer["trace"]])
    for number, case in DOCUMENTED.items()
    for answer in (case["answer"] if isinstance(case["answer"], list) else [case["answer"]])
]
THEN = {"era": "1.9", "barrier_value": 7, "pad": 0}


def case(number: int, n: int, **options) -> Timeline:
    return emulate(cases.CASES[number].program, (n, n + 1), **options)


# Where our trace continues beyond the documented one, or stops before it, and why.
AHEAD_OF_THE_HANG = {(3, 2): 1}
"""The barrier that the host hangs in, behind the backward() that the trace ends with."""
REBUILD = {(2, 1), (5, 1)}
"""With one common input, the second forward() of rank 1 rebuilds the buckets, and hangs in that."""


@pytest.mark.parametrize(
    ("number", "n", "documented"), TRACES, ids=[f"case {c}, N={n}" for c, n, _ in TRACES]
)
def test_the_traces_come_out_row_by_row(number, n, documented):
    # the answer's case 4 saw a garbage rank
    timeline = case(number, n, **{**THEN, "pad": int(number == 4)})
    rows = documented_rows(timeline)
    if (number, n) in REBUILD:
        (call,) = timeline.calls.filter(
            (timeline.calls["rank"] == 1) & (timeline.calls["input"] == 1)
        ).rows(named=True)
        assert call["origin"] == "broadcast (DDP bucket rebuild)"
        assert str(timeline.ends[1]) == "hung (proven)"
        documented = documented[:1]
        rows = rows[:1]
    elif (number, n) == (4, 2):
        assert rows[len(documented) :] == [(2, "all-reduce (join() check bwd grad sync)", None)]
        rows = rows[:-1]
    elif (number, n) in AHEAD_OF_THE_HANG:
        assert rows[len(documented) :] == [(2, None, "all-reduce (barrier)")]
        rows = rows[:-1]
    assert rows == documented


def test_what_case_4_reads_decides_it():
    today, then = case(4, 2), case(4, 2, **THEN)
    for timeline, value in ((today, 0.0), (then, 7 * 2**-149)):
        met = timeline.calls.filter(
            timeline.calls["origin"] == "all-reduce (join() _get_num_nonjoined_procs())"
        )
        read = [
            json.loads(text)[0][0]
            for text in met.filter(met["rank"] == 0)["value_out"].drop_nulls()
        ]
        assert read[:2] == [1.0, value]  # before that, one rank still has inputs


def test_it_says_what_it_is():
    meta = case(1, 1, seconds_per_input=(1.0, 2.0)).meta
    assert (meta["engine"], meta["backend"], meta["clock"]["domain"]) == (
        "emulated",
        "nccl",
        "virtual",
    )
    assert meta["emulation"]["seconds_per_input"] == [1.0, 2.0]
    assert meta["groups"] == {"0": [0, 1]}


@pytest.mark.parametrize(
    "wrong",
    [
        {"backend": "mpi"},
        {"era": "2.0"},
        {"barrier_value": 2**32},
        {"gpu": "K80"},
        {"pad": -1},
        {"seed": -1},
        {"seconds_per_input": (1.0,)},
        {"seconds_per_input": float("nan")},
        {"latency": -1},
        {"bytes_per_second": 0},
        {"timeout": 0},
        {"on_output": 3},
        {"inputs": ()},
    ],
)
def test_wrong_arguments_are_named(wrong):
    with pytest.raises(ProgramError, match=next(iter(wrong))):
        emulate(cases.case_1, **wrong)


def test_anything_but_a_program_is_refused():
    with pytest.raises(ProgramError, match="worker"):
        emulate("case_1")


HOME = Path(joinlab.__file__).parent / "emulator"
MODULES = sorted(HOME.glob("*.py"))


def uses_of_threading(path: Path) -> set[str]:
    """What a module takes from `threading`, by name."""
    attributes = (
        node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)
    )
    return {
        one.attr
        for one in attributes
        if isinstance(one.value, ast.Name) and one.value.id == "threading"
    }


# where the program may have threads of its own
IN_A_RANKS_OWN_PROCESS = {
    "link",
    "shared_log",
    "virtual",
}


def test_the_scheduler_alone_knows_threads():
    stems = {path.stem for path in MODULES if uses_of_threading(path)}
    assert stems - IN_A_RANKS_OWN_PROCESS == {"scheduler"}


def skewed(rank, inputs):
    dist.all_reduce(torch.ones(1))
    dist.all_reduce(torch.ones(1 if rank else 3))
    torch.zeros(1).item()


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_an_emulation_is_freed_when_it_returns(backend, monkeypatch):
    parts = []

    def noted(kind):
        made = kind.__init__

        def init(self, *args, **kwargs):
            made(self, *args, **kwargs)
            parts.append(weakref.ref(self))

        monkeypatch.setattr(kind, "__init__", init)

    programs = (cases.case_1, cases.case_3, cases.case_4, cases.case_5, skewed)
    for program in programs:
        emulate(program, (1, 2), backend)  # torch keeps exceptions of its first imports
    for kind in (Emulation, Host, NcclFabric, Communicator, GlooFabric):
        noted(kind)
    gc.collect()
    gc.disable()
    try:
        for program in programs:
            parts.clear()
            emulate(program, (1, 2), backend)
            assert len(parts) >= 4
            assert {ref() for ref in parts} == {None}, program
    finally:
        gc.enable()


def test_seeds_of_numpy_are_seeds() -> None:
    assert emulate(lambda rank, inputs: None, (1, 1), seed=np.int64(3)).meta["seeds"] == [3, 3]
    assert emulate(lambda rank, inputs: None, (1, 1), seed=np.array([3, 4])).meta["seeds"] == [3, 4]


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_a_tensor_can_be_resized_after_a_collective(backend):
    def program(rank, inputs):
        x = torch.ones(4)
        dist.all_reduce(x)
        dist.broadcast(x, 0)
        x.untyped_storage().resize_(0)
        x.untyped_storage().resize_(32)
        return x.untyped_storage().nbytes()

    assert emulate(program, (0, 0), backend).returns == (32, 32)
