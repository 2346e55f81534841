"""The bench's engines, the knobs of each, and whether this machine has it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from joinlab.errors import LaunchError


@dataclass(frozen=True, slots=True)
class Engine:
    """One way to run a program.

    name      what Python calls it, "emulated nccl 1.9"
    label     what the bench says
    backend   as `emulate` and `launch` take it
    launched  real processes; else threads on a modelled fabric
    era       as `emulate` takes it
    """

    name: str
    label: str
    backend: str
    launched: bool = False
    era: str = "today"


ENGINES: Mapping[str, Engine] = {
    engine.name: engine
    for engine in (
        Engine("emulated nccl", "NCCL today", "nccl"),
        Engine("emulated nccl 1.9", "NCCL 1.9", "nccl", era="1.9"),
        Engine("emulated gloo", "gloo", "gloo"),
        Engine("launched gloo", "▶ really, on gloo", "gloo", launched=True),
        Engine("launched nccl", "▶ really, on NCCL", "nccl", launched=True),
    )
}
"""By name."""


def knobs(engine: Engine, case: int) -> tuple[str, ...]:
    """The knobs that change how a case ends; for a program of the learner's own (0), all knobs of the
    engine."""
    if engine.launched or engine.backend != "nccl":
        return ()
    from joinlab.cases import ALL_KNOBS, CASES  # imports torch

    return (CASES[case].knobs if case else ALL_KNOBS)[engine.era]


def missing(engine: Engine, ranks: int) -> str:
    """Why this machine cannot run that many ranks on this engine; "" if it can."""
    if not engine.launched:
        return ""
    if not hasattr(os, "fork"):
        return "This system cannot fork processes (Linux, macOS, and Windows with WSL can). The emulated ones work."
    import torch

    from joinlab.launcher.launcher import choose_backend

    version: tuple[int, ...] = (0, 0, 0)
    if engine.backend == "nccl" and torch.cuda.is_available():
        version = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    machine = {"gpus": torch.cuda.device_count(), "nccl": ".".join(map(str, version))}
    try:
        choose_backend(machine, engine.backend, ranks)
    except LaunchError as error:
        return str(error)
    return ""
