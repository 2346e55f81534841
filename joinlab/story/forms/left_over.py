"""A send that nobody received, though nothing hangs: each recv after it may have read an older value."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from joinlab.ops import Op
from joinlab.story.lines import Line, LineKind
from joinlab.story.scene import Scene
from joinlab.story.words import Text, at_place, say, who
from joinlab.timeline import CallRow


def find(scene: Scene) -> tuple[Line, ...]:
    """The first pair of ranks of which one sent more often than the other received."""
    if scene.parting.clash is not None or scene.meta.get("skipped") or scene.folding.matched.is_part:
        return ()
    counts: dict[tuple[str, int, int], list[int]] = {}
    for row in scene.folding.matched.rows:
        if row["op"] in (Op.SEND, Op.RECV) and row["peer"] is not None and row["error"] is None:
            sends = row["op"] == Op.SEND
            pair = (row["rank"], row["peer"]) if sends else (row["peer"], row["rank"])
            counts.setdefault((row["group"], *pair), [0, 0])[0 if sends else 1] += 1
    for slot in scene.parting.slots:
        for rank in slot.calls:
            row = scene.parting.call(slot, rank)
            peer = row["peer"]
            if row["op"] != Op.SEND or slot.met or row["completed_ns"] is None or peer is None:
                continue
            sent, received = counts[slot.group, rank, peer]
            if sent > received and peer in scene.parting.lanes:
                other = _recv(scene, slot.group, peer, rank)
                calls = (scene.call(row), *((scene.call(other),) if other else ()))
                return (
                    Line(
                        LineKind.HEADLINE,
                        "left_over",
                        (rank, peer),
                        calls,
                        lines=tuple(
                            line for one in (row, other) if one and (line := scene.line_of(one, (one["rank"],)))
                        ),
                        facts={"sent": sent, "received": received},
                    ),
                )
    return ()


def _recv(scene: Scene, group: str, rank: int, peer: int) -> CallRow | None:
    """The last recv of a rank from a peer; None without one."""
    rows = scene.folding.matched.rows
    return next(
        (
            row
            for row in reversed(rows)
            if (row["rank"], row["group"], row["op"], row["peer"]) == (rank, group, Op.RECV.value, peer)
        ),
        None,
    )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _words(line: Line) -> Text:
    rank, peer = line.ranks
    sent, received = _times(line.facts["sent"]), line.facts["received"]
    where = at_place(line, 0)
    if not received:
        return say(
            "{} sent " + sent + " to {}, which received nothing: {} is left over.", who((rank,)), who((peer,)), where
        )
    return say(
        "{} sent " + sent + " to {}, which received " + _times(received) + ": a {} is left over, beside {}.",
        who((rank,)), who((peer,)), where, at_place(line, 1),
    )  # fmt: skip


WORDS: Mapping[str, Callable[[Line], Text]] = {"left_over": _words}
