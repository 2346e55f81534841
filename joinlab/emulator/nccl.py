"""NCCL as a fabric: the k-th call of one rank meets the k-th of the others, whatever they are.

While the calls of all ranks fit together, a slot is carried out as soon as the last rank has issued it. From the first
slot that does not fit, and where no rank can go on otherwise, the calls run step by step on the ring of
`joinlab.rules.nccl`, with the bytes that its lines carry, until it is at rest again. So what the emulator does with
calls that do not fit is what the rule proves of them.

Every communicator has a stream of its own on every rank, which runs that rank's calls in order. A communicator comes
into being with the first call, for which all its ranks wait; so does the one of two ranks that send and receive.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import assert_never

import numpy as np
import torch

from joinlab.emulator.model import EmulatedCall, Machine
from joinlab.emulator.nccl_checks import check
from joinlab.emulator.nccl_connections import Connections
from joinlab.emulator.nccl_kernels import Kernels, Memory
from joinlab.emulator.payload import Bytes, Part, agree, len_of, look, move, read, waits_for, write
from joinlab.ops import FACTS, POINT_TO_POINT, Op
from joinlab.rules.nccl import LINE_BYTES, LL_BYTES, Ring, Step, Transfer, chunk_bytes, lines_of, steps


class Communicator:
    """One NCCL communicator: the group's, or that of two ranks that send and receive."""

    def __init__(self, run: Machine, ranks: Sequence[int]) -> None:
        self.run = run
        self.ranks = ranks  # global ranks, by place
        self.size = len(ranks)
        self.joined: set[int] = set()
        self._connections = Connections(self.size)
        self.born_ns = 0
        self._queues: list[deque[list[EmulatedCall]]] = [deque() for _ in ranks]
        self._filled = 0
        self._free_ns = [0] * self.size  # when the stream of each place is done with what it has completed
        self._ring: Ring | None = None
        self._running: list[deque[_Motion]] = [deque() for _ in ranks]  # on the ring, by place
        self._ring_done = [0] * self.size  # of them, how many are popped
        self.align = 512 if run.knobs.era == "1.9" else 16
        self.kernels = Kernels(run.knobs.era == "1.9", run.knobs.pad)

    def join(self, place: int, calls: Sequence[EmulatedCall]) -> None:
        """The first call of a rank: the host waits until every rank is there."""
        if place in self.joined:
            return
        self.joined.add(place)
        self.born_ns = max(self.born_ns, *(call.ready_ns for call in calls))
        host = calls[0].host
        if len(self.joined) < self.size:
            host.wait_inside(
                calls, "for the other ranks' first call on this communicator, without which it is not made"
            )
        else:
            for rank in self.ranks:
                if rank != host.rank:
                    self.run.hosts[rank].wake()
        host.reach(self.born_ns)
        for call in calls:
            call.ready_ns = max(call.ready_ns, self.born_ns)

    def connect(self, place: int, calls: Sequence[EmulatedCall]) -> None:
        """The host waits for the hosts of new peers, see `nccl_connections`."""
        if self.size == 1 or not FACTS[calls[0].op].pairwise:
            return
        parts = [(call, part) for call in calls for part in call.parts]
        steps = [step for call, part in parts for step in _steps_to_peers(call, part, place, self.size)]
        sends = {step.peer for step in steps if step.peer is not None and step.send is not None}
        recvs = {step.peer for step in steps if step.peer is not None and step.recv is not None}
        self._connections.make(place, sends, recvs, calls)

    def submit(self, place: int, calls: list[EmulatedCall]) -> None:
        """A rank issues calls as one: run what can run."""
        if self._ring is not None:
            self._feed(place, calls)
            self._settle_ring()
            return
        self._queues[place].append(calls)
        self._filled += len(self._queues[place]) == 1
        while self._filled == self.size:
            heads = [queue[0] for queue in self._queues]
            if not self._fit(heads):
                self._to_ring()
                return
            for queue in self._queues:
                queue.popleft()
                self._filled -= not queue
            self._carry_out([calls[0] for calls in heads])

    def flush(self) -> bool:
        """Run step by step what waits for a slot to fill; True if anything completed."""
        if self._ring is not None or not any(self._queues):
            return False
        before = sum(len(queue) for queue in self._queues)
        self._to_ring()
        return before > sum(len(running) for running in self._running)

    def _fit(self, heads: Sequence[list[EmulatedCall]]) -> bool:
        one = heads[0][0]
        if FACTS[one.op].one_size and all(calls[0].look == one.look and len(calls) == 1 for calls in heads):
            return True
        if any(len(calls) != 1 or calls[0].op in POINT_TO_POINT for calls in heads):
            return False
        calls = [calls[0] for calls in heads]
        return all(
            call.op == one.op
            and call.root == one.root
            and call.reduce_op == one.reduce_op
            and len(call.parts) == len(one.parts)
            for call in calls
        ) and all(agree(one.op, [call.parts[index] for call in calls], one.root) for index in range(len(one.parts)))

    def _carry_out(self, calls: Sequence[EmulatedCall]) -> None:
        one = calls[0]
        starts = [max(call.ready_ns, self._free_ns[place]) for place, call in enumerate(calls)]
        for call, start in zip(calls, starts, strict=True):
            call.begin(start)
        for index in range(len(one.parts)):
            parts = [call.parts[index] for call in calls]
            if FACTS[one.op].reduces:
                self._reduce(one.op, parts, one.root, _reducing(one))
            else:
                move(one.op, parts, one.root)
        cost = self.run.costs.call_ns(one.nbytes())
        latest = max(starts)
        for place, call in enumerate(calls):
            needed = waits_for(one.op, place, one.root, self.size)
            start = latest if len(needed) == self.size else max(starts[place], *(starts[other] for other in needed))
            self._free_ns[place] = start + cost
            call.complete(start + cost)

    def _reduce(self, op: Op, parts: Sequence[Part], root: int, reduce_op: str) -> None:
        """Reduce what the ranks put in, each chunk in the order in which the ring passes it on.

        Chunk c of an all_reduce, and the part of rank c in a reduce_scatter, start at rank c + 1 and are whole at c:

            n = 3, chunk 0    rank 1 sends x1    rank 2 sends x1 + x2    rank 0 has (x1 + x2) + x0, and hands it out

        A reduce has one chain, whatever its size, from the rank after the root to the root.
        """
        size, dtype = self.size, parts[0].dtype
        each = [look(part.ins) for part in parts]
        if op is Op.REDUCE:
            write(parts[root].outs, self._chain(dtype, reduce_op, each, root))
            return
        chunk = chunk_bytes(len(each[0]), size, self.align) if op is Op.ALL_REDUCE else len(each[0]) // size
        if op is Op.ALL_REDUCE and len(each[0]) <= chunk:
            totals = [self._chain(dtype, reduce_op, each, 0)]
        else:
            spans = [slice(place * chunk, (place + 1) * chunk) for place in range(size)]
            totals = [self._chain(dtype, reduce_op, [data[span] for data in each], c) for c, span in enumerate(spans)]
        whole = totals[0] if len(totals) == 1 else np.concatenate(totals)
        for place, part in enumerate(parts):
            write(part.outs, whole if op is Op.ALL_REDUCE else totals[place])

    def _chain(self, dtype: torch.dtype, reduce_op: str, each: Sequence[Bytes], last: int) -> Bytes:
        return self.kernels.chain(dtype, reduce_op, each, [(last + 1 + turn) % self.size for turn in range(self.size)])

    def _to_ring(self) -> None:
        self._ring = Ring(self.size, self.run.knobs.independent_threads)
        self._ring_done = [0] * self.size
        queued = [list(queue) for queue in self._queues]
        for queue in self._queues:
            queue.clear()
        self._filled = 0
        for place, batches in enumerate(queued):
            for calls in batches:
                self._feed(place, calls)
        self._settle_ring()

    def _feed(self, place: int, calls: list[EmulatedCall]) -> None:
        assert self._ring is not None
        before = self._running[place][-1] if self._running[place] else None
        motion = _Motion(self, place, calls, before)
        self._running[place].append(motion)
        self._ring.issue(place, motion.steps, motion)

    def _settle_ring(self) -> None:
        assert self._ring is not None
        for place, (running, done) in enumerate(zip(self._running, self._ring.done, strict=True)):
            while self._ring_done[place] < done:
                self._ring_done[place] += 1
                self._free_ns[place] = running.popleft().finish()
            if running:
                running[0].begin()
        if self._ring.at_rest:
            self._ring = None


def _reducing(call: EmulatedCall) -> str:
    """What NCCL makes of the reduce op: of booleans it takes the maximum for their sum."""
    if call.reduce_op == "sum" and call.row["dtype"] == "bool":
        return "max"
    return call.reduce_op


class _Motion:
    """What the calls that a rank issued as one do on the ring: a `Transfer` of bytes, with the time they take."""

    def __init__(
        self, communicator: Communicator, place: int, calls: Sequence[EmulatedCall], before: _Motion | None
    ) -> None:
        self.calls = calls
        self.at_ns = 0  # the latest of all that it had to wait for
        self._communicator = communicator
        self._place = place
        self._before = before
        self._begun = False
        pieces = [_Piece(communicator, call, part, place) for call in calls for part in call.parts]
        if all(call.op in POINT_TO_POINT for call in calls):  # a batch: no send waits behind a recv
            pieces.sort(key=lambda piece: piece.call.op is Op.RECV)
        self._where = [(piece, index) for piece in pieces for index in range(len(piece.steps))]
        self.steps = [step for piece in pieces for step in piece.steps]
        self._out: dict[int, tuple[Bytes, int]] = {}  # per step: its lines, and when they were sent

    def begin(self) -> None:
        """Its kernel starts: whatever the rank issued before on this communicator is complete."""
        if self._begun:
            return
        self._begun = True
        self.at_ns = max(call.ready_ns for call in self.calls)
        if self._before is not None:
            self.at_ns = max(self.at_ns, self._before.finish_ns)
        self._before = None
        self.at_ns = max(self.at_ns, self._communicator._free_ns[self._place])
        for call in self.calls:
            call.begin(self.at_ns)

    @property
    def finish_ns(self) -> int:
        """When it is complete, once it is."""
        cost = self._communicator.run.costs.call_ns(sum(call.nbytes() for call in self.calls))
        return self.at_ns + cost

    def take(self, step: int, first: int, last: int, source: Transfer | None, source_step: int) -> None:
        """Move lines on, see `Transfer`."""
        self.begin()
        piece, index = self._where[step]
        incoming = None
        if source is not None:
            assert isinstance(source, _Motion)
            data, sent_ns = source._out[source_step]
            incoming = data[first * LINE_BYTES : last * LINE_BYTES]
            self.at_ns = max(self.at_ns, sent_ns)
        if source is not None and not piece.steps[index].flags and source.calls[0].look != self.calls[0].look:
            raise NotImplementedError(
                f"{self.calls[0]!r} meets {source.calls[0]!r}, which does not fit, with messages too large for the LL "
                "protocol: how far they get depends on chunks and channels"
            )
        moved = piece.move(index, first * LINE_BYTES, last * LINE_BYTES, incoming)
        send = piece.steps[index].send
        if send is not None:
            lines = self._out[step][0] if step in self._out else np.zeros(send * LINE_BYTES, np.uint8)
            room = lines[first * LINE_BYTES : last * LINE_BYTES]
            room[:] = moved[: len(room)]
            self._out[step] = lines, self.at_ns

    def finish(self) -> int:
        """All its steps are done; returns when that was."""
        self.begin()
        at = self.finish_ns
        for call in self.calls:
            call.complete(at)
        return at


class _Piece:
    """One collective of one rank on the ring: its steps, and what each of them does with its lines."""

    def __init__(self, communicator: Communicator, call: EmulatedCall, part: Part, place: int) -> None:
        self.call = call
        self._part = part
        self._place = place
        self._size = communicator.size
        self._kernels = communicator.kernels
        self._dtype = self._kernels.element(call.op, part.dtype)
        self._op = call.op
        self._reduce_op = _reducing(call)
        nbytes = sum(map(len_of, part.ins))
        self._chunk = nbytes
        align = communicator.align
        self._memory: Memory | None = None
        self._lines: dict[int, Bytes] = {}  # by chunk: this rank's own
        self._result: Bytes | None = None
        match call.op:
            case Op.SEND | Op.RECV | Op.GATHER | Op.SCATTER | Op.ALL_TO_ALL:
                self.steps: list[Step] = _steps_to_peers(call, part, place, self._size)
                if self._size == 1:
                    self._copy_own()
                return
            case Op.REDUCE_SCATTER:
                self._chunk = nbytes // self._size
            case Op.ALL_REDUCE:
                self._chunk = chunk_bytes(nbytes, self._size, align)
            case Op.BROADCAST | Op.REDUCE | Op.ALL_GATHER | Op.BARRIER:
                pass
            case _:
                assert_never(call.op)
        part_bytes = self._chunk if call.op is Op.REDUCE_SCATTER else nbytes
        small = call.nbytes() <= LL_BYTES[communicator.run.knobs.gpu]
        found = steps(call.op, place, self._size, call.root, part_bytes, align) or ()
        self.steps = [step._replace(flags=small) for step in found]
        if not self.steps or self._size == 1:
            self._copy_own()

    def move(self, step: int, low: int, high: int, incoming: Bytes | None) -> Bytes:
        """What goes on, as bytes `low` to `high` of the step's lines, given what came in for them."""
        place, size, op = self._place, self._size, self._op
        peer = self.steps[step].peer
        if peer is not None:
            return self._move_to_peer(step, peer, low, high, incoming)
        chunk, reduces, keeps = 0, False, incoming is not None
        match op:
            case Op.ALL_REDUCE:
                chunk, reduces, keeps = (place - 1 - step) % size, 1 <= step < size, step >= size - 1
            case Op.REDUCE_SCATTER:
                chunk, reduces, keeps = (place - 1 - step) % size, step >= 1, step == size - 1
            case Op.REDUCE:
                reduces, keeps = incoming is not None, place == self.call.root
            case Op.ALL_GATHER:
                chunk, keeps = (place - step) % size, True
            case Op.BROADCAST:
                pass
            case Op.BARRIER | Op.GATHER | Op.SCATTER | Op.ALL_TO_ALL | Op.SEND | Op.RECV:
                raise ValueError(f"a {op} does not run on the ring")
            case _:
                assert_never(op)
        if incoming is None:
            moved = self._own(0 if op is Op.ALL_GATHER else chunk)[low:high]
        elif reduces:
            moved = self._kernels.reduce(self._dtype, self._reduce_op, incoming, self._own(chunk)[low:high])
            if step == self._last_reduction:
                moved = self._kernels.finish(self._dtype, self._reduce_op, moved, size)
        else:
            moved = incoming
        if keeps:
            self._keep(0 if op is Op.REDUCE_SCATTER else chunk * self._chunk, low, moved)
        return moved

    @property
    def _last_reduction(self) -> int:
        """The step in which a chunk's reduction ends here, if one does; a sum that goes on is not divided yet."""
        if self._op is Op.REDUCE:
            return 0 if self._place == self.call.root else -1
        return self._size - 1

    def _own(self, chunk: int) -> Bytes:
        """This rank's own bytes of a chunk, as lines."""
        if self._memory is None:
            self._memory = self._kernels.memory(self._part.ins)
        lines = self._lines.get(chunk)
        if lines is None:
            at = chunk * self._chunk
            nbytes = min(self._chunk, len(self._memory.own) - at)
            loaded = self._kernels.load(self._memory, at, nbytes, self._dtype)
            lines = self._lines[chunk] = self._kernels.scale(self._dtype, self._reduce_op, loaded, self._size)
        return lines

    def _keep(self, offset: int, low: int, data: Bytes) -> None:
        outs = self._part.outs
        if self._result is None:
            self._result = read(outs)
        end = min(offset + self._chunk, len(self._result))
        if self._op in (Op.BROADCAST, Op.REDUCE):
            end = len(self._result)
        room = self._result[offset + low : end][: len(data)]
        room[:] = data[: len(room)]
        write(outs, self._result)

    def _copy_own(self) -> None:
        """A single rank, or an empty tensor: nothing moves."""
        if self._op is not Op.BROADCAST and self._part.ins and self._part.outs:
            write(self._part.outs, read(self._part.ins))

    def _move_to_peer(self, step: int, peer: int, low: int, high: int, incoming: Bytes | None) -> Bytes:
        part, root = self._part, self.call.root
        if incoming is None:
            whole = self._op in (Op.SEND, Op.GATHER)
            memory = self._kernels.memory(part.ins if whole else [part.ins[peer]])
            data = self._kernels.load(memory, 0, len(memory.own), torch.uint8)
            if self._op is Op.ALL_TO_ALL:
                write([part.outs[self._place]], read([part.ins[self._place]]))
            elif self._op is Op.SCATTER:
                write(part.outs, read([part.ins[self._place]]))
            return data[low:high]
        outs = part.outs if self._op in (Op.RECV, Op.SCATTER) else [part.outs[peer]]
        result = read(outs)
        room = result[low:high]
        room[:] = incoming[: len(room)]
        write(outs, result)
        if self._op is Op.GATHER and self._place == root:
            write([part.outs[root]], read(part.ins))
        elif self._op is Op.ALL_TO_ALL:
            write([part.outs[self._place]], read([part.ins[self._place]]))
        return incoming


def _steps_to_peers(call: EmulatedCall, part: Part, place: int, size: int) -> list[Step]:
    """The steps of a call that NCCL makes of sends and recvs."""
    if call.op in POINT_TO_POINT:
        return _pair_steps(call, part, 1 - place if size == 2 else call.source_place)
    return _peer_steps(call, part, place, size)


def _pair_steps(call: EmulatedCall, part: Part, peer: int) -> list[Step]:
    lines = lines_of(part.nbytes())
    return [Step(None, lines, peer) if call.op is Op.SEND else Step(lines, None, peer)]


def _peer_steps(call: EmulatedCall, part: Part, place: int, size: int) -> list[Step]:
    """Sends first, then recvs: NCCL runs them side by side, and buffers small sends."""
    others = [(place + turn) % size for turn in range(1, size)]
    rooted = call.op is not Op.ALL_TO_ALL
    sends: list[Step] = []
    recvs: list[Step] = []
    if call.op is Op.GATHER and place != call.root:
        sends = [Step(None, lines_of(sum(map(len_of, part.ins))), call.root)]
    elif call.op is Op.SCATTER and place != call.root:
        recvs = [Step(lines_of(sum(map(len_of, part.outs))), None, call.root)]
    if call.op is Op.ALL_TO_ALL or (call.op is Op.SCATTER and place == call.root):
        sends = [Step(None, lines_of(len_of(part.ins[other])), other) for other in others]
    if call.op is Op.ALL_TO_ALL or (call.op is Op.GATHER and place == call.root):
        recvs = [Step(lines_of(len_of(part.outs[other])), None, other) for other in others]
    assert rooted or len(sends) == len(recvs)
    return [step for step in (*sends, *recvs) if step.recv or step.send]


class NcclFabric:
    """What lies between the ranks of one group on NCCL."""

    streams = True

    def __init__(self, run: Machine, ranks: Sequence[int]) -> None:
        self._run = run
        self._ranks = tuple(ranks)
        self._main = Communicator(run, self._ranks)
        self._pairs: dict[tuple[int, int], Communicator] = {}

    def check(self, call: EmulatedCall) -> None:
        """Raise what PyTorch's NCCL backend refuses at once."""
        check(call, self._run.knobs.era)

    def timed_out(self, call: EmulatedCall, ms: int) -> str:
        """Not modelled: a wait with a timeout is one without."""
        raise NotImplementedError

    def submit(self, calls: Sequence[EmulatedCall]) -> None:
        """A rank issues these as one."""
        calls = list(calls)
        call = calls[0]
        communicator, place = self._main, call.place
        if call.op in POINT_TO_POINT:
            for one in calls:
                one.source_place = self._ranks.index(one.row["peer"])
            if len(calls) == 1:  # two ranks alone get a communicator of their own
                low, high = sorted((call.place, call.source_place))
                pair = (self._ranks[low], self._ranks[high])
                communicator = self._pairs.setdefault((low, high), Communicator(self._run, pair))
                place = int(call.place == high)
        communicator.join(place, calls)
        if communicator is self._main:
            communicator.connect(place, calls)
        if not calls[0].host.stuck:
            communicator.submit(place, calls)

    def flush(self) -> bool:
        """See `Fabric`."""
        return sum(one.flush() for one in (self._main, *self._pairs.values())) > 0  # all of them

    def leave(self, place: int) -> None:
        """NCCL within one machine does not notice that a rank has ended."""
