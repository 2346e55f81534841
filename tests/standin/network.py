"""The network between ranks that stand on the stand-in: a session of joinlab.backend, in a thread.

Each rank sends requests over a socket of its own and gets one answer to each; what its calls wrote
comes as a notice as soon as they are complete. The session goes on with whichever rank has asked
for something; a rank that computes is waited for only if no other can go on.
"""

from __future__ import annotations

import io
import pickle
import select
import socket
import struct
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from joinlab.backend.clock import Costs
from joinlab.backend.model import EmulatedCall, Knobs
from joinlab.nccl.fabric import NcclFabric
from tests.modelled_ranks import RankOver, Session, SessionRank

LENGTH = struct.Struct("<Q")
OPTIONS = ("rootRank", "rootTensor", "asyncOp")
_numpy = torch._C.TensorBase.numpy  # the recorder replaces that of torch.Tensor


def data_of(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().contiguous().reshape(-1)
    return _numpy(flat.view(torch.uint8)).tobytes() if flat.numel() else b""


def tensor_of(dtype: torch.dtype, shape: tuple[int, ...], data: bytes) -> torch.Tensor:
    whole = torch.empty(shape, dtype=dtype)
    if data:
        whole.view(-1).view(torch.uint8).copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    return whole


class _Pickler(pickle.Pickler):
    """The arguments of a method of ProcessGroup: tensors as their bytes, options as their fields."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return tensor_of, (value.dtype, tuple(value.shape), data_of(value))
        name = type(value).__name__
        if name.endswith("Options"):
            fields = {field: getattr(value, field) for field in OPTIONS if hasattr(value, field)}
            reduce_op = getattr(value, "reduceOp", None)
            return options_of, (name, fields, None if reduce_op is None else reduce_op.op.value)
        return NotImplemented


def options_of(name: str, fields: dict[str, Any], reduce_op: int | None) -> Any:
    options = getattr(c10d, name)()
    for field, value in fields.items():
        setattr(options, field, value)
    if reduce_op is not None:
        options.reduceOp = dist.ReduceOp(dist.ReduceOp.RedOpType(reduce_op))
    return options


def send(link: socket.socket, message: Any) -> None:
    text = io.BytesIO()
    _Pickler(text).dump(message)
    link.sendall(LENGTH.pack(len(text.getvalue())) + text.getvalue())


def receive(link: socket.socket) -> Any:
    """The next message; None once the other end is gone."""
    with suppress(ConnectionError):
        head = _read(link, LENGTH.size)
        if head is not None:
            body = _read(link, *LENGTH.unpack(head))
            return None if body is None else pickle.loads(body)
    return None


def _read(link: socket.socket, size: int) -> bytes | None:
    found = bytearray()
    while len(found) < size:
        portion = link.recv(min(size - len(found), 1 << 20))
        if not portion:
            return None
        found += portion
    return bytes(found)


class _Session(Session):
    """A session whose ranks are processes."""

    def __init__(self, links: dict[int, socket.socket], pad: int) -> None:
        costs = Costs((), latency_ns=20_000, bytes_per_second=10e9)
        super().__init__(Knobs("nccl", "today", 7, pad, costs, timeout_s=0.0), len(links))
        self.links = links
        self.requests: dict[int, deque[Any]] = {rank: deque() for rank in links}
        self.away: set[int] = set()  # ranks that compute
        self.over: set[int] = set()  # ranks whose process is gone
        self.places: dict[int, tuple[str, str]] = {}  # by rank: host and GPU
        for host in self.hosts:
            host.on_done = self._done

    def _done(self, call: EmulatedCall) -> None:
        written = [data_of(tensor) for tensor in call.tensors_out]
        self.tell(call.host.rank, ("done", call.id, written, None))

    def tell(self, rank: int, message: Any) -> None:
        with suppress(OSError):
            send(self.links[rank], message)

    def listen(self) -> None:
        """Take what has come; wait for it if no rank can go on, and some compute."""
        while True:
            living = {link: rank for rank, link in self.links.items() if rank not in self.over}
            patience = None if self.away and not self.turns.ready else 0
            for link in select.select(list(living), [], [], patience)[0]:
                self._take(living[link], receive(link))
            if self.turns.ready or not self.away:
                return

    def _take(self, rank: int, message: Any) -> None:
        if message is None:
            self.over.add(rank)
        self.requests[rank].append(message)
        if rank in self.away:
            self.away.discard(rank)
            self.hosts[rank].wake()

    def serve(self, host: SessionRank) -> None:
        """What a rank does: what its process asks."""
        while (request := self._next_request(host)) is not None:
            try:
                answer = self._answer(host, *request)
            except RankOver:
                if host.ending is not None and host.ending.kind == "killed":
                    self.tell(host.rank, ("aborted", host.ending.text))
                raise
            except Exception as error:
                answer = ("raised", type(error).__name__, str(error))
            self.tell(host.rank, answer)

    def _next_request(self, host: SessionRank) -> Any:
        while not self.requests[host.rank]:
            self.away.add(host.rank)
            host.pause()
        return self.requests[host.rank].popleft()

    def _answer(self, host: SessionRank, what: str, *args: Any) -> Any:
        match what:
            case "open":
                label, ranks, bound, place = args
                self.places[host.rank] = place
                host.open_group(label, ranks, NcclFabric, bound)
                if bound:
                    self._refuse_one_gpu(ranks)
            case "issue":
                label, calls, batched = args
                group = host.groups[label]
                first = len(host.calls)
                issued = [
                    host.describe(group, name, given, batched=batched) for name, given in calls
                ]
                for call in issued:
                    host.check(call)
                host.submit(group, issued)
                self._refuse_one_gpu(group.ranks)
                return ("answer", list(range(first, len(host.calls))))
            case "stream":
                host.for_stream([host.calls[id] for id in args[0]])
            case "host":
                ids, timeout_ns = args
                calls = [host.calls[id] for id in ids]
                if timeout_ns:
                    host.wait(calls, timeout_ns)
                else:
                    host.for_host(calls)
            case "sync":
                host.sync()
            case "synchronize":
                host.synchronize()
            case "flush":
                if args[0] in host.groups:
                    host.flush(host.groups[args[0]])
            case _:
                raise AssertionError(what)
        return ("answer", None)

    def _refuse_one_gpu(self, ranks: Any) -> None:
        """What NCCL says when a communicator is made: fillInfo and initTransportsRank in
        src/init.cc, NCCL v2.29.7-1. Ranks of other hosts, by NCCL_HOSTID, are not compared."""
        taken: dict[tuple[str, str], int] = {}
        for rank in ranks:
            other = taken.setdefault(self.places[rank], rank)
            if other != rank:
                raise dist.DistBackendError(
                    "NCCL error in: ProcessGroupNCCL.cpp, invalid usage (run with NCCL_DEBUG=WARN for details), NCCL "
                    f"version 2.29.7\nncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast "
                    f"error:\nDuplicate GPU detected : rank {rank} and rank {other} both on CUDA device "
                    f"{self.places[rank][1]}"
                )


class Network:
    """Serves runs of ranks, one after the other, at `path`, until it is closed."""

    def __init__(self, folder: str) -> None:
        self.path = str(Path(folder) / "network")
        self.pad = 0
        self.failure: BaseException | None = None
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen()
        self._listener.settimeout(0.2)
        self._closed = False
        self._waiting: dict[tuple[int, int], dict[int, socket.socket]] = {}  # by run and its size
        self._thread = threading.Thread(target=self._serve, name="stand-in", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed = True
        self._thread.join(20)
        self._listener.close()
        if self.failure is not None:
            raise self.failure

    def _serve(self) -> None:
        try:
            while not self._closed:
                links = self._gather()
                if links:
                    self._run(links)
        except BaseException as error:
            self.failure = error

    def _gather(self) -> dict[int, socket.socket]:
        """A socket for each rank of the next run; those of a run beside it wait for their turn."""
        while not self._closed:
            with suppress(TimeoutError):
                link, _ = self._listener.accept()
                link.settimeout(None)
                hello = receive(link)
                if hello is None:  # its process was ended before it had said who it is
                    link.close()
                    continue
                run, rank, size = hello
                self._waiting.setdefault((run, size), {})[rank] = link
            for (run, size), links in list(self._waiting.items()):
                if len(links) == size:
                    return self._waiting.pop((run, size))
                if any(_gone(link) for link in links.values()):
                    _close(self._waiting.pop((run, size)))  # it ended before all its ranks had come
        for links in self._waiting.values():
            _close(links)
        return {}

    def _run(self, links: dict[int, socket.socket]) -> None:
        session = _Session(links, self.pad)
        try:
            session.run([session.serve] * len(links))
            left = {link for rank, link in links.items() if rank not in session.over}
            while left and not self._closed:  # hung: they wait until somebody ends them
                for link in select.select(list(left), [], [], 0.2)[0]:
                    if receive(link) is None:
                        left.discard(link)
        finally:
            _close(links)


def _close(links: dict[int, socket.socket]) -> None:
    for link in links.values():
        link.close()


def _gone(link: socket.socket) -> bool:
    return bool(select.select([link], [], [], 0)[0]) and not link.recv(1, socket.MSG_PEEK)


@contextmanager
def network() -> Iterator[Network]:
    with tempfile.TemporaryDirectory(prefix="stand-in-") as folder:
        opened = Network(folder)
        try:
            yield opened
        finally:
            opened.close()


def now() -> int:
    return time.monotonic_ns()
