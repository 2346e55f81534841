"""The schema of a log's events: what is written is read again, and what is damaged is refused."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest

from joinlab.program import log_events
from joinlab.program.log_events import (
    LINE_END,
    CallDone,
    CallIssued,
    Event,
    GroupMade,
    RankBegins,
    ThreadsStand,
    WaitEnds,
    decode,
    encode,
    encode_fields,
    first_field,
    next_field,
)

KINDS = [
    kind
    for kind in vars(log_events).values()
    if isinstance(kind, type) and issubclass(kind, Event) and kind is not Event
]
SAMPLES = {
    "rank": 1, "time_ns": 5, "name": "0", "ranks": [0, 1], "backend": "gloo", "text": "x", "group": "0",
    "count": 2, "stack": 0, "frames": ["a.py:1 f"], "file": "a.py", "first_line": 1, "call": 3, "seq": 0,
    "op": "all_reduce", "shape": [[2, 1], []], "column": "value_in", "calls": [3, 4], "thread": 7, "threads": 1,
    "callback": 2, "done": 4, "span": 9, "end": 8, "issued": 4, "held": [["0", 0, "parameter", "w", 5]],
    "rates": [["0", 0, "w", 0.1]], "site": "a.py:3", "what": "wrote a",
}  # fmt: skip
"""A value of each field that an event must have."""


def sample(kind: type[Event]) -> Event:
    if kind is ThreadsStand:
        return ThreadsStand.of([{"thread": "MainThread", "frames": ["a.py:1 f"]}], at_ns=5)
    known = {field.name for field in fields(kind)}
    return kind(**{name: value for name, value in SAMPLES.items() if name in known})


def test_there_are_events_and_no_two_of_one_code() -> None:
    codes = [encode(sample(kind))["e"] for kind in KINDS]
    assert len(set(codes)) == len(codes) > 29


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_event_is_read_as_it_was_written(kind: type[Event]) -> None:
    event = sample(kind)
    assert decode(json.loads(json.dumps(encode(event)))) == event


def test_what_is_none_is_not_written_and_read_as_none() -> None:
    done = CallDone(call=3, time_ns=5)
    assert encode(done) == {"e": "done", "id": 3, "t": 5}
    assert encode(CallDone(call=3, time_ns=5, values=[[1.0]])).keys() == {"e", "id", "t", "v"}
    shared = {"op": "send", "peer": 1, "tag": None, "shape": [[1]], "stack": 0, "group": "0"}
    assert encode_fields(CallIssued, shared) == {
        "g": "0",
        "op": "send",
        "sh": [[1]],
        "st": 0,
        "peer": 1,
    }


@pytest.mark.parametrize(
    ("event", "key", "value"),
    [
        (RankBegins(rank=0, time_ns=1), "rank", 70_000),
        (RankBegins(rank=0, time_ns=1), "t", -1),
        (RankBegins(rank=0, time_ns=1), "t", True),
        (RankBegins(rank=0, time_ns=1), "command", ["python", 3]),
        (GroupMade(name="0", ranks=[0], backend="gloo"), "ranks", [0, 0]),
        (GroupMade(name="0", ranks=[0], backend="gloo"), "desc", 7),
        (sample(CallIssued), "op", "teleport"),
        (sample(CallIssued), "sh", [[1, -1]]),
        (sample(CallIssued), "n", 0),
        (sample(CallIssued), "v", [[[1.0]]]),
        (sample(CallIssued), "id", 2**63),
        (WaitEnds(calls=[1], time_ns=1, thread=7), "v", [1.0]),
        (ThreadsStand.of([], at_ns=1), "th", [{"n": "MainThread"}]),
    ],
)
def test_a_field_of_another_type_is_refused(event: Event, key: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"'{key}' of '{encode(event)['e']}' is"):
        decode({**encode(event), key: value})


def test_what_lacks_a_field_is_refused_and_what_a_later_version_added_is_ignored() -> None:
    plain = encode(sample(CallIssued))
    del plain["g"]
    with pytest.raises(TypeError, match="group"):
        decode(plain)
    with pytest.raises(KeyError):
        decode({"id": 3})
    assert decode({"e": "teleported", "id": 3}) is None
    assert decode({**encode(CallDone(call=3, time_ns=5)), "color": "red"}) == CallDone(
        call=3, time_ns=5
    )


def test_an_event_that_is_written_as_text_is_the_same() -> None:
    text = f"{first_field(CallDone, 'call')}3{next_field(CallDone, 'time_ns')}5{LINE_END}"
    assert decode(json.loads(text)) == CallDone(call=3, time_ns=5)
