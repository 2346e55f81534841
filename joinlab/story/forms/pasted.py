"""What text tells: a pasted log names some ranks and some calls, so nothing is said of what it leaves out.

Ranks `got to` the largest number that a line names of them. Where ranks wait in a call, those that are known to have
got to a smaller number have not come to it; of ranks that no line names nothing is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from joinlab.analysis.wording import short_site
from joinlab.program.labels import kind_of
from joinlab.story.forms.fates import PEER_GONE
from joinlab.story.lines import Line, LineKind, SourceLine
from joinlab.story.scene import Scene
from joinlab.story.words import Text, listing, noun, say, sides, who
from joinlab.timeline import FIRST_FAILED, FROM_TEXT, CallRow, EndKind

_UNKNOWN = 1 << 40  # more calls than this before the first that is told: nothing is known of the rank


def find(scene: Scene) -> tuple[Line, ...]:
    """The headline of what a text tells, and what else it says of the ranks' places."""
    if scene.meta.get("format") != FROM_TEXT:
        return ()
    rows = scene.timeline.rows("calls")
    headline = _failed(scene) or _parted(scene, rows) or _alike(scene, rows)
    reach = Line(
        LineKind.NOTE, "text_reach", tuple(scene.meta.get("missing_ranks", ())), facts={"of": scene.meta["program"]}
    )
    return (headline, *_beyond(scene, rows), reach)


def _failed(scene: Scene) -> Line | None:
    """A rank that raised an error of its own, or was the first to fail."""
    errors = {rank for rank, error in scene.timeline.calls.select("rank", "error").iter_rows() if error}
    own = [
        rank
        for rank, end in enumerate(scene.ends)
        if end.kind is EndKind.RAISED and rank not in errors and not any(gone in end.text for gone in PEER_GONE)
    ]
    own = own or [rank for rank, end in enumerate(scene.ends) if FIRST_FAILED in end.text and rank not in errors]
    if not own:
        return None
    lines = _place(scene, own[0])
    text = scene.ends[own[0]].text.partition("\n")[0]
    return Line(LineKind.HEADLINE, "text_failed", tuple(own[:1]), lines=lines, facts={"text": text})


def _parted(scene: Scene, rows: list[CallRow]) -> Line | None:
    """Ranks that wait: in different calls of one number, or for ranks that did not come."""
    open_ = [row for row in rows if row["completed_ns"] is None]
    if not open_:
        return None
    group = max((row["group"] for row in open_), key=lambda name: sum(row["group"] == name for row in open_))
    by: dict[int, list[CallRow]] = {}
    for row in open_:
        if row["group"] == group:
            by.setdefault(_number(row), []).append(row)
    for here in (by[number] for number in sorted(by)):
        kinds: dict[str, list[CallRow]] = {}
        for row in here:
            kinds.setdefault(repr((row["op"], row["shape"])), []).append(row)
        if len(kinds) > 1:
            calls = tuple(scene.call(those[0]) for those in kinds.values())
            facts = {
                "sides": [[row["rank"] for row in those] for those in kinds.values()],
                "number": _number(here[0]),
                "sizes": [_size(those[0]) for those in kinds.values()],
            }
            return Line(LineKind.HEADLINE, "text_differ", _ranks(here), calls, facts=facts)
    last = max(by)
    behind = [rank for rank, number in _reach(scene, rows, group).items() if number < last]
    facts = {"sides": [list(_ranks(by[last])), behind], "number": last, "size": _size(by[last][0])}
    return Line(
        LineKind.HEADLINE,
        "text_behind" if behind else "text_waits",
        tuple(sorted({*_ranks(by[last]), *behind})),
        (scene.call(by[last][0]),),
        facts=facts,
    )


def _alike(scene: Scene, rows: list[CallRow]) -> Line:
    ranks = tuple(rank for rank in range(len(scene.ends)) if rank not in scene.meta.get("missing_ranks", ()))
    return Line(
        LineKind.HEADLINE, "text_alike", ranks, facts={"calls": len({(row["group"], row["seq"]) for row in rows})}
    )


def _beyond(scene: Scene, rows: list[CallRow]) -> Iterator[Line]:
    """How far the ranks got that are known to have gone on beyond the call they wait in, or before it."""
    for group in sorted({row["group"] for row in rows}):
        waits = any(row["group"] == group and row["completed_ns"] is None for row in rows)
        found: dict[int, list[int]] = {}
        for rank, progress in sorted(scene.meta.get("progress", {}).get(group, {}).items()):
            found.setdefault(progress["enqueued"], []).append(rank)
        if waits and len(found) > 1:
            facts = {"sides": list(found.values()), "numbers": list(found)}
            ranks = tuple(sorted(rank for those in found.values() for rank in those))
            yield Line(LineKind.CAUSE, "text_enqueued", ranks, facts=facts)


def _reach(scene: Scene, rows: list[CallRow], group: str) -> dict[int, int]:
    """By rank: the largest number of a call of the group that it is known to have issued."""
    found = {rank: before for rank, before in scene.meta.get("skipped", {}).get(group, {}).items() if before < _UNKNOWN}
    for rank, progress in scene.meta.get("progress", {}).get(group, {}).items():
        found[rank] = max(found.get(rank, 0), progress["enqueued"])
    for row in rows:
        if row["group"] == group:
            found[row["rank"]] = max(found.get(row["rank"], 0), _number(row))
    return found


def _number(row: CallRow) -> int:
    return row["number"] or 0


def _ranks(rows: list[CallRow]) -> tuple[int, ...]:
    return tuple(sorted(row["rank"] for row in rows))


def _size(row: CallRow) -> str:
    if row["shape"] is None:
        return ""
    sizes = row["shape"][0]
    return f" of {'×'.join(f'{size:,}' for size in sizes)} number{'s' * (sizes != [1])}"


def _place(scene: Scene, rank: int) -> tuple[SourceLine, ...]:
    """The line of the program in which a rank's main thread stood."""
    for thread in scene.meta.get("stood", {}).get(rank, ())[:1]:
        sites = [frame.rpartition(" ")[0] for frame in reversed(thread["frames"])]
        own = [site for site in sites if kind_of(site.rpartition(":")[0]) == "program"]
        return tuple(SourceLine(site, "", (rank,)) for site in own[:1])
    return ()


# ---- words


def _differ(line: Line) -> Text:
    each = zip(sides(line), line.calls, line.facts["sizes"], strict=True)
    parts = [say("{} issued {}" + size, who(ranks), noun(line, at)) for at, (ranks, _, size) in enumerate(each)]
    return say("{}" + f", as call {line.facts['number']:,}.", listing(parts))


def _behind(line: Line) -> Text:
    here, behind = sides(line)
    call = say("{}" + f" {line.facts['number']:,}{line.facts['size']}", noun(line, 0))
    return say("{} had not come to {}, where {} waited.", who(behind), call, who(here))


def _waits(line: Line) -> Text:
    here, _ = sides(line)
    call = say("{}" + f" {line.facts['number']:,}{line.facts['size']}", noun(line, 0))
    return say("{} waited in {}; the text names no rank that had not come to it.", who(here), call)


def _enqueued(line: Line) -> Text:
    each = zip(sides(line), line.facts["numbers"], strict=True)
    return say("{}.", listing([say("{} had enqueued " + f"{number:,} calls", who(ranks)) for ranks, number in each]))


def _same(line: Line) -> Text:
    calls = line.facts["calls"]
    many = f"the same {calls:,} call{'s' * (calls != 1)}"
    return (
        say("{} issued " + many + ", as far as the text reaches.", who(line.ranks))
        if calls
        else say("The text says nothing of a call of {}.", who(line.ranks))
    )


def _failed_words(line: Line) -> Text:
    place = f" ({short_site(line.lines[0].site)})" if line.lines else ""
    return say("{} failed first: {}" + place + ".", who(line.ranks), line.facts["text"].removesuffix("."))


def _reached(line: Line) -> Text:
    rest = say("; no line is of {}: they died, or were cut from it", who(line.ranks)) if line.ranks else ""
    return say("This was read from {}. What it leaves out is not known{}.", line.facts["of"], rest)


WORDS: Mapping[str, Callable[[Line], Text]] = {
    "text_failed": _failed_words,
    "text_differ": _differ,
    "text_behind": _behind,
    "text_waits": _waits,
    "text_alike": _same,
    "text_enqueued": _enqueued,
    "text_reach": _reached,
}
