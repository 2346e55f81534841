"""python -m joinlab: what it prints, what it writes, and its exit codes."""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

import joinlab
from joinlab.cases import CASES, Case
from joinlab.cli import doctor, keeping, report
from joinlab.cli import main as cli
from joinlab.cli.program import load_program
from joinlab.errors import LaunchError, LaunchInterrupted, ProgramError
from joinlab.story.judge import diagnose
from joinlab.timeline import Ending, EndKind, Timeline, timeline_from_rows
from tests.picture.test_page import data_of
from tests.random_timelines import timelines
from tests.timelines import Writer

HUNG = Ending(EndKind.HUNG, call=3, group="0", proven=True)
FINISHED = Ending(EndKind.FINISHED)


def timeline(ends=(HUNG, HUNG), meta=(), ranks: int = 2, program: str = "case_4") -> Timeline:
    """Ranks that go together until the last call, where rank 0 issues something else; nobody
    completes it."""
    writer = Writer(ranks)
    for rank in range(ranks):
        for what, input in (("construction", None), ("forward() 1", 0), ("backward()", 0)):
            writer.call(rank, "all_reduce", f"all-reduce (DDP {what})", input=input)
        op, origin = (
            ("barrier", "barrier") if rank else ("all_reduce", "all-reduce (DDP forward() 1)")
        )
        writer.call(rank, op, origin, input=int(rank == 0), done=False)
    return writer.timeline(ends, **{"program": program, "inputs": [5, 6][:ranks], **dict(meta)})


class Launches:
    """Stands in for joinlab.launch: keeps what it was asked, and answers with `answer`."""

    def __init__(self, answer: Timeline | BaseException) -> None:
        self.answer = answer
        self.asked: list[tuple] = []

    def __call__(self, program, inputs=(5, 6), backend=None, **options) -> Timeline:
        self.asked.append((program, inputs, backend, options))
        if isinstance(self.answer, BaseException):
            raise self.answer
        return timeline_from_rows(
            self.answer.calls.to_dicts(),
            self.answer.ends,
            {**self.answer.meta, "inputs": list(inputs)},
        )


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch):
    def answer(with_what: Timeline | BaseException) -> Launches:
        fake = Launches(with_what)
        monkeypatch.setattr("joinlab.launcher.launcher.launch", fake)
        return fake

    return answer


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> list:
    """Stands in for joinlab.write_html; what it was given."""
    given: list = []
    monkeypatch.setattr(
        "joinlab.picture.page.write_html", lambda timelines, path: given.append((timelines, path))
    )
    return given


@pytest.fixture(autouse=True)
def path_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))


def flat(text: str) -> str:
    """The words that were printed, however the lines were broken."""
    return " ".join(text.split())


# ---- cases


def test_cases_says_how_nccl_ends_each_beside_what_runs_here(launches, capsys) -> None:
    fake = launches(timeline())
    assert cli.main(["cases"]) == 0
    assert [(program, inputs) for program, inputs, _, _ in fake.asked] == [
        (CASES[number].program, (5, 6)) for number in CASES
    ]
    lines = capsys.readouterr().out.splitlines()
    assert "1 join(), no barrier                 = both finish   both finish   both hang" in lines
    assert "2 no join(), no barrier              = both finish*  both finish*  both hang" in lines
    assert "4 join(), barrier inside the loop    = rank 0 hangs  rank 1 hangs  both hang" in lines
    assert [line[0] for line in lines if line[:1].isdigit()] == [str(number) for number in CASES]
    assert all(len(line) <= 80 and line == line.rstrip() for line in lines)
    notes = flat("\n".join(lines))
    assert notes.count("cases 4 and 5: On NCCL the barrier is an all-reduce like any other") == 1
    assert (
        "= as the forum thread documents it" in notes
        and "* a rank finished, and left a call pending" in notes
    )


def test_cases_names_what_the_thread_saw_and_the_model_does_not_show(launches, capsys) -> None:
    launches(timeline())
    cli.main(["cases", "--n", "1", "2", "--only", "2", "5"])
    said = flat(capsys.readouterr().out)
    assert "≠ case 5, 1 and 2 inputs, documented: rank 0 finishes; rank 1 hangs" in said
    assert (
        "~ case 2, 2 and 3 inputs, documented: rank 0 finishes; rank 1 finishes its loop, then"
        in said
    )


def test_cases_on_nccl_does_not_explain_gloo(launches, capsys) -> None:
    launches(timeline(meta={"backend": "nccl"}))
    cli.main(["cases", "--only", "4", "--backend", "nccl"])
    assert "On gloo" not in capsys.readouterr().out


def test_a_case_with_a_long_title_stays_in_its_column(launches, capsys, monkeypatch) -> None:
    def case_7(rank, inputs):
        """Case 7: a title of its own that is longer than any column of the table could ever be."""

    launches(timeline())
    monkeypatch.setitem(CASES, 7, Case(case_7))
    cli.main(["cases", "--only", "7"])
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("7"))
    assert line == "7 a title of its own that is longer…   both finish   both finish   both hang"


def test_cases_takes_several_n_and_some_cases(launches, capsys, tmp_path: Path) -> None:
    fake = launches(timeline())
    page = tmp_path / "new folder" / "cases.html"
    assert cli.main(["cases", "--n", "1", "2", "1", "--only", "6", "1", "--html", str(page)]) == 0
    asked = [(program.__name__, inputs) for program, inputs, _, _ in fake.asked]
    assert asked == [("case_1", (1, 2)), ("case_6", (1, 2)), ("case_1", (2, 3)), ("case_6", (2, 3))]
    out, text = capsys.readouterr().out, page.read_text("utf-8")
    assert "rank 0: 1 input, rank 1: 2" in out and "rank 0: 2 inputs, rank 1: 3" in out
    assert f"wrote {page}" in out
    assert text.count('type="radio"') == 6 and "gloo, run here" in text
    assert list(data_of(text)["gallery"]["runs"]) == ["1,2", "2,3"]


def test_an_unknown_case_is_refused(launches, capsys) -> None:
    fake = launches(timeline())
    assert cli.main(["cases", "--only", "4", "99"]) == 2
    assert (
        capsys.readouterr().err
        == f"joinlab: there is no case 99; there are {', '.join(map(str, CASES))}\n"
    )
    assert fake.asked == []


# ---- run


PROGRAM = '''
import neighbour

def worker(rank, inputs):
    """A program."""
    return neighbour.answer()

def other(rank, inputs):
    pass

def fails(rank, inputs):
    1 / 0

def one_syncs(rank, inputs):
    import torch.distributed as dist
    if rank == 0:
        dist.barrier()

if __name__ == "__main__":
    raise SystemExit("the guard is not to be run")
'''


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "neighbour.py").write_text("def answer(): return 42\n")
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    return path


@pytest.mark.parametrize("place", ["train.py", "train", "./train.py"])
def test_a_program_is_found_in_a_file_and_in_a_module(program: Path, place: str) -> None:
    worker = load_program(f"{place}:worker")
    assert worker(0, []) == 42
    # sent whole, not as a name to be imported
    assert cloudpickle.dumps(worker).count(b"A program.") == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train.py", "names no function: write FILE:FUNCTION"),
        (":worker", "names no function"),
        ("train.py:", "names no function"),
        ("none.py:worker", "there is no file none.py"),
        (".:worker", "there is no file ."),
        ("no_such_module:worker", "no_such_module cannot be imported: ModuleNotFoundError"),
        ("train.py:wroker", "train.py has no function 'wroker'; it has worker, other, fails"),
        ("broken.py:worker", "broken.py cannot be imported: SyntaxError"),
        ("leaves.py:worker", "leaves.py cannot be imported: SystemExit: 3"),
    ],
)
def test_a_program_that_is_not_there(program: Path, text: str, message: str) -> None:
    (program.parent / "broken.py").write_text("def worker(:\n")
    (program.parent / "leaves.py").write_text("raise SystemExit(3)\n")
    with pytest.raises(ProgramError) as caught:
        load_program(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("ends", "code"),
    [
        ((FINISHED, FINISHED), 0),
        ((FINISHED, Ending(EndKind.FINISHED, pending=True, call=3, group="0")), 0),
        ((FINISHED, HUNG), 1),
        ((FINISHED, Ending(EndKind.RAISED, text="ValueError: x")), 1),
        ((Ending(EndKind.KILLED, text="signal 9"), FINISHED), 1),
    ],
)
def test_run_exits_with_0_only_if_every_rank_finished(
    launches, program, capsys, ends, code: int
) -> None:
    launches(timeline(ends))
    assert cli.main(["run", "train.py:worker"]) == code
    out = flat(capsys.readouterr().out)
    for rank, end in enumerate(ends):
        assert end.text in out
        assert f"rank {rank} " in out or "ranks 0, 1 " in out


def test_run_hands_its_options_to_launch(launches, program) -> None:
    fake = launches(timeline())
    options = [
        "--inputs",
        "3,0,2",
        "--backend",
        "gloo",
        "--seed",
        "7",
        "--timeout",
        "9",
        "--no-progress",
        "0.5",
    ]
    cli.main(["run", "train.py:worker", *options])
    cli.main(["run", "train.py:other"])
    (worker, *asked), (_, *by_default) = fake.asked
    assert worker.__name__ == "worker"
    assert asked == [(3, 0, 2), "gloo", {"seed": 7, "timeout": 9.0, "no_progress": 0.5}]
    assert by_default == [(5, 6), None, {}]


def test_run_saves_and_draws(launches, pages, program, capsys) -> None:
    launches(timeline())
    cli.main(["run", "train.py:worker", "--save", "run.joinlab", "--html", "run.html"])
    saved = joinlab.load("run.joinlab")
    assert saved.ends == (HUNG, HUNG)
    ((given, path),) = pages
    assert list(given) == ["case_4"]
    assert path == Path("run.html")
    assert "saved run.joinlab\nwrote run.html\n" in capsys.readouterr().out


def test_a_report_that_cannot_be_printed_costs_no_recording(launches, program, monkeypatch) -> None:
    launches(timeline())
    monkeypatch.setattr(report, "run_report", lambda *args, **kwargs: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cli.main(["run", "train.py:worker", "--save", "run.joinlab"])
    assert joinlab.load("run.joinlab").ends == (HUNG, HUNG)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("none/run.joinlab", "there is no folder none. Make it first. Nothing was run."),
        ("folder", "it is a folder. Name a file. Nothing was run."),
        ("train.py/run.joinlab", "there is no folder train.py"),
    ],
)
def test_a_place_that_cannot_be_written_is_noticed_before_the_run(
    launches, program, capsys, place, message
) -> None:
    fake = launches(timeline())
    (program.parent / "folder").mkdir()
    assert cli.main(["run", "train.py:worker", "--save", place]) == 2
    assert f"cannot write {place}: {message}" in capsys.readouterr().err
    assert fake.asked == []


def test_a_folder_without_permission_is_noticed_before_the_run(
    launches, program, monkeypatch, capsys
) -> None:
    fake = launches(timeline())
    monkeypatch.setattr(keeping.os, "access", lambda path, mode: False)  # root may write everywhere
    assert cli.main(["run", "train.py:worker", "--save", "run.joinlab"]) == 2
    assert "permission denied" in capsys.readouterr().err and fake.asked == []


def test_a_recording_that_cannot_be_saved_is_kept_elsewhere_and_named(
    launches, program, monkeypatch, capsys
) -> None:
    folder = program.parent / "folder"
    folder.mkdir()

    class Removing(Launches):
        """The folder goes while the run is under way."""

        def __call__(self, *arguments, **options) -> Timeline:
            folder.rmdir()
            return super().__call__(*arguments, **options)

    monkeypatch.setattr("joinlab.launcher.launcher.launch", Removing(timeline()))
    monkeypatch.setattr("tempfile.tempdir", str(program.parent))
    assert cli.main(["run", "train.py:worker", "--save", "folder/run.joinlab"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(
        "joinlab: cannot write folder/run.joinlab: there is no folder folder. Make it first. The recording is"
    )
    kept = re.search(r"kept in (\S+)\n", said)[1]
    assert joinlab.load(kept).calls.height == 8


def test_an_interrupted_run_keeps_what_was_recorded(launches, program, capsys) -> None:
    launches(LaunchInterrupted("interrupted after 4 calls", timeline()))
    assert cli.main(["run", "train.py:worker", "--save", "run.joinlab"]) == 130
    assert joinlab.load("run.joinlab").calls.height == 8
    assert capsys.readouterr().err == "joinlab: interrupted\n"


def test_a_program_with_a_neighbour_runs_in_real_processes(program, capfd) -> None:
    assert (
        cli.main(
            [
                "run",
                "train.py:worker",
                "--inputs",
                "1,1",
                "--backend",
                "gloo",
                "--save",
                "run.joinlab",
            ]
        )
        == 0
    )
    assert joinlab.load("run.joinlab").returns == (42, 42)
    assert cli.main(["run", "train.py:fails", "--inputs", "1", "--backend", "gloo"]) == 1
    assert "rank 0: ZeroDivisionError" in capfd.readouterr().out


def test_an_emulated_run_is_saved_with_where_its_ranks_part(program) -> None:
    """In a process of its own: other tests load modules by which every Timeline is saved with
    it."""
    options = ("--inputs", "1,1", "--emulate", "gloo", "--save", "run.joinlab")
    subprocess.run(
        [sys.executable, "-m", "joinlab", "run", "train.py:one_syncs", *options],
        stdout=subprocess.DEVNULL,
    )
    assert joinlab.load("run.joinlab").meta["parting"]["tests"][0]["text"] == "if rank == 0:"


def test_a_program_is_emulated_without_a_process(program, capsys) -> None:
    assert (
        cli.main(
            [
                "run",
                "train.py:worker",
                "--inputs",
                "1,1",
                "--emulate",
                "nccl",
                "--save",
                "run.joinlab",
            ]
        )
        == 0
    )
    saved = joinlab.load("run.joinlab")
    assert (saved.returns, saved.meta["engine"], saved.meta["backend"]) == (
        (42, 42),
        "emulated",
        "nccl",
    )
    assert "emulated nccl" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--emulate", "nccl", "--backend", "gloo"], "leave them out with --emulate"),
        (["--emulate", "gloo", "--no-progress", "3"], "leave them out with --emulate"),
        (["--era", "1.9"], "--era needs --emulate"),
    ],
)
def test_options_of_a_launch_and_of_an_emulation_do_not_mix(
    program, capsys, options: list[str], words: str
) -> None:
    assert cli.main(["run", "train.py:worker", *options]) == 2
    assert words in capsys.readouterr().err


def test_cases_run_in_real_processes_and_a_hang_is_no_failure_of_the_command(capfd) -> None:
    assert cli.main(["cases", "--n", "1", "--backend", "gloo", "--only", "1", "4"]) == 0
    rows = [line for line in capfd.readouterr().out.splitlines() if line[:1].isdigit()]
    assert [row[67:] for row in rows] == ["both finish", "both hang"]


# ---- show


def shown(run: Timeline, everything: bool = False) -> list[str]:
    return str(report.run_report(run, everything)).splitlines()


def test_show_says_first_what_happened_why_and_where(tmp_path: Path, capsys) -> None:
    path = timeline().save(tmp_path / "run.joinlab")
    assert cli.main(["show", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("case_4 · launched gloo · inputs 5, 6") and lines[0].endswith(
        "  BOTH RANKS HANG"
    )
    story, told = diagnose(timeline()), " ".join(" ".join(lines).split())
    assert lines[1].split()[:5] == story.sentence.split()[:5]
    for line in story.lines:
        assert told.count(line.sentence) == 1
    assert all(len(line) <= 80 and line == line.rstrip() for line in lines)


LOG = Path(__file__).parents[1] / "material" / "logs" / "detail_ops.log"


def test_show_reads_stdin_and_gives_the_story_as_json(
    capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(LOG.read_text()))
    assert cli.main(["show", "-", "--json"]) == 0
    story = json.loads(capsys.readouterr().out)
    assert story["lines"][0]["kind"] == "headline"
    assert story["lines"][0]["text"].startswith("Rank 0 issued broadcast")
    assert [end["call"]["op"] for end in story["ranks"]] == ["broadcast", "all_reduce"]


def test_show_without_a_name_shows_the_newest_run(
    tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["show"]) == 2
    assert "joinlab: runs: nothing was recorded there. Name a record" in capsys.readouterr().err
    for at, name in enumerate(("old", "new")):
        (tmp_path / "runs" / name).mkdir(parents=True)
        path = tmp_path / "runs" / name / "run.log"
        path.write_text(LOG.read_text())
        for place in (path, path.parent):
            os.utime(place, (1000 * at, 1000 * at))
    for argv in (["show"], ["show", "."]):
        assert cli.main([*argv, "--json"]) == 0
        assert capsys.readouterr().err.splitlines() == ["joinlab: runs/new"]


def test_without_a_command_the_commands_are_listed(capsys) -> None:
    assert cli.main([]) == 0
    out = capsys.readouterr().out
    assert [command.name for command in cli.COMMANDS if f"\n    {command.name} " not in out] == []


def test_an_ascii_terminal_and_closed_streams_cause_no_error() -> None:
    command = [sys.executable, "-m", "joinlab", "show", str(LOG)]
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    plain = subprocess.run(command, env=ascii_only, capture_output=True)
    assert (plain.returncode, plain.stderr) == (
        0,
        b"",
    ) and b"Rank 0 issued broadcast" in plain.stdout
    closed = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *command], capture_output=True)
    assert (closed.returncode, closed.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("backend", "remark"), [("gloo", "can never meet, never ends"), ("nccl", "never ends")]
)
def test_a_row_says_whether_its_calls_met(backend: str, remark: str) -> None:
    lines = shown(timeline(meta={"backend": backend}))
    at = next(k for k, line in enumerate(lines) if line.startswith(">"))
    assert " ".join(lines[at].split()) == f"> 4 forward 1 :14 != barrier :14 {remark}"


def test_a_row_says_which_of_its_calls_differ() -> None:
    writer = Writer(3, "nccl")
    for rank in range(3):
        writer.call(rank, "all_reduce", line=7 - 2 * (rank == 1))
        writer.call(rank, "barrier" if rank == 2 else "all_reduce", line=8 + rank, done=False)
    ends = Ending("hung", proven=False), Ending("killed"), Ending("killed", text="ended by SIGKILL")
    rows = [" ".join(line.split()) for line in shown(writer.timeline(ends))]
    assert "1 all-reduce :7 (!) all-reduce :5 (!) all-reduce :7" in rows
    assert any("> 2 all-reduce :8 all-reduce :9 != barrier :10" in row for row in rows)


def test_show_all_lists_what_matched(tmp_path: Path, capsys) -> None:
    writer = Writer()
    for rank in (0, 1):
        for at in range(100):
            writer.call(rank, "all_reduce", input=at, line=1)
    path = writer.timeline((FINISHED, FINISHED)).save(tmp_path / "run.joinlab")
    cli.main(["show", str(path)])
    short = capsys.readouterr().out
    assert "99 × all-reduce: all matched" in short and "--all lists the rows that matched" in short
    cli.main(["show", str(path), "--all"])
    out = capsys.readouterr().out
    assert (
        sum(line.strip()[:2].strip().isdigit() for line in out.splitlines()) == 100
        and "--all" not in out
    )


def test_show_draws_a_page(tmp_path: Path, pages) -> None:
    path = timeline().save(tmp_path / "run.joinlab")
    cli.main(["show", str(path), "--html", str(tmp_path / "run.html")])
    assert [(list(given), page) for given, page in pages] == [(["case_4"], tmp_path / "run.html")]


def test_show_does_not_write_its_page_over_the_recording(tmp_path: Path, capsys) -> None:
    path = timeline().save(tmp_path / "run.joinlab")
    link = tmp_path / "link.html"
    link.symlink_to(path)
    for target in (path, link):
        assert cli.main(["show", str(path), "--html", str(target)]) != 0
        assert "is the recording itself" in capsys.readouterr().err
    assert joinlab.load(path).ends == (HUNG, HUNG)


def test_64_ranks_fit_on_one_screen() -> None:
    lines = shown(timeline(ends=(HUNG,) * 64, ranks=64, meta={"inputs": [1] * 64}))
    assert len(lines) <= 24
    assert lines[0].endswith("ALL 64 RANKS HANG")
    assert "   call  rank 0                     ranks 1-63" in lines


def test_a_call_that_a_rank_never_issued_is_named() -> None:
    writer = Writer()
    writer.call(
        1,
        "all_reduce",
        "all-reduce (DDP backward())",
        input=2,
        done=False,
        error="Connection closed by peer",
    )
    ends = (
        FINISHED,
        Ending(EndKind.RAISED, call=0, group="0", text="RuntimeError: Connection closed by peer"),
    )
    lines = shown(writer.timeline(ends))
    assert lines[1].startswith("Rank 0 finished; nothing meets rank 1's backward (train.py:11).")
    at = next(k for k, line in enumerate(lines) if line.startswith(">"))
    assert " ".join(lines[at].split()) == "> 1 - backward :11 no call of rank 0, failed"


def test_the_report_has_no_remark_on_a_send_that_a_recv_from_any_rank_took() -> None:
    def takes_one(rank: int, inputs: Any) -> None:
        if rank == 0:
            dist.recv(torch.ones(1))
        else:
            dist.send(torch.ones(1), 0)

    lines = [
        line
        for line in shown(joinlab.emulate(takes_one, (1, 1, 1), "gloo"))
        if " recv " in line or " send " in line
    ]
    assert ["nothing meets it" in line for line in lines[-3:]] == [False, False, True]


@given(timelines(), st.booleans())
def test_any_report_fits_80_columns(run: Timeline, everything: bool) -> None:
    lines = shown(run, everything)
    assert all(len(line) <= 80 or everything for line in lines)
    narrow = str(report.run_report(run, everything, width=60)).splitlines()
    assert all(len(line) <= 60 or everything for line in narrow)


def test_a_wide_terminal_shows_more_lanes_and_longer_lines() -> None:
    ranks = range(5)
    writer = Writer(world_size=5)
    for rank in ranks:
        writer.call(rank, ("all_reduce", "broadcast", "barrier", "all_gather", "reduce")[rank])
    run = writer.timeline([FINISHED] * 5)
    for width, lanes in ((80, 3), (100, 4), (120, 5), (200, 5)):
        lines = str(report.run_report(run, width=width)).splitlines()
        assert sum(f"rank {rank}" in "".join(lines[-3:]) for rank in ranks) == lanes
        assert min(width, 120) - 20 < max(map(len, lines)) <= min(width, 120)


def test_text_of_a_run_is_not_read_as_markup(launches, program, capsys) -> None:
    launches(timeline((FINISHED, FINISHED), program="[bold]worker[/bold] :boom:"))
    cli.main(["run", "train.py:worker", "--save", "run.joinlab"])
    capsys.readouterr()
    cli.main(["show", "run.joinlab"])
    assert "[bold]worker[/bold] :boom: · launched gloo" in capsys.readouterr().out


# ---- errors


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ProgramError("no such\nthing"), 2, "joinlab: no such thing\n"),
        (
            LaunchError("it did not start:\nTraceback ...\n  File x\nImportError: y"),
            2,
            "joinlab: it did not start: ",
        ),
        (
            OSError(28, "No space left on device", "run.joinlab"),
            2,
            "joinlab: run.joinlab: No space left on device\n",
        ),
        (KeyboardInterrupt(), 130, "joinlab: interrupted\n"),
    ],
)
def test_an_error_is_one_line(launches, capsys, error: BaseException, code: int, line: str) -> None:
    launches(error)
    assert cli.main(["cases"]) == code
    err = capsys.readouterr().err
    assert err.startswith(line)
    assert err.count("\n") == 1


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path, capsys) -> None:
    (tmp_path / "other").write_text("hello")
    for name, message in (("none", "No such file"), ("other", "no line says what a rank did")):
        assert cli.main(["show", str(tmp_path / name)]) == 2
        err = capsys.readouterr().err
        assert str(tmp_path / name) in err
        assert message in err
        assert err.count("\n") == 1


@pytest.mark.parametrize(
    "argv",
    [
        ["dance"],
        ["cases", "--n", "-1"],
        ["cases", "--n", "x"],
        ["cases", "--backend", "mpi"],
        ["run"],
        ["run", "train.py:worker", "--inputs", "5;6"],
        ["run", "train.py:worker", "--inputs", ""],
        ["run", "train.py:worker", "--timeout", "soon"],
    ],
)
def test_wrong_usage_exits_with_2(argv: list[str], capsys) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(argv)
    assert caught.value.code == 2
    assert "usage: python -m joinlab" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv", [["--help"], ["cases", "--help"], ["run", "--help"], ["show", "--help"]]
)
def test_help_helps(argv: list[str], capsys) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(argv)
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert (
        ("examples:" in out and "exit codes:" in out)
        if argv == ["--help"]
        else "--html FILE" in out
    )


def test_the_examples_of_the_help_are_valid_commands() -> None:
    for command in cli.COMMANDS:
        assert command.examples
        for arguments, _ in command.examples:
            parsed = cli.parser().parse_args([command.name, *arguments.split()])
            assert isinstance(parsed, argparse.Namespace) and parsed.command is command
            assert f"python -m joinlab {command.name} {arguments}".rstrip() in cli.examples()


def test_version(capsys) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"joinlab {joinlab.__version__}\n"


def test_a_closed_pipe_is_not_an_error(tmp_path: Path) -> None:
    path = timeline().save(tmp_path / "run.joinlab")
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "joinlab", "show", path]
    with os.fdopen(writer) as stdout:
        done = subprocess.run(
            command, stdout=stdout, stderr=subprocess.PIPE, cwd=Path(__file__).parents[2]
        )
    assert (done.returncode, done.stderr) == (141, b"")


# ---- handout


def test_handout_writes_to_the_given_path(monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setattr("joinlab.course.handout.write_handout", lambda path: path)
    path = tmp_path / "new" / "cases.html"
    assert cli.main(["handout", str(path)]) == 0
    assert path.parent.is_dir() and f"wrote {path}" in capsys.readouterr().out


# ---- doctor


def test_doctor_says_of_a_backend_only_what_it_has_tried(monkeypatch) -> None:
    assert doctor.tried("gloo") == "yes: two ranks did an all-reduce and a barrier just now"
    assert doctor.tried("nccl").startswith(
        "yes" if torch.cuda.is_available() else 'no: backend="nccl" needs an NVIDIA GPU'
    )

    def broken(rank: int, inputs: Any) -> None:
        raise RuntimeError("no network")

    monkeypatch.setattr("joinlab.launcher.gpu_checks.smallest", broken)
    said = doctor.tried("gloo")
    assert said.startswith("no: two ranks were tried just now") and "no network" in said


@pytest.mark.parametrize("torch_is_here", [True, False])
def test_doctor_reports_every_fact(monkeypatch, capsys, torch_is_here: bool) -> None:
    if not torch_is_here:
        monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    assert cli.main(["doctor"]) == (0 if torch_is_here else 1)
    out = capsys.readouterr().out
    for name in (
        "joinlab",
        "Python",
        "PyTorch",
        "packages",
        *(("GPUs", "NCCL", "launch on gloo") * torch_is_here),
    ):
        assert f"\n{name} " in f"\n{out}"
