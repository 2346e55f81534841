"""Pasted text: the facts about calls and ranks in its lines, and nothing beyond them.

The excerpts in tests/material/logs are from public reports, gloo, torchrun, faulthandler and
py-spy.
"""

from __future__ import annotations

import gzip
import socket
from pathlib import Path

import pytest

import joinlab
from joinlab.analysis.wording import ranks_text
from joinlab.cli.report import run_report
from joinlab.errors import TimelineFileError
from joinlab.jobs import text
from joinlab.jobs.text.facts import TextFacts
from joinlab.timeline import INTERRUPTED, LOST, NO_END, UNTOLD, EndKind
from tests import logs
from tests.dumps import quietly, write
from tests.handmade_logs import begin, call
from tests.handmade_logs import write as write_segment
from tests.parallel_jobs import dumps, standing
from tests.timelines import same_timelines

LOGS = Path(__file__).parents[1] / "material" / "logs"

TOLD = dict(line.split(": ", 1) for line in (LOGS / "told.txt").read_text("utf-8").splitlines())
"""The headline of each excerpt: what it means, as far as it reaches."""

ROWS = {
    "watchdog_behind": [(3, "0", 2069, "reduce", [[1]]), (12, "0", 2069, "reduce", [[1]])],
    "watchdog_2_1": [(0, "0", 96116, "all_reduce", None), (0, "0", 96119, "all_reduce", None)],
    "watchdog_subgroup": [
        (4, "22", 809867, "all_gather", [[1048576]]),
        (5, "22", 809867, "all_gather", [[1048576]]),
    ],
    "detail_gloo": [(0, "0", 3, "all_reduce", [[20, 10]]), (1, "0", 3, "broadcast", [[3]])],
    "detail_numbers": [(0, "0", 21, "all_reduce", [[25]]), (1, "0", 20, "broadcast", [[1]])],
    "nccl_log": [
        (1, "16 ranks", 247, "all_reduce", [[128]]),
        (2, "16 ranks", 247, "all_gather", [[512]]),
    ],
    "ncclras": [(0, "32 ranks", 639, "all_gather", None), (1, "32 ranks", 639, "all_gather", None)],
    "monitored_barrier": [(0, "0", 0, "barrier", None), (3, "0", 0, "barrier", None)],
}
"""Of some, the first two calls: rank, group, seq, op and shape."""


def loaded(path: Path) -> joinlab.Timeline:
    return quietly(path)[0]


@pytest.mark.parametrize("name", TOLD)
def test_the_story_of_an_excerpt_claims_no_more_than_it_holds(name: str) -> None:
    timeline = loaded(LOGS / f"{name}.log")
    if name in ROWS:
        assert (
            timeline.calls.select("rank", "group", "seq", "op", "shape").head(2).rows()
            == ROWS[name]
        )
    story, missing = str(joinlab.diagnose(timeline)), timeline.meta["missing_ranks"]
    assert story.splitlines()[0] == TOLD[name]
    assert (
        f"This was read from {timeline.meta['program']}. What it leaves out is not known" in story
    )
    assert (f"; no line is of {ranks_text(missing)}." in story) == bool(missing)


def test_every_excerpt_has_its_telling() -> None:
    assert {path.stem for path in LOGS.glob("*.log")} == {*TOLD, "nothing"}


@pytest.mark.parametrize("name", logs.truths())
def test_what_is_told_of_a_text_is_so_or_it_is_refused(name: str) -> None:
    assert logs.check(name)[0] == []


@pytest.mark.parametrize(
    "name", ["H43_logged", "H56_one_word", "H65_interrupt_then_cleanup", "J14_signal_by_name"]
)
def test_spaces_at_the_ends_of_lines_change_no_story(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Terminals and pages pad lines."""
    lines = (logs.MORE / f"{name}.log").read_text("utf-8").splitlines()
    (tmp_path / f"{name}.log").write_text("".join(f"{line}   \n" for line in lines), "utf-8")
    logs.truths()  # of the table, before its folder is another one
    monkeypatch.setattr(logs, "MORE", tmp_path)
    assert logs.check(name)[0] == []


@pytest.mark.parametrize(
    "label",
    [
        "> ",
        "    ",
        "2027-03-05T10:00:00.123456789Z ",
        "Mar 05 10:00:01 gpu1 train[4021]: ",
        "[pod/train-worker-0/pytorch] 2027-03-05T10:00:00Z ",
        "train-worker-0 pytorch ",
        "10.0.0.4: ",
        "\x1b[36mtrainer-1  |\x1b[0m ",
    ],
)
@pytest.mark.parametrize(
    "name",
    ["error_file", "ncclras", "pyspy", "watchdog_behind", "wrapped", "Q02_json_of_a_terminal"],
)
def test_a_label_of_a_tool_before_every_line_changes_no_story(
    name: str, label: str, tmp_path: Path
) -> None:
    (path,) = LOGS.rglob(f"{name}.log")
    lines = path.read_text("utf-8").splitlines()
    (tmp_path / "train.log").write_text("".join(f"{label}{line}\n" for line in lines), "utf-8")
    sentence = joinlab.diagnose(loaded(path)).sentence
    assert joinlab.diagnose(loaded(tmp_path / "train.log")).sentence == sentence


def test_a_label_that_gives_the_rank_is_none_of_a_tool(tmp_path: Path) -> None:
    for label in ("4: ", "[rank4]: ", "[default4]:", "[4]<stderr>:"):
        (tmp_path / "train.log").write_text(RAISED_BY_4.format(label=label), "utf-8")
        sentence = joinlab.diagnose(loaded(tmp_path / "train.log")).sentence
        assert sentence == "Rank 4 raised KeyError: 7 (data.py:4)."


RAISED_BY_4 = "".join(
    f"{{label}}{line}\n"
    for line in (
        "Traceback (most recent call last):",
        '  File "data.py", line 4, in load',
        "KeyError: 7",
    )
)


def test_a_file_s_number_is_no_rank_where_its_lines_name_another(tmp_path: Path) -> None:
    for node in range(2):
        lines = RAISED_BY_4.format(label=f"[rank{node * 4}]: ")
        (tmp_path / f"node_{node}.log").write_text(lines)
    assert joinlab.diagnose(loaded(tmp_path)).sentence == (
        "Ranks 0, 4 raised KeyError: 7 (data.py:4)."
    )


@pytest.mark.parametrize(
    "names", [("rank_0/stderr.log", "rank_1/stderr.log"), ("rank_0.log", "rank_1.log")]
)
def test_a_file_s_rank_is_in_its_name_or_its_folder_s(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    """Beside it may be an older part, which was renamed since."""
    for name, error in zip(names, ("Connection closed by peer", "bad"), strict=True):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(RAISED.replace("KeyError: 7", f"RuntimeError: {error}"))
    (tmp_path / f"{names[1]}.1").write_text(RAISED)
    assert loaded(tmp_path).ends[1].text == "RuntimeError: bad"


def test_a_label_of_another_role_counts_as_torchrun_s_if_torchrun_names_the_role() -> None:
    labelled = RAISED_BY_4.format(label="[trainer4]:")
    with pytest.raises(TimelineFileError, match="no line says what a rank did"):
        text.read_text(labelled, "a log")
    started = "I1 api.py:541] [trainer] starting workers for entrypoint: python\n"
    assert text.read_text(started + labelled, "a log").ends[4].text == "KeyError: 7"


LONG = {
    "one word": "a" * 200_000,
    "NCCL's calls in one line": "h:1:2 [0] NCCL INFO AllReduce: opCount 1 " * 4000,
    "NCCL's communicators in one line": "h:1:2 [0] NCCL INFO comm " * 8000,
    "groups that no bracket ends": "[PG 1 " * 30_000,
    "groups": "[PG 1 Rank 0] " * 15_000,
    "spaces": " " * 200_000,
    "empty lines": "\n" * 200_000,
    "a deep traceback": "Traceback (most recent call last):\n"
    + '  File "a", line 1, in x\n' * 8000,
    "lines between those of a traceback": "Traceback (most recent call last):\n"
    + '  File "a", line 1, in x\nAaAaAa ' * 30_000,
    "a long name after a traceback": "Traceback (most recent call last):\n x\n" + "Aa" * 100_000,
    "labels": "[default1]:" * 20_000,
    "prefixes": "[rank1]: " * 20_000,
    "a report of ras": "Communicator ranks have different operation counts" + "\n x" * 60_000,
    "labels of srun": "1: [rank" * 30_000,
    "tasks of srun": "srun: error: h: tasks " + "1-9," * 50_000,
    "a report of torchrun": "rank \n" * 60_000,
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("text_of", LONG.values(), ids=LONG)
def test_a_long_text_is_read_in_one_pass(text_of: str) -> None:
    """A pattern that scans to the end from each place would take minutes."""
    with pytest.raises(TimelineFileError, match="no line says what a rank did"):
        text.read_text(text_of, "a text")


def test_a_log_that_says_nothing_of_ranks_is_refused() -> None:
    with pytest.raises(TimelineFileError, match=r"nothing\.log': no line says what a rank did"):
        joinlab.load(LOGS / "nothing.log")


def test_the_story_says_how_far_each_rank_had_enqueued() -> None:
    timeline = loaded(LOGS / "watchdog_behind.log")
    assert timeline.meta["progress"]["0"][3] == {"enqueued": 2082, "completed": 2069}
    assert "Rank 3 had enqueued 2082 calls and rank 12 had enqueued 2070 calls." in str(
        joinlab.diagnose(timeline)
    )


def test_a_rank_that_enqueued_fewer_calls_had_not_come(tmp_path: Path) -> None:
    whole = (LOGS / "watchdog_behind.log").read_text()
    lines = whole.replace(
        "NCCL work: 2082, last completed NCCL work: 2069",
        "NCCL work: 2068, last completed NCCL work: 2068",
    )
    (tmp_path / "train.log").write_text(lines)
    story = str(joinlab.diagnose(loaded(tmp_path / "train.log")))
    assert story.startswith(
        "Rank 3 had not come to reduce 2070 of 1 number, where ranks 12, 14 waited."
    )


@pytest.mark.parametrize(
    "name", ["watchdog_one_short", "detail_ops", "nccl_log", "monitored_barrier"]
)
def test_a_log_of_a_terminal_and_of_another_launcher_reads_the_same(
    name: str, tmp_path: Path
) -> None:
    plain = (LOGS / f"{name}.log").read_text()
    odd = "\n".join(
        f"\x1b[36m(Worker pid=615, ip=10.7.6)\x1b[0m {line}" for line in plain.splitlines()
    )
    (tmp_path / "train.log").write_text(odd)
    assert loaded(tmp_path / "train.log").calls.equals(loaded(LOGS / f"{name}.log").calls)


def test_calls_that_all_ranks_of_a_communicator_issued_alike_count_as_completed(
    tmp_path: Path,
) -> None:
    line = "node1:{pid}:{pid} [{rank}] NCCL INFO AllReduce: opCount {number:x} sendbuff 0x1 recvbuff 0x2 "
    line += "count 8 datatype 7 op 0 root 0 comm 0x{pid}a [nranks=2] stream 0x3"
    calls = [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2)]
    log = "\n".join(line.format(pid=40 + rank, rank=rank, number=number) for rank, number in calls)
    (tmp_path / "nccl.log").write_text(log)
    timeline = loaded(tmp_path / "nccl.log")
    assert timeline.calls.select("rank", "seq", "completed_ns").rows() == [
        (0, 0, 0),
        (0, 1, 0),
        (0, 2, None),
        (1, 0, 0),
        (1, 1, 0),
    ]
    assert str(joinlab.diagnose(timeline)).startswith(
        "Rank 0 issued all-reduce opCount 2 of 8 numbers, and rank 1 had not, as far as the text"
    )


def test_ranks_of_a_communicator_are_those_that_its_beginning_tells(tmp_path: Path) -> None:
    log = (LOGS / "nccl_log.log").read_text()
    begins = "n136-081-017:201800:2 [2] NCCL INFO comm 0x7f33f4030110 rank 10 nranks 16 cudaDev 2 - Init COMPLETE"
    (tmp_path / "nccl.log").write_text(f"{begins}\n{log}")
    assert loaded(tmp_path / "nccl.log").calls["rank"].to_list() == [1, 10]


@pytest.mark.parametrize("odd", [b"loss \xff\xfe ok\n", b""])
def test_bytes_that_are_not_utf_8_hide_no_other_line(odd: bytes, tmp_path: Path) -> None:
    lines = (LOGS / "torchrun_raised.log").read_text("utf-8")
    whole = odd + lines.encode("utf-8") if odd else lines.encode("utf-16")
    (tmp_path / "train.log").write_bytes(whole)
    assert loaded(tmp_path / "train.log").ends == loaded(LOGS / "torchrun_raised.log").ends


def test_a_zipped_log_is_read(tmp_path: Path) -> None:
    plain = LOGS / "torchrun_raised.log"
    (tmp_path / "train.log.gz").write_bytes(gzip.compress(plain.read_bytes()))
    assert loaded(tmp_path / "train.log.gz").ends == loaded(plain).ends


def test_an_empty_file_is_refused_as_empty(tmp_path: Path) -> None:
    (tmp_path / "job.log").touch()
    with pytest.raises(TimelineFileError, match=r"job\.log': it is empty\."):
        joinlab.load(tmp_path / "job.log")


def test_torchrun_s_folder_of_logs_is_read_at_its_last_attempt(tmp_path: Path) -> None:
    for attempt in range(11):
        place = tmp_path / "none_x" / f"attempt_{attempt}" / "1"
        place.mkdir(parents=True)
        raised = f"[rank1]: Traceback (most recent call last):\n[rank1]:   x\n[rank1]: ValueError: {attempt}\n"
        (place / "stderr.log").write_text(raised)
        (place / "error.json").write_text('{"message": {"message": "ValueError"}}')
    for folder in (tmp_path, tmp_path / "none_x"):
        assert loaded(folder).ends[1].text == "ValueError: 10"
    (tmp_path / "none_y" / "attempt_0").mkdir(parents=True)
    with pytest.raises(
        TimelineFileError, match=r"2 jobs\. Name the folder of one, such as .*none_y"
    ):
        joinlab.load(tmp_path)


CLOSED = (
    "{label}[rank{rank}]: Traceback (most recent call last):\n"
    '{label}[rank{rank}]:   File "train.py", line 70, in <module>\n'
    "{label}[rank{rank}]: RuntimeError: [pair.cc:534] Connection closed by peer [10.0.0.3]:20931\n"
)
FELL = "srun: error: node3: task 3: Segmentation fault (core dumped)\n"
OTHERS = "srun: error: node1: tasks 0-1,4: Terminated\nsrun: error: node2: task 2: Exited with exit code 1\n"


@pytest.mark.parametrize(
    ("log", "ends"),
    [
        (
            FELL + CLOSED.format(label="", rank=0) + OTHERS,
            {
                1: (EndKind.KILLED, "Terminated (srun)"),
                2: (EndKind.UNKNOWN, "exit code 1 (srun)"),
                3: (EndKind.KILLED, "Segmentation fault (srun)"),
                4: (EndKind.KILLED, "Terminated (srun)"),
            },
        ),
        (
            FELL + CLOSED.format(label="1: ", rank=1),
            {3: (EndKind.KILLED, "Segmentation fault (srun)")},
        ),
        (FELL + CLOSED.format(label="1: ", rank=1) + CLOSED.format(label="1: ", rank=0), {}),
        (FELL + CLOSED.format(label="", rank=1), {}),
        (FELL + CLOSED.format(label="", rank=1) + OTHERS + "torch/distributed/elastic/x.py\n", {}),
    ],
    ids=["several on a host", "labels", "labels of hosts", "not known", "torchrun"],
)
def test_srun_s_tasks_are_ranks_only_where_the_text_shows_it(
    log: str, ends: dict[int, tuple[EndKind, str]]
) -> None:
    timeline = text.read_text(log, "a log")
    srun = {
        rank: (end.kind, end.text)
        for rank, end in enumerate(timeline.ends)
        if end.text.endswith("(srun)")
    }
    assert srun == ends
    sentence = joinlab.diagnose(timeline).sentence
    assert (sentence == "Rank 3 ended: Segmentation fault (srun).") == bool(ends)


RAISED = 'Traceback (most recent call last):\n  File "data.py", line 13, in produce\nKeyError: 7\n'
THREAD = "Exception in thread Thread-1 (produce):\n" + RAISED
TASK = "Task exception was never retrieved\nfuture: <Task finished>\n" + RAISED
UNKNOWN = "A process whose rank no line gives wrote"


@pytest.mark.parametrize(
    ("log", "note"),
    [
        (THREAD, f"{UNKNOWN} Exception in thread Thread-1 (produce): KeyError: 7 (data.py:13)."),
        (TASK, f"{UNKNOWN} Task exception was never retrieved: KeyError: 7 (data.py:13)."),
        (RAISED, f"{UNKNOWN} Traceback: KeyError: 7 (data.py:13)."),
        (
            "".join(f"[default1]:{line}\n" for line in THREAD.splitlines()),
            "Rank 1 wrote Exception in thread Thread-1 (produce): KeyError: 7 (data.py:13).",
        ),
    ],
    ids=["thread", "task", "no rank", "thread of a rank"],
)
def test_a_traceback_that_ended_no_rank_for_sure_is_a_note(
    log: str, note: str, tmp_path: Path
) -> None:
    launcher = RAISED.replace("data.py", "torch/distributed/run.py").replace("KeyError", "OSError")
    closed = RAISED.replace("KeyError: 7", "RuntimeError: Connection closed by peer")
    report = '  traceback : Traceback (most recent call last):\n    File "a.py", line 3, in f\n  KeyError: 1\n----\n'
    torn = RAISED.rpartition("KeyError")[0] + closed
    log += launcher + report + torn
    timeline = text.read_text(log + CLOSED.format(label="", rank=0) * 2, "a log")
    assert [end.kind for end in timeline.ends] in (
        [EndKind.RAISED],
        [EndKind.RAISED, EndKind.UNKNOWN],
    )
    notes = [line for line in str(joinlab.diagnose(timeline)).splitlines() if " wrote " in line]
    torchrun = "Torchrun wrote Traceback: OSError: 7 (run.py:13)."
    assert {line.strip() for line in notes} == {note, torchrun}
    with pytest.raises(
        TimelineFileError, match=f"no line says what a rank did. {UNKNOWN} Traceback: K"
    ):
        text.read_text(RAISED, "a log")
    write_segment(tmp_path, 0, begin(0, 1, host=socket.gethostname()) + call(0, 1500, 1600))
    (tmp_path / "job.log").write_text(log)
    assert note in str(joinlab.diagnose(loaded(tmp_path)))


# ---- beside dumps


def test_stacks_and_output_beside_dumps_tell_of_the_rank_that_is_missing(tmp_path: Path) -> None:
    job = standing({"0": (0, 1, 2, 3)}, [("0", "all_reduce")] * 3, culprit=2, at=1)
    found = dumps(job)
    del found[2]
    write(tmp_path, found)
    (tmp_path / "pyspy_rank_2.txt").write_text((LOGS / "pyspy_rank_2.txt").read_text())
    (tmp_path / "notes.txt").write_text("tuesday's run\n")
    timeline = loaded(tmp_path)
    assert timeline.meta["missing_ranks"] == [2]
    assert timeline.meta["stood"][2][0]["frames"] == [
        "train.py:8 <module>",
        "data.py:40 fetch",
        "data.py:61 load",
    ]
    assert "Rank 2 stands in load (data.py:61)." in str(joinlab.diagnose(timeline))
    assert [
        one
        for one in timeline.meta["problems"]
        if "notes.txt' was left out: no line says what" in one
    ]
    assert same_timelines(loaded(timeline.save(tmp_path / "saved.joinlab")), timeline)


TORCHRUN = """
[1]:
  rank      : 1 (local_rank: 1)
  exitcode  : -15 (pid: 22674)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 22674
Root Cause (first observed failure):
[0]:
  rank      : 0 (local_rank: 0)
  exitcode  : -6 (pid: 22673)
  error_file: <N/A>
  traceback : Signal 6 (SIGABRT) received by PID 22673
"""


def test_a_job_s_log_in_the_folder_of_its_record_says_who_ended_the_ranks(tmp_path: Path) -> None:
    for rank in range(2):
        text = begin(rank, 2, host=socket.gethostname(), pid=2**22 + 1)
        write_segment(tmp_path, rank, text + call(0, 1500, 1600) + call(1, 1700, None))
    assert {end.text for end in loaded(tmp_path).ends} == {NO_END}
    assert str(joinlab.diagnose(loaded(tmp_path))).partition("\n")[0].count("ended abruptly") == 1
    (tmp_path / "job.log").write_text(TORCHRUN)
    for record in (tmp_path, tmp_path / "job.log"):
        timeline = loaded(record)
        assert timeline.calls.height == 4
        first, other = (end.text for end in timeline.ends)
        assert first == "SIGABRT (torchrun: the first that failed)"
        assert other == "SIGTERM, since another rank had failed (torchrun)"


def test_a_traceback_of_an_interrupt_is_no_error_of_the_program(tmp_path: Path) -> None:
    raised = '{"e":"raise","x":"KeyboardInterrupt","tb":"","t":1800}\n'
    for rank in range(2):
        record = begin(rank, 2, host=socket.gethostname()) + call(0, 1500, 1600)
        write_segment(tmp_path, rank, record + call(1, 1700, None) + raised)
    (tmp_path / "job.log").write_text(
        "".join(
            f"[rank{rank}]: {line}\n"
            for rank in range(2)
            for line in (
                "Traceback (most recent call last):",
                '  File "train.py", line 7, in <module>',
                "    loss.backward()",
                "KeyboardInterrupt",
            )
        )
    )
    assert {end.text for end in loaded(tmp_path).ends} == {INTERRUPTED}
    assert {end.text for end in text.read([tmp_path / "job.log"], []).ends} == {INTERRUPTED}


WATCHDOG = (
    "[rank{rank}]:[E1 ProcessGroupNCCL.cpp:629] [Rank {rank}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=20, OpType=ALLREDUCE, NumelIn=5, NumelOut=5, Timeout(ms)=600000) ran for 600013 "
    "milliseconds before timing out.\n"
)
SIGNAL = (
    "[rank1]:[E1 ProcessGroupNCCL.cpp:1743] [PG ID 0 PG GUID 0(default_pg) Rank 1] Received a dump signal due "
    "to a collective timeout from  rank 0 and we will try our best to dump the debug info. Last enqueued NCCL "
    "work: 19, last completed NCCL work: 19.This is most likely caused by incorrect usages of collectives.\n"
)


def test_the_last_attempt_of_a_job_is_told_and_how_far_a_rank_was_that_wrote_a_dump() -> None:
    first = (
        "[rank1]: Traceback (most recent call last):\n"
        '[rank1]:   File "train.py", line 31, in <module>\n'
        "[rank1]: ValueError: bad batch\n"
        "I1 [default] Worker group FAILED. 1/1 attempts left; will restart worker group\n"
    )
    last = WATCHDOG.format(rank=0) + WATCHDOG.format(rank=2) + SIGNAL
    story = joinlab.diagnose(text.read_text(first + last, "a log"))
    assert story.sentence == (
        "Rank 1 had not come to all-reduce 20 of 5 numbers, where ranks 0, 2 waited."
    )
    assert "(of several attempts, the last)" in str(story) and "bad batch" not in str(story)


FAILED = (
    "E1 {agent} torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: {rank} "
    "(pid: 25459) of binary: python\n"
)


def test_a_second_failure_that_one_torchrun_wrote_is_of_another_attempt() -> None:
    first, second = (CLOSED.format(label="", rank=rank).replace("70", str(rank)) for rank in (0, 1))
    for agent, ranks in ((7, {1}), (8, {0, 1})):
        log = first + FAILED.format(agent=7, rank=1) + second + FAILED.format(agent=agent, rank=0)
        ends = text.read_text(log, "a log").ends
        assert {rank for rank, end in enumerate(ends) if end.kind is EndKind.RAISED} == ranks


def test_a_signal_that_met_ranks_of_torchrun_s_next_attempt_is_of_that_attempt() -> None:
    """They had been started again: the ranks of the first one are gone."""
    first = CLOSED.format(label="", rank=1) + FAILED.format(agent=7, rank=1)
    received = "W1 7 torch/distributed/elastic/api.py:753] Received 2 death signal, shutting down workers\n"
    closing = (
        "W1 7 torch/distributed/elastic/api.py:1028] Sending process 9 closing signal SIGINT\n"
    )
    last = (
        '[rank0]: Traceback (most recent call last):\n[rank0]:   File "train.py", line 8, in load\n'
    )
    last += "[rank0]: KeyboardInterrupt\n"
    own = '  File "/torch/distributed/run.py", line 9, in main\n'
    timeline = text.read_text(first + received + closing + last + own, "a log")
    assert [end.text for end in timeline.ends] == [INTERRUPTED]
    raised = text.read_text(first + received + last + own, "a log").ends[1]
    assert raised.kind is EndKind.RAISED
    with pytest.raises(TimelineFileError, match="no line of its last attempt says what a rank did"):
        text.read_text(first + received + closing + own, "a log")


NUMBERED = """Traceback (most recent call last):
  File "train.py", line 9, in load
ValueError: bad row 3
"""


def test_the_number_of_a_process_before_its_lines_is_no_rank() -> None:
    def log(number: int) -> str:
        return "".join(f"[{number}] {line}\n" for line in ("step 1", *NUMBERED.splitlines()))

    assert text.read_text(log(1) + "[0] step 1\n", "mpirun -l").ends[1].kind is EndKind.RAISED
    with pytest.raises(TimelineFileError, match=f"{UNKNOWN} Traceback: ValueError: bad row 3"):
        text.read_text(log(254), "a log")
    failed = "[7] " + FAILED.format(agent=7, rank=1).replace("25459", "254")
    assert [end.text for end in text.read_text(log(254) + failed, "a log").ends[1:]] == [
        "ValueError: bad row 3"
    ]


def test_a_traceback_of_loguru_is_read_as_one_of_python() -> None:
    log = """2027-01-01 10:00:00.1 | ERROR | train:<module>:22 - An error has been caught in function '<module>':
Traceback (most recent call last):

> File "train.py", line 22, in <module>
    main(2)
    │    └ 2

  File "train.py", line 9, in load
    return rows[3]
           │
           └ []

IndexError: list index out of range
"""
    labelled = "".join(f"[default0]:{line}\n" for line in log.splitlines())
    timeline = text.read_text(labelled, "a log")
    assert timeline.ends[0].text == "IndexError: list index out of range"
    assert "(train.py:9)" in joinlab.diagnose(timeline).sentence
    with pytest.raises(
        TimelineFileError, match=r"IndexError: list index out of range \(train.py:9"
    ):
        text.read_text(log, "a log")


def test_a_signal_that_ended_torchrun_is_a_note(tmp_path: Path) -> None:
    received = "W1 653 torch/distributed/elastic/api.py:753] Received 15 death signal, shutting down workers\n"
    note = "torchrun received signal 15 and ended its ranks."
    with pytest.raises(TimelineFileError, match=note):
        text.read_text(received, "a log")
    write_segment(tmp_path, 0, begin(0, 1, host=socket.gethostname()) + call(0, 1500, 1600))
    (tmp_path / "job.log").write_text(received)
    timeline = loaded(tmp_path)
    assert note[1:] in str(joinlab.diagnose(timeline)) and not timeline.meta["problems"]


def test_the_rank_of_torchrun_s_first_failure_is_read_where_no_line_has_another() -> None:
    failed = FAILED.format(agent=7, rank=4)
    assert "(ranks count within a host)" in text.read_text(failed, "a log").meta["program"]
    with pytest.raises(
        TimelineFileError, match="torchrun's local rank 4 failed first: exit code 1"
    ):
        text.read_text(failed + FAILED.format(agent=8, rank=5), "a log")
    timeline = text.read_text(failed + CLOSED.format(label="", rank=12), "a log")
    assert joinlab.diagnose(timeline).ranks[4].text == UNTOLD


def test_a_rank_whose_exit_code_is_known_is_not_reported_as_without_an_ending() -> None:
    report = run_report(loaded(LOGS / "more" / "H54_logged_after_it.log"), width=100)
    assert "RANK 0 HAS NO KNOWN ENDING · RANK 1 FAILED" in report


def test_a_text_does_not_say_how_many_ranks_there_are_and_may_prove_more_than_it_names() -> None:
    log = WATCHDOG.format(rank=1).replace("ALLREDUCE", "_ALLGATHER_BASE")
    report = str(run_report(text.read_text(log.replace("NumelOut=5", "NumelOut=20"), "a log")))
    assert "RANKS 0-3 HAVE NO KNOWN ENDING" in report and "no line is of ranks 0, 2, 3." in report
    begins = (
        "h:1:2 [4] NCCL INFO ncclCommSplit comm 0x7e rank 4 nranks 16 cudaDev 4 - Init COMPLETE\n"
    )
    assert text.read_text(begins + log, "a log").world_size == 16


def test_the_table_numbers_a_call_as_the_text_does() -> None:
    for name, number in (("detail_cut", "21"), ("nccl_log", "f7")):
        assert f"\n{number:>7}  " in str(run_report(loaded(LOGS / f"{name}.log"))).replace(">", " ")


def test_calls_without_a_number_are_not_taken_for_one_call() -> None:
    log = WATCHDOG.replace("SeqNum=20, ", "")
    log = log.format(rank=0) + log.format(rank=1).replace("ALLREDUCE", "BROADCAST")
    assert joinlab.diagnose(text.read_text(log, "a log")).sentence == (
        "Rank 0 waited in all-reduce of 5 numbers and rank 1 waited in broadcast of 5 numbers."
    )


def test_a_traceback_that_its_rank_survived_is_a_note() -> None:
    note = "Rank 2 wrote Traceback: ConnectionError: HTTP 503 (data.py:12)."
    assert note in str(joinlab.diagnose(loaded(LOGS / "survived.log")))


def test_lightning_names_the_child_that_ended() -> None:
    line = "[rank: 3] Child process with PID 4021 terminated with code -9. Forcefully terminating all\n"
    timeline = text.read_text(RAISED + line, "a log")
    assert joinlab.diagnose(timeline).sentence == "Rank 3 ended: SIGKILL (Lightning)."
    assert "(ranks count within a host)" in timeline.meta["program"]
    waits = text.read_text(WATCHDOG.format(rank=3) + WATCHDOG.format(rank=0) + line, "a log")
    assert joinlab.diagnose(waits).sentence.startswith("Ranks 0, 3 waited in all-reduce 20")


def test_the_backend_of_a_text_is_one_that_its_lines_show() -> None:
    closed = CLOSED.format(label="", rank=0)
    unknown = text.read_text(closed, "a log")
    assert "backend" not in unknown.meta and " · imported   " in str(run_report(unknown))
    assert text.read_text(WATCHDOG.format(rank=0), "a log").meta["backend"] == "nccl"
    closed = closed.replace("[pair.cc", "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc")
    assert text.read_text(closed, "a log").meta["backend"] == "gloo"


def test_a_record_that_broke_off_is_no_hang(tmp_path: Path) -> None:
    lost = '{"e":"lost","x":"OSError: [Errno 28] No space left on device","t":1800}\n'
    for rank in range(2):
        text = begin(rank, 2, host=socket.gethostname()) + call(0, 1500, 1600)
        write_segment(tmp_path, rank, text + call(1, 1700, None) + lost)
    timeline = loaded(tmp_path)
    shown = " ".join(str(run_report(timeline)).split())
    assert "running when their record broke off; until then every call fits" in shown
    assert "no end on record" in shown and "never ends" not in shown
    assert ": their records end early." in shown
    assert {end.text for end in timeline.ends} == {LOST}


def test_the_output_of_a_rank_says_how_it_ended(tmp_path: Path) -> None:
    job = standing({"0": (0, 1)}, [("0", "all_reduce")] * 3, culprit=1, at=1)
    write(tmp_path, dumps(job))
    (tmp_path / "train.log").write_text((LOGS / "torchrun_raised.log").read_text())
    timeline = loaded(tmp_path)
    assert (timeline.ends[1].kind, timeline.ends[1].text) == (
        EndKind.RAISED,
        "ValueError: bad sample 7",
    )


def test_stacks_are_read_as_py_spy_and_faulthandler_write_them() -> None:
    facts = TextFacts()
    assert text.take((LOGS / "pyspy_rank_2.txt").read_text(), facts, 2)
    assert text.take((LOGS / "stack_3.txt").read_text(), facts, 3)
    assert facts.stood(2)[0]["frames"][-1] == "data.py:61 load"
    assert facts.stood(3)[0]["frames"] == [
        "train.py:8 <module>",
        "train.py:5 fetch",
        "train.py:3 load",
    ]


def test_a_rank_stands_in_what_its_program_called_not_in_what_the_recorder_calls() -> None:
    frames = (
        ("train.py", 12, "report"),
        ("/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 3245, "all_reduce"),
        ("/lib/python3.11/site-packages/joinlab/recorder/group.py", 73, "wait"),
        ("/lib/python3.11/contextlib.py", 141, "__exit__"),
    )
    stack = "".join(f'  File "{file}", line {line}, in {name}\n' for file, line, name in frames)
    log = f"Traceback (most recent call last):\n{stack}KeyboardInterrupt\n"
    timeline = text.read_text("".join(f"[rank0]: {line}\n" for line in log.splitlines()), "a log")
    assert "report (train.py:12, called all_reduce of distributed_c10d.py)" in str(
        joinlab.diagnose(timeline)
    )


def test_a_call_without_a_number_comes_behind_those_that_have_one(tmp_path):
    log = tmp_path / "job.log"
    log.write_text(
        "[rank0]:[E626 08:05:12.345678901 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600013 "
        "milliseconds before timing out.\n"
        "[rank0]: Traceback (most recent call last):\n"
        '[rank0]:   File "train.py", line 9, in <module>\n'
        "[rank0]:     dist.monitored_barrier()\n"
        "[rank0]: RuntimeError: [Rank 0]: Rank 1 failed to pass monitoredBarrier in 5000 ms\n"
    )
    timeline = joinlab.load(log)
    rows = timeline.calls.filter(rank=0).select("op", "seq", "number").rows()
    assert rows == [("all_reduce", 0, 1), ("barrier", 1, None)]
