"""Exercises: `check` runs a learner's answer on cases that the notebooks do not show, and reports
the first mistake.

    joinlab.check("gather_list", my_function)         # right, or in which case it failed, and how
    joinlab.solution("gather_list")                   # one way to do it

An answer is emulated like any program, so `check` reports a hang within milliseconds.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape

from joinlab.course import progress
from joinlab.course.answers import building, joinables, judges, repairs, solutions
from joinlab.course.judge import SECONDS_IN_ALL, Answer, Judge, Wrong
from joinlab.course.questions import known
from joinlab.errors import ProgramError
from joinlab.launcher.isolated import Lost, call_isolated
from joinlab.picture.theme import RIGHT, WRONG

TRIALS = 2
"""Number of random cases per check, beside the known ones."""


@dataclass(frozen=True, slots=True)
class Exercise:
    """The file of its notebook, without ".ipynb", its judge, and the names in answers/solutions.py
    that make up a solution."""

    notebook: str
    judge: Judge
    shown: tuple[str, ...] = ()


EXERCISES: Mapping[str, Exercise] = {
    "safe_loop": Exercise("01_six_loops", judges.safe_loop),
    "mean_loss": Exercise("02_case_4_call_by_call", repairs.mean_loss),
    "as_float": Exercise("02_case_4_call_by_call", judges.as_float),
    "last_joiner": Exercise("03_join_options", judges.last_joiner),
    "gradient": Exercise("03_join_options", judges.gradient),
    "small_join": Exercise("04_build_join", building.small_join, ("ask", "small_join")),
    "even_out": Exercise("05_when_your_job_hangs", repairs.even_out),
    "in_step": Exercise("05_when_your_job_hangs", repairs.in_step),
    "report": Exercise("05_when_your_job_hangs", repairs.report),
    "stop_early": Exercise("05_when_your_job_hangs", repairs.stop_early),
    "skip_bad": Exercise("05_when_your_job_hangs", repairs.skip_bad),
    "save_all": Exercise("05_when_your_job_hangs", repairs.save_all),
    "every_second": Exercise("05_when_your_job_hangs", repairs.every_second),
    "unused": Exercise("05_when_your_job_hangs", repairs.unused, ("Branches", "unused")),
    "ring_sum": Exercise("ddp_1_collectives", judges.ring_sum),
    "gather_list": Exercise("ddp_1_collectives", judges.gather_list),
    "accumulate": Exercise("ddp_2_inside", judges.accumulate),
    "hand_out": Exercise("ddp_3_build", building.hand_out),
    "buckets_of": Exercise("ddp_3_build", building.buckets_of),
    "small_ddp": Exercise(
        "ddp_3_build", building.small_ddp, ("hand_out", "buckets_of", "SmallDDP")
    ),
    "notify": Exercise("further_1_joinable", joinables.notify, ("Largest",)),
    "main_hook": Exercise("further_1_joinable", joinables.main_hook, ("Largest", "LargestHook")),
    "post_hook": Exercise("further_1_joinable", joinables.post_hook, ("Largest", "LargestHook")),
    "in_order": Exercise("further_2_order", judges.in_order),
    "shadows": Exercise("further_3_cost", judges.shadows),
}
"""All exercises by name, in the order of the course."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of `check`: whether the answer is right, and if not, which case failed. Truthy if
    right."""

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
    """The text of a solution; its repr is the text itself."""

    text: str

    def __repr__(self) -> str:
        return self.text

    def _repr_markdown_(self) -> str:
        return f"```python\n{self.text}```"


def check(exercise: str, answer: Answer) -> Verdict:
    """Judge an answer to an exercise on known and random cases; the Verdict names the first case
    that failed.

    exercise  one of the names in EXERCISES
    answer    the function or class that the learner wrote

    Raises ValueError for an unknown exercise. A wrong answer never raises. The answer runs in a
    separate process, with everything that it refers to, and is stopped if it computes forever.

        joinlab.check("last_joiner", lambda counts: counts.index(max(counts)))
    """
    _exercise(exercise)
    if not callable(answer):
        return Verdict(exercise, False, f"pass a function or a class to check; got {answer!r:.60}.")
    try:
        verdict = Verdict(
            exercise, *call_isolated(judged, exercise, answer, name="it", seconds=SECONDS_IN_ALL)
        )
    except (Lost, ProgramError) as error:
        verdict = Verdict(exercise, False, str(error))
    progress.record("exercises", exercise, verdict.right)
    return verdict


def judged(exercise: str, answer: Answer, seed: int | None = None) -> tuple[bool, str]:
    """Whether an answer is right, and a sentence about it. Runs in this process, and never returns
    if the answer keeps the GIL. `seed` is that of the random cases; None draws others each time."""
    judge, rng = _exercise(exercise).judge, random.Random(seed)
    try:
        judge.hold_known(answer)
        for _ in range(TRIALS):
            judge.hold(answer, judge.draw(rng))
    except Wrong as wrong:
        return False, str(wrong)
    except Exception as error:
        return False, f"its result cannot be judged: {type(error).__name__}: {error!s:.200}"
    return True, f"it passed all {len(judge.known) + TRIALS} cases."


def solution(exercise: str) -> Solution:
    """One solution of an exercise, as text to read."""
    names = _exercise(exercise).shown or (exercise,)
    return Solution("\n\n".join(inspect.getsource(getattr(solutions, name)) for name in names))


def _exercise(name: str) -> Exercise:
    known("exercise", name, EXERCISES)
    return EXERCISES[name]
