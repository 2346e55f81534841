"""Fixes: edits of the program's text, with the result of trying them; of an exception, the line
that raised.

`meta["fixes"]` has the tested edits. If none was tried, the line says how to try some; of a recorded
job, what follows from its calls (`advice`).
"""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from itertools import chain
from typing import Any

from joinlab.analysis.matching import Slot
from joinlab.analysis.wording import by_key, good, ranks_text
from joinlab.backend.calls import Key, is_peer_gone
from joinlab.program.branches import guards_around
from joinlab.showing import short_site
from joinlab.story.evidence import Evidence
from joinlab.story.forms import advice, misused
from joinlab.story.forms.fates import is_timeout, raised_at
from joinlab.story.lines import Edit, Fix, Line, SourceLine, form
from joinlab.story.words import Text, code, say
from joinlab.timeline import INTERRUPTED, Ending, EndKind, PlainFix

DOES = {
    "join": "Wrap the loop in join().",
    "behind": "Move the call behind the block of join().",
    "join, behind": "Wrap the loop in join(), and move the call behind it.",
    "out": "Take the call out of the branch: every rank then makes it each time, whether the test "
    "holds or not.",
    "block": "Take the block out of the branch: every rank then runs all of it.",
    "out, shared": "Leave out the condition that only some ranks meet: all then take the branch together.",
    "block, shared": "Leave out the condition that only some ranks meet: every rank then runs all of the block.",
    "late": "Let ranks return only behind the call: move the branch there. Those that return do not use "
    "its result.",
    "agree": "Let all ranks use the least value: all-reduce it. Ranks that had a greater one then run fewer rounds, or "
    "some again.",
    "most": "Let all ranks use the greatest value: all-reduce it. Ranks that had a lower one then run more rounds.",
    "flag": "Decide together: all-reduce a flag, so that all ranks take this branch as soon as one does.",
    "all ready": "Decide together: all-reduce a flag, so that all ranks leave the loop once each of them may, and "
    "go through further rounds until then.",
    "where all do": "Decide together: all-reduce a flag, so that ranks take this branch only where all of them would.",
    "where all skip": "Decide together: all-reduce a flag, so that ranks skip the rest only where all of them "
    "would.",
    "where one does": "Decide together: all-reduce a flag, so that all ranks take this branch as soon as one does, "
    "also those whose own test fails.",
    "together": "Decide together: all-reduce a flag, so that all ranks go on as long as one has to.",
    "same": "Give every rank the same count.",
    "module": "Call the model's own module in evaluation.",
    "group": "Pass the group whose ranks make this call: without it, all ranks have to.",
    "root": "Give the same root on every rank.",
    "other root": "Give another root, the same on every rank.",
    "batch": "Issue the sends and receives as one batch: none then waits for another.",
    "unused": "Let DDP look for parameters that a backward pass leaves out.",
}
"""What each kind of edit does."""


@form
class TriedEdit(Fix):
    """An edit that was tried.

    fix       what it does, and with how many counts of inputs it was tried
    equal     whether each of these was equal on all ranks
    launched  whether the run was launched, and the edited program emulated
    """

    form = "edit"
    inner = "fix"
    fix: PlainFix
    equal: bool
    launched: bool

    def facts(self) -> dict[str, Any]:
        facts = Fix.facts(self)
        del facts["edits"]
        return facts

    def words(self) -> Text:
        fix, passed, raised = self.fix, self.fix["tried"], self.fix.get("raised", 0)
        are = "may be" if fix["kind"] in ("flag", "where all do") else "are then"
        fewer = f" Some inputs or calls {are} left out." if fix["fewer"] else ""
        does = DOES.get(fix["kind"], "Change these lines.")
        if fix.get("root"):
            does += f" It is then always rank 0, whatever {fix['root']} is"
            if fix.get("lost"):
                does += f", and what {ranks_text(fix['lost'])} had to give as root is lost"
            if fix.get("ungiven"):
                verb = "gets" if len(fix["ungiven"]) == 1 else "get"
                does += f", and {ranks_text(fix['ungiven'])} no longer {verb} the result"
            does += "."
        if fix.get("joining"):
            does += f" Values of {ranks_text(fix['joining'])} then go into the result, too."
        if fix.get("often"):
            before, now = fix["often"]
            does += f" A rank then makes it more often, {now} times and not {before}."
        if fix.get("uneven"):
            many = ", ".join(map(str, fix["uneven"]))
            does += f" The ranks' own numbers of inputs stay as they are: they train on {many}."
        equal = " that are equal on all ranks" if self.equal else ""
        if fix.get("apart"):
            does += " The replicas differ with it, too."
        counts = f"{passed} of {passed + raised} counts of inputs{equal}"
        if raised:
            counts += "; with the others the program raises, as it does without the edit"
        how = "Tried, emulated" if self.launched else "Tried"
        return say("{}{} {}: every rank finishes, for {}.", does, fewer, how, counts)


@form
class NoFix(Fix):
    """cut: whether a trial was ended before it was known how it ends"""

    form = "none"
    cut: bool = False

    def words(self) -> Text:
        if self.cut:
            return say("Edits were tried, but not to their end: that takes too long here.")
        return say("No edit was found that mends this program.")


def find(evidence: Evidence) -> tuple[Line, ...]:
    """The lines that raised, and the edits that were tried."""
    raised = tuple(_raised(evidence))
    fixes = evidence.meta.get("fixes") or ()
    equal = len(set(evidence.meta.get("inputs") or ())) == 1
    launched = evidence.meta.get("engine") == "launched"
    edits = tuple(
        TriedEdit(fix, equal, launched, edits=tuple(map(Edit.of, fix["edits"]))) for fix in fixes
    )
    cure = () if edits else (*advice.unused(evidence), *misused.wait_to_end(evidence))
    well = all(map(good, evidence.ends))
    runs = any(map(_may_go_on, evidence.ends)) and not any(end.proven for end in evidence.ends)
    if edits or raised:
        return (*cure, *raised, *edits)
    if "fixes" in evidence.meta:
        return cure if well or cure else (NoFix(evidence.meta.get("fixes_cut", False)),)
    return cure or advice.find(evidence, not runs) or (() if well or runs else _untried(evidence))


def _may_go_on(end: Ending) -> bool:
    """Whether further calls of a rank may follow, or would have if it had not been interrupted."""
    return end.runs or (end.kind is EndKind.UNKNOWN and end.text == INTERRUPTED)


class RaisedHere(Fix):
    def words(self) -> Text:
        return say("Look at {}, where {} raised.", code(short_site(self.lines[0].site)), self.ranks)


@form
class WorkerKilled(Fix):
    """A DataLoader's signal handler raises the error wherever the program happens to be, so its line says
    nothing about the cause.

    memory  whether it was SIGKILL, as of a host that runs out of memory
    """

    memory: bool

    def words(self) -> Text:
        perhaps = ": perhaps its host ran out of memory" if self.memory else ""
        return say("Look at what killed a DataLoader worker of {}{}.", self.ranks, perhaps)


class RaisedBehind(Fix):
    """Ranks whose error came behind a call that met a foreign one."""

    def words(self) -> Text:
        return say(
            "Look at {}, where the ranks part: {}'s error came behind a call that met another.",
            code(short_site(self.lines[0].site)),
            self.ranks,
        )


class RaisedBehindOther(Fix):
    """The same where it is not known where the ranks part. `lines`: where the foreign call is."""

    def words(self) -> Text:
        (line,) = self.lines
        return say(
            "Look at {}: {}'s error came behind a call that met {}'s call there.",
            code(short_site(line.site)),
            self.ranks,
            line.ranks,
        )


def _raised(evidence: Evidence) -> Iterator[Line]:
    """The lines of the program that raised its own exceptions, each line once; of an exception behind
    a call that met a foreign one, where the ranks part."""
    raised = evidence.ranks_that(
        lambda end: (
            end.kind is EndKind.RAISED and not is_peer_gone(end.text) and not is_timeout(end.text)
        )
    )
    slots = ((rank, _foreign_slot(evidence, rank)) for rank in raised)
    of_worker = evidence.ranks_that(
        lambda end: end.kind is EndKind.RAISED and "is killed by signal: " in end.text
    )
    if of_worker:
        memory = all("signal: Killed" in evidence.ends[rank].text for rank in of_worker)
        yield WorkerKilled(memory, ranks=tuple(of_worker))
    follows = {rank: slot for rank, slot in slots if slot is not None}
    sites = by_key(
        (site, rank)
        for rank in raised
        if rank not in follows and rank not in of_worker
        for site in raised_at(evidence.timeline.output[rank])[:1]
    )
    tests = evidence.meta.get("parting", {}).get("tests", ())
    if follows and tests:
        site = f"{tests[-1]['file']}:{tests[-1]['line']}"
        lines = (SourceLine(site, "", tuple(follows)),)
        yield RaisedBehind(ranks=tuple(follows), lines=lines)
    elif follows:
        yield from _behind_another(evidence, *next(iter(follows.items())))
    for site, ranks in sites.items():
        yield RaisedHere(ranks=tuple(ranks), lines=(SourceLine(site, "", tuple(ranks)),))


def _foreign_slot(evidence: Evidence, rank: int) -> Slot | None:
    """Where a rank made a call, not the one in which it raised, that met one not meant for it: where the
    ranks part, or its last one."""
    slots = [evidence.mismatch]
    if rank in evidence.last:
        slots.append(evidence.slot_of(evidence.last[rank]))
    for slot in slots:
        if slot is None or rank not in slot.calls:
            continue
        key = rank, slot.group, slot.calls[rank]
        sites = {row["call_site"] for row in evidence.matched.calls_of(slot).values()}
        of_another = not {"origin", "root"}.isdisjoint(slot.differs)
        of_another |= bool(slot.differs) and len(sites) > 1
        foreign = "op" in slot.differs or (slot.met and of_another)
        if foreign and key != evidence.awaited(rank) and not _on_its_way_out(evidence, key):
            return slot
    return None


def _on_its_way_out(evidence: Evidence, key: Key) -> bool:
    """Whether a rank's call may come from a `finally`, a handler or the end of a `with` that its
    error passed; it may, where the text of the program is unknown."""
    stack = evidence.matched.row_of[key]["stack"] or ()
    for site in raised_at(evidence.timeline.output[key[0]]):
        file, _, line = site.rpartition(":")
        if not linecache.getline(file, int(line)):
            return True
        for guard in guards_around(file, int(line)):
            for number in chain(*guard.handlers, *guard.cleanup):
                if any(frame.startswith(f"{file}:{number} ") for frame in stack):
                    return True
    return False


def _behind_another(evidence: Evidence, rank: int, slot: Slot) -> Iterator[Line]:
    """The line of the call that the rank's call in this slot met."""
    for peer, row in evidence.matched.calls_of(slot).items():
        if peer != rank and row["call_site"]:
            line = SourceLine(row["call_site"], "", (peer,))
            yield RaisedBehindOther(ranks=(rank,), lines=(line,))
            return


@form
class Untried(Fix):
    """how: an expression that looks for a fix"""

    how: str

    def words(self) -> Text:
        return say("No fix was tried: {} may find one.", code(self.how))


@form
class Refused(Fix):
    """why: what the emulator said of the program"""

    why: str

    def words(self) -> Text:
        return say("No fix was tried, as the program cannot be emulated: {}.", self.why)


def _untried(evidence: Evidence) -> tuple[Line, ...]:
    meta = evidence.meta
    if meta.get("engine") != "launched" or meta.get("grouped"):  # groups made unlike
        return ()
    if any(end.kind is EndKind.HUNG and end.call is None for end in evidence.ends):
        return ()  # a rank that loops for ever does so in an emulation, too
    if "not_emulated" in meta:
        return (Refused(meta["not_emulated"].splitlines()[0].partition(". ")[0].rstrip(".")),)
    arguments = f'{meta.get("program", "program")}, {tuple(meta.get("inputs") or ())}, "{meta.get("backend")}"'
    return (Untried(f"joinlab.emulate({arguments})"),)
