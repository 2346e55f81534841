"""A record that does not say how ranks ended: who keeps the others waiting, by the graph of who waits for whom."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from joinlab.analysis.blame import Blame, blame
from joinlab.story.lines import Line, LineKind
from joinlab.story.scene import Scene
from joinlab.story.words import Text, s, say, sides, who
from joinlab.timeline import EndKind


def find(scene: Scene) -> tuple[Line, ...]:
    """The ranks where the graph ends, unless the clash itself explains them."""
    if not any(end.kind is EndKind.UNKNOWN for end in scene.ends):
        return ()
    blamed = blame(scene.timeline)
    if not blamed.culprits or (scene.parting.first is not None and _shows(scene, blamed)):
        return ()
    causes = [
        Line(LineKind.CAUSE, "stands_still", culprit.ranks, facts={"reason": culprit.reason})
        for culprit in blamed.culprits
    ]
    culprits = tuple(sorted(blamed.ranks)) or blamed.culprits[0].ranks
    behind = sorted({rank for culprit in blamed.culprits for rank in culprit.waiting})
    waits = bool({one.rank for one in blamed.waits} & {*culprits})
    facts = {"sides": [list(culprits), behind], "circle": not blamed.ranks, "waits": waits}
    return (Line(LineKind.HEADLINE, "keeps_waiting", culprits, facts=facts), *causes)


def _shows(scene: Scene, blamed: Blame) -> bool:
    """Whether the clash explains the blame: the blamed ranks stand there, and a call there is still open."""
    parting = scene.parting
    if not blamed.ranks or len(parting.present) < 2 or parting.odd not in ((), tuple(sorted(blamed.ranks))):
        return False
    here = {rank for side in parting.present for rank in parting.ranks(side)}
    stuck = any(parting.call(parting.slot, lane)["completed_ns"] is None for lane in parting.slot.calls)
    return stuck and here >= {*blamed.ranks}


def _words(line: Line) -> Text:
    ranks, behind = sides(line)
    if line.facts["circle"]:
        rest = say(", {} for them", who(behind)) if behind else ""
        return say("{} wait for each other{}.", who(ranks), rest)
    alone = f", and wait{s(ranks)} for no other rank" * (not line.facts["waits"])
    return say("{} " + f"keep{s(ranks)}" + " {} waiting" + alone + ".", who(ranks), who(behind))


WORDS: Mapping[str, Callable[[Line], Text]] = {
    "keeps_waiting": _words,
    "stands_still": lambda line: say("{}", line.facts["reason"]),
}
