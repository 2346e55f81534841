"""The forum thread's own traces of the six cases, and a run beside one, call by call."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap, zip_longest
from pathlib import Path
from typing import Any

from joinlab.analysis.matching import Matched, key_of
from joinlab.analysis.meanings import is_setup
from joinlab.documentation import DOCUMENTED
from joinlab.errors import ProgramError
from joinlab.ops import CallRow, Op
from joinlab.timeline import Ending, EndKind, Meta, Timeline, timeline_from_rows

Calls = tuple[str | None, ...]
"""The call of each rank in one row, by its label; None: it makes none."""

Row = tuple[int | None, Calls]
"""The input of a row, and its calls."""


@dataclass(frozen=True, slots=True)
class ThreadRow:
    """A row of the run, of the thread's trace, or of both.

    input  the row's input, in the thread's trace if that has the row
    """

    input: int | None
    here: Calls | None
    there: Calls | None

    @property
    def alike(self) -> bool:
        return self.here == self.there


@dataclass(frozen=True, slots=True)
class BesideThread:
    """A run beside the thread: the rows of both, and in sentences what is alike and what is not.

    rows  () if the thread lists no calls for this run's inputs
    """

    rows: tuple[ThreadRow, ...]
    sentences: tuple[str, ...]


def documented(case: int, inputs: Sequence[int] | None = None) -> Timeline:
    """See `joinlab.cases.documented`."""
    text = (Path(__file__).parent / "thread.json").read_text(encoding="utf-8")
    texts = {case_["case"]: case_["answer"] for case_ in json.loads(text)["cases"]}
    if case not in texts:
        raise ProgramError(f"the thread has the cases {', '.join(map(str, texts))}; got {case!r}")
    if isinstance(texts[case], list):
        answers = texts[case]
    else:
        answers = [texts[case]]
    lists = {(answer["N"], answer["N"] + 1): answer for answer in answers}
    counts = max(lists) if inputs is None else tuple(inputs)
    if counts not in lists:
        have = " or ".join(f"{n} and {second}" for n, second in lists)
        ends = DOCUMENTED[case].ends(counts)
        if ends:
            hint = f" It says only how they end: {' / '.join(ends)}."
        else:
            hint = ""
        raise ProgramError(
            f"the thread lists the calls of case {case} for {have} inputs, not for {counts}.{hint}"
        )
    return _timeline(case, counts, lists[counts])


def _timeline(case: int, counts: tuple[int, ...], answer: Mapping[str, Any]) -> Timeline:
    rows: list[CallRow] = []
    for rank in range(2):
        named = [(row["input"], row[f"r{rank}"]) for row in answer["trace"] if row[f"r{rank}"]]
        for seq, (index, origin) in enumerate(named):
            if origin.startswith("broadcast"):
                op = Op.BROADCAST
            else:
                op = Op.ALL_REDUCE
            rows.append(
                {
                    "rank": rank,
                    "group": "0",
                    "seq": seq,
                    "number": seq + 1,
                    "op": op,
                    "origin": origin,
                    "input": index,
                }
            )
    ends = [_documented_ending(answer["end"][f"r{rank}"]) for rank in range(2)]
    meta: Meta = {
        "program": f"case_{case}",
        "engine": "documented",
        "backend": "nccl",
        "world_size": 2,
        "inputs": list(counts),
        "groups": {"0": [0, 1]},
    }
    if "note" in answer:
        meta["contradiction"] = answer["note"]
    return timeline_from_rows(rows, ends, meta)


def _documented_ending(text: str) -> Ending:
    if text.startswith("hangs"):
        return Ending(EndKind.HUNG, text=text, proven=False)
    return Ending(EndKind.RAISED if "error" in text else EndKind.FINISHED, text=text)


def beside_thread(run: Timeline, thread: Timeline) -> BesideThread:
    """Compare a run of two ranks with `joinlab.cases.documented`.

    The thread lists no calls of DDP's own setup, so these are left out of the run's rows.
    """
    counts, asked = tuple(run.meta.get("inputs") or ()), tuple(thread.meta["inputs"])
    if counts != asked:
        return BesideThread(
            (),
            (
                f"The thread lists the calls of {thread.meta['program']} for {_and(asked)} inputs, not for "
                f"{_and(counts) or 'unknown'}: run it with inputs={asked}.",
            ),
        )
    rows = tuple(starmap(_row, zip_longest(_rows(run), _rows(thread))))
    return BesideThread(rows, tuple(_sentences(run, thread, rows)))


def _row(run_row: Row | None, thread_row: Row | None) -> ThreadRow:
    numbers = [row[0] for row in (thread_row, run_row) if row is not None]
    return ThreadRow(numbers[0], run_row and run_row[1], thread_row and thread_row[1])


def _rows(timeline: Timeline) -> Iterator[Row]:
    matched = Matched(timeline)
    for slot in matched.slots:
        labels_of_slot = {}
        for rank, row in matched.calls_of(slot).items():
            labels_of_slot[rank] = row["origin"] or row["op"]
        if not all(map(is_setup, labels_of_slot.values())):
            yield slot.input, tuple(map(labels_of_slot.get, range(timeline.world_size)))


def _sentences(run: Timeline, thread: Timeline, rows: tuple[ThreadRow, ...]) -> Iterator[str]:
    first = next((index for index, row in enumerate(rows) if not row.alike), None)
    if first is None:
        yield f"All {len(rows)} rows are as in the thread."
    else:
        row = rows[first]
        beginning = {0: "No row is", 1: "The first row is"}.get(
            first, f"The first {first} rows are"
        )
        run_calls, thread_calls = map(_calls_text, (row.here, row.there))
        yield f"{beginning} as in the thread; then this run has {run_calls}, and the thread {thread_calls}."
    setup = [
        sum(is_setup(call["origin"] or "") for call in run.rows("calls") if call["rank"] == rank)
        for rank in range(run.world_size)
    ]
    if any(setup):
        yield (
            f"Left out, as in the thread: {_and(setup)} calls of ranks 0 and 1, with which DDP sets itself up and "
            "rebuilds its buckets."
        )
    for rank, (run_end, thread_end) in enumerate(zip(run.ends, thread.ends, strict=True)):
        origin = _ended_in(run, rank)
        if is_setup(origin):
            inside = f", here in a {origin}, which the thread leaves out"
        else:
            inside = ""
        if run_end.kind is thread_end.kind:
            comparison = ", as in the thread"
        else:
            comparison = ""
        if comparison and thread_end.text in ("finishes", "hangs"):
            quotation = ""
        else:
            quotation = f'; the thread says: "{thread_end.text}"'
        yield f"Rank {rank} {_ending(run_end.kind)}{comparison}{inside}{quotation}."
        if "destroyed" in thread_end.text:
            yield (
                "joinlab ends a launched rank without running destructors, so that error of PyTorch 1.9 cannot "
                "appear in one."
            )
    if "contradiction" in thread.meta:
        yield f"About the thread: {thread.meta['contradiction']}."


def _ended_in(run: Timeline, rank: int) -> str:
    """The label of the call that a rank hangs in; "" if it does not."""
    end = run.ends[rank]
    if end.kind is not EndKind.HUNG:
        return ""
    key = rank, end.group, end.call
    for call in run.rows("calls"):
        if key_of(call) == key:
            return call["origin"] or call["op"]
    return ""


def _ending(kind: EndKind) -> str:
    return {EndKind.FINISHED: "finishes", EndKind.HUNG: "hangs", EndKind.RAISED: "raises"}.get(
        kind, f"was {kind.value}"
    )


def _calls_text(calls: Calls | None) -> str:
    if calls is None:
        return "no further row"
    return " beside ".join(call or "no call" for call in calls)


def _and(values: Iterable[int]) -> str:
    return " and ".join(map(str, values))
