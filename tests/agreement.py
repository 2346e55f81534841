"""Compares an emulated Timeline with a launched one: calls, values and endings."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from functools import lru_cache

from joinlab import Timeline, emulate
from joinlab.emulator.outcomes import PADS
from joinlab.program.program import Program
from joinlab.timeline import EndKind

SAME = (
    "group",
    "seq",
    "op",
    "origin",
    "input",
    "dtype",
    "shape",
    "reduce_op",
    "root",
    "peer",
    "tag",
    "call_site",
)
VALUES = ("value_in", "value_out")
GONE = re.compile(
    r"Connection closed by peer|Connection reset by peer|Socket closed|Broken pipe|[Rr]ead error|EOF"
)

NO_MEMORY = re.compile(r"CUDA out of memory|can't allocate memory")
NETWORK = re.compile(r"remote process exit")
FOLDERS = re.compile(r"(?<![\w./])(?:/[\w.+-]+)*/(?=[\w+-]+\.)")

GLOG = re.compile(r"\[rank\d+\]:\[F\d+ [\d:.]+ ")
AFTER = re.compile(r"\s*Pair is not connected \(.*| This could be because.*", re.DOTALL)

TIMED_OUT = re.compile(r"\[[^\]]*\] Timed out waiting \d+ms")

PEER_GONE = "the peer is gone"
ABORTED = "aborted"


def disagreements(program: Program, launched: Timeline) -> list[str]:
    """Every difference between `launched`, just made or read from a file, and emulations of the
    same program.

    The parameters that DDP broadcasts are random, and another machine or a GPU draws others. On
    NCCL, the contents of unset memory are unknown, too. So the program is emulated for several of
    each. A value in which two of these emulations differ is not compared; one emulation must agree
    in all other values. Return values are compared if all ranks finish, and if all emulations
    return the same.
    """
    emulations = _emulations(program, launched.meta["backend"], tuple(launched.meta["inputs"]))
    unknown = _differing(emulations)
    returned = {repr(one.returns) for one in emulations}
    found = min((differences(one, launched, unknown) for one in emulations), key=len)
    finished = all(end.kind is EndKind.FINISHED for end in launched.ends)
    if not found and finished and len(returned) == 1 and repr(launched.returns) not in returned:
        found = [f"they return {emulations[0].returns!r} / {launched.returns!r}"]
    return found


@lru_cache(maxsize=4)
def _emulations(program: Program, backend: str, counts: tuple[int, ...]) -> tuple[Timeline, ...]:
    """For several contents of unset memory and parameters of DDP; one program is compared often."""
    pads = PADS if backend == "nccl" else PADS[:1]
    made = [emulate(program, counts, backend, pad=pad) for pad in pads]
    return (*made, emulate(program, counts, backend, seed=1))  # which is 0 elsewhere


def _differing(emulations: Sequence[Timeline]) -> Set[tuple[int, int]]:
    """(rank, index of the call, from 0) of each call whose inputs or outputs differ between two of
    them."""
    seen: dict[tuple[int, int], set[object]] = {}
    for timeline in emulations:
        for rank in range(timeline.world_size):
            values = timeline.calls.filter(timeline.calls["rank"] == rank).select(VALUES).rows()
            for index, pair in enumerate(values):
                seen.setdefault((rank, index), set()).add(pair)
    return {place for place, pairs in seen.items() if len(pairs) > 1}


def story(timeline: Timeline, same: Sequence[str] = SAME) -> list[list[tuple[object, ...]]]:
    """Per rank: its ending and its calls, without times and without the wording of a backend's
    message."""
    told: list[list[tuple[object, ...]]] = []
    for rank, end in enumerate(timeline.ends):
        rows = timeline.calls.filter(timeline.calls["rank"] == rank).rows(named=True)
        calls: list[tuple[object, ...]] = []
        for row in rows:
            same_text = tuple(str(row[name]) for name in same)
            calls.append(
                (
                    same_text,
                    row["value_in"],
                    row["value_out"],
                    row["completed_ns"] is not None,
                    what(row["error"]),
                )
            )
        told.append(
            [
                (
                    str(end.kind),
                    end.pending,
                    end.call,
                    end.group,
                    None if end.kind is EndKind.HUNG else what(end.text),
                ),
                *calls,
            ]
        )
    return told


def what(text: str | None) -> str | None:
    """The kind of an error: its exact words differ from run to run, and paths from machine to
    machine."""
    if text and NO_MEMORY.search(text):
        return "no memory"
    if text and GONE.search(text):
        return PEER_GONE
    if text and "Invoked with: <" in text:  # what follows is an address
        return text.partition("Invoked with: <")[0]
    if text and "op.preamble.length" in text:
        return ABORTED
    return text and AFTER.sub(
        "", GLOG.sub("[", FOLDERS.sub("", TIMED_OUT.sub("Timed out", text)))
    ).rstrip(" ")


def differences(
    emulated: Timeline, launched: Timeline, unknown: Set[tuple[int, int]] = frozenset()
) -> list[str]:
    """Every difference between the two stories, in words; [] if there is none.

    Races among real processes are not compared: the call in which a rank finds that a peer's
    process has ended or that its backend aborts it, and everything after that call; whether a rank
    that is killed after the verdict on a hang first sees another one being killed; whether a call
    that no rank waits for (DDP's all-reduce at the beginning of forward() under join()) is complete
    when its rank raises. Nor are contents of unset memory, which the emulator leaves out; the
    values of `unknown`, each (rank, index of the call, from 0); and call sites, if `launched` was
    read from a file and has none.

    On NCCL the host runs ahead of its stream, and more is open. A rank that returns may leave calls
    behind that complete a moment later; so whether one that nobody waits for is complete is not
    compared there either, if the emulator completes it, and with that whether the rank says
    "pending". Values are copied on the stream, and only once it waits for the call: one that was
    not recorded is not compared. Where two ranks share a GPU and talk over sockets
    (meta["transport"]), the end of a peer is an error that the emulator, which has one machine's
    shared memory in mind, does not know: its rank is hung.
    """
    found = []
    streams = launched.meta["backend"] == "nccl"
    sockets = streams and launched.meta["transport"] == "sockets"
    judged = any(end.kind is EndKind.HUNG for end in launched.ends)
    same = (
        SAME
        if launched.calls["call_site"].count()
        else [name for name in SAME if name != "call_site"]
    )
    for rank, (left, right) in enumerate(
        zip(story(emulated, same), story(launched, same), strict=True)
    ):
        (end, *ours), (real_end, *real) = left, right
        open_calls: Set[int] = set()
        if end[0] == real_end[0] == EndKind.RAISED or (
            streams and end[0] == real_end[0] == EndKind.FINISHED
        ):
            open_calls = _nobody_waits_for(launched, rank)
        if judged and end[0] == EndKind.HUNG and real_end[-1] == PEER_GONE:
            continue
        alone = sockets and end[0] == EndKind.HUNG and bool(NETWORK.search(str(real_end[-1])))
        if alone or (end[-1] == real_end[-1] and end[-1] in (PEER_GONE, ABORTED)):
            calls = min(
                next((at for at, call in enumerate(side) if not call[-2]), len(side))
                for side in (ours, real)
            )
            end, real_end, ours, real = (
                end[:1],
                end[:1] if alone else real_end[:1],
                ours[:calls],
                real[:calls],
            )
        if streams and end[0] == real_end[0] == EndKind.FINISHED:
            end, real_end = end[:1], real_end[:1]
        if end != real_end:
            found.append(f"rank {rank} ends {end} / {real_end}")
        for index, (one, other) in enumerate(zip(ours, real, strict=False)):
            is_open, is_unknown = index in open_calls, (rank, index) in unknown
            if not _same_call(one, other, is_open=is_open, is_unknown=is_unknown, streams=streams):
                found.append(f"rank {rank}, call {index}: {one} / {other}")
        if len(ours) != len(real):
            found.append(f"rank {rank}: {len(ours)} calls / {len(real)}")
    return found


def _nobody_waits_for(timeline: Timeline, rank: int) -> set[int]:
    """Which of the calls of `rank`, by place, are open at its end though its host waited for none
    of them."""
    rows = timeline.calls.filter(timeline.calls["rank"] == rank).rows(named=True)
    unknown = ("completed_ns", "host_wait_begin_ns", "error")
    return {index for index, row in enumerate(rows) if all(row[name] is None for name in unknown)}


def _same_call(
    one: tuple[object, ...],
    other: tuple[object, ...],
    *,
    is_open: bool,
    is_unknown: bool,
    streams: bool,
) -> bool:
    called, value_in, value_out, completed, error = one
    really_called, real_in, real_out, really_completed, real_error = other
    same_in = value_in == real_in or is_unknown or (streams and real_in is None)
    same_out = value_out == real_out or is_unknown or (streams and real_out is None)
    not_set = value_out is None and completed is True  # uninitialized memory
    never_waited_for = {error, real_error} == {None, PEER_GONE}
    return (
        called == really_called
        and same_in
        and (
            is_open
            or (
                completed == really_completed
                and (same_out or not_set)
                and (error == real_error or never_waited_for)
            )
        )
    )
