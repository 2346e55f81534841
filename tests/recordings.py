"""Recorded launches, in data/, with which every test run compares the emulator.

    python -m tests.recordings --backend nccl      # on a machine with a GPU: writes data/recorded_nccl.json.gz
    python -m tests.recordings --backend gloo      # anywhere: writes data/recorded_gloo.json.gz

runs the six cases and random programs of two ranks, prints a line for each, and counts those with
which the emulator disagrees. tests/launcher/test_recorded_launches.py replays every data/recorded_*.json.gz. Commit
the file even if the emulator disagrees, and then change the emulator.

On NCCL this takes minutes. The file is written at the end; --out names another place for it.

The file is gzipped JSON, one line per recording. It has the calls with their values and times, but
no call sites, stacks, spans or output, and errors only as tests/agreement.py normalizes them, so no
path of the machine.
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import hashlib
import itertools
import json
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import joinlab
from joinlab import cases
from joinlab.errors import LaunchError
from joinlab.program.plain_data import Repr
from joinlab.program.program import Program
from joinlab.timeline import CALL_COLUMNS, Ending, Timeline, timeline_from_rows
from tests.agreement import disagreements, what
from tests.random_programs import Plan, draw, program_of

DATA = Path(__file__).parent.parent / "data"
FORMAT = "joinlab-recordings 1"
COLUMNS = tuple(name for name in CALL_COLUMNS if name not in ("call_site", "stack"))
REDUCING = ("all_reduce", "reduce", "reduce_scatter")
CASE_INPUTS = ((1, 2), (2, 3), (5, 6))
RANDOM_PROGRAMS = {"gloo": 40, "nccl": 100}
NO_PROGRESS_S = {"gloo": 5.0, "nccl": 10.0}


@dataclass(frozen=True, slots=True)
class Subject:
    """A program: one of the six cases, or the random program of two ranks that `seed` draws."""

    inputs: tuple[int, ...]
    case: int | None = None
    seed: int | None = None

    def __str__(self) -> str:
        name = f"random program {self.seed}" if self.case is None else f"case {self.case}"
        return f"{name}, inputs {' and '.join(map(str, self.inputs))}"

    @property
    def program(self) -> Program:
        """As joinlab.launch and joinlab.emulate take it."""
        return (
            program_of(_draw(self.seed))
            if self.seed is not None
            else cases.CASES[self.case or 0].program
        )

    @property
    def plan(self) -> str | None:
        """Tells whether the seed still draws the same program; None for a case."""
        return (
            None
            if self.seed is None
            else hashlib.sha256(repr(_draw(self.seed)).encode()).hexdigest()[:16]
        )


@dataclass(frozen=True, slots=True)
class Recording:
    """One launch: what was run, the `plan` that its seed drew then, and what happened."""

    subject: Subject
    plan: str | None
    timeline: Timeline


@dataclass(frozen=True, slots=True)
class Recordings:
    """One file. `about`: backend, date (of the first launch), gpu, transport and versions."""

    about: dict[str, Any]
    all: tuple[Recording, ...]


def _draw(seed: int) -> Plan:
    return draw(seed, ranks=(2,))


def subjects(backend: str, programs: int | None = None) -> list[Subject]:
    """The programs to record on `backend`: the six cases, and the first random programs that it
    does not refuse."""
    six = [Subject(inputs, case=case) for case in cases.DOCUMENTED for inputs in CASE_INPUTS]
    plans = ((seed, _draw(seed)) for seed in itertools.count())
    drawn = (Subject(plan.counts, seed=seed) for seed, plan in plans if not _refused(backend, plan))
    return [
        *six,
        *itertools.islice(drawn, RANDOM_PROGRAMS[backend] if programs is None else programs),
    ]


def _refused(backend: str, plan: Plan) -> bool:
    """Whether it holds what the backend raises an error for at once: on gloo, an average of whole
    numbers."""
    actions = [
        action
        for part in (plan.before, plan.during, plan.after)
        for lane in part
        for action in lane
    ]
    averages = [one for one in actions if one.op in REDUCING and one.reduce_op == "AVG"]
    return backend == "gloo" and any("int" in one.dtype for one in averages)


# ---------------- the file


def load_recordings(path: Path) -> Recordings:
    """What `record` wrote. Each Timeline can be given to `differences`."""
    about, *lines = [
        json.loads(line) for line in gzip.decompress(path.read_bytes()).decode().splitlines()
    ]
    columns = about.pop("columns", ())
    if about.pop("format", None) != FORMAT or not {*columns} <= {*COLUMNS}:
        raise ValueError(
            f"{path.name} is no file of this version of tests/recordings.py. {how_to_record_anew(path)}"
        )
    return Recordings(about, tuple(_recording(about, columns, line) for line in lines))


def how_to_record_anew(path: Path) -> str:
    """What to do about a file that no longer fits."""
    backend = path.name.removeprefix("recorded_").partition(".")[0]
    return f"To record anew, run: python -m tests.recordings --backend {backend}"


def save_recordings(recordings: Recordings, path: Path) -> None:
    """Write them; the same recordings give the same bytes."""
    first = {"format": FORMAT, "columns": COLUMNS, **recordings.about}
    lines = [json.dumps(line) for line in (first, *map(_line, recordings.all))]
    draft = path.with_name(f"{path.name}.part")
    draft.write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))
    draft.replace(path)


def _line(recording: Recording) -> dict[str, Any]:
    timeline = recording.timeline
    rows = [{**row, "error": what(row["error"])} for row in timeline.calls.rows(named=True)]
    return {
        **asdict(recording.subject),
        "plan": recording.plan,
        "groups": timeline.meta["groups"],
        "ends": [{**asdict(end), "text": what(end.text)} for end in timeline.ends],
        "returns": [repr(value) for value in timeline.returns],
        "calls": [[row[name] for name in COLUMNS] for row in rows],
    }


def _recording(about: dict[str, Any], columns: Sequence[str], line: dict[str, Any]) -> Recording:
    subject = Subject(tuple(line["inputs"]), line["case"], line["seed"])
    rows = [dict(zip(columns, values, strict=True)) for values in line["calls"]]
    meta = {
        **about,
        "program": str(subject),
        "engine": "launched",
        "inputs": subject.inputs,
        "groups": line["groups"],
    }
    ends = [Ending(**end) for end in line["ends"]]
    timeline = timeline_from_rows(
        rows, ends, meta, returns=[Repr(text) for text in line["returns"]]
    )
    return Recording(subject, line["plan"], timeline)


# ---------------- recording


def launch(subject: Subject, backend: str) -> Timeline:
    """Run it as real processes."""
    return joinlab.launch(
        subject.program,
        subject.inputs,
        backend,
        timeout=100.0,
        no_progress=NO_PROGRESS_S[backend],
        on_output=None,
        progress=False,
    )


def record(
    backend: str,
    path: Path,
    wanted: Sequence[Subject],
    run: Callable[[Subject, str], Timeline] = launch,
    tell: Callable[[str], None] = print,
) -> int:
    """Launch what is wanted and write it to `path`; returns with how many of them the emulator
    disagrees."""
    import torch

    gpus = (
        [torch.cuda.get_device_name(gpu) for gpu in range(torch.cuda.device_count())]
        if backend == "nccl"
        else ()
    )
    about: dict[str, Any] = {
        "backend": backend,
        "date": datetime.date.today().isoformat(),
        "gpu": (*gpus, None)[0],
    }
    done = []
    disagreeing = 0
    for subject in wanted:
        timeline = run(subject, backend)
        about |= {
            "transport": timeline.meta["transport"],
            "versions": dict(timeline.meta["versions"]),
        }
        done.append(Recording(subject, subject.plan, timeline))
        found = disagreements(subject.program, timeline)
        disagreeing += bool(found)
        tell(
            f"{subject}: {', '.join(map(str, timeline.ends))}"
            + "".join(f"\n    {line}" for line in found)
        )
    save_recordings(Recordings(about, tuple(done)), path)
    return disagreeing


def main() -> int:
    """Record; the exit status is 1 if the emulator disagrees anywhere."""
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(
        description="Record launches for tests/launcher/test_recorded_launches.py."
    )
    parser.add_argument("--backend", choices=["gloo", "nccl"], required=True)
    parser.add_argument(
        "--programs", type=int, help="how many random programs (gloo: 40, nccl: 100)"
    )
    parser.add_argument("--out", type=Path, help="default: data/recorded_<backend>.json.gz")
    args = parser.parse_args()
    path = args.out or DATA / f"recorded_{args.backend}.json.gz"
    try:
        # loads CUDA's libraries first, which would count as no progress
        launch(Subject((1, 1), case=1), args.backend)
        disagreeing = record(args.backend, path, subjects(args.backend, args.programs))
    except LaunchError as error:
        sys.exit(str(error))
    print(
        f"{path}: {path.stat().st_size:,} bytes; the emulator disagrees with {disagreeing} of what was launched now"
    )
    return int(disagreeing > 0)


if __name__ == "__main__":
    sys.exit(main())
