"""Flight recorder dumps of jobs with tensor, pipeline and data parallel groups that never ran, with known culprits.

Each rank has a program of its own: micro-batches with sends and recvs between pipeline stages, collectives of each
group, some issued ahead of the host. Then one rank, or two, do what breaks real jobs:

    sleep, raised   the host issues no further call             died     and its dump is missing
    skip, more      one collective is left out, or made twice   size     one has more elements
    two             two hosts stop

`python -m tests.parallel_jobs --n 500` counts by fault what `joinlab.blame` names: exactly the culprits, some of them,
nobody, or another rank.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

FAULTS = ("sleep", "died", "raised", "skip", "more", "size", "two")
FORMS = ("whole", "active", "ring")
SHAPES = ((2, 2, 2), (1, 2, 2), (2, 1, 3), (2, 2, 1), (1, 1, 4), (2, 3, 2), (1, 3, 1), (4, 1, 2))
"""Ranks that are tensor parallel, pipeline stages, data parallel."""


class Step(NamedTuple):
    """What a host does next: a collective, "send" or "recv", "sync" (wait for all that it issued), or "stop"."""

    kind: str
    group: str = ""
    peer: int = -1
    elements: int = 8


@dataclass(slots=True)
class Issued:
    """A call that a rank issued, numbered as PyTorch does."""

    step: Step
    number: int
    pair: int
    order: int
    begun: int
    done: int | None = None

    @property
    def collective(self) -> bool:
        return self.step.peer < 0


@dataclass(frozen=True, slots=True)
class Job:
    """One job, and what breaks on whom."""

    groups: Mapping[str, tuple[int, ...]]
    programs: tuple[list[Step], ...]
    fault: str
    culprits: tuple[int, ...]
    ahead: int
    form: str


def draw(seed: int) -> Job:
    """A job of 3 to 12 ranks."""
    rng = random.Random(seed)
    tensor, stages, data = rng.choice(SHAPES)
    size = tensor * stages * data
    groups: dict[str, tuple[int, ...]] = {"0": tuple(range(size))}
    mine: list[dict[str, str]] = [{"all": "0"} for _ in range(size)]

    def group(kind: str, ranks: list[int]) -> None:
        if len(ranks) > 1:
            name = str(len(groups))
            groups[name] = tuple(ranks)
            for rank in ranks:
                mine[rank][kind] = name

    def rank_at(t: int, p: int, d: int) -> int:
        return (d * stages + p) * tensor + t

    for d in range(data):
        for p in range(stages):
            group("tensor", [rank_at(t, p, d) for t in range(tensor)])
    for t in range(tensor):
        for d in range(data):
            group("stages", [rank_at(t, p, d) for p in range(stages)])
        for p in range(stages):
            group("data", [rank_at(t, p, d) for d in range(data)])
    batches, steps, sharded = rng.randint(1, 3), rng.randint(2, 5), rng.random() < 0.5
    programs = []
    for rank in range(size):
        stage = rank // tensor % stages
        todo: list[Step] = []

        def call(kind: str, name: str, elements: int, rank: int = rank, todo: list[Step] = todo) -> None:
            if kind in mine[rank]:
                todo.append(Step(name, mine[rank][kind], elements=elements))

        def pair(kind: str, to: int, rank: int = rank, stage: int = stage, todo: list[Step] = todo) -> None:
            if 0 <= to < stages:
                todo.append(Step(kind, mine[rank]["stages"], rank + (to - stage) * tensor))

        for _ in range(steps):
            for _ in range(batches):
                pair("recv", stage - 1)
                if sharded:
                    call("data", "_all_gather_base", 16)
                call("tensor", "all_reduce", 8)
                call("tensor", "_all_gather_base", 4)
                pair("send", stage + 1)
            for _ in range(batches):
                pair("recv", stage + 1)
                call("tensor", "all_reduce", 8)
                if sharded:
                    call("data", "_reduce_scatter_base", 16)
                pair("send", stage - 1)
            if not sharded:
                call("data", "all_reduce", 32)
            call("all", "all_reduce", 1)
            todo.append(Step("sync"))
        programs.append(todo)
    fault = rng.choice(FAULTS)
    culprits = tuple(sorted(rng.sample(range(size), 2 if fault == "two" else 1)))
    for rank in culprits:
        _break(programs[rank], fault, rng)
    return Job(groups, tuple(programs), fault, culprits, rng.choice((1, 2, 4, 50)), rng.choice(FORMS))


def _break(todo: list[Step], fault: str, rng: random.Random) -> None:
    places = [at for at, step in enumerate(todo) if step.kind != "sync"][len(todo) // 5 :]
    collectives = [at for at in places if todo[at].peer < 0]
    at = rng.choice(collectives if fault in ("skip", "more", "size") else places)
    if fault == "skip":
        del todo[at]
    elif fault == "more":
        todo.insert(at, todo[at])
    elif fault == "size":
        todo[at] = todo[at]._replace(elements=todo[at].elements + 3)
    else:
        todo[at:] = [Step("stop")]


def run(job: Job) -> list[list[Issued]]:
    """What each rank has issued, and what of it is complete, once nothing can go on."""
    ranks = range(len(job.programs))
    at = [0 for _ in ranks]
    issued: list[list[Issued]] = [[] for _ in ranks]
    numbers = [defaultdict[tuple[str, str], int](int) for _ in ranks]
    streams = [defaultdict[str, deque[Issued]](deque) for _ in ranks]
    clock, moved = 0, True
    while moved:
        moved, clock = False, clock + 1
        for rank in ranks:
            while at[rank] < len(job.programs[rank]):
                step, flying = job.programs[rank][at[rank]], sum(map(len, streams[rank].values()))
                if step.kind == "stop" or flying >= (1 if step.kind == "sync" else job.ahead):
                    break
                at[rank], moved = at[rank] + 1, True
                if step.kind == "sync":
                    continue
                count, kind = numbers[rank], "pair" if step.peer >= 0 else "collective"
                count[step.group, kind] += 1
                count[step.group, "any"] += 1
                here = (count[step.group, one] for one in ("collective", "pair", "any"))
                call = Issued(step, *here, begun=1000 * clock + len(issued[rank]))
                issued[rank].append(call)
                streams[rank][step.group].append(call)
        for group, members in job.groups.items():
            for met in _meetings({rank: streams[rank][group][0] for rank in members if streams[rank][group]}, members):
                moved = True
                for rank in met:
                    streams[rank][group].popleft().done = 1000 * clock + 500
    return issued


def _meetings(first: Mapping[int, Issued], members: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Ranks whose first calls on a group's stream complete together."""
    calls = {(call.number, call.step) for call in first.values() if call.collective}
    if len(calls) == 1 and all(call.collective for call in first.values()) and len(first) == len(members):
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
    gone = job.culprits if job.fault == "died" else ()
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
        entries.append(
            {
                "record_id": at, "pg_id": names.index(step.group), "process_group": (step.group, f"G{step.group}"),
                "collective_seq_id": call.number, "p2p_seq_id": call.pair, "op_id": call.order,
                "profiling_name": f"nccl:{step.kind}{peer}", "time_created_ns": 10**9 + call.begun,
                "input_sizes": [[step.elements]], "input_dtypes": ["Float"], "output_sizes": [], "output_dtypes": [],
                "state": "completed" if over else "scheduled", "time_discovered_started_ns": None,
                "time_discovered_completed_ns": over, "retired": bool(over), "is_p2p": not call.collective,
            }
        )  # fmt: skip
    return {
        "version": "2.10",
        "pg_config": {name: {"name": name, "desc": f"G{name}", "ranks": str(list(job.groups[name]))} for name in names},
        "pg_status": {
            str(at): {"last_enqueued_collective": last[name][0], "last_completed_collective": last[name][1]}
            for at, name in enumerate(names)
        },
        "entries": entries[-9:] if job.form == "ring" else entries,
    }


def told(job: Job) -> str | None:
    """What `joinlab.blame` says of a job: "exact", "some", "nobody" or "another"; None if the job does not hang.

    Of a rank without a dump "exact" is to blame nobody, and to say that others may wait for it.
    """
    from joinlab.analysis.blame import blame
    from joinlab.importers.dump import Texts, check
    from joinlab.importers.job import timeline_of

    found, texts = dumps(job), Texts()
    if not any(entry["state"] == "scheduled" for one in found.values() for entry in one["entries"]):
        return None
    blamed = blame(timeline_of([check(Path(f"rank_{rank}"), one, texts) for rank, one in found.items()], texts))
    named, culprits = set(blamed.ranks), set(job.culprits)
    if job.fault == "died":
        return "another" if named else "exact" if "there is no record of" in str(blamed) else "nobody"
    if named - culprits:
        return "another"
    return "exact" if named == culprits else "some" if named else "nobody"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--n", type=int, default=500, help="jobs")
    parser.add_argument("--first", type=int, default=0, help="seed of the first")
    options = parser.parse_args()
    counts: Counter[tuple[str, str]] = Counter()
    for seed in range(options.first, options.first + options.n):
        job = draw(seed)
        if (said := told(job)) is not None:
            counts[job.fault, said] += 1
    for (fault, said), count in sorted(counts.items()):
        print(f"{fault:8} {said:8} {count}")


if __name__ == "__main__":
    main()
