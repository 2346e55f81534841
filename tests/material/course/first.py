"""Answers on collectives, DDP and join(), each in as few lines as it takes."""

from tests.material.course.basis import *

# ---------------- gather_list
W('gather_list','own only')(lambda t: t)
@W('gather_list','hardcoded 2 ranks')
def _(t):
    m=torch.cat(t); o=[torch.empty_like(m) for _ in range(2)]; dist.all_gather(o,m); return [p for x in o for p in x.chunk(len(t))]
@W('gather_list','hardcoded 3 tensors')
def _(t):
    m=torch.cat(t); o=[torch.empty_like(m) for _ in range(ws())]; dist.all_gather(o,m); return [p for x in o for p in x.chunk(3)]
@W('gather_list','aliased places')
def _(t):
    m=torch.cat(t); o=[torch.empty_like(m)]*ws(); dist.all_gather(o,m); return [p for x in o for p in x.chunk(len(t))]
@W('gather_list','transposed order')
def _(t):
    m=torch.cat(t); o=[torch.empty_like(m) for _ in range(ws())]; dist.all_gather(o,m); c=[x.chunk(len(t)) for x in o]; return [c[r][i] for i in range(len(t)) for r in range(ws())]
@W('gather_list','one call per tensor')
def _(t):
    f=[]
    for x in t:
        o=[torch.empty_like(x) for _ in range(ws())]; dist.all_gather(o,x); f.append(o)
    return [o[r] for r in range(ws()) for o in f]
@W('gather_list','list of cats (not cut)')
def _(t):
    m=torch.cat(t); o=[torch.empty_like(m) for _ in range(ws())]; dist.all_gather(o,m); return o
@W('gather_list','one tensor')
def _(t):
    m=torch.cat(t); o=[torch.empty_like(m) for _ in range(ws())]; dist.all_gather(o,m); return torch.cat(o)
@W('gather_list','None')
def _(t): pass
@W('gather_list','gather to 0 only')
def _(t):
    m=torch.cat(t); o=[torch.empty_like(m) for _ in range(ws())] if dist.get_rank()==0 else None; dist.gather(o and m or m,o,dst=0) if False else dist.gather(m,o,dst=0); return [p for x in (o or []) for p in x.chunk(len(t))]
@W('gather_list','only rank 0 calls')
def _(t):
    m=torch.cat(t); o=[torch.empty_like(m) for _ in range(ws())]
    if dist.get_rank()==0: dist.all_gather(o,m)
    return [p for x in o for p in x.chunk(len(t))]
@W('gather_list','all_gather_object')
def _(t):
    o=[None]*ws(); dist.all_gather_object(o,t); return [x for l in o for x in l]
@W('gather_list','infinite loop')
def _(t):
    while True: pass
@W('gather_list','async, not waited')
def _(t):
    m=torch.cat(t); o=[torch.zeros_like(m) for _ in range(ws())]; dist.all_gather(o,m,async_op=True); return [p.clone() for x in o for p in x.chunk(len(t))]
@W('gather_list','squeezed shape (2,)')
def _(t):
    m=torch.cat(t); o=[torch.empty_like(m) for _ in range(ws())]; dist.all_gather(o,m); return [p for x in o for p in x]
@W('gather_list','mutates input (zeros own tensors after)')
def _(t):
    r=gather_list(t); [x.zero_() for x in t]; t.clear(); return r
@R('gather_list','all_gather_into_tensor')
def _(t):
    m=torch.cat(t); o=torch.empty(ws()*len(t),2); dist.all_gather_into_tensor(o,m); return list(o.split(1))
@R('gather_list','all_reduce of zeros with own slot')
def _(t):
    o=torch.zeros(ws()*len(t),2); o[dist.get_rank()*len(t):(dist.get_rank()+1)*len(t)]=torch.cat(t); dist.all_reduce(o); return list(o.split(1))
@R('gather_list','stack, tuple')
def _(t):
    m=torch.stack(t); o=[torch.empty_like(m) for _ in range(ws())]; dist.all_gather(o,m); return tuple(p for x in o for p in x)

# ---------------- accumulate
@W('accumulate','every time')
def _(m,i):
    for x in i: m(x).backward()
@W('accumulate','no_sync around backward only')
def _(m,i):
    for k,x in enumerate(i):
        y=m(x)
        if k<len(i)-1:
            with m.no_sync(): y.backward()
        else: y.backward()
@W('accumulate','no_sync for all')
def _(m,i):
    with m.no_sync():
        for x in i: m(x).backward()
@W('accumulate','off by one: last two synced')
def _(m,i):
    for k,x in enumerate(i):
        if k<len(i)-2:
            with m.no_sync(): m(x).backward()
        else: m(x).backward()
@W('accumulate','drops last')
def _(m,i):
    with m.no_sync():
        for x in i[:-2]: m(x).backward()
    m(i[-2] if len(i)>1 else i[-1]).backward()
@W('accumulate','sum of inputs, one backward')
def _(m,i): m(sum(i)).backward()
@W('accumulate','sum of losses, one backward')
def _(m,i): sum(m(x) for x in i).backward()
@W('accumulate','divided by len')
def _(m,i):
    with m.no_sync():
        for x in i[:-1]: (m(x)/len(i)).backward()
    (m(i[-1])/len(i)).backward()
@W('accumulate','syncs first only')
def _(m,i):
    m(i[0]).backward()
    with m.no_sync():
        for x in i[1:]: m(x).backward()
@W('accumulate','switch left off')
def _(m,i):
    m.require_backward_grad_sync=False
    for x in i[:-1]: m(x).backward()
    m.require_backward_grad_sync=True; m(i[-1]).backward(); m.require_backward_grad_sync=False
@W('accumulate','calls optimizer/zero_grad')
def _(m,i):
    for k,x in enumerate(i):
        m.zero_grad()
        if k<len(i)-1:
            with m.no_sync(): m(x).backward()
        else: m(x).backward()
@W('accumulate','rank-dependent')
def _(m,i):
    if dist.get_rank()==0: accumulate(m,i)
    else:
        for x in i: m(x).backward()
@W('accumulate','extra backward with zero input at end')
def _(m,i):
    with m.no_sync():
        for x in i: m(x).backward()
    m(torch.zeros(1)).backward()
@R('accumulate','nullcontext style')
def _(m,i):
    from contextlib import nullcontext
    for k,x in enumerate(i):
        with (m.no_sync() if k+1<len(i) else nullcontext()): m(x).backward()
@R('accumulate','module for all but last')
def _(m,i):
    for x in i[:-1]: m.module(x).backward()
    m(i[-1]).backward()
@R('accumulate','attribute switch')
def _(m,i):
    for k,x in enumerate(i):
        m.require_backward_grad_sync = k==len(i)-1
        m(x).backward()

# ---------------- safe_loop
def mk(body):
    return body
@W('safe_loop','barrier in loop')
def _(rank,inputs):
    m=DDP(torch.nn.Linear(1,1))
    with m.join():
        for x in inputs: m(x).backward(); dist.barrier()
@W('safe_loop','no barrier')
def _(rank,inputs):
    m=DDP(torch.nn.Linear(1,1))
    with m.join():
        for x in inputs: m(x).backward()
@W('safe_loop','no join')
def _(rank,inputs):
    m=DDP(torch.nn.Linear(1,1))
    for x in inputs: m(x).backward()
    dist.barrier()
@W('safe_loop','inside with, after loop')
def _(rank,inputs):
    m=DDP(torch.nn.Linear(1,1))
    with m.join():
        for x in inputs: m(x).backward()
        dist.barrier()
@W('safe_loop','barrier before loop only')
def _(rank,inputs):
    m=DDP(torch.nn.Linear(1,1)); dist.barrier()
    with m.join():
        for x in inputs: m(x).backward()
@W('safe_loop','join(enable=False)')
def _(rank,inputs):
    m=DDP(torch.nn.Linear(1,1))
    with m.join(enable=False):
        for x in inputs: m(x).backward()
    dist.barrier()
@W('safe_loop','only min inputs')
def _(rank,inputs):
    m=DDP(torch.nn.Linear(1,1)); n=torch.tensor(len(inputs)); dist.all_reduce(n,op=dist.ReduceOp.MIN)
    with m.join():
        for x in inputs[:n.item()]: m(x).backward()
    dist.barrier()
@W('safe_loop','rank 0 barrier only')
def _(rank,inputs):
    m=DDP(torch.nn.Linear(1,1))
    with m.join():
        for x in inputs: m(x).backward()
    if rank==0: dist.barrier()
@W('safe_loop','throw_on_early_termination swallowed')
def _(rank,inputs):
    m=DDP(torch.nn.Linear(1,1))
    try:
        with m.join(throw_on_early_termination=True):
            for x in inputs: m(x).backward()
    except RuntimeError: pass
    dist.barrier()
@W('safe_loop','barrier if not last input')
def _(rank,inputs):
    m=DDP(torch.nn.Linear(1,1))
    with m.join():
        for i,x in enumerate(inputs):
            m(x).backward()
            if i<len(inputs)-1: dist.barrier()
    dist.barrier()
@W('safe_loop','join per input')
def _(rank,inputs):
    m=DDP(torch.nn.Linear(1,1))
    for x in inputs:
        with m.join(): m(x).backward()
    dist.barrier()
@W('safe_loop','no_sync inside')
def _(rank,inputs):
    m=DDP(torch.nn.Linear(1,1))
    with m.join(), m.no_sync():
        for x in inputs: m(x).backward()
    dist.barrier()
@W('safe_loop','two barriers on rank with more')
def _(rank,inputs):
    m=DDP(torch.nn.Linear(1,1))
    with m.join():
        for x in inputs: m(x).backward()
    for _ in inputs: dist.barrier()
@W('safe_loop','own barrier group inside loop')
def _(rank,inputs):
    m=DDP(torch.nn.Linear(1,1)); g=dist.new_group()
    with m.join():
        for x in inputs: m(x).backward(); dist.barrier(g)
    dist.barrier()
@W('safe_loop','no training at all')
def _(rank,inputs):
    m=DDP(torch.nn.Linear(1,1))
    with m.join(): pass
    dist.barrier()
@R('safe_loop','generic Join')
def _(rank,inputs):
    m=DDP(torch.nn.Linear(1,1))
    with Join([m]):
        for x in inputs: m(x).backward()
    dist.barrier()
@R('safe_loop','barrier then metric all_reduce')
def _(rank,inputs):
    m=DDP(torch.nn.Linear(1,1))
    with m.join():
        for x in inputs: m(x).backward()
    dist.barrier(); dist.all_reduce(torch.ones(1))
@R('safe_loop','barrier twice')
def _(rank,inputs):
    m=DDP(torch.nn.Linear(1,1))
    dist.barrier()
    with m.join():
        for x in inputs: m(x).backward()
    dist.barrier(); dist.barrier()
@R('safe_loop','async barrier waited')
def _(rank,inputs):
    m=DDP(torch.nn.Linear(1,1))
    with m.join(divide_by_initial_world_size=False):
        for x in inputs: m(x).sum().backward()
    dist.barrier(async_op=True).wait()
@R('safe_loop','monitored_barrier on a gloo group')
def _(rank,inputs):
    m=DDP(torch.nn.Linear(1,1)); g=dist.new_group(backend='gloo')
    with m.join():
        for x in inputs: m(x).backward()
    dist.monitored_barrier(g)

# ---------------- gradient
for n,f in {
 'always ws':lambda o,w,d: sum(o)/w,'always left':lambda o,w,d: sum(o)/len(o),'swapped':lambda o,w,d: sum(o)/(len(o) if d else w),
 'sum':lambda o,w,d: sum(o),'max':lambda o,w,d: max(o)/(w if d else 1),'int division':lambda o,w,d: sum(o)//(w if d else len(o)),
 'off by one':lambda o,w,d: sum(o)/(w+1 if d else len(o)),'first only':lambda o,w,d:o[0]/(w if d else 1),'w fixed 3':lambda o,w,d: sum(o)/(3 if d else len(o)),
 'w fixed 2':lambda o,w,d: sum(o)/(2 if d else len(o)),'None':lambda o,w,d: None,'string':lambda o,w,d:'5','list':lambda o,w,d:[sum(o)/(w if d else len(o))],
 'two args':lambda o,w: sum(o)/w,'shown example':lambda o,w,d: 5 if not d else 10/3, 'rounded':lambda o,w,d: round(sum(o)/(w if d else len(o)),1)}.items(): ANSWERS.append(('gradient',n,'wrong',f))
def g_inf(o,w,d):
    while True: pass
ANSWERS.append(('gradient','infinite loop','wrong',g_inf))
def g_exit(o,w,d): sys.exit(1)
ANSWERS.append(('gradient','sys.exit','wrong',g_exit))
ANSWERS.append(('gradient','generator','wrong',lambda o,w,d:(x for x in o)))
def g_mut(o,w,d):
    n=len(o); s=0
    while o: s+=o.pop()
    return s/(w if d else n)
ANSWERS.append(('gradient','right but empties the list','right',g_mut))
ANSWERS.append(('gradient','tensor','right',lambda o,w,d: torch.tensor(o).sum()/(w if d else len(o))))
import numpy as np, statistics
ANSWERS.append(('gradient','numpy','right',lambda o,w,d: np.mean(o) if not d else np.sum(o)/w))

# ---------------- last_joiner
for n,f in {'first max':lambda c:c.index(max(c)),'min':lambda c:c.index(min(c)),'last rank':lambda c:len(c)-1,'zero':lambda c:0,'count':lambda c:max(c),
 'off by one':lambda c:len(c)-list(reversed(c)).index(max(c)),'reversed idx':lambda c:list(reversed(c)).index(max(c)),'shown only':lambda c:2,
 'argmax np first':lambda c:int(np.argmax(c)),'list':lambda c:[r for r,x in enumerate(c) if x==max(c)],'np array':lambda c:np.flatnonzero(np.array(c)==max(c)),
 'tensor multi':lambda c:torch.tensor([1,2]),'None':lambda c:None,'string':lambda c:str(len(c)-1),'sort in place':lambda c:c.sort() or 0,'mean':lambda c:sum(c)/len(c),'sorted idx':lambda c: sorted(range(len(c)),key=lambda r:c[r])[0]}.items(): ANSWERS.append(('last_joiner',n,'wrong',f))
def l_inf(c):
    while True: pass
ANSWERS.append(('last_joiner','infinite loop','wrong',l_inf))
ANSWERS.append(('last_joiner','sorted last','right',lambda c: sorted(range(len(c)),key=lambda r:c[r])[-1]))
ANSWERS.append(('last_joiner','numpy','right',lambda c: len(c)-1-np.argmax(np.array(c)[::-1])))
ANSWERS.append(('last_joiner','tensor scalar','right',lambda c: torch.tensor(last_joiner(c))))

# ---------------- in_order
@W('in_order','as they come')
def _(ready,reduce):
    for b in ready: reduce(b)
@W('in_order','sorted at end')
def _(ready,reduce):
    for b in sorted(ready): reduce(b)
@W('in_order','counter, not ready')
def _(ready,reduce):
    for i,_ in enumerate(ready): reduce(i)
@W('in_order','if instead of while')
def _(ready,reduce):
    have=set(); n=0
    for b in ready:
        have.add(b)
        if n in have: reduce(n); n+=1
@W('in_order','twice')
def _(ready,reduce):
    have=set()
    for b in ready:
        have.add(b); n=0
        while n in have: reduce(n); n+=1
@W('in_order','begins with 1')
def _(ready,reduce):
    have=set(); n=1
    for b in ready:
        have.add(b)
        while n in have: reduce(n); n+=1
@W('in_order','hardcoded 3')
def _(ready,reduce):
    for b in ready: pass
    for i in range(3): reduce(i)
@W('in_order','descending')
def _(ready,reduce):
    for b in sorted(ready,reverse=True): reduce(b)
@W('in_order','nothing')
def _(ready,reduce): list(ready)
@W('in_order','does not consume')
def _(ready,reduce): pass
@W('in_order','infinite')
def _(ready,reduce):
    n=0; have=set(ready)
    while True:
        if n in have: reduce(n)
@W('in_order','only if b == next')
def _(ready,reduce):
    n=0
    for b in ready:
        if b==n: reduce(b); n+=1
@W('in_order','threads')
def _(ready,reduce):
    import threading
    for b in ready:
        t=threading.Thread(target=reduce,args=(b,)); t.start(); t.join()
@W('in_order','indexes ready as list')
def _(ready,reduce):
    for i in range(len(ready)): reduce(i)
@W('in_order','waits one late (flush after next)')
def _(ready,reduce):
    have=set(); n=0
    for b in ready:
        while n in have: reduce(n); n+=1
        have.add(b)
    while n in have: reduce(n); n+=1
@R('in_order','heap')
def _(ready,reduce):
    import heapq
    h=[]; n=0
    for b in ready:
        heapq.heappush(h,b)
        while h and h[0]==n: reduce(heapq.heappop(h)); n+=1

# ---------------- shadows
for n,f in {'inputs':lambda c:[max(c)-x for x in c],'x2':lambda c:[2*(max(c)-x) for x in c],'+1':lambda c:[3*(max(c)-x)+1 for x in c],'all ranks same':lambda c:[3*(max(c)-min(c))]*len(c),
 'vs mean':lambda c:[3*(sum(c)/len(c)-x) for x in c],'3*count':lambda c:[3*x for x in c],'vs last':lambda c:[3*(c[-1]-x) for x in c],'abs vs c[0]':lambda c:[3*abs(c[0]-x) for x in c],
 'shown':lambda c:[3,0],'dict':lambda c:{r:3*(max(c)-x) for r,x in enumerate(c)},'gen':lambda c:(3*(max(c)-x) for x in c),'drops zeros':lambda c:[3*(max(c)-x) for x in c if x<max(c)],
 'None':lambda c:None,'sum':lambda c:sum(3*(max(c)-x) for x in c),'two ranks':lambda c:[3*(max(c)-c[0]),3*(max(c)-c[1])],'x4':lambda c:[4*(max(c)-x) for x in c]}.items(): ANSWERS.append(('shadows',n,'wrong',f))
def s_inf(c):
    while max(c): pass
ANSWERS.append(('shadows','infinite loop','wrong',s_inf))
ANSWERS.append(('shadows','tuple','right',lambda c:tuple(3*(max(c)-x) for x in c)))
ANSWERS.append(('shadows','tensor','right',lambda c:3*(max(c)-torch.tensor(c))))

