"""Simulated flight recorder dumps of jobs with several kinds of process groups and known culprits.

Each rank has its own program: micro-batches with sends and recvs between pipeline stages, and
collectives of each group, some issued ahead of the host. Then one or two ranks break as in real
jobs:

    sleep, raised   the host issues no further call              died     and its dump is missing
    kernel          the GPU runs no further call                 two      two hosts stop
    skip, more      one collective is missing, or issued twice   order    two consecutive calls change places
    skip_pair, more_pair   the same for a send or recv
    size, dtype, root      of one collective

`python -m tests.parallel_jobs --n 500` counts by fault which ranks the wait graph names: the
culprits, some of them, several candidates with a culprit among them, none, or a wrong rank.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

FAULTS = (
    "sleep", "died", "raised", "kernel", "two", "skip", "more", "order", "skip_pair", "more_pair", "size", "dtype",
    "root",
)  # fmt: skip
OUTCOMES = ("exact", "some", "either", "none", "another")
FORMS = ("whole", "active", "ring")
MESHES = (
    (2, 2, 2),
    (1, 2, 2),
    (2, 1, 3),
    (2, 2, 1),
    (1, 1, 4),
    (2, 3, 2),
    (1, 3, 1),
    (4, 1, 2),
    (2, 1, 2),
    (1, 2, 4),
)
"""Ranks that are tensor parallel, pipeline stages, data parallel."""


class Step(NamedTuple):
    """What a host does next: a collective, "send" or "recv", "sync" (wait for all that it issued),
    or "stop".

    "freeze": the GPU carries out nothing that is issued from here on.
    """

    kind: str
    group: str = ""
    peer: int = -1
    elements: int = 8
    dtype: str = "Float"
    root: int = 0
    line: int = 0


@dataclass(slots=True)
class Issued:
    """A call that a rank issued, numbered as PyTorch does."""

    step: Step
    number: int
    pair: int
    order: int
    begun: int
    done: int | None = None
    started: bool = False

    @property
    def collective(self) -> bool:
        return self.step.peer < 0


@dataclass(frozen=True, slots=True)
class Job:
    """One job, and what breaks on whom.

    ahead  calls that a host issues before it waits for one
    ring   entries that a rank's buffer holds
    lines  the record has the lines of the calls
    timed  it says which calls have started
    lost   ranks whose dump is missing, though they did nothing wrong
    """

    groups: Mapping[str, tuple[int, ...]]
    programs: tuple[list[Step], ...]
    fault: str
    culprits: tuple[int, ...]
    ahead: int
    form: str
    ring: int
    lines: bool
    timed: bool
    lost: tuple[int, ...] = ()


class _Layout:
    """Ranks, their groups, and for each rank the name of its group of each kind."""

    def __init__(self, size: int) -> None:
        self.groups: dict[str, tuple[int, ...]] = {"0": tuple(range(size))}
        self.mine: list[dict[str, str]] = [{"all": "0"} for _ in range(size)]

    def add(self, kind: str, ranks: Sequence[int]) -> None:
        if len(ranks) > 1:
            name = str(len(self.groups))
            self.groups[name] = tuple(ranks)
            for rank in ranks:
                self.mine[rank][kind] = name


Body = list[tuple[str, str, int, int]]
"""A step of one rank: kind of group, name of the call, elements, and the peer of a send or recv, or
-1."""


def _mesh(rng: random.Random) -> tuple[_Layout, list[Body]]:
    tensor, stages, data = rng.choice(MESHES)
    size = tensor * stages * data
    layout = _Layout(size)

    def rank_at(t: int, p: int, d: int) -> int:
        return (d * stages + p) * tensor + t

    for d in range(data):
        for p in range(stages):
            layout.add("tensor", [rank_at(t, p, d) for t in range(tensor)])
    for t in range(tensor):
        for d in range(data):
            layout.add("stages", [rank_at(t, p, d) for p in range(stages)])
        for p in range(stages):
            layout.add("data", [rank_at(t, p, d) for d in range(data)])
    batches, sharded = rng.randint(1, 3), rng.random() < 0.5
    bodies = []
    for rank in range(size):
        stage = rank // tensor % stages
        before, after = (
            [("stages", "", 8, rank + way * tensor)] if 0 <= stage + way < stages else []
            for way in (-1, 1)
        )
        body: Body = []
        for _ in range(batches):
            body += [(kind, "recv", size, peer) for kind, _, size, peer in before]
            body += [("data", "_all_gather_base", 16, -1)] if sharded else []
            body += [("tensor", "all_reduce", 8, -1), ("tensor", "_all_gather_base", 4, -1)]
            body += [(kind, "send", size, peer) for kind, _, size, peer in after]
        for _ in range(batches):
            body += [(kind, "recv", size, peer) for kind, _, size, peer in after]
            body += [("tensor", "all_reduce", 8, -1)]
            body += [("data", "_reduce_scatter_base", 16, -1)] if sharded else []
            body += [(kind, "send", size, peer) for kind, _, size, peer in before]
        body += [] if sharded else [("data", "all_reduce", 32, -1)]
        bodies.append(body)
    return layout, bodies


def _experts(rng: random.Random) -> tuple[_Layout, list[Body]]:
    """Tensor parallel ranks whose experts are spread over neighbours, each expert kept several
    times."""
    tensor, experts, copies = rng.choice(((1, 2, 2), (2, 2, 2), (1, 4, 2), (2, 2, 1), (1, 2, 4)))
    layout = _Layout(tensor * experts * copies)

    def rank_at(t: int, e: int, c: int) -> int:
        return (c * experts + e) * tensor + t

    for c in range(copies):
        for e in range(experts):
            layout.add("tensor", [rank_at(t, e, c) for t in range(tensor)])
        for t in range(tensor):
            layout.add("experts", [rank_at(t, e, c) for e in range(experts)])
    for e in range(experts):
        for t in range(tensor):
            layout.add("copies", [rank_at(t, e, c) for c in range(copies)])
    layers = rng.randint(1, 3)
    layer: Body = [("tensor", "_all_gather_base", 4, -1), ("experts", "all_to_all", 8, -1)]
    layer += [("experts", "all_to_all", 8, -1), ("tensor", "_reduce_scatter_base", 4, -1)]
    return layout, [layer * layers + [("copies", "all_reduce", 32, -1)] for _ in layout.mine]


def _hybrid(rng: random.Random) -> tuple[_Layout, list[Body]]:
    """Shards within a host, copies across hosts."""
    shards, copies = rng.choice(((2, 2), (4, 2), (2, 4), (3, 3)))
    layout = _Layout(shards * copies)
    for c in range(copies):
        layout.add("shards", range(c * shards, (c + 1) * shards))
    for s in range(shards):
        layout.add("copies", range(s, shards * copies, shards))
    layers = rng.randint(1, 4)
    body: Body = [("shards", "_all_gather_base", 16 + at, -1) for at in range(layers)]
    for at in reversed(range(layers)):
        body += [
            ("shards", "_all_gather_base", 16 + at, -1),
            ("shards", "_reduce_scatter_base", 16 + at, -1),
        ]
        body += [("copies", "all_reduce", 4 + at, -1)]
    return layout, [body for _ in layout.mine]


def _uneven(rng: random.Random) -> tuple[_Layout, list[Body]]:
    """Two models of different size, whose first ranks send to each other."""
    first, second = rng.choice(((2, 3), (3, 5), (2, 4), (1, 3)))
    layout = _Layout(first + second)
    layout.add("first", range(first))
    layout.add("second", range(first, first + second))
    layout.add("heads", (0, first))
    bodies: list[Body] = []
    for rank in range(first + second):
        one: Body = [("first", "_all_gather_base", 16, -1)] * 2 + [
            ("first", "_reduce_scatter_base", 16, -1)
        ]
        other: Body = [("second", "all_reduce", 8, -1)] * 3
        sends: Body = [("heads", "send", 8, first)] if rank == 0 else []
        recvs: Body = [("heads", "recv", 8, 0)] if rank == first else []
        bodies.append([*one, *sends] if rank < first else [*recvs, *other])
    return layout, bodies


def _bridge(rng: random.Random) -> tuple[_Layout, list[Body]]:
    """Two groups that share a rank, which is in a third one with all."""
    side = rng.randint(2, 4)
    layout = _Layout(2 * side - 1)
    layout.add("left", range(side))
    layout.add("right", range(side - 1, 2 * side - 1))
    half: Body = [("left", "all_reduce", 8, -1), ("right", "all_reduce", 8, -1)]
    body = half * rng.randint(1, 3) + [
        ("left", "broadcast", 4, -1),
        ("right", "_all_gather_base", 4, -1),
    ]
    return layout, [body for _ in layout.mine]


def draw(seed: int) -> Job:
    """A job of 3 to 16 ranks."""
    rng = random.Random(seed)
    layout, bodies = rng.choice((_mesh, _mesh, _experts, _hybrid, _uneven, _bridge))(rng)
    steps, starts = rng.randint(2, 6), rng.random() < 0.3
    programs = []
    for rank, body in enumerate(bodies):
        whole = [("all", "broadcast", 2, -1)] * starts + body + [("all", "all_reduce", 1, -1)]
        mine = layout.mine[rank]
        told = [
            Step(name, mine[kind], peer, elements, line=10 + line)
            for line, (kind, name, elements, peer) in enumerate(whole)
            if kind in mine
        ]
        programs.append([*told, Step("sync")] * steps)
    size = len(programs)
    fault = rng.choice(FAULTS)
    able = [rank for rank in range(size) if list(_places(programs[rank], fault))]
    if not able:
        fault, able = "sleep", list(range(size))
    culprits = tuple(sorted(rng.sample(able, 2 if fault == "two" else 1)))
    for rank in culprits:
        _break(programs[rank], fault, rng)
    others = [rank for rank in range(size) if rank not in culprits]
    lost = tuple(rng.sample(others, 1)) if fault != "died" and rng.random() < 0.1 else ()
    return Job(
        layout.groups, tuple(programs), fault, culprits, rng.choice((1, 2, 4, 50)), rng.choice(FORMS),
        rng.choice((9, 20, 40)), rng.random() < 0.7, rng.random() < 0.5, lost,
    )  # fmt: skip


def standing(
    groups: Mapping[str, tuple[int, ...]], calls: Sequence[tuple[str, str]], culprit: int, at: int
) -> Job:
    """A job with these calls, (group, name), of which one rank's host issues none from the at-th
    on."""
    programs = [
        [
            Step(name, group, line=10 + number)
            for number, (group, name) in enumerate(calls)
            if rank in groups[group] and (rank != culprit or number < at)
        ]
        for rank in range(1 + max(map(max, groups.values())))
    ]
    return Job(groups, tuple(programs), "sleep", (culprit,), 2, "whole", 0, lines=True, timed=False)


def _places(todo: Sequence[Step], fault: str) -> Iterator[int]:
    """Where a program can break so: not in its first steps."""
    for at in range(len(todo) // 5, len(todo)):
        step = todo[at]
        if step.kind == "sync":
            continue
        if fault == "root" and step.kind != "broadcast":
            continue
        if fault == "order" and (todo[at + 1].kind == "sync" or todo[at + 1][:4] == step[:4]):
            continue
        if (fault.endswith("_pair") and step.peer < 0) or (
            fault in ("skip", "more", "size", "dtype") and step.peer >= 0
        ):
            continue
        yield at


def _break(todo: list[Step], fault: str, rng: random.Random) -> None:
    at = rng.choice(list(_places(todo, fault)))
    match fault.removesuffix("_pair"):
        case "skip":
            del todo[at]
        case "more":
            todo.insert(at, todo[at]._replace(line=rng.choice((todo[at].line, 99))))
        case "order":
            todo[at], todo[at + 1] = todo[at + 1], todo[at]
        case "size":
            todo[at] = todo[at]._replace(elements=todo[at].elements + 3)
        case "dtype":
            todo[at] = todo[at]._replace(dtype="Half")
        case "root":
            todo[at] = todo[at]._replace(root=1)
        case "kernel":
            todo.insert(at, Step("freeze"))
        case _:
            todo[at:] = [Step("stop")]


def run(job: Job) -> list[list[Issued]]:
    """What each rank has issued, and what of it is complete, once nothing can go on."""
    ranks = range(len(job.programs))
    at = [0 for _ in ranks]
    issued: list[list[Issued]] = [[] for _ in ranks]
    numbers = [defaultdict[tuple[str, str], int](int) for _ in ranks]
    streams = [defaultdict[str, deque[Issued]](deque) for _ in ranks]
    frozen: dict[int, int] = {}  # by rank: the call from which its GPU runs nothing
    clock, moved = 0, True
    while moved:
        moved, clock = False, clock + 1
        for rank in ranks:
            while at[rank] < len(job.programs[rank]):
                step, flying = job.programs[rank][at[rank]], sum(map(len, streams[rank].values()))
                if step.kind == "stop" or flying >= (1 if step.kind == "sync" else job.ahead):
                    break
                at[rank], moved = at[rank] + 1, True
                if step.kind == "freeze":
                    frozen[rank] = len(issued[rank])
                if step.kind in ("sync", "freeze"):
                    continue
                count, kind = numbers[rank], "pair" if step.peer >= 0 else "collective"
                count[step.group, kind] += 1
                count[step.group, "any"] += 1
                here = (count[step.group, one] for one in ("collective", "pair", "any"))
                call = Issued(step, *here, begun=1000 * clock + len(issued[rank]))
                issued[rank].append(call)
                streams[rank][step.group].append(call)
        for group, members in job.groups.items():
            first = {rank: streams[rank][group][0] for rank in members if streams[rank][group]}
            first = {
                rank: one
                for rank, one in first.items()
                if one not in issued[rank][frozen.get(rank, 1 << 30) :]
            }
            for one in first.values():
                one.started = True
            for met in _meetings(first, members):
                moved = True
                for rank in met:
                    streams[rank][group].popleft().done = 1000 * clock + 500
    return issued


def _meetings(first: Mapping[int, Issued], members: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Ranks whose first calls on a group's stream complete together."""
    calls = {(call.number, call.step[:-1]) for call in first.values() if call.collective}
    if (
        len(calls) == 1
        and all(call.collective for call in first.values())
        and len(first) == len(members)
    ):
        return [members]
    return [
        (rank, call.step.peer)
        for rank, call in first.items()
        if call.step.kind == "send"
        and call.step.peer in first
        and first[call.step.peer].step[:3] == ("recv", call.step.group, rank)
    ]


def dumps(job: Job) -> dict[int, dict[str, Any]]:
    """The dump of each rank, in the job's form; without that of a rank that died."""
    issued = run(job)
    gone = job.culprits if job.fault == "died" else job.lost
    return {rank: _dump(job, rank, issued[rank]) for rank in range(len(issued)) if rank not in gone}


def _dump(job: Job, rank: int, issued: list[Issued]) -> dict[str, Any]:
    names = [name for name, ranks in job.groups.items() if rank in ranks]
    last = {name: [-1, -1] for name in names}
    entries = []
    for at, call in enumerate(issued):
        step, ranks = call.step, job.groups[call.step.group]
        if call.collective:
            last[step.group] = [call.number, call.number if call.done else last[step.group][1]]
        if call.done and job.form == "active":
            continue
        arrow = "->" if step.kind == "send" else "<-"
        peer = "" if call.collective else f" {ranks.index(rank)}{arrow}{ranks.index(step.peer)}"
        over = call.done and 10**9 + call.done
        started = job.timed and call.started
        entries.append(
            {
                "record_id": at, "pg_id": names.index(step.group), "process_group": (step.group, f"G{step.group}"),
                "collective_seq_id": call.number, "p2p_seq_id": call.pair, "op_id": call.order,
                "profiling_name": f"nccl:{step.kind}{peer}", "time_created_ns": 10**9 + call.begun,
                "input_sizes": [[step.elements]], "input_dtypes": [step.dtype], "output_sizes": [], "output_dtypes": [],
                "state": "completed" if over else "started" if started else "scheduled",
                "time_discovered_started_ns": 10**9 + call.begun + 1 if started else None,
                "time_discovered_completed_ns": over, "retired": bool(over), "is_p2p": not call.collective,
                "frames": [{"filename": "train.py", "line": step.line, "name": "step"}] if job.lines else [],
            }
        )  # fmt: skip
    return {
        "version": "2.10",
        "comm_lib_version": "2.29.7",
        "pg_config": {
            name: {"name": name, "desc": f"G{name}", "ranks": str(list(job.groups[name]))}
            for name in names
        },
        "pg_status": {
            str(at): {
                "last_enqueued_collective": last[name][0],
                "last_completed_collective": last[name][1],
            }
            for at, name in enumerate(names)
        },
        "entries": entries[-job.ring :] if job.form == "ring" else entries,
    }


def told(job: Job) -> str | None:
    """What the graph of who waits says of a job; None if the job does not hang.

    exact    the culprits, and no other rank; of a rank without a dump: no rank, and that others may wait for it
    some     one of two
    either   of several ranks, not all, that one is the culprit, and it is one of them
    none     no rank
    another  another rank, or several ranks, with or without the culprit, as if all of them were
    """
    from joinlab.analysis.reasons import MayWait
    from joinlab.analysis.waiting import who_waits
    from joinlab.jobs.dump import Texts, check
    from joinlab.jobs.timeline_of_dumps import timeline_of

    found, texts = dumps(job), Texts()
    if not any(entry["state"] != "completed" for one in found.values() for entry in one["entries"]):
        return None
    blamed = who_waits(
        timeline_of([check(Path(f"rank_{rank}"), one, texts) for rank, one in found.items()], texts)
    )
    named, culprits = set(blamed.ranks), set(job.culprits)
    some = any(len(ranks) < len(found) for ranks in blamed.either)
    if named - culprits or any(not culprits & {*ranks} for ranks in blamed.either):
        return "another"
    if job.fault == "died":
        return "exact" if any(isinstance(why, MayWait) for why in blamed.unclear) else "none"
    return "exact" if named == culprits else "some" if named else "either" if some else "none"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--n", type=int, default=500, help="jobs")
    parser.add_argument("--first", type=int, default=0, help="seed of the first")
    options = parser.parse_args()
    counts: dict[str, Counter[str]] = {fault: Counter() for fault in FAULTS}
    for seed in range(options.first, options.first + options.n):
        job = draw(seed)
        if (said := told(job)) is not None:
            counts[job.fault][said] += 1
    counts["all"] = sum(counts.values(), Counter())
    print(f"{'':12}", *(f"{outcome:>8}" for outcome in OUTCOMES))
    for fault, of in counts.items():
        print(f"{fault:12}", *(f"{of[outcome]:8}" for outcome in OUTCOMES))


if __name__ == "__main__":
    main()
