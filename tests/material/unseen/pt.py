"""Tutorials, t01 to t11, as they are written."""
from tests.material.unseen.pa import *
from torch.distributed.algorithms.join import Join, Joinable, JoinHook
class ToyModel(nn.Module):
    def __init__(self):
        super().__init__(); self.net1 = nn.Linear(10, 10); self.relu = nn.ReLU(); self.net2 = nn.Linear(10, 5)
    def forward(self, x): return self.net2(self.relu(self.net1(x)))
def setup(rank, world_size, backend):
    os.environ['MASTER_ADDR'] = 'localhost'; os.environ['MASTER_PORT'] = '12355'
    dist.init_process_group(backend, rank=rank, world_size=world_size)

def t01(rank, inputs):
    world_size = 2
    setup(rank, world_size, "gloo" if dist.get_backend() == "gloo" else "nccl")
    model = ToyModel().to(rank)
    ddp_model = DDP(model, device_ids=[rank])
    loss_fn = nn.MSELoss(); optimizer = torch.optim.SGD(ddp_model.parameters(), lr=0.001)
    optimizer.zero_grad()
    outputs = ddp_model(torch.randn(20, 10))
    labels = torch.randn(20, 5).to(rank)
    loss_fn(outputs, labels).backward(); optimizer.step()
    dist.destroy_process_group()

def t02(rank, inputs):
    setup(rank, 2, dist.get_backend())
    ddp_model = DDP(ToyModel())
    CHECKPOINT_PATH = tempfile.gettempdir() + "/model.checkpoint.truth"
    if rank == 0: torch.save(ddp_model.state_dict(), CHECKPOINT_PATH)
    dist.barrier()
    ddp_model.load_state_dict(torch.load(CHECKPOINT_PATH, map_location="cpu"))
    optimizer = torch.optim.SGD(ddp_model.parameters(), lr=0.001)
    optimizer.zero_grad(); nn.MSELoss()(ddp_model(torch.randn(20, 10)), torch.randn(20, 5)).backward(); optimizer.step()
    if rank == 0: os.remove(CHECKPOINT_PATH)
    dist.destroy_process_group()

def t03(rank, inputs):
    setup(rank, 2, dist.get_backend())
    model = DDP(nn.Linear(1, 1)); data = [torch.tensor([1]).float() for _ in range(5 + rank)]; n = 0
    with Join([model]):
        for x in data: n += 1; model(x).sum().backward()
    return n

class CounterHook(JoinHook):
    def __init__(self, c, sync): self.c, self.sync = c, sync
    def main_hook(self): dist.all_reduce(torch.zeros(1, device=self.c.device))
    def post_hook(self, is_last_joiner):
        if not self.sync: return
        rank = dist.get_rank(self.c.process_group); common = self.c.find_common_rank(rank, is_last_joiner)
        if rank == common: self.c.max_count = self.c.count.detach().clone()
        dist.broadcast(self.c.max_count, src=common)
class Counter(Joinable):
    def __init__(self, device, process_group):
        super().__init__(); self.device, self.process_group = device, process_group
        self.count = torch.tensor([0], device=device).float(); self.max_count = torch.tensor([0], device=device).float()
    def __call__(self):
        Join.notify_join_context(self); t = torch.ones(1, device=self.device).float(); dist.all_reduce(t); self.count += t
    def join_hook(self, **kw): return CounterHook(self, kw.get("sync_max_count", False))
    @property
    def join_device(self): return self.device
    @property
    def join_process_group(self): return self.process_group
    def find_common_rank(self, rank, consider):
        c = torch.tensor([rank if consider else -1], device=self.device); dist.all_reduce(c, op=dist.ReduceOp.MAX, group=self.process_group); return c.item()
def t04(rank, inputs):
    c = Counter(torch.device("cpu"), dist.group.WORLD); data = [1] * (5 + rank)
    with Join([c], sync_max_count=True):
        for _ in data: c()
    return int(c.count.item()), int(c.max_count.item())

def t05(rank, inputs):
    send = torch.ones(2) * (rank + 1); size = dist.get_world_size()
    send_buff, recv_buff, accum = send.clone(), send.clone(), send.clone()
    left, right = (rank - 1 + size) % size, (rank + 1) % size
    for i in range(size - 1):
        if i % 2 == 0:
            req = dist.isend(send_buff, right); dist.recv(recv_buff, left); accum[:] += recv_buff[:]
        else:
            req = dist.isend(recv_buff, right); dist.recv(send_buff, left); accum[:] += send_buff[:]
        req.wait()
    return accum

def t06(rank, inputs):
    torch.manual_seed(1234); model = nn.Linear(4, 2); opt = torch.optim.SGD(model.parameters(), lr=.01, momentum=.5)
    part = [x for i, x in enumerate(torch.randn(12, 4)) if i % 3 == rank]; size = float(dist.get_world_size())
    for epoch in range(2):
        for d in DataLoader(part, batch_size=2, shuffle=True):
            opt.zero_grad(); F.mse_loss(model(d), torch.zeros(len(d), 2)).backward()
            for p in model.parameters(): dist.all_reduce(p.grad.data, op=dist.ReduceOp.SUM); p.grad.data /= size
            opt.step()
    return model.state_dict()

def t07(rank, inputs):
    env = {k: os.environ.get(k) for k in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK")}
    n = torch.cuda.device_count() // int(os.environ["WORLD_SIZE"])
    device_ids = list(range(int(os.environ["LOCAL_RANK"]) * n, (int(os.environ["LOCAL_RANK"]) + 1) * n))
    model = ToyModel().cuda(device_ids[0]); ddp = DDP(model, device_ids)
    out = ddp(torch.randn(20, 10)); labels = torch.randn(20, 5).to(device_ids[0])
    nn.MSELoss()(out, labels).backward()

class Trainer:
    def __init__(self, model, data, opt, gpu, save_every): self.gpu, self.data, self.opt, self.save_every = gpu, data, opt, save_every; self.model = DDP(model)
    def _run_batch(self, s, t): self.opt.zero_grad(); loss = F.cross_entropy(self.model(s), t); loss.backward(); self.opt.step()
    def _run_epoch(self, epoch):
        self.data.sampler.set_epoch(epoch)
        for s, t in self.data: self._run_batch(s, t)
    def train(self, n):
        for e in range(n):
            self._run_epoch(e)
            if self.gpu == 0 and e % self.save_every == 0: torch.save(self.model.module.state_dict(), os.devnull)
def t08(rank, inputs):
    ds = TensorDataset(torch.rand(20, 20), torch.rand(20, 1)); model = nn.Linear(20, 1)
    tr = Trainer(model, DataLoader(ds, batch_size=4, shuffle=False, sampler=DistributedSampler(ds)), torch.optim.SGD(model.parameters(), lr=1e-3), rank, 1)
    tr.train(2); return model.weight

def t09(rank, inputs):
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    m = FSDP(ToyModel(), device_id=torch.device("cpu")) if False else FSDP(ToyModel())
    opt = torch.optim.SGD(m.parameters(), lr=.1); m(torch.randn(4, 10)).sum().backward(); opt.step()

def t10(rank, inputs):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import parallelize_module, ColwiseParallel, RowwiseParallel
    mesh = init_device_mesh("cpu", (dist.get_world_size(),)); m = ToyModel()
    torch.manual_seed(0); m = parallelize_module(ToyModel(), mesh, {"net1": ColwiseParallel(), "net2": RowwiseParallel()})
    out = m(torch.ones(2, 10)); out.sum().backward(); return out.sum().item()

def t11(rank, inputs):
    import torch.distributed.checkpoint as dcp
    d = tempfile.gettempdir() + "/joinlab-dcp"; m = DDP(ToyModel()); st = {"m": m.module.state_dict()}
    dcp.save(st, checkpoint_id=d); dcp.load(st, checkpoint_id=d); return st["m"]["net1.bias"]
