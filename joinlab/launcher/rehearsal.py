"""A run of the first case by one rank alone, before there is anything to run.

It touches what a run will touch: code, caches of torch and Python, the recorder's parts. A server
does it before it forks, and a rank while it waits.
"""

from __future__ import annotations

import io
import pickle
import random
import sys
from contextlib import redirect_stdout

import cloudpickle
import numpy as np
import torch
import torch.distributed as dist

from joinlab import cases
from joinlab.backend.clock import Costs
from joinlab.backend.model import Knobs
from joinlab.backend.play import Call, play
from joinlab.backend.session import MakeFabric
from joinlab.emulator.exchange import Exchange
from joinlab.emulator.messages import RankMessage, Reply
from joinlab.emulator.modelled_rank import InProcess, ModelledRank
from joinlab.emulator.shared_log import shared_memory
from joinlab.gloo.fabric import GlooFabric
from joinlab.nccl.fabric import NcclFabric
from joinlab.program.program import Inputs, Program, call_program

KNOBS = Knobs("nccl", "today", 7, 0, Costs((1_000_000,), 20_000, 10e9), timeout_s=60.0)


MESSAGES: list[bytes] = []
"""What the one rank of a rehearsal sent, for a keeper to rehearse with."""


def rehearse(modelled: ModelledRank, program: Program = cases.case_1, inputs: int = 2) -> None:
    """Run a program as the only rank of an emulation that no one sees."""
    memory = shared_memory()
    transport = InProcess(KNOBS, memory)
    link = modelled.enter(0, 1, KNOBS, transport, memory)
    recorder = modelled.recorder
    excepthook = sys.excepthook
    try:
        recorder.begin({})
        modelled.init_process_group(KNOBS)
        with redirect_stdout(io.StringIO()):
            call_program(program, 0, Inputs(inputs, recorder.mark_input))
        recorder.end_program("its program has returned")
        link.tell("end", None, ())
        transport.finish()
        MESSAGES[:] = map(pickle.dumps, transport.messages)
    finally:
        modelled.leave()
        dist.destroy_process_group()
        sys.excepthook = excepthook  # init_process_group sets one
        recorder.log.close()


def prepare(modelled: ModelledRank, warm: bool) -> None:
    """Do in the process that forks ranks what each of them would have to do first."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    cloudpickle.loads(cloudpickle.dumps(lambda: None))
    if warm:
        for program in (cases.case_2, cases.case_1):
            rehearse(modelled, program, 3)
        rehearse_keeping()


def rehearse_keeping() -> None:
    """Do what a keeper does: answer a rank, and carry out the calls of two."""
    messages = iter(MESSAGES)

    def hear() -> list[tuple[int, RankMessage]]:
        return [(0, pickle.loads(next(messages)))]

    def answer(rank: int, reply: Reply) -> None:
        pickle.dumps(reply)

    Exchange(KNOBS, [shared_memory()], answer, hear).go()
    for fabric in (NcclFabric, GlooFabric):
        for _ in range(2):
            _exchange(fabric)


def _exchange(fabric: MakeFabric) -> None:
    """The calls of case 1 of two ranks."""
    steps = []
    for _ in range(2):
        flag, numbers = torch.ones(1), torch.zeros(8, dtype=torch.uint8)
        both = [torch.ones(1), torch.ones(1)]
        steps.append(
            [
                Call("all_gather", [flag], both),
                Call("broadcast", [numbers]),
                Call("all_reduce", [flag]),
                Call("barrier"),
            ]
        )
    play(steps, fabric)
