"""Ways: a thread's steps in the program's lines, and the values that its tests read. Needs no
torch."""

from __future__ import annotations

import ast
import contextlib
import os
import threading
from collections import deque

import numpy as np
import pytest

from joinlab.program.branches import outcome, statement_at
from joinlab.program.log_events import TraceStepped
from joinlab.program.traces import Trace, TraceStep, Window, plain_of
from joinlab.recorder.recorded_traces import MOST_BETWEEN, RecordedTrace, take_step

HERE = __file__


class Counter:
    """Has no value that is told: its repr and its properties are code of a class."""

    def __init__(self) -> None:
        self.seen, self.limit = [1], 2

    def __repr__(self) -> str:
        raise AssertionError("never asked")

    @property
    def computed(self) -> int:
        raise AssertionError("never asked")


def loops(counter):
    for value in counter.seen:
        if value < counter.limit and counter:
            counter.seen.append(value + 1)
    return sorted([3, 1], key=lambda number: -number)


def fails():
    with contextlib.suppress(ValueError):
        int("x")


def yields():
    yield from (1, 2)


def turns(values):
    for value in values: abs(value)  # fmt: skip  # noqa: E701
    return [abs(value) for value in values]


def asks(mask, flags, options, phase):
    if mask.sum() == 0 or any(flags) or min(flags[:0], default=1) == 0:
        return 1
    if os.environ.get("JOINLAB_TEST_ASKS") or os.environ.get("JOINLAB_TEST_TOKEN"):
        return 2
    if options.get("limit", 3) == options.get("absent"):
        return 3
    match phase:
        case Counter(limit=5) | {"kind": {"name": "train"}}:
            return 4
    return max(flags)


def max(values):
    """Not Python's."""
    return 0


def steps_of(run):
    way = Trace(int, Window(0, None))
    way.follow(run)
    return way.within


def line_of(function, text):
    first = function.__code__.co_firstlineno
    with open(HERE, encoding="utf-8") as file:
        lines = file.read().split("\n")
    return next(at for at in range(first, first + 20) if text in lines[at - 1])


@pytest.mark.parametrize("text", ["for value", "return ["])
def test_a_loop_on_one_line_is_at_that_line_once_more_in_each_turn(text):
    line = line_of(turns, text)
    short, long = (
        sum(
            step.line == line and step.event == "line"
            for step in steps_of(lambda values=values: turns(values))
        )
        for values in ([1], [1, 2, 3])
    )
    assert long - short == 2


def test_a_function_of_the_program_that_a_library_calls_is_followed():
    functions = [
        step.function for step in steps_of(lambda: loops(Counter())) if step.event == "call"
    ]
    assert functions.count("<lambda>") == 3  # the one that is followed, and the key of each number


def test_an_exception_is_a_step_and_the_end_of_a_loop_is_none():
    raised = [step for step in steps_of(fails) if step.event == "raise"]
    assert [(step.line, step.values) for step in raised] == [
        (line_of(fails, "int("), (("", "ValueError"),))
    ]
    assert not [step for step in steps_of(lambda: list(yields())) if step.event == "raise"]


def test_calls_and_returns_come_in_pairs():
    found = steps_of(lambda: (fails(), list(yields()), loops(Counter())))
    depth = found[0].depth - 1  # of this test
    for step in found:
        depth += step.event == "call"
        assert step.depth == depth
        depth -= step.event == "return"
    assert depth == found[0].depth - 1


def test_another_thread_is_not_followed():
    def starts():
        thread = threading.Thread(target=fails)
        thread.start()
        thread.join()

    assert "fails" not in {step.function for step in steps_of(starts)}


def test_a_way_that_is_too_long_says_where_it_was_cut():
    way = Trace(int, max_steps=5)
    way.follow(lambda: loops(Counter()))
    assert [step.event for step in way.within][5:] == ["cut"]


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (3, ("name", 3)),
        ("x" * 40, ("name", "x" * 40)),
        ("x" * 41, ("len(name)", 41)),
        ({1, 2}, ("len(name)", 2)),
        (2**70, None),
        (object(), None),
        (type("Own", (list,), {})(), None),
    ],
)
def test_what_a_step_keeps_of_a_value(value, told):
    assert plain_of("name", value) == told


def test_a_step_keeps_what_calls_say_that_change_nothing(monkeypatch):
    monkeypatch.delenv("JOINLAB_TEST_ASKS", raising=False)
    monkeypatch.setenv("JOINLAB_TEST_TOKEN", "")
    arguments = (np.ones(3), [False, False], {"limit": 7}, {"kind": {"name": "eval"}})
    steps = [step for step in steps_of(lambda: asks(*arguments)) if step.function == "asks"]
    values = [dict(step.values) for step in steps if step.event == "line"]
    assert values[0]["mask.sum()"] == 3.0 and values[0]["any(flags)"] is False
    assert values[1]["os.environ.get('JOINLAB_TEST_ASKS')"] is None
    assert "os.environ.get('JOINLAB_TEST_TOKEN')" not in values[1]  # it may be a secret
    assert values[2] == {"options.get('limit', 3)": 7, "options.get('absent')": None}
    assert values[3]["phase['kind']['name']"] == "eval"
    assert values[-1] == {"len(flags)": 2}  # this max is the program's own


def squares(values, limit):
    if any(value > 1 for value in values):
        bad = [value * value for value in values]
        return bad
    return values


def test_a_statement_is_found_at_each_line_of_its_head():
    line = line_of(loops, "if value")
    assert statement_at(HERE, line).names == ("value", "counter.limit", "counter")
    assert statement_at(HERE, line).stores == {"counter.seen"}
    assert statement_at(HERE, line - 1).decides
    assert statement_at("no such file", 1) is None
    line = line_of(squares, "any(")
    assert statement_at(HERE, line).names == ("values",)
    assert statement_at(HERE, line + 1).stores == {"bad"}


class Log(list):
    """In place of a rank's log."""

    def write(self, event):
        self.append(event)


def test_between_two_calls_a_recorded_way_is_bounded():
    log = Log()
    way = RecordedTrace(log, int)
    for _ in range(MOST_BETWEEN + 10):
        way.take(TraceStep(0, "line", 1, HERE, "f", 1))
    assert len(log) == MOST_BETWEEN and log[-1].step[0] == "cut"


@pytest.mark.parametrize(
    "event",
    [
        TraceStepped(step=["line"]),
        TraceStepped(values=[["a", [1]]]),
        TraceStepped(step=["line", 1, "f", "g", 2, [["a", {}]]]),
    ],
)
def test_an_event_of_another_form_is_refused(event):
    with pytest.raises(ValueError):
        take_step(deque([TraceStep(0, "line", 1, HERE, "f", 1)]), event, 0)


def test_a_test_is_read_without_what_a_traceback_has_tied_to_its_nodes(monkeypatch):
    """IPython's tracebacks set `parent` of all nodes of a file; `Load` is one node for all
    files."""

    class WholeFile:
        def __deepcopy__(self, memo):
            raise AssertionError

    test = ast.parse("rank == 1", mode="eval").body
    monkeypatch.setattr(test.left.ctx, "parent", WholeFile(), raising=False)
    assert outcome(test, {"rank": 1}) is True


@pytest.mark.parametrize(
    ("value", "result"), [(None, True), (1, False), ("a", False), (float("inf"), False)]
)
def test_a_test_of_none_is_decided_without_a_warning(value, result, recwarn):
    assert outcome(ast.parse("self.item is None", mode="eval").body, {"self.item": value}) is result
    assert not recwarn


class Sized:
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)


def test_the_length_of_an_object_is_read_and_is_no_step():
    loader, way = Sized([1, 2]), Trace(lambda: 0)

    def walk():
        while loader and not loader.items:  # which asks for its length once
            break

    way.follow(walk)
    values = [pair for step in way.steps for pair in step.values]
    assert ("len(loader)", 2) in values
    asked = [step for step in way.steps if (step.function, step.event) == ("__len__", "call")]
    assert len(asked) == 1
