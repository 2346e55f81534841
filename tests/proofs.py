"""Counts the hangs proven from recorded calls alone: `python -m tests.proofs --n 400`.

Random programs are emulated, so their hanging ranks and completed calls are known; the Timelines
are then judged as if recorded. A claim that a completed call cannot complete is false, and ends the
command with status 1.

On NCCL each is judged three times: with everything in a record of GPUs (the ring's order from
NCCL's log, its version, the kind of GPU, and the calls issued as one); without the ring; and from
calls alone, as in another tool's dump.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from joinlab import Timeline, emulate
from joinlab.backend.calls import call_of, setting_of
from joinlab.errors import LaunchError
from joinlab.nccl.ring import GPUS
from joinlab.proof import BlockedThread, Proof, blocked_calls, prove
from joinlab.story.evidence import Evidence
from joinlab.timeline import EndKind
from tests.random_programs import draw, program_of

KNOBS = ({}, {"gpu": "H100"}, {"era": "1.9"}, {"gpu": "P100"}, {"pad": 255}, {"era": "1.9"})
"""Settings of emulated NCCL, in turn."""


@dataclass(frozen=True)
class Judged:
    """One hanging run: its hung ranks, those of them that are proven to hang, and why the others
    are not.

    false  claims about calls that did complete: (rank, group, seq)
    """

    seed: int
    hung: int
    proven: int
    cause: str
    false: frozenset[tuple[int, str, int]]


TOLD = ("ring", "record", "calls")
"""The facts about a run on NCCL that the proof gets, most first."""


def runs(backend: str, seeds: range) -> Iterator[tuple[Judged, ...]]:
    """Every program of `seeds`, emulated and judged, once for each of TOLD on NCCL.

    Those without a hung rank are judged for their false claims alone.
    """
    for seed in seeds:
        plan = draw(seed)
        try:
            found = emulate(
                program_of(plan),
                plan.counts,
                backend,
                **KNOBS[seed % len(KNOBS)] if backend == "nccl" else {},
            )
        except LaunchError:  # the model says that it cannot tell
            continue
        yield tuple(judge(found, seed, told) for told in (TOLD if backend == "nccl" else TOLD[-1:]))


def as_recorded(timeline: Timeline, told: str = "calls") -> dict[str, Any]:
    """The meta that a record of this emulation would have; `told` is one of TOLD."""
    meta: dict[str, Any] = {**timeline.meta, "engine": "recorded"}
    knobs = meta.pop("emulation")
    if told != "calls":
        own = meta.get("group_backends", {})
        on_nccl = {
            name: ranks for name, ranks in meta["groups"].items() if own.get(name, "nccl") == "nccl"
        }
        meta["versions"] = {
            **meta["versions"],
            "nccl": "2.7.8" if knobs["era"] == "1.9" else "2.29.7",
        }
        meta["nccl"] = {
            "rings": on_nccl
            if told == "ring"
            else {},  # the model's ring has the order of the ranks
            "warps_apart": GPUS[knobs.get("gpu", "A100")].warps_apart,
            "coalesced": meta.get("nccl", {}).get("coalesced", []),
        }
    return meta


def judge(timeline: Timeline, seed: int = 0, told: str = "calls") -> Judged:
    """Judge an emulated Timeline as if it had been recorded."""
    reasons = Evidence(replace(timeline, meta=as_recorded(timeline, told)))  # type: ignore[arg-type]
    calls = [call_of(row) for row in timeline.rows("calls")]
    done = {(call.rank, call.group, call.seq) for call in calls if call.completed}
    # claims must not use the recorded completions
    unseen = [call._replace(completed=False) for call in calls]
    backend, setting = str(timeline.meta["backend"]), setting_of(timeline.meta)
    answers = blocked_calls(unseen, reasons.groups, backend, reasons.gone, setting)
    claimed = {(rank, group, seq) for group, stuck in answers.items() for rank, seq in stuck}
    hung = [rank for rank, end in enumerate(timeline.ends) if end.kind is EndKind.HUNG]
    proof = proof_of(reasons)
    proven = sum(proof is not None and proof.of(rank) is not None for rank in hung)
    cause = "" if proven == len(hung) else _cause(reasons, hung)
    return Judged(seed, len(hung), proven, cause, frozenset(claimed & done))


def proof_of(evidence: Evidence) -> Proof | None:
    """The proof from a Timeline's calls alone. Calls whose wait began at one instant on a rank are
    one wait."""
    found: dict[tuple[int, int], list[tuple[str, int]]] = {}
    for row in evidence.matched.rows:
        hung = evidence.ends[row["rank"]].kind is EndKind.HUNG and row["error"] is None
        if hung and row["host_wait_begin_ns"] is not None and row["host_wait_end_ns"] is None:
            found.setdefault((row["rank"], row["host_wait_begin_ns"]), []).append(
                (row["group"], row["seq"])
            )
    waits = [BlockedThread(rank, tuple(calls)) for (rank, _), calls in found.items()]
    for rank, end in enumerate(evidence.ends):
        named = evidence.timeline.ended_in(rank) if end.kind is EndKind.HUNG else None
        if named is not None and all(wait.rank != rank for wait in waits):
            waits.append(BlockedThread(rank, (named[1:],)))
    backend, setting = str(evidence.meta["backend"]), setting_of(evidence.meta)
    return prove(evidence.matched.calls, evidence.groups, backend, waits, evidence.gone, setting)


def _cause(reasons: Evidence, hung: list[int]) -> str:
    """Why a run is not proven: the first call of an ending for which the rule has no answer."""
    for rank in hung:
        end = reasons.ends[rank]
        group = str(end.group)
        if end.call is None or (rank, end.call) in reasons.blocked.get(group, {}):
            continue
        rows = [
            reasons.matched.row_of[other, group, seq]
            for other, seq in reasons.slot_of((rank, group, end.call)).calls.items()
        ]
        if reasons.meta["backend"] == "gloo":
            if set(reasons.groups[group]) & set(reasons.gone):
                return "a peer has ended, so the wait may end in an error"
            return (
                "gloo, sizes differ"
                if len({(str(row["shape"]), row["dtype"]) for row in rows}) > 1
                else "gloo, other"
            )
        if group in reasons.meta.get("nccl", {}).get("coalesced", []):
            return "NCCL, calls that were issued as one"
        if len(reasons.groups[group]) > 2 and group not in reasons.meta.get("nccl", {}).get(
            "rings", {}
        ):
            return "NCCL, the ring's order decides, which was not told"
        return "NCCL, hosts that connect, or what a ring does not decide"
    return "no rank ends in a call that the rules leave open: a rank waits for none, or for several"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=400, help="this many programs")
    parser.add_argument("--first", type=int, default=0, help="the number of the first one")
    args = parser.parse_args()
    wrong = 0
    seeds = range(args.first, args.first + args.n)
    for backend in ("nccl", "gloo"):
        by_told = zip(*runs(backend, seeds), strict=True)
        for told, found in zip(TOLD if backend == "nccl" else TOLD[-1:], by_told, strict=True):
            wrong += _print(f"{backend}, {told}", found)
    return wrong > 0


def _print(title: str, found: Sequence[Judged]) -> int:
    """Print one share of proven ranks, and what the others lack; returns how many programs have a
    false claim."""
    hung, proven = sum(one.hung for one in found), sum(one.proven for one in found)
    print(f"{title}: {proven} of {hung} hung ranks proven, {100 * proven / max(1, hung):.1f} %")
    missing = Counter[str]()
    for one in found:
        missing[one.cause] += one.hung - one.proven
        if one.false:
            print(f"  program {one.seed}: FALSE CLAIMS {sorted(one.false)}")
    for cause, count in missing.most_common():
        if count:
            print(
                f"  {count:4}  {cause}: programs {', '.join(str(one.seed) for one in found if one.cause == cause)}"
            )
    return sum(bool(one.false) for one in found)


if __name__ == "__main__":
    sys.exit(main())
