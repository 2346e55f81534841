"""Imports what an emulation needs before it starts: once per process, in a thread of its own.

DDP imports 800 modules when the first model is wrapped (torch._dynamo, sympy), which takes 1.5 to 8
s. If that counted as the emulation's time, a short `timeout=` would cut it off; and an exception
inside an import leaves a module half loaded, for every later use in the process.

This module imports neither torch nor anything that does, so it can say that torch is being loaded.
"""

from __future__ import annotations

from joinlab.interrupts import Background, import_whole

MODULES = (
    *("torch", "torch.distributed"),
    # torch/nn/parallel/distributed.py, DistributedDataParallel.__init__ (v2.13.0) uses
    # torch._dynamo.utils, which torch imports on first use. The first optimizer of torch.optim does
    # so, too (torch/_compile.py, _disable_dynamo).
    *("torch._dynamo", "torch.nn.parallel.distributed"),
    *("joinlab.emulator.emulate", "joinlab.emulator.outcomes"),
)


def warm_up() -> None:
    """Import what an emulation needs; return when it is there. Once it is, later calls return at
    once.

    Any number of threads may call it: the import happens once, and all of them wait for it.
    `emulate` calls it, so an emulation asked for meanwhile waits its turn. What the import raises
    (a package is missing) is raised in each of them; the next call tries again.

        threading.Thread(target=warm_up).start()
    """
    if not _imports.over:
        _imports.wait()


def _import_all() -> None:
    for name in MODULES:
        import_whole(name)


_imports = Background(_import_all)
