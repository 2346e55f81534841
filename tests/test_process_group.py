"""METHODS covers torch's process group methods: a missing one would be launched but not
recorded."""

from __future__ import annotations

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from joinlab.emulator.own import World
from joinlab.program.process_group import METHODS

NO_COLLECTIVES = {
    *(
        "BackendType",
        "CUSTOM",
        "GLOO",
        "MPI",
        "NCCL",
        "UCC",
        "UNDEFINED",
        "XCCL",
        "abort",
        "bound_device_id",
        "boxed",
    ),
    *(
        "get_group_store",
        "group_desc",
        "group_name",
        "merge_remote_group",
        "name",
        "rank",
        "set_timeout",
        "shutdown",
    ),
    *("size", "split_group", "unbox", "use_pg_for_symm_mem_rendezvous"),
    *(
        "get_backend",
        "get_reconfigure_handle",
        "new_window",
        "reconfigure",
        "supports_reconfigure",
        "supports_window",
    ),
    *("supports_abort_hooks", "supports_completion_hooks"),
    *(
        f"{does}_{which}_hook"
        for does in ("register", "unregister")
        for which in ("pre", "post", "abort")
    ),
    "monitored_barrier",  # sends and recvs of its own, through none of these methods
}
"""Public names of the ProcessGroup of torch 2.13 to 2.15 that issue no collective call."""


def test_every_collective_of_torch_is_known() -> None:
    public = {name for name in dir(dist.ProcessGroup) if not name.startswith("_")}
    assert public - set(METHODS) - NO_COLLECTIVES == set()


def test_what_a_rank_knows_of_its_groups_has_all_that_torch_asks_of_it() -> None:
    assert {name for name, one in vars(c10d._World).items() if isinstance(one, property)} <= set(
        dir(World())
    )
