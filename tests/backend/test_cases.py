"""joinlab.cases: the six programs are the forum script's loops, with the endings that the thread
documents."""

from __future__ import annotations

import ast
import inspect
import runpy
from pathlib import Path

import pytest

import joinlab
from joinlab import cases
from joinlab.cases import CASES
from joinlab.documentation import documented_case
from tests.timelines import DOCUMENTED

NUMBERS = sorted(cases.DOCUMENTED)


def body(number: int) -> list[str]:
    """The case's statements, without its docstring, as text."""
    (function,) = ast.parse(inspect.getsource(CASES[number].program)).body
    assert isinstance(function, ast.FunctionDef)
    return "\n".join(ast.unparse(node) for node in function.body[1:]).splitlines()


# The loops of the forum script. Its page lost the indentation, which follows from the documented
# traces.
LOOPS = {
    1: """with model.join():
    for input in inputs:
        num_inputs += 1
        loss = model(input)
        loss.backward()""",
    2: """for input in inputs:
    num_inputs += 1
    loss = model(input)
    loss.backward()""",
    3: """for input in inputs:
    num_inputs += 1
    loss = model(input)
    loss.backward()
    dist.barrier()""",
    4: """with model.join():
    for input in inputs:
        num_inputs += 1
        loss = model(input)
        loss.backward()
        dist.barrier()""",
    5: """for input in inputs:
    num_inputs += 1
    loss = model(input)
    loss.backward()
dist.barrier()""",
    6: """with model.join():
    for input in inputs:
        num_inputs += 1
        loss = model(input).sum()
        loss.backward()
dist.barrier()""",
}


def test_there_are_six() -> None:
    assert NUMBERS == [1, 2, 3, 4, 5, 6] == sorted(DOCUMENTED)


@pytest.mark.parametrize("number", NUMBERS)
def test_each_program_is_the_forum_script(number: int) -> None:
    assert body(number) == [
        "model = DDP(torch.nn.Linear(1, 1))",
        "num_inputs = 0",
        *LOOPS[number].splitlines(),
        "print(f'Rank {rank} has exhausted all {num_inputs} of its inputs!')",
        "return num_inputs",
    ]


@pytest.mark.parametrize("number", NUMBERS)
def test_what_was_documented_is_what_the_record_says(number: int) -> None:
    case, documented = cases.DOCUMENTED[number], DOCUMENTED[number]
    assert (case.join, case.barrier) == (documented["join"], documented["barrier"])
    asker = documented["reported_by_asker_N5"]
    assert case.asker == (asker["r0"], asker["r1"])
    answers = (
        documented["answer"] if isinstance(documented["answer"], list) else [documented["answer"]]
    )
    assert case.answer == {
        answer["N"]: (answer["end"]["r0"], answer["end"]["r1"]) for answer in answers
    }


@pytest.mark.parametrize("number", NUMBERS)
def test_a_program_is_a_documented_case_by_its_text_and_not_by_its_name(number: int) -> None:
    text = inspect.getsource(CASES[number].program)
    assert documented_case(text) == documented_case(text.rstrip()) == number
    assert documented_case(text.replace("num_inputs += 1", "num_inputs += 2")) is None
    assert documented_case(f"def case_{number}(rank, inputs):\n    dist.barrier()\n") is None


def test_another_program_called_case_4_gets_no_note_of_the_thread(tmp_path: Path) -> None:
    (tmp_path / "cases.py").write_text(
        "import torch, torch.distributed as dist\n\n\n"
        "def case_4(rank, inputs):\n"
        "    for x in inputs:\n"
        "        dist.all_reduce(torch.ones(1))\n"
    )
    mine = runpy.run_path(str(tmp_path / "cases.py"))["case_4"]
    assert "Documented" not in str(joinlab.diagnose(joinlab.emulate(mine, (5, 6))))
    theirs = joinlab.emulate(cases.case_4, (5, 6))
    assert "Documented, on NCCL with PyTorch 1.9" in str(joinlab.diagnose(theirs))


@pytest.mark.parametrize("number", NUMBERS)
def test_the_docstring_says_whether_there_is_join_and_where_the_barrier_is(number: int) -> None:
    case, text = cases.DOCUMENTED[number], CASES[number].program.__doc__ or ""
    assert CASES[number].title == text.rstrip(".")
    assert text.startswith(f"Case {number}: ")
    assert ("no join()" in text or "neither join()" in text) is not case.join
    assert (case.barrier or "barrier") in text


def test_gloo_differs_where_it_was_seen_to_differ() -> None:
    assert [number for number in NUMBERS if cases.DOCUMENTED[number].gloo] == [2, 3, 4, 5]


ENDS = {  # how two ranks end, emulated: on NCCL, on NCCL with the barrier of 1.9, on gloo
    1: ("finished, finished", "finished, finished", "finished, finished"),
    2: ("finished, finished (a call still pending)",) * 2 + ("finished, raised",),
    3: ("finished, hung (proven)", "finished, hung (proven)", "finished, raised"),
    4: ("finished, hung (proven)", "hung (proven), finished", "hung (proven), hung (proven)"),
    5: ("finished, hung (proven)", "finished, hung (proven)", "hung (proven), hung (proven)"),
    6: ("finished, finished", "finished, finished", "finished, finished"),
}
ENGINES = ({"backend": "nccl"}, {"backend": "nccl", "era": "1.9"}, {"backend": "gloo"})


def test_every_case_has_its_endings_here() -> None:
    assert sorted(ENDS) == sorted(CASES)


@pytest.mark.parametrize("engine", range(3))
@pytest.mark.parametrize("number", ENDS)
def test_how_each_case_ends(number: int, engine: int) -> None:
    for n in (2, 5):  # the asker reported 5, on 1.9
        timeline = joinlab.emulate(CASES[number].program, (n, n + 1), **ENGINES[engine])
        assert ", ".join(map(str, timeline.ends)) == ENDS[number][engine]
