# HEALTHY. World 4. Expert routing with exchanged counts, there and back, different counts per rank.
import torch
import torch.distributed as dist

COUNTS = (1, 1, 1, 1)


class Router:
    def __init__(self, rank, world):
        self.rank, self.world = rank, world

    def counts(self):
        return [(self.rank + expert) % 3 for expert in range(self.world)]

    def exchange(self, tokens, send, receive):
        out = torch.zeros(sum(receive))
        dist.all_to_all_single(out, tokens, receive, send)
        return out


def program(rank, inputs):
    router = Router(rank, dist.get_world_size())
    send = router.counts()
    receive = torch.zeros(len(send), dtype=torch.long)
    dist.all_to_all_single(receive, torch.tensor(send))
    receive = receive.tolist()
    tokens = torch.arange(float(sum(send))) + 100 * rank
    there = router.exchange(tokens, send, receive)
    back = router.exchange(there, receive, send)
    return torch.equal(back, tokens)
