"""Finds the calls at which ranks part, and for each rank the window of steps that led there.

rank 0   all-reduce   ....   all-reduce     the window of each rank: its steps after the last call that all ranks made
rank 1   all-reduce   ....   barrier        from one line; joinlab/program/divergence/ compares these steps
"""

from __future__ import annotations

import linecache
import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import product, takewhile

import polars as pl

from joinlab.analysis.alignment import Identity
from joinlab.analysis.exchanges import CallPath, paths_of, unpaired
from joinlab.analysis.matching import Slot
from joinlab.analysis.meanings import is_own
from joinlab.analysis.wording import by_key
from joinlab.ops import COUNTERPART, POINT_TO_POINT, CallRow
from joinlab.program.branches import statement_at
from joinlab.program.divergence import Branch, Divergence, Key, Test
from joinlab.program.divergence.pairs import tests_of
from joinlab.program.divergence.raised import erred_at
from joinlab.program.divergence.rounds import Role, rounds_of
from joinlab.program.divergence.search import Search
from joinlab.program.divergence.skipped import skipped_by
from joinlab.program.steps import is_made_by_join
from joinlab.program.traces import ALL, Trace, Window
from joinlab.story.evidence import Evidence
from joinlab.story.forms.mismatch import Circle, OtherData
from joinlab.story.forms.silent import OutOfPhase, ReplicasDiffer, TwoModels
from joinlab.story.forms.swapped import OtherOrder
from joinlab.story.lines import Line
from joinlab.timeline import EndKind, Timeline, TraceSource

MAX_RANKS = 64
"""In a larger job, only some ranks of each side are followed."""

_MET = (OtherOrder, OutOfPhase, TwoModels)
"""Headlines about calls that met but were not meant for each other."""


def divergence_of(evidence: Evidence, headline: Line, source: TraceSource) -> Divergence | None:
    """Where the ranks' traces diverge; None if they do not, or if it is unknown."""
    timeline = evidence.timeline
    search = _unmatched(evidence, headline)
    if search is None and not has_keys(timeline):
        return None
    windows = (
        dict.fromkeys(_some([range(timeline.world_size)]), ALL)
        if search is None
        else search.windows
    )
    traces = source.traces(timeline, windows)
    if isinstance(traces, str):
        return {"tests": [], "why": traces}
    if search is not None:
        tests = _without_roles(evidence, headline, tests_of(search, traces), source)
        if tests and _met_behind(search, tests[-1]):
            roles = zip(search.sides, (search.met, search.turns), strict=True)
            tests = rounds_of(Role(ranks, traces[ranks[0]].steps, met) for ranks, met in roles)
        elif tests and _erred_in_role(evidence, tests[-1], traces):
            tests = []
        result: Divergence = {"tests": tests}
        keys = _data_keys(evidence, headline, traces)
        if keys:
            result["data"] = keys
        not_followed = sum(map(len, search.sides)) - len(traces)
        if not_followed:
            result["left_out"] = not_followed
        return result if traces else None
    met = _other_keys(timeline, traces)
    if not met:
        return None
    windows = {key["rank"]: Window(0, until_call) for until_call, key in met}
    until = {rank: Trace.of(traces[rank].steps, window) for rank, window in windows.items()}
    names = frozenset(key["name"] for _, key in met)
    tests = tests_of(Search([[rank] for rank in windows], windows, keys=names), until)
    return {"tests": tests, "keys": [key for _, key in met]}


def _without_roles(
    evidence: Evidence, headline: Line, tests: list[Test], source: TraceSource
) -> list[Test]:
    """The tests; where the last one only gives each side its part in the program, what parts them
    in these parts."""
    if not tests or len(tests[-1]["sides"]) != 2:
        return tests
    test = tests[-1]
    parts = _met_inside(evidence, test)
    statement = statement_at(test["file"], test["line"])
    issuing: list[Branch] = []
    for side in test["sides"]:
        at = f"{test['file']}:{side['line']}"
        inside = statement is not None and side["line"] in statement.block
        if inside and at in {call.site for call in headline.calls}:
            issuing.append(side)
    if not parts and len(issuing) != 1:
        return tests
    traces = source.traces(evidence.timeline, {side["ranks"][0]: ALL for side in test["sides"]})
    if isinstance(traces, str) or len(traces) != len(test["sides"]):
        return tests
    if not parts:
        side, other = sorted(test["sides"], key=lambda side: side is not issuing[0])
        call = linecache.getline(test["file"], side["line"]).strip()
        return skipped_by(other, traces[other["ranks"][0]].steps, test, call) or tests
    rounds = rounds_of(
        Role(side["ranks"], traces[side["ranks"][0]].steps, positions)
        for side, positions in zip(test["sides"], zip(*parts, strict=True), strict=True)
    )
    return rounds if rounds or isinstance(headline, Circle) else tests


def _met_behind(search: Search, test: Test) -> bool:
    """Whether the two sides of a send or recv that one of them lacks met in others behind a test, or
    one came to it behind more of these: it only gives each its part."""
    if not search.one_call or not search.turns or len(test["sides"]) < 2:
        return False
    passed = list[int]()
    for ranks, met in zip(search.sides, (search.met, search.turns), strict=True):
        for side in test["sides"]:
            if ranks[0] in side["ranks"]:
                passed.append(bisect_left(met, side["issued"]))
    return len(passed) == 2 and passed != [len(search.turns)] * 2


def _erred_in_role(evidence: Evidence, test: Test, traces: Mapping[int, Trace]) -> bool:
    """Whether a test asks for the rank alone, and leads to a line that only ranks ran in which it
    raised an error, so that it only gives them their part in the program."""
    by_name = by_key((read["name"], read) for read in test["values"])
    asked = []
    for name, reads in by_name.items():
        if len(reads) > 1 or not name.startswith("len("):
            asked += reads
    if evidence.mismatch is None or not asked or len(test["sides"]) < 2:
        return False
    if any(repr(read["ranks"]) != f"[{read['value']!r}]" for read in asked):
        return False
    for side in test["sides"]:
        raised = erred_at(traces[side["ranks"][0]].steps)
        if raised is None or side["how"] == "raise" or not _errs(evidence, side["ranks"][0]):
            continue
        ran = set()
        for rank, trace in traces.items():
            if any(step[1:6] == ("line", *raised[2:6]) for step in trace.steps):
                ran.add(rank)
        text = linecache.getline(raised.file, raised.line).split()
        if all(_errs(evidence, rank) for rank in ran) and text[:1] not in (["raise"], ["assert"]):
            return True
    return False


def _met_inside(evidence: Evidence, test: Test) -> list[tuple[int, int]]:
    """The places of calls that two sides of a test made inside its statement, from lines of their
    own, and that met."""
    ranks = [side["ranks"][0] for side in test["sides"]]
    statement = statement_at(test["file"], test["line"])
    if statement is None:
        return []
    inside = {f"{test['file']}:{line}" for line in statement.lines}
    rows = {
        (rank, row["group"], row["seq"]): (position, row)
        for rank, path in paths_of(evidence.timeline, ranks).items()
        for position, row in path
    }
    met = []
    for slot in evidence.matched.slots:
        calls: list[tuple[int, CallRow]] = []
        for rank in ranks:
            calls += filter(None, [rows.get((rank, slot.group, slot.calls.get(rank, -1)))])
        sites = {row["call_site"] for _, row in calls}
        if (
            len(calls) == len(sites) == 2
            and slot.met
            and slot.expected
            and all(
                any(frame.partition(" ")[0] in inside for frame in row["stack"] or ())
                for _, row in calls
            )
        ):
            met.append((calls[0][0], calls[1][0]))
    return met


def _some(sides: Sequence[Sequence[int]]) -> list[int]:
    """The ranks to follow."""
    if sum(map(len, sides)) <= MAX_RANKS:
        per_side = MAX_RANKS
    else:
        per_side = max(1, MAX_RANKS // len(sides))
    return [rank for side in sides for rank in side[:per_side]][:MAX_RANKS]


# ---------------- which calls


def _unmatched(evidence: Evidence, headline: Line) -> Search | None:
    """The calls at which the ranks part; None if there are none."""
    difference, ends, timeline = evidence.difference, evidence.ends, evidence.timeline
    sends = {(call.rank, call.peer) for call in headline.calls if call.peer is not None}
    if isinstance(headline, Circle):
        if sends:
            return _unpaired(timeline, sends)
        if lacking := _lacking(evidence, headline):
            slot, *further = lacking
            if further:
                return None
            return _before(evidence, slot, [sorted(slot.calls), slot.absent])
    if difference.slot_index is not None and not difference.slot.pair:
        if _refused_there(evidence, difference.slot) or _shadows_itself(evidence, difference.slot):
            return None
        parts = list(map(difference.ranks, difference.sides))
        erring = [rank for rank in difference.slot.absent if _errs(evidence, rank)]
        if erring:  # the others that did not come lost a peer
            parts[-1] = tuple(erring)
        return _before(evidence, difference.slot, parts)
    if difference.slot_index is None and isinstance(headline, _MET):
        sides = list(dict.fromkeys(headline.sides))
        first = headline.calls[0]
        return _before(evidence, evidence.slot_of(first.key), sides)
    search = _unpaired(timeline, sends)
    if search is not None:
        return search
    if isinstance(headline, ReplicasDiffer):
        by_step = by_key((step, int(rank)) for rank, step in headline.replica["steps"].items())
        two: Sequence[Sequence[int]] = [by_step[step] for step in sorted(by_step)[-2:]]
        if len(two) < 2:
            two = headline.sides
        if len(two) > 1:
            return Search(two, dict.fromkeys(_some(two), ALL), replicas=True)
        return None
    texts: dict[str, list[int]] = {}
    for rank, end in enumerate(ends):
        for text in _UNLIKE.findall(end.text):
            texts.setdefault(text, []).append(rank)
    unlike, windows = [*texts.values()], dict[int, Window]()
    if len(unlike) > 1:
        for rank in _some(unlike):
            windows[rank] = Window(0, timeline.calls.filter(rank=rank).height - 1)
        return Search(unlike, windows)
    raised, well = ([rank for rank, end in enumerate(ends) if end.kind is kind] for kind in _RAISED)
    raised_outside = [rank for rank in raised if _errs(evidence, rank)]
    # no call tells apart the ranks that raised and those that went on
    if raised_outside and well and len(raised) + len(well) == len(ends):
        ranks = _some((raised_outside, well))
        return Search(
            (raised_outside, well), dict.fromkeys(ranks, ALL), _positions(paths_of(timeline, ranks))
        )
    return None


_UNLIKE = re.compile(r"has \d+ params(?=, while)|exhausted all|Throwing across")
"""Errors that DDP and join() raise on all ranks behind a call, and that say what differs."""


def _errs(evidence: Evidence, rank: int) -> bool:
    """Whether a rank raised an error of its own, outside of all calls."""
    return evidence.ends[rank].kind is EndKind.RAISED and evidence.awaited(rank) is None


def _refused_there(evidence: Evidence, slot: Slot) -> bool:
    """Whether all ranks came to the same line, and the backend refused the call of those that lack
    it: its error says why, and no test parts them."""
    sites = {evidence.difference.call(slot, rank)["call_site"] for rank in slot.calls}
    last = [
        evidence.matched.row_of[evidence.last[rank]]
        for rank in slot.absent
        if rank in evidence.last
    ]
    refused = [row for row in last if row["error"] is not None and row["number"] is None]
    return 0 < len(refused) == len(slot.absent) and {row["call_site"] for row in refused} == sites


def _shadows_itself(evidence: Evidence, slot: Slot) -> bool:
    """Whether the program's own hook made one of the calls in join(), for a rank that has run out of
    inputs, as it is meant to: no test is the cause."""
    rows = (evidence.difference.call(slot, rank) for rank in slot.calls)
    return any(is_own(row["origin"] or "") and is_made_by_join(row["stack"] or ()) for row in rows)


def _positions(paths: Mapping[int, CallPath]) -> dict[int, list[int]]:
    """By rank, the places of these calls; {} if join() made some of them, since more calls are then
    no lead."""
    joined = any(is_made_by_join(row["stack"] or ()) for path in paths.values() for _, row in path)
    if joined:
        return {}
    return {rank: [n for n, _ in path] for rank, path in paths.items()}


def _lacking(evidence: Evidence, headline: Line) -> list[Slot]:
    """Slots of a circle of waiting ranks to which some ranks of the group never came; only in the
    smallest groups. One of them, if their groups have the same members or all came from one line."""
    slots: dict[int, Slot] = {}
    sites: dict[int, list[str]] = {}
    for call in headline.calls:
        slot = evidence.slot_of(call.key)
        if slot.absent and not slot.pair:
            slots[id(slot)] = slot
            sites.setdefault(len(slot.needs), []).append(call.site)
    least = min(sites, default=0)
    smallest = [slot for slot in slots.values() if len(slot.needs) == least]
    if len({*sites.get(least, ())}) == 1 or len({tuple(slot.needs) for slot in smallest}) == 1:
        return sorted(smallest, key=lambda slot: -max(slot.calls.values()))[:1]
    return smallest


_RAISED = (EndKind.RAISED, EndKind.FINISHED)


def _before(evidence: Evidence, slot: Slot, sides: Sequence[Sequence[int]]) -> Search:
    """The windows of the followed ranks before their calls in a slot."""
    sides = sorted(sides, key=len, reverse=True)
    paths = paths_of(
        evidence.timeline,
        _some(sides),
        pl.col("group") == slot.group,
        ~pl.col("op").is_in([*POINT_TO_POINT]),
        pl.col("error").is_null() | pl.col("number").is_not_null(),  # a refused call meets none
    )
    lane_of = {rank: lane for lane, ranks in evidence.difference.lanes.items() for rank in ranks}
    seqs = {rank: slot.calls.get(rank, slot.calls.get(lane_of[rank], -1)) for rank in paths}
    index = next(
        n
        for rank, path in paths.items()
        for n, (_, row) in enumerate(path)
        if row["seq"] == seqs[rank]
    )
    calls = {
        rank: [evidence.difference.identity(row) for _, row in path] for rank, path in paths.items()
    }
    sides = _closest(sides, calls)
    first, second = (calls[side[0]][:index] for side in (sides[0], sides[:2][-1]))
    alike = (n for n, (a, b) in enumerate(zip(first, second, strict=False), 1) if a == b)
    index = max(alike, default=0)
    windows = {
        rank: Window(
            path[index - 1][0] + 1 if 0 < index <= len(path) else 0,
            path[index][0] if index < len(path) else None,
        )
        for rank, path in paths.items()
    }
    return Search(sides, windows, _positions(paths))


def _closest(
    sides: Sequence[Sequence[int]], paths: Mapping[int, Sequence[Identity]]
) -> list[list[int]]:
    """The sides, each with the rank in front whose calls were longest identical to those of a rank of
    the other."""
    kinds = [
        {tuple(paths[rank]): rank for rank in reversed(side) if rank in paths} for side in sides[:2]
    ]

    def likeness(both: Iterable[Sequence[Identity]]) -> int:
        return len([*takewhile(lambda calls: len({*calls}) == 1, zip(*both, strict=False))])

    closest = max(product(*map(reversed, kinds)), key=likeness, default=())
    first = [kind[path] for kind, path in zip(kinds, closest, strict=False)]
    return [sorted(side, key=lambda rank: rank not in first) for side in sides]


def _unpaired(timeline: Timeline, mentioned: Collection[tuple[int, int | None]]) -> Search | None:
    """Two ranks of which one sends more often than the other receives, or the reverse: a pair in
    `mentioned`, or any. A rank that waits for another of them may only not have come so far."""
    surplus, waiting = unpaired(timeline), {rank for rank, _ in mentioned}
    wrong = _wrong_peer(timeline, surplus)
    if wrong is not None:
        return wrong
    for path, counterparts in [
        two for two in surplus if (two[0][0][1]["rank"], two[0][0][1]["peer"]) in mentioned
    ] or surplus:
        first, row = path[len(counterparts)]
        rank, peer = row["rank"], row["peer"]
        assert peer is not None
        if not counterparts and timeline.calls.filter(rank=peer, op=COUNTERPART[row["op"]]).height:
            continue  # it has a part of its own in such exchanges, so its path differs in any case
        takers = {} if counterparts else _first_calls(timeline, COUNTERPART[row["op"]], rank)
        if takers and peer in waiting:
            continue
        if takers:
            return Search(
                (sorted(takers), (peer,)),
                {rank: Window(0, takers[rank]) for rank in _some([sorted(takers)])} | {peer: ALL},
            )
        lacks = len(path) - len(counterparts)
        turns, met = (tuple(index for index, _ in calls) for calls in (counterparts, path[:-lacks]))
        return Search(
            ((rank,), (peer,)),
            {rank: Window(0, first), peer: ALL},
            one_call=True,
            turns=turns,
            met=met,
            lacks=lacks,
        )
    return None


def _first_calls(timeline: Timeline, op: str, but: int) -> dict[int, int]:
    """By rank, the place of its first call of this op; without the rank `but`."""
    paths = paths_of(timeline, range(timeline.world_size), pl.col("op") == op)
    return {rank: path[0][0] for rank, path in paths.items() if path and rank != but}


def _wrong_peer(timeline: Timeline, surplus: Sequence[tuple[CallPath, CallPath]]) -> Search | None:
    """A rank that sends to one peer in vain while another waits to receive from it, or the reverse.

    It is compared with the ranks that issued as many such calls from the same line. A line that
    issues sends and recvs, such as batch_isend_irecv, does not show which of them are alike.
    """
    awaited = {(row["peer"], row["op"]) for path, _ in surplus for _, row in path[:1]}
    for path, counterparts in surplus:
        first, row = path[len(counterparts)]
        if (row["rank"], COUNTERPART[row["op"]]) not in awaited:
            continue
        calls = paths_of(
            timeline, range(timeline.world_size), pl.col("op").is_in([*POINT_TO_POINT])
        )
        from_line = {
            rank: [(index, call) for index, call in path if call["call_site"] == row["call_site"]]
            for rank, path in calls.items()
        }
        if any(call["op"] != row["op"] for path in from_line.values() for _, call in path):
            return None
        indices = {rank: [index for index, _ in path] for rank, path in from_line.items()}
        turn = indices[row["rank"]].index(first)
        windows = {
            rank: Window(0, path[turn]) for rank, path in indices.items() if len(path) > turn
        }
        likes = [rank for rank in _some([[*windows]]) if rank != row["rank"]]
        if likes:
            return Search(((row["rank"],), likes), windows)
        return None
    return None


# ---------------- which data


def has_keys(timeline: Timeline) -> bool:
    """Whether the program itself issues a collective on data that a key selects:
    `dist.all_reduce(m[k])`."""
    program_calls = timeline.calls.filter(
        ~pl.col("origin").fill_null("").str.contains("(", literal=True)
    )
    sites = (site.rpartition(":") for site in program_calls["call_site"].drop_nulls().unique())
    lines = [statement_at(file, int(line)) for file, _, line in sites if line.isdecimal()]
    return any(statement is not None and statement.keys for statement in lines)


def _data_keys(evidence: Evidence, headline: Line, traces: Mapping[int, Trace]) -> list[Key]:
    """The keys of the calls that a headline says met, if each has one, and they differ."""
    if isinstance(headline, OtherData):
        calls = headline.calls
    elif isinstance(headline, OtherOrder):
        calls = headline.calls[::2]
    else:
        return []
    by_call: dict[tuple[object, ...], Key] = {}
    for path in _keys(evidence.timeline, traces).values():
        for _, key in filter(None, path):
            by_call[key["rank"], key["group"], key["seq"]] = key
    keys = [by_call.get(call.key) for call in calls]
    unlike = {(key["name"], key["value"]) for key in filter(None, keys)}
    if len(unlike) == len(keys):
        return [*filter(None, keys)]
    return []


def _keys(
    timeline: Timeline, traces: Mapping[int, Trace]
) -> dict[tuple[str, int], list[tuple[int, Key] | None]]:
    """By group and rank, the key of each collective, with the call's place among all of its rank;
    None if it has none, or several."""
    keys: dict[tuple[str, int], list[tuple[int, Key] | None]] = {}
    for rank, path in paths_of(timeline, [*traces], ~pl.col("op").is_in([*POINT_TO_POINT])).items():
        keyed = dict(traces[rank].keyed)
        for index, row in path:
            (name, value), *further = keyed.get(index, (("", None),))
            key: Key = {
                "rank": rank,
                "group": row["group"],
                "seq": row["seq"],
                "name": name,
                "value": value,
            }
            keys.setdefault((row["group"], rank), []).append(
                None if not name or further else (index, key)
            )
    return keys


def _other_keys(timeline: Timeline, traces: Mapping[int, Trace]) -> list[tuple[int, Key]]:
    """The first two calls that met with different keys, both of which both ranks have, each with
    its position among all calls of its rank; [] if there are none.
    """
    keys = _keys(timeline, traces)
    for group, members in timeline.meta["groups"].items():
        first, *other_ranks = (keys.get((group, rank), []) for rank in members)
        for keys_there in other_ranks:
            both = {key["value"] for _, key in filter(None, first)} & {
                key["value"] for _, key in filter(None, keys_there)
            }
            for first_row, second_row in zip(first, keys_there, strict=False):
                values = {key["value"] for _, key in filter(None, (first_row, second_row))}
                if first_row and second_row and len(values) == 2 and values <= both:
                    return [first_row, second_row]
    return []
