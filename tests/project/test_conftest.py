"""What all tests share: see conftest.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

TAKES_A_WHILE = """
import json, time
from pathlib import Path
import pytest
from tests.conftest import one_gpu_test_at_a_time

@pytest.mark.gpu
def test_alone():
    began = time.monotonic()
    time.sleep(0.5)
    Path(__file__).with_suffix(".json").write_text(json.dumps([began, time.monotonic()]))
"""


def test_two_workers_take_turns_on_the_gpus(tmp_path: Path) -> None:
    for name in ("test_one", "test_other"):
        (tmp_path / f"{name}.py").write_text(TAKES_A_WHILE)
    words = ["-p", "no:nbmake", "-p", "no:cacheprovider", "--numprocesses=2", "--dist=loadfile"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTEST_ADDOPTS": "", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    first, second = sorted(json.loads(path.read_text()) for path in tmp_path.glob("*.json"))
    assert first[1] <= second[0]
