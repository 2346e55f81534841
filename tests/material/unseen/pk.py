"""Programs that were told falsely or not enough: rounds of a loop that ranks count differently, a root of one's own."""
from tests.material.unseen.pa import *

def k01(rank, inputs):
    net = torch.nn.Linear(2, 1)
    ema, steps = torch.zeros(1), 0
    for i, x in enumerate(inputs):
        loss = net(torch.ones(1, 2)).sum() * (float("nan") if rank == 1 and i == 1 else 1.0)
        if torch.isnan(loss):
            print("skipping a batch")
            continue
        steps += 1
        if steps % 2 == 0:
            dist.all_reduce(ema)
    dist.barrier()
def k02(rank, inputs):
    loss = torch.tensor([float(len(inputs))])
    best = rank if loss > 2 else 0
    weights = torch.ones(2) * rank
    dist.broadcast(weights, src=best)
    dist.barrier()
    return weights.tolist()
