"""Where the ways of ranks part, found by comparing the steps between two of their calls.

rank 0   all-reduce  8 for x in inputs   7 for epoch ...       its next call is of another input
rank 1   all-reduce  8 for x in inputs   9 net(x).sum()        they part at line 8: len(inputs) is 3 and 4

The window begins at the last call that all ranks of a group made from the same place, and ends at the first that they
did not. In it, ways that part and meet again behind the statement do not count: `if rank == 0: print(...)`. What such a
statement set may be what a later test reads, then it is told first: `if rank == 1: start = 1`.
"""

from __future__ import annotations

import linecache
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NotRequired, TypedDict

from joinlab.ops import FACTS, POINT_TO_POINT, CallRow, Op, op_of
from joinlab.program.branches import Statement, outcome, statement_at
from joinlab.program.steps import BY_BACKWARD, is_made_by_join
from joinlab.program.ways import ALL, Plain, Step, Way, Window


class Read(TypedDict):
    """A value that ranks read in a test: of the name `name`, or "len(inputs)", "loss.shape"."""

    ranks: list[int]
    name: str
    value: Plain


class Side(TypedDict):
    """Where some ranks went from a test: to `line`, of text `text`.

    how  "line", "call" (of a function of the program), "return", "raise" (then `text` is the exception's type),
         "issue": the next call came from the test's own line, "end": nothing more of it is known; of an `if` on one
         line "block": it ran it, "past": it did not
    """

    ranks: list[int]
    how: str
    line: int
    text: str


class Test(TypedDict):
    """A line at which the ways of ranks part: its file, number and text, the values in it, and where each side went."""

    file: str
    line: int
    text: str
    values: list[Read]
    sides: list[Side]


class Key(TypedDict):
    """What chose the data of a call: `dist.all_reduce(m[k])` with k = "loss"."""

    rank: int
    group: str
    seq: int
    name: str
    value: Plain


class Parting(TypedDict):
    """Where the ways of a run's ranks part: `meta["parting"]`.

    tests    the tests; the last is where the ways part for good, those before it set what it read. [] without `why`:
             all ranks went the same way
    group    the group whose calls differ
    between  by rank: seq in that group of the last call from the same place and of the first that is not, or null
    keys     calls of one line that met though what chose their data differs, of two ranks
    why      why no way is known: "pydevd already traces this program"
    """

    tests: list[Test]
    group: NotRequired[str]
    between: NotRequired[dict[str, list[int | None]]]
    keys: NotRequired[list[Key]]
    why: NotRequired[str]


# ---------------------------------------------------------------------------------------- which calls


@dataclass(frozen=True, slots=True)
class Differing:
    """The first calls of a group that ranks made from different places, or that a rank did not make.

    sides    ranks by what they did there; the side with most ranks comes first
    windows  by rank: its steps from the call before to this one
    places   by rank: the place of each call of the group among all calls of the rank, with its seq
    joined   some were made by join() for a rank that was out of inputs
    one_call  the first side issued a call that the second has not, and its window ends there
    turns     of one_call: the second side's last two calls that met such calls, by place among all of its calls
    """

    group: str
    sides: tuple[tuple[int, ...], ...]
    windows: Mapping[int, Window]
    places: Mapping[int, Sequence[tuple[int, int]]]
    joined: bool = False
    one_call: bool = False
    turns: tuple[int, int] | None = None

    def count(self, rank: int, issued: int) -> int:
        """How many of a rank's first `issued` calls are in the group."""
        return bisect_left(self.places[rank], issued, key=lambda pair: pair[0])

    def between(self, rank: int, issued: int) -> list[int | None]:
        """seq of the rank's calls in the group before and after it had issued so many."""
        at, path = self.count(rank, issued), self.places[rank]
        return [path[at - 1][1] if at else None, path[at][1] if at < len(path) else None]


Path = Sequence[tuple[int, CallRow]]
"""Calls of a rank in one group, each with its place among all calls of the rank."""


def differing(rows: Iterable[CallRow], meta: Mapping[str, Any], ends: Sequence[str]) -> Differing | None:
    """The calls where ranks part; None where they do not. `ends`: an EndKind, or "pending", of each rank.

    Where a rank did not finish, the first calls that do not fit. Else calls of unlike kinds that met, or of two places
    that both ranks have. Then sends and recvs that are not as many; then a rank that raised where others finished.
    """
    failed, groups = any(end != "finished" for end in ends), meta["groups"]
    by_input = meta.get("input_column") != BY_BACKWARD
    number: dict[int, int] = {}
    paths: dict[tuple[str, int], list[tuple[int, CallRow]]] = {}
    pairs: list[tuple[int, CallRow]] = []
    for row in rows:
        at = number[row["rank"]] = number.get(row["rank"], -1) + 1
        if row["op"] in POINT_TO_POINT:
            pairs.append((at, row))
        else:
            paths.setdefault((row["group"], row["rank"]), []).append((at, row))
    found: list[tuple[int, str, int]] = []
    for group, members in groups.items():
        those = [paths.get((group, rank), []) for rank in members]
        clash = _unfit(those, failed)
        if clash is None and not failed:
            mixed = [key["seq"] for key in meta.get("mixed", ()) if key["group"] == group]
            seqs = [row["seq"] for _, row in those[0]] if those else []
            clash = seqs.index(mixed[0]) if mixed and mixed[0] in seqs else _swapped(those, by_input)
        if clash is not None:
            found.append((min(path[clash][1]["enqueued_ns"] or 0 for path in those if clash < len(path)), group, clash))
    if not found:
        return _unpaired(pairs) or _raised(next(iter(groups), ""), ends)
    _, group, clash = min(found)
    mine = {rank: paths.get((group, rank), []) for rank in groups[group]}
    while clash and len({_place(path[clash - 1][1]) for path in mine.values()}) > 1:
        clash -= 1
    windows, sides = {}, dict[object, list[int]]()
    for rank, path in mine.items():
        before, after = (path[at] if 0 <= at < len(path) else None for at in (clash - 1, clash))
        windows[rank] = Window(0 if before is None else before[0] + 1, None if after is None else after[0])
        sides.setdefault(after and (_place(after[1]), _given(after[1]), not failed and after[1]["input"]), []).append(
            rank
        )
    joined = any(is_made_by_join(row["stack"] or ()) for path in mine.values() for _, row in path)
    places = {rank: [(at, row["seq"]) for at, row in path] for rank, path in mine.items()}
    return Differing(group, tuple(map(tuple, sorted(sides.values(), key=len, reverse=True))), windows, places, joined)


def _place(row: CallRow) -> tuple[object, ...]:
    return row["call_site"], tuple(row["stack"] or ()), row["origin"]


def _given(row: CallRow) -> str:
    """What calls must agree in to meet."""
    op = op_of(row["op"])
    return repr([row[name] for name in ("op", *(FACTS[op].alike if op else ()))])  # type: ignore[literal-required]


def _unfit(paths: Sequence[Path], failed: bool) -> int | None:
    """The first place at which a rank issued no call, or one that cannot meet the others'."""
    for at in range(max(map(len, paths), default=0)):
        rows = [path[at][1] for path in paths if at < len(path)]
        op = op_of(rows[0]["op"])
        alike = ("op", *(FACTS[op].alike if op and failed else ()))
        if len(rows) < len(paths) or any(_differ(rows, name) for name in alike):
            return at
    return None


def _differ(rows: Sequence[CallRow], name: str) -> bool:
    first, *others = (row[name] for row in rows)  # type: ignore[literal-required]
    return any(other != first for other in others)


def _swapped(paths: Sequence[Path], by_input: bool) -> int | None:
    """The first place at which calls met that are from two places that both ranks have, or of two inputs."""
    places = [{_place(row) for _, row in path} for path in paths]
    lines = [{(row["call_site"], row["origin"]) for _, row in path} for path in paths]
    inputs = [{row["input"] for _, row in path} for path in paths]
    for at in range(max(map(len, paths), default=0)):
        rows = [path[at][1] for path in paths if at < len(path)]
        if any(is_made_by_join(row["stack"] or ()) for row in rows):
            continue
        for met, known in (
            ({_place(row) for row in rows}, places),
            ({(row["call_site"], row["origin"]) for row in rows}, lines),
            ({row["input"] for row in rows if by_input}, inputs),
        ):
            if len(met) > 1 and all(met <= one for one in known):
                return at
    return None


def are_gradients(rows: Iterable[CallRow]) -> bool:
    """Whether these calls average gradients, by DDP."""
    return all("(DDP backward())" in (row["origin"] or "") for row in rows)


def has_keys(rows: Iterable[CallRow]) -> bool:
    """Whether a collective of the program's own chooses its data by name: `dist.all_reduce(m[k])`."""
    sites = {row["call_site"] for row in rows if "(" not in (row["origin"] or "") and row["call_site"]}
    places = (site.rpartition(":") for site in sites)
    return any(line.isdecimal() and (test := statement_at(file, int(line))) and test.keys for file, _, line in places)


def other_keys(rows: Iterable[CallRow], groups: Mapping[str, Sequence[int]], ways: Mapping[int, Way]) -> list[Key]:
    """The first two calls that met with keys that both ranks have, one in another's place; [] without such."""
    keyed = {(rank, issued): values for rank, way in ways.items() for issued, values in way.keyed}
    number: dict[int, int] = {}
    keys: dict[tuple[str, int], list[Key | None]] = {}
    for row in rows:
        rank = row["rank"]
        at = number[rank] = number.get(rank, -1) + 1
        if row["op"] not in POINT_TO_POINT:
            (name, value), *more = keyed.get((rank, at), (("", None),))
            key: Key = {"rank": rank, "group": row["group"], "seq": row["seq"], "name": name, "value": value}
            keys.setdefault((row["group"], rank), []).append(None if not name or more else key)
    for group, members in groups.items():
        first, *others = (keys.get((group, rank), []) for rank in members)
        for path in others:
            has = [{key["value"] for key in those if key} for those in (first, path)]
            for one, other in zip(first, path, strict=False):
                if (
                    one
                    and other
                    and one["value"] != other["value"]
                    and {one["value"], other["value"]} <= has[0] & has[1]
                ):
                    return [one, other]
    return []


def makes_a_model(row: CallRow) -> bool:
    """Whether DDP's constructor begins with this call: there is one for each model."""
    return row["op"] == Op.ALL_GATHER and "(DDP construction)" in (row["origin"] or "")


def _unpaired(pairs: Sequence[tuple[int, CallRow]]) -> Differing | None:
    """The first two ranks of which one sends more often than the other receives, or receives more often."""
    calls: dict[tuple[str, int, int | None, str], list[tuple[int, CallRow]]] = {}
    for at, row in pairs:
        calls.setdefault((row["group"], row["rank"], row["peer"], row["op"]), []).append((at, row))
    other = {Op.SEND.value: Op.RECV.value, Op.RECV.value: Op.SEND.value}
    short = [
        (key, len(calls.get((key[0], key[2] or 0, key[1], other[key[3]]), []))) for key in calls if key[3] in other
    ]
    short = [(key, fewer) for key, fewer in short if fewer < len(calls[key])]
    if not short:
        return None
    (group, rank, peer, op), fewer = min(short, key=lambda one: calls[one[0]][one[1]][1]["enqueued_ns"] or 0)
    assert peer is not None
    site: Callable[[CallRow], object] = lambda row: (row["call_site"], row["op"])  # noqa: E731
    made: dict[int, dict[object, list[int]]] = {}
    for at, row in pairs:
        made.setdefault(row["rank"], {}).setdefault(site(row), []).append(at)
    sites: dict[object, list[int]] = {}
    for at, row in calls[group, rank, peer, op]:
        sites.setdefault(site(row), []).append(at)
    # What the peer left out, as another rank issues it; else what this rank issued too often.
    for third, those in made.items():
        for where, places in those.items():
            lacks = len(made.get(peer, {}).get(where, ()))
            if third not in (peer, rank) and where[1] == other[op] and len(places) > lacks:  # type: ignore[index]
                return _around(group, third, peer, places[lacks], pairs)
    spare = [places[0] for places in sites.values() if len(places) == len(calls[group, rank, peer, op]) - fewer]
    extra = spare[-1] if spare and len(sites) > 1 else calls[group, rank, peer, op][fewer][0]
    turns = [at for at, _ in calls.get((group, peer, rank, other[op]), ())]
    return _around(group, rank, peer, extra, pairs, (turns[-2], turns[-1]) if len(turns) > 1 else None)


def _around(
    group: str,
    rank: int,
    other: int,
    extra: int,
    calls: Sequence[tuple[int, CallRow]],
    turns: tuple[int, int] | None = None,
) -> Differing:
    places = {one: [(at, row["seq"]) for at, row in calls if row["rank"] == one] for one in (rank, other)}
    return Differing(group, ((rank,), (other,)), {rank: Window(0, extra), other: ALL}, places, False, True, turns)


def _raised(group: str, ends: Sequence[str]) -> Differing | None:
    """Ranks that raised, where others finished, and no call tells them apart."""
    sides = [tuple(rank for rank, end in enumerate(ends) if end == kind) for kind in ("raised", "finished")]
    if not all(sides) or {*ends} != {"raised", "finished"}:
        return None
    every = range(len(ends))
    return Differing(group, tuple(sides), dict.fromkeys(every, ALL), dict.fromkeys(every, ()))


# ---------------------------------------------------------------------------------------- which lines


class _At(NamedTuple):
    """A statement at which two ways part, and the places of its test and of what follows, in both."""

    depth: int
    statement: Statement
    tests: tuple[Step, Step]
    nexts: tuple[Step | None, Step | None]
    behind: tuple[int, int] | None = None  # how many calls each rank had issued where they met again

    def turned(self) -> _At:
        """The same, as the other rank tells it."""
        return self._replace(tests=self.tests[::-1], nexts=self.nexts[::-1], behind=self.behind and self.behind[::-1])


@dataclass(slots=True)
class _Pair:
    """Two ways, compared step by step."""

    one: Sequence[Step]
    other: Sequence[Step]
    last: dict[int, tuple[Step, Step]] = field(default_factory=dict)  # by depth: the line that both ran last
    met: list[_At] = field(default_factory=list)  # where they parted, and met again
    open: _At | None = None  # where they parted in a function that has returned since, from different lines
    depth: int = 0

    def part(self) -> _At | None:
        """Where they part for good; None if they do not."""
        i = j = 0
        while True:
            while i < len(self.one) and j < len(self.other) and self.one[i].key == self.other[j].key:
                self._common(self.one[i], self.other[j])
                i, j = i + 1, j + 1
            one, other = (steps[at] if at < len(steps) else None for steps, at in ((self.one, i), (self.other, j)))
            if (one is None and other is None) or any(
                step is not None and step.event == "cut" for step in (one, other)
            ):
                return None
            here = self.last.get(self.depth)
            if here is None:
                return self.open
            found = self._at(self.depth, here, (one, other))
            again = self._meet(i, j, found)
            if again is None:
                return self.open or found
            i, j, whole = again
            if found is not None:
                before = min(i, len(self.one) - 1), min(j, len(self.other) - 1)
                self.met.append(found._replace(behind=(self.one[before[0]].issued, self.other[before[1]].issued)))
            if not whole:  # both functions have returned: the caller's next line says whether it matters
                self.depth -= 1
                self.open = self.open or found

    def _common(self, one: Step, other: Step) -> None:
        self.depth = one.depth - (one.event == "return")
        if one.event == "line":
            if self.open is not None and one.depth < self.open.depth:
                self.open = None  # the caller went on to the same line
            if one.values != other.values and taken(one) != taken(other):
                statement = statement_at(one.file, one.line)
                assert statement is not None
                self.met.append(_At(one.depth, statement, (one, other), (one, other), (one.issued, other.issued)))
            self.last[one.depth] = one, other
            for deeper in [depth for depth in self.last if depth > one.depth]:
                del self.last[deeper]

    def _at(self, depth: int, here: tuple[Step, Step], nexts: tuple[Step | None, Step | None]) -> _At | None:
        statement = statement_at(here[0].file, here[0].line)
        raises = any(step is not None and step.event == "raise" for step in nexts)
        if statement is None or not (statement.decides or raises or any(step and step.depth > depth for step in nexts)):
            return None
        return _At(depth, statement, here, nexts)

    def _meet(self, i: int, j: int, found: _At | None) -> tuple[int, int, bool] | None:
        """Where both ways go on behind the statement: at the same line, or, False, in the function's caller."""
        inside = range(found.statement.first, found.statement.last + 1) if found else range(0)
        one, end = _outside(self.one, i, self.depth, inside)
        other, other_end = _outside(self.other, j, self.depth, inside)
        if both := one.keys() & other.keys():
            return (*min(((one[key], other[key]) for key in both), key=sum), True)
        if end is None or other_end is None:
            return self._meet_outside(i, j)
        return end + 1, other_end + 1, False

    def _meet_outside(self, i: int, j: int) -> tuple[int, int, bool] | None:
        """An exception ends the function on one rank: where both go on in the function that catches it."""
        for depth in range(self.depth - 1, 0, -1):
            one, other = (_outside(steps, at, depth, range(0))[0] for steps, at in ((self.one, i), (self.other, j)))
            if both := one.keys() & other.keys():
                return (*min(((one[key], other[key]) for key in both), key=sum), True)
        return None


def taken(step: Step) -> bool | None:
    """Whether the block of an `if` on one line was run, by the values in its test; None where these do not tell."""
    statement = statement_at(step.file, step.line)
    if statement is None or statement.one_line is None:
        return None
    return outcome(statement.one_line, dict(step.values))


def _outside(steps: Sequence[Step], at: int, depth: int, inside: range) -> tuple[dict[object, int], int | None]:
    """Where a way first comes to each line of a function outside of a statement, and where it returns.

    A function that ends by an exception does not return.
    """
    found: dict[object, int] = {}
    raised = False
    for place in range(at, len(steps)):
        step = steps[place]
        if step.depth != depth:
            continue
        if step.event == "return":
            return found, None if raised else place
        raised = step.event == "raise"
        if step.event == "line" and step.line not in inside:
            found.setdefault(step.key, place)
    return found, None


def parting_of(differ: Differing, ways: Mapping[int, Way]) -> Parting:
    """Where the ways of these ranks part. `ways` may lack ranks: they are not told of."""
    sides = [some for side in differ.sides if (some := [rank for rank in side if rank in ways])]
    chains: dict[int, list[_At]] = {}
    for side in sides if len(sides) > 1 else ():
        against = sides[1 if side is sides[0] else 0][0]
        for rank in side:
            if chain := _chain(differ, (rank, ways[rank]), (against, ways[against])):
                chains[rank] = chain
    if differ.one_call and chains:  # the way of the rank that issued it tells where
        one, other = (side[0] for side in sides)
        if differ.turns and _each_has_a_branch(chains[one][-1], ways[other].steps, differ.turns):
            return _of_one(differ, other, ways[other])
        chains[other] = [at.turned() for at in chains[one]]
    first = chains.get(sides[0][0], []) if sides else []
    last = {rank: chain[-1].tests[0].issued for rank, chain in chains.items()}
    return {
        "tests": [_test(_line_of(at), chains) for at in first],
        "group": differ.group,
        "between": {str(rank): differ.between(rank, issued) for rank, issued in last.items()} if first else {},
    }


def _each_has_a_branch(parts: _At, steps: Sequence[Step], turns: Sequence[int]) -> bool:
    """Whether the other rank issues its calls in a branch of the same statement: `if a: send(), else: recv()`."""
    before = {step.issued: step for step in steps if step.depth == parts.depth}
    inside = range(parts.statement.first, parts.statement.last + 1)
    return all(at in before and before[at].line in inside for at in turns)


def _of_one(differ: Differing, rank: int, way: Way) -> Parting:
    """Where a rank's way parts from its own, a call before."""
    assert differ.turns is not None
    first, last = differ.turns
    before = [step for step in way.steps if first < step.issued <= last]
    pair = _Pair([step for step in way.steps if step.issued > last], before)
    standing = _standing([step for step in way.steps if step.issued <= first])
    pair.last = {step.depth: (step, step) for step in standing}
    pair.depth = max(pair.last, default=0)
    found = pair.part()
    chains = {rank: [found]} if found else {}
    return {"tests": [_test(_line_of(at), chains) for at in chains.get(rank, ())], "group": differ.group, "between": {}}


def _chain(differ: Differing, one: tuple[int, Way], other: tuple[int, Way]) -> list[_At]:
    """Where the way of a rank parts from another's: the tests whose statements set what the last one read, and it."""
    (rank, way), (peer, theirs) = one, other
    whole = _Pair((), ()) if way.dropped or theirs.dropped else _Pair(way.steps, theirs.steps)
    whole.part()
    here: dict[int, tuple[Step, Step]] = {}
    for mine, same in zip(_standing(way.before), _standing(theirs.before), strict=False):
        if mine.key != same.key:
            break
        here[mine.depth] = mine, same
    pair = _Pair(way.within, theirs.within, here, depth=max(here, default=0))
    found = pair.part()
    met = whole.met or pair.met
    if not (differ.joined or differ.one_call):  # one issued more calls than the other, and has been ahead since
        ahead = [at.behind and differ.count(rank, at.behind[0]) - differ.count(peer, at.behind[1]) for at in met]
        since = next((n for n in range(len(met), 0, -1) if not ahead[n - 1]), 0)
        if since < len(met):
            found = met[since]
            met = met[:since]
    if found is None:  # one statement, which issued a call on one rank alone: told is what set what it reads
        last = pair.last.get(pair.depth)
        return [] if last is None else _set_before(met, _reads_at(last[0]))
    return [*_setters(met, found, way.steps), found]


def _reads_at(step: Step) -> Set[str]:
    statement = statement_at(step.file, step.line)
    return statement.reads if statement else frozenset()


def _set_before(met: Sequence[_At], reads: Set[str]) -> list[_At]:
    """The last statement at which they parted before that set what is read."""
    return next(([at] for at in reversed(met) if at.statement.stores & reads), [])


def _standing(steps: Iterable[Step]) -> list[Step]:
    """The line that each frame of the program on the stack stands at, behind these steps, the outermost first."""
    stack: dict[int, Step] = {}
    for step in steps:
        if step.event == "line":
            stack[step.depth] = step
        if step.event in ("line", "call", "return"):
            for deeper in [depth for depth in stack if depth > step.depth - (step.event == "return")]:
                del stack[deeper]
    return [stack[depth] for depth in sorted(stack)]


def _setters(met: Sequence[_At], found: _At, way: Sequence[Step]) -> list[_At]:
    """The last statement at which they parted before that set what the test reads, or the function called in it."""
    reads = set(found.statement.names)
    line = found.tests[0]
    for step in way[next(at for at, step in enumerate(way) if step is line) + 1 :]:
        if step.depth <= found.depth:
            break
        if step.depth == found.depth + 1 and step.event == "line":
            inner = statement_at(step.file, step.line)
            reads |= set(inner.names) if inner else set()
    return _set_before([at for at in met if at.statement.branches and at.statement != found.statement], reads)


def _line_of(at: _At) -> tuple[str, int]:
    return at.tests[0].file, at.statement.first


def _test(line: tuple[str, int], chains: Mapping[int, list[_At]]) -> Test:
    values: dict[tuple[str, Plain], list[int]] = {}
    sides: dict[tuple[str, int, str], list[int]] = {}
    text = ""
    for rank, chain in chains.items():
        for at in chain:
            if _line_of(at) == line:
                text = at.statement.text
                for read in at.tests[0].values:
                    values.setdefault(read, []).append(rank)
                sides.setdefault(_went(at), []).append(rank)
    return {
        "file": line[0],
        "line": line[1],
        "text": text,
        "values": [{"ranks": sorted(ranks), "name": name, "value": value} for (name, value), ranks in values.items()],
        "sides": [{"ranks": sorted(ranks), "how": how, "line": n, "text": t} for (how, n, t), ranks in sides.items()],
    }


def _went(at: _At) -> tuple[str, int, str]:
    step, test = at.nexts[0], at.tests[0]
    if step is test:
        return "block" if taken(step) else "past", test.line, at.statement.text
    if step is None:
        return "issue", test.line, at.statement.text
    if step.event == "raise":
        return "raise", step.line, str(step.values[0][1])
    how = "line" if step.depth == at.depth and step.event == "line" else step.event
    return how, step.line, linecache.getline(step.file, step.line).strip()
