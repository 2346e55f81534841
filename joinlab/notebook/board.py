"""Board: the one widget of the bench: a view whose lanes have a row of dots for their inputs, and what is run on what.

The controls are the browser's own, drawn by static/board.js and controls.js: a slider of ipywidgets has no name that a
screen reader could say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import traitlets

from joinlab.errors import ProgramError
from joinlab.notebook.predictions import WORDS
from joinlab.notebook.view import View
from joinlab.picture.assets import script, style
from joinlab.program.program import check_inputs

MAX_RANKS = 8
MAX_INPUTS = 20


class Board(View):
    """A View with one row of dots per rank, and the bench's controls; those marked two-way are set in the browser, too.

    counts         number of inputs per rank: 1 to 8 ranks, 0 to 20 each; two-way
    said           what the learner says of each rank's ending, "" where nothing is said yet; two-way
    predict        whether to ask for that
    results        per rank, whether that was right
    busy           a launched run is under way: nothing can be changed
    shown          `Setting.key` of the emulation that is shown; "" for anything else
    programs       (number, name) of what can be run
    case           the number that is chosen; two-way
    engines        {"name", "label", "missing"} of what it can be run on
    engine         the name that is chosen; two-way
    knobs          names of the knobs that matter: of "barrier_value" and "pad"
    barrier_value  the 4-byte word whose lowest byte PyTorch 1.9's barrier all-reduces; two-way
    pad            the upper half of an NCCL line that holds 4 bytes; two-way
    status         {"text"}, with "bad" for an error, or "done" and "of" for a bar
    go             what the button that starts a run says; "" hides it
    can_go         whether it can be pressed
    launches       whether what is run can be stopped
    comparing      whether what was kept stands beside it; two-way
    can_compare    whether there is something to keep
    map            {"most", "kinds", "cells", "note"}; {} for none

    Setting `counts` or `said` to anything else raises ProgramError.
    """

    _esm = script("board.js")
    _css = style("view.css", "first.css", "bench.css", "map.css")

    alike = traitlets.Bool(False).tag(sync=True)  # every rank has a slider, and so a lane
    counts = traitlets.List(traitlets.Int(), [5, 6]).tag(sync=True, echo_update=False)
    said = traitlets.List(traitlets.Unicode(), ["", ""]).tag(sync=True, echo_update=False)
    predict = traitlets.Bool(False).tag(sync=True)
    results = traitlets.List(traitlets.Unicode()).tag(sync=True)
    busy = traitlets.Bool(False).tag(sync=True)
    shown = traitlets.Unicode("").tag(sync=True)
    ranks = traitlets.Int(MAX_RANKS).tag(sync=True)
    most = traitlets.Int(MAX_INPUTS).tag(sync=True)
    words = traitlets.List(["", *WORDS]).tag(sync=True)
    programs: Any = traitlets.List().tag(sync=True)
    case = traitlets.Int().tag(sync=True, echo_update=False)
    engines: Any = traitlets.List().tag(sync=True)
    engine = traitlets.Unicode().tag(sync=True, echo_update=False)
    knobs = traitlets.List(traitlets.Unicode()).tag(sync=True)
    barrier_value = traitlets.Int(7, min=0, max=2**32 - 1).tag(sync=True, echo_update=False)
    pad = traitlets.Int(0, min=0, max=2**32 - 1).tag(sync=True, echo_update=False)
    status: Any = traitlets.Dict({"text": ""}).tag(sync=True)
    go = traitlets.Unicode().tag(sync=True)
    can_go = traitlets.Bool(False).tag(sync=True)
    launches = traitlets.Bool(False).tag(sync=True)
    comparing = traitlets.Bool(False).tag(sync=True, echo_update=False)
    can_compare = traitlets.Bool(False).tag(sync=True)
    map: Any = traitlets.Dict().tag(sync=True)

    def tell(self, text: str, bad: bool = False) -> None:
        """Say something beside the controls; it is an error where `bad`."""
        self.status = {"text": text} | ({"bad": True} if bad else {})

    @traitlets.validate("counts")
    def _check_counts(self, proposal: Mapping[str, Any]) -> list[int]:
        return list(check_counts(proposal["value"]))

    @traitlets.validate("said")
    def _check_said(self, proposal: Mapping[str, Any]) -> list[str]:
        said = list(proposal["value"])
        if len(said) != len(self.counts) or not set(said) <= {"", *WORDS}:
            raise ProgramError(
                f"say {', '.join(WORDS[:-1])} or {WORDS[-1]} of each of {len(self.counts)} ranks; got {said}"
            )
        return said

    @traitlets.observe("counts")
    def _forget(self, change: Mapping[str, Any]) -> None:
        self.said = [""] * len(change["new"])
        self.results = []


def check_counts(counts: object) -> tuple[int, ...]:
    """Counts that the bench can show; ProgramError for any others."""
    found = check_inputs(counts, MAX_RANKS)
    if max(found) > MAX_INPUTS:
        raise ProgramError(f"the bench gives a rank at most {MAX_INPUTS} inputs; got {found}")
    return found
