# FAULT. World 4. HF-like Trainer with callbacks: DefaultFlow sets control.should_evaluate where state.global_step % eval_steps == 0; rank 2 restored global_step = 1 (an old trainer_state), the others 0: it evaluates one step earlier.
# Culprit: rank 2. Cause: `if state.global_step % args.eval_steps == 0` in DefaultFlow.on_step_end, seen by `if self.control.should_evaluate:`; origin `if resume is not None`. Met: rank 2's all_reduce of evaluate (2 values, step 0) with the others' backward of step 1 (1 value, no bias).
# NCCL: rank 2's AR f32[2] with AR f32[1]; some end somehow. gloo: hang/raise. A fix: evaluate always or agree on the step.
from dataclasses import dataclass, field
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

COUNTS = (4, 4, 4, 4)


@dataclass
class Args:
    eval_steps: int = 2
    lr: float = 0.1


@dataclass
class State:
    global_step: int = 0
    log_history: list = field(default_factory=list)


@dataclass
class Control:
    should_evaluate: bool = False


class DefaultFlow:
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step % args.eval_steps == 0:
            control.should_evaluate = True
        return control


class History:
    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        state.log_history.append(metrics)


class CallbackHandler:
    def __init__(self, callbacks):
        self.callbacks = callbacks

    def call_event(self, event, args, state, control, **kwargs):
        for callback in self.callbacks:
            handler = getattr(callback, event, None)
            if handler is not None:
                control = handler(args, state, control, **kwargs) or control
        return control


class Trainer:
    def __init__(self, args, rank):
        self.args, self.state, self.control = args, State(), Control()
        self.handler = CallbackHandler([DefaultFlow(), History()])
        self.model = DDP(nn.Linear(1, 1, bias=False))
        self.opt = torch.optim.SGD(self.model.parameters(), lr=args.lr)
        self.rank = rank

    def _load(self, resume):
        if resume is not None:
            self.state = State(**resume)

    def evaluate(self):
        sums = torch.tensor([1.0, 2.0])
        dist.all_reduce(sums)
        metrics = {"eval_loss": (sums[0] / sums[1]).item()}
        self.control = self.handler.call_event("on_evaluate", self.args, self.state, self.control, metrics=metrics)

    def train(self, data, resume=None):
        self._load(resume)
        for x in data:
            self.opt.zero_grad()
            self.model(x.reshape(1, 1)).sum().backward()
            self.opt.step()
            self.state.global_step += 1
            self.control = self.handler.call_event("on_step_end", self.args, self.state, self.control)
            if self.control.should_evaluate:
                self.control.should_evaluate = False
                self.evaluate()
        return len(self.state.log_history)


def program(rank, inputs):
    saved = {2: {"global_step": 1}}
    return Trainer(Args(), rank).train(inputs, resume=saved.get(rank))
