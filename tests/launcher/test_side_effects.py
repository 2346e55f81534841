"""A failed launch is emulated unasked, to see where its ranks part and what mends it, unless another
run of the program would do something twice."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

import joinlab
from joinlab.story.lines import LineKind
from joinlab.timeline import Timeline


def launched(act: Callable[[], Any]) -> Timeline:
    """A launch that hangs: rank 1 acts and all-reduces, rank 0 does neither."""

    def program(rank: int, inputs: Any) -> None:
        if rank == 1:
            act()
            dist.all_reduce(torch.ones(1))
        else:
            dist.broadcast(torch.ones(1), 0)

    return joinlab.launch(program, (1, 1), "gloo", on_output=None, progress=False)


def write(path: Path) -> None:
    with path.open("a") as file:
        file.write("x")


def connect() -> None:
    with socket.socket() as client:
        client.connect_ex(("127.0.0.1", 9))


@pytest.mark.parametrize(
    ("act", "what"),
    [
        (write, "wrote a.txt"),
        (lambda path: torch.save(torch.ones(1), path), "wrote a.txt"),
        (lambda path: path.parent.joinpath("folder").mkdir(), "made a folder"),
        (lambda path: os.rename(path.parent / "old", path), "renamed a file"),
        (lambda path: connect(), "opened a socket"),
        (lambda path: subprocess.run([sys.executable, "-c", ""], check=True), "started a process"),
    ],
    ids=["open", "torch.save", "mkdir", "rename", "socket", "subprocess"],
)
def test_a_program_that_acts_outside_its_memory_is_not_run_again(
    act: Callable[[Path], Any], what: str, tmp_path: Path
) -> None:
    (tmp_path / "old").touch()
    path = tmp_path / "a.txt"
    timeline = launched(lambda: act(path))
    assert timeline.meta["side_effects"] == {1: what}
    before = sorted((entry.name, entry.stat().st_size) for entry in tmp_path.iterdir())
    story = joinlab.diagnose(timeline)
    assert story.texts(LineKind.FIX)[0].startswith("No fix was tried: joinlab.emulate(program, ")
    assert not story.of(LineKind.PARTING)
    after = sorted((entry.name, entry.stat().st_size) for entry in tmp_path.iterdir())
    assert before == after


def read_and_load() -> None:
    Path(__file__).read_text("utf-8")
    print("a line")
    list(DataLoader([1, 2, 3, 4], num_workers=1))
    import this  # noqa: F401  # whose text is cached


def test_reading_printing_and_workers_of_a_data_loader_are_no_side_effects() -> None:
    assert "side_effects" not in launched(read_and_load).meta


def test_a_failed_launch_has_its_parting_and_fix_and_says_that_they_are_emulated() -> None:
    def program(rank: int, inputs: Any) -> None:
        for index, input in enumerate(inputs):
            if rank == 1 and index == 1:
                break
            dist.all_reduce(input)

    timeline = joinlab.launch(program, (2, 2), "gloo", on_output=None, progress=False)
    copy = joinlab.diagnose(timeline, fix=False)
    assert len(copy.of(LineKind.PARTING)) == 1 and not copy.of(LineKind.FIX)
    story = joinlab.diagnose(timeline)
    emulated = joinlab.diagnose(joinlab.emulate(program, (2, 2), "gloo"))
    (parting,), (as_emulated,) = (texts.texts(LineKind.PARTING) for texts in (story, emulated))
    assert parting.removesuffix(", emulated; the emulation ended as this run did.") == (
        as_emulated.removesuffix(".")
    )
    (fix,), (as_tried,) = (texts.texts(LineKind.FIX) for texts in (story, emulated))
    assert fix == as_tried.replace("Tried: ", "Tried, emulated: ")
    assert str(joinlab.diagnose(timeline)) == str(story)


def test_where_the_emulation_ends_otherwise_nothing_is_taken_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def program(rank: int, inputs: Any) -> None:
        if rank == 1 or os.environ.get("ALL_CALL"):
            dist.all_reduce(torch.ones(1))

    monkeypatch.setenv("ALL_CALL", "1")
    whole = joinlab.launch(program, (1, 1), "gloo", on_output=None, progress=False)
    assert all(end.kind == "finished" for end in whole.ends)
    monkeypatch.delenv("ALL_CALL")
    failed = joinlab.launch(program, (1, 1), "gloo", on_output=None, progress=False)
    monkeypatch.setenv("ALL_CALL", "1")
    story = joinlab.diagnose(failed)
    assert not story.of(LineKind.PARTING)
    assert story.texts(LineKind.FIX)[0].startswith("No fix was tried")


def test_a_program_that_may_be_in_an_endless_loop_is_not_run_again() -> None:
    def program(rank: int, inputs: Any) -> None:
        while rank == 0:
            time.sleep(0.01)
        dist.barrier()

    timeline = joinlab.launch(
        program, (1, 1), "gloo", on_output=None, progress=False, no_progress=0.5
    )
    assert not any(end.proven for end in timeline.ends)
    rerun = timeline.live.rerun
    assert joinlab.diagnose(timeline).of(LineKind.FIX) == ()  # an emulation would not end, either
    assert timeline.live.rerun is rerun


@pytest.mark.parametrize("on_its_way", [False, True], ids=["in the wait", "on its way into it"])
def test_a_launch_that_gloo_itself_aborted_has_its_parting(on_its_way: bool) -> None:
    def program(rank: int, inputs: Any) -> None:
        if rank == 1:
            kind = torch.float64
        else:
            kind = torch.float32
        dist.all_reduce(torch.ones(1, dtype=kind))

    timeline = joinlab.launch(program, (1, 1), "gloo", on_output=None, progress=False)
    timeline.meta["seconds"] = 1.0
    assert [end.kind for end in timeline.ends] == ["killed", "raised"]
    # gloo's thread may abort the process before its own has recorded that it waits
    aborted = replace(timeline.ends[0], call=None, group=None) if on_its_way else timeline.ends[0]
    copy = replace(timeline, ends=(aborted, timeline.ends[1]))
    copy.live.rerun = timeline.live.rerun
    assert len(joinlab.diagnose(copy).of(LineKind.PARTING)) == 1
