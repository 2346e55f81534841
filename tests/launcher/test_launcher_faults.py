"""Faults in a run, its processes and its environment: bounded in time, cleaned up, and reported
correctly."""

from __future__ import annotations

import _thread
import atexit
import math
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import psutil
import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import joinlab
from joinlab.errors import LaunchError, LaunchInterrupted
from joinlab.launcher import forkserver, isolated, launcher, monitor
from joinlab.launcher.forkclient import RUN, ForkServer
from joinlab.launcher.run_files import RunFiles
from joinlab.launcher.spares import SPARES
from joinlab.program.bounded_output import KEPT
from joinlab.timeline import EndKind, Timeline
from tests.launch_limits import launch_in_time
from tests.leftovers import alive

pytestmark = pytest.mark.usefixtures("nothing_left_behind")

ROOT = Path(__file__).parents[2]


def run(program: Callable[..., Any], inputs: tuple[int, ...] = (1, 1), **options: Any) -> Timeline:
    return joinlab.launch(
        program, inputs, **{"backend": "gloo", "on_output": None, "progress": False, **options}
    )


def plain(rank: int, inputs: Any) -> None:
    dist.all_reduce(torch.ones(1))


# ---------------- deadlines


def test_a_wait_that_begins_while_the_ranks_are_judged_still_ends_by_its_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def program(rank: int, inputs: Any) -> None:
        both = dist.new_group(timeout=timedelta(seconds=1))
        if rank == 0:
            time.sleep(0.2)
            dist.barrier(both)
        else:
            with pytest.raises(RuntimeError):  # rank 0 has ended
                dist.all_reduce(torch.ones(1))

    def read_slowly(files: RunFiles, judged: set[int]) -> None:
        take_in(files, judged)
        time.sleep(0.3)

    take_in = RunFiles.take_in
    monkeypatch.setattr(RunFiles, "take_in", read_slowly)
    assert [str(end) for end in run(program).ends] == ["raised", "finished"]


def test_a_wait_that_begins_behind_the_attempt_at_a_proof_is_proven_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def program(rank: int, inputs: Any) -> None:
        time.sleep(0.2 * rank)
        dist.recv(torch.zeros(1), 1 - rank)

    def measure_slowly(watched: monitor.Watch) -> float:
        time.sleep(0.5)
        return measure(watched)

    measure = monitor.Watch._working
    monkeypatch.setattr(monitor.Watch, "_working", measure_slowly)
    assert [str(end) for end in run(program, no_progress=3.0).ends] == ["hung (proven)"] * 2


@pytest.mark.parametrize("option", ["timeout", "no_progress", "stop"])
def test_a_rank_that_has_returned_but_does_not_exit_is_ended_in_time(option: str) -> None:
    def program(rank: int, inputs: Any) -> int:
        if rank == 0:
            atexit.register(time.sleep, 600)
        print("here", flush=True)
        return rank

    if option == "stop":
        heard = threading.Event()
        said = {
            "stop": heard.is_set,
            "on_output": lambda rank, line: heard.set() if rank == 0 else None,
        }
        # it returns; rank 1 may have been stopped before it did
        run(program, timeout=600, no_progress=600, **said)
    else:
        seconds = {"timeout": 1.0} if option == "timeout" else {"no_progress": 0.5}
        timeline = launch_in_time(
            program, (1, 1), lambda timeline: timeline.returns == (0, 1), **seconds
        )
        assert [str(end) for end in timeline.ends] == ["finished", "finished"]
        assert timeline.returns == (0, 1)
        assert (
            f"its process did not end; {'ended by' if option == 'timeout' else 'nothing'}"
            in timeline.ends[0].text
        )
        assert timeline.ends[1].text == ""


def test_a_finished_process_that_is_still_ending_when_others_hang_is_finished() -> None:
    def program(rank: int, inputs: Any) -> None:
        if rank == 0:
            atexit.register(time.sleep, 600)
        else:
            dist.recv(torch.zeros(1), 3 - rank)

    ends = run(program, (1, 1, 1)).ends
    assert [str(end) for end in ends] == ["finished", "hung (proven)", "hung (proven)"] and ends[
        0
    ].text == ""


def test_a_child_that_multiprocessing_waits_for_at_exit_is_bounded_too() -> None:
    def program(rank: int, inputs: Any) -> int:
        import multiprocessing

        multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,)).start()
        return rank

    timeline = launch_in_time(
        program, (1, 1), lambda timeline: timeline.returns == (0, 1), timeout=1.0
    )
    assert {end.kind for end in timeline.ends} == {EndKind.FINISHED}


# ---------------- what a rank starts


def test_processes_below_one_that_is_a_zombie_are_found() -> None:
    """A dead parent that has not been reaped: the child is below it, or below who adopts it."""
    starts = "import os, subprocess; print(subprocess.Popen(['sleep', '600'], stdout=-3).pid, flush=True); os._exit(0)"
    adopts = f"""if True:
        import os, subprocess, sys
        from joinlab.launcher import descendants
        descendants.adopt()
        parent = subprocess.Popen([sys.executable, "-c", {starts!r}], stdout=subprocess.PIPE)
        child = int(parent.stdout.readline())
        os.waitid(os.P_PID, parent.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is not reaped
        print(descendants.below(os.getpid()) == [child])
        descendants.kill_all()
        print(descendants.below(os.getpid()))"""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", adopts], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout == "True\n[]\n"


def test_what_a_rank_starts_in_a_session_of_its_own_ends_with_the_run() -> None:
    def program(rank: int, inputs: Any) -> int:
        return subprocess.Popen(["sleep", "600"], start_new_session=True).pid

    for pid in run(program).returns:
        assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="shared memory is seen here as files")
def test_shared_memory_goes_with_the_run() -> None:
    def program(rank: int, inputs: Any) -> list[str]:
        mine = shared_memory.SharedMemory(create=True, size=4096)
        mine.close()  # never unlinked
        tensor = torch.ones(10).share_memory_()
        assert tensor.data_ptr()
        return [mine.name, f"torch_{os.getpid()}_"]

    names = run(program).returns
    assert len({name for name, _ in names}) == 2
    for name, torchs in names:
        assert [
            one for one in os.listdir("/dev/shm") if one == name or one.startswith(torchs)
        ] == []


def test_the_folder_of_a_dead_launcher_is_swept_by_the_next_launch() -> None:
    with subprocess.Popen(["true"]) as dead:
        dead.wait()
    left = Path(tempfile.mkdtemp(prefix=f"joinlab-{dead.pid}-"))
    mine = Path(tempfile.mkdtemp(prefix=f"joinlab-{os.getppid()}-"))
    run(plain)
    assert not left.exists()
    assert mine.exists()  # its process lives
    mine.rmdir()


def test_the_folder_of_a_launcher_in_another_container_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with subprocess.Popen(["true"]) as dead:  # as its process id looks from here
        dead.wait()
    folder = Path(tempfile.mkdtemp(prefix=f"joinlab-{dead.pid}-"))
    code = "import sys; from joinlab.launcher.launcher import _hold, Path; _hold(Path(sys.argv[1])); print(); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code, folder], stdin=-1, stdout=-1, cwd=ROOT, text=True
    ) as other:
        assert other.stdout and other.stdout.readline() == "\n"
        run(plain)
        assert folder.exists()
        other.communicate("\n")
    run(plain)
    assert not folder.exists()


# ---------------- the fork server


def test_a_child_of_the_launcher_holds_none_of_its_sockets() -> None:
    run(plain)
    control = ForkServer.get().control.fileno()
    inode = os.readlink(f"/proc/self/fd/{control}")
    pid = os.fork()
    if pid == 0:
        held = True
        try:
            links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
            held = inode in [os.readlink(link) for link in links if os.path.lexists(link)]
        finally:
            os._exit(held)
    assert os.waitpid(pid, 0)[1] == 0
    assert ForkServer.get().control.fileno() == control  # ours is untouched


HOLDING = """
import os, subprocess
import joinlab
from joinlab.launcher.forkclient import ForkServer
joinlab.launch(lambda rank, inputs: None, (1,), "gloo", on_output=None)
server = ForkServer.get()
fds = [server.control.fileno()]
holder = subprocess.Popen(["sleep", "600"], pass_fds=fds, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(server.process.pid, holder.pid, flush=True)
os._exit(0)
"""


def test_the_fork_server_ends_with_its_launcher_although_its_socket_is_held() -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    said = subprocess.run(
        [sys.executable, "-c", HOLDING], env=env, capture_output=True, text=True, check=True
    ).stdout
    server, holder = (int(word) for word in said.split())
    try:
        assert alive([server]) == []
    finally:
        os.kill(holder, signal.SIGKILL)


# ---------------- output


def test_long_output_keeps_its_beginning_and_end_and_says_what_is_missing() -> None:
    def program(rank: int, inputs: Any) -> None:
        if rank == 0:
            print("first line")
            for _ in range(12):
                print("x" * (1 << 20))
            print("last line")

    output, other = run(program).output
    assert output.startswith("first line\n")
    assert output.endswith("x\nlast line\n")
    assert other == ""
    total = 12 * ((1 << 20) + 1) + len("first line\nlast line\n")
    assert f"[joinlab left out {total - 2 * KEPT:,} bytes of {total:,} here]" in output
    assert len(output) < 2 * KEPT + 100


# ---------------- what cannot start


def test_a_server_that_may_not_fork_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """As under a limit of processes. Its answer has the form that a reader of each request
    expects."""

    def refused(self: ForkServer, request: object, kind: bytes = RUN) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            theirs.sendall(forkserver._refusal(kind, "could not start a process: [Errno 11] no"))
        return ours

    SPARES.close()
    isolated.leave()
    run(plain)
    SPARES.close()
    monkeypatch.setattr(ForkServer, "open", refused)
    with pytest.raises(LaunchError, match=r"could not start a process: .* try fewer"):
        run(plain)
    with pytest.raises(isolated.Lost, match=r"could not start a process: .*Too many processes"):
        isolated.call_isolated(len, [], name="a list", seconds=10)


def test_a_current_folder_that_is_gone_is_what_a_launch_complains_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The server cannot start in one: MKL does not find itself there."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setattr(ForkServer, "get", MagicMock(side_effect=LaunchError("MKL")))
    with pytest.raises(LaunchError, match="current folder"):
        run(plain)


# ---------------- who may still go on


def from_a_callback(rank: int, inputs: Any) -> None:
    """What rank 0 waits for is sent from a callback, which runs in gloo's own thread while rank 1
    waits."""
    group = dist.new_group()
    if rank == 1:

        def send(future: Any) -> Any:
            time.sleep(0.5)
            dist.send(torch.ones(1), 0, group=group)
            return future.value()

        future = dist.all_reduce(torch.ones(1), async_op=True).get_future().then(send)
        dist.recv(torch.zeros(1), 0)
        future.wait()
    else:
        dist.all_reduce(torch.ones(1))
        dist.recv(torch.zeros(1), 1, group=group)
        dist.send(torch.zeros(1), 1)


def from_a_thread(rank: int, inputs: Any) -> None:
    """Likewise, from a thread that `threading` does not know."""
    group, sent = dist.new_group(), _thread.allocate_lock()

    def send() -> None:
        time.sleep(0.5)
        dist.send(torch.ones(1), 0, group=group)
        sent.release()

    if rank == 1:
        sent.acquire()
        _thread.start_new_thread(send, ())
        dist.recv(torch.zeros(1), 0)
        sent.acquire()  # else its send may still be pending when the program returns
    else:
        dist.recv(torch.zeros(1), 1, group=group)
        dist.send(torch.zeros(1), 1)


@pytest.mark.parametrize("program", [from_a_callback, from_a_thread])
def test_a_healthy_program_is_not_called_hung(program: Callable[..., Any]) -> None:
    assert [str(end) for end in run(program).ends] == ["finished"] * 2
    if program is from_a_callback:
        assert [str(end) for end in joinlab.emulate(program, (1, 1), "gloo").ends] == [
            "finished"
        ] * 2


def test_an_emulated_rank_beside_whose_wait_a_thread_runs_is_not_called_hung() -> None:
    def program(rank: int, inputs: Any) -> None:
        if rank == 1:
            _thread.start_new_thread(time.sleep, (20,))  # nobody waits for it
        dist.recv(torch.zeros(1), 1 - rank)

    with pytest.raises(
        LaunchError, match="rank 1 waits, and a thread that its program has started still runs"
    ):
        joinlab.emulate(program, (1, 1), "gloo")


def test_a_callback_of_a_call_that_cannot_complete_does_not_hide_a_hang() -> None:
    def program(rank: int, inputs: Any) -> None:
        done = dist.all_reduce(torch.ones(1), async_op=True).get_future().then(lambda future: None)
        if rank == 1:
            done.wait()
            dist.all_reduce(torch.ones(1), async_op=True).get_future().then(lambda future: None)
            dist.recv(torch.ones(1), 0)
        done.wait()
        dist.barrier()

    assert [str(end) for end in run(program).ends] == ["hung (proven)"] * 2


@pytest.mark.parametrize("chained", [False, True])
def test_a_wait_for_the_future_of_a_call_is_a_wait(chained: bool) -> None:
    def program(rank: int, inputs: Any) -> None:
        if rank == 1:
            dist.barrier()
        future = dist.all_reduce(torch.ones(1), async_op=True).get_future()
        if chained:
            future = future.then(lambda future: future.value())
        future.wait()

    assert [str(end) for end in run(program).ends] == ["hung (proven)"] * 2


def test_values_are_read_before_a_comm_hook_s_callback_overwrites_them() -> None:
    """PowerSGD divides in place in callbacks, which run on gloo's thread, and waits there for calls
    of its own."""

    def program(rank: int, inputs: Any) -> None:
        torch.manual_seed(0)
        model = DistributedDataParallel(torch.nn.Linear(8, 8))
        state = PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook)
        for _ in range(4):
            model(torch.ones(1, 8) * (rank + 1)).sum().backward()

    columns = ["rank", "seq", "op", "value_in", "value_out"]
    launched, emulated = (
        timeline.calls.select(columns).sort("rank", "seq").rows()
        for timeline in (run(program), joinlab.emulate(program, (1, 1), "gloo"))
    )
    assert launched == emulated


def test_a_rank_whose_child_computes_is_at_work() -> None:
    def program(rank: int, inputs: Any) -> int:
        code = "import time; end = time.process_time() + 4\nwhile time.process_time() < end: pass"
        return subprocess.run([sys.executable, "-c", code]).returncode

    # On a busy machine a child may get no time for a second.
    assert [str(end) for end in run(program, (1,), no_progress=2).ends] == ["finished"]


def test_a_time_limit_may_be_infinite() -> None:
    def program(rank: int, inputs: Any) -> None:
        group = dist.new_group(timeout=timedelta(seconds=100))
        time.sleep(0.3 * rank)
        dist.all_reduce(torch.ones(1), group=group)

    assert [str(end) for end in run(program, timeout=math.inf, no_progress=math.inf).ends] == [
        "finished"
    ] * 2


# ---------------- surroundings


def test_a_launch_whose_disk_fills_up_is_refused_with_the_reason() -> None:
    def program(rank: int, inputs: Any) -> None:
        # no file may grow beyond half a megabyte
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, 1 << 19))
        while True:
            dist.all_reduce(torch.ones(1))

    with pytest.raises(LaunchError, match=r"rank \d could not go on recording: OSError"):
        run(program)


def test_a_disk_that_is_full_at_the_end_loses_what_was_returned_but_no_recording() -> None:
    def program(rank: int, inputs: Any) -> bytes:
        dist.all_reduce(torch.ones(1))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        return bytes(1 << 20)

    timeline = run(program)
    assert [str(end) for end in timeline.ends] == ["finished"] * 2
    assert timeline.returns == (None, None) and timeline.calls.height == 2
    assert "rank 0's return value could not be kept: [Errno 27]" in timeline.output[0]


def test_a_launch_from_a_deleted_folder_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(LaunchError, match="current folder"):
        run(plain)


def test_a_folder_that_ranks_cannot_enter_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getcwd", lambda: "/no such folder")
    with pytest.raises(
        LaunchError, match=r"rank \d could not be set up: FileNotFoundError.*/no such folder"
    ):
        run(plain)


def test_an_exception_that_cannot_be_printed_ends_the_rank_as_itself() -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise ZeroDivisionError

    def program(rank: int, inputs: Any) -> None:
        raise Unprintable

    for timeline in (
        run(program),
        joinlab.emulate(program, (1, 1)),
        joinlab.emulate(program, (1, 1), "gloo"),
    ):
        assert [str(end) for end in timeline.ends] == ["raised", "raised"]
        assert timeline.ends[0].text == "Unprintable: <its str() raises>"


def test_a_path_in_sys_path_does_no_harm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, tmp_path])
    run(plain).raise_for_ending()


def test_an_interrupt_before_the_first_rank_runs_carries_a_timeline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ForkServer, "get", interrupted)
    with pytest.raises(LaunchInterrupted) as found:
        run(plain)
    assert [end.text for end in found.value.timeline.ends] == ["interrupted by the user"] * 2


@pytest.mark.parametrize(
    ("works", "address"), [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("", None)]
)
def test_a_launch_finds_the_loopback_interface_or_names_it_as_missing(
    works: str, address: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def serve(at: tuple[str, int], family: int) -> MagicMock:
        server = MagicMock()
        server.__enter__.return_value.getsockname.return_value = at
        return server

    def connect(at: tuple[str, int], patience: float) -> MagicMock:
        if at[0] != works:
            raise OSError("Network is unreachable")
        return MagicMock()

    monkeypatch.setattr(socket, "create_server", serve)
    monkeypatch.setattr(socket, "create_connection", connect)
    if address is None:
        with pytest.raises(LaunchError, match="loopback"):
            launcher.loopback()
    else:
        assert launcher.loopback() == address


# ---------------- without a fork server
# These come last: each ends the server, and a new one takes seconds.


def test_a_stopped_fork_server_costs_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    run(plain)
    monkeypatch.setattr(monitor, "ANSWER_S", 0.5)
    os.kill(ForkServer.get().process.pid, signal.SIGSTOP)
    SPARES.close()  # the run that waits would still serve
    with pytest.raises(LaunchError, match="did not answer"):
        run(plain, timeout=0.5)
    assert [str(end) for end in run(plain).ends] == ["finished", "finished"]


def test_a_launch_without_a_temporary_folder_is_refused_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run(plain)
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "tempdir", "/no such folder")
        with pytest.raises(LaunchError, match="TMPDIR"):
            run(plain)
        ForkServer.get().close()
        with pytest.raises(LaunchError, match="TMPDIR"):
            run(plain)


def test_a_launch_with_too_large_an_environment_is_refused_with_its_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for server in ForkServer.running():
        server.close()
    monkeypatch.setenv("HUGE", "x" * 20_000_000)
    with pytest.raises(LaunchError, match="environment has 20,0"):
        run(plain)
