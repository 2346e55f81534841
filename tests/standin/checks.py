"""All of `doctor --gpu` over the stand-in: does every check run to its end?

    python -m tests.standin.checks          about five minutes
    python -m tests.standin.checks job      only the checks with this word

What a check finds is that of a stand-in, so some lines are FAIL: "smallest launch" (it has no device
"cuda:0"), "not blocked" (the network lets a rank go on only when the other has asked, and that one
sleeps) and "tests" (a CPU build of torch has no ProcessGroupNCCL).
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import torch

from joinlab.launcher import gpu_checks as gpu
from tests.standin.server import standing_in

ROOT = Path(__file__).parents[2]

SITE = """
from joinlab.launcher import forkclient
from tests.standin.nccl import take_place, without_recorder
take_place()
without_recorder()
forkclient.SERVER = "tests.standin.server"
"""
"""What each Python that a check starts runs first."""


@contextmanager
def two_gpus(folder: Path) -> Iterator[None]:
    """This process, and each Python that it starts, finds the stand-in for two GPUs."""
    (folder / "sitecustomize.py").write_text(SITE)
    with (
        mock.patch.object(gpu, "DEVICE", "cpu"),
        mock.patch.object(gpu, "RECORDED", folder / gpu.RECORDED.name),
        mock.patch.object(torch.cuda, "device_count", lambda: 2),
        mock.patch.object(torch.cuda, "get_device_name", lambda number: "stand-in"),
        mock.patch.object(torch.cuda.nccl, "version", lambda: (2, 29, 7)),
        mock.patch.object(gpu.dist, "is_nccl_available", lambda: True),
        standing_in(PYTHONPATH=f"{folder}:{ROOT}"),
    ):
        yield


def main(words: list[str]) -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "gpu.json"
        with two_gpus(folder):
            gpu.check_gpus(path, words)
        done = json.loads(path.read_text())["checks"]
    wanted = [c.name for c in gpu.CHECKS if not words or any(word in c.name for word in words)]
    return int(not all(done.get(name) for name in wanted))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
