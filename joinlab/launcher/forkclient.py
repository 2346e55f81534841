"""The launcher's end of the fork server: starts it on first use, begins runs on it, and ends it.

forkserver.py and keeper.py describe the messages on the sockets.
"""

from __future__ import annotations

import atexit
import ctypes
import io
import json
import operator
import os
import random
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
import weakref
from pathlib import Path
from typing import Any, ClassVar

import cloudpickle
import numpy as np

from joinlab.errors import LaunchError, ProgramError
from joinlab.interrupts import LOOK_S, take_interrupt
from joinlab.launcher.frames import receive, send
from joinlab.program.program import current_folder
from joinlab.program.sources import texts_of_cells

ROOT = Path(__file__).parents[2]
"""The folder of the package: first on the server's path, in whatever folder the server starts."""

SERVER = "joinlab.launcher.forkserver"
"""The module whose `main` the server runs."""

START_S = 120.0
"""Longest time for the server to import torch."""
TAKE_S = 10.0
"""A server that does not accept a request within this time has been stopped from outside."""
LEAVE_S = 15.0
"""A server that ends later than this after close() is killed; it gives its keepers 10 s."""

RUN, CALLS, COUNT = b"r", b"c", b"n"
"""The kind of process forked for a request: the keeper of a run, a process that serves calls, or
one that counts GPUs."""

CHOOSES_GPUS = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES")
"""Environment variables that decide which GPUs a process sees."""


class ForkServer:
    """The launcher's end of the fork server: one per process, started on first use, ended with the
    process."""

    _shared: ClassVar[dict[bool, ForkServer]] = {}
    _starting = threading.Lock()

    def __init__(self, warm: bool = True) -> None:
        if not hasattr(os, "fork"):
            raise LaunchError(
                "launch needs a system with fork (Linux, macOS, or Windows with WSL). On Windows itself, open a "
                "Timeline that was recorded elsewhere with joinlab.load."
            )
        self.owner = os.getpid()
        self._counted: tuple[dict[str, str], dict[str, object]] | None = None
        self.warm = warm
        try:
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed by close()
        except OSError as error:
            raise LaunchError(no_temporary_folder(error)) from error
        ours, server_end = map(_above_streams, socket.socketpair())
        self.control = ours
        self._ready = threading.Lock()
        serve = f"from {SERVER} import main; main({server_end.fileno()}, {self.owner}, {warm})"
        code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); {serve}"
        try:
            with server_end:
                self.process = subprocess.Popen(
                    [sys.executable, "-P", "-c", code],
                    pass_fds=[server_end.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=self._errors,
                    stderr=self._errors,
                    # a process that forks must have no other thread
                    env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
                    start_new_session=True,
                )
        except BaseException as error:
            ours.close()
            self._errors.close()
            if isinstance(error, OSError):
                size = sum(len(name) + len(value) + 2 for name, value in os.environ.items())
                raise LaunchError(
                    f"the process that ranks are forked from could not be started: {error.strerror}. The environment "
                    f"has {size:,} bytes; systems allow about 2,000,000, and 130,000 in one variable."
                ) from error
            raise
        self._hello: dict[str, object] = {}
        _SERVERS.add(self)
        atexit.register(self.close)

    @classmethod
    def get(cls, warm: bool = True) -> ForkServer:
        """The running server, or a new one, once it is ready. `warm`: see forkserver.py."""
        server = cls.start(warm)
        try:
            server.wait_until_ready()
        except BaseException:
            server.close(kill=True)
            raise
        return server

    @classmethod
    def start(cls, warm: bool = True) -> ForkServer:
        """The running server, or a new one, which may not be ready yet."""
        while not cls._starting.acquire(timeout=LOOK_S):  # another thread starts it
            take_interrupt()
        try:
            server = cls._shared.get(warm)
            if server is not None and (
                server.owner != os.getpid() or server.process.poll() is not None
            ):
                server.close()
                server = None
            if server is None:
                server = cls._shared[warm] = cls(warm)
            return server
        finally:
            cls._starting.release()

    @classmethod
    def running(cls) -> list[ForkServer]:
        """The servers of this process that live."""
        return [server for server in cls._shared.values() if server.process.poll() is None]

    @property
    def hello(self) -> dict[str, object]:
        """What the server has said of this machine."""
        self.wait_until_ready()
        return self._hello

    def wait_until_ready(self) -> None:
        """Return once the server can fork. LaunchError if it cannot."""
        with self._ready:
            if not self._hello:
                self._hello = self._hear_hello()

    def _hear_hello(self) -> dict[str, object]:
        give_up = time.monotonic() + START_S
        while not select.select([self.control], [], [], LOOK_S)[0]:
            take_interrupt()
            if time.monotonic() > give_up:
                raise LaunchError(
                    f"the process that ranks are forked from did not start within {START_S:g} s"
                )
        with self.control.makefile("rb") as lines:
            line = lines.readline()
        hello = json.loads(line) if line else {}
        if "torch" not in hello:
            self._errors.seek(0)
            detail = hello.get("error") or self._errors.read().decode(errors="replace")
            lines_said = detail.strip().splitlines() or ["it ended without a message"]
            raise LaunchError(
                f"the process that ranks are forked from did not start: {lines_said[-1][-500:]}. "
                "It imports torch: check "
                f'whether {sys.executable} -c "import torch" works here.'
            )
        return dict(hello)

    def machine(self) -> dict[str, object]:
        """{"gpus": how many a rank would see now, "nccl": NCCL's version, None without a GPU}.

        A process of their own counts them: where torch cannot ask NVML (no library, MIG slices) it
        initializes CUDA, after which no rank could be forked.
        """
        chosen = {name: os.environ[name] for name in CHOOSES_GPUS if name in os.environ}
        if not self.hello["nccl"]:
            return {"gpus": 0, "nccl": None}
        if self._counted is None or self._counted[0] != chosen:
            with self.open(chosen, COUNT) as link:
                try:
                    counted = receive(link)
                except EOFError:
                    counted = {"error": "no answer"}
            if "error" in counted:
                raise LaunchError(
                    f"the GPUs of this machine could not be counted: {counted['error']}"
                )
            self._counted = chosen, counted
        return self._counted[1]

    def open(self, request: object, kind: bytes = RUN) -> socket.socket:
        """Begin a run, or a process for calls, and return its socket; closing the socket ends the
        processes."""
        ours, server_end = socket.socketpair()
        try:
            with server_end:
                socket.send_fds(self.control, [kind], [server_end.fileno()])
            ours.settimeout(TAKE_S)
            send(ours, request)
            ours.settimeout(None)
        except OSError as error:
            ours.close()
            self.close(kill=True)
            raise LaunchError(
                f"the process that ranks are forked from is gone ({error}); call launch again"
            ) from error
        except BaseException:
            ours.close()
            raise
        _LINKS.add(ours)
        return ours

    def close(self, kill: bool = False) -> None:
        """End the server and all runs. `kill` it at once: its keepers then end by themselves."""
        if type(self)._shared.get(self.warm) is self:
            del type(self)._shared[self.warm]
        self.control.close()
        self._errors.close()
        atexit.unregister(self.close)
        if self.owner != os.getpid():
            return
        if kill:
            self.process.kill()
        try:
            self.process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


_SERVERS: weakref.WeakSet[ForkServer] = weakref.WeakSet()
_LINKS: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def _forget_in_child() -> None:
    """Close the sockets of all runs in a forked child of the launcher: an open copy would keep the
    runs alive."""
    for server in list(_SERVERS):
        server.close()
    for link in list(_LINKS):
        link.close()
    ForkServer._starting = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)


def _above_streams(link: socket.socket) -> socket.socket:
    """The same socket with a descriptor above 2: if a standard stream is closed, the socket may
    have got its number."""
    if link.fileno() > 2:
        return link
    import fcntl  # here, since Windows lacks it and gets an error message instead

    with link:
        return socket.socket(fileno=fcntl.fcntl(link.fileno(), fcntl.F_DUPFD_CLOEXEC, 3))


def no_temporary_folder(error: OSError) -> str:
    return (
        f"launch keeps a run's files in a temporary folder, and none can be used: {error.strerror or error}. Set "
        "TMPDIR to a writable folder."
    )


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle, and what it would send otherwise than a program means it: classes of ctypes that
    were typed into a notebook, whose fields are descriptors that no pickler can send, and the
    generators behind `random` and `numpy.random`, of which each rank has its own."""

    def reducer_override(self, obj: object) -> Any:
        if obj is random._inst:  # behind `from random import random`
            return getattr, (random, "_inst")
        if obj is np.random.mtrand._rand:
            return getattr, (np.random.mtrand, "_rand")
        if isinstance(obj, type) and obj.__module__ == "__main__":
            if issubclass(obj, ctypes.Array):  # c_uint8 * 4 is of the module that multiplies
                return operator.mul, (obj._type_, obj._length_)
            if issubclass(obj, (ctypes.Structure, ctypes.Union)):
                return types.new_class, (obj.__name__, obj.__bases__, None, _Fill(obj))
        return super().reducer_override(obj)


class _Fill:
    """Fills the namespace from which ctypes makes a class again: `_fields_`, methods, constants."""

    def __init__(self, structure: type) -> None:
        made_by_python = ("__dict__", "__weakref__")
        self._namespace = {
            name: value
            for name, value in vars(structure).items()
            if name not in made_by_python and type(value).__name__ != "CField"
        }

    def __call__(self, namespace: dict[str, object]) -> None:
        namespace.update(self._namespace)


def pickled(sent: object, name: str) -> bytes:
    """`sent` as bytes for another process. Raises ProgramError, which names the program `name`."""
    buffer = io.BytesIO()
    try:
        _Pickler(buffer).dump(sent)
        return buffer.getvalue()
    except Exception as error:
        raise ProgramError(
            f"{name} cannot be sent to another process ({type(error).__name__}: {error}). It refers to something "
            "tied to this process, such as an open file, a lock or a process group: create that inside the program."
        ) from error


def rank_request(sent: bytes, name: str) -> dict[str, object]:
    """What a rank needs of this process to run a program of this name: that, pickled, and where it
    runs."""
    return {
        "program": sent,
        "name": name,
        "environ": dict(os.environ),
        # some programs add a Path, which Python ignores
        "path": list(map(str, sys.path)),
        "cwd": current_folder(),
        "cells": texts_of_cells(sent),
    }
