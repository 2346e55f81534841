"""The live view: the swimlanes of a Timeline in a notebook. The reader steps through them, zooms
and selects calls.

Python lays out the lanes (`lane_data`), and a script in the package (`assets`) draws them as SVG;
the same script draws the page of `write_html`. `view.selected` is the slot that the reader has
selected; set it to select another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anywidget
import polars as pl
import traitlets

from joinlab.analysis.reading import read
from joinlab.analysis.thread import beside_thread
from joinlab.errors import JoinlabError
from joinlab.notebook.stills import show_live
from joinlab.picture.assets import packed_script, style
from joinlab.picture.first_screen import NARROW
from joinlab.picture.lane_data import pack
from joinlab.picture.tables import Table, thread_table
from joinlab.story.judge import mend
from joinlab.timeline import Timeline, expect_timeline


class View(anywidget.AnyWidget):
    """The swimlanes of a Timeline as a widget.

    timeline   the run shown; set another to draw that instead
    beside     another Timeline, drawn below it on the same axis, or None
    selected   index into `joinlab.match(timeline)` of the selected slot, or None; two-way
    axis       of the lanes: "logical" (in order of calls), "time" (on the clock) or "calls" (each one); two-way
    mended     whether the run with the story's fix, emulated, is drawn in its place; two-way
    covered    ranks whose lanes and endings are hidden; while any is, the view does not reveal how the run ended
    sentences  whether the diagnosis appears above the lanes
    alike      True: of more than four ranks, those that did the same share a lane, unless any is covered
    heading    text above the title

    Raises traitlets.TraitError for an invalid value.

        view = joinlab.View(timeline)
        view.observe(lambda change: print(view.calls), "selected")
    """

    _esm = packed_script("widget.js")
    _css = style("view.css", "first.css")

    _calls = True  # whether calls are sent with the boxes, or only once the reader selects one
    timeline = traitlets.Instance(Timeline)
    beside = traitlets.Instance(Timeline, allow_none=True)
    selected = traitlets.Int(None, allow_none=True).tag(sync=True)
    axis = traitlets.Enum(("logical", "time", "calls"), "logical").tag(sync=True)
    covered = traitlets.List(traitlets.Int(min=0)).tag(sync=True)
    mended = traitlets.Bool(False).tag(sync=True)
    sentences = traitlets.Bool(True).tag(sync=True)
    alike = traitlets.Bool(True).tag(sync=True)
    heading = traitlets.Unicode("").tag(sync=True)
    # id of the still that this view hides (stills.py)
    _still = traitlets.Unicode("").tag(sync=True)
    _packed = traitlets.Bytes(b"").tag(sync=True)  # the run shown

    def __init__(self, timeline: Timeline | None, **options: object) -> None:
        unknown = sorted(set(options) - set(self.trait_names(sync=True)) - {"beside", "layout"})
        if unknown:
            raise TypeError(f"View has no option {', '.join(unknown)}; see help(joinlab.View)")
        self._drawn: tuple[Timeline, Timeline | None, bool] | None = None
        super().__init__(timeline=timeline, **options)

    @property
    def _seen(self) -> Timeline:
        timeline: Timeline = self.timeline
        return timeline

    @property
    def _drawn_run(self) -> Timeline:
        """The run that the reader looks at."""
        if self.mended and self._seen.live.mended:
            return self._seen.live.mended
        return self._seen

    @property
    def calls(self) -> pl.DataFrame:
        """The calls of the selected slot: rows of `timeline.calls`; none if nothing is selected."""
        if self.selected is None:
            return self._drawn_run.calls.clear()
        return read(self._drawn_run).calls_of(self.selected)

    @property
    def _count(self) -> int:
        return read(self._drawn_run).count

    @property
    def _folds(self) -> bool:
        """Whether ranks that did the same share a lane."""
        return self.alike and not self.covered and self._seen.world_size > NARROW

    def __repr__(self) -> str:
        return "<covered>" if self.covered else repr(self._seen)

    def _ipython_display_(self) -> None:
        # anywidget gives each widget a class of its own, so no formatter can be registered for this
        # one
        show_live(self)

    def close(self) -> None:
        if self.comm is None:
            return
        layout = self.layout
        super().close()
        layout.close()

    @traitlets.validate("selected")
    def _check_selected(self, proposal: Mapping[str, Any]) -> int | None:
        value: int | None = proposal["value"]
        if value is not None and not 0 <= value < self._count:
            raise traitlets.TraitError(
                f"selected= is a slot from 0 to {self._count - 1}, or None; got {value}"
            )
        return value

    @traitlets.observe("timeline")
    def _show(self, change: Mapping[str, object]) -> None:
        if change["new"] is None:  # of a bench that covers its run
            return
        with self.hold_sync():
            self.mended = False
            self._pack()
            if self.selected is not None and self.selected >= self._count:
                self.selected = None

    @traitlets.observe("alike", "covered", "beside")
    def _fold(self, change: Mapping[str, object]) -> None:
        """Redraw the lanes, which depend on these traits: a shared lane would reveal ranks that end
        alike."""
        if self._packed:
            self._pack()

    @traitlets.observe("mended")
    def _mend(self, change: Mapping[str, object]) -> None:
        """Look for the fix, unless it is known; the page has the run with it as soon as it is."""
        self.selected = None
        if not change["new"] or self._seen.live.mended:
            return
        try:
            mended = mend(self._seen)
        except (JoinlabError, KeyboardInterrupt):
            mended = None
        with self.hold_sync():
            self.refresh()
            self.mended = mended is not None

    def refresh(self, calls: bool = True) -> None:
        """Draw the same Timeline again, after its story has grown, or since the reader needs the
        `calls`."""
        self._packed = pack(self._seen, self._folds, None if self.covered else self.beside, calls)

    def _pack(self) -> None:
        wanted = self._seen, None if self.covered else self.beside, self._folds
        if wanted != self._drawn:
            self._drawn = wanted
            self.refresh(self._calls or self.axis != "logical")


def compare(first: Timeline, second: Timeline) -> View | Table:
    """Show two Timelines as two pictures on one axis, below a sentence that says how they differ.

    They may differ in engine, backend, era, inputs or program. If the second is what the forum
    thread documents (`joinlab.cases.documented`), show a table of both, call by call. Raises
    ProgramError for anything but a Timeline.

        joinlab.compare(joinlab.emulate(case_4, era="1.9"), joinlab.emulate(case_4))
    """
    expect_timeline(first, "compare")
    expect_timeline(second, "compare")
    if second.meta.get("engine") == "documented":
        return thread_table(beside_thread(first, second))
    return View(first, beside=second)
