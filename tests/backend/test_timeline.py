"""The Timeline: its endings, built the same way for every producer, and the values it refuses."""

from __future__ import annotations

from typing import get_args, get_type_hints

import pytest

from joinlab.ops import CallRow, SpanRow
from joinlab.timeline import CALL_COLUMNS, SPAN_COLUMNS, Ending, EndKind, timeline_from_rows

DONE: CallRow = {"rank": 0, "group": "0", "seq": 0, "op": "broadcast", "completed_ns": 5}
FAILED: CallRow = {
    "rank": 0,
    "group": "0",
    "seq": 1,
    "op": "all_reduce",
    "error": "RuntimeError: gone",
}
LATE: CallRow = {
    "rank": 0,
    "group": "1",
    "seq": 2,
    "op": "all_reduce",
    "error": "RuntimeError: late",
}
OPEN: CallRow = {"rank": 0, "group": "1", "seq": 3, "op": "barrier"}


@pytest.mark.parametrize(
    ("calls", "ending"),
    [
        ([], Ending(EndKind.FINISHED)),
        ([DONE, FAILED], Ending(EndKind.FINISHED)),
        (
            [DONE, OPEN, {**OPEN, "seq": 4}],
            Ending(EndKind.FINISHED, pending=True, call=3, group="1"),
        ),
    ],
)
def test_a_finished_rank_leaves_its_first_open_call_pending(
    calls: list[CallRow], ending: Ending
) -> None:
    assert Ending.finished(calls) == ending


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("RuntimeError: gone", (1, "0")),  # the program let the later error pass
        ("ValueError: after late", (2, "1")),  # raised from what it had caught
        ("ValueError: x", (None, None)),
    ],
)
def test_a_raised_rank_ended_in_the_last_call_whose_message_it_repeats(
    text: str, where: tuple
) -> None:
    ending = Ending.raised([DONE, FAILED, LATE], text)
    assert (ending.kind, ending.text, (ending.call, ending.group)) == (EndKind.RAISED, text, where)


@pytest.mark.parametrize(("row", "columns"), [(CallRow, CALL_COLUMNS), (SpanRow, SPAN_COLUMNS)])
def test_a_row_has_the_columns_of_its_frame(row: type, columns: dict) -> None:
    assert set(row.__annotations__) == set(columns)
    may_be_absent = {
        name for name, hint in get_type_hints(row, include_extras=True).items() if get_args(hint)
    }
    may_be_null = {
        name for name, hint in get_type_hints(row).items() if type(None) in get_args(hint)
    }
    assert (
        may_be_null
        == may_be_absent
        == set(columns) - {"rank", "group", "seq", "op", "name", "begin_ns"}
    )


def test_rows_may_leave_out_columns_and_come_back_with_all() -> None:
    span: SpanRow = {"rank": 0, "name": "forward", "begin_ns": 1}
    timeline = timeline_from_rows([OPEN, DONE], [Ending(EndKind.FINISHED)], {}, spans=[span])
    assert [list(row) for row in timeline.rows("calls")] == [list(CALL_COLUMNS)] * 2
    assert timeline.rows("spans") == [dict.fromkeys(SPAN_COLUMNS) | span]
    assert timeline.call(0, 0)["completed_ns"] == 5
    with pytest.raises(KeyError, match="rank 0 issued no call with seq 7"):
        timeline.call(0, 7)


def test_of_many_ranks_the_repr_counts_the_endings() -> None:
    ends = [Ending("hung", proven=True)] * 255 + [Ending("finished")]
    assert "ends {255 hung (proven), 1 finished}" in repr(timeline_from_rows([], ends, {}))
    assert "ends {0: hung (proven), 1: finished}" in repr(timeline_from_rows([], ends[254:], {}))
