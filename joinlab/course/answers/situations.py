"""The situations that judges play: how many inputs each rank has, their values, and the model.

One list serves all exercises, so a situation that one wrong answer needed is played with every
answer. Each exercise takes of it what it has a use for: a loop takes the counts and the values, a
model the shapes. The first situation is the one that a notebook speaks of.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

Shape = tuple[int, ...]

BOTH = ("nccl", "gloo")


@dataclass(frozen=True, slots=True)
class Situation:
    """What a judge plays.

    counts    inputs of each rank
    shapes    shapes of a model's parameters; the first is that of a single tensor
    bucket    numbers that fill a bucket
    turned    odd ranks use the parameters in reverse: their gradients come in another order
    zero      the last rank's first input is 0
    seed      draws all values
    backends  those on which a loop is played; more calls cost more time, so long ones have one
    """

    counts: tuple[int, ...]
    shapes: tuple[Shape, ...] = ((4,), (2,), (3,), (1,))
    bucket: int = 4
    turned: bool = False
    zero: bool = False
    seed: int = 0
    backends: tuple[str, ...] = BOTH

    @property
    def ranks(self) -> int:
        return len(self.counts)

    def inputs(self, rank: int, call: int = 0) -> list[float]:
        """The values of a rank's inputs, different in every rank, input and `call`."""
        rng = random.Random(f"{self.seed} {rank} {call}")
        values = [round(rng.uniform(1, 9), 4) for _ in range(self.counts[rank])]
        if self.zero and values and rank == self.ranks - 1:
            values[0] = 0.0
        return values

    def even(self, multiple: int = 1, least: int = 1) -> Situation:
        """The same with equally many inputs on each rank, a multiple of `multiple`."""
        count = -(-max(*self.counts, least) // multiple) * multiple
        return replace(self, counts=(count,) * self.ranks)

    def __str__(self) -> str:
        return f"inputs={self.counts}"


SITUATIONS = (
    Situation((2, 3), seed=1),
    Situation((3, 3), ((3, 2), (2,), (5,)), bucket=100, seed=2),
    Situation((3, 1), ((2, 2), (2, 3, 1), (2,)), bucket=1, zero=True, seed=3),
    Situation((0, 2), ((3,), (5, 2)), seed=4, backends=("nccl",)),
    Situation((2, 2, 1), ((2, 1), (6,), (1,), (3,)), turned=True, seed=5, backends=("gloo",)),
    Situation((5, 5, 0, 2, 5), ((3,), (4, 1), (2, 3)), seed=6, backends=("nccl",)),
    Situation((10, 1), ((2,),) * 9, turned=True, zero=True, seed=7, backends=("gloo",)),
    Situation((70, 12), ((1,), (1,)), bucket=100, seed=8, backends=("nccl",)),
)
"""An input more; equal counts; two-dimensional parameters and an input of 0; a rank without inputs;
fewer inputs than ranks; five ranks, three of them alike; ten inputs and nine parameters; many inputs,
of which the other rank shadows more than fifty."""

SHORT = SITUATIONS[:-1]
"""For answers that compute with counts: seventy inputs would show no more than ten do."""


def distinct(
    key: Callable[[Situation], object], situations: tuple[Situation, ...] = SITUATIONS
) -> tuple[Situation, ...]:
    """The first situation for each value of `key`, for judges that use only a part of them."""
    first: dict[object, Situation] = {}
    for situation in situations:
        first.setdefault(key(situation), situation)
    return tuple(first.values())


def draw(rng: random.Random) -> Situation:
    """A random situation of two to four ranks with up to five inputs, not all counts equal."""
    ranks = rng.randint(2, 4)
    counts = tuple(rng.randint(0, 5) for _ in range(ranks))
    while len(set(counts)) == 1:
        counts = tuple(rng.randint(0, 5) for _ in range(ranks))
    return Situation(
        counts,
        tuple(_shape(rng) for _ in range(rng.randint(2, 5))),
        bucket=rng.randint(1, 15),
        turned=rng.random() < 0.5,
        zero=rng.random() < 0.5,
        seed=rng.randrange(9, 10**9),
        backends=(rng.choice(BOTH),),
    )


def _shape(rng: random.Random) -> Shape:
    if rng.random() < 0.5:
        return (rng.randint(1, 9),)
    return (rng.randint(1, 3), rng.randint(1, 4))
