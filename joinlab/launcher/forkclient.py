"""The launcher's end of the fork server: starts it on first use, begins runs on it, and ends it.

What passes over the sockets is described in forkserver.py.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO, Any

import joinlab
from joinlab.errors import LaunchError


class ForkServer:
    """The launcher's end of the fork server: one per process, started on first use, gone with it."""

    _shared: ForkServer | None = None
    _starting = threading.Lock()

    def __init__(self) -> None:
        if not hasattr(os, "fork"):
            raise LaunchError(
                "launch needs a system with fork (Linux, macOS, or Windows with WSL). On Windows itself, open a "
                "Timeline that was recorded elsewhere with joinlab.load."
            )
        self.owner = os.getpid()
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the server)
        here, there = socket.socketpair()
        self.control = here
        root = str(Path(joinlab.__file__).parent.parent)
        serve = f"from joinlab.launcher.forkserver import main; main({there.fileno()})"
        code = f"import sys; sys.path.insert(0, {root!r}); {serve}"
        with there:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", code],
                pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._errors,
                stderr=self._errors,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # no thread may run where ranks are forked
                start_new_session=True,
            )
        try:
            self.hello = self._hear_hello()
        except BaseException:
            self.close()
            raise
        atexit.register(self.close)

    @classmethod
    def get(cls) -> ForkServer:
        """The running server, or a new one."""
        with cls._starting:
            server = cls._shared
            if server is None or server.owner != os.getpid() or server.process.poll() is not None:
                server = cls._shared = cls()
            return server

    def _hear_hello(self) -> dict[str, Any]:
        with self.control.makefile("rb") as lines:
            line = lines.readline()
        hello = json.loads(line) if line else {}
        if "torch" not in hello:
            self._errors.seek(0)
            detail = hello.get("error") or self._errors.read().decode(errors="replace")
            raise LaunchError(f"the process that ranks are forked from did not start:\n{detail.strip()[-2000:]}")
        return dict(hello)

    def open(self, request: dict[str, Any]) -> socket.socket:
        """Begin a run; its socket tells how its ranks end, and closing it ends them."""
        here, there = socket.socketpair()
        try:
            with there:
                socket.send_fds(self.control, [b"r"], [there.fileno()])
            here.sendall(json.dumps(request).encode() + b"\n")
        except OSError as error:
            here.close()
            type(self)._shared = None
            raise LaunchError(f"the process that ranks are forked from is gone ({error}); call launch again") from error
        return here

    def close(self) -> None:
        """End the server, and with it every run."""
        if self.owner != os.getpid():
            return
        self.control.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._errors.close()
