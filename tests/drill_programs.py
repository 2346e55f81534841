"""Emulated programs that misbehave, for the drills (drills.py): each rank draws a few of MISDEEDS.

The emulation ends within its timeout, every ending is one sentence, and the process's settings,
threads, descriptors and files are unchanged, as is the next emulation.
"""

from __future__ import annotations

import atexit  # noqa: F401  # named by misdeeds, as io and weakref are
import builtins
import ctypes
import faulthandler
import gc
import io  # noqa: F401
import json
import locale
import logging
import multiprocessing
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
import weakref  # noqa: F401
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.utils.data
from torch.distributed import distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import optimizer as optimizers

from joinlab import cases, emulate
from joinlab.errors import LaunchError
from joinlab.timeline import EndKind

TIMEOUT_S = 1.5
HELD_UP_S = TIMEOUT_S + 60
"""A rank in C code gets 5 s to leave it, and on a loaded machine everything takes longer."""


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError


class Cycle:
    """An object that only a garbage collection frees, and that prints then."""

    def __init__(self) -> None:
        self.me = self

    def __del__(self) -> None:
        print("freed")


def spin() -> None:
    while True:
        pass


def swallow() -> None:
    for _ in range(10**9):
        try:
            time.sleep(1)
        except BaseException:
            continue


def recurse(depth: int = 0) -> int:
    return recurse(depth + 1) + 1


def trace() -> None:
    sys.settrace(lambda *_: None)
    sys.setprofile(lambda *_: None)
    sys.settrace(None)
    sys.setprofile(None)


def child() -> None:
    if os.fork() == 0:
        raise SystemExit(3)
    os.wait()


def workers() -> None:
    list(torch.utils.data.DataLoader([1, 2], num_workers=1))


def thread() -> None:
    done = threading.Event()
    threading.Thread(target=done.set).start()
    done.wait()


def thread_that_calls() -> None:
    one = threading.Thread(target=lambda: dist.all_reduce(torch.ones(1)))
    one.start()
    one.join()


def leave_file() -> None:
    file = open(os.devnull, "w")  # noqa: SIM115  # only the garbage collector closes it
    print("x", file=file)


def huge() -> None:
    torch.empty(10**11)


def backward() -> None:
    model = DDP(torch.nn.Linear(1, 1))
    model(torch.ones(1)).sum().backward()
    model.reducer = None


MISDEEDS = """
spin(); swallow(); recurse(); trace(); child(); workers(); thread(); thread_that_calls(); leave_file(); huge()
backward(); raise UnprintableError; raise KeyboardInterrupt; raise SystemExit("no"); raise GeneratorExit
raise StopIteration; raise MemoryError; raise BaseException; raise RuntimeError(HOSTILE); print(HOSTILE); quit()
sys.exit(); os._exit(3)
os.abort(); os.kill(os.getpid(), signal.SIGKILL); signal.alarm(1); signal.setitimer(signal.ITIMER_REAL, 0.01)
signal.raise_signal(2); signal.signal(signal.SIGINT, signal.SIG_IGN); signal.signal(signal.SIGTERM, print); input()
sys.stdout.close(); sys.stderr.close(); sys.stdin.close(); sys.stdout = None; sys.stderr = io.StringIO(); Cycle()
sys.excepthook = None; sys.setrecursionlimit(60); sys.setswitchinterval(5); gc.disable(); gc.collect()
locale.setlocale(locale.LC_ALL, "C"); os.umask(0o777); os.chdir("/"); os.environ.clear(); os.putenv("X", "y")
resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); sys.path.clear(); sys.meta_path.clear(); sys.argv.clear()
sys.modules.pop("json"); warnings.simplefilter("error"); builtins.print = None; torch.ones = None
torch.Tensor.add = None; dist.all_reduce = None; time.sleep = 1
threading.Thread = None; json.dumps = None; os.getpid = None; random.random = None; torch.nn.Linear.forward = None
np.random.rand = None; np.array = None; torch.set_default_dtype(torch.float64); torch.set_default_device("meta")
torch.set_grad_enabled(False); torch.set_num_threads(2); torch.manual_seed(5); random.seed(1); np.random.seed(1)
torch.use_deterministic_algorithms(True); torch.autograd.set_detect_anomaly(True); np.seterr(all="raise")
dist.destroy_process_group(); atexit.register(leave_file); atexit.register(spin); dist.new_group([0])
logging.basicConfig(level=1, force=True); logging.disable(99); logging.shutdown(); weakref.finalize(Cycle(), print, "x")
multiprocessing.set_start_method("spawn", force=True); dist.init_process_group("nccl"); dist.all_reduce(torch.ones(3))
dist.barrier(); dist.all_reduce("x"); dist.send(torch.ones(1), 77)
gc.set_threshold(1, 2, 3); threading.excepthook = print; builtins.breakpoint = print; builtins.mine = len
sys.path.insert(0, "/nowhere"); sys.modules["json"] = None; torch.relu = None
torch.Tensor.mine = torch.mine = lambda self: 0
torch.set_printoptions(precision=1); np.set_printoptions(precision=1); torch.set_float32_matmul_precision("medium")
dist.set_debug_level(dist.DebugLevel.DETAIL); torch.nn.modules.module.register_module_forward_hook(lambda *_: 1 / 0)
torch.optim.optimizer.register_optimizer_step_pre_hook(print); socket.setdefaulttimeout(0.001); warnings.warn = None
socket.create_connection = None; tempfile.mkdtemp = None; tempfile.tempdir = "/nowhere"; subprocess.run = None
random.shuffle = None; time.monotonic = len; os.environ = {"PATH": "nowhere"}
torch.Tensor.mine = len; builtins.isinstance = None; gc.callbacks.append(print); del builtins.range
threading.settrace(print); threading.setprofile(print); faulthandler.enable(); faulthandler.dump_traceback_later(9)
os.mkdir("gone"); os.chdir("gone"); os.rmdir("../gone")
""".replace("; ", "\n").split("\n")[1:-1]
HOSTILE = "\x1b[2J\ud800\n\x1b]0;x\x07" * 500


GETENV = ctypes.CDLL(None).getenv
GETENV.restype = ctypes.c_char_p


def state() -> dict[str, object]:
    """All of the process's state that an emulation touches."""
    modules = (random, np.random, torch.autograd, dist, c10d, os, time, torch.cuda)
    return {
        "drawn": (torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate()),
        "functions": [
            {name: one for name, one in vars(module).items() if callable(one)} for module in modules
        ],
        "tensor": {
            name: vars(torch.Tensor).get(name)
            for name in dir(torch.Tensor)
            if name[:9] != "_backward"
        },
        "replaced": (
            torch.empty,
            torch.empty_like,
            torch.equal,
            torch._C.Future.wait,
            DDP.forward,
            torch.ones,
        ),
        "patched": (torch.relu, torch.nn.Linear.forward, threading.Thread, json.dumps, np.array),
        "added": (hasattr(torch.Tensor, "mine"), hasattr(torch, "mine")),
        "threads": (
            torch.get_num_threads(),
            [one for one in threading.enumerate() if one.name.startswith("rank ")],
        ),
        "c environ": [GETENV(name) for name in (b"JOINLAB_TEST_LEFT", b"RANK")],
        "world": (c10d._world, dict(c10d._pg_map), c10d._group_count, dist.is_initialized()),
        "backends": (list(dist.Backend.backend_list), dict(dist.Backend._plugins)),
        "libraries": (
            socket.getdefaulttimeout(),
            socket.create_connection,
            tempfile.mkdtemp,
            subprocess.run,
        ),
        "more": (warnings.warn, tempfile.tempdir, id(os.environ)),
        "global hooks": (
            len(torch.nn.modules.module._global_forward_hooks),
            len(optimizers._global_optimizer_pre_hooks),
            len(optimizers._global_optimizer_post_hooks),
        ),
        "python": (
            sys.getrecursionlimit(),
            sys.getswitchinterval(),
            gc.isenabled(),
            gc.get_threshold(),
        ),
        "watchers": (
            list(gc.callbacks),
            threading._trace_hook,
            threading._profile_hook,
            faulthandler.is_enabled(),
        ),
        "locale": locale.setlocale(locale.LC_ALL),
        "umask": (mask := os.umask(0o022), os.umask(mask))[0],
        "limits": [
            resource.getrlimit(one) for one in (resource.RLIMIT_CORE, resource.RLIMIT_NOFILE)
        ],
        "timer": signal.getitimer(signal.ITIMER_REAL)[0] == 0,
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        "hooks": (
            sys.excepthook,
            threading.excepthook,
            logging.root.manager.disable,
            sys.gettrace(),
            sys.getprofile(),
        ),
        "path": (
            list(sys.path),
            list(sys.argv),
            list(sys.meta_path),
            sys.modules["json"],
            sys.modules["random"],
        ),
        "builtins": (print, len, isinstance, quit, breakpoint, getattr(builtins, "mine", None)),
        "filters": list(warnings.filters),
        "print": (
            torch._tensor_str.PRINT_OPTS.precision,
            np.get_printoptions()["precision"],
            np.geterr(),
        ),
        "torch": (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_anomaly_enabled(),
            torch.get_default_dtype(),
        ),
        "modes": (
            torch.is_grad_enabled(),
            torch.get_default_device(),
            torch.get_float32_matmul_precision(),
        ),
        "debug": dist.get_debug_level(),
        "streams": (sys.stdout, sys.stderr, sys.stdin, sys.stdout.closed, sys.stdin.closed),
        "logging": (logging.root.level, list(logging.root.handlers)),
        "processes": multiprocessing.get_start_method(allow_none=True),
        "environ": dict(os.environ),
        "cwd": os.getcwd(),
    }


def descriptors() -> Counter[str]:
    """The open descriptors of this process, each with its count."""
    found: Counter[str] = Counter()
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # listdir's own
            found[os.readlink(f"/proc/self/fd/{number}")] += 1
    return found


def misbehave(draw: random.Random) -> str:
    """Emulate one program; how its ranks ended, or raise AssertionError."""
    ranks = draw.randint(1, 3)
    plans = [[draw.choice(MISDEEDS) for _ in range(draw.randint(0, 3))] for _ in range(ranks)]
    return undisturbed(plans, draw.choice(("gloo", "nccl")), meets=draw.random() < 0.5)


def undisturbed(plans: list[list[str]], backend: Any, meets: bool = False) -> str:
    """Emulate ranks that do this, after a call in which all meet if they do; see `misbehave`."""

    def program(rank: int, inputs: Any) -> Any:
        if meets:
            dist.all_reduce(torch.ones(1))
        for misdeed in plans[rank]:
            exec(misdeed, globals())
        return rank

    before, had, began = state(), descriptors(), time.monotonic()
    threads = {*threading.enumerate()}
    said = "LaunchError"
    try:
        ends = emulate(program, (1,) * len(plans), backend, timeout=TIMEOUT_S).ends
    except LaunchError as error:
        assert "\n" not in str(error), (plans, error)
    else:
        for end in ends:
            wanted = end.text or end.kind in (EndKind.FINISHED, EndKind.HUNG)
            assert wanted and "joinlab/" not in end.text, (plans, end)
        said = ", ".join(sorted({end.kind.value for end in ends}))
    gc.collect()
    assert time.monotonic() - began < HELD_UP_S, (plans, "held the caller up")
    assert list(Path(tempfile.gettempdir()).glob(f"joinlab-{os.getpid()}-*")) == [], plans
    after = state()
    assert (found := [name for name in before if before[name] != after[name]]) == [], (
        plans,
        backend,
        found,
    )
    # those of an earlier launch may end meanwhile
    left = (
        descriptors() - had,
        {*threading.enumerate()} - threads,
    )
    assert left == (Counter(), set()), (plans, backend, left)
    assert emulate(cases.case_1, (1, 1)).returns == (1, 1), plans
    return said
