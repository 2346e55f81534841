"""Dumps that several processes read (jobs/parallel.py): as one process reads them, whatever becomes of the
others."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from polars.testing import assert_frame_equal

from joinlab.jobs import dump, parallel
from tests.bench.dumps import dump as long_dump
from tests.dumps import quietly, write

RANKS = 7


def job(folder: Path) -> Path:
    """Seven ranks whose dumps differ in shapes, kinds and stacks; two files cannot be read."""
    dumps = {rank: long_dump(rank, RANKS) for rank in range(RANKS)}
    for rank, content in dumps.items():
        content["entries"] = content["entries"][-40 - rank :]
        content["entries"][3] |= {"input_sizes": [[rank, 2]], "profiling_name": "nccl:broadcast"}
        content["entries"][4] |= {
            "frames": [{"name": f"f{rank}", "filename": "mine.py", "line": rank}]
        }
        content["entries"][5] |= {"frames": None}
    write(folder, dumps)
    for rank in (2, 5):
        (folder / f"nccl_trace_rank_{rank}").write_bytes(b"\x80\x02}cut")
    return folder


def split(monkeypatch: pytest.MonkeyPatch, processes: int) -> None:
    monkeypatch.setattr(parallel, "_processes", lambda files: processes)


@pytest.mark.parametrize("processes", [2, 3, RANKS])
def test_several_processes_read_what_one_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    folder = job(tmp_path)
    split(monkeypatch, 1)
    alone, alone_problems = quietly(folder)
    split(monkeypatch, processes)
    together, problems = quietly(folder)
    assert_frame_equal(together.calls, alone.calls)
    assert (together.meta, together.ends) == (alone.meta, alone.ends)
    assert problems == alone_problems
    assert sum("cannot be read" in problem for problem in problems) == 2


def test_files_of_a_process_that_dies_are_read_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = job(tmp_path)
    split(monkeypatch, 1)
    alone, alone_problems = quietly(folder)
    begin = parallel._begin

    def killed(files: Sequence[Path], stack: ExitStack) -> object:
        reader = begin(files, stack)
        assert reader is not None
        reader.kill()
        reader.wait()
        return reader

    split(monkeypatch, 3)
    monkeypatch.setattr(parallel, "_begin", killed)
    together, problems = quietly(folder)
    assert_frame_equal(together.calls, alone.calls)
    assert problems == alone_problems


def test_where_no_process_can_be_started_all_are_read_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise BlockingIOError("no more processes")

    folder = job(tmp_path)
    split(monkeypatch, 2)
    monkeypatch.setattr(parallel.subprocess, "Popen", refused)
    timeline, _ = quietly(folder)
    assert timeline.calls["rank"].n_unique() == RANKS - 2


def test_no_process_outlives_an_interrupt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(psutil.Process().children())

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    split(monkeypatch, 3)
    monkeypatch.setattr(parallel, "_outcomes", interrupted)
    files = sorted(job(tmp_path).iterdir())
    with pytest.raises(KeyboardInterrupt):
        parallel.read_all(files, dump.Texts(), [])
    assert set(psutil.Process().children()) == before


def test_small_folders_are_read_by_one_process(tmp_path: Path) -> None:
    assert parallel._processes(sorted(job(tmp_path).iterdir())) == 1
    assert parallel._processes([tmp_path / "nowhere"]) == 1
