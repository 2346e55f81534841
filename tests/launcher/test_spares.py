"""Runs that wait (launcher/spares.py), where a launcher has more than one server."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pytest
import torch

import joinlab
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


def removed_logs(rank: int, inputs: Sequence[torch.Tensor]) -> list[str]:
    """The logs that this process has open and that have no name any more."""
    links = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            links.append(os.readlink(f"/proc/self/fd/{number}"))
    return [link for link in links if link.endswith("/log (deleted)")]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_rank_has_no_log_of_a_rehearsal_open() -> None:
    for _ in range(3):  # forked on demand, or ahead; then it may have rehearsed by itself
        assert joinlab.launch(removed_logs, (1, 1), on_output=None).returns == ([], [])
        time.sleep(0.3)
