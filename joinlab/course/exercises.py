"""Exercises: `check` runs a learner's answer on cases that the notebooks do not show, and says what is wrong with it.

    joinlab.check("gather_list", my_function)         # right, or in which case it failed, and how
    joinlab.solution("gather_list")                   # one way to do it

An answer runs as a rank's program does, emulated, so that an answer that hangs is told so in milliseconds.
"""

from __future__ import annotations

import inspect
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape

from joinlab.course import building, joinables, judges, progress, repairs, solutions
from joinlab.course.judge import SECONDS_IN_ALL, Answer, Judge, Wrong
from joinlab.errors import ProgramError
from joinlab.launcher.apart import Lost, apart
from joinlab.picture.theme import RIGHT, WRONG

TRIALS = 4
"""How many cases are drawn, beside the known ones that every check runs."""


@dataclass(frozen=True, slots=True)
class Exercise:
    """In which notebook, what is asked, who judges it, and which parts of solutions.py show a solution."""

    notebook: int
    asked: str
    judge: Judge
    shown: tuple[str, ...]


EXERCISES: Mapping[str, Exercise] = {
    "safe_loop": Exercise(
        1,
        "safe_loop(rank, inputs): the loop of case 4, with join() and with a barrier that hangs nothing.",
        judges.safe_loop,
        ("safe_loop",),
    ),
    "ring_sum": Exercise(
        2, "ring_sum(x): the sum of all ranks' x on every rank, by sends and receives.", judges.ring_sum, ("ring_sum",)
    ),
    "gather_list": Exercise(
        2,
        "gather_list(tensors): return all ranks' lists of tensors as one list, rank 0's first, with one collective.",
        judges.gather_list,
        ("gather_list",),
    ),
    "accumulate": Exercise(
        3,
        "accumulate(model, inputs): one backward per input, and DDP reduces the sum of the gradients once.",
        judges.accumulate,
        ("accumulate",),
    ),
    "hand_out": Exercise(
        4, "hand_out(module): every rank begins with the parameters of rank 0.", building.hand_out, ("hand_out",)
    ),
    "buckets_of": Exercise(
        4, "buckets_of(module, numbers): which parameters are reduced together.", building.buckets_of, ("buckets_of",)
    ),
    "small_ddp": Exercise(
        4,
        "SmallDDP(module, numbers): makes the calls that DDP makes in backward, and gets its gradients.",
        building.small_ddp,
        ("hand_out", "buckets_of", "SmallDDP"),
    ),
    "even_out": Exercise(
        5, "even_out(rank, inputs): each rank trains on as many inputs as all have.", repairs.even_out, ("even_out",)
    ),
    "as_float": Exercise(6, "as_float(byte): the float that NCCL makes of it.", judges.as_float, ("as_float",)),
    "mean_loss": Exercise(
        6, "mean_loss(rank, inputs): the mean over all ranks' inputs, with join().", repairs.mean_loss, ("mean_loss",)
    ),
    "last_joiner": Exercise(
        7,
        "last_joiner(counts): the rank whose parameters all ranks have after join().",
        judges.last_joiner,
        ("last_joiner",),
    ),
    "gradient": Exercise(
        7,
        "gradient(own, world_size, divide_by_initial_world_size): what DDP makes of the gradients of the ranks left.",
        judges.gradient,
        ("gradient",),
    ),
    "small_join": Exercise(
        8,
        "small_join(model, inputs, train): makes the calls that DDP makes under join().",
        building.small_join,
        ("ask", "small_join"),
    ),
    "notify": Exercise(9, "A Joinable that tells Join once per input that it has one.", joinables.notify, ("Largest",)),
    "main_hook": Exercise(
        9, "The others finish though a rank has joined.", joinables.main_hook, ("Largest", "LargestHook")
    ),
    "post_hook": Exercise(9, "Every rank ends with the right number.", joinables.post_hook, ("Largest", "LargestHook")),
    "in_order": Exercise(
        10,
        "in_order(ready, reduce): reduce buckets in the order of their numbers, each as soon as it is its turn.",
        judges.in_order,
        ("in_order",),
    ),
    "shadows": Exercise(
        11,
        "shadows(counts): how many collectives each rank makes under join() only to shadow the others.",
        judges.shadows,
        ("shadows",),
    ),
    "report": Exercise(
        12, "Rank 0 prints the mean loss of all ranks in its second input.", repairs.report, ("report",)
    ),
    "stop_early": Exercise(
        12, "The ranks stop when the first has learnt enough, or when all have.", repairs.stop_early, ("stop_early",)
    ),
    "skip_bad": Exercise(12, "Rank 1 skips a bad input, and trains on the others.", repairs.skip_bad, ("skip_bad",)),
    "save_all": Exercise(12, "Rank 0 returns the parts of all ranks.", repairs.save_all, ("save_all",)),
    "every_second": Exercise(
        12, "Gradients are reduced in every second input.", repairs.every_second, ("every_second",)
    ),
    "unused": Exercise(12, "A model of which some ranks use only a part.", repairs.unused, ("Branches", "unused")),
    "in_step": Exercise(
        13,
        "in_step(rank, stream): train until the first rank's stream has ended.",
        repairs.in_step,
        ("in_step",),
    ),
}
"""All exercises by name, in the order of the course."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What `check` says: whether the answer is right, and if not, in which case it failed. True if it is right."""

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
    """Judge an answer to an exercise: run it on known and on drawn cases, and say in which it failed, if it did.

    exercise  its name; EXERCISES has them all, with what is asked
    answer    the function or class that the learner wrote
    seed      draws the same cases every time; None: other ones

    Raises ValueError for an unknown exercise. A wrong answer never raises, and one that computes without end is ended:
    it is judged in a process of its own, to which it is sent with what it refers to.

        joinlab.check("last_joiner", lambda counts: counts.index(max(counts)))
    """
    _exercise(exercise)
    if not callable(answer):
        return Verdict(exercise, False, f"it needs a function or a class; this is {answer!r:.60}.")
    try:
        verdict = Verdict(exercise, *apart(judged, exercise, answer, seed, name="it", seconds=2 * SECONDS_IN_ALL))
    except (Lost, ProgramError) as error:
        verdict = Verdict(exercise, False, str(error))
    progress.record("exercises", exercise, verdict.right)
    return verdict


def judged(exercise: str, answer: Answer, seed: int | None) -> tuple[bool, str]:
    """Whether an answer is right, and what to say of it. It runs in this process, and does not end if the answer keeps
    Python's lock."""
    judge, rng, until = _exercise(exercise).judge, random.Random(seed), time.monotonic() + SECONDS_IN_ALL
    try:
        for case in (*judge.known, *(judge.draw(rng) for _ in range(TRIALS))):
            judge.hold(answer, case)
            if time.monotonic() > until:
                raise Wrong(f"it is right so far, and too slow: {SECONDS_IN_ALL:.0f} s are over.")
    except Wrong as wrong:
        return False, str(wrong)
    except Exception as error:
        return False, f"what it makes cannot be judged: {type(error).__name__}: {error!s:.200}"
    return True, f"it held in {len(judge.known) + TRIALS} cases."


def solution(exercise: str) -> Solution:
    """One solution of an exercise, as text to read."""
    names = _exercise(exercise).shown
    return Solution("\n\n".join(inspect.getsource(getattr(solutions, name)) for name in names))


def _exercise(name: str) -> Exercise:
    if name not in EXERCISES:
        raise ValueError(f"there is no exercise {name!r}; there are {', '.join(EXERCISES)}")
    return EXERCISES[name]
