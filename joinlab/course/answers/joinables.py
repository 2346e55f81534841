"""Judges of the three steps of writing a Joinable. Each step is judged without the steps after it.

Step 1 runs the answer with hooks that do nothing, on even inputs, where no hook is needed; step 2
with its main hook and no post hook. So each mistake is reported at its own step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch.distributed.algorithms.join import Join, Joinable, JoinHook

from joinlab.analysis.matching import match
from joinlab.course.answers.situations import SHORT, SITUATIONS, Situation, draw
from joinlab.course.judge import Answer, Judge, Wrong, compare, issued, run
from joinlab.timeline import Timeline

Numbers = Sequence[Sequence[float]]
"""The numbers of each rank, one per input."""

LOWEST = -3.4e38
"""Nearly the lowest float32: only a hook that sends less leaves the maximum alone."""


def _numbers(case: Situation) -> Numbers:
    """The numbers of a situation: negative, positive, or nearly the lowest."""
    scalings = (
        lambda value: 100 * value,
        lambda value: -value,
        lambda value: LOWEST - 1e33 * value,
    )
    return [
        [scalings[case.seed % 3](value) for value in case.inputs(rank)]
        for rank in range(case.ranks)
    ]


def _largest_last(case: Situation) -> Numbers:
    """The same, but the largest is the last of a rank with the most inputs: it comes when others
    have joined."""
    numbers = [[*rank_numbers] for rank_numbers in _numbers(case)]
    longest = max(numbers, key=len)
    largest = max(filter(None, numbers), key=max)
    position = largest.index(max(largest))
    longest[-1], largest[position] = largest[position], longest[-1]
    return numbers


class _MainOnly(JoinHook):
    def __init__(self, hook: JoinHook) -> None:
        self._hook = hook

    def main_hook(self) -> None:
        self._hook.main_hook()


def _judged(answer: Answer, numbers: Numbers, hooks: str) -> tuple[Timeline, str]:
    """Run the answer on `numbers` with some of its hooks: "none", "main" or "both"."""

    def program(rank: int, inputs: Any) -> object:
        joinable = answer()
        if not isinstance(joinable, Joinable):
            raise TypeError(f"{type(joinable).__name__} is not a Joinable")
        join_hook = joinable.join_hook
        if hooks != "both":
            joinable.join_hook = (  # type: ignore[method-assign]
                lambda **kwargs: JoinHook() if hooks == "none" else _MainOnly(join_hook(**kwargs))
            )
        with Join([joinable]):
            for number, _ in zip(numbers[rank], inputs, strict=True):
                tensor = torch.tensor([number])
                joinable(tensor)  # type: ignore[operator]
                if tensor.item() != torch.tensor(number).item():
                    raise ValueError(
                        "__call__ changed the tensor that it was given: reduce a clone of it"
                    )
        return float(joinable.largest.item())  # type: ignore[attr-defined]

    counts = tuple(map(len, numbers))
    situation = f"inputs={counts}"
    if sum(counts) <= MANY:
        rounded = [[float(f"{number:.4g}") for number in row] for row in numbers]
        situation += f" and the numbers {rounded}"
    return run(program, counts, situation), situation


MANY = 14
"""A message lists no more numbers than this."""


def _largest(numbers: Numbers) -> float:
    return max(max(rank_numbers) for rank_numbers in numbers if rank_numbers)


def _is_notice(row: Mapping[str, Any]) -> bool:
    return "notify_join_context" in row["origin"]


# ---- step 1


def _notify(answer: Answer, case: Situation) -> None:
    numbers = _numbers(case.even())
    timeline, situation = _judged(answer, numbers, "none")
    for rank, rank_numbers in enumerate(numbers):
        rows = []
        for row in issued(timeline, rank):
            if _is_notice(row) or "join()" not in row["origin"]:
                rows.append(row)
        notices = sum(map(_is_notice, rows))
        if notices != len(rank_numbers):
            raise Wrong(
                f"with {situation}, rank {rank} called notify_join_context() {notices} times; expected "
                f"{len(rank_numbers)}, once per input."
            )
        if len(rows) - notices != len(rank_numbers):
            raise Wrong(
                f"with {situation}, rank {rank} made {len(rows) - notices} collectives of its own "
                f"in {len(rank_numbers)} inputs; "
                "`largest` takes one per input."
            )
        follows = [not _is_notice(after) for before, after in pairwise(rows) if _is_notice(before)]
        if not _is_notice(rows[0]) or not all(follows):
            raise Wrong(
                f"with {situation}, rank {rank} made its own collective before it called Join.notify_join_context(). A "
                "rank that has joined first asks who is left, and the two calls would meet: notify Join first."
            )
        compare(timeline.returns[rank], _largest(numbers), situation, f"`largest` on rank {rank}")
    if case == SHORT[0]:
        _without_join(answer)


def _without_join(answer: Answer) -> None:
    """Raise Wrong if the answer does not work without Join."""

    def program(rank: int, inputs: object) -> None:
        answer()(torch.tensor([1.0]))

    run(program, (1, 1), "no Join around it")


notify = Judge(SHORT, draw, _notify)

# ---- step 2


def _main_hook(answer: Answer, case: Situation) -> None:
    numbers = _numbers(case)
    timeline, situation = _judged(answer, numbers, "main")
    _alike(timeline, situation)
    if any("nan" in str(text).lower() for text in timeline.calls["value_in"]):
        raise Wrong(
            f"with {situation}, the hook sends NaN; the backends disagree on the maximum of NaN and a number."
        )
    for rank, rank_numbers in enumerate(numbers):
        # it never shadowed; the others need the post hook
        if len(rank_numbers) == max(map(len, numbers)):
            compare(
                timeline.returns[rank], _largest(numbers), situation, f"`largest` on rank {rank}"
            )


def _alike(timeline: Timeline, situation: str) -> None:
    """Raise Wrong where a shadow differs from the call it shadows, even if the sizes happen to fit
    on this backend."""
    for slot in match(timeline):
        rows = {rank: timeline.call(rank, seq, slot.group) for rank, seq in slot.calls.items()}
        for field in ("op", "dtype", "shape", "reduce_op"):
            values = {rank: str(row[field]) for rank, row in rows.items()}
            if len(set(values.values())) > 1:
                values_text = ", ".join(f"{value} on rank {rank}" for rank, value in values.items())
                raise Wrong(
                    f"with {situation}, calls that meet differ in {field}: {values_text}. "
                    "Make the hook's call like the others'."
                )


def _after_step_1(answer: Answer) -> None:
    _earlier(notify, answer, "step 1 (notify)")


main_hook = Judge(SITUATIONS, draw, _main_hook, _after_step_1)

# ---- step 3


def _post_hook(answer: Answer, case: Situation) -> None:
    numbers = _largest_last(case)
    timeline, situation = _judged(answer, numbers, "both")
    _alike(timeline, situation)
    for rank in range(len(numbers)):
        compare(timeline.returns[rank], _largest(numbers), situation, f"`largest` on rank {rank}")


def _earlier(judge: Judge, answer: Answer, step: str) -> None:
    try:
        for case in judge.known[:3]:
            judge.hold(answer, case)
    except Wrong:
        raise Wrong(f"{step} is not right yet: its own check says why.") from None


def _after_step_2(answer: Answer) -> None:
    _after_step_1(answer)
    _earlier(main_hook, answer, "step 2 (main_hook)")


post_hook = Judge(
    # ties, in every place
    (*SITUATIONS, Situation((1, 2, 2), seed=13), Situation((2, 1, 2), seed=10)),
    draw,
    _post_hook,
    _after_step_2,
)
