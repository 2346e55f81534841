"""What a rank concludes from a value."""

from __future__ import annotations

import pytest

from joinlab.analysis.meanings import conclusion, number


@pytest.mark.parametrize(
    ("origin", "value", "text"),
    [
        (
            "all-reduce (join() _get_num_nonjoined_procs())",
            "[[0.0]]",
            "read 0 and concluded that all ranks have joined",
        ),
        (
            "all-reduce (join() _get_num_nonjoined_procs())",
            "[[1.0]]",
            "read 1 and concluded that 1 rank has not joined yet",
        ),
        (
            "all-reduce (join() _get_num_nonjoined_procs())",
            "[[3.0]]",
            "read 3 and concluded that 3 ranks have not joined yet",
        ),
        (
            "all-reduce (join() _get_num_nonjoined_procs())",
            "[[9.8e-45]]",
            "read 9.8e-45 and concluded that not all have joined",
        ),
        (
            "all-reduce (join() check bwd grad sync)",
            "[[0.0]]",
            "read 0 and concluded that no rank will synchronise gradients in this iteration",
        ),
        (
            "all-reduce (join() check bwd grad sync)",
            "[[0.25]]",
            "read 0.25 and concluded that the other ranks will synchronise gradients in this iteration",
        ),
        (
            "all-reduce (_find_common_rank())",
            "[[1]]",
            "read 1 and concluded that rank 1 has the final parameters",
        ),
        (
            "all-reduce (_find_common_rank())",
            "[[-1]]",
            "read -1 and concluded that no rank has the final parameters",
        ),
        (
            "all-reduce (throw check)",
            "[[1.0]]",
            "read 1 and concluded that a rank has run out of inputs",
        ),
        (
            "all-reduce (DDP backward())",
            "[[1.0,2.5]]",
            "took 1, 2.5 for the sum of all ranks' gradients",
        ),
        (
            "all-reduce (DDP backward())",
            "[[3.0000016689300537]]",
            "took 3.00000167 for the sum of all ranks' gradients",
        ),
        ("all-reduce (barrier)", "[[7]]", "discarded the value"),
        ("barrier", None, "discarded the value"),
        ("all-reduce (DDP forward() 1)", None, "discarded the value"),
        ("broadcast (DDP construction)", "[[0.5]]", "took 0.5 for what rank 0's model holds"),
        # every rank's own, to be compared
        (
            "all-gather (DDP construction)",
            "[[2],[2]]",
            "got 2, 2",
        ),
        ("all-reduce", "[[4.0]]", "got 4"),
        ("all-reduce", None, None),
        ("all-reduce (join() _get_num_nonjoined_procs())", None, None),
        ("all-reduce", "[[]]", None),
        (None, "[[1]]", "got 1"),
    ],
)
def test_a_value_is_shown_as_its_reader_interprets_it(origin, value, text):
    made = conclusion(origin, value)
    assert (made and str(made)) == text


def test_nan_infinity_and_huge_numbers_are_shown():
    assert [number(value) for value in (float("nan"), float("-inf"), 1e30, 2**60)] == [
        "nan",
        "-inf",
        "1e+30",
        str(2**60),
    ]
