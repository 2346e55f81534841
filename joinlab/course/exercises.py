"""Exercises: `check` judges what a learner wrote, on counts that are drawn anew each time and not shown before.

    joinlab.check("gather_list", my_function)         # right, or which case it failed, and how
    joinlab.solution("gather_list")                   # one way to do it, for those who ask

An answer is run as a rank's program is, emulated, so that a wrong one that would hang is told so in milliseconds.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape

from joinlab.course import judges, solutions
from joinlab.course.judges import Answer, Wrong
from joinlab.picture.theme import RIGHT, WRONG

TRIALS = 6
"""How often an answer is run, each time on other counts."""


@dataclass(frozen=True, slots=True)
class Exercise:
    """What is asked, who judges it, and which parts of solutions.py show a solution."""

    asked: str
    judge: Callable[[Answer, random.Random], None]
    shown: tuple[str, ...]


EXERCISES: Mapping[str, Exercise] = {
    "gather_list": Exercise(
        "gather_list(tensors): return all ranks' lists of tensors as one list, rank 0's first, with one collective.",
        judges.gather_list,
        ("gather_list",),
    ),
    "accumulate": Exercise(
        "accumulate(model, inputs): add up the gradients of all inputs, and let DDP reduce them once.",
        judges.accumulate,
        ("accumulate",),
    ),
    "gradient": Exercise(
        "gradient(own, world_size, divide_by_initial_world_size): what DDP makes of the gradients of the ranks left.",
        judges.gradient,
        ("gradient",),
    ),
    "last_joiner": Exercise(
        "last_joiner(counts): the rank whose parameters all ranks have after join().",
        judges.last_joiner,
        ("last_joiner",),
    ),
    "notify": Exercise("A Joinable that tells Join once an input that it has one.", judges.notify, ("Largest",)),
    "main_hook": Exercise("The others finish though a rank has joined.", judges.main_hook, ("Largest", "LargestHook")),
    "post_hook": Exercise("Every rank ends with the right number.", judges.post_hook, ("Largest", "LargestHook")),
    "in_order": Exercise(
        "in_order(ready, reduce): reduce buckets in the same order on all ranks, each as soon as it is its turn.",
        judges.in_order,
        ("in_order",),
    ),
}
"""All exercises by name."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What `check` says: whether the answer is right, and if not, which case it failed. True if it is right."""

    exercise: str
    right: bool
    sentence: str

    def __bool__(self) -> bool:
        return self.right

    def __str__(self) -> str:
        return f"{'✓ Right' if self.right else '✕ Not yet'} ({self.exercise}): {self.sentence}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        color = RIGHT if self.right else WRONG
        return f'<p style="border-left:.4em solid {color};padding:.2em .8em;margin:.3em 0">{escape(str(self))}</p>'


@dataclass(frozen=True, slots=True)
class Solution:
    """The text of a solution, which prints itself."""

    text: str

    def __repr__(self) -> str:
        return self.text

    def _repr_markdown_(self) -> str:
        return f"```python\n{self.text}```"


def check(exercise: str, answer: Answer, *, seed: int | None = None) -> Verdict:
    """Judge an answer to an exercise: run it on hidden counts and say whether it is right, or which case it failed.

    exercise  its name; EXERCISES has them all, with what is asked
    answer    the function or class that the learner wrote
    seed      draws the same counts every time; None: other ones

    Raises ValueError for an exercise that there is none of. A wrong answer never raises.

        joinlab.check("last_joiner", lambda counts: counts.index(max(counts)))
    """
    judge = _exercise(exercise).judge
    if not callable(answer):
        return Verdict(exercise, False, f"it needs a function or a class; this is {answer!r:.60}.")
    rng = random.Random(seed)
    try:
        for _ in range(TRIALS):
            judge(answer, rng)
    except Wrong as wrong:
        return Verdict(exercise, False, str(wrong))
    return Verdict(exercise, True, f"it held on {TRIALS} draws of counts.")


def solution(exercise: str) -> Solution:
    """One solution of an exercise, as text to read."""
    names = _exercise(exercise).shown
    return Solution("\n\n".join(inspect.getsource(getattr(solutions, name)) for name in names))


def _exercise(name: str) -> Exercise:
    if name not in EXERCISES:
        raise ValueError(f"there is no exercise {name!r}; there are {', '.join(EXERCISES)}")
    return EXERCISES[name]
