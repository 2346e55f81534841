"""Virtual time: what things cost in an emulation. Modelled, not measured.

Every rank has a clock of its own, in int nanoseconds. The host's clock moves when it works (a
forward pass, a backward pass), when it issues a call, and when it is made to wait. On NCCL there is
a second clock, that of the GPU's stream, which waits for collectives while the host runs on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from joinlab.errors import ProgramError

ISSUE_NS = 2_000
"""What it costs the host to hand a call to the backend."""

EXIT_NS = 500_000
"""From the end of a program to that of its process, which closes its connections."""

POLL_NS = 1_000
"""What it costs the host to ask whether a call is complete."""

FORWARD_SHARE = 1 / 3
"""A forward pass takes this part of the time of one input, the backward pass the rest: the usual
rule of thumb."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What work and calls cost.

    input_ns          per rank: the forward and backward pass of one input
    latency_ns        of a collective, once all its ranks are there
    bytes_per_second  on top of it
    """

    input_ns: tuple[int, ...]
    latency_ns: int
    bytes_per_second: float

    def call_ns(self, nbytes: int) -> int:
        """How long a call takes that moves `nbytes`, once all that it needs is there.

        >>> Costs((0,), latency_ns=20_000, bytes_per_second=1e9).call_ns(1_000)
        21000
        """
        return self.latency_ns + round(nbytes / self.bytes_per_second * 1e9)


def check_costs(
    ranks: int, seconds_per_input: object, latency: object, bytes_per_second: object
) -> Costs:
    """Costs from the arguments of `emulate`; ProgramError says which of them is no such number."""
    if isinstance(seconds_per_input, Sequence) and not isinstance(seconds_per_input, str):
        per_rank = list(seconds_per_input)
    else:
        per_rank = [seconds_per_input] * ranks
    if len(per_rank) != ranks or not all(
        _is_number(seconds) and 0 <= seconds <= 1e6 for seconds in per_rank
    ):
        raise ProgramError(
            f"seconds_per_input= is one number of seconds, or {ranks} of them (one per rank); got {seconds_per_input!r}"
        )
    if not _is_number(latency) or not 0 <= latency <= 1e6:  # type: ignore[operator]
        raise ProgramError(f"latency= is a number of seconds, such as 20e-6; got {latency!r}")
    if not _is_number(bytes_per_second) or not bytes_per_second > 0:  # type: ignore[operator]
        raise ProgramError(
            f"bytes_per_second= is a number above 0, such as 10e9; got {bytes_per_second!r}"
        )
    return Costs(
        tuple(round(seconds * 1e9) for seconds in per_rank),
        round(latency * 1e9),  # type: ignore[operator]
        float(bytes_per_second),  # type: ignore[arg-type]
    )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value
