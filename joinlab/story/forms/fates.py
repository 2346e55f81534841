"""Fates: how each rank ended, and why. The backend's matching rule says what a rank's open call
lacks.

A hang is proven if its ending says so. If two ranks differ, neither is called wrong, since that
depends on the program's intent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from joinlab.analysis.matching import Slot, differences
from joinlab.analysis.wording import good
from joinlab.backend.calls import Key, call_of, is_peer_gone
from joinlab.ops import COUNTERPART
from joinlab.program.labels import Frame, owner_of
from joinlab.showing import short_site
from joinlab.story.evidence import Evidence
from joinlab.story.forms.meeting import given
from joinlab.story.lines import Line, LineKind, NamedCall, SourceLine, form
from joinlab.story.words import ENDINGS, Part, Text, listing, say
from joinlab.timeline import CallRow, Ending, EndKind, backend_of

CALLERS = 2
"""How many of the lines that led to a raise or to a call are shown, nearest first."""

TIMED_OUT = (
    "Timed out waiting",
    "Application timeout caused pair closure",
    "collective operation timeout",
    "Socket Timeout",
    "wait timeout after",
    "seconds waiting for clients",
)
"""Of gloo, of its calls behind one that timed out, of NCCL's watchdog and of a store, when no peer
came in time."""


def is_timeout(text: str) -> bool:
    return any(phrase in text for phrase in TIMED_OUT)


def has_lost_peer(end: Ending) -> bool:
    """Whether a rank raised because another one's process had ended."""
    return end.kind is EndKind.RAISED and is_peer_gone(end.text)


MOST = 240
"""Most characters of an error's text to quote."""


@dataclass(frozen=True, slots=True)
class Lack:
    """What a call lacks.

    ranks         whose calls
    how           how they block it, in _LACKS
    call          the place in Line.calls of what they issued
    end           how they ended
    pair          the op of the counterpart that is not there, or is held up
    theirs, mine  what they gave, and what the rank gave
    """

    ranks: tuple[int, ...]
    how: str
    call: int | None = None
    end: str | None = None
    pair: str = ""
    theirs: str = ""
    mine: str = ""


_LACKS = {
    "ended": "{them} {end}{pair}",
    "outside": "{them} [is|are] outside any recorded call",
    "elsewhere": "{them} wait[s|] in {theirs}",
    "behind": "{them} issued the {other} behind {theirs}",
    "before": "{them} wait[s|] in {theirs} before it",
    "kinds": "{them} issued {theirs}, and on gloo calls of different kinds never meet",
    "values": "{them} issued it with {given}",
    "instead": "{them} issued {theirs}",
    "done": "{them} completed {theirs} without it",
}
"""By `how` of a Lack."""


@form
class Fate(Line):
    """How ranks ended. Calls are named by their places in `calls`.

    text       what is known of the ending
    pending    whether they left a call pending
    in_        the call that they ended in
    behind     their own calls that hold it up
    why        what it lacks
    after      the last call, if they ended in none
    after_is   what became of that call: "" if it completed, else "failed" or "open"
    peer_gone  whether gloo raised because a peer had ended
    overrun    whether gloo aborts a process that is sent more than its call has room for
    sends      a send or recv that the text names
    left       whether they left by sys.exit
    proven     of a hang, as in Ending; modelled: by the model
    """

    text: str = ""
    pending: bool = False
    in_: int | None = None
    behind: tuple[int, ...] = ()
    why: tuple[Lack, ...] = ()
    after: int | None = None
    after_is: str = ""
    peer_gone: bool = False
    overrun: bool = False
    sends: str = ""
    left: bool = False
    proven: bool = False
    modelled: bool = False
    kind: LineKind = field(default=LineKind.FATE, kw_only=True)

    def inside(self) -> Text:
        """The call that they ended in, and why it does not complete: " in barrier, call 7: rank 0
        has finished"."""
        if self.in_ is None:
            return ()
        its = "their" if len(self.ranks) > 1 else "its"
        behind = [say(", behind {} own {}", its, self.full(index)) for index in self.behind]
        return say(" in {}{}{}", self.full(self.in_), tuple(chain(*behind)), self.lacking())

    def lacking(self) -> Text:
        lacks = list(map(self._lack, self.why))
        return say(": {}", listing(lacks, "; ")) if lacks else ()

    def _lack(self, lack: Lack) -> Text:
        kind = lack.end or EndKind.UNKNOWN
        has = "has" if len(lack.ranks) == 1 else "have"
        parts: dict[str, Part] = {
            "them": lack.ranks,
            "theirs": () if lack.call is None else self.full(lack.call),
            "other": lack.pair,
            "pair": f" without a {lack.pair}" if lack.pair else "",
            "given": f"{lack.theirs}, not {lack.mine}",
            "end": f"{has} {ENDINGS[kind].past}",
        }
        return say(_LACKS[lack.how], **parts)

    def last_seen(self) -> Text:
        if self.after is None:
            return ()
        when = "at" if self.after_is == "open" else "after"
        failed = ", which failed" if self.after_is == "failed" else ""
        return say(", last seen {} {}{}", when, self.full(self.after), failed)


class Finished(Fate):
    def words(self) -> Text:
        if self.left:
            return say("{} left by sys.exit ({}).", self.ranks, short_site(self.lines[0].site))
        if not self.pending:
            return say("{} finished.", self.ranks)
        if self.in_ is None:
            return say("{} finished, but left a call behind that was still pending.", self.ranks)
        return say(
            "{} finished, but left {} pending{}.", self.ranks, self.full(self.in_), self.lacking()
        )


class Hung(Fate):
    def words(self) -> Text:
        if not self.proven:
            if self.in_ is None:
                verb = "make[s|] no progress outside any recorded call"
            else:
                verb = "wait[s|]"
            template = "{} " + verb + "{}. A hang is only suspected: {}."
            where = self.inside() or self.last_seen()
            return say(template, self.ranks, where, self.text or "it made no progress")
        if self.modelled and self.in_ is None:
            proof = "in the model no rank can go on"
        else:
            proof = "no issued call can end this wait"
        text = _of_several(self.text, self.ranks)
        detail = f" {text[:1].upper()}{text[1:]}." if text else ""
        location = self.inside() or say(" outside any recorded call{}", self.last_seen())
        return say("{} hang[s|]{}.{} Proven: {}.", self.ranks, location, detail, proof)


class Raised(Fate):
    def words(self) -> Text:
        if self.peer_gone:
            return say(
                "{} raised an error{}: on gloo a process that ends closes its connections.",
                self.ranks,
                self.inside(),
            )
        sites = [
            short_site(source_line.site)
            for line in self.lines
            for source_line in (line, *line.via[:CALLERS])
        ]
        trail = f" ({', called from '.join(sites)})" if sites else ""
        location = say(",{}", self.inside()) if self.in_ is not None else ()
        return say("{} raised {}{}{}.", self.ranks, self.text or "an error", trail, location)


class Killed(Fate):
    def words(self) -> Text:
        text = _of_several(self.text, self.ranks)
        ending, why = (
            (text, "") if text.startswith("ended by") else ("ended", f": {text}" if text else "")
        )
        overrun = " Gloo aborts a process that is sent more bytes than its call has room for."
        unseen = "" if why else " before its program returned"
        location = self.inside() or self.last_seen() or unseen
        return say(
            "{} [was|were] {}{}{}.{}", self.ranks, ending, location, why, overrun * self.overrun
        )


class Unknown(Fate):
    def words(self) -> Text:
        text = _of_several(self.text or "the record ends earlier", self.ranks)
        if self.in_ is not None:
            return say(
                "{} [was|were] last seen{}. How [it|they] ended is not known: {}.",
                self.ranks,
                self.inside(),
                text,
            )
        if self.sends:
            return say("{} issued {} last: {}.", self.ranks, self.sends, text)
        if self.after is None:
            return say("No call of {} is known: {}.", self.ranks, text)
        return say("{} [has|have] no known ending{}: {}.", self.ranks, self.last_seen(), text)


class Running(Fate):
    def words(self) -> Text:
        where = self.inside() or say(" still running{}", self.last_seen())
        return say("{} [is|are]{}.", self.ranks, where)


_FORMS: Mapping[EndKind, type[Fate]] = {
    EndKind.FINISHED: Finished,
    EndKind.HUNG: Hung,
    EndKind.RAISED: Raised,
    EndKind.KILLED: Killed,
    EndKind.UNKNOWN: Unknown,
}

_PLURAL = (
    ("its process was", "their processes were"),
    ("its process is", "their processes are"),
    ("its process has", "their processes have"),
    ("its process", "their processes"),
    ("its record has", "their records have"),
    ("its record ends", "their records end"),
    ("its host", "their hosts"),
    ("its NCCL watchdog", "their NCCL watchdog"),
    ("it was", "they were"),
    ("it waits", "they wait"),
    ("it may", "they may"),
    ("it did not", "they did not"),
    ("it ended", "they ended"),
    ("it wrote", "they wrote"),
    ("ended it", "ended them"),
)


def _of_several(text: str, ranks: Sequence[int]) -> str:
    """The text of an ending, for as many ranks."""
    for its, their in _PLURAL if len(ranks) > 1 else ():
        text = text.replace(its, their)
    return text


def find(evidence: Evidence) -> tuple[Line, ...]:
    """A line for every rank, failed ranks first; ranks with the same fate share one."""
    # of a circle, each call needs its reason
    mismatch = None if evidence.difference.circle else evidence.mismatch
    lines: dict[str, Fate] = {}
    for lane, ranks in evidence.difference.lanes.items():
        line = _FateOf(evidence, lane, mismatch).line()
        calls = tuple(replace(call, rank=-1, seq=-1) for call in line.calls)
        key = repr(replace(line, ranks=(), calls=calls))
        if key in lines:
            ranks = (*lines[key].ranks, *ranks)
            line = lines[key]
        lines[key] = replace(line, ranks=tuple(sorted(ranks)))
    ends = evidence.ends
    return tuple(sorted(lines.values(), key=lambda line: (good(ends[line.ranks[0]]), line.ranks)))


class _FateOf:
    """How one rank ended. `known`: the slot in which the ranks part, which the cause already
    describes."""

    def __init__(self, evidence: Evidence, rank: int, mismatch: Slot | None) -> None:
        self.evidence, self.rank, self.known = evidence, rank, mismatch
        self.end = evidence.ends[rank]
        self.rows, self.slot_of = evidence.matched.row_of, evidence.slot_of
        self.calls: list[NamedCall] = []
        self.behind: list[int] = []

    def line(self) -> Fate:
        end, evidence = self.end, self.evidence
        awaited, last = evidence.awaited(self.rank), evidence.last.get(self.rank)
        text, _, further_lines = end.text.strip().partition("\n")
        if further_lines.startswith("Original Traceback "):  # of a DataLoader's worker, say
            text += " " + further_lines.rpartition("\n")[2]
        text = _cut(text.rstrip(": "))
        raised, killed, hung = (
            end.kind is kind for kind in (EndKind.RAISED, EndKind.KILLED, EndKind.HUNG)
        )
        after = inside = None
        after_is = ""
        why: tuple[Lack, ...] = ()
        peer_gone = overrun = False
        if awaited is not None:
            inside = self.cite(awaited)
            if hung or end.kind is EndKind.FINISHED:
                why = self.because(awaited)
            if self.on_gloo(awaited):
                peer_gone = raised and is_peer_gone(f"{self.rows[awaited]['error']} {end.text}")
        elif last is not None and not raised and end.kind is not EndKind.FINISHED:
            after, row = self.cite(last), self.rows[last]
            if row["error"] is not None:
                after_is = "failed"
            elif row["completed_ns"] is None:
                after_is = "open"
        key = awaited or (last if after_is == "open" else None)
        if killed and key is not None and self.on_gloo(key):
            aborted = "SIGABRT" in end.text or "aborted" in text
            overrun = aborted and self.is_sent_too_much(key)
        if hung:
            # How the model found it is not said, and differs from rank to rank.
            if end.proven and text.startswith(("no rank can go on", "it made no progress")):
                wait = text.partition("; this one ")[2]
                text = f"it {wait}" if inside is None and wait.endswith(")") else ""
            text = text.removeprefix("only suspected: ")
        sites = raised_at(evidence.timeline.output[self.rank]) if raised else ()
        left_at = evidence.meta.get("left_at", {}).get(self.rank)
        if left_at is not None:
            sites = (left_at,)
        form = Running if end.runs else _FORMS[end.kind]
        return form(
            text="" if peer_gone else text,  # it names a port, another one on each rank
            pending=end.pending,
            in_=inside,
            behind=tuple(self.behind),
            why=why,
            after=after,
            after_is=after_is,
            peer_gone=peer_gone,
            overrun=overrun,
            sends=evidence.meta.get("sends", {}).get(self.rank, ""),
            left=left_at is not None,
            proven=bool(end.proven),
            modelled=hung and evidence.meta.get("engine") == "emulated",
            ranks=(self.rank,),
            calls=tuple(self.calls),
            lines=tuple(
                SourceLine(site, "", (), tuple(map(SourceLine, sites[1:]))) for site in sites[:1]
            ),
        )

    def cite(self, key: Key) -> int:
        """The place of a call in the line's calls."""
        call = self.evidence.call(self.rows[key])
        if call not in self.calls:
            self.calls.append(call)
        return self.calls.index(call)

    def is_sent_too_much(self, key: Key) -> bool:
        """Whether another rank's call in the same slot carries more bytes, or other splits."""
        slot = self.slot_of(key)
        rows = self.evidence.matched.calls_of(slot).values()
        room = call_of(self.rows[key]).nbytes
        return "splits" in slot.differs or (
            room is not None and max(call_of(row).nbytes or 0 for row in rows) > room
        )

    def on_gloo(self, key: Key) -> bool:
        return bool(backend_of(self.evidence.meta, key[1]) == "gloo")

    # ---------------- what a call lacks

    def because(self, key: Key, depth: int = 0) -> tuple[Lack, ...]:
        """What the call lacks, by the backend's rule; () if the rule does not say that it can never
        complete."""
        rank, group, seq = key
        if self.slot_of(key) is self.known:
            return ()
        why = self.evidence.blocked.get(group, {}).get((rank, seq), ())
        first = self.evidence.held_by(key)
        if first and depth < 2:
            self.behind.append(self.cite(first))
            return self.because(first, depth + 1)
        lacks = []
        for blocker in why:
            if blocker.rank == rank:
                continue
            if blocker.seq is not None:
                lacks.append(self.unlike(key, self.evidence.key_of(blocker, group)))
            elif (other_seq := self.slot_of(key).calls.get(blocker.rank)) is not None:
                lacks.append(self.held_up((blocker.rank, group, other_seq)))
            else:
                lacks.append(self.absent(blocker.rank, self.rows[key]))
        return _grouped(list(filter(None, lacks)), self.calls)

    def held_up(self, key: Key) -> Lack | None:
        """The call behind which another rank issued its part of this one."""
        before = self.evidence.held_by(key)
        if before is None:
            return None
        return Lack(key[:1], "behind", self.cite(before), pair=self.rows[key]["op"])

    def absent(self, rank: int, row: CallRow) -> Lack:
        """Where a rank is that issued no call to meet this one."""
        end, pair = self.evidence.ends[rank], str(COUNTERPART.get(row["op"], ""))
        if end.kind in (EndKind.HUNG, EndKind.UNKNOWN):
            awaited = self.evidence.awaited(rank)
        else:
            awaited = None
        if awaited:
            whereabouts = "elsewhere"
        elif end.runs or end.kind is EndKind.HUNG:
            whereabouts = "outside"
        else:
            whereabouts = "ended"
        call = None if awaited is None else self.cite(awaited)
        return Lack((rank,), whereabouts, call, end.how, pair)

    def unlike(self, key: Key, other_key: Key) -> Lack | None:
        """What another rank issued in the place of a call; None if it issued the same."""
        own_row, row = self.rows[key], self.rows[other_key]
        lack = Lack(other_key[:1], "instead", self.cite(other_key))
        if self.slot_of(key) is not self.slot_of(other_key):
            return replace(lack, how="before")
        differ = {*differences((own_row, row))} - {"reduce_op"}  # that keeps no call waiting
        if row["op"] != own_row["op"]:
            return replace(lack, how="kinds") if self.on_gloo(other_key) else lack
        if "root" in differ or (differ and "origin" not in differ):
            theirs, mine = given(row, differ), given(own_row, differ)
            return replace(lack, how="values", theirs=theirs, mine=mine)
        if differ:
            return lack
        if row["completed_ns"] is not None:
            return replace(lack, how="done")
        return None


def _grouped(lacks: Sequence[Lack], calls: Sequence[NamedCall]) -> tuple[Lack, ...]:
    """The same lacks, with ranks that share one merged."""
    merged: dict[object, Lack] = {}
    for lack in lacks:
        call_key = None
        if lack.call is not None:
            call = calls[lack.call]
            call_key = (call.name, call.group, call.number, call.site, call.peer)
        key = replace(lack, ranks=(), call=None), call_key
        before = merged.setdefault(key, replace(lack, ranks=()))
        merged[key] = replace(before, ranks=before.ranks + lack.ranks)
    return tuple(merged.values())


# that of a SyntaxError has no function
_FRAME = re.compile(r'  File "(.+)", line (\d+)(?:, in (.+))?')


def frames_of(output: str) -> list[Frame]:
    """The frames of the last traceback in a rank's output, the innermost last."""
    last = output[output.rfind("Traceback (most recent call last)") :]
    return [Frame(file, int(line), name) for file, line, name in _FRAME.findall(last)]


def raised_at(output: str) -> tuple[str, ...]:
    """The lines of the learner's own code in the last traceback of a rank's output; the line that
    raised comes first.

    >>> raised_at('Traceback (most recent call last):\\n  File "train.py", line 9, in worker\\nKeyError: 1\\n')
    ('train.py:9',)
    """
    own = (frame for frame in frames_of(output) if owner_of(frame.file) == "program")
    return tuple(f"{frame.file}:{frame.line}" for frame in own)[::-1]


def _cut(text: str) -> str:
    text = text.partition(". This is typically")[0].rstrip(".")  # gloo's advice follows
    if len(text) <= MOST:
        return text
    return f"{text[:MOST].rstrip('.')} (cut)"
