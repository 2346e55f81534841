"""Tests of distributed code that fail and say why instead of hanging: `pytest -p joinlab.pytest`.

    pytest_plugins = ["joinlab.pytest"]                         # in conftest.py, or -p joinlab.pytest

    def worker(rank, world_size, path):                         # as torch.multiprocessing.spawn calls it: unchanged
        dist.init_process_group("nccl", rank=rank, world_size=world_size)
        ...

    def test_save(ranks, tmp_path):
        ranks(4, backend="nccl")(worker, tmp_path)              # emulated: no GPU, milliseconds

    @pytest.mark.parametrize("odd", range(4))                   # each rank in turn takes the branch
    def test_skip(ranks, odd):
        ranks(4)(worker, odd)

    @pytest.mark.parametrize("inputs", joinlab.pytest.counts(2, upto=3))
    def test_uneven(ranks, inputs):
        ranks(inputs=inputs)(train)                             # train(rank, inputs)

A test whose ranks do not all finish fails with the story: who waits for whom, from which line, and
the fix. The fixture imports torch when it is first called.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from joinlab.timeline import Timeline

Run = Callable[..., "Timeline"]


@pytest.fixture
def ranks() -> Callable[..., Run]:
    """The function `on_ranks`."""
    return on_ranks


def on_ranks(
    size: int | None = None,
    backend: str = "nccl",
    *,
    inputs: Sequence[int] | None = None,
    launch: bool = False,
    **options: Any,
) -> Run:
    """A runner: it calls a function on every rank, fails the test unless all finish, and returns
    the Timeline.

    size     ranks that call `function(rank, size, *arguments)`
    inputs   in place of size: each rank's count; ranks call `function(rank, inputs, *arguments)`
    backend  "nccl" or "gloo"
    launch   real processes; False: emulated, in this process
    options  for joinlab.launch or joinlab.emulate: seed, timeout, ...

        timeline = ranks(2)(worker, "cpu")
        assert timeline.returns[0] == timeline.returns[1]
    """
    if (size is None) == (inputs is None):
        raise TypeError(
            "ranks(4) or ranks(inputs=(5, 6)): give a number of ranks, or a count of inputs for each"
        )
    counts = (1,) * size if size is not None else tuple(inputs or ())

    def run(function: Callable[..., object], *arguments: object) -> Timeline:
        __tracebackhide__ = True
        from joinlab.emulator.emulate import emulate
        from joinlab.launcher.launcher import launch as launched
        from joinlab.story.forms.fix import Untried
        from joinlab.story.judge import diagnose

        @functools.wraps(function)
        def program(rank: int, given: object) -> object:
            return function(rank, given if size is None else size, *arguments)

        # functools.wraps shows the test's own parameters, and joinlab checks that a program takes two.
        program.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD)
                for name in ("rank", "given")
            ]
        )
        if launch:
            timeline = launched(
                program, counts, backend, **{"on_output": None, "progress": False, **options}
            )
        else:
            timeline = emulate(program, counts, backend, **options)
        if any(end.kind != "finished" or end.pending for end in timeline.ends):
            story = diagnose(timeline)
            given = f"{size}" if inputs is None else f"inputs={counts}"
            call = f'ranks({given}, "{backend}")({function.__name__}{", ..." if arguments else ""})'
            lines = []
            for line in story.lines:
                lines.append(replace(line, how=call) if isinstance(line, Untried) else line)
            pytest.fail(str(replace(story, lines=tuple(lines))), pytrace=False)
        return timeline

    return run


def counts(size: int, upto: int) -> list[tuple[int, ...]]:
    """Every way to give `size` ranks 0 to `upto` inputs each, for `pytest.mark.parametrize`.

    >>> counts(2, upto=1)
    [(0, 0), (0, 1), (1, 0), (1, 1)]
    """
    return list(itertools.product(range(upto + 1), repeat=size))
