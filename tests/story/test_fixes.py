"""Fixes: each is an edit that was tried by emulation; without one that helps, none is shown."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from itertools import chain

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import joinlab
from joinlab import cases
from joinlab.picture.first_screen import first_screen
from joinlab.story import fixes
from joinlab.story.forms.fix import NoFix, TriedEdit, Untried
from joinlab.story.judge import mend
from joinlab.story.lines import Edit, LineKind
from joinlab.story.writers import diff_of
from tests.material.unseen import pi, px, reports
from tests.material.users import (
    m01_local_inf_skips_step,
    r02_gan_skips_d,
    r09_zero_consolidate_best,
    r10_manual_grad_none,
    r15_two_optimizers_clip,
)
from tests.nightly import sampled
from tests.program.test_divergence import checkpoint_on_one_rank, two_epochs
from tests.unseen import edited


def changed(program, inputs, backend="nccl"):
    """What the fix does, and the lines that it puts, without indentation."""
    fix = fix_of(joinlab.emulate(program, inputs, backend))
    assert fix.fix["tried"] > 1
    return fix.fix, [line.strip() for edit in fix.edits for line in edit.added]


def fix_of(timeline):
    """The line of the fix; None where none is shown, or none was found."""
    line = next(iter(joinlab.diagnose(timeline).of(LineKind.FIX)), NoFix())
    return None if line == NoFix() else line


FABRICS = ("nccl", "gloo")
CASES = {2: "join", 3: "join, behind", 4: "behind", 5: "join"}


def test_a_line_that_is_only_indented_further_is_not_shown_as_another_one():
    timeline = joinlab.emulate(joinlab.cases.case_3, (2, 3))
    (edit,) = fix_of(timeline).edits
    assert list(diff_of(edit)) == [
        f"cases.py:{edit.begin}",
        "+     with model.join():",
        f"          for input in inputs: ...  (lines {edit.begin}-{edit.begin + 3}, indented)",
        "-         dist.barrier()",
        "+     dist.barrier()",
    ]
    marked = [line for line in first_screen(timeline).code if line.sign]
    assert [f"{line.sign} {line.text.strip()}" for line in marked] == [
        "+ with model.join():",
        "- dist.barrier()",
        "+ dist.barrier()",
    ]


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("ab")), max_size=8), st.data())
def test_the_hunks_of_an_edit_hold_all_of_its_lines(removed, data):
    added = data.draw(st.permutations(removed))
    added = [(data.draw(st.integers(0, 3)), text) for _, text in added]
    texts = [tuple(" " * indent + text for indent, text in lines) for lines in (removed, added)]
    hunks = list(Edit("a.py", 7, *texts).hunks())
    assert tuple(chain.from_iterable(hunk.removed for hunk in hunks)) == texts[0]
    assert tuple(chain.from_iterable(hunk.added for hunk in hunks)) == texts[1]
    number = 7
    for hunk in hunks:
        assert hunk.begin == number
        number += len(hunk.removed)
        if hunk.kept:
            for old, new in zip(hunk.removed, hunk.added, strict=True):
                assert new.endswith(old)


def by_turns(rows):
    """Each row on both fabrics: on one of them every day, the next row on the other, and on both
    every night."""
    listed = list(rows)
    every = [(*row, fabric) for row in listed for fabric in FABRICS]
    today = [(*row, FABRICS[at % 2]) for at, row in enumerate(listed)]
    return sampled(every, today.__contains__)


@pytest.mark.parametrize(("case", "backend"), by_turns((case,) for case in CASES))
def test_a_case_finishes_after_its_fix(case, backend):
    fix, added = changed(joinlab.cases.CASES[case].program, (5, 6), backend)
    assert fix["kind"] == CASES[case] and not fix["fewer"]
    assert ("with model.join():" in added) == ("join" in fix["kind"])
    assert ("dist.barrier()" in added) == ("behind" in fix["kind"])


def behind_already(rank, inputs):
    model = DDP(nn.Linear(1, 1))
    for _ in range(2):
        with model.join():
            for x in inputs:
                model(x).sum().backward()
        seen = torch.ones(1)
        if len(inputs) > 0:
            dist.all_reduce(seen)


def leaves(rank, inputs):
    for i, x in enumerate(inputs):
        if rank == 1 and i == 1:  # enough
            break
        dist.all_reduce(x)
        x.item()


def imports_by_itself(rank, inputs):
    import torch as t
    from torch.nn.parallel import DistributedDataParallel as Wrapped

    model = Wrapped(t.nn.Linear(1, 1))
    for x in inputs:
        model(x).sum().backward()


def loop_of_calls(rank, inputs):
    for x in inputs:
        dist.all_reduce(x)
        x.item()


def roots(rank, inputs):
    dist.reduce(torch.ones(1), dst=rank % 2)
    dist.barrier()


def found_on_one_rank(rank, inputs):
    found = [x.item() for x in inputs][1:]
    if found:
        merged = [None] * dist.get_world_size()
        dist.all_gather_object(merged, found)
    dist.barrier()


class Trainer:
    def __init__(self, rank):
        self.rank, self.model = rank, DDP(nn.Linear(1, 1))

    def fit(self, inputs):
        for step, x in enumerate(inputs):
            self.model(x).sum().backward()
            if self.rank == 0 and step % 2 == 1:
                self.evaluate()

    def evaluate(self):
        dist.all_reduce(torch.ones(1))


def evaluates_on_one_rank(rank, inputs):
    Trainer(rank).fit(inputs)


def writes_every_second_step(rank, inputs):
    written = []
    for step, x in enumerate(inputs):
        dist.all_reduce(x)
        if rank == 0 and step % 2 == 1:
            written.append(step)
            dist.broadcast(x, 0)


def names_an_empty_rank_as_root(rank, inputs):
    parts = [[1], [2]] if rank == 0 else None
    dist.scatter_object_list([None], parts, src=len(dist.get_process_group_ranks(None)) - 1)


@pytest.mark.parametrize(
    ("program", "inputs", "kind", "line"),
    [
        (evaluates_on_one_rank, (4, 4), "block, shared", "if step % 2 == 1:"),
        (writes_every_second_step, (4, 4), "out", "if step % 2 == 1:"),
        (two_epochs, (3, 4), "join", "with model.join():"),
        (imports_by_itself, (2, 3), "join", "with model.join():"),
        (behind_already, (3, 0), "out", "dist.all_reduce(seen)"),
        (checkpoint_on_one_rank, (3, 3), "agree", "start = int(least)"),
        (leaves, (3, 3), "flag", "if flag.item():  # enough"),
        (loop_of_calls, (2, 3), "same", "for x in inputs[: int(count)]:"),
        (found_on_one_rank, (1, 2), "out", "merged = [None] * dist.get_world_size()"),
        (roots, (1, 1), "root", "dist.reduce(torch.ones(1), dst=0)"),
        (pi.collects_unlike_episodes, (2, 2, 2), "together", "if not flag.item():"),
        (pi.spares_small_gradients, (3, 3), "where all skip", "if flag.item():"),
        (pi.spares_broken_gradients, (3, 3), "flag", "if flag.item():"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_edit_that_helps_is_shown(program, inputs, kind, line):
    fix, added = changed(program, inputs)
    assert fix["kind"] == kind and line in added


def own_root(rank, inputs):
    value = torch.tensor([float(rank)])
    dist.broadcast(value, src=rank)
    dist.barrier()


def returns_its_own(rank, inputs):
    cached = [1] if rank == 0 else None
    if cached is not None:
        return cached
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, [rank])
    return parts


def meets_every_second_step(rank, inputs):
    for step in range(4):
        if (step + rank) % 2:
            dist.barrier()
        dist.all_reduce(torch.ones(1))


def adds_up_on_one_rank(rank, inputs):
    if rank == 0:
        dist.all_reduce(inputs[0])
    dist.barrier()


def counts_on_one_rank(rank, inputs):
    counted = torch.zeros(1)
    if rank == 0:
        counted += 7
        dist.all_reduce(counted)


@pytest.mark.parametrize(
    ("program", "price"),
    [
        (own_root, "whatever rank is, and what rank 1 had to give as root is lost."),
        (returns_its_own, "Those that return do not use its result."),
        (meets_every_second_step, "every rank then makes it each time, whether the test holds"),
        (adds_up_on_one_rank, "holds or not. Values of rank 1 then go into the result, too."),
        (evaluates_on_one_rank, "block. Values of rank 1 then go into the result, too."),
    ],
)
def test_an_edit_says_its_price(program, price):
    assert price in fix_of(joinlab.emulate(program, (2, 2), "gloo")).sentence


@pytest.mark.parametrize("program", [counts_on_one_rank, meets_every_second_step])
def test_zeros_and_barriers_are_no_price(program):
    assert "go into the result" not in fix_of(joinlab.emulate(program, (2, 2), "gloo")).sentence


def test_a_root_takes_its_turn_from_ranks_that_were_to_get_the_result():
    fix = fix_of(joinlab.emulate(reports.other_dst, (1, 1), "gloo"))
    assert fix.fix["kind"] == "root" and "and rank 1 no longer gets the result." in fix.sentence


def test_a_root_that_all_ranks_name_alike_is_not_called_unlike():
    story = joinlab.diagnose(joinlab.emulate(names_an_empty_rank_as_root, (2, 2), "gloo"))
    told = "Give another root, the same on every rank. It is then always rank 0, whatever "
    assert [text for text in story.texts(LineKind.FIX) if text.startswith(told)]


def test_an_edit_names_the_lines_of_the_file(tmp_path):
    timeline = joinlab.emulate(joinlab.cases.case_4, (5, 6))
    fix = fix_of(timeline)
    with open(joinlab.cases.__file__, encoding="utf-8") as file:
        lines = file.read().split("\n")
    for edit in fix.edits:
        assert tuple(lines[edit.begin - 1 : edit.begin - 1 + len(edit.removed)]) == edit.removed
    for edit in reversed(fix.edits):
        lines[edit.begin - 1 : edit.begin - 1 + len(edit.removed)] = edit.added
    names: dict = {}
    exec(compile("\n".join(lines).partition("\nALL_KNOBS")[0], "edited.py", "exec"), names)
    assert not any(
        end.pending or end.kind != "finished"
        for end in joinlab.emulate(names["case_4"], (5, 6)).ends
    )
    again = joinlab.load(timeline.save(tmp_path / "run.joinlab"))
    assert fix_of(again) == fix


def returns_before_the_norm(rank, inputs):
    for _ in inputs:
        norm([torch.ones(1)] if rank == 0 else [])


def norm(shard):
    if not shard:
        return 0.0
    dist.all_reduce(shard[0])
    return shard[0].item()


def callbacks_of_one_rank(rank, inputs):
    callbacks = [print, lambda *_: dist.barrier()] if rank == 0 else [print]
    model = DDP(nn.Linear(1, 1))
    for x in inputs:
        model(x).sum().backward()
        for callback in callbacks:
            callback()


def steps_on_finite_inputs(rank, inputs):
    for step, x in enumerate(inputs):
        x = x / (2 - step if rank else 1)
        if torch.isfinite(x).all():
            add_up(x)


def add_up(x):
    dist.all_reduce(x)
    x.item()


def stops_by_its_own_state(rank, inputs):
    state = {"bad": 0, "stop": False}
    for step in range(3):
        dist.all_reduce(torch.ones(2))
        state["bad"] += step >= 1 - rank
        if state["bad"] > 1:
            state["stop"] = True
            bad = torch.tensor([float(state["bad"])])
            dist.all_reduce(bad)
        if state["stop"]:
            break
    dist.barrier()


def meets_what_it_took(rank, inputs):
    waiting = [torch.ones(1)] * (3 - rank)
    for _ in inputs:
        if len(waiting) > 1:
            item = waiting.pop()
            dist.all_reduce(item)
            item.item()


def returns_the_rate_that_fits(rank, inputs):
    for rate in (1.0, 0.5, 0.25):
        dist.all_reduce(torch.ones(1))
        if rate < 2 - rank * 1.4:
            return rate


def takes_turns_to_read(rank, inputs):
    for attempt in range(3):
        shard = "shard" if attempt == rank else None
        dist.all_reduce(torch.ones(1))
        if shard is not None:
            break
    dist.barrier()
    return shard


def evaluates_in_a_group_of_a_list(rank, inputs):
    groups = [dist.new_group([0, 1])]
    if rank < 2:
        evaluates_in(groups)


def evaluates_in(groups):
    dist.all_reduce(torch.ones(1), group=groups[0])
    dist.all_reduce(torch.ones(1), op=dist.ReduceOp.MAX)
    dist.barrier()


def reduces_to_owners(rank, inputs):
    names = ["a", "b"] if rank == 0 else ["frozen", "a", "b"]
    for i, name in enumerate(names):
        if name == "frozen":
            continue
        owner = i % 2
        dist.reduce(torch.ones(1), dst=owner)


def reduces_to_owners_by_a_function(rank, inputs):
    dist.barrier()
    for i in (0, 1) if rank == 0 else (0, 0):
        reduces_to(i)


def reduces_to(owner):
    dist.reduce(torch.ones(1), dst=owner)


def reduces_to_owners_in_a_comprehension(rank, inputs):
    return [dist.reduce(torch.ones(1), dst=i) for i in ((0, 1) if rank == 0 else (1, 0))]


@pytest.mark.parametrize(
    "program",
    [
        px.adds_a_bonus_of_its_own,
        px.skips_its_own_turn,
        reduces_to_owners,
        reduces_to_owners_by_a_function,
        reduces_to_owners_in_a_comprehension,
        returns_before_the_norm,
        callbacks_of_one_rank,
        returns_the_rate_that_fits,
        takes_turns_to_read,
        r10_manual_grad_none.program,
        pi.debugs_without_sync,
    ],
)
def test_no_fix_takes_a_call_away_or_a_guard_or_a_result(program):
    """With a flag, both ranks would return before the call in every step; with as many callbacks on
    each rank, none would make it; with a flag, a rank would go on without the rate, or the shard,
    that its test asks for; a rank would keep its own gradient where not all have one. Rank 1 would
    lose a bonus of its own; and with one root, no other rank would have its turn. All would go into
    no_sync(), and none average its gradients."""
    timeline = joinlab.emulate(program, (3, 3), "gloo")
    assert any(end.kind != "finished" for end in timeline.ends) and fix_of(timeline) is None


def test_no_fix_brings_a_misuse_that_the_run_did_not_have():
    """Taken out of the branch, the block would have rank 2 call a group that it is not in."""
    timeline = joinlab.emulate(evaluates_in_a_group_of_a_list, (1, 1, 1), "gloo")
    assert any(end.kind != "finished" for end in timeline.ends) and fix_of(timeline) is None


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_no_fix_only_keeps_ranks_from_the_line_that_raises(backend):
    story = joinlab.diagnose(joinlab.emulate(px.raises_wherever_it_has_inputs, (1, 1, 0), backend))
    (line,) = story.of(LineKind.FIX)
    assert "raised" in line.sentence and not line.edits


def needs_two_inputs(rank, inputs):
    first, second = inputs[0], inputs[1]
    if rank == 0:
        dist.all_reduce(first)
    return second


def test_counts_at_which_the_program_raises_by_itself_are_told():
    fix = fix_of(joinlab.emulate(needs_two_inputs, (3, 3), "gloo"))
    assert (fix.fix["tried"], fix.fix["raised"]) == (6, 2)
    assert fix.sentence.endswith(
        "every rank finishes, for 6 of 8 counts of inputs that are equal on all ranks; "
        "with the others the program raises, as it does without the edit."
    )


class Scaler:
    def __init__(self):
        self.found_inf = False

    def step(self, model):
        if self.found_inf:
            return
        norm = model.module.weight.grad.norm()
        dist.all_reduce(norm)
        with torch.no_grad():
            model.module.weight -= 0.1


def skips_a_step(rank, inputs):
    model, scaler = DDP(nn.Linear(1, 1)), Scaler()
    for step, x in enumerate(inputs):
        model(x.reshape(1, 1)).pow(2).sum().backward()
        scaler.found_inf = (rank, step) == (1, 1)
        scaler.step(model)


def test_an_edit_that_keeps_the_replicas_alike_comes_first():
    timeline = joinlab.emulate(skips_a_step, (3, 3), "gloo")
    assert fix_of(timeline).fix["kind"] == "flag" and "apart" not in fix_of(timeline).fix


def raises(rank, inputs):
    model = DDP(nn.Linear(1, 1))
    for i, x in enumerate(inputs):
        if rank == 1 and i == 1:
            raise ValueError("corrupt")
        model(x).sum().backward()
        model.module.weight.grad.item()


def value_used(rank, inputs):
    """What follows in the block reads the result of the all-reduce, so it cannot come behind the
    block."""
    model, best = DDP(nn.Linear(1, 1)), 0.0
    with model.join():
        for x in inputs:
            loss = model(x).sum()
            loss.backward()
            mean = loss.detach()
            dist.all_reduce(mean)
            best = max(best, mean.item())
    return best


def closing_over(scale, epochs):
    def program(rank, inputs):
        model = DDP(nn.Linear(1, 1))
        for _ in range(epochs):
            for x in inputs:
                (model(x) * scale).sum().backward()
                model.module.weight.grad.item()

    return program


def test_a_function_within_another_one_is_edited():
    fix, added = changed(closing_over(2.0, 2), (3, 4))
    assert fix["kind"] == "join" and "with model.join():" in added


def test_no_fix_is_shown_where_none_helps():
    assert not fix_of(joinlab.emulate(raises, (3, 4))).edits


def test_a_fix_says_that_ranks_train_on_fewer_inputs():
    fix, _ = changed(value_used, (3, 4))
    assert (fix["kind"], fix["fewer"]) == ("same", True)


def shared(rank, inputs):
    names = ["weight", "bias"][: 2 - rank]
    for name in names:
        print(name)
        dist.all_reduce(torch.ones(1))
    dist.barrier()


def skips(rank, inputs):
    works = []
    for i, x in enumerate(inputs):
        if rank == 0 and i == 2:
            continue
        works.append(dist.all_reduce(x, async_op=True))
    for work in works:
        work.wait()
    dist.barrier()


def ring_that_masks(rank, inputs):
    """A masked block has to be handed on, too: were all to skip such a step, none would be."""
    block = torch.ones(1) * rank
    for step in range(2):
        owner = (rank - step) % 2
        if owner > rank:
            continue
        received = torch.zeros(1)
        exchange = [
            dist.P2POp(dist.isend, block, 1 - rank),
            dist.P2POp(dist.irecv, received, 1 - rank),
        ]
        for work in dist.batch_isend_irecv(exchange):
            work.wait()
        block = received
    dist.barrier()


def group_of(rank, pair, across, kind):
    if kind == "pair" or rank == 2:
        return pair
    return across


def reduces_in_the_pair(rank, inputs):
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    across = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    for kind in ("pair", "across"):
        group = group_of(rank, pairs[rank // 2], across[rank % 2], kind)
        dist.all_reduce(torch.ones(1), group=group)
    dist.barrier()


@pytest.mark.parametrize(("program", "ranks"), [(ring_that_masks, 2), (reduces_in_the_pair, 4)])
def test_no_flag_is_agreed_on_where_the_ranks_number_alone_decides(program, ranks):
    timeline = joinlab.emulate(program, (1,) * ranks, "gloo")
    assert [end.kind for end in timeline.ends] == ["hung"] * ranks
    assert fix_of(timeline) is None


def total(values):
    if len(values) < 2:
        return sum(values, torch.zeros(1))
    both = total(values[:1]) + total(values[1:])
    dist.all_reduce(both)
    return both


def recursive(rank, inputs):
    return total(list(inputs)[rank:]).item()


class Pruned(Exception):
    """A trial that is not worth going on with."""


def report(loss):
    if loss > 4:
        raise Pruned(loss)


def prunes_by_its_own_loss(rank, inputs):
    done = 0
    try:
        for step, x in enumerate(inputs):
            dist.all_reduce(x)
            report(5.0 if (rank, step) == (1, 1) else 1.0)
            done += 1
    except Pruned:
        pass
    dist.barrier()
    return done


def returns_what_its_test_asks_for(rank, inputs):
    drift = 0.0
    for x in inputs:
        dist.all_reduce(x)
        drift += 0.3 * rank
        if drift > 0.5:
            break
    dist.barrier()
    return drift


def gathers_full_batches(rank, inputs):
    for batch in torch.ones(6 - rank, 1).split(2):
        dist.all_reduce(torch.ones(1))
        if batch.shape[0] == 2:
            gathered = [torch.empty(2, 1) for _ in range(2)]
            dist.all_gather(gathered, batch)
    dist.barrier()


def sends_once_too_often(rank, inputs):
    for step in range(2):
        dist.all_reduce(torch.ones(1))
        if rank == 0 and step == 1:
            dist.send(torch.ones(1), 1)
    dist.barrier()


def test_a_call_that_no_rank_makes_any_more_is_no_fix():
    timeline = joinlab.emulate(sends_once_too_often, (1, 1))
    joinlab.diagnose(timeline)
    assert timeline.meta["fixes"] == []


@pytest.mark.parametrize(
    ("program", "kind", "backend"),
    by_turns(
        [
            (gathers_full_batches, "where all do"),
            (steps_on_finite_inputs, "where all do"),
            (meets_what_it_took, "where all do"),
            (stops_by_its_own_state, "where all do"),
            (shared, "same"),
            (skips, "flag"),
            (leaves, "flag"),
            (prunes_by_its_own_loss, "flag"),
            (returns_what_its_test_asks_for, "flag"),
        ]
    ),
)
def test_a_fix_says_that_ranks_issue_fewer_calls(program, kind, backend):
    fix, _ = changed(program, (3, 3), backend)
    assert (fix["kind"], fix["fewer"]) == (kind, True)


def test_without_a_name_of_its_module_a_flag_is_reduced_by_its_full_one():
    fix, added = changed(r09_zero_consolidate_best.program, (2, 2), "gloo")
    assert (fix["kind"], fix["fewer"]) == ("where all do", True)
    assert "torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MIN)" in added


def downloads_until_all_have_it(rank, inputs):
    for attempt in range(3):
        data = b"data" if attempt >= rank else None
        dist.all_reduce(torch.ones(1))
        if data is not None:
            return data
    raise RuntimeError("no data")


def restores_where_one_has_to(rank, inputs):
    restored = 0
    for step in range(2):
        dist.all_reduce(torch.ones(2))
        loss = 2.0 + rank - step
        if loss > 2.5:
            restored += restore()
    return restored


def restore():
    dist.barrier()
    return 1


def filled_by_one(rank, inputs):
    rate = torch.zeros(1)
    if rank == 0:
        rate.fill_(0.25)
        dist.broadcast(rate, src=0)
    return rate.item()


def used_in_the_branch(rank, inputs):
    total = 0.0
    for x in inputs:
        loss = x + rank
        if rank == 0:
            mean = loss.clone()
            dist.all_reduce(mean)
            total += mean.item()
    return total


class Checkpointer:
    def __init__(self, rank):
        self.rank, self.saved = rank, []

    def save(self, epoch):
        if self.rank == 0:
            self.saved.append(epoch)
            dist.barrier()


def adds_up_in_rounds(rank, inputs):
    for _ in range(2):
        total = inputs[0].clone().float()
        if rank == 0:
            total += 1
            dist.all_reduce(total)
        dist.barrier()
    return total.item()


def in_a_method(rank, inputs):
    checkpointer = Checkpointer(rank)
    for epoch in range(2):
        checkpointer.save(epoch)
    return len(checkpointer.saved)


def until_it_is_read(rank, inputs):
    tries = 0
    while True:
        read = tries >= rank
        dist.all_reduce(torch.ones(1))
        if read:
            break
        tries += 1
    return read


def until_it_is_small(rank, inputs):
    loss, steps = torch.ones(1) * (2 + rank), 0
    while loss.item() > 1:
        loss = loss / 2
        dist.all_reduce(torch.ones(1))
        steps += 1
    return steps


def returns_too_early(rank, inputs):
    if rank != 0:
        return None
    gathered = [torch.zeros(1) for _ in range(2)]
    dist.all_gather(gathered, torch.ones(1))
    return len(gathered)


class Window:
    def __init__(self):
        self.count, self.total, self.means = 0, 0.0, []

    def add(self, value):
        self.total += value
        self.count += value > 0
        if self.count == 2:
            self.count = 0
            mean = torch.tensor([self.total / 2])
            dist.all_reduce(mean)
            self.means.append(mean.item())


def counts_in_windows(rank, inputs):
    window = Window()
    for step in range(4):
        dist.all_reduce(torch.ones(2))
        window.add(1.0 if (rank, step) != (1, 1) else 0.0)
    return len(window.means)


def reads_a_shard(rank, inputs):
    for attempt in range(3):
        shard = "shard" if attempt >= rank else None
        dist.all_reduce(torch.ones(1))
        if shard is not None:
            break
    dist.barrier()
    return shard


def counts_by_class(rank, inputs):
    totals, classes = [], 3 - rank
    for _ in range(classes):
        seen = torch.ones(1)
        dist.all_reduce(seen)
        totals.append(seen.item())
    dist.barrier()
    return len(totals)


@pytest.mark.parametrize(
    ("program", "kind", "returns", "backend"),
    by_turns(
        [
            (px.shares_a_metric_made_anew, "out", (0.75, 0.75)),
            (adds_up_in_rounds, "out", (3.0, 3.0)),
            (counts_in_windows, "out", (2, 1)),
            (reads_a_shard, "all ready", ("shard", "shard")),
            (counts_by_class, "most", (3, 3)),
            (filled_by_one, "out", (0.25, 0.25)),
            (used_in_the_branch, "out", (6.0, 0.0)),
            (in_a_method, "out", (2, 0)),
            (until_it_is_read, "all ready", (True, True)),
            (until_it_is_small, "together", (2, 2)),
            (returns_too_early, "late", (2, None)),
            (downloads_until_all_have_it, "all ready", (b"data", b"data")),
            (restores_where_one_has_to, "where one does", (1, 1)),
            (r15_two_optimizers_clip.program, "where one does", (1, 1)),
        ]
    ),
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_fix_keeps_the_meaning(program, kind, returns, backend):
    timeline = joinlab.emulate(program, (2, 2), backend)
    fix = fix_of(timeline)
    assert (fix.fix["kind"], fix.fix["fewer"]) == (kind, False)
    again = joinlab.emulate(edited(program, fix.edits), (2, 2), backend)
    assert again.returns == returns


@pytest.mark.parametrize(
    ("program", "kind"),
    [(r02_gan_skips_d.program, "where all do"), (m01_local_inf_skips_step.program, "flag")],
)
def test_a_fix_makes_replicas_equal_that_differ_behind_a_test(program, kind):
    timeline = joinlab.emulate(program, (3, 3, 3), "nccl")
    fix = fix_of(timeline)
    assert "replicas differ" in joinlab.diagnose(timeline).sentence
    assert (fix.fix["kind"], fix.fix["fewer"]) == (kind, True)
    again = joinlab.emulate(edited(program, fix.edits), (3, 3, 3), "nccl")
    assert "every call met its counterpart" in joinlab.diagnose(again).sentence
    assert len(set(again.returns)) == 1


def names_a_group_of_its_node(rank, inputs):
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    for x in inputs[rank // 2 :]:
        dist.all_reduce(x)
    dist.barrier(group=groups[rank // 2])


@pytest.mark.parametrize(
    ("program", "returns", "backend"),
    by_turns(
        [
            (px.evaluates_without_its_group, (1.5, 1.5, 0.0, 0.0)),
            (px.leaders_reduce_in_the_world, (6.0, 6.0, 6.0, 6.0)),
        ]
    ),
)
def test_the_group_of_the_ranks_that_make_a_call_is_passed(program, returns, backend):
    timeline = joinlab.emulate(program, (2, 2, 2, 2), backend)
    fix = fix_of(timeline)
    assert fix.fix["kind"] == "group" and timeline.live.mended.returns == returns
    assert "joining" not in fix.fix


def shares_what_a_group_has_found(rank, inputs):
    group, score = dist.new_group([2, 3]), torch.zeros(1)
    if rank > 1:
        score += rank
        dist.all_reduce(score, group=group)
        dist.broadcast(score, src=2)
    dist.barrier()
    return score.item()


def adds_up_what_two_ranks_have(rank, inputs):
    group, score = dist.new_group([2, 3]), torch.zeros(1)
    if rank > 1:
        dist.barrier(group=group)
        score += rank
        dist.all_reduce(score)
    dist.barrier()
    return score.item()


@pytest.mark.parametrize("program", [shares_what_a_group_has_found, adds_up_what_two_ranks_have])
def test_what_is_meant_for_all_ranks_does_not_stay_in_a_group(program):
    timeline = joinlab.emulate(program, (1, 1, 1, 1), "gloo")
    assert fix_of(timeline).fix["kind"] == "out"
    assert timeline.live.mended.returns == (5.0, 5.0, 5.0, 5.0)


def test_a_group_is_passed_to_no_call_of_all_ranks():
    timeline = joinlab.emulate(names_a_group_of_its_node, (3, 3, 3, 3), "gloo")
    assert timeline.ends[0].kind != "finished"
    fix = fix_of(timeline)
    assert fix is None or fix.fix["kind"] != "group"


def test_a_fix_for_equal_inputs_is_tried_with_equal_ones_and_with_the_same_each_time():
    (line,) = joinlab.diagnose(joinlab.emulate(leaves, (3, 3))).texts(LineKind.FIX)
    assert line.endswith("for 8 of 8 counts of inputs that are equal on all ranks.")


def test_a_branch_that_reads_only_the_rank_is_not_taken_by_all():
    assert fix_of(joinlab.emulate(rank_0_leaves, (3, 3))) is None


def rank_0_leaves(rank, inputs):
    dist.all_reduce(torch.ones(1))
    if rank == 0:
        return
    dist.all_reduce(torch.ones(1))
    dist.all_reduce(torch.ones(1))


def test_a_healthy_run_needs_none():
    assert fix_of(joinlab.emulate(joinlab.cases.case_1, (3, 4))) is None


def test_a_story_without_fixes_says_the_same_and_how_to_mend_nothing() -> None:
    run = joinlab.emulate(joinlab.cases.case_4, (2, 3))
    hidden, whole = joinlab.diagnose(run, fix=False), joinlab.diagnose(run)
    assert whole.of(LineKind.FIX) and not hidden.of(LineKind.FIX)
    assert [line for line in whole.lines if line.kind is not LineKind.FIX] == list(hidden.lines)


def ends_well(timeline):
    return all(end.kind == "finished" and not end.pending for end in timeline.ends)


def test_the_run_with_the_fix_is_kept_and_every_rank_finishes():
    timeline = joinlab.emulate(joinlab.cases.case_4, (5, 6))
    assert not timeline.live.mended
    assert fix_of(timeline).fix["kind"] == "behind"
    assert mend(timeline) is timeline.live.mended and ends_well(timeline.live.mended)
    assert not ends_well(timeline) and timeline.live.mended.meta["inputs"] == [5, 6]
    barriers = timeline.live.mended.calls.filter(origin="all-reduce (barrier)")
    assert barriers.height == 2  # behind the loop, one a rank


def test_a_launched_run_is_emulated_once_somebody_asks_for_its_fix():
    timeline = joinlab.launch(joinlab.cases.case_4, (2, 3), "gloo", on_output=None, progress=False)
    timeline.meta["side_effects"] = {0: "wrote a file"}  # or it were emulated unasked
    assert isinstance(fix_of(timeline), Untried) and not timeline.live.mended
    mended = mend(timeline)
    assert mended.meta["engine"] == "emulated" and ends_well(mended)
    fix = fix_of(timeline)
    assert isinstance(fix, TriedEdit)
    assert "Tried, emulated: every rank finishes" in fix.sentence
    assert mend(timeline) is mended  # it is not sought again
    assert first_screen(timeline).tried.text == "Tried, emulated: both finish."


@pytest.mark.parametrize("run", [joinlab.launch, joinlab.emulate])
def test_a_run_that_no_edit_mends_says_so(run):
    settings = {"on_output": None, "progress": False} if run is joinlab.launch else {}
    timeline = run(own_sizes, (1, 1), "gloo", **settings)
    assert mend(timeline) is None
    assert joinlab.diagnose(timeline).of(LineKind.FIX) == (NoFix(),)


def test_where_a_trial_takes_too_long_no_edit_is_said_to_be_of_no_use(monkeypatch):
    """Of 256 ranks each takes longer than it may; of two, one of them mends the program."""
    monkeypatch.setattr(fixes, "TRY_SECONDS", 1e-6)
    timeline = joinlab.emulate(cases.case_4, (1, 2))
    (line,) = joinlab.diagnose(timeline).of(LineKind.FIX)
    assert line.sentence == "Edits were tried, but not to their end: that takes too long here."


def own_sizes(rank, inputs):
    if rank == 0:
        dist.all_reduce(torch.ones(1))
    else:
        dist.send(torch.ones(1), 0)


def fails_on_one_rank(rank, inputs):
    total = torch.ones(1)
    for x in inputs:
        if rank == 1:
            raise ValueError(f"bad record {x}")
        dist.all_reduce(total)


def closes_with_a_barrier(rank, inputs):
    try:
        fails_on_one_rank(rank, inputs)
    finally:
        dist.barrier()


@contextmanager
def barrier_at_the_end():
    try:
        yield
    finally:
        dist.barrier()


def closes_a_block(rank, inputs):
    with barrier_at_the_end():
        fails_on_one_rank(rank, inputs)


@pytest.mark.parametrize("program", [closes_with_a_barrier, closes_a_block])
def test_an_error_that_came_before_the_call_of_a_finally_is_where_to_look(program):
    timeline = joinlab.emulate(program, (2, 2))
    text = str(joinlab.diagnose(timeline))
    assert "where rank 1 raised" in text and "behind a call" not in text


def gathers_on_one_rank(rank, inputs):
    model = DDP(nn.Linear(1, 1))
    for _ in range(2):
        model(torch.ones(1, 1)).sum().backward()
    print("rank", rank, "of", everyone(1.0) if rank == 0 else 1)
    model(torch.ones(1, 1)).sum().backward()


def everyone(value):
    values = [None, None]
    dist.all_gather_object(values, value)
    return values


def test_an_error_behind_a_call_that_met_another_leads_to_the_branch():
    timeline = joinlab.emulate(gathers_on_one_rank, (1, 1))
    text = str(joinlab.diagnose(timeline))
    assert "where the ranks part: rank 0's error came behind a call that met another" in text
    del timeline.meta["parting"]
    text = str(joinlab.diagnose(replace(timeline)))
    assert "the ranks part" not in text
    assert "rank 0's error came behind a call that met rank 1's call there" in text


def reduces_in_its_own_order(rank, inputs):
    sums = {}
    for name in ("loss", "seen") if rank == 0 else ("seen", "loss"):
        sums[name] = torch.ones(1)
    for value in sums.values():
        dist.all_reduce(value)
    for name in sums:
        dist.all_reduce(sums[name])


def test_a_launch_that_finished_with_data_in_another_order_is_no_all_clear():
    timeline = joinlab.launch(
        reduces_in_its_own_order, (1, 1), "gloo", on_output=None, progress=False
    )
    (headline,) = joinlab.diagnose(timeline).texts(LineKind.HEADLINE)
    assert "name = 'loss'" in headline and "name = 'seen'" in headline


def test_without_the_program_s_text_nothing_is_said_of_what_an_error_came_behind():
    timeline = joinlab.emulate(gathers_on_one_rank, (1, 1))
    assert "came behind" in str(joinlab.diagnose(timeline))
    here = __file__.removesuffix(".py")
    output = tuple(text.replace(here, "/nowhere/else") for text in timeline.output)
    text = str(joinlab.diagnose(replace(timeline, output=output)))
    assert "came behind" not in text and "where rank 0 raised" in text


def broadcasts_on_some(rank, inputs):
    seed = torch.zeros(1)
    if rank != 1:
        dist.broadcast(seed, src=0)
    DDP(nn.Linear(2, 1))


def broadcasts_from_two(rank, inputs):
    dist.broadcast(torch.ones(1) * rank, src=rank % 2)
    DDP(nn.Linear(2, 1))


@pytest.mark.parametrize(
    ("program", "counts"), [(broadcasts_on_some, (1, 1, 1)), (broadcasts_from_two, (1, 1))]
)
def test_no_error_behind_a_foreign_call_leads_to_its_own_line(program, counts):
    text = str(joinlab.diagnose(joinlab.emulate(program, counts)))
    assert "error came behind a call that met" in text and "raised.\n" not in text


def test_the_rank_as_a_key_is_no_reason():
    story = joinlab.diagnose(joinlab.emulate(sums_its_shard, (1, 1), "gloo"))
    assert "keys of their data" not in str(story)


def sums_its_shard(rank, inputs):
    shards = [[1.0, 2.0, 3.0], [4.0, 5.0]]
    total = torch.tensor(shards[rank])
    dist.all_reduce(total)
