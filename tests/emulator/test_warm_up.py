"""Ending an emulation (timeout=, Ctrl-C) never interrupts an import, and leaves no thread of a rank
behind."""

from __future__ import annotations

import _thread
import subprocess
import sys
import threading
import time

import pytest

from joinlab import emulate
from joinlab.emulator.run import Emulation
from joinlab.emulator.scheduler import GRACE_S, Baton, RankThread, one_at_a_time
from joinlab.errors import LaunchError, LaunchInterrupted
from joinlab.interrupts import Background, import_whole
from joinlab.timeline import EndKind
from tests.nightly import sampled

FIRST = """
import _thread, sys, threading, joinlab
delay, timeout = map(float, sys.argv[1:])
if delay:
    threading.Timer(delay, _thread.interrupt_main).start()
try:
    try:
        joinlab.emulate(joinlab.cases.case_4, (2, 3), timeout=timeout)
    finally:
        while delay and threading.active_count() > 1:  # the interrupt may still be to come
            [thread.join() for thread in threading.enumerate() if thread is not threading.current_thread()]
except KeyboardInterrupt:
    pass
second = joinlab.emulate(joinlab.cases.case_4, (2, 3))
print([str(end) for end in second.ends])
"""


@pytest.mark.parametrize(
    ("interrupt", "timeout"), sampled([("0", "0.2"), ("1.2", "60")], ("1.2", "60").__eq__)
)
def test_in_a_fresh_process_neither_a_timeout_nor_an_interrupt_breaks_what_comes_after(
    interrupt, timeout
):
    command = [sys.executable, "-c", FIRST, interrupt, timeout]  # when each comes, in seconds
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == "['finished', 'hung (proven)']\n", done.stderr


def test_every_thread_waits_for_one_loading():
    code = (
        "import sys, threading\n"
        "from joinlab.emulator.warm_up import warm_up\n"
        "assert 'torch' not in sys.modules\n"
        "loads = threading.Thread(target=warm_up)\n"
        "loads.start()\n"
        "import joinlab\n"
        "timeline = joinlab.emulate(lambda rank, inputs: 'torch._dynamo' in sys.modules, (1, 1))\n"
        "loads.join()\n"
        "warm_up()\n"
        "print(timeline.returns)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "(True, True)\n", done.stderr


def test_an_import_that_fails_is_tried_again():
    tries = []

    def fails_once():
        tries.append(1)
        if len(tries) == 1:
            raise ModuleNotFoundError("no such package")

    work = Background(fails_once)
    with pytest.raises(ModuleNotFoundError, match="no such package"):
        work.wait()
    assert not work.over
    work.wait()
    work.wait()
    assert work.over and len(tries) == 2


def test_an_import_within_an_import_does_not_wait_for_it(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "outer_one.py").write_text(
        "from joinlab.interrupts import import_whole\nimport_whole('inner_one')\n"
    )
    (tmp_path / "inner_one.py").write_text("found = 7\n")
    import_whole("outer_one")
    assert sys.modules["inner_one"].found == 7


def test_a_rank_is_not_ended_inside_an_import(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "slow_one.py").write_text(
        "for count in range(1_000_000):\n    pass\nwhole = True\n"
    )

    def program(rank, inputs):
        import slow_one

        while slow_one.whole:
            pass

    timeline = emulate(program, (1, 1), timeout=0.02)
    assert [end.kind for end in timeline.ends] == [EndKind.KILLED] * 2
    assert sys.modules["slow_one"].whole


BEFORE: set[threading.Thread] = set()
"""The threads that other tests left, such as an answer to an exercise that never returns."""


@pytest.fixture(autouse=True)
def _others() -> None:
    BEFORE.clear()
    BEFORE.update(threading.enumerate())


def ranks_alive() -> list[str]:
    return [
        one.name
        for one in threading.enumerate()
        if one.name.startswith("rank ") and one not in BEFORE
    ]


def endless(rank, inputs):
    while True:
        pass


@pytest.mark.parametrize("gap", [0.0, 0.01, 0.1, 0.3])
def test_a_second_interrupt_leaves_no_rank_behind(gap):
    def program(rank, inputs):
        threading.Timer(gap, _thread.interrupt_main).start()
        _thread.interrupt_main()
        while True:
            pass

    with pytest.raises(KeyboardInterrupt) as caught:
        try:
            emulate(program, (1, 1), timeout=20)
        finally:
            for second in threading.enumerate():
                if isinstance(second, threading.Timer):
                    second.join()  # the second interrupt may come when the emulation is over
    first = (
        caught.value if isinstance(caught.value, LaunchInterrupted) else caught.value.__context__
    )
    assert ranks_alive() == []
    assert [end.text for end in first.timeline.ends] == ["interrupted by the user"] * 2
    assert emulate(lambda rank, inputs: rank, (1, 1)).returns == (0, 1)


def test_an_interrupt_while_the_timeline_is_made_does_not_lose_it(monkeypatch):
    make = Emulation._timeline

    def interrupted(emulation):
        _thread.interrupt_main()
        return make(emulation)

    def program(rank, inputs):
        _thread.interrupt_main()
        while True:
            pass

    monkeypatch.setattr(Emulation, "_timeline", interrupted)
    with pytest.raises(LaunchInterrupted) as caught:
        emulate(program, (1, 1), timeout=20)
    assert [end.text for end in caught.value.timeline.ends] == ["interrupted by the user"] * 2


@pytest.mark.parametrize("when", [0, 1, 2])
def test_an_interrupt_while_threads_start_leaves_no_rank_behind(monkeypatch, when):
    start, count = threading.Thread.start, iter(range(100))

    def interrupted(thread):
        start(thread)
        if thread.name.startswith("rank ") and next(count) == when:
            _thread.interrupt_main()

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(LaunchInterrupted) as caught:
        emulate(endless, (1, 1, 1), timeout=20)
    assert ranks_alive() == []
    assert [end.kind for end in caught.value.timeline.ends] == [EndKind.KILLED] * 3


def test_the_deadline_ends_a_rank_that_has_not_had_its_first_turn():
    """Handing it that turn takes longer here than the emulator waits between two interrupts."""

    def switched(old, new):
        if new == 1:
            time.sleep(3 * GRACE_S)

    def began():
        had_a_turn.append(1)

    had_a_turn: list[int] = []
    ranks = [RankThread(0, 0, lambda: endless(0, ())), RankThread(1, 1, began)]
    with one_at_a_time():
        Baton(switched, lambda _: None).run(ranks, 0.1, lambda _: None)
    assert all(rank.over for rank in ranks)
    assert (had_a_turn, ranks_alive()) == ([], [])


@pytest.mark.parametrize("started", [0, 1, 2])
def test_a_machine_without_threads_to_give_is_named(monkeypatch, started):
    start, count = threading.Thread.start, iter(range(100))

    def refused(thread):
        if thread.name.startswith("rank ") and next(count) >= started:
            raise RuntimeError("can't start new thread")
        run = thread.run
        thread.run = lambda: (run(), time.sleep(0.1))  # a thread that takes its time to end
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    with pytest.raises(
        LaunchError, match=f"3 ranks needs a thread for each, and this machine gave {started}"
    ):
        emulate(endless, (1, 1, 1), timeout=20)
    assert ranks_alive() == []
