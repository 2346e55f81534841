"""Where the ranks' ways part: found at the marked lines of these programs, with the values in their
tests."""

from __future__ import annotations

import inspect
import os
import sys
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import joinlab
from joinlab.emulator import scheduler
from joinlab.program.traces import plain_of
from joinlab.story.lines import LineKind
from joinlab.timeline import EndKind
from tests.material.users import h60_len_collective


def parted(program, inputs):
    """The marked lines of the program and of the functions it calls, those that were found, and the
    values there."""
    timeline = joinlab.emulate(program, inputs)
    tests = parting(timeline).get("tests", ())
    values: dict = {}
    for test in tests:
        for read in test["values"]:
            values.setdefault(read["name"], {}).update(dict.fromkeys(read["ranks"], read["value"]))
    return [test["line"] for test in tests], values


def parting(timeline):
    """Where the story says that the ways part; no fix is tried for it."""
    with patch("joinlab.story.fixes.find_fixes", lambda *_: None):
        joinlab.diagnose(timeline)
    return timeline.meta.get("parting", {})


def marks(*functions, mark="# PARTS"):
    """The numbers of the marked lines."""
    found = []
    for function in functions:
        lines, first = inspect.getsourcelines(function)
        found += [first + at for at, line in enumerate(lines) if mark in line]
    return found


def two_epochs(rank, inputs):
    model = DDP(nn.Linear(1, 1))
    if rank == 0:
        print("begins")
    for _ in range(2):
        for x in inputs:  # PARTS
            model(x).sum().backward()
            model.module.weight.grad.item()


def checkpoint_on_one_rank(rank, inputs):
    model = DDP(nn.Linear(1, 1))
    start = 0
    if rank == 1:  # PARTS
        start = 1
    for _ in range(start, 3):  # PARTS
        model(torch.ones(1)).sum().backward()
        model.module.weight.grad.item()


class Patience:
    def __init__(self):
        self.best, self.bad = float("inf"), 0

    def __call__(self, value):
        if value < self.best:  # PARTS
            self.best, self.bad = value, 0
        else:
            self.bad += 1
        return self.bad >= 2


def early_stopping(rank, inputs):
    model, stop = DDP(nn.Linear(1, 1)), Patience()
    for epoch in range(5):
        model(torch.ones(1)).sum().backward()
        if stop(epoch if rank == 1 else -epoch):  # PARTS
            break
        model.module.weight.grad.item()


def not_a_number(rank, inputs):
    for i, _ in enumerate(inputs):
        loss = torch.tensor(float("nan") if rank == 1 and i == 1 else 0.5)  # PARTS
        if torch.isnan(loss):  # PARTS
            continue
        dist.all_reduce(loss)


def ring(rank, inputs):
    size, token = dist.get_world_size(), torch.ones(1)
    for lap, _ in enumerate(inputs):
        if rank == 0:
            dist.send(token, 1)
            dist.recv(token, size - 1)
        else:
            dist.recv(token, rank - 1)
            if rank != 1 or lap != 1:  # PARTS
                dist.send(token, (rank + 1) % size)


def joined(rank, inputs):
    model = DDP(nn.Linear(1, 1))
    with model.join():
        for x in inputs:
            model(x).sum().backward()


def root_sends(rank, inputs):
    if rank == 0:
        dist.broadcast(torch.ones(1), 0)
    else:
        dist.broadcast(torch.zeros(1), 0)


CASES = {
    two_epochs: ((3, 4), [], {"len(inputs)": {0: 3, 1: 4}}),
    checkpoint_on_one_rank: ((3, 3), [], {"rank": {0: 0, 1: 1}, "start": {0: 0, 1: 1}}),
    early_stopping: (
        (1, 1),
        [Patience.__call__],
        {"value": {0: -2, 1: 2}, "self.best": {0: -1, 1: 0}},
    ),
    not_a_number: ((2, 2), [], {"rank": {0: 0, 1: 1}, "loss": {0: 0.5, 1: "nan"}}),
    ring: ((3, 3, 3), [], {"rank": {1: 1}, "lap": {1: 1}}),
}


@pytest.mark.parametrize("program", CASES, ids=lambda program: program.__name__)
def test_the_ways_part_at_the_marked_lines_with_these_values(program):
    """Lines alone, of more programs and on both backends: tests/unseen.py."""
    inputs, helpers, values = CASES[program]
    lines, seen = parted(program, inputs)
    assert sorted(lines) == sorted(marks(program, *helpers))
    assert {name: seen.get(name) for name in values} == values


def test_a_complex_number_is_shown_by_its_shape():
    assert plain_of("z", torch.ones((), dtype=torch.complex64)) == ("z.shape", "()")
    assert plain_of("z", torch.ones(1)) == ("z", 1.0)


@pytest.mark.parametrize("program", [joined, root_sends], ids=lambda program: program.__name__)
def test_a_run_whose_calls_met_is_not_run_again(program):
    timeline = joinlab.emulate(program, (2, 4))
    assert parting(timeline) == {}


def test_a_saved_run_keeps_the_parting(tmp_path):
    """And a fix that was tried, though nobody has read its story."""
    timeline = joinlab.emulate(two_epochs, (3, 4))
    again = joinlab.load(timeline.save(tmp_path / "run.joinlab"))
    assert (
        again.meta["parting"] == timeline.meta["parting"]
        and again.meta["fixes"] == timeline.meta["fixes"] != []
    )
    assert str(joinlab.diagnose(again)) == str(joinlab.diagnose(timeline))


def test_nothing_is_followed_where_something_else_traces():
    timeline = joinlab.emulate(two_epochs, (3, 4))
    before = sys.gettrace()
    sys.settrace(lambda *_: None)
    try:
        assert parting(timeline)["why"] == "tests already traces this program"
    finally:
        sys.settrace(before)


def test_the_parting_is_found_after_a_rank_was_stuck_in_c_code(monkeypatch):
    monkeypatch.setattr(scheduler, "ABANDON_S", 0.1)
    reads, writes = os.pipe()
    stood = joinlab.emulate(lambda rank, inputs: os.read(reads, 1), (1,), timeout=0.1)
    assert stood.ends[0].kind is EndKind.KILLED
    try:
        assert parting(joinlab.emulate(two_epochs, (3, 4), timeout=20))["tests"]
    finally:
        os.write(writes, b".")  # its thread ends


def random_values(rank, inputs):
    for _ in inputs:
        dist.all_reduce(torch.rand(1))
    dist.barrier()


def test_a_second_run_that_differs_from_the_first_is_thrown_away():
    assert parting(joinlab.emulate(random_values, (1, 2), seed=0))["tests"]
    assert parting(joinlab.emulate(random_values, (1, 2), seed=None)) == {}


def test_output_of_the_second_run_is_not_shown(capsys):
    timeline = joinlab.emulate(two_epochs, (3, 4))
    joinlab.diagnose(timeline)
    assert capsys.readouterr().out == "" and timeline.output[0] == "begins\n"


@pytest.mark.parametrize(
    "values",
    [
        {"tests": [{"file": 3}]},
        {"tests": [{"file": "a", "line": 1, "text": "", "values": 3, "sides": []}]},
    ],
)
def test_a_file_with_a_parting_of_another_form_is_refused(values, tmp_path):
    timeline = joinlab.emulate(joined, (1, 1))
    timeline.meta["parting"] = values
    with pytest.raises(joinlab.TimelineFileError):
        joinlab.load(timeline.save(tmp_path / "run.joinlab"))


def test_a_followed_launch_has_its_parting():
    timeline = joinlab.launch(checkpoint_on_one_rank, (1, 1), "gloo", ways=True)
    found = parting(timeline)
    assert [test["line"] for test in found["tests"]] == marks(checkpoint_on_one_rank)
    values = {
        (read["name"], read["value"], *read["ranks"])
        for test in found["tests"]
        for read in test["values"]
    }
    assert values == {("rank", 0, 0), ("rank", 1, 1), ("start", 0, 0), ("start", 1, 1)}
    assert (
        found["tests"] == parting(joinlab.emulate(checkpoint_on_one_rank, (1, 1), "gloo"))["tests"]
    )
    assert "emulated" not in joinlab.diagnose(timeline).texts(LineKind.PARTING)[0]


def test_the_story_counts_the_ranks_whose_paths_were_not_compared():
    def uneven(rank, inputs):
        for x in inputs:
            dist.all_reduce(x)
            x.item()

    timeline = joinlab.emulate(uneven, (1,) * 40 + (2,) * 40)
    assert parting(timeline)["left_out"] == 16
    assert "The paths of 16 more ranks were not compared." in str(joinlab.diagnose(timeline))


def rows_for_the_root(rank, inputs):
    rows = [torch.zeros(1) for _ in inputs] if rank == 0 else None
    dist.gather(torch.ones(1), rows)
    taken = [torch.zeros(3 + rank) for _ in inputs]
    dist.all_gather(taken, torch.ones(3 + rank))


def test_a_comprehension_s_own_name_leads_to_no_earlier_branch():
    timeline = joinlab.emulate(rows_for_the_root, (2, 2))
    text = str(joinlab.diagnose(timeline, fix=False))
    assert "float32[3]" in text and "float32[4]" in text and "if rank == 0" not in text


@pytest.mark.parametrize("given", [{"a": 1}, torch.ones(3), nn.Linear(1, 1)])
def test_a_condition_on_one_line_is_true_of_anything_but_none(given):
    def program(rank, inputs):
        mask = [None, given][rank]
        size = 2 if mask is not None else 3
        dist.all_reduce(torch.ones(size))

    (test,) = parting(joinlab.emulate(program, (1, 1)))["tests"]
    assert [(side["ranks"], side["how"]) for side in test["sides"]] == [
        ([0], "past"),
        ([1], "block"),
    ]


def test_nothing_is_said_of_a_condition_that_its_values_do_not_decide():
    def program(rank, inputs):
        mask = [None, torch.ones(3)][rank]
        size = 2 if torch.is_tensor(mask) else 3
        dist.all_reduce(torch.ones(size))

    assert not parting(joinlab.emulate(program, (1, 1))).get("tests")


def test_an_error_that_no_line_of_the_program_took_is_not_said_to_be_swallowed_by_one():
    def program(rank, inputs):
        sizes = [2]

        class Item:
            @property
            def size(self):
                if rank:
                    raise AttributeError
                sizes.append(1)

        def other():
            return False

        hasattr(Item(), "size") or other()
        dist.all_reduce(torch.ones(sum(sizes)))

    (test,) = parting(joinlab.emulate(program, (1, 1)))["tests"]
    assert test["text"] == "if rank:"


def test_asking_an_object_of_the_program_for_its_length_issues_no_call():
    timeline = joinlab.launch(h60_len_collective.program, (2, 2), "gloo", ways=True)
    assert timeline.returns == (6, 6)
    assert len(timeline.calls) == 2 * 3
