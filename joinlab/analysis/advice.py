"""Advice: what to change, by rules on where the ranks part. Where no rule fits, there is no advice."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from joinlab.analysis.parting import Parting
from joinlab.analysis.source import SourceTexts
from joinlab.analysis.wording import (
    asks_of,
    at_input,
    at_line,
    counts_steps,
    differing_text,
    input_or_step,
    quoted,
    ranks_text,
    tensor,
    upper,
)
from joinlab.ops import POINT_TO_POINT
from joinlab.timeline import CallRow, EndKind


@dataclass(frozen=True, slots=True)
class Advice:
    """What to change, why, and which notebook of the course explains it."""

    do: str
    reason: str
    notebook: str

    def __str__(self) -> str:
        return f"{self.do} {self.reason}"


def advise(parting: Parting, sources: SourceTexts) -> Advice | None:
    """The first rule that fits; None without one."""
    return _Rules(parting, sources).advice()


class _Rules:
    def __init__(self, parting: Parting, sources: SourceTexts) -> None:
        self.parting, self.sources = parting, sources
        self.timeline, self.ends = parting.timeline, parting.ends

    def advice(self) -> Advice | None:
        """The first rule that fits."""
        if self.parting.clash is None:
            return self._ended_too_early()
        rules: tuple[Callable[[], Advice | None], ...] = (
            self._own_call_under_join,
            self._uneven_without_join,
            self._backward_differs,
            self._groups_cross,
            self._order_differs,
            self._under_a_rank_test,
            self._left_early,
            self._behind_a_rank_test,
            self._data_differs,
            self._waits_in_a_circle,
        )
        return next((advice for rule in rules if (advice := rule())), None)

    def _own_call_under_join(self) -> Advice | None:
        calls = self._clashing()
        joined = [row for row in calls if "(join() " in (row["origin"] or "")]
        own = [row for row in calls if _is_own(row)]
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
        if not by_step and (len(counts) != len(self.ends) or len(set(counts)) < 2):
            return None
        if any("join()" in (row["origin"] or "") for row in self.parting.folding.matched.rows):
            return None
        calls = self._clashing()
        seen = [row["input"] for row in calls if row["input"] is not None]
        out = [rank for rank, count in enumerate(counts) if seen and count <= max(seen)]
        if by_step:
            seen = [row["input"] for row in calls if "DDP" in (row["origin"] or "") and row["input"] is not None]
            out = self._out_of_steps(max(seen)) if seen else []
        elif any(row["rank"] in out and row["input"] is not None for row in calls):
            return None
        if not out:
            return None
        has = "has" if len(out) == 1 else "have"
        lacks = f"{upper(ranks_text(out))} {has} no {input_or_step(self.timeline.meta)} {max(seen)}"
        if own := self._own_call_in_the_loop():
            return Advice(
                "Give every rank the same number of inputs: drop_last=True, or the minimum of all ranks' counts.",
                f"{lacks}, and each call needs every rank. join() would not do here: it repeats DDP's calls, and never "
                f"your {asks_of(own)}{at_line(own)}.",
                "05_why_case_4_hangs.ipynb",
            )
        sharded = any("(ZeRO" in (row["origin"] or "") for row in self.parting.folding.matched.rows)
        join = "Join([model, optimizer])" if sharded else "model.join()"
        return Advice(
            f"Wrap the loop in {join}, or give every rank the same number of inputs: drop_last=True, or the "
            "minimum of all ranks' counts.",
            f"{lacks}, and DDP's calls need every rank.",
            "04_six_cases.ipynb",
        )

    def _out_of_steps(self, step: int) -> list[int]:
        """Lanes whose loop is over without a step in which others issue DDP's calls."""
        reached = {span["rank"] for span in self.timeline.rows("spans") if span["input"] == step}
        left = [rank for rank in self.parting.absent(self.parting.slot) if self.ends[rank].kind is EndKind.FINISHED]
        left += [row["rank"] for row in self._clashing() if _is_own(row) and not self._test_of(_rank_test, row)]
        return sorted(rank for rank in left if rank not in reached)

    def _own_call_in_the_loop(self) -> CallRow | None:
        """A call that the program itself issued for its inputs. Calls after the loop are numbered as its last step."""
        by_rank: dict[int, list[CallRow]] = {}
        for row in self.parting.folding.matched.rows:
            if _is_own(row) and row["input"] is not None:
                by_rank.setdefault(row["rank"], []).append(row)
        steps = 2 if counts_steps(self.timeline.meta) else 1
        return next((rows[0] for rows in by_rank.values() if len({row["input"] for row in rows}) >= steps), None)

    def _backward_differs(self) -> Advice | None:
        """One side lacks all-reduces of a backward pass: it says why, left the pass out, or ran it otherwise."""
        unused = [rank for rank in self.parting.lanes if "not used in producing loss" in self.ends[rank].text]
        if unused:
            return Advice(
                "Use every parameter in every rank's loss, or pass find_unused_parameters=True to DDP on all ranks.",
                f"{upper(self.parting.name(unused))} left parameters out: DDP all-reduces a bucket only when each of "
                "its parameters has a gradient.",
                "03_ddp_inside.ipynb",
            )
        number, without = self._lacking_backward()
        if number is None or not without:
            return None
        who, which = upper(self.parting.name(without)), at_input(number, self.timeline.meta)
        began = {(span["rank"], span["name"]) for span in self.timeline.rows("spans") if span["input"] == number}
        if not any((rank, "backward") in began for rank in without):
            return Advice(
                "Run backward() for every input on every rank, or let all ranks skip it together: all-reduce a flag "
                "first.",
                f"{who} ran no backward pass for {which}, and DDP all-reduces gradients in each one.",
                "03_ddp_inside.ipynb",
            )
        if any("no_sync" in one.text for one in self.sources.all):
            return Advice(
                "Enter no_sync() on every rank, or on none, for the same input.",
                "Within no_sync() a backward pass issues no all-reduce; that of the other ranks meets another call.",
                "03_ddp_inside.ipynb",
            )
        return Advice(
            "Use every parameter in every rank's loss, or pass find_unused_parameters=True to DDP on all ranks; enter "
            "no_sync() on every rank or on none.",
            f"{who} ran the backward pass for {which} without all of its all-reduces: DDP all-reduces a bucket only "
            "when each of its parameters has a gradient, and none under no_sync().",
            "03_ddp_inside.ipynb",
        )

    def _lacking_backward(self) -> tuple[int | None, list[int]]:
        """An input, and the lanes that are past it but lack all-reduces of its backward pass that others issued."""
        parting = self.parting
        rows = parting.extra or self._clashing()
        backward = [row for row in rows if _BACKWARD in (row["origin"] or "") and row["input"] is not None]
        if not backward or (parting.extra and len(backward) < len(rows)):
            return None, []
        number = backward[0]["input"]
        counts = dict.fromkeys(parting.lanes, 0)
        for row in parting.folding.matched.rows:
            if row["rank"] in counts and row["input"] == number and _BACKWARD in (row["origin"] or ""):
                counts[row["rank"]] += 1
        reached = dict.fromkeys(parting.lanes, -1) | self._last_inputs()  # the last input that a lane was seen in
        ran: set[int] = set()
        inside: set[int] = set()  # a backward pass of that input has not come to its end
        for span in self.timeline.rows("spans"):
            if span["rank"] in reached and span["input"] is not None:
                reached[span["rank"]] = max(reached[span["rank"]], span["input"])
                if span["input"] == number and span["name"] == "backward":
                    (ran if span["end_ns"] is not None else inside).add(span["rank"])
        assert number is not None
        fewer = [lane for lane in parting.lanes if counts[lane] < max(counts.values())]
        over = [lane for lane in fewer if self.ends[lane].kind is EndKind.FINISHED]
        return number, [
            lane
            for lane in fewer
            if reached[lane] > number or (reached[lane] == number and (lane in over or lane in ran - inside))
        ]

    def _order_differs(self) -> Advice | None:
        sides = self.parting.sides
        if len(sides) != 2 or self.parting.is_pair(self.parting.slot):
            return None
        if any(side[0] not in self.parting.slot.calls for side in sides):
            return None
        at, same = self.parting.place, self.parting.same_step
        one, other = (self.parting.collectives(side[0])[at : at + 3] for side in sides)
        if len(one) < 2 or len(other) < 2 or not (same(one[0], other[1]) and same(one[1], other[0])):
            return None
        if any(not same(a, b) for a, b in zip(one[2:], other[2:], strict=False)):
            return None  # a b a b beside b a b a: one rank is a call ahead
        which = f"{quoted(one[0])} and {quoted(one[1])}"
        if quoted(one[0]) == quoted(one[1]):
            which = f"the {quoted(one[0])} of {tensor(one[0])} and that of {tensor(one[1])}"
        return Advice(
            f"Issue {which} in the same order on every rank.",
            "Calls meet by the order in which each rank issues them, not by what they are.",
            "08_order.ipynb",
        )

    def _groups_cross(self) -> Advice | None:
        circle = self.parting.circle
        if len({row["group"] for row in circle}) < 2 or any(row["op"] in POINT_TO_POINT for row in circle):
            return None
        return Advice(
            "Issue the calls of different process groups in the same order on every rank.",
            "Each of these ranks waits in another group than the rank that it waits for.",
            "08_order.ipynb",
        )

    def _under_a_rank_test(self) -> Advice | None:
        return self._by_rank_test(_rank_test, "Take the {} out of the branch on `{}`, or let every rank issue it.")

    def _behind_a_rank_test(self) -> Advice | None:
        return self._by_rank_test(
            _leaving_test, "Let every rank issue the {}, or none: the branch on `{}` leaves before it."
        )

    def _by_rank_test(self, find: Callable[[str, int], str], do: str) -> Advice | None:
        """Advice for the first call for whose line `find` gives a test, in the row in which the ranks part.

        The calls of the odd ranks come first. `do` has a place for the call, and one for the test.
        """
        parting = self.parting
        slot = parting.slot if parting.first is None else parting.slots[parting.first]
        if parting.is_pair(slot) or parting.circle or not all(map(self._went_on, parting.absent(slot))):
            return None
        for rank in sorted(slot.calls, key=lambda rank: rank not in parting.odd):
            row = parting.call(slot, rank)
            if test := self._test_of(find, row):
                return Advice(
                    do.format(f"{quoted(row)}{at_line(row)}", test),
                    "A collective needs every rank of its group, in the same order.",
                    "08_order.ipynb",
                )
        return None

    def _test_of(self, find: Callable[[str, int], str], row: CallRow) -> str:
        """The test that `find` gives for the line of a call, or for one that led to it; "" if there is none."""
        lines = self.sources.lines_of(row)
        return next((test for one, at in lines if (test := find(one.text, at - one.first_line + 1))), "")

    def _went_on(self, rank: int) -> bool:
        """Whether the rank is known to have passed the calls that it left out: it may just not have come there."""
        end = self.ends[rank]
        return end.kind is EndKind.FINISHED or end.call is not None

    def _left_early(self) -> Advice | None:
        absent = self.parting.absent(self.parting.slot)
        gone = [rank for rank in absent if self.ends[rank].kind in (EndKind.RAISED, EndKind.FINISHED)]
        counts = self._counts()
        inputs = self._last_inputs()
        raised = [rank for rank in gone if self.ends[rank].kind is EndKind.RAISED and rank in inputs]
        early = [rank for rank in gone if rank in inputs and rank < len(counts) and inputs[rank] + 1 < counts[rank]]
        if not raised and (not early or self.parting.is_pair(self.parting.slot)):
            return None
        which = raised or early
        did = "raised an error" if raised else f"issued no call after input {inputs[early[0]]} of {counts[early[0]]}"
        return Advice(
            "Let all ranks stop together: all-reduce a flag before each step, and leave the loop if any rank set it.",
            f"{upper(ranks_text(which))} {did}; the others wait for its next call.",
            "06_join_options.ipynb",
        )

    def _last_inputs(self) -> dict[int, int]:
        """By rank, the last input for which it issued a call."""
        found: dict[int, int] = {}
        for row in self.parting.folding.matched.rows:
            if row["input"] is not None:
                found[row["rank"]] = max(found.get(row["rank"], -1), row["input"])
        return found

    def _data_differs(self) -> Advice | None:
        differs = self.parting.differs(self.parting.slot)
        if not differs or {"op", "origin"} & set(differs):
            return None
        what = differing_text(differs)
        return Advice(
            f"Give the call the same {what} on every rank.",
            f"The ranks' calls met with different {what}.",
            "02_collectives.ipynb",
        )

    def _waits_in_a_circle(self) -> Advice | None:
        circle = self.parting.circle
        if len(circle) < 2 or any(row["op"] not in POINT_TO_POINT for row in circle):
            return None
        return Advice(
            "Let some of these ranks send while their peers receive, or issue the sends and recvs together: "
            "dist.batch_isend_irecv().",
            "Each of them waits for a peer that issues its own part only later.",
            "02_collectives.ipynb",
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

    def _clashing(self) -> list[CallRow]:
        """The calls of the clash, one per lane."""
        return [self.parting.call(self.parting.slot, rank) for rank in self.parting.slot.calls]

    def _counts(self) -> list[int]:
        """How many inputs each rank has; none where the calls are numbered by steps, which may be more or fewer."""
        return [] if counts_steps(self.timeline.meta) else self.timeline.meta.get("inputs") or []


_BACKWARD = "(DDP backward())"


def _is_own(row: CallRow) -> bool:
    """Whether the program issued the call itself, and not DDP or join() for it."""
    return (row["origin"] or row["op"]).partition(" (")[2] in ("", "barrier)")


def _rank_test(text: str, line: int) -> str:
    """The innermost test of a rank under which a line stands: "rank == 0"; "" if there is none, or no telling.

    >>> _rank_test("def f(rank):\\n    if rank == 0:\\n        g()\\n", 3)
    'rank == 0'
    >>> _rank_test("if accelerator.is_main_process:\\n    g()\\n", 2)
    'accelerator.is_main_process'
    """
    found = ""
    for node in _nodes(text):  # outer ones come first
        if isinstance(node, ast.If) and node.body[0].lineno <= line <= (node.end_lineno or 0) and _asks_rank(node):
            found = ast.unparse(node.test)
    return found


def _leaving_test(text: str, line: int) -> str:
    """The last test of a rank before a line of the same function whose branch leaves the function or the loop.

    >>> _leaving_test("def f(rank):\\n    if rank == 0:\\n        return\\n    g()\\n", 4)
    'rank == 0'
    """
    found = ""
    for node in _nodes(text):
        for block in (getattr(node, name, None) for name in ("body", "orelse", "finalbody")):
            if not isinstance(block, list) or not any(one.lineno <= line <= (one.end_lineno or 0) for one in block):
                continue
            for one in block:
                leaves = isinstance(one, ast.If) and isinstance(one.body[-1], ast.Return | ast.Break | ast.Continue)
                if leaves and (one.end_lineno or 0) < line and _asks_rank(one):
                    found = ast.unparse(one.test)
    return found


def _nodes(text: str) -> Iterator[ast.AST]:
    """All nodes of a program's text, outer ones first; none of a text that cannot be read."""
    try:
        yield from ast.walk(ast.parse(text))
    except SyntaxError:
        return


def _asks_rank(node: ast.If) -> bool:
    names = {getattr(one, "id", getattr(one, "attr", "")) for one in ast.walk(node.test)}
    return bool(_RANK_NAMES & names)


_RANK_NAMES = {"rank", "get_rank", "local_rank", "global_rank", "is_main_process", "is_local_main_process",
               "process_index", "is_global_zero", "is_rank_zero"}  # fmt: skip
"""What programs, and the wrappers Accelerate and Lightning, ask of their rank."""
