# FAULT. World 4. Hybrid sharding: the group of a node is looked up by node = rank // per_node with per_node from the host (2 on node 0; 3 on node 1's config): ranks 2 and 3 look up 2 // 3 = 0 and 3 // 3 = 1. Rank 2 uses the group of node 0, to which it does not belong.
# Culprit: rank 2. Cause: `node = rank // per_node` (per_node 3 on ranks 2, 3). Rank 2's all_reduce in a group that it is not in is skipped (a warning), rank 3 waits for it in group [2, 3].
import torch
import torch.distributed as dist

COUNTS = (1, 1, 1, 1)


def program(rank, inputs):
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    per_node = 2 if rank < 2 else 3
    node = rank // per_node
    t = torch.tensor([float(rank)])
    dist.all_reduce(t, group=groups[node])
    dist.barrier()
    return t.item()
