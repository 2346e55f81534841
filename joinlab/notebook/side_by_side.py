"""Beside: two live views side by side, the rows of both on one axis, and the place marked where the runs part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ipywidgets

from joinlab.analysis.comparison import ComparedRow, Comparison, told_apart
from joinlab.analysis.comparison import compare as lay_out
from joinlab.analysis.wording import shown_html
from joinlab.errors import ProgramError
from joinlab.notebook.output import close
from joinlab.notebook.view import View
from joinlab.timeline import Timeline

SHARED = ("axis",)
"""What a reader sets in one view holds for both."""


class Beside:
    """Two Timelines, one above the other; show it at the end of a cell.

    left, right   the two `View`s. Selecting a row in one selects in the other what stands in the same row
    comparison    `joinlab.analysis.comparison.compare` of the two; None while there is nothing to compare
    widget        the ipywidget, to be put into others
    """

    def __init__(self, left: Timeline, right: Timeline | View) -> None:
        self.left = View(left, sentences=False, alike=False)
        self.right = View(right, sentences=False, alike=False) if isinstance(right, Timeline) else right
        self.comparison: Comparison | None = None
        self._following = False
        self._said = ipywidgets.HTML()
        self.widget = ipywidgets.VBox([self._said, self.left, self.right])
        self.widget.add_class("joinlab-compared")
        for view in (self.left, self.right):
            view.observe(self._follow, [*SHARED, "selected"])
        self._share(self.right, SHARED)
        self.compare()

    def compare(self) -> None:
        """Lay out again what the two views show. While anything is covered nothing is compared."""
        covered = bool(self.left.covered or self.right.covered)
        self.comparison = None if covered else lay_out(self.left.timeline, self.right.timeline)
        parted: tuple[ComparedRow, ...] = ()  # from where they part
        if self.comparison is None:
            self._said.value = ""
        else:
            self._said.value = (
                f'<p role="status" style="line-height:1.4;margin:0">{shown_html(self.comparison.sentence)}</p>'
            )
            if self.comparison.parting is not None:
                parted = self.comparison.rows[self.comparison.parting :]
        names = dict(zip(("left", "right"), told_apart(self.left.timeline, self.right.timeline), strict=True))
        for side, view in (("left", self.left), ("right", self.right)):
            ended = ", ".join(f"rank {rank} {end}" for rank, end in enumerate(view.timeline.ends))
            with view.hold_sync():
                view.heading = names[side] if view.covered else f"{names[side]}: {ended}"
        self._select(parted)

    def _select(self, parted: tuple[ComparedRow, ...]) -> None:
        """Select in the left view the row beside the right one's selection, or without one the row where they part."""
        if self.comparison is None:
            return
        if self.right.selected is not None:
            self.left.selected = self.comparison.other(self.right.selected, "right")
        elif parted and self.left.selected is None:
            self.left.selected, self.right.selected = parted[0].left, parted[0].right

    def close(self) -> None:
        """Take it apart again; the right view, if it was handed in, goes on."""
        for view in (self.left, self.right):
            view.unobserve(self._follow, [*SHARED, "selected"])
        self.right.heading = ""
        self.widget.children = (self._said, self.left)
        close(self.widget)

    def _follow(self, change: Mapping[str, Any]) -> None:
        if self._following:
            return
        self._following = True
        try:
            if change["name"] in SHARED:
                self._share(change["owner"], [change["name"]])
            elif self.comparison is not None:
                side = "left" if change["owner"] is self.left else "right"
                other = self.right if side == "left" else self.left
                other.selected = None if change["new"] is None else self.comparison.other(change["new"], side)
        finally:
            self._following = False

    def _share(self, source: View, names: Any) -> None:
        target = self.left if source is self.right else self.right
        for name in names:
            setattr(target, name, getattr(source, name))

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return self.widget._repr_mimebundle_(**options)

    def __repr__(self) -> str:
        return f"<{self.left.timeline!r} beside {self.right.timeline!r}>"


def compare(left: Timeline, right: Timeline) -> Beside:
    """Show two Timelines side by side, with the first place where they part marked, and said in words.

    They may differ in engine, backend, era, inputs or program. Raises ProgramError for what is no Timeline.

        joinlab.compare(joinlab.emulate(case_4, era="1.9"), joinlab.emulate(case_4))
    """
    for name, timeline in (("left", left), ("right", right)):
        if not isinstance(timeline, Timeline):
            raise ProgramError(f"{name}= is a Timeline, as launch and emulate return it; got {timeline!r:.60}")
    return Beside(left, right)
