"""Fates: how each rank ended, and why. The backend's matching rule says what a rank's open call
lacks.

A hang is proven if its ending says so. If two ranks differ, neither is called wrong, since that
depends on the program's intent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from joinlab.analysis.matching import Slot
from joinlab.analysis.wording import good, short_site
from joinlab.backend.calls import Key
from joinlab.ops import COUNTERPART
from joinlab.program.labels import kind_of
from joinlab.story.evidence import Evidence
from joinlab.story.forms.meeting import given
from joinlab.story.lines import Line, LineKind, NamedCall, SourceLine
from joinlab.story.words import ENDINGS, Part, Text, full, listing, say
from joinlab.timeline import CallRow, EndKind, backend_of

CALLERS = 2
"""How many of the lines that led to a raise are shown, nearest first."""

PEER_GONE = ("Connection closed by peer", "Connection reset by peer", "Read error", "Broken pipe")
"""Gloo's messages when the process at the other end is gone."""


TIMED_OUT = ("Timed out waiting", "Socket Timeout", "collective operation timeout")
"""Of gloo, of a store and of NCCL's watchdog, when no peer came in time."""


def is_peer_gone(text: str) -> bool:
    return any(phrase in text for phrase in PEER_GONE)


def is_timeout(text: str) -> bool:
    return any(phrase in text for phrase in TIMED_OUT)


MOST = 240
"""Most characters of an error's text to quote."""

Why = dict[str, Any]
"""Why a call does not complete: the ranks, `how` they block it, `call`: what they issued, `end`:
how they ended."""


def find(scene: Evidence) -> tuple[Line, ...]:
    """A line for every rank, failed ranks first; ranks with the same fate share one."""
    clash = None if scene.parting.circle else scene.clash  # of a circle, each call needs its reason
    lines: dict[str, Line] = {}
    for lane, ranks in scene.parting.lanes.items():
        line = _Fate(scene, lane, clash).line()
        key = repr(
            (
                line.form,
                [replace(call, rank=-1, seq=-1) for call in line.calls],
                line.facts,
                line.lines,
            )
        )
        if key in lines:
            ranks = (*lines[key].ranks, *ranks)
            line = lines[key]
        lines[key] = replace(line, ranks=tuple(sorted(ranks)))
    ends = scene.ends
    return tuple(sorted(lines.values(), key=lambda line: (good(ends[line.ranks[0]]), line.ranks)))


class _Fate:
    """How one rank ended. `known`: the slot in which the ranks part, which the cause already
    describes."""

    def __init__(self, scene: Evidence, rank: int, clash: Slot | None) -> None:
        self.scene, self.rank, self.known = scene, rank, clash
        self.end = scene.ends[rank]
        self.rows, self.slot_of = scene.matched.row_of, scene.slot_of
        self.calls: list[NamedCall] = []

    def line(self) -> Line:
        end, scene = self.end, self.scene
        awaited = scene.awaited(self.rank)
        facts: dict[str, object] = {"pending": end.pending} if end.pending else {}
        text = _cut(end.text.strip().partition("\n")[0].rstrip(": "))
        if text:
            facts["text"] = text
        form: str = "running" if end.runs else end.kind.value
        if end.kind is EndKind.HUNG:
            facts |= {
                "proven": bool(end.proven),
                "modelled": scene.meta.get("engine") == "emulated",
            }
            # How the model found it is not said, and differs from rank to rank.
            if end.proven and text.startswith(("no rank can go on", "it made no progress")):
                reason = ""
            else:
                reason = text
            facts["text"] = reason.removeprefix("only suspected: ")
        if end.kind is EndKind.RAISED:
            sites = raised_at(scene.timeline.output[self.rank])
        else:
            sites = ()
        if awaited is None:
            if self.rank in scene.last and end.kind in (
                EndKind.HUNG,
                EndKind.KILLED,
                EndKind.UNKNOWN,
            ):
                facts["after"] = self.cite(scene.last[self.rank])
        else:
            facts["in"] = self.cite(awaited)
            if end.kind in (EndKind.FINISHED, EndKind.HUNG) and (
                why := self.because(awaited, facts)
            ):
                facts["why"] = why
            gloo = self.on_gloo(awaited)
            if (
                gloo
                and end.kind is EndKind.RAISED
                and is_peer_gone(f"{self.rows[awaited]['error']} {end.text}")
            ):
                facts["peer_gone"] = bool(
                    facts.pop("text", True)
                )  # it names a port, another one on each rank
            if gloo and end.kind is EndKind.KILLED and ("SIGABRT" in end.text or "aborted" in text):
                facts["overrun"] = bool(
                    {"dtype", "shape", "splits"} & set(self.slot_of[awaited].differs)
                )
        sends = scene.meta.get("sends", {})
        if self.rank in sends:
            facts["sends"] = sends[self.rank]
        left_at = scene.meta.get("left_at", {}).get(self.rank)
        if left_at is not None:
            sites, facts["left"] = (left_at,), True
        lines = (SourceLine(sites[0], "", (), tuple(map(SourceLine, sites[1:]))),) if sites else ()
        return Line(LineKind.FATE, form, (self.rank,), tuple(self.calls), lines=lines, facts=facts)

    def cite(self, key: Key) -> int:
        """The place of a call in the line's calls."""
        call = self.scene.call(self.rows[key])
        if call not in self.calls:
            self.calls.append(call)
        return self.calls.index(call)

    def on_gloo(self, key: Key) -> bool:
        return bool(backend_of(self.scene.meta, key[1]) == "gloo")

    # ---------------------------------------------------------------- what a call lacks

    def because(self, key: Key, facts: dict[str, Any], depth: int = 0) -> list[Why]:
        """What the call lacks, by the backend's rule; [] if the rule does not say that it can never
        complete."""
        rank, group, seq = key
        if self.slot_of[key] is self.known:
            return []
        why = self.scene.blocked.get(group, {}).get((rank, seq), ())
        first = self.scene.held_by(key)
        if first and depth < 2:
            facts.setdefault("behind", []).append(self.cite(first))
            return self.because(first, facts, depth + 1)
        lacks = []
        for blocker in why:
            if blocker.rank == rank:
                continue
            if blocker.seq is not None:
                lacks.append(self.unlike(key, self.scene.key_of(blocker, group)))
            elif (other_seq := self.slot_of[key].calls.get(blocker.rank)) is not None:
                lacks.append(self.held_up((blocker.rank, group, other_seq)))
            else:
                lacks.append(self.absent(blocker.rank, self.rows[key]))
        return _grouped(list(filter(None, lacks)), self.calls)

    def held_up(self, key: Key) -> Why | None:
        """The call behind which another rank issued its part of this one."""
        before = self.scene.held_by(key)
        return before and {
            "ranks": [key[0]],
            "how": "behind",
            "call": self.cite(before),
            "pair": self.rows[key]["op"],
        }

    def absent(self, rank: int, row: CallRow) -> Why:
        """Where a rank is that issued no call to meet this one."""
        end, pair = self.scene.ends[rank], str(COUNTERPART.get(row["op"], ""))
        if end.kind in (EndKind.HUNG, EndKind.UNKNOWN):
            awaited = self.scene.awaited(rank)
        else:
            awaited = None
        if awaited:
            whereabouts = "elsewhere"
        elif end.runs or end.kind is EndKind.HUNG:
            whereabouts = "outside"
        else:
            whereabouts = "ended"
        call = None if awaited is None else self.cite(awaited)
        return {
            "ranks": [rank],
            "how": whereabouts,
            "call": call,
            "end": end.kind.value,
            "pair": pair,
        }

    def unlike(self, key: Key, other_key: Key) -> Why | None:
        """What another rank issued in the place of a call; None if it issued the same."""
        own_row, row = self.rows[key], self.rows[other_key]
        why: Why = {"ranks": [other_key[0]], "how": "instead", "call": self.cite(other_key)}
        if self.slot_of[key] is not self.slot_of[other_key]:
            return why | {"how": "before"}
        if row["op"] != own_row["op"]:
            return why | {"how": "kinds" if self.on_gloo(other_key) else "instead"}
        differ = {name for name in ("root", "dtype", "shape") if row[name] != own_row[name]}
        if "root" in differ or (differ and row["origin"] == own_row["origin"]):
            return why | {
                "how": "values",
                "theirs": given(row, differ),
                "mine": given(own_row, differ),
            }
        if row["origin"] != own_row["origin"]:
            return why
        if row["completed_ns"] is not None:
            return why | {"how": "done"}
        return None


def _grouped(reasons: Sequence[Why], calls: Sequence[NamedCall]) -> list[Why]:
    """The same reasons, with ranks that share one merged."""
    merged: dict[str, Why] = {}
    for reason in reasons:
        if reason.get("call") is not None:
            call = calls[reason["call"]]
        else:
            call = None
        if call:
            call_key = (call.name, call.group, call.number, call.site, call.peer)
        else:
            call_key = None
        key = repr(
            (
                {name: value for name, value in reason.items() if name not in ("ranks", "call")},
                call_key,
            )
        )
        merged.setdefault(key, reason | {"ranks": []})["ranks"] += reason["ranks"]
    return list(merged.values())


_FRAME = re.compile(r'  File "(.+)", line (\d+)', re.MULTILINE)  # of a traceback


def raised_at(output: str) -> tuple[str, ...]:
    """The lines of the learner's own code in the last traceback of a rank's output; the line that
    raised comes first.

    >>> raised_at('Traceback (most recent call last):\\n  File "train.py", line 9, in worker\\nKeyError: 1\\n')
    ('train.py:9',)
    """
    frames = _FRAME.findall(output[output.rfind("Traceback (most recent call last)") :])
    return tuple(f"{file}:{line}" for file, line in reversed(frames) if kind_of(file) == "program")


def _cut(text: str) -> str:
    text = text.partition(". This is typically")[0].rstrip(".")  # gloo's advice follows
    if len(text) <= MOST:
        return text
    return f"{text[:MOST].rstrip('.')} (cut)"


# ---------------------------------------------------------------- words

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
"""By `how` of a Why."""


def _in(line: Line) -> Text:
    """The call a rank ended in, and why it does not complete: " in barrier, call 7: rank 0 has
    finished"."""
    if "in" not in line.facts:
        return ()
    its = "their" if len(line.ranks) > 1 else "its"
    behind = []
    for index in line.facts.get("behind", ()):
        behind.append(say(", behind {} own {}", its, full(line, index)))
    return say(" in {}{}{}", full(line, line.facts["in"]), tuple(chain(*behind)), _why(line))


def _why(line: Line) -> Text:
    lacks = [_lack(line, reason) for reason in line.facts.get("why", ())]
    return say(": {}", listing(lacks, "; ")) if lacks else ()


def _lack(line: Line, why: Why) -> Text:
    kind, call = EndKind(why.get("end", EndKind.UNKNOWN)), why.get("call")
    has, was = ("has", "was") if len(why["ranks"]) == 1 else ("have", "were")
    parts: dict[str, Part] = {
        "them": why["ranks"],
        "theirs": () if call is None else full(line, call),
        "other": str(why.get("pair")),
        "pair": f" without a {why['pair']}" if why.get("pair") else "",
        "given": f"{why.get('theirs')}, not {why.get('mine')}",
        "end": f"{was} killed" if kind is EndKind.KILLED else f"{has} {ENDINGS[kind].past}",
    }
    return say(_LACKS[why["how"]], **parts)


def _after(line: Line) -> Text:
    if "after" in line.facts:
        return say(", last seen after {}", full(line, line.facts["after"]))
    return ()


def _finished(line: Line) -> Text:
    if line.facts.get("left"):
        return say("{} left by sys.exit ({}).", line.ranks, short_site(line.lines[0].site))
    if not line.facts.get("pending"):
        return say("{} finished.", line.ranks)
    if "in" not in line.facts:
        return say("{} finished, but left a call behind that was still pending.", line.ranks)
    return say(
        "{} finished, but left {} pending{}.", line.ranks, full(line, line.facts["in"]), _why(line)
    )


def _hung(line: Line) -> Text:
    proven, text, inside = (
        line.facts.get("proven"),
        str(line.facts.get("text", "")),
        "in" in line.facts,
    )
    if not proven:
        if inside:
            verb = "wait[s|]"
        else:
            verb = "make[s|] no progress outside any recorded call"
        template = "{} " + verb + "{}. A hang is only suspected: {}."
        return say(template, line.ranks, _in(line) or _after(line), text or "it made no progress")
    modelled = line.facts["modelled"] and not inside
    if modelled:
        proof = "in the model no rank can go on"
    else:
        proof = "no issued call can end this wait"
    detail = f" {text[:1].upper()}{text[1:]}." if text else ""
    location = _in(line) if inside else say(" outside any recorded call{}", _after(line))
    return say("{} hang[s|]{}.{} Proven: {}.", line.ranks, location, detail, proof)


def _raised(line: Line) -> Text:
    if line.facts.get("peer_gone"):
        return say(
            "{} raised an error{}: on gloo a process that ends closes its connections.",
            line.ranks,
            _in(line),
        )
    sites = [
        short_site(source_line.site)
        for line in line.lines
        for source_line in (line, *line.via[:CALLERS])
    ]
    trail = f" ({', called from '.join(sites)})" if sites else ""
    location = say(",{}", _in(line)) if "in" in line.facts else ()
    return say(
        "{} raised {}{}{}.", line.ranks, str(line.facts.get("text") or "an error"), trail, location
    )


_PLURAL = (
    ("its process was", "their processes were"),
    ("its process is", "their processes are"),
    ("its process", "their processes"),
    ("its record has", "their records have"),
    ("its record ends", "their records end"),
    ("its host", "their hosts"),
    ("it was", "they were"),
    ("it may", "they may"),
)


def _of_several(text: str, ranks: Sequence[int]) -> str:
    """The text of an ending, for as many ranks."""
    for its, their in _PLURAL if len(ranks) > 1 else ():
        text = text.replace(its, their)
    return text


def _killed(line: Line) -> Text:
    text = _of_several(str(line.facts.get("text", "")), line.ranks)
    ending, why = (
        (text, "") if text.startswith("ended by") else ("ended", f": {text}" if text else "")
    )
    overrun = " Gloo aborts a process that is sent more bytes than its call has room for."
    location = (
        _in(line)
        if "in" in line.facts
        else _after(line) or ("" if why else " before its program returned")
    )
    return say(
        "{} [was|were] {}{}{}.{}",
        line.ranks,
        ending,
        location,
        why,
        overrun * bool(line.facts.get("overrun")),
    )


def _unknown(line: Line) -> Text:
    text = _of_several(str(line.facts.get("text") or "the record ends earlier"), line.ranks)
    if "in" in line.facts:
        return say(
            "{} [was|were] last seen{}. How [it|they] ended is not known: {}.",
            line.ranks,
            _in(line),
            text,
        )
    if "sends" in line.facts:
        return say("{} issued {} last: {}.", line.ranks, line.facts["sends"], text)
    if "after" not in line.facts:
        return say("No call of {} is known: {}.", line.ranks, text)
    return say("{} [has|have] no known ending{}: {}.", line.ranks, _after(line), text)


def _running(line: Line) -> Text:
    return say("{} [is|are]{}.", line.ranks, _in(line) or say(" still running{}", _after(line)))


WORDS: Mapping[str, Callable[[Line], Text]] = {
    "finished": _finished,
    "hung": _hung,
    "raised": _raised,
    "killed": _killed,
    "unknown": _unknown,
    "running": _running,
}
