"""Notes: what the forum thread documents for a case, what the model assumes, and what the record
leaves open."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from joinlab.analysis.source import SourceTexts
from joinlab.documentation import DOCUMENTED, documented_case
from joinlab.ops import Op
from joinlab.program.replicas import Replica
from joinlab.story.evidence import Evidence
from joinlab.story.forms import misused
from joinlab.story.forms.kept_waiting import Shows, unclear_first
from joinlab.story.forms.pasted import waited
from joinlab.story.forms.silent import differing
from joinlab.story.lines import Line, LineKind, Note, form
from joinlab.story.words import EMULATED, ENDINGS, Text, as_sentence, say, who
from joinlab.timeline import FROM_TEXT, EndKind, Timeline, backend_of


def find(evidence: Evidence) -> tuple[Line, ...]:
    """All notes on a run."""
    return (
        *misused.waited_for(evidence),
        *_documented(evidence.timeline),
        *_unclear(evidence),
        *_tags(evidence),
        *_watchdog(evidence.timeline),
        *_replicas(evidence.timeline),
        *(Assumed(text) for text in evidence.meta.get("asides", [])[:3] if not waited(text)),
    )


@form
class Documented(Note):
    """The thread's ending of a case.

    then   how it has each rank end; () where it has no record
    same   whether the run here ended so
    gloo   whether it does not because of gloo
    today  whether because of today's barrier
    """

    case: int
    then: Sequence[str]
    same: bool
    gloo: bool
    today: bool

    def words(self) -> Text:
        if self.same:
            return say("As documented, on NCCL with PyTorch 1.9.")
        text = ""
        if self.then:
            # Of case 4 with 2 inputs the thread's two reports differ, and the record has both in note
            # form.
            both = "finishes in one report, and raises an error in the other"
            first_end, second_end = (both if ";" in end else end for end in self.then)
            text = f"Documented, on NCCL with PyTorch 1.9: rank 0 {first_end}; rank 1 {second_end}."
        gloo, today = DOCUMENTED[self.case].gloo * self.gloo, _TODAY * self.today
        return say("{}", " ".join(filter(None, (text, gloo, today))))


_TODAY = "Its barrier all-reduced a byte that nobody set; today's is a float zero."


def _documented(timeline: Timeline) -> Iterator[Line]:
    """The thread's ending of this run, if it documents one, compared with the ending here."""
    source = SourceTexts.of(timeline).program
    number = None if source is None else documented_case(source.text)
    if number is None or timeline.calls.is_empty():  # not run yet: this would give its end away
        return
    case, gloo = DOCUMENTED[number], timeline.meta.get("backend") == "gloo"
    documented = case.ends(timeline.meta.get("inputs") or ())
    traces = tuple(ENDINGS[end.kind].trace for end in timeline.ends)
    differs = traces != documented and (documented is not None or set(traces) != {"finishes"})
    era = (timeline.meta.get("emulation") or {}).get("era")
    today = differs and not gloo and case.join and bool(case.barrier) and era == "today"
    gloo = gloo and differs
    if documented or (gloo and case.gloo):
        yield Documented(number, documented or (), traces == documented, gloo, today)


def _unclear(evidence: Evidence) -> Iterator[Line]:
    if evidence.meta.get("format") != FROM_TEXT and any(
        end.kind is EndKind.UNKNOWN for end in evidence.ends
    ):
        for why in evidence.graph.unclear[unclear_first(evidence) is not None :]:
            yield Shows(why, kind=LineKind.NOTE)


@form
class Tags(Note):
    """A send and a recv that met with unlike tags."""

    tags: Sequence[int | None]

    def words(self) -> Text:
        parts = []
        for index, (ranks, tag) in enumerate(zip(self.sides, self.tags, strict=True)):
            parts.append(say("{}'s {} with tag {}", ranks, self.with_site(index), str(tag)))
        return say("{} met {}: NCCL ignores tags.", *parts)


def _tags(evidence: Evidence) -> Iterator[Line]:
    """The first send that met a recv with another tag."""
    for slot in evidence.matched.slots:
        if slot.pair and slot.met and backend_of(evidence.meta, slot.group) == "nccl":
            rows = sorted(
                evidence.matched.calls_of(slot).values(), key=lambda row: row["op"] != Op.SEND
            )
            tags = [row["tag"] for row in rows]
            if len(tags) == 2 and None not in tags and tags[0] != tags[1]:
                yield Tags(tags, **evidence.about(([row["rank"]] for row in rows), rows))
                return


@form
class Assumed(Note):
    what: str

    def words(self) -> Text:
        return say("{}", self.what)


@form
class Watchdog(Note):
    """Ranks that NCCL's watchdog would abort after so many seconds."""

    seconds: float

    def words(self) -> Text:
        return say(
            "On GPUs NCCL's watchdog, after the group's timeout of {} s, aborts {}.",
            f"{self.seconds:g}",
            self.ranks,
        )


def _watchdog(timeline: Timeline) -> Iterator[Line]:
    knobs = timeline.meta.get("emulation") or {}
    if knobs.get("assumes"):
        yield Assumed(knobs["assumes"])
    watched = knobs.get("watchdog") or ()
    for seconds in sorted({entry["after_s"] for entry in watched}):
        ranks = tuple(entry["rank"] for entry in watched if entry["after_s"] == seconds)
        yield Watchdog(seconds, ranks=ranks)


@form
class ReplicasPart(Note):
    """Replicas that differ by design."""

    inner = "replica"
    replica: Replica

    def words(self) -> Text:
        template = (
            "{}'s replicas differ after steps in which no gradients were averaged: {}. "
            "They were made equal again{}."
        )
        if self.replica["over"] == "training":
            template = "{}'s replicas differ at the end: {}. They were equal up to the last step{}."
        emulated = EMULATED if self.replica.get("emulated") else ""
        return say(template, as_sentence((who(self.ranks),)), differing(self.replica), emulated)


def _replicas(timeline: Timeline) -> Iterator[Line]:
    """The replicas, where they differ by design."""
    found = timeline.meta.get("replicas")
    if found is not None and "over" in found:
        ranks = tuple(timeline.meta["groups"].get(found["group"], ()))
        yield ReplicasPart(found, ranks=ranks)
