"""The story: typed lines with facts instead of sentences, and their plain form."""

import json

import pytest

from joinlab.analysis.reasons import OneOf
from joinlab.cases import case_1
from joinlab.emulator.emulate import emulate
from joinlab.emulator.shipped_runs import shipped_run
from joinlab.story.forms.fates import Finished
from joinlab.story.forms.fix import TriedEdit
from joinlab.story.forms.kept_waiting import Shows
from joinlab.story.forms.meeting import Met
from joinlab.story.forms.mismatch import WrongAnswer
from joinlab.story.judge import diagnose
from joinlab.story.lines import EndingLine, Line, LineKind, NamedCall, SourceLine, Value
from joinlab.story.story import Story
from joinlab.timeline import PlainFix


def a_line() -> WrongAnswer:
    asked = NamedCall(0, "0", 27, 28, "anyone left?", "all_reduce", "cases.py:66")
    answered = NamedCall(1, "0", 27, 28, "barrier", "barrier", "cases.py:71")
    return WrongAnswer(
        ranks=(0, 1),
        sides=((0,), (1,)),
        calls=(asked, answered),
        lines=(SourceLine("cases.py:66", "with model.join():", (0,)),),
        values=(Value((0,), "anyone left?", 0.0, "all ranks have joined"),),
    )


def a_cause() -> Met:
    return Met(met=True, completed=True, sides=((0,), (1,)), calls=a_line().calls)


def test_a_story_is_plain_data() -> None:
    ends = (EndingLine(0, "finished"), EndingLine(1, "hung", True, call=a_line().calls[1]))
    story = Story((a_line(), a_cause()), ends, "modelled")
    plain = json.loads(json.dumps(story.plain()))
    headline, cause = plain["lines"]
    assert headline["calls"][0]["number"] == 28
    assert plain["ranks"][1]["proven"] is True
    assert (headline["kind"], headline["form"]) == ("headline", "wrong_answer")
    assert headline["facts"] == {"sides": [[0], [1]], "ends": [], "caught": []}
    assert cause["facts"].items() >= {"met": True, "completed": True}.items()
    assert story.of(LineKind.CAUSE) == (a_cause(),)
    assert repr(story) == str(story)  # what a terminal prints


def test_the_facts_of_a_form_are_plain_under_its_own_name() -> None:
    fix: PlainFix = {"kind": "join", "edits": [], "fewer": False, "tried": 9}
    plain = TriedEdit(fix, equal=False, launched=True).plain()
    facts = {"kind": "join", "fewer": False, "tried": 9, "equal": False, "launched": True}
    assert (plain["form"], plain["facts"]) == ("edit", {"sides": (), **facts})
    shows = Shows(OneOf([1, 2]), kind=LineKind.NOTE).plain()
    assert (shows["kind"], shows["form"]) == ("note", "one_of")
    assert shows["facts"] == {"sides": (), "ends": (), "caught": (), "ranks": [1, 2]}
    assert Finished(pending=True, in_=0).facts()["in"] == 0


@pytest.mark.parametrize("lines", [(), (a_cause(),), (a_line(), a_line())])
def test_a_story_has_one_headline_and_it_is_the_first_line(lines: tuple[Line, ...]) -> None:
    with pytest.raises(AssertionError):
        Story(lines, (), "modelled")


def test_a_headline_says_that_all_finished_where_calls_clashed() -> None:
    run = shipped_run(4, (3, 6), era="1.9")
    assert diagnose(run).sentence.endswith(
        "Rank 1's barrier answered. Both ranks finished, by luck."
    )


@pytest.mark.parametrize(
    ("inputs", "did"),
    [
        ((5, 5), "."),
        ((5, 6), ": in join(), rank 0 issued 3 shadow calls to match calls of rank 1."),
        ((2, 4, 7), ": in join(), ranks 0, 1 issued 24 shadow calls to match calls of ranks 1, 2."),
    ],
)
def test_a_healthy_run_says_what_join_did(inputs: tuple[int, ...], did: str) -> None:
    sentence = diagnose(emulate(case_1, inputs)).sentence
    assert sentence.endswith(f"finished; every call met its counterpart{did}")
    assert len(sentence) <= 140
