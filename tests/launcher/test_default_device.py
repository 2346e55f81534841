"""The default device of a launched rank's tensors, with "meta" in place of a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, WeightedRandomSampler, random_split

from joinlab.launcher.default_device import make_default

DATA = list(range(10))


@pytest.fixture
def meta() -> Iterator[None]:
    make_default(torch.device("meta"))
    yield
    torch.set_default_device(None)


def test_torch_s_own_default_device_makes_shuffling_raise() -> None:
    """On a GPU with "Expected a 'cuda' device type for generator", on meta since nothing is in it."""
    with torch.device("meta"), pytest.raises(RuntimeError):
        list(DistributedSampler(DATA, 2, 0))  # type: ignore[arg-type]


def test_a_program_s_tensors_are_on_it(meta: None) -> None:
    assert torch.get_default_device().type == torch.ones(1).device.type == "meta"
    assert torch.nn.Linear(1, 1).weight.is_meta
    assert torch.ones(1, device="cpu").device.type == "cpu"


def test_numbers_that_torch_draws_for_data_are_on_the_cpu(meta: None) -> None:
    """They come from generators of the CPU, and are read at once."""
    assert sorted(DistributedSampler(DATA, 2, 0, shuffle=True)) != []  # type: ignore[arg-type]
    assert [len(part) for part in random_split(DATA, [7, 3])] == [7, 3]  # type: ignore[arg-type]
    assert len(list(WeightedRandomSampler([1.0] * 10, 4))) == 4
    generator = torch.Generator().manual_seed(1)
    loader: DataLoader[int] = DataLoader(DATA, shuffle=True, generator=generator)  # type: ignore[arg-type]
    assert [batch.device.type for batch in loader] == ["meta"] * 10  # a batch is the program's
    assert torch.randperm(3, generator=generator).device.type == "cpu"


def test_a_program_may_choose_another_default(meta: None) -> None:
    torch.set_default_device("cpu")
    assert torch.ones(1).device.type == "cpu"
