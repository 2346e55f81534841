"""The errors that joinlab raises, in one tree.

    JoinlabError
    ├── ProgramError (ValueError)     the program or its inputs are not of the documented form
    ├── LaunchError (RuntimeError)    the machine cannot run the request (no GPU, no process, no fork)
    ├── LaunchInterrupted (KeyboardInterrupt)   the user stopped a run; carries its Timeline so far
    ├── TimelineFileError (ValueError)          a file is not a Timeline that this version can open
    └── RankError (RuntimeError)      a rank did not finish; raised only by Timeline.raise_for_ending()

How a rank ended is data (`Timeline.ends`), never an exception, unless the caller asks for one. A
message says what was asked, what was found, and what to do.
"""

from __future__ import annotations

from typing import Any

EXTRAS = dict.fromkeys(("anywidget", "ipywidgets", "plotly", "torch", "traitlets"), "lab")
"""By package: the extra of joinlab that installs it."""


def with_extra(feature: str, error: ModuleNotFoundError) -> ModuleNotFoundError:
    """`error`, extended by what needs the package and which extra installs it; unchanged if no
    extra does."""
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS:
        return error
    todo = f"pip install 'joinlab[{EXTRAS[package]}]'"
    return ModuleNotFoundError(
        f"{feature} needs {package}, which is not installed: {todo}", name=error.name
    )


class JoinlabError(Exception):
    """Base of every joinlab error."""


class ProgramError(JoinlabError, ValueError):
    """The program, its inputs or an option is not of the documented form."""


class LaunchError(JoinlabError, RuntimeError):
    """This machine cannot do the run. The message names what it lacks and suggests what to do
    instead."""


class LaunchInterrupted(JoinlabError, KeyboardInterrupt):
    """The user interrupted a run. All its processes have ended; `timeline` is the Timeline recorded
    so far."""

    # Any: the room of Timeline is above this one
    def __init__(self, message: str, timeline: Any) -> None:
        super().__init__(message)
        self.timeline = timeline


class TimelineFileError(JoinlabError, ValueError):
    """A file is truncated, of another version, or not a Timeline; the message names the file."""


class RankError(JoinlabError, RuntimeError):
    """At least one rank hung, raised or was killed. Raised by `Timeline.raise_for_ending()`;
    carries the Timeline."""

    def __init__(self, message: str, timeline: object) -> None:
        super().__init__(message)
        self.timeline = timeline
