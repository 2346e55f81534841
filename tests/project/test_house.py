"""How the package reads: bounds that may only be lowered. `python -m tests.house` shows what is beyond
them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests import house
from tests.house import Figures, count


@pytest.mark.parametrize(
    ("measured", "bound"),
    [
        (lambda figures: figures.vague_percent, 1.5),
        (lambda figures: figures.comprehensions, 55.0),
        (lambda figures: figures.conditionals, 23.5),
        (lambda figures: figures.assignment_expressions, 1.5),
        (lambda figures: figures.untyped, 10.8),
        (lambda figures: figures.wide_percent, 1.0),
        (lambda figures: len(figures.twice), 0),
        (lambda figures: figures.tokens, 345_815),
    ],
    ids=[
        "names that say nothing",
        "comprehensions",
        "conditional expressions",
        "assignment expressions",
        "Any",
        "wide lines",
        "classes of one name",
        "tokens",
    ],
)
def test_the_package_stays_as_readable_as_it_is(
    measured: Callable[[Figures], float], bound: float
) -> None:
    assert measured(house.package()) <= bound


def test_the_scripts_stay_as_small_as_they_are() -> None:
    assert house.scripts_size() <= 142_155


SAMPLE = '''"""A docstring."""
# a comment

class _Pair: ...


def find(one, /, call, *, at=0):
    """Another.

    Over lines.
    """
    total: Any = sum(row for row in call if row)
    if (rank := at) and total:
        return rank if rank else "s" * (total > 1)
'''


def test_each_kind_is_counted() -> None:
    figures = Figures()
    for name in ("a.py", "b.py"):
        count(SAMPLE + "wide = 1  " + "#" * 100 + "\n", Path(name), figures)
    assert (figures.lines, figures.wide_lines) == (12, 2)
    assert figures.names == {"call": 2, "at": 2, "total": 2, "row": 2, "rank": 2, "wide": 2}
    assert figures.vague_percent == 100 * 2 / 12
    assert figures.comprehensions == 1000 / 6
    assert figures.conditionals == 2 * 1000 / 6
    assert figures.assignment_expressions == figures.untyped == 1000 / 6
    assert figures.twice == {"Pair": [Path("a.py"), Path("b.py")]}


def test_neither_width_nor_words_change_the_number_of_tokens() -> None:
    narrow, wide = Figures(), Figures()
    count('def f(a,\n      b):\n    """Words."""\n    return a\n', Path("a.py"), narrow)
    count("def f(a, b):\n    return a  # words\n", Path("a.py"), wide)
    assert narrow.tokens == wide.tokens == 10
