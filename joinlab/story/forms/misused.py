"""Runs that finished and whose calls all met, but that used a call in a way that PyTorch forbids:
without wait() on its Work, with a tensor that was changed before wait(), or on a group that its
rank is not in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from joinlab.analysis.wording import by_key, good, short_site
from joinlab.ops import Op, decode_values
from joinlab.story.evidence import Evidence
from joinlab.story.lines import Fix, Headline, Line, RankEnds, SourceLine, form
from joinlab.story.words import Part, Text, every_rank, listing, say
from joinlab.timeline import CallRow, EndKind


def find(evidence: Evidence) -> tuple[Line, ...]:
    """The headline, and what to do about a Work."""
    if not all(good(end) and end.kind is EndKind.FINISHED for end in evidence.ends):
        return ()
    return (
        _unwaited(evidence)
        or _overwritten(evidence)
        or _outside(evidence)
        or grouped(evidence, unlike=False)
    )


@form
class NotWaited(Headline):
    world: int

    def words(self) -> Text:
        return say(
            "{} finished, but nobody waited for {}'s {}.",
            every_rank(self.world),
            self.ranks,
            self.brief(0),
        )


@form
class WaitForWork(Fix):
    """What to do about a Work."""

    form = "wait"
    site: str | None

    def words(self) -> Text:
        return say(
            "Call wait() on what the call returned{} before its tensor is read.",
            _site_text(self.site),
        )


class LeftBehind(Headline):
    """A send that was not received when its rank ended, since nobody waited for it."""

    def words(self) -> Text:
        template = "{} ended before [its|their] {} was received: nobody waited for it."
        return say(template, self.ranks, self.brief(0))

    def bad_ends(self) -> list[RankEnds]:
        """Without what its words say."""
        return [group for group in Headline.bad_ends(self) if not group.pending]


class WaitToEnd(WaitForWork):
    """What to do about the Work of a send."""

    form = "wait_to_end"

    def words(self) -> Text:
        return say("Call wait() on what the call returned{}.", _site_text(self.site))


def left_behind(evidence: Evidence) -> tuple[Line, ...]:
    """A send that nothing met and nobody waited for, where its peer was in the recv when its rank
    ended."""
    row = _left(evidence)
    if row is None:
        return ()
    lines = tuple(filter(None, [evidence.line_of(row, [row["rank"]])]))
    return (LeftBehind(lines=lines, **evidence.about([[row["rank"]]], [row])),)


def wait_to_end(evidence: Evidence) -> Iterator[Line]:
    """What to do about it."""
    row = _left(evidence)
    if row is not None:
        yield WaitToEnd(row["call_site"], ranks=(row["rank"],))


def _left(evidence: Evidence) -> CallRow | None:
    """That send."""
    slot = evidence.mismatch
    for rank, row in evidence.matched.calls_of(slot).items() if slot is not None else ():
        peer, waited = row["peer"], row["host_wait_begin_ns"] is not None
        if row["op"] != Op.SEND or peer is None or waited:
            continue
        key, finished = evidence.awaited(peer), evidence.ends[rank].kind is EndKind.FINISHED
        recv = evidence.matched.row_of[key] if key is not None and finished else None
        if recv is None or recv["op"] != Op.RECV or recv["peer"] != rank:
            continue
        if (recv["group"], recv["tag"]) == (row["group"], row["tag"]):
            return row
    return None


def _unwaited(evidence: Evidence) -> tuple[Line, ...]:
    dropped = evidence.meta.get("unwaited", ())
    rows = [evidence.timeline.call(one["rank"], one["seq"], one["group"]) for one in dropped]
    if not rows:
        return ()
    site = rows[0]["call_site"]
    same = [row for row in rows if row["call_site"] == site]
    ranks = sorted({row["rank"] for row in same})
    lines = tuple(filter(None, [evidence.line_of(rows[0], ranks)]))
    headline = NotWaited(len(evidence.ends), lines=lines, **evidence.about([ranks], same[:1]))
    if evidence.meta.get("fixes_hidden"):
        return (headline,)
    return (headline, WaitForWork(site, ranks=tuple(ranks)))


@form
class Overwritten(Headline):
    """A recv and the send that it met. elements: the first value received that differs, and that with
    which the send was issued"""

    world: int
    elements: Sequence[object]

    def words(self) -> Text:
        template = (
            "{} finished, but {}'s {} got {}, and {}'s {} was issued with {}: "
            "a tensor was changed before wait()."
        )
        texts: list[Part] = [every_rank(self.world)]
        for index, element in enumerate(self.elements):
            texts += [self.sides[index], self.noun(index), str(element)]
        return say(template, *texts)


class WaitToChange(Fix):
    def words(self) -> Text:
        return say("Call wait() on what isend or irecv returned before its tensor is changed.")


def _overwritten(evidence: Evidence) -> tuple[Line, ...]:
    """The first recv whose data is not what the send that it met was issued with."""
    for slot in evidence.matched.slots:
        if not slot.pair or not slot.met or slot.differs:
            continue
        rows = sorted(evidence.matched.calls_of(slot).values(), key=lambda row: row["op"])
        came, issued = decode_values(rows[0]["value_out"]), decode_values(rows[1]["value_in"])
        for elements in zip(chain(*came or ()), chain(*issued or ()), strict=False):
            if repr(elements[0]) != repr(elements[1]):  # nan is nan
                lines = [evidence.line_of(row, [row["rank"]]) for row in rows]
                headline = Overwritten(
                    len(evidence.ends),
                    elements,
                    lines=tuple(filter(None, lines)),
                    **evidence.about([[row["rank"]] for row in rows], rows),
                )
                if evidence.meta.get("fixes_hidden"):
                    return (headline,)
                return (headline, WaitToChange())
    return ()


@form
class OutsideGroup(Headline):
    """A call for a group that its rank is not in. name: of the function"""

    form = "outside"
    world: int
    name: str

    def words(self) -> Text:
        template = (
            "{} finished, but {} called {}{} for a group that [it is|they are] not in: it did "
            "nothing."
        )
        where = _site_text(self.lines[0].site)
        return say(template, every_rank(self.world), self.ranks, self.name, where)


def _outside(evidence: Evidence) -> tuple[Line, ...]:
    outside = evidence.meta.get("outside", ())
    if not outside:
        return ()
    first = outside[0]
    ranks = tuple(sorted({one["rank"] for one in outside if one["site"] == first["site"]}))
    lines = (SourceLine(first["site"], "", ranks),)
    return (OutsideGroup(len(evidence.ends), first["name"], ranks=ranks, lines=lines),)


@form
class Grouped(Headline):
    """A group that not all ranks named. members: those that each side named"""

    members: Sequence[Sequence[int]]

    def words(self) -> Text:
        parts: list[Text] = []
        for ranks, members in zip(self.sides, self.members, strict=True):
            called = "" if parts else f" called new_group{_site_text(self.lines[0].site)}"
            parts.append(say("{}{} for {}", ranks, called, members))
        return say("{}: every rank has to, alike.", listing(parts))


def _site_text(site: str | None) -> str:
    return f" ({short_site(site)})" if site else ""


def grouped(evidence: Evidence, unlike: bool = True) -> tuple[Line, ...]:
    """The first group that not all ranks named: some named other members, or, not `unlike`, they
    did not call new_group."""
    by_name = by_key((item["group"], item) for item in evidence.meta.get("grouped", ()))
    for groupings in () if evidence.meta.get("missing_ranks") else by_name.values():
        members = [item["members"] for item in groupings]
        if unlike == (len(members) > 1) and len(max(members, key=len)) > 1:
            sides, site = [item["ranks"] for item in groupings], groupings[0]["site"]
            lines = (SourceLine(site, "", tuple(sides[0])),)
            return (Grouped(members, lines=lines, **evidence.about(sides)),)
    return ()
