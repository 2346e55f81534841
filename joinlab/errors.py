"""Every error that joinlab raises by its own decision, in one tree.

    JoinlabError
    ├── ProgramError (ValueError)     the program or its inputs are not of the documented form
    ├── LaunchError (RuntimeError)    the machine cannot run what was asked (no GPU, no process, no fork)
    ├── LaunchInterrupted (KeyboardInterrupt)   the user stopped a run; carries its Timeline so far
    ├── TimelineFileError (ValueError)          a file is no Timeline that this version can open
    └── RankError (RuntimeError)      a rank did not finish; raised only by Timeline.raise_for_ending()

How a rank ended is data (`Timeline.ends`), never an exception, unless the caller asks for one. A message
says what was asked, what was found, and what to do.
"""

from __future__ import annotations

from typing import Any

EXTRAS = {
    **dict.fromkeys(("anywidget", "ipywidgets", "plotly", "torch", "traitlets"), "lab"),
    **dict.fromkeys(("jinja2", "requests", "tabulate"), "debug"),
}
"""By package: the extra of joinlab that brings it."""


def with_extra(what: str, error: ModuleNotFoundError) -> ModuleNotFoundError:
    """The same error, but saying what needs the package and which extra brings it; `error` itself for any other."""
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS:
        return error
    todo = f"pip install 'joinlab[{EXTRAS[package]}]'"
    return ModuleNotFoundError(f"{what} needs {package}, which is not installed: {todo}", name=error.name)


class JoinlabError(Exception):
    """Base of every joinlab error."""


class ProgramError(JoinlabError, ValueError):
    """The program, its inputs or an option is not of the documented form."""


class LaunchError(JoinlabError, RuntimeError):
    """The machine cannot run what was asked; the message says what it lacks and what would work."""


class LaunchInterrupted(JoinlabError, KeyboardInterrupt):
    """The user interrupted a run. Every process of it is gone; `timeline` holds what was recorded.

    Its type is not written down here, since Timeline stands above this module.
    """

    def __init__(self, message: str, timeline: Any) -> None:
        super().__init__(message)
        self.timeline = timeline


class TimelineFileError(JoinlabError, ValueError):
    """A file is truncated, of another version, or no Timeline at all; the message names the file."""


class RankError(JoinlabError, RuntimeError):
    """At least one rank hung, raised or was killed. Raised by `Timeline.raise_for_ending()`; carries the Timeline."""

    def __init__(self, message: str, timeline: Any) -> None:
        super().__init__(message)
        self.timeline = timeline
