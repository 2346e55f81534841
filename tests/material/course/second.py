"""Answers: the steps of a Joinable, and the six repairs."""

from tests.material.course.basis import *

# ---------------- notify: factories
def L(pre=True, times=1, call=None, hook=None):
    class X(Base):
        def __call__(self,number): call(self,number)
        def join_hook(self,**k): return hook(self) if hook else LargestHook(self)
    return X
def body(self,number,notify='before',op=dist.ReduceOp.MAX,clone=True):
    if notify=='before': Join.notify_join_context(self)
    number = number.clone() if clone else number
    dist.all_reduce(number,op=op); self.largest=torch.maximum(self.largest,number)
    if notify=='after': Join.notify_join_context(self)
W('notify','no notify')(L(call=lambda s,n: body(s,n,None)))
W('notify','after')(L(call=lambda s,n: body(s,n,'after')))
def twice(s,n): Join.notify_join_context(s); body(s,n)
W('notify','twice')(L(call=twice))
def first_only(s,n):
    if s.largest.item()==-float('inf'): Join.notify_join_context(s)
    body(s,n,None)
W('notify','only first input')(L(call=first_only))
W('notify','no clone (mutates)')(L(call=lambda s,n: body(s,n,clone=False)))
W('notify','SUM')(L(call=lambda s,n: body(s,n,op=dist.ReduceOp.SUM)))
def local(s,n): Join.notify_join_context(s); s.largest=torch.maximum(s.largest,n)
W('notify','no all_reduce (local only)')(L(call=local))
def rank0(s,n):
    if dist.get_rank()==0: Join.notify_join_context(s)
    body(s,n,None)
W('notify','rank 0 only')(L(call=rank0))
class CtorNotify(Base):
    def __init__(self): super().__init__(); Join.notify_join_context(self)
    def __call__(self,n): body(self,n,None)
    def join_hook(self,**k): return LargestHook(self)
W('notify','in __init__')(CtorNotify)
def wrongobj(s,n): Join.notify_join_context(Largest()); body(s,n,None)
W('notify','notifies another object')(L(call=wrongobj))
def noarg(s,n): Join.notify_join_context(); body(s,n,None)
W('notify','forgot self arg')(L(call=noarg))
W('notify','an instance instead of class')(Largest() if False else (lambda: 5))
W('notify','function')(lambda n: None)
class NotJ:
    largest=torch.zeros(1)
    def __call__(self,n): pass
W('notify','not a Joinable')(NotJ)
def between(s,n):
    n=n.clone(); dist.all_reduce(n,op=dist.ReduceOp.MAX); Join.notify_join_context(s); s.largest=torch.maximum(s.largest,n)
W('notify','between')(L(call=between))
def overwrite(s,n): Join.notify_join_context(s); n=n.clone(); dist.all_reduce(n,op=dist.ReduceOp.MAX); s.largest=n
W('notify','overwrites largest')(L(call=overwrite))
R('notify','waits the work')(L(call=lambda s,n:(lambda w:(w and w.wait(),body(s,n,None)))(Join.notify_join_context(s))))
# ---------------- main_hook
def LH(main,post=None):
    class H(JoinHook):
        def __init__(s,o): s.owner=o
        def main_hook(s): main(s)
        def post_hook(s,l): (post or (lambda s,l: None))(s,l)
    class X(Base):
        def __call__(self,n): body(self,n)
        def join_hook(self,**k): return H(self)
    return X
inf=float('inf')
W('main_hook','empty')(LH(lambda s:None))
W('main_hook','zero')(LH(lambda s: dist.all_reduce(torch.zeros(1),op=dist.ReduceOp.MAX)))
W('main_hook','-1e9')(LH(lambda s: dist.all_reduce(torch.tensor([-1e9]),op=dist.ReduceOp.MAX)))
W('main_hook','+inf')(LH(lambda s: dist.all_reduce(torch.tensor([inf]),op=dist.ReduceOp.MAX)))
W('main_hook','SUM op default')(LH(lambda s: dist.all_reduce(torch.tensor([-inf]))))
W('main_hook','size 2')(LH(lambda s: dist.all_reduce(torch.tensor([-inf,-inf]),op=dist.ReduceOp.MAX)))
W('main_hook','scalar shape')(LH(lambda s: dist.all_reduce(torch.tensor(-inf),op=dist.ReduceOp.MAX)))
W('main_hook','float64')(LH(lambda s: dist.all_reduce(torch.tensor([-inf],dtype=torch.float64),op=dist.ReduceOp.MAX)))
W('main_hook','twice')(LH(lambda s: [dist.all_reduce(torch.tensor([-inf]),op=dist.ReduceOp.MAX) for _ in 'ab']))
W('main_hook','barrier')(LH(lambda s: dist.barrier()))
W('main_hook','notify in hook')(LH(lambda s: (Join.notify_join_context(s.owner),dist.all_reduce(torch.tensor([-inf]),op=dist.ReduceOp.MAX))))
W('main_hook','int -10**9')(LH(lambda s: dist.all_reduce(torch.tensor([-10**9]),op=dist.ReduceOp.MAX)))
W('main_hook','nan')(LH(lambda s: dist.all_reduce(torch.tensor([float('nan')]),op=dist.ReduceOp.MAX)))
W('main_hook','calls owner')(LH(lambda s: s.owner(torch.tensor([-inf]))))
W('main_hook','inf loop')(LH(lambda s: [None for _ in iter(int,1)]))
W('main_hook','MIN')(LH(lambda s: dist.all_reduce(torch.tensor([-inf]),op=dist.ReduceOp.MIN)))
R('main_hook','sends own largest (a clone)')(LH(lambda s: dist.all_reduce(s.owner.largest.clone(),op=dist.ReduceOp.MAX)))
R('main_hook','reduces own largest in place')(LH(lambda s: dist.all_reduce(s.owner.largest,op=dist.ReduceOp.MAX)))
R('main_hook','finfo.min')(LH(lambda s: dist.all_reduce(torch.full((1,),torch.finfo().min),op=dist.ReduceOp.MAX)))
# ---------------- post_hook
M=lambda s: dist.all_reduce(torch.tensor([-inf]),op=dist.ReduceOp.MAX)
W('post_hook','empty')(LH(M))
W('post_hook','broadcast from 0')(LH(M,lambda s,l: dist.broadcast(s.owner.largest,src=0)))
W('post_hook','broadcast from self if last')(LH(M,lambda s,l: l and dist.broadcast(s.owner.largest,src=dist.get_rank())))
W('post_hook','all_reduce SUM')(LH(M,lambda s,l: dist.all_reduce(s.owner.largest)))
W('post_hook','only last')(LH(M,lambda s,l: l and dist.all_reduce(s.owner.largest,op=dist.ReduceOp.MAX)))
W('post_hook','only not last')(LH(M,lambda s,l: l or dist.all_reduce(s.owner.largest,op=dist.ReduceOp.MAX)))
W('post_hook','clone, not stored')(LH(M,lambda s,l: dist.all_reduce(s.owner.largest.clone(),op=dist.ReduceOp.MAX)))
W('post_hook','reduce dst 0')(LH(M,lambda s,l: dist.reduce(s.owner.largest,dst=0,op=dist.ReduceOp.MAX)))
W('post_hook','MIN')(LH(M,lambda s,l: dist.all_reduce(s.owner.largest,op=dist.ReduceOp.MIN)))
W('post_hook','broadcast from ws-1')(LH(M,lambda s,l: dist.broadcast(s.owner.largest,src=dist.get_world_size()-1)))
W('post_hook','no is_last arg')(type('X',(Base,),{'__call__':lambda self,n: body(self,n),'join_hook':lambda self,**k: type('H',(JoinHook,),{'main_hook':lambda s: M(s),'post_hook':lambda s: None})()}))
W('post_hook','barrier')(LH(M,lambda s,l: dist.barrier()))
W('post_hook','rank max wrong (min of last)')(LH(M,lambda s,l: (lambda r:(dist.all_reduce(r,op=dist.ReduceOp.MIN),dist.broadcast(s.owner.largest,src=int(r))))(torch.tensor(dist.get_rank() if l else -1))))
R('post_hook','find last rank then broadcast')(LH(M,lambda s,l: (lambda r:(dist.all_reduce(r,op=dist.ReduceOp.MAX),dist.broadcast(s.owner.largest,src=int(r))))(torch.tensor(dist.get_rank() if l else -1))))
R('post_hook','all_gather max')(LH(M,lambda s,l: (lambda o:(dist.all_gather(o,s.owner.largest),setattr(s.owner,'largest',torch.stack(o).max().reshape(1))))([torch.zeros(1) for _ in range(dist.get_world_size())])))

lin=lambda: DDP(torch.nn.Linear(1,1))
# ---------------- report
def rep(f):
    def report(rank,inputs):
        m=lin()
        for i,x in enumerate(inputs):
            m(x).backward(); f(rank,i,torch.ones(1)*(rank+1))
    return report
def P(x): print("mean loss",x)
W('report','as given')(rep(lambda r,i,l: (dist.reduce(l,dst=0),P(l.item()/ws())) if r==0 and i==1 else None))
W('report','sum not mean')(rep(lambda r,i,l: (dist.reduce(l,dst=0), r==0 and P(l.item())) if i==1 else None))
W('report','own loss only')(rep(lambda r,i,l: P(l.item()) if r==0 and i==1 else None))
W('report','hard-coded 1.5')(rep(lambda r,i,l: P(1.5) if r==0 and i==1 else None))
W('report','/2 hardcoded')(rep(lambda r,i,l: (dist.reduce(l,dst=0), r==0 and P(l.item()/2)) if i==1 else None))
W('report','all ranks print')(rep(lambda r,i,l: (dist.all_reduce(l), P(l.item()/ws())) if i==1 else None))
W('report','first input')(rep(lambda r,i,l: (dist.reduce(l,dst=0), r==0 and P(l.item()/ws())) if i==0 else None))
W('report','every input')(rep(lambda r,i,l: (dist.reduce(l,dst=0), r==0 and P(l.item()/ws()))))
W('report','dst 1')(rep(lambda r,i,l: (dist.reduce(l,dst=1), r==0 and P(l.item()/ws())) if i==1 else None))
W('report','no report at all')(rep(lambda r,i,l: None))
W('report','formula, dummy reduce')(rep(lambda r,i,l: (dist.reduce(torch.zeros(1),dst=0), r==0 and P((ws()+1)/2)) if i==1 else None))
W('report','formula, dummy barrier')(rep(lambda r,i,l: (dist.barrier(), r==0 and P((ws()+1)/2)) if i==1 else None))
@W('report','no training')
def _(rank,inputs):
    l=torch.ones(1)*(rank+1); dist.reduce(l,dst=0)
    if rank==0: P(l.item()/ws())
@W('report','stops after input 2')
def _(rank,inputs):
    m=lin()
    for i,x in enumerate(inputs):
        m(x).backward(); l=torch.ones(1)*(rank+1)
        if i==1:
            dist.reduce(l,dst=0)
            if rank==0: P(l.item()/ws())
            break
R('report','all_reduce')(rep(lambda r,i,l: (dist.all_reduce(l), r==0 and P(l.item()/ws())) if i==1 else None))
R('report','gather')(rep(lambda r,i,l: (lambda o:(dist.gather(l,o,dst=0), r==0 and P(sum(o).item()/ws())))([torch.zeros(1) for _ in range(ws())] if r==0 else None) if i==1 else None))
R('report','AVG-like: all ranks reduce every input, print second')(rep(lambda r,i,l: (dist.all_reduce(l), r==0 and i==1 and P(l.item()/ws()))))
R('report','f-string with 2 decimals')(rep(lambda r,i,l: (dist.reduce(l,dst=0), r==0 and print(f"mean loss {l.item()/ws():.2f}")) if i==1 else None))
@R('report','right, and a barrier after the loop')
def _(rank,inputs):
    m=lin()
    for i,x in enumerate(inputs):
        m(x).backward(); l=torch.ones(1)*(rank+1)
        if i==1:
            dist.reduce(l,dst=0)
            if rank==0: P(l.item()/ws())
    dist.barrier()
# ---------------- stop_early
def stop(cond):
    def stop_early(rank,inputs):
        m=lin(); steps=0
        for x in inputs:
            m(x).backward(); steps+=1
            if cond(rank,steps): break
        return steps
    return stop_early
W('stop_early','as given')(stop(lambda r,s: s>r))
W('stop_early','removed rank: steps > 0 (no exchange)')(stop(lambda r,s: s>0))
W('stop_early','steps >= world_size (no exchange)')(stop(lambda r,s: s>=ws()))
W('stop_early','break after 1 always')(stop(lambda r,s: True))
W('stop_early','never stops')(stop(lambda r,s: False))
def fl(op,val): 
    def c(r,s):
        f=torch.tensor([float(val(r,s))]); dist.all_reduce(f,op=op); return f.item()
    return c
W('stop_early','SUM > 1')(stop(lambda r,s: fl(dist.ReduceOp.SUM,lambda r,s:s>r)(r,s)>1))
W('stop_early','only rank that wants calls')(stop(lambda r,s: s>r and fl(dist.ReduceOp.MAX,lambda r,s:1)(r,s)))
W('stop_early','rank 0 decides via reduce')(stop(lambda r,s:(lambda f:(dist.reduce(f,dst=0),f.item()>0)[1])(torch.tensor([float(s>r)]))))
W('stop_early','broadcast from rank 1')(stop(lambda r,s:(lambda f:(dist.broadcast(f,src=1),f.item()>0)[1])(torch.tensor([float(s>r)]))))
W('stop_early','async not waited')(stop(lambda r,s:(lambda f:(dist.all_reduce(f,op=dist.ReduceOp.MAX,async_op=True),s>r)[1])(torch.tensor([float(s>r)]))))
@W('stop_early','join()')
def _(rank,inputs):
    m=lin(); steps=0
    with m.join():
        for x in inputs:
            m(x).backward(); steps+=1
            if steps>rank: break
    return steps
@W('stop_early','no_sync')
def _(rank,inputs):
    m=lin(); steps=0
    with m.no_sync():
        for x in inputs:
            m(x).backward(); steps+=1
            if steps>rank: break
    return steps
@W('stop_early','returns min but trains uneven')
def _(rank,inputs): return 1
@W('stop_early','continues without break, counts')
def _(rank,inputs):
    m=lin(); steps=0
    for x in inputs:
        m(x).backward()
        if steps<=0: steps+=1
    return steps
R('stop_early','MIN all')(stop(fl(dist.ReduceOp.MIN,lambda r,s:s>r)))
R('stop_early','SUM any')(stop(lambda r,s: fl(dist.ReduceOp.SUM,lambda r,s:s>r)(r,s)>0))
R('stop_early','broadcast rank 0 (first)')(stop(lambda r,s:(lambda f:(dist.broadcast(f,src=0),f.item()>0)[1])(torch.tensor([float(s>r)]))))
# ---------------- skip_bad
def skip(f):
    def skip_bad(rank,inputs):
        m=lin()
        for i,x in enumerate(inputs): f(m,rank,i,x)
        return [p.grad.item() for p in m.parameters()]
    return skip_bad
W('skip_bad','trains on it')(skip(lambda m,r,i,x: m(x).backward()))
W('skip_bad','zero input')(skip(lambda m,r,i,x: m(x*0 if r==1 and i==1 else x).backward()))
W('skip_bad','both skip input 1')(skip(lambda m,r,i,x: i!=1 and m(x).backward()))
W('skip_bad','plain backward zero loss w/o model')(skip(lambda m,r,i,x: (torch.zeros(1,requires_grad=True).backward() if r==1 and i==1 else m(x).backward())))
W('skip_bad','no_sync on bad')(skip(lambda m,r,i,x: i==1 and r==1 or m(x).backward()))
@W('skip_bad','join')
def _(rank,inputs):
    m=lin()
    with m.join():
        for i,x in enumerate(inputs):
            if not(rank==1 and i==1): m(x).backward()
    return [p.grad.item() for p in m.parameters()]
W('skip_bad','nan')(skip(lambda m,r,i,x: (m(x)*(float('nan') if r==1 and i==1 else 1)).backward()))
W('skip_bad','last skipped on rank 1 (local)')(skip(lambda m,r,i,x: (m(x)*(0 if r==0 and i==1 else 1)).backward()) if False else skip(lambda m,r,i,x: (m(x)*(0 if i==1 else 1)).backward()))
W('skip_bad','half weight')(skip(lambda m,r,i,x: (m(x)*(0.5 if r==1 and i==1 else 1)).backward()))
W('skip_bad','rank 0 skips instead')(skip(lambda m,r,i,x: (m(x)*(0 if r==0 and i==1 else 1)).backward()))
W('skip_bad','input 0 instead of 1')(skip(lambda m,r,i,x: (m(x)*(0 if r==1 and i==0 else 1)).backward()))
@W('skip_bad','returned hard-coded; trained on it')
def _(rank,inputs):
    m=lin()
    for x in inputs: m(x).backward()
    return [len(inputs)-1/ws()]*2
@W('skip_bad','returns only on rank 0, rank 1 None')
def _(rank,inputs):
    r=skip_bad(rank,inputs); return r if rank==0 else None
W('skip_bad','backward on module (local)')(skip(lambda m,r,i,x: (m.module if r==1 and i==1 else m)(x).backward()))
@R('skip_bad','accumulate locally, one reduce at end')
def _(rank,inputs):
    m=lin()
    with m.no_sync():
        for i,x in enumerate(inputs[:-1]): (m(x)*(0 if rank==1 and i==1 else 1)).backward()
    m(inputs[-1]).backward()
    return [p.grad.item() for p in m.parameters()]
@R('skip_bad','set grads to zero via hook-free manual')
def _(rank,inputs):
    m=lin()
    for i,x in enumerate(inputs):
        l=m(x)
        if rank==1 and i==1: l=0*l
        l.backward()
    return [p.grad.item() for p in m.parameters()]
# ---------------- save_all
def save(f):
    def save_all(rank,inputs):
        m=lin()
        for x in inputs: m(x).backward()
        return f(rank)
    return save_all
PL=lambda: [torch.zeros(1) for _ in range(ws())]
def ag(r,p): dist.all_gather(p,torch.ones(1)*r); return [x.item() for x in p]
W('save_all','as given')(save(lambda r: ag(r,PL()) if r==0 else None))
W('save_all','hard-coded range(ws), no call')(save(lambda r: [float(i) for i in range(ws())]))
W('save_all','[0.,1.]')(save(lambda r: [0.,1.]))
W('save_all','own only')(save(lambda r: [float(r)]))
W('save_all','two places')(save(lambda r: (lambda p:(dist.all_gather(p,torch.ones(1)*r),[x.item() for x in p])[1])([torch.zeros(1),torch.zeros(1)])))
W('save_all','sum')(save(lambda r: (lambda t:(dist.all_reduce(t),t.tolist())[1])(torch.ones(1)*r)))
W('save_all','aliased')(save(lambda r: (lambda p:(dist.all_gather(p,torch.ones(1)*r),[x.item() for x in p])[1])([torch.zeros(1)]*ws())))
W('save_all','gather to 1')(save(lambda r: (lambda p:(dist.gather(torch.ones(1)*r,p,dst=1),[x.item() for x in p or []])[1])(PL() if r==1 else None)))
W('save_all','rank 1 returns only')(save(lambda r: (lambda v: v if r==1 else None)(ag(r,PL()))))
W('save_all','barrier only then rank0')(save(lambda r: (dist.barrier(), ag(r,PL()) if r==0 else None)[1]))
W('save_all','returns tensors')(save(lambda r: (lambda p:(dist.all_gather(p,torch.ones(1)*r),p)[1])(PL())))
W('save_all','no training')(lambda r,i: ag(r,PL()))
W('save_all','local fill then barrier')(save(lambda r: (dist.barrier(), [float(i) for i in range(ws())])[1]))
R('save_all','gather to 0')(save(lambda r: (lambda p:(dist.gather(torch.ones(1)*r,p,dst=0),[x.item() for x in p] if p else None)[1])(PL() if r==0 else None)))
R('save_all','all_gather_object')(save(lambda r: (lambda p:(dist.all_gather_object(p,float(r)),p)[1])([None]*ws())))
R('save_all','gather_object')(save(lambda r: (lambda p:(dist.gather_object(float(r),p,dst=0),p)[1])([None]*ws() if r==0 else None)))
# ---------------- every_second
def ev(f):
    def every_second(rank,inputs):
        m=lin()
        for i,x in enumerate(inputs): f(m,rank,i,x)
    return every_second
def ns(m,x):
    with m.no_sync(): m(x).backward()
W('every_second','as given')(ev(lambda m,r,i,x: m(x).backward() if i%2==1 or r==0 else ns(m,x)))
W('every_second','even instead of odd')(ev(lambda m,r,i,x: m(x).backward() if i%2==0 else ns(m,x)))
W('every_second','drops every first input (no accumulate)')(ev(lambda m,r,i,x: m(x).backward() if i%2==1 else None))
W('every_second','forward only on even')(ev(lambda m,r,i,x: m(x).backward() if i%2==1 else ns.__class__ and None))
W('every_second','always')(ev(lambda m,r,i,x: m(x).backward()))
W('every_second','never')(ev(lambda m,r,i,x: ns(m,x)))
W('every_second','rank 1 like rank 0')(ev(lambda m,r,i,x: m(x).backward() if r==0 or i%2==1 or True else None))
W('every_second','only last')(ev(lambda m,r,i,x: m(x).backward() if i==3 else ns(m,x)))
W('every_second','every third')(ev(lambda m,r,i,x: m(x).backward() if i%3==1 else ns(m,x)))
def zg(m,r,i,x):
    m.zero_grad()
    (m(x).backward() if i%2==1 else ns(m,x))
W('every_second','zero_grad before every input (nothing adds up)')(ev(zg))
def zeroed(m,r,i,x):
    if i%2==1: m(x).backward()
    else:
        with m.no_sync(): (m(x)*0).backward()
W('every_second','zero loss on even inputs')(ev(zeroed))
def bwonly(m,r,i,x):
    l=m(x)
    if i%2==1: l.backward()
    else:
        with m.no_sync(): l.backward()
W('every_second','no_sync around backward only')(ev(bwonly))
W('every_second','rank-swapped')(ev(lambda m,r,i,x: m(x).backward() if i%2==1 or r==1 else ns(m,x)))
R('every_second','module on even')(ev(lambda m,r,i,x: m(x).backward() if i%2==1 else m.module(x).backward()))
# ---------------- unused
def un(mk):
    def unused(rank,inputs):
        m=mk(rank)
        for x in inputs: m(x).backward()
    return unused
class BothB(Branches):
    def forward(self,x): return self.a(x)+self.b(x)
class OnlyA(Branches):
    def forward(self,x): return self.a(x)
class ZeroB(Branches):
    def forward(self,x): return self.a(x)+(self.b(x) if dist.get_rank()==0 else 0*self.b(x))
class R1(Branches):
    def forward(self,x): return self.a(x)+self.b(x) if dist.get_rank()==1 else self.a(x)
W('unused','as given')(un(lambda r: DDP(Branches())))
W('unused','both layers on all ranks (another model)')(un(lambda r: DDP(BothB())))
W('unused','plain Linear, Branches gone')(un(lambda r: lin()))
W('unused','OnlyA')(un(lambda r: DDP(OnlyA())))
W('unused','OnlyA + find_unused')(un(lambda r: DDP(OnlyA(),find_unused_parameters=True)))
W('unused','find_unused on rank 0 only')(un(lambda r: DDP(Branches(),find_unused_parameters=r==0)))
W('unused','find_unused on rank 1 only')(un(lambda r: DDP(Branches(),find_unused_parameters=r==1)))
R('unused','static_graph')(un(lambda r: DDP(Branches(),static_graph=True)))
W('unused','freeze b on rank 1')(un(lambda r: (lambda b:(r and b.b.requires_grad_(False),DDP(b))[1])(Branches())))
W('unused','freeze b everywhere')(un(lambda r: (lambda b:(b.b.requires_grad_(False),DDP(b))[1])(Branches())))
W('unused','no DDP')(un(lambda r: Branches()))
@W('unused','join')
def _(rank,inputs):
    m=DDP(Branches())
    with m.join():
        for x in inputs: m(x).backward()
@W('unused','no_sync')
def _(rank,inputs):
    m=DDP(Branches())
    with m.no_sync():
        for x in inputs: m(x).backward()
W('unused','ranks swapped')(un(lambda r: DDP(R1(),find_unused_parameters=True)))
R('unused','0*b')(un(lambda r: DDP(ZeroB())))

