"""An emulated rank within its process: what distinguishes it from a launched one.

launched   program ── RecordingGroup ── gloo or NCCL                monotonic clock, log in a file
emulated   program ── RecordingGroup ── ModelGroup ── Link ── ...   virtual clock, log in shared memory
"""

from __future__ import annotations

import mmap
import os
from collections import deque
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from greenlet import getcurrent, greenlet

from joinlab.backend.model import Knobs
from joinlab.emulator.clock import VirtualClock
from joinlab.emulator.devices_new import patch_devices
from joinlab.emulator.exchange import Exchange, Lost
from joinlab.emulator.link import Link, Transport
from joinlab.emulator.messages import RankMessage, Reply
from joinlab.emulator.model_group import group_maker
from joinlab.emulator.model_store import ModelStore
from joinlab.emulator.model_work import Futures
from joinlab.emulator.shared_log import SharedLog, shared_memory
from joinlab.emulator.virtual import Patches, RankState, patch_futures, patch_rank
from joinlab.recorder.install import patch
from joinlab.recorder.recorder import Recorder


class ModelledRank:
    """The emulated rank of a process, if it is to be one. Made once, before ranks are forked."""

    def __init__(self) -> None:
        self.state = RankState()
        patch_futures(self.state)
        self.recorder = Recorder(SharedLog(shared_memory()), 0)
        patch(self.recorder)
        self._patches, self._devices = Patches(self.state), Patches(self.state)
        patch_rank(self._patches)
        self._patches.set()  # those for a GPU wrap them
        patch_devices(self._devices)
        self._patches.unset()
        os.register_at_fork(after_in_child=self.leave)

    def enter(
        self,
        rank: int,
        ranks: int,
        knobs: Knobs,
        transport: Transport,
        memory: mmap.mmap,
        on_failure: Callable[[Exception], None] = lambda error: None,
    ) -> Link:
        """This process is an emulated rank from now on. `on_failure`: it cannot go on recording."""
        log, clock = SharedLog(memory, on_failure), VirtualClock(knobs.costs.input_ns[rank])
        self.recorder.start(log, rank, clock)
        link = Link(transport, clock, self.recorder)
        log.empty = lambda: link.ask("log")
        futures = Futures(link)
        self.recorder.modelled = group_maker(link, futures, knobs)
        self.state.link, self.state.futures, self.state.gpu = link, futures, rank
        self.state.ranks, self.state.pad, self.state.backend = ranks, knobs.pad, knobs.backend
        self._patches.set()
        if knobs.streams:
            self._devices.set()
        return link

    def init_process_group(self, knobs: Knobs) -> None:
        """Make the default group, as every rank has it when its program begins."""
        store = ModelStore(self.state.linked)
        self.state.linked.kept.append(store)  # C++ alone would keep it without its methods
        dist.init_process_group(
            knobs.backend,
            store=store,
            rank=self.recorder.rank,
            world_size=self.state.ranks,
        )

    def connect(self) -> None:
        """init_process_group(device_id=...): the groups connect when they are made."""
        group: Any = dist.group.WORLD
        if group.real.streams:
            group.about = (group.about[0], True)
            self.recorder.begin_group(group.record, *group.about)
            self.state.linked.ask("connect", group.record.label)

    def leave(self) -> None:
        """This process is no emulated rank any more: also in one that a rank forks."""
        self.state.link = None
        self._devices.unset()
        self._patches.unset()


class InProcess:
    """A transport to a keeper in the same process, for one rank: a rehearsal."""

    def __init__(self, knobs: Knobs, memory: mmap.mmap) -> None:
        self.messages: list[RankMessage] = []
        self._sent: deque[tuple[int, RankMessage | Lost]] = deque()
        self._replies: deque[Reply] = deque()
        self.exchange = Exchange(
            knobs, [memory], lambda rank, reply: self._replies.append(reply), self._hear
        )
        self._keeper = greenlet(self.exchange.go)
        self._rank: Any = None

    def send(self, message: RankMessage) -> None:
        self._sent.append((0, message))
        self.messages.append(message)

    def receive(self) -> Reply:
        self._rank = getcurrent()
        while not self._replies:
            self._keeper.switch()
        return self._replies.popleft()

    def finish(self) -> None:
        """The rank has told its end."""
        self._rank = getcurrent()
        self._keeper.switch()

    def _hear(self) -> list[tuple[int, RankMessage | Lost]]:
        while not self._sent:
            self._rank.switch()
        sent, self._sent = list(self._sent), deque()
        return sent
