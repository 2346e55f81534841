"""joinlab: see what really happens when the ranks of a PyTorch DDP job get uneven inputs.

    timeline = joinlab.launch(joinlab.cases.case_4, inputs=(5, 6))   # real processes, recorded
    joinlab.diagnose(timeline)                                       # who hangs, and why
    timeline                                                         # in Jupyter: the swimlanes

Names are loaded when first used, so that `import joinlab` returns at once: it imports neither torch, plotly
nor ipywidgets.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from joinlab import cases as cases
    from joinlab import scenarios as scenarios
    from joinlab.beside import compare as compare
    from joinlab.diagnosis import Diagnosis as Diagnosis
    from joinlab.diagnosis import diagnose as diagnose
    from joinlab.emulator import emulate as emulate
    from joinlab.emulator import endings as endings
    from joinlab.exercises import check as check
    from joinlab.exercises import solution as solution
    from joinlab.figures import figure as figure
    from joinlab.handout import write_handout as write_handout
    from joinlab.holdings import who_holds as who_holds
    from joinlab.launcher import launch as launch
    from joinlab.matching import match as match
    from joinlab.page import write_html as write_html
    from joinlab.timeline import Ending as Ending
    from joinlab.timeline import Timeline as Timeline
    from joinlab.timeline import load as load
    from joinlab.view import View as View
    from joinlab.workbench import bench as bench

__version__ = "0.1.0"

_HOME = {
    "bench": "joinlab.workbench",
    "cases": "joinlab.cases",
    "check": "joinlab.exercises",
    "compare": "joinlab.beside",
    "Diagnosis": "joinlab.diagnosis",
    "diagnose": "joinlab.diagnosis",
    "emulate": "joinlab.emulator",
    "endings": "joinlab.emulator",
    "figure": "joinlab.figures",
    "load": "joinlab.timeline",
    "launch": "joinlab.launcher",
    "match": "joinlab.matching",
    "scenarios": "joinlab.scenarios",
    "solution": "joinlab.exercises",
    "who_holds": "joinlab.holdings",
    "write_handout": "joinlab.handout",
    "write_html": "joinlab.page",
    "Ending": "joinlab.timeline",
    "Timeline": "joinlab.timeline",
    "View": "joinlab.view",
}

__all__ = ["__version__", *sorted(_HOME)]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"joinlab has no {name!r}; it has {', '.join(sorted(_HOME))}")
    module = import_module(_HOME[name])
    value = module if name in ("cases", "scenarios") else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


if "IPython" in sys.modules:  # a Timeline at the end of a notebook's cell shows its swimlanes
    from joinlab.display import register

    register()
