"""A view that follows a folder while a job records into it: what `joinlab watch` is in a terminal.

It reads the folder in the kernel's event loop, between cells, so no thread or process outlives the
kernel. While a cell runs it reads nothing; afterwards it catches up.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import ClassVar

from joinlab.errors import TimelineFileError
from joinlab.jobs.recording import RecordedFolder
from joinlab.jobs.timeline_of_logs import has_open_call, is_over
from joinlab.notebook.view import View
from joinlab.timeline import EndKind

BUSY = 10
"""Reading may take a tenth of the kernel's time; with a long record, it looks less often."""


class Following(View):
    """The View of a folder that a job still writes; `follow` makes it."""

    _open: ClassVar[dict[Path, Following]] = {}

    def __init__(
        self, recorded: RecordedFolder, period: float, still: float, **options: object
    ) -> None:
        self.recorded = recorded
        self.following = True
        self._every, self._still_s = period, still
        self._moved = time.monotonic()
        self._timer: asyncio.TimerHandle | None = None
        super().__init__(recorded.timeline(), **options)
        folder = recorded.folder.resolve()
        older = self._open.pop(folder, None)
        if older:  # its cell was run again
            older.stop()
        self._open[folder] = self
        self._say()
        self._schedule(period)

    def look(self) -> bool:
        """Read and show new events; True if there are any. Call it where no event loop runs, as in
        a script."""
        if not self.following:
            return False
        news = self.recorded.refresh()
        if news:
            self._moved = time.monotonic()
        # also without news: a process may have ended without a word
        timeline = self.recorded.timeline()
        changed = (timeline.ends, timeline.meta.get("stood")) != (
            self.timeline.ends,
            self.timeline.meta.get("stood"),
        )
        if news or changed:
            self.timeline = timeline
        self._say()
        return news

    def stop(self) -> None:
        """Stop following; the picture stays."""
        self.following = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        folder = self.recorded.folder.resolve()
        if self._open.get(folder) is self:
            del self._open[folder]

    def close(self) -> None:
        """Stop, and remove the view from the page."""
        self.stop()
        super().close()

    def _say(self) -> None:
        kinds = {end.kind for end in self.timeline.ends}
        quiet = time.monotonic() - self._moved
        if is_over(self.timeline):
            self.heading = "The job is over."
            self.stop()
        elif EndKind.HUNG in kinds or (quiet >= self._still_s and has_open_call(self.timeline)):
            self.heading = "The job has stalled."
        else:
            self.heading = "The job is running."

    def _schedule(self, delay: float) -> None:
        if not self.following:
            return
        try:
            self._timer = asyncio.get_running_loop().call_later(delay, self._tick)
        except RuntimeError:  # no loop runs here: the owner of the view calls `look`
            self._timer = None

    def _tick(self) -> None:
        began = time.monotonic()
        try:
            self.look()
        except (TimelineFileError, OSError) as error:
            self.stop()
            self.heading = f"No longer following: {error}"
        except KeyboardInterrupt:  # it must not end the kernel's loop
            self.stop()
            self.heading = "No longer following: interrupted."
        self._schedule(max(self._every, BUSY * (time.monotonic() - began)))


def follow(
    folder: str | os.PathLike[str], every: float = 1.0, still: float = 30.0, **options: object
) -> Following:
    """Show a recorded job in a notebook while it runs, and the verdict once it has stalled or is
    over.

    folder   that `joinlab record` or joinlab.record(folder) writes; raises TimelineFileError if no rank has begun
    every    seconds between two looks
    still    seconds without an event after which a job with an open call counts as stalled, without a proof
    options  of `joinlab.View`

    It stops at the end of the job or the kernel, when the cell runs again, and by `view.stop()` or
    `view.close()`.

        view = joinlab.follow("runs/today")
        view
    """
    recorded = RecordedFolder(folder)
    try:
        recorded.refresh()
    except FileNotFoundError as error:
        raise TimelineFileError(
            f"there is no folder {os.fspath(folder)!r} yet: start the job, then run this cell again"
        ) from error
    return Following(recorded, every, still, **options)
