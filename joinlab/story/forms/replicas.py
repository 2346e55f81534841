"""DDP's replicas differ, though no call went wrong: each rank goes on with weights or momentum of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from joinlab.story.lines import Line, LineKind
from joinlab.story.scene import Scene
from joinlab.story.words import Text, code, say, who
from joinlab.timeline import EndKind


def find(scene: Scene) -> tuple[Line, ...]:
    """The headline, where every rank finished and every call met a call of its kind."""
    found = scene.meta.get("replicas")
    if found is None or scene.parting.clash is not None or any(end.kind is not EndKind.FINISHED for end in scene.ends):
        return ()
    ranks = tuple(scene.groups.get(found["group"], range(len(scene.ends))))
    return (Line(LineKind.HEADLINE, "replicas_differ", ranks, facts=dict(found)),)


def _words(line: Line) -> Text:
    facts, steps = line.facts, sorted(set(line.facts["steps"].values()))
    when = (
        f"since step {steps[0]}"
        if len(steps) == 1
        else f"since steps {steps[0]} to {steps[-1]}"
        if steps
        else "at the end"
    )
    what = "the optimizer's state of " * (facts["what"] == "state")
    return say("{} finished, but their replicas differ " + when + ": {}{}.", who(line.ranks), what, code(facts["name"]))


WORDS: Mapping[str, Callable[[Line], Text]] = {"replicas_differ": _words}
