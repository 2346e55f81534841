"""joinlab: see what really happens when the ranks of a PyTorch DDP job get uneven inputs.

    timeline = joinlab.launch(joinlab.cases.case_4, inputs=(5, 6))   # real processes, recorded
    joinlab.diagnose(timeline)                                       # who hangs, and why
    timeline                                                         # in Jupyter: the swimlanes

Names are loaded when first used, so that `import joinlab` returns at once: it imports neither
torch, plotly nor ipywidgets.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from joinlab import showing
from joinlab._version import __version__
from joinlab.interrupts import import_whole

if TYPE_CHECKING:
    from joinlab import cases as cases
    from joinlab import scenarios as scenarios
    from joinlab.analysis.matching import match as match
    from joinlab.course.exercises import check as check
    from joinlab.course.exercises import solution as solution
    from joinlab.emulator.emulate import emulate as emulate
    from joinlab.emulator.outcomes import endings as endings
    from joinlab.errors import JoinlabError as JoinlabError
    from joinlab.errors import LaunchError as LaunchError
    from joinlab.errors import LaunchInterrupted as LaunchInterrupted
    from joinlab.errors import ProgramError as ProgramError
    from joinlab.errors import RankError as RankError
    from joinlab.errors import TimelineFileError as TimelineFileError
    from joinlab.jobs.follow import follow as follow
    from joinlab.jobs.load import load as load
    from joinlab.jobs.record import record as record
    from joinlab.launcher.launcher import launch as launch
    from joinlab.notebook.bench import bench as bench
    from joinlab.notebook.quiz import progress as progress
    from joinlab.notebook.quiz import quiz as quiz
    from joinlab.notebook.sweep import sweep as sweep
    from joinlab.notebook.view import View as View
    from joinlab.notebook.view import compare as compare
    from joinlab.picture.figures import figure as figure
    from joinlab.picture.holdings import who_holds as who_holds
    from joinlab.picture.page import write_html as write_html
    from joinlab.picture.tables import slots as slots
    from joinlab.picture.tables import table as table
    from joinlab.story.judge import diagnose as diagnose
    from joinlab.timeline import Timeline as Timeline


_NAMES = {
    "analysis.matching": "match",
    "cases": "cases",
    "course.exercises": "check solution",
    "emulator.emulate": "emulate",
    "emulator.outcomes": "endings",
    "errors": "JoinlabError LaunchError LaunchInterrupted ProgramError RankError TimelineFileError",
    "jobs.load": "load",
    "launcher.launcher": "launch",
    "notebook.bench": "bench",
    "jobs.follow": "follow",
    "notebook.quiz": "progress quiz",
    "notebook.sweep": "sweep",
    "notebook.view": "View compare",
    "picture.figures": "figure",
    "picture.holdings": "who_holds",
    "picture.page": "write_html",
    "picture.tables": "slots table",
    "jobs.record": "record",
    "scenarios": "scenarios",
    "story.judge": "diagnose",
    "timeline": "Timeline",
}
"""By module: the names that `joinlab` has from it."""
_HOME = {name: f"joinlab.{module}" for module, names in _NAMES.items() for name in names.split()}

__all__ = ["__version__", *sorted(_HOME)]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"joinlab has no {name!r}; it has {', '.join(sorted(_HOME))}")
    try:
        module = import_whole(_HOME[name])
    except ModuleNotFoundError as error:
        from joinlab.errors import with_extra

        raise with_extra(f"joinlab.{name}", error) from error
    if _HOME[name] == f"joinlab.{name}":
        value = module
    else:
        value = getattr(module, name)
    globals()[name] = value
    return value


def _html(timeline: Timeline) -> str:
    from joinlab.picture.page import framed

    return framed(timeline)


def _story(timeline: Timeline) -> str:
    from joinlab.story.judge import diagnose

    return str(diagnose(timeline))


showing.html, showing.story = _html, _story


def __dir__() -> list[str]:
    return sorted(__all__)


def load_ipython_extension(shell: Any) -> None:
    """Called by `%load_ext joinlab`: registers the cell magic %%ranks."""
    import_whole("joinlab.notebook.magic").load_magic(shell)


if "IPython" in sys.modules:  # a notebook cell that ends in a Timeline shows its swimlanes
    from joinlab.notebook.display import register

    register()
