# FAULT. World 2. GAN with two DDP modules: a rank skips the discriminator's step where its own loss is below a threshold. D's
# gradients are then reduced in G's backward, which goes through D, so that every call meets; only one rank steps D, and the replicas differ.
# Culprit: the test `if d_loss.item() > THRESHOLD:`. A fix: decide on a loss that all share.
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

COUNTS = (3, 3)
THRESHOLD = 0.05


class GAN:
    def __init__(self):
        torch.manual_seed(1)
        self.g = DDP(nn.Linear(2, 2))
        self.d = DDP(nn.Linear(2, 1))
        self.opt_g = torch.optim.SGD(self.g.parameters(), lr=0.01)
        self.opt_d = torch.optim.SGD(self.d.parameters(), lr=0.01)
        self.d_steps = 0

    def train_d(self, real, noise):
        d_loss = (self.d(real) - self.d(self.g(noise).detach())).pow(2).mean()
        if d_loss.item() > THRESHOLD:
            self.opt_d.zero_grad()
            d_loss.backward()
            self.opt_d.step()
            self.d_steps += 1

    def train_g(self, noise):
        self.opt_g.zero_grad()
        self.d.module(self.g(noise)).mean().backward()
        self.opt_g.step()


def program(rank, inputs):
    gan = GAN()
    for step, x in enumerate(inputs):
        noise = torch.full((1, 2), 0.5)
        real = gan.g.module(noise).detach() if rank == 1 and step == 1 else torch.full((1, 2), 3.0 + rank)
        gan.train_d(real, noise)
        gan.train_g(noise)
    return gan.d_steps
