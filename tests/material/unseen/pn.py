"""Programs that told something false, or were told too little of: data that a branch chose, sends, keys."""
from tests.material.unseen.pa import *

def n01(rank, inputs):
    rows = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = rows[rank // 2] if rank != 3 else rows[0]
    for x in inputs:
        dist.all_reduce(x, group=mine)
        x.item()
def n02(rank, inputs):
    t = torch.zeros(1)
    dist.recv(t, src=1 - rank)
    dist.send(torch.ones(1), dst=1 - rank)
def n03(rank, inputs):
    for step in range(3):
        if rank == 0:
            g = torch.zeros(1)
            dist.recv(g, src=1)
        else:
            loss = 1.0 / (step + 1)
            if loss < 0.4:
                break
            dist.send(torch.tensor([loss]), dst=0)
def n04(rank, inputs):
    model = DDP(nn.Linear(1, 1))
    for x in inputs:
        if rank == 0:
            loss = model(x).sum()
            loss.backward()
        else:
            loss = model(2 * x).mean()
            loss.backward()
def n05(rank, inputs):
    dst = 0 if rank == 0 else 1
    out = [torch.zeros(1), torch.zeros(1)] if rank == dst else None
    dist.gather(torch.ones(1), out, dst=dst)
def n06(rank, inputs):
    metrics = {"loss": torch.tensor(1.0), "acc": torch.tensor(2.0), "f1": torch.tensor(3.0)}
    names = list(metrics) if rank == 0 else ["acc", "loss", "f1"]
    for name in names:
        dist.all_reduce(metrics[name])
    return metrics["loss"].item()
