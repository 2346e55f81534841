"""Edits that move a call out of a branch or of join(): only past statements that do not touch its data."""

from __future__ import annotations

import ast
import itertools
import re
import textwrap
from collections.abc import Iterator
from contextlib import suppress

import torch.distributed as dist

from joinlab.program.branches import dotted
from joinlab.story.edits.edited import Edited
from joinlab.story.edits.guards import is_for_some_ranks, leaves, set_outside
from joinlab.story.edits.target import FixTarget
from joinlab.story.edits.variables import names_of, overlap, stores_of, variables


def move_behind_join(target: FixTarget) -> Iterator[Edited]:
    """Move a call of the program's own in a block of join() after the block."""
    for call in target.own_calls(target.tree):
        for block in target.joins(call):
            _, after = _beside(target, call, block)
            free = not overlap(_data(target, call), names_of(after))
            if free and (text := _moved(target, call, block)):
                yield Edited("behind", target, text, moves=True)


def move_out(target: FixTarget) -> Iterator[Edited]:
    """Move a call that only some ranks issue out of its `if`: behind it, or before it, alone or
    with what sets its data; or else the whole block. What all ranks alike ask in the `if` stays
    asked."""
    branch = target.branch()
    if branch is None:
        return
    collectives, test = target.own_calls(branch), target.shared(branch)
    asked = names_of([branch.test])
    # A test of anything else may guard what a function of the program does.
    by_rank = is_for_some_ranks(target, target.same_names())
    calls = [
        call
        for call in (*branch.body, *branch.orelse)
        if isinstance(call, ast.Expr)
        and call.lineno in target.sites
        and (call in collectives or (by_rank and target.leads(call)))
    ]
    for call in calls if len(branch.body) > 1 or branch.orelse else ():
        data = _data(target, call)
        before, after = _beside(target, call, branch)
        # in the next round, ranks that skip the branch would send what they had in this one
        free = not overlap(data, names_of(after))
        free = free and not overlap(data - _made_before(target, branch), stores_of(before))
        if free and (text := _moved(target, call, branch, test=test)):
            yield Edited("out", target, text, moves=True)
        elif not overlap(data, stores_of(before) | asked):
            text = _moved(target, call, branch, behind=False, test=test)
            if text:
                yield Edited("out", target, text, moves=True)
        elif 1 < len(moved := _making(target, call, branch)) < len(branch.body):
            new = [line for statement in moved for line in target.text_of(statement)]
            cuts = [(*target.lines(statement), "") for statement in moved]
            put = target.put(branch, *_under(test, new))
            yield Edited("out", target, target.changed(put, *cuts), moves=True)
    # Where a block sets what its test reads, each run of it depends on the last; and where it sets
    # what the call sends, and others have a value for that, too, they would lose theirs.
    stores = stores_of(branch.body)
    sent = [_data(target, call) for call in calls[-1:] if not target.calls(call.value, *_FROM_ROOT)]
    lost = overlap(overlap(stores, itertools.chain(*sent)), set_outside(target, branch))
    if calls and not (branch.orelse or leaves(branch) or overlap(stores, asked) or lost):
        body = target.source(target.span(branch.body[0])[0], target.span(branch)[1])
        block = textwrap.indent(
            textwrap.dedent(" " * branch.body[0].col_offset + body), " " * branch.col_offset
        )
        whole = len(_making(target, calls[-1], branch)) == len(branch.body)
        through = calls[-1] not in collectives  # a function of the program
        kind = "out" if whole and not through else "block"
        if test:
            kind, change = f"{kind}, shared", (*target.span(branch.test), test)
        elif by_rank or kind == "out":
            change = (*target.span(branch), block.lstrip())
        else:
            return  # what else is in the block may be right only where the test holds
        yield Edited(kind, target, target.changed(change), moves=through)


def return_late(target: FixTarget) -> Iterator[Edited]:
    """Let ranks return only behind a call that the others make: move the branch behind it."""
    branch = target.branch()
    if branch is None or not isinstance(branch.body[-1], ast.Return) or branch.orelse:
        return
    block = target.block_of(branch)
    below = block[block.index(branch) + 1 :]
    last = next((index for index, node in enumerate(below) if node in target.own_calls(node)), None)
    if last is None:
        return
    between = below[: last + 1]
    if overlap(stores_of(between) | _data(target, between[-1]), names_of([branch])):
        return
    put = target.put(between[-1], *target.text_of(branch), behind=True)
    yield Edited("late", target, target.changed((*target.lines(branch), ""), put), moves=True)


def _moved(
    target: FixTarget, call: ast.Expr, block: ast.stmt, behind: bool = True, test: str = ""
) -> str | None:
    """Move a call of the program's own after a block that holds it, or before it; to where `test`
    holds, if there is one."""
    put = target.put(block, *_under(test, [target.source(*target.span(call))]), behind=behind)
    (begin, end), (first, last) = target.span(call), target.lines(call)
    before, after = target.source(first, begin), target.source(end, last).partition("#")[0]
    cuts = [(begin, end, "pass")]  # a block must not be left empty
    if not before.strip() and not after.strip():
        cuts.insert(0, (first, last, ""))
    elif joined := re.search(r"\s*;\s*$", before):
        cuts.insert(0, (begin - len(joined[0]), end, ""))
    elif joined := re.match(r"\s*;\s*", after):
        cuts.insert(0, (begin, end + len(joined[0]), ""))
    for text in (target.changed(cut, put) for cut in cuts):
        with suppress(SyntaxError):
            ast.parse(text)
            return text
    return None


def _under(test: str, lines: list[str]) -> list[str]:
    """These lines where a test holds; unchanged without one."""
    return [f"if {test}:", *("    " + line for line in lines)] if test else lines


def _beside(
    target: FixTarget, call: ast.stmt, block: ast.AST
) -> tuple[list[ast.AST], list[ast.AST]]:
    """The nodes of a block that run before a call in it, and those that may run after it."""
    before, after = list[ast.AST](), list[ast.AST]()
    node: ast.AST = call
    while node is not block:
        parent = target.parents[node]
        repeats = isinstance(parent, ast.For | ast.While) and parent is not block
        for child in ast.iter_child_nodes(parent):
            if child is not node:
                earlier = getattr(child, "lineno", 0) < call.lineno
                (before if earlier else after).append(child)
                after += [child] if earlier and repeats else []  # in the next round
        node = parent
    return before, after


def _made_before(target: FixTarget, branch: ast.If) -> set[str]:
    """The variables that keep nothing from an earlier round of a loop around a branch: all variables
    if there is no loop, else the tensors that each round creates before the branch."""
    loops = target.within(branch, ast.For, ast.While)
    if not loops:
        return names_of([target.tree])
    made, node = set[str](), branch
    while node is not loops[0]:
        if isinstance(node, ast.stmt):
            block = target.block_of(node)
            for statement in block[: block.index(node)]:
                if isinstance(statement, ast.Assign) and target.makes(statement.value):
                    made.update(map(dotted, statement.targets))
        node = target.parents[node]  # type: ignore[assignment]
    return made


_FROM_ROOT = (
    dist.broadcast,
    dist.broadcast_object_list,
    dist.scatter,
    dist.scatter_object_list,
)


def _making(target: FixTarget, call: ast.Expr, branch: ast.If) -> list[ast.stmt]:
    """A call in a branch with the assignments before it that make its data, to variables that only
    the branch uses; [] if other statements do, or others read what they set."""
    if call not in branch.body:
        return []
    private = dict(variables(branch.body).items() & variables([target.tree]).items()).keys()
    needed, moved = _data(target, call), list[ast.stmt]([call])
    for statement in reversed(branch.body[: branch.body.index(call)]):
        stores = stores_of([statement])
        if not overlap(needed, stores):
            continue
        if not isinstance(statement, ast.Assign) or not stores <= private:
            return []
        moved.insert(0, statement)
        needed |= names_of([statement.value])
    return moved


def _data(target: FixTarget, call: ast.stmt) -> set[str]:
    """The names of what a call works on: not those of modules and functions."""
    return {name for name in names_of([call]) if name.partition(".")[0] not in target.names}
