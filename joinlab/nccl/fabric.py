"""NCCL as a fabric: the k-th call of one rank meets the k-th of the others, whatever they are.

While the calls of all ranks fit together, a slot is carried out as soon as the last rank has issued
it. From the first slot that does not fit, and where no rank can go on otherwise, the calls run step
by step on the ring of `ring.py`, with the bytes that its lines carry (motion.py), until it is at
rest again. So what the emulator does with calls that do not fit is what the rule proves of them.

    queued          all ranks' next calls fit: carried out at once; in `_queues`, by group rank, what waits for others
      |  they do not fit, or no rank can go on
      v
    on the ring     in `_running`, by group rank, in order; `Ring.done` says how many of each rank's are complete
      |  nothing is under way, and every step sent was received: no trace is left
      v
    queued

A communicator runs each rank's calls in the order of issue, one at a time, on whatever streams they
are. Since PyTorch 2.8 a synchronous call is launched on the current stream, and an asynchronous one
on the group's (ProcessGroupNCCL::collective, PR 150398; all were on the group's before). NCCL makes
each launch wait for the one before it: in ncclLaunchPrepare the user's stream waits for the
communicator's own, comm->sharedRes->deviceStream, which ncclLaunchFinish then advances to the end of
the kernel (src/enqueue.cc:1475 and 1696 in v2.27.3-1, 1615 and 1837 in v2.29.7-1, the same in
v2.30.7-1). So where a call is launched decides no ending:

    async A, which never completes; then sync B        B waits for A, and the current stream for B
    the same, B on another communicator                B runs: without NCCL_LAUNCH_ORDER_IMPLICIT (its
                                                       default is 0) nothing orders communicators
    sync A, which never completes; then async B        B waits for the current stream, and so for A, on any

A communicator comes into being with the first call, for which all its ranks wait; so does the one of
two ranks that send and receive. Where the program binds a GPU (init_process_group(device_id=...)),
it does with the group, and sends take that one, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch.distributed as dist

from joinlab.backend.machine import Machine
from joinlab.backend.model import EmulatedCall, Fabric, Rank
from joinlab.backend.payload import Bytes, CallPart, agree, len_of, look, move, write
from joinlab.nccl.checks import check, refuse_lists, refuse_short_memory
from joinlab.nccl.connections import Connections
from joinlab.nccl.kernels import Kernels
from joinlab.nccl.motion import Motion, Wiring, factor_of, reducing, steps_to_peers
from joinlab.nccl.ring import ALIGNS, BUFFERED_BYTES, GPUS, TUNED_RANKS, Ring, part_bytes
from joinlab.ops import FACTS, POINT_TO_POINT, Needs, Op, waits_for
from joinlab.program.process_group import METHODS, Form

ASSUMES = (
    f"Assumed: one node, a ring in the order of the ranks, the LL protocol. With more than {TUNED_RANKS} ranks NCCL "
    "may choose others, and calls that do not fit may then end differently."
)
"""Every view of a modelled run shows it. Calls that fit are not affected."""

CROSSED = (
    "Two ranks whose first calls between them both send, or both receive, never get data from each other on NCCL, "
    "whatever its size. With send and recv, one of them has to do it the other way round, or dist.batch_isend_irecv "
    "issues both as one."
)

SENDS_WAIT = (
    f"Assumed: a send of more than {BUFFERED_BYTES >> 20} MiB waits for its recv. Some machines buffer it: that "
    "depends on how their GPUs are connected."
)


class Communicator:
    """One NCCL communicator: the group's, or that of two ranks that send and receive."""

    def __init__(self, run: Machine, ranks: Sequence[int]) -> None:
        self.run = run
        self.ranks = ranks  # global ranks, by group rank
        self.size = len(ranks)
        self.joined: set[int] = set()
        self.aborted: set[int] = set()  # group ranks that have given it up
        self._connections = Connections(self.size)
        self.born_ns = 0
        self._queues: list[deque[list[EmulatedCall]]] = [deque() for _ in ranks]
        self._filled = 0
        # when the stream of each rank is done with what it has completed
        self._free_ns = [0] * self.size
        self._ring: Ring | None = None
        self._running: list[deque[Motion]] = [deque() for _ in ranks]  # on the ring, by group rank
        self._ring_done = [0] * self.size  # of them, how many are popped
        knobs = run.knobs
        kernels = Kernels(knobs.era == "1.9", knobs.pad)
        crossed = self._connections.crossed
        self._wiring = Wiring(
            self.size, ALIGNS[knobs.era], kernels, knobs.gpu, run.costs, self._free_ns, crossed
        )

    @property
    def crossed(self) -> bool:
        """Whether two of its ranks have connected the wrong ends."""
        return bool(self._connections.crossed)

    def join(
        self,
        group_rank: int,
        host: Rank,
        calls: Sequence[EmulatedCall],
        now: int,
        without: str = "it is not made",
    ) -> None:
        """The first call of a rank, or the making of its group: the host waits until every rank is
        there."""
        if group_rank in self.joined:
            return
        self.joined.add(group_rank)
        self.born_ns = max(self.born_ns, now)
        if len(self.joined) < self.size:
            if calls:
                step = "first call on this communicator"
            else:
                step = "init_process_group(device_id=...) or new_group()"
            host.wait_inside(calls, f"for the other ranks' {step}, without which {without}")
        else:
            for rank in self.ranks:
                if rank != host.rank:
                    self.run.hosts[rank].wake()
        host.reach(self.born_ns)
        for call in calls:
            call.ready_ns = max(call.ready_ns, self.born_ns)

    def connect(self, group_rank: int, calls: Sequence[EmulatedCall]) -> None:
        """The host waits for the hosts of new peers, see `connections`."""
        if self.size == 1:
            return
        steps = [
            step
            for call in calls
            for part in call.parts
            for step in steps_to_peers(call, part, group_rank, self.size)
        ]
        host, connections = calls[0].host, self._connections
        for word in connections.make(group_rank, steps, calls[-1].row.get("enqueued_ns") or 0):
            self._refuse_uneven(calls[0])
            connections.waiting[word] = lambda: host.wake()
            peer = f"group rank {word[0]} of group {calls[0].group.label!r}"
            host.wait_inside(calls, f"inside its {calls[0].op} for {peer} to connect the two")
        self._refuse_uneven(calls[0])
        host.reach(connections.met_ns[group_rank])
        for call in calls:
            call.ready_ns = max(call.ready_ns, connections.met_ns[group_rank])

    def _refuse_uneven(self, call: EmulatedCall) -> None:
        if self._connections.uneven:
            raise NotImplementedError(
                f"{call!r} and its peer connect to each other for different sends and recvs, of which one of the two "
                "has more: NCCL may end in an error, 'Message truncated'"
            )

    def submit(self, group_rank: int, calls: list[EmulatedCall]) -> None:
        """A rank issues calls as one: run what can run."""
        refuse_short_memory(calls)
        if self._ring is not None:
            self._feed(group_rank, calls)
            self._settle_ring()
            return
        self._queues[group_rank].append(calls)
        self._filled += len(self._queues[group_rank]) == 1
        # every rank has a next call; `_filled` counts the queues that are not empty
        while self._filled == self.size:
            heads = [queue[0] for queue in self._queues]
            refuse_lists([calls[0] for calls in heads])
            if not self._fit(heads):
                self._to_ring()
                return
            if self._overdue(heads):
                return
            for queue in self._queues:
                queue.popleft()
                self._filled -= not queue
            self._carry_out([calls[0] for calls in heads])

    def _overdue(self, heads: Sequence[list[EmulatedCall]]) -> bool:
        """Whether some of these calls have waited for the last rank for so long that the watchdog
        ends their processes.

        Today's does so (WorkNCCL::checkTimeout, ProcessGroupNCCL.cpp, v2.13.0), also where that
        rank is merely late.
        """
        if self.run.knobs.era != "today":
            return False
        first = [calls[0] for calls in heads]
        latest = max([call.ready_ns for call in first])
        late = [
            call
            for call in first
            if 0 < call.group.watchdog_ns < latest - call.ready_ns and not call.host.gone
        ]
        for call in late:
            ns = call.group.watchdog_ns
            self.abort(call.group_rank)
            self.run.abort_rank(
                call.host.rank, watchdog_text(call, ns // 1_000_000), call.ready_ns + ns
            )
        return bool(late)

    def flush(self) -> None:
        """Run step by step what waits for a slot to fill."""
        if self._ring is None and any(self._queues):
            # Some ranks have called, the others never will. A broadcast's root, say, sends into its
            # FIFO and is done.
            self._to_ring()

    def abort(self, group_rank: int) -> None:
        """ncclCommAbort: the kernels of the rank of `group_rank` end where they are, and nothing of it
        moves any more."""
        self.aborted.add(group_rank)
        self._filled -= bool(self._queues[group_rank])
        self._queues[group_rank].clear()
        self._running[group_rank].clear()
        if self._ring is not None:
            self._ring.halt(group_rank)
            self._ring_done[group_rank] = self._ring.done[group_rank]

    def _fit(self, heads: Sequence[list[EmulatedCall]]) -> bool:
        # Quick for DDP's calls: equal looks fit. All others are compared byte for byte, as NCCL
        # would run them.
        first = heads[0][0]
        if FACTS[first.op].one_size and all(
            calls[0].look == first.look and len(calls) == 1 for calls in heads
        ):
            return True
        if any(len(calls) != 1 or calls[0].op in POINT_TO_POINT for calls in heads):
            return False
        calls = [calls[0] for calls in heads]
        return all(
            call.op == first.op
            and call.root == first.root
            and call.reduce_op == first.reduce_op
            and len(call.parts) == len(first.parts)
            for call in calls
        ) and all(
            agree(first.op, [call.parts[index] for call in calls], first.root)
            for index in range(len(first.parts))
        )

    def _carry_out(self, calls: Sequence[EmulatedCall]) -> None:
        first = calls[0]
        facts = FACTS[first.op]
        starts = [
            max(call.ready_ns, self._free_ns[group_rank]) for group_rank, call in enumerate(calls)
        ]
        # Its kernel runs, and holds the stream, from when this rank is there: it polls for the others.
        for call, start in zip(calls, starts, strict=True):
            call.begin(start)
        for index in range(len(first.parts)):
            parts = [call.parts[index] for call in calls]
            if facts.reduces:
                factors = [factor_of(call, self.size) for call in calls]
                self._reduce(first.op, parts, first.root, reducing(first), factors)
            else:
                move(first.op, parts, first.root)
        cost = self.run.costs.call_ns(first.nbytes())
        latest = max(starts)
        for group_rank, call in enumerate(calls):
            start = latest
            # A broadcast's root sends and is through; so is each rank but the root of a reduce.
            if facts.needs is not Needs.EVERYONE:
                start = max(
                    starts[group_rank],
                    *(
                        starts[source]
                        for source in waits_for(first.op, group_rank, first.root, range(self.size))
                    ),
                )
            self._free_ns[group_rank] = start + cost
            call.complete(start + cost)

    def _reduce(
        self,
        op: Op,
        parts: Sequence[CallPart],
        root: int,
        reduce_op: str,
        factors: Sequence[float | None],
    ) -> None:
        """Reduce what the ranks put in, each chunk in the order in which the ring passes it on.

        Chunk c of an all_reduce, and the part of rank c in a reduce_scatter, start at rank c + 1
        and are whole at c:

            n = 3, chunk 0    rank 1 sends x1    rank 2 sends x1 + x2    rank 0 has (x1 + x2) + x0, and hands it out

        A reduce has one chain, whatever its size, from the rank after the root to the root.
        """
        size, dtype = self.size, parts[0].dtype

        def chain(shares: Sequence[Bytes], last: int) -> Bytes:
            order = [(last + 1 + turn) % size for turn in range(size)]
            return self._wiring.kernels.chain(dtype, reduce_op, shares, order, factors)

        shares, facts = [look(part.ins) for part in parts], FACTS[op]
        if facts.needs is Needs.AT_ROOT:
            write(parts[root].outs, chain(shares, root))
            return
        chunk = part_bytes(op, len(shares[0]), size, self._wiring.align)
        lengths = [chunk] * size
        if facts.for_each and len(parts[0].ins) == size:
            # of unequal parts: one reduce for each, to its rank
            lengths = list(map(len_of, parts[0].ins))
        if not facts.for_each and len(shares[0]) <= chunk:
            totals = [chain(shares, 0)]
        else:
            ends = list(accumulate(lengths))
            spans = [slice(end - length, end) for end, length in zip(ends, lengths, strict=True)]
            totals = [chain([data[span] for data in shares], c) for c, span in enumerate(spans)]
        if len(totals) == 1:
            whole = totals[0]
        else:
            whole = np.concatenate(totals)
        for group_rank, part in enumerate(parts):
            if facts.for_each:
                write(part.outs, totals[group_rank])
            elif part.outs[0] is part.ins[0] and part.ins[0].is_contiguous():
                # `look` gave its memory: 3 us less than to find that again
                shares[group_rank][:] = whole
            else:
                write(part.outs, whole)

    def _to_ring(self) -> None:
        self._ring = Ring(self.size, GPUS[self.run.knobs.gpu].warps_apart)
        self._ring_done = [0] * self.size
        queued = list(map(list, self._queues))
        for queue in self._queues:
            queue.clear()
        self._filled = 0
        for group_rank, batches in enumerate(queued):
            for calls in batches:
                self._feed(group_rank, calls)
        self._settle_ring()

    def _feed(self, group_rank: int, calls: list[EmulatedCall]) -> None:
        assert self._ring is not None
        if self._running[group_rank]:
            before = self._running[group_rank][-1]
        else:
            before = None
        motion = Motion(self._wiring, group_rank, calls, before)
        self._running[group_rank].append(motion)
        self._ring.issue(group_rank, motion.steps, motion)

    def _settle_ring(self) -> None:
        assert self._ring is not None
        for group_rank, (running, done) in enumerate(
            zip(self._running, self._ring.done, strict=True)
        ):
            while self._ring_done[group_rank] < done:
                self._ring_done[group_rank] += 1
                self._free_ns[group_rank] = running.popleft().finish()
            if running:
                running[0].begin()
        if self._ring.at_rest:
            self._ring = None


class NcclFabric(Fabric):
    """The network between the ranks of one group on NCCL. Within one machine it does not notice
    that a rank aborts or has ended: what it has sent stays where it is."""

    backend = "nccl"
    streams = True

    def __init__(self, run: Machine, ranks: Sequence[int]) -> None:
        self._run = run
        self._ranks = tuple(ranks)
        self._main = Communicator(run, self._ranks)
        self._pairs: dict[tuple[int, int], Communicator] = {}
        self._eager = False
        # of an eager group: its first collective connects them
        self._rings = Communicator(run, self._ranks)
        self._timed_out = False  # some rank has given a communicator up
        self._large: list[EmulatedCall] = []  # sends that not every machine buffers

    def check(self, call: EmulatedCall) -> None:
        """Raise what PyTorch's NCCL backend refuses at once."""
        check(call, self._run.knobs.era)
        if not self._timed_out and call.op not in POINT_TO_POINT:
            return
        communicator, group_rank = self._where([call])
        # errorMessage of NCCLComm::getNcclComm, NCCLUtils.cpp, v2.13.0
        if group_rank in communicator.aborted:
            raise dist.DistBackendError(f"NCCL communicator was aborted on rank {call.host.rank}.")

    def connect(self, group_rank: int, host: Rank, now: int) -> None:
        """Make the communicator now, with the group: the host waits for the other ranks to make it,
        too."""
        self._eager = True
        self._main.join(group_rank, host, (), now)

    def timed_out(self, call: EmulatedCall, ms: int) -> RuntimeError:
        """Work.wait(timeout) aborts the communicator (WorkNCCL::synchronizeInternal,
        ProcessGroupNCCL.cpp, v2.13.0)."""
        communicator, group_rank = self._where([call])
        communicator.abort(group_rank)
        self._timed_out = True
        return dist.DistBackendError(watchdog_text(call, ms))

    group_timed_out = timed_out

    def submit(self, calls: Sequence[EmulatedCall]) -> None:
        """A rank issues these as one."""
        calls = list(calls)
        call = calls[0]
        communicator, group_rank = self._where(calls)
        if group_rank not in communicator.joined:
            communicator.join(
                group_rank, call.host, calls, max(issued.ready_ns for issued in calls)
            )
        if FACTS[call.op].pairwise:
            communicator.connect(group_rank, calls)
        # comm->runtimeConn, src/init.cc:1362, NCCL v2.29.7-1
        elif self._eager and group_rank not in self._rings.joined:
            now = max(issued.ready_ns for issued in calls)
            self._rings.join(group_rank, call.host, calls, now, "its rings are not connected")
        if not call.host.stuck:
            self._large += [
                issued
                for issued in calls
                if issued.op is Op.SEND and issued.nbytes() > BUFFERED_BYTES
            ]
            communicator.submit(group_rank, calls)

    def assumes(self) -> list[str]:
        """What the model took for granted, and how NCCL differs from what programs expect: notes
        beside a Timeline."""
        crossed = any(communicator.crossed for communicator in (self._main, *self._pairs.values()))
        large = any(not call.done for call in self._large)
        notes = (
            (ASSUMES, len(self._ranks) > TUNED_RANKS),
            (CROSSED, crossed),
            (SENDS_WAIT, large),
        )
        return [note for note, is_so in notes if is_so]

    def _where(self, calls: Sequence[EmulatedCall]) -> tuple[Communicator, int]:
        """The communicator that calls issued as one run on, and the group rank of theirs in it.

        A batch of sends and receives, be it of one, runs on the group's, as collectives do:
        `batchP2P` in ProcessGroupNCCL::pointToPoint, ProcessGroupNCCL.cpp, PyTorch v2.13.0.
        """
        call = calls[0]
        if call.op not in POINT_TO_POINT:
            return self._main, call.group_rank
        for pair_call in calls:
            pair_call.source_group_rank = self._ranks.index(pair_call.row["peer"])
        if call.batched or self._eager:
            return self._main, call.group_rank
        # two ranks alone get a communicator of their own
        low, high = sorted((call.group_rank, call.source_group_rank))
        pair = (self._ranks[low], self._ranks[high])
        return self._pairs.setdefault((low, high), Communicator(self._run, pair)), int(
            call.group_rank == high
        )

    def flush(self) -> None:
        """See `Fabric`."""
        for communicator in (self._main, *self._pairs.values()):
            communicator.flush()


_OP_TYPES = {
    (Op.ALL_GATHER, Form.SINGLE): "_ALLGATHER_BASE",
    (Op.REDUCE_SCATTER, Form.SINGLE): "_REDUCE_SCATTER_BASE",
    (Op.ALL_TO_ALL, Form.SINGLE): "ALLTOALL_BASE",
    (Op.REDUCE_SCATTER, Form.LIST): "REDUCE_SCATTER",
}
"""By op and form, where it is not the op in capitals: opTypeToString in ProcessGroup.cpp, PyTorch
v2.13.0."""


def watchdog_text(call: EmulatedCall, ms: int) -> str:
    """What the watchdog says of a call that has taken `ms`: WorkNCCL::checkTimeout,
    ProcessGroupNCCL.cpp, v2.13.0."""
    form = METHODS[call.method].form
    kind = _OP_TYPES.get((call.op, form), call.op.value.replace("_", "").upper())
    ins, outs = (
        sum(tensor.numel() for part in call.parts for tensor in getattr(part, side))
        for side in ("ins", "outs")
    )
    work = f"SeqNum={call.row['number']}, OpType={kind}, NumelIn={ins}, NumelOut={outs}, Timeout(ms)={ms}"
    return (
        f"[Rank {call.host.rank}] Watchdog caught collective operation timeout: WorkNCCL({work}) ran for {ms} "
        "milliseconds before timing out."
    )
