"""The edit that makes a batch of sends and receives that stand in a row."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch.distributed as dist

from joinlab.program.branches import dotted
from joinlab.story.edits.arguments import arguments_of
from joinlab.story.edits.edited import Edited
from joinlab.story.edits.target import Change, FixTarget
from joinlab.story.edits.variables import names_of


def batch_exchanges(target: FixTarget) -> Iterator[Edited]:
    """Issue sends and receives that stand in a row, each on a tensor of its own, as one batch, in
    which none waits for another: each row alone, or all rows."""
    calls = {call: _exchange(target, call) for call in target.own_calls(target.tree)}
    exchanges = [call for call, arguments in calls.items() if arguments]
    if not any(call.lineno in target.sites for call in exchanges):
        return
    changes = list[list[Change]]()
    while exchanges:
        block = target.block_of(exchanges[0])
        behind = block[block.index(exchanges[0]) :]
        row: list[Any] = list(itertools.takewhile(exchanges.__contains__, behind))
        exchanges = [call for call in exchanges if call not in row]
        names = [names_of([calls[call]["tensor"]]) for call in row]
        if len(row) > 1 and sum(map(len, names)) == len(set().union(*names)):
            module = dotted(calls[row[0]]["op"]).rpartition(".")[0]
            begin = f"for work in {module}.batch_isend_irecv(["
            operations = (_operation(target, calls[call]) for call in row)
            new = target.put(row[0], begin, *operations, "]):", "    work.wait()")
            changes.append([new, *((*target.lines(call), "") for call in row)])
    for change in (*changes, [*itertools.chain.from_iterable(changes)]):
        yield Edited("batch", target, target.changed(*change))


def _exchange(target: FixTarget, call: ast.Expr) -> dict[str, ast.expr]:
    """A statement dist.send(...) or dist.recv(...), alone in its lines: its function as `op`, and its
    arguments by their names in P2POp; {} of another one."""
    function, arguments = arguments_of(target, call)
    text, _, _comment = target.source(*target.lines(call)).partition("#")
    alone = text.strip() == target.source(*target.span(call))
    assert isinstance(call.value, ast.Call)
    if function in (dist.send, dist.recv) and alone and "." in dotted(call.value.func):
        arguments = {re.sub("src|dst", "peer", key): value for key, value in arguments.items()}
        if "peer" in arguments or "group_peer" in arguments:
            return {"op": call.value.func, **arguments}
    return {}


def _operation(target: FixTarget, arguments: Mapping[str, ast.expr]) -> str:
    """A send or recv as a line of a batch."""
    module, _, name = dotted(arguments["op"]).rpartition(".")
    texts = {key: target.source(*target.span(value)) for key, value in arguments.items()}
    texts["op"] = f"{module}.i{name}"
    plain = ("op", "tensor", "peer")
    named = (text if key in plain else f"{key}={text}" for key, text in texts.items())
    return f"    {module}.P2POp({', '.join(named)}),"
