"""%%ranks: the body of a cell as a program, in a real IPython shell."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

import joinlab
from joinlab.errors import LaunchInterrupted
from joinlab.timeline import EndKind


@pytest.fixture(scope="module")
def shell() -> Iterator[InteractiveShell]:
    InteractiveShell.clear_instance()
    made = InteractiveShell.instance()
    made.run_line_magic("load_ext", "joinlab")
    made.run_cell("import torch, torch.distributed as dist")
    yield made
    made.reset(new_session=False)
    InteractiveShell.clear_instance()


CELL = """%%ranks {}
total = torch.ones(1) * offset + rank
for _ in inputs:
    dist.all_reduce(total)
total.item()"""


def ran(shell: InteractiveShell, cell: str) -> joinlab.Timeline:
    result = shell.run_cell(cell, store_history=True)
    result.raise_error()
    timeline = shell.user_ns["_timeline"]
    assert isinstance(timeline, joinlab.Timeline)
    return timeline


@pytest.mark.parametrize("where", ["", "--emulate gloo", "--launch gloo"])
def test_the_cell_runs_on_every_rank_with_the_notebooks_names(
    shell: InteractiveShell, where: str
) -> None:
    shell.run_cell("offset = 10")
    timeline = ran(shell, CELL.format(f"2 2 {where}"))
    assert shell.user_ns["_ranks"] == [42.0, 42.0]
    assert timeline.meta["backend"] == ("gloo" if where else "nccl")
    assert timeline.meta["engine"] == ("launched" if "launch" in where else "emulated")
    assert "total" not in shell.user_ns
    assert {str(site).rpartition(":")[2] for site in timeline.calls["call_site"]} == {"4"}


def test_without_numbers_it_is_five_and_six_and_the_story_is_that_of_a_function(
    shell: InteractiveShell,
) -> None:
    shell.run_cell("offset = 0")
    number = shell.run_cell(CELL.format(""), store_history=True).execution_count
    timeline = shell.user_ns["_timeline"]
    assert timeline.meta["inputs"] == [5, 6]
    assert timeline.ends[1].pending or timeline.ends[1].kind is EndKind.HUNG
    story = str(joinlab.diagnose(timeline))
    assert f"In [{number}], line 4" in story and "Tried" in story


def test_a_rank_that_raises_is_an_ending_and_the_others_results_come_back(
    shell: InteractiveShell,
) -> None:
    timeline = ran(shell, "%%ranks 1 1\nif rank:\n    raise KeyError('lost')\nrank")
    assert [end.kind for end in timeline.ends] == [EndKind.FINISHED, EndKind.RAISED]
    assert "KeyError: 'lost'" in timeline.ends[1].text
    assert shell.user_ns["_ranks"] == [0, None]


def test_a_cell_prints_the_output_of_each_rank_with_its_rank(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    ran(shell, "%%ranks 1 1\nprint('hello', len(inputs))")
    assert {"rank 0: hello 1", "rank 1: hello 1"} <= set(capsys.readouterr().out.splitlines())


def test_a_cell_of_comments_and_one_with_a_shell_escape(shell: InteractiveShell) -> None:
    assert ran(shell, "%%ranks 1 1\n# nothing yet").calls.is_empty()
    ran(shell, "%%ranks 1 1\nhere = !echo hi\n'é'; (here[0], '''a\nb''')")
    assert shell.user_ns["_ranks"] == [("hi", "a\nb")] * 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("-1 2", "Rank 0 got -1"),
        ("1 2 --emulate nccl --launch gloo", "not allowed with argument --emulate"),
        ("1 2 --launch gloo --era 1.9", "--era needs --emulate"),
        ("one two", "invalid int value"),
        ("1 2 --emulate mpi", "invalid choice"),
    ],
)
def test_a_wrong_line_is_one_sentence(shell: InteractiveShell, line: str, message: str) -> None:
    result = shell.run_cell(f"%%ranks {line}\npass")
    assert isinstance(result.error_in_exec, UsageError)
    assert message in str(result.error_in_exec)


def test_an_interrupted_run_leaves_no_results_of_an_earlier_one(
    shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = ran(shell, "%%ranks 1 1\nrank")
    stopped = dataclasses.replace(done, returns=(None, None))

    def interrupted(*_: object) -> None:
        raise LaunchInterrupted("the run was interrupted", stopped)

    monkeypatch.setattr("joinlab.notebook.magic._run", interrupted)
    with pytest.raises(LaunchInterrupted):
        ran(shell, "%%ranks 1 1\nrank")
    assert (shell.user_ns["_ranks"], shell.user_ns["_timeline"]) == ([None, None], stopped)


def test_a_cell_that_python_cannot_read_is_a_syntax_error_of_that_line(
    shell: InteractiveShell,
) -> None:
    result = shell.run_cell("%%ranks 1 1\nx = 1\nif rank\n    pass")
    assert isinstance(result.error_in_exec, SyntaxError)
    assert result.error_in_exec.lineno == 3
