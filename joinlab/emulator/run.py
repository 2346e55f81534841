"""One emulation: its ranks, its groups, the verdict when no rank can go on, and its Timeline."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from torch._C._distributed_c10d import _unregister_all_process_groups
from torch.distributed import distributed_c10d as c10d

from joinlab.backend.clock import EXIT_NS
from joinlab.backend.model import EmulatedCall, Fabric, Knobs, Rank
from joinlab.emulator.group import EmulatedGroup
from joinlab.emulator.host import THREADED, Host, bound_kinds, forget_calls
from joinlab.emulator.isolation import Isolation
from joinlab.emulator.own import Own
from joinlab.emulator.scheduler import Baton, RankEnded, one_at_a_time, still_runs
from joinlab.emulator.store import SharedStore
from joinlab.errors import LaunchError, LaunchInterrupted
from joinlab.gloo.fabric import GlooFabric
from joinlab.nccl.fabric import NcclFabric, watchdog_text
from joinlab.ops import CallRow
from joinlab.program.host_syncs import observe
from joinlab.program.outcome import at_exit, text_of, to_plain, traceback_text
from joinlab.program.program import Inputs, Program, call_program, program_name
from joinlab.program.replicas import differing_replicas
from joinlab.program.sources import source_of
from joinlab.program.traces import Trace
from joinlab.recorder.rank_log import about_calls, about_ranks
from joinlab.timeline import (
    EmulationSettings,
    Ending,
    EndKind,
    Meta,
    Timeline,
    Watched,
    timeline_from_rows,
)

DEFAULT_GROUP = "0"
"""Name that torch.distributed gives to the group of all ranks."""


_NO_GPU = ("accelerator device", "required CUDA 11+ and NCCL")
"""PyTorch's errors without a GPU, of torch.device(0), FullyShardedDataParallel, bf16_compress_hook
(v2.13.0)."""


class Emulation:
    """One emulation, from its threads to its Timeline. Hosts and fabrics know it by a weak proxy,
    see model.py."""

    def __init__(
        self, program: Program, counts: Sequence[int], seeds: Sequence[int | None], knobs: Knobs
    ) -> None:
        self.program = program
        self.counts = tuple(counts)
        self.seeds = tuple(seeds)
        self.knobs = knobs
        self.costs = knobs.costs
        self.printed_lines: list[tuple[int, str]] = []
        self.ways: Mapping[int, Trace] = {}  # of ranks whose lines are followed
        self.judged = False  # every rank that still lives is being ended
        self.aborting: list[
            Host
        ] = []  # their backend aborts their process, and their clocks are not there yet
        owns = [Own(rank, len(counts), seed) for rank, seed in enumerate(seeds)]
        self._isolation = Isolation(owns, knobs.backend, program)
        self._weak: Emulation = weakref.proxy(self)
        self.baton = Baton(
            lambda old, new, weak=self._weak: weak.switched(old, new),  # type: ignore[misc]
            lambda final, weak=self._weak: weak.stalled(final),  # type: ignore[misc]
        )
        self.hosts = [Host(self._weak, rank, own) for rank, own in enumerate(owns)]
        self._store = SharedStore()
        self._fabrics: dict[str, Fabric] = {}
        self._ranks_of: dict[str, tuple[int, ...]] = {}
        self._backend_of: dict[str, str] = {}
        self._opened: dict[str, list[Host]] = {}
        self._open_at: dict[str, int] = {}  # virtual time at which the last rank of a group made it
        self._returns: list[object] = [None] * len(counts)
        self._broken: LaunchError | None = None

    def go(self) -> Timeline:
        """Run it. LaunchInterrupted if the user interrupts."""
        try:
            with one_at_a_time(), self._isolation:
                bound_kinds()  # here, where no other emulation runs
                self.baton.run(
                    [host.waits.turn for host in self.hosts], self.knobs.timeout_s, self._give_up
                )
        except KeyboardInterrupt:
            raise LaunchInterrupted(
                "the emulation was interrupted; the `timeline` of this exception has what was recorded "
                "(sys.last_value.timeline in a notebook)",
                self._timeline(),
            ) from None
        self._refuse_shared_names()
        if self._broken is not None:
            raise self._broken
        return self._timeline()

    def _refuse_shared_names(self) -> None:
        """What a rank has set for others, too, may have changed what they did."""
        replaced, shared = sorted(self._isolation.replaced), self._isolation.shared
        if replaced:
            forget_calls()
            self._broken = LaunchError(
                f"the program has replaced builtins.{replaced[0]}, which joinlab and PyTorch call in the same "
                "thread: what its ranks would do without joinlab is not known. Leave that name as it is."
            )
        elif shared:
            self.broken(
                f"the program has set {shared[0]} by code that joinlab could not look through beforehand, so one "
                "rank's value reached the others, while processes would each have their own. Use joinlab.launch for "
                "this program."
            )

    @property
    def copied(self) -> int:
        """Bytes of what each rank began with a copy of, roughly."""
        return self._isolation.copied

    # ------------------------------------------------------------------------------------ one rank,
    # from start to end

    def live(self, rank: int) -> None:
        """The life of a rank, in its own thread: its program, then the end of its process."""
        host = self.hosts[rank]
        try:
            try:
                self._open_default_group(host)
                inputs = Inputs(self.counts[host.rank], host.progress.mark_input)
                run = partial(call_program, host.own.program, host.rank, inputs)
                way = self.ways.get(host.rank)
                if way is not None:
                    way.replica = host.replicas.held
                observe(host.waits.sync)
                value = self._isolation.call(run if way is None else partial(way.follow, run))
                self._returned(host, value)
            except RankEnded:
                raise
            except BaseException as error:
                self._raised(host, error)
            self._close_process(host)
        except RankEnded:
            self._died_at(host, host.waits.died_at)
            if host in self.aborting:
                self._abort(host)
            raise
        finally:
            self._depart(host)
            _unregister_all_process_groups()

    def _returned(self, host: Host, value: object) -> None:
        if (
            host.gone or host.ending is not None
        ):  # a program that caught how it was ended has ended all the same
            return
        host.drain(closing=at_exit("its program has returned"))
        if not host.stuck:
            host.replicas.ended()
            host.misuse.ended()
        kept = to_plain(value)  # a tensor on a GPU has to come to the host first
        for function in reversed(host.own.at_exit):
            function()
        self._returns[host.rank] = kept
        host.ending = Ending.finished(call.row for call in host.calls)

    def _raised(self, host: Host, error: BaseException) -> None:
        if host.gone or host.ending is not None:
            return
        if isinstance(error, SystemExit) and error.code in (None, 0):
            self._returned(host, None)
            return
        told, text = traceback_text(error), text_of(error)
        if self.knobs.streams and any(words in text for words in _NO_GPU):
            self.broken(
                f"rank {host.rank} asks PyTorch for a GPU in a way that is not modelled, and there is none ({text}): "
                "what the program does then cannot be known without a GPU. Use joinlab.launch on GPUs, or leave it out."
            )
        host.told(told)
        host.drain(closing=at_exit(f"its program has raised {text}"))
        host.ending = Ending.raised((call.row for call in host.calls), text)

    def _close_process(self, host: Host) -> None:
        """Its program is over. Until its process is, too, the others go on as if nothing had
        happened."""
        if not (self.knobs.streams or self.judged or host.gone):
            host.waits.work_for(EXIT_NS)
            host.waits.yield_if_ready()

    def _depart(self, host: Host) -> None:
        """Its process is gone, and the others may notice."""
        if host.gone:
            return
        host.gone = True
        if host.ending is None:
            host.ending = Ending.at(EndKind.KILLED, _awaited(host), "its thread was ended")
        if self.judged:
            return  # joinlab ends it: the others must not take that for the end of a process
        for name, fabric in self._fabrics.items():
            if host.rank in self._ranks_of[name]:
                try:
                    fabric.leave(self._ranks_of[name].index(host.rank))
                except Exception as error:
                    self.unmodelled(f"the end of rank {host.rank}", error)
                    return

    def kill(self, host: Host, text: str, calls: Sequence[EmulatedCall] = ()) -> None:
        """End a rank as if its process had been killed, in the first of `calls`, or of those that
        it waits for."""
        if host.gone:
            return
        host.ending = Ending.at(EndKind.KILLED, calls[0].row if calls else _awaited(host), text)
        self._depart(host)
        self.baton.doom(host.waits.turn)

    def abort_rank(self, host: Rank, text: str, at_ns: int) -> None:
        """Its backend aborts its process at that time. Ranks whose clocks are behind act first
        (`Host.submit`).

        rank 0   sends 8 B to rank 1 at 5
        rank 1   issues recv(2) at 5, and recv(0) of 4 B at 7: it aborts at 7
        rank 2   sends to rank 1 at 6, and has its turn after rank 1: its message still comes
        """
        mine = self.hosts[host.rank]
        if mine.gone or mine.ending is not None:
            return
        mine.ending = Ending.at(
            EndKind.KILLED, _awaited(mine), f"its process was killed by SIGABRT: {text}"
        )
        self.aborting.append(mine)
        for fabric, place in self._on_gloo(mine):
            fabric.abort(place, at_ns)
        mine.reach(at_ns)
        mine.waits.end()

    def _abort(self, host: Host) -> None:
        """End the rank at its next wait. Until its process is gone the others go on, but it no
        longer answers them."""
        host.waits.turn.doomed = self.judged
        if not self.judged:
            host.waits.yield_if_ready()
        for fabric, place in self._on_gloo(host):
            fabric.freeze(place)
        self.aborting.remove(host)
        self._close_process(host)

    def _on_gloo(self, host: Host) -> Iterator[tuple[GlooFabric, int]]:
        """Its groups on gloo, and its place in each."""
        for name, fabric in self._fabrics.items():
            if isinstance(fabric, GlooFabric) and host.rank in self._ranks_of[name]:
                yield fabric, self._ranks_of[name].index(host.rank)

    def _died_at(self, host: Host, calls: Sequence[EmulatedCall]) -> None:
        """A rank that was killed while it ran was just beginning to wait for these."""
        if calls and host.ending is not None and host.ending.call is None:
            host.ending = Ending.at(EndKind.KILLED, calls[0].row, host.ending.text)

    # ------------------------------------------------------------------------------------ groups

    def _open_default_group(self, host: Host) -> None:
        ranks = tuple(range(len(self.hosts)))
        group = self._new_group(host, DEFAULT_GROUP, ranks, "default_pg", self.knobs.backend)
        host.own.world.group_count = 1
        c10d._register_pg_in_world(
            group,
            backend_name=self.knobs.backend,
            store=self._store,
            group_name=c10d.GroupName(DEFAULT_GROUP),
            backend_config=str(c10d.BackendConfig(c10d.Backend(self.knobs.backend))),
            rank_mapping={rank: rank for rank in ranks},
            add_to_default_tag=True,
        )
        c10d._update_default_pg(group)

    def connect(self, host: Host, name: str = DEFAULT_GROUP) -> None:
        """init_process_group(device_id=...): NCCL makes the communicator at once, and those of
        later groups, too.

        _new_process_group_helper calls eager_connect_single_device where a device is bound
        (distributed_c10d.py, PyTorch v2.13.0).
        """
        fabric = self._fabrics[name]
        if isinstance(fabric, NcclFabric):
            host.eager = host.log.groups[name].eager = True
            fabric.connect(self._ranks_of[name].index(host.rank), host, host.waits.now)

    def open_group(
        self, host: Host, name: str, ranks: tuple[int, ...], desc: str | None
    ) -> EmulatedGroup:
        """A further group of `host`, on the backend that it asks for. On gloo its ranks connect
        first, and so wait."""
        asked = str(host.asked_backend or "").lower()
        if asked in ("gloo", "nccl"):
            backend = asked
        else:
            backend = self.knobs.backend
        group = self._new_group(host, name, ranks, desc, backend)
        here = self._opened.setdefault(group.label, [])
        here.append(host)
        if not group.fabric.streams:
            if len(here) < len(ranks):
                host.wait_inside((), f"for the other ranks of group {group.label!r} to make it too")
            else:
                self._open_at[group.label] = max(other.waits.now for other in here)
                for other in here[:-1]:
                    other.wake()
            host.reach(self._open_at[group.label])  # the last one may have gone on since
        elif host.eager:
            self.connect(host, group.label)
        return group

    def _new_group(
        self, host: Host, name: str, ranks: tuple[int, ...], desc: str | None, backend: str
    ) -> EmulatedGroup:
        others = self._ranks_of.get(name, ranks)
        if others != ranks and len(others) == len(ranks) == 1:
            name = (
                f"{name} of rank {host.rank}"  # such a group needs no peer, so its name may repeat
            )
        elif others != ranks:
            raise self.broken(
                f"the ranks name different groups {name!r}: rank {host.rank} that of ranks {list(ranks)}, others that "
                f"of {list(others)}. Real ranks would connect to the wrong peers, with unknown results. Every rank, "
                "also one outside the group, has to call new_group for every group in the same order, or pass "
                "use_local_synchronization=True."
            )
        if self._backend_of.get(name, backend) != backend:
            name = f"{name} on {backend}"  # or asked for different backends
        if name not in self._fabrics:
            self._ranks_of[name] = ranks
            self._backend_of[name] = backend
            make: type[NcclFabric] | type[GlooFabric] = (
                NcclFabric if backend == "nccl" else GlooFabric
            )
            self._fabrics[name] = make(self._weak, ranks)
        group = EmulatedGroup(host, name, desc or "undefined", ranks, self._fabrics[name])
        host.keep(group)
        return group

    # ------------------------------------------------------------------------------------ when no
    # rank can go on

    def switched(self, old: Host | None, new: Host | None) -> None:
        """The baton passes from one rank to another. An exception here would lose it."""
        try:
            self._isolation.switched(old, new)
        except Exception as error:
            self.unmodelled("the turn of another rank", error)

    def stalled(self, final: bool) -> None:
        """Every rank waits (`final`), or all but one that keeps asking: see who can go on after
        all."""
        try:
            for fabric in self._fabrics.values():
                fabric.flush()
        except Exception as error:
            self.unmodelled("the calls that the ranks wait for", error)
            return
        if self.baton.turns.ready:
            return
        living = [host for host in self.hosts if not host.gone]
        ahead = [host for host in living if host.waits.let_go()]  # only their streams wait
        called = [host for host in living if final and not ahead and host.waits.call_back()]
        if ahead or called or not final:
            return
        for host in filter(still_runs, living):
            self.broken(
                THREADED.format(
                    host.rank, "waits, and a thread that its program has started still runs"
                )
            )
        self.judged = True
        # Everything that the model could carry out is done and every rank waits: that proves the
        # hang.
        for host in living:
            standing = host.waits.standing
            why = standing.why if standing is not None else ""
            if host.waits.awaited and not why:
                text = ""
            else:
                text = f"no rank can go on; this one waits {why or 'for a call'}"
            text = "; ".join(filter(None, (host.closing, text)))
            host.ending = Ending.at(EndKind.HUNG, _awaited(host), text, proven=True)
            self.baton.doom(host.waits.turn)

    def overtaken(self, host: Host, call: EmulatedCall) -> None:
        """The stream of a rank that was let go would have moved on after all, and its host has
        computed without it."""
        self._broken = LaunchError(
            f"rank {host.rank} let another rank go on while its own stream still waited for {call!r}, by other means "
            "than a collective. On a GPU its host would run ahead of its stream there; without one, its values are not "
            'known. Use joinlab.launch, with backend="gloo" or on GPUs.'
        )

    def unmodelled(self, what: object, error: Exception) -> None:
        """Carrying out `what` has failed by a fault of the model, not of the program: every rank
        ends here and now."""
        self.broken(
            f"joinlab could not model {what} ({type(error).__name__}: {error}). Use joinlab.launch for this program."
        )
        self.judged = True
        for host in self.hosts:
            if not host.gone:
                self.baton.doom(host.waits.turn)

    def broken(self, text: str) -> LaunchError:
        """Return no Timeline but raise this error: what real ranks would do is not modelled, or not
        known."""
        self._broken = self._broken or LaunchError(text)
        return self._broken

    def _give_up(self, reason: str) -> None:
        timeout = self.knobs.timeout_s
        text = {
            "deadline": f"ended by joinlab: still running after timeout={timeout:g} s",
            "interrupt": "interrupted by the user",
        }[reason]
        self.judged = True
        for host in self.hosts:
            if not host.gone:
                host.ending = Ending.at(EndKind.KILLED, _awaited(host), text)
                host.gone = True

    # ------------------------------------------------------------------------------------ the
    # Timeline

    def _timeline(self) -> Timeline:
        knobs = self.knobs
        emulation: EmulationSettings = {
            "seconds_per_input": [ns / 1e9 for ns in knobs.costs.input_ns],
            "latency": knobs.costs.latency_ns / 1e9,
            "bytes_per_second": knobs.costs.bytes_per_second,
        }
        if knobs.pad:
            emulation["pad"] = knobs.pad
        if knobs.streams:
            emulation = {
                "era": knobs.era,
                "barrier_value": knobs.barrier_value,
                "pad": knobs.pad,
                **emulation,
            }
            if knobs.gpu != "A100":
                emulation["gpu"] = knobs.gpu
            nccl = [fabric for fabric in self._fabrics.values() if isinstance(fabric, NcclFabric)]
            assumptions = dict.fromkeys(text for fabric in nccl for text in fabric.assumes())
            if assumptions:
                emulation["assumes"] = " ".join(assumptions)
            watched = self._watched()
            if watched:
                emulation["watchdog"] = watched
        meta: Meta = {
            "program": program_name(self.program),
            "source": source_of(self.program),
            "engine": "emulated",
            "backend": knobs.backend,
            "world_size": len(self.hosts),
            "inputs": list(self.counts),
            "seeds": list(self.seeds),
            "emulation": emulation,
            "groups": {name: list(ranks) for name, ranks in self._ranks_of.items()},
            "clock": {"domain": "virtual"},
        }
        logs = [host.log for host in self.hosts]
        rows = [row for log in logs for row in log.calls.values()]
        replicas = differing_replicas(
            {host.rank: host.log.marks for host in self.hosts}, rows, self._ranks_of
        )
        about = about_ranks(logs, knobs.backend)
        of_nccl = {name: found for name, found in about.get("nccl", {}).items() if found}
        more = {**about, "nccl": of_nccl, **about_calls(logs, meta["source"]), "replicas": replicas}
        meta.update({name: value for name, value in more.items() if value})  # type: ignore[typeddict-item]
        return timeline_from_rows(
            calls=rows,
            spans=[span for log in logs for span in log.spans.values()],
            ends=[
                host.ending or Ending.at(EndKind.KILLED, None, "it never ran")
                for host in self.hosts
            ],
            meta=meta,
            returns=self._returns,
            output=[host.own.output.text() for host in self.hosts],
            lazy=True,
        )

    def _watched(self) -> list[Watched]:
        """How NCCL's watchdog would end the ranks that hang.

        Today it does so by default (TORCH_NCCL_ASYNC_ERROR_HANDLING=3, ProcessGroupNCCL.cpp,
        PyTorch v2.13.0): the process aborts when a call has not completed within its group's
        timeout. 1.9 waits for ever.
        """
        watched: list[Watched] = []
        for host in self.hosts if self.knobs.era == "today" else ():
            if host.ending is None or host.ending.kind is not EndKind.HUNG:
                continue
            pending = [call for call in host.calls if call.group.watchdog_ns and not call.done]
            first = min(
                pending,
                key=lambda call: (call.row["enqueued_ns"] or 0) + call.group.watchdog_ns,
                default=None,
            )
            if first is not None:
                ns = first.group.watchdog_ns
                text = watchdog_text(first, ns // 1_000_000)
                watched.append({"rank": host.rank, "after_s": ns / 1e9, "text": text})
        return watched

    def tell(self, listener: Callable[[int, str], None]) -> None:
        """Give `listener` each line that a rank printed, in the order in which they were
        printed."""
        rest = [""] * len(self.hosts)
        for rank, text in self.printed_lines:
            *lines, rest[rank] = (rest[rank] + text).split("\n")
            for line in lines:
                listener(rank, line)
        for rank, line in enumerate(rest):
            if line:
                listener(rank, line)
            if not self.hosts[rank].own.output.whole:
                listener(rank, "[joinlab left out the rest; the end of it is in timeline.output]")


def _awaited(host: Host) -> CallRow | None:
    """The first of the open calls that a rank waits for."""
    return next((call.row for call in host.waits.awaited if call.row["seq"] >= 0), None)
