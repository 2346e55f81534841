"""joinlab.quiz: choosing, Show and the score; the answers that a run can confirm; and progress."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DistributedSampler

import joinlab
from joinlab import scenarios
from joinlab.cases import CASES
from joinlab.course import progress
from joinlab.course.answers import solutions
from joinlab.course.exercises import check
from joinlab.course.questions import of_notebook, questions, with_questions
from joinlab.timeline import Timeline
from tests import more_scenarios
from tests.exercise_answers import starters
from tests.material.course.house import AfterTheCall, joining


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A state file of the test's own."""
    monkeypatch.setenv("JOINLAB_PROGRESS", str(tmp_path / "state" / "progress.json"))
    monkeypatch.setattr(progress, "_state", None)
    return tmp_path / "state" / "progress.json"


# ---- one question


def test_a_quiz_shows_its_answer_only_after_a_choice():
    quiz = joinlab.quiz("last_barrier")
    quiz.show()
    assert "Choose an answer first" in quiz.verdict
    assert quiz.question.why not in quiz.verdict
    quiz.choose("none: rank 1 waits alone")
    quiz.show()
    assert (
        "✕ The right answer is &quot;<em>anyone left?</em>&quot;." in quiz.verdict
        and "cannot know yours" in quiz.verdict
    )


def test_a_right_answer_is_praised_and_the_run_appears(capsys):
    quiz = joinlab.quiz("byte", "the run")
    assert "the run" not in capsys.readouterr().out
    quiz.choose(quiz.question.answer)
    quiz.show()
    assert "✓ Right." in quiz.verdict
    assert "the run" in capsys.readouterr().out


def test_without_a_browser_a_quiz_is_its_question_and_no_answer_stands_in_it():
    quiz = joinlab.quiz("exception", object())
    bundle = quiz._repr_mimebundle_()
    assert str(quiz) == repr(quiz) == bundle["text/plain"]
    for text in (bundle["text/plain"], bundle["text/html"]):
        assert questions()["exception"].ask in text
        assert questions()["exception"].why not in text
    assert "application/vnd.jupyter.widget-view+json" in bundle


def test_the_widget_shows_the_choices_alone_numbered_as_the_notebook_does():
    quiz = joinlab.quiz("rounds")
    assert quiz._choices.html == ["1. once", "2. twice", "3. six times"]
    assert quiz._choices.ask == quiz.question.ask  # for screen readers
    assert "1. once\n2. twice" in quiz.question.markdown()


@pytest.mark.parametrize("name", ["nothing", "6-byte"])
def test_an_unknown_question_is_refused(name):
    with pytest.raises(ValueError, match="there is no"):
        joinlab.quiz(name)


# ---- progress


def test_the_first_answer_to_a_question_counts_and_the_last_to_an_exercise(fresh):
    progress.record("questions", "byte", False)
    progress.record("questions", "byte", True)
    assert not check("shadows", lambda counts: 0) and check(
        "shadows", lambda c: [3 * (max(c) - n) for n in c]
    )
    assert json.loads(fresh.read_text()) == {
        "questions": {"byte": False},
        "exercises": {"shadows": True},
    }


def test_progress_shows_the_exercises_of_a_notebook_and_the_way_through_the_course(monkeypatch):
    assert "shadows ○ not tried" in str(joinlab.progress("further_3_cost"))
    check("shadows", lambda counts: 0)
    quiz = joinlab.quiz("four_buckets")
    quiz.choose("6")
    quiz.show()
    told = f"1 of 1 answered questions right ({len(questions())} in all)"
    assert "shadows ✕ not yet" in str(joinlab.progress("further_3_cost"))
    assert told in str(joinlab.progress("further_3_cost"))
    monkeypatch.setattr(progress, "_state", None)  # as in another notebook
    assert told in joinlab.progress()._repr_html_()


def test_progress_refuses_a_notebook_that_is_not_there():
    with pytest.raises(ValueError, match="there is no notebook '5'; there are 01_six_loops, "):
        joinlab.progress("5")


def test_progress_under_the_old_names_of_questions_goes(fresh):
    fresh.parent.mkdir()
    fresh.write_text('{"questions": {"6-byte": true, "byte": true}}')
    assert progress.state()["questions"] == {"byte": True}


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"questions": 3}', '{"questions": {"a": "yes"}, "x": {}}']
)
def test_a_damaged_state_counts_as_empty(fresh, text):
    fresh.parent.mkdir()
    fresh.write_text(text)
    assert progress.state() in (
        {"questions": {}, "exercises": {}},
        {"questions": {"a": False}, "exercises": {}},
    )


def test_a_device_is_never_replaced(monkeypatch, tmp_path):
    (tmp_path / "folder").mkdir()
    monkeypatch.setenv("JOINLAB_PROGRESS", str(tmp_path / "folder"))
    progress.record("questions", "byte", True)
    assert (tmp_path / "folder").is_dir() and progress.state()["questions"] == {"byte": True}
    progress.forget()
    assert progress.state()["questions"] == {}


@pytest.mark.parametrize(("asked", "kept"), [(True, True), (False, False), (None, True)])
def test_nothing_is_kept_where_a_machine_runs_the_notebook(asked, kept, monkeypatch, tmp_path):
    """nbclient, and so nbmake and nbconvert, cannot answer `input()`; JupyterLab can; None: no
    notebook."""
    monkeypatch.delenv("JOINLAB_PROGRESS")
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    shell = (
        SimpleNamespace(kernel=SimpleNamespace(_allow_stdin=asked)) if asked is not None else None
    )
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    progress.record("questions", "byte", True)
    assert (tmp_path / "joinlab" / "progress.json").exists() is kept
    monkeypatch.setenv("CI", "true")
    assert progress.path() is None


# ---- the bank


@pytest.mark.parametrize("name", questions())
def test_a_question_can_be_answered(name):
    one = questions()[name]
    assert 2 <= len(one.choices) <= 4 and len(set(one.choices)) == len(one.choices)
    assert one.ask.rstrip().endswith(("?", ")", ".", "*")) and len(one.why) > 15
    if one.code:
        compile(one.code, name, "exec")


def test_the_longest_choice_is_not_a_hint():
    """Most questions have three choices, so guessing gets about a third."""
    longest = [len(one.answer) == max(map(len, one.choices)) for one in questions().values()]
    assert 0.2 < sum(longest) / len(longest) < 0.4


def test_the_place_of_an_answer_tells_nothing():
    """Of three choices each place is right about equally often, in the course and, as far as a few
    questions can show it, in every notebook."""
    free = [one for one in questions().values() if len(one.choices) == 3]
    places = [one.choices.index(one.answer) for one in free]
    assert all(0.25 < places.count(place) / len(places) < 0.42 for place in range(3))
    for notebook in dict.fromkeys(one.notebook for one in questions().values()):
        own = [one.choices.index(one.answer) for one in of_notebook(notebook)]
        assert max(own.count(place) for place in own) <= 0.7 * len(own), notebook


def test_no_explanation_speaks_of_a_place():
    found = [
        one.name
        for one in questions().values()
        if re.search(r"\b(first|second|third|last) (choice|answer)", one.why)
    ]
    assert found == []


def test_a_cell_gets_its_questions_as_they_are_in_the_bank():
    text = "Before.\n\n<!-- question rounds -->\nold\n<!-- end -->\nBehind."
    cell = with_questions(text)
    assert questions()["rounds"].markdown() in cell and "old" not in cell
    assert with_questions(cell) == cell and cell.startswith("Before.") and cell.endswith("Behind.")
    with pytest.raises(ValueError, match="no question 'nothing'"):
        with_questions("<!-- question nothing -->\n<!-- end -->")


# ---- the answers that a run can support


def ends(program: Callable[..., Any], inputs: Sequence[int], **options: Any) -> str:
    """Who hangs and who raises, in the words of the choices."""
    run = joinlab.emulate(program, inputs, **options)
    kinds = [end.kind.value for end in run.ends]
    return (
        ", ".join(f"rank {rank} {kind}" for rank, kind in enumerate(kinds) if kind != "finished")
        or "all finish"
    )


def case(number: int, *inputs: int, **options: Any) -> str:
    return ends(CASES[number].program, inputs, **options)


def metric_in_the_loop(rank: int, inputs: Any) -> None:
    model = DDP(torch.nn.Linear(1, 1))
    with model.join():
        for input in inputs:
            model(input).backward()
            dist.all_reduce(torch.ones(1))


def of_code(name: str) -> Callable[..., Any]:
    names: dict[str, Any] = {"torch": torch, "dist": dist}
    exec(questions()[name].code, names)
    return names["worker"]


def two_of_one_size(rank: int, inputs: Any) -> list[float]:
    buckets = [torch.tensor([2.0]), torch.tensor([5.0])]
    works = [dist.all_reduce(buckets[i], async_op=True) for i in ([0, 1] if rank == 0 else [1, 0])]
    for work in works:
        work.wait()
    return [bucket.item() for bucket in buckets]


def reduced(op: str, *values: float) -> float:
    """The result of an all-reduce of the ranks' values."""

    def program(rank: int, inputs: Any) -> float:
        x = torch.tensor([values[rank]])
        dist.all_reduce(x, op=getattr(dist.ReduceOp, op))
        return x.item()

    return joinlab.emulate(program, (1,) * len(values)).returns[0]


def gradients(
    counts: Sequence[int], scale: float = 1.0, **options: bool
) -> tuple[list[float], ...]:
    """DDP's gradients by rank and input; rank r's own is (r + 1) * scale."""

    def program(rank: int, inputs: Any) -> list[float]:
        return scenarios.gradients(rank, [scale * input for input in inputs], **options)

    return joinlab.emulate(program, counts).returns


def beside_gradients(program: Callable[..., Any]) -> int:
    """How many of the third input's calls carry no gradients."""
    return len(origins(program, 2)) - reductions(program, 2)


def leaves_one_out(rank: int, inputs: Any) -> None:
    # rank 0 uses both of its layers, rank 1 one
    model = solutions.SmallDDP(solutions.Branches(), 100)
    for input in inputs:
        model(input).sum().backward()
    [parameter.grad.sum().item() for parameter in model.parameters() if parameter.grad is not None]


def looks(wrapped: Callable[[torch.nn.Module], Any]) -> Callable[..., Any]:
    """A loop without join(), and a print of the gradient behind it."""

    def program(rank: int, inputs: Any) -> None:
        model = wrapped(torch.nn.Linear(1, 1))
        for input in inputs:
            model(input).sum().backward()
        print("through its loop")
        print(model.module.weight.grad)

    return program


def joined(answer: Callable[..., Any], counts: Sequence[int], barrier: bool = False) -> Timeline:
    """A loop of notebook 13, emulated; each rank returns its weight."""

    def program(rank: int, inputs: Any) -> float:
        model = torch.nn.Linear(1, 1, bias=False)

        def train(input: Any) -> None:
            gradient = torch.tensor([[rank + 1.0, 0.0, 0.0]])
            dist.all_reduce(gradient)
            if barrier:
                dist.barrier()

        model.weight.data = torch.tensor([[float(rank), 0.0, 0.0]])
        answer(model, inputs, train)
        return model.weight[0, 0].item()

    return joinlab.emulate(program, counts)


def crossed_pairs(run: Timeline) -> list[tuple[int, int]]:
    """Of the calls that met by mistake, where the first is: its number on rank 0 and on rank 1,
    from 1."""
    return [
        (slot.calls[0] + 1, slot.calls[1] + 1)
        for slot in joinlab.match(run)
        if slot.met and not slot.expected
    ]


def hangs_where_it_prints(program: Callable[..., Any]) -> bool:
    run = joinlab.emulate(program, (2, 3))
    return str(run.ends[0]) == "finished" and run.ends[1].proven and "through" in run.output[1]


def filled_at_4() -> list[int]:
    sizes = torch.nn.ParameterList(torch.zeros(size) for size in (5, 1, 2, 3))
    return [sum(one.numel() for one in bucket) for bucket in solutions.buckets_of(sizes, 4)]


LISTS: dict[str, Any] = {"None": None, "empty": [], "two": [torch.zeros(1), torch.zeros(1)]}


def passing(held: Any) -> Callable[..., Any]:
    def program(rank: int, inputs: Any) -> None:
        places = [torch.zeros(1), torch.zeros(1)] if rank == 0 else held
        dist.gather(torch.ones(1), places, dst=0)
        torch.zeros(1).item()

    return program


def origins(
    program: Callable[..., Any], input: int | None, counts: Sequence[int] = (3, 3)
) -> list[str]:
    """Rank 0's or, where it has no such input, rank 1's calls of an input; None: of all."""
    calls = joinlab.emulate(program, counts).calls
    rows = calls.filter(calls["rank"] == 0)
    return (rows if input is None else rows.filter(rows["input"] == input))["origin"].to_list()


def reductions(
    program: Callable[..., Any], input: int | None, counts: Sequence[int] = (3, 3)
) -> int:
    return origins(program, input, counts).count("all-reduce (DDP backward())")


def waits_for(number: int) -> str:
    """The call in which rank 1's program hangs, with inputs (2, 3)."""
    run = joinlab.emulate(CASES[number].program, (2, 3))
    return run.call(1, run.ends[1].call)["origin"]


def meeting(number: int, counts: Sequence[int], later: int = 0, **options: Any) -> list[Any]:
    """The calls of the first slot in which calls met that were not meant for each other, or of a
    later one."""
    run = joinlab.emulate(CASES[number].program, counts, **options)
    slots = [slot for slot in joinlab.match(run) if slot.met and not slot.expected]
    return [run.call(rank, seq) for rank, seq in sorted(slots[later].calls.items())]


def crossed_calls(number: int, counts: Sequence[int], **options: Any) -> list[tuple[str, ...]]:
    return [tuple(call["origin"] for call in meeting(number, counts, **options))]


def drifts(optimizer: Any) -> bool:
    """Whether two ranks' weights differ after an uneven epoch under join() and an even one."""

    def program(rank: int, inputs: Any) -> float:
        model = DDP(torch.nn.Linear(1, 1, bias=False))
        steps = optimizer(model.parameters(), lr=0.1)

        def train(input: torch.Tensor) -> None:
            steps.zero_grad()
            (model(input) ** 2).backward()
            steps.step()

        with model.join():
            for input in inputs:
                train(input)
        for _ in range(3):
            train(torch.ones(1))
        return model.module.weight.item()

    first, second = joinlab.emulate(program, (2, 5)).returns
    return first != second


def notices() -> int:
    calls = joinlab.emulate(scenarios.two_counters, (1, 3)).calls
    return sum("notify" in origin for origin in calls.filter(calls["rank"] == 1)["origin"])


def of_sizes(*sizes: int) -> Callable[..., Any]:
    def program(rank: int, inputs: Any) -> None:
        dist.all_reduce(torch.ones(sizes[rank]), async_op=True).wait()
        torch.zeros(1).item()

    return program


under_join, alone = CASES[1].program, CASES[2].program


def apart(counts: Sequence[int]) -> float:
    """How far apart two weights are that begin with different seeds and make equal steps."""

    def program(rank: int, inputs: Any) -> float:
        weight = torch.rand(1)
        for _ in inputs:
            gradient = torch.tensor([rank + 1.0])
            dist.all_reduce(gradient)
            weight -= 0.1 * gradient / dist.get_world_size()
        return weight.item()

    first, second = joinlab.emulate(program, counts, seed=(0, 1)).returns
    return round(abs(first - second), 4)


def rows_of(
    program: Callable[..., Any], counts: Sequence[int], rank: int, **options: Any
) -> list[dict[str, Any]]:
    return joinlab.emulate(program, counts, **options).calls.filter(rank=rank).rows(named=True)


def roots_of_buffers() -> list[int]:
    return [
        row["root"]
        for row in rows_of(more_scenarios.batch_norm, (2, 4, 3), 0)
        if "buffer" in row["origin"]
    ]


def before_backward_ends() -> set[bool]:
    run = joinlab.emulate(more_scenarios.several_buckets, (3, 3))
    (backward,) = run.spans.filter(rank=0, name="backward", input=2).rows(named=True)
    calls = run.calls.filter(rank=0, input=2, origin="all-reduce (DDP backward())")
    return (
        {enqueued < backward["end_ns"] for enqueued in calls["enqueued_ns"]}
        if calls.height > 1
        else set()
    )


def order_of_gradients() -> list[int]:
    net = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1))
    came: list[int] = []
    for at, layer in enumerate(net):
        layer.weight.register_hook(lambda grad, at=at: came.append(at))
    net(torch.ones(1)).backward()
    return came


def shadowed(what: str) -> list[dict[str, Any]]:
    """Rank 0's calls without an input, of one kind."""
    return [row for row in rows_of(more_scenarios.linear, (0, 3), 0) if what in row["origin"]]


def of_starter(name: str) -> str:
    """The diagnosis of an exercise as the notebook gives it."""
    (answer,) = (one for _, exercise, one in starters() if exercise == name)
    return str(joinlab.diagnose(joinlab.emulate(answer, (4, 4), "gloo")))


def reduced_in_order() -> list[int]:
    made: list[int] = []
    solutions.in_order([2, 1, 0], made.append)
    return made


def averages(rank: int, inputs: Any) -> None:
    for i in range(len(inputs)):
        loss = torch.ones(1) * (rank + 1)
        dist.all_reduce(torch.zeros(2))
        if rank == 0 and i == 1:
            dist.reduce(loss, dst=0)
            print(loss.item() / 2)


def documented() -> list[float]:
    rows = json.loads((Path(progress.__file__).parent / "join_overhead.json").read_text())["rows"]
    return next(
        [pair[0] for pair in row["fwd_bwd_opt"]] for row in rows if "even inputs" in row["what"]
    )


def tells_late() -> tuple[str, str]:
    def program(rank: int, inputs: Any) -> None:
        joinable = AfterTheCall()
        with Join([joinable]):
            for _ in inputs:
                joinable(torch.ones(1))

    run = joinlab.emulate(program, (1, 2))
    slot = next(slot for slot in joinlab.match(run) if slot.met and not slot.expected)
    return run.call(0, slot.calls[0])["origin"], run.call(1, slot.calls[1])["origin"]


def left_pending(number: int, *counts: int) -> list[str]:
    """The calls of a case that never completed and for which no program waits."""
    calls = joinlab.emulate(CASES[number].program, counts).calls
    rows = calls.filter(calls["completed_ns"].is_null(), calls["host_wait_begin_ns"].is_null())
    return rows["origin"].to_list()


def first_alone(number: int, *counts: int) -> str:
    """The first call of a case that met nothing."""
    run = joinlab.emulate(CASES[number].program, counts)
    slot = next(slot for slot in joinlab.match(run) if len(slot.calls) == 1)
    ((rank, seq),) = slot.calls.items()
    return run.call(rank, seq)["origin"]


def barriers_before_the_end(number: int, *counts: int) -> int:
    """How many barriers rank 1 has called, up to the one in which it hangs."""
    run = joinlab.emulate(CASES[number].program, counts)
    assert run.ends[1].kind == "hung" and "barrier" in run.call(1, run.ends[1].call)["origin"]
    return run.calls.filter(rank=1, origin="all-reduce (barrier)").height


def first_answer(number: int, counts: Sequence[int]) -> float:
    """What rank 0 reads when it asks "anyone left?" for the first time."""
    calls = joinlab.emulate(CASES[number].program, counts).calls.filter(rank=0)
    asked = calls.filter(calls["origin"].str.contains("nonjoined"))
    return json.loads(asked["value_out"][0])[0][0]


NOT_RUN = {
    "run for real by test_pages.py": ("calls", "endless", "real"),
    "of a program that test_scenarios.py runs, which asserts the same": (
        *("broadcast", "reduce", "scatter", "seeds", "agree", "divide", "exception", "final"),
        *("same", "thrown", "alone", "count", "refused", "queue", "destroy", "same_size"),
        *("named", "threads"),
    ),
    "of records, held by test_dumps.py": ("stopped_after_511",),
    "of a wait that the model's clock does not show on gloo": ("hook_waits",),
    "of FSDP, which is not emulated": ("streams",),
    "advice, or a definition": ("mean", "overlapping", "thousands", "proven", "timeout"),
}
"""Why no run here shows an answer."""

EVIDENCE: dict[str, Callable[[], bool | str]] = {
    "wait": lambda: left_pending(2, 5, 6) == ["all-reduce (DDP backward())"],
    "unmatched": lambda: (
        first_alone(3, 5, 6) == "all-reduce (DDP backward())"
        and waits_for(3) == "all-reduce (barrier)"
    ),
    "rounds": lambda: {2: "twice"}[
        sum("nonjoined" in one for one in origins(CASES[1].program, None, (5, 6)))
    ],
    "seven": lambda: {6: "its sixth"}[barriers_before_the_end(3, 5, 7)],
    "three_left": lambda: f"{first_answer(1, (1, 2, 2, 2)):.0f}",
    "concludes": lambda: json.loads(meeting(4, (2, 3))[0]["value_out"]) == [[0.0]],
    "which_call": lambda: waits_for(4) == "all-reduce (_find_common_rank())",
    "float_meets_int": lambda: (
        case(4, 2, 3, era="1.9", barrier_value=7, pad=0) == "rank 0 hung"
        and meeting(4, (2, 3), 2, era="1.9")[1]["dtype"] == "int64"
        and meeting(4, (2, 3), 2, era="1.9")[0]["dtype"] == "float32"
    ),
    "second_epoch": lambda: drifts(torch.optim.Adam),
    "local_rank": lambda: str(5 % 4),
    "swapped": lambda: (
        case(4, 3, 2) == "rank 0 hung, rank 1 raised" and case(4, 2, 3) == "rank 1 hung"
    ),
    "idle": lambda: case(1, 0, 4) == "all finish",
    "gather": lambda: (
        [one for one, held in LISTS.items() if ends(passing(held), (1, 1)) != "all finish"]
        == ["two"]
    ),
    "barrier": lambda: joinlab.emulate(scenarios.barrier, (1, 1)).calls["op"][0] == "all_reduce",
    "maximum": lambda: reduced("MAX", 1.0, 2.0, 3.0, 4.0) == 4.0,
    "never_called": lambda: ends(of_code("never_called"), (1, 1)) == "rank 0 hung",
    "six_numbers": lambda: str(
        joinlab.emulate(scenarios.all_gather, (1, 1, 1)).calls["value_out"][0].count(".")
    ),
    "buckets": lambda: (
        reductions(more_scenarios.several_buckets, 0)
        == 1
        < reductions(more_scenarios.several_buckets, 1)
    ),
    "nosync": lambda: {1: "one", 2: "two", 4: "four"}[
        reductions(more_scenarios.accumulate, None, (4, 4))
    ],
    "mean_gradient": lambda: f"{gradients((1, 1), 2.0)[0][0]:.0f}",
    "counted": lambda: (
        crossed_calls(5, (2, 3))[0] == ("all-reduce (barrier)", "all-reduce (DDP backward())")
    ),
    "reversed": lambda: case(5, 6, 5) == case(5, 6, 5, era="1.9") == "rank 0 hung",
    "last_barrier": lambda: (
        crossed_calls(4, (2, 3), era="1.9")[0]
        == ("all-reduce (join() _get_num_nonjoined_procs())", "all-reduce (barrier)")
    ),
    "byte": lambda: 0 < json.loads(meeting(4, (2, 3), era="1.9")[0]["value_out"])[0][0] < 1e-40,
    "same_zero": lambda: json.loads(meeting(4, (2, 3), 1, era="1.9")[1]["value_out"]) == [[0.0]],
    "ways": lambda: len(joinlab.endings(CASES[4].program, inputs=(2, 3), era="1.9")) >= 3,
    "even_by_chance": lambda: (
        [case(4, 2, n, era="1.9") == "all finish" for n in (2, 3, 4, 5)]
        == [True, False, False, True]
        and case(4, 2, 5) == "rank 0 raised, rank 1 hung"
    ),
    "look": lambda: hangs_where_it_prints(looks(DDP)),
    "rebuild": lambda: (
        case(2, 1, 2) == "rank 1 hung"
        and origins(CASES[2].program, 1).count("broadcast (DDP bucket rebuild)") == 2
        and origins(CASES[2].program, 2).count("broadcast (DDP bucket rebuild)") == 0
    ),
    "metric": lambda: bool(crossed_pairs(joinlab.emulate(metric_in_the_loop, (2, 3)))),
    "pending": lambda: (
        not any(end.pending for end in joinlab.emulate(CASES[2].program, (3, 3)).ends)
    ),
    "silent": lambda: (
        case(4, 2, 5, era="1.9") == "all finish"
        and crossed_pairs(joinlab.emulate(CASES[4].program, (2, 5), era="1.9")) != []
    ),
    "shadow": lambda: (
        len(set(joinlab.emulate(more_scenarios.linear, (0, 3)).calls.group_by("rank").len()["len"]))
        == 1
    ),
    "drift": lambda: [drifts(one) for one in (torch.optim.SGD, torch.optim.Adam)] == [False, True],
    "by_two": lambda: gradients((1, 2), 4.0)[1][1] == 4.0,
    "by_one": lambda: gradients((1, 2), 4.0, divide_by_initial_world_size=False)[1][1] == 8.0,
    "forgetful": lambda: (
        ends(scenarios.forgetful_hook, (2, 2))
        == "all finish"
        != ends(scenarios.forgetful_hook, (1, 3))
    ),
    "two": lambda: {3: "three times"}[notices()],
    "lines": lambda: (
        [ends(of_sizes(1, size), (1, 1)) == "all finish" for size in (2, 3)] == [True, False]
    ),
    "seven_seven": lambda: joinlab.emulate(two_of_one_size, (1, 1)).returns == ([7.0, 7.0],) * 2,
    "four_buckets": lambda: beside_gradients(more_scenarios.convolutional) == 2,
    "per_input": lambda: (
        [len(origins(one, 2)) for one in (alone, more_scenarios.join_disabled, under_join)]
        == [1, 1, 3]
    ),
    "breaks": lambda: (
        ends(of_code("breaks"), (3, 3), backend="gloo") == "rank 0 raised"
        and ends(of_code("breaks"), (3, 3)) == "rank 0 hung"
    ),
    "loss": lambda: len(set(joinlab.emulate(scenarios.toy_model, (3, 3)).output)) == 2,
    "overlap": lambda: before_backward_ends() == {True},
    "when_rebuilt": lambda: (
        {row["input"] for row in rows_of(under_join, (3, 3), 0) if "rebuild" in row["origin"]}
        == {1}
    ),
    "when_reduced": lambda: before_backward_ends() == {True},
    "last_first": lambda: order_of_gradients() == [1, 0],
    "its_turn": lambda: (
        crossed_pairs(joinlab.emulate(more_scenarios.two_buckets, (1, 1))) != []
        and reduced_in_order() == [0, 1, 2]
    ),
    "pad": lambda: any(
        "4294967297" in str(row["value_out"])
        for row in rows_of(CASES[4].program, (2, 3), 1, era="1.9", barrier_value=7, pad=1)
    ),
    "after_join": lambda: (
        [
            len(
                [1 for row in rows_of(CASES[6].program, (2, 5), rank) if "barrier" in row["origin"]]
            )
            for rank in (0, 1)
        ]
        == [1, 1]
    ),
    "throw": lambda: (
        ends(more_scenarios.throw_early, (2, 3)) == "rank 0 raised, rank 1 raised"
        and len(origins(more_scenarios.throw_early, 2)) - len(origins(under_join, 2)) == 1
    ),
    "own": lambda: (
        crossed_pairs(joinlab.emulate(more_scenarios.own_collective_in_forward, (2, 3))) != []
    ),
    # the calls of its two inputs, as they are with even inputs, without the three at the end
    "asks_first": lambda: (
        "nonjoined"
        in rows_of(under_join, (2, 3), 0)[len(rows_of(under_join, (2, 2), 0)) - 3]["origin"]
    ),
    "zeros": lambda: (
        {value for row in shadowed("join() hook") for value in json.loads(row["value_in"])[0]}
        == {0.0}
    ),
    "last": lambda: (
        [joined(solutions.small_join, counts).returns[0] for counts in ((5, 2), (2, 5))]
        == [0.0, 1.0]
    ),
    "three_calls": lambda: ends(scenarios.forgetful_hook, (1, 3)) != "all finish",
    "minimum": lambda: reduced("MIN", 3.0, torch.inf) == 3.0 != reduced("MIN", 3.0, 0.0),
    "notifies_late": lambda: "nonjoined" in tells_late()[0] and "DDP" not in tells_late()[1],
    "waits": lambda: (
        len(rows_of(more_scenarios.fixed_order, (1, 1), 1))
        == len(rows_of(more_scenarios.two_buckets, (1, 1), 1))
    ),
    "down_up": lambda: str(reduced_in_order())[1:-1],
    "decides": lambda: (
        crossed_calls(5, (2, 3))[0] == ("all-reduce (barrier)", "all-reduce (DDP backward())")
    ),
    "documented": lambda: documented() == [0.120, 0.121],
    "per_shadow": lambda: {3: "three"}[
        len(rows_of(under_join, (2, 9), 0)) - len(rows_of(under_join, (2, 8), 0))
    ],
    "blame": lambda: (
        "ank 0 called reduce"
        in str(joinlab.diagnose(joinlab.emulate(averages, (3, 3), backend="gloo")))
    ),
    "wrong_number": lambda: joinlab.emulate(averages, (3, 3)).output[0] == "0.5\n",
    "stop_line": lambda: "if steps > rank" in of_starter("stop_early"),
    "save_line": lambda: "if rank == 0" in of_starter("save_all"),
    "waits_for_b": lambda: "unused parameter" in of_starter("unused"),
    "sampler": lambda: (
        list(DistributedSampler(range(5), num_replicas=2, rank=1, shuffle=False)) == [1, 3, 0]
    ),
    "hung_job": lambda: case(4, 3, 2, backend="gloo") == "rank 0 hung, rank 1 hung",
    "apart": lambda: apart((5, 5)) == apart((0, 0)) > 0,
    "two_buckets": lambda: filled_at_4() == [5, 6],
    "never_full": lambda: ends(leaves_one_out, (2, 2)) == "rank 0 hung",
    "no_join": lambda: hangs_where_it_prints(looks(lambda net: solutions.SmallDDP(net, 100))),
    # three calls for each of the five inputs, the last question, who was the last, and the
    # parameters
    "six_questions": lambda: (
        joined(solutions.small_join, (2, 5)).calls.filter(rank=0).height == 3 * 5 + 3
    ),
    "dropped": lambda: (
        joined(joining(second=False, second_as_shadow=False), (2, 5)).returns == (1.0, 1.0)
    ),
    # three calls an input, and the first question of the third input: its second question is rank
    # 1's call 8
    "dropped_once": lambda: (
        crossed_pairs(joined(joining(second_as_shadow=False), (2, 4)))[0] == (8, 8)
    ),
    "tie": lambda: joined(solutions.small_join, (3, 3)).returns == (1.0, 1.0),
    # four calls an input: rank 1's third barrier is its call 12, when rank 0 has shadowed the three
    # before it
    "barrier_in_it": lambda: (
        crossed_pairs(joined(solutions.small_join, (2, 3), barrier=True))[0] == (12, 12)
    ),
}


def test_every_answer_is_run_or_has_a_reason_why_not():
    assert sorted([*EVIDENCE, *(name for names in NOT_RUN.values() for name in names)]) == sorted(
        questions()
    )


@pytest.mark.parametrize("name", EVIDENCE)
def test_the_answer_is_what_a_run_shows(name):
    shown = EVIDENCE[name]()
    assert shown is True or shown == questions()[name].answer
