"""Programs and their arguments.

A program is a plain function `worker(rank, inputs)`, like the forum script. Its process group is
already initialised and its default device set. `inputs` is an `Inputs`: it yields this rank's
tensors, one float each, and marks which of them is being processed.
"""

from __future__ import annotations

import inspect
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from typing import TYPE_CHECKING, Any, overload

from joinlab.errors import LaunchError, ProgramError

if TYPE_CHECKING:
    import torch

Program = Callable[[int, Any], object]

MAX_RANKS = 16
"""More processes than this teach nothing new, and few machines cope with them."""


class Inputs:
    """The inputs of one rank: `len(inputs)`, `inputs[i]`, `inputs[1:]`, and iteration, which marks
    the current input.

    Each is a new tensor `[1.]` of shape (1,), float32, on the default device, as in the forum
    script. `inputs[i]` marks none, since nothing shows when the work on that input is over; its
    calls are numbered as in steps.py.
    """

    def __init__(self, count: int, mark: Callable[[int | None, int], None]) -> None:
        self._which = range(count)
        self._mark = mark
        self._done = [0]  # shared with all slices

    def __len__(self) -> int:
        return len(self._which)

    @overload
    def __getitem__(self, index: int) -> torch.Tensor: ...
    @overload
    def __getitem__(self, index: slice) -> Inputs: ...
    def __getitem__(self, index: int | slice) -> torch.Tensor | Inputs:
        chosen = self._which[index]  # IndexError as of a list
        if isinstance(chosen, int):
            return self._make()
        part = copy(self)
        part._which = chosen
        return part

    def __iter__(self) -> Iterator[torch.Tensor]:
        try:
            for index in self._which:
                self._mark(index, self._done[0])
                yield self._make()
                self._done[0] += 1
        finally:
            self._mark(None, self._done[0])

    def __repr__(self) -> str:
        return f"<{len(self)} inputs, each tensor([1.])>"

    @staticmethod
    def _make() -> torch.Tensor:
        import torch

        return torch.ones(1)


def call_program(program: Program, rank: int, inputs: Inputs) -> object:
    """Call the program. A function of its own, so that the stacks of calls end here."""
    return program(rank, inputs)


def as_torchrun(rank: int, ranks: int, port: str) -> dict[str, str]:
    """The environment variables that torchrun gives a rank (torch/distributed/elastic/agent,
    v2.13.0), on one node."""
    numbers = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": ranks,
        "LOCAL_WORLD_SIZE": ranks,
        "GROUP_RANK": 0,
    }
    return {name: str(value) for name, value in numbers.items()} | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }


def check_program(program: object) -> None:
    """Raise ProgramError unless `program` can be called as `program(rank, inputs)`."""
    form = "A program is a function worker(rank, inputs)."
    if not callable(program):
        hint = ""
        if isinstance(program, str):
            hint = " For a file, use `python -m joinlab run FILE:FUNCTION`."
        raise ProgramError(
            f"{form} Got {type(program).__name__} {program!r:.60}, which is not a function.{hint}"
        )
    if inspect.isclass(program):
        raise ProgramError(f"{form} Got the class {program.__name__}; pass a function.")
    if inspect.iscoroutinefunction(program) or inspect.isasyncgenfunction(program):
        raise ProgramError(
            f"{form} {_name(program)} is an async function; a rank calls it as an ordinary one."
        )
    if inspect.isgeneratorfunction(program):
        raise ProgramError(
            f"{form} {_name(program)} is a generator (it has a yield), so calling it would run nothing."
        )
    try:
        signature = inspect.signature(program)
    except (TypeError, ValueError):  # a builtin has no signature: the call will tell
        return
    try:
        signature.bind(0, ())
    except TypeError as error:
        raise ProgramError(
            f"{form} {_name(program)}{signature} cannot be called with these two arguments: {error}."
        ) from None


def check_inputs(inputs: object, max_ranks: int = MAX_RANKS) -> tuple[int, ...]:
    """The number of inputs per rank as ints. Raises ProgramError for anything else; 0 is a rank
    without inputs."""
    form = "inputs= needs one count per rank, such as (5, 6)."
    if isinstance(inputs, (str, bytes, Mapping)) or not isinstance(inputs, Iterable):
        raise ProgramError(f"{form} Got {inputs!r:.60}, which is not a sequence of numbers.")
    counts = []
    for rank, count in enumerate(inputs):
        try:
            if isinstance(count, bool):
                raise TypeError
            counts.append(operator.index(count))
        except TypeError:
            raise ProgramError(
                f"{form} Rank {rank} got {count!r}, which is not a whole number."
            ) from None
        if counts[-1] < 0:
            raise ProgramError(
                f"{form} Rank {rank} got {count}; a rank can have 0 inputs, but not fewer."
            )
    if not counts:
        raise ProgramError(f"{form} It is empty; at least one rank is needed.")
    if len(counts) > max_ranks:
        raise ProgramError(
            f"{form} It has {len(counts)} ranks; at most {max_ranks} are possible here."
        )
    return tuple(counts)


def check_seed(seed: object, ranks: int) -> tuple[int | None, ...]:
    """One seed per rank: `seed` itself for all if it is one number. Raises ProgramError for
    anything else."""
    if seed is None:
        return (None,) * ranks
    several = isinstance(seed, Iterable) and not isinstance(seed, str)
    try:
        seeds = [_seed(item) for item in (seed if several else (seed,))]  # type: ignore[attr-defined]
    except TypeError:
        seeds = []
    if len(seeds) == (ranks if several else 1):
        if several:
            return tuple(seeds)
        return (seeds[0],) * ranks
    raise ProgramError(
        f"seed= is one int of at least 0, {ranks} of them (one per rank), or None; got {seed!r}"
    )


def check_seconds(name: str, value: object) -> float:
    """The seconds of the argument `name`. Raises ProgramError for anything but a number above 0."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0:
        return float(value)
    raise ProgramError(f"{name}= is a number of seconds above 0; got {value!r}")


def _seed(seed: object) -> int:
    if isinstance(seed, bool) or (number := operator.index(seed)) < 0:  # type: ignore[arg-type]
        raise TypeError
    return number


def program_name(program: object) -> str:
    """What a Timeline calls the program."""
    return _name(program)


def _name(program: object) -> str:
    return str(getattr(program, "__name__", None) or type(program).__name__)


def current_folder() -> str:
    """Where the ranks will run. LaunchError if this working directory was deleted: torch cannot
    start there."""
    try:
        return os.getcwd()
    except OSError as error:
        raise LaunchError(
            f"ranks run in the current folder, and it cannot be entered: {error.strerror}. Change to one that can "
            "(os.chdir)."
        ) from error
