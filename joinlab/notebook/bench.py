"""The bench: choose a case, give each rank its inputs, predict, look, and then run it for real and compare.

A `Panel` of controls above a `Board`, the live view with a slider per rank; a `Session` runs what they ask for.
Emulated runs follow every slider at once; the browser holds back the positions that come while one is emulated, and
then sends the newest alone. What the map has computed lies on the page already (`Ahead`), and is drawn at once. A
launched run goes on in a thread of its own, which is the only one besides the kernel's that touches the widgets, and
holds the lock while it does. In a fresh kernel the emulations that ship are shown while torch is loaded. A cell that
is run again leaves its old bench behind, out of sight: the new one stops what that one launched.

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
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from joinlab.emulator.warm_up import warm_up
from joinlab.errors import JoinlabError, LaunchInterrupted, ProgramError
from joinlab.notebook.board import check_counts
from joinlab.notebook.engines import missing
from joinlab.notebook.output import close
from joinlab.notebook.saving import saved
from joinlab.notebook.session import Setting
from joinlab.notebook.side_by_side import Beside
from joinlab.notebook.stage import Stage, fill
from joinlab.program.program import Program, check_program, program_name
from joinlab.timeline import Timeline

_UNDER_WAY: set[Bench] = set()
"""The benches of which a launched run goes on."""


class Bench(Stage):
    """Where a learner plays; show it at the end of a cell.

    program   a function worker(rank, inputs) of your own; None: the cases
    case      the case to begin with
    inputs    the counts to begin with
    engine    "emulated nccl" (today's PyTorch), "emulated nccl 1.9", "emulated gloo", "launched gloo", "launched nccl"
    predict   cover how it ends until the learner has said, for each rank, what it will do
    timeout   seconds after which a launched run is ended

    Raises ProgramError for what is no program, or no such case, counts or engine.
    """

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
        super().__init__(program, case, inputs, engine, predict, timeout)
        self._refresh()
        if self.loading:
            threading.Thread(target=self._load, name="joinlab loads torch", daemon=True).start()
        self.panel.observe(self._changed, ["case", "engine", "barrier_value", "pad"])
        self.view.observe(self._changed, "counts")
        self.view.observe(self._spoken, "said")
        self.panel.observe(self._kept, "comparing")
        self.panel.on_msg(self._pressed)
        self.view.on_msg(self._asked_to_save)
        self.widget.observe(lambda _: self._session.ask_to_stop(), "comm")  # closed, by Python or by the browser
        self._held = False

    # ---------------------------------------------------------------- what Python can ask and set

    @property
    def comparison(self) -> Beside | None:
        """What is shown while the bench compares; None otherwise."""
        return self._beside

    def keep(self) -> None:
        """Keep the shown run on the left, to compare the next one with it; called again, remove it.

        Raises ProgramError where nothing is shown.
        """
        if not self.panel.comparing and self.timeline is None:
            raise ProgramError("there is no picture to keep yet; bench.run() shows one")
        self.panel.comparing = not self.panel.comparing

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
        self._map.stop()
        if self._beside is not None:
            self._beside.close()
        for widget in (self.panel, self.view, self._output.widget, self.widget):
            close(widget)

    def __repr__(self) -> str:
        name = program_name(self.own) if not self.case and self.own else f"case_{self.case}"
        shown = "covered" if self.covered else repr(self._timeline)
        return f"<Bench: {name}, inputs {self.counts}, {self.engine}; {shown}>"

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
        if change["name"] == "counts":
            self.panel.counts = list(change["new"])
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
            case {"counts": counts} if not self.running:
                self.view.counts = list(check_counts(counts))
            case _:
                pass

    def _compare_eras(self) -> None:
        """Keep this run on the left, and show what the other era of NCCL does beside it."""
        other = "emulated nccl" if self._now.era == "1.9" else "emulated nccl 1.9"
        self.panel.comparing = True
        self.panel.engine = other

    def _clicked(self) -> None:
        try:
            self.start()
        except (JoinlabError, KeyboardInterrupt) as error:
            self._tell(str(error) or "Interrupted.", bad=True)

    def _asked_to_save(self, _: Any, message: Mapping[str, Any], __: Any) -> None:
        if "save" in message and self._timeline is not None and not self.covered:
            self.view.send(saved(message["save"], self._timeline, self.case))

    def _kept(self, change: Mapping[str, Any]) -> None:
        with self._lock:
            if change["new"]:
                self._keep()  # or, if nothing is shown yet, when it is
            elif self._beside is not None:
                beside, self._beside = self._beside, None
                fill(self.widget, self._parts())
                beside.close()
            self._arrange()
            if self.loading and self._timeline is None:
                self._tell(self._what_waits())

    # ---------------------------------------------------------------- running

    def _goes_on(self, seconds: int, done: int) -> None:
        """Called by the run, in its thread, all the time: say how far it is."""
        total = sum(self.counts)
        told = {"text": f"Running for {seconds} s; {done} of {total} inputs done.", "done": done, "of": total}
        if self.panel.status != told and not self._session.stopping:
            self.panel.status = told
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

    # ---------------------------------------------------------------- showing


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
