"""Edits that change what a call is given: its root, its group, DDP's options, the model in the wrapper."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from joinlab.program.branches import dotted
from joinlab.story.edits.edited import Edited
from joinlab.story.edits.target import FixTarget
from joinlab.story.edits.variables import names_of, overlap, stores_of


def look_for_unused(target: FixTarget) -> Iterator[Edited]:
    """Let DDP look for parameters without a gradient, as its error suggests."""
    for call in ast.walk(target.tree):
        if not isinstance(call, ast.Call) or not target.calls(call, DistributedDataParallel):
            continue
        fixed = [word.value for word in call.keywords if word.arg == "static_graph"]
        keywords = {word.arg for word in call.keywords}
        if "find_unused_parameters" in keywords:
            continue
        end = target.span(call)[1] - 1
        changes = [(end, end, ", find_unused_parameters=True")]
        changes += [(*target.span(value), "False") for value in fixed]
        yield Edited("unused", target, target.changed(*changes))


UNUSED_HINTS = ("find_unused_parameters", "training graph has changed")
"""In the errors of Reducer::ensure_prior_reduction_finished (reducer.cpp, PyTorch v2.13.0): the
first names the cure, and the second is raised for a static graph."""


def call_module(target: FixTarget) -> Iterator[Edited]:
    """Call `model.module(...)` where one rank alone evaluates."""
    branch = target.branch()
    if branch is not None:
        nodes = branch.body
    elif not target.tests:
        nodes = [target.tree]
    else:
        nodes = []
    if not nodes or any("backward" in ast.unparse(node) for node in nodes):
        return
    calls = (node for block in nodes for node in ast.walk(block) if isinstance(node, ast.Call))
    ends = []
    for call in calls:
        if dotted(call.func) in target.models and call.lineno in target.sites:
            ends.append(target.span(call.func)[1])
    if ends:
        yield Edited("module", target, target.changed(*((end, end, ".module") for end in ends)))


def name_one_root(target: FixTarget) -> Iterator[Edited]:
    """Make rank 0 the root on every rank if the ranks name different roots."""
    calls = (node for node in ast.walk(target.tree) if isinstance(node, ast.Call))
    for call in calls:
        turns = _turning(target, call)
        for keyword in call.keywords if call.lineno in target.sites else ():
            asked = keyword.arg in ("src", "dst") and not isinstance(keyword.value, ast.Constant)
            if asked and not overlap(names_of([keyword.value]), turns):
                text = target.changed((*target.span(keyword.value), "0"))
                yield Edited("root", target, text, root=ast.unparse(keyword.value))


def _turning(target: FixTarget, call: ast.Call) -> set[str]:
    """The names that may have another value in each round of a loop around a call, or of a
    comprehension: as root, they take turns."""
    names = stores_of(target.within(call, ast.For, ast.While))
    for node in target.within(call, ast.ListComp, ast.GeneratorExp):
        names |= names_of([generator.target for generator in node.generators])
    return names


def pass_group(target: FixTarget) -> Iterator[Edited]:
    """Pass a group of the function to a call that has none, and so is one of all ranks."""
    named = set[str]()
    for node in ast.walk(target.tree):
        if isinstance(node, ast.keyword) and node.arg == "group":
            named.add(ast.unparse(node.value))
        elif isinstance(node, ast.Assign) and target.calls(node.value, dist.new_group):
            named.update(map(dotted, node.targets))
    for call in target.own_calls(target.tree):
        if call.lineno not in target.sites or not _takes_group(target, call):
            continue
        end = target.span(call)[1] - 1
        comma = "" if target.source(*target.span(call)).endswith("()") else ", "
        for name in sorted(named):
            yield Edited("group", target, target.changed((end, end, f"{comma}group={name}")))


def _takes_group(target: FixTarget, call: ast.Expr) -> bool:
    """Whether a call is a collective for which a group could be named, and is not."""
    function, arguments = arguments_of(target, call)
    if function is None or function in (dist.send, dist.recv) or "group" in arguments:
        return False
    return "group" in inspect.signature(function).parameters


def arguments_of(target: FixTarget, call: ast.Expr) -> tuple[Any, dict[str, ast.expr]]:
    """The function that a statement calls, and its arguments by their names; None, {} if unknown."""
    expression = call.value
    assert isinstance(expression, ast.Call)
    function: Any = target.value_of(expression.func)
    keywords = {str(keyword.arg): keyword.value for keyword in expression.keywords}
    with suppress(TypeError, ValueError):
        return function, inspect.signature(function).bind(*expression.args, **keywords).arguments
    return None, {}
