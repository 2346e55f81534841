"""joinlab.archive and joinlab.program.plain_data: a saved Timeline loads unchanged, and other files
are refused."""

from __future__ import annotations

import copy
import errno
import io
import json
import os
import pickle
import tracemalloc
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import joinlab
from joinlab import archive
from joinlab.errors import TimelineFileError
from joinlab.ops import Op
from joinlab.picture.first_screen import first_screen
from joinlab.picture.svg import svg
from joinlab.program.plain_data import MAX_DEPTH, Repr, decode, encode
from joinlab.timeline import (
    CALL_COLUMNS,
    SPAN_COLUMNS,
    Ending,
    EndKind,
    Timeline,
    parts_of,
    timeline_from_parts,
    timeline_from_rows,
)
from tests.nightly import sampled
from tests.random_programs import draw, program_of
from tests.timelines import same_timelines


def sample(**changes) -> Timeline:
    """Two ranks; the second hangs in its second call."""
    calls = [
        {
            "rank": rank,
            "group": "0",
            "seq": seq,
            "op": str(Op.ALL_REDUCE),
            "dtype": "float32",
            "shape": [[2], []],
            "value_in": "[[1.0,2.0],[3.0]]",
            "stack": ["train.py:3 worker"],
            "enqueued_ns": 10**15 + seq,
            "completed_ns": None if seq else 10**15 + 9,
        }
        for rank in (0, 1)
        for seq in range(1 + rank)
    ]
    values = {
        "calls": calls,
        "spans": [{"rank": 0, "name": "backward", "begin_ns": 1, "end_ns": None}],
        "ends": [
            Ending(EndKind.FINISHED),
            Ending(EndKind.HUNG, call=1, group="0", text="waited", proven=True),
        ],
        "meta": {
            "program": "worker",
            "backend": "gloo",
            "inputs": (5, 6),
            "clock": {"domain": "monotonic"},
        },
        "returns": (5, None),
        "output": ("Rank 0 says 你好\n", "\udcff raw byte\n"),
    }
    return timeline_from_rows(**(values | changes))


def packed(timeline: Timeline) -> bytes:
    return archive.pack(parts_of(timeline))


def opened(data: bytes, name: str = "x") -> Timeline:
    """The Timeline in the bytes of a file."""
    return archive.unpack(data, name, timeline_from_parts)


def repacked(
    replace: dict[str, bytes | None],
    header: dict | None = None,
    data: bytes | None = None,
    deflate: bool = False,
) -> bytes:
    """The file with members replaced (None: left out) or header keys changed, and sealed again."""
    old = zipfile.ZipFile(io.BytesIO(data or packed(sample())))
    members = {name: old.read(name) for name in old.namelist()} | replace
    if header is not None:
        members[archive.HEADER] = json.dumps(json.loads(old.read(archive.HEADER)) | header).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(
        buffer, "w", zipfile.ZIP_DEFLATED if deflate else zipfile.ZIP_STORED
    ) as new:
        for name, content in members.items():
            if content is not None:
                new.writestr(name, content)
        new.comment = old.comment
    body = buffer.getvalue()[: -len(old.comment)]
    return body + archive._seal(body)


def with_columns(
    columns: object, name: str = "calls", data: bytes | None = None, deflate: bool = False
) -> bytes:
    """The file with another table, by its columns, in place of its calls or spans."""
    arrays: dict[str, bytes | None] = {}

    def store(npy: bytes) -> str:
        arrays[f"arrays/table-{len(arrays)}.npy"] = npy
        return list(arrays)[-1]

    header = {name: encode(columns, store)}
    return repacked(arrays, header, data=data, deflate=deflate)


def with_table(table: pl.DataFrame, name: str = "calls", data: bytes | None = None) -> bytes:
    """The file with another table in place of its calls or spans."""
    return with_columns(archive._columns(table), name, data)


VERSION_1 = Path(__file__).parents[1] / "material" / "version_1.joinlab"
"""Case 4 with 2 and 3 inputs, emulated and diagnosed, as joinlab 0.1.0 saved it."""


def round_trip(value):
    kept: dict[str, bytes] = {}

    def store(npy: bytes) -> str:
        name = str(len(kept))
        kept[name] = npy
        return name

    text = json.dumps(encode(value, store), allow_nan=False)
    return decode(json.loads(text), kept.__getitem__)


# ---- round trip


def test_save_returns_the_path_and_leaves_no_other_file(tmp_path: Path) -> None:
    path = sample().save(os.fspath(tmp_path / "run.joinlab"))
    sample().save(path)
    assert [path] == list(tmp_path.iterdir())


def test_save_follows_a_link_and_leaves_devices_alone(tmp_path: Path) -> None:
    target, link = tmp_path / "there.joinlab", tmp_path / "link.joinlab"
    target.write_bytes(b"before")
    link.symlink_to(target)
    timeline = joinlab.emulate(joinlab.cases.case_1, (1, 1))
    assert timeline.save(link) == link
    assert link.is_symlink()
    assert joinlab.load(target).calls.equals(timeline.calls)
    with pytest.raises(OSError, match="this is no regular file"):
        timeline.save("/dev/null")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="this is no regular file"):
        timeline.save(tmp_path / "pipe")


def test_a_save_that_fails_keeps_the_file_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = sample().save(tmp_path / "run.joinlab")
    before = path.read_bytes()

    def disk_full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "disk full")

    monkeypatch.setattr(os, "replace", disk_full)
    with pytest.raises(OSError, match=f"disk full: '{path}'"):
        sample(output=("", "")).save(path)
    assert path.read_bytes() == before
    assert [path] == list(tmp_path.iterdir())


def test_saving_what_was_loaded_gives_the_same_bytes() -> None:
    data = packed(sample(returns=(object(), [np.float32(1.5), (1, b"\0")])))
    assert packed(opened(data)) == data


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**200), 2**200),
    st.floats(),
    st.text(st.characters()),
    st.binary(),
)
arrays = hnp.arrays(
    st.sampled_from(
        [np.float32, np.float64, np.int64, np.uint8, np.bool_, np.complex64, ">i4", "U3"]
    ),
    hnp.array_shapes(min_dims=0, min_side=0, max_side=3),
)
plain = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner),
        st.lists(inner).map(tuple),
        st.dictionaries(st.text(), inner),
        st.dictionaries(st.one_of(scalars, st.tuples(scalars)), inner),
    ),
    max_leaves=20,
)


@given(plain)
def test_plain_values_round_trip_exactly(value) -> None:
    assert repr(round_trip(value)) == repr(value)


@given(arrays)
def test_arrays_round_trip_exactly(array) -> None:
    back = round_trip({"weights": array})["weights"]
    assert type(back) is np.ndarray
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert back.tobytes() == array.tobytes()


@pytest.mark.parametrize(
    "scalar", [np.float32(0.1), np.int8(-3), np.bool_(True), np.float64("nan")]
)
def test_numpy_scalars_keep_their_type(scalar) -> None:
    back = round_trip(scalar)
    assert type(back) is type(scalar)
    assert repr(back) == repr(scalar)


@pytest.mark.parametrize(
    "value", [{"$": ["tuple", []]}, {"$": 1}, [{"$": "x"}], {1: 2}, {(1, None): {"$": ()}}, -0.0]
)
def test_values_that_look_like_our_own_tags_round_trip(value) -> None:
    assert repr(round_trip(value)) == repr(value)


class Stranger:
    def __repr__(self) -> str:
        return "Stranger()"


class Rude:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def test_other_objects_than_plain_data_become_their_repr() -> None:
    back = round_trip([Stranger(), {1, 2}, Op.SEND, np.array([Stranger()])])
    assert back[0] == Repr("Stranger()")
    assert (
        repr(back) == "[Stranger(), {1, 2}, <Op.SEND: 'send'>, array([Stranger()], dtype=object)]"
    )
    assert repr(round_trip(Rude())) == "<Rude whose repr raised RuntimeError>"


def test_a_value_that_holds_itself_and_a_deep_one_are_kept_as_text() -> None:
    loop: list = [1]
    loop.append(loop)
    assert repr(round_trip(loop)) == "[1, [1, [...]]]"
    deep: list = []
    for _ in range(3 * MAX_DEPTH):
        deep = [deep]
    assert repr(round_trip(deep)) == repr(deep)


cells = {
    pl.Int64(): st.integers(-(2**63), 2**63 - 1),
    pl.String(): st.text(),
    pl.List(pl.String()): st.lists(st.text(max_size=3), max_size=3),
    pl.List(pl.List(pl.Int64())): st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=3),
}


def rows(columns) -> st.SearchStrategy:
    """Rows as producers write them, with every required column."""
    needed = {"rank": st.integers(0, 1), "name": st.text(), "begin_ns": st.integers(0, 9)}
    if "seq" in columns:
        needed |= {
            "group": st.sampled_from(["0", "1"]),
            "seq": st.integers(0, 9),
            "op": st.text(max_size=9),
        }
        needed |= {"number": st.none()}
    values = st.sampled_from([None, "[]", "[[1.0]]", "[[NaN],[2,3]]"])
    narrow = {
        "value_in": values,
        "value_out": values,
        **dict.fromkeys(("peer", "root"), st.none() | st.integers(0, 1)),
        "splits": st.none() | st.just([[2], [0]]),
    }
    narrow |= {
        name: st.none() | st.integers(-(2**62), 2**62) for name in columns if name.endswith("_ns")
    }
    every = {
        name: narrow.get(name, cells[dtype])
        for name, dtype in columns.items()
        if name not in needed
    }
    return st.fixed_dictionaries(needed, optional=every)


endings = st.one_of(
    st.builds(
        Ending,
        st.just("finished"),
        pending=st.booleans(),
        call=st.none() | st.integers(0, 9),
        text=st.text(),
    ),
    st.builds(
        Ending, st.just("hung"), proven=st.booleans(), call=st.integers(0, 9), group=st.text()
    ),
    st.builds(Ending, st.sampled_from(["raised", "killed"]), text=st.text(st.characters())),
)


@given(
    calls=st.lists(
        rows(CALL_COLUMNS),
        max_size=5,
        unique_by=lambda row: (row["rank"], row["group"], row["seq"]),
    ),
    spans=st.lists(rows(SPAN_COLUMNS), max_size=3),
    ends=st.tuples(endings, endings),
    meta=st.dictionaries(st.text(), plain, max_size=3),
    returns=st.tuples(plain, arrays),
    output=st.tuples(st.text(st.characters()), st.text()),
)
def test_any_timeline_round_trips(calls, spans, ends, meta, returns, output) -> None:
    timeline = timeline_from_rows(calls, ends, meta, spans=spans, returns=returns, output=output)
    loaded = opened(packed(timeline))
    assert loaded.calls.equals(timeline.calls)
    assert loaded.spans.equals(timeline.spans)
    assert (loaded.ends, loaded.output) == (timeline.ends, timeline.output)
    assert repr((loaded.meta, loaded.returns)) == repr((timeline.meta, timeline.returns))


# ---- refusals


def refusal(data: bytes) -> str:
    with pytest.raises(TimelineFileError) as caught:
        opened(data, "run.joinlab")
    message = str(caught.value)
    assert message.startswith("cannot open 'run.joinlab': ")
    assert "\n" not in message
    return message


def test_a_call_that_was_refused_for_its_root_is_kept(tmp_path: Path) -> None:
    """Ranks that took a barrier's float for "who is last?" broadcast from rank 1077936128."""
    plan = draw(5026, (3, 4, 6))
    run = joinlab.emulate(program_of(plan), plan.counts)
    assert max(run.calls["root"].drop_nulls()) >= run.world_size
    assert joinlab.load(run.save(tmp_path / "run.joinlab")).calls.equals(run.calls)


def test_a_file_cut_short_anywhere_is_refused() -> None:
    data = packed(timeline_from_rows([], [Ending(EndKind.FINISHED)], {}))
    for length in range(len(data)):
        refusal(data[:length])


def test_a_file_with_any_byte_changed_is_refused() -> None:
    data = packed(timeline_from_rows([], [Ending(EndKind.FINISHED)], {}))
    edges = {*range(100), *range(len(data) - 400, len(data))}  # every bit of the zip's own records
    for at in range(len(data)):
        for bit in range(8) if at in edges else [at % 8]:
            refusal(data[:at] + bytes([data[at] ^ (1 << bit)]) + data[at + 1 :])


@given(st.integers(0), st.binary(min_size=1, max_size=9))
def test_a_file_with_bytes_added_is_refused(at, extra) -> None:
    data = packed(sample())
    at %= len(data) + 1
    refusal(data[:at] + extra + data[at:])


def test_a_file_cut_where_another_timeline_ends_inside_it_is_refused() -> None:
    # zipfile searches for the end record from the end, so returned bytes of a Timeline file plant a
    # second one.
    inner = np.frombuffer(packed(sample()), np.uint8)
    outer = repacked({}, data=packed(sample(returns=(inner, None))))  # stored, not deflated
    end = outer.index(inner.tobytes()) + inner.size
    assert "cut short or damaged" in refusal(outer[:end])


@pytest.mark.parametrize("data", [b"", b"P", b"hello", b"PAR1" * 20, pickle.dumps(sample)])
def test_a_file_that_is_not_a_zip_is_refused(data: bytes) -> None:
    assert "not a Timeline file" in refusal(data)


def test_a_zip_of_others_is_refused() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as other:
        other.writestr("notes.txt", "hello")
    assert "not a Timeline" in refusal(buffer.getvalue())
    assert "not a Timeline" in refusal(repacked({}, header={"format": "else"}))
    assert "not a Timeline" in refusal(repacked({archive.HEADER: b"[]"}))


def test_a_file_of_another_version_is_refused_with_advice() -> None:
    assert "file version is 3, and this joinlab opens versions 1 and 2. Update joinlab" in refusal(
        repacked({}, header={"version": 3})
    )
    assert "Open it with joinlab 0.0.9, which wrote it" in refusal(
        repacked({}, header={"version": 0, "written_by": "joinlab 0.0.9"})
    )
    assert "version is None" in refusal(repacked({}, header={"version": None}))


@pytest.mark.parametrize("member", ["arrays/0.npy", "arrays/9.npy"])
def test_a_missing_member_is_refused_by_its_name(member: str) -> None:
    data = packed(sample(returns=(np.ones(2), None)))
    assert member in refusal(repacked({member: None}, data=data))


def test_a_file_that_an_older_joinlab_saved_opens_and_is_saved_anew(tmp_path: Path) -> None:
    older = joinlab.load(VERSION_1)
    today = joinlab.emulate(joinlab.cases.case_4, (2, 3))
    kept = ("rank", "seq", "number", "op", "shape", "value_in", "completed_ns")
    assert older.calls.select(kept).equals(today.calls.select(kept)) and older.ends == today.ends
    assert "Rank 1 hangs" in str(joinlab.diagnose(older))
    assert same_timelines(joinlab.load(older.save(tmp_path / "new.joinlab")), older)


def parquet(table: pl.DataFrame, **options: Any) -> bytes:
    buffer = io.BytesIO()
    table.write_parquet(buffer, **options)
    return buffer.getvalue()


def test_a_table_of_version_1_that_takes_more_than_allowed_is_refused() -> None:
    """polars makes room for what a file claims, and its process ends where there is not as much."""
    table = parquet(pl.DataFrame({"rank": pl.zeros(200_000_000, eager=True)}))
    bomb = repacked({"calls.parquet": table}, data=VERSION_1.read_bytes())
    assert len(bomb) < 1_000_000
    with pytest.raises(TimelineFileError, match="unpacks to more, at a table"):
        archive.unpack(bomb, "x", timeline_from_parts, max_bytes=64 << 20)


@pytest.mark.parametrize("at", sampled([4, 6, 8], (6).__eq__))
@pytest.mark.parametrize("claimed", [b"\xfe\xff\xff\xff\x0f", b"\x01"])
def test_a_table_of_version_1_whose_page_claims_another_size_is_refused(
    at: int, claimed: bytes
) -> None:
    """The header of its first page: the page's type, its bytes unpacked and packed, each 15 and a
    number of Thrift's compact protocol. The numbers claimed are 2**31 - 1 and -1."""
    table = parquet(pl.DataFrame({"rank": [0]}), compression="uncompressed")
    assert table[at] == 0x15
    lie = table[: at + 1] + claimed + table[at + 2 :]
    for data in (lie, b"PAR1 nonsense PAR1"):
        with pytest.raises(TimelineFileError):
            opened(repacked({"calls.parquet": data}, data=VERSION_1.read_bytes()))


def test_frames_with_other_columns_are_refused() -> None:
    assert "CALL_COLUMNS" in refusal(with_table(pl.DataFrame({"rank": [0]})))
    one = {"type": "List(String)", "distinct": [["x"]], "index": np.zeros(1, np.int32)}
    text = {"text": np.zeros(1, np.uint8), "ends": np.ones(1, int), "index": np.zeros(1, np.int32)}
    for columns in (
        None,
        [],
        {"op": 3},
        {"op": one | {"type": "Object"}},
        {"op": one | {"distinct": [3]}},
        {"op": one | {"distinct": 3}},
        {"op": text | {"text": np.full(1, 255, np.uint8)}},
        {"op": text | {"text": "x"}},
        {"op": text | {"ends": np.array([1, 0, 1])}},
        {"op": text | {"ends": 3}},
        {"op": text | {"index": np.ones(1, np.int32)}},
        {"rank": {"numbers": np.zeros(1, int), "known": np.ones(2, bool)}},
        {"rank": {"numbers": np.zeros(1, int), "known": "x"}},
        {"op": one | {"index": np.ones(1, np.int32)}},
        {"op": one | {"index": np.zeros((1, 1), np.int32)}},
        {"op": one, "rank": np.zeros(2, np.int64)},
        {"rank": np.zeros(1, np.float64)},
    ):
        assert "content" in refusal(with_columns(columns))


@pytest.mark.parametrize(
    "header",
    [
        {"ends": []},
        {"ends": [{"kind": "vanished"}] * 2},
        {"ends": [{"kind": "finished", "mood": "good"}] * 2},
        {"ends": [1, 2]},
        {"ends": None},
        {"output": ["one"]},
        {"output": 5},
        {"returns": [{"$": ["code", "import os"]}, None]},
        {"returns": [{"$": ["float", 1]}, None]},
        {"returns": [{"$": ["dict", [[[], 1]]]}, None]},
        {"returns": [{"$": ["array", "no such member"]}, None]},
        {"meta": []},
        *(
            {"meta": {"groups": {"0": [0, 1]}, **meta}}
            for meta in (
                {"emulation": {"watchdog": [{"rank": 0, "after_s": "long", "text": ""}]}},
                {"skipped": {"0": {"x": 1}}},
                {"progress": {"0": {0: {"enqueued": 1}}}},
                {"fixes": [{"edits": [], "fewer": False, "tried": 1}]},
                {"fixes": [{"kind": "out", "edits": [], "fewer": False, "tried": 1}]},
                {"missing_ranks": [2]},
                {"clock": {}},
            )
        ),
    ],
)
def test_a_header_that_makes_no_sense_is_refused(header: dict) -> None:
    assert "content is not that of a Timeline" in refusal(repacked({}, header=header))


def test_unknown_header_keys_and_members_are_ignored() -> None:
    data = repacked({"thumbnail.svg": b"<svg/>"}, header={"comment": "from the lab"})
    assert same_timelines(opened(data), sample())


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("a pickle in the file was run",))


def test_a_pickle_is_never_run() -> None:
    data = packed(sample(returns=(np.ones(2), None)))
    hostile = io.BytesIO()
    np.save(hostile, np.array([Bomb()], dtype=object), allow_pickle=True)
    for member in ("arrays/0.npy", "arrays/9.npy", archive.HEADER):
        refusal(repacked({member: pickle.dumps(Bomb())}, data=data))
    assert "Object arrays cannot be loaded" in refusal(
        repacked({"arrays/0.npy": hostile.getvalue()}, data=data)
    )
    refusal(pickle.dumps(Bomb()))


def test_whatever_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, why in (
        ("none", "No such file"),
        (".", "cannot open"),
        ("pipe", "not a regular file"),
    ):
        with pytest.raises(TimelineFileError, match=why) as caught:
            joinlab.load(tmp_path / name)
        assert str(caught.value).startswith(f"cannot open {str(tmp_path / name)!r}: ")
    for odd in ("none", "pipe", "."):
        with pytest.raises(TimelineFileError):
            archive.load(tmp_path / odd, timeline_from_parts)


def test_a_file_larger_than_allowed_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(20 << 30)
    with pytest.raises(
        TimelineFileError,
        match=r"sparse': it has 21,474,836,480 bytes, and max_bytes=1,073,741,824",
    ):
        joinlab.load(tmp_path / "sparse")
    path = sample().save(tmp_path / "run.joinlab")
    with pytest.raises(TimelineFileError, match="load it with a larger max_bytes"):
        joinlab.load(path, max_bytes=1000)
    assert same_timelines(joinlab.load(path, max_bytes=100_000), sample())


def peak_of(work) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_member_that_unpacks_to_more_than_allowed_is_refused_unread() -> None:
    data = packed(sample(returns=(np.ones(2), None)))
    bomb = repacked({"arrays/0.npy": bytes(64 << 20)}, data=data, deflate=True)
    assert len(bomb) < 100_000

    def refused() -> None:
        with pytest.raises(TimelineFileError, match=r"unpacks to more, at arrays/0\.npy"):
            archive.unpack(bomb, "x", timeline_from_parts, max_bytes=1 << 20)

    assert peak_of(refused) < 2 << 20


def test_an_array_that_is_named_many_times_counts_each_time() -> None:
    data = packed(sample(returns=(np.ones(10_000), None)))
    many = [{"$": ["array", "arrays/0.npy"]}] * 50
    with pytest.raises(TimelineFileError, match="unpacks to more"):
        archive.unpack(
            repacked({}, header={"returns": [many, None]}, data=data),
            "x",
            timeline_from_parts,
            1 << 20,
        )


def test_an_array_whose_header_claims_more_than_there_is_is_refused() -> None:
    npy = io.BytesIO()
    np.save(npy, np.ones(2))
    lie = npy.getvalue().replace(b"(2,)", b"(9,)")
    data = packed(sample(returns=(np.ones(2), None)))
    assert "an array of shape (9,)" in refusal(repacked({"arrays/0.npy": lie}, data=data))


@pytest.mark.parametrize(
    ("columns", "where"),
    [
        ({"seq": np.zeros(1_000_000, np.int64)}, r"arrays/table-0\.npy"),
        (
            {
                "op": {
                    "text": np.zeros(9, np.uint8),
                    "ends": np.zeros(200_000, np.int8),
                    "index": np.zeros(1, int),
                }
            },
            "a table's texts",
        ),
        (
            {
                "stack": {
                    "type": "List(String)",
                    "distinct": [["f"] * 1000],
                    "index": np.zeros(10_000, np.int8),
                }
            },
            "a table's lists",
        ),
    ],
    ids=["rows", "texts", "lists that rows share"],
)
def test_a_table_of_more_values_than_allowed_is_refused_unread(columns: object, where: str) -> None:
    bomb = with_columns(columns, deflate=True)
    assert len(bomb) < 200_000

    def refused() -> None:
        with pytest.raises(TimelineFileError, match=f"unpacks to more, at {where}"):
            archive.unpack(bomb, "x", timeline_from_parts, max_bytes=4 << 20)

    assert peak_of(refused) < 4 << 20


HOSTILE_CALLS = {
    "a rank that is not there": {"rank": 7},
    "a rank that is null": {"rank": None},
    "an op that is null": {"op": None},
    "a seq below 0": {"seq": -1},
    "a peer below 0": {"peer": -1},
    "a root that is not there": {"root": 2},
    "a number below 1": {"number": 0},
    "values that are no JSON": {"value_in": "[[1.0"},
    "values that are an object": {"value_out": '{"a": 1}'},
    "values nested deeper": {"value_in": "[[[1]]]"},
    "a size below 0": {"shape": [[-1]]},
    "a shape that is null": {"shape": [None]},
    "a part below 0": {"splits": [[-1], [1]]},
    "parts for more ranks than there are": {"splits": [[1, 1, 1, 1], [1]]},
    "parts of one side": {"splits": [[1]]},
    "a frame that is null": {"stack": [None]},
    "an impossible time": {"completed_ns": (1 << 63) - 1},
}


@pytest.mark.parametrize("change", HOSTILE_CALLS.values(), ids=HOSTILE_CALLS)
def test_rows_that_make_no_sense_are_refused(change: dict) -> None:
    first = sample().calls.head(1)
    calls = first.with_columns(
        pl.Series(name, [value], dtype=CALL_COLUMNS[name]) for name, value in change.items()
    )
    assert "content is not that of a Timeline" in refusal(with_table(calls))


def test_a_span_without_a_name_is_refused() -> None:
    spans = sample().spans.head(1).with_columns(name=pl.lit(None, pl.String()))
    assert "spans that lack one of rank, name, begin_ns" in refusal(with_table(spans, "spans"))


def test_calls_that_are_numbered_alike_are_refused() -> None:
    call = sample().calls.head(1)
    for other, what in (
        (call, "calls with the same seq"),
        (call.with_columns(pl.col("seq") + 1), "two collectives with the same number"),
    ):
        assert what in refusal(with_table(pl.concat([call, other])))


def test_columns_that_older_files_lack_are_added_when_they_are_read() -> None:
    timeline = joinlab.emulate(joinlab.cases.case_4, (2, 3), "gloo")
    for lacks in (["number"], ["splits"], ["number", "splits"]):
        without = with_table(timeline.calls.drop(lacks), data=packed(timeline))
        assert opened(without).calls.equals(timeline.calls)


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.text(max_size=5)
    | st.floats(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
_META_KEYS = [
    "groups",
    "source",
    "functions",
    "inputs",
    "backend",
    "engine",
    "program",
    "world_size",
    "versions",
]


_EDIT = {"file": "a.py", "begin": 1, "removed": [], "added": ["x"], "later": 3}
_TEST = {"file": "a.py", "line": 1, "text": "if x:", "values": []}
_SIDES = [{"ranks": [rank], "how": "later", "line": 2, "text": "{0}", "{": 1} for rank in (0, 1)]


@given(
    key=st.sampled_from([*_META_KEYS, "clock", "skipped", "transport", "emulation", "verdict_ns"]),
    value=_JSON,
)
@example(key="fixes", value=[{"kind": "later", "edits": [_EDIT], "fewer": False, "tried": 2}])
@example(key="parting", value={"tests": [_TEST | {"sides": _SIDES}], "keys": [], "left_out": 0})
def test_what_opens_can_be_read_to_the_end_whatever_its_meta(key: str, value: object) -> None:
    header = json.loads(zipfile.ZipFile(io.BytesIO(packed(sample()))).read(archive.HEADER))
    data = repacked({}, header={"meta": header["meta"] | {key: value}})
    try:
        timeline = opened(data)
    except TimelineFileError:
        return
    joinlab.diagnose(timeline)
    repr(timeline), svg(first_screen(timeline))


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
@pytest.mark.parametrize("name", ["calls", "spans"])
def test_rows_are_those_of_the_frame(name: str, backend: str) -> None:
    timeline = joinlab.emulate(joinlab.cases.case_4, (2, 3), backend)
    columns = list(CALL_COLUMNS if name == "calls" else SPAN_COLUMNS)
    before = [[row[column] for column in columns] for row in timeline.rows(name)]
    assert before == [list(row) for row in getattr(timeline, name).rows()]
    assert timeline.rows(name) == getattr(timeline, name).rows(named=True)


def test_a_timeline_is_copied_and_changed() -> None:
    def made() -> Timeline:
        return joinlab.emulate(joinlab.cases.case_2, (1, 2))

    assert same_timelines(pickle.loads(pickle.dumps(made())), made())
    assert same_timelines(copy.deepcopy(made()), made())
    assert replace(made(), output=("a", "b")).calls.equals(made().calls)
