"""`doctor --gpu`: what joinlab does on this machine's GPUs, check by check.

Nobody who wrote joinlab had GPUs, so each check compares what is real with what was modelled or
read. A line is PASS, FAIL or LOOK: a fact to look at. All of them are in one file, which grows with
each check: a run that was interrupted goes on where it was, and whoever has the file can tell what
to mend. Without a GPU each check says what was done in its place.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from joinlab._version import __version__
from joinlab.cases import CASES
from joinlab.emulator.emulate import emulate
from joinlab.launcher.launcher import launch
from joinlab.timeline import Timeline

FORMAT = "joinlab on GPUs 1"
PASS, FAIL, LOOK, NOT_HERE = "PASS", "FAIL", "LOOK", "NOT HERE"
COUNTS = (1, 2, 5)
LIMIT_S = 180
"""A job that a check starts is ended after so long."""
DEVICE = "cuda"
ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "data" / "recorded_nccl.json.gz"
"""What a checkout keeps of launches on real GPUs."""

Line = tuple[str, str]
Program = Callable[[int, Any], Any]


@dataclass(frozen=True, slots=True)
class GpuCheck:
    """One check: a function that yields its lines.

    gpus     how many it needs
    instead  what was done without a GPU, and where that can be seen
    """

    name: str
    gpus: int
    run: Callable[[], Iterator[Line]]
    instead: str


# ---------------- what the ranks run


def smallest(rank: int, inputs: object) -> tuple[float, str]:
    """An all-reduce and a barrier."""
    x = torch.ones(1)
    dist.all_reduce(x)
    dist.barrier()
    return x.item(), str(x.device)


def sends(rank: int, inputs: object) -> float:
    """A send and a recv that are issued as one."""
    x, y = torch.full((4,), float(rank)), torch.zeros(4)
    ops = [dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, y, 1 - rank)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return y[0].item()


def shuffles(rank: int, inputs: object) -> list[int]:
    """What draws numbers from generators of the CPU."""
    from torch.utils.data import DataLoader, DistributedSampler, random_split

    data: Any = list(range(10))
    sampled: list[int] = list(DistributedSampler(data, 2, rank))
    parts = random_split(data, [7, 3])
    return [len(sampled), len(list(DataLoader(data, shuffle=True))), len(parts[0])]


def stuck(rank: int, inputs: object) -> float:
    """Rank 1 issues calls that nobody meets, of new sizes; its host must not wait for them."""
    dist.all_reduce(torch.ones(1))
    torch.cuda.synchronize()
    began = time.monotonic()
    if rank == 0:
        time.sleep(5)
    else:
        for size in range(1, 40):
            dist.all_reduce(torch.ones(size), async_op=True).wait()
    return time.monotonic() - began


def timed(rank: int, inputs: object) -> list[float]:
    """Milliseconds of ten all-reduces of 64 MiB, between two events."""
    x = torch.ones(1 << 24)
    dist.all_reduce(x)
    torch.cuda.synchronize()
    took = []
    for _ in range(10):
        begin: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        begin.record()
        dist.all_reduce(x)
        end.record()
        torch.cuda.synchronize()
        took.append(begin.elapsed_time(end))
    return took


SAY = """
import os

def say(*words):
    os.write(1, (" ".join(map(str, ("FACT", *words))) + "\\n").encode())
"""
"""How a job's rank tells a fact: in one write, since all ranks share a pipe."""

ALONE = """
import os, time, torch, torch.distributed as dist
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
group, x = dist.group.WORLD, torch.ones(1, device=DEVICE)
dist.all_reduce(x)
for name, options, call in (
    ("all_reduce", dist.AllreduceOptions(), lambda: group.allreduce([x], options)),
    ("barrier", dist.BarrierOptions(), lambda: group.barrier(options)),
):
    for asynchronous in (True, False):
        options.asyncOp = asynchronous
        if name == "barrier":
            options.device = torch.device("cuda", rank)
        work = call()
        if rank == 0:
            say(name, "async_op=" + str(asynchronous), "gives", type(work).__name__)
        if work is not None:
            work.wait()
dist.barrier()
if rank == 1:
    time.sleep(2)
began = time.monotonic()
options = dist.BarrierOptions()
options.asyncOp, options.device = False, torch.device("cuda", rank)
work = group.barrier(options)
if rank == 0:
    waits = "inside the call" if time.monotonic() - began > 1 else "not inside the call"
    say("a synchronous barrier waits", waits)
if work is not None:
    work.wait()
dist.destroy_process_group()
"""
"""What the recorder takes for granted of torch's own group, without joinlab."""

JOB = """
import os, torch, torch.distributed as dist
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
RECORD
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))

def report(name, call):
    try:
        found = call()
    except BaseException as error:
        found = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    say(f"rank {rank}, {name}:", found)

def in_a_subgroup():
    group = dist.new_group([0, 1])
    dist.all_reduce(x, group=group)
    return x.tolist()

def split():
    group = dist.split_group(split_ranks=[[0, 1]])
    dist.all_reduce(x, group=group)
    return x.tolist()

def coalesced():
    with dist._coalescing_manager():
        dist.all_reduce(x)
        dist.all_reduce(x.clone())
    return x.tolist()

def in_a_graph():
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        dist.all_reduce(x)
    graph.replay()
    torch.cuda.synchronize()
    return x.tolist()

x = torch.ones(2, device=DEVICE)
report("all_reduce", lambda: dist.all_reduce(x) or x.tolist())
report("barrier", dist.barrier)
report("new_group", in_a_subgroup)
report("split_group", split)
report("coalesced", coalesced)
report("CUDA graph", in_a_graph)
dist.destroy_process_group()
"""


# ---------------- the checks


def _machine() -> Iterator[Line]:
    for words in (
        ["-L"],
        ["topo", "-m"],
        ["--query-gpu=compute_mode,driver_version", "--format=csv"],
    ):
        yield LOOK, _output(["nvidia-smi", *words])
    nccl = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    shared = os.statvfs("/dev/shm")
    free = shared.f_bavail * shared.f_frsize >> 20
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    yield LOOK, f"NCCL {nccl}, CUDA_VISIBLE_DEVICES={seen}, {free} MiB free in /dev/shm"


def _torch_alone() -> Iterator[Line]:
    expected = {
        "all_reduce async_op=True gives Work",
        "all_reduce async_op=False gives NoneType",
        "barrier async_op=True gives Work",
        "barrier async_op=False gives NoneType",
        "a synchronous barrier waits inside the call",
    }
    facts, errors = _torchrun(ALONE)
    for fact in facts:
        yield PASS if fact in expected else LOOK, fact
    if len(facts) < len(expected):
        yield FAIL, f"only {len(facts)} of {len(expected)} facts: {errors}"


def _smallest() -> Iterator[Line]:
    timeline = _launched(smallest, (1, 1))
    yield _is("endings", _ends(timeline), ["finished", "finished"])
    yield _is("returned", timeline.returns, ((2.0, "cuda:0"), (2.0, "cuda:1")))
    yield from _all_complete(timeline)
    yield _is("calls without their begin", timeline.calls["started_ns"].null_count(), 0)
    reduced = timeline.calls.filter(timeline.calls["origin"] == "all-reduce")
    yield _is("values that came out", reduced["value_out"].to_list(), ["[[2.0]]", "[[2.0]]"])
    yield _is("output that the program did not print", list(filter(None, timeline.output)), [])


def _six_cases() -> Iterator[Line]:
    for n in COUNTS:
        for number, case in CASES.items():
            counts = (n, n + 1)
            real, modelled = _launched(case.program, counts), emulate(case.program, counts)
            if case.documentation:
                thread = case.documentation.ends(counts)
            else:
                thread = None
            text = (
                f"case {number} with {n} and {n + 1} inputs: real {' / '.join(_ends(real))}, modelled "
                f"{' / '.join(_ends(modelled))}, documented {' / '.join(thread) if thread else 'nothing'}"
            )
            alike = _ends(real) == _ends(modelled)
            yield PASS if alike else FAIL, text
            if alike and real.calls["origin"].to_list() != modelled.calls["origin"].to_list():
                yield LOOK, f"case {number}: the calls differ from the modelled ones"


def _values() -> Iterator[Line]:
    real, modelled = _launched(CASES[1].program, (2, 3)), emulate(CASES[1].program, (2, 3))
    for column in ("origin", "value_in", "value_out"):
        pair = []
        for run in (real, modelled):
            pair.append(
                run.calls.sort("rank", "group", "seq").filter(
                    ~run.calls["origin"].str.contains("forward")
                )
            )
        found, expected = (calls[column].to_list() for calls in pair)
        yield _is(f"case 1, {column} of each call", found, expected, LOOK)


def _sends() -> Iterator[Line]:
    timeline = _launched(sends, (1, 1))
    yield _is("returned", timeline.returns, (1.0, 0.0))
    yield from _all_complete(timeline)


def _loaders() -> Iterator[Line]:
    yield _is("returned", _launched(shuffles, (1, 1)).returns, ([5, 10, 7], [5, 10, 7]))


def _not_blocked() -> Iterator[Line]:
    timeline = _launched(stuck, (1, 1))
    seconds = timeline.returns[1]
    went_on = isinstance(seconds, float) and seconds < 2
    yield (
        PASS if went_on else FAIL,
        f"behind a stuck kernel 39 recorded calls took rank 1's host {seconds} s (below 2: it never waited); ends "
        f"{' / '.join(_ends(timeline))}",
    )


def _times() -> Iterator[Line]:
    timeline = _launched(timed, (1, 1))
    calls = timeline.calls.filter(timeline.calls["rank"] == 0).sort("seq")[1:11]
    ours = ((calls["completed_ns"] - calls["started_ns"]) / 1e6).to_list()
    theirs = timeline.returns[0] or []
    close = bool(ours) and all(
        own is not None and abs(own - other) < 0.05 + 0.02 * other
        for own, other in zip(ours, theirs, strict=False)
    )
    yield (
        PASS if close else FAIL,
        f"ms by events of the program {_ms(theirs)}, by the recorder {_ms(ours)}",
    )


def _two_at_once() -> Iterator[Line]:
    runs: list[Timeline] = []
    threads = [
        threading.Thread(target=lambda: runs.append(_launched(CASES[1].program, (2, 3))))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    yield _is("endings of two launches at once", list(map(_ends, runs)), [["finished"] * 2] * 2)


def _one_gpu() -> Iterator[Line]:
    """In a fresh process that sees one GPU, which two ranks share."""
    text = (
        "import joinlab; run = joinlab.launch(joinlab.cases.case_1, (2, 3), 'nccl', on_output=None, progress=False); "
        "print('FACT', run.meta['transport'], [str(end) for end in run.ends])"
    )
    output = _output([sys.executable, "-c", text], CUDA_VISIBLE_DEVICES="0")
    good = "FACT" in output and output.count("'finished'") == 2
    yield PASS if good else FAIL, f"two ranks on one GPU: {output[-600:]}"


def _recorded_job() -> Iterator[Line]:
    alone, _ = _torchrun(JOB.replace("RECORD", ""))
    with tempfile.TemporaryDirectory() as folder:
        recorded, errors = _torchrun(
            JOB.replace("RECORD", f"import joinlab; joinlab.record({folder + '/runs'!r})")
        )
    for fact in alone:
        yield PASS if fact in recorded else FAIL, f"recorded as alone: {fact}"
    for fact in recorded:
        if fact not in alone:
            yield FAIL, f"recorded, and not alone: {fact}"
    if not alone or not recorded:
        yield FAIL, errors


def _tests() -> Iterator[Line]:
    words = [
        "-p",
        "no:nbmake",
        "-q",
        "-m",
        "gpu",
        "-n0",
        "tests/nccl/test_nccl_launch.py",
        "tests/jobs/test_record.py",
    ]
    output = _output([sys.executable, "-m", "pytest", *words], cwd=ROOT)
    yield PASS if " passed" in output and "failed" not in output else FAIL, output[-600:]


def _recordings() -> Iterator[Line]:
    words = ["-m", "tests.recordings", "--backend", "nccl", "--out", str(RECORDED)]
    output = _output([sys.executable, *words], cwd=ROOT, limit_s=900)
    yield LOOK if RECORDED.exists() else FAIL, output[-600:]


_MODEL = "joinlab's model"
_STAND_IN = "the stand-in for ProcessGroupNCCL (tests/standin)"
_READ = "read in ProcessGroupNCCL.cpp and distributed_c10d.py"

CHECKS = (
    GpuCheck("machine", 1, _machine, "there is nothing to say"),
    GpuCheck(
        "torch alone", 2, _torch_alone, f"what a synchronous call and a barrier give was {_READ}"
    ),
    GpuCheck("smallest launch", 2, _smallest, f"an all-reduce and a barrier ran over {_STAND_IN}"),
    GpuCheck(
        "six cases", 2, _six_cases, f"they end over {_STAND_IN} as in {_MODEL}, with nine counts"
    ),
    GpuCheck(
        "values",
        2,
        _values,
        f"what comes out is {_MODEL}'s, checked with NCCL's own kernels on a CPU",
    ),
    GpuCheck("sends", 2, _sends, f"batches ran over {_STAND_IN}"),
    GpuCheck("loaders", 2, _loaders, "a default device without memory was used in place of a GPU"),
    GpuCheck("not blocked", 2, _not_blocked, "events and pinned memory were in a test's hands"),
    GpuCheck("times", 2, _times, "events and their clock were in a test's hands"),
    GpuCheck("two at once", 2, _two_at_once, "two launches at once ran on gloo"),
    GpuCheck(
        "two ranks on one GPU",
        1,
        _one_gpu,
        "NCCL's own refusal and its exceptions were read in its source",
    ),
    GpuCheck(
        "recorded job",
        2,
        _recorded_job,
        f"five jobs ran over {_STAND_IN}; CUDA graphs were only read about",
    ),
    GpuCheck(
        "tests", 1, _tests, f"tests marked gpu were skipped; their programs ran over {_STAND_IN}"
    ),
    GpuCheck(
        "recordings",
        1,
        _recordings,
        "there is no data/recorded_nccl.json.gz; data/recorded_gloo.json.gz is real",
    ),
)


# ---------------- running them


def check_gpus(
    path: Path, only: Sequence[str] = (), again: bool = False, tell: Callable[[str], None] = print
) -> int:
    """Run the checks that this machine can run and `path` does not have yet; the exit code."""
    gpus = torch.cuda.device_count() if dist.is_nccl_available() else 0
    about = {"format": FORMAT, **_about()}
    report: dict[str, Any] = {} if again or not path.exists() else json.loads(path.read_text())
    if {name: report.get(name) for name in about} != about:  # another machine, or other versions
        report = {**about, "checks": {}}
    for check in CHECKS:
        if only and not any(word in check.name for word in only):
            continue
        tell(f"== {check.name}")
        lines = report["checks"].get(check.name)
        if lines is None:
            reason = _missing(check, gpus)
            if reason:
                lines = [(NOT_HERE, reason)]
            else:
                lines = list(_report(check))
            if not reason:
                report["checks"][check.name] = lines
                path.write_text(json.dumps(report, indent=1))
        for kind, text in lines:
            tell(f"   {kind:8} {text}".replace("\n", "\n            "))
    if report["checks"]:
        tell(f"All of it is in {path}. Please attach that file to an issue: it shows what to mend.")
    else:
        tell("Whoever has a GPU: run this, and attach the file that it writes to an issue.")
    return int(any(kind == FAIL for lines in report["checks"].values() for kind, _ in lines))


def _missing(check: GpuCheck, gpus: int) -> str:
    if gpus >= check.gpus:
        from_checkout = check.run in (_tests, _recordings)
        if from_checkout and not (ROOT / "tests").is_dir():
            return "it needs a checkout of the project, with its tests"
        return ""
    if not gpus:
        has = "no GPU that PyTorch sees"
    else:
        has = "one GPU, and this takes two"
    return f"{has}. Instead: {check.instead}."


def _report(check: GpuCheck) -> Iterator[Line]:
    began = time.monotonic()
    try:
        yield from check.run()
    except Exception as error:
        yield FAIL, f"{type(error).__name__}: {error}"
    yield LOOK, f"{time.monotonic() - began:.0f} s"


def _about() -> dict[str, object]:
    gpus = list(map(torch.cuda.get_device_name, range(torch.cuda.device_count())))
    return {"joinlab": __version__, "torch": str(torch.__version__), "gpus": gpus}


def _launched(program: Program, counts: tuple[int, ...]) -> Timeline:
    return launch(program, counts, "nccl", on_output=None, progress=False, timeout=LIMIT_S)


def _ends(timeline: Timeline) -> list[str]:
    return [str(end).partition(":")[0] for end in timeline.ends]


def _all_complete(timeline: Timeline) -> Iterator[Line]:
    yield _is("errors of calls", timeline.calls["error"].drop_nulls().to_list(), [])
    yield _is("calls never seen complete", timeline.calls["completed_ns"].null_count(), 0)


def _is(what: str, found: object, expected: object, otherwise: str = FAIL) -> Line:
    if found == expected:
        return PASS, f"{what}: as expected"
    return otherwise, f"{what}: {str(found)[:400]}, expected {str(expected)[:400]}"


def _ms(values: Iterable[float | None]) -> str:
    return ", ".join("?" if value is None else f"{value:.3f}" for value in values)


def _torchrun(text: str) -> tuple[list[str], str]:
    """What two ranks print behind FACT, and the end of their errors."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "job.py"
        script.write_text(SAY + text.replace("DEVICE", repr(DEVICE)))
        words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
        output = _output([sys.executable, *words])
    facts = [line.removeprefix("FACT ") for line in output.splitlines() if line.startswith("FACT ")]
    return sorted(facts), output[-600:]


def _output(
    words: Sequence[str], cwd: Path | None = None, limit_s: float = LIMIT_S, **environ: str
) -> str:
    """What a command prints to both streams."""
    try:
        done = subprocess.run(
            words,
            cwd=cwd,
            env={**os.environ, **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{type(error).__name__}: {error}"
    return done.stdout.strip()
