"""An all-to-all whose sizes do not add up, though nothing hangs: elements were sent that no rank received."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from joinlab.analysis.wording import elements
from joinlab.ops import Op, decode_values
from joinlab.story.lines import Line, LineKind
from joinlab.story.scene import Scene
from joinlab.story.words import Text, at_place, say, who


def find(scene: Scene) -> tuple[Line, ...]:
    """The first all-to-all of which the ranks sent other than they received, where both are known."""
    if scene.parting.clash is not None:
        return ()
    for slot in scene.folding.every.slots if scene.folding.every else scene.folding.slots:
        rows = [
            (scene.folding.every or scene.folding.matched).row_of[rank, slot.group, seq]
            for rank, seq in slot.calls.items()
        ]
        if any(row["op"] != Op.ALL_TO_ALL or not row["value_out"] for row in rows) or len(rows) < 2:
            continue
        if len(rows) < len(scene.groups[slot.group]):
            continue
        sent = sum(elements(row) for row in rows)
        received = sum(len(values) for row in rows for values in decode_values(row["value_out"]) or ())
        if sent != received:
            ranks = tuple(row["rank"] for row in rows)
            return (
                Line(
                    LineKind.HEADLINE,
                    "splits",
                    ranks,
                    tuple(map(scene.call, rows)),
                    lines=tuple(filter(None, [scene.line_of(rows[0], ranks)])),
                    facts={"sides": [[rank] for rank in ranks], "sent": sent, "received": received},
                ),
            )
    return ()


def _words(line: Line) -> Text:
    facts = line.facts
    return say(
        "The splits of {} do not fit: {} sent " + f"{facts['sent']} elements in all, and received {facts['received']}.",
        at_place(line, 0), who(line.ranks),
    )  # fmt: skip


WORDS: Mapping[str, Callable[[Line], Text]] = {"splits": _words}
