"""The numbers that DDP's C++ Reducer reads when it rebuilds its buckets, and whether it survives
them.

In the second forward pass rank 0 broadcasts two int32 tensors: the numbers of all parameters in
their new order, with the number of buckets behind them, and then how many parameters each bucket
holds. The Reducer checks neither. If it receives another call's data instead, it reads that as
numbers of parameters, and the behaviour of its process is undefined from then on: mostly it
crashes. An emulation shares its process with the notebook, so it ends the rank there.

Source: Reducer::sync_bucket_indices in torch/csrc/distributed/c10d/reducer.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence


class BucketRebuild:
    """One rank's rebuilds: `believe` is told each broadcast of them, in order."""

    def __init__(self) -> None:
        self._params = 0  # of the order that came in last; 0: an order comes next

    def believe(self, numbers: Sequence[int]) -> str:
        """Why the Reducer cannot go on with these numbers; "" if it can.

        >>> BucketRebuild().believe([1, 0, 1])
        ''
        >>> BucketRebuild().believe([7, 0, 1])
        'the parameters 7, 0 in 1 buckets'
        """
        if not self._params:
            *order, buckets = numbers
            if sorted(order) != list(range(len(order))) or not 1 <= buckets <= len(order):
                return f"the parameters {', '.join(map(str, order))} in {buckets} buckets"
            self._params = len(order)
            return ""
        params, self._params = self._params, 0
        if min(numbers) < 1 or sum(numbers) != params:
            return f"buckets of {', '.join(map(str, numbers))} parameters, of {params} in all"
        return ""
