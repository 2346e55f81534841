"""The boxes of a picture: the calls in each, their marks, and that none overlap."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from joinlab.analysis.meanings import asks
from joinlab.analysis.reading import read
from joinlab.cases import CASES, case_4, case_6
from joinlab.emulator.emulate import emulate
from joinlab.jobs.load import load
from joinlab.picture.compared import compared
from joinlab.picture.first_screen import LANES, MOST, NARROW, first_screen
from joinlab.picture.layout import Across
from joinlab.picture.rows import RowKind
from joinlab.picture.svg import svg
from joinlab.story.judge import diagnose
from joinlab.timeline import Ending, timeline_from_rows
from tests.bench.large import large
from tests.dumps import write
from tests.first_screen import one_raises, recv_ring
from tests.material.unseen.pj import j25
from tests.material.unseen.pk import k09
from tests.parallel_jobs import dumps, standing
from tests.random_timelines import timelines
from tests.timelines import Writer, case_timeline

DONE = Ending("finished")


def labels(made, lane):
    return [one.stack or box.label for one in made.columns if (box := one.boxes.get(lane))]


@given(timelines())
def test_unfolded_every_call_has_one_box_in_its_ranks_order_and_is_open_exactly_if_it_never_ended(
    timeline,
):
    made = first_screen(timeline, unfold=True)
    for rank in range(3):
        boxes = [box for one in made.columns if (box := one.boxes.get(rank))]
        assert [box.row for box in boxes] == [
            row for row in timeline.calls.to_dicts() if row["rank"] == rank
        ]
        for box in boxes:
            assert box.label.startswith(asks(box.row["origin"], box.row["op"]))
            assert box.open == (box.row["completed_ns"] is None and box.row["error"] is None)
            assert box.failed == (box.row["error"] is not None)


@given(timelines(), st.booleans(), st.sampled_from([640, 980, 1400]))
def test_no_box_lies_on_another_or_outside_the_picture(timeline, unfold, width):
    across = Across(first_screen(timeline, unfold=unfold), width)
    for lane in range(3):
        columns = across.screen.columns
        boxes = [across.box(i, lane) for i, column in enumerate(columns) if lane in column.boxes]
        assert all(one.x + one.w < other.x for one, other in pairwise(boxes))
        for box in boxes:
            assert across.t0 <= box.x and box.x + box.w <= across.width - across.behind + 1e-6
            assert box.y >= 0 and box.y + box.h <= across.height


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_the_line_that_raised_is_shown_with_its_rank(backend):
    made = first_screen(emulate(one_raises, (5, 5), backend))
    shown = {line.text.strip(): [mark.text for mark in line.here] for line in made.code}
    assert shown['raise ValueError("sample 3 is empty")'] == ["rank 1"]
    assert shown["model(input).backward()"] == ["rank 0"]


def raises_at_the_third(rank, inputs):
    for step, _ in enumerate(inputs):
        if rank == 1 and step == 2:
            raise ValueError("nan in the loss")
        dist.all_reduce(torch.ones(1))


def test_endings_have_one_colour_in_the_headline_and_at_the_lanes():
    made = first_screen(emulate(raises_at_the_third, (4, 4, 4)))
    ends = made.headline[-1]
    assert ends.text.endswith("finished, a call still pending.")
    assert [tone for _, _, tone, _ in made.ends] == [ends.tone, "bad", ends.tone]


def test_a_headline_about_replicas_that_differ_is_no_good_news():
    made = first_screen(emulate(k09, (4, 4)))
    assert {piece.tone for piece in made.headline} == {"warn"}
    assert "".join(piece.text for piece in made.headline).endswith("step 3: `weight` and 1 more.")


def test_case_4_on_gloo_shows_one_pair_that_can_never_meet():
    made = first_screen(case_timeline(4, 2))
    wrong = [one for one in made.columns if one.flag == "apart"]
    assert [[box.label for box in one.drawn] for one in wrong] == [["anyone left?", "barrier"]]
    assert (
        made.columns[made.focus] is wrong[0]
        and wrong[0].clashes == ((0, 1),)
        and wrong[0].size == "big"
    )
    assert wrong[0].remark.startswith("Face each other, but can never meet")


def test_case_4_on_nccl_shows_every_wrong_meeting_and_what_was_meant():
    made = first_screen(case_timeline(4, 5, "nccl"))
    assert labels(made, 0) == [
        "5 inputs",
        "anyone left?",
        "sync gradients?",
        "shadow gradient",
        "anyone left?",
        "who is last?",
        "final parameters",
    ]
    flags = [one.flag for one in made.columns]
    assert flags == ["met"] * 4 + ["wrong"] * 3
    for at, lane, other_at, other in made.meant:
        assert made.columns[at].boxes[lane].label == made.columns[other_at].boxes[other].label
    assert len(made.meant) == 2 and made.readings[0].taken == "nobody"
    assert [end[:2] for end in made.ends] == [
        ("✓", "finished"),
        ("✕", "waits"),
    ] and made.inputs == (
        5,
        6,
    )


@pytest.mark.parametrize("counts", [(5, 5, 6), (5,) * 7 + (6,), (3,) * 63 + (2,)])
def test_with_any_number_of_ranks_the_loud_call_is_the_headlines_and_its_value_is_told(counts):
    """Of more than four ranks, those that did the same share a lane."""
    run = emulate(case_4, counts)
    made = first_screen(run)
    loud, reading = made.columns[made.focus], made.readings[0]
    assert loud.missing is None and {box.label for box in loud.drawn} == {"anyone left?", "barrier"}
    assert reading.column == made.focus and reading.taken == "nobody"
    assert loud.boxes[reading.to].label == "anyone left?"
    assert loud.boxes[reading.of].label == "barrier" and abs(reading.to - reading.of) == 1
    drawn = svg(made)
    asking = sum(box.label == "anyone left?" for box in loud.drawn)
    assert drawn.count(">reads 0: nobody<") == asking and ">puts in 0<" in drawn


def swapped(rank, inputs):
    """Rank 1 issues the two calls in another order."""
    for _ in inputs:
        if rank == 1:
            dist.broadcast(torch.ones(8), 0)
            dist.all_reduce(torch.ones(8))
        else:
            dist.all_reduce(torch.ones(8))
            dist.broadcast(torch.ones(8), 0)


def resized(rank, inputs):
    for step, _ in enumerate(inputs):
        dist.all_reduce(torch.ones(5 if (rank, step) == (1, 1) else 4))


def replaced(rank, inputs):
    for step, _ in enumerate(inputs):
        if (rank, step) == (1, 1):
            dist.reduce(torch.ones(4), 0)
        else:
            dist.all_reduce(torch.ones(4))


@pytest.mark.parametrize("program", [swapped, resized, replaced])
@pytest.mark.parametrize("inputs", [1, 3])
def test_where_all_issue_equally_many_calls_none_is_one_too_many(program, inputs):
    run = emulate(program, (inputs,) * 3)
    made = first_screen(run)
    assert not made.meant
    assert all(one.extra is None and one.missing is None for one in made.columns)
    assert "more than" not in str(diagnose(run)) and "fewer than" not in str(diagnose(run))


def test_calls_in_another_order_are_meant_for_each_other_crosswise():
    def queued(rank, inputs):
        for size in (1, 3) if rank == 0 else (3, 1):
            dist.all_reduce(torch.ones(size))

    assert first_screen(emulate(queued, (1, 1), backend="nccl")).meant == (
        (0, 1, 1, 0),
        (1, 1, 0, 0),
    )


@pytest.mark.parametrize("world", [3, 8])
def test_ranks_that_wait_for_each_other_in_recv_stand_side_by_side_and_say_for_whom(world):
    made = first_screen(emulate(recv_ring, (1,) * world))
    (one,) = made.columns
    before = [(rank - 1) % world for rank in range(world)]
    assert [box.label for box in one.drawn] == [f"recv from {rank}" for rank in before]
    assert [end[3] for end in made.ends] == [f"for rank {rank}" for rank in before]
    assert not one.absent and one.remark == "Nothing meets these calls."
    marks = [piece.text for line in made.code if "dist.recv" in line.text for piece in line.here]
    assert marks == ["ranks 0-2" if world == 3 else "all 8 ranks"]


def test_a_recv_that_nothing_meets_says_what_lacks():
    def waits(rank, inputs):
        if rank == 1:
            dist.recv(torch.ones(1), 0)

    made = first_screen(emulate(waits, (1, 1)))
    (one,) = made.columns
    assert (one.absent, one.lacks) == ((0,), "no send") and ">no send<" in svg(made)
    assert one.remark == "Nothing meets this call: rank 0 issued no send for it."


def test_the_line_of_calls_that_are_too_many_has_the_rank_that_issued_them():
    def every_second(rank, inputs):
        for step, _ in enumerate(inputs):
            dist.all_reduce(torch.ones(1))
            if rank == 0 and step % 2:
                dist.all_reduce(torch.zeros(1))

    made = first_screen(emulate(every_second, (4,) * 3))
    marks = {line.text.strip(): [piece.text for piece in line.here] for line in made.code}
    assert "".join(piece.text for piece in made.headline).startswith(
        "Rank 0 issued 2 calls of all-"
    )
    assert marks["dist.all_reduce(torch.zeros(1))"] == ["rank 0"]
    assert marks["dist.all_reduce(torch.ones(1))"] == ["ranks 1, 2"]


def test_the_statements_of_a_script_at_which_ranks_hang_are_all_shown():
    writer = Writer()
    writer.call(0, "all_reduce", done=False, line=13)
    writer.call(1, "barrier", done=False, line=17)
    loop = {"file": "train.py", "first_line": 12, "text": "for x in data:\n    all_reduce(x)\n"}
    rest = {"file": "train.py", "first_line": 17, "text": "barrier()\n"}
    ends = [Ending("hung", call=0, proven=True)] * 2
    made = first_screen(writer.timeline(ends, engine="recorded", functions=[loop, rest]))
    marks = {line.number: [piece.text for piece in line.here] for line in made.code}
    assert marks == {12: [], 13: ["rank 0"], 17: ["rank 1"]}
    assert [box.line for column in made.columns for box in column.drawn] == [13, 17]


def test_a_headline_of_endings_alone_has_their_colour():
    def raises(rank, inputs):
        raise KeyError("x")

    (piece,) = first_screen(emulate(raises, (1, 1))).headline
    assert piece.text.startswith("Ranks 0, 1") and piece.tone == "bad"


def test_a_line_that_all_ran_says_so_or_how_many_were_compared():
    def odd(rank, inputs):
        for _ in inputs:
            dist.all_reduce(torch.ones(1))
            if rank != 69:
                dist.barrier()

    run = emulate(odd, (2,) * 70)
    diagnose(run)
    said = [piece.text for line in first_screen(run).code for piece in line.here]
    assert "33 of 70 ranks compared" in said and "ranks 0-31, 69" not in said
    few = emulate(odd, (2,) * 6)
    diagnose(few)
    assert not any(
        "compared" in piece.text for line in first_screen(few).code for piece in line.here
    )


def test_only_numbers_that_count_up_are_shown():
    """The numbers of sends and recvs count per pair of ranks."""

    def around(rank, inputs):
        for _ in inputs:
            if rank == 0:
                dist.send(torch.ones(1), 1)
            if rank == 1:
                dist.recv(torch.ones(1), 0)
            dist.all_reduce(torch.ones(1))

    made = first_screen(emulate(around, (2, 2, 2)), unfold=True)
    sends = [box.kind is RowKind.PAIR for one in made.columns for box in one.drawn[:1]]
    assert sends == [True, False, True, False]
    assert [bool(one.number) for one in made.columns] == [False, True, False, True]
    assert "call :" not in svg(made)


def test_only_calls_that_differ_clash():
    writer = Writer(world_size=4)
    for rank in range(3):
        writer.call(rank, "all_reduce", done=False)
    writer.call(3, "barrier", done=False)
    (one,) = first_screen(writer.timeline([Ending("hung", proven=True)] * 4)).columns
    assert one.clashes == ((2, 3),)


def test_ranks_that_did_the_same_share_a_lane_and_up_to_four_keep_theirs():
    for world, names in (
        (8, ("ranks 0-4, 6, 7", "rank 5")),
        (4, tuple(f"rank {rank}" for rank in range(4))),
    ):
        writer = Writer(world_size=world)
        for rank in range(world):
            for number in range(5):
                writer.call(rank, "all_reduce", input=number, line=1)
            writer.call(rank, "barrier" if rank == 5 else "all_reduce", done=False, line=2)
        made = first_screen(
            writer.timeline([Ending("hung", call=5, group="0", proven=True)] * world)
        )
        assert made.names == names and {*range(len(names))} == {
            lane for one in made.columns for lane in one.boxes
        }


def test_who_never_came_is_shown():
    made = first_screen(case_timeline(2, 2, "nccl"))
    one = made.columns[made.focus]
    assert one.absent == (0,) and 0 not in one.boxes and one.boxes[1].open
    assert one.remark == "Nothing meets this call: rank 0 never issued one."


def test_ranks_that_meet_a_round_late_part_where_nothing_meets_the_last_call():
    """Of two ranks neither is the odd one: no call is missing or too many in the picture, so the
    open one is loud."""
    writer = Writer(world_size=2)
    for rank, rounds in ((0, range(4)), (1, (0, 1, 3))):
        for at in rounds:
            writer.call(rank, "all_reduce", input=at, line=1, done=at < 3 or rank == 1)
    made = first_screen(writer.timeline([Ending("hung", call=3, group="0", proven=True), DONE]))
    assert made.columns[made.focus].flag == "open" and made.columns[made.focus].absent == (1,)


def test_a_stack_says_what_it_holds():
    first = first_screen(case_timeline(1, 2)).columns[0]
    assert (
        first.stack
        and first.drawn[0].kind is RowKind.FOLD
        and "DDP's setup" in first.drawn[0].label
    )
    assert first.remark == "all matched"


@pytest.mark.parametrize("ranks", [3, 8])
def test_of_a_large_run_the_calls_that_tell_have_the_room_and_every_row_is_counted(ranks):
    timeline = large(ranks, 2000)
    made = first_screen(timeline)
    assert (
        8 < len(made.columns) <= MOST
        and made.columns[0].stack == f"{made.columns[0].until + 1:,} rows"
    )
    assert [one.slot for one in made.columns[1:]] == [one.until + 1 for one in made.columns[:-1]]
    assert made.columns[-1].until == read(timeline).count - 1
    for one in made.columns:
        if one.stack:  # no stack that holds a mismatch says that all matched
            assert (one.remark == "all matched") == (
                not read(timeline).uneven[one.slot : one.until + 1].any()
            )
    assert [made.ranks[lane] for lane in made.columns[-1].absent] == [(ranks - 1,)]
    assert made.ranks[1] == (1,)  # the odd one; of 8, those that look the same share a lane
    assert (
        made.names == ("ranks 0, 3-6", "rank 1", "rank 2", "rank 7")
        if ranks > NARROW
        else len(made.names) == ranks
    )


def test_the_one_that_finished_is_not_marked_as_the_odd_one():
    hung = emulate(case_4, (1, 2, 2))
    assert first_screen(hung).ends[0][1] == "finished" and first_screen(hung).outlier is None


@pytest.mark.filterwarnings("ignore:there is no record of")
def test_of_many_lanes_those_that_the_story_names_stay_and_the_rest_is_one(tmp_path):
    groups = {str(at): tuple(range(8 * at, 8 * at + 8)) for at in range(8)} | {
        "all": tuple(range(64))
    }
    calls = tuple((group, "all_reduce") for _ in range(3) for group in groups)
    job = standing(groups, calls, culprit=21, at=11)
    for missing in ((), (21,)):
        recorded = {rank: dump for rank, dump in dumps(job).items() if rank not in missing}
        made = first_screen(load(write(tmp_path / f"{len(missing)}", recorded)))
        assert len(made.ranks) == LANES and made.ranks[made.outlier] == (21,)
        assert sorted(rank for lane in made.ranks for rank in lane) == list(range(64))
        assert made.names[-1] == f"{len(made.ranks[-1])} others"
        assert made.ends[made.outlier][1] == ("no record" if missing else "not known")
        for one in made.columns:
            assert not missing or made.outlier not in one.boxes
    # a field that was not recorded does not count as different
    assert not any("did not match" in one.remark for one in made.columns)


def ring_without_a_send(rank, inputs):
    world = dist.get_world_size()
    for step, _ in enumerate(inputs):
        if rank % 2:
            dist.recv(torch.zeros(1), rank - 1)
        if (rank, step) != (2, 3):
            dist.send(torch.ones(1), (rank + 1) % world)
        if rank % 2 == 0:
            dist.recv(torch.zeros(1), (rank - 1) % world)


def test_a_stack_of_several_folds_counts_the_rounds_of_all():
    stack = first_screen(emulate(ring_without_a_send, (6,) * 4)).columns[0]
    assert (stack.stack, stack.number) == ("5 rounds", "1-10")
    assert stack.drawn[2].label == "3 × send, recv; 2 × recv, send"


def test_a_stack_of_shadows_holds_no_inputs_of_its_rank():
    stacks = [one for one in first_screen(emulate(case_6, (40, 1))).columns if one.stack]
    assert [[box.stack or one.stack for box in one.drawn] for one in stacks] == [
        ["setup", "setup"],
        ["37 inputs", "111 calls"],
    ]


def test_the_shadows_of_a_long_healthy_run_matched():
    """Rank 0 shadows 600 inputs: its calls come from other lines than those of rank 1, and meet
    them."""
    (told,) = {
        (one.flag, one.remark)
        for one in first_screen(emulate(case_6, (300, 900))).columns
        if one.stack
    }
    assert told == ("met", "all matched")


def test_a_timeline_without_calls_has_its_endings():
    made = first_screen(
        timeline_from_rows([], [DONE, Ending("killed", text="SIGKILL")], {"backend": "gloo"})
    )
    assert made.columns == () and [end[1] for end in made.ends] == ["finished", "killed"]


def test_where_ranks_finished_before_the_fix_says_what_is_better_with_it():
    for case, said in ((2, "both finish, no call pending"), (3, "both finish")):
        run = emulate(CASES[case].program, (2, 3))
        diagnose(run)
        assert first_screen(run).tried.text == f"Tried: {said}."


class Loop:
    def run(self, rank, inputs):
        for step, x in enumerate(inputs):
            dist.all_reduce(x)
            if rank == 0 and step % 2 == 1:
                dist.broadcast(x, 0)


def runs_a_method(rank, inputs):
    Loop().run(rank, inputs)


def test_an_edit_of_a_method_stands_as_deep_as_what_it_replaces():
    run = emulate(runs_a_method, (4, 4))
    diagnose(run)
    code = first_screen(run).code
    removed, added = (next(line.text for line in code if line.sign == sign) for sign in "-+")
    assert removed.strip() != added.strip()
    assert re.match(" *", removed)[0] == re.match(" *", added)[0]


def test_stacks_within_which_two_runs_part_say_so_and_how_many_calls_they_hold():
    runs = [emulate(case, (5, 6)) for case in (case_4, case_6)]
    for scene, count in zip(compared(*runs)[0], (25, 20), strict=True):
        stack = scene.columns[0]
        assert (stack.stack, stack.remark) == (f"{count} calls", "part here")


def test_a_run_without_calls_is_compared_too():
    nothing = timeline_from_rows([], [DONE] * 2, {"program": "nothing"})
    both, sentence = compared(nothing, case_timeline(1, 2))
    assert sentence.startswith("They part") and [len(one.drawn) for one in both[0].columns] == [
        0 for _ in both[1].columns
    ]


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_the_root_of_a_scatter_gives_all_parts_and_differs_from_nobody_by_that(backend):
    column = first_screen(emulate(j25, (1, 1, 1), backend=backend)).columns[0]
    assert column.flag == "wrong" and column.clashes == ((1, 2),)
