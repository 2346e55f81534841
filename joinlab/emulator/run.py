"""One emulation: its ranks, its groups, the verdict when no rank can go on, and its Timeline."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from torch._C._distributed_c10d import _unregister_all_process_groups
from torch.distributed import distributed_c10d as c10d

from joinlab.backend.machine import Machine, overtaken, unmodelled
from joinlab.backend.model import EmulatedCall, Knobs
from joinlab.emulator.group import EmulatedGroup
from joinlab.emulator.host import THREADED, Host, bound_kinds, forget_calls
from joinlab.emulator.isolation import Isolation
from joinlab.emulator.rank_state import RankState
from joinlab.emulator.scheduler import Baton, RankEnded, one_at_a_time, still_runs
from joinlab.emulator.store import PREFIX, RankStore, SharedKeys
from joinlab.errors import LaunchError, LaunchInterrupted
from joinlab.gloo.fabric import GlooFabric
from joinlab.interrupts import HeldInterrupts
from joinlab.nccl.fabric import NcclFabric, watchdog_text
from joinlab.program.host_syncs import observe
from joinlab.program.misuse import program_site
from joinlab.program.outcome import at_exit, text_of, to_plain, traceback_text
from joinlab.program.program import Inputs, Program, call_program, program_name
from joinlab.program.sources import source_of
from joinlab.program.traces import Trace
from joinlab.recorder.rank_log import about_calls, about_ranks
from joinlab.showing import short_site
from joinlab.timeline import (
    CUT,
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


class Emulation(Machine):
    """One emulation, from its threads to its Timeline. Hosts and fabrics know it by a weak proxy,
    see model.py."""

    hosts: list[Host]

    def __init__(
        self, program: Program, counts: Sequence[int], seeds: Sequence[int | None], knobs: Knobs
    ) -> None:
        self._weak: Emulation = weakref.proxy(self)
        self.baton = Baton(
            lambda old, new, weak=self._weak: weak.switched(old, new),  # type: ignore[misc]
            lambda final, weak=self._weak: weak.stalled(final),  # type: ignore[misc]
        )
        super().__init__(knobs, self.baton.turns)
        self.program = program
        self.counts = tuple(counts)
        self.seeds = tuple(seeds)
        self.printed_lines: list[tuple[int, str]] = []
        self.traces: Mapping[int, Trace] = {}  # of ranks whose lines are followed
        states = [RankState(rank, len(counts), seed) for rank, seed in enumerate(seeds)]
        self._isolation = Isolation(states, knobs.backend, program)
        self.hosts = [Host(self._weak, rank, state) for rank, state in enumerate(states)]
        self._keys = SharedKeys()
        self._backend_of: dict[str, str] = {}
        self._returns: list[object] = [None] * len(counts)
        self._broken: LaunchError | None = None

    def go(self) -> Timeline:
        """Run it. LaunchInterrupted if the user interrupts."""
        try:
            with one_at_a_time(), self._isolation:
                bound_kinds()  # here, where no other emulation runs
                self.baton.run(
                    [host.turn for host in self.hosts], self.knobs.timeout_s, self._give_up
                )
        except KeyboardInterrupt:
            with HeldInterrupts():  # a second Ctrl-C here would lose the recorded calls
                raise LaunchInterrupted(
                    "the emulation was interrupted; the `timeline` of this exception has what was "
                    "recorded (sys.last_value.timeline in a notebook)",
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

    # ---------------- one rank, from start to end

    def live(self, rank: int) -> None:
        """The life of a rank, in its own thread: its program, then the end of its process."""
        host = self.hosts[rank]
        try:
            try:
                self._open_default_group(host)
                inputs = Inputs(self.counts[host.rank], host.progress.mark_input)
                run = partial(call_program, host.state.program, host.rank, inputs)
                trace = self.traces.get(host.rank)
                if trace is not None:
                    trace.replica = host.replicas.held
                observe(host.sync)
                value = self._isolation.call(run if trace is None else partial(trace.follow, run))
                self._returned(host, value)
            except RankEnded:
                raise
            except BaseException as error:
                self._raised(host, error)
            self.close_process(host)
        except RankEnded:
            self._died_at(host)
            if host in self.aborting:
                self.finish_abort(host)
            raise
        finally:
            self._depart(host)
            _unregister_all_process_groups()

    def _returned(self, host: Host, value: object) -> None:
        # a program that caught how it was ended has ended all the same
        if host.gone or host.ending is not None:
            return
        host.leave_program(closing=at_exit("its program has returned"))
        if not host.stuck:
            host.replicas.ended()
            host.misuse.ended()
        kept = to_plain(value)  # a tensor on a GPU has to come to the host first
        for function in reversed(host.state.at_exit):
            function()
        self._returns[host.rank] = kept
        host.ending = Ending.finished(call.row for call in host.calls)

    def _raised(self, host: Host, error: BaseException) -> None:
        if host.gone or host.ending is not None:
            return
        if isinstance(error, SystemExit) and error.code in (None, 0):
            self._returned(host, None)
            return
        printed, text = traceback_text(error), text_of(error)
        if self.knobs.streams and any(words in text for words in _NO_GPU):
            self.broken(
                f"rank {host.rank} asks PyTorch for a GPU in a way that is not modelled, and there is none ({text}): "
                "what the program does then cannot be known without a GPU. Use joinlab.launch on GPUs, or leave it out."
            )
        host.keep_output(printed)
        host.leave_program(closing=at_exit(f"its program has raised {text}"))
        host.ending = Ending.raised((call.row for call in host.calls), text)

    def _depart(self, host: Host) -> None:
        """Its process is gone, and the others may notice."""
        if host.gone:
            return
        host.gone = True
        if host.ending is None:
            host.killed("its thread was ended")
        if self.judged:
            return  # joinlab ends it: the others must not take that for the end of a process
        try:
            self.leave_groups(host)
        except Exception as error:
            self.unmodelled(f"the end of rank {host.rank}", error)

    def kill(self, host: Host, text: str, calls: Sequence[EmulatedCall] = ()) -> None:
        """End a rank as if its process had been killed, in the first of `calls`, or of those that
        it waits for."""
        if host.gone:
            return
        host.killed(text, calls)
        self._depart(host)
        self.baton.doom(host.turn)

    def _died_at(self, host: Host) -> None:
        """A rank that was killed while it ran was just beginning to wait for these calls."""
        if host.died_at and host.ending is not None and host.ending.call is None:
            host.killed(host.ending.text, host.died_at)

    # ---------------- groups

    def _open_default_group(self, host: Host) -> None:
        ranks = tuple(range(len(self.hosts)))
        group = self._new_group(host, DEFAULT_GROUP, ranks, "default_pg", self.knobs.backend)
        store = RankStore(self._keys)
        host.keep(store)
        host.state.world.group_count = 1
        c10d._register_pg_in_world(
            group,
            backend_name=self.knobs.backend,
            store=c10d.PrefixStore(PREFIX, store),
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
        fabric = self.fabrics[name]
        if isinstance(fabric, NcclFabric):
            host.eager = host.log.groups[name].eager = True
            fabric.connect(self.ranks_of[name].index(host.rank), host, host.now)

    def open_group(
        self, host: Host, name: str, ranks: tuple[int, ...], desc: str | None
    ) -> EmulatedGroup:
        """A further group of `host`, on the backend that it asks for."""
        asked = str(host.asked_backend or "").lower()
        if asked in ("gloo", "nccl"):
            backend = asked
        else:
            backend = self.knobs.backend
        group = self._new_group(host, name, ranks, desc, backend)
        if not group.fabric.streams:
            self.meet(host, group.label)
        elif host.eager:
            self.connect(host, group.label)
        return group

    def _new_group(
        self, host: Host, name: str, ranks: tuple[int, ...], desc: str | None, backend: str
    ) -> EmulatedGroup:
        others = self.ranks_of.get(name, ranks)
        if others != ranks and len(others) == len(ranks) == 1:
            # such a group needs no peer, so its name may repeat
            name = f"{name} of rank {host.rank}"
        elif others != ranks:
            raise self.broken(
                f"the ranks name different groups {name!r}: rank {host.rank} that of ranks {list(ranks)} "
                f"({short_site(program_site())}), others that of {list(others)}. Real ranks would connect to "
                "the wrong peers, with unknown results. Every rank, also one outside the group, has to call "
                "new_group for every group in the same order, or pass use_local_synchronization=True."
            )
        if self._backend_of.get(name, backend) != backend:
            name = f"{name} on {backend}"  # or asked for different backends
        if name not in self.fabrics:
            self.ranks_of[name] = ranks
            self._backend_of[name] = backend
            make: type[NcclFabric] | type[GlooFabric] = (
                NcclFabric if backend == "nccl" else GlooFabric
            )
            self.fabrics[name] = make(self._weak, ranks)
        group = EmulatedGroup(host, name, desc or "undefined", ranks, self.fabrics[name])
        host.keep(group)
        return group

    # ---------------- when no rank can go on

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
            if self.flush():
                return
        except Exception as error:
            self.unmodelled("the calls that the ranks wait for", error)
            return
        living = [host for host in self.hosts if not host.gone]
        ahead = [host for host in living if host.let_go()]  # only their streams wait
        called = [host for host in living if final and not ahead and host.call_back()]
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
            standing = host.standing
            why = standing.why if standing is not None else ""
            if host.awaited and not why:
                text = ""
            else:
                text = f"no rank can go on; this one waits {why or 'for a call'}"
            text = "; ".join(filter(None, (host.closing, text)))
            host.ending = Ending.at(EndKind.HUNG, host.awaited_row, text, proven=True)
            self.baton.doom(host.turn)

    def overtaken(self, call: EmulatedCall) -> None:
        """A rank that was released from its wait would have had to wait for this call after all."""
        self._broken = overtaken(call)

    def unmodelled(self, what: object, error: Exception) -> None:
        """Carrying out `what` has failed by a fault of the model, not of the program: every rank
        ends here and now."""
        self._broken = self._broken or unmodelled(what, error)
        self.judged = True
        for host in self.hosts:
            if not host.gone:
                self.baton.doom(host.turn)

    def broken(self, text: str) -> LaunchError:
        """Return no Timeline but raise this error: what real ranks would do is not modelled, or not
        known."""
        self._broken = self._broken or LaunchError(text)
        return self._broken

    def _give_up(self, reason: str) -> None:
        timeout = self.knobs.timeout_s
        text = {
            "deadline": f"{CUT}: still running after timeout={timeout:g} s",
            "interrupt": "interrupted by the user",
        }[reason]
        self.judged = True
        for host in self.hosts:
            if not host.gone:
                host.killed(text)
                host.gone = True

    # ---------------- the Timeline

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
            assumes = self.assumes()
            if assumes:
                emulation["assumes"] = assumes
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
            "groups": {name: list(ranks) for name, ranks in self.ranks_of.items()},
            "clock": {"domain": "virtual"},
        }
        logs = [host.log for host in self.hosts]
        about = about_ranks(logs, knobs.backend)
        of_nccl = {name: found for name, found in about.get("nccl", {}).items() if found}
        of_calls = about_calls(logs, meta["source"], self.ranks_of)
        more = {**about, "nccl": of_nccl, **of_calls}
        meta.update({name: value for name, value in more.items() if value})  # type: ignore[typeddict-item]
        return timeline_from_rows(
            calls=[row for log in logs for row in log.calls.values()],
            spans=[span for log in logs for span in log.spans.values()],
            ends=[
                host.ending or Ending.at(EndKind.KILLED, None, "it never ran")
                for host in self.hosts
            ],
            meta=meta,
            returns=self._returns,
            output=[host.state.output.text() for host in self.hosts],
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
            # What the host waits inside is not enqueued yet.
            inside = host.standing.calls if host.standing and host.standing.why else ()
            pending = [
                call
                for call in host.calls
                if call.group.watchdog_ns and not call.done and call not in inside
            ]
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
            if not self.hosts[rank].state.output.whole:
                listener(rank, "[joinlab left out the rest; the end of it is in timeline.output]")
