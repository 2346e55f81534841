"""The emulator: real DDP code on a modelled NCCL or gloo, without a GPU, in milliseconds.

The ranks are threads that run one at a time (scheduler). PyTorch's calls arrive at `group`; the
rank's `host` records them and passes them to the group's fabric (`nccl`, `gloo`), which decides
which calls meet, by the same rules that prove hangs. `isolation` hides all of this from the rest of
the process.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

from joinlab.backend.clock import check_costs
from joinlab.backend.model import Knobs
from joinlab.emulator.again import Rerun
from joinlab.emulator.copies import LARGE
from joinlab.emulator.run import Emulation
from joinlab.emulator.scheduler import current
from joinlab.emulator.warm_up import warm_up
from joinlab.errors import ProgramError
from joinlab.nccl.ring import GPUS
from joinlab.program.program import (
    Program,
    check_inputs,
    check_program,
    check_seconds,
    check_seed,
    current_folder,
    program_name,
)
from joinlab.timeline import Timeline

MAX_EMULATED_RANKS = 1024
"""Ranks are threads of this process; more of them can exceed what a machine allows a process."""

ERAS = ("today", "1.9")


def emulate(
    program: Program,
    inputs: Sequence[int] = (5, 6),
    backend: str = "nccl",
    *,
    era: str = "today",
    barrier_value: int = 7,
    pad: int = 0,
    gpu: str = "A100",
    seed: int | Sequence[int] | None = 0,
    seconds_per_input: float | Sequence[float] = 1e-3,
    latency: float = 20e-6,
    bytes_per_second: float = 10e9,
    timeout: float = 60.0,
    on_output: Callable[[int, str], None] | None = None,
) -> Timeline:
    """Run `program(rank, inputs)` with its ranks as threads on a modelled fabric; return what
    happened.

    inputs             one count per rank, 1 to 1,024 ranks
    backend            "nccl" or "gloo": the fabric that is modelled. Tensors lie in the host's memory with both
    era                what NCCL's barrier is: "today" an all-reduce of a float zero; "1.9" (PyTorch 1.9) of one byte
                       that no one had set
    barrier_value      the 4-byte word that this byte is the lowest of, 0 to 2**32 - 1: a rank whose float meets the
                       barrier reads all of it
    pad                32 bits that no one had set: the upper half of an NCCL line that holds only 4 bytes of data,
                       memory beyond a tensor's storage, and each number in the map of used parameters
                       (find_unused_parameters=True) of a rank that never ran a backward pass
    gpu                "P100", "V100", "A100" or "H100": from which size on NCCL leaves the LL protocol, and whether the
                       threads of a warp progress apart, as since Volta; see nccl/ring.py
    seed               seeds torch, numpy and random on every rank: one int for all, one per rank, or None
    seconds_per_input  virtual time of one input's forward and backward pass: one number, or one per rank
    latency            virtual seconds of a collective, once its ranks are there; bytes_per_second comes on top
    timeout            real seconds after which a rank that still computes is ended
    on_output          called with (rank, line) for each line that a rank printed, after the run

    Like a process, each rank begins with a copy of everything that the program reaches: `self`,
    closures, default arguments, globals and class attributes of its own modules. The caller's
    objects stay unchanged, so `return` whatever you want to look at. An object that cannot be
    copied, such as an open file, raises ProgramError; copies above 64 MB cause a warning. Each rank
    also has its own process groups, random state, settings of torch, environment, working
    directory, stdout, stderr, stdin, signals, clock and exit, and its own values of the names that
    the program sets in libraries (`dist.all_reduce = ...`). All ranks share what libraries keep
    else, the locale, the memory limit, files, and this process: where C code crashes (SIGSEGV), it
    ends, with the notebook. A program that replaces a builtin such as `len`, or sets names of
    libraries where its code does not show it, raises LaunchError.

    A thread that a program starts cannot call collectives here: LaunchError. Launch such a program
    instead. Nor can a program make a second default group after destroy_process_group(), or send to
    a rank that is not in the group: LaunchError, which names the line.

    Other threads of this process keep their environment and clocks. They share torch's random state
    with the rank that runs, and seeds that they set meanwhile are undone at the end. Times in the
    Timeline are virtual: modelled, not measured. The same call gives the same Timeline. Raises
    ProgramError for an invalid program or argument, LaunchError if the result cannot be known
    without a GPU, and LaunchInterrupted, which carries the Timeline so far.

        timeline = joinlab.emulate(joinlab.cases.case_4, inputs=(5, 6), era="1.9")
    """
    check_program(program)
    counts = check_inputs(inputs, MAX_EMULATED_RANKS)
    backend = _choice("backend", backend, ("nccl", "gloo"))
    era = _choice("era", era, ERAS)
    _whole("barrier_value", barrier_value, 2**32 - 1)
    _whole("pad", pad, 2**32 - 1)
    gpu = _choice("gpu", gpu, tuple(GPUS))
    seeds = check_seed(seed, len(counts))
    costs = check_costs(len(counts), seconds_per_input, latency, bytes_per_second)
    seconds = check_seconds("timeout", timeout)
    if on_output is not None and not callable(on_output):
        raise ProgramError(f"on_output= is None or a function of (rank, line); got {on_output!r}")
    if current() is not None:
        raise ProgramError("a program that is being emulated cannot emulate another one")
    current_folder()
    warm_up()
    knobs = Knobs(backend, era, barrier_value, pad, costs, seconds, gpu)
    emulation = Emulation(program, counts, seeds, knobs)
    timeline = emulation.go()
    timeline.live.traces = Rerun(program, counts, seeds, knobs)
    if emulation.copied > LARGE:
        warnings.warn(
            f"each rank began with a copy of the {emulation.copied / 1e6:,.0f} MB that {program_name(program)} refers "
            "to; make large data inside the program to avoid the copies",
            stacklevel=2,
        )
    if on_output is not None:
        emulation.tell(on_output)
    return timeline


def _choice(name: str, value: object, choices: Sequence[str]) -> str:
    named = {choice.lower(): choice for choice in choices}
    if not isinstance(value, str) or value.lower() not in named:
        raise ProgramError(f"{name}= is {' or '.join(map(repr, choices))}; got {value!r}")
    return named[value.lower()]


def _whole(name: str, value: object, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise ProgramError(f"{name}= is a whole number from 0 to {most}; got {value!r}")
