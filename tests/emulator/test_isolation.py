"""A program's changes to its process affect only its rank, and are undone when the emulation
ends."""

from __future__ import annotations

import builtins
import faulthandler
import io
import json
import logging
import math
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
import warnings
from contextlib import redirect_stdout
from functools import partial
from random import random as imported_random
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from numpy.random import sample as imported_sample
from numpy.random import seed as imported_seed
from numpy.random import standard_normal as imported_normal
from torch.distributed import rpc
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from joinlab import cases, emulate, launch
from joinlab.emulator import host
from joinlab.emulator.isolation import Isolation
from joinlab.emulator.rank_process import EPOCH_NS
from joinlab.emulator.warm_up import warm_up
from joinlab.errors import LaunchError
from joinlab.launcher.forkclient import ForkServer
from joinlab.program import labels
from joinlab.timeline import Ending, EndKind
from tests.drill_programs import GETENV, MISDEEDS, descriptors, undisturbed
from tests.nightly import sampled

# ---------------- put back at the end


# a file that is never closed
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    "first", sampled(range(0, len(MISDEEDS), 20), lambda first: first % 60 == 0)
)
def test_an_emulation_undoes_every_change_that_a_program_makes(first):
    warm_up()  # imports change some of it, for good
    backend = "nccl" if first % 40 else "gloo"
    undisturbed([[misdeed] for misdeed in MISDEEDS[first : first + 20]], backend)


def test_what_was_changed_between_two_emulations_stays(monkeypatch):
    def change(rank, inputs):
        torch.relu = torch.ones = math.gcd = None
        del torch.Tensor.mine

    emulate(cases.case_1, (1, 1))
    mine, gcd = (lambda value: 0), (lambda *values: 1)
    monkeypatch.setattr(torch.Tensor, "mine", mine, raising=False)
    monkeypatch.setattr(math, "gcd", gcd)
    ones = (
        monkeypatch.setattr(torch, "ones", lambda *args, **kwargs: torch.full(args, 2.0))
        or torch.ones
    )
    returned = emulate(
        lambda rank, inputs: (gcd(4, 2), torch.ones(1).item(), change(rank, inputs)), (0,)
    ).returns
    assert returned == ((1, 2.0, None),)
    assert (torch.Tensor.mine, math.gcd, torch.ones) == (mine, gcd, ones)
    assert torch.relu(torch.tensor(-1.0)) == 0 and emulate(cases.case_1, (1, 2)).returns == (1, 2)


@pytest.mark.parametrize("leave", [quit, sys.exit, exit])
def test_a_program_that_quits_ends_its_rank_alone(leave):
    def program(rank, inputs):
        if rank:
            leave()
        return "went on"

    timeline = emulate(program, (1, 1))
    assert [str(end) for end in timeline.ends] == ["finished"] * 2
    assert timeline.returns == ("went on", None)
    assert not sys.stdin.closed


# ---------------- each rank has its own


def both(program, **options):
    """What the program returns in rank 0 and in rank 1, which meet in the middle."""
    timeline = emulate(program, (1, 1), **options)
    assert [str(end) for end in timeline.ends] == ["finished"] * 2, [
        end.text for end in timeline.ends
    ]
    return timeline.returns


def test_what_one_rank_sets_the_other_does_not_see(tmp_path):
    def program(rank, inputs):
        if rank == 0:
            torch.use_deterministic_algorithms(True)
            torch.set_default_dtype(torch.float64)
            torch.autograd.set_detect_anomaly(True)
            torch.set_printoptions(precision=1)
            torch.backends.cudnn.benchmark = True
            torch.set_float32_matmul_precision("medium")
            dist.set_debug_level(dist.DebugLevel.DETAIL)
            sys.path.append("of rank 0")
            sys.argv[:] = ["of rank 0"]
            warnings.simplefilter("once")
            os.chdir(tmp_path)
            os.environ["OF_RANK"] = "0"
            multiprocessing.set_start_method("spawn", force=True)
        dist.barrier()
        return (
            torch.are_deterministic_algorithms_enabled(),
            torch.get_default_dtype() is torch.float64,
            torch.is_anomaly_enabled(),
            str(torch.tensor(0.25)) == "tensor(0.2)",
            torch.backends.cudnn.benchmark,
            torch.get_float32_matmul_precision() == "medium",
            dist.get_debug_level() == dist.DebugLevel.DETAIL,
            "of rank 0" in sys.path,
            sys.argv == ["of rank 0"],
            warnings.filters[0][0] == "once",
            os.getcwd() == str(tmp_path),
            "OF_RANK" in os.environ,
            multiprocessing.get_start_method(allow_none=True) == "spawn",
        )

    first, second = both(program)
    assert first == (True,) * 13
    assert second == (False,) * 13
    assert not torch.backends.cudnn.benchmark


def test_a_rank_that_redirects_its_output_redirects_its_own():
    def program(rank, inputs):
        text = io.StringIO()
        if rank:
            print("rank", rank)
            dist.barrier()
            print("again", rank)
        else:
            with redirect_stdout(text):
                print("rank", rank)
                dist.barrier()
                print("again", rank)
        return text.getvalue()

    timeline = emulate(program, (1, 1))
    assert timeline.returns == ("rank 0\nagain 0\n", "")
    assert timeline.output == ("", "rank 1\nagain 1\n")


def test_each_rank_configures_logging_for_itself():
    def program(rank, inputs):
        logging.basicConfig(force=True, level=logging.INFO, format=f"[{rank}] %(message)s")
        logger = logging.getLogger("training")
        logger.addHandler(logging.StreamHandler())
        dist.barrier()
        logger.info("step of rank %d", rank)
        return len(logger.handlers)

    timeline = emulate(program, (1, 1))
    assert timeline.returns == (1, 1)
    assert timeline.output == tuple(
        f"step of rank {rank}\n[{rank}] step of rank {rank}\n" for rank in (0, 1)
    )
    assert "training" not in logging.root.manager.loggerDict


def test_ranks_have_process_ids_and_signals_of_their_own():
    def program(rank, inputs):
        caught = []
        if rank:
            signal.signal(signal.SIGTERM, lambda number, frame: caught.append(number))
        dist.barrier()
        os.kill(os.getpid(), signal.SIGTERM)
        return caught, os.getpid()

    timeline = emulate(program, (1, 1))
    assert [end.kind for end in timeline.ends] == [EndKind.KILLED, EndKind.FINISHED]
    assert "SIGTERM" in timeline.ends[0].text
    assert timeline.returns[1][0] == [signal.SIGTERM]
    first, second = both(lambda rank, inputs: os.getpid())
    assert len({first, second, os.getpid()}) == 3


def test_a_variable_of_torchrun_that_a_program_sets_again_is_undone_for_c_code_too():
    def program(rank, inputs):
        os.environ["RANK"] = os.environ["RANK"]

    before = GETENV(b"RANK")
    emulate(program, (0, 0)).raise_for_ending()
    assert GETENV(b"RANK") == before


def test_an_environment_that_one_rank_replaces_is_its_own():
    def program(rank, inputs):
        if rank == 0:
            os.environ = {"RANK": "mine"}  # noqa: B003
        dist.barrier()
        return os.environ["RANK"]

    before = os.environ
    assert emulate(program, (0, 0)).returns == ("mine", "1") and os.environ is before


def test_ranks_find_what_torchrun_would_tell_them():
    def program(rank, inputs):
        names = (
            "RANK",
            "LOCAL_RANK",
            "WORLD_SIZE",
            "LOCAL_WORLD_SIZE",
            "GROUP_RANK",
            "MASTER_ADDR",
        )
        return [os.environ[name] for name in names], os.environ["MASTER_PORT"].isdigit()

    expected = tuple(
        ([str(rank), str(rank), "2", "2", "0", "127.0.0.1"], True) for rank in range(2)
    )
    before = dict(os.environ)
    assert emulate(program, (0, 0)).returns == expected == launch(program, (0, 0), "gloo").returns
    assert dict(os.environ) == before


def test_endless_output_is_bounded_as_in_a_launched_run():
    def program(rank, inputs):
        while True:
            print("x" * 99_999)
            if rank and time.monotonic() > 5:
                return

    lines = []
    timeline = emulate(program, (1, 1), timeout=1, on_output=lambda rank, line: lines.append(line))
    assert 4_000_000 < len(timeline.output[0]) < 4_200_000
    assert "[joinlab left out" in timeline.output[0] and lines[-1].startswith(
        "[joinlab left out the rest"
    )


def test_a_rank_that_replaces_the_clock_and_computes_is_ended_at_the_deadline():
    def program(rank, inputs):
        time.monotonic, time.sleep = len, None
        while True:
            pass

    assert [end.kind for end in emulate(program, (1,), timeout=0.5).ends] == ["killed"]
    assert time.monotonic() > 0


def test_clocks_follow_the_virtual_time():
    def program(rank, inputs):
        began = time.time(), time.perf_counter(), time.monotonic_ns()
        time.sleep(100)
        return (
            time.time() - began[0],
            time.perf_counter() - began[1],
            (time.monotonic_ns() - began[2]) / 1e9,
        )

    for found in both(program):
        assert found == pytest.approx((100, 100, 100), abs=0.001)
    assert both(lambda rank, inputs: time.time_ns() // 10**9) == (EPOCH_NS // 10**9,) * 2

    def waits(rank, inputs):
        until = time.time() + 0.01
        while time.time() < until:
            pass

    assert both(waits) == (None, None)


def test_another_thread_keeps_its_environment_and_its_clock():
    stop, seen = threading.Event(), set()

    def watch():
        while not stop.is_set():
            seen.add(("RANK" in os.environ, time.time() > EPOCH_NS / 1e9 + 1, os.getpid() == pid))

    pid = os.getpid()
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        emulate(cases.case_1, (5, 5))
    finally:
        stop.set()
        watcher.join()
    assert seen == {(False, True, True)}


def skips_a_call(rank, inputs):
    if rank == 0:
        dist.all_reduce = lambda *args: None
    dist.barrier()
    skipped = dist.all_reduce.__name__ == "<lambda>"
    if rank == 0:
        dist.all_reduce(torch.ones(1))
    return skipped


def doubles(rank, inputs):
    before = dist.all_reduce

    def twice(tensor):
        tensor *= 2
        return before(tensor)

    dist.all_reduce = twice
    dist.barrier()
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    return tensor.item()


def prints_its_rank(rank, inputs):
    real = builtins.print
    builtins.print = lambda text: real(rank, text)
    dist.barrier()
    print("hi")


def sets_a_name_that_it_imports(rank, inputs):
    import torch.nn.functional as functional

    functional.relu = lambda value: rank
    torch.nn.Linear.extra = torch.extra = rank
    dist.barrier()
    return functional.relu(1), torch.nn.Linear.extra, torch.extra


def sets_by_name(rank, inputs):
    setattr(json, "dumps", lambda value: rank)  # noqa: B010
    dist.barrier()
    return json.dumps(0)


def mocks(rank, inputs):
    with mock.patch.object(json, "dumps", lambda value: rank):
        dist.barrier()
        inside = json.dumps(0)
    dist.barrier()
    return inside, json.dumps(0)


def stops_the_clock(rank, inputs):
    began = time.time()
    time.sleep(3)
    slept = round(time.time() - began)
    if rank:
        time.time, time.sleep = (lambda: 0), (lambda seconds: "woken")
    dist.barrier()
    return slept, time.time() > 0, time.sleep(1)


PATCHES = {
    skips_a_call: (True, False),
    doubles: (4, 4),
    prints_its_rank: (None, None),
    sets_a_name_that_it_imports: ((0, 0, 0), (1, 1, 1)),
    sets_by_name: (0, 1),
    mocks: ((0, "0"), (1, "0")),
    stops_the_clock: ((3, True, None), (3, False, "woken")),
}
"""Programs that set names of libraries, and what they return with ranks in processes."""


@pytest.mark.parametrize("program", PATCHES)
@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_what_a_rank_sets_in_a_library_is_set_for_it_alone(program, backend):
    linear, names = torch.nn.Linear, (dist.all_reduce, print, json.dumps, time.time, time.sleep)
    timeline = emulate(program, (1, 1), backend)
    assert timeline.returns == PATCHES[program], [end.text for end in timeline.ends]
    if program is prints_its_rank:
        assert timeline.output == ("0 hi\n", "1 hi\n")
    assert names == (dist.all_reduce, print, json.dumps, time.time, time.sleep)
    assert not hasattr(linear, "extra") and not hasattr(torch, "extra")


def replaces_len(rank, inputs):
    builtins.len = lambda value: 42
    dist.all_reduce(torch.ones(1))


def deletes_range(rank, inputs):
    del builtins.range
    dist.all_reduce(torch.ones(1))


def sets_beside_all_code(rank, inputs):
    vars(json)["dumps"] = lambda value: rank
    dist.barrier()
    return json.dumps(0)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (replaces_len, "builtins.len.*Leave that name as it is"),
        (deletes_range, "builtins.range.*Leave that name as it is"),
        (sets_beside_all_code, "json.dumps.*joinlab.launch"),
    ],
)
def test_a_name_that_ranks_would_share_is_refused_and_put_back(program, words):
    expected = emulate(cases.case_1, (2, 3)).calls
    with pytest.raises(LaunchError, match=words):
        emulate(program, (1, 1), timeout=5)
    assert len(range(3)) == 3 and json.dumps(0) == "0"
    assert emulate(cases.case_1, (2, 3)).calls.equals(expected)
    if program is sets_beside_all_code:  # alone, it has no one to share it with
        assert emulate(program, (1,)).returns == (0,)


DRAWS = {
    "rand": (2,),
    "randn": (2,),
    "randint": (99,),
    "random_integers": (99,),
    "random_sample": (2,),
    "random": (2,),
    "ranf": (2,),
    "sample": (2,),
    "bytes": (4,),
    "choice": (99,),
    "permutation": (5,),
    "beta": (1, 2),
    "binomial": (99, 0.5),
    "chisquare": (2,),
    "dirichlet": ([1, 2],),
    "exponential": (),
    "f": (2, 3),
    "gamma": (2,),
    "geometric": (0.01,),
    "gumbel": (),
    "hypergeometric": (50, 50, 50),
    "laplace": (),
    "logistic": (),
    "lognormal": (),
    "logseries": (0.9,),
    "multinomial": (99, [0.5, 0.5]),
    "multivariate_normal": ([0, 0], [[1, 0], [0, 1]]),
    "negative_binomial": (50, 0.5),
    "noncentral_chisquare": (2, 3),
    "noncentral_f": (2, 3, 4),
    "normal": (),
    "pareto": (2,),
    "poisson": (99,),
    "power": (2,),
    "rayleigh": (),
    "standard_cauchy": (),
    "standard_exponential": (),
    "standard_gamma": (2,),
    "standard_normal": (),
    "standard_t": (3,),
    "triangular": (0, 1, 2),
    "uniform": (),
    "vonmises": (0, 1),
    "wald": (1, 1),
    "weibull": (2,),
    "zipf": (2,),
}
"""Functions of numpy.random that draw, with arguments."""
NO_DRAWS = {"default_rng", "get_bit_generator", "set_bit_generator", "get_state", "set_state"}
NO_DRAWS |= {"seed", "shuffle", "test"}


def drawn(seed):
    """What each function of numpy.random draws first after the seed, and an order it makes."""
    values = {}
    for name, arguments in DRAWS.items():
        np.random.seed(seed)
        values[name] = str(getattr(np.random, name)(*arguments))
    order = list(range(99))
    np.random.shuffle(order)
    return values, order


@pytest.mark.filterwarnings("ignore:This function is deprecated:DeprecationWarning")
def test_each_rank_draws_what_its_seeds_of_numpy_give_and_this_process_draws_on():
    public = {
        name
        for name, value in vars(np.random).items()
        if name[0] != "_" and callable(value) and not isinstance(value, type)
    }
    assert public - NO_DRAWS == DRAWS.keys()
    expected = drawn(0), drawn(1)
    np.random.seed(7)
    first = np.random.sample(), np.random.ranf()
    np.random.seed(7)
    assert np.random.sample() == first[0]
    assert emulate(lambda rank, inputs: drawn(rank), (1, 1), "gloo").returns == expected
    assert np.random.ranf() == first[1]


def test_names_imported_from_random_and_numpy_draw_for_the_rank():
    def program(rank, inputs):
        before = imported_sample(), random.random(), imported_normal(), imported_random()
        imported_seed(rank)
        return before, imported_sample(), np.random.ranf()

    python, numpy = random.Random(3), np.random.RandomState(3)
    before = (
        numpy.random_sample(),
        python.random(),
        numpy.standard_normal(),
        python.random(),
    )
    expected = []
    for rank in (0, 1):
        numpy.seed(rank)
        expected.append((before, numpy.random_sample(), numpy.random_sample()))
    for _ in range(2):
        assert emulate(program, (1, 1), "gloo", seed=3).returns == tuple(expected)


def test_a_folder_that_a_rank_removes_with_itself_in_it_ends_nothing(tmp_path):
    def program(rank, inputs):
        folder = tmp_path / str(rank)
        folder.mkdir()
        os.chdir(folder)
        dist.barrier()
        (folder / "file").touch()
        inside = os.path.exists("file"), os.path.samefile(".", folder)
        (folder / "file").unlink()
        folder.rmdir()
        dist.barrier()
        try:
            os.getcwd()
        except FileNotFoundError:
            return inside
        return "it is still in a folder"

    before, had = os.getcwd(), descriptors()
    for backend in ("gloo", "nccl"):
        timeline = emulate(program, (1, 1), backend, timeout=20)
        assert timeline.returns == ((True, True),) * 2, timeline.ends
        assert os.getcwd() == before
    assert descriptors() - had == {}


def test_a_turn_that_cannot_be_given_ends_the_emulation_and_not_the_notebook(monkeypatch):
    switched, turns = Isolation.switched, []

    def fails(self, old, new):
        turns.append(new)
        if len(turns) == 4:
            raise OSError("no turn")
        switched(self, old, new)

    monkeypatch.setattr(Isolation, "switched", fails)
    with pytest.raises(LaunchError, match=r"turn of another rank.*OSError: no turn"):
        emulate(cases.case_1, (5, 5), timeout=20)
    monkeypatch.undo()
    assert emulate(cases.case_1, (1, 2)).returns == (1, 2)


def test_what_a_rank_asks_of_faulthandler_does_not_reach_this_process():
    enabled = faulthandler.is_enabled()

    def program(rank, inputs):
        faulthandler.enable()
        faulthandler.dump_traceback_later(0.001)
        dist.barrier()
        faulthandler.cancel_dump_traceback_later()
        if rank == 1:
            faulthandler.disable()

    assert emulate(program, (1, 1), "gloo").ends == (Ending(EndKind.FINISHED),) * 2
    assert faulthandler.is_enabled() is enabled


def stack_of(depth):
    if depth == 0:
        dist.all_reduce(torch.ones(1))
    else:
        stack_of(depth - 1)


def test_a_call_near_the_recursion_limit_leaves_later_emulations_as_they_are(monkeypatch):
    """It can fail wherever the stack is read: at its frames, its place, its sources."""

    def failing(name):
        function = getattr(labels, name)

        def call(*args):
            calls.append(name)
            if len(calls) < 3:
                raise RecursionError(name)
            return function(*args)

        return call

    def program(depth, rank, inputs):
        try:
            stack_of(depth)
        except RecursionError:
            return "too deep"
        return "fits"

    expected = emulate(cases.case_4, (2, 3), "gloo").calls
    for depth, name in enumerate(("walk", "call_site", "sources_under")):
        calls = []
        with monkeypatch.context() as patches:
            patches.setattr(labels, name, failing(name))
            assert emulate(partial(program, depth), (1, 1), "gloo").returns == ("too deep",) * 2
        stacks = host.STACKS
        assert len(stacks.frames) == len(stacks.events) == len(stacks.sources), name
        assert emulate(partial(program, depth), (1, 1), "gloo").returns == ("fits",) * 2
        assert emulate(cases.case_4, (2, 3), "gloo").calls.equals(expected)


class AgreedMean(torch.nn.Module):
    """A layer with a collective in forward(), while which other ranks run."""

    def forward(self, x):
        mean = x.mean().reshape(1)
        dist.all_reduce(mean)
        return x - mean


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_ranks_that_are_in_forward_together_leave_later_emulations_as_they_are(backend):
    """While forward() runs, a class attribute of DDP holds the module; then DDP puts the old value back."""

    def program(rank, inputs):
        net = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(1, 1), AgreedMean()))
        active = []
        for x in inputs:
            net(x.reshape(1, 1)).sum().backward()
            active.append(DistributedDataParallel._active_ddp_module is None)
        return active

    for _ in range(2):
        assert emulate(program, (3, 3, 3), backend).returns == ([True] * 3,) * 3
    assert DistributedDataParallel._active_ddp_module is None


# ---------------- children


def test_a_command_that_a_rank_starts_has_the_environment_of_the_rank():
    def program(rank, inputs):
        os.environ["OF_RANK"] = f"by {rank}"
        code = "import os; print(os.environ['RANK'], os.environ['OF_RANK'])"
        return (
            subprocess.check_output([sys.executable, "-c", code], text=True),
            piped(),
            os.system("exit $RANK"),
            subprocess.check_output("echo $RANK $ONLY", shell=True, text=True, env={"ONLY": "1"}),
            spawned(),
        )

    expected = tuple(
        (f"{rank} by {rank}\n",) * 2 + (rank << 8, "1\n", rank + 3) for rank in range(2)
    )
    assert emulate(program, (0, 0)).returns == expected
    assert "RANK" not in os.environ


def piped():
    with os.popen("echo $RANK $OF_RANK") as pipe:
        return pipe.read()


def spawned():
    code = "import os; raise SystemExit(int(os.environ['RANK']) + 3)"  # it loads no torch
    child = multiprocessing.get_context("spawn").Process(target=exec, args=(code,))
    child.start()
    child.join()
    return child.exitcode


def test_a_data_loader_has_workers():
    def program(rank, inputs):
        batches = DataLoader(TensorDataset(torch.arange(4.0)), num_workers=2, batch_size=2)
        found = [batch[0].tolist() for batch in batches]
        dist.barrier()
        return found

    assert both(program) == ([[0.0, 1.0], [2.0, 3.0]],) * 2


def in_child(queue):
    queue.put(
        (os.environ["RANK"], time.sleep is REAL[0], os.getpid() == REAL[1](), dist.is_initialized())
    )
    queue.put(type(sys.stdout).__name__)


REAL = time.sleep, os.getpid


def test_in_a_forked_child_every_function_is_the_original():
    def program(rank, inputs):
        queue = multiprocessing.get_context("fork").SimpleQueue()
        child = multiprocessing.get_context("fork").Process(target=in_child, args=(queue,))
        child.start()
        child.join()
        return child.exitcode, queue.get(), queue.get()

    stream = type(sys.stdout).__name__
    assert both(program) == tuple((0, (str(rank), True, True, False), stream) for rank in (0, 1))


def test_a_child_that_comes_to_the_end_of_the_program_ends_there():
    def program(rank, inputs):
        child = os.fork()
        if child == 0:
            if rank:
                raise SystemExit(3)
            return "the child"
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert both(program) == (0, 1)


def test_a_child_cannot_end_the_process_that_all_ranks_share():
    def program(rank, inputs):
        heard, told = os.pipe()
        child = os.fork()
        if child == 0:
            for kill, target in ((os.kill, os.getppid()), (os.kill, 0), (os.killpg, os.getpgrp())):
                try:
                    kill(target, signal.SIGKILL)
                except RuntimeError as error:
                    os.write(told, b"1" if SHARED[0] in str(error) else b"0")
            os.kill(os.getpid(), signal.SIGKILL)
        _, status = os.waitpid(child, 0)  # os.wait() may take a child of another test
        os.close(told)
        with os.fdopen(heard, "rb") as pipe:
            return pipe.read(), os.waitstatus_to_exitcode(status)

    assert emulate(program, (1,)).returns == ((b"111", -signal.SIGKILL),)


def test_a_child_inherits_no_descriptor_of_joinlab():
    launch(cases.case_2, (1, 1), "gloo", on_output=None)
    server = ForkServer.get()
    ours = {
        os.readlink(f"/proc/self/fd/{one.fileno()}") for one in (server.control, server._errors)
    }

    def program(rank, inputs):
        heard, told = os.pipe()
        child = os.fork()
        if child == 0:
            links = {
                os.readlink(f"/proc/self/fd/{fd}")
                for fd in os.listdir("/proc/self/fd")
                if fd != str(heard)
                if os.path.lexists(f"/proc/self/fd/{fd}")
            }
            os.write(told, json.dumps(sorted(links)).encode())
            os._exit(0)
        os.waitpid(child, 0)
        links = set(json.loads(os.read(heard, 1 << 16)))
        os.close(heard)
        os.close(told)
        return len(links & ours), len(links) > 2

    assert emulate(program, (1,)).returns == ((0, True),)


# ---------------- what cannot be


def profiled(profiler):
    with profiler.profile():
        dist.barrier()


SHARED = "ranks of an emulation share", "use joinlab.launch"
REFUSED = {
    "os.kill": (lambda: os.kill(0, signal.SIGTERM), SHARED),
    "os.killpg": (lambda: os.killpg(os.getpgrp(), signal.SIGTERM), SHARED),
    "os.exec": (lambda: os.execvp("true", ["true"]), SHARED),
    "pthread_kill": (
        lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM),
        SHARED,
    ),
    "cpu time": (lambda: resource.setrlimit(resource.RLIMIT_CPU, (1, 1)), SHARED),
    "hard limit": (lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3)), SHARED),
    "user": (lambda: os.setresuid(65534, 65534, 65534), SHARED),
    "traces": (
        lambda: faulthandler.dump_traceback_later(1000, exit=True),
        ("real seconds", "joinlab.launch"),
    ),
    "alarm": (lambda: signal.alarm(1), ("real seconds", "joinlab.launch")),
    "timer": (lambda: signal.setitimer(signal.ITIMER_REAL, 1), ("real seconds", "joinlab.launch")),
    "profiler": (lambda: profiled(torch.profiler), ("profiler", "joinlab.launch")),
    "autograd's profiler": (
        lambda: profiled(torch.autograd.profiler),
        ("profiler", "joinlab.launch"),
    ),
    "rpc": (lambda: rpc.init_rpc("worker", rank=0, world_size=2), ("one thread per rank",)),
    "spawn": (
        lambda: mp.spawn(print, nprocs=2),
        ("joinlab.emulate(lambda rank, inputs: worker(rank",),
    ),
}


@pytest.mark.parametrize(("deed", "said"), REFUSED.values(), ids=REFUSED)
def test_what_would_reach_beyond_a_rank_is_refused_in_one_sentence(deed, said):
    for end in emulate(lambda rank, inputs: deed(), (1, 1)).ends:
        assert end.kind == EndKind.RAISED and "\n" not in end.text
        assert all(part in end.text for part in said)
    # pytest's own
    assert (
        signal.getitimer(signal.ITIMER_REAL)[0] == 0 or signal.getitimer(signal.ITIMER_REAL)[0] > 2
    )
    assert emulate(cases.case_1, (1, 2)).returns == (1, 2)


def test_calls_refused_in_ranks_work_again_after_the_emulation():
    assert both(lambda rank, inputs: signal.alarm(0)) == (0, 0)  # it takes an alarm back
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        torch.ones(1)
