"""The story of a pasted log. A log names some ranks and some calls; the story says nothing about
the others.

For some ranks the text gives the number of calls they had enqueued: a rank that had enqueued fewer
than the number of a call in which others wait has not reached that call. For every other rank the
text only says in which call it waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

from joinlab.analysis.wording import by_key, short_site
from joinlab.ops import ONE_SIZE
from joinlab.story.evidence import Evidence
from joinlab.story.forms.fates import PEER_GONE
from joinlab.story.forms.standing import Standing
from joinlab.story.lines import Line, LineKind, SourceLine
from joinlab.story.words import Text, listing, noun, say, sides
from joinlab.timeline import FIRST_FAILED, FROM_TEXT, STUCK, UNTOLD, CallRow, EndKind

SENTENCES: Mapping[str, str] = {
    "failed": "{who} failed first: {text}",
    "raised": "{who} raised {text}",
    "stuck": "{who} stood still, perhaps in a call of CUDA or NCCL: {text}",
    "others": "{who} raised other errors",
    "stood": "{who} stood in {text}",
    "elsewhere": "{who} stood elsewhere",
    "stands": "{who} stands in {text}",
    "differ": "{who} issued {call}",
    "behind": "{who} had not come to {call}, where {here} waited",
    "waits": "{who} waited in {call}; the text names no rank that had not come to it",
    "apart": "{who} waited in {call}",
    "last": "{who} issued {call} last, as far as the text reaches",
    "victims": "{who} waited for another rank, which the text does not name: {text}",
    "alike": "{who} issued the same calls, {number} of them, as far as the text reaches",
    "silent": "the text names no collective of {who}",
    "sends": "{who} issued {text} last, as far as the text reaches",
    "mismatched": "NCCL found collectives that do not match, at and around {who}",
    "enqueued": "{who} had enqueued {number}",
    "reach": "this was read from {of}. What it leaves out is not known",
    "missing": "; no line is of {who}",
}
"""Sentences about a text."""

WAITED = (
    *PEER_GONE,
    "Timed out waiting",
    "timed out in monitoredBarrier",
    "wait timeout after",
    "Socket Timeout",
    "Watchdog caught collective operation timeout",
    "NCCL communicator was aborted",
    "remote process exited",
    "ncclRemoteError",
    "but store->get(",
)
"""Parts of errors that a rank raises because another rank did not come or is gone."""

_UNKNOWN = 1 << 40  # more calls than this before the first known one: nothing is known of the rank
_NOT_MET = "Detected mismatch"


def find(scene: Evidence) -> tuple[Line, ...]:
    """The headline of a text, and lines about the ranks' places."""
    if scene.meta.get("format") != FROM_TEXT:
        return ()
    rows = scene.timeline.rows("calls")
    open_ = [row for row in rows if row["completed_ns"] is None]
    still = [rank for rank, end in enumerate(scene.ends) if STUCK in end.text]
    headline = (
        _failed(scene) or _parted(scene, open_) or _said(scene, "stuck", still) or _victims(scene)
    )
    headline = headline or (None if rows else _stood(scene) or _hints(scene)) or _alike(scene, rows)
    reach = Line(
        LineKind.NOTE,
        "text_reach",
        _missing(scene),
        facts={"of": scene.meta.get("program", "text")},
    )
    return (headline, *_beyond(scene, open_), reach)


def _headline(form: str, ranks: Iterable[int], **fields: Any) -> Line:
    return Line(LineKind.HEADLINE, f"text_{form}", tuple(sorted(ranks)), **fields)


def _missing(scene: Evidence) -> tuple[int, ...]:
    return tuple(scene.meta.get("missing_ranks", ()))


def _failed(scene: Evidence) -> Line | None:
    """Ranks that raised errors of their own; the one that was the first to fail, where torchrun
    says which."""
    errors = {
        rank for rank, error in scene.timeline.calls.select("rank", "error").iter_rows() if error
    }
    own_errors = [
        rank
        for rank, end in enumerate(scene.ends)
        if rank not in errors
        and (FIRST_FAILED in end.text or end.kind is EndKind.RAISED)
        and not _waited(end.text)
    ]
    first = [rank for rank in own_errors if FIRST_FAILED in scene.ends[rank].text][:1]
    return _said(scene, "failed" if first else "raised", first or own_errors)


def _victims(scene: Evidence) -> Line | None:
    return _said(
        scene, "victims", [rank for rank, end in enumerate(scene.ends) if _waited(end.text)]
    )


def _waited(error: str) -> bool:
    return any(phrase in error for phrase in WAITED)


def _said(scene: Evidence, form: str, ranks: Sequence[int]) -> Line | None:
    """A headline of what some ranks raised, those of one error together."""
    if not ranks:
        return None
    texts = by_key((_error(scene, rank), rank) for rank in ranks)
    lines = tuple(SourceLine(site, "", (ranks[0],)) for site in _place(scene, ranks[0]))
    return _headline(
        form, ranks, lines=lines, facts={"sides": list(texts.values()), "texts": list(texts)}
    )


def _error(scene: Evidence, rank: int) -> str:
    text = (
        scene.ends[rank]
        .text.partition("\n")[0]
        .removesuffix(f" ({FIRST_FAILED})")
        .removesuffix(".")
    )
    return text + "".join(f" ({short_site(site)})" for site in _place(scene, rank))


def _stood(scene: Evidence) -> Line | None:
    """Where the main threads stood, of fewest ranks first."""
    main = (
        (rank, Standing(threads[0]))
        for rank, threads in sorted(scene.meta.get("stood", {}).items())
    )
    texts = by_key((thread.text(), rank) for rank, thread in main if thread.frames)
    by_size = sorted(texts.items(), key=lambda item: (len(item[1]), item[1]))
    facts = {"sides": [ranks for _, ranks in by_size], "texts": [text for text, _ in by_size]}
    if by_size:
        return _headline("stood", chain(*texts.values()), facts=facts)
    return None


def _hints(scene: Evidence) -> Line | None:
    """What a text without collectives says: which do not match, or the last sends and recvs."""
    mismatched = scene.meta.get("mismatched")
    if mismatched:
        return _headline("mismatched", mismatched)
    texts = by_key((text, rank) for rank, text in scene.meta.get("sends", {}).items())
    facts = {"sides": list(texts.values()), "texts": list(texts)}
    if texts:
        return _headline("sends", chain(*texts.values()), facts=facts)
    return None


def _parted(scene: Evidence, open_: list[CallRow]) -> Line | None:
    """Ranks that wait: in calls that differ, for ranks that did not come, or in calls of which no
    more is told."""
    if not open_:
        return None
    refused = [row for row in open_ if _NOT_MET in (row["error"] or "")]
    kinds = _kinds(refused, numbers=True)
    if len(kinds) > 1:
        return _differ(scene, kinds)
    group = max(
        (row["group"] for row in open_), key=lambda name: sum(row["group"] == name for row in open_)
    )
    by = by_key((row["number"] or 0, row) for row in open_ if row["group"] == group)
    for number in sorted(by):
        kinds = _kinds(by[number])
        if len(kinds) > 1:
            return _differ(scene, kinds)
    exact = _exact(scene, group)
    for number in sorted(by):
        ranks_here = {row["rank"] for row in by[number]}
        behind = [
            rank
            for rank, count in exact.items()
            if count < (number or 1) and rank not in ranks_here
        ]
        if behind:
            return _headline(
                "behind", {*ranks_here, *behind}, **_calls(scene, [by[number]], [behind])
            )
    first: dict[int, int] = {}
    for number in sorted(by):
        for row in by[number]:
            first.setdefault(row["rank"], number)
    places = [
        [row for row in by[number] if first[row["rank"]] == number]
        for number in sorted(set(first.values()))
    ]
    untold = [rank for rank in first if scene.ends[rank].text == UNTOLD]
    if untold and not any(row["error"] for row in open_):
        form = "last"
    elif places[1:]:
        form = "apart"
    else:
        form = "waits"
    return _headline(form, first, **_calls(scene, places))


def _kinds(rows: Sequence[CallRow], numbers: bool = False) -> list[list[CallRow]]:
    """Rows of calls that differ: in the op, in the size where all ranks must have one, and in the
    number if asked."""
    kinds: dict[str, list[CallRow]] = {}
    for row in rows:
        sized = row["op"] in ONE_SIZE and all(other_row["shape"] for other_row in rows)
        sized = sized or _NOT_MET in (row["error"] or "")
        key = (row["origin"], row["shape"] if sized else None, row["number"] if numbers else None)
        kinds.setdefault(repr(key), []).append(row)
    return list(kinds.values())


def _differ(scene: Evidence, kinds: list[list[CallRow]]) -> Line:
    return _headline(
        "differ", [row["rank"] for rows in kinds for row in rows], **_calls(scene, kinds)
    )


def _calls(
    scene: Evidence, sides: list[list[CallRow]], without_call: Sequence[list[int]] = ()
) -> dict[str, object]:
    """One call of each side, and what its words need; `without_call`: ranks without a call."""
    calls, sizes = [scene.call(rows[0]) for rows in sides], [_size(rows[0]) for rows in sides]
    ranks = [sorted({row["rank"] for row in rows}) for rows in sides]
    facts = {
        "sides": [*ranks, *without_call],
        "numbers": [call.label for call in calls],
        "sizes": sizes,
    }
    return {"calls": tuple(calls), "facts": facts}


def _alike(scene: Evidence, rows: list[CallRow]) -> Line:
    ranks = sorted(set(range(len(scene.ends))) - set(_missing(scene)))
    calls = len({(row["group"], row["seq"]) for row in rows})
    return _headline("alike" if calls else "silent", ranks, facts={"numbers": [calls]})


def _beyond(scene: Evidence, open_: list[CallRow]) -> Iterator[Line]:
    """How many calls the ranks had enqueued, in groups where some wait, if not all had enqueued as
    many."""
    for group in sorted({row["group"] for row in open_}):
        progress = sorted(scene.meta.get("progress", {}).get(group, {}).items())
        by_count = by_key((counts["enqueued"], rank) for rank, counts in progress)
        if len(by_count) > 1:
            facts = {"sides": list(by_count.values()), "numbers": list(by_count)}
            yield Line(
                LineKind.CAUSE,
                "text_enqueued",
                tuple(sorted(chain(*by_count.values()))),
                facts=facts,
            )


def _exact(scene: Evidence, group: str) -> dict[int, int]:
    """By rank: how many calls of the group it had enqueued, where the text says so."""
    skipped = scene.meta.get("skipped", {}).get(group, {})
    rows = {row["rank"] for row in scene.timeline.rows("calls") if row["group"] == group}
    exact = {
        rank: before for rank, before in skipped.items() if before < _UNKNOWN and rank not in rows
    }
    return exact | {
        rank: counts["enqueued"]
        for rank, counts in scene.meta.get("progress", {}).get(group, {}).items()
    }


def _size(row: CallRow) -> str:
    if row["shape"] is None:
        return ""
    sizes = row["shape"][0]
    return f" of {'×'.join(f'{size:,}' for size in sizes)} number{'s' * (sizes != [1])}"


def _place(scene: Evidence, rank: int) -> list[str]:
    """The line of the program in which a rank's main thread stood, if it is known."""
    main = scene.meta.get("stood", {}).get(rank, ())[:1]
    return [site for thread in main for site, _ in Standing(thread).frames[:1]]


# ---- words


def _each(line: Line, name: str) -> Text:
    """Each side with its call and number, or with its number alone."""
    numbers, parts = line.facts["numbers"], []
    one_number = len(set(numbers)) == 1 and name == "differ"
    for ranks, number, index in zip(sides(line), numbers, range(len(numbers)), strict=True):
        call = _call(line, index, not one_number) if line.calls else ""
        count = f"{number or 0} call{'s' * (number != 1)}"
        parts.append(say(SENTENCES[name], who=ranks, call=call, number=count))
    label = str(numbers[0] or "")
    if one_number and label:
        label_text = f", as {'call ' * label.isdecimal()}{label}"
    else:
        label_text = ""
    return say("{}{}.", listing(parts), label_text)


def _call(line: Line, index: int, numbered: bool = True) -> Text:
    if numbered and (number := line.facts["numbers"][index]):
        number = f" {number}"
    else:
        number = ""
    return say("{}{}{}", noun(line, index), number, line.facts["sizes"][index])


def _waiting(line: Line, name: str) -> Text:
    ranks = sides(line)
    return say(SENTENCES[name] + ".", who=ranks[-1], here=ranks[0], call=_call(line, 0))


def _errors(line: Line, name: str) -> Text:
    texts = line.facts["texts"]
    parts = []
    for ranks, text in zip(sides(line), texts, strict=True):
        parts.append(say(SENTENCES[name], who=ranks, text=text))
    if len(parts) > 2:
        further_ranks = sorted(chain(*sides(line)[2:]))
        parts[2:] = [
            say(SENTENCES["elsewhere" if name == "stood" else "others"], who=further_ranks)
        ]
    return say("{}.", listing(parts))


def _reached(line: Line) -> Text:
    missing = say(SENTENCES["missing"], who=line.ranks) if line.ranks else ""
    return say(SENTENCES["reach"] + "{}.", missing, of=line.facts["of"])


def _all(line: Line, name: str) -> Text:
    count = line.facts.get("numbers", ("",))[0]
    return say(SENTENCES[name] + ".", who=line.ranks, number=str(count))


def _words(write: Callable[..., Text], *names: str) -> dict[str, Callable[[Line], Text]]:
    return {f"text_{name}": partial(write, name=name) for name in names}


WORDS: Mapping[str, Callable[[Line], Text]] = {
    **_words(_errors, "failed", "raised", "stuck", "victims", "stood", "sends"),
    **_words(_each, "differ", "apart", "last", "enqueued"),
    **_words(_waiting, "behind", "waits"),
    **_words(_all, "alike", "silent", "mismatched"),
    "text_reach": _reached,
}
