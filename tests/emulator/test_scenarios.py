"""Every program of joinlab.scenarios, emulated and launched: how it ends, what it returns, which
calls it makes."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import polars as pl
import pytest

import joinlab
from joinlab import Timeline, scenarios
from joinlab.analysis.matching import match
from tests import more_scenarios
from tests.agreement import differences

# what torch itself deprecates is not our concern here
pytestmark = pytest.mark.filterwarnings("ignore")

FINISH = "finished"
HANG = "hung (proven)"
RAISE = "raised"


@cache
def run(name: str, inputs: tuple[int, ...], how: str, seed: Any = 0) -> Timeline:
    """One run of a scenario: "nccl" or "gloo" are emulated, "launched" is real processes on
    gloo."""
    name, _, off = name.partition(", without ")
    program = getattr(scenarios, name, None) or getattr(more_scenarios, name)
    if off:
        program = partial(program, **{off: False})
    if how != "launched":
        return joinlab.emulate(program, inputs, backend=how, seed=seed)
    return joinlab.launch(
        program, inputs, backend="gloo", seed=seed, on_output=None, progress=False
    )


def everywhere(name: str, inputs: Sequence[int]) -> list[Timeline]:
    return [run(name, tuple(inputs), how) for how in ("nccl", "gloo", "launched")]


def calls(timeline: Timeline, rank: int, words: str = "") -> list[dict[str, Any]]:
    mine = timeline.calls.filter(pl.col("rank") == rank).rows(named=True)
    return [row for row in mine if words in row["origin"] and "construction" not in row["origin"]]


def plain(value: Any) -> Any:
    """Nested lists of rounded floats."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return round(value, 5) if isinstance(value, float) else value


def numbers(value: Any) -> list[float]:
    """All numbers in what ranks returned."""
    if isinstance(value, (list, tuple)):
        return [number for one in value for number in numbers(one)]
    return [] if value is None else np.ravel(value).tolist()


# ---- all of them: the ending, and what comes back

ROWS = [[10.0, 11.0], [20.0, 21.0], [30.0, 31.0]]
SUM = [60.0, 63.0]
# name, inputs, endings on NCCL, endings on gloo, what each rank returns (None: not looked at here)
ENDINGS: list[tuple[str, tuple[int, ...], list[str], list[str], list[Any] | None]] = [
    ("broadcast", (1, 1, 1), [FINISH] * 3, [FINISH] * 3, [ROWS[1]] * 3),
    ("reduce", (1, 1, 1), [FINISH] * 3, [FINISH] * 3, None),
    ("all_reduce", (1, 1, 1), [FINISH] * 3, [FINISH] * 3, [SUM] * 3),
    ("gather", (1, 1, 1), [FINISH] * 3, [FINISH] * 3, [ROWS, None, None]),
    ("gather_with_a_list_everywhere", (1, 1), [HANG, RAISE], [RAISE, RAISE], [None, None]),
    ("all_gather", (1, 1, 1), [FINISH] * 3, [FINISH] * 3, [ROWS] * 3),
    ("scatter", (1, 1, 1), [FINISH] * 3, [FINISH] * 3, [[10.0], [11.0], [12.0]]),
    ("reduce_scatter", (1, 1, 1), [FINISH] * 3, [FINISH] * 3, [[60.0], [63.0], [66.0]]),
    ("all_to_all", (1, 1, 1), [FINISH] * 3, [FINISH] * 3, [[[10.0 * r + i] for r in (1, 2, 3)] for i in range(3)]),
    ("send_and_recv", (1, 1, 1), [FINISH] * 3, [FINISH] * 3, [ROWS[0], ROWS[0], ROWS[2]]),
    ("toy_model", (2, 2), [FINISH] * 2, [FINISH] * 2, None),
    ("several_buckets", (3, 3), [FINISH] * 2, [FINISH] * 2, None),
    ("accumulate", (4, 4), [FINISH] * 2, [FINISH] * 2, [[3.0, 3.0]] * 2),
    ("linear", (2, 4, 4), [FINISH] * 3, [FINISH] * 3, None),
    ("linear", (0, 3), [FINISH] * 2, [FINISH] * 2, None),
    ("linear", (1, 3, 5), [FINISH] * 3, [FINISH] * 3, None),
    ("convolutional", (1, 3), [FINISH] * 2, [FINISH] * 2, None),
    ("batch_norm", (2, 4, 3), [FINISH] * 3, [FINISH] * 3, None),
    ("gradients", (1, 2, 4), [FINISH] * 3, [FINISH] * 3, [[2.0, 1.66667, 1.0, 1.0][:n] for n in (1, 2, 4)]),
    ("gradients, without divide_by_initial_world_size", (1, 2, 4), [FINISH] * 3, [FINISH] * 3,
     [[2.0, 2.5, 3.0, 3.0][:n] for n in (1, 2, 4)]),
    ("own_parameters_at_the_end", (4, 2, 4), [FINISH] * 3, [FINISH] * 3, [2.0] * 3),
    ("own_parameters_at_the_end", (5, 2, 4), [FINISH] * 3, [FINISH] * 3, [0.0] * 3),
    ("exception", (2, 3), [HANG, RAISE], [RAISE, RAISE], [None, None]),
    ("join_disabled", (2, 2), [FINISH] * 2, [FINISH] * 2, None),
    ("throw_early", (2, 3), [RAISE] * 2, [RAISE] * 2, [None, None]),
    ("throw_early", (2, 2), [FINISH] * 2, [FINISH] * 2, None),
    ("own_collective_in_forward", (2, 2), [FINISH] * 2, [FINISH] * 2, None),
    ("own_collective_in_forward", (2, 3), [HANG, FINISH], [HANG, HANG], None),
    ("count_inputs", (1, 3, 2), [FINISH] * 3, [FINISH] * 3, [6.0] * 3),
    ("count_inputs", (0, 0), [FINISH] * 2, [FINISH] * 2, [0.0] * 2),
    ("count_inputs, without to_all", (1, 3, 2), [FINISH] * 3, [FINISH] * 3, [3.0, 6.0, 5.0]),
    ("two_counters", (1, 3), [FINISH] * 2, [FINISH] * 2, [[4.0, 4.0]] * 2),
    ("ddp_and_zero", (1, 3), [FINISH] * 2, [FINISH] * 2, None),
    ("two_process_groups", (1, 1), [RAISE] * 2, [RAISE] * 2, [None, None]),
    ("nothing_to_join", (1, 1), [RAISE] * 2, [RAISE] * 2, [None, None]),
    ("without_init", (1, 1), [RAISE] * 2, [RAISE] * 2, [None, None]),
    ("no_hook", (2, 2), [FINISH] * 2, [FINISH] * 2, [4, 4]),
    ("no_hook", (1, 2), [FINISH, HANG], [FINISH, RAISE], [2, None]),
    ("forgetful_hook", (2, 2), [FINISH] * 2, [FINISH] * 2, [4.0, 4.0]),
    ("two_buckets", (1, 1), [HANG, HANG], [HANG, HANG], [None, None]),
    ("two_buckets_of_one_size", (1, 1), [FINISH] * 2, [FINISH] * 2, [[[11.0], [11.0]]] * 2),
    ("matched_by_name", (1, 1), [HANG] * 2, [FINISH] * 2, None),
    ("fixed_order", (1, 1), [FINISH] * 2, [FINISH] * 2, [[[2.0], [2.0, 2.0, 2.0]]] * 2),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "inputs", "nccl", "gloo", "returned"),
    ENDINGS,
    ids=[f"{row[0]} {row[1]}" for row in ENDINGS],
)
def test_how_it_ends_and_what_it_returns(name, inputs, nccl, gloo, returned):
    modelled_nccl, modelled_gloo, launched = everywhere(name, inputs)
    assert [str(end) for end in modelled_nccl.ends] == nccl
    assert [str(end) for end in launched.ends] == gloo
    assert differences(modelled_gloo, launched) == []
    assert repr(modelled_gloo.returns) == repr(launched.returns)
    if returned is not None:
        assert plain(launched.returns) == returned
    if nccl == gloo and name != "reduce":
        np.testing.assert_allclose(
            numbers(modelled_nccl.returns), numbers(launched.returns), rtol=1e-5, atol=1e-6
        )


# ---- collectives


@pytest.mark.parametrize("how", ["nccl", "gloo", "launched"])
def test_reduce_leaves_the_sum_on_the_root_and_promises_nothing_of_the_others(how):
    returned = plain(run("reduce", (1, 1, 1), how).returns)
    assert returned[1] == SUM
    if how == "nccl":
        assert [returned[0], returned[2]] == [ROWS[0], ROWS[2]]
    else:
        assert returned[0] != ROWS[0]  # gloo used it as scratch space


@pytest.mark.parametrize("how", ["nccl", "gloo", "launched"])
def test_nobody_leaves_the_barrier_before_all_have_come(how):
    came, went = zip(*run("barrier", (1, 1, 1), how).returns, strict=True)
    assert max(came) <= min(went)


@pytest.mark.parametrize("how", ["nccl", "gloo", "launched"])
def test_ranks_print_in_turn(how):
    timeline = run("print_in_turn", (1, 1, 1), how)
    assert list(timeline.returns) == sorted(timeline.returns)
    assert list(timeline.output) == [f"Rank {rank}: it is my turn\n" for rank in range(3)]


@pytest.mark.parametrize("how", ["nccl", "gloo", "launched"])
def test_cat_and_chunk_gather_the_same_with_one_call(how):
    many, one = run("gather_one_by_one", (4, 4), how), run("gather_by_cat_and_chunk", (4, 4), how)
    assert plain(many.returns) == plain(one.returns)
    assert plain(one.returns[0][4]) == [[100.0, 100.5]]
    assert (len(calls(many, 0, "all-gather")), len(calls(one, 0, "all-gather"))) == (4, 1)


def test_both_gathers_are_timed_once_an_input():
    for taken in run("time_both_gathers", (3, 3), "launched").returns:
        assert len(taken) == 3
        assert all(len(pair) == 2 and min(pair) > 0 for pair in taken)


# ---- DDP


@pytest.mark.parametrize("how", ["nccl", "gloo", "launched"])
def test_ddp_hands_out_the_parameters_of_rank_0(how):
    (before_0, after_0), (before_1, after_1) = run(
        "weights_before_and_after", (1, 1), how, seed=(0, 1)
    ).returns
    assert before_0 != before_1
    assert after_0 == after_1 == before_0
    (same_0, _), (same_1, _) = run("weights_before_and_after", (1, 1), how).returns
    assert same_0 == same_1


def test_construction_compares_shapes_and_hands_out_parameters():
    for timeline in everywhere("toy_model", (2, 2)):
        setup = timeline.calls.filter(
            (pl.col("rank") == 0) & pl.col("origin").str.contains("construction")
        )
        assert setup["op"].to_list() == ["all_gather", "broadcast", "broadcast"]


def test_buckets_are_reduced_from_the_back_and_rebuilt_in_the_second_forward():
    for timeline in everywhere("several_buckets", (3, 3)):
        per_input = [
            [row for row in calls(timeline, 0, "backward") if row["input"] == i] for i in range(3)
        ]
        sizes = [[row["shape"][0][0] for row in rows] for rows in per_input]
        assert len(sizes[1]) > 1
        assert sum(sizes[0]) == sum(sizes[1]) == sum(sizes[2]) == 901
        assert sizes[0] != sizes[1] == sizes[2]
        rebuild = calls(timeline, 0, "rebuild")
        assert {row["input"] for row in rebuild} == {1}
        assert [row["op"] for row in rebuild] == ["broadcast", "broadcast"]
        assert plain(timeline.returns[0]) == plain(timeline.returns[1])


# ---- join(), as pull request 42577 tested it


@pytest.mark.parametrize("inputs", [(2, 4, 4), (0, 3), (1, 3, 5), (3, 3)])
def test_training_under_join_is_training_one_model_on_all_inputs(inputs):
    for joined, alone in zip(
        everywhere("linear", inputs), everywhere("without_ddp", inputs), strict=True
    ):
        for rank in range(len(inputs)):
            for one, other in zip(joined.returns[rank], alone.returns[rank], strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_a_large_model_is_shadowed_bucket_by_bucket():
    for timeline in everywhere("convolutional", (1, 3)):
        shadowed, own = (
            calls(timeline, 0, "join() hook"),
            [row for row in calls(timeline, 1, "backward") if row["input"]],
        )
        assert [row["shape"] for row in shadowed] == [row["shape"] for row in own]
        assert len(own) > 2
        assert plain(timeline.returns[0]) == plain(timeline.returns[1])


def test_an_exception_goes_through_join_unchanged():
    for timeline in everywhere("exception", (2, 3)):
        assert timeline.ends[1].text == "ValueError: a bad input"
        assert calls(timeline, 1, "join()") == []


def test_throwing_early_is_preceded_by_a_check_on_every_rank():
    for timeline in everywhere("throw_early", (2, 3)):
        assert {"all-reduce (throw check)", "all-reduce (join() throw check)"} <= set(
            timeline.calls["origin"]
        )


@pytest.mark.slow
def test_more_than_a_thousand_missing_inputs_are_warned_of():
    with pytest.warns(UserWarning, match="Detected uneven input skew of greater than 1000"):
        joinlab.emulate(more_scenarios.linear, (1, 1003))


@pytest.mark.nightly
def test_more_than_a_thousand_are_warned_of_by_real_processes_as_well():
    launched = run("linear", (1, 1003), "launched")
    assert [str(end) for end in launched.ends] == [FINISH] * 2
    assert "Detected uneven input skew of greater than 1000" in launched.output[0]
    assert launched.output[1] == ""


@pytest.mark.nightly
def test_a_thousand_are_not():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [str(end) for end in joinlab.emulate(more_scenarios.linear, (0, 1000)).ends] == [
            FINISH
        ] * 2


# ---- the generic Join, pull request 61555


def test_a_keyword_of_the_context_reaches_the_hooks():
    with_it, without = (
        run("count_inputs", (1, 3), "nccl"),
        run("count_inputs, without to_all", (1, 3), "nccl"),
    )
    assert len(calls(with_it, 0, "broadcast")) == 1
    assert calls(without, 0, "broadcast") == []


def test_zero_is_shadowed_beside_ddp():
    for timeline in everywhere("ddp_and_zero", (1, 3)):
        assert (
            len(calls(timeline, 0, "ZeRO join() hook"))
            == len(calls(timeline, 1, "(ZeRO)")) * 2 // 3
        )
        assert plain(timeline.returns[0]) == plain(timeline.returns[1])


# ---- order, pull request 3435


def test_from_threads_the_order_parts_as_well():
    timeline = run("buckets_from_threads", (1, 1), "launched")
    assert [str(end) for end in timeline.ends] == [HANG] * 2
    assert match(timeline)[0].differs == ("shape",)


def test_destroying_the_group_waits_for_a_pending_call_which_gloo_fails_when_the_peer_has_ended():
    assert [str(end) for end in run("destroy_behind_a_call", (1, 1), "nccl").ends] == [FINISH, HANG]
    for how in ("gloo", "launched"):
        assert [end.kind for end in run("destroy_behind_a_call", (1, 1), how).ends] == [
            FINISH,
            FINISH,
        ]
    assert run("destroy_behind_a_call", (1, 1), "gloo").call(1, 0)["host_wait_begin_ns"] is not None
    # may fail before rank 1 begins to wait
    call = run("destroy_behind_a_call", (1, 1), "launched").call(1, 0)
    assert "Connection closed by peer" in call["error"] or "reset by peer" in call["error"]


# ---- the module

PROGRAMS: list[Callable[..., Any]] = [
    function
    for module in (scenarios, more_scenarios)
    for name, function in vars(module).items()
    if inspect.isfunction(function)
    and function.__module__ == module.__name__
    and not name.startswith("_")
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_every_program_is_a_plain_function_that_says_where_it_comes_from(program):
    parameters = inspect.signature(program).parameters.values()
    assert [p.name for p in parameters if p.default is inspect.Parameter.empty] == [
        "rank",
        "inputs",
    ]
    assert program.__closure__ is None
    summary = " ".join((program.__doc__ or "").partition("\n\n")[0].split())
    last = summary.rstrip(".").split(". ")[-1]
    assert any(
        source in last
        for source in ("Notes on DDP", "ull request", "PyTorch docs", "Tutorial on Join")
    ), last


def test_every_program_is_run_by_a_test():
    text = inspect.getsource(inspect.getmodule(run))  # type: ignore[arg-type]
    assert [program.__name__ for program in PROGRAMS if f'"{program.__name__}"' not in text] == []
