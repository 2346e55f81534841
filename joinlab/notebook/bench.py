"""The bench: choose a case, give each rank its inputs, predict, look, and then run it for real and compare.

A `Board` is the widget, a view with controls; a `Session` runs what they ask for. Emulated runs follow every move at
once; the browser holds back the positions that come while one is emulated, and then sends the newest alone. What the
map has computed lies on the page already (`Ahead`), and is drawn at once. A launched run goes on in a thread of its
own, which is the only one besides the kernel's that touches the widgets, and holds the lock while it does. In a fresh
kernel the emulations that ship are shown while torch is loaded. A cell that is run again leaves its old bench behind,
out of sight: the new one stops what that one launched.

Everything that can be done with the mouse can be done from Python too, so that a notebook can be checked without a
browser:

    bench = joinlab.bench(predict=True)
    bench.counts = (5, 6)
    bench.said = ("hangs", "finishes")
    bench.run()                             # the Timeline; now it is shown
    bench.scores[-1].right                  # (False, False)
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any, Generic, TypeVar, cast

import ipywidgets

from joinlab.analysis.folding import fold
from joinlab.analysis.wording import good
from joinlab.emulator.recorded import recorded, titles, torch_is_loaded
from joinlab.emulator.warm_up import warm_up
from joinlab.errors import JoinlabError, LaunchInterrupted, ProgramError
from joinlab.notebook.ahead import Ahead
from joinlab.notebook.board import Board, check_counts
from joinlab.notebook.ending_map import EndingMap
from joinlab.notebook.engines import ENGINES, Engine, knobs, missing
from joinlab.notebook.output import Layout, Output, close
from joinlab.notebook.predictions import Score, blank, score, tally
from joinlab.notebook.saving import saved
from joinlab.notebook.session import Session, Setting, program_of
from joinlab.notebook.stills import show_live
from joinlab.program.program import Program, check_program, program_name
from joinlab.program.sources import source_of
from joinlab.story.judge import diagnose
from joinlab.story.scene import Scene
from joinlab.timeline import Timeline

T = TypeVar("T")

REST_S = 1.5
"""Seconds without a move after which fixes of what is shown are tried: that takes the kernel a second or two."""

_UNDER_WAY: set[Bench] = set()
"""The benches of which a launched run goes on."""


class Knob(Generic[T]):
    """A trait of the board that Python can read and set, too; what a new value leads to is done once.

    check  makes what the widget holds of a value, or raises ProgramError
    read   makes of what the widget holds what Python gets
    """

    def __init__(self, check: Callable[[Bench, Any], Any], read: Callable[[Any], T], told: str) -> None:
        self.check, self.read = check, read
        self.__doc__ = told

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, bench: Bench | None, owner: type | None = None) -> T:
        if bench is None:  # help() asks the class
            return cast("T", self)
        return self.read(getattr(bench.view, self.name))

    def __set__(self, bench: Bench, value: Any) -> None:
        bench._set(lambda: setattr(bench.view, self.name, self.check(bench, value)))


class Bench:
    """Where a learner plays; show it at the end of a cell.

    program   a function worker(rank, inputs) of your own; None: the cases
    case      the case to begin with
    inputs    the counts to begin with
    engine    "emulated nccl" (today's PyTorch), "emulated nccl 1.9", "emulated gloo", "launched gloo", "launched nccl"
    predict   cover how it ends until the learner has said, for each rank, what it will do
    timeout   seconds after which a launched run is ended

    Raises ProgramError for what is no program, or no such case, counts or engine.
    """

    view: Board
    counts = Knob[tuple[int, ...]](
        lambda _, counts: list(check_counts(counts)),
        tuple,
        "Number of inputs per rank: 1 to 8 ranks, at most 20 each. Settable.",
    )
    case = Knob[int](
        lambda bench, case: _one_of("case", case, [number for number, _ in bench.view.programs]),
        int,
        "Number of the case; 0 is the program that the bench was given. Settable.",
    )
    engine = Knob[str](
        lambda _, engine: _one_of("engine", engine, ENGINES),
        str,
        "On what the program runs, as `joinlab.notebook.engines.ENGINES` names it. Settable.",
    )
    barrier_value = Knob[int](
        lambda _, value: value,
        int,
        "The 4-byte word whose lowest byte PyTorch 1.9's barrier all-reduces. Settable.",
    )
    pad = Knob[int](lambda _, value: value, int, "The upper half of an NCCL line that holds 4 bytes. Settable.")

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
        self.scores: list[Score] = []
        self._timeline: Timeline | None = None
        self._session = Session(timeout)
        self._lock = threading.RLock()
        self._held = True
        self._failed: BaseException | None = None
        self._closed = False
        self._fixing: asyncio.TimerHandle | None = None
        self._loop = None if torch_is_loaded() else _event_loop()  # while torch is loaded: where its end is told

        counts = list(check_counts(inputs))
        programs = [] if program is None else [(0, program_name(program))]
        programs += sorted((titles() if self.loading else _titles()).items())
        chosen = 0 if program is not None and case == 4 else case
        self.view = Board(
            timeline=blank("", None, counts, ENGINES[_one_of("engine", engine, ENGINES)]),
            covered=list(range(len(counts))),
            counts=counts,
            said=[""] * len(counts),
            predict=self.predict,
            programs=programs,
            case=_one_of("case", chosen, [number for number, _ in programs]),
            engine=engine,
            layout=Layout(),
        )
        self._output = Output(layout=Layout())
        self._map = EndingMap(self._session, self._show_map, Ahead(self._send_ahead))
        self.widget = ipywidgets.VBox(self._parts(), layout=Layout())
        self.widget.add_class("joinlab-bench")

        self._refresh()
        if self.loading:
            threading.Thread(target=self._load, name="joinlab loads torch", daemon=True).start()
        self.view.observe(self._changed, ["counts", "case", "engine", "barrier_value", "pad"])
        self.view.observe(self._spoken, "said")
        self.view.observe(self._kept, "comparing")
        self.view.on_msg(self._pressed)
        self.widget.observe(lambda _: self._session.ask_to_stop(), "comm")  # closed, by Python or by the browser
        self._held = False

    # ---------------------------------------------------------------- what is chosen

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
        if not self._closed and self.view.map != told:
            self.view.map = told

    def _send_ahead(self, parcel: bytes) -> None:
        """Give the page pictures that its dots can go to."""
        if not self._closed:
            self.view.send({"ahead": True}, [parcel])

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
        launched, running, view = self._now.launched, self.running, self.view
        reason = "" if self.loading else missing(self._now, len(self.counts))
        with view.hold_sync():
            view.engines = self._engines()
            view.knobs = [] if self.loading else list(knobs(self._now, self.case or None))
            view.go = "▶ Run" if launched else "Show" if self.covered else ""
            view.can_go = not (running or self.loading or reason or (self.covered and "" in self.said))
            view.launches, view.busy = launched, running
            view.can_compare = self._timeline is not None

    def _engines(self) -> list[dict[str, str]]:
        """What the switch offers: NCCL on GPUs only where there are some, or where it was asked for."""
        found = []
        for one in ENGINES.values():
            reason = "" if self.loading else missing(one, 2)
            if one.name != "launched nccl" or one.name == self.engine or not (self.loading or reason):
                found.append({"name": one.name, "label": one.label, "missing": reason})
        return found

    def _parts(self) -> list[ipywidgets.Widget]:
        return [self.view, self._output.widget]

    def _blank(self, counts: Sequence[int]) -> Timeline:
        """A Timeline with nothing in it, of what is chosen."""
        if self.loading and self.case:
            shipped = recorded(self.case, (0, 0))
            assert shipped is not None
            return blank(shipped.meta["program"], shipped.meta["source"], counts, self._now)
        return blank(program_name(self.program), source_of(self.program), counts, self._now)

    def _what_waits(self) -> str:
        kept = ", and kept to compare with" if self.view.comparing and self.view.beside is None else ""
        return f"Loading PyTorch …; inputs {self.counts} are next{kept}."

    def _keep(self) -> None:
        """Keep what is shown, if anything is; the next run is shown above it."""
        if self._timeline is not None:
            self.view.beside = self._timeline

    def _cover(self) -> None:
        """Show the program and the ranks, and nothing of what they do."""
        timeline = self._blank(self.counts)
        self._draw(timeline, selected=None, covered=list(range(timeline.world_size)), shown="")
        self._output.clear()

    def _show(self, timeline: Timeline, key: str = "") -> None:
        """Show a run; `key` is that of its setting, where it would come out the same again."""
        asked = self.covered
        self._draw(timeline, covered=[], selected=_first(timeline), shown=key)
        self._timeline = timeline
        if self.view.comparing and self.view.beside is None:  # asked for before there was something to keep
            self._keep()
        self._output.show(timeline)
        self._tell("")
        self._fix_later(timeline)
        if asked:
            self._judge(timeline)
        self._arrange()

    def _fix_later(self, timeline: Timeline) -> None:
        """Try fixes of what is shown when the reader rests, and show the one that helps."""
        if self._fixing is not None:
            self._fixing.cancel()
            self._fixing = None
        loop = _event_loop()
        if loop is not None and timeline.unasked and not all(map(good, timeline.ends)):
            self._fixing = loop.call_later(REST_S, self._fix, timeline)

    def _fix(self, timeline: Timeline) -> None:
        self._fixing = None
        if self._timeline is timeline and not (self._closed or self.running):
            diagnose(timeline)
            self.view.refresh()

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
        self.view.tell(text, bad)

    # ---------------------------------------------------------------- what Python can ask and set

    def keep(self) -> None:
        """Keep the shown run, to compare the next one with it; called again, remove it.

        Raises ProgramError where nothing is shown.
        """
        if not self.view.comparing and self.timeline is None:
            raise ProgramError("there is no picture to keep yet; bench.run() shows one")
        self.view.comparing = not self.view.comparing

    def run(self) -> Timeline:
        """Run what is chosen, show it, and return the Timeline: what the button does, but waited for.

        Raises ProgramError while a prediction is missing, LaunchError where the machine cannot run it, and
        LaunchInterrupted, with nothing left running, when the cell is interrupted.
        """
        self.start()
        try:
            while not self._session.wait(0.1):
                pass
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
            if self.loading:
                self._wait_until_loaded()
            if self.covered and "" in self.said:
                raise ProgramError("say of each rank first whether it finishes, hangs or raises: bench.said = (...)")
            self._failed, self._loop = None, None
            if not self._now.launched:
                self._emulate(again=True)
                return
            if reason := missing(self._now, len(self.counts)):
                raise ProgramError(reason)
            self._output.clear()
            self._tell(f"Starting {len(self.counts)} processes …")
            setting = self._setting()
            _UNDER_WAY.add(self)
            self._session.start(
                setting,
                on_output=self._output,
                goes_on=self._goes_on,
                ended=lambda found: self._ended(setting, found),
            )
            self._arrange()

    def stop(self) -> None:
        """End the launched run that is under way, if any, and wait until it is gone."""
        self._session.ask_to_stop()
        self._session.wait()

    def close(self) -> None:
        """Stop what runs and take the bench out of the notebook."""
        self.stop()
        self._closed = True
        if self._fixing is not None:
            self._fixing.cancel()
        self._map.stop()
        for widget in (self.view, self._output.widget, self.widget):
            close(widget)

    def __repr__(self) -> str:
        name = program_name(self.own) if not self.case and self.own else f"case_{self.case}"
        shown = "covered" if self.covered else repr(self._timeline)
        return f"<Bench: {name}, inputs {self.counts}, {self.engine}; {shown}>"

    def _ipython_display_(self) -> None:
        show_live(self.view, self)

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return self.widget._repr_mimebundle_(**options)

    # ---------------------------------------------------------------- a fresh kernel

    def _load(self) -> None:
        loop = self._loop
        assert loop is not None

        def say(line: str) -> None:
            loop.call_soon_threadsafe(self._tell_while_loading, f"{line[:1].upper()}{line[1:]} …")

        try:
            warm_up(say)
        except BaseException as error:  # what is missing, the first emulation says
            loop.call_soon_threadsafe(self._tell, f"{error}", True)
        loop.call_soon_threadsafe(self._loaded)

    def _tell_while_loading(self, text: str) -> None:
        if self.loading:  # else Python has waited for torch, and what is said now is of a run
            self._tell(text)

    def _loaded(self) -> None:
        """torch is there: show what was asked for meanwhile."""
        if not self.loading:
            return
        self._loop = None
        if self._closed:
            return
        timeline = self._timeline
        if timeline is not None and (timeline.meta.get("versions") or {}).get("torch") == version("torch"):
            self._tell("")
            self._arrange()
            self._follow_map()
        else:
            self._refresh()

    # ---------------------------------------------------------------- what a change leads to

    def _changed(self, change: Mapping[str, Any]) -> None:
        if self._held or self._closed or self.running:
            return
        try:
            self._refresh()
        except KeyboardInterrupt:  # not in a cell, but in what a control has started: there is nobody to raise to
            self._tell("Interrupted.")

    def _spoken(self, _: Mapping[str, Any]) -> None:
        if not self._held and self.covered:
            self._tell(self._next_step())
            self._arrange()

    def _pressed(self, _: Any, message: Mapping[str, Any], __: Any) -> None:
        """What the browser sends: a button, or a cell of the map."""
        match message:
            case {"press": "shown"}:
                self._map.watch()
            case {"press": "end map"}:
                self._map.give_up()
            case {"press": "go"}:
                self._clicked()
            case {"press": "stop"}:
                self._tell("Stopping …")
                self._session.ask_to_stop()
            case {"press": "eras"} if not self.running:
                self._compare_eras()
            case {"save": what} if self._timeline is not None and not self.covered:
                self.view.send(saved(what, self._timeline, self.case))
            case {"counts": counts} if not self.running:
                self.view.counts = list(check_counts(counts))
            case _:
                pass

    def _compare_eras(self) -> None:
        """Keep this run, and show what the other era of NCCL does above it."""
        other = "emulated nccl" if self._now.era == "1.9" else "emulated nccl 1.9"
        self.view.comparing = True
        self.view.engine = other

    def _clicked(self) -> None:
        try:
            self.start()
        except (JoinlabError, KeyboardInterrupt) as error:
            self._tell(str(error) or "Interrupted.", bad=True)

    def _kept(self, change: Mapping[str, Any]) -> None:
        with self._lock:
            if change["new"]:
                self._keep()  # or, if nothing is shown yet, when it is
            else:
                self.view.beside = None
            self._arrange()
            if self.loading and self._timeline is None:
                self._tell(self._what_waits())

    # ---------------------------------------------------------------- running

    def _goes_on(self, seconds: int, done: int) -> None:
        """Called by the run, in its thread, all the time: say how far it is."""
        total = sum(self.counts)
        told = {"text": f"Running for {seconds} s; {done} of {total} inputs done.", "done": done, "of": total}
        if self.view.status != told and not self._session.stopping:
            self.view.status = told
        self._output.flush()

    def _ended(self, setting: Setting, found: Timeline | BaseException) -> None:
        """Called by the run, in its thread, when it is over."""
        with self._lock:
            _UNDER_WAY.discard(self)
            if self._closed:
                return
            if self._setting() != setting:  # a control was faster than its being switched off
                self._refresh()
            elif isinstance(found, Timeline):
                self._show(found)
            else:
                self._fail(found)


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

    joinlab.bench()                             # the cases
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


def _first(timeline: Timeline) -> int | None:
    """The slot in which the ranks part."""
    first = Scene(timeline).parting.first
    return None if first is None else fold(timeline).numbers[first]


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


def _one_of(name: str, value: Any, known: Collection[Any]) -> Any:
    if value not in known:
        raise ProgramError(f"{name}= is one of {', '.join(map(repr, known))}; got {value!r}")
    return value
