"""Stage: what the bench shows, the knobs that choose it, and what a change of them leads to.

`Bench` stands on it: it starts launched runs, answers the browser, and opens in a fresh kernel.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar, cast

import ipywidgets

from joinlab.emulator.recorded import recorded, titles, torch_is_loaded
from joinlab.emulator.warm_up import warm_up
from joinlab.errors import JoinlabError, LaunchInterrupted, ProgramError
from joinlab.notebook.ahead import Ahead
from joinlab.notebook.board import Board, check_counts
from joinlab.notebook.ending_map import EndingMap
from joinlab.notebook.engines import ENGINES, Engine, knobs, missing
from joinlab.notebook.output import Layout, Output
from joinlab.notebook.panel import Panel
from joinlab.notebook.predictions import Score, blank, score, tally
from joinlab.notebook.session import Session, Setting, program_of
from joinlab.notebook.side_by_side import Beside
from joinlab.notebook.verdict_card import card
from joinlab.program.program import Program, program_name
from joinlab.program.sources import source_of
from joinlab.timeline import Timeline

T = TypeVar("T")


class Knob(Generic[T]):
    """A control that Python can read and set, too; what a new value leads to is done once.

    where  "panel" or "view": the widget that has it, under the knob's own name
    check  makes what the widget holds of a value, or raises ProgramError
    read   makes of what the widget holds what Python gets
    """

    def __init__(self, where: str, check: Callable[[Stage, Any], Any], read: Callable[[Any], T], told: str) -> None:
        self.where, self.check, self.read = where, check, read
        self.__doc__ = told

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, stage: Stage | None, owner: type | None = None) -> T:
        if stage is None:  # help() asks the class
            return cast("T", self)
        return self.read(getattr(getattr(stage, self.where), self.name))

    def __set__(self, stage: Stage, value: Any) -> None:
        stage._set(lambda: setattr(getattr(stage, self.where), self.name, self.check(stage, value)))


class Stage:
    """What a `Bench` shows, and what it shows it of. Arguments as `Bench` has them."""

    panel: Panel
    view: Board
    counts = Knob[tuple[int, ...]](
        "view",
        lambda _, counts: list(check_counts(counts)),
        tuple,
        "Number of inputs per rank: 1 to 8 ranks, at most 20 each. Settable.",
    )
    case = Knob[int](
        "panel",
        lambda stage, case: _one_of("case", case, [number for number, _ in stage.panel.programs]),
        int,
        "Number of the case; 0 is the program that the bench was given. Settable.",
    )
    engine = Knob[str](
        "panel",
        lambda _, engine: _one_of("engine", engine, ENGINES),
        str,
        "On what the program runs, as `joinlab.notebook.engines.ENGINES` names it. Settable.",
    )
    barrier_value = Knob[int](
        "panel",
        lambda _, value: value,
        int,
        "The 4-byte word whose lowest byte PyTorch 1.9's barrier all-reduces. Settable.",
    )
    pad = Knob[int](
        "panel", lambda _, value: value, int, "The upper half of an NCCL line that holds 4 bytes. Settable."
    )

    def __init__(
        self,
        program: Program | None,
        case: int,
        inputs: Sequence[int],
        engine: str,
        predict: bool,
        timeout: float,
    ) -> None:
        self.own = program
        self.predict = bool(predict)
        self.scores: list[Score] = []
        self._timeline: Timeline | None = None
        self._session = Session(timeout)
        self._lock = threading.RLock()
        self._held = True
        self._verdict: dict[str, Any] = {}
        self._failed: BaseException | None = None
        self._beside: Beside | None = None
        self._closed = False
        self._loop = None if torch_is_loaded() else _event_loop()  # while torch is loaded: where its end is told

        counts = list(check_counts(inputs))
        programs = [] if program is None else [(0, program_name(program))]
        programs += sorted((titles() if self.loading else _titles()).items())
        chosen = 0 if program is not None and case == 4 else case
        self.panel = Panel(
            programs=programs,
            case=_one_of("case", chosen, [number for number, _ in programs]),
            engine=_one_of("engine", engine, ENGINES),
            counts=counts,
        )
        self.view = Board(
            timeline=self._blank(counts),
            covered=list(range(len(counts))),
            counts=counts,
            said=[""] * len(counts),
            predict=self.predict,
            sentences=False,  # the panel says them
            layout=Layout(),
        )
        self._output = Output(layout=Layout())
        self._map = EndingMap(self._session, self._show_map, Ahead(self._send_ahead))
        self.widget = ipywidgets.VBox(self._parts(), layout=Layout())
        self.widget.add_class("joinlab-bench")

    @property
    def said(self) -> tuple[str, ...]:
        """What the learner says of each rank: "finishes", "hangs", "raises", or "" for nothing yet. Settable."""
        return tuple(self.view.said)

    @said.setter
    def said(self, said: Sequence[str]) -> None:
        if not self.covered:
            raise ProgramError(
                "nothing is covered that could still be predicted; joinlab.bench(predict=True) asks first"
            )
        self.view.said = list(said)

    @property
    def covered(self) -> bool:
        """Whether the ending is still to be predicted."""
        return self.predict and bool(self.view.covered)

    @property
    def running(self) -> bool:
        """Whether a launched run is under way."""
        return self._session.running

    @property
    def loading(self) -> bool:
        """Whether torch is still being loaded; meanwhile the emulations that ship are shown."""
        return self._loop is not None

    @property
    def program(self) -> Program:
        """The function that is run."""
        return program_of(None if self.case else self.own, self.case)

    @property
    def timeline(self) -> Timeline | None:
        """The shown run; None while it is covered or not run yet. Waits while torch is loading."""
        if self.loading and self._timeline is None:
            self._wait_until_loaded()
        return self._timeline

    # ---------------------------------------------------------------- what a change leads to

    @property
    def _now(self) -> Engine:
        return ENGINES[self.engine]

    def _setting(self) -> Setting:
        own = None if self.case else self.own
        return Setting(own, self.case, self.counts, self._now, self.barrier_value, self.pad)

    def _set(self, change: Callable[[], None]) -> None:
        """Make a change from Python: what it leads to is done once, and an interrupt goes to the cell."""
        if self.running:
            raise ProgramError("a run is under way; bench.stop() ends it")
        with self._holding():
            change()

    @contextmanager
    def _holding(self) -> Iterator[None]:
        outer, self._held = self._held, True
        try:
            yield
        finally:
            self._held = outer
        if not outer:
            self._refresh()

    def _wait_until_loaded(self) -> None:
        """Python asks: wait for torch here and now, instead of in the background."""
        self._loop = None
        warm_up()
        self._refresh()

    def _refresh(self) -> None:
        """React to a choice: cover or drop the run shown before, and emulate the new one at once if possible."""
        with self._lock:
            self._timeline, self._failed = None, None
            self.panel.counts = list(self.counts)
            self.view.said = [""] * len(self.counts)
            self.view.results = []
            found = self._setting().recorded if self.loading and not self.predict else None
            if found is not None:
                self._show(found, self._setting().key)
                self._tell("Loading PyTorch …")
            elif self.loading or self.predict or self._now.launched:
                self._cover()
                self._tell(self._what_waits() if self.loading else self._next_step())
            else:
                self._emulate()
            self._arrange()
            self._follow_map()

    def _follow_map(self) -> None:
        if self.loading or self.predict or self._now.launched or self._failed is not None:
            self._map.follow(None)
        else:
            self._map.follow(self._setting())

    def _show_map(self, told: dict[str, Any]) -> None:
        if not self._closed and self.panel.map != told:
            self.panel.map = told

    def _send_ahead(self, parcel: bytes) -> None:
        """Give the page pictures that its sliders can go to, and name the widgets that it sets for that."""
        if not self._closed:
            self.view.send({"ahead": [self.view.model_id, self.panel.model_id]}, [parcel])

    def _next_step(self) -> str:
        if reason := missing(self._now, len(self.counts)):
            return f"Not on this machine. {reason}"
        if self.covered and "" in self.said:
            return "Predict first: say of each rank whether it finishes, hangs or raises. Then it is shown."
        if self.covered and not self._now.launched:
            return "Everything is said. Press Show."
        return "Not run yet. Press Run: each rank becomes a process of its own."

    def _emulate(self, again: bool = False) -> None:
        """Emulate what is chosen, or take it from what is kept, and show it."""
        try:
            timeline = self._session.emulate(self._setting(), again)
        except LaunchInterrupted as interrupted:
            self._show(interrupted.timeline)
            raise
        except JoinlabError as error:
            self._fail(error)
            return
        self._show(timeline, self._setting().key if self.case else "")

    # ---------------------------------------------------------------- showing

    def _arrange(self) -> None:
        """Show the controls that matter now, and no others."""
        launched, running, panel = self._now.launched, self.running, self.panel
        reason = "" if self.loading else missing(self._now, len(self.counts))
        with panel.hold_sync():
            panel.engines = self._engines()
            panel.knobs = [] if self.loading else list(knobs(self._now, self.case or None))
            panel.go = "▶ Run" if launched else "Show" if self.covered else ""
            panel.can_go = not (running or self.loading or reason or (self.covered and "" in self.said))
            panel.launches, panel.running = launched, running
            panel.can_compare = self._timeline is not None
            panel.verdict = {} if self._timeline is None else self._verdict
        self.view.busy = running

    def _engines(self) -> list[dict[str, str]]:
        """What the switch offers: NCCL on GPUs only where there are some, or where it was asked for."""
        found = []
        for one in ENGINES.values():
            reason = "" if self.loading else missing(one, 2)
            if one.name != "launched nccl" or one.name == self.engine or not (self.loading or reason):
                found.append({"name": one.name, "label": one.label, "missing": reason})
        return found

    def _parts(self) -> list[ipywidgets.Widget]:
        picture = self.view if self._beside is None else self._beside.widget
        return [self.panel, picture, self._output.widget]

    def _blank(self, counts: Sequence[int]) -> Timeline:
        """A Timeline with nothing in it, of what is chosen."""
        if self.loading and self.case:
            shipped = recorded(self.case, (0, 0))
            assert shipped is not None
            return blank(shipped.meta["program"], shipped.meta["source"], counts, self._now)
        return blank(program_name(self.program), source_of(self.program), counts, self._now)

    def _what_waits(self) -> str:
        kept = ", and kept to compare with" if self.panel.comparing and self._beside is None else ""
        return f"Loading PyTorch …; inputs {self.counts} are next{kept}."

    def _keep(self) -> None:
        """Keep what is shown on the left, if anything is; the next run is shown beside it."""
        if self._timeline is not None:
            self._beside = Beside(self._timeline, self.view)
            fill(self.widget, self._parts())

    def _cover(self) -> None:
        """Show the program and the ranks, and nothing of what they do."""
        timeline = self._blank(self.counts)
        self._draw(timeline, selected=None, covered=list(range(timeline.world_size)), shown="")
        self._output.clear()
        if self._beside is not None:
            self._beside.compare()

    def _show(self, timeline: Timeline, key: str = "") -> None:
        """Show a run; `key` is that of its setting, where it would come out the same again."""
        asked = self.covered
        self._verdict, first = card(timeline)
        self._draw(timeline, covered=[], selected=first, shown=key)
        self._timeline = timeline
        if self.panel.comparing and self._beside is None:  # asked for before there was something to keep
            self._keep()
        self._output.show(timeline)
        self._tell("")
        if asked:
            self._judge(timeline)
        if self._beside is not None:
            self._beside.compare()
        self._arrange()

    def _draw(self, timeline: Timeline, **seen: Any) -> None:
        with self.view.hold_sync():
            self.view.timeline = timeline
            for name, value in seen.items():
                setattr(self.view, name, value)

    def _judge(self, timeline: Timeline) -> None:
        """Compare what was said with what came, and say what was right."""
        found = score(timeline, self._now, self.said)
        self.scores.append(found)
        self.view.results = [
            "we ended it: not counted" if ended is None else f"✓ it {ended}" if right else f"✗ it {ended}"
            for ended, right in zip(found.ended, found.right, strict=True)
        ]
        right, judged = tally([found])
        all_right, all_judged = tally(self.scores)
        self._tell(f"{right} of {judged} right; {all_right} of {all_judged} since the bench was opened.")

    def _fail(self, error: BaseException) -> None:
        self._failed = error
        self._cover()
        self._tell(f"{error}", bad=True)
        self._arrange()

    def _tell(self, text: str, bad: bool = False) -> None:
        self.panel.tell(text, bad)


def _titles() -> dict[int, str]:
    """What each case is called, by number."""
    from joinlab.cases import CASES  # it takes torch with it

    return {number: one.title for number, one in CASES.items()}


def _event_loop() -> asyncio.AbstractEventLoop | None:
    """The loop that runs here, as in a notebook's kernel; None in a script."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def fill(box: Any, widgets: Sequence[Any]) -> None:
    """Put these widgets into a box, if others are in it."""
    if box.children != tuple(widgets):
        box.children = widgets


def _one_of(name: str, value: Any, known: Collection[Any]) -> Any:
    if value not in known:
        raise ProgramError(f"{name}= is one of {', '.join(map(repr, known))}; got {value!r}")
    return value
