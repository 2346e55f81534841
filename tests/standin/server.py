"""The fork server whose ranks find the stand-in in NCCL's place, and `standing_in` for tests that
launch on it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from joinlab.launcher import forkclient
from joinlab.launcher.forkclient import ForkServer
from joinlab.launcher.spares import SPARES
from tests.standin.network import Network, network

PATH = "JOINLAB_TEST_NETWORK"


@contextmanager
def standing_in(version: str = "", **environ: str) -> Iterator[Network]:
    """Within it, launch finds two GPUs; `version` is of the PyTorch whose NCCL is stood in for."""
    environ |= {"JOINLAB_TEST_PYTORCH": version} if version else {}
    with (
        network() as opened,
        mock.patch.dict(os.environ, {PATH: opened.path, **environ}),
        mock.patch.object(forkclient, "SERVER", __name__),
        mock.patch.object(ForkServer, "_shared", {}),
    ):
        try:
            yield opened
        finally:
            SPARES.close()
            for server in [*ForkServer._shared.values()]:
                server.close(kill=True)


def main(control_fd: int, launcher: int, warm: bool) -> None:
    from joinlab.launcher import forkserver
    from tests.standin.nccl import take_place

    take_place()
    forkserver.main(control_fd, launcher, warm)
