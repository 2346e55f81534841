"""The bench's engines: the knobs that matter, and what a machine lacks for each."""

from __future__ import annotations

import pytest
import torch

import joinlab
from joinlab.cases import CASES, DOCUMENTED
from joinlab.notebook.settings import ENGINES, knobs, missing
from tests.nightly import sampled

COUNTS = ((5, 6), (1, 2), (2, 2))


def outcome(case: int, era: str, **knob: int) -> list[object]:
    runs = [joinlab.emulate(CASES[case].program, counts, era=era, **knob) for counts in COUNTS]
    return [(run.ends, run.calls["value_out"].to_list()) for run in runs]


@pytest.mark.parametrize("case", sampled(CASES, (2, 4).__contains__))
def test_exactly_the_knobs_that_matter_are_named(case):
    for era, named in CASES[case].knobs.items():
        base = outcome(case, era)
        changes = {
            "barrier_value": outcome(case, era, barrier_value=0) != base,
            "pad": any(
                outcome(case, era, pad=3, barrier_value=byte)
                != outcome(case, era, barrier_value=byte)
                for byte in (0, 7)
            ),
        }
        matter = {name for name, changed in changes.items() if changed}
        # else all may be offered
        assert matter == set(named) or (matter < set(named) and case not in DOCUMENTED)


def test_a_program_of_ones_own_has_all_knobs_of_its_engine():
    found = {name: knobs(engine, 0) for name, engine in ENGINES.items()}
    assert found == {
        "emulated nccl": ("pad",),
        "emulated nccl 1.9": ("barrier_value", "pad"),
        "emulated gloo": (),
        "launched gloo": (),
        "launched nccl": (),
    }


@pytest.mark.parametrize(
    ("gpus", "ranks", "reason"), [(0, 2, "NVIDIA"), (1, 3, "3 ranks on 1 GPU"), (4, 4, "")]
)
def test_nccl_needs_its_gpus(monkeypatch, gpus, ranks, reason):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 27, 5))
    said = missing(ENGINES["launched nccl"], ranks)
    assert (reason in said) if reason else said == ""
    assert (
        missing(ENGINES["launched gloo"], ranks) == missing(ENGINES["emulated nccl"], ranks) == ""
    )


def test_without_fork_nothing_can_be_launched(monkeypatch):
    monkeypatch.delattr("os.fork")
    assert (
        "fork" in missing(ENGINES["launched gloo"], 2)
        and missing(ENGINES["emulated gloo"], 2) == ""
    )
