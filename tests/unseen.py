"""Checks the stories of 588 programs against tests/material/unseen and tests/material/users, which
have the programs and the facts.

    python -m tests.unseen                       every program, emulated with the rules of gloo and of NCCL
    python -m tests.unseen pa pd.d01 --nccl      some of them, with one backend
    python -m tests.unseen users f04             the programs of users, or those that begin so
    python -m tests.unseen --launched            60 of them, as real processes on gloo
    python -m tests.unseen --tell pd.d01         and print the story
    python -m tests.unseen --jobs                34 scripts under torchrun

It prints a line per run with its errors, and a summary. There are five kinds of errors: FALSE, the
story says something untrue; MISLEADING, what it says leads away from the fault; ALARM, a healthy
program is said to have one; SILENT, the story lacks a fact of the table; LONG, a headline of more
than 140 characters.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import inspect
import itertools
import re
import sys
import tempfile
import tomllib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import joinlab
from joinlab.analysis.meanings import asks_of
from joinlab.analysis.reading import read
from joinlab.errors import LaunchError
from joinlab.story.forms.divergence import AtTest
from joinlab.story.forms.fix import TriedEdit
from joinlab.story.lines import Edit, Line, LineKind
from joinlab.story.story import Story
from joinlab.timeline import EndKind, Timeline

MATERIAL = Path(__file__).parent / "material" / "unseen"
USERS = Path(__file__).parent / "material" / "users"
KINDS = ("FALSE", "MISLEADING", "ALARM", "SILENT", "LONG")
LONGEST = 140
"""Characters of a headline."""

LAUNCHED = ("pa", "pb")
"""The files whose programs `--launched` runs: 60."""

LETTERS = {
    EndKind.FINISHED: "F",
    EndKind.HUNG: "H",
    EndKind.RAISED: "R",
    EndKind.KILLED: "K",
    EndKind.UNKNOWN: "?",
}


@dataclass(frozen=True, slots=True)
class Row:
    """The facts about one program; the heads of both table.toml explain each field."""

    what: str = ""
    inputs: tuple[int, ...] = ()
    gloo: str = ""
    nccl: str = ""
    parts: tuple[str, ...] = ()
    may: tuple[str, ...] = ()
    odd: tuple[int, ...] = ()
    waits: tuple[int, ...] = ()
    only: tuple[int, ...] = ()
    met: tuple[tuple[str, str], ...] = ()
    calls: tuple[str, ...] = ()
    raised: tuple[str, ...] = ()
    healthy: bool = False
    free: str = ""
    cures: tuple[str, ...] = ()
    no_cure: tuple[str, ...] = ()
    false: tuple[str, ...] = ()
    gloo_raises: bool = False
    race: bool = False
    world: int = 0
    stands: tuple[str, ...] = ()
    says: tuple[str, ...] = ()
    needs: str = ""
    innocent: tuple[str, ...] = ()
    misleads: tuple[str, ...] = ()
    admits: str = ""
    kept: str = ""
    note: str = ""
    silent: str = ""


@cache
def table() -> dict[str, Row]:
    """The rows by name: "pa.a01", and "f01_trainer_uneven" of users' programs."""
    found = {}
    for file, rows in tomllib.loads((MATERIAL / "table.toml").read_text(encoding="utf-8")).items():
        found |= {f"{file}.{name}": row_of(f"{file}.{name}", row) for name, row in rows.items()}
    for name, row in tomllib.loads((USERS / "table.toml").read_text(encoding="utf-8")).items():
        text = (USERS / f"{name}.py").read_text(encoding="utf-8")
        (counts,) = re.findall(r"(?m)^COUNTS = (.*)$", text)
        what = text.partition("\n")[0].removeprefix("# ")
        found[name] = row_of(name, {"what": what, "inputs": ast.literal_eval(counts), **row})
    return found


def row_of(name: str, plain: Mapping[str, Any]) -> Row:
    """A row from its plain data."""
    unknown = plain.keys() - {field.name for field in fields(Row)}
    assert not unknown, f"{name}: no field is called {', '.join(unknown)}"
    return Row(**{key: tuple(v) if isinstance(v, list) else v for key, v in plain.items()})


def program_of(name: str) -> Callable[..., Any]:
    """The program of a row."""
    file, _, function = name.partition(".")
    folder = "unseen" if function else "users"
    module = importlib.import_module(f"tests.material.{folder}.{file}")
    program: Callable[..., Any] = getattr(module, function or "program")
    return program


def place_in(file: Path, text: str, begin: int = 1, end: int | None = None) -> str:
    """The place "pa.py:15" of the line of a file, from `begin` to `end`, that has this text; "" if
    none has."""
    text, _, which = text.partition("#") if re.search(r"#\d+$", text) else (text, "", "")
    lines = file.read_text(encoding="utf-8").splitlines()[begin - 1 : end and end - 1]
    places = [n for n, line in enumerate(lines, begin) if text in line and line[:2] != "# "]
    if len(places) > 1 and not which:
        raise LookupError(f"lines {places} of {file.name} have {text!r}")
    return f"{file.name}:{places[int(which or 1) - 1]}" if places else ""


@cache
def site_of(name: str, text: str) -> str:
    """The place of a line that the row of a program names."""
    program = program_of(name)
    source = Path(inspect.getsourcefile(program) or "")
    block, first = inspect.getsourcelines(program)
    for file, begin, end in (
        (source, first, first + len(block)),
        (source, 1, None),
        (MATERIAL / "pa.py", 1, None),
    ):
        if found := place_in(file, text, begin, end):
            return found
    raise LookupError(f"{name}: no line has {text!r}")


class Check:
    """Compares one story with its row: its false statements, and the facts that it lacks."""

    program: Callable[..., Any]

    def __init__(
        self,
        row: Row,
        place: Callable[[str], str],
        timeline: Timeline,
        story: Story,
        text: str | None = None,
    ) -> None:
        """`place`: where the line with a text is; `text`: what the story says, if not that."""
        self.row, self.place, self.timeline, self.story = row, place, timeline, story
        self.backend, self.launched = (
            str(timeline.meta["backend"]),
            timeline.meta.get("engine") != "emulated",
        )
        self.text = str(story) if text is None else text
        self.told = [
            line for line in story.lines if line.kind in (LineKind.HEADLINE, LineKind.CAUSE)
        ]
        self.raises_only = self.row.gloo_raises and self.backend == "gloo"

    def problems(self) -> list[str]:
        """What is wrong with the story, each with its kind in front."""
        ends = list(self.ends())
        if ends:
            return ends  # another run than the one that the row speaks of
        false = (
            *self.said(),
            *self.counted(),
            *self.fates(),
            *self.places(),
            *self.parting(),
            *self.fixes(),
        )
        return [*false, *self.misleading(), *self.silences()]

    def sites(self, *kinds: str) -> set[str]:
        """The places of the lines of these fields."""
        return {self.place(text) for kind in kinds for text in getattr(self.row, kind)}

    def ends(self) -> Iterator[str]:
        expected = getattr(self.row, self.backend, "")  # a job that has just begun has none
        found = "".join(
            "P" if end.pending else LETTERS[EndKind(end.kind)] for end in self.story.ranks
        )
        if expected and found != expected and not (self.row.race and self.launched):
            yield f"FALSE ends {found}, not {expected}"

    def said(self) -> Iterator[str]:
        for pattern in self.row.false:
            if found := re.search(pattern, self.text):
                yield f"FALSE it says {found[0]!r}"
        # Calls were issued with no partner, or met the wrong one.
        if (
            (self.row.only or self.row.met)
            and not self.raises_only
            and re.search("every call (met its|fits)", self.text)
        ):
            yield "FALSE it says that every call fits"
        if self.row.healthy and "F" * len(self.row.inputs) == getattr(self.row, self.backend, ""):
            for line in self.story.lines:
                allowed = line.kind in (LineKind.HEADLINE, LineKind.FATE)
                noted = line.kind is LineKind.NOTE and self.row.note
                if not allowed and not (noted and re.search(self.row.note, line.sentence)):
                    yield f"ALARM: a {line.kind} ({line.form})"
            if self.text and "every call met" not in self.text.partition("\n")[0]:
                yield f"ALARM: {self.story.sentence}"

    def counted(self) -> Iterator[str]:
        """Sentences with counts: "rank 0 issued one backward more than ranks 1, 2"."""
        said = (
            r"[Rr]anks? (\d[\d, -]*?) issued (\w+) (?:calls? of )?(.+?) (?:more|fewer) than ranks? ([\d, -]*\d)"
            r" \((\d+) and (\d+)\)"
        )
        for found in re.finditer(said, self.text):
            names = {
                call.name for line in self.told for call in line.calls if call.name in found[3]
            }
            sites = set(re.findall(r"[\w.]+:\d+", found[3]))
            for ranks, many in ((found[1], found[5]), (found[4], found[6])):
                counts = {rank: self.count(rank, names, sites) for rank in ranks_of(ranks)}
                if {*counts.values()} != {int(many)}:
                    yield f"FALSE count: {found[0]!r}, and they issued {counts}"

    def fates(self) -> Iterator[str]:
        """Sentences that say how a rank ended: "rank 2 has finished"."""
        said = {
            "FP": r"(?:has |have )?finished",
            "H": r"hangs?\b",
            "R": r"(?:has |have )?raised",
            "K": r"(?:was |were |has been |have been )killed",
        }
        ends = "".join(
            "P" if end.pending else LETTERS[EndKind(end.kind)] for end in self.story.ranks
        )
        # what a rank raised there, it may have caught
        text = re.sub(r"(?m)^AT .*(\n {7}.*)*", "", self.text)
        for letters, verb in said.items():
            for found in re.finditer(rf"\b[Rr]anks? (\d[\d, -]*?) {verb}", text):
                for rank in ranks_of(found[1]):
                    if ends[rank] not in letters:
                        yield f"FALSE ending: {found[0]!r}, and it ends {ends[rank]}"

    def count(self, rank: int, names: set[str], sites: set[str]) -> int:
        """How many calls of these names a rank issued from these places; from all, if none is named."""
        rows = self.timeline.calls.filter(rank=rank).iter_rows(named=True)
        return sum(
            asks_of(row) in names and (not sites or short(row["call_site"] or "") in sites)
            for row in rows
        )

    def places(self) -> Iterator[str]:
        """Lines that the headline and its causes rest on, and that the row does not have."""
        if self.row.healthy or not self.row.calls:
            return
        known = self.sites("calls", "parts", "may", "raised", "stands")
        named = {site for line in self.told for site in sites_of(line)}
        for site in sorted(named - known):
            yield f"FALSE line: {site}"
        every = {site for line in self.story.lines for site in sites_of(line)}
        every |= {short(end.call.site) for end in self.story.ranks if end.call is not None}
        well = all(end.kind == EndKind.FINISHED and not end.pending for end in self.story.ranks)
        wrong = self.row.met or self.row.only or not well
        if wrong and not self.raises_only and not self.row.free and not every & self.sites("calls"):
            yield f"SILENT of the call: {self.row.calls[0]}"

    def parting(self) -> Iterator[str]:
        """The lines where the ways part: the first of a line's source lines is the test."""
        found = self.story.of(LineKind.PARTING)
        known, odd = self.sites("parts", "may", "raised", "innocent"), set(self.row.odd)
        for line in found:
            assert isinstance(line, AtTest)
            unknown = line.lines and short(line.lines[0].site) not in known
            if unknown and not self.row.healthy and not self.row.silent:
                yield f"FALSE parting: {short(line.lines[0].site)} {line.lines[0].text.strip()}"
            for rank, other in pairs(side["ranks"] for side in line.went):
                alike = {rank, other} <= odd or not odd & {rank, other}
                if alike and len(odd) < len(self.row.inputs):
                    yield f"FALSE parting: ranks {rank} and {other} went the same way"
        if self.row.parts and not found and not self.launched and not self.raises_only:
            yield f"SILENT of the parting: {self.row.parts[0]}"

    def misleading(self) -> Iterator[str]:
        """What leads away from the fault: lines of AT and FIX that are innocent, and cures that
        leave the bug."""
        innocent = self.sites("innocent")
        known = self.sites("calls", "parts", "may", "raised", "stands")
        known = set() if self.raises_only else known
        for line in (*self.story.of(LineKind.PARTING), *self.story.of(LineKind.FIX)):
            for site in () if line.edits else sites_of(line)[:1]:
                if site in innocent or (site not in known and known and line.kind is LineKind.FIX):
                    yield f"MISLEADING {line.kind}: {site}"
            if line.edits and self.row.admits and not re.search(self.row.admits, line.sentence):
                yield f"MISLEADING fix: it does not say its price: {line.sentence}"
        for pattern in self.row.misleads:
            if found := re.search(pattern, self.text):
                yield f"MISLEADING: it says {found[0]!r}"
        if (length := len(self.story.sentence)) > LONGEST and self.text:
            yield f"LONG headline: {length} characters"

    def silences(self) -> Iterator[str]:
        """Facts of the row that the story lacks: which ranks are odd, which calls met, where a rank
        raised."""
        if self.row.silent:
            yield f"SILENT: {self.row.silent}"
        if self.row.healthy or self.row.free or self.row.silent or self.raises_only:
            return
        named = {
            rank for line in (*self.told, *self.story.of(LineKind.PARTING)) for rank in line.ranks
        }
        if missing := set(self.row.odd) - named:
            yield f"SILENT of rank {', '.join(map(str, sorted(missing)))}"
        pairs_met = [(self.place(a), self.place(b)) for a, b in self.row.met]
        if pairs_met and not any(tells(line, pair) for line in self.told for pair in pairs_met):
            yield f"SILENT of what met: {self.row.met[0]}"
        for pattern in self.row.says:
            if not re.search(pattern, self.text):
                yield f"SILENT: it does not say {pattern!r}"
        every = {site for line in self.story.lines for site in sites_of(line)}
        if self.row.stands and not every & self.sites("stands"):
            yield f"SILENT of the line that a rank stands in: {self.row.stands[0]}"
        raised = any(end.kind == EndKind.RAISED for end in self.story.ranks)
        if self.row.raised and raised and not every & self.sites("raised"):
            yield f"SILENT of the line that raised: {self.row.raised[0]}"

    def fixes(self) -> Iterator[str]:
        """Every fix was tried, and does what it says."""
        for line in self.story.of(LineKind.FIX):
            for pattern in self.row.false:
                if found := re.search(pattern, line.sentence):
                    yield f"FALSE fix: {found[0]!r}"
            if self.launched and line.edits and "emulated" not in line.sentence:
                yield "FALSE fix: it does not say that its trial was emulated"
            if isinstance(line, TriedEdit):
                yield from self.tried(line.edits, line.fix["fewer"])

    def tried(self, edits: Iterable[Edit], fewer: bool = False) -> Iterator[str]:
        """Whether every rank finishes with these edits, and trains on as many inputs unless the fix
        says otherwise."""
        try:
            program = edited(self.program, edits)
        except (AssertionError, SyntaxError) as error:
            yield f"FALSE fix: it cannot be applied: {error}"
            return
        again = joinlab.emulate(program, inputs=self.row.inputs, backend=self.backend)
        if not all(end.kind is EndKind.FINISHED and not end.pending for end in again.ends):
            yield f"FALSE fix: with it, {[str(end) for end in again.ends]}"
        elif self.row.kept and not eval(self.row.kept, {"returns": list(again.returns)}):
            yield f"FALSE fix: with it, the ranks return {again.returns}, not {self.row.kept}"
        elif not fewer and (lost := list(lost_inputs(self.timeline, again, list(edits)))):
            yield f"FALSE fix: with it, {'; '.join(lost)}"
        if (
            any(
                now < before
                for now, before in zip(trained(again), trained(self.timeline), strict=True)
            )
            and not fewer
        ):
            yield f"FALSE fix: it trains {trained(again)} inputs, and does not say that it leaves some out"


def is_moved(edits: Iterable[Edit]) -> bool:
    """Whether the edits move a line."""
    removed = {line.strip() for edit in edits for line in edit.removed}
    added = {line.strip() for edit in edits for line in edit.added}
    return bool(removed & added) and not any("with " in line for line in added)


def new_lines(edits: Iterable[Edit]) -> Iterator[str]:
    """The numbers, in the edited file, of lines that it did not have anywhere in the text that the
    edits replace."""
    ordered, shift = sorted(edits, key=lambda edit: edit.begin), 0
    removed = {line.strip() for edit in ordered for line in edit.removed}
    for edit in ordered:
        for index, line in enumerate(edit.added):
            if line.strip() not in removed:
                yield str(edit.begin + shift + index)
        shift += len(edit.added) - len(edit.removed)


def lost_inputs(before: Timeline, after: Timeline, edits: list[Edit]) -> Iterator[str]:
    """Calls with other values than before the edit: of those that all ranks made before the ways
    part, and, if the edit moves a call, of the first ones that met no counterpart, where they are
    still made."""
    reading, moved, new = read(before), is_moved(edits), list(new_lines(edits))
    first = int(reading.uneven.argmax()) if reading.uneven.any() else reading.count
    tests = before.meta.get("parting", {}).get("tests") or [{"sides": []}]
    issued = [side["issued"] for side in tests[-1]["sides"]]
    names = ("origin", "op", "dtype", "shape", "root")
    for rank in range(before.world_size):
        calls = before.calls.with_columns(slot=reading.slot).filter(rank=rank)
        now: dict[str, list[dict[str, Any]]] = {}  # DDP may issue its own calls in another order
        for call in after.calls.filter(rank=rank).iter_rows(named=True):
            if (call["call_site"] or "").rpartition(":")[2] not in new:
                now.setdefault(repr([call[name] for name in names]), []).append(call)
        same_way = calls.filter(calls["slot"] < first + moved).head(max(issued, default=0) + moved)
        for row in same_way.iter_rows(named=True):
            same = now.get(repr([row[name] for name in names]))
            if same and (call := same.pop(0))["value_in"] != row["value_in"]:
                yield f"rank {rank} puts {call['value_in']} into {row['op']}, not {row['value_in']}"


def trained(timeline: Timeline) -> list[int]:
    """By rank: backward passes."""
    rows = timeline.spans.filter(name="backward")
    return [len(rows.filter(rank=rank)) for rank in range(timeline.world_size)]


def ranks_of(text: str) -> list[int]:
    """The ranks of "0, 2-4".

    >>> ranks_of("0, 2-4")
    [0, 2, 3, 4]
    """
    found: list[int] = []
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        found += range(int(first), int(last or first) + 1)
    return found


def sites_of(line: Line) -> list[str]:
    """The places that a line rests on."""
    return [short(one.site) for one in (*line.calls, *line.lines) if one.site]


def tells(line: Line, pair: tuple[str, str]) -> bool:
    """Whether a line names calls from both places; two calls, where they are one place."""
    calls = {(call.rank, call.group, call.seq): short(call.site) for call in line.calls}
    sites = [*calls.values(), *(short(one.site) for one in line.lines)]
    return (
        list(calls.values()).count(pair[0]) > 1 if pair[0] == pair[1] else set(pair) <= set(sites)
    )


def pairs(sides: Iterable[Sequence[int]]) -> Iterator[tuple[int, int]]:
    """Ranks of two sides."""
    for one, other in itertools.combinations(sides, 2):
        yield from itertools.product(one, other)


def short(site: str) -> str:
    """A place without its folder."""
    return site.rpartition("/")[2]


def edited(program: Callable[..., Any], edits: Iterable[Edit]) -> Callable[..., Any]:
    """The program with these edits in its text."""
    source = Path(inspect.getsourcefile(program) or "")
    lines = source.read_text(encoding="utf-8").splitlines()
    for edit in sorted(edits, key=lambda one: -one.begin):
        assert Path(edit.file).name == source.name, (
            f"{edit.file} is edited, and the program is in {source.name}"
        )
        there = lines[edit.begin - 1 : edit.begin - 1 + len(edit.removed)]
        assert there == list(edit.removed), f"line {edit.begin} is {there}, not {edit.removed}"
        lines[edit.begin - 1 : edit.begin - 1 + len(edit.removed)] = edit.added
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{source.stem}_edited.py"
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        spec = importlib.util.spec_from_file_location(file.stem, file)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[file.stem] = module  # which dataclasses look up
        spec.loader.exec_module(module)
    function: Callable[..., Any] = getattr(module, program.__name__)
    return function


def run(
    name: str, backend: str, launched: bool = False, fixes: bool = False
) -> tuple[Timeline, Story]:
    """Run one program, and read its story; with `fixes`, which are tried for up to seconds, as
    `diagnose` tells it."""
    row = table()[name]
    if launched:
        timeline = joinlab.launch(
            program_of(name), inputs=row.inputs, backend="gloo", progress=False, on_output=None
        )
    else:
        timeline = joinlab.emulate(program_of(name), inputs=row.inputs, backend=backend)  # type: ignore[arg-type]
    if fixes:
        return timeline, joinlab.diagnose(timeline)
    with patch("joinlab.story.fixes.find_fixes", lambda *_: None):
        return timeline, joinlab.diagnose(timeline)


def check(name: str, backend: str, launched: bool = False) -> list[str]:
    """Run one program: what is wrong with its story."""
    try:
        return checker(name, *run(name, backend, launched)).problems()
    except LaunchError as error:  # what needs a GPU is refused: the row does not know either
        return [f"FALSE refusal: {error}"] if getattr(table()[name], backend) else []


def checker(name: str, timeline: Timeline, story: Story, text: str | None = None) -> Check:
    """What checks a story of this program."""
    checked = Check(table()[name], lambda line: site_of(name, line), timeline, story, text)
    checked.program = program_of(name)
    return checked


def main() -> int:
    """Run the table, or some of it; 1 if anything is false."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", help="rows (pa.a01) or files of rows (pa); all if none is named"
    )
    parser.add_argument("--nccl", action="store_true", help="with the rules of NCCL alone")
    parser.add_argument("--gloo", action="store_true", help="with the rules of gloo alone")
    parser.add_argument("--launched", action="store_true", help="as real processes on gloo")
    parser.add_argument(
        "--jobs",
        action="store_true",
        help="34 scripts under torchrun instead: see tests/torchrun_jobs.py",
    )
    parser.add_argument(
        "--ways", action="store_true", help="with --jobs: record their branches, too"
    )
    parser.add_argument("--quick", action="store_true", help="try no fix")
    parser.add_argument("--tell", action="store_true", help="print each story, too")
    parser.add_argument("--wrong", action="store_true", help="print only what is wrong")
    told = parser.parse_args()
    if told.jobs:
        from tests import torchrun_jobs

        return torchrun_jobs.main(told.names, told.tell, told.ways)
    warnings.filterwarnings("ignore")
    names = [name for name in table() if not told.names or chosen(name, told.names)]
    if told.launched and not told.names:
        names = [name for name in names if name.split(".")[0] in LAUNCHED or "." not in name]
    backends = (
        ["gloo"] if told.launched else ["gloo"] * (not told.nccl) + ["nccl"] * (not told.gloo)
    )
    runs, counts = 0, dict.fromkeys(KINDS, 0)
    for name in names:
        for backend in backends:
            try:
                timeline, story = run(name, backend, told.launched, fixes=not told.quick)
            except LaunchError as error:
                print(f"{name} {backend}: not run, {error}")
                continue
            problems = checker(name, timeline, story).problems()
            runs += 1
            if worst := worst_of(problems):
                counts[worst] += 1
            if problems or not told.wrong:
                print(f"{name} {backend}: {'; '.join(problems) or 'so'}", flush=True)
            if told.tell:
                print("    " + str(story).replace("\n", "\n    "))
    print(summary(runs, counts))
    return int(any(counts[kind] for kind in KINDS if kind != "SILENT"))


def chosen(name: str, words: Sequence[str]) -> bool:
    """Whether a row is named: itself, its file, or the beginning of a user's program."""
    file, _, function = name.partition(".")
    if function:
        return name in words or file in words
    return "users" in words or any(name.startswith(word) for word in words)


def worst_of(problems: Iterable[str]) -> str:
    """The gravest kind of these problems; "" of none."""
    kinds = {problem.split()[0].rstrip(":") for problem in problems}
    return next((kind for kind in KINDS if kind in kinds), "")


def summary(runs: int, counts: Mapping[str, int]) -> str:
    """The counts of runs in words, each run by its gravest error."""
    each = ", ".join(f"{count} {kind.lower()}" for kind, count in counts.items())
    return f"{runs} runs: {each}; {runs - sum(counts.values())} are right"


if __name__ == "__main__":
    sys.exit(main())
