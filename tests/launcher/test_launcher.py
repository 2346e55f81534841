"""Real processes: the six cases as documented, and everything that can go wrong with a program."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import joinlab
from joinlab import cases
from joinlab.errors import LaunchError, ProgramError, RankError
from joinlab.launcher.launcher import choose_backend
from joinlab.launcher.terminal import ECHO_LINES
from joinlab.timeline import EndKind, Timeline
from tests.agreement import differences
from tests.launch_limits import launch_in_time
from tests.timelines import DOCUMENTED

pytestmark = pytest.mark.usefixtures("nothing_left_behind")

TRACES: dict[tuple[int, int], list[Any]] = {}
"""By case and N: the traces that are documented."""
for _case in DOCUMENTED.values():
    for _answer in _case["answer"] if isinstance(_case["answer"], list) else [_case["answer"]]:
        TRACES.setdefault((_case["case"], _answer["N"]), []).append(_answer["trace"])


def run(program: Callable[..., Any], inputs: tuple[int, ...] = (2, 3), **options: Any) -> Timeline:
    return joinlab.launch(program, inputs, **{"backend": "gloo", "on_output": None, **options})


# ---------------- the six cases


GLOO_STOPS = {(2, 1): (1, 1), (4, 2): (12, 12), (5, 1): (2, 1)}
"""By (case, N): how many documented calls each rank gets to on gloo, where that is not all of them.

Its barrier never meets an all-reduce (cases 4 and 5), and with N = 1 rank 1 is left alone in the
bucket rebuild of its second forward pass, before that pass's backward (cases 2 and 5).
"""


def recorded_labels(timeline: Timeline, rank: int) -> list[str]:
    """The labels of a rank's calls, those of construction and bucket rebuild set aside, as the
    documents do.

    gloo's barrier is a barrier; the documented label names what NCCL makes of it, an all-reduce.
    """
    origins = timeline.calls.filter(pl.col("rank") == rank)["origin"].to_list()
    wanted = [o for o in origins if "DDP construction" not in o and "DDP bucket rebuild" not in o]
    return ["all-reduce (barrier)" if o == "barrier" else o for o in wanted]


@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("case", cases.DOCUMENTED)
def test_on_gloo_each_case_is_as_documented_and_as_emulated(case: int, n: int) -> None:
    program = cases.CASES[case].program
    timeline = run(program, (n, n + 1))
    assert differences(joinlab.emulate(program, (n, n + 1), "gloo"), timeline) == []
    kinds = [str(end) for end in timeline.ends]
    if case in (1, 6):
        assert kinds == ["finished", "finished"]
        assert timeline.returns == (n, n + 1)
        assert timeline.output[1] == f"Rank 1 has exhausted all {n + 1} of its inputs!\n"
    elif case in (2, 3):
        assert kinds == ["finished", "raised"]
        assert (
            "Connection closed by peer" in timeline.ends[1].text
            or "Connection reset" in timeline.ends[1].text
        )
        # The second forward pass rebuilds the buckets: with one common input, that is where rank 1
        # is left alone.
        alone = "broadcast (DDP bucket rebuild)" if n == 1 else "all-reduce (DDP backward())"
        assert timeline.call(1, timeline.ends[1].call)["origin"] == alone
    else:
        assert kinds == ["hung (proven)", "hung (proven)"]
        assert all(timeline.call(r, timeline.ends[r].call)["completed_ns"] is None for r in (0, 1))
    for trace in TRACES.get((case, n), ()):
        for rank in (0, 1):
            expected = [row[f"r{rank}"] for row in trace if row[f"r{rank}"] is not None]
            assert (
                recorded_labels(timeline, rank)
                == expected[: GLOO_STOPS.get((case, n), (99, 99))[rank]]
            )


# ---------------- programs


def test_a_closure_is_a_program_and_returns_come_back_as_plain_data() -> None:
    wanted = 3.5

    def program(rank: int, inputs: Any) -> Any:
        model = DDP(torch.nn.Linear(2, 1))
        return {
            "rank": rank,
            "x": wanted,
            "n": len(inputs),
            "w": model.state_dict(),
            "t": (torch.arange(3), None),
        }

    timeline = run(program, (1, 4))
    assert [r["n"] for r in timeline.returns] == [1, 4]
    assert timeline.returns[1]["x"] == 3.5
    first, second = (r["w"]["module.weight"] for r in timeline.returns)
    assert first.shape == (1, 2)
    assert np.array_equal(first, second)
    assert timeline.returns[0]["t"][0].tolist() == [0, 1, 2]


def test_every_rank_has_the_same_seed_by_default() -> None:
    def program(rank: int, inputs: Any) -> float:
        return float(torch.rand(1))

    same, other, random = run(program), run(program, seed=(1, 2)), run(program, seed=None)
    assert same.returns[0] == same.returns[1] == run(program, seed=0).returns[0]
    assert other.returns[0] != other.returns[1]
    assert random.returns[0] != random.returns[1]
    assert same.meta["seeds"] == [0, 0]


def test_output_is_kept_in_order_and_streamed_line_by_line() -> None:
    def program(rank: int, inputs: Any) -> None:
        import sys

        print("one")
        print("two", file=sys.stderr)
        os.write(1, b"three\n")
        print("no newline", end="")

    heard: list[tuple[int, str]] = []
    timeline = run(program, on_output=lambda rank, line: heard.append((rank, line)))
    assert timeline.output == ("one\ntwo\nthree\nno newline",) * 2
    assert [line for rank, line in heard if rank == 1] == ["one", "two", "three", "no newline"]


def test_megabytes_of_output_are_kept_and_the_echo_stops_in_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def program(rank: int, inputs: Any) -> None:
        if rank == 0:
            for _ in range(30_000):
                print("x" * 99)

    timeline = run(program, on_output="echo")
    assert len(timeline.output[0]) == 3_000_000
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == ECHO_LINES + 1
    assert "timeline.output[0]" in shown[-1]


def test_sixteen_ranks_and_one_and_a_rank_without_inputs() -> None:
    for inputs in (tuple(range(16)), (2,)):
        assert run(cases.case_1, inputs).raise_for_ending().returns == inputs


def test_a_loop_left_early_stops_marking_inputs() -> None:
    def program(rank: int, inputs: Any) -> None:
        for _ in inputs:
            break
        dist.barrier()

    assert run(program).calls["input"].to_list() == [None, None]


def test_ranks_see_the_environment_folder_and_path_of_the_caller(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(
        "def worker(rank, inputs):\n    import os\n    return os.getcwd(), os.environ['MINE']\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("MINE", "yes")
    import mine  # type: ignore[import-not-found]

    assert run(mine.worker).returns == ((str(tmp_path), "yes"),) * 2


def test_a_rank_can_use_polars_which_no_fork_server_may_have_imported() -> None:
    def program(rank: int, inputs: Any) -> tuple[bool, int]:
        import sys

        before = "polars" in sys.modules
        import polars

        return before, int(
            polars.DataFrame({"x": [1, 2]}).lazy().select(polars.col("x").sum()).collect().item()
        )

    assert run(program).returns == ((False, 3), (False, 3))


# ---------------- endings


def test_an_exception_is_an_ending_with_its_traceback_in_the_output() -> None:
    def program(rank: int, inputs: Any) -> None:
        dist.barrier()
        if rank == 1:
            raise ValueError("a bad idea")
        dist.all_reduce(torch.ones(1))

    timeline = run(program)
    assert timeline.ends[1].kind is EndKind.RAISED
    assert timeline.ends[1].text == "ValueError: a bad idea"
    assert timeline.ends[1].call is None
    assert timeline.ends[0].call == 1
    assert timeline.output[1].startswith("Traceback")
    assert str(Path(joinlab.__file__).parent) not in timeline.output[1]
    with pytest.raises(RankError, match=r"Rank 1 raised ValueError: a bad idea") as caught:
        timeline.raise_for_ending()
    assert str(caught.value) == str(joinlab.diagnose(timeline))


def test_an_exception_is_not_laid_on_a_call_whose_error_the_program_had_caught() -> None:
    def program(rank: int, inputs: Any) -> None:
        with suppress(RuntimeError):
            dist.all_reduce(torch.ones(1), op=dist.ReduceOp.BAND)
        raise ValueError("another thing")

    timeline = run(program)
    assert timeline.calls["error"].null_count() == 0
    assert [end.call for end in timeline.ends] == [None, None]


def test_os_exit_and_sigkill_are_endings_with_what_was_recorded() -> None:
    def program(rank: int, inputs: Any) -> None:
        import signal

        dist.barrier()
        if rank == 0:
            os._exit(7)
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()

    timeline = run(program, (1, 1, 1))
    assert [end.kind for end in timeline.ends[:2]] == [EndKind.KILLED, EndKind.KILLED]
    assert "exit code 7" in timeline.ends[0].text
    assert "SIGKILL" in timeline.ends[1].text
    assert timeline.ends[2].kind is EndKind.RAISED
    assert timeline.calls.filter(pl.col("seq") == 0).height == 3


def test_gloo_aborting_on_a_dtype_mismatch_is_an_ending() -> None:
    def program(rank: int, inputs: Any) -> None:
        dist.all_reduce(torch.ones(1, dtype=torch.float32 if rank else torch.int64))

    timeline = run(program)
    killed = [end for end in timeline.ends if end.kind is EndKind.KILLED]
    assert killed
    assert "SIGABRT" in killed[0].text
    assert "op.preamble.length" in killed[0].text
    assert timeline.calls["dtype"].to_list() == ["int64", "float32"]


def test_sys_exit_zero_finishes_and_another_code_raises() -> None:
    def program(rank: int, inputs: Any) -> None:
        raise SystemExit(3 * rank)

    timeline = run(program)
    assert [str(end) for end in timeline.ends] == ["finished", "raised"]
    assert timeline.ends[1].text == "SystemExit: 3"


PLAIN = """
import os, sys, time
import torch, torch.distributed as dist
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
over = f"{folder}/over"
if rank == 0:
    dist.all_reduce(torch.ones(1), async_op=True)
    with open(over + ".draft", "w") as file:
        file.write(str(os.getpid()))
    os.rename(over + ".draft", over)
else:
    while not os.path.exists(over):
        time.sleep(0.01)
    time.sleep(1)
    os.kill(int(open(over).read()), 0)  # it is still there
    x = torch.ones(1)
    dist.all_reduce(x)
    print("met", x.item(), flush=True)
"""


@pytest.mark.nightly
def test_without_joinlab_a_process_on_gloo_ends_only_when_its_calls_have(tmp_path: Path) -> None:
    """What the next test and test_emulator_ddp rest on, seen in two plain scripts."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", PLAIN, str(rank), str(tmp_path)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    outputs = [process.communicate()[0] for process in ranks]
    assert outputs[1] == "met 2.0\n"


@pytest.mark.parametrize("how", ["returned", "raised ValueError: bad"])
def test_a_process_whose_call_never_ends_hangs_after_its_program(how: str) -> None:
    def program(rank: int, inputs: Any) -> None:
        if rank == 0:
            dist.all_reduce(torch.ones(1), async_op=True)
            if how != "returned":
                raise ValueError("bad")
        else:
            dist.recv(torch.ones(1), src=0)

    timeline = run(program)
    assert [str(end) for end in timeline.ends] == ["hung (proven)", "hung (proven)"]
    assert timeline.ends[0].call == 0
    assert (
        timeline.ends[0].text
        == f"its program has {how}, and its process waits for this call before it ends"
    )
    assert f"Its program has {how}, and its process waits" in joinlab.diagnose(timeline).ending(0)
    assert ("ValueError: bad" in timeline.output[0]) == (how != "returned")
    emulated = joinlab.emulate(program, (2, 3), "gloo")
    assert differences(emulated, timeline) == []
    assert [end.text for end in emulated.ends] == [end.text for end in timeline.ends]


def has_call(rank: int) -> Callable[[Timeline], bool]:
    return lambda timeline: not timeline.calls.filter(pl.col("rank") == rank).is_empty()


@pytest.mark.parametrize("computes", [True, False])
def test_a_rank_that_computes_and_one_that_calls_without_end_are_ended_at_the_timeout(
    computes: bool,
) -> None:
    def program(rank: int, inputs: Any) -> None:
        while True:
            if rank or not computes:
                dist.all_reduce(torch.ones(1))

    timeline = launch_in_time(program, (1, 1), has_call(1), no_progress=1.0, timeout=2.0)
    assert {end.kind for end in timeline.ends} == {EndKind.KILLED}
    assert "timeout=" in timeline.ends[0].text
    assert timeline.calls.filter(pl.col("rank") == 1).height > 0


def test_a_sleep_is_only_suspected() -> None:
    def program(rank: int, inputs: Any) -> None:
        if rank == 0:
            time.sleep(600)
        dist.barrier()

    timeline = launch_in_time(program, (1, 1), has_call(1), no_progress=0.3)
    assert [str(end) for end in timeline.ends] == ["hung (suspected)"] * 2
    assert re.search(r"nothing happened for ([\d.]+) s \(no_progress=\1\)", timeline.ends[0].text)
    assert (timeline.ends[0].call, timeline.ends[1].call) == (None, 0)


def test_a_rank_whose_other_thread_may_go_on_is_not_proven_to_hang() -> None:
    def program(rank: int, inputs: Any) -> None:
        if rank == 0:
            threading.Timer(0.5, dist.all_reduce, (torch.ones(1),)).start()
            dist.barrier()
        else:
            dist.barrier()
            dist.all_reduce(torch.ones(1))

    assert [str(end) for end in run(program).ends] == ["finished", "finished"]


def test_a_hang_of_one_group_among_several_is_proven() -> None:
    def program(rank: int, inputs: Any) -> None:
        pair = dist.new_group([1, 2])
        if rank == 1:
            dist.all_reduce(torch.ones(1), group=pair)
            dist.barrier()
        elif rank == 2:
            dist.barrier()
            dist.all_reduce(torch.ones(1), group=pair)
        else:
            dist.barrier()

    timeline = run(program, (1, 1, 1))
    assert [str(end) for end in timeline.ends] == ["hung (proven)"] * 3
    assert timeline.ends[1].group != timeline.default_group == timeline.ends[0].group


# ---------------- bad input


def no_arguments() -> None: ...


async def asynchronous(rank: int, inputs: Any) -> None: ...


def generator(rank: int, inputs: Any) -> Iterator[int]:
    yield 1


class Unopenable:
    """Can be pickled, but raises where it is loaded."""

    def __call__(self, rank: int, inputs: Any) -> None: ...

    def __reduce__(self) -> Any:
        return (eval, ("1/0",))


def closing_over(lock: Any) -> Callable[..., Any]:
    return lambda rank, inputs: lock.locked()


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"program": "train.py:main"}, "FILE:FUNCTION"),
        ({"program": no_arguments}, "two arguments"),
        ({"program": asynchronous}, "async"),
        ({"program": generator}, "yield"),
        ({"program": Timeline}, "class"),
        ({"program": closing_over(threading.Lock())}, "cannot be sent to another process"),
        ({"program": Unopenable()}, "could not be loaded in its process: ZeroDivisionError"),
        ({"inputs": ()}, "empty"),
        ({"inputs": (1, -1)}, "Rank 1 got -1"),
        ({"inputs": (1, 2.5)}, "Rank 1 got 2.5"),
        ({"inputs": (True, 1)}, "Rank 0 got True"),
        ({"inputs": "56"}, "one count per rank"),
        ({"inputs": 5}, "one count per rank"),
        ({"inputs": (1,) * 17}, "at most 16"),
        ({"backend": "mpi"}, '"gloo", "nccl" or None'),
        ({"timeout": 0}, "above 0"),
        ({"no_progress": "soon"}, "above 0"),
        ({"seed": -1}, "seed="),
        ({"seed": (1, 2, 3)}, "seed="),
        ({"on_output": "loud"}, "on_output="),
        ({"stop": True}, "stop="),
        ({"progress": "bar"}, "progress="),
    ],
)
def test_what_cannot_be_launched_is_refused_with_the_reason(
    asked: dict[str, Any], message: str
) -> None:
    with pytest.raises(ProgramError, match=message):
        run(**({"program": cases.case_1} | asked))


def test_a_program_sent_by_value_draws_from_its_rank_s_own_generators() -> None:
    """As in a notebook after `from random import random`: the name holds a generator's method."""
    draw, draw_by_numpy, shuffled = random.random, np.random.rand, np.random.permutation

    def program(rank: int, inputs: Any) -> Any:
        return draw(), float(draw_by_numpy()), [int(number) for number in shuffled(9)]

    state = random.getstate()
    for seed in (3, 4):
        np_generator = np.random.RandomState(seed)
        expected = (
            random.Random(seed).random(),
            np_generator.rand(),
            np_generator.permutation(9).tolist(),
        )
        assert run(program, (1,), seed=seed).returns == (expected,)
    assert random.getstate() == state


def sleep_for_ever(rank: int, inputs: Any) -> None:
    threading.Event().wait()


MACHINE = {"nccl": "2.27.5"}


def test_the_backend_follows_the_gpus() -> None:
    assert choose_backend({**MACHINE, "gpus": 0}, None, 2)[0] == "gloo"
    assert choose_backend({**MACHINE, "gpus": 2}, None, 2) == ("nccl", {})
    assert choose_backend({**MACHINE, "gpus": 2}, None, 3)[0] == "gloo"
    assert choose_backend({**MACHINE, "gpus": 2}, "gloo", 2)[0] == "gloo"
    assert choose_backend({**MACHINE, "gpus": 1}, None, 1) == ("nccl", {})
    assert choose_backend({**MACHINE, "gpus": 1}, None, 2) == ("gloo", {})  # two on one: if asked
    assert choose_backend({**MACHINE, "gpus": 1}, "nccl", 2)[1]["NCCL_SOCKET_IFNAME"] == "lo"
    assert choose_backend({**MACHINE, "gpus": 1, "nccl": "2.30.3"}, "nccl", 2) == (
        "nccl",
        {"NCCL_MULTI_RANK_GPU_ENABLE": "1"},
    )
    with pytest.raises(LaunchError, match="3 ranks on 2 GPUs"):
        choose_backend({**MACHINE, "gpus": 2}, "nccl", 3)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_nccl_without_a_gpu_says_what_to_use() -> None:
    with pytest.raises(LaunchError, match="gloo"):
        run(cases.case_1, backend="nccl")


def test_launches_from_several_threads_do_not_meet() -> None:
    results: dict[int, Timeline] = {}

    def go(n: int) -> None:
        results[n] = run(cases.case_1, (n, n + 1))

    threads = [threading.Thread(target=go, args=(n,)) for n in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {n: t.returns for n, t in results.items()} == {n: (n, n + 1) for n in range(1, 5)}


def test_a_run_ends_when_it_is_asked_to_stop() -> None:
    asked = threading.Event()

    def program(rank: int, inputs: Any) -> None:
        model = DDP(torch.nn.Linear(1, 1))
        for x in inputs:
            model(x).backward()
        if rank == 1:
            with suppress(RuntimeError):  # until rank 0 is gone
                dist.recv(torch.ones(1), src=0)
            print("on my own", flush=True)
            threading.Event().wait()

    told: list[int] = []
    timeline = run(
        program,
        (2, 2),
        stop=asked.is_set,
        on_output=lambda rank, line: asked.set(),
        progress=told.append,
        timeout=60,
    )
    assert [str(end) for end in timeline.ends] == ["finished", "killed"]
    assert timeline.ends[1].text == "stopped on request"
    assert "stopped on request" in str(joinlab.diagnose(timeline))
    assert told and all(0 <= done <= 4 for done in told) and told == sorted(told)


def test_a_run_that_is_asked_to_stop_at_once_is_over_at_once() -> None:
    ends = run(sleep_for_ever, (1, 1), stop=lambda: True).ends
    assert [(end.kind, end.text) for end in ends] == [(EndKind.KILLED, "stopped on request")] * 2


def test_no_false_verdict_while_a_rank_dawdles() -> None:
    """Longer than the moment of silence after which a proof is tried: waiting for a slow peer is no
    hang."""

    def program(rank: int, inputs: Any) -> None:
        model = DDP(torch.nn.Linear(1, 1))
        with model.join():
            for x in inputs:
                if rank == 0:
                    time.sleep(0.15)
                model(x).backward()
        dist.barrier()

    assert [str(end) for end in run(program, (3, 4)).ends] == ["finished", "finished"]
