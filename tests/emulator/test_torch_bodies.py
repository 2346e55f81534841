"""A sample of PyTorch's own distributed tests passes emulated and launched. `python -m
tests.torch_bodies` runs all."""

from __future__ import annotations

import subprocess
import sys

import pytest

SAMPLE = (
    "test_batch_isend_irecv_gloo_tags",
    "test_broadcast_full_group",
    "test_scatter_complex",
    "test_accumulate_gradients_no_sync",
    "test_gather_object_subgroup",
    "test_undefined_grad_parity_unused_parameters",
)


@pytest.mark.slow
def test_bodies_pass_on_both_engines():
    """In a process of their own: the runner changes torch."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.torch_bodies", *SAMPLE], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout + run.stderr[-2000:]
    assert f"{len(SAMPLE)} bodies run, {len(SAMPLE)} pass" in run.stdout
