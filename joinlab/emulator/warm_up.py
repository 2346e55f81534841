"""Imports what an emulation needs before it starts: once per process, in a thread of its own.

DDP imports 800 modules when the first model is wrapped (torch._dynamo, sympy), which takes 1.5 to 8
s. If that counted as the emulation's time, a short `timeout=` would cut it off; and an exception
inside an import leaves a module half loaded, for every later use in the process.

This module imports neither torch nor anything that does, so it can say that torch is being loaded.
"""

from __future__ import annotations

from collections.abc import Callable

from joinlab.interrupts import Background, import_whole

STEPS = (
    ("loading PyTorch", ("torch", "torch.distributed")),
    # torch/nn/parallel/distributed.py, DistributedDataParallel.__init__ (v2.13.0) uses
    # torch._dynamo.utils, which torch imports on first use. The first optimizer of torch.optim does
    # so, too (torch/_compile.py, _disable_dynamo).
    ("loading what DDP needs", ("torch._dynamo", "torch.nn.parallel.distributed")),
    ("loading the emulator", ("joinlab.emulator.emulate", "joinlab.emulator.outcomes")),
)
"""A line for the user, and the modules that are imported meanwhile."""

_listeners: list[Callable[[str], None]] = []


def warm_up(tell: Callable[[str], None] | None = None) -> None:
    """Import what an emulation needs; return when it is there. Once it is, later calls return at
    once.

    tell  called with a line, such as "loading PyTorch", as each step begins; in the thread that imports

    Any number of threads may call it: the import happens once, and all of them wait for it.
    `emulate` calls it, so an emulation asked for meanwhile waits its turn. What the import raises
    (a package is missing) is raised in each of them; the next call tries again.

        threading.Thread(target=warm_up, args=(print,), daemon=True).start()
    """
    if _imports.over:
        return
    if tell is not None:
        _listeners.append(tell)
    _imports.wait()


def _import_all() -> None:
    try:
        for line, names in STEPS:
            for tell in _listeners:
                tell(line)
            for name in names:
                import_whole(name)
    finally:
        _listeners.clear()


_imports = Background(_import_all)
