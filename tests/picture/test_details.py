"""The details of a call: every column, and the meaning of nulls."""

from __future__ import annotations

from joinlab.analysis.wording import shapes, tensor
from joinlab.picture.details import call_details, duration, moment
from joinlab.timeline import CALL_COLUMNS, Ending
from tests.timelines import Writer


def told(tells_start=False, **columns):
    row = dict.fromkeys(CALL_COLUMNS) | {
        "rank": 0,
        "group": "0",
        "seq": 7,
        "number": 6,
        "op": "all_reduce",
        "shape": [[1]],
    }
    return dict(
        call_details(
            row | {"dtype": "float32", "enqueued_ns": 1_000_000} | columns, tells_start, {}
        )
    )


def test_a_completed_call_tells_every_column():
    said = told(
        origin="all-reduce (join() _get_num_nonjoined_procs())",
        input=2,
        reduce_op="sum",
        value_in="[[0.0]]",
        value_out="[[0.0]]",
        call_site="train.py:12",
        stack=["train.py:12 main", "/env/lib/site-packages/torch/x.py:3 f"],
        completed_ns=1_500_000,
        host_wait_begin_ns=1_100_000,
        host_wait_end_ns=1_500_000,
    )
    assert said == {
        "call": "all-reduce (join() _get_num_nonjoined_procs())",
        "rank": "0",
        "group, number": "0, 6 (seq 7)",
        "op": "all_reduce",
        "input": "inputs[2]",
        "dtype": "float32",
        "shape": "[1]",
        "reduced by": "sum",
        "value in": "0.0",
        "value out": "0.0",
        "what the rank made of it": "it read 0 and concluded that all ranks have joined",
        "enqueued": "1.000 ms",
        "started": "the backend does not say when it began",
        "completed": "1.500 ms (500 µs after it was enqueued)",
        "host waited": "from 1.100 ms to 1.500 ms (400 µs)",
        "called from": "train.py:12",
        "stack": "train.py:12 main\ntorch/x.py:3 f",
    }


def test_what_never_happened_says_so():
    said = told(host_wait_begin_ns=1_200_000, value_in="[[1.0]]", error="RuntimeError: gone")
    assert said["completed"] == "never"
    assert said["value out"] == "never: the call did not complete"
    assert said["host waited"] == "from 1.200 ms, never let go"
    assert said["error"] == "RuntimeError: gone"
    assert said["input"] == "none: before the first or after the last"
    assert "what the rank made of it" not in said


def test_a_null_is_not_more_than_unknown():
    assert told(completed_ns=2)["host waited"] == "the host did not wait for it"
    assert told(completed_ns=2)["value out"] == "not known"
    assert told(completed_ns=2, shape=[[17]])["value out"] == "not kept (over 16 elements)"
    assert told(completed_ns=2, dtype=None, shape=[])["value in"] == "none"
    assert told(tells_start=True)["started"] == "not known"
    assert told(tells_start=True, started_ns=0)["started"] == "0.000 ms"


def test_a_time_of_zero_is_a_time():
    said = told(enqueued_ns=0, completed_ns=0, host_wait_begin_ns=0, host_wait_end_ns=0)
    assert said["enqueued"] == "0.000 ms"
    assert said["completed"] == "0.000 ms (0 ns after it was enqueued)"
    assert said["host waited"] == "from 0.000 ms to 0.000 ms (0 ns)"


def test_sends_name_their_peer_and_tag():
    assert told(op="send", peer=1, tag=5)["peer"] == "rank 1"
    assert told(op="recv")["peer"] == "any rank"
    assert told(op="send", peer=1, tag=5)["tag"] == "5"
    assert "peer" not in told() and "root" not in told()
    assert told(op="broadcast", root=0)["root"] == "rank 0"


def test_a_deep_stack_is_cut_at_its_outer_end():
    lines = told(stack=[f"a.py:{i} f" for i in range(20)])["stack"].splitlines()
    assert lines[0] == "(12 outer frames left out)"
    assert lines[-1] == "a.py:19 f"


def test_durations_and_shapes_are_short():
    assert [duration(ns) for ns in (850, 12_345, 85_200_000, 1_800_000_000_000)] == [
        "850 ns",
        "12.3 µs",
        "85.2 ms",
        "1800 s",
    ]
    assert shapes([[1], [2, 3], []]) == "[1] and [2, 3] and scalar"
    assert shapes(None) == "no tensor"
    assert tensor({"dtype": "float32", "shape": [[1], [2]]}) == "float32[1], float32[2]"
    assert tensor({"dtype": "float32,int64", "shape": [[1], []]}) == "float32[1], int64 scalar"
    assert tensor({"dtype": None, "shape": []}) == "no tensor"


def test_every_column_of_a_row_is_in_the_details():
    writer = Writer()
    writer.call(
        0,
        "broadcast",
        root=0,
        values=([1.0], [2.0]),
        input=0,
        stack=["a.py:1 f"],
        tag=3,
        started_ns=5,
    )
    row = writer.timeline([Ending("finished")] * 2).calls.row(0, named=True)
    told = " ".join(text for _, text in call_details(row, True, {}))
    for name in (
        "group",
        "seq",
        "number",
        "op",
        "origin",
        "input",
        "dtype",
        "root",
        "tag",
        "call_site",
    ):
        assert str(row[name]) in told
    for name in (
        "enqueued_ns",
        "started_ns",
        "completed_ns",
        "host_wait_begin_ns",
        "host_wait_end_ns",
    ):
        assert moment(row[name]) in told
