"""The bench: choose a case, give each rank its inputs, predict, look, and then run it for real and compare.

ipywidgets around one live view. Emulated runs follow every slider at once; the browser holds back the positions that
come while one is emulated, and then sends the newest alone. A launched run goes on in a thread of its own, which is
the only one besides the kernel's that touches the widgets, and holds the lock while it does. A cell that is run again
leaves its old bench behind, where nobody sees it: what that one launched is stopped when the cell makes a new one.

Everything that can be done with the mouse can be done from Python too, so that a notebook can be checked without a
browser:

    bench = joinlab.bench(predict=True)
    bench.counts = (5, 6)
    bench.said = ("hangs", "finishes")
    bench.run()                             # the Timeline; now it is shown
    bench.scores[-1].right                  # (False, False)
"""

from __future__ import annotations

import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import ipywidgets
from ipywidgets.widgets.widget_description import DescriptionStyle
from ipywidgets.widgets.widget_string import HTMLStyle

from joinlab.cases import CASES
from joinlab.emulator.emulate import emulate
from joinlab.errors import JoinlabError, LaunchInterrupted, ProgramError
from joinlab.launcher.launcher import launch
from joinlab.notebook.engines import ENGINES, Engine, knobs, missing
from joinlab.notebook.output import Layout, Output, Words, documented, paragraph, under_way
from joinlab.notebook.predictions import Score, blank, score, tally
from joinlab.notebook.rank_controls import Ranks, check_counts
from joinlab.notebook.side_by_side import Beside
from joinlab.notebook.view import View
from joinlab.program.program import Program, check_program, program_name, source_of
from joinlab.timeline import Timeline

RECENT = 64
"""So many Timelines of the six cases are kept. Those of any other program are not: what it calls may be redefined."""

EMULATION_S = 5.0
"""A program that computes longer than this under the emulator is ended: the notebook waits for it."""

_UNDER_WAY: set[Bench] = set()
"""The benches of which a launched run goes on."""


class Bench:
    """Where a learner plays; show it at the end of a cell.

    program   a function worker(rank, inputs) of your own; None: the six cases
    case      the case to begin with
    inputs    the counts to begin with
    engine    "emulated nccl" (today's PyTorch), "emulated nccl 1.9", "emulated gloo", "launched gloo", "launched nccl"
    predict   cover how it ends until it has been said, for each rank, what it will do
    timeout   seconds after which a launched run is ended

    Raises ProgramError for what is no program, or no such case, counts or engine.
    """

    view: View

    def __init__(
        self,
        program: Program | None = None,
        *,
        case: int = 4,
        inputs: Sequence[int] = (5, 6),
        engine: str = "emulated nccl",
        predict: bool = False,
        timeout: float = 300.0,
    ) -> None:
        if program is not None:
            check_program(program)
        self._made_by = _cell()
        _stop_what_was_left_behind(self._made_by)
        self.own = program
        self.predict = bool(predict)
        self.timeout = timeout
        self.scores: list[Score] = []
        self.timeline: Timeline | None = None
        self._lock = threading.RLock()
        self._held = True
        self._recent: OrderedDict[tuple[Any, ...], Timeline] = OrderedDict()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._failed: BaseException | None = None
        self._beside: Beside | None = None
        self._closed = False

        # A widget takes 1 kB on the wire and its layout another, so these are shared, what does not matter now is taken
        # out of its box, and the buttons of a launched run are made when there is one. What is said first, and the
        # view, are made with what they show: to say it later would take a message more.
        self._plain = plain = Layout()
        wide, small = Layout(width="min(440px, 100%)"), Layout(width="210px")
        wrap = Layout(flex_flow="row wrap", grid_gap="0 8px")
        style = DescriptionStyle(description_width="initial")
        named: list[tuple[str, int]] = [] if program is None else [(program_name(program), 0)]
        named += [(one.title, n) for n, one in CASES.items()]
        known = [number for _, number in named]
        case = 0 if program is not None and case == 4 else case
        self._case = ipywidgets.Dropdown(
            options=named, value=_one_of("case", case, known), description="Program", style=style, layout=wide
        )
        labels = [one.label + " (not on this machine)" * bool(missing(one, 2)) for one in ENGINES.values()]
        self._engine = ipywidgets.Dropdown(
            options=list(zip(labels, ENGINES, strict=True)),
            value=_one_of("engine", engine, ENGINES),
            description="Run it",
            style=style,
            layout=wide,
        )
        self._byte = ipywidgets.BoundedIntText(
            7,
            0,
            255,
            description="barrier's byte",
            tooltip="PyTorch 1.9's barrier all-reduces one byte that nobody had set",
            style=style,
            layout=small,
        )
        self._pad = ipywidgets.BoundedIntText(
            0,
            0,
            2**32 - 1,
            description="pad of a line",
            tooltip="The upper 32 bits of an NCCL line that holds 4 bytes of data: undefined on a GPU",
            style=style,
            layout=small,
        )
        self._keep = ipywidgets.ToggleButton(
            description="Compare with this",
            tooltip="Keep what is shown on the left, and show what comes next beside it",
            layout=plain,
        )
        letters = HTMLStyle()
        self._status = Words(layout=plain, style=letters)
        self._said = Words(layout=plain, style=letters)
        self._output = Output(layout=plain, style=letters)
        counts = list(check_counts(inputs))
        self.ranks = Ranks(counts=counts, said=[""] * len(counts), predict=self.predict, layout=plain)
        self._choices = ipywidgets.HBox(self._to_choose(), layout=wrap)
        self._buttons = ipywidgets.HBox([self._keep], layout=wrap)
        self._refresh()
        self.widget = ipywidgets.VBox(self._parts(), layout=plain)

        for control in (self._case, self._engine, self._byte, self._pad):
            control.observe(self._changed, "value")
        self.ranks.observe(self._changed, "counts")
        self.ranks.observe(self._spoken, "said")
        self.widget.observe(lambda _: self._stop.set(), "comm")  # it was closed, by whomever
        self._keep.observe(self._kept, "value")
        self._held = False

    # ---------------------------------------------------------------- what Python can ask and set

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of inputs per rank: 1 to 8 ranks, at most 20 each. Settable."""
        return tuple(self.ranks.counts)

    @counts.setter
    def counts(self, counts: Sequence[int]) -> None:
        self._set(lambda: setattr(self.ranks, "counts", list(check_counts(counts))))

    @property
    def case(self) -> int:
        """Number of the case; 0 is the program that the bench was given. Settable."""
        return int(self._case.value)

    @case.setter
    def case(self, case: int) -> None:
        _one_of("case", case, [number for _, number in self._case.options])
        self._set(lambda: setattr(self._case, "value", case))

    @property
    def engine(self) -> str:
        """On what the program runs, as `joinlab.notebook.engines.ENGINES` names it. Settable."""
        return str(self._engine.value)

    @engine.setter
    def engine(self, engine: str) -> None:
        _one_of("engine", engine, ENGINES)
        self._set(lambda: setattr(self._engine, "value", engine))

    @property
    def barrier_value(self) -> int:
        """The byte that PyTorch 1.9's barrier all-reduces. Settable."""
        return int(self._byte.value)

    @barrier_value.setter
    def barrier_value(self, value: int) -> None:
        self._set(lambda: setattr(self._byte, "value", value))

    @property
    def pad(self) -> int:
        """The upper half of an NCCL line that holds 4 bytes. Settable."""
        return int(self._pad.value)

    @pad.setter
    def pad(self, value: int) -> None:
        self._set(lambda: setattr(self._pad, "value", value))

    @property
    def said(self) -> tuple[str, ...]:
        """What is said of each rank's ending: "finishes", "hangs", "raises", "" where nothing is yet. Settable."""
        return tuple(self.ranks.said)

    @said.setter
    def said(self, said: Sequence[str]) -> None:
        if not self.covered:
            raise ProgramError(
                "nothing is covered that could still be predicted; joinlab.bench(predict=True) asks first"
            )
        self.ranks.said = list(said)

    @property
    def covered(self) -> bool:
        """Whether the ending is still to be predicted."""
        return bool(self.ranks.covered)

    @property
    def running(self) -> bool:
        """Whether a launched run is under way."""
        return self._thread is not None

    @property
    def comparison(self) -> Beside | None:
        """What is shown while the bench compares; None otherwise."""
        return self._beside

    @property
    def program(self) -> Program:
        """The function that is run."""
        return CASES[self.case].program if self.case or self.own is None else self.own

    def keep(self) -> None:
        """Keep what is shown on the left, to compare what comes next with it; again: put it away."""
        self._keep.value = not self._keep.value

    def run(self) -> Timeline:
        """Run what is chosen, show it, and return the Timeline: what the button does, but waited for.

        Raises ProgramError while a prediction is missing, LaunchError where the machine cannot run it, and
        LaunchInterrupted, with nothing left running, when the cell is interrupted.
        """
        self.start()
        thread = self._thread
        try:
            while thread is not None and thread.is_alive():
                thread.join(0.1)
        except KeyboardInterrupt:
            self.stop()
            assert self.timeline is not None
            raise LaunchInterrupted(
                "the run was interrupted; bench.timeline has what was recorded", self.timeline
            ) from None
        if self._failed is not None:
            raise self._failed
        assert self.timeline is not None
        return self.timeline

    def start(self) -> None:
        """Begin to run what is chosen and return; an emulated run is over by then. Does nothing while one goes on."""
        with self._lock:
            if self.running:
                return
            if self.covered and "" in self.said:
                raise ProgramError("say of each rank first whether it finishes, hangs or raises: bench.said = (...)")
            self._failed = None
            if not self._now.launched:
                self._emulate(again=True)
                return
            if reason := missing(self._now, len(self.counts)):
                raise ProgramError(reason)
            self._stop.clear()
            self._output.clear()
            self._thread = threading.Thread(target=self._launch, args=self._chosen(), name="joinlab bench", daemon=True)
            self._arrange()
            _UNDER_WAY.add(self)
            self._thread.start()

    def stop(self) -> None:
        """End the launched run that is under way, if any, and wait until it is gone."""
        self._stop.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def close(self) -> None:
        """Stop what runs and take the bench out of the notebook."""
        self.stop()
        self._closed = True
        if self._beside is not None:
            self._beside.close()
        for widget in (self._case, self._engine, self._byte, self._pad, self._go, self._halt, self._keep):
            widget.close()
        _close(self.widget)

    def __repr__(self) -> str:
        shown = "covered" if self.covered else repr(self.timeline)
        return f"<Bench: {program_name(self.program)}, inputs {self.counts}, {self.engine}; {shown}>"

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return self.widget._repr_mimebundle_(**options)

    # ---------------------------------------------------------------- what a change leads to

    @cached_property
    def _go(self) -> ipywidgets.Button:
        made = ipywidgets.Button(button_style="primary", layout=self._plain)
        made.on_click(lambda _: self._clicked())
        return made

    @cached_property
    def _halt(self) -> ipywidgets.Button:
        made = ipywidgets.Button(description="Stop", disabled=True, style=self._go.style, layout=self._plain)
        made.on_click(lambda _: self._stop.set())
        return made

    @property
    def _now(self) -> Engine:
        return ENGINES[self.engine]

    def _set(self, change: Any) -> None:
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

    def _changed(self, _: Mapping[str, Any]) -> None:
        if self._held or self._closed or self.running:
            return
        try:
            self._refresh()
        except KeyboardInterrupt:  # not in a cell, but in what a control has started: there is nobody to raise to
            self._tell("Interrupted.")

    def _refresh(self) -> None:
        """Something was chosen: cover or forget what was shown before, and emulate what can be emulated at once."""
        with self._lock:
            self.timeline, self._failed = None, None
            self.ranks.said = [""] * len(self.counts)
            self.ranks.results = []
            self.ranks.covered = self.predict
            if self.predict or self._now.launched:
                self._cover()
                self._tell(self._next_step())
            else:
                self._emulate()
            self._arrange()

    def _spoken(self, _: Mapping[str, Any]) -> None:
        if not self._held and self.covered:
            self._tell(self._next_step())
            self._arrange()

    def _next_step(self) -> str:
        if reason := missing(self._now, len(self.counts)):
            return f"Not on this machine. {reason}"
        if self.covered and "" in self.said:
            return "Predict first: say of each rank whether it finishes, hangs or raises. Then it is shown."
        if self.covered and not self._now.launched:
            return "Everything is said. Press Show."
        return "Not run yet. Press Run: each rank becomes a process of its own."

    def _clicked(self) -> None:
        try:
            self.start()
        except (JoinlabError, KeyboardInterrupt) as error:
            self._tell(str(error) or "Interrupted.", bad=True)

    def _kept(self, change: Mapping[str, Any]) -> None:
        with self._lock:
            if change["new"] and self.timeline is not None:
                self.view.sentences = False  # they stand below both pictures, so that these begin at one height
                self._beside = Beside(self.timeline, self.view)
                _fill(self.widget, self._parts())
            elif self._beside is not None:
                beside, self._beside = self._beside, None
                _fill(self.widget, self._parts())
                beside.close()
                self.view.sentences = self.timeline is not None or self.predict
            self._arrange()

    def _arrange(self) -> None:
        """Show the controls that matter now, and no others."""
        launched, running = self._now.launched, self.running
        reason = missing(self._now, len(self.counts))
        _fill(self._choices, self._to_choose())
        for control in (self._case, self._engine, self._byte, self._pad):
            control.disabled = running
        self.ranks.busy = running
        first = [self._go, self._halt] if launched else [self._go] if self.covered else []
        if first:
            self._go.description = "Run" if launched else "Show"
            self._go.disabled = running or bool(reason) or (self.covered and "" in self.said)
        if launched:
            self._halt.disabled = not running
        _fill(self._buttons, [*first, self._keep])
        self._keep.disabled = running or (self.timeline is None and not self._keep.value)
        told = self.case and self.timeline is not None
        self._said.value = documented(self.case, self.counts, self._now) if told else ""

    def _parts(self) -> list[ipywidgets.Widget]:
        picture = self.view if self._beside is None else self._beside.widget
        said = (self._status.widget, self._said.widget)
        return [self._choices, self.ranks, self._buttons, *said, picture, self._output.widget]

    def _to_choose(self) -> list[ipywidgets.Widget]:
        named = knobs(self._now, self.case or None)
        wanted = [knob for knob, name in ((self._byte, "barrier_value"), (self._pad, "pad")) if name in named]
        return [self._case, self._engine, *wanted]

    # ---------------------------------------------------------------- running

    def _emulate(self, again: bool = False) -> None:
        """Emulate what is chosen, or take it from those kept, and show it."""
        key = (self.case, self.counts, self.engine, self.barrier_value, self.pad)
        try:
            timeline = None if again or not self.case else self._recent.get(key)
            if timeline is None:
                timeline = emulate(
                    self.program,
                    self.counts,
                    self._now.backend,
                    era=self._now.era,
                    barrier_value=self.barrier_value,
                    pad=self.pad,
                    timeout=EMULATION_S,
                )
                if self.case:
                    self._recent[key] = timeline
                    if len(self._recent) > RECENT:
                        self._recent.popitem(last=False)
        except LaunchInterrupted as interrupted:
            self._show(interrupted.timeline)
            raise
        except JoinlabError as error:
            self._fail(error)
            return
        self._show(timeline)

    def _chosen(self) -> tuple[Program, tuple[int, ...], Engine]:
        return self.program, self.counts, self._now

    def _launch(self, program: Program, counts: tuple[int, ...], engine: Engine) -> None:
        """Run by the thread: one launched run, from its first process to what is shown of it."""
        began = time.monotonic()
        told = (-1, -1)
        done = 0

        def asked_to_stop() -> bool:  # the run asks this all the time: a good place to say that it goes on
            nonlocal told
            if told != (now := (int(time.monotonic() - began), done)):
                told = now
                self._status.value = under_way(*now, sum(counts))
            self._output.flush()
            return self._stop.is_set()

        def progress(inputs: int) -> None:
            nonlocal done
            done = inputs

        try:
            timeline: Timeline | BaseException = launch(
                program,
                counts,
                engine.backend,
                timeout=self.timeout,
                on_output=self._output,
                progress=progress,
                stop=asked_to_stop,
            )
        except BaseException as error:  # whatever it is, the bench must come out of it
            timeline = error
        with self._lock:
            self._thread = None
            _UNDER_WAY.discard(self)
            if self._closed:
                return
            if self._chosen() != (program, counts, engine):  # a control was faster than its being switched off
                self._refresh()
            elif isinstance(timeline, Timeline):
                self._show(timeline)
            else:
                self._fail(timeline)

    # ---------------------------------------------------------------- showing

    def _blank(self) -> Timeline:
        return blank(program_name(self.program), source_of(self.program), self.counts, self._now)

    def _cover(self) -> None:
        """Show the program and the ranks, and nothing of what they do."""
        timeline = self._blank()
        self._draw(timeline, selected=None, covered=list(range(timeline.world_size)), sentences=self.predict)
        self._output.clear()
        if self._beside is not None:
            self._beside.compare()

    def _show(self, timeline: Timeline) -> None:
        self._draw(timeline, covered=[])
        self.timeline = timeline
        self._output.show(timeline)
        self._tell("")
        if self.covered:
            self._judge(timeline)
        if self._beside is not None:
            self._beside.compare()
        self._arrange()

    def _draw(self, timeline: Timeline, sentences: bool = True, **seen: Any) -> None:
        """Show this in the view, which is made when there is something to show for the first time."""
        seen |= {"sentences": sentences and self._beside is None, "timeline": timeline}
        if hasattr(self, "view"):
            with self.view.hold_sync():
                for name, value in seen.items():
                    setattr(self.view, name, value)
        else:
            self.view = View(**seen, layout=self._plain)

    def _judge(self, timeline: Timeline) -> None:
        """Hold what was said against what came, and say what was right."""
        found = score(timeline, self._now, self.said)
        self.scores.append(found)
        self.ranks.covered = False
        self.ranks.results = [
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
        self._status.value = paragraph(text, bad)


def bench(
    program: Program | None = None,
    *,
    case: int = 4,
    inputs: Sequence[int] = (5, 6),
    engine: str = "emulated nccl",
    predict: bool = False,
    timeout: float = 300.0,
) -> Bench:
    """A bench to play on: choose a case, or bring a program, and move a slider per rank. See `Bench`.

    joinlab.bench()                             # the six cases
    joinlab.bench(my_program, inputs=(2, 3))    # your own
    joinlab.bench(predict=True)                 # say first, then look
    """
    return Bench(program, case=case, inputs=inputs, engine=engine, predict=predict, timeout=timeout)


def _cell() -> tuple[str, str] | None:
    """The notebook cell that runs now, and which of its runs this is; None where nobody says so.

    JupyterLab and Jupyter Notebook name the cell in what they send with its code.
    """
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    asked: Mapping[str, Any] = getattr(shell, "get_parent", dict)()
    cell = asked.get("metadata", {}).get("cellId")
    return (cell, asked["header"]["msg_id"]) if cell else None


def _stop_what_was_left_behind(now: tuple[str, str] | None) -> None:
    """Stop the launched runs of benches that earlier runs of this cell made."""
    for bench in list(_UNDER_WAY):
        if now and bench._made_by and bench._made_by[0] == now[0] and bench._made_by != now:
            bench.stop()


def _fill(box: Any, widgets: Sequence[Any]) -> None:
    if box.children != tuple(widgets):
        box.children = widgets


def _one_of(name: str, value: Any, known: Collection[Any]) -> Any:
    if value not in known:
        raise ProgramError(f"{name}= is one of {', '.join(map(repr, known))}; got {value!r}")
    return value


def _close(widget: Any) -> None:
    for child in getattr(widget, "children", ()):
        _close(child)
    widget.close()
