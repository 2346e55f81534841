"""The story: typed lines with facts instead of sentences, and their plain form."""

import json

import pytest

from joinlab.emulator.recorded import recorded
from joinlab.story.judge import diagnose
from joinlab.story.lines import EndingLine, Line, LineKind, NamedCall, SourceLine, Value
from joinlab.story.story import Story


def a_line(kind: LineKind = LineKind.HEADLINE) -> Line:
    asked = NamedCall(0, "0", 27, 28, "anyone left?", "all_reduce", "cases.py:66")
    answered = NamedCall(1, "0", 27, 28, "barrier", "barrier", "cases.py:71")
    return Line(
        kind,
        "wrong_answer",
        ranks=(0, 1),
        calls=(asked, answered),
        lines=(SourceLine("cases.py:66", "with model.join():", (0,)),),
        values=(Value((0,), "anyone left?", 0.0, "all ranks have joined"),),
    )


def test_a_story_is_plain_data() -> None:
    ends = (EndingLine(0, "finished"), EndingLine(1, "hung", True, call=a_line().calls[1]))
    story = Story((a_line(), a_line(LineKind.CAUSE)), ends, "modelled")
    plain = json.loads(json.dumps(story.plain()))
    assert plain["lines"][0]["calls"][0]["number"] == 28
    assert plain["ranks"][1]["proven"] is True
    assert story.of(LineKind.CAUSE) == (a_line(LineKind.CAUSE),)


@pytest.mark.parametrize("kinds", [[], ["cause"], ["headline", "headline"]])
def test_a_story_has_one_headline_and_it_is_the_first_line(kinds: list[str]) -> None:
    with pytest.raises(AssertionError):
        Story(tuple(a_line(LineKind(kind)) for kind in kinds), (), "modelled")


def test_a_headline_says_that_all_finished_where_calls_clashed() -> None:
    run = recorded(4, (3, 6), era="1.9")
    assert diagnose(run).sentence.endswith(
        "Rank 1's barrier answered. Both ranks finished, by luck."
    )
