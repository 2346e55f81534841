"""An all-to-all whose sizes do not add up, though nothing hangs: elements were sent that no rank received."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from joinlab.ops import Op, decode_values
from joinlab.rules.calls import elements_of
from joinlab.story.lines import Line, LineKind
from joinlab.story.scene import Scene
from joinlab.story.words import Text, at_place, listing, say, sides, who


def find(scene: Scene) -> tuple[Line, ...]:
    """The first all-to-all of which the ranks sent other than they received, where both are known."""
    if scene.parting.clash is not None:
        return ()
    for slot in scene.folding.every.slots if scene.folding.every else scene.folding.slots:
        matched = scene.folding.every or scene.folding.matched
        rows = [matched.row_of[rank, slot.group, seq] for rank, seq in slot.calls.items()]
        if any(row["op"] != Op.ALL_TO_ALL for row in rows) or len(rows) < max(2, len(scene.groups[slot.group])):
            continue
        ranks = tuple(row["rank"] for row in rows)
        sent = [elements_of(row["shape"]) or 0 for row in rows]
        received = [len(values) for row in rows for values in decode_values(row["value_out"]) or ()]
        over = [rank for rank in ranks if "op.preamble.length <= op.nbytes" in scene.ends[rank].text]
        if over or (all(row["value_out"] for row in rows) and sum(sent) != sum(received)):
            return (
                Line(
                    LineKind.HEADLINE,
                    "splits",
                    ranks,
                    tuple(map(scene.call, rows)),
                    lines=tuple(filter(None, [scene.line_of(rows[0], ranks)])),
                    facts={"sides": [[rank] for rank in ranks], "sent": sent, "received": sum(received), "over": over},
                ),
            )
    return ()


def _words(line: Line) -> Text:
    facts, where = line.facts, at_place(line, 0)
    if facts["over"]:
        each = listing(
            [say("{}: " + str(sent), who(ranks)) for ranks, sent in zip(sides(line), facts["sent"], strict=True)]
        )
        return say("The splits of {} do not fit: {} got more than it has room for. Elements sent: {}.",
                   where, who(facts["over"]), each)  # fmt: skip
    count = f"{sum(facts['sent'])} elements in all, and received {facts['received']}."
    return say("The splits of {} do not fit: {} sent " + count, where, who(line.ranks))


WORDS: Mapping[str, Callable[[Line], Text]] = {"splits": _words}
