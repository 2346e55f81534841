"""The bench: choose a case, give each rank its inputs, predict, look, and then run it for real and
compare.

The bench is one widget: a view with a row of dots per rank for its inputs, a choice of programs and
a choice of engines. Every move starts an emulated run at once; while one is being emulated, the
browser keeps only the newest position and sends it afterwards. For the cases the bench shows
emulations that ship with the package, so it does not wait for torch; pictures that the map has
drawn are on the page already. A launched run has its own thread, the only one besides the kernel's
that touches the widget; it holds the lock while it does. Running the cell again keeps the choices
of its last bench and ends what that bench launched.

Python can do whatever the mouse can, so a notebook can be checked without a browser:

    bench = joinlab.bench(predict=True)
    bench.counts = (5, 6)
    bench.said = ("hangs", "finishes")
    bench.run()                             # the Timeline; now it is shown
    bench.scores[-1].right                  # (False, False)
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import traitlets

from joinlab.analysis.wording import good, shown
from joinlab.documentation import DOCUMENTED
from joinlab.emulator.shipped_runs import (
    endings,
    is_of_this_torch,
    shipped_run,
    titles,
    torch_is_loaded,
)
from joinlab.emulator.warm_up import warm_up
from joinlab.errors import JoinlabError, LaunchInterrupted, ProgramError
from joinlab.notebook.ending_map import EndingMap, event_loop
from joinlab.notebook.predictions import WORDS, Score, word
from joinlab.notebook.settings import (
    ENGINES,
    MAX_INPUTS,
    MAX_RANKS,
    BenchSetting,
    Emulations,
    Engine,
    check_counts,
    knobs,
    missing,
)
from joinlab.notebook.stills import drawn
from joinlab.notebook.view import View
from joinlab.picture.assets import packed_script, style
from joinlab.picture.lane_data import LaneData
from joinlab.program.program import Program, check_program, program_name
from joinlab.program.sources import source_of
from joinlab.showing import running_shell
from joinlab.story.evidence import Evidence
from joinlab.story.judge import diagnose, without_fixes
from joinlab.timeline import Ending, EndKind, Meta, Timeline, timeline_from_rows

REST_S = 1.5
"""Seconds without a move before the bench tries fixes for the shown run, which takes the kernel a
second or two."""

FIRST_S = 0.3
"""Seconds before the bench loads torch, which makes the kernel slow: the first picture is sent
before."""

LINES = 200
"""How many of the last lines that a rank printed are shown."""

CHOSEN = ("counts", "case", "engine", "barrier_value", "pad")
"""The traits that choose a run."""

_latest: dict[tuple[str, int], Bench] = {}
"""The latest bench of each notebook cell, the first, second, ... that the cell makes."""

_made_by: Counter[str] = Counter()
"""How many benches each execution of a cell has made."""


class _Shown(traitlets.Instance):  # type: ignore[type-arg]
    """The shown run. Reading it waits until torch is loaded, if the run needs torch."""

    def get(self, obj: Any, cls: Any = None) -> object:
        if obj.waits:
            obj._wait_until_loaded()
        return super().get(obj, cls)


class Bench(View):
    """Where a learner plays: choose a case, or bring a program, and move a slider per rank.

        joinlab.bench()                             # the cases
        joinlab.bench(my_program, inputs=(2, 3))    # your own
        joinlab.bench(predict=True)                 # predict first, then look

    program   a function worker(rank, inputs) of your own; None: the cases
    case      the case to begin with
    inputs    the counts to begin with
    engine    "emulated nccl" (today's PyTorch), "emulated nccl 1.9", "emulated gloo", "launched gloo", "launched nccl"
    predict   hide the run until the learner has predicted how each rank ends
    cure      False: show no fix, for a learner who is to find it
    timeout   seconds after which a launched run is ended

    Traits that Python and the browser set:

    counts         number of inputs per rank: 1 to 8 ranks, at most 20 each
    case           number of the case; 0 is the program that the bench was given
    engine         one of the above
    barrier_value  the 4-byte word whose lowest byte PyTorch 1.9's barrier all-reduces
    pad            the upper half of an NCCL line that holds 4 bytes
    said           the prediction for each rank: "finishes", "hangs", "raises", or "" for none yet

    Traits to read: timeline (the shown run; None while it is covered or not run yet), running (a
    launched run is under way), covered (ranks whose ending is hidden), printed ((rank, its last
    lines)).

    Raises ProgramError for an invalid program, case, counts, engine or prediction.
    """

    _esm = packed_script("board.js")
    _css = style("view.css", "first.css", "bench.css", "map.css")

    _calls = False
    timeline = _Shown(Timeline, allow_none=True)
    alike = traitlets.Bool(False).tag(sync=True)  # every rank has a row of dots, and so a lane
    counts: Any = traitlets.Tuple().tag(sync=True, echo_update=False)
    case = traitlets.Int().tag(sync=True, echo_update=False)
    engine = traitlets.Unicode().tag(sync=True, echo_update=False)
    barrier_value = traitlets.Int(7, min=0, max=2**32 - 1).tag(sync=True, echo_update=False)
    pad = traitlets.Int(0, min=0, max=2**32 - 1).tag(sync=True, echo_update=False)
    said: Any = traitlets.Tuple().tag(sync=True, echo_update=False)
    running = traitlets.Bool(False).tag(sync=True)
    printed: object = traitlets.Tuple().tag(sync=True)
    results: object = traitlets.Tuple().tag(sync=True)  # per rank, whether its prediction was right
    # BenchSetting.key of the shown emulation of a case
    shown = traitlets.Unicode("").tag(sync=True)
    controls: Any = traitlets.Dict().tag(sync=True)  # what `_arrange` makes of the choices
    # with "bad" for an error, or "done" and "of" for a bar
    status: Any = traitlets.Dict({"text": ""}).tag(sync=True)
    map: object = traitlets.Dict().tag(sync=True)  # {"most", "kinds", "cells", "note"}; {} for none

    def __init__(
        self,
        program: Program | None = None,
        *,
        case: int = 4,
        inputs: Sequence[int] = (5, 6),
        engine: str = "emulated nccl",
        predict: bool = False,
        cure: bool = True,
        timeout: float = 300.0,
    ) -> None:
        if program is not None:
            check_program(program)
        self.own_program = program
        self.timeout = timeout
        self.predict = bool(predict)
        self.cure = cure
        self.scores: list[Score] = []
        self._by_page = False
        self._blank: Timeline | None = None  # drawn while the run is covered
        self._failed: BaseException | None = None
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._asked_to_stop = threading.Event()
        self._fixing: asyncio.TimerHandle | None = None
        # set while torch loads: the loop to notify
        self._loop: asyncio.AbstractEventLoop | None = None
        self._emulations = Emulations()
        self._map = EndingMap(
            self._emulations, self._show_map, lambda parcel: self.send({"ahead": True}, [parcel])
        )
        name = program and program_name(program)
        self.programs = sorted(titles().items())
        if name is not None:
            self.programs.insert(0, (0, name))
        counts = check_counts(inputs)
        self._made_with = name, case, counts, engine, predict, cure
        if name is not None and case == 4:
            case = 0
        chosen = {"counts": counts, "case": case, "engine": engine} | _left(self)
        super().__init__(None, **chosen)
        self.add_class("joinlab-bench")
        self._loop = None if torch_is_loaded() else event_loop()
        self._refresh()
        if self._loop is not None:
            thread = threading.Thread(target=self._load, name="joinlab loads torch", daemon=True)
            self._loop.call_later(FIRST_S, thread.start)
        self.on_msg(self._pressed)

    # ---------------- the chosen run

    @property
    def loading(self) -> bool:
        """Whether torch is still being loaded."""
        return self._loop is not None

    @property
    def waits(self) -> bool:
        """Whether the chosen run needs torch, which is still being loaded."""
        return self.loading and not self._setting().ships

    @property
    def _now(self) -> Engine:
        return ENGINES[self.engine]

    @property
    def _asks(self) -> bool:
        """Whether the run is hidden until the learner has predicted it."""
        return self.predict and bool(self.covered)

    @property
    def _unpredicted(self) -> bool:
        """Whether a rank of a hidden run has no prediction yet."""
        return self._asks and "" in self.said

    @property
    def _seen(self) -> Timeline:
        return self._blank or self._trait_values["timeline"]

    def _setting(self) -> BenchSetting:
        own_program = None if self.case else self.own_program
        return BenchSetting(
            own_program, self.case, self.counts, self._now, self.barrier_value, self.pad
        )

    def _setting_of(self, case: int, counts: tuple[int, ...]) -> BenchSetting:
        """That of another case and other inputs."""
        return replace(self._setting(), own_program=None, case=case, counts=counts)

    @traitlets.validate(*CHOSEN)
    def _check(self, proposal: Mapping[str, Any]) -> object:
        name, value = proposal["trait"].name, proposal["value"]
        if self.running and not self._by_page:
            raise ProgramError("a run is under way; bench.stop() ends it")
        if name == "counts":
            return check_counts(value)
        choices: dict[str, list[object]] = {"case": [*dict(self.programs)], "engine": [*ENGINES]}
        if name in choices and value not in choices[name]:
            names = ", ".join(map(repr, choices[name]))
            raise ProgramError(f"{name}= is one of {names}; got {value!r}")
        return value

    @traitlets.validate("said")
    def _check_words(self, proposal: Mapping[str, Any]) -> tuple[str, ...]:
        words: tuple[str, ...] = proposal["value"]
        if any(words) and not self._asks:
            raise ProgramError(
                "no run is hidden, so there is none to predict; use joinlab.bench(predict=True)"
            )
        if len(words) != len(self.counts) or not set(words) <= {"", *WORDS}:
            raise ProgramError(
                f"predict {', '.join(WORDS[:-1])} or {WORDS[-1]} for each of {len(self.counts)} ranks; got {words}"
            )
        return words

    def set_state(self, sync_data: object) -> None:
        """Take traits that the browser has set. An interrupt ends an emulation that they start; no
        cell runs in which it could be raised."""
        self._by_page = True
        try:
            super().set_state(sync_data)
        except KeyboardInterrupt:
            self._tell("Interrupted.")
        finally:
            self._by_page = False

    @traitlets.observe(*CHOSEN)
    def _changed(self, _: Mapping[str, object]) -> None:
        if not (self.running or self.comm is None):
            self._refresh()

    @traitlets.observe("said")
    def _spoken(self, _: Mapping[str, object]) -> None:
        if self._asks and self.comm is not None:
            self._tell(self._next_step())
            self._arrange()

    # ---------------- reacting to a change

    def _refresh(self) -> None:
        """React to a choice: cover or drop the run shown before, and emulate the new one at once if
        possible."""
        with self._lock:
            self._failed = None
            self.said, self.results = ("",) * len(self.counts), ()
            if self.predict or self._now.launched:
                self._cover()
                self._tell("Loading PyTorch …" if self.waits else self._next_step())
            elif self.waits:  # keep the shown picture meanwhile
                if not self._packed:
                    self._cover()
                self._tell(f"Loading PyTorch …; inputs {self.counts} are next.")
            else:
                self._emulate()
            self._arrange()
            self._follow_map()

    def _follow_map(self) -> None:
        hidden = self.waits or self.predict or not self.cure or self._now.launched
        mapped = self.case and len(self.counts) == 2 and not hidden
        self._map.follow(self._setting() if mapped else None)

    def _show_map(self, map_data: dict[str, object]) -> None:
        if self.comm is not None:
            self.map = map_data

    def _next_step(self) -> str:
        reason = missing(self._now, len(self.counts))
        if reason:
            return f"Not on this machine. {reason}"
        if self._unpredicted:
            return "Predict first: choose for each rank whether it finishes, hangs or raises. Then press Show."
        if self._asks and not self._now.launched:
            return "Every rank has a prediction. Press Show."
        return "Not run yet. Press Run: each rank becomes a process of its own."

    def _emulate(self) -> None:
        """Show the chosen run."""
        try:
            timeline = self._emulations.emulate(self._setting())
        except LaunchInterrupted as interrupted:
            self._show_run(interrupted.timeline)
            raise
        except JoinlabError as error:
            self._fail(error)
            return
        self._show_run(timeline, self._setting().key if self.case else "")
        if self.case and not self._setting().ships and not self.status["text"]:
            self._tell("Emulated here: no run of this place ships.")

    # ---------------- showing

    def _arrange(self) -> None:
        """Show only the controls that matter now."""
        launched, can_run = self._now.launched, not (self.running or self.waits)
        knobs_here: tuple[str, ...] = ()
        if not self.loading:
            knobs_here = knobs(self._now, self.case)
            can_run = can_run and not missing(self._now, len(self.counts))
        ships = self._setting_of(1, (0, 0)).ships and self.cure and not self.predict
        go = "Show" if self._asks else ""
        self.controls = {
            "programs": self.programs,  # number and name of each to choose from
            "engines": self._engines(),
            "knobs": knobs_here,  # those of "barrier_value" and "pad" that matter
            "go": "▶ Run" if launched else go,  # of a button; "" hides it
            "can_go": can_run and not self._unpredicted,
            "launches": launched,  # whether the run can be stopped
            "comparing": self.beside is not None,
            "predict": self.predict,
            "ranks": MAX_RANKS,
            "most": MAX_INPUTS,
            "words": ("", *WORDS),
            # see write_sliders
            "loop": [documented.switches for documented in DOCUMENTED.values()],
            "endings": endings(self._now.backend, self._now.era) if ships else "",  # as shipped
        }

    def _engines(self) -> list[tuple[str, str, str]]:
        """Name and label of each engine to choose from, and what it lacks; NCCL on GPUs is one
        only if the machine has GPUs or the user chose it."""
        choices = []
        for name, engine in ENGINES.items():
            reason = "" if self.loading else missing(engine, 2)
            able = not (self.loading or reason)
            if name != "launched nccl" or name == self.engine or able:
                choices.append((name, engine.label, reason))
        return choices

    def _draw(self, timeline: Timeline | None, blank: Timeline | None, **changes: object) -> None:
        with self.hold_sync():
            self._blank, self.selected = blank, None
            self.timeline = timeline
            self.covered = list(range(len(self.counts))) if blank else []
            self._pack()
            for name, value in changes.items():
                setattr(self, name, value)

    def _cover(self) -> None:
        """Show the program and the ranks, but no call and no ending."""
        engine = "emulated"
        if self._now.launched:
            engine = "running" if self.running else "not run yet"
        meta: Meta = {
            "engine": engine,
            "backend": self._now.backend,
            "inputs": list(self.counts),
            "program": self._setting().name,
        }
        ships = shipped_run(self.case, (0, 0))
        if ships:
            meta["source"] = ships.meta["source"]
        elif self.own_program is not None:
            meta["source"] = source_of(self.own_program)
        ends = [Ending(EndKind.KILLED, text="not shown yet")] * len(self.counts)
        self._draw(None, timeline_from_rows([], ends, meta), shown="", printed=())

    def _show_run(self, timeline: Timeline, key: str = "") -> None:
        """Show a run; `key` is that of its setting if the run is repeatable."""
        if not self.cure:
            timeline = without_fixes(timeline)
        asked, printed = self._asks, []
        for rank, text in enumerate(timeline.output):
            if text:
                printed.append((rank, shown("\n".join(text.splitlines()[-LINES:]))))
        self._draw(timeline, None, selected=_first(timeline), shown=key, printed=printed)
        self._tell("")
        self._fix_later(timeline)
        if asked:
            self._judge(timeline)
        self._arrange()

    def _fix_later(self, timeline: Timeline) -> None:
        """Try fixes for the shown run once the reader pauses, and show the one that helps."""
        if self._fixing is not None:
            self._fixing.cancel()
            self._fixing = None
        loop, fixable = event_loop(), timeline.live.traces or timeline.live.rerun
        if loop is not None and fixable and not all(map(good, timeline.ends)):
            self._fixing = loop.call_later(REST_S, self._fix, timeline)

    def _fix(self, timeline: Timeline) -> None:
        self._fixing = None
        if self._seen is timeline and not (self.comm is None or self.running):
            diagnose(timeline)
            self.refresh()

    def _judge(self, timeline: Timeline) -> None:
        """Compare the prediction with the run, and show the score."""
        score = Score(self.said, tuple(map(word, timeline.ends)))
        self.scores.append(score)
        results = []
        for ended, right in zip(score.ended, score.right, strict=True):
            text = f"✓ it {ended}" if right else f"✗ it {ended}"
            results.append("ended by joinlab: not counted" if ended is None else text)
        self.results = results
        self._tell(f"{sum(score.right)} of {len(self.said) - score.ended.count(None)} right.")

    def _fail(self, error: BaseException) -> None:
        self._failed = error
        self._cover()
        self._tell(f"{error}", bad=True)
        self._arrange()

    def _tell(self, text: str, bad: bool = False) -> None:
        """Show a text beside the controls; `bad`: as an error."""
        self.status = {"text": text, "bad": bad}

    # ---------------- from Python

    def keep(self) -> None:
        """Keep the shown run to compare the next one with it; a second call removes it.

        Raises ProgramError if no run is shown.
        """
        if self.beside is None and self.timeline is None:
            raise ProgramError("there is no picture to keep yet; bench.run() shows one")
        self.beside = self.timeline if self.beside is None else None
        self._arrange()

    def run(self) -> Timeline:
        """Run the chosen setting as the button does, wait until it has ended, and return the
        Timeline.

        Raises ProgramError if a prediction is missing, LaunchError if the machine cannot run it,
        and LaunchInterrupted, with nothing left running, if the cell is interrupted.
        """
        self.start()
        try:
            if self._thread is not None:
                self._thread.join()
        except KeyboardInterrupt:
            self.stop()
            assert self.timeline is not None
            raise LaunchInterrupted(
                "the run was interrupted; bench.timeline has what was recorded", self.timeline
            ) from None
        if self._failed is not None:
            raise self._failed
        timeline: Timeline | None = self.timeline
        assert timeline is not None
        return timeline

    def start(self) -> None:
        """Start the chosen run and return; an emulated run is over by then. Does nothing during a
        launched run."""
        with self._lock:
            if self.running:
                return
            if self.waits:
                self._wait_until_loaded()
            if self._unpredicted:
                raise ProgramError(
                    "first predict for each rank whether it finishes, hangs or raises: bench.said = (...)"
                )
            self._failed = None
            if not self._now.launched:
                self._emulate()
                return
            reason = missing(self._now, len(self.counts))
            if reason:
                raise ProgramError(reason)
            self.printed = ()
            self._tell(f"Starting {len(self.counts)} processes …")
            self._asked_to_stop.clear()
            self.running = True
            self._cover()
            self._thread = threading.Thread(
                target=self._launch, args=(self._setting(),), daemon=True
            )
            self._thread.start()
            self._arrange()

    def stop(self) -> None:
        """End the launched run that is under way, if any, and wait until it is gone."""
        self._asked_to_stop.set()
        if self._thread is not None:
            self._thread.join()

    def close(self) -> None:
        """Stop a launched run and remove the bench from the notebook."""
        if self.comm is None:
            return
        self.stop()
        if self._fixing is not None:
            self._fixing.cancel()
        self._map.stop()
        super().close()

    def __repr__(self) -> str:
        drawn = "covered" if self._asks else repr(self._trait_values.get("timeline"))
        return f"<Bench: {self._setting().name}, inputs {self.counts}, {self.engine}; {drawn}>"

    # ---------------- a fresh kernel

    def _wait_until_loaded(self) -> None:
        """Load torch in this thread, for Python code that needs it now."""
        self._loop = None
        warm_up()
        self._refresh()

    def _load(self) -> None:
        loop = self._loop
        if loop is None:  # Python was faster
            return
        try:
            warm_up()
        except BaseException as error:  # the first emulation will name what is missing
            loop.call_soon_threadsafe(self._tell, f"{error}", True)
        loop.call_soon_threadsafe(self._loaded)

    def _loaded(self) -> None:
        """Show the run that waited until torch was loaded."""
        if not self.loading:
            return
        waited, self._loop = self.waits, None
        if self.comm is None:
            return
        if waited or not (self._blank or is_of_this_torch(self._seen)):
            self._refresh()
        else:
            self._arrange()

    # ---------------- messages from the browser

    def _pressed(self, _: object, message: Mapping[str, Any], __: object) -> None:
        """React to a button or a cell of the map."""
        match message:
            case {"press": "shown"}:
                self._map.watch()
            case {"press": "calls"}:
                self.refresh()
            case {"press": "places"}:
                self._send_positions()
            case {"press": "go"}:
                try:
                    self.start()
                except (JoinlabError, KeyboardInterrupt) as error:
                    self._tell(str(error) or "Interrupted.", bad=True)
            case {"press": "stop"}:
                self._tell("Stopping …")
                self._asked_to_stop.set()
            case {"press": "compare"} if self.beside is not None or not (
                self._blank or self.running
            ):
                self.keep()
            case {"save": form} if not self._blank:  # the browser makes a PNG of the SVG's text
                meta, counts = self._seen.meta, "-".join(map(str, self.counts))
                made = f"{meta['program']}_{counts}_{meta['engine']}_{meta['backend']}"
                name = f"{made}.{form.lower()}"
                self.send({"save": form, "name": name, "text": drawn(self._seen)})

    def _send_positions(self) -> None:
        """Send the picture of each case with these inputs whose run is at hand: those of the places
        to which the barrier can be dragged; on the clock with every call."""
        if self.predict or self._now.launched:
            return
        data, pictures, calls = LaneData(), dict[str, int](), self.axis != "logical"
        for case in DOCUMENTED:
            setting = self._setting_of(case, self.counts)
            timeline = self._emulations.kept.get(setting) or setting.shipped_run
            if timeline is not None:
                run = timeline if self.cure else without_fixes(timeline)
                pictures[setting.key] = data.add(run, False, calls=calls)
        if pictures:
            self.send({"ahead": True}, [data.packed(ahead=pictures)])

    # ---------------- running, in the run's own thread

    def _launch(self, setting: BenchSetting) -> None:
        """Launch a run and show its Timeline."""
        from joinlab.launcher.launcher import launch

        began, done = time.monotonic(), 0

        def asked_to_stop() -> bool:  # `launch` polls it, so it also updates the progress
            self._goes_on(int(time.monotonic() - began), done)
            return self._asked_to_stop.is_set()

        def progress(inputs: int) -> None:
            nonlocal done
            done = inputs

        try:
            outcome: Timeline | BaseException = launch(
                setting.program,
                setting.counts,
                setting.engine.backend,
                timeout=self.timeout,
                on_output=None,
                progress=progress,
                stop=asked_to_stop,
            )
        except BaseException as error:  # the bench must survive any error
            outcome = error
        with self._lock:
            self.running = False
            if self.comm is None:
                return
            if self._setting() != setting:  # the user moved a control before it was disabled
                self._refresh()
            elif isinstance(outcome, Timeline):
                self._show_run(outcome)
            else:
                self._fail(outcome)

    def _goes_on(self, seconds: int, done: int) -> None:
        """Show the run's progress."""
        count = sum(self.counts)
        text = f"Running for {seconds} s; {done} of {count} inputs done."
        if not self._asked_to_stop.is_set():
            self.status = {"text": text, "done": done, "of": count}


bench = Bench


def _left(bench: Bench) -> dict[str, object]:
    """The choices of the same bench in the previous execution of this notebook cell; ends runs
    which that launched.

    JupyterLab and Jupyter Notebook send the cell's id with its code.
    """
    request: Mapping[str, Any] = getattr(running_shell(), "get_parent", dict)()
    cell = request.get("metadata", {}).get("cellId")
    if not cell:
        return {}
    run = request["header"]["msg_id"]
    key = cell, _made_by[run]
    old, _latest[key] = _latest.get(key), bench
    _made_by[run] += 1
    if old is None:
        return {}
    old.stop()
    old._map.stop()
    if old._made_with != bench._made_with:
        return {}
    return {name: getattr(old, name) for name in CHOSEN}


def _first(timeline: Timeline) -> int | None:
    """The slot in which the ranks part."""
    evidence = Evidence(timeline)
    first = evidence.difference.first
    return None if first is None else evidence.folding.numbers[first]
