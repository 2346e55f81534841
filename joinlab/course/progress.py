"""A learner's progress: the answers to the questions and exercises of the course, kept across
notebooks.

The state is one small JSON file: `$JOINLAB_PROGRESS`, or joinlab/progress.json in the user's state
folder (`$XDG_STATE_HOME`, by default ~/.local/state). It is kept in memory only with
JOINLAB_PROGRESS=off, if the file cannot be written, or if a machine runs the notebook (nbmake,
nbconvert, CI), since then nobody answers.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Literal

from joinlab.archive import write_whole
from joinlab.showing import somebody_answers

Kind = Literal["questions", "exercises"]

_state: dict[str, dict[str, bool]] | None = None


def path() -> Path | None:
    """The file of the state; None if it is kept in memory only."""
    if os.environ.get("JOINLAB_PROGRESS") == "off":
        return None
    named = os.environ.get("JOINLAB_PROGRESS")
    if named:
        return Path(named)
    if os.environ.get("CI") or somebody_answers() is False:
        return None
    return (
        Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
        / "joinlab"
        / "progress.json"
    )


def state() -> dict[str, dict[str, bool]]:
    """By kind and name, whether the first answer to a question, or the last to an exercise, was
    right."""
    global _state
    if _state is None:
        _state = _read()
    return _state


def record(kind: Kind, name: str, right: bool) -> None:
    """Keep the first answer to a question, since it is a prediction, and the last one to an
    exercise."""
    answers = state()[kind]
    if kind == "questions":
        answers.setdefault(name, right)
    else:
        answers[name] = right
    file = path()
    # never replace a device such as /dev/null
    if file is None or (file.exists() and not file.is_file()):
        return
    with suppress(OSError):  # a read-only home: keep the state in memory
        file.parent.mkdir(parents=True, exist_ok=True)
        # another notebook may read it
        write_whole(file, json.dumps(_state, indent=1, sort_keys=True).encode())


def forget() -> None:
    """Forget every answer, to begin the course again."""
    global _state
    _state = {"questions": {}, "exercises": {}}
    file = path()
    if file is not None and file.is_file():
        with suppress(OSError):
            file.unlink()


def _read() -> dict[str, dict[str, bool]]:
    progress: dict[str, dict[str, bool]] = {"questions": {}, "exercises": {}}
    file = path()
    if file is None or not file.is_file():
        return progress
    try:
        read = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError):
        return progress
    for kind, kept_answers in progress.items():
        answers = read.get(kind) if isinstance(read, dict) else None
        if isinstance(answers, dict):
            # "6-byte" was the name of a question until questions lost their notebook's number
            kept_answers.update(
                {name: right is True for name, right in answers.items() if "-" not in name}
            )
    return progress
