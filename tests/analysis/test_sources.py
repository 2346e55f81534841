"""Sources: a run has the text and first line of each of the learner's functions that calls came
from."""

from __future__ import annotations

import importlib
import linecache
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

import pytest

import joinlab
from joinlab.analysis.source import SourceTexts
from joinlab.cli.report import run_report
from joinlab.program.sources import (
    MAX_TEXT,
    MAX_TEXTS,
    PIECE,
    other_functions,
    source_at,
    source_of,
)
from joinlab.recorder.rank_log import RankLog, about_calls
from joinlab.timeline import Ending, Timeline
from tests.timelines import Writer

HELPERS = """\
import functools
import torch
import torch.distributed as dist


def average(tensor):
    dist.all_reduce(tensor)
    return tensor / dist.get_world_size()


def logged(function):
    @functools.wraps(function)
    def wrapper(*args):
        dist.broadcast(torch.ones(1), 0)
        return function(*args)

    return wrapper


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, x):
        dist.all_reduce(x.clone())
        return self.weight * x


first = lambda tensor: dist.all_gather([tensor.clone() for _ in range(2)], tensor)
"""

PROGRAM = """\
import torch
import torch.distributed as dist
import far_helpers
from torch.nn.parallel import DistributedDataParallel as DDP


@far_helpers.logged
def step(model, x):
    model(x).sum().backward()


def tell(rank):
    if rank == 0:
        far_helpers.average(torch.ones(1))


def worker(rank, inputs):
    def nested(tensor):
        dist.all_reduce(tensor)

    model = DDP(far_helpers.Net())
    for x in inputs:
        step(model, x)
    [nested(torch.ones(1)) for _ in range(2)]
    far_helpers.first(torch.ones(1))
    made = {"dist": dist}
    exec("def from_nowhere(tensor):\\n    dist.all_reduce(tensor)\\n", made)
    made["from_nowhere"](torch.ones(1))
    tell(rank)
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    folder = tmp_path_factory.mktemp("program")
    (folder / "far_helpers.py").write_text(HELPERS)
    (folder / "far_program.py").write_text(PROGRAM)
    sys.path.insert(0, str(folder))
    yield importlib.import_module("far_program")
    sys.path.remove(str(folder))
    for name in ("far_helpers", "far_program"):
        del sys.modules[name]


@pytest.fixture(scope="module", params=["emulated", "launched"])
def run(request: pytest.FixtureRequest, program: ModuleType) -> Timeline:
    if request.param == "emulated":
        return joinlab.emulate(program.worker, (1, 1), "gloo")
    return joinlab.launch(program.worker, (1, 1), "gloo", on_output=None)


def ways(timeline: Timeline) -> set[tuple[tuple[str, str], ...]]:
    """For each call: file and text of the lines that led to it, innermost first."""
    known = SourceTexts.of(timeline)
    return {
        tuple((line.source.name, line.text) for line in known.lines_of(row))
        for row in timeline.rows("calls")
    }


def test_a_run_carries_every_function_that_its_calls_came_from_once(run: Timeline) -> None:
    known = [
        (Path(one["file"]).name, one["text"].split("(")[0].split("\n")[-1])
        for one in run.meta["functions"]
    ]
    assert run.meta["source"]["text"].startswith("def worker(rank, inputs):")  # type: ignore[index]
    assert known == [
        ("far_helpers.py", "def average"),
        ("far_helpers.py", "@functools.wraps"),
        ("far_helpers.py", "def forward"),
        ("far_helpers.py", "first = lambda tensor: dist.all_gather"),
        ("far_program.py", "def step"),
        ("far_program.py", "def tell"),
    ]


def test_every_call_says_by_which_lines_it_came_about(run: Timeline) -> None:
    def helper(line: str) -> tuple[str, str]:
        return "far_helpers.py", line

    def own(line: str) -> tuple[str, str]:
        return "far_program.py", line

    forward = own("model(x).sum().backward()")
    decorated = (helper("return function(*args)"), own("step(model, x)"))
    assert ways(run) == {
        (own("model = DDP(far_helpers.Net())"),),
        (helper("dist.broadcast(torch.ones(1), 0)"), own("step(model, x)")),
        (helper("dist.all_reduce(x.clone())"), forward, *decorated),
        (forward, *decorated),  # the Reducer's
        (own("dist.all_reduce(tensor)"), own("[nested(torch.ones(1)) for _ in range(2)]")),
        (helper(HELPERS.strip().split("\n")[-1]), own("far_helpers.first(torch.ones(1))")),
        (("<string>", ""), own('made["from_nowhere"](torch.ones(1))')),
        (
            helper("dist.all_reduce(tensor)"),
            own("far_helpers.average(torch.ones(1))"),
            own("tell(rank)"),
        ),
    }


def test_a_call_from_a_text_that_is_not_known_is_named_and_its_callers_are_shown(
    run: Timeline,
) -> None:
    row = next(row for row in run.rows("calls") if (row["call_site"] or "").startswith("<string>"))
    inner, outer = SourceTexts.of(run).lines_of(row)
    assert (inner.source.name, inner.line, inner.text, inner.source.lines) == (
        "<string>",
        2,
        "",
        (),
    )
    assert outer.text == 'made["from_nowhere"](torch.ones(1))'


def test_the_report_tells_the_line_of_the_helper_and_who_called_it(run: Timeline) -> None:
    said = str(run_report(run))
    line = HELPERS.split("\n").index("    dist.all_reduce(tensor)") + 1
    assert f"far_helpers.py:{line}  dist.all_reduce(tensor)" in said
    assert "     called from far_program.py:14  far_helpers.average(torch.ones(1))\n" in said


# ---------------- texts that Python knows


def made(text: str, file: str) -> CodeType:
    return compile(text, file, "exec")


def function(text: str, file: str, name: str) -> FunctionType:
    names: dict[str, FunctionType] = {}
    exec(made(text, file), names)
    return names[name]


def test_a_cell_that_no_file_holds_is_known_in_launched_ranks_too() -> None:
    def cell(number: int, text: str) -> CodeType:
        file = f"/nowhere/ipykernel_1/{number}.py"
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        return made(text, file)

    names: dict[str, object] = {}
    exec(
        cell(
            1, "import torch.distributed as dist\ndef ask(tensor):\n    dist.all_reduce(tensor)\n"
        ),
        names,
    )
    exec(cell(2, "import torch\ndef worker(rank, inputs):\n    ask(torch.ones(1))\n"), names)
    for timeline in (
        joinlab.emulate(names["worker"], (1, 1), "gloo"),  # type: ignore[arg-type]
        joinlab.launch(names["worker"], (1, 1), "gloo", on_output=None),  # type: ignore[arg-type]
    ):
        asked = ("a notebook's cell", "dist.all_reduce(tensor)")
        assert ways(timeline) == {(asked, ("a notebook's cell", "ask(torch.ones(1))"))}


def test_of_what_stands_outside_of_functions_the_statement_is_the_text(tmp_path: Path) -> None:
    text = "import os\n\nfor step in range(2):\n    print(step)\n\nif os.name:\n    print(\n        1)\n"
    (tmp_path / "script.py").write_text(text)
    code = made(text, str(tmp_path / "script.py"))
    assert [
        (found and (found["first_line"], found["text"]))
        for found in (source_at(code, 4), source_at(code, 8))
    ] == [
        (3, "for step in range(2):\n    print(step)\n"),
        (6, "if os.name:\n    print(\n        1)\n"),
    ]
    assert source_at(code, 5) is None


def test_equal_functions_of_two_files_are_told_apart(tmp_path: Path) -> None:
    text = "def same():\n    pass\n"
    for name in ("one.py", "other.py"):
        (tmp_path / name).write_text(text)
        found = source_of(function(text, str(tmp_path / name), "same"))
        assert found == {"file": str(tmp_path / name), "first_line": 1, "text": text}


@pytest.mark.parametrize("now", [None, "def other():\n    pass\n", "", 'def here():\n    """\n'])
def test_a_removed_or_changed_file_gives_no_text(tmp_path: Path, now: str | None) -> None:
    file = tmp_path / "gone.py"
    file.write_text("def here():\n    pass\n")
    code = function(file.read_text(), str(file), "here").__code__
    if now is None:
        file.unlink()
    else:
        file.write_text(now)
    linecache.clearcache()
    assert source_at(code, 2) is None


def test_of_a_long_function_the_lines_around_the_call_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "long.py"
    lines = ["def long():", *(f"    value_{at} = {at + 10**20}" for at in range(900))]
    file.write_text("\n".join(lines))
    code = function(file.read_text(), str(file), "long").__code__
    found = source_at(code, 2 * PIECE + 7)
    assert found is not None and len(found["text"]) <= MAX_TEXT
    assert (
        found["text"].split("\n")[2 * PIECE + 7 - found["first_line"]].strip()
        == lines[2 * PIECE + 6].strip()
    )
    assert source_at(code, 2 * PIECE + 8) == found


def test_all_texts_together_are_bounded_and_inner_functions_left_out() -> None:
    def text(first: int, lines: int, file: str = "train.py") -> dict[str, object]:
        return {"file": file, "first_line": first, "text": "x = 1\n" * lines}

    program, inner = text(10, 20), text(15, 5)
    assert other_functions(program, [inner, program, text(28, 5), text(28, 5)]) == [text(28, 5)]  # type: ignore[arg-type,list-item]
    assert other_functions(None, [inner, text(12, 9)]) == [text(12, 9)]  # type: ignore[arg-type,list-item]
    many = [text(10_000 * at, 1000) for at in range(1, 30)]
    kept = other_functions(None, many)  # type: ignore[arg-type]
    assert 0 < len(kept) < len(many) and sum(len(one["text"]) for one in kept) <= MAX_TEXTS
    assert other_functions(None, [text(1, 9000)]) == []  # type: ignore[list-item]


def test_a_record_tells_its_texts_and_a_damaged_one_is_left_out() -> None:
    log = RankLog(0)
    log.feed(
        b'{"e":"text","f":"a.py","n":3,"x":"def f():\\n"}\n{"e":"text","f":"a.py","n":3,"x":"other"}\n'
    )
    log.feed(b'{"e":"text","f":"a.py","n":"3","x":"def g():\\n"}\n{"e":"text","f":"a.py","n":9}\n')
    assert about_calls([log])["functions"] == [
        {"file": "a.py", "first_line": 3, "text": "def f():\n"}
    ]
    assert log.damaged == 2


# ---------------- lines by stack


def lines(stack: list[str], site: str | None, texts: dict[tuple[str, int], str]) -> list[str]:
    writer = Writer()
    writer.call(0, "all_reduce", call_site=site, stack=stack)
    known = [
        {"file": file, "first_line": first, "text": text} for (file, first), text in texts.items()
    ]
    timeline = writer.timeline([Ending("finished")] * 2, functions=known)
    return [
        f"{one.source.name}:{one.line} {one.text}".strip()
        for one in SourceTexts.of(timeline).lines_of(timeline.rows("calls")[0])
    ]


def test_frames_of_a_dump_are_lines_without_a_text_and_no_file_is_read(tmp_path: Path) -> None:
    here = tmp_path / "train.py"
    here.write_text("secret\n")
    stack = [
        "/opt/conda/lib/python3.10/runpy.py:86 _run_code",
        f"{here}:9 <module>",
        f"{here}:1 main",
        "/opt/conda/lib/python3.10/site-packages/torch/distributed/c10d_logger.py:72 wrapper",
    ]
    assert lines(stack, f"{here}:1", {}) == ["train.py:1"]
    assert lines([f"{here}:3 outer", *stack[2:]], f"{here}:1", {}) == ["train.py:1", "train.py:3"]


def test_a_call_of_the_autograd_engine_has_the_line_of_backward_and_no_callers() -> None:
    texts = {("train.py", 5): "def step():\n    loss.backward()"}
    assert lines([], "train.py:6", texts) == ["train.py:6 loss.backward()"]
    assert lines([], None, texts) == lines([], "no line", texts) == []


def test_the_smallest_text_around_a_line_is_its_own() -> None:
    texts = {
        ("a.py", 1): "if True:\n    def f():\n        g()\n    f()",
        ("a.py", 2): "def f():\n    g()",
    }
    assert lines(["a.py:4 <module>", "a.py:3 f"], "a.py:3", texts) == ["a.py:3 g()", "a.py:4 f()"]
