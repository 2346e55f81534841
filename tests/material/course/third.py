"""Answers: a small DDP and a small join(), and eight that cheat."""

import random

from tests.material.course.basis import *

ps=lambda m:list(m.parameters())
@W('hand_out','nothing')
def _(m): pass
@W('hand_out','from rank 1')
def _(m):
    for p in ps(m): dist.broadcast(p.data,src=1)
@W('hand_out','from own rank')
def _(m):
    for p in ps(m): dist.broadcast(p.data,src=dist.get_rank())
@W('hand_out','average')
def _(m):
    for p in ps(m): dist.all_reduce(p.data); p.data/=ws()
@W('hand_out','only rank 0 calls')
def _(m):
    if dist.get_rank()==0:
        for p in ps(m): dist.broadcast(p.data,src=0)
@W('hand_out','clone lost')
def _(m):
    for p in ps(m): dist.broadcast(p.data.clone(),src=0)
@W('hand_out','flat, not copied back')
def _(m): dist.broadcast(torch.cat([p.data for p in ps(m)]),src=0)
@W('hand_out','first only')
def _(m): dist.broadcast(ps(m)[0].data,src=0)
@W('hand_out','all but last')
def _(m):
    for p in ps(m)[:-1]: dist.broadcast(p.data,src=0)
@W('hand_out','manual seed')
def _(m):
    torch.manual_seed(0)
    for p in ps(m): p.data.uniform_()
@W('hand_out','zeros')
def _(m):
    for p in ps(m): p.data.zero_()
@W('hand_out','reversed order on rank 1')
def _(m):
    q=ps(m); q=q if dist.get_rank()==0 else q[::-1]
    for p in q: dist.broadcast(p.data,src=0)
@W('hand_out','sum')
def _(m):
    for p in ps(m): dist.all_reduce(p.data)
@W('hand_out','async not waited')
def _(m):
    for p in ps(m): dist.broadcast(p.data,src=0,async_op=True)
@W('hand_out','scatter MAX')
def _(m):
    for p in ps(m): dist.all_reduce(p.data,op=dist.ReduceOp.MAX)
@W('hand_out','flat copied back, of one dimension only')
def _(m):
    f=torch.cat([p.data for p in ps(m)]); dist.broadcast(f,src=0)
    for p,s in zip(ps(m),f.split([p.numel() for p in ps(m)])): p.data.copy_(s)
@R('hand_out','zeros on others, all_reduce')
def _(m):
    for p in ps(m):
        if dist.get_rank(): p.data.zero_()
        dist.all_reduce(p.data)
@R('hand_out','no_grad parameter itself')
def _(m):
    with torch.no_grad():
        for p in m.parameters(): dist.broadcast(p,0)
@R('hand_out','parameter itself, no no_grad')
def _(m):
    for p in m.parameters(): dist.broadcast(p,0)
@R('hand_out','broadcast_object_list')
def _(m):
    o=[m.state_dict()]; dist.broadcast_object_list(o,src=0); m.load_state_dict(o[0])
@W('hand_out','DDP itself','cheat')
def _(m): DDP(m)
# buckets_of
def bk(order=1,ge=True,keep=True,inner=1,before=False):
    def f(m,n):
        q=ps(m)[::-1] if order else ps(m); out=[];cur=[]
        for p in q:
            if before and cur and sum(x.numel() for x in cur)+p.numel()>n: out.append(cur);cur=[]
            cur.append(p); s=sum(x.numel() for x in cur)
            if not before and (s>=n if ge else s>n): out.append(cur);cur=[]
        if cur and keep: out.append(cur)
        return [b[::inner] for b in out]
    return f
W('buckets_of','one bucket')(lambda m,n:[ps(m)])
W('buckets_of','forward order')(bk(order=0))
W('buckets_of','> instead of >=')(bk(ge=False))
W('buckets_of','forgets the last')(bk(keep=False))
W('buckets_of','never exceeds n (knapsack)')(bk(before=True))
W('buckets_of','one per parameter')(lambda m,n:[[p] for p in ps(m)[::-1]])
W('buckets_of','pairs')(lambda m,n:[ps(m)[::-1][i:i+2] for i in range(0,len(ps(m)),2)])
W('buckets_of','trailing empty bucket')(lambda m,n: bk()(m,n)+[[]])
W('buckets_of','counts')(lambda m,n:[[p.numel() for p in b] for b in bk()(m,n)])
W('buckets_of','n parameters, not numbers')(lambda m,n:[ps(m)[::-1][i:i+n] for i in range(0,len(ps(m)),n)])
W('buckets_of','None')(lambda m,n:None)
W('buckets_of','generator')(lambda m,n:(b for b in bk()(m,n)))
W('buckets_of','buckets reversed')(lambda m,n: bk()(m,n)[::-1])
W('buckets_of','inside a bucket forward order ("the last parameter first" asked)')(bk(inner=-1))
W('buckets_of','bytes not numbers')(lambda m,n: bk()(m,n/4))
W('buckets_of','names')(lambda m,n:[[k for k,_ in m.named_parameters()]])
def inf_b(m,n):
    q=ps(m)[::-1]; out=[]; cur=[]
    while q:
        cur.append(q[0])
        if sum(x.numel() for x in cur)>=n: out.append(cur); cur=[]
        if len(out)>10**9: break
    return out
def inf_b2(m,n):
    q=ps(m)[::-1]; i=0; s=0
    while i<len(q):
        if s<n: s=s+0
    return []
W('buckets_of','while loop that never advances')(inf_b2)
R('buckets_of','tuple of tuples')(lambda m,n: tuple(tuple(b) for b in bk()(m,n)))
# small_ddp
class V(SmallDDP): pass
def S(name,kind='wrong'):
    def d(c): ANSWERS.append(('small_ddp',name,kind,c)); return c
    return d
@S('as given')
class _(Begun):
    def computed(self,p): self.ready.add(p)
    def finish(self): ...
@S('as they come')
class _(Begun):
    def computed(self,p):
        self.ready.add(p)
        for i,b in enumerate(self.buckets):
            if all(q in self.ready for q in b) and i not in [w[0] for w in self.works]:
                f=torch.cat([q.grad for q in b]); self.works.append((i,f,dist.all_reduce(f,async_op=True)))
        if len(self.works)==len(self.buckets): self.finish()
    def finish(self):
        for i,f,w in self.works:
            w.wait(); f/=ws()
            for q,s in zip(self.buckets[i],f.split([q.numel() for q in self.buckets[i]])): q.grad.copy_(s)
        self.ready,self.works=set(),[]
@S('sum, not mean')
class _(SmallDDP):
    def finish(self):
        for b,(f,w) in zip(self.buckets,self.works):
            w.wait()
            for q,s in zip(b,f.split([q.numel() for q in b])): q.grad.copy_(s)
        self.ready,self.works=set(),[]
@S('no reset')
class _(SmallDDP):
    def finish(self):
        for b,(f,w) in zip(self.buckets,self.works):
            w.wait(); f/=ws()
            for q,s in zip(b,f.split([q.numel() for q in b])): q.grad.copy_(s)
@S('ready not reset')
class _(SmallDDP):
    def finish(self):
        r=self.ready; super().finish(); self.ready=r
@S('no wait')
class _(SmallDDP):
    def finish(self):
        for b,(f,w) in zip(self.buckets,self.works):
            f/=ws()
            for q,s in zip(b,f.split([q.numel() for q in b])): q.grad.copy_(s)
        self.ready,self.works=set(),[]
@S('waits per bucket')
class _(SmallDDP):
    def computed(self, parameter):
        self.ready.add(parameter)
        while len(self.works) < len(self.buckets) and all(p in self.ready for p in self.buckets[len(self.works)]):
            flat = torch.cat([p.grad.flatten() for p in self.buckets[len(self.works)]])
            w=dist.all_reduce(flat, async_op=True); w.wait(); self.works.append((flat,w))
        if len(self.works) == len(self.buckets): self.finish()
@S('all at the end')
class _(SmallDDP):
    def computed(self,p):
        self.ready.add(p)
        if len(self.ready)==len(ps(self.module)):
            for b in self.buckets:
                f=torch.cat([q.grad for q in b]); self.works.append((f,dist.all_reduce(f,async_op=True)))
            self.finish()
@S('one call per parameter')
class _(Begun):
    def computed(self,p): dist.all_reduce(p.grad); p.grad/=ws()
    def finish(self):...
@S('not copied back')
class _(SmallDDP):
    def finish(self):
        for f,w in self.works: w.wait(); f/=ws()
        self.ready,self.works=set(),[]
@S('no hand_out')
class _(SmallDDP):
    def __init__(self,m,n):
        torch.nn.Module.__init__(self); self.module,self.buckets=m,buckets_of(m,n); self.ready,self.works=set(),[]
        for p in m.parameters(): p.register_post_accumulate_grad_hook(self.computed)
@S('if instead of while')
class _(SmallDDP):
    def computed(self, parameter):
        self.ready.add(parameter)
        if len(self.works) < len(self.buckets) and all(p in self.ready for p in self.buckets[len(self.works)]):
            flat = torch.cat([p.grad.flatten() for p in self.buckets[len(self.works)]])
            self.works.append((flat, dist.all_reduce(flat, async_op=True)))
        if len(self.works) == len(self.buckets): self.finish()
@S('one bucket')
class _(SmallDDP):
    def __init__(self,m,n): super().__init__(m,10**9)
@S('divides by 2')
class _(SmallDDP):
    def finish(self):
        for b,(f,w) in zip(self.buckets,self.works):
            w.wait(); f/=2
            for q,s in zip(b,f.split([q.numel() for q in b])): q.grad.copy_(s)
        self.ready,self.works=set(),[]
@S('finish on first bucket')
class _(SmallDDP):
    def computed(self,p):
        self.ready.add(p)
        b=self.buckets[len(self.works)]
        if all(q in self.ready for q in b):
            f=torch.cat([q.grad for q in b]); self.works.append((f,dist.all_reduce(f,async_op=True))); self.finish()
S('DDP itself','cheat')(lambda m,n: DDP(m,bucket_cap_mb=n*4/2**20))
@S('divide before reducing, copied back without its shape','wrong')
class _(SmallDDP):
    def computed(self, parameter):
        self.ready.add(parameter)
        while len(self.works) < len(self.buckets) and all(p in self.ready for p in self.buckets[len(self.works)]):
            flat = torch.cat([p.grad.flatten() for p in self.buckets[len(self.works)]])/ws()
            self.works.append((flat, dist.all_reduce(flat, async_op=True)))
        if len(self.works) == len(self.buckets): self.finish()
    def finish(self):
        for b,(f,w) in zip(self.buckets,self.works):
            w.wait()
            for q,s in zip(b,f.split([q.numel() for q in b])): q.grad.copy_(s)
        self.ready,self.works=set(),[]
@S('counter instead of set','right')
class _(SmallDDP):
    def computed(self, p):
        self.ready.add(id(p))
        while len(self.works) < len(self.buckets) and {id(q) for q in self.buckets[len(self.works)]}<=self.ready:
            flat = torch.cat([q.grad.view(-1) for q in self.buckets[len(self.works)]])
            self.works.append((flat, dist.all_reduce(flat, async_op=True)))
        if len(self.works) == len(self.buckets): self.finish()
# small_join
def sj(q1=True,q2=True,s1=True,s2=True,zeros=True,last=True,bc='max',order=0,once=False,op=dist.ReduceOp.SUM):
    def f(model,inputs,train):
        sh=False
        for x in inputs:
            if q1: ask(1.0)
            if q2: ask(1.0)
            train(x)
        n=sum(p.numel() for p in model.parameters())
        while s1 and ask(0.0):
            sh=True
            if s2: ask(0.0)
            if zeros: dist.all_reduce(torch.zeros(n))
            if once: break
        if last:
            src={'max':lambda: ask(-1 if sh else dist.get_rank(),dist.ReduceOp.MAX),'own':lambda: ask(dist.get_rank(),dist.ReduceOp.MAX),'zero':lambda: (ask(-1 if sh else dist.get_rank(),dist.ReduceOp.MAX),0)[1],
              'count':lambda: ask(len(inputs),dist.ReduceOp.MAX),'none':lambda: None,'min':lambda: ask(99 if sh else dist.get_rank(),dist.ReduceOp.MIN)}[bc]()
            if src is not None:
                for p in model.parameters(): dist.broadcast(p.data,src=int(src))
    return f
for n,k in {'nothing asked':dict(q1=0,q2=0,s1=0,last=0),'no first q':dict(q1=0),'no second q with inputs':dict(q2=0),'no second as shadow':dict(s2=0),'no second at all':dict(q2=0,s2=0),'no zeros':dict(zeros=0),
  'no last question':dict(last=0),'own number':dict(bc='own'),'always rank 0 broadcast':dict(bc='zero'),'counts':dict(bc='count'),'no broadcast':dict(bc='none'),'lowest last':dict(bc='min'),'shadows once':dict(once=1),'never shadows':dict(s1=0)}.items():
    ANSWERS.append(('small_join',n,'wrong',sj(**k)))
@W('small_join','one zero only')
def _(model,inputs,train):
    for x in inputs: ask(1.0);ask(1.0);train(x)
    sh=False
    while ask(0.0): sh=True; ask(0.0); dist.all_reduce(torch.zeros(1))
    src=ask(-1 if sh else dist.get_rank(),dist.ReduceOp.MAX)
    for p in model.parameters(): dist.broadcast(p.data,src=int(src))
@W('small_join','zeros per parameter')
def _(model,inputs,train):
    for x in inputs: ask(1.0);ask(1.0);train(x)
    sh=False
    while ask(0.0):
        sh=True; ask(0.0)
        for p in model.parameters(): dist.all_reduce(torch.zeros_like(p))
    src=ask(-1 if sh else dist.get_rank(),dist.ReduceOp.MAX)
    for p in model.parameters(): dist.broadcast(p.data,src=int(src))
@W('small_join','knows the maximum beforehand')
def _(model,inputs,train):
    n=int(ask(len(inputs),dist.ReduceOp.MAX)); k=sum(p.numel() for p in model.parameters())
    for i in range(n):
        if i<len(inputs): train(inputs[i])
        else: dist.all_reduce(torch.zeros(k))
    src=int(ask(dist.get_rank() if len(inputs)==n else -1,dist.ReduceOp.MAX))
    for p in model.parameters(): dist.broadcast(p.data,src=src)
@W('small_join','asks with all_gather')
def _(model,inputs,train):
    def a(x):
        o=[torch.zeros(1) for _ in range(ws())]; dist.all_gather(o,torch.tensor([x])); return sum(o).item()
    for x in inputs: a(1.0);a(1.0);train(x)
    n=sum(p.numel() for p in model.parameters())
    while a(0.0): a(0.0); dist.all_reduce(torch.zeros(n))
@W('small_join','asks with dist.reduce')
def _(model,inputs,train):
    def a(x):
        t=torch.tensor([x]); dist.reduce(t,dst=0); return t.item()
    for x in inputs: a(1.0);a(1.0);train(x)
@W('small_join','infinite: while True ask')
def _(model,inputs,train):
    for x in inputs: ask(1.0);ask(1.0);train(x)
    while True: ask(0.0)
@R('small_join','gives 1 as second as shadow? (int questions)')
def _(model,inputs,train):
    sh=False
    for x in inputs: ask(1);ask(1);train(x)
    n=sum(p.numel() for p in model.parameters())
    while ask(0): sh=True; ask(0); dist.all_reduce(torch.zeros(n))
    src=ask(-1 if sh else dist.get_rank(),dist.ReduceOp.MAX)
    for p in model.parameters(): dist.broadcast(p.data,src=src)
@W('small_join','flat broadcast, of one dimension only')
def _(model,inputs,train):
    sh=False
    for x in inputs: ask(1.);ask(1.);train(x)
    q=list(model.parameters()); n=[p.numel() for p in q]
    while ask(0.): sh=True; ask(0.); dist.all_reduce(torch.zeros(sum(n)))
    src=int(ask(-1 if sh else dist.get_rank(),dist.ReduceOp.MAX)); f=torch.cat([p.data for p in q]); dist.broadcast(f,src)
    for p,s in zip(q,f.split(n)): p.data.copy_(s)
# cheats: all exercises
from joinlab.course.answers import solutions as SOL
for ex,nm in [('gather_list','gather_list'),('in_order','in_order'),('small_join','small_join'),('small_ddp','SmallDDP')]:
    ANSWERS.append((ex,'the solution','cheat',getattr(SOL,nm)))
@W('shadows','calls the judge','cheat')
def _(c):
    from joinlab.course.answers import judges; return judges._made_to_shadow(c,False)
@W('gradient','monkeypatch compare','cheat')
def _(o,w,d):
    from joinlab.course.answers import judges; judges.compare=lambda *a: None; return None
@W('last_joiner','random choice')
def _(c): return random.choice([r for r,x in enumerate(c) if x==max(c)])
