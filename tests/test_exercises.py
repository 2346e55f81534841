"""joinlab.check: the solution of each exercise passes, and plausible wrong answers are told what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join, Joinable, JoinHook

import joinlab
from joinlab.course import exercises, solutions
from joinlab.course.exercises import EXERCISES, check, solution

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


# ---- accumulate


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


WRONG: dict[str, list[Callable[..., Any]]] = {
    "gather_list": [one_call_a_tensor, tensor_by_tensor, not_cut_again, only_on_rank_0],
    "accumulate": [every_time, never, the_first_only, forward_outside],
    "gradient": [always_by_all, always_by_those_left, the_other_way_round],
    "last_joiner": [first_of_the_last, first_to_join, highest_rank, rank_0],
    "notify": [Silent, Twice, NoInit, NotJoinable],
    "main_hook": [Hookless, Zero, TwoCalls, WrongShape],
    "post_hook": [NoPostHook, FromRank0, OnlyTheLast],
    "in_order": [as_they_get_ready, all_at_the_end, without_those_behind, from_the_back],
}


@pytest.mark.parametrize(("name", "answer"), [(name, answer) for name in WRONG for answer in WRONG[name]])
@pytest.mark.parametrize("seed", range(5))
def test_a_wrong_answer_is_told_which_case_it_failed(name, answer, seed):
    verdict = check(name, answer, seed=seed)
    assert not verdict
    assert str(verdict).startswith(f"✕ Not yet ({name}): with ")


def test_each_exercise_has_three_wrong_answers_and_a_solution():
    assert WRONG.keys() == ANSWERS.keys() == EXERCISES.keys()
    assert all(len(answers) >= 3 for answers in WRONG.values())


@pytest.mark.parametrize("name", EXERCISES)
def test_an_answer_that_does_nothing_or_fails_is_wrong(name):
    def fails(*args: Any) -> None:
        raise KeyError("oops")

    for answer in (lambda *args: None, fails):
        assert not check(name, answer)
    assert "oops" in check(name, fails).sentence


# ---- what is wrong is said well


def test_it_says_who_hangs_and_why():
    assert (
        "hangs in" in check("main_hook", Hookless, seed=1).sentence
        or "raised" in check("main_hook", Hookless, seed=1).sentence
    )


def test_it_names_the_counts_and_both_values():
    sentence = check("last_joiner", first_of_the_last, seed=0).sentence
    assert sentence.startswith("with inputs=(")
    assert "all ranks ended with the parameters of rank" in sentence


def test_the_same_seed_draws_the_same_counts():
    assert check("gradient", always_by_all, seed=3) == check("gradient", always_by_all, seed=3)
    assert len({check("last_joiner", rank_0).sentence for _ in range(8)}) > 1


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
    assert exercises.TRIALS >= 5
    assert joinlab.__version__
