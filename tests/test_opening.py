"""The first picture of a fresh kernel: what the package ships is what the emulator says.

After a change that is meant: python -m tests.test_opening writes the file anew.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

import joinlab
from joinlab import cases
from joinlab.notebook import bench as workbench
from joinlab.notebook import opening as recorded

FILE = Path(recorded.__file__).with_name("opening.json")


def emulated() -> str:
    timeline = joinlab.emulate(cases.CASES[recorded.CASE].program, recorded.COUNTS)
    return recorded.written(timeline, {number: one.title for number, one in cases.CASES.items()})


def test_the_file_is_what_the_emulator_says():
    assert FILE.read_text("utf-8") == emulated()


def test_it_opens_as_the_same_timeline():
    timeline = joinlab.emulate(cases.case_4, recorded.COUNTS)
    opened = recorded.opening().timeline
    assert opened.calls.equals(timeline.calls) and opened.spans.equals(timeline.spans)
    assert (opened.ends, opened.output, opened.returns) == (timeline.ends, timeline.output, timeline.returns)
    assert {**opened.meta, "versions": None} == {**timeline.meta, "versions": None}
    assert opened.meta["versions"]["torch"] == timeline.meta["versions"]["torch"]


def test_the_file_names_no_folder_of_a_machine():
    assert str(Path(joinlab.__file__).parent) not in FILE.read_text("utf-8") and "site-packages" not in FILE.read_text()


def in_a_fresh_kernel(code: str) -> str:
    """What code prints that runs in an event loop, as a cell does."""
    body = "\n".join(f"    {line}" for line in code.splitlines())
    whole = f"import asyncio, sys\nimport joinlab\nasync def cell():\n{body}\nasyncio.run(cell())"
    done = subprocess.run([sys.executable, "-c", whole], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_fresh_kernel_draws_before_torch_is_there():
    shown = in_a_fresh_kernel(
        "from joinlab.notebook import opening\n"
        "bench = joinlab.bench()\n"
        "print(bench.loading, bench.view.timeline is opening.opening().timeline, bench.panel.status['text'])\n"
        "while bench.loading:\n"
        "    await asyncio.sleep(0.01)\n"
        "print(bench.panel.status['text'] == '', 'torch' in sys.modules, bench.panel.verdict['documented'][:10])"
    )
    assert shown.splitlines() == ["True True Loading PyTorch …", "True True Documented"]


def test_a_slider_that_is_moved_and_a_comparison_that_is_asked_for_meanwhile_wait_their_turn():
    shown = in_a_fresh_kernel(
        "bench = joinlab.bench()\n"
        "bench.view.counts = [2, 3]\n"
        "print(bench.loading, bench.view.covered, bench.panel.status['text'])\n"
        "bench.panel.set_state({'comparing': True})\n"
        "print(bench.comparison, bench.panel.status['text'])\n"
        "while bench.loading:\n"
        "    await asyncio.sleep(0.01)\n"
        "print(bench.timeline.meta['inputs'], bench.view.covered, bench.comparison.left.timeline is bench.timeline)"
    )
    assert shown.splitlines() == [
        "True [0, 1] Loading PyTorch …; inputs (2, 3) are next.",
        "None Loading PyTorch …; inputs (2, 3) are next, and kept to compare with.",
        "[2, 3] [] True",
    ]


def test_python_that_asks_for_the_timeline_waits_for_torch():
    shown = in_a_fresh_kernel(
        "bench = joinlab.bench(case=1, inputs=(1, 1))\n"
        "print(bench.timeline.meta['program'], bench.loading)\n"
        "bench.counts = (1, 2)\n"
        "print(bench.timeline.meta['inputs'])"
    )
    assert shown.splitlines() == ["case_1 False", "[1, 2]"]


def test_where_torch_is_loaded_nothing_is_recorded():
    async def cell() -> bool:
        return workbench.bench().loading

    assert asyncio.run(cell()) is False


@pytest.mark.parametrize("options", [{"predict": True}, {"engine": "launched gloo"}, {"inputs": (1, 1)}])
def test_what_was_not_recorded_is_covered_until_torch_is_there(options):
    shown = in_a_fresh_kernel(
        f"bench = joinlab.bench(**{options!r})\n"
        "print(bench.loading, bench.view.covered, bench.view.timeline.calls.height)"
    )
    assert shown == "True [0, 1] 0"


if __name__ == "__main__":
    FILE.write_text(emulated(), "utf-8")
