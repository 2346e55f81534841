# FAULT. World 3. Expert routing: the counts are exchanged by all_to_all_single, then the sender drops tokens beyond its capacity (rank 0 has 4 for expert 1, capacity 3) after the counts were sent: its input splits no longer fit the receivers' output splits.
# Culprit: rank 0. Cause: `if capacity:`... `kept = min(count, CAPACITY)` after the exchange; rank 0 sends 3 to rank 1, which expects 4.
# A fix: cut to the capacity before the exchange of the counts.
import torch
import torch.distributed as dist

COUNTS = (1, 1, 1)
ROUTES = {0: [1, 4, 1], 1: [2, 2, 2], 2: [1, 1, 1]}
CAPACITY = 3


def dispatch(rank):
    counts = ROUTES[rank]
    incoming = torch.zeros(len(counts), dtype=torch.long)
    dist.all_to_all_single(incoming, torch.tensor(counts))
    kept = [min(count, CAPACITY) for count in counts]
    tokens = torch.full((sum(kept),), float(rank))
    received = torch.zeros(int(incoming.sum()))
    dist.all_to_all_single(received, tokens, incoming.tolist(), kept)
    return received


def program(rank, inputs):
    received = dispatch(rank)
    dist.barrier()
    return received.tolist()
