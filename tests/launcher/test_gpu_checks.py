"""`doctor --gpu`: on a machine without a GPU, and over the stand-in for NCCL (tests/standin)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from joinlab.cli.main import main
from joinlab.launcher import gpu_checks as gpu
from joinlab.launcher.gpu_checks import CHECKS, FAIL, NOT_HERE, check_gpus
from tests.standin.checks import two_gpus


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_each_check_says_what_was_done_instead(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "gpu.json"
    assert main(["doctor", "--gpu", "--file", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("== ")] == [f"== {c.name}" for c in CHECKS]
    assert sum(NOT_HERE in line and "Instead: " in line for line in lines) == len(CHECKS)
    assert not path.exists()


LAUNCHED = ("smallest", "six", "values", "sends", "loaders", "two at once")
"""Checks that start no other Python."""


def test_over_the_stand_in_the_checks_run_and_go_on_where_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "gpu.json"
    monkeypatch.setattr(gpu, "COUNTS", (2,))
    told: list[str] = []
    with two_gpus(tmp_path):
        check_gpus(path, LAUNCHED, tell=told.append)
        found = json.loads(path.read_text())["checks"]
        failed = {
            name: [line for line in lines if line[0] == FAIL] for name, lines in found.items()
        }
        # It has no device "cuda:0", and runs no loader on a GPU
        assert failed.pop("smallest launch")[0][1].startswith("returned: ((2.0, 'cpu')")
        assert all(not lines for lines in failed.values()), failed
        before, told[:] = list(told), []
        monkeypatch.setattr(gpu, "launch", None)  # nothing runs again
        check_gpus(path, LAUNCHED, tell=told.append)
        assert told == before
    left = {file.name for file in tmp_path.iterdir()} - {"__pycache__"}  # of sitecustomize
    assert left == {"sitecustomize.py", path.name}


def test_results_of_another_machine_are_not_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "gpu.json"
    path.write_text(json.dumps({"format": gpu.FORMAT, "torch": "1.9", "checks": {"sends": []}}))
    monkeypatch.setattr(gpu, "_report", lambda check: [(gpu.PASS, f"{check.name} has run")])
    told: list[str] = []
    with two_gpus(tmp_path):
        assert check_gpus(path, ["sends"], tell=told.append) == 0
    assert any("PASS" in line and "has run" in line for line in told)
    report = json.loads(path.read_text())
    assert report["torch"] == torch.__version__ and len(report["checks"]) == 1


def test_facts_of_two_ranks_stay_apart_in_their_common_pipe() -> None:
    """print writes its words one by one where Python does not buffer."""
    text = gpu.SAY + "for _ in range(3000): say('rank', 0, 'reads', [2.0, 2.0])"
    read_end, write_end = os.pipe()
    ranks = [
        subprocess.Popen([sys.executable, "-u", "-c", text], stdout=write_end) for _ in range(2)
    ]
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        lines = pipe.read().splitlines()
    assert [rank.wait(60) for rank in ranks] == [0, 0]
    assert len(lines) == 6000
    assert {*lines} == {"FACT rank 0 reads [2.0, 2.0]"}


def test_what_is_recorded_over_the_stand_in_is_not_kept_with_what_is_real(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def output(words: list[str], **_: object) -> str:
        commands.append(words)
        return ""

    monkeypatch.setattr(gpu, "_output", output)
    gpu.RECORDED.relative_to(gpu.ROOT / "data")
    with two_gpus(tmp_path):
        check_gpus(tmp_path / "gpu.json", ["recordings"], tell=lambda line: None)
    assert commands[0][-2:] == ["--out", str(tmp_path / gpu.RECORDED.name)]
