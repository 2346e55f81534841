"""What drives the ranks of a run, which are threads of an emulation (emulator/run.py), or greenlets
that play lists of calls (tests/modelled_ranks.py): their groups, how they abort and end, and what
else can go on when no rank can.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from joinlab.backend.clock import EXIT_NS
from joinlab.backend.model import EmulatedCall, Fabric, Knobs
from joinlab.backend.turns import ActingRank, Turns
from joinlab.errors import LaunchError


class Machine:
    """The ranks of one run, and the fabrics between them.

    It gives one rank at a time its turn, the one furthest behind on its virtual clock, and owes the
    fabrics of all groups: `submit` for what ranks issue, in that order; `flush` when no rank can go
    on; `leave` when a rank's process has ended, on gloo EXIT_NS after its program.

    hosts      all ranks, in order
    fabrics    by name of a group, and in ranks_of its global ranks
    aborting   ranks whose backend aborts their process, and whose clocks are not there yet
    judged     every rank that still lives is being ended
    """

    def __init__(self, knobs: Knobs, turns: Turns) -> None:
        self.knobs = knobs
        self.costs = knobs.costs
        self.turns = turns
        self.hosts: Sequence[ActingRank] = ()
        self.fabrics: dict[str, Fabric] = {}
        self.ranks_of: dict[str, tuple[int, ...]] = {}
        self.aborting: list[ActingRank] = []
        self.judged = False
        self._made: dict[str, list[ActingRank]] = {}  # by group: the ranks that have made it
        self._met_ns: dict[str, int] = {}  # by group on gloo: when the last of its ranks made it

    def fabrics_of(self, host: ActingRank) -> Iterator[tuple[Fabric, int]]:
        """Of each of a rank's groups: its fabric, and the rank's group rank in it."""
        for name, fabric in self.fabrics.items():
            if host.rank in self.ranks_of[name]:
                yield fabric, self.ranks_of[name].index(host.rank)

    def meet(self, host: ActingRank, name: str) -> None:
        """A rank has made a group on gloo: its ranks connect first, and so wait for each other."""
        made = self._made.setdefault(name, [])
        made.append(host)
        if len(made) < len(self.ranks_of[name]):
            host.wait_inside((), f"for the other ranks of group {name!r} to make it too")
        else:
            self._met_ns[name] = max(other.now for other in made)
            for other in made[:-1]:
                other.wake()
        host.reach(self._met_ns[name])  # the last one may have gone on since

    def flush(self) -> bool:
        """Every rank waits, or all but one that keeps asking: let the fabrics carry out what needs
        less than all ranks. Whether a rank can go on after it."""
        for fabric in self.fabrics.values():
            fabric.flush()
        return bool(self.turns.ready)

    def assumes(self) -> str:
        """What the model took for granted, in sentences."""
        notes = (note for fabric in self.fabrics.values() for note in fabric.assumes())
        return " ".join(dict.fromkeys(notes))

    def abort_rank(self, rank: int, text: str, at_ns: int) -> None:
        """Its backend aborts the process of a rank at that time. Ranks whose clocks are behind act
        first (`submit` of Host and SessionRank).

        rank 0   sends 8 B to rank 1 at 5
        rank 1   issues recv(2) at 5, and recv(0) of 4 B at 7: it aborts at 7
        rank 2   sends to rank 1 at 6, and has its turn after rank 1: its message still comes
        """
        aborted = self.hosts[rank]
        if aborted.gone or aborted.ending is not None:
            return
        aborted.killed(f"its process was killed by SIGABRT: {text}")
        self.aborting.append(aborted)
        for fabric, group_rank in self.fabrics_of(aborted):
            fabric.abort(group_rank, at_ns)
        aborted.reach(at_ns)
        aborted.end()

    def finish_abort(self, host: ActingRank) -> None:
        """A rank that aborts has been ended in its wait. Until its process is gone the others go
        on, but it no longer answers them."""
        host.turn.doomed = self.judged
        if not self.judged:
            host.yield_if_ready()
        for fabric, group_rank in self.fabrics_of(host):
            fabric.freeze(group_rank)
        self.aborting.remove(host)
        self.close_process(host)

    def close_process(self, host: ActingRank) -> None:
        """Its program is over. Until its process is, too, the others go on as if nothing had
        happened."""
        if not (self.knobs.streams or self.judged or host.gone):
            host.work_for(EXIT_NS)
            host.yield_if_ready()

    def leave_groups(self, host: ActingRank) -> None:
        """Its process is gone: the others may notice."""
        for fabric, group_rank in self.fabrics_of(host):
            fabric.leave(group_rank)


def unmodelled(step: object, error: Exception) -> LaunchError:
    """Carrying out `step` has failed by a fault of the model, not of the program."""
    return LaunchError(
        f"joinlab could not model {step} ({type(error).__name__}: {error}). Use joinlab.launch for this program."
    )


def overtaken(call: EmulatedCall) -> LaunchError:
    """The stream of a rank that was let go would have moved on after all, by this call of its, and
    its host has computed without it."""
    return LaunchError(
        f"rank {call.host.rank} let another rank go on while its own stream still waited for {call!r}, by other means "
        "than a collective. On a GPU its host would run ahead of its stream there; without one, its values are not "
        'known. Use joinlab.launch, with backend="gloo" or on GPUs.'
    )
