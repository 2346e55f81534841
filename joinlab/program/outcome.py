"""The outcome of a rank's run as plain data: versions, what its program returned, and what it
raised."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping
from typing import Any, TypedDict

import torch

from joinlab._version import __version__
from joinlab.program.labels import is_ours, owner_of
from joinlab.program.plain_data import Repr


class Versions(TypedDict):
    """What a rank runs."""

    joinlab: str
    python: str
    torch: str
    nccl: str | None


def versions(nccl: str | None = None) -> Versions:
    """The versions of this process, for meta["versions"]."""
    python = ".".join(map(str, sys.version_info[:3]))
    return {"joinlab": __version__, "python": python, "torch": str(torch.__version__), "nccl": nccl}


def to_plain(value: object) -> object:
    """Tensors as numpy arrays (bfloat16 as float32), containers as dict, list or tuple, other
    values unchanged."""
    if isinstance(value, torch.Tensor):
        try:
            tensor = value.detach().cpu()
            return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy().copy()
        except Exception:  # a sparse or quantised tensor
            return Repr(repr(value))
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = list(map(to_plain, value))
        if isinstance(value, tuple):
            return tuple(items)
        return items
    return value


def traceback_text(error: BaseException) -> str:
    """The traceback as Python prints it, without joinlab's own frames."""
    report = traceback.TracebackException.from_exception(error)
    causes: list[traceback.TracebackException | None] = [report]
    while causes:
        exception = causes.pop()
        if exception is not None:
            frames = [frame for frame in exception.stack if not is_ours(frame.filename)]
            exception.stack = traceback.StackSummary.from_list(frames)
            causes += [exception.__cause__, exception.__context__]
    return "".join(report.format())


def site_of(error: BaseException) -> str | None:
    """The innermost line of the program itself that an exception passed through."""
    lines = []
    for frame in traceback.extract_tb(error.__traceback__):
        if owner_of(frame.filename) == "program":
            lines.append(f"{frame.filename}:{frame.lineno}")
    if lines:
        return lines[-1]
    return None


def at_exit(ending: str) -> str:
    """The sentence about a rank whose program is over (`ending`), but whose process cannot end."""
    return f"{ending}, and its process waits for this call before it ends"


def text_of(error: BaseException) -> str:
    """Type and message of an exception, as an Ending says it."""
    try:
        message = str(error)
    except Exception:  # its __str__ raises: report the exception by its type
        message = "<its str() raises>"
    name, message = type(error).__name__, message.strip()
    if message:
        return f"{name}: {message}"
    return name


SILENT_THREADS = frozenset(
    {
        "multiprocessing.queues.Queue._feed",  # a DataLoader with workers has one for each
        "torch.utils.data._utils.pin_memory._pin_memory_loop",
        "tqdm._monitor.TMonitor.run",
        "tensorboard.summary.writer.event_file_writer._AsyncWriterThread.run",
    }
)
"""Functions of threads that never issue a call: a rank can be blocked although these threads
run."""


def is_silent(thread: Any) -> bool:
    """Whether a threading.Thread runs one of these."""
    body = getattr(thread, "_target", None) or type(thread).run
    return (
        f"{getattr(body, '__module__', '')}.{getattr(body, '__qualname__', '')}" in SILENT_THREADS
    )
