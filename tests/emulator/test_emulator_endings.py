"""endings(): every way in which a program can end, over all values that hardware leaves
undefined."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import joinlab
from joinlab import cases
from joinlab.errors import ProgramError
from tests.nightly import sampled


def kinds(outcome) -> tuple[str, ...]:
    return tuple(
        str(end) + (f" ({end.text.partition(':')[0]})" if end.text else "") for end in outcome.ends
    )


@pytest.mark.parametrize("number", sampled([1, 2, 3, 5, 6], (3, 6).__contains__))
def test_undefined_memory_decides_only_case_4(number):
    (only,) = joinlab.endings(cases.CASES[number].program, (2, 3))
    assert len(only.knobs) == 35


def test_case_4_has_five_endings():
    found = {kinds(outcome): outcome for outcome in joinlab.endings(cases.case_4, (2, 3))}
    assert set(found) == {
        ("finished", "hung (proven)"),  # today: a zero tells rank 0 that all have joined
        ("hung (proven)", "finished"),  # the asker's
        (
            "hung (proven)",
            "raised (TypeError)",
        ),  # the answer's: rank 1 finds a garbage rank to broadcast from
        # Where rank 0 is told by a zero that all have joined, it is its own search for that rank
        # that reads the undefined half of a line. Only if that is 0 does it find itself; as a large
        # rank it is a garbage rank,
        ("raised (TypeError)", "hung (proven)"),
        # and as a negative one it is smaller than the -1 that says "not me", so nobody is found.
        ("raised (ValueError)", "hung (proven)"),
    }
    assert {"era": "today", "pad": 0} in found["finished", "hung (proven)"].knobs
    assert {"era": "1.9", "barrier_value": 7, "pad": 0} in found["hung (proven)", "finished"].knobs
    for outcome in found.values():
        assert outcome.timeline.ends == outcome.ends
        assert {**outcome.timeline.meta["emulation"], **outcome.knobs[0]} == outcome.timeline.meta[
            "emulation"
        ]


def test_a_knob_that_is_given_is_not_varied():
    found = joinlab.endings(cases.case_4, (2, 3), pad=0)
    assert [kinds(one) for one in found] == [
        ("finished", "hung (proven)"),
        ("hung (proven)", "finished"),
    ]
    assert {knobs["pad"] for one in found for knobs in one.knobs} == {0}
    (only,) = joinlab.endings(cases.case_4, (2, 3), era="1.9", barrier_value=7, pad=1, gpu="V100")
    assert only.knobs == ({"era": "1.9", "barrier_value": 7, "pad": 1, "gpu": "V100"},)


def test_endings_varies_what_nccl_leaves_undefined_and_takes_no_other_backend():
    with pytest.raises(ProgramError, match="no other backend"):
        joinlab.endings(cases.case_4, (2, 3), backend="gloo")


def test_the_ending_on_pascal_is_named():
    def program(rank, inputs):
        dist.all_reduce(torch.ones(1))
        dist.all_reduce(torch.ones(1 if rank else 3))
        torch.zeros(1).item()

    volta, pascal = joinlab.endings(program, (0, 0), era="today", pad=0)
    assert [end.kind for end in volta.ends] == ["hung", "finished"]
    assert [end.kind for end in pascal.ends] == ["hung", "hung"]
    assert pascal.knobs == ({"era": "today", "pad": 0, "gpu": "P100"},)
    assert pascal.timeline.meta["emulation"]["gpu"] == "P100"
