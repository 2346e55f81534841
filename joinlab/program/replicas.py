"""Replicas: whether DDP's copies of a model, and the optimizer's state for them, are equal on all
ranks.

rank 0   step 1   step 2             joined   sync of the model   step 3
rank 1   step 1   step 2   step 3    step 4   sync of the model   step 5

Each rank keeps a checksum of every parameter, not of buffers, at each step and at its end, and at
its end also of the optimizer's state; it issues no call for that. A launched rank does so only at
its end: at each step it took 7 to 10 % of a tiny model's time. `differing_replicas` compares steps
at which ranks had issued the same number of collectives of the model's group: 1 with 1, 2 with 2, 3
with 5. Where a rank left out a step that others made, it does not say which step parted them. A step
of a tiny model takes 8 us more, 1.3 %.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from ctypes import string_at
from itertools import chain
from typing import Any, Literal, NamedTuple, NotRequired, TypedDict
from zlib import crc32

from joinlab.ops import POINT_TO_POINT, CallRow
from joinlab.program.log_events import ReplicasMarked
from joinlab.program.steps import is_made_by_join

STEP_BYTES = 1 << 18
"""Models of more bytes are compared only at the end."""
HELD_BYTES = 1 << 28
"""Parameters of more bytes are not compared, since each one is kept until then."""
MAX_STEPS = 2000
"""Steps after this many are not compared."""


class Replica(TypedDict):
    """The first parameter that differs between ranks: `meta["replicas"]`.

    name   the parameter's, within the model; what: "parameter", or "state" (of the optimizer, for this parameter)
    more   how many other parameters of the model differ there, too
    sides  the ranks that hold the same
    model  number of the model in its group, from 0, in the order in which they were made; group: that group
    steps  by rank: number of the optimizer's step, from 1, after which it was seen; {}: at the end of the program
    rates  by rank: the parameter's learning rate in that step; left out: they are equal or unknown
    over   "training": they were equal up to the last step that each rank made; "again": steps without an average of
           gradients parted them, and they were equal again before a later step or at the end
    emulated  of a launch, which compares replicas only at the end: an emulation that ended alike saw when they parted
    late   a step before these was made by some ranks alone, without join(): they may differ since that one
    """

    name: str
    what: str
    model: int
    group: str
    steps: dict[str, int]
    more: NotRequired[int]
    sides: NotRequired[list[list[int]]]
    rates: NotRequired[dict[str, float]]
    over: NotRequired[Literal["training", "again"]]
    late: NotRequired[bool]
    emulated: NotRequired[bool]


class Gradient(TypedDict):
    """A call that averaged gradients of a model: the model's number in its group, see Replica."""

    rank: int
    group: str
    seq: int
    model: int


class Mark(NamedTuple):
    """A rank's checksums at a number of issued calls, and in a step its learning rates.

    held   by group, model, "parameter" or "state", and name
    rates  by group, model and name
    before  it is of the beginning of the step
    """

    issued: int
    step: int | None
    held: Mapping[tuple[str, int, str, str], int]
    rates: Mapping[tuple[str, int, str], float]
    before: bool = False

    @classmethod
    def of(cls, event: ReplicasMarked) -> Mark:
        """What a log says. ValueError if it says something else."""
        checksums = {
            (group, model, part, name): int(crc) for group, model, part, name, crc in event.held
        }
        rates = {(group, model, name): float(rate) for group, model, name, rate in event.rates}
        return cls(event.issued, event.step, checksums, rates, bool(event.before))


class Models:
    """The number of a gradient's model among those that DDP has wrapped in a group; a single model
    has none."""

    def __init__(self) -> None:
        # by id of the parameter: its group, model and name
        self._of: dict[int, tuple[str, int, str]] = {}
        self._made: dict[str, int] = {}
        self.averaged = False
        """Since the last step, gradients have been averaged."""

    def stepped(self, optimizer: object) -> None:
        """An optimizer has made a step."""

    def steps(self, optimizer: object) -> None:
        """An optimizer is about to make a step."""

    def made(self, model: Any, group: str) -> int:
        """DDP wraps a model, in this group: its number there, from 0."""
        number = self._made[group] = self._made.get(group, -1) + 1
        self._of.update(
            (id(parameter), (group, number, name))
            for name, parameter in model.module.named_parameters()
        )
        return number

    def of(self, group: str) -> int | None:
        """The model of the parameter that the autograd engine is just adding a gradient to."""
        self.averaged = True
        if not self._made.get(group):
            return None
        node = sys.modules["torch"]._C._current_autograd_node()
        owner, number, _ = self._of.get(id(getattr(node, "variable", None)), ("", 0, ""))
        if owner == group:
            return number
        return None


class Replicas(Models):
    """The replicas of one rank.

    take       takes their marks
    issued     says how many calls the rank has issued
    at_end     mark them at the end alone, not at steps
    """

    def __init__(
        self,
        take: Callable[[ReplicasMarked], None],
        issued: Callable[[], int],
        at_end: bool = False,
    ) -> None:
        super().__init__()
        self._take = take
        self._issued = issued
        self._parameters: dict[int, Any] = {}  # by id, those that are compared
        self._optimizers: list[object] = []
        self._bytes = 0
        self._steps = 0
        self._most = 0 if at_end else MAX_STEPS

    def made(self, model: Any, group: str) -> int:
        """DDP wraps a model, in this group: its number there, from 0."""
        number = super().made(model, group)
        for name, parameter in model.module.named_parameters():
            compares = parameter.device.type == "cpu" and self._bytes <= HELD_BYTES
            if compares and name not in model.parameters_to_ignore:
                self._parameters[id(parameter)] = parameter
                self._bytes += parameter.numel() * parameter.element_size()
        return number

    def steps(self, optimizer: object) -> None:
        """Replicas that went their own ways may have been made equal again before it."""
        averaged, self.averaged = self.averaged, False
        if averaged or self._steps >= self._most:
            return
        if self._parameters and self._bytes <= STEP_BYTES:
            self._mark(self._steps + 1, dict.fromkeys(self._parameters.values()), [], before=True)

    def stepped(self, optimizer: Any) -> None:
        self._steps += 1
        if not self._parameters:
            return
        if all(optimizer is not optimizer_seen for optimizer_seen in self._optimizers):
            self._optimizers.append(optimizer)
        if self._bytes <= STEP_BYTES and self._steps <= self._most:
            rates = {
                parameter: param_group.get("lr")
                for param_group in optimizer.param_groups
                for parameter in param_group["params"]
            }
            self._mark(
                self._steps,
                {
                    parameter: rate
                    for parameter, rate in rates.items()
                    if id(parameter) in self._parameters
                },
                [],
            )

    def held(self) -> tuple[int, int]:
        """Checksums of all parameters and of their gradients; equal ones of a large model."""
        total = gradients = 0
        with suppress(Exception):
            for parameter in self._parameters.values() if self._bytes <= STEP_BYTES else ():
                total = _checksum(parameter, total)
                if parameter.grad is not None:
                    gradients = _checksum(parameter.grad, gradients)
        return total, gradients

    def ended(self) -> None:
        """The rank's program has returned."""
        if self._parameters:
            self._mark(None, dict.fromkeys(self._parameters.values()), self._optimizers)
        self._parameters, self._optimizers = {}, []

    def _mark(
        self,
        step: int | None,
        parameters: Mapping[Any, Any],
        optimizers: Sequence[Any],
        before: bool = False,
    ) -> None:
        """Keep the checksums of these parameters, each with its learning rate."""
        checksums: dict[tuple[str, int, str, str], int] = {}
        rates: dict[tuple[str, int, str], float] = {}
        # a tensor without memory of its own (meta, fake, sparse): nothing is compared
        with suppress(Exception):
            for parameter, rate in parameters.items():
                group, model, name = self._of[id(parameter)]
                if type(rate) in (float, int):
                    rates[group, model, name] = rate
                checksums[group, model, "parameter", name] = _checksum(parameter, 0)
                for optimizer in optimizers:
                    state, total = optimizer.state.get(parameter) or {}, 0
                    for key in sorted(state):
                        if hasattr(state[key], "data_ptr"):
                            total = _checksum(state[key], total)
                    if total:
                        checksums[group, model, "state", name] = total
            self._take(
                ReplicasMarked(
                    issued=self._issued(),
                    step=step,
                    held=[[*name, checksum] for name, checksum in checksums.items()],
                    rates=[[*name, rate] for name, rate in rates.items()],
                    before=before or None,
                )
            )


def _checksum(tensor: Any, begin: int) -> int:
    """By its address, which takes a tenth of the time that a view and its array take."""
    if not tensor.is_contiguous():
        tensor = tensor.detach().contiguous()
    return crc32(string_at(tensor.data_ptr(), tensor.nbytes), begin)


def differing_replicas(
    marks: Mapping[int, Sequence[Mark]],
    rows: Iterable[CallRow],
    groups: Mapping[str, Sequence[int]],
) -> Replica | None:
    """The first difference between the ranks' replicas; None if there is none."""
    if not any(marks.values()):
        return None
    number: dict[int, int] = {}
    indices: dict[tuple[str, int], list[int]] = {}
    joined = set()
    for row in rows:
        if is_made_by_join(row["stack"] or ()):
            joined.add(row["rank"])
        index = number[row["rank"]] = number.get(row["rank"], -1) + 1
        if row["op"] not in POINT_TO_POINT:
            indices.setdefault((row["group"], row["rank"]), []).append(index)
    differences: list[tuple[_Moment, str, Replica]] = []
    for group in groups:
        marks_at: dict[_Moment, dict[int, Mark]] = {}
        for rank, rank_marks in marks.items():
            # Several steps may follow one call, so each is numbered among those behind it. The mark at the
            # program's end comes after all of them, whatever was issued before it.
            counts: Counter[float] = Counter()
            for mark in rank_marks:
                calls = bisect_left(indices.get((group, rank), []), mark.issued)
                count = calls if mark.step else float("inf")
                marks_at.setdefault((count, counts[count], not mark.before), {})[rank] = mark
                counts[count] += not mark.before
        stepping = {*groups[group]} & marks.keys() - joined
        late = False
        for moment in sorted(marks_at):
            names = _differing(group, marks_at[moment])
            if names:
                difference = _replica(names, marks_at, moment, marks)
                if late and difference["steps"]:
                    difference["late"] = True
                differences.append((moment, group, difference))
                break
            # Where a rank lacks this mark, replicas may differ long before that shows.
            if moment[2]:
                late = not stepping <= marks_at[moment].keys()
    if differences:
        return min(differences, key=lambda difference: difference[:2])[2]
    return None


_Moment = tuple[float, int, bool]
"""What marks of the ranks are compared: how many calls of the group the rank had issued, the number
of the step since then, and whether the step is over."""


def _replica(
    names: Sequence[_Name],
    held: Mapping[_Moment, Mapping[int, Mark]],
    moment: _Moment,
    marks: Mapping[int, Sequence[Mark]],
) -> Replica:
    group, model, part, name = names[0]
    here = held[moment]
    replica: Replica = {
        "name": name,
        "what": part,
        "model": model,
        "group": group,
        "steps": {str(rank): mark.step for rank, mark in here.items() if mark.step},
    }
    ranks_by_sum: dict[int, list[int]] = {}
    for rank, mark in here.items():
        ranks_by_sum.setdefault(mark.held.get(names[0], 0), []).append(rank)
    replica["sides"] = [*ranks_by_sum.values()]
    more = sum(other[1:3] == (model, part) for other in names[1:])
    if more:
        replica["more"] = more
    parameter = group, model, name
    rates = {
        str(rank): mark.rates[parameter] for rank, mark in here.items() if parameter in mark.rates
    }
    if len({*rates.values()}) > 1:
        replica["rates"] = rates
    made = set()
    for mine in marks.values():
        made.add(sum(mark.step is not None and not mark.before for mark in mine))
    if part == "parameter" and not replica["steps"] and len(made) == 1 and 0 not in made:
        replica["over"] = "training"
    elif here.keys() == held.get((*moment[:2], False), {}).keys():  # nobody averaged gradients
        later = (
            then
            for at, then in held.items()
            if at > moment and all(mark.before or not mark.step for mark in then.values())
        )
        if any(then.keys() == here.keys() and not _differing(group, then) for then in later):
            replica["over"] = "again"
    return replica


def mixed_gradients(ranks: Iterable[Iterable[tuple[CallRow, int]]]) -> list[Gradient]:
    """The first two calls that met and averaged gradients of two models; [] if there are none."""
    first: dict[tuple[str, int], Gradient] = {}
    mixed: list[tuple[int, list[Gradient]]] = []
    for row, model in chain(*ranks):
        gradient: Gradient = {
            "rank": row["rank"],
            "group": row["group"],
            "seq": row["seq"],
            "model": model,
        }
        earlier = first.setdefault((row["group"], row["number"] or 0), gradient)
        if earlier["model"] != model:
            mixed.append((row["number"] or 0, [earlier, gradient]))
    if mixed:
        return min(mixed, key=lambda pair: pair[0])[1]
    return []


_Name = tuple[str, int, str, str]
"""What a mark holds: group, model, "parameter" or "state", and the parameter's name."""


def _differing(group: str, marks: Mapping[int, Mark]) -> list[_Name]:
    """The parameters of models in this group that two of these ranks hold otherwise; then those
    whose optimizer's state differs."""
    names = [name for mark in marks.values() for name in mark.held if name[0] == group]
    return [
        name
        for name in sorted(dict.fromkeys(names), key=lambda key: key[2])
        if len({mark.held[name] for mark in marks.values() if name in mark.held}) > 1
    ]
