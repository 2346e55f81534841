"""The table of tests/unseen.py: its lines exist, its programs end as it says, and their stories are
true."""

from __future__ import annotations

import dataclasses
from itertools import chain, product

import pytest

from joinlab.program.divergence import Branch
from joinlab.story.forms.divergence import AtDivergence
from joinlab.story.forms.meeting import Met
from joinlab.story.forms.mismatch import Alone
from joinlab.story.lines import Edit, Line, LineKind, NamedCall, SourceLine
from joinlab.story.story import EndingLine, Story
from joinlab.timeline import Timeline
from tests.nightly import sampled
from tests.unseen import check, checker, edited, program_of, run, short, site_of, table

BACKENDS = ("gloo", "nccl")


def test_the_lines_that_a_row_names_stand_in_its_program() -> None:
    for name, row in table().items():
        for text in (*row.parts, *row.may, *row.calls, *row.raised, *chain(*row.met)):
            assert site_of(name, text), name
        for rank in (*row.odd, *row.waits, *row.only):
            assert rank < len(row.inputs), name


USERS = (
    *("m02", "m03", "m05", "m06", "m07", "m08", "m10", "m11", "m12"),
    *("r01", "r04", "r05", "r08", "r13", "r14", "r16"),
    "f09",
    "f18",
    "f62",
    "f71",
    "f82",
    "f10",
    "f66",
    "f20",
    "f25",
    "f33",
    "f40",
    "f55",
    "f63",
    "f84",
    "f97",
    "g08",
    "h42",
    "h18",
    "h44",
    "h50",
    "h52",
    "h53",
)
"""Users' programs that tests run, too: each is what a rule of the story was made for."""


TESTED = [name for name in table() if "." in name or name.startswith(USERS)]


def is_daily(at: int, backend: str) -> bool:
    if TESTED[at].startswith(USERS):
        return backend == BACKENDS[at % 2]
    return at % 4 == 0 and backend == BACKENDS[at // 4 % 2]


@pytest.mark.parametrize(
    ("at", "backend"),
    sampled(product(range(len(TESTED)), BACKENDS), lambda row: is_daily(*row)),
    ids=lambda value: value if isinstance(value, str) else TESTED[value],
)
@pytest.mark.filterwarnings("ignore")
def test_what_is_said_is_so_and_nothing_is_left_out(at: int, backend: str) -> None:
    """Every user's program and every fourth other one, with the rules of gloo and of NCCL by turns;
    `python -m tests.nightly` has all with both."""
    assert check(TESTED[at], backend) == []


# ---- the checker sees what is wrong


@pytest.fixture(scope="module")
def uneven() -> tuple[Timeline, Story]:
    """pf.f01: rank 0 has fewer inputs in each of two epochs; rank 1 waits in its backward."""
    return run("pf.f01", "nccl")


def story_of(*lines: Line, ends: str = "FH") -> Story:
    """A story with these lines behind a headline that says nothing wrong."""
    kinds = {"F": "finished", "H": "hung", "R": "raised"}
    head = Alone([0], "finished", ranks=(0, 1), sides=((1,),), calls=(call(1),))
    ranks = tuple(EndingLine(rank, kinds[letter]) for rank, letter in enumerate(ends))
    return Story(
        (*(() if lines and lines[0].kind is LineKind.HEADLINE else (head,)), *lines),
        ranks,
        "modelled",
    )


def call(rank: int, line: str = "loss = net(x).sum(); loss.backward()") -> NamedCall:
    return NamedCall(rank, "0", 7, 8, "backward", "all_reduce", site_of("pf.f01", line))


def parted(line: str, *sides: tuple[int, ...]) -> Line:
    lines = (SourceLine(site_of("pf.f01", line)),)
    went = [Branch(ranks=[*side], how="over", line=0, text="") for side in sides]
    return AtDivergence(0, False, went, ranks=(0, 1), lines=lines)


GOOD = parted("for x in inputs:", (0,), (1,))


def found(uneven: tuple[Timeline, Story], story: Story) -> list[str]:
    return checker("pf.f01", uneven[0], story, text="").problems()


def test_a_right_story_is_right(uneven: tuple[Timeline, Story]) -> None:
    assert found(uneven, story_of(GOOD)) == []


def test_silence_about_the_parting_is_found(uneven: tuple[Timeline, Story]) -> None:
    assert found(uneven, story_of()) == ["SILENT of the parting: for x in inputs:"]


def test_a_parting_at_another_line_is_false(uneven: tuple[Timeline, Story]) -> None:
    assert (
        "FALSE parting"
        in found(uneven, story_of(parted("net = DDP(nn.Linear(1, 1))", (0,), (1,))))[0]
    )


def test_ranks_that_went_the_same_way_are_not_on_two_sides() -> None:
    timeline, story = run("pf.f02", "nccl")
    line = parted("for x in inputs:", (1,), (2,))
    line = dataclasses.replace(line, lines=(SourceLine(site_of("pf.f02", "for x in inputs:")),))
    others = [one for one in story.lines if one.kind is not LineKind.PARTING]
    told = checker("pf.f02", timeline, dataclasses.replace(story, lines=(*others, line)), text="")
    assert "FALSE parting: ranks 1 and 2 went the same way" in told.problems()


def test_a_line_that_the_row_has_not_is_false(uneven: tuple[Timeline, Story]) -> None:
    calls = (call(1, "net = DDP(nn.Linear(1, 1))"),)
    cause = Met(False, False, ranks=(0, 1), calls=calls)
    assert "FALSE line" in found(uneven, story_of(cause, GOOD))[0]


def test_a_count_that_is_not_so_is_false(uneven: tuple[Timeline, Story]) -> None:
    site = short(uneven[1].headline.calls[0].site)
    for said, false in (("(7 and 6)", 0), ("(7 and 5)", 1), ("(6 and 7)", 2)):
        text = f"Rank 1 issued one backward ({site}) more than rank 0 {said}."
        assert len(list(checker("pf.f01", *uneven, text=text).counted())) == false


def test_an_ending_that_is_not_so_is_false(uneven: tuple[Timeline, Story]) -> None:
    assert found(uneven, story_of(GOOD, ends="FF")) == ["FALSE ends FF, not FH"]
    other = checker("pf.f01", *uneven, text="Rank 1 has finished.")
    assert list(other.fates()) == ["FALSE ending: 'Rank 1 has finished', and it ends H"]
    assert not list(checker("pf.f01", *uneven, text="Rank 0 finished; rank 1 hangs.").fates())


def test_a_fix_is_applied_and_run_again(uneven: tuple[Timeline, Story]) -> None:
    place, line = site_of("pf.f01", "net = DDP(nn.Linear(1, 1))").rsplit(":", 1)
    head, last = "    net = DDP(nn.Linear(1, 1))", "    inputs = inputs[:3]"
    good = Edit(place, int(line), (head,), (last, head))
    bad = dataclasses.replace(good, added=(head, "    inputs = inputs[:2 + rank]"))
    assert edited(program_of("pf.f01"), [good]).__name__ == program_of("pf.f01").__name__
    checked = checker("pf.f01", *uneven)
    assert list(checked.tried([good], fewer=True)) == []
    assert "does not say that it leaves some out" in next(checked.tried([good]))
    assert "FALSE fix" in next(checked.tried([bad]))
    assert "cannot be applied" in next(
        checked.tried([dataclasses.replace(good, removed=("another",))])
    )


def test_words_about_a_healthy_program_are_an_alarm() -> None:
    timeline, story = run("pc.c01", "gloo")
    alarm = dataclasses.replace(story, lines=(story.headline, GOOD))
    assert any("ALARM" in one for one in checker("pc.c01", timeline, alarm, text="").problems())
