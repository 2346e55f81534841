"""A tab in PyTorch's own debug server: the swimlanes and the verdict of a job that is running or hanging.

    from torch.distributed.debug import start_debug_server
    from torch.distributed.debug._debug_handlers import default_handlers

    start_debug_server(handlers=[*default_handlers(), joinlab.debug_handler()], start_method="spawn")

on every rank, after init_process_group, with TORCH_FR_BUFFER_SIZE=2000 in the environment. Then open port 25999 of
rank 0's machine, "joinlab". The server asks every rank for its flight recorder; the training code need not respond. It
listens on all of the machine's addresses and asks for no password: start it only where nobody else can reach the port.

torch.distributed.debug is experimental and the classes used here are private: tried only with torch 2.13.0. No other
file uses them. The server needs jinja2, tabulate and requests: pip install 'joinlab[debug]'.
"""

from __future__ import annotations

import ctypes
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from joinlab.errors import LaunchError, TimelineFileError

if TYPE_CHECKING:
    from joinlab.timeline import Timeline

try:
    from torch.distributed.debug import _handlers
    from torch.distributed.debug._frontend import DebugHandler, HTTPRequestHandler, NavLink, Response, Route, fetch_all
except ImportError as error:
    raise LaunchError(
        f"PyTorch's debug server cannot be used here: {error}. It needs torch 2.10 or later, and the packages of "
        "pip install 'joinlab[debug]'."
    ) from error

# At process exit PyTorch's C++ registry of handlers frees this function without the GIL, after Python has shut down,
# which can be "Fatal Python error: PyThreadState_Get" (seen with torch 2.13). An extra reference keeps it alive.
ctypes.pythonapi.Py_IncRef(ctypes.py_object(getattr(_handlers, "_torch_profile", None)))

ENDPOINTS = ("fr_trace_json", "dump_nccl_trace_json")
"""Endpoints of a rank's flight recorder: the CPU backends' and NCCL's.

Their JSON has no stack frames. NCCL's pickle has them, but the server's fetch_all passes on text only.
"""

NO_LINES = (
    "These recorders do not say which lines the calls came from. To see the line that each rank is in now, open "
    "Python Stack Traces (/stacks) of this server."
)


class JoinlabHandler(DebugHandler):
    """Answers /joinlab with one page about the job's current state."""

    def routes(self) -> list[Route]:
        return [Route("/joinlab", self._page)]

    def nav_links(self) -> list[NavLink]:
        return [NavLink("/joinlab", "joinlab")]

    def dump(self) -> str | None:
        """The verdict, which the server writes into its dump_dir."""
        from joinlab.story.judge import diagnose

        try:
            return str(diagnose(self._timeline()))
        except TimelineFileError as error:
            return str(error)

    def dump_filename(self) -> str:
        return "joinlab"

    def _page(self, request: HTTPRequestHandler) -> bytes:
        from joinlab.picture.page import page

        try:
            text = page([("The job now", self._timeline())], notes=[NO_LINES])
        except TimelineFileError as error:
            text = f"<!doctype html><meta charset='utf-8'><title>joinlab</title><p>{escape(str(error))}</p>"
        return text.encode("utf-8", "backslashreplace")

    def _timeline(self) -> Timeline:
        """The Timeline of the ranks' flight recorders now. Raises TimelineFileError if none holds a call."""
        answers = {name: fetch_all(name, timeout=self.fetch_timeout)[1] for name in ENDPOINTS}
        return timeline_of_answers(answers)


def timeline_of_answers(answers: dict[str, list[Response]]) -> Timeline:
    """The Timeline of the ranks' answers, by endpoint, in rank order.

    meta["problems"] names the ranks that did not answer. Raises TimelineFileError if no rank's recorder holds a call.
    """
    from joinlab.importers.dump import Dump, Texts, check, parsed
    from joinlab.importers.job import timeline_of

    texts = Texts()
    best: list[Dump] = []
    problems: list[str] = []
    for endpoint, responses in answers.items():
        dumps: list[Dump] = []
        for rank, answer in enumerate(responses):
            name = Path(f"{endpoint} of rank {rank}")
            if answer.status_code != 200:
                problems.append(f"{str(name)!r} could not be fetched: {answer.text[:200]}")
                continue
            try:
                dumps.append(check(name, parsed(name, answer.text.encode()), texts))
            except TimelineFileError as error:
                problems.append(str(error))
        if sum(len(one.calls) for one in dumps) > sum(len(one.calls) for one in best):
            best = dumps
    if not best:
        why = f" {problems[0]}" if problems else ""
        raise TimelineFileError(
            f"no rank's flight recorder holds a call.{why} Set TORCH_FR_BUFFER_SIZE=2000 before the job starts."
        )
    return timeline_of(best, texts, problems)


def debug_handler() -> DebugHandler:
    """The handler for torch.distributed.debug.start_debug_server, see the example at the head of this module.

    Raises LaunchError if PyTorch has no such server, or if a package that the server needs is not installed.
    """
    return JoinlabHandler()
