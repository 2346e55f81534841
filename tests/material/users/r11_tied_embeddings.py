# FAULT. World 8. Pipeline over 8 stages, tied embeddings are reduced over the group [0, 7] of first and last stage; the config of rank 7 has tie_embeddings=False (an old yaml).
# Culprit: rank 7. Cause: `if self.config["tie_embeddings"] and self.group_member:` (rank 7 False). Waits: rank 0 in the group's all_reduce; rank 7 (and all) go on to the world all-reduce of the norm.
# A fix: the same config (broadcast it); not: take the call out for non-members.
import torch
import torch.distributed as dist

COUNTS = (1, 1, 1, 1, 1, 1, 1, 1)


class Stage:
    def __init__(self, rank, config):
        self.rank, self.config = rank, config
        self.ends = [0, dist.get_world_size() - 1]
        self.group = dist.new_group(self.ends)
        self.weight = torch.full((2,), float(rank))

    def sync_embeddings(self):
        if self.config["tie_embeddings"] and self.rank in self.ends:
            dist.all_reduce(self.weight, group=self.group)

    def norm(self):
        total = self.weight.pow(2).sum().reshape(1)
        dist.all_reduce(total)
        return total.sqrt().item()


def program(rank, inputs):
    config = {"tie_embeddings": rank != 7, "layers": 16}
    stage = Stage(rank, config)
    stage.sync_embeddings()
    return round(stage.norm(), 3)
