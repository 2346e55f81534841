"""Calls a function in another process, which is killed where the function does not return.

A thread inside one call of C, such as sum(range(10**12)), keeps Python's lock, and nothing in its own process can end
it. Here the process is forked from the launcher's fork server, kept from one call to the next, and ends with this one.
"""

from __future__ import annotations

import atexit
import base64
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
from joinlab.program.labels import kind_of
from joinlab.program.program import current_folder
from joinlab.program.sources import know_cells, texts_of_cells

SECONDS = 10
"""Seconds after which a process is ended in which no line of Python was run."""

KEPT_S = 5.0
"""A process is kept if it returned within that time; one that took longer may have left threads that compute."""


class Lost(Exception):
    """The process ended without a result; the message says why, and at which line it was."""


END = b"\x00\n"
"""Behind a result."""


def apart(function: Callable[..., Any], *arguments: Any, name: str, seconds: float) -> Any:
    """What `function(*arguments)` returns in another process: plain data, as JSON has it.

    name     of the arguments, if they cannot be sent
    seconds  when the process is ended at the latest

    Raises Lost if the process ends before, ProgramError for what cannot be sent to it, and KeyboardInterrupt when the
    cell is interrupted.
    """
    call = pickled((function, arguments), name)
    request = {
        "call": base64.b64encode(call).decode(),
        "path": [str(entry) for entry in sys.path],
        "cwd": current_folder(),
        "cells": texts_of_cells(call),
        "seconds": SECONDS,
    }
    with HeldInterrupts():
        said = _hear(_sent(request), seconds)
    if said.endswith(END.decode()):
        return json.loads(said.removesuffix(END.decode()))
    raise Lost(_why(said, seconds))


_kept: socket.socket | None = None


@atexit.register
def leave() -> None:
    """End the process that is kept, if there is one."""
    if _kept is not None:
        _kept.close()


def _sent(request: dict[str, Any]) -> socket.socket:
    """The socket of the process that has the request: the one that is kept, or a new one."""
    global _kept
    link, _kept = _kept, None
    if link is None or link.fileno() < 0 or select.select([link], [], [], 0)[0]:  # it has ended meanwhile
        return ForkServer.get().open(request, CALLS)
    link.sendall(json.dumps(request).encode() + b"\n")
    return link


def _hear(link: socket.socket, seconds: float) -> str:
    """All that the process says. It is killed unless that ends with a result."""
    global _kept
    begun, said = time.monotonic(), b""
    try:
        while not said.endswith(END) and time.monotonic() < begun + seconds:
            if select.select([link], [], [], LOOK_S)[0]:
                if not (more := link.recv(1 << 16)):
                    break
                said += more
            take_interrupt()
    finally:
        link.settimeout(TAKE_S)
        with suppress(OSError):
            while b"\n" not in said and (more := link.recv(64)):  # its pid, which it says first
                said += more
        link.settimeout(None)
        pid, _, rest = said.partition(b"\n")
        if said.endswith(END) and time.monotonic() < begun + KEPT_S:
            _kept = link
        else:
            link.close()
            if pid:
                descendants.send(int(pid), signal.SIGKILL)
    return rest.decode(errors="replace")


def _why(said: str, seconds: float) -> str:
    """Why there is no result: what faulthandler said, in a sentence."""
    frames = re.findall(r'File "(.*)", line (\d+) in ', said)
    own = [(file, int(line)) for file, line in frames if kind_of(file) == "program"]
    place = f', at "{linecache.getline(*own[0]).strip()}"' if own else ""
    if said.startswith("Timeout"):
        return f"it computes for more than {SECONDS} s in one call that nothing interrupts{place}."
    if fatal := re.match(r"Fatal Python error: (.*)", said):
        return f"it crashes Python ({fatal[1]}){place}."
    return f"it ended its process, or did not return within {seconds:.0f} s."


# ---- in the other process


def answer(link: socket.socket) -> None:
    """Call what the socket asks for, until it ends."""
    descendants.die_with_parent()
    faulthandler.enable(link.fileno())
    with link.makefile("rb") as lines:
        for line in lines:
            link.sendall(f"{os.getpid()}\n".encode())
            request = json.loads(line)
            sys.path[:] = request["path"]
            os.chdir(request["cwd"])
            know_cells(request["cells"])
            returned = threading.Event()
            watch = threading.Thread(target=_watch, args=(link.fileno(), returned, request["seconds"]), daemon=True)
            watch.start()
            function, arguments = cloudpickle.loads(base64.b64decode(request["call"]))
            result = json.dumps(function(*arguments))
            returned.set()
            watch.join()
            faulthandler.cancel_dump_traceback_later()
            link.sendall(result.encode() + END)


def _watch(fd: int, returned: threading.Event, seconds: float) -> None:
    """Set the alarm anew as long as Python lets this thread run."""
    while not returned.is_set():
        faulthandler.dump_traceback_later(seconds, exit=True, file=fd)
        returned.wait(seconds / 10)
