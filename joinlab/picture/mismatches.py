"""Mismatches: what is written below the rows whose calls do not belong together.

Ranks that once were out of step stay so: their next calls meet wrongly, too, and what each of these rows has to say
hides the one that began it. The first one tells how many follow; those that follow are named in a few words, and
select one to read the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from joinlab.analysis.wording import ranks_text, upper
from joinlab.picture.rows import PictureRow, Row, unlike

BELONG = ("op", "origin", "dtype", "shape", "reduce_op", "root")
"""What two calls that are meant for each other have in common."""


def notes(calls: Sequence[Row], steps: Sequence[PictureRow]) -> list[tuple[str, str]]:
    """What is written below each step, and the whole of what is to say of it.

    [drawn for drawn, whole in notes(calls, steps) if drawn != whole]       # the rows that follow a first one
    """
    told = [(step.text, step.text) for step in steps]
    earliest = next((at for at, step in enumerate(steps) if step.bad), None)
    for run in _runs(calls, steps):
        first, *others = run
        head = "First mismatch. " if first == earliest else ""
        after = f"the {len(others)} rows that follow do" if len(others) > 1 else "the row that follows does"
        said = steps[first].text.replace("≠ ", f"≠ {head}", 1)
        apart = _apart(calls, steps[first])
        whole = f"{said} {f'{apart}: {after}' if apart else upper(after)} not match either."
        told[first] = (whole, whole)
        for number, at in enumerate(others, 2):
            told[at] = (f"≠ Still out of step: {number} of {len(run)} that do not match.", steps[at].text)
    return told


def _runs(calls: Sequence[Row], steps: Sequence[PictureRow]) -> Iterator[list[int]]:
    """Indices of steps of one group in which, one after the other, other calls met than belong together."""
    by_group: dict[str, list[int]] = {}
    for at, step in enumerate(steps):
        if len(step.calls) > 1:  # a call that nothing met is in step with nobody
            by_group.setdefault(calls[step.calls[0]]["group"], []).append(at)
    for of_group in by_group.values():
        for wrong, run in groupby(of_group, lambda at: not {"op", "origin"}.isdisjoint(steps[at].differs)):
            together = list(run)
            if wrong and len(together) > 1:
                yield together


def _apart(calls: Sequence[Row], step: PictureRow) -> str:
    """Said of two sides, if the call of the one belongs with the next call of the other; "" if that cannot be said."""
    at = {(row["rank"], row["group"], row["seq"]): row for row in calls}
    ours: list[Row] = []
    theirs: list[Row] = []
    for index in step.calls:
        (theirs if ours and unlike(ours[0], calls[index], step.differs) else ours).append(calls[index])
    if not theirs or any(unlike(theirs[0], row, step.differs) for row in theirs):
        return ""
    found = []
    for early, late in ((ours, theirs), (theirs, ours)):
        following = [at.get((row["rank"], row["group"], row["seq"] + 1)) for row in early]
        if all(row is not None and not unlike(row, late[0], BELONG) for row in following):
            found.append((early, late))
    if len(found) != 1:
        return ""
    ahead, behind = (ranks_text([row["rank"] for row in side]) for side in found[0])
    return f"From here on {ahead} {'is' if len(found[0][0]) == 1 else 'are'} one call ahead of {behind}"
