"""A run of the first cases by one rank alone, before there is anything to run.

It touches what a run will touch: code, caches of torch and Python, the recorder's parts. A server
does it before it forks, and a rank while it waits. Its process group has one rank and no backend,
so no thread either: a process that forks may have none, and gloo's stay while anything refers to
the group.
"""

from __future__ import annotations

import io
import random
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from typing import Any

import cloudpickle
import numpy as np
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from joinlab import cases
from joinlab.program.outcome import versions
from joinlab.program.process_group import METHODS
from joinlab.program.program import Inputs, Program, call_program
from joinlab.recorder.call import ValueReader
from joinlab.recorder.events import nowhere
from joinlab.recorder.group import RecordingGroup, complete_work
from joinlab.recorder.recorder import Recorder


class AloneGroup(dist.ProcessGroup):
    """A process group of one rank: what its calls write is what they read."""

    def __init__(self) -> None:
        super().__init__(0, 1)  # type: ignore[call-arg]


def _method(name: str) -> Callable[..., dist.Work]:
    def issued(self: AloneGroup, *args: object, **kwargs: object) -> dist.Work:
        ins, outs = METHODS[name].tensors((*args, *kwargs.values()))
        for read, written in zip(ins, outs, strict=False):
            if read is not written:
                written.copy_(read.view_as(written))
        return complete_work(outs)

    issued.__name__ = name
    return issued


for _name in METHODS:
    setattr(AloneGroup, _name, _method(_name))


class RehearsedGroup(RecordingGroup):
    """The process group that the program of a rehearsal sees."""

    @property
    def group_name(self) -> Any:
        """Its name in torch.distributed, which otherwise a backend tells."""
        return self.record.label


def _group(recorder: Recorder, options: Any) -> RehearsedGroup:
    readers = {"cpu": ("gloo", ValueReader())}
    return RehearsedGroup(recorder, AloneGroup(), str(options.group_id), [0], readers)


def prepare(recorder: Recorder, warm: bool) -> None:
    """Do in the process that forks ranks what each of them would have to do first."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    cloudpickle.loads(cloudpickle.dumps(lambda: None))
    if warm:
        for program in (cases.case_2, cases.case_1):
            rehearse(recorder, program, 3)


def rehearse(recorder: Recorder, program: Program = cases.case_1, inputs: int = 2) -> None:
    """Run a program as the only rank of a run that no one sees."""
    excepthook = sys.excepthook
    recorder.start(nowhere(), 0)
    recorder.rehearsal = partial(_group, recorder)
    try:
        with redirect_stdout(io.StringIO()):
            recorder.begin(versions())
            dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
            call_program(program, 0, Inputs(inputs, recorder.mark_input))
            recorder.end_program("its program has returned")
            dist.destroy_process_group()
    finally:
        sys.excepthook = excepthook  # init_process_group sets one
        recorder.log.close()
