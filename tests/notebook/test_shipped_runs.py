"""The emulations that ship with the package agree with the emulator, and are shown while torch
loads.

After an intended change, python -m tests.notebook.test_shipped_runs rewrites them, with the fixes tried (ten
minutes).
"""

from __future__ import annotations

import asyncio
import gc
import json
import lzma
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle, product
from pathlib import Path

import pytest

import joinlab
from joinlab import cases
from joinlab.emulator import shipped_runs
from joinlab.emulator.warm_up import warm_up
from joinlab.notebook import bench as workbench
from joinlab.picture.first_screen import first_screen
from joinlab.timeline import Ending, Timeline
from tests.nightly import sampled

FOLDER = Path(shipped_runs.__file__).with_name("shipped")
COUNTS = list(product(range(shipped_runs.MOST + 1), repeat=2))


def titles() -> dict[int, str]:
    return {number: one.title for number, one in cases.CASES.items()}


def emulated(case: int, inputs: tuple[int, int], backend: str, era: str) -> Timeline:
    return joinlab.emulate(cases.CASES[case].program, inputs, backend, era=era)


def packed(titles: Mapping[int, str], timelines: Sequence[Timeline]) -> bytes:
    """A file of these Timelines, in the order of their positions."""
    text = "\n".join([json.dumps(titles), *map(written, timelines)])
    for name, folder in shipped_runs.folders().items():
        text = text.replace(json.dumps(folder)[1:-1], name)
    return lzma.compress(text.encode())


def written(timeline: Timeline) -> str:
    ends = []
    for end in timeline.ends:
        ends.append({name: getattr(end, name) for name in Ending.__dataclass_fields__})
    data = {
        "meta": timeline.meta,
        "ends": ends,
        "output": list(timeline.output),
        "returns": list(timeline.returns),
        "calls": list(map(without_nothing, timeline.rows("calls"))),
        "spans": list(map(without_nothing, timeline.rows("spans"))),
    }
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def without_nothing(row: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in row.items() if value is not None}


def without_versions(timeline: Timeline) -> dict[str, object]:
    return {**timeline.meta, "versions": None, "parting": None, "fixes": None}


def unquoted(output: tuple[str, ...]) -> list[list[str]]:
    """Without the source in tracebacks: each Python quotes more of it."""
    return [[line for line in text.splitlines() if not line.startswith("    ")] for text in output]


@pytest.mark.parametrize(("backend", "era"), shipped_runs.FILES)
@pytest.mark.parametrize("case", cases.CASES)
def test_a_sample_of_what_ships_is_what_the_emulator_says(case, backend, era):
    for inputs in ((5, 6), (case % 9, 8 - case % 9), (8, 8), (0, 1)):
        fresh, found = (
            emulated(case, inputs, backend, era),
            shipped_runs.shipped_run(case, inputs, backend, era),
        )
        assert found.calls.equals(fresh.calls) and found.spans.equals(fresh.spans)
        assert (found.ends, found.returns) == (fresh.ends, fresh.returns)
        assert unquoted(found.output) == unquoted(fresh.output)
        assert without_versions(found) == without_versions(fresh)


@pytest.mark.parametrize(("case", "at"), [*zip(cases.CASES, cycle(shipped_runs.FILES))])
def test_what_ships_tells_the_story_of_a_live_kernel_and_its_fix(case, at):
    # a widget of another test, if freed in a rank's thread, can swallow the end of that rank
    gc.collect()
    fresh, found = emulated(case, (2, 3), *at), shipped_runs.shipped_run(case, (2, 3), *at)
    assert not found.live.traces and str(joinlab.diagnose(found)) == str(joinlab.diagnose(fresh))


def test_every_position_of_the_cases_ships_and_no_other():
    assert shipped_runs.titles() == titles()
    for case, inputs in product(cases.CASES, COUNTS):
        assert shipped_runs.shipped_run(case, inputs).meta["inputs"] == list(inputs)
    for case, inputs, options in (
        (99, (1, 1), {}),
        (4, (9, 1), {}),
        (4, (1, 1, 1), {}),
        (4, (1, 1), {"era": "1.10"}),
    ):
        assert shipped_runs.shipped_run(case, inputs, **options) is None


def tones(runs: Iterable[Timeline]) -> str:
    """How each of them ends, as `shipped_runs.endings` has it."""
    return "".join(first_screen(run).tone[0] for run in runs)


@pytest.mark.parametrize(
    ("backend", "era", "share"),
    sampled(
        ((*at, share) for at in shipped_runs.FILES for share in range(7)), lambda row: row[2] == 0
    ),
)
def test_the_ending_of_every_run_ships_in_a_table(backend, era, share):
    """A seventh of the positions of each case: 7 divides neither their number nor a row's."""
    runs = (
        shipped_runs.shipped_run(case, inputs, backend, era)
        for case, inputs in [*product(cases.CASES, COUNTS)][share::7]
    )
    table = shipped_runs.endings(backend, era)
    assert len(table) == len(cases.CASES) * len(COUNTS)
    assert table[share::7] == tones(runs)
    assert set(table) == ({"g", "b"} if backend == "gloo" else set("gwb"))


def test_the_files_are_small_and_name_no_folder_of_a_machine():
    for file in FOLDER.glob("*.xz"):
        text = lzma.decompress(file.read_bytes()).decode()
        assert file.stat().st_size < 50_000, file
        assert str(Path(joinlab.__file__).parent) not in text and "site-packages" not in text


def in_a_fresh_kernel(code: str) -> str:
    """What code prints that runs in an event loop, as a cell does."""
    body = "\n".join(f"    {line}" for line in code.splitlines())
    whole = f"import asyncio, sys\nimport joinlab\nasync def cell():\n{body}\nasyncio.run(cell())"
    done = subprocess.run(
        [sys.executable, "-c", whole], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_fresh_kernel_draws_and_follows_its_sliders_before_torch_is_there():
    shown = in_a_fresh_kernel(
        "bench = joinlab.bench()\n"
        "print(bench.loading, [str(end) for end in bench.timeline.ends])\n"
        "for bench.counts, bench.case, bench.engine in (\n"
        "    ([2, 3], 2, 'emulated nccl'), ([8, 0], 6, 'emulated gloo'), ([1, 1], 1, 'emulated nccl 1.9')):\n"
        "    print(bench.loading, bench.timeline.meta['inputs'], bench.timeline.meta['backend'], bench.covered)\n"
        "while bench.loading:\n"
        "    await asyncio.sleep(0.01)\n"
        "print(bench.status['text'] == '', 'torch' in sys.modules, bench.timeline.meta['inputs'])"
    )
    assert shown.splitlines() == [
        "True ['finished', 'hung (proven)']",
        "True [2, 3] nccl []",
        "True [8, 0] gloo []",
        "True [1, 1] nccl []",
        "True True [1, 1]",
    ]


def test_what_needs_torch_waits_its_turn_and_what_is_shown_stays():
    shown = in_a_fresh_kernel(
        "bench = joinlab.bench()\n"
        "bench.counts = [2, 3, 3]\n"
        "print(bench.loading, bench.covered, bench._seen.meta['inputs'], bench.status['text'])\n"
        "while bench.loading:\n"
        "    await asyncio.sleep(0.01)\n"
        "print(bench.timeline.meta['inputs'], bench.covered)"
    )
    assert shown.splitlines() == [
        "True [] [5, 6] Loading PyTorch …; inputs (2, 3, 3) are next.",
        "[2, 3, 3] []",
    ]


def test_python_that_asks_for_the_timeline_waits_for_torch():
    shown = in_a_fresh_kernel(
        "bench = joinlab.bench(case=1, inputs=(1, 9))\n"
        "print(bench.timeline.meta['program'], bench.loading)\n"
        "bench.counts = (1, 2)\n"
        "print(bench.timeline.meta['inputs'])"
    )
    assert shown.splitlines() == ["case_1 False", "[1, 2]"]


def test_what_is_written_is_read_as_it_was():
    run = emulated(4, (2, 3), "nccl", "today")
    title, line = lzma.decompress(packed(titles(), [run])).decode().splitlines()
    assert json.loads(title)["4"] == cases.CASES[4].title
    assert shipped_runs._read(line).calls.equals(run.calls)


def test_where_torch_is_loaded_nothing_is_recorded():
    async def cell() -> bool:
        return workbench.bench().loading

    warm_up()
    assert asyncio.run(cell()) is False


@pytest.mark.parametrize(
    "options", [{"predict": True}, {"engine": "launched gloo"}, {"inputs": (1, 1, 1)}]
)
def test_what_was_not_recorded_is_covered_until_torch_is_there(options):
    shown = in_a_fresh_kernel(
        f"bench = joinlab.bench(**{options!r})\n"
        "print(bench.loading, len(bench.covered) == len(bench.counts), bench._seen.calls.height)"
    )
    assert shown == "True True 0"


if __name__ == "__main__":
    table = {}
    for (backend, era), name in shipped_runs.FILES.items():
        runs = [emulated(case, inputs, backend, era) for case in cases.CASES for inputs in COUNTS]
        for run in runs:
            joinlab.diagnose(run)
        (FOLDER / f"{name}.xz").write_bytes(packed(titles(), runs))
        table[name] = tones(runs)
    (FOLDER / "endings.json").write_text(json.dumps(table, indent=0) + "\n")
