"""Sends and recvs that wait for each other: what keeps them apart, and the batch that ends it."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import joinlab
from tests.story.test_fixes import fix_of


def ring(rank, inputs):
    world = dist.get_world_size()
    passed = torch.ones(2) * rank
    for _ in inputs:
        got = torch.zeros(2)
        dist.send(tensor=passed, dst=(rank + 1) % world, tag=2)
        dist.recv(got, src=(rank - 1) % world, tag=2)  # from the left
        passed = got
    return passed.tolist()


def by_branches(rank, inputs):
    got, mine = torch.zeros(2), torch.ones(2) * rank
    if rank == 0:
        dist.recv(got, 1)
        dist.send(mine, 1)
    else:
        dist.recv(got, 0)
        dist.send(mine, 0)
    return got.tolist()


def both_neighbours(rank, inputs):
    world = dist.get_world_size()
    left, right, mine, copy = torch.zeros(1), torch.zeros(1), torch.ones(1), torch.ones(1)
    dist.recv(left, (rank - 1) % world)
    dist.recv(right, (rank + 1) % world)
    dist.send(mine, (rank - 1) % world)
    dist.send(copy, (rank + 1) % world)


def passes_on(rank, inputs):
    got = torch.zeros(2)
    dist.recv(got, 1 - rank)
    dist.send(got, 1 - rank)


def other_tags(rank, inputs):
    data = torch.ones(2)
    if rank == 0:
        dist.send(data, 1, tag=3)
    else:
        dist.recv(data, 0, tag=4)


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
@pytest.mark.parametrize(
    ("program", "inputs", "rows"),
    [(ring, (2, 2, 2), 1), (by_branches, (1, 1), 0), (both_neighbours, (1, 1, 1), 1)],
)
def test_sends_and_recvs_in_a_row_are_issued_as_one_batch(program, inputs, rows, backend):
    """On NCCL both branches have to; on gloo one suffices."""
    timeline = joinlab.emulate(program, inputs, backend)
    fix = fix_of(timeline)
    assert fix.fix["kind"] == "batch" and not fix.fix["fewer"]
    added = [line.strip() for edit in fix.edits for line in edit.added]
    assert added.count("for work in dist.batch_isend_irecv([") == (
        rows or {"nccl": 2, "gloo": 1}[backend]
    )
    if program is ring:
        assert added[1:3] == [
            "dist.P2POp(dist.isend, passed, (rank + 1) % world, tag=2),",
            "dist.P2POp(dist.irecv, got, (rank - 1) % world, tag=2),",
        ]


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_what_was_received_is_not_sent_on_in_the_same_batch(backend):
    assert fix_of(joinlab.emulate(passes_on, (1, 1), backend)) is None


def test_a_send_and_a_recv_of_different_tags_say_so():
    sentence = joinlab.diagnose(joinlab.emulate(other_tags, (1, 1), "gloo")).sentence
    first, _, rest = sentence.partition(" and rank 0's send to rank 1")
    assert first.startswith("Rank 1's recv from rank 0") and first.endswith("has tag 4")
    assert rest.endswith("has tag 3: they never meet. Both ranks hang.")
    assert joinlab.emulate(other_tags, (1, 1), "nccl").ends[0].kind == "finished"
