"""METHODS covers torch's process group methods: a missing one would be launched but not
recorded."""

from __future__ import annotations

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from joinlab.emulator.rank_state import World
from joinlab.program.process_group import METHODS, Form

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

NO_COLLECTIVES_EITHER = {
    *("_backend_id", "_device_types", "_enable_collectives_timing", "_end_coalescing"),
    *("_get_backend", "_get_backend_name", "_get_sequence_number_for_group", "_has_hooks", "_id"),
    *("_pybind11_conduit_v1_", "_register_backend", "_register_on_completion_hook"),
    *("_set_default_backend", "_set_group_desc", "_set_group_name"),
    *("_set_sequence_number_for_group", "_start_coalescing", "_wait_for_pending_works"),
}
"""Those with an underscore, of torch 2.13."""


def test_every_collective_of_torch_is_known() -> None:
    """Also where its name begins with an underscore, as `_allgather_base`."""
    names = {name for name in dir(dist.ProcessGroup) if not name.startswith("__")}
    assert names - set(METHODS) - NO_COLLECTIVES - NO_COLLECTIVES_EITHER == set()
    assert not set(METHODS) & (NO_COLLECTIVES | NO_COLLECTIVES_EITHER)


def test_the_form_of_a_method_is_what_its_name_says() -> None:
    for name, method in METHODS.items():
        single = ("base" in name or "single" in name or "into" in name) and "coalesced" not in name
        assert (method.form is Form.COALESCED) == ("coalesced" in name)
        assert (method.form is Form.SINGLE) == single, name


def test_what_a_rank_knows_of_its_groups_has_all_that_torch_asks_of_it() -> None:
    assert {name for name, one in vars(c10d._World).items() if isinstance(one, property)} <= set(
        dir(World())
    )
