"""Which operations make the host wait on a GPU: where the dispatcher calls them, whatever their name
in Python."""

from __future__ import annotations

import threading

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler

from joinlab import emulate
from joinlab.program.host_syncs import SYNCING_OPS, observe

X = torch.arange(6.0)
MASK = X > 2
ONES = torch.ones(6, dtype=torch.long)
ALIGNED = torch.eye(2)

WAITS = {
    "x[mask]": lambda: X[MASK],
    "x[mask] = y": lambda: X.clone().__setitem__(MASK, X[:3]),
    "x[mask].mean()": lambda: X[MASK].mean(),
    "masked_select": lambda: X.masked_select(MASK),
    "nonzero": lambda: torch.nonzero(MASK),
    "x.nonzero()": lambda: MASK.nonzero(as_tuple=True),
    "argwhere": lambda: torch.argwhere(MASK),
    "where(mask)": lambda: torch.where(MASK),
    "unique": lambda: X.unique(),
    "unique by rows": lambda: torch.unique(X.view(2, 3), dim=0),
    "unique_consecutive": lambda: torch.unique_consecutive(X),
    "allclose": lambda: torch.allclose(X, X),
    "equal": lambda: torch.equal(X, X),
    "is_nonzero": lambda: torch.is_nonzero(X[1]),
    "bincount": lambda: torch.bincount(ONES),
    "repeat_interleave": lambda: torch.repeat_interleave(X, ONES),
    "one_hot": lambda: torch.nn.functional.one_hot(ONES),
    "multinomial": lambda: torch.multinomial(X, 2),
    "inv": lambda: torch.linalg.inv(ALIGNED),
    "cholesky": lambda: torch.linalg.cholesky(ALIGNED),
}
DOES_NOT = {
    "x[mask] = 0": lambda: X.clone().__setitem__(MASK, 0.0),
    "masked_fill": lambda: X.masked_fill(MASK, 0.0),
    "where(mask, x, y)": lambda: torch.where(MASK, X, X),
    "x[indices]": lambda: X[ONES],
    "repeat_interleave, size known": lambda: torch.repeat_interleave(X, ONES, output_size=6),
    "one_hot, classes known": lambda: torch.nn.functional.one_hot(ONES, 2),
    "multinomial, replaced": lambda: torch.multinomial(X, 2, replacement=True),
    "cross_entropy, ignored": lambda: torch.nn.functional.cross_entropy(
        torch.zeros(2, 3), torch.tensor([0, -100])
    ),
    "clip_grad_norm_": lambda: torch.nn.utils.clip_grad_norm_([torch.nn.Parameter(X)], 1.0),
    "count_nonzero": lambda: torch.count_nonzero(X),
    "sum, max, sort": lambda: (X.sum(), X.max(), X.sort()),
}


def syncs(run) -> int:
    """How often the host would wait for its stream."""
    seen: list[int] = []
    observe(lambda: seen.append(1))
    try:
        run()
    finally:
        observe(None)
    return len(seen)


@pytest.mark.parametrize("name", WAITS)
def test_the_host_waits(name):
    assert syncs(WAITS[name]) >= 1
    assert syncs(lambda: None) == 0


@pytest.mark.parametrize("name", DOES_NOT)
def test_the_host_runs_on(name):
    assert syncs(DOES_NOT[name]) == 0


def test_every_operation_has_its_own_kernel_and_results_stay_the_same():
    for name in SYNCING_OPS:
        packet, _, overload = name.partition(".")
        assert getattr(getattr(torch.ops.aten, packet), overload or "default") is not None
    expected = {name: run() for name, run in WAITS.items() if name != "multinomial"}
    observe(lambda: None)
    try:
        for name, value in expected.items():
            assert str(WAITS[name]()) == str(value)
        grown = torch.ones(3, requires_grad=True)
        grown[torch.tensor([True, False, True])].sum().backward()
        assert grown.grad.tolist() == [1.0, 0.0, 1.0]
    finally:
        observe(None)


def test_other_threads_do_not_observe_and_errors_pass_through():
    class Ended(BaseException):
        pass

    def end():
        raise Ended

    observe(end)
    try:
        other = threading.Thread(target=WAITS["x[mask]"])
        other.start()
        other.join()
        with pytest.raises(Ended):
            X[MASK]
    finally:
        observe(None)
    assert X[MASK].tolist() == [3.0, 4.0, 5.0]


def test_compiled_code_waits_too():
    compiled = torch.compile(lambda x: x[x > 2].sum(), backend="eager")
    assert compiled(X).item() == 12.0
    assert syncs(lambda: compiled(X)) >= 1


# ---------------- ranks


def uneven(step, make_optimizer=None):
    """A loop of one input more on rank 1; `step` makes a loss of the model's output."""

    def program(rank, inputs):
        model = DDP(torch.nn.Linear(1, 2))
        optimizer = None if make_optimizer is None else make_optimizer(model.parameters())
        for input in inputs:
            step(model(input)).backward()
            if optimizer is not None:
                optimizer.step()

    return [str(end) for end in emulate(program, (3, 4)).ends]


PENDING = ["finished", "finished (a call still pending)"]
HUNG = ["finished", "hung (proven)"]


def test_an_uneven_loop_hangs_where_its_host_waits_in_a_masked_loss():
    """Rank 1's fourth backward pass waits in vain."""
    assert uneven(lambda out: out.sum()) == PENDING

    # a mask that is read before the pass that waits in vain
    assert uneven(lambda out: out[out < 1e9].sum()) == PENDING

    def program(rank, inputs):
        model = DDP(torch.nn.Linear(1, 2))
        for input in inputs:
            model(input).sum().backward()
            gradient = model.module.weight.grad
            gradient[gradient > 0].mean()

    assert [str(end) for end in emulate(program, (3, 4)).ends] == HUNG


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad"])
def test_optimizers_that_count_their_steps_in_the_hosts_memory_do_not_wait(name):
    optimizer = getattr(torch.optim, name)
    assert uneven(lambda out: out.sum(), lambda parameters: optimizer(parameters)) == PENDING


def test_an_optimizer_that_reads_what_lies_on_the_gpu_waits():
    assert uneven(lambda out: out.sum(), torch.optim.ASGD) == HUNG


def test_loaders_and_samplers_draw_in_the_hosts_memory():
    def program(rank, inputs):
        model = DDP(torch.nn.Linear(1, 1))
        for input in inputs:
            model(input).sum().backward()
        data = list(range(4))
        drawn = [list(RandomSampler(data)), list(DataLoader(data, shuffle=True))]
        return len(drawn) + len(list(DistributedSampler(data, 2, rank)))

    timeline = emulate(program, (3, 4))
    assert [str(end) for end in timeline.ends] == PENDING and timeline.returns == (4, 4)
