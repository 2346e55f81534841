"""torch.nn.SyncBatchNorm in host memory: the five kernels that torch has for GPUs only, by their
formulas.

Each rank reduces its own inputs to a mean and an inverse standard deviation per channel; those are
gathered, and combined by the number of values that each stands for. Source:
aten/src/ATen/native/cuda/Normalization.cuh (v2.13.0), batch_norm_collect_statistics,
batch_norm_reduce_statistics, batch_norm_transform_input, batch_norm_backward_reduce and
batch_norm_backward_elemt. Sums are made in another order than on a GPU, so the last bits may
differ.
"""

from __future__ import annotations

import sys

import torch
from torch.nn import SyncBatchNorm
from torch.nn.parallel import DistributedDataParallel

from joinlab.emulator.patches import Patches
from joinlab.emulator.scheduler import current

Tensor = torch.Tensor


def patch_sync_batch_norm(patches: Patches) -> None:
    """Let ranks run it on what they take for tensors on a GPU."""
    # DDP passes nothing to these layers any more: it only checks that they are on a GPU
    # (nn/parallel/distributed.py).
    kernels = (stats, gather_stats_with_counts, elemt, backward_reduce, backward_elemt)
    for kernel in kernels:
        patches.for_ranks(
            torch,
            f"batch_norm_{kernel.__name__}",
            lambda host, kernel=kernel: kernel,  # type: ignore[misc]
        )
    patches.for_ranks(
        DistributedDataParallel,
        "_passing_sync_batchnorm_handle",
        lambda host: lambda model, module: None,
    )
    name_of_other = torch._C._get_privateuse1_backend_name

    def accepted() -> str:
        """SyncBatchNorm.forward asks for GPUs, or the device type that an extension of torch has
        registered."""
        asks = sys._getframe(1).f_code is SyncBatchNorm.forward.__code__
        if asks and current() is not None:
            return "cpu"
        return name_of_other()

    patches.set(torch._C, "_get_privateuse1_backend_name", accepted)


def _per_channel(value: Tensor, like: Tensor) -> Tensor:
    """A value for each channel, in a shape that is broadcast over `like` (batch, channels, ...)."""
    return value.reshape(1, -1, *[1] * (like.dim() - 2))


def _sum(value: Tensor) -> Tensor:
    """Sum over all but the channels."""
    return value.sum([0, *range(2, value.dim())])


def stats(input: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Mean and inverse standard deviation of each channel.

    >>> [value.item() for value in stats(torch.tensor([[1.0], [3.0]]), 0.0)]
    [2.0, 1.0]
    """
    variance, mean = torch.var_mean(input.float(), [0, *range(2, input.dim())], correction=0)
    return mean, (variance + eps).rsqrt()


def gather_stats_with_counts(
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    """Those of all ranks together; mean and invstd have a row per rank, counts a number. Updates
    the running ones."""
    weights = counts.reshape(-1, 1).to(mean.dtype)
    total = weights.sum()
    joint = (mean * weights).sum(0) / total
    variance = ((invstd**-2 - eps + (mean - joint) ** 2) * weights).sum(0) / total
    if running_mean is not None:
        running_mean.mul_(1 - momentum).add_(joint.to(running_mean.dtype), alpha=momentum)
    if running_var is not None:
        unbiased = variance * total / (total - 1)
        running_var.mul_(1 - momentum).add_(unbiased.to(running_var.dtype), alpha=momentum)
    return joint, (variance + eps).rsqrt()


def elemt(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    invstd: Tensor,
    eps: float,
) -> Tensor:
    """The input, normalised."""
    normalised = (input - _per_channel(mean, input)) * _per_channel(invstd, input)
    if weight is not None:
        normalised = normalised * _per_channel(weight, input)
    if bias is not None:
        normalised = normalised + _per_channel(bias, input)
    return normalised.to(input.dtype)


def backward_reduce(
    grad: Tensor,
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    *needed: object,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sums over this rank's inputs: of dy, of dy (x - mean), and the gradients of weight and
    bias."""
    sum_dy = _sum(grad.float())
    sum_dy_xmu = _sum(grad.float() * (input - _per_channel(mean, input)))
    return sum_dy, sum_dy_xmu, sum_dy_xmu * invstd, sum_dy.clone()


def backward_elemt(
    grad: Tensor,
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    sum_dy: Tensor,
    sum_dy_xmu: Tensor,
    counts: Tensor,
) -> Tensor:
    """The gradient of the input; the two sums are those of all ranks."""
    total = counts.sum()
    about_mean = (input - _per_channel(mean, input)) * _per_channel(
        invstd**2 * sum_dy_xmu / total, input
    )
    gradient = (grad - _per_channel(sum_dy / total, input) - about_mean) * _per_channel(
        invstd, input
    )
    return (gradient if weight is None else gradient * _per_channel(weight, input)).to(input.dtype)
