"""The symptoms: each program fails as its page says, and its cure fixes it, on every backend it
runs on."""

import inspect
from typing import Any

import pytest

import joinlab
from joinlab.course.symptoms import SYMPTOMS, Symptom
from joinlab.scenarios import symptoms as programs

# what torch itself deprecates is not our concern here
pytestmark = pytest.mark.filterwarnings("ignore")

EACH = [
    pytest.param(one, backend, id=f"{one.name}-{backend}")
    for one in SYMPTOMS.values()
    for backend in one.backends
]


def good(timeline: joinlab.Timeline) -> bool:
    return all(end.kind == "finished" and not end.pending for end in timeline.ends)


def test_every_program_has_a_page() -> None:
    written = {
        name
        for name, value in vars(programs).items()
        if inspect.isfunction(value) and value.__module__ == programs.__name__
    }
    assert written == set(SYMPTOMS)
    assert len({one.title for one in SYMPTOMS.values()}) == len(SYMPTOMS) >= 30


@pytest.mark.parametrize(("one", "backend"), EACH)
def test_the_program_goes_wrong_and_its_cure_makes_it_right(one: Symptom, backend: Any) -> None:
    ill = joinlab.emulate(one.program, one.inputs, backend=backend)
    cured = joinlab.emulate(one.cured, one.inputs, backend=backend)
    assert good(cured), [str(end) for end in cured.ends]
    if one.silent:
        assert not good(ill) or ill.returns != cured.returns
    else:
        assert not good(ill)


WAITS = ("hang", "wait forever", "waits in", "stops at")


@pytest.mark.parametrize(("one", "backend"), EACH)
def test_what_the_title_says_happens(one: Symptom, backend: Any) -> None:
    """Where the title says that it hangs, a rank hangs on NCCL, and none is only left with a pending
    call. On gloo a rank may see its peer's connection closed instead."""
    if "nothing hangs" in one.title or not any(word in one.title for word in WAITS):
        return
    ends = joinlab.emulate(one.program, one.inputs, backend=backend).ends
    if backend == "nccl":
        assert any(end.kind == "hung" for end in ends), [str(end) for end in ends]
    else:
        assert any(end.kind in ("hung", "raised") for end in ends), [str(end) for end in ends]


@pytest.mark.parametrize("one", SYMPTOMS.values(), ids=str)
def test_every_edit_replaces_what_is_there_once(one: Symptom) -> None:
    text = one.text
    for old, new in one.edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    assert text == one.cured_text != one.text
