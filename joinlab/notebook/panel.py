"""Panel: the bench's controls above the picture, as one widget: what is run, how it ended, the map of endings."""

from __future__ import annotations

from typing import Any

import anywidget
import traitlets

from joinlab.picture.assets import script


class Panel(anywidget.AnyWidget):
    """What the bench's controls show; those marked two-way are set in the browser, too.

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
    running        whether a launched run is under way
    comparing      whether what was kept stands on the left; two-way
    can_compare    whether there is something to keep
    verdict        {"ends", "headline", "steps", "documented"}; {} while there is none to show
    map            {"most", "kinds", "cells", "note"}; {} for none
    counts         the inputs that the sliders show
    """

    _esm = script("panel.js")  # the style sheet comes with the Board: once for both

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
    running = traitlets.Bool(False).tag(sync=True)
    comparing = traitlets.Bool(False).tag(sync=True, echo_update=False)
    can_compare = traitlets.Bool(False).tag(sync=True)
    verdict: Any = traitlets.Dict().tag(sync=True)
    map: Any = traitlets.Dict().tag(sync=True)
    counts = traitlets.List(traitlets.Int()).tag(sync=True)

    def tell(self, text: str, bad: bool = False) -> None:
        """Say something below the controls; it is an error where `bad`."""
        self.status = {"text": text} | ({"bad": True} if bad else {})
