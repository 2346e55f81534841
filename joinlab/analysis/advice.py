"""Advice: what to change, by rules on where the ranks part. Where no rule fits, there is no advice."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass

from joinlab.analysis.parting import Parting, alike
from joinlab.analysis.source import SourceText
from joinlab.analysis.wording import (
    asks_of,
    at_line,
    counts_steps,
    input_or_step,
    listed,
    quoted,
    ranks_text,
    short_site,
    upper,
)
from joinlab.timeline import EndKind


@dataclass(frozen=True, slots=True)
class Advice:
    """What to change, why, and which notebook of the course explains it."""

    do: str
    reason: str
    notebook: str

    def __str__(self) -> str:
        return f"{self.do} {self.reason}"


def advise(parting: Parting, source: SourceText) -> Advice | None:
    """The first rule that fits; None without one."""
    return _Rules(parting, source).advice()


class _Rules:
    def __init__(self, parting: Parting, source: SourceText) -> None:
        self.parting, self.source = parting, source
        self.timeline, self.ends = parting.timeline, parting.ends

    def advice(self) -> Advice | None:
        """The first rule that fits."""
        rules: tuple[Callable[[], Advice | None], ...] = (
            self._own_call_under_join,
            self._uneven_without_join,
            self._sync_differs,
            self._unused_in_one_rank,
            self._under_a_rank_test,
            self._left_early,
            self._data_differs,
            self._order_differs,
            self._ended_too_early,
        )
        return next((advice for rule in rules if (advice := rule())), None)

    def _own_call_under_join(self) -> Advice | None:
        if self.parting.clash is None:
            return None
        slot = self.parting.slot
        calls = [self.parting.call(slot, rank) for rank in slot.calls]
        joined = [row for row in calls if "(join() " in (row["origin"] or "")]
        own = [row for row in calls if (row["origin"] or row["op"]).partition(" (")[2] in ("", "barrier)")]
        if not joined or not own:
            return None
        what = asks_of(own[0])
        return Advice(
            f"Move the {what} behind the with block of join().",
            f"join() repeats DDP's calls for a rank that has run out of inputs, never yours: "
            f"the {what}{at_line(own[0])} has no partner there.",
            "05_why_case_4_hangs.ipynb",
        )

    def _uneven_without_join(self) -> Advice | None:
        counts, by_step = self._counts(), counts_steps(self.timeline.meta)
        if self.parting.clash is None or (not by_step and (len(counts) != len(self.ends) or len(set(counts)) < 2)):
            return None
        if any("join()" in (row["origin"] or "") for row in self.parting.folding.matched.rows):
            return None
        slot = self.parting.slot
        seen = [row["input"] for rank in slot.calls if (row := self.parting.call(slot, rank))["input"] is not None]
        out = [rank for rank, count in enumerate(counts) if seen and count <= max(seen)]
        if by_step and all("DDP" in (self.parting.call(slot, rank)["origin"] or "") for rank in slot.calls):
            reached = {span["rank"] for span in self.timeline.rows("spans") if seen and span["input"] == max(seen)}
            over = {rank for rank, end in enumerate(self.ends) if end.kind is EndKind.FINISHED}
            out = [rank for rank in self.parting.absent(slot) if seen and rank in over - reached]
        if not out or any(rank in slot.calls and self.parting.call(slot, rank)["input"] is not None for rank in out):
            return None
        has = "has" if len(out) == 1 else "have"
        what = input_or_step(self.timeline.meta)
        return Advice(
            "Wrap the loop in model.join(), or give every rank the same number of inputs: drop_last=True, or the "
            "minimum of all ranks' counts.",
            f"{upper(ranks_text(out))} {has} no {what} {max(seen)}, and DDP's calls need every rank.",
            "04_six_cases.ipynb",
        )

    def _counts(self) -> list[int]:
        """How many inputs each rank has; none where the calls are numbered by steps, which may be more or fewer."""
        return [] if counts_steps(self.timeline.meta) else self.timeline.meta.get("inputs") or []

    def _under_a_rank_test(self) -> Advice | None:
        if self.parting.clash is None or self.parting.is_pair(self.parting.slot):
            return None
        assert self.parting.first is not None
        slot, odd = self.parting.slots[self.parting.first], self.parting.odd
        for rank in sorted(slot.calls, key=lambda rank: rank not in odd):
            site = self.parting.call(slot, rank)["call_site"] or ""
            number = self.source.line(site)
            if number and (test := _rank_test(self.source.text, number - self.source.first_line + 1)):
                what = f"{asks_of(self.parting.call(slot, rank))} ({short_site(site)})"
                return Advice(
                    f"Take the {what} out of the branch on `{test}`, or let every rank issue it.",
                    "A collective needs every rank of its group, in the same order.",
                    "08_order.ipynb",
                )
        return None

    def _left_early(self) -> Advice | None:
        if self.parting.clash is None:
            return None
        slot = self.parting.slot
        gone = [
            rank for rank in self.parting.absent(slot) if self.ends[rank].kind in (EndKind.RAISED, EndKind.FINISHED)
        ]
        raised = [rank for rank in gone if self.ends[rank].kind is EndKind.RAISED]
        counts = self._counts()
        inputs: dict[int, int] = {}
        for row in self.parting.folding.matched.rows:
            if row["input"] is not None:
                inputs[row["rank"]] = max(inputs.get(row["rank"], -1), row["input"])
        early = [rank for rank in gone if rank in inputs and rank < len(counts) and inputs[rank] + 1 < counts[rank]]
        if not raised and not early:
            return None
        which = raised or early
        did = "raised an error" if raised else f"left its loop after input {inputs[early[0]]} of {counts[early[0]]}"
        return Advice(
            "Let all ranks stop together: all-reduce a flag before each step, and leave the loop if any rank set it.",
            f"{upper(ranks_text(which))} {did}; the others wait for its next call.",
            "06_join_options.ipynb",
        )

    def _data_differs(self) -> Advice | None:
        differs = set() if self.parting.clash is None else set(self.parting.slot.differs)
        if not differs or differs & {"op", "origin"}:
            return None
        names = {"shape": "size", "reduce_op": "reduce operation"}
        what = listed([names.get(name, name) for name in self.parting.slot.differs])
        return Advice(
            f"Give the call the same {what} on every rank.",
            f"The ranks' calls met with different {what}.",
            "02_collectives.ipynb",
        )

    def _order_differs(self) -> Advice | None:
        if self.parting.clash is None or len(self.parting.sides) != 2 or self.parting.is_pair(self.parting.slot):
            return None
        slot = self.parting.slot
        if any(side[0] not in slot.calls for side in self.parting.sides):
            return None
        at = self.parting.place
        one, other = (self.parting.collectives(side[0])[at : at + 2] for side in self.parting.sides)
        if len(one) < 2 or len(other) < 2 or not (alike(one[0], other[1]) and alike(one[1], other[0])):
            return None
        return Advice(
            f"Issue {quoted(one[0])} and {quoted(one[1])} in the same order on every rank.",
            "Calls meet by the order in which each rank issues them, not by what they are.",
            "08_order.ipynb",
        )

    def _sync_differs(self) -> Advice | None:
        backward = "DDP backward()"
        if self.parting.clash is None or "no_sync" not in self.source.text:
            return None
        slot = self.parting.slot
        has = [rank for rank in slot.calls if backward in (self.parting.call(slot, rank)["origin"] or "")]
        if not has or len(has) == len(slot.calls):
            return None
        return Advice(
            "Enter no_sync() on every rank, or on none, for the same input.",
            "Within no_sync() a backward pass issues no all-reduce; the other ranks' all-reduce meets another call.",
            "03_ddp_inside.ipynb",
        )

    def _unused_in_one_rank(self) -> Advice | None:
        """A rank says so, or it ran a backward pass of the same input and issued fewer all-reduces in it."""
        if self.parting.clash is None:
            return None
        slot = self.parting.slot
        which = [rank for rank in self.parting.lanes if "not used in producing loss" in self.ends[rank].text]
        at = {
            self.parting.call(slot, rank)["input"]: rank
            for rank in slot.calls
            if "DDP backward()" in (self.parting.call(slot, rank)["origin"] or "")
        }
        if not which and at:
            ran = {(span["rank"], span["input"]) for span in self.timeline.rows("spans") if span["name"] == "backward"}
            which = [
                rank
                for rank in self.parting.lanes
                if rank not in at.values() and any((rank, input) in ran for input in at.keys() - {None})
            ]
        if not which:
            return None
        return Advice(
            "Use every parameter in every rank's loss, or pass find_unused_parameters=True to DDP on all ranks.",
            f"{upper(self.parting.name(which))} left parameters out: DDP all-reduces a bucket only when each of its "
            "parameters has a gradient.",
            "03_ddp_inside.ipynb",
        )

    def _ended_too_early(self) -> Advice | None:
        pending = [rank for rank, end in enumerate(self.ends) if end.pending]
        if not pending:
            return None
        return Advice(
            "Wait for the last call before the program returns: torch.cuda.synchronize(), or the call's wait().",
            f"{upper(ranks_text(pending))} returned while a call was still pending, so its result was never read.",
            "04_six_cases.ipynb",
        )


def _rank_test(text: str, line: int) -> str:
    """The innermost test of a rank under which a line stands: "rank == 0"; "" if there is none, or no telling.

    >>> _rank_test("def f(rank):\\n    if rank == 0:\\n        g()\\n", 3)
    'rank == 0'
    """
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return ""
    found = ""
    for node in ast.walk(tree):  # outer ones come first
        if isinstance(node, ast.If) and node.body[0].lineno <= line <= (node.end_lineno or 0):
            names = {getattr(one, "id", getattr(one, "attr", "")) for one in ast.walk(node.test)}
            found = ast.unparse(node.test) if {"rank", "get_rank", "local_rank"} & names else found
    return found
