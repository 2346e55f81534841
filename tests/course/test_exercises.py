"""joinlab.check: right answers pass, and every plausible wrong answer is refused with a reason, for
any seed.

A judge's known cases do not depend on the seed and run first, so an answer that they refuse is
refused by every check.
"""

from __future__ import annotations

import ctypes
import os
import random
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from itertools import chain, product
from pathlib import Path

import psutil
import pytest

from joinlab.course import exercises
from joinlab.course import judge as judging
from joinlab.course.answers import judges, solutions
from joinlab.course.exercises import EXERCISES, check, solution
from joinlab.course.judge import Judge
from joinlab.emulator import scheduler
from joinlab.launcher import isolated
from joinlab.launcher.forkclient import ForkServer
from joinlab.launcher.spares import SPARES
from tests.exercise_answers import SOLVED, fails, nothing, refusal, starters
from tests.leftovers import alive
from tests.material.course import fifth, first, fourth, second, third  # noqa: F401
from tests.material.course.basis import ANSWERS
from tests.material.course.house import (
    RIGHT,
    WRONG,
    AfterTheCall,
    Hookless,
    Zero,
    as_they_get_ready,
    first_of_the_last,
    in_one_number,
)
from tests.mutants import mutants
from tests.nightly import sampled


@pytest.mark.parametrize("name", EXERCISES)
def test_the_solution_is_right(name):
    verdict = check(name, SOLVED[name])
    assert verdict, verdict.sentence
    assert str(verdict).startswith(f"✓ Right ({name})")
    judge, rng = EXERCISES[name].judge, random.Random(1)
    for _ in range(2):  # other cases than those of that check; the known ones are always the same
        judge.hold(SOLVED[name], judge.draw(rng))


STARTERS = starters()


BY_TURNS = {name: at % 2 for at, name in enumerate(EXERCISES)}
"""Of an exercise each day has either another right answer or some of those that readers wrote."""


def test_every_exercise_has_a_starter_in_a_notebook():
    assert [exercise for _, exercise, _ in STARTERS] == list(EXERCISES)
    assert [stem for stem, _, _ in STARTERS] == [one.notebook for one in EXERCISES.values()]


@pytest.mark.parametrize(("name", "answer"), [starter[1:] for starter in STARTERS])
def test_an_untouched_starter_is_refused_whatever_the_seed(name, answer):
    assert refusal(name, answer)


@pytest.mark.parametrize(
    ("name", "answer"), [(name, answer) for name in WRONG for answer in WRONG[name]]
)
def test_a_wrong_answer_is_refused_whatever_the_seed(name, answer):
    assert refusal(name, answer).startswith(("with ", "step "))


@pytest.mark.parametrize(
    ("name", "answer"),
    sampled(
        ((name, answer) for name in RIGHT for answer in RIGHT[name]),
        lambda row: BY_TURNS[row[0]] == 0,
    ),
)
def test_another_right_answer_is_right_too(name, answer):
    assert exercises.judged(name, answer, 0)[0]


def test_each_exercise_has_wrong_answers_and_a_solution():
    assert WRONG.keys() == RIGHT.keys() == SOLVED.keys() == EXERCISES.keys()
    assert all(len(answers) >= 5 for answers in WRONG.values())


def is_equivalent(mutant: str) -> bool:
    """The last of two dimensions is dimension 1; of two sums that are subtracted the ratio is the
    same."""
    return mutant.endswith("'-1' became '+1'") or "became 'total -= torch.tensor([loss" in mutant


NO_LAST = (
    Path(solutions.__file__).read_text("utf-8").partition("if last else -1")[0].count("\n") + 1
)


def changes_nothing(mutant: str) -> bool:
    """`hstack` is `cat` of what has one dimension; `zip` need not be strict where the lengths are
    equal; any number that is at most 0 is below those of the last, or equal to rank 0's when rank 0
    is the last."""
    strict = "'True' became 'False'" in mutant and "async_op" not in source_line(mutant)
    return (
        strict
        or mutant.endswith("'torch.hstack'")
        or mutant.startswith(f"line {NO_LAST}: '1' became ")
    )


def source_line(mutant: str) -> str:
    number = int(mutant.split()[1].rstrip(":"))
    return Path(solutions.__file__).read_text("utf-8").splitlines()[number - 1]


PARTS = {"small_ddp", "small_join", "hand_out", "buckets_of", "notify", "main_hook", "post_hook"}
"""Exercises whose solutions are mutated part by part."""


MUTATED_DAILY = {"safe_loop", "in_order", "last_joiner", "every_second", "save_all", "ring_sum"}
"""Of each kind of exercise: a loop, calls in their order, a number, a condition, a gather, sends."""


@pytest.mark.parametrize(
    "name",
    sampled((name for name in EXERCISES if name not in PARTS), MUTATED_DAILY.__contains__),
)
def test_every_mutant_of_a_solution_is_refused(name):
    survivors = [
        text
        for text, module in mutants(Path(solutions.__file__), name)
        if not refusal(name, module[name])
    ]
    assert [text for text in survivors if not is_equivalent(text)] == []


@pytest.mark.parametrize(
    ("exercise", "name", "part"),
    sampled(
        [("post_hook", "Largest", part) for part in ("Largest", "LargestHook")]
        + [("small_ddp", "SmallDDP", part) for part in ("hand_out", "buckets_of", "SmallDDP")]
        + [("small_join", "small_join", part) for part in ("ask", "small_join")],
        lambda row: row[2] in ("LargestHook", "buckets_of", "ask"),
    ),
)
def test_every_mutant_of_a_part_is_refused(exercise, name, part, monkeypatch):
    monkeypatch.setattr(judging, "SECONDS", 0.3)  # some go on for ever
    found = mutants(Path(solutions.__file__), part)
    survivors = [text for text, module in found if not refusal(exercise, module[name])]
    assert [text for text in survivors if not changes_nothing(text)] == []


def test_a_mistake_in_one_step_is_told_at_that_step():
    assert not refusal("notify", Zero) and "element" not in refusal("main_hook", Zero)
    # the message names the step once, and that step's check says what is wrong
    for later in (
        "main_hook",
        "post_hook",
    ):
        assert (
            refusal(later, AfterTheCall)
            == "step 1 (notify) is not right yet: its own check says why."
        )
    assert (
        refusal("post_hook", Zero) == "step 2 (main_hook) is not right yet: its own check says why."
    )
    assert "before it called Join.notify_join_context()" in refusal("notify", AfterTheCall)


def test_it_says_which_element_is_wrong():
    assert "element 0: expected 3, got 0." in refusal("shadows", lambda counts: [0, 1])
    assert "expected a list of 2, got 3" in refusal("shadows", in_one_number)


@pytest.mark.parametrize("name", EXERCISES)
def test_an_answer_that_does_nothing_or_fails_is_wrong(name):
    assert refusal(name, nothing)
    said = "step 1 (notify) is not right yet" if name in ("main_hook", "post_hook") else "oops"
    assert said in refusal(name, fails)


# ---- what is wrong is said well


def test_it_says_in_what_a_shadow_differs_and_in_which_case_an_answer_hangs():
    assert "differ in reduce_op: sum on rank 0, max on rank 1" in refusal("main_hook", Hookless)
    said = refusal("in_order", as_they_get_ready)
    assert said.startswith(
        "with buckets that get ready in the order [0, 1, 2] on rank 0, [2, 1, 0] on rank 1: "
    )


def test_it_names_the_counts_and_both_values():
    sentence = refusal("last_joiner", first_of_the_last)
    assert sentence.startswith("with inputs=(")
    assert "expected rank 2, whose parameters all ranks end with, got 0." in sentence


def test_the_same_seed_draws_the_same_counts():
    draw = EXERCISES["last_joiner"].judge.draw
    assert draw(random.Random(3)) == draw(random.Random(3))
    assert len({draw(random.Random(seed)) for seed in range(8)}) > 1


def test_an_answer_that_is_not_a_function_is_called_so():
    assert "pass a function or a class to check; got 3" in check("gradient", 3).sentence  # type: ignore[arg-type]


@pytest.mark.parametrize("ask", [solution, lambda name: check(name, print)])
def test_an_unknown_exercise_names_those_that_there_are(ask):
    with pytest.raises(
        ValueError, match=r"no exercise 'nothing'; there are .*gather_list, .*in_order"
    ):
        ask("nothing")


def test_a_verdict_shows_its_words_and_not_only_a_colour():
    html = check("gradient", lambda *args: "<b>")._repr_html_()
    assert "Not yet" in html
    assert "<b>" not in html


@pytest.mark.parametrize("name", EXERCISES)
def test_a_solution_is_shown_to_those_who_ask(name):
    shown = solution(name)
    assert ("def " in repr(shown)) and shown._repr_markdown_().startswith("```python\n")


# ---- 755 answers by readers who tried to get by


def told(exercise, kinds, monkeypatch, share=slice(None)):
    """Checks a share of the readers' answers of each of these kinds; gives (name, kind, whether it
    is right and a sentence) of each."""
    monkeypatch.setattr(exercises, "TRIALS", 1)
    monkeypatch.setattr(judges, "compare", judges.compare)  # one of those that cheat replaces it
    found = []
    for name, kind, one in chain.from_iterable(
        [(name, kind, one) for ex, name, kind, one in ANSWERS if (ex, kind) == (exercise, wanted)][
            share
        ]
        for wanted in kinds
    ):
        # some wrong ones go on for ever
        monkeypatch.setattr(judging, "SECONDS", 30.0 if kind == "right" else 0.2)
        found.append((name, kind, exercises.judged(exercise, one, 0)))
    return found


# Some answers start threads, and some use what PyTorch advises against.
as_readers_write = pytest.mark.filterwarnings("ignore")


ANSWERED = dict.fromkeys(one[0] for one in ANSWERS)


def test_readers_answered_every_exercise_often():
    assert ANSWERED.keys() == EXERCISES.keys()
    assert min(sum(one[0] == exercise for one in ANSWERS) for exercise in ANSWERED) >= 12


@as_readers_write
@pytest.mark.parametrize(
    ("exercise", "share"),
    sampled(product(ANSWERED, range(8)), lambda row: row[1] == 0 and BY_TURNS[row[0]] == 1),
)
def test_what_a_reader_wrote_is_judged_right(exercise, share, monkeypatch):
    """An eighth of the wrong answers and of the right ones."""
    verdicts = told(exercise, ("wrong", "right"), monkeypatch, slice(share, None, 8))
    assert verdicts
    assert [
        (name, said) for name, kind, (right, said) in verdicts if right != (kind == "right")
    ] == []


@as_readers_write
def test_one_that_cheats_breaks_nothing(monkeypatch):
    cheats = {exercise for exercise, _, kind, _ in ANSWERS if kind == "cheat"}
    assert sum(len(told(exercise, ("cheat",), monkeypatch)) for exercise in cheats) == 11


@pytest.mark.parametrize(
    "ends", [sys.exit, lambda counts: os._exit(3), lambda counts: threading.Event().wait()]
)
def test_an_answer_that_exits_or_hangs_leaves_the_notebook_alive(ends, monkeypatch):
    monkeypatch.setattr(judging, "SECONDS", 0.2)
    monkeypatch.setattr(scheduler, "ABANDON_S", 0.2)
    right, said = exercises.judged("last_joiner", ends, 0)
    assert not right and said.startswith("with inputs=(3, 1, 3, 2)")


def test_what_a_judge_cannot_read_is_wrong_and_no_error(monkeypatch):
    def broken(answer, case):
        raise TypeError("unorderable")

    monkeypatch.setitem(
        EXERCISES,
        "gradient",
        replace(EXERCISES["gradient"], judge=Judge(((),), lambda rng: (), broken)),
    )
    assert (
        "cannot be judged: TypeError: unorderable"
        in exercises.judged("gradient", solutions.gradient, 0)[1]
    )


# ---- the process that can be killed


def test_what_never_returns_is_ended_in_time():
    with pytest.raises(isolated.Lost, match="did not return within 0 s"):
        isolated.call_isolated(signal.pause, name="it", seconds=0.1)
    SPARES.close()  # a launch of another test may have left a run that waits
    assert (
        psutil.wait_procs(psutil.Process(ForkServer.get().process.pid).children(), timeout=60)[1]
        == []
    )


def test_one_call_of_c_without_end_is_ended_and_its_line_is_told(monkeypatch):
    monkeypatch.setattr(isolated, "SECONDS", 2)
    sentence = check("last_joiner", lambda counts: sum(range(10**15))).sentence
    assert sentence.startswith(
        "it computes for more than 2 s in one call that cannot be interrupted, at "
    )
    assert "sum(range(10**15))" in sentence


def test_a_crash_of_python_is_told_and_the_next_check_works():
    sentence = check("last_joiner", lambda counts: ctypes.string_at(0)).sentence
    assert sentence.startswith("it crashes Python (Segmentation fault), at ")
    assert check("last_joiner", solutions.last_joiner)


def test_what_cannot_be_sent_to_another_process_is_said():
    lock = threading.Lock()
    assert (
        "cannot be sent to another process"
        in check("last_joiner", lambda counts: lock.locked()).sentence
    )


def test_a_union_of_ctypes_that_a_cell_defines_can_be_sent():
    unions = [
        one
        for exercise, name, _, one in ANSWERS
        if (exercise, name) == ("as_float", "ctypes union")
    ]
    assert check("as_float", unions[0])


def test_an_interrupt_of_the_learner_ends_the_check_and_its_process(monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    assert check("last_joiner", solutions.last_joiner)
    SPARES.close()  # a launch of another test may have left a run that waits
    kept = psutil.Process(ForkServer.get().process.pid).children()
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(isolated, "take_interrupt", interrupted)
        check("last_joiner", lambda counts: sum(range(10**15)))
    assert psutil.wait_procs(kept)[1] == []
    assert check("last_joiner", solutions.last_joiner)


def test_nothing_is_left_of_a_process_that_was_killed_in_a_check():
    program = (
        "import os, psutil\n"
        "from joinlab.launcher import isolated\n"
        "from joinlab.course.exercises import check\n"
        "def kill():\n"
        "    print(*(one.pid for one in psutil.Process().children(recursive=True)), flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
        "check('last_joiner', max)\n"
        "isolated.take_interrupt = kill\n"
        "check('last_joiner', lambda counts: sum(range(10**15)))\n"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    pids = [int(pid) for pid in found.stdout.split()]
    assert found.returncode == -9 and pids, found.stderr
    assert alive(pids) == []
