"""Shows a Timeline at the end of a notebook cell: the verdict, and the swimlanes below it.

A Timeline is plain data and does not know how it is shown; this module registers that with IPython.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from joinlab.showing import is_terminal, put, running_shell, somebody_answers

if TYPE_CHECKING:
    from joinlab.timeline import Timeline


def register() -> bool:
    """Tell a running IPython how to show them; True if there is one. Imports neither plotly nor
    polars."""
    shell = running_shell()
    if shell is None:
        return False
    formatter = shell.display_formatter.ipython_display_formatter
    formatter.for_type_by_name("joinlab.timeline", "Timeline", show)
    return True


def show(timeline: Timeline) -> None:
    """Show a Timeline here: in a notebook the verdict and the picture, in a terminal the verdict as
    text."""
    from joinlab.story.judge import diagnose

    # before the picture is drawn: it tries fixes, which the picture shows
    story = diagnose(timeline)
    if is_terminal():
        print(f"{timeline!r}\n{story}")
    elif somebody_answers() and find_spec("anywidget"):
        from joinlab.notebook.view import View

        View(timeline)._ipython_display_()
    else:
        from joinlab.notebook.stills import drawn

        put(story)
        put({"image/svg+xml": drawn(timeline), "text/plain": repr(timeline)})
