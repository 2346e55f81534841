"""Fixes: edits of a program's text, each applied and emulated before it is shown.

The candidates of `edits` are tried in turn, with the run's counts of inputs and then with nearby
ones (equal ones if the run's were equal). The first with which every rank finishes, for all counts,
is shown with the number of counts. It must keep the meaning:

- The calls that ranks issued before their traces diverge still carry the same values; and so does the
  next one, if the edit moves it.
- A run that finished before trains and returns the same.
- An optimizer's step that had gradients averaged over the ranks still has them.

`fewer` says that ranks then train on fewer inputs, or issue fewer calls from a line that the edit
does not move; `uneven`, that they train on unlike numbers of inputs although they got as many.
`raised` counts the counts of inputs at which the program raises with the edit and without; an edit
with which an error of the run comes back is none. The number of trials depends on the program alone,
so that every reader sees the same fix.
"""

from __future__ import annotations

import itertools
import linecache
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import polars as pl

from joinlab.analysis.meanings import AVERAGES, is_own
from joinlab.analysis.reading import read
from joinlab.backend.calls import is_peer_gone
from joinlab.emulator.again import Rerun
from joinlab.errors import LaunchError, ProgramError
from joinlab.ops import FACTS, Op, decode_values
from joinlab.program.labels import owner_of
from joinlab.program.program import Program
from joinlab.story.edits import candidates
from joinlab.story.edits.edited import EDITED, Edited
from joinlab.story.evidence import Evidence
from joinlab.story.forms import cause_of
from joinlab.story.forms.even import AllFinished
from joinlab.story.forms.fates import raised_at
from joinlab.story.forms.misused import Grouped, NotWaited, OutsideGroup, Overwritten
from joinlab.story.forms.silent import ReplicasDiffer
from joinlab.story.lines import Line
from joinlab.timeline import CUT, EndKind, PlainFix, Timeline

_GOOD_WITH_EDIT = (AllFinished, ReplicasDiffer, NotWaited, OutsideGroup, Grouped)
GOOD = (*_GOOD_WITH_EDIT, Overwritten)
"""Headlines of runs whose calls all met: no edit is sought for them."""

_GIVEN_BY_ROOT = (Op.BROADCAST, Op.SCATTER)

MAX_COUNTS = 24
MAX_CALLS = 1500
"""Counts are tried until they add up to about so many calls; at least MIN_COUNTS."""
MIN_COUNTS = 4
MAX_EDITS = 8
TRY_SECONDS = 5.0
"""Real seconds after which an edited program is ended; no edit begins after MAX_SECONDS in all, a
rare last resort."""
MAX_SECONDS = 20.0


def find_fixes(evidence: Evidence, source: object) -> None:
    """Store a tested fix of a run that failed, or whose replicas differ behind a known test, in
    `meta["fixes"]`, [] if none is found, and the run with it in `mended`; in `meta["fixes_cut"]`,
    whether a trial was ended before it was known how it ends.

    A fix with which the replicas differ is stored only if there is no other, one with which ranks
    train on fewer inputs only if no other is as good, and one with which values of other ranks go
    into a result only if no group keeps them out.

    Raises LaunchInterrupted if the user interrupts it.
    """
    timeline, fixes = evidence.timeline, list[tuple[PlainFix, Timeline]]()
    tests = timeline.meta.get("parting", {}).get("tests", ())
    cut, wrong = False, not _good(timeline) or (tests and _are_apart(timeline))
    if wrong and isinstance(source, Rerun):
        rows = timeline.calls.filter(
            pl.col("completed_ns").is_null() | pl.col("error").is_not_null()
        )
        calls = [call for line in cause_of(evidence) for call in line.calls]
        sites = {*rows["call_site"].drop_nulls(), *(call.site for call in calls)}
        for call in calls:
            stack = evidence.matched.row_of[call.rank, call.group, call.seq]["stack"] or ()
            sites |= {frame.rpartition(" ")[0] for frame in stack}
        errors, until = [end.text for end in evidence.ends], time.monotonic() + MAX_SECONDS
        edits = candidates(source.program, tests, sites, errors)
        for edited in itertools.islice(edits, MAX_EDITS):
            if fixes and not any(_price(fixes[-1])[:2]) and edited.kind != "group":
                continue  # only a group is better than values of other ranks
            try:
                fix = _try(timeline, source, edited)
            except TimeoutError:
                fix, cut = None, True
            if fix is not None:
                fixes.append(fix)
            late = time.monotonic() > until
            cut = cut or late
            if late or (fixes and not any(_price(fixes[-1]))):
                break
    timeline.meta["fixes"] = []
    if fixes:
        best, timeline.live.mended = min(fixes, key=_price)
        timeline.meta["fixes"].append(best)
    if cut:
        timeline.meta["fixes_cut"] = True


def _price(tried: tuple[PlainFix, Timeline]) -> tuple[bool, bool, bool]:
    fix, _ = tried
    left_out = fix["fewer"] or fix["kind"] == "where one does"  # a test that fails is
    return fix.get("apart", False), left_out, "joining" in fix


def _try(before: Timeline, source: Rerun, edited: Edited) -> tuple[PlainFix, Timeline] | None:
    """The candidate as a fix and the run with it, if every rank finishes with it for all counts
    tried at which the program does not raise by itself, and it keeps the meaning.

    Raises TimeoutError if a trial takes longer than TRY_SECONDS."""
    try:
        trial = _Trial(before, source, edited)
    except (LaunchError, ProgramError, SyntaxError):
        return None
    if not trial.keeps_meaning():
        return None
    counts = trial.works_with_other_counts()
    fix = None if counts is None else trial.fix(*counts)
    return None if fix is None else (fix, trial.first)


class _Trial:
    """A run with an edit, and the counts of inputs of the run that it is to mend.

    before, first  the run without the edit, and the one with it
    moved, added   the texts of the lines that the edit takes away or moves, and of those that it adds
    work_before, work  of both runs, as `_work` counts it

    Raises TimeoutError if a run takes longer than TRY_SECONDS, and LaunchError, ProgramError or
    SyntaxError if the edited program cannot be emulated.
    """

    def __init__(self, before: Timeline, source: Rerun, edited: Edited) -> None:
        self.before, self.source, self.edited = before, source, edited
        self.program = edited.program(source.program)
        self.first = _run(source, self.program, source.counts)
        edits = edited.edits()
        self.moved = {line.strip() for edit in edits for line in edit.removed}
        self.added = {line.strip() for edit in edits for line in edit.added} - self.moved
        self.work_before = _work(before, edited.after)
        self.work = _work(self.first, edited.after)

    def keeps_meaning(self) -> bool:
        """Whether every rank finishes, and what the program is for is still done."""
        before, first, edited = self.before, self.first, self.edited
        if not _mended(before, first) or not self._keeps_values() or _loses_averages(before, first):
            return False
        if edited.kind == "all ready" and not self._was_passed():
            return False
        # The call of a passed group is its ranks' alone, and each line that led to a call still does.
        if edited.kind == "group" and not self._is_group_of_callers():
            return False
        return _leading(before, edited.after) - self.moved <= _leading(first, edited.after)

    def _keeps_values(self) -> bool:
        """Whether the calls that ranks made before their traces diverge still carry the same values, and
        the next one, too, if the edit moves it and it is still made."""
        until = _issued_before(self.before)
        for rank in range(self.before.world_size):
            rows = self.before.calls.filter(rank=rank).head(until[rank] + self.edited.moves)
            rows_after = (
                row
                for row in self.first.calls.filter(rank=rank).iter_rows(named=True)
                if self._text_of(row["call_site"]) not in self.added
            )
            for row in rows.filter(pl.col("value_in").is_not_null()).iter_rows(named=True):
                counterpart = next(
                    (candidate for candidate in rows_after if _is_same_call(row, candidate)), None
                )
                if counterpart is not None and counterpart["value_in"] != row["value_in"]:
                    return False
        return True

    def _was_passed(self) -> bool:
        """Whether the flag was set in the end: the ranks did not leave the loop without it."""
        last = None
        for site, value in self.first.calls.select("call_site", "value_out").iter_rows():
            if self._text_of(site) in self.added:
                last = value
        return decode_values(last) == [[1.0]]

    def _is_group_of_callers(self) -> bool:
        """Whether the group that the edit passes has exactly the ranks that made the call, and not all."""
        callers = {rank for rank, line in self.work_before if line in self.moved}
        members = set[int]()
        for group, site in self.first.calls.select("group", "call_site").iter_rows():
            if self._text_of(site) in self.added:
                members.update(self.first.meta["groups"][group])
        return callers == members and len(members) < self.first.world_size

    def works_with_other_counts(self) -> tuple[int, int] | None:
        """With how many counts of inputs the edit mends the program, and with how many that raises as it
        does without the edit; None if it does neither with some.

        With the same number of inputs on all ranks it must train and return the same as before.
        """
        counts_of_run, errors = self.source.counts, _lines_that_raised(self.before)
        even = (max(counts_of_run),) * len(counts_of_run)
        max_counts = max(MIN_COUNTS, min(MAX_COUNTS, MAX_CALLS // (self.first.calls.height + 30)))
        passed, raised = 1, 0
        counts_to_try = dict.fromkeys([even, *_around(counts_of_run)])
        for counts in itertools.islice(counts_to_try, max_counts):
            if counts == counts_of_run:
                continue
            before = None
            try:
                run = _run(self.source, self.program, counts)
                works = _mended(self.before, run)
                if counts == even or not works:
                    before = self.source.run(self.source.program, counts, TRY_SECONDS)
            except LaunchError:
                return None
            if not works and not _raises(run):
                return None
            if before is not None and (_changes(before, run) if works else not _raises(before)):
                return None
            if errors & _lines_that_raised(run, self.edited.after):
                return None  # it only kept the ranks from the line
            passed += works
            raised += not works
        return passed, raised

    def fix(self, passed: int, raised: int) -> PlainFix | None:
        """The edit with what the user has to know of it; None if it names one root for calls of
        several."""
        kind, first, moved = self.edited.kind, self.first, self.moved
        edits: Any = list(map(asdict, self.edited.edits()))
        fewer = kind in ("flag", "same", "where all do") or any(
            self.work[key] < many for key, many in self.work_before.items() if key[1] not in moved
        )
        fix: PlainFix = {"kind": kind, "edits": edits, "fewer": fewer, "tried": passed}
        if raised:
            fix["raised"] = raised
        joining = self._joining()
        if joining:
            fix["joining"] = joining
        trained = _trained(first) if len(set(self.source.counts)) == 1 else []
        if len(set(trained)) > 1:
            fix["uneven"] = trained
        for key, many in self.work_before.items():
            finished = self.before.ends[key[0]].kind is EndKind.FINISHED
            if key[1] in moved and 0 < many < self.work[key] and finished:
                fix["often"] = [many, self.work[key]]
                break
        if _are_apart(first):
            fix["apart"] = True
        if self.edited.root and not self._add_root(fix):
            return None
        return fix

    def _add_root(self, fix: PlainFix) -> bool:
        """Add the root that the edit names, and the ranks whose values it leaves out or that no longer
        get any. False if the root changes from call to call."""
        fix["root"] = self.edited.root
        replaced = [
            f"{edit.file}:{edit.begin + line}"
            for edit in self.edited.edits()
            for line in range(len(edit.removed))
        ]
        rows = self.before.calls.filter(pl.col("call_site").is_in(replaced)).drop_nulls("root")
        if rows["root"].n_unique() == 1:
            fix["kind"] = "other root"
        if rows.select("rank", "root").n_unique() > rows["rank"].n_unique():
            return False
        at_root, gives = pl.col("root") == pl.col("rank"), pl.col("op").is_in(_GIVEN_BY_ROOT)
        fix["lost"] = sorted({*rows.filter(at_root, gives)["rank"]} - {0})
        fix["ungiven"] = sorted({*rows.filter(at_root, ~gives)["rank"]} - {0})
        return True

    def _joining(self) -> list[int]:
        """The ranks whose values a reduction gets with an edit that takes it, or what makes it, out of
        a branch, and did not get before. A zero changes no sum."""
        branch = self.edited.before.branch()
        if branch is None or not self.edited.kind.startswith(("out", "block", "late")):
            return []
        moved = self.moved | {line.strip() for line in self.edited.before.text_of(branch)}
        joining = set[int]()
        for row in self.first.calls.iter_rows(named=True):
            reduces = FACTS[Op(row["op"])].reduces and is_own(row["origin"] or "")
            if not reduces or (row["rank"], self._text_of(row["call_site"])) in self.work_before:
                continue
            sites = [frame.rpartition(" ")[0] for frame in row["stack"] or ()]
            values = decode_values(row["value_in"])
            zero = values is not None and not any(itertools.chain(*values))
            is_free = zero and row["reduce_op"] == "sum"
            if not is_free and any(self._text_of(site) in moved for site in sites):
                joining.add(row["rank"])
        return sorted(joining)

    def _text_of(self, site: str | None) -> str:
        return _text_of(site, self.edited.after)


def _run(source: Rerun, program: Program, counts: Sequence[int]) -> Timeline:
    """A trial of an edited program. Raises TimeoutError if it takes longer than TRY_SECONDS."""
    run = source.run(program, counts, TRY_SECONDS)
    if any(end.kind is EndKind.KILLED and end.text.startswith(CUT) for end in run.ends):
        raise TimeoutError
    return run


def _issued_before(timeline: Timeline) -> list[int]:
    """By rank, how many calls it had issued when the traces diverged; where that is unknown, before the
    first call that did not fit."""
    tests = timeline.meta.get("parting", {}).get("tests", ())
    sides = tests[-1]["sides"] if tests else ()
    issued = {rank: side["issued"] for side in sides if "issued" in side for rank in side["ranks"]}
    reading = read(timeline)
    if reading.uneven.any():
        first = int(reading.uneven.argmax())
    else:
        first = reading.count
    calls = timeline.calls.with_columns(slot=reading.slot).filter(pl.col("slot") < first)
    return [issued.get(rank, calls.filter(rank=rank).height) for rank in range(timeline.world_size)]


def _is_same_call(row: dict[str, object], candidate: dict[str, object]) -> bool:
    return all(row[name] == candidate[name] for name in ("origin", "op", "dtype", "shape", "root"))


def _changes(before: Timeline, after: Timeline) -> bool:
    """Whether an edit changes the training or the results of a run that finished before, but by making
    replicas equal."""
    if _trained(before) == _trained(after) and repr(before.returns) == repr(after.returns):
        return False
    return _good(before) and (_are_apart(after) or not _are_apart(before))


def _raises(timeline: Timeline) -> bool:
    """Whether a rank raised an error of its own."""
    return any(end.kind is EndKind.RAISED and not is_peer_gone(end.text) for end in timeline.ends)


def _lines_that_raised(timeline: Timeline, edited: str = "") -> set[str]:
    """The texts of the lines at which ranks raised errors of their own."""
    texts = set[str]()
    for end, output in zip(timeline.ends, timeline.output, strict=True):
        if end.kind is EndKind.RAISED and not is_peer_gone(end.text):
            texts.update(_text_of(site, edited) for site in raised_at(output)[:1])
    return texts


def _loses_averages(before: Timeline, after: Timeline) -> bool:
    """Whether a rank's step would use gradients of its own alone, and had averaged ones before."""
    for rank in range(before.world_size):
        for had, has in zip(
            _before_steps(before, rank), _before_steps(after, rank)[:-1], strict=False
        ):
            if AVERAGES in had and AVERAGES not in has and "backward" in has:
                return True
    return False


def _before_steps(timeline: Timeline, rank: int) -> list[str]:
    """What a rank did before each step of an optimizer, and behind the last."""
    spans = timeline.spans.filter(rank=rank).select("begin_ns", "name").rows()
    calls = timeline.calls.filter(rank=rank).select("enqueued_ns", pl.col("origin").fill_null(""))
    return " ".join(name for _, name in sorted(spans + calls.rows())).split("optimizer")


_MISUSES = ("unwaited", "outside", "grouped")


def _mended(before: Timeline, after: Timeline) -> bool:
    """Whether a run with an edit is good, misuses no call and gives none a nan unless the run without it
    did so, too, and has equal replicas if that finished and had not."""
    new = [name for name in _MISUSES if after.meta.get(name) and not before.meta.get(name)]
    nan, nan_before = (
        run.calls["value_in"].str.contains("NaN|Infinity").any() for run in (after, before)
    )
    if new or (nan and not nan_before) or not _good(after, _GOOD_WITH_EDIT):
        return False
    return not _are_apart(after) or not _are_apart(before)


def _are_apart(timeline: Timeline) -> bool:
    """Whether a run finished with replicas that differ."""
    return isinstance(cause_of(Evidence(timeline))[0], ReplicasDiffer)


def _good(timeline: Timeline, headlines: tuple[type[Line], ...] = GOOD) -> bool:
    """Whether every rank has finished, and no call met one that it was not meant for."""
    ended = all(end.kind is EndKind.FINISHED and not end.pending for end in timeline.ends)
    return ended and isinstance(cause_of(Evidence(timeline))[0], headlines)


def _trained(timeline: Timeline) -> list[int]:
    """By rank: backward passes begun."""
    spans = timeline.spans
    return [
        int(((spans["rank"] == rank) & (spans["name"] == "backward")).sum())
        for rank in range(timeline.world_size)
    ]


def _work(timeline: Timeline, edited: str) -> Counter[tuple[int, str]]:
    """By rank: the number of backward passes, under ""; and of calls, under the text of the line
    they came from.

    Calls that DDP and Join issue by themselves are left out, since their number depends on how the
    ranks continue.
    """
    counts = Counter({(rank, ""): count for rank, count in enumerate(_trained(timeline))})
    for rank, site, origin in timeline.calls.select("rank", "call_site", "origin").iter_rows():
        if site is not None and is_own(origin or ""):
            counts[rank, _text_of(site, edited)] += 1
    return counts


def _leading(timeline: Timeline, edited: str) -> set[str]:
    """The texts of the program's lines that led to calls which DDP and Join do not issue by
    themselves."""
    sites = set[str]()
    for stack, origin in timeline.calls.select("stack", "origin").unique().iter_rows():
        if is_own(origin or ""):
            sites.update(frame.rpartition(" ")[0] for frame in stack or ())
    program = (site for site in sites if owner_of(site.rpartition(":")[0]) == "program")
    return {_text_of(site, edited) for site in program}


def _text_of(site: str | None, edited: str) -> str:
    """The text of the line that a call came from, of the edited function or of a file."""
    file, _, line = (site or "").rpartition(":")
    if not line.isdecimal():
        return ""
    if not file.endswith(EDITED):
        return linecache.getline(file, int(line)).strip()
    return edited.splitlines()[int(line) - 1].strip()


def _around(counts: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Counts near those of the run, nearest first; only equal ones if the run's were equal."""
    if len(set(counts)) == 1 and len(counts) > 1:
        return (
            (near,) * len(counts)
            for by in range(1, 5)
            for near in (counts[0] + by, counts[0] - by)
            if near >= 0
        )
    reach = 4 if len(counts) <= 2 else 1
    near = [sorted({max(0, count + by) for by in range(-reach, reach + 1)}) for count in counts[:4]]
    nearby = itertools.islice(itertools.product(*near), 10 * MAX_COUNTS)

    def distance(candidate: tuple[int, ...]) -> int:
        return sum(abs(a - b) for a, b in zip(candidate, counts, strict=False))

    return ((*candidate, *counts[4:]) for candidate in sorted(nearby, key=distance))
