"""Labels and call sites from stacks; test_recorder and test_scenarios have those of real DDP and
Join."""

from __future__ import annotations

import sys

import pytest

from joinlab.ops import Op
from joinlab.program.labels import MAX_FRAMES, Frame, Stacks, call_site, label, owner_of, walk

TORCH = "/env/lib/python3.11/site-packages/torch/"
USER = Frame("/project/train.py", 12, "worker")


def torch(file: str, function: str) -> Frame:
    return Frame(TORCH + file, 1, function)


def named(
    *inner: Frame,
    op: Op = Op.ALL_REDUCE,
    dtype: str = "float32",
    asynchronous: bool = False,
    nccl: bool = True,
) -> str:
    return label(
        op, (*inner, USER), asynchronous=asynchronous, dtype=dtype, all_reduce_barrier=nccl
    )


DDP, JOIN = "nn/parallel/distributed.py", "distributed/algorithms/join.py"


@pytest.mark.parametrize(
    ("expected", "frames", "options"),
    [
        ("all-reduce", [], {}),
        ("all-reduce", [torch("distributed/distributed_c10d.py", "all_reduce")], {}),
        ("reduce-scatter", [], {"op": Op.REDUCE_SCATTER}),
        ("barrier", [], {"op": Op.BARRIER, "nccl": False}),
        ("all-reduce (barrier)", [], {"op": Op.BARRIER}),
        ("all-reduce (DDP backward())", [torch("autograd/graph.py", "_engine_run_backward")], {}),
        (
            "all-reduce (DDP backward(), unused parameters)",
            [torch("autograd/graph.py", "_engine_run_backward")],
            {"dtype": "int32"},
        ),
        (
            "all-reduce (throw check)",
            [torch(JOIN, "notify_join_context"), torch(DDP, "_pre_forward")],
            {},
        ),
        (
            "all-reduce (notify_join_context())",
            [torch(JOIN, "notify_join_context")],
            {"asynchronous": True},
        ),
        ("broadcast (DDP bucket rebuild)", [torch(DDP, "_pre_forward")], {"op": Op.BROADCAST}),
        ("broadcast (DDP bucket rebuild)", [torch(DDP, "main_hook")], {"op": Op.BROADCAST}),
        (
            "all-gather (all_gather_object)",
            [
                torch("distributed/c10d.py", "all_gather"),
                torch("distributed/c10d.py", "all_gather_object"),
            ],
            {"op": Op.ALL_GATHER},
        ),
    ],
)
def test_labels(expected: str, frames: list[Frame], options: dict[str, object]) -> None:
    assert named(*frames, **options) == expected  # type: ignore[arg-type]


def test_a_collective_of_the_learners_own_inside_forward_is_not_taken_for_ddps() -> None:
    inner = Frame("/project/model.py", 5, "forward")
    frames = (torch("distributed/c10d.py", "all_reduce"), inner, torch(DDP, "_pre_forward"), USER)
    assert (
        label(Op.ALL_REDUCE, frames, asynchronous=False, dtype="float32", all_reduce_barrier=True)
        == "all-reduce"
    )


def test_the_call_site_is_the_innermost_line_of_the_learner() -> None:
    helper = Frame("/project/helpers.py", 3, "sync")
    library = Frame("/env/lib/python3.11/site-packages/lightning/x.py", 7, "step")
    assert call_site((torch("a.py", "f"), library, helper, USER)) == "/project/helpers.py:3"
    assert call_site((torch("a.py", "f"), library)) == f"{library.file}:7"
    assert call_site(()) is None


def test_kinds_of_files() -> None:
    import contextlib

    import joinlab.cases
    import joinlab.recorder.recorder

    assert owner_of("/kernels/ipykernel_7/123.py") == "program"
    assert owner_of(TORCH + DDP) == "torch"
    assert owner_of(contextlib.__file__) == "library"
    assert owner_of(joinlab.recorder.recorder.__file__) == "library"
    assert owner_of(joinlab.cases.__file__) == "program"


def test_each_distinct_stack_is_numbered_once() -> None:
    stacks = Stacks()

    def here() -> int:
        return stacks.intern(sys._getframe())

    assert [here() for _ in range(3)] == [0, 0, 0]
    assert here() == 1
    assert stacks.frames[0][0].function == "here"


def test_deep_recursion_is_cut() -> None:
    def deep(n: int) -> int:
        return deep(n - 1) if n else len(walk(sys._getframe()))

    assert deep(500) == MAX_FRAMES
