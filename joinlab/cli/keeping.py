"""Files that a command writes: it checks them before the run, and never loses a recording after
it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from joinlab.errors import JoinlabError

if TYPE_CHECKING:
    from joinlab.timeline import Timeline


def check_can_write(path: Path | None) -> None:
    """Raise JoinlabError if a file at `path` could not be written; call it before the run."""
    if path is None:
        return
    from joinlab.archive import check_writable

    try:
        check_writable(path)
    except OSError as error:
        raise JoinlabError(f"{error} Nothing was run.") from None


def check_other_file(source: str | None, target: Path | None) -> None:
    """Raise JoinlabError if writing `target` would overwrite `source`."""
    if source and target and target.exists() and os.path.exists(source) and target.samefile(source):
        raise JoinlabError(
            f"{target} is the recording itself, and a page in its place would destroy it. Name another file."
        )


def save(timeline: Timeline, path: Path) -> None:
    """Save a recording at `path`.

    If `path` cannot be written after all (the disk is full, the folder is gone), saves it in a
    temporary folder and raises JoinlabError, which names that folder.
    """
    try:
        print(f"saved {timeline.save(path)}")
    except OSError as error:
        fallback = Path(tempfile.mkdtemp(prefix="joinlab-")) / path.name
        timeline.save(fallback)
        reason = f"cannot write {path}: {error.strerror}." if error.strerror else error
        raise JoinlabError(f"{reason} The recording is kept in {fallback}") from error


def keep(timeline: Timeline, save_as: Path | None, html: Path | None) -> None:
    """Save a run at `save_as` and write its page to `html`, whose folder is made if needed; None:
    neither."""
    from joinlab.picture.page import write_html
    from joinlab.story.judge import diagnose

    try:
        diagnose(timeline)  # an emulation is saved with the fixes that were tried
    finally:
        if save_as:
            save(timeline, save_as)
    if html:
        html.parent.mkdir(parents=True, exist_ok=True)
        write_html({str(timeline.meta.get("program", "run")): timeline}, html)
        print(f"wrote {html}")
