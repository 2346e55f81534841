"""Notes: what the forum thread documents for a case, what the model assumes, and what the record
leaves open."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from joinlab.analysis.source import SourceTexts
from joinlab.documentation import DOCUMENTED, documented_case
from joinlab.ops import Op
from joinlab.story.evidence import Evidence
from joinlab.story.forms.kept_waiting import unclear_first
from joinlab.story.forms.silent import differing
from joinlab.story.lines import Line, LineKind
from joinlab.story.words import ENDINGS, Text, at_place, say, sides, told, who
from joinlab.timeline import FROM_TEXT, EndKind, Timeline, backend_of


def find(scene: Evidence) -> tuple[Line, ...]:
    """All notes on a run."""
    return (
        *_documented(scene.timeline),
        *_unclear(scene),
        *_tags(scene),
        *_watchdog(scene.timeline),
        *_replicas(scene.timeline),
    )


def _documented(timeline: Timeline) -> Iterator[Line]:
    """The thread's ending of this run, if it documents one, compared with the ending here."""
    source = SourceTexts.of(timeline).program
    number = None if source is None else documented_case(source.text)
    if number is None or timeline.calls.is_empty():  # not run yet: this would give its end away
        return
    case, gloo = DOCUMENTED[number], timeline.meta.get("backend") == "gloo"
    documented, traces = (
        case.ends(timeline.meta.get("inputs") or ()),
        tuple(ENDINGS[end.kind].trace for end in timeline.ends),
    )
    differs = traces != documented and (documented is not None or set(traces) != {"finishes"})
    facts = {
        "case": number,
        "then": list(documented or ()),
        "same": traces == documented,
        "gloo": gloo and differs,
    }
    today = (timeline.meta.get("emulation") or {}).get("era") == "today"
    facts["today"] = bool(differs and not gloo and case.join and case.barrier and today)
    if documented or (facts["gloo"] and case.gloo):
        yield Line(LineKind.NOTE, "documented", facts=facts)


def _unclear(scene: Evidence) -> Iterator[Line]:
    if scene.meta.get("format") != FROM_TEXT and any(
        end.kind is EndKind.UNKNOWN for end in scene.ends
    ):
        for form, facts in scene.graph.unclear[unclear_first(scene) is not None :]:
            yield Line(LineKind.NOTE, form, facts=facts)


def _tags(scene: Evidence) -> Iterator[Line]:
    """The first send that met a recv with another tag."""
    for slot in scene.matched.slots:
        if slot.pair and slot.met and backend_of(scene.meta, slot.group) == "nccl":
            rows = sorted(
                scene.matched.calls_of(slot).values(), key=lambda row: row["op"] != Op.SEND
            )
            tags = [row["tag"] for row in rows]
            if len(tags) == 2 and None not in tags and tags[0] != tags[1]:
                yield scene.line(
                    LineKind.NOTE, "tags", [[row["rank"]] for row in rows], rows, tags=tags
                )
                return


def _watchdog(timeline: Timeline) -> Iterator[Line]:
    knobs = timeline.meta.get("emulation") or {}
    if knobs.get("assumes"):
        yield Line(LineKind.NOTE, "assumed", facts={"what": knobs["assumes"]})
    watched = knobs.get("watchdog") or ()
    for seconds in sorted({entry["after_s"] for entry in watched}):
        ranks = tuple(entry["rank"] for entry in watched if entry["after_s"] == seconds)
        yield Line(LineKind.NOTE, "watchdog", ranks, facts={"seconds": seconds})


def _replicas(timeline: Timeline) -> Iterator[Line]:
    """Replicas that differ where nobody expects them to be equal."""
    found = timeline.meta.get("replicas")
    if found is not None and "over" in found:
        ranks = tuple(timeline.meta["groups"].get(found["group"], ()))
        yield Line(LineKind.NOTE, "replicas_part", ranks, facts=dict(found))


# ---------------------------------------------------------------- words

_TODAY = "Its barrier all-reduced a byte that nobody set; today's is a float zero."


def _then(line: Line) -> Text:
    facts, text = line.facts, ""
    if facts["same"]:
        return say("As documented, on NCCL with PyTorch 1.9.")
    if facts["then"]:
        # Of case 4 with 2 inputs the thread's two reports differ, and the record has both in note
        # form.
        both = "finishes in one report, and raises an error in the other"
        first_end, second_end = (both if ";" in end else end for end in facts["then"])
        text = f"Documented, on NCCL with PyTorch 1.9: rank 0 {first_end}; rank 1 {second_end}."
    gloo, today = (
        DOCUMENTED[facts["case"]].gloo if facts["gloo"] else "",
        _TODAY if facts["today"] else "",
    )
    return say("{}", " ".join(filter(None, (text, gloo, today))))


def _watchdog_words(line: Line) -> Text:
    seconds = f"{line.facts['seconds']:g}"
    return say(
        "On GPUs NCCL's watchdog, after the group's timeout of {} s, aborts {}.",
        seconds,
        line.ranks,
    )


def _tags_words(line: Line) -> Text:
    parts = []
    for index, ranks in enumerate(sides(line)):
        parts.append(
            say("{}'s {} with tag {}", ranks, at_place(line, index), str(line.facts["tags"][index]))
        )
    return say("{} met {}: NCCL ignores tags.", *parts)


def _replicas_words(line: Line) -> Text:
    facts: Any = line.facts
    if facts["over"] == "training":
        said = "{}'s replicas differ at the end: {}. They were equal up to the last step."
    else:
        said = (
            "{}'s replicas differ after steps in which no gradients were averaged: {}. "
            "They were made equal again."
        )
    return say(said, told((who(line.ranks),)), differing(facts))


WORDS: Mapping[str, Callable[[Line], Text]] = {
    "replicas_part": _replicas_words,
    "documented": _then,
    "assumed": lambda line: say("{}", line.facts["what"]),
    "tags": _tags_words,
    "watchdog": _watchdog_words,
}
