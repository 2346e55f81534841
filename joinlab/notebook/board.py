"""Board: the bench's picture, a live view with a slider per rank at the heads of the lanes.

Native controls of the browser, drawn by static/heads.js: a slider of ipywidgets has no name that a screen reader
could say.
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
    """A View with one slider per rank.

    counts    number of inputs per rank: 1 to 8 ranks, 0 to 20 each; two-way
    said      what the learner says of each rank's ending, "" where nothing is said yet; two-way
    predict   whether to ask for that
    results   per rank, whether that was right
    busy      nothing can be changed now
    shown     `Setting.key` of the emulation that is shown; "" for anything else

    Setting `counts` or `said` to anything else raises ProgramError.
    """

    _esm = script("board.js")
    _css = style("view.css", "bench.css")

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
