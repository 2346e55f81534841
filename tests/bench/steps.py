"""The step time of a DDP loop with and without the recorder, in the same processes, block by block
in turn.

Each block of steps is compared with the bare block beside it, and the median of these ratios is
told: other work on the machine lasts longer than a round, and so slows both sides. A second bare
loop runs beside them: its ratio to the first is what this machine's noise alone makes of nothing.
The CPU time of all threads of a rank stands beside the time that passed: other processes and the
other rank disturb it less. Which loop is made first decides where its tensors lie in memory, and
that makes a large model's step up to 3 % longer: so each loop is made first in one launch of three.

What a recorded step of one bucket costs is nine appends to the log: the begin and end of three host
spans (forward, backward, optimizer), and call, wait and wake. Measured in CPU time in one process,
beside other work: 66 us more than 289 at 4,160 parameters, of which the spans alone are 34; 242
more than 2,320 at a million, the spans 170 (bare again 37 less). Nine appends take 3 us in a loop
of their own. The rest is the Python around them, and the larger the model, the less of it the step
leaves in the caches.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench.figures import Figure, ms

ROUNDS = 50
"""Rounds of one block of each loop in one launch, in an order that turns."""
WARM_UP = 3
"""Rounds before: they rebuild buckets and warm caches."""
LOOPS = ("bare", "bare again", "recorded")


def measure() -> Iterator[Figure]:
    """The tiniest model, one whose step takes some 1.5 ms on two idle cores, and one of a few
    million parameters."""
    yield _figure("recorded / bare step, 2 parameters", width=1, layers=1, steps=15, aim="not set")
    yield _figure(
        "recorded / bare step, 4,160 parameters", width=64, layers=1, steps=15, aim="1.10 at 1.3 ms"
    )
    yield _figure(
        "recorded / bare step, 2.1 million parameters",
        width=1024,
        layers=2,
        steps=1,
        aim="at most 1.02",
    )


def _figure(what: str, width: int, layers: int, steps: int, aim: str) -> Figure:
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in LOOPS}
    for first in range(len(LOOPS)):
        names = (*LOOPS[first:], *LOOPS[:first])
        for name, those in _launch(names, width, layers, steps).items():
            samples[name] += those
    wall, cpu = (
        {name: [one[at] for one in those] for name, those in samples.items()} for at in (0, 1)
    )
    said = ", ".join(
        f"{name} {_ratio(of, 'recorded'):.3f} (bare again {_ratio(of, 'bare again'):.3f}), {_more(of):+.0f} us"
        for name, of in (("time", wall), ("CPU", cpu))
    )
    return Figure(
        what, f"{ms(wall['recorded'])} / {ms(wall['bare'])}, CPU {ms(cpu['bare'])}", said, aim
    )


def _launch(
    names: tuple[str, ...], width: int, layers: int, steps: int
) -> dict[str, list[tuple[float, float]]]:
    """Seconds of each block per step, and CPU seconds; the loops are made in the order of
    `names`."""
    with tempfile.TemporaryDirectory() as folder:
        pids = []
        for rank in (0, 1):
            pid = os.fork()
            if pid == 0:
                _rank(Path(folder), rank, names, width, layers, steps)
            pids.append(pid)
        for pid in pids:
            _, status = os.waitpid(pid, 0)
            if status:
                raise RuntimeError(f"a rank of the benchmark ended with status {status}")
        samples: dict[str, list[tuple[float, float]]] = json.loads(
            (Path(folder) / "samples.json").read_text()
        )
        return samples


def _ratio(of: dict[str, list[float]], name: str) -> float:
    return median(one / bare for one, bare in zip(of[name], of["bare"], strict=True))


def _more(of: dict[str, list[float]]) -> float:
    return 1e6 * median(one - bare for one, bare in zip(of["recorded"], of["bare"], strict=True))


def _rank(
    folder: Path, rank: int, names: tuple[str, ...], width: int, layers: int, steps: int
) -> None:
    try:
        samples = _blocks(folder, rank, names, width, layers, steps)
        if rank == 0:
            (folder / "samples.json").write_text(json.dumps(samples))
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _blocks(
    folder: Path, rank: int, names: tuple[str, ...], width: int, layers: int, steps: int
) -> dict[str, list[tuple[float, float]]]:
    import torch
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d
    from torch.nn.parallel import DistributedDataParallel as DDP
    from torch.optim import optimizer

    from joinlab.recorder.bounded_log import BoundedLog
    from joinlab.recorder.install import install
    from joinlab.recorder.recorder import Recorder

    torch.set_num_threads(1)
    bare_functions = _functions()
    store: Any = dist.FileStore(str(folder / "store"), 2)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    bare_group = dist.group.WORLD
    helper = c10d._new_process_group_helper
    log = BoundedLog(folder, rank, print)  # as joinlab.record writes
    recorder = Recorder(log, rank)
    install(recorder, {})
    recorded_group = dist.new_group([0, 1])
    c10d._new_process_group_helper = helper
    recorded_functions = _functions()
    hooks = (
        dict(optimizer._global_optimizer_pre_hooks),
        dict(optimizer._global_optimizer_post_hooks),
    )

    def model() -> torch.nn.Module:
        parts = [
            part for _ in range(layers) for part in (torch.nn.Linear(width, width), torch.nn.ReLU())
        ]
        return torch.nn.Sequential(*parts[:-1])

    def turn(recorded: bool) -> None:
        for (owner, name), function in (recorded_functions if recorded else bare_functions).items():
            setattr(owner, name, function)
        for live, kept in zip(
            (optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks),
            hooks,
            strict=True,
        ):
            live.clear()
            if recorded:
                live.update(kept)

    loops = {}
    for name in names:
        turn(name == "recorded")
        ddp = DDP(model(), process_group=recorded_group if name == "recorded" else bare_group)
        loops[name] = (ddp, torch.optim.SGD(ddp.parameters(), lr=1e-3))

    x = torch.ones(8, width)

    def block(name: str) -> tuple[float, float]:
        turn(name == "recorded")
        ddp, sgd = loops[name]
        began, used = time.perf_counter(), time.process_time()
        for _ in range(steps):
            sgd.zero_grad()
            ddp(x).sum().backward()
            sgd.step()
        return (time.perf_counter() - began) / steps, (time.process_time() - used) / steps

    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in LOOPS}
    for i in range(ROUNDS + WARM_UP):
        for name in (*names[i % 3 :], *names[: i % 3]):
            measured = block(name)
            if i >= WARM_UP:
                samples[name].append(measured)
    return samples


def _functions() -> dict[tuple[Any, str], Any]:
    """Everything that the recorder replaces in torch, apart from the creation of groups."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    places = [
        (DistributedDataParallel, "forward"),
        (torch.autograd, "backward"),
        (torch._C.Future, "wait"),
    ]
    return {(owner, name): getattr(owner, name) for owner, name in places}
