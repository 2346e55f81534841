"""joinlab.check: right answers pass, and every plausible wrong one is refused, whatever the seed, and told why.

The known cases of a judge are the same for every seed and run first. So an answer that they refuse is refused by every
check: that is what is tested here, instead of a thousand seeds.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join, Joinable, JoinHook
from torch.nn.parallel import DistributedDataParallel as DDP

import joinlab
from joinlab.course import exercises, solutions
from joinlab.course.exercises import EXERCISES, check, solution
from joinlab.course.judge import Wrong
from tests.mutants import mutants
from tests.test_notebooks import NOTEBOOKS, cells

ANSWERS: dict[str, Any] = {
    **{name: getattr(solutions, name) for name in EXERCISES if hasattr(solutions, name)},
    **dict.fromkeys(("notify", "main_hook", "post_hook"), solutions.Largest),
}


@pytest.mark.parametrize("name", EXERCISES)
@pytest.mark.parametrize("seed", range(5))
def test_the_solution_is_right(name, seed):
    verdict = check(name, ANSWERS[name], seed=seed)
    assert verdict, verdict.sentence
    assert str(verdict).startswith(f"✓ Right ({name})")


# ---- gather_list


def one_call_a_tensor(tensors):
    places = [[torch.zeros_like(tensor) for _ in range(dist.get_world_size())] for tensor in tensors]
    for place, tensor in zip(places, tensors, strict=True):
        dist.all_gather(place, tensor)
    return [place[rank] for rank in range(dist.get_world_size()) for place in places]


def tensor_by_tensor(tensors):
    pieces = solutions.gather_list(tensors)
    return [pieces[r * len(tensors) + i] for i in range(len(tensors)) for r in range(dist.get_world_size())]


def not_cut_again(tensors):
    joined = torch.cat(tensors, -1)
    places = [torch.zeros_like(joined) for _ in range(dist.get_world_size())]
    dist.all_gather(places, joined)
    return places


def only_on_rank_0(tensors):
    joined = torch.cat(tensors, -1)
    places = [torch.zeros_like(joined) for _ in range(dist.get_world_size())] if dist.get_rank() == 0 else None
    dist.gather(joined, places)
    return [piece for place in places or [] for piece in torch.chunk(place, len(tensors), -1)]


def sorted_by_value(tensors):
    return sorted(solutions.gather_list(tensors), key=lambda tensor: tensor[0, 0].item())


def last_rank_first(tensors):
    return solutions.gather_list(tensors)[::-1]


def as_one_tensor(tensors):
    return torch.stack(solutions.gather_list(tensors))


# ---- accumulate


def one_backward_of_a_sum(model, inputs):
    sum(model(input) for input in inputs).backward()


def one_backward_of_the_summed_inputs(model, inputs):
    model(sum(inputs)).backward()


def the_mean_instead_of_the_sum(model, inputs):
    with model.no_sync():
        for input in inputs[:-1]:
            (model(input) / len(inputs)).backward()
    (model(inputs[-1]) / len(inputs)).backward()


def without_the_first(model, inputs):
    solutions.accumulate(model, inputs[1:])


def every_time(model, inputs):
    for input in inputs:
        model(input).backward()


def never(model, inputs):
    with model.no_sync():
        for input in inputs:
            model(input).backward()


def the_first_only(model, inputs):
    model(inputs[0]).backward()
    with model.no_sync():
        for input in inputs[1:]:
            model(input).backward()


def forward_outside(model, inputs):
    for input in inputs:
        loss = model(input)
        if input is not inputs[-1]:
            with model.no_sync():
                loss.backward()
        else:
            loss.backward()


# ---- gradient and last_joiner


def always_by_all(own, world_size, divide_by_initial_world_size):
    return sum(own) / world_size


def always_by_those_left(own, world_size, divide_by_initial_world_size):
    return sum(own) / len(own)


def the_other_way_round(own, world_size, divide_by_initial_world_size):
    return sum(own) / (len(own) if divide_by_initial_world_size else world_size)


def not_a_number(own, world_size, divide_by_initial_world_size):
    return float("nan")


def in_words(own, world_size, divide_by_initial_world_size):
    return "the mean"


def first_of_the_last(counts):
    return counts.index(max(counts))


def first_to_join(counts):
    return counts.index(min(counts))


def highest_rank(counts):
    return len(counts) - 1


def rank_0(counts):
    return 0


# ---- the Joinable, step by step


class Silent(solutions.Largest):
    """It never notifies."""

    def __call__(self, number):
        number = number.clone()
        dist.all_reduce(number, op=dist.ReduceOp.MAX)
        self.largest = torch.maximum(self.largest, number)


class Twice(solutions.Largest):
    def __call__(self, number):
        Join.notify_join_context(self)
        super().__call__(number)


class AfterTheCall(solutions.Largest):
    """It tells Join after its own collective."""

    def __call__(self, number):
        number = number.clone()
        dist.all_reduce(number, op=dist.ReduceOp.MAX)
        self.largest = torch.maximum(self.largest, number)
        Join.notify_join_context(self)


class OnlyOnce(solutions.Largest):
    def __init__(self):
        super().__init__()
        self.told = False

    def __call__(self, number):
        if not self.told:
            Join.notify_join_context(self)
            self.told = True
        Silent.__call__(self, number)


class NoInit(solutions.Largest):
    def __init__(self):
        self.largest = torch.tensor([-torch.inf])


class NotJoinable:
    largest = torch.zeros(1)

    def __call__(self, number):
        pass


class Hookless(solutions.Largest):
    def join_hook(self, **kwargs):
        return JoinHook()


class Zero(solutions.Largest):
    """It shadows with zero, which is larger than a negative number."""

    class Hook(solutions.LargestHook):
        def main_hook(self):
            dist.all_reduce(torch.zeros(1), op=dist.ReduceOp.MAX)

    def join_hook(self, **kwargs):
        return Zero.Hook(self)


class TwoCalls(solutions.Largest):
    class Hook(solutions.LargestHook):
        def main_hook(self):
            super().main_hook()
            super().main_hook()

    def join_hook(self, **kwargs):
        return TwoCalls.Hook(self)


class WrongShape(solutions.Largest):
    class Hook(solutions.LargestHook):
        def main_hook(self):
            dist.all_reduce(torch.full((100,), -torch.inf), op=dist.ReduceOp.MAX)

    def join_hook(self, **kwargs):
        return WrongShape.Hook(self)


class NoPostHook(solutions.Largest):
    class Hook(solutions.LargestHook):
        def post_hook(self, is_last_joiner):
            pass

    def join_hook(self, **kwargs):
        return NoPostHook.Hook(self)


class FromRank0(solutions.Largest):
    class Hook(solutions.LargestHook):
        def post_hook(self, is_last_joiner):
            dist.broadcast(self.owner.largest, src=0)

    def join_hook(self, **kwargs):
        return FromRank0.Hook(self)


class OnlyTheLast(solutions.Largest):
    """Only the last joiners take part in the post hook's call."""

    class Hook(solutions.LargestHook):
        def post_hook(self, is_last_joiner):
            if is_last_joiner:
                super().post_hook(is_last_joiner)

    def join_hook(self, **kwargs):
        return OnlyTheLast.Hook(self)


def shadowing(tensor, op=dist.ReduceOp.MAX):
    """Largest, whose main hook reduces a copy of `tensor` with `op`."""

    class Hook(solutions.LargestHook):
        def main_hook(self):
            dist.all_reduce(tensor.clone(), op=op)

    class Shadowing(solutions.Largest):
        def join_hook(self, **kwargs):
            return Hook(self)

    return Shadowing


def ending(post):
    """Largest, whose post hook is `post(largest, is_last_joiner)`."""

    class Hook(solutions.LargestHook):
        def post_hook(self, is_last_joiner):
            post(self.owner.largest, is_last_joiner)

    class Ending(solutions.Largest):
        def join_hook(self, **kwargs):
            return Hook(self)

    return Ending


def broadcast_of_the_last(largest, is_last_joiner):
    last = torch.tensor([dist.get_rank() if is_last_joiner else -1])
    dist.all_reduce(last, op=dist.ReduceOp.MAX)
    dist.broadcast(largest, src=int(last.item()))


class Informed(solutions.Largest):
    """Its main hook takes part with what it knows, and so learns what the others learn: right without a post hook."""

    class Hook(JoinHook):
        def __init__(self, owner):
            self.owner = owner

        def main_hook(self):
            dist.all_reduce(self.owner.largest, op=dist.ReduceOp.MAX)

    def join_hook(self, **kwargs):
        return Informed.Hook(self)


# ---- safe_loop


def barrier_in_the_loop(rank, inputs):
    model = DDP(torch.nn.Linear(1, 1))
    with model.join():
        for input in inputs:
            model(input).backward()
            dist.barrier()


def barrier_inside_join(rank, inputs):
    model = DDP(torch.nn.Linear(1, 1))
    with model.join():
        for input in inputs:
            model(input).backward()
        dist.barrier()


def no_barrier(rank, inputs):
    model = DDP(torch.nn.Linear(1, 1))
    with model.join():
        for input in inputs:
            model(input).backward()


def barrier_first(rank, inputs):
    dist.barrier()
    no_barrier(rank, inputs)


def barrier_of_rank_0(rank, inputs):
    no_barrier(rank, inputs)
    if rank == 0:
        dist.barrier()


def without_join(rank, inputs):
    model = DDP(torch.nn.Linear(1, 1))
    for input in inputs:
        model(input).backward()
    dist.barrier()


def join_that_is_off(rank, inputs):
    model = DDP(torch.nn.Linear(1, 1))
    with model.join(enable=False):
        for input in inputs:
            model(input).backward()
    dist.barrier()


def leaves_inputs_out(rank, inputs):
    solutions.safe_loop(rank, list(inputs)[:1])


def two_barriers(rank, inputs):
    solutions.safe_loop(rank, inputs)
    dist.barrier()


# ---- shadows


def inputs_that_are_missing(counts):
    return [max(counts) - count for count in counts]


def all_calls(counts):
    return [3 * max(counts)] * len(counts)


def own_calls(counts):
    return [3 * count for count in counts]


def with_the_last_question(counts):
    return [3 * (max(counts) - count) + 1 for count in counts]


def in_one_number(counts):
    return 3 * (max(counts) - min(counts))


# ---- in_order


def as_they_get_ready(ready, reduce):
    for bucket in ready:
        reduce(bucket)


def all_at_the_end(ready, reduce):
    for bucket in sorted(ready):
        reduce(bucket)


def without_those_behind(ready, reduce):
    following = 0
    for bucket in ready:
        if bucket == following:
            reduce(bucket)
            following += 1


def from_the_back(ready, reduce):
    for bucket in reversed(list(ready)):
        reduce(bucket)


def numbered(ready, reduce):
    for number, _ in enumerate(ready):
        reduce(number)


def twice(ready, reduce):
    def two(bucket):
        reduce(bucket)
        reduce(bucket)

    solutions.in_order(ready, two)


def with_a_list(ready, reduce):
    done = []
    seen = []
    for bucket in ready:
        seen.append(bucket)
        for following in range(len(done), len(seen)):
            if following in seen and following == len(done):
                reduce(following)
                done.append(following)


# ---- the six programs of notebook 10


def does_nothing(rank, inputs):
    return None


def only_trains(rank, inputs):
    model = DDP(torch.nn.Linear(1, 1))
    for input in inputs:
        model(input).backward()
    return len(inputs)


def prints_its_own_loss(rank, inputs):
    only_trains(rank, inputs)
    if rank == 0:
        print("mean loss", 1.0)


def prints_on_every_rank(rank, inputs):
    solutions.report(0, inputs)


def all_print(rank, inputs):
    only_trains(rank, inputs)
    loss = torch.ones(1) * (rank + 1)
    dist.all_reduce(loss)
    print("mean loss", loss.item() / dist.get_world_size())


def each_by_itself(rank, inputs):
    return only_trains(rank, list(inputs)[: rank + 1])


def after_two(rank, inputs):
    return only_trains(rank, list(inputs)[:2]) + 1


def skips_on_both(rank, inputs):
    only_trains(rank, list(inputs)[1:])


def drops_what_follows(rank, inputs):
    only_trains(rank, list(inputs)[:1])


def saves_its_own(rank, inputs):
    only_trains(rank, inputs)
    return [float(rank)] * dist.get_world_size()


def saves_without_training(rank, inputs):
    return solutions.save_all(rank, [])


def saves_twice_on_rank_0(rank, inputs):
    found = solutions.save_all(rank, inputs)
    if rank == 0:
        dist.barrier()
    return found


def never_reduces(rank, inputs):
    model = DDP(torch.nn.Linear(1, 1))
    with model.no_sync():
        for input in inputs:
            model(input).backward()


def branches_without_the_option(rank, inputs):
    model = DDP(solutions.Branches())
    for input in inputs:
        model(input).backward()


WRONG: dict[str, list[Callable[..., Any]]] = {
    "gather_list": [
        one_call_a_tensor,
        tensor_by_tensor,
        not_cut_again,
        only_on_rank_0,
        sorted_by_value,
        last_rank_first,
        as_one_tensor,
    ],
    "accumulate": [
        every_time,
        never,
        the_first_only,
        forward_outside,
        one_backward_of_a_sum,
        one_backward_of_the_summed_inputs,
        the_mean_instead_of_the_sum,
        without_the_first,
    ],
    "safe_loop": [
        barrier_in_the_loop,
        barrier_inside_join,
        no_barrier,
        barrier_first,
        barrier_of_rank_0,
        without_join,
        join_that_is_off,
        leaves_inputs_out,
    ],
    "gradient": [always_by_all, always_by_those_left, the_other_way_round, not_a_number, in_words],
    "last_joiner": [first_of_the_last, first_to_join, highest_rank, rank_0, max, lambda counts: True],
    "notify": [Silent, Twice, NoInit, NotJoinable, AfterTheCall, OnlyOnce],
    "main_hook": [
        Hookless,
        Zero,
        TwoCalls,
        WrongShape,
        AfterTheCall,
        shadowing(torch.tensor([-1000.0])),
        shadowing(torch.full((2,), -torch.inf)),
        shadowing(torch.tensor([-(2**62)])),
        shadowing(torch.tensor([-torch.inf]), dist.ReduceOp.SUM),
        shadowing(torch.tensor([-torch.inf], dtype=torch.float64)),
    ],
    "post_hook": [
        NoPostHook,
        FromRank0,
        OnlyTheLast,
        Zero,
        AfterTheCall,
        ending(lambda largest, last: dist.broadcast(largest, src=dist.get_world_size() - 1)),
        ending(lambda largest, last: dist.all_reduce(largest)),
        ending(lambda largest, last: largest.zero_()),
    ],
    "in_order": [as_they_get_ready, numbered, all_at_the_end, without_those_behind, from_the_back, twice],
    "shadows": [inputs_that_are_missing, all_calls, own_calls, with_the_last_question, in_one_number],
    "report": [does_nothing, only_trains, prints_its_own_loss, prints_on_every_rank, all_print],
    "stop_early": [does_nothing, only_trains, each_by_itself, after_two, drops_what_follows],
    "skip_bad": [does_nothing, each_by_itself, skips_on_both, drops_what_follows, never_reduces],
    "save_all": [does_nothing, only_trains, saves_its_own, saves_without_training, saves_twice_on_rank_0],
    "every_second": [does_nothing, only_trains, never_reduces, each_by_itself, drops_what_follows],
    "unused": [does_nothing, branches_without_the_option, never_reduces, each_by_itself, drops_what_follows],
}
"""Plausible mistakes. The starters of the notebooks are tested beside them, as they stand there."""

RIGHT: dict[str, list[Callable[..., Any]]] = {
    "gather_list": [lambda tensors: tuple(solutions.gather_list(tensors))],
    "accumulate": [],
    "safe_loop": [two_barriers],
    "gradient": [lambda own, size, by_all: torch.tensor(own).sum() / (size if by_all else len(own))],
    "last_joiner": [lambda counts: len(counts) - 1 - list(counts)[::-1].index(max(counts))],
    "notify": [Hookless, Zero, NoPostHook],
    "main_hook": [NoPostHook, Informed, shadowing(torch.tensor([torch.finfo(torch.float32).min]))],
    "post_hook": [Informed, ending(broadcast_of_the_last)],
    "in_order": [with_a_list],
    "shadows": [lambda counts: tuple(3 * max(counts) - 3 * count for count in counts)],
    "report": [],
    "save_all": [],
    "every_second": [],
    "stop_early": [lambda rank, inputs: only_trains(rank, list(inputs)[:1])],
    "skip_bad": [],
    "unused": [only_trains],
}
"""Right answers beside the solution, some of them odd."""


def starters() -> list[tuple[str, str, Callable[..., Any]]]:
    """The answers that stand in the notebooks, untouched: (notebook, exercise, answer)."""
    found = []
    for path in NOTEBOOKS:
        imports, *rest = cells(path, "code")
        names: dict[str, Any] = {"__name__": path.stem}
        exec(imports, names)
        for node in (node for code in rest for node in ast.parse(code).body):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                exec(compile(ast.Module([node], []), path.stem, "exec"), names)
        for exercise, answer in re.findall(r'joinlab\.check\("(\w+)", (\w+)\)', "\n".join(rest)):
            found.append((path.stem, exercise, names[answer]))
    return found


STARTERS = starters()


def test_every_exercise_has_a_starter_in_a_notebook():
    assert [exercise for _, exercise, _ in STARTERS] == list(EXERCISES)
    assert [int(stem[:2]) for stem, _, _ in STARTERS] == [one.notebook for one in EXERCISES.values()]


@pytest.mark.parametrize(("name", "answer"), [starter[1:] for starter in STARTERS])
def test_an_untouched_starter_is_refused_whatever_the_seed(name, answer):
    assert refusal(name, answer)


def refusal(name: str, answer: Callable[..., Any]) -> str:
    """What the known cases alone say against an answer; "" if they accept it."""
    judge = EXERCISES[name].judge
    try:
        for case in judge.known:
            judge.hold(answer, case)
    except Wrong as wrong:
        return str(wrong)
    return ""


@pytest.mark.parametrize(("name", "answer"), [(name, answer) for name in WRONG for answer in WRONG[name]])
def test_a_wrong_answer_is_refused_whatever_the_seed(name, answer):
    assert refusal(name, answer)
    verdict = check(name, answer, seed=0)
    assert not verdict
    assert str(verdict).startswith((f"✕ Not yet ({name}): with ", f"✕ Not yet ({name}): step "))


@pytest.mark.parametrize(("name", "answer"), [(name, answer) for name in RIGHT for answer in RIGHT[name]])
def test_another_right_answer_is_right_too(name, answer):
    verdict = check(name, answer, seed=0)
    assert verdict, verdict.sentence


def test_each_exercise_has_wrong_answers_and_a_solution():
    assert WRONG.keys() == RIGHT.keys() == ANSWERS.keys() == EXERCISES.keys()
    assert all(len(answers) >= 5 for answers in WRONG.values())


BAD_INPUT = Path(solutions.__file__).read_text("utf-8").partition("rank == 1 and i == 1")[0].count("\n") + 1


def is_equivalent(mutant: str) -> bool:
    """The last of two dimensions is dimension 1; which input of which rank is the bad one is not asked."""
    return mutant.endswith("'-1' became '+1'") or mutant.startswith(f"line {BAD_INPUT}: '1' became ")


MUTATED = ("gather_list", "accumulate", "safe_loop", "gradient", "last_joiner", "in_order", "shadows")
MUTATED += ("report", "stop_early", "skip_bad", "save_all", "every_second", "unused")


@pytest.mark.parametrize("name", MUTATED)
def test_every_mutant_of_a_solution_is_refused(name):
    survivors = [text for text, module in mutants(Path(solutions.__file__), name) if not refusal(name, module[name])]
    assert [text for text in survivors if not is_equivalent(text)] == []


@pytest.mark.parametrize("part", ["Largest", "LargestHook"])
def test_every_mutant_of_the_joinable_is_refused(part):
    found = mutants(Path(solutions.__file__), part)
    survivors = [text for text, module in found if not refusal("post_hook", module["Largest"])]
    assert survivors == []


def test_a_mistake_in_one_step_is_told_at_that_step():
    assert not refusal("notify", Zero) and "element" not in refusal("main_hook", Zero)
    assert refusal("main_hook", AfterTheCall).startswith("step 1 (notify) is not right yet: ")
    assert refusal("post_hook", Zero).startswith("step 2 (main_hook) is not right yet: ")
    assert "told Join first" in refusal("notify", AfterTheCall) or "before it told Join" in refusal(
        "notify", AfterTheCall
    )


def test_it_says_which_element_is_wrong():
    assert "element 0: expected 3, got 0." in refusal("shadows", lambda counts: [0, 1])
    assert "expected a list of 2, got 3" in refusal("shadows", in_one_number)


@pytest.mark.parametrize("name", EXERCISES)
def test_an_answer_that_does_nothing_or_fails_is_wrong(name):
    def fails(*args: Any) -> None:
        raise KeyError("oops")

    for answer in (lambda *args: None, fails):
        assert not check(name, answer)
    assert "oops" in check(name, fails).sentence


# ---- what is wrong is said well


def test_it_says_in_what_a_shadow_differs_and_in_which_case_an_answer_hangs():
    assert "differ in reduce_op: sum on rank 0, max on rank 1" in refusal("main_hook", Hookless)
    said = refusal("in_order", as_they_get_ready)
    assert said.startswith("with buckets that get ready in the order [0, 1, 2] on rank 0, [2, 1, 0] on rank 1: ")


def test_it_names_the_counts_and_both_values():
    sentence = check("last_joiner", first_of_the_last, seed=0).sentence
    assert sentence.startswith("with inputs=(")
    assert "expected rank 2, whose parameters all ranks end with, got 0." in sentence


def test_the_same_seed_draws_the_same_counts():
    draw = EXERCISES["last_joiner"].judge.draw
    assert draw(random.Random(3)) == draw(random.Random(3))
    assert len({draw(random.Random(seed)) for seed in range(8)}) > 1
    assert check("gradient", always_by_all, seed=3) == check("gradient", always_by_all, seed=3)


def test_what_is_no_function_is_said_to_be_none():
    assert "needs a function or a class; this is 3" in check("gradient", 3).sentence  # type: ignore[arg-type]


@pytest.mark.parametrize("ask", [solution, lambda name: check(name, print)])
def test_an_unknown_exercise_names_those_that_there_are(ask):
    with pytest.raises(ValueError, match=r"no exercise 'nothing'; there are gather_list, .*in_order"):
        ask("nothing")


def test_a_verdict_shows_its_words_and_not_only_a_colour():
    html = check("gradient", lambda *args: "<b>", seed=0)._repr_html_()
    assert "Not yet" in html
    assert "<b>" not in html


@pytest.mark.parametrize("name", EXERCISES)
def test_a_solution_is_shown_to_those_who_ask(name):
    shown = solution(name)
    assert ("def " in repr(shown)) and shown._repr_markdown_().startswith("```python\n")
    assert "def " not in EXERCISES[name].asked


def test_joinables_are_what_pytorch_calls_so():
    assert issubclass(solutions.Largest, Joinable)
    assert exercises.TRIALS >= 4
    assert joinlab.__version__
