"""Runs that wait (launcher/spares.py), where a launcher has more than one server."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import cast

from joinlab.launcher.forkclient import ForkServer
from joinlab.launcher.spares import Spares


def server(link: socket.socket) -> ForkServer:
    """A server that opens a run with this socket."""
    return cast(ForkServer, SimpleNamespace(open=lambda request: link))


def test_a_run_that_waits_for_another_server_is_ended_when_the_next_run_begins() -> None:
    """On a machine with GPUs, or over a stand-in, the next run may want another server."""
    spares = Spares()
    waiting, keeper = socket.socketpair()
    wanted, other_keeper = socket.socketpair()
    with waiting, keeper, wanted, other_keeper:
        spares.prepare(server(waiting), 2)
        assert spares.begin(server(wanted), {}) is wanted
        assert waiting.fileno() == -1
        assert keeper.recv(1) == b""
