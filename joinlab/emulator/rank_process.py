"""Limits calls that would end, delay or outlive a process to the calling rank, since all ranks
share one process.

A signal that a rank sends itself goes to the handler it has set, or ends the rank as it would end a
process. Clocks show virtual time. Calls that need a process or real time of their own raise, and
say what to write instead.
"""

from __future__ import annotations

import _thread
import atexit
import builtins
import faulthandler
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch.distributed import rpc

from joinlab.emulator.patches import Make, Patches
from joinlab.emulator.scheduler import Thread, adopt

if sys.platform != "win32":
    import _posixsubprocess
    import resource

EPOCH_NS = 1_635_724_800_000_000_000
"""First value of time.time_ns(): 1 November 2021, 0:00 UTC. Always the same, so that a run can be
repeated."""

CLOCK_NS = 1_000
"""Virtual time that reading a clock takes, so that a loop that waits for a time comes to an end."""

PID_STEP = 2**22
"""Distance of the ranks' process ids: above PID_MAX_LIMIT of Linux (include/linux/threads.h,
v6.12), so that no other process has one of them."""

IDS = (
    "setuid",
    "seteuid",
    "setreuid",
    "setresuid",
    "setgid",
    "setegid",
    "setregid",
    "setresgid",
    "setgroups",
)
"""Functions that change the user or the groups of a process."""

_IGNORED = {"SIGCHLD", "SIGCONT", "SIGURG", "SIGWINCH"}
"""Signals that do nothing to a process without a handler."""


def patch_process(patches: Patches, pid: int) -> None:
    """Replace what concerns the process; `pid` is that of this one."""
    patches.for_ranks(time, "sleep", lambda host: host.sleep)
    patches.for_ranks(os, "_exit", lambda host: host.exit_process)
    patches.for_ranks(os, "abort", lambda host: lambda: _signal(host, signal.SIGABRT))
    patches.for_programs(os, "getpid", lambda host: lambda: _pid(host, pid))
    patches.for_ranks(os, "kill", lambda host, kill=os.kill: _kill(host, pid, kill))  # type: ignore[misc]
    for name in ("execv", "execve"):  # which the others call
        patches.for_ranks(os, name, lambda host: _no_exec)
    for name in filter(os.__dict__.get, IDS):
        refuse = _refusal(f"os.{name} {_NO_ID}")
        patches.for_ranks(os, name, lambda host, refuse=refuse: refuse)  # type: ignore[misc]
    if sys.platform != "win32":
        group = _no_kill("os.killpg", os.killpg)
        thread = _no_kill("pthread_kill", signal.pthread_kill)
        limit = _limits()
        patches.for_ranks(os, "killpg", lambda host: group)
        patches.for_ranks(signal, "pthread_kill", lambda host: thread)
        patches.for_ranks(resource, "setrlimit", lambda host: limit)
    for name in ("chdir", "fchdir"):
        if hasattr(os, name):
            patches.for_ranks(os, name, _chdir(getattr(os, name)))
    patches.for_ranks(atexit, "register", lambda host: _register(host.state.at_exit))
    _patch_signals(patches)
    _patch_faulthandler(patches)
    if sys.platform != "win32":
        _patch_children(patches)
    _patch_clocks(patches)
    _patch_leaving(patches)
    _patch_threads(patches)
    for owner in (torch.autograd.profiler.profile, torch.profiler.profiler._KinetoProfile):
        patches.for_ranks(owner, "__init__", lambda host: _no_profiler)
    for name in ("spawn", "start_processes"):
        patches.for_ranks(torch.multiprocessing, name, lambda host: _no_spawn)
    patches.for_ranks(rpc, "init_rpc", lambda host: _no_rpc)


# ---------------- signals and process ids


def _pid(host: Any, pid: int) -> int:
    return int(pid + PID_STEP * (host.rank + 1))


def _kill(host: object, pid: int, kill: Callable[[int, int], None]) -> Callable[[int, int], None]:
    def kill_rank(target: int, number: int) -> None:
        if target not in (pid, _pid(host, pid)):
            _no_kill("os.kill", kill, of_group=target <= 0)(target, number)
        elif number:
            _signal(host, number)

    return kill_rank


def spare_kernel(pid: int) -> None:
    """In a forked child: refuse signals to the process `pid`, which all ranks share, and to its
    group."""
    kill = os.kill

    def kill_others(target: int, number: int) -> None:
        _no_kill("os.kill", kill, of_group=target <= 0 or target == pid)(target, number)

    os.kill, os.killpg = kill_others, _no_kill("os.killpg", os.killpg)


def _no_kill(
    name: str, kill: Callable[[int, int], None], of_group: bool = True
) -> Callable[[int, int], None]:
    def refuse(target: int, number: int) -> None:
        if number and of_group and (name != "os.killpg" or target == os.getpgrp()):
            raise RuntimeError(
                f"{name}({target}, {number}) would end the process that all ranks of an emulation share, and this "
                "notebook with it. End a rank by os.kill(os.getpid(), ...), or use joinlab.launch."
            )
        kill(target, number)

    return refuse


def _signal(host: Any, number: int) -> None:
    """What the signal does to this rank."""
    signal_number = signal.Signals(number)
    handler = host.state.handlers.get(signal_number, signal.SIG_DFL)
    if callable(handler):
        handler(int(signal_number), sys._getframe(2))
    elif handler is not signal.SIG_IGN and signal_number.name not in _IGNORED:
        if signal_number is signal.SIGINT:
            raise KeyboardInterrupt
        host.die_of(signal_number)


def _patch_signals(patches: Patches) -> None:
    def set_handler(host: Any) -> Callable[[int, object], object]:
        def set_here(number: int, handler: object) -> object:
            signal_number = signal.Signals(number)
            if signal_number in (signal.SIGKILL, signal.SIGSTOP):
                raise OSError(22, "Invalid argument")
            if not callable(handler) and handler not in (signal.SIG_IGN, signal.SIG_DFL):
                raise TypeError(
                    "signal handler must be signal.SIG_IGN, signal.SIG_DFL, or a callable object"
                )
            before = host.state.handlers.get(signal_number, signal.SIG_DFL)
            host.state.handlers[signal_number] = handler
            return before

        return set_here

    patches.for_ranks(signal, "signal", set_handler)
    patches.for_ranks(
        signal,
        "getsignal",
        lambda host: lambda number: host.state.handlers.get(number, signal.SIG_DFL),
    )
    patches.for_ranks(signal, "raise_signal", lambda host: lambda number: _signal(host, number))
    for name in ("alarm", "setitimer"):
        if hasattr(signal, name):
            patches.for_ranks(signal, name, lambda host, name=name: _no_timer(name))  # type: ignore[misc]


def _no_timer(name: str) -> Callable[..., object]:
    def refuse(*args: object) -> object:
        # setitimer's first argument says which timer; zeros take one back
        if any(args[name == "setitimer" :]):
            raise RuntimeError(
                f"signal.{name} counts real seconds, and its signal would reach all ranks of an emulation: they share "
                "one process. Leave it out, or use joinlab.launch."
            )
        return 0 if name == "alarm" else (0.0, 0.0)

    return refuse


def _patch_faulthandler(patches: Patches) -> None:
    """It serves a whole process, in real seconds: a rank's calls do nothing, and what would end this
    process is refused."""
    patches.for_ranks(faulthandler, "dump_traceback_later", lambda host: _no_later_exit)
    for name in ("enable", "disable", "cancel_dump_traceback_later", "register", "unregister"):
        if hasattr(faulthandler, name):
            patches.for_ranks(faulthandler, name, lambda host: lambda *_, **__: None)


def _no_later_exit(
    timeout: float, repeat: bool = False, file: object = None, exit: bool = False
) -> None:
    if exit:
        raise RuntimeError(
            "faulthandler.dump_traceback_later(exit=True) counts real seconds and would end the process that all ranks "
            "of an emulation share, and this notebook with it. Leave it out, or use joinlab.launch."
        )


def _patch_children(patches: Patches) -> None:
    """A command that a rank starts without `env=` gets the rank's environment, not that of the
    process."""
    index = 5  # of the environment, in fork_exec (_posixsubprocess.c, Python v3.11 to v3.14)

    def starts(start: Callable[..., int]) -> Make:
        def of(host: Any) -> Callable[..., int]:
            def start_here(*args: object) -> int:
                values = list(args)
                if values[index] is None:
                    pairs = host.state.environ.items()
                    values[index] = [name + b"=" + value for name, value in pairs]
                return start(*values)

            return start_here

        return of

    for owner, name in ((subprocess, "_fork_exec"), (_posixsubprocess, "fork_exec")):
        if hasattr(owner, name):
            patches.for_ranks(owner, name, starts(getattr(owner, name)))
    patches.for_ranks(os, "system", lambda host: _system)


def _system(command: Any) -> int:
    code = subprocess.call(command, shell=True)
    return code << 8 if code >= 0 else -code


# ---------------- clocks


def _patch_clocks(patches: Patches) -> None:
    def reads(start_ns: int, whole: bool) -> Callable[[object], Callable[[], float]]:
        def of(host: Any) -> Callable[[], float]:
            host.work_for(CLOCK_NS)
            ns: int = start_ns + host.now
            return lambda: ns if whole else ns / 1e9

        return of

    for name, start_ns in (("time", EPOCH_NS), ("perf_counter", 0), ("monotonic", 0)):
        patches.for_programs(time, name, reads(start_ns, whole=False))
        patches.for_programs(time, f"{name}_ns", reads(start_ns, whole=True))


# ---------------- leaving


def _chdir(chdir: Callable[[object], None]) -> Make:
    def of(host: Any) -> Callable[[object], None]:
        def change(path: object) -> None:
            chdir(path)
            try:
                folder: str | int = os.open(".", os.O_RDONLY)
            except OSError:  # too many descriptors, no right to list it, or another system
                folder = os.getcwd()
            host.state.leave(folder)

        return change

    return of


def _register(at_exit: list[Callable[[], object]]) -> Callable[..., object]:
    def register_here(function: Any, *args: object, **kwargs: object) -> object:
        at_exit.append(lambda: function(*args, **kwargs))
        return function

    return register_here


def _patch_leaving(patches: Patches) -> None:
    """quit() and exit() end the rank. IPython's own would end the kernel."""
    for name in ("quit", "exit"):
        if hasattr(builtins, name):
            patches.for_ranks(builtins, name, lambda host: _leave)
    for name in ("ExitAutocall", "ZMQExitAutocall"):
        owner = getattr(sys.modules.get("IPython.core.autocall"), name, None)
        if owner is not None and "__call__" in vars(owner):
            patches.for_ranks(owner, "__call__", lambda host: lambda caller, *args: _leave(*args))


def _leave(code: object = None) -> NoReturn:
    raise SystemExit(code)


def _patch_threads(patches: Patches) -> None:
    start = Thread.start

    def started(thread: Thread) -> None:
        adopt(thread)
        start(thread)

    def start_new_thread(function: Any, args: Any = (), kwargs: Any = None) -> int | None:
        thread = Thread(target=function, args=args, kwargs=kwargs, daemon=True)
        thread.start()
        return thread.ident

    patches.set(Thread, "start", started)
    patches.for_ranks(_thread, "start_new_thread", lambda host: start_new_thread)


# ---------------- what cannot be


def _refusal(text: str) -> Callable[..., NoReturn]:
    def refuse(*args: object, **kwargs: object) -> NoReturn:
        raise RuntimeError(text)

    return refuse


_NO_ID = (
    "would change the user or the groups of the process that all ranks of an emulation share. Leave it out, or use "
    "joinlab.launch."
)
_no_exec = _refusal(
    "os.exec would replace the process that all ranks of an emulation share, and this notebook with it. Start the "
    "command by subprocess.run, or use joinlab.launch."
)
_no_profiler = _refusal(
    "torch's profiler records a whole process, and all ranks of an emulation share one. Take the profiler out of the "
    "program, or use joinlab.launch."
)
_no_rpc = _refusal(
    "torch.distributed.rpc answers other ranks from threads of its own, and an emulation runs one thread per rank. "
    "Use joinlab.launch."
)
_no_spawn = _refusal(
    "joinlab starts the ranks itself, so the program cannot start them by mp.spawn. Emulate the function that mp.spawn "
    "was given: joinlab.emulate(lambda rank, inputs: worker(rank, *args), inputs=(5, 6))."
)


def _limits() -> Callable[[int, tuple[int, int]], None]:
    setrlimit = resource.setrlimit

    def limit(which: int, limits: tuple[int, int]) -> None:
        hard = resource.getrlimit(which)[1]
        lowered = limits[1] != resource.RLIM_INFINITY and not 0 <= hard <= limits[1]
        if which == resource.RLIMIT_CPU or lowered:
            raise RuntimeError(
                "all ranks of an emulation share this process: a limit of its CPU time would end it, and a hard limit "
                "cannot be raised again. Set the soft limit alone, or use joinlab.launch."
            )
        setrlimit(which, limits)

    return limit
