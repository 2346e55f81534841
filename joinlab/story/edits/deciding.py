"""Edits by which all ranks leave a loop, take a branch or count rounds together, and join()."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from copy import copy
from itertools import chain

from joinlab.program.branches import dotted, names_in
from joinlab.story.edits.edited import Edited
from joinlab.story.edits.guards import is_role, leaves, set_outside
from joinlab.story.edits.moving import move_behind_join
from joinlab.story.edits.target import FixTarget
from joinlab.story.edits.variables import names_of, overlap, stores_of


def decide_together(target: FixTarget) -> Iterator[Edited]:
    """Let all ranks leave a loop, skip the rest of a step, or go on, together."""
    node = target.diverging()
    if node is None or target.joins(node):
        # join() shadows no calls of the program: with uneven inputs, a flag would meet join()'s
        return
    if isinstance(node, ast.While):
        made = target.agree("flag", _as_number(target, node.test), "MAX")
        if made:
            lines = [*made, "if not flag.item():", "    break"]
            put = target.put(node.body[0], *lines)
            text = target.changed((*target.span(node.test), "True"), put)
            yield Edited("together", target, text)
    elif isinstance(node, ast.If) and not is_role(target, node.test):
        for kind, op in _decisions(target, node):
            made = target.agree("flag", _as_number(target, node.test), op)
            if made:
                changes = target.put(node, *made), (*target.span(node.test), "flag.item()")
                yield Edited(kind, target, target.changed(*changes))


def _as_number(target: FixTarget, test: ast.expr) -> str:
    """The text of a number that says whether a test passes, which may be one of a list."""
    others = {
        read["name"]
        for read in target.tests[-1]["values"]
        if not isinstance(read["value"], bool | float)
    }
    numbers = {read["name"] for read in target.tests[-1]["values"]} - others
    parts = test.values if isinstance(test, ast.BoolOp) else [test]
    plain = (
        isinstance(part, ast.Compare | ast.UnaryOp | ast.Call) or ast.unparse(part) in numbers
        for part in parts
    )
    text = ast.unparse(test)
    return f"float({text})" if all(plain) else f"float(bool({text}))"


def _decisions(target: FixTarget, branch: ast.If) -> Iterator[tuple[str, str]]:
    """How ranks may decide on a branch together, the best first: the kind of the edit, and the operator
    of the all-reduce.

    A branch with a call that did not fit is taken where all ranks would take it (MIN), since one may
    have nothing to put in; not where a value that outlives the branch would then stay unshared, or
    the test asks for the rank besides. Or
    else it is taken as soon as one would (MAX), unless it sets what its test reads. To leave a loop
    or a function, one rank's wish is enough (MAX), except where the test is the only regular way out
    of its loop, or what follows reads what the test asks for: then each rank has to pass it (MIN).
    If that is a number, which ranks that fail the test have too, one rank's wish is the second
    choice. So it is to skip a call whose data the others go on with: all had better wish that.
    """
    if not leaves(branch):
        lines = range(branch.body[0].lineno, (branch.end_lineno or 0) + 1)
        if (target.sites.intersection(lines) or target.all_fit) and not branch.orelse:
            roles = (is_role(target, part) for part in getattr(branch.test, "values", ()))
            if not any(roles) and not _outlives(target, branch):
                yield "where all do", "MIN"
            if not overlap(stores_of(branch.body), names_of([branch.test])):
                yield "where one does", "MAX"
        return
    loops = target.within(branch, ast.For, ast.While)
    ends = bool(loops) and not isinstance(branch.body[-1], ast.Continue | ast.Raise)
    if ends and _is_only_way_out(loops[0]):
        yield "all ready", "MIN"
        return
    wanted = _is_wanted(target, branch, loops)
    if ends and wanted:
        yield "all ready", "MIN"
    block = target.block_of(branch)
    skips = not ends and not isinstance(branch.body[-1], ast.Raise)
    if skips and _outlives(target, *block[block.index(branch) + 1 :]):
        yield "where all skip", "MIN"
    types = {type(read["value"]) for read in target.tests[-1]["values"]}
    if not wanted or set() < types <= {int, float}:
        yield "flag", "MAX"


def _outlives(target: FixTarget, *block: ast.stmt) -> bool:
    """Whether the data of a call in a block that did not fit is of use without that call."""
    calls = chain.from_iterable(map(target.own_calls, block))
    data = (call.value.args[:1] for call in calls if call.lineno in target.sites)  # type: ignore[attr-defined]
    return bool(overlap(names_of(chain(*data)), set_outside(target, *block)))


def _is_wanted(target: FixTarget, branch: ast.If, loops: Sequence[ast.stmt]) -> bool:
    """Whether the code to which a branch leads uses what its test asks for, which a rank that fails
    the test does not have.

    path = fetch()
    if path is not None:
        break
    """
    asked, follows = names_of([branch.test]), list[ast.AST](branch.body)
    if loops:
        asked = overlap(asked, stores_of(loops[:1]))
    if isinstance(branch.body[-1], ast.Break):
        end = loops[0].end_lineno or 0
        for node in ast.walk(target.tree):
            if isinstance(node, ast.stmt) and node.lineno > end:
                follows.append(node)
    return bool(overlap(asked, names_of(follows)))


def _is_only_way_out(loop: ast.For | ast.While) -> bool:
    """Whether a loop is not meant to end but by its `break`: `while True`, or an `else` that
    raises."""
    forever = isinstance(loop, ast.While) and getattr(loop.test, "value", False) is True
    return forever or (bool(loop.orelse) and isinstance(loop.orelse[-1], ast.Raise))


def agree_on_least(
    target: FixTarget, kind: str = "agree", agreed: str = "least", op: str = "MIN"
) -> Iterator[Edited]:
    """Let all ranks use the smallest of their values for a number that decides how often a loop
    runs."""
    loop = target.diverging()
    if not isinstance(loop, ast.For) or not isinstance(loop.iter, ast.Call):
        return
    test = target.tests[-1]
    for name in dict.fromkeys(names_in(loop.iter)):
        values = [read["value"] for read in test["values"] if read["name"] == name]
        if (
            "." in name
            or name == "rank"
            or len(set(values)) < 2
            or any(type(value) is not int for value in values)
        ):
            continue
        made = target.agree(agreed, name, op)
        if made:
            text = target.changed(target.put(loop, *made, f"{name} = int({agreed})"))
            yield Edited(kind, target, text)


def agree_on_most(target: FixTarget) -> Iterator[Edited]:
    """Let all ranks use the greatest value for a number of rounds: not for one of inputs, which a
    rank may not have."""
    loop = target.diverging()
    if isinstance(loop, ast.For) and ast.unparse(loop.iter).startswith("range("):
        yield from agree_on_least(target, "most", "most", "MAX")


def take_as_many(target: FixTarget) -> Iterator[Edited]:
    """Give every rank as many inputs as the rank with the fewest."""
    loop = target.diverging()
    if not isinstance(loop, ast.For) or not dotted(loop.iter):
        return
    if not target.runs(loop) and not target.own_calls(loop):
        return  # its items may be of any kind, callbacks
    made = target.agree("count", f"len({ast.unparse(loop.iter)})", "MIN")
    if made:
        end = target.span(loop.iter)[1]
        text = target.changed(target.put(loop, *made), (end, end, "[: int(count)]"))
        yield Edited("same", target, text)


def wrap_in_join(target: FixTarget) -> Iterator[Edited]:
    """Wrap a training loop whose own end parts the ranks in join(), and move a call of the
    program's own in it after the loop."""
    if target.loop() is None:
        return
    loops = [
        node
        for node in ast.walk(target.tree)
        if isinstance(node, ast.For | ast.While) and target.runs(node)
    ]
    for loop in sorted(loops, key=lambda node: node.col_offset):
        if target.joins(loop):
            continue
        starts = target.starts[loop.lineno - 1 : loop.end_lineno]
        deeper = (
            (start, start, "    ") for start in starts if target.bytes[start : start + 1] != b"\n"
        )
        text = target.changed(target.put(loop, f"with {target.runs(loop)[0]}.join():"), *deeper)
        yield Edited("join", target, text)
        after = copy(target)
        after.read(text)
        if len(list(filter(after.joins, after.own_calls(after.tree)))) == 1:
            for moved in move_behind_join(after):
                yield Edited("join, behind", target, moved.after)
