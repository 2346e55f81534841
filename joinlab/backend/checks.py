"""What PyTorch refuses of a list of tensors, in the same words on both backends.

Source: assertTypeAndSizesMatch and its siblings in torch/csrc/distributed/c10d/Utils.hpp, PyTorch
v2.13.0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from joinlab.ops import Op
from joinlab.program.process_group import tensors_in

C_NAMES = {
    torch.float32: "float",
    torch.float64: "double",
    torch.float16: "c10::Half",
    torch.bfloat16: "c10::BFloat16",
    torch.int64: "long int",
    torch.int32: "int",
    torch.int16: "short int",
    torch.int8: "signed char",
    torch.uint8: "unsigned char",
    torch.bool: "bool",
}


def check_alike(
    refused: Callable[[str], Exception], tensors: Sequence[torch.Tensor], model: torch.Tensor
) -> None:
    """assertTypeAndSizesMatch()."""
    for index, tensor in enumerate(tensors):
        if tensor.dtype != model.dtype:
            expected, got = map(_options, (model, tensor))
            raise refused(f"invalid tensor type at index {index} (expected {expected}, got {got})")
        if tensor.shape != model.shape:
            expected, got = map(sizes, (model, tensor))
            raise refused(f"invalid tensor size at index {index} (expected {expected}, got {got})")


def check_at_root(
    refused: Callable[[str], Exception], op: Op, args: Sequence[object], size: int
) -> None:
    """What gather() and scatter() of either backend refuse at the root; `refused` makes its error
    of a text."""
    many, side = (args[0], "output") if op is Op.GATHER else (args[1], "input")
    (tensor,) = tensors_in(args[1] if op is Op.GATHER else args[0])
    tensors = tensors_in(many)
    if len(tensors) != size:
        raise refused(
            f"Incorrect {side} list size {len(tensors)}. {side.capitalize()} list size should be {size}, "
            "same as size of the process group."
        )
    check_alike(refused, tensors, tensor)


def sizes(tensor: torch.Tensor) -> str:
    """The shape of a tensor as PyTorch's C++ prints it."""
    return f"({', '.join(map(str, tensor.shape))})"


def _options(tensor: torch.Tensor) -> str:
    name = C_NAMES.get(tensor.dtype, str(tensor.dtype)[6:])
    return (
        f"TensorOptions(dtype={name}, device=cpu, layout=Strided, requires_grad=false (default), "
        "pinned_memory=false (default), memory_format=(nullopt))"
    )
