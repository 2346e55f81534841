"""Functions that torch.compile leaves alone."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from contextlib import suppress
from types import FunctionType
from typing import Any


def exclude_all(owners: Iterable[object], package: str) -> None:
    """Keep it from tracing the functions of these modules and classes that belong to `package`, and
    what they call."""
    for owner in owners:
        for function in vars(owner).values():
            if isinstance(function, FunctionType) and function.__module__.startswith(package):
                exclude(function, within=True)


def exclude(function: Any, within: bool) -> None:
    """Keep torch.compile from tracing `function`: torch._dynamo.disable, without a wrapper and
    without the import of torch._dynamo, which takes a second.

    within  also exclude the functions that it calls
    """
    function._torchdynamo_disable = True  # where it would be traced into a caller
    function._torchdynamo_disable_msg = "joinlab looks on here"
    with suppress(AttributeError, ImportError):  # another version of torch
        import torch._C._dynamo.eval_frame as frames

        actions: Any = frames._FrameAction
        action = actions.SKIP if within else actions.DEFAULT
        strategy = frames._FrameExecStrategy(actions.SKIP, action)
        for code in {function.__code__, inspect.unwrap(function).__code__}:
            frames.set_code_exec_strategy(code, strategy)
