"""The view that follows a recorded job: it grows with the folder, shows the job's state, and
stops."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import joinlab
from joinlab.errors import TimelineFileError
from joinlab.jobs.follow import Following
from joinlab.story.judge import diagnose
from tests.handmade_logs import begin, call, write

OVER = '{"e":"return"}\n'


def add(folder: Path, rank: int, text: str) -> None:
    with (folder / f"rank-{rank}.0.jsonl").open("a") as file:
        file.write(text)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two ranks of another host: whether they are alive is not known here."""
    for rank in (0, 1):
        write(tmp_path, rank, begin(rank, 2) + call(0, 1500, 1600))
    return tmp_path


@pytest.fixture
def view(folder: Path) -> Iterator[Following]:
    made = joinlab.follow(folder, every=0, still=1e9)
    yield made
    made.close()


def test_it_grows_with_the_folder_and_ends_with_the_job(folder: Path, view: Following) -> None:
    assert (view.timeline.calls.height, view.heading) == (2, "The job is running.")
    assert not view.look()
    add(folder, 0, call(1, 1700, None))
    assert view.look()
    assert view.timeline.calls.height == 3
    add(folder, 0, OVER)
    add(folder, 1, call(1, 1700, 1800) + OVER)
    view.look()
    assert view.heading == "The job is over."
    assert not view.following
    assert not view.look()


def test_the_verdict_appears_when_the_job_has_stalled(folder: Path) -> None:
    view = joinlab.follow(folder, still=0)
    assert view.heading == "The job is running."  # no call is open: it computes
    add(folder, 0, call(1, 1700, None))
    view.look()
    assert view.heading == "The job has stalled."
    # the verdict below the heading says why
    assert "Rank 1 keeps rank 0 waiting" in diagnose(view.timeline).sentence
    view.close()


def test_it_follows_from_the_event_loop_until_it_is_closed(folder: Path) -> None:
    async def cell() -> None:
        view = joinlab.follow(folder, every=0)
        grown = asyncio.Event()
        view.observe(lambda change: grown.set(), "timeline")
        add(folder, 0, call(1, 1700, None))
        await asyncio.wait_for(grown.wait(), 60)
        assert view.timeline.calls.height == 3
        again = joinlab.follow(folder, every=0)  # the cell runs again
        assert (view.following, again.following) == (False, True)
        again.close()
        assert not again.following
        assert not [one for one in asyncio.all_tasks() if one is not asyncio.current_task()]

    asyncio.run(cell())


@pytest.mark.parametrize(
    ("error", "said"), [(KeyboardInterrupt(), "interrupted"), (None, "no rank was recorded")]
)
def test_what_goes_wrong_stops_it_and_not_the_kernel(
    folder: Path,
    view: Following,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException | None,
    said: str,
) -> None:
    def fails() -> bool:
        raise error or TimelineFileError("no rank was recorded")

    monkeypatch.setattr(view.recorded, "refresh", fails)
    view._tick()
    assert view.heading.startswith("No longer following: ")
    assert said in view.heading
    assert not view.following


def test_a_folder_that_is_removed_is_followed_no_more(folder: Path, view: Following) -> None:
    shutil.rmtree(folder)
    view._tick()
    assert view.heading.startswith("No longer following: ")


def test_a_folder_without_a_rank_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TimelineFileError, match="it has no record of a rank"):
        joinlab.follow(tmp_path)
    with pytest.raises(TimelineFileError, match=r"there is no folder .* yet: start the job"):
        joinlab.follow(tmp_path / "runs")
