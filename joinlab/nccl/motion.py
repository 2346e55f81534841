"""How the bytes of calls move over the ring, line by line, once the ranks' calls do not fit.

The ring (ring.py) decides which lines of which step can go on. A `Motion` carries out what one rank
issued as one: it takes what the ring lets go on, reduces or copies it, and holds what it sends
until the next rank takes it.

    Ring.issue(group_rank, motion.steps, motion)
    Ring -> motion.take(step 1, lines 0 to 2, from another rank's motion, its step 0)
                |  _RingCollective.move: incoming bytes, this rank's own bytes -> bytes that go on, bytes that are kept
                v
            motion._out[step 1], from which the next rank's motion takes them

Above the LL protocol's range the lines of a step stand for the whole message. Calls that fit, and
large messages that meet small ones, are modelled so. A send that not every machine buffers
(BUFFERED_BYTES) waits for its recv.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from joinlab.backend.clock import Costs
from joinlab.backend.model import EmulatedCall
from joinlab.backend.payload import Bytes, CallPart, len_of, read, write
from joinlab.nccl.kernels import Kernels, Memory
from joinlab.nccl.ring import (
    BUFFERED_BYTES,
    GPUS,
    LINE_BYTES,
    RingStep,
    Transfer,
    carries,
    lines_of,
    part_bytes,
    peer_steps,
    steps,
)
from joinlab.ops import FACTS, POINT_TO_POINT, Op


@dataclass(frozen=True, slots=True)
class Wiring:
    """What all motions of one communicator share.

    align    a rank's part of an all_reduce is a multiple of this many bytes
    gpu      the kind of GPU, which decides up to which size messages use the LL protocol
    free_ns  by group rank: when its stream is done with what it has completed
    crossed  connections that bring nothing: see `Connections`
    """

    size: int
    align: int
    kernels: Kernels
    gpu: str
    costs: Costs
    free_ns: list[int]
    crossed: Collection[tuple[int, int, bool]]


def reducing(call: EmulatedCall) -> str:
    """What NCCL makes of the reduce op: of booleans it takes the maximum for their sum."""
    if call.reduce_op == "sum" and call.row["dtype"] == "bool":
        return "max"
    return call.reduce_op


def factor_of(call: EmulatedCall, size: int) -> float | None:
    """What each of a rank's elements is multiplied by before it is summed: unpackPreMulSum in
    ProcessGroupNCCL.cpp."""
    if call.reduce_op == "avg":
        return 1.0 / size
    if call.reduce_op != "premul_sum":
        return None
    options = next(arg for arg in call.args if hasattr(arg, "reduceOp"))
    return float(options.reduceOp.__getstate__()[1])


class Motion:
    """What the calls that a rank issued as one do on the ring: a `Transfer` of bytes, with the time
    they take."""

    def __init__(
        self, wiring: Wiring, group_rank: int, calls: Sequence[EmulatedCall], before: Motion | None
    ) -> None:
        self.calls = calls
        self.at_ns = 0  # the latest of all that it had to wait for
        self._wiring = wiring
        self._group_rank = group_rank
        self._before = before
        self._begun = False
        # Calls issued as one run one after the other here: several parts are several kernels' worth
        # of steps.
        pieces = [
            _RingCollective(wiring, call, part, group_rank) for call in calls for part in call.parts
        ]
        if all(call.op in POINT_TO_POINT for call in calls):  # a batch: no send waits behind a recv
            pieces.sort(key=lambda piece: piece.call.op is Op.RECV)
        self._where = [(piece, index) for piece in pieces for index in range(len(piece.steps))]
        self.steps = [step for piece in pieces for step in piece.steps]
        large = [
            step
            for step in self.steps
            if step.peer is not None and (step.send or 0) * LINE_BYTES > BUFFERED_BYTES
        ]
        # sends that may have to wait for their recvs do so, behind its own recvs
        self._is_waited_for = bool(large)
        self.steps += [step._replace(send=None, drained=True) for step in large]
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
        self.at_ns = max(self.at_ns, self._wiring.free_ns[self._group_rank])
        for call in self.calls:
            call.begin(self.at_ns)

    @property
    def finish_ns(self) -> int:
        """When it is complete, once it is."""
        cost = self._wiring.costs.call_ns(sum(call.nbytes() for call in self.calls))
        return self.at_ns + cost

    def take(
        self, step: int, first: int, last: int, source: Transfer | None, source_step: int
    ) -> None:
        """Move lines on, see `Transfer`."""
        self.begin()
        piece, index = self._where[step]
        incoming = None
        if source is not None:
            assert isinstance(source, Motion)
            data, sent_ns = source._out[source_step]
            incoming = data[first * LINE_BYTES : last * LINE_BYTES]
            self.at_ns = max(self.at_ns, sent_ns)
            if source._is_waited_for:
                source.at_ns = max(source.at_ns, self.at_ns)
        if (
            source is not None
            and not piece.steps[index].flags
            and source.calls[0].look != self.calls[0].look
        ):
            raise NotImplementedError(
                f"{self.calls[0]!r} meets {source.calls[0]!r}, which does not fit, with messages too large for the LL "
                "protocol: how far they get depends on chunks and channels"
            )
        moved = piece.move(index, first * LINE_BYTES, last * LINE_BYTES, incoming)
        piece.call.moved = index == len(piece.steps) - 1
        send = piece.steps[index].send
        if send is not None:
            if step in self._out:
                lines = self._out[step][0]
            else:
                lines = np.zeros(send * LINE_BYTES, np.uint8)
            room = lines[first * LINE_BYTES : last * LINE_BYTES]
            room[:] = moved[: len(room)]
            self._out[step] = lines, self.at_ns

    def finish(self) -> int:
        """All its steps are done; returns when that was."""
        self.begin()
        finish_ns = self.finish_ns
        for call in self.calls:
            call.complete(finish_ns)
        return finish_ns


class _RingCollective:
    """One collective of one rank on the ring: its steps, and what each of them does with its
    lines."""

    def __init__(self, wiring: Wiring, call: EmulatedCall, part: CallPart, group_rank: int) -> None:
        self.call = call
        self._part = part
        self._group_rank = group_rank
        self._size = wiring.size
        self._kernels = wiring.kernels
        self._dtype = self._kernels.element(call.op, part.dtype)
        self._op = call.op
        self._reduce_op = reducing(call)
        self._memory: Memory | None = None
        self._lines: dict[int, Bytes] = {}  # by chunk: this rank's own
        self._result: Bytes | None = None
        nbytes = sum(map(len_of, part.ins))
        self._chunk = part_bytes(call.op, nbytes, self._size, wiring.align)
        self.steps: Sequence[RingStep]
        if FACTS[call.op].pairwise:
            to_peers = steps_to_peers(call, part, group_rank, self._size)
            crossed = [
                (group_rank, step.peer, step.send is not None) in wiring.crossed
                for step in to_peers
            ]
            self.steps = [
                step._replace(crossed=is_crossed)
                for step, is_crossed in zip(to_peers, crossed, strict=True)
            ]
        else:
            if call.op is Op.REDUCE_SCATTER:
                share = self._chunk
            else:
                share = nbytes
            small = call.nbytes() <= GPUS[wiring.gpu].ll_bytes
            ring_steps = steps(call.op, group_rank, self._size, call.root, share, wiring.align)
            self.steps = [step._replace(flags=small) for step in ring_steps or ()]
        if self._size == 1 or not (self.steps or FACTS[call.op].pairwise):
            self._copy_own()

    def move(self, step: int, low: int, high: int, incoming: Bytes | None) -> Bytes:
        """What goes on, as bytes `low` to `high` of the step's lines, given what came in for
        them."""
        op, peer = self._op, self.steps[step].peer
        if peer is not None:
            return self._move_to_peer(step, peer, low, high, incoming)
        chunk, reduces, keeps = carries(op, self._group_rank, self._size, self.call.root, step)
        if incoming is None:
            moved = self._own(0 if op is Op.ALL_GATHER else chunk)[low:high]
        elif reduces:
            moved = self._kernels.reduce(
                self._dtype, self._reduce_op, incoming, self._own(chunk)[low:high]
            )
            if step == self._last_reduction:
                moved = self._kernels.finish(self._dtype, self._reduce_op, moved, self._size)
        else:
            moved = incoming
        if keeps:
            self._keep(0 if op is Op.REDUCE_SCATTER else chunk * self._chunk, low, moved)
        return moved

    @property
    def _last_reduction(self) -> int:
        """The step in which a chunk's reduction ends here, if one does; a sum that goes on is not
        divided yet."""
        if self._op is Op.REDUCE:
            if self._group_rank == self.call.root:
                return 0
            return -1
        return self._size - 1

    def _own(self, chunk: int) -> Bytes:
        """This rank's own bytes of a chunk, as lines."""
        if self._memory is None:
            self._memory = self._kernels.memory(self._part.ins)
        lines = self._lines.get(chunk)
        if lines is None:
            offset = chunk * self._chunk
            nbytes = min(self._chunk, len(self._memory.own) - offset)
            loaded = self._kernels.load(self._memory, offset, nbytes, self._dtype)
            lines = self._lines[chunk] = self._kernels.scale(
                self._dtype, factor_of(self.call, self._size), loaded
            )
        return lines

    def _keep(self, offset: int, low: int, data: Bytes) -> None:
        """Store what of `data` lies inside the output; `offset` is where its chunk begins there,
        `low` where in it.

        Only elements that this rank asked for are stored: the rest of a last line is dropped
        (storeData).
        """
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

    def _move_to_peer(
        self, step: int, peer: int, low: int, high: int, incoming: Bytes | None
    ) -> Bytes:
        part = self._part
        if incoming is None:
            whole = self._op in (Op.SEND, Op.GATHER)
            memory = self._kernels.memory(part.ins if whole else [part.ins[peer]])
            data = self._kernels.load(memory, 0, len(memory.own), torch.uint8)
            self._hand_to_itself()
            return data[low:high]
        if self._op in (Op.RECV, Op.SCATTER):
            outs = part.outs
        else:
            outs = [part.outs[peer]]
        result = read(outs)
        room = result[low:high]
        room[:] = incoming[: len(room)]
        write(outs, result)
        self._hand_to_itself()
        return incoming

    def _hand_to_itself(self) -> None:
        """What a rank exchanges with its peers has a part for itself: at the root alone, or, in an
        all_to_all, on each."""
        part, group_rank = self._part, self._group_rank
        if self._op is Op.ALL_TO_ALL:
            write([part.outs[group_rank]], read([part.ins[group_rank]]))
        elif group_rank == self.call.root and self._op is Op.SCATTER:
            write(part.outs, read([part.ins[group_rank]]))
        elif group_rank == self.call.root and self._op is Op.GATHER:
            write([part.outs[group_rank]], read(part.ins))


def steps_to_peers(
    call: EmulatedCall, part: CallPart, group_rank: int, size: int
) -> Sequence[RingStep]:
    """The steps of a call that NCCL makes of sends and recvs."""
    if call.op in POINT_TO_POINT:
        lines = lines_of(part.nbytes())
        peer = 1 - group_rank if size == 2 else call.source_group_rank
        return [RingStep(None, lines, peer) if call.op is Op.SEND else RingStep(lines, None, peer)]
    return peer_steps(
        call.op,
        group_rank,
        size,
        call.root,
        _rank_bytes(part.ins, size),
        _rank_bytes(part.outs, size),
    )


def _rank_bytes(tensors: Sequence[torch.Tensor], size: int) -> Sequence[int]:
    """Bytes for each rank: of a tensor each, or of the one that there is."""
    if len(tensors) == size:
        return list(map(len_of, tensors))
    return [sum(map(len_of, tensors))] * size
