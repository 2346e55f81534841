"""Diagnosis: how each rank ended and why, in one plain sentence a rank, from the Timeline alone.

`diagnose` asks three things of a Timeline. Where did the ranks' calls first part? What did a rank read from a call
that it should not have met? And what does the call that a rank waits for lack? The last is asked of the backend's
matching rule, so that a hang is called proven only if no call that was issued can end it. It says what differs, and
of two ranks that differ it never says which one is wrong: that depends on what the program meant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from joinlab.analysis.blame import blame
from joinlab.analysis.conclusions import conclusion
from joinlab.analysis.matching import Matched, Slot, shadows
from joinlab.analysis.wording import lane_name, listed, ranks_text, short_site, upper
from joinlab.ops import POINT_TO_POINT, Op
from joinlab.rules.calls import Blocked, Blocker, by_group
from joinlab.rules.proof import RULES, Wait, prove
from joinlab.timeline import CallRow, Ending, EndKind, Timeline, backend_of

PEER_GONE = ("Connection closed by peer", "Connection reset by peer", "Read error", "Broken pipe")
"""What gloo says when the process at the other end is gone."""

Row = CallRow
Key = tuple[int, str, int]


@dataclass(frozen=True, slots=True)
class Evidence:
    """A call that a sentence rests on: who issued it, where it stands, and what it is."""

    rank: int
    group: str
    seq: int
    origin: str
    call_site: str | None


FEW = 8
"""Up to so many ranks have a line each, whatever they did."""


@dataclass(frozen=True, slots=True)
class RankDiagnosis:
    """One rank: its ending, one sentence of why, and the calls that show it. `proven` is None unless it hung."""

    rank: int
    ending: Ending
    sentence: str
    evidence: tuple[Evidence, ...] = ()
    proven: bool | None = None

    @property
    def verdict(self) -> str:
        """The ending in a word or two: "finished", "hung (proven)"."""
        return _verdict(self.ending, self.proven)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Every rank's ending and why; `sentence` is about the whole run. Prints itself, in Jupyter as a table."""

    sentence: str
    ranks: tuple[RankDiagnosis, ...]

    def told(self) -> list[tuple[str, str, str]]:
        """Ranks, verdict and sentence, as printed: one each, or, of more than FEW ranks, the same told once."""
        if len(self.ranks) <= FEW:
            return [(f"rank {one.rank}", one.verdict, one.sentence) for one in self.ranks]
        alike: dict[tuple[str, str], list[int]] = {}
        for one in self.ranks:
            alike.setdefault((one.verdict, one.sentence.removeprefix(f"Rank {one.rank} ")), []).append(one.rank)
        return [(who := lane_name(ranks), verdict, f"{upper(who)}: {said}") for (verdict, said), ranks in alike.items()]

    def __str__(self) -> str:
        return "\n".join([self.sentence, *(f"  {sentence}" for _, _, sentence in self.told())])

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{escape(who.removeprefix('rank '))}</td><td>{escape(verdict)}</td>"
            f'<td style="text-align:left;white-space:normal">{escape(sentence)}</td></tr>'
            for who, verdict, sentence in self.told()
        )
        head = "<tr><th>rank</th><th>ended</th><th style='text-align:left'>why</th></tr>"
        return f"<p>{escape(self.sentence)}</p><table>{head}{rows}</table>"

    def _repr_markdown_(self) -> str:
        lines = [f"- **{who}** {escape(verdict)}: {escape(sentence)}" for who, verdict, sentence in self.told()]
        return "\n".join([escape(self.sentence), "", *lines])


def diagnose(timeline: Timeline) -> Diagnosis:
    """Say how each rank ended and why.

    diagnosis = joinlab.diagnose(timeline)
    print(diagnosis)
    diagnosis.ranks[1].proven               # True: the rule shows that its call can never complete
    """
    return diagnose_matched(Matched(timeline))


def diagnose_matched(matched: Matched) -> Diagnosis:
    """`diagnose` of a Timeline that was matched before."""
    case = _Case(matched)
    return Diagnosis(case.summary(), tuple(case.of(rank) for rank in range(len(case.ends))))


class _Case:
    """One timeline, with what all the sentences need looked up once."""

    def __init__(self, matched: Matched) -> None:
        timeline, rows = matched.timeline, matched.rows
        self.timeline = timeline
        self.ends = timeline.ends
        self.meta = timeline.meta
        backend = str(timeline.meta.get("backend"))
        self.groups = matched.groups
        self.emulated = timeline.meta.get("engine") == "emulated"
        self.default = next(iter(self.groups), "")
        self.rows: Mapping[Key, Row] = matched.row_of
        self.slots = matched.slots
        self.slot_of = {(rank, slot.group, seq): slot for slot in self.slots for rank, seq in slot.calls.items()}
        gone = [rank for rank, end in enumerate(self.ends) if end.kind not in (EndKind.HUNG, EndKind.UNKNOWN)]
        lanes = by_group(matched.calls, self.groups)
        rules = {name: RULES.get(str(backend_of(self.meta, name))) for name in lanes}
        self.blocked: dict[str, Blocked] = {
            # A record that lost its beginning does not say which ranks took part.
            name: rule(lanes[name], gone) if rule and name not in timeline.meta.get("skipped", {}) else {}
            for name, rule in rules.items()
        }
        transport = timeline.meta.get("transport")
        waits = _waits(timeline, rows)
        self.proof = prove(matched.calls, self.groups, backend, waits, gone, transport, self.blocked)
        self.crossed = tuple(slot for slot in self.slots if slot.met and not slot.expected)
        self.parting = next((slot for slot in self.slots if self._parts(slot)), None)

    # ---------------------------------------------------------------- a rank

    def of(self, rank: int) -> RankDiagnosis:
        end, awaited = self.ends[rank], self._awaited(rank)
        say = {
            EndKind.FINISHED: self._finished,
            EndKind.HUNG: self._hung,
            EndKind.RAISED: self._raised,
            EndKind.KILLED: self._killed,
            EndKind.UNKNOWN: self._unknown,
        }[end.kind]
        said = f"Rank {rank} {say(rank, awaited)}"
        place = self.slot_of[awaited] if awaited else None
        crossed = next((slot for slot in self.crossed if rank in slot.calls), None)
        cited = [awaited] if awaited else []
        for slot in (place, crossed):
            cited += [(other, slot.group, seq) for other, seq in sorted(slot.calls.items())] if slot else []
        if crossed is not None and crossed is not place:
            said += " " + self._crossing(crossed, rank)
        return RankDiagnosis(rank, end, said, tuple(map(self._evidence, dict.fromkeys(cited))), self._proven(rank))

    def _proven(self, rank: int) -> bool | None:
        end = self.ends[rank]
        if end.kind is not EndKind.HUNG:
            return None
        # An emulation is over when its model can carry out no further call, whatever a rule can say of single calls.
        return bool(end.proven and (self.emulated or (self.proof and self.proof.of(rank))))

    def _finished(self, rank: int, awaited: Key | None) -> str:
        if not self.ends[rank].pending:
            return "finished: its program returned."
        if awaited is None:
            return "finished, but left a call behind that was still pending."
        return (
            f"finished, but left {self._call(awaited)} behind, which was still pending{self._because(awaited)}. "
            "Its program returned without having waited for it."
        )

    def _hung(self, rank: int, awaited: Key | None) -> str:
        seen = (self.ends[rank].text or "it made no progress").removeprefix("only suspected: ")
        if awaited is None and self._proven(rank):
            return f"hangs outside any recorded call: {seen}. Proven: in the model no rank can go on."
        if awaited is None:
            return f"made no progress outside any recorded call. A hang is only suspected: {seen}."
        if self._proven(rank):
            why = self._because(awaited)
            over = self.ends[rank].text  # the program was, before its process hung
            said = f" {over[0].upper()}{over[1:]}." if over else ""
            return f"hangs in {self._call(awaited)}{why}.{said} Proven: no call that was issued can ever end this wait."
        why = self._because(awaited) or self._beside(awaited)
        return f"waits in {self._call(awaited)}{why}. A hang is only suspected: {seen}."

    def _on_gloo(self, key: Key) -> bool:
        return bool(backend_of(self.meta, key[1]) == "gloo")

    def _raised(self, rank: int, awaited: Key | None) -> str:
        text = self.ends[rank].text.strip().partition("\n")[0]
        if awaited is None:
            return f"raised {_cut(text)}."
        error = self.rows[awaited]["error"]
        if self._on_gloo(awaited) and any(words in f"{error} {text}" for words in PEER_GONE):
            return (
                f"raised an error in {self._call(awaited)}, because {self._left(awaited)}. On gloo a process that ends "
                f"closes its connections, and whoever waits for it gets an error: {_cut(text)}."
            )
        return f"raised {_cut(text)}, in {self._call(awaited)}{self._beside(awaited) if error else ''}."

    def _killed(self, rank: int, awaited: Key | None) -> str:
        text = self.ends[rank].text.strip().partition("\n")[0]
        how = f"was ended: {_cut(text)}" if text else "was ended before its program returned"
        if awaited is None:
            return f"{how}."
        said = f"{how}, in {self._call(awaited)}{self._beside(awaited)}."
        if self._on_gloo(awaited) and "SIGABRT" in text and {"dtype", "shape"} & set(self.slot_of[awaited].differs):
            said += " Gloo aborts a process that is sent more bytes than its call has room for."
        return said

    def _unknown(self, rank: int, awaited: Key | None) -> str:
        why = self.ends[rank].text or "the record ends before the rank did"
        if awaited is None:
            return f"has no known ending: {why}."
        return f"was last seen in {self._call(awaited)}{self._beside(awaited)}. Its ending is unknown: {why}."

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

    # ---------------------------------------------------------------- why a call does not complete

    def _because(self, key: Key, depth: int = 0) -> str:
        """What the call lacks, by the backend's rule; "" if the rule does not say that it can never complete."""
        rank, group, seq = key
        why = self.blocked.get(group, {}).get((rank, seq), ())
        if not why:
            return ""
        own = [blocker.seq for blocker in why if blocker.rank == rank and blocker.seq is not None]
        if own and depth < 2:
            first = (rank, group, own[0])
            return f", behind its own {self._call(first)}{self._because(first, depth + 1)}"
        reasons = self._grouped([(blocker.rank, self._lack(key, blocker)) for blocker in why if blocker.rank != rank])
        return f": {'; '.join(reasons)}" if reasons else ""

    def _lack(self, key: Key, blocker: Blocker) -> str:
        """What `blocker` did, told as what follows "rank 1"."""
        rank, group, _ = key
        mine = self.rows[key]
        if blocker.seq is None:
            what = "send" if mine["op"] == Op.RECV else "recv" if mine["op"] == Op.SEND else "call"
            return f"{self._whereabouts(blocker.rank)} issued no {what} to meet it"
        theirs: Key = (blocker.rank, group, blocker.seq)
        row = self.rows[theirs]
        slot = self.slot_of[key]
        if slot is not self.slot_of[theirs]:
            return f"does not get there, since it waits in {self._call(theirs)}"
        issued = f"issued {self._call(theirs)} in its place"
        if self._on_gloo(theirs) and row["op"] != mine["op"]:
            return f"{issued}, and on gloo calls of different kinds never meet"
        if row["root"] != mine["root"] and row["op"] == mine["op"]:
            return f"{issued}, with root {row['root']} where rank {rank} has root {mine['root']}"
        return f"{issued}, and that does not send what this call waits for"

    def _beside(self, key: Key) -> str:
        """What the others issued in the place of a call, without a claim; "" if nothing differs."""
        rank, group, _ = key
        slot = self.slot_of[key]
        if self.rows[key]["op"] in POINT_TO_POINT:
            return ""
        others = [other for other in self.groups.get(group, ()) if other != rank and other not in slot.lost]
        if not slot.differs:
            absent = [(other, f"{self._whereabouts(other)} issued no call in its place") for other in others]
            told = self._grouped([(other, text) for other, text in absent if other not in slot.calls])
            return f": {'; '.join(told)}" if told else ""
        told = self._grouped(
            [
                (other, f"issued {self._call((other, group, slot.calls[other]))}")
                for other in others
                if other in slot.calls
            ]
        )
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
        if end.kind is not EndKind.HUNG:
            return f"{_PAST[end.kind]}, and"
        return f"waits in {self._call(awaited)}, and" if awaited else "makes no progress outside any recorded call, and"

    def _grouped(self, told: Sequence[tuple[int, str]]) -> list[str]:
        """Ranks of which the same is told, told once."""
        ranks_of: dict[str, list[int]] = {}
        for rank, text in told:
            ranks_of.setdefault(text, []).append(rank)
        return [f"{ranks_text(ranks)} {text}" for text, ranks in ranks_of.items()]

    def _told(self, keys: Sequence[Key]) -> dict[str, list[int]]:
        ranks_of: dict[str, list[int]] = {}
        for key in keys:
            ranks_of.setdefault(self._call(key), []).append(key[0])
        return ranks_of

    # ---------------------------------------------------------------- the run

    def summary(self) -> str:
        by_end: dict[str, list[int]] = {}
        for rank, end in enumerate(self.ends):
            by_end.setdefault(_verdict(end, self._proven(rank)), []).append(rank)
        if len(by_end) == 1:
            count, text = len(self.ends), next(iter(by_end))
            said = f"{'The one rank' if count == 1 else 'Both ranks' if count == 2 else f'All {count} ranks'}: {text}."
        else:
            said = upper("; ".join(f"{ranks_text(ranks)}: {text}" for text, ranks in by_end.items())) + "."
        if any(end.kind is EndKind.UNKNOWN for end in self.ends):
            return f"{said}\n{blame(self.timeline)}"
        return said if self.parting is None else f"{said} {self._parting(self.parting)}"

    def _parts(self, slot: Slot) -> bool:
        """Whether the calls of a slot differ, or some rank that could still be needed issued none."""
        if not slot.expected:
            return True
        absent = set(self.groups.get(slot.group, ())) - slot.calls.keys() - set(slot.lost)
        rank, seq = next(iter(slot.calls.items()))
        row = self.rows[rank, slot.group, seq]
        return bool(absent) and row["op"] not in POINT_TO_POINT

    def _parting(self, slot: Slot) -> str:
        told: list[tuple[Key | None, list[int]]] = []
        pair = any(self.rows[rank, slot.group, seq]["op"] in POINT_TO_POINT for rank, seq in slot.calls.items())
        for rank in slot.calls if pair else self.groups[slot.group]:
            if rank in slot.lost:
                continue
            key: Key | None = (rank, slot.group, slot.calls[rank]) if rank in slot.calls else None
            for one, ranks in told:
                if self._alike(one, key):
                    ranks.append(rank)
                    break
            else:
                told.append((key, [rank]))
        parts = [
            f"{ranks_text(ranks)} issued {self._call(key) if key else 'no call in this place'}"
            for key, ranks in sorted(told, key=lambda one: len(one[1]))
        ]
        where = "" if len(self.groups) == 1 else f" in group {slot.group}"
        said = f"Their calls first differ{where} here: {'; '.join(parts)}."
        size, most = len(self.groups[slot.group]), max((ranks for _, ranks in told), key=len)
        if not pair and size > 2 and 2 * len(most) > size:
            apart = sorted(set(self.groups[slot.group]) - set(most))
            return f"{said} {upper(ranks_text(apart))} did otherwise than the {len(most)} others."
        return said

    def _alike(self, one: Key | None, other: Key | None) -> bool:
        if one is None or other is None:
            return one is other
        a, b = self.rows[one], self.rows[other]
        same = all(a[name] == b[name] for name in ("op", "dtype", "reduce_op", "root"))
        return same and a["shape"] == b["shape"] and shadows(a["origin"] or "", b["origin"] or "")

    def _crossing(self, slot: Slot, rank: int) -> str:
        """That a call met one it should not have met, and what each rank made of it."""
        mine: Key = (rank, slot.group, slot.calls[rank])
        others: list[Key] = [(other, slot.group, seq) for other, seq in sorted(slot.calls.items()) if other != rank]
        differing = [other for other in others if not self._alike(mine, other)] or others
        met = " and ".join(f"{ranks_text(ranks)}'s {text}" for text, ranks in self._told(differing).items())
        said = f"Its {self._call(mine)} met {met}, which was not meant for it"
        concluded = [
            (key[0], text)
            for key in (mine, *differing)
            if self.rows[key]["completed_ns"] is not None
            and (text := conclusion(self.rows[key]["origin"], self.rows[key]["value_out"]))
        ]
        return f"{said}: {'; '.join(self._grouped(concluded))}." if concluded else f"{said}."

    # ---------------------------------------------------------------- words

    def _call(self, key: Key) -> str:
        """A call, as the sentences name it: "all-reduce (DDP backward()) [call 7, train.py:12]"."""
        row = self.rows[key]
        site = f", {short_site(row['call_site'])}" if row["call_site"] else ""
        group = "" if len(self.groups) == 1 else f" of group {key[1]}"
        return f"{row['origin'] or row['op']} [call {key[2]}{group}{site}]"

    def _evidence(self, key: Key) -> Evidence:
        row = self.rows[key]
        return Evidence(*key, row["origin"] or row["op"], row["call_site"])


_PAST = {
    EndKind.FINISHED: "has finished",
    EndKind.RAISED: "has raised an error",
    EndKind.KILLED: "was killed",
    EndKind.UNKNOWN: "is beyond the end of the record",
}


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


def _verdict(end: Ending, proven: bool | None) -> str:
    if end.kind is EndKind.HUNG:
        return "hung (proven)" if proven else "hung (suspected)"
    return "finished, with a call still pending" if end.pending else str(end)


def _worded(differs: Sequence[str]) -> list[str]:
    words = {"op": "kind", "reduce_op": "reduce operation", "origin": "who issued them"}
    return [words.get(name, name) for name in differs]


def _cut(text: str, most: int = 240) -> str:
    text = text.partition(". This is typically")[0].rstrip(".")  # gloo goes on with advice
    return text if len(text) <= most else f"{text[:most].rstrip('.')} (cut)"
