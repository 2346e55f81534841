"""Calls a function in another process, which is killed if the function does not return.

A thread in a long C call, such as sum(range(10**12)), holds the GIL, so nothing in its own process
can end it. The other process is forked from the launcher's fork server, serves several calls, and
ends with this process.
"""

from __future__ import annotations

import atexit
import faulthandler
import json
import linecache
import os
import re
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import cloudpickle

from joinlab.interrupts import LOOK_S, HeldInterrupts, take_interrupt
from joinlab.launcher import descendants
from joinlab.launcher.forkclient import CALLS, TAKE_S, ForkServer, pickled
from joinlab.launcher.frames import receive, send
from joinlab.program.labels import owner_of
from joinlab.program.program import current_folder
from joinlab.program.sources import know_cells, texts_of_cells

SECONDS = 10
"""A process that runs no line of Python for this long is ended."""

KEPT_S = 5.0
"""A process is reused if its call returned within this time; a longer call may have left busy
threads."""


class Lost(Exception):
    """The process ended without a result; the message gives the reason and the line that it was
    at."""


END = b"\x00\n"
"""Marks the end of a result."""


def call_isolated(
    function: Callable[..., object], *arguments: object, name: str, seconds: float
) -> Any:
    """Return `function(*arguments)` from another process; the result must be JSON data.

    name     what an error calls the arguments if they cannot be sent
    seconds  longest time until the result

    Raises Lost if the process ends first, ProgramError if the arguments cannot be sent, and
    KeyboardInterrupt if the cell is interrupted.
    """
    call = pickled((function, arguments), name)
    request = {
        "call": call,
        "path": list(map(str, sys.path)),
        "cwd": current_folder(),
        "cells": texts_of_cells(call),
        "seconds": SECONDS,
    }
    with HeldInterrupts():
        answer = _hear(_sent(request), seconds)
    if answer.endswith(END.decode()):
        return json.loads(answer.removesuffix(END.decode()))
    raise Lost(_why(answer, seconds))


_kept: socket.socket | None = None


@atexit.register
def leave() -> None:
    """End the process that waits for the next call, if there is one."""
    if _kept is not None:
        _kept.close()


def _sent(request: dict[str, object]) -> socket.socket:
    """Send the request to the kept process or to a new one, and return its socket."""
    global _kept
    link, _kept = _kept, None
    # readable: it has ended
    if link is None or link.fileno() < 0 or select.select([link], [], [], 0)[0]:
        return ForkServer.get().open(request, CALLS)
    send(link, request)
    return link


def _hear(link: socket.socket, seconds: float) -> str:
    """Everything that the process writes. Kills the process unless it writes a result."""
    global _kept
    begun, data = time.monotonic(), b""
    try:
        while not data.endswith(END) and time.monotonic() < begun + seconds:
            if select.select([link], [], [], LOOK_S)[0]:
                more = link.recv(1 << 16)
                if not more:
                    break
                data += more
            take_interrupt()
    finally:
        link.settimeout(TAKE_S)
        with suppress(OSError):
            while b"\n" not in data and (more := link.recv(64)):  # the pid comes first
                data += more
        link.settimeout(None)
        pid, _, rest = data.partition(b"\n")
        if data.endswith(END) and time.monotonic() < begun + KEPT_S:
            _kept = link
        else:
            link.close()
            if pid:
                descendants.send(int(pid), signal.SIGKILL)
    return rest.decode(errors="replace")


def _why(answer: str, seconds: float) -> str:
    """Why there is no result: a sentence made from faulthandler's output."""
    frames = re.findall(r'File "(.*)", line (\d+) in ', answer)
    own = [(file, int(line)) for file, line in frames if owner_of(file) == "program"]
    if own:
        where = f', at "{linecache.getline(*own[0]).strip()}"'
    else:
        where = ""
    if answer.startswith("Timeout"):
        return (
            f"it computes for more than {SECONDS} s in one call that cannot be interrupted{where}."
        )
    if answer.startswith("could not start a process"):
        return f"{answer}. Too many processes run for this user."
    fatal = re.match(r"Fatal Python error: (.*)", answer)
    if fatal:
        return f"it crashes Python ({fatal[1]}){where}."
    return f"it ended its process, or did not return within {seconds:.0f} s."


# ---- in the other process


def answer(link: socket.socket) -> None:
    """Serve the calls that come over the socket, until it closes."""
    descendants.die_with_parent()
    faulthandler.enable(link.fileno())
    while True:
        try:
            request = receive(link)
        except EOFError:
            return
        link.sendall(f"{os.getpid()}\n".encode())
        sys.path[:] = request["path"]
        os.chdir(request["cwd"])
        know_cells(request["cells"])
        returned = threading.Event()
        watch = threading.Thread(
            target=_watch, args=(link.fileno(), returned, request["seconds"]), daemon=True
        )
        watch.start()
        function, arguments = cloudpickle.loads(request["call"])
        result = json.dumps(function(*arguments))
        returned.set()
        watch.join()
        faulthandler.cancel_dump_traceback_later()
        link.sendall(result.encode() + END)


def _watch(fd: int, returned: threading.Event, seconds: float) -> None:
    """Restart faulthandler's timer as long as Python lets this thread run."""
    while not returned.is_set():
        faulthandler.dump_traceback_later(seconds, exit=True, file=fd)
        returned.wait(seconds / 10)
