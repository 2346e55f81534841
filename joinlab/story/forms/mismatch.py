"""The mismatch: calls that differ in one place, or that nothing meets, and what the ranks made of
them.

There is one function for each relation of their calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

from joinlab.analysis.first_difference import Relation, Side
from joinlab.analysis.matching import Slot, key_of
from joinlab.analysis.wording import by_key, differing_text
from joinlab.ops import COUNTERPART, POINT_TO_POINT, Op
from joinlab.story.evidence import Evidence
from joinlab.story.forms import meeting, silent
from joinlab.story.forms.fates import has_lost_peer, is_timeout
from joinlab.story.lines import Cause, Headline, Line, RankEnds, form
from joinlab.story.words import Part, Piece, Text, as_sentence, ends, every_rank, listing, say, who
from joinlab.timeline import STOPPED, CallRow, Ending, EndKind

FEW = 3
"""Up to this many sides, the headline says what each side gave."""


class Mismatch(Headline):
    """Calls that did not meet their counterparts. Where all ranks finished nevertheless, it says
    so."""

    def endings(self, counted: bool = False) -> Text:
        lucky = all(group.good and group.kind is EndKind.FINISHED for group in self.ends)
        if not self.ends or not lucky:
            return Headline.endings(self, counted)
        if self.caught:
            finished = as_sentence((who(self.caught),))
            return say(" {} finished, though a call had failed.", finished)
        ranks = tuple(chain.from_iterable(group.ranks for group in self.ends))
        return say(
            " {} finished, by luck.", as_sentence((Piece(every_rank(len(ranks)), ranks=ranks),))
        )


class Circle(Mismatch):
    """Ranks that wait for each other. Up to two calls by name; ENDED has each rank's own."""

    def words(self) -> Text:
        parts = []
        for index, ranks in enumerate(self.sides):
            parts.append(say("{} in {}", ranks, self.brief(index)))
        if len({(call.name, call.site) for call in self.calls}) == 1:
            several = len({call.group for call in self.calls}) > 1
            groups = ", of different groups" if several else ""
            if len({call.peer for call in self.calls}) > 1:
                same = self.with_site(0)
            else:
                same = self.brief(0)
            return say("{} wait for each other, each in {}{}.", self.ranks, same, groups)
        if len(parts) > 2:
            return say("{} wait for each other in a circle.", self.ranks)
        return say("{} wait for each other: {}.", self.ranks, listing(parts))


class OtherTag(Mismatch):
    """A send and a recv of two ranks that wait for each other, with different tags."""

    def words(self) -> Text:
        calls = [
            say("{}'s {} has tag {}", ranks, self.brief(index), str(self.calls[index].tag))
            for index, ranks in enumerate(self.sides)
        ]
        return say("{}: they never meet.", listing(calls))


def circle(evidence: Evidence) -> tuple[Line, ...]:
    """Ranks that wait for each other in a circle, each in a call that the next one left out."""
    rows = evidence.difference.circle or _crossed(evidence)
    if not rows:
        return ()
    by_call: dict[tuple[object, ...], tuple[CallRow, set[int]]] = {}
    for row, before in zip(rows, (rows[-1], *rows), strict=False):
        call = row["origin"], row["op"], row["number"], row["group"], row["call_site"]
        needs = evidence.slot_of(key_of(before)).needs
        by_call.setdefault(call, (row, set()))[1].update(
            {*evidence.difference.ranks((row["rank"],))} & {*needs}
        )
    ranks_by_call = [sorted(ranks) for _, ranks in by_call.values()]
    first = [row for row, _ in by_call.values()]
    call_rows = [
        # Ranks that share a call wait for a peer each.
        row if len(ranks) == 1 else {**row, "peer": None}
        for row, ranks in zip(first, ranks_by_call, strict=True)
    ]
    fields = evidence.about(ranks_by_call, call_rows)  # type: ignore[arg-type]
    if len(fields["calls"]) == 2:
        ours, theirs = fields["calls"]
        opposite = theirs.peer, theirs.rank, COUNTERPART.get(theirs.op), theirs.within
        if (ours.rank, ours.peer, ours.op, ours.within) == opposite and ours.tag != theirs.tag:
            return (OtherTag(**fields),)
    ranks_by_line = by_key(
        (evidence.line_of(row, ()), rank)
        for row, ranks in zip(first, ranks_by_call, strict=True)
        for rank in ranks
    )
    lines = tuple(
        replace(line, ranks=tuple(ranks)) for line, ranks in ranks_by_line.items() if line
    )
    headline = Circle(lines=lines, **fields)
    return (headline, *(meeting.causes(evidence) if evidence.difference.circle else ()))


def _crossed(evidence: Evidence) -> tuple[CallRow, ...]:
    """Sends and recvs in which ranks wait: each rank would issue the one that the next rank waits
    for only later."""
    waits: dict[int, CallRow] = {}
    for rank, end in enumerate(evidence.ends):
        stands = end.pending or end.kind is EndKind.HUNG
        if stands and evidence.difference.slot_index is None:
            key = evidence.awaited(rank)
        else:
            key = None
        # A call behind another on its stream: what counts is the call that holds it up.
        while key is not None and (held_up_by := evidence.held_by(key)):
            key = held_up_by
        if key is not None and (row := evidence.matched.row_of[key])["op"] in POINT_TO_POINT:
            slot, peer = evidence.slot_of(key), row["peer"]
            if peer in slot.calls and (
                end.kind is EndKind.HUNG
                or evidence.difference.call(slot, peer)["started_ns"] is None
            ):
                waits[rank] = row
    # From peer to peer, until one comes again: from there on it is a circle.
    path: list[int] = []
    rank_there = next(iter(waits), None)
    while rank_there in waits and rank_there not in path:
        path.append(rank_there)
        rank_there = waits[rank_there]["peer"]
    if rank_there in path:
        return tuple(waits[rank] for rank in path[path.index(rank_there) :])
    return ()


class WrongAnswer(Mismatch):
    """A question that another call answered."""

    def words(self) -> Text:
        asker, answer = self.sides[:2]
        return say(
            "{} asked: {} {}'s {} answered.",
            asker,
            self.noun(0, quote=False),
            as_sentence((who(answer),)),
            self.noun(1),
        )


def wrong_answer(evidence: Evidence) -> tuple[Line, ...]:
    """Two calls that met, of which one asks and has read the other's value: "anyone left?" met a
    barrier."""
    difference, slot = evidence.difference, evidence.difference.slot
    rows = [difference.call(slot, side[0]) for side in difference.answered]
    sides = evidence.sides(difference.answered)
    values = (meeting.value_of(evidence, difference.answered[0], rows[0]),)
    headline = WrongAnswer(
        lines=evidence.lines_at(slot), values=values, **evidence.about(sides, rows)
    )
    return (headline, *meeting.causes(evidence))


@form
class More(Mismatch):
    """Calls that some ranks issued more often than others. counts: of both sides"""

    by: int
    counts: Sequence[int]

    def words(self) -> Text:
        who_has, lagging = self.sides
        many = "one" if self.by == 1 else f"{self.by} calls of"
        sites = "".join(call.site_text for call in self.calls)
        call = say("{} {}{}", many, self.noun(0, quote=False), sites)
        return say(
            "{} issued {} {} than {} ({} and {}).",
            who_has,
            call,
            self.form,
            lagging,
            *map(str, self.counts),
        )


class Fewer(More):
    """Calls that some ranks issued less often than all others."""


def extra(evidence: Evidence) -> tuple[Line, ...]:
    """Calls that one side issued more often than the other, by their counts."""
    difference, lead = evidence.difference, evidence.difference.lead
    assert lead is not None and difference.counts is not None
    ahead, behind, calls = difference.counts
    sides, counts, form = [lead.ahead, lead.behind], [ahead, behind], More
    if difference.outliers == difference.ranks(lead.behind):
        sides, counts, form = sides[::-1], counts[::-1], Fewer
    fields = evidence.about(evidence.sides(sides), calls)
    headline = form(ahead - behind, counts, **fields)
    first = since(evidence)
    met = (meeting.met(evidence, *first),) if first else ()
    return (headline, *met, *meeting.causes(evidence))


def since(evidence: Evidence) -> tuple[Slot, Sequence[Side]] | None:
    """Where the first extra call met another, and both sides, if each came from a line of its own."""
    difference, lead = evidence.difference, evidence.difference.lead
    if difference.relation is not Relation.MORE or lead is None or difference.joins:
        return None
    slot, sides = difference.slots[difference.first or 0], (lead.ahead, lead.behind)
    rows = [difference.call(slot, side[0]) for side in sides if side[0] in slot.calls]
    if slot is difference.slot or len({row["call_site"] for row in rows}) < 2:
        return None
    return slot, sides


@form
class OtherCall(Mismatch):
    """Different calls in one place, or none. finished: the ranks that finished instead"""

    finished: Sequence[int]

    def words(self) -> Text:
        parts = []
        for index, ranks in enumerate(self.sides):
            parts.append(say("{} called {}", ranks, self.noun(index)))
        if self.finished:
            parts.append(say("{} finished", self.finished))
        return say("{}, where {}.", parts[0], listing(parts[1:]))


@form
class OtherData(Mismatch):
    """One call with different data. given: what each side gave"""

    differs: Sequence[str]
    given: Sequence[str]

    def words(self) -> Text:
        if len(self.calls) > FEW:
            differs = differing_text(self.differs)
            return say("{} called {}, but differ in {}.", self.ranks, self.noun(0), differs)
        parts = []
        for index, ranks in enumerate(self.sides):
            named = not index or self.calls[index].op != self.calls[0].op
            name = say(" called {}", self.noun(index)) if named else ()
            parts.append(say("{}{} with {}", ranks, name, self.given[index]))
        return say("{}, {}.", parts[0], listing(parts[1:]))


def other_data(evidence: Evidence) -> tuple[Line, ...]:
    """One call with different data."""
    slot, rows = evidence.difference.slot, evidence.difference.rows
    given = [meeting.given(row, slot.differs) for row in rows]
    fields = evidence.about(evidence.sides(evidence.difference.present), rows)
    return (
        OtherData(slot.differs, given, lines=evidence.lines_at(slot), **fields),
        *meeting.causes(evidence),
        *meeting.keys(evidence),
    )


def other_call(evidence: Evidence) -> tuple[Line, ...]:
    """Different calls in one place: their kind or origin differs."""
    slot, sides = evidence.difference.slot, evidence.sides(evidence.difference.present)
    finished = [rank for rank in slot.absent if evidence.ends[rank].kind is EndKind.FINISHED]
    ranks = tuple(sorted({*finished, *chain(*sides)}))
    fields = evidence.about(sides, evidence.difference.rows, ranks)
    headline = OtherCall(finished, lines=evidence.lines_at(slot), **fields)
    return (headline, *meeting.causes(evidence))


@form
class Alone(Mismatch):
    """A call that nothing meets. how: what the `absent` ranks do instead, in _ALONE, or how they
    ended"""

    absent: Sequence[int]
    how: str

    def words(self) -> Text:
        parts: dict[str, Part] = {
            "ranks": self.ranks,
            "absent": self.absent,
            "mine": self.sides[0],
            "call": self.brief(0),
        }
        if self.how in _ALONE:
            return say(_ALONE[self.how], **parts)
        absent = ends(self.absent, self.how)
        return say("{ends}; nothing meets {mine}'s {call}.", ends=absent, **parts)

    def bad_ends(self) -> list[RankEnds]:
        """Without what its words say."""
        if self.how in ("timed_out", "all_killed", "all_stopped"):
            return []
        groups = []
        for group in Headline.bad_ends(self):
            if self.how == "lost_peer":
                group = replace(group, ranks=tuple({*group.ranks} - {*self.ranks}))
            elif group.kind == self.how and not group.pending and len(self.ends) > 1:
                group = replace(group, ranks=tuple(sorted({*group.ranks} - {*self.absent})))
            groups.append(group)
        return [group for group in groups if group.ranks]


_ALONE = {
    "nothing": "No call meets {mine}'s {call}.",
    "all_stopped": "{ranks} [was|were] stopped; {absent} had not come to {mine}'s {call}.",
    "all_killed": "{ranks} ended abruptly; {absent} had not come to {mine}'s {call}.",
    "lost_peer": "{mine} ended abruptly in {call}, and {absent} lost the connection.",
    "timed_out": "{absent} had not come to {mine}'s {call}, and their time was up.",
    "completed": "There is no record of {absent}; {mine} completed {call}.",
    "no_record": "There is no record of {absent}; {mine} wait[s|] in {call}.",
    "out_of_time": "{absent} [was|were] still running when the time was up; nothing meets {mine}'s {call}.",
    "runs": "{absent} [is|are] still running; nothing meets {mine}'s {call}.",
    EndKind.HUNG: "{absent} wait[s|] elsewhere; nothing meets {mine}'s {call}.",
    EndKind.UNKNOWN: "{absent} [has|have] no more calls on record; nothing meets {mine}'s {call}.",
}
"""By the reason why the other ranks do not issue the call; otherwise, they have ended."""


def alone(evidence: Evidence) -> tuple[Line, ...]:
    """A call that nothing meets: its peers have ended, or wait elsewhere."""
    difference, slot = evidence.difference, evidence.difference.slot
    side = difference.present[0]
    absent = slot.absent
    alongside = tuple(rank for rank in difference.ranks(side) if rank in slot.needs)
    which = [rank for rank in absent if evidence.ends[rank].kind is not EndKind.HUNG] or absent
    unrecorded = [rank for rank in which if rank in evidence.meta.get("missing_ranks", ())]
    state = "nothing"
    if unrecorded:
        done = difference.call(slot, side[0])["completed_ns"] is not None
        which, state = unrecorded, "completed" if done else "no_record"
    elif which:
        first = min(which, key=partial(_ended_later, evidence))
        end, ended = evidence.ends[first], _ended_later(evidence, first)
        which = [
            rank
            for rank in which
            if (evidence.ends[rank].kind, evidence.ends[rank].runs) == (end.kind, end.runs)
            and (end.kind is not EndKind.RAISED or _ended_later(evidence, rank) == ended)
        ]
        if out_of_time(end):
            state = "out_of_time"
        elif end.runs:
            state = "runs"
        else:
            state = end.kind.value
        if state == EndKind.KILLED and all(
            is_timeout(evidence.ends[rank].text) for rank in alongside
        ):
            state = "timed_out"  # and then their launcher ended the others
        if state == EndKind.KILLED and all(
            evidence.ends[rank].kind is EndKind.KILLED for rank in (*which, *alongside)
        ):
            # perhaps one was killed first, and its launcher then killed the others
            state = "all_killed"
            if {evidence.ends[rank].how for rank in (*which, *alongside)} == {STOPPED}:
                state = "all_stopped"
        if state == EndKind.KILLED:
            state = end.how
        if all(has_lost_peer(evidence.ends[rank]) for rank in which) and all(
            evidence.ends[rank].kind is EndKind.KILLED for rank in alongside
        ):
            state = "lost_peer"
    ranks = sorted({*which, *alongside})
    rows = [meeting.row_of(evidence, slot, side)]
    return (
        Alone(
            which, state, lines=evidence.lines_at(slot), **evidence.about([alongside], rows, ranks)
        ),
        *_exchanged(evidence, slot, rows[0]),
        *meeting.causes(evidence),
    )


@form
class Exchanged(Cause):
    """How many sends a rank issued to another one, and that one recvs."""

    sends: int
    recvs: int

    def words(self) -> Text:
        sends, recvs = silent.times(self.sends), silent.times(self.recvs)
        sender, receiver = self.sides
        return say(
            "{} called send {} for {}, which called recv {}.", sender, sends, receiver, recvs
        )


def _exchanged(evidence: Evidence, slot: Slot, row: CallRow) -> Iterator[Line]:
    """The counts of a send or recv that nothing meets, where some others of these two ranks met."""
    peer = row["peer"]
    if peer is None:  # a collective
        return
    for surplus, counterparts in evidence.unpaired:
        first = surplus[0][1]
        if counterparts and all(
            first[name] == row[name] for name in ("rank", "peer", "group", "op")
        ):
            sides, counts = [[row["rank"]], [peer]], [len(surplus), len(counterparts)]
            if row["op"] == Op.RECV:
                sides.reverse()
                counts.reverse()
            yield Exchanged(*counts, lines=evidence.lines_at(slot), **evidence.about(sides))


def _ended_later(evidence: Evidence, rank: int) -> tuple[bool, bool, bool]:
    """Orders ranks: those that were killed, that raised outside of all calls, that raised in one,
    that finished."""
    kind = evidence.ends[rank].kind
    return kind is EndKind.FINISHED, kind is not EndKind.KILLED, evidence.awaited(rank) is not None


def out_of_time(end: Ending) -> bool:
    """Whether joinlab ended a rank because its time was over."""
    return end.kind is EndKind.KILLED and "still running after" in end.text
