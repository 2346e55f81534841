"""The facts about each op, and the error for an op without a model."""

from __future__ import annotations

import inspect
import sys
from types import ModuleType

import pytest
import torch

from joinlab import ops
from joinlab.errors import LaunchError
from joinlab.gloo.fabric import GlooFabric
from joinlab.nccl.fabric import NcclFabric
from joinlab.ops import FACTS, Needs, Op, OpFacts, op_of
from joinlab.program import process_group
from tests.modelled_ranks import MakeFabric
from tests.play import Call, play


@pytest.mark.parametrize("op", Op)
def test_every_op_has_facts_that_fit_together(op: Op) -> None:
    facts = FACTS[op]
    assert op_of(str(op)) is op
    assert (
        ("root" in facts.alike) == facts.rooted == (facts.needs in (Needs.AT_ROOT, Needs.FROM_ROOT))
    )
    assert ("reduce_op" in facts.alike) == facts.reduces
    assert facts.point_to_point == (op in ops.POINT_TO_POINT)


def test_an_unknown_op_is_none() -> None:
    assert op_of("all_reduce_sparse") is None


def test_an_op_without_facts_is_refused_at_import(monkeypatch: pytest.MonkeyPatch) -> None:
    text = inspect.getsource(ops)
    added = text.replace('    RECV = "recv"\n', '    RECV = "recv"\n    SCAN = "scan"\n')
    assert added != text
    module = ModuleType("edited")
    monkeypatch.setitem(sys.modules, "edited", module)
    with pytest.raises(
        TypeError, match=r"FACTS in edited needs one line for every Op; differing: .*scan"
    ):
        exec(compile(added, "edited.py", "exec"), module.__dict__)


@pytest.fixture
def scan(monkeypatch: pytest.MonkeyPatch) -> Op:
    """A new op with its facts and its method, of which neither model knows the messages:
    all_reduce is now called "scan"."""
    op = str.__new__(Op, "scan")
    op._name_, op._value_ = "SCAN", "scan"
    monkeypatch.setitem(Op._member_map_, "SCAN", op)
    monkeypatch.setitem(Op._value2member_map_, "scan", op)
    monkeypatch.setitem(
        FACTS, op, OpFacts(Needs.EVERYONE, ("dtype", "shape", "reduce_op"), reduces=True)
    )
    monkeypatch.setitem(process_group.METHODS, "allreduce", process_group.Method(op, 0, 0))
    return op


@pytest.mark.parametrize(
    "counts", [(1, 1), (1, 0), (1, 1, 1)], ids=["agreeing", "one rank stays away", "three ranks"]
)
@pytest.mark.parametrize("fabric", [GlooFabric, NcclFabric])
def test_an_op_that_no_model_carries_out_is_refused(
    scan: Op, fabric: MakeFabric, counts: tuple[int, ...]
) -> None:
    """mypy points at every place that lacks it, since each `match` ends in assert_never."""
    barrier = Call("barrier")  # on NCCL it makes the communicator
    lanes = [[barrier, *[Call("scan", [torch.ones(2)])] * count] for count in counts]
    with pytest.raises(LaunchError, match=r"joinlab could not model .*(SCAN|scan)"):
        play(lanes, fabric)
