"""Reasons: how each rank ended, and why, in one sentence a rank.

The sentences rest on the backend's matching rule: what does the call lack that a rank waits for? A hang is proven if
its ending says so; where these calls alone do not prove it again, it was "proven when it was recorded". They say what
differs, and of two ranks that differ they never say which one is wrong: that depends on what the program meant.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from joinlab.analysis.matching import Matched, Slot
from joinlab.analysis.wording import (
    at_line,
    called,
    group_text,
    listed,
    plural,
    quoted,
    ranks_text,
    short_site,
    tensor,
    upper,
)
from joinlab.ops import POINT_TO_POINT, Op
from joinlab.program.labels import kind_of
from joinlab.rules.calls import Blocked, Blocker, Key, setting_of
from joinlab.rules.proof import Proof, Wait, blocked_calls, prove
from joinlab.timeline import CallRow, Ending, EndKind, Timeline, backend_of

PEER_GONE = ("Connection closed by peer", "Connection reset by peer", "Read error", "Broken pipe")
"""What gloo says when the process at the other end is gone."""

MOST, BRIEF = 240, 80
"""Characters of an error's text that a sentence quotes at most; of one that stands among others."""

Row = CallRow


@dataclass(frozen=True, slots=True)
class Evidence:
    """A call that a sentence rests on: who issued it, where it stands, and what it is."""

    rank: int
    group: str
    seq: int
    origin: str
    call_site: str | None


@dataclass(frozen=True, slots=True)
class RankDiagnosis:
    """One rank: its ending, one sentence of why, and the calls that show it."""

    rank: int
    ending: Ending
    sentence: str
    evidence: tuple[Evidence, ...] = ()

    @property
    def proven(self) -> bool | None:
        """Whether a rank that hung is proven to; None for any other."""
        return self.ending.proven

    @property
    def verdict(self) -> str:
        """The ending in a word or two: "finished", "hung (proven)"."""
        return worded(self.ending)


class Reasons:
    """Why each rank of one Timeline ended as it did, with what all the sentences need looked up once.

    Reasons(Matched(timeline)).of(1).sentence
    """

    def __init__(self, matched: Matched) -> None:
        self.matched, self.timeline = matched, matched.timeline
        self.ends = self.timeline.ends
        self.meta = self.timeline.meta
        self.groups = matched.groups
        self.emulated = self.meta.get("engine") == "emulated"
        self.default = next(iter(self.groups), "")
        self.rows: Mapping[Key, Row] = matched.row_of
        self.slot_of = {(rank, slot.group, seq): slot for slot in matched.slots for rank, seq in slot.calls.items()}
        self.gone = [rank for rank, end in enumerate(self.ends) if end.kind not in (EndKind.HUNG, EndKind.UNKNOWN)]

    @cached_property
    def blocked(self) -> dict[str, Blocked]:
        """What each call lacks, by the rule of its group's backend."""
        # A record that lost its beginning does not say which ranks took part.
        groups = {name: ranks for name, ranks in self.groups.items() if name not in self.meta.get("skipped", {})}
        backend = str(self.meta.get("backend"))
        return blocked_calls(self.matched.calls, groups, backend, self.gone, setting_of(self.meta))

    @cached_property
    def proof(self) -> Proof | None:
        """The proof that ranks can never go on; None if there is none."""
        waits = _waits(self.timeline, self.matched.rows)
        backend, setting = str(self.meta.get("backend")), setting_of(self.meta)
        return prove(self.matched.calls, self.groups, backend, waits, self.gone, setting, self.blocked)

    # ---------------------------------------------------------------- a rank

    def of(self, rank: int) -> RankDiagnosis:
        """All there is to say of a rank by itself."""
        awaited = self._awaited(rank)
        crossed = next(
            (slot for slot in self.matched.slots if slot.met and not slot.expected and rank in slot.calls), None
        )
        cited = [awaited] if awaited else []
        for slot in (self.slot_of[awaited] if awaited else None, crossed):
            cited += [(other, slot.group, seq) for other, seq in sorted(slot.calls.items())] if slot else []
        evidence = tuple(map(self._evidence, dict.fromkeys(cited)))
        return RankDiagnosis(rank, self.ends[rank], f"Rank {rank} {self.told(rank)}", evidence)

    def told(self, rank: int, known: Slot | None = None) -> str:
        """How a rank ended and why, to be said after "Rank 1".

        known  the slot in which the ranks part, where the reader knows of it: why no call can complete there is left
               out
        """
        say = {
            EndKind.FINISHED: self._finished,
            EndKind.HUNG: self._hung,
            EndKind.RAISED: self._raised,
            EndKind.KILLED: self._killed,
            EndKind.UNKNOWN: self._unknown,
        }[self.ends[rank].kind]
        return say(rank, self._awaited(rank), known)

    def keeps_apart(self, slot: Slot) -> str:
        """Why the calls of a slot can never meet; "" if their backend has no such rule."""
        rows = [self.rows[rank, slot.group, seq] for rank, seq in slot.calls.items()]
        if backend_of(self.meta, slot.group) == "gloo" and len({row["op"] for row in rows}) > 1:
            return "on gloo calls of different kinds never meet"
        return ""

    def proven_again(self, rank: int) -> bool:
        """Whether these calls alone prove what the ending of a hung rank claims to be proven.

        Who recorded it knew more, such as every thread's waits; a ring buffer may have lost the calls since.
        """
        # An emulation is over when its model can carry out no further call, whatever a rule can say of single calls.
        return bool(self.ends[rank].proven and (self.emulated or (self.proof and self.proof.of(rank))))

    def _finished(self, rank: int, awaited: Key | None, known: Slot | None) -> str:
        if not self.ends[rank].pending:
            return "finished: its program returned."
        if awaited is None:
            return "finished, but left a call behind that was still pending."
        return (
            f"finished, but left {self._call(awaited)} pending{self._because(awaited, known)}. "
            "Its program returned without having waited for it."
        )

    def _hung(self, rank: int, awaited: Key | None, known: Slot | None) -> str:
        text = self.ends[rank].text
        seen = (text or "it made no progress").removeprefix("only suspected: ")
        last, proven = self._after(rank), self.ends[rank].proven
        how = "no issued call can end this wait" if awaited else "in the model no rank can go on"
        how = f"Proven: {how}." if self.proven_again(rank) else "Proven when it was recorded."
        if awaited is None and proven:
            return f"hangs outside any recorded call{last}: {seen}. {how}"
        if awaited is None:
            return f"makes no progress outside any recorded call{last}. A hang is only suspected: {seen}."
        if proven:
            # The program was over before its process hung; that the model stands still, "Proven" says.
            said = "" if not text or text.startswith("no rank can go on") else f" {upper(text)}."
            why = self._because(awaited, known)
            return f"hangs in {self._call(awaited)}{why}.{said} {how}"
        why = self._because(awaited, known) or self._beside(awaited, known)
        return f"waits in {self._call(awaited)}{why}. A hang is only suspected: {seen}."

    def _on_gloo(self, key: Key) -> bool:
        return bool(backend_of(self.meta, key[1]) == "gloo")

    def _raised(self, rank: int, awaited: Key | None, known: Slot | None) -> str:
        text = self.ends[rank].text.strip().partition("\n")[0]
        if awaited is None:
            site = _raised_at(self.timeline.output[rank])
            return f"raised {_cut(text)}{f' ({short_site(site)})' if site else ''}."
        error = self.rows[awaited]["error"]
        if self._on_gloo(awaited) and any(words in f"{error} {text}" for words in PEER_GONE):
            ended = "on gloo a process that ends closes its connections"
            if known is not None:
                return f"raised an error in {self._call(awaited)}: {ended}."
            return (
                f"raised an error in {self._call(awaited)}, because {self._left(awaited)}; {ended}, and whoever waits "
                f"for it gets an error: {_cut(text)}."
            )
        most = MOST if known is None else BRIEF
        return f"raised {_cut(text, most)}, in {self._call(awaited)}{self._beside(awaited, known) if error else ''}."

    def _killed(self, rank: int, awaited: Key | None, known: Slot | None) -> str:
        text = self.ends[rank].text.strip().partition("\n")[0]
        how = (
            f"was {_cut(text)}"
            if text.startswith("ended by")
            else f"was ended: {_cut(text)}"
            if text
            else "was ended before its program returned"
        )
        if awaited is None:
            return f"{how}{self._after(rank)}."
        said = f"{how}, in {self._call(awaited)}{self._beside(awaited, known)}."
        if self._on_gloo(awaited) and "SIGABRT" in text and {"dtype", "shape"} & set(self.slot_of[awaited].differs):
            said += " Gloo aborts a process that is sent more bytes than its call has room for."
        return said

    def _unknown(self, rank: int, awaited: Key | None, known: Slot | None) -> str:
        if self.ends[rank].runs:
            if awaited is None:
                return f"is still running{self._after(rank)}."
            return f"is in {self._call(awaited)}{self._beside(awaited, known)}."
        why = self.ends[rank].text or "the record ends before the rank did"
        if awaited is None:
            return f"has no known ending{self._after(rank)}: {why}."
        return f"was last seen in {self._call(awaited)}{self._beside(awaited, known)}. Its ending is unknown: {why}."

    def _awaited(self, rank: int) -> Key | None:
        """The call the rank ended in: what its ending names; else the last of its calls that the backend failed."""
        end = self.ends[rank]
        if end.call is not None:
            key = (rank, self.default if end.group is None else end.group, end.call)
            return key if key in self.rows else None
        if end.kind is not EndKind.RAISED:
            return None
        failed = [key for key, row in self.rows.items() if key[0] == rank and row["error"] and row["error"] in end.text]
        return failed[-1] if failed else None

    @cached_property
    def _last(self) -> dict[int, Key]:
        """By rank, the last call that it issued."""
        return {key[0]: key for key in self.rows}  # rows come in each rank's order of issue

    def _after(self, rank: int) -> str:
        """Where a rank was last seen that ended in no call: ", last seen after all-reduce, call 2 (train.py:12)"."""
        return f", last seen after {self._call(self._last[rank])}" if rank in self._last else ""

    # ---------------------------------------------------------------- why a call does not complete

    def _because(self, key: Key, known: Slot | None = None, depth: int = 0) -> str:
        """What the call lacks, by the backend's rule; "" if the rule does not say that it can never complete."""
        rank, group, seq = key
        if self.slot_of[key] is known:
            return ""
        why = self.blocked.get(group, {}).get((rank, seq), ())
        if not why:
            return ""
        own = [blocker for blocker in why if blocker.rank == rank and blocker.seq is not None]
        if own and depth < 2:
            first = self._key(own[0], group)
            return f", behind its own {self._call(first)}{self._because(first, known, depth + 1)}"
        reasons = self._grouped([(blocker.rank, self._lack(key, blocker)) for blocker in why if blocker.rank != rank])
        return f": {'; '.join(reasons)}" if reasons else ""

    def _lack(self, key: Key, blocker: Blocker) -> str:
        """What `blocker` did, told as what follows "rank 1"."""
        rank, group, _ = key
        mine = self.rows[key]
        if blocker.seq is None:
            what = "send" if mine["op"] == Op.RECV else "recv" if mine["op"] == Op.SEND else "call"
            return f"{self._whereabouts(blocker.rank)} issued no {what} to meet it"
        theirs = self._key(blocker, group)
        row = self.rows[theirs]
        slot = self.slot_of[key]
        if slot is not self.slot_of[theirs]:
            return f"does not get there, since it waits in {self._call(theirs)}"
        elsewhere = at_line(row) if row["call_site"] != mine["call_site"] else ""
        issued = f"issued {quoted(row)}{elsewhere} instead"
        if self._on_gloo(theirs) and row["op"] != mine["op"]:
            return f"{issued}, and {self.keeps_apart(slot)}"
        if row["root"] != mine["root"] and row["op"] == mine["op"]:
            return f"{issued}, with root {row['root']} where rank {rank} has root {mine['root']}"
        if row["origin"] != mine["origin"] or row["op"] != mine["op"]:
            return issued
        if tensor(row) != tensor(mine):
            return f"issued it with {tensor(row)} where rank {rank} has {tensor(mine)}"
        return f"issued it{elsewhere}, too"

    def _key(self, blocker: Blocker, group: str) -> Key:
        """The call that a blocker of a call in `group` names."""
        assert blocker.seq is not None
        return blocker.rank, group if blocker.group is None else blocker.group, blocker.seq

    def _beside(self, key: Key, known: Slot | None) -> str:
        """What the others issued in the place of a call, without a claim; "" if nothing differs."""
        rank, group, _ = key
        slot = self.slot_of[key]
        if self.rows[key]["op"] in POINT_TO_POINT or slot is known or slot.refused:
            return ""
        others = [other for other in self.groups.get(group, ()) if other != rank and other not in slot.lost]
        if not slot.differs:
            absent = [(other, f"{self._whereabouts(other)} issued no call in its place") for other in others]
            told = self._grouped([(other, text) for other, text in absent if other not in slot.calls])
            return f": {'; '.join(told)}" if told else ""
        theirs = {other: (other, group, slot.calls[other]) for other in others if other in slot.calls}
        mine = self.rows[key]
        unlike = {
            other: call
            for other, call in theirs.items()
            if any(self.rows[call].get(name) != mine.get(name) for name in slot.differs)
        }
        told = self._grouped([(other, f"issued {self._call(call)}") for other, call in (unlike or theirs).items()])
        return f": in its place {'; '.join(told)}; they differ in {listed(_worded(slot.differs))}"

    def _left(self, key: Key) -> str:
        """Which peer of a call was gone, as far as the timeline tells."""
        rank, group, _ = key
        slot, row = self.slot_of[key], self.rows[key]
        others = [other for other in self.groups.get(group, ()) if other != rank]
        if row["op"] in POINT_TO_POINT and row["peer"] is not None:
            others = [row["peer"]]
        gone = [other for other in others if self.ends[other].kind in (EndKind.FINISHED, EndKind.KILLED)]
        gone = gone or [other for other in others if self.ends[other].kind is EndKind.RAISED]
        gone = [other for other in gone if other not in slot.calls] or gone
        if not gone:
            return "the connection to a peer was lost"
        told = [
            (other, _PAST[self.ends[other].kind] + ("" if other in slot.calls else " without a call to meet it"))
            for other in gone
        ]
        return "; ".join(self._grouped(told))

    def _whereabouts(self, rank: int) -> str:
        """Where a rank is that did not issue the call in question, to be said before what it did not do."""
        end, awaited = self.ends[rank], self._awaited(rank)
        if end.kind is EndKind.UNKNOWN and awaited:
            return f"is in {self._call(awaited)}, and"
        if end.runs:
            return "is outside any recorded call, and"
        if end.kind is not EndKind.HUNG:
            return f"{_PAST[end.kind]}, and"
        return f"waits in {self._call(awaited)}, and" if awaited else "makes no progress outside any recorded call, and"

    def _grouped(self, told: Sequence[tuple[int, str]]) -> list[str]:
        """Ranks of which the same is told, told once."""
        ranks_of: dict[str, list[int]] = {}
        for rank, text in told:
            ranks_of.setdefault(text, []).append(rank)
        return [f"{ranks_text(ranks)} {plural(text) if len(ranks) > 1 else text}" for text, ranks in ranks_of.items()]

    # ---------------------------------------------------------------- words

    def _call(self, key: Key) -> str:
        """A call, as the sentences name it: "backward, call 7 (train.py:12)"."""
        return called(self.rows[key], group_text(self.meta, key[1]) if len(self.groups) > 1 else "")

    def _evidence(self, key: Key) -> Evidence:
        row = self.rows[key]
        return Evidence(*key, row["origin"] or row["op"], row["call_site"])


_PAST = {
    EndKind.FINISHED: "has finished",
    EndKind.RAISED: "has raised an error",
    EndKind.KILLED: "was killed",
    EndKind.UNKNOWN: "has no ending on record",
}


_FRAME = re.compile(r'  File "(.+)", line (\d+)', re.MULTILINE)  # of a traceback


def _raised_at(output: str) -> str:
    """The line of the learner's own code in which a traceback at the end of a rank's output ends; "" without one.

    >>> _raised_at('Traceback (most recent call last):\\n  File "train.py", line 9, in worker\\nKeyError: 1\\n')
    'train.py:9'
    """
    frames = _FRAME.findall(output[output.rfind("Traceback (most recent call last)") :])
    return next((f"{file}:{line}" for file, line in reversed(frames) if kind_of(file) == "program"), "")


def _waits(timeline: Timeline, rows: Sequence[Row]) -> list[Wait]:
    """The waits that hung ranks did not return from. What began at one instant on a rank is one wait."""
    found: dict[tuple[int, int], list[tuple[str, int]]] = {}
    for row in rows:
        if timeline.ends[row["rank"]].kind is not EndKind.HUNG or row["error"] is not None:
            continue
        if row["host_wait_begin_ns"] is not None and row["host_wait_end_ns"] is None:
            found.setdefault((row["rank"], row["host_wait_begin_ns"]), []).append((row["group"], row["seq"]))
    waits = [Wait(rank, tuple(calls)) for (rank, _), calls in found.items()]
    for rank, end in enumerate(timeline.ends):
        if end.kind is EndKind.HUNG and end.call is not None and all(wait.rank != rank for wait in waits):
            waits.append(Wait(rank, ((timeline.default_group if end.group is None else end.group, end.call),)))
    return waits


def worded(end: Ending) -> str:
    """An ending in a word or two: "finished", "hung (proven)"."""
    return "finished, with a call still pending" if end.pending else str(end)


def _worded(differs: Sequence[str]) -> list[str]:
    words = {"op": "kind", "reduce_op": "reduce operation", "origin": "who issued them"}
    return [words.get(name, name) for name in differs]


def _cut(text: str, most: int = MOST) -> str:
    text = text.partition(". This is typically")[0].rstrip(".")  # gloo goes on with advice
    return text if len(text) <= most else f"{text[:most].rstrip('.')} (cut)"
