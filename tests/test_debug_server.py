"""The tab in PyTorch's debug server, for a real job of two ranks that hangs in case 4."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

import psutil
import pytest

from joinlab.errors import TimelineFileError
from tests.parallel_jobs import draw, dumps

pytest.importorskip("tabulate")

from torch.distributed.debug._frontend import Response

from joinlab.debug_server import ENDPOINTS, NO_LINES, timeline_of_answers

ROOT = Path(__file__).parent.parent
JOB = """
import sys, torch, torch.distributed as dist, joinlab
from torch.distributed.debug import start_debug_server
from torch.distributed.debug._debug_handlers import default_handlers
from torch.nn.parallel import DistributedDataParallel as DDP

if __name__ == "__main__":
    dist.init_process_group("gloo")
    handlers = [*default_handlers(), joinlab.debug_handler()]
    start_debug_server(port=int(sys.argv[1]), handlers=handlers, start_method="spawn")
    model = DDP(torch.nn.Linear(4, 4))
    with model.join():
        for _ in range(3 + dist.get_rank()):
            model(torch.ones(2, 4)).sum().backward()
            dist.barrier()
"""


@pytest.fixture(scope="module")
def port() -> int:
    try:
        with socket.socket(socket.AF_INET6) as free:
            free.bind(("::", 0))
            return int(free.getsockname()[1])
    except OSError:
        pytest.skip("PyTorch's debug server listens on IPv6, which is not here")


@pytest.fixture(scope="module")
def hung(tmp_path_factory: pytest.TempPathFactory, port: int) -> Iterator[str]:
    """The address of the server of a job that hangs; its tab says so."""
    tmp_path = tmp_path_factory.mktemp("hung")
    (tmp_path / "job.py").write_text(JOB)
    environment = {**os.environ, "TORCH_FR_BUFFER_SIZE": "2000", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    with subprocess.Popen(
        [*command, "job.py", str(port)], cwd=tmp_path, env=environment, stderr=subprocess.PIPE
    ) as process:
        try:
            address, text = f"http://[::1]:{port}", ""
            # Until the server is there and the job hangs; pytest's timeout ends it.
            while "Rank 0 called all-reduce, where rank 1 called barrier." not in text:
                assert process.poll() is None, process.stderr and process.stderr.read()
                try:
                    with urllib.request.urlopen(f"{address}/joinlab", timeout=60) as answer:
                        text = answer.read().decode()
                except (OSError, HTTPException):
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(0.1)
            yield address
        finally:
            for one in [*psutil.Process(process.pid).children(recursive=True), process]:  # torchrun's have own sessions
                one.kill()


@pytest.mark.slow
@pytest.mark.browser
def test_a_job_that_hangs_says_so_in_its_tab(hung: str) -> None:
    with urllib.request.urlopen(hung, timeout=60) as answer:
        assert '<a href="/joinlab">joinlab</a>' in answer.read().decode()


@pytest.mark.slow
@pytest.mark.browser
def test_the_tab_draws_the_lanes_in_a_browser(hung: str, browser: Any) -> None:
    from tests.browser import watched

    with watched(browser, [hung], ignored=["404"]) as page:
        page.goto(f"{hung}/joinlab")  # PyTorch's own pages ask for an icon on pytorch.org
        said = page.get_by_text("Rank 0 called all-reduce, where rank 1 called barrier.").filter(visible=True)
        said.first.wait_for()
        assert page.get_by_text(NO_LINES).count() == 1
        if folder := os.environ.get("JOINLAB_SHOTS"):
            page.screenshot(path=f"{folder}/debug_server.png", full_page=True)
        for lane in ("rank 0", "rank 1"):
            page.get_by_text(lane).filter(visible=True).first.wait_for()


def answers(content: dict[int, object]) -> list[Response]:
    return [Response(200, json.dumps(content[rank])) for rank in sorted(content)]


def test_the_recorder_that_holds_more_calls_is_read_and_a_rank_that_does_not_answer_is_named() -> None:
    found = answers(dict(dumps(draw(7))))
    empty = [Response(200, json.dumps({"version": "2.10", "pg_config": {}, "entries": []}))] * len(found)
    found[1] = Response(408, "Timeout: no answer in 60 s")
    timeline = timeline_of_answers({ENDPOINTS[0]: empty, ENDPOINTS[1]: found})
    assert timeline.meta["missing_ranks"] == [1]
    assert any("Timeout: no answer in 60 s" in problem for problem in timeline.meta["problems"])
    assert timeline.calls.height > 0


def test_recorders_that_are_switched_off_say_what_to_set() -> None:
    with pytest.raises(TimelineFileError, match="TORCH_FR_BUFFER_SIZE=2000"):
        timeline_of_answers({ENDPOINTS[0]: [Response(404, "not found")] * 2})
