# FAULT. World 4. A SIGTERM handler sets a flag (here: the rank's own schedule); the loop checks it each step, and if set, saves with a gather of states and returns. Only rank 3's node was told in step 1.
# Culprit: rank 3. Cause: `if self.preempted:`/`if handler.should_stop(step)`. Met: rank 3's gather_object/all_gather_object (sizes) with the others' all_reduce of step 2.
import torch
import torch.distributed as dist

COUNTS = (4, 4, 4, 4)
SIGNALS = {3: 1}


class Preemption:
    def __init__(self, rank):
        self.when, self.flag = SIGNALS.get(rank), False

    def poll(self, step):
        self.flag |= step == self.when
        return self.flag


def save(step, state):
    states = [None] * dist.get_world_size()
    dist.all_gather_object(states, {"step": step, "state": state})
    return len(states)


def program(rank, inputs):
    preemption, state = Preemption(rank), 0.0
    for step, x in enumerate(inputs):
        g = torch.cat([x, x, x])
        dist.all_reduce(g)
        state += g[0].item()
        if preemption.poll(step):
            save(step, state)
            return "preempted"
    save(len(inputs), state)
    return "done"
