"""What the command line prints: tables of endings and of calls, and the sentences beside them.

Every text from a run (an error of the backend, a label) goes to the screen as it is, never as markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from joinlab.analysis.diagnosis import diagnose
from joinlab.analysis.matching import Matched, Slot, is_setup
from joinlab.cli.machine import Fact
from joinlab.timeline import Ending, EndKind, Timeline

if TYPE_CHECKING:
    from joinlab.cases import Case  # at run time it would bring torch, which nobody needs to look at a saved run

IN_A_TRACE = {
    EndKind.FINISHED: "finishes",
    EndKind.HUNG: "hangs",
    EndKind.RAISED: "raises",
    EndKind.KILLED: "is killed",
    EndKind.UNKNOWN: "has no known ending",
}
"""Endings in the words of the documented traces."""

STYLES = {
    EndKind.FINISHED: "green",
    EndKind.HUNG: "bold red",
    EndKind.RAISED: "bold red",
    EndKind.KILLED: "bold red",
    EndKind.UNKNOWN: "yellow",
}

WIDE = 4
"""With more ranks than this, a table has one column for all of them."""


class Screen(Console):
    """stdout, on which every text stands as it is. A reader that leaves is a BrokenPipeError, as for print()."""

    def __init__(self) -> None:
        super().__init__(markup=False, emoji=False, highlight=False)

    def on_broken_pipe(self) -> None:
        """Called while a BrokenPipeError is handled; rich itself would exit with 1."""
        raise


# ---- the six cases


def cases_table(runs: Mapping[int, tuple[Case, Timeline]], n: int) -> Table:
    """How each case, by its number, ended with `n` and n + 1 inputs, beside the documented endings."""
    backends = " and ".join(sorted({str(run.meta["backend"]) for _, run in runs.values()}))
    table = _table(f"Rank 0 has {_inputs(n)}, rank 1 has {_inputs(n + 1)}: on {backends}, run here")
    for name in ("case", "program", "rank 0", "rank 1", "NCCL, N=5:\nrank 0", "NCCL, N=5:\nrank 1"):
        table.add_column(name)
    for number, (case, run) in runs.items():
        documented = ["not documented"] * len(run.ends)
        if case.documentation is not None:
            documented = [_beside(end, then, n) for end, then in zip(run.ends, case.documentation.asker, strict=True)]
        table.add_row(str(number), _program(case), *map(_ending, run.ends), *documented)
    table.caption = "NCCL: documented by the thread's author; PyTorch 1.9.1, two GPUs of one machine, 5 and 6 inputs"
    return table


def case_notes(number: int, case: Case, run: Timeline) -> Group:
    """Why the ranks of one case ended so, and why not as documented."""
    n = run.meta["inputs"][0]
    lines: list[RenderableType] = [endings(run)]
    if (told := case.documentation) is not None:
        documented = [_documented("the thread's author", 5, told.asker)]
        documented += [_documented("the answer", count, ends) for count, ends in told.answer.items()]
        lines.append(Text(f"Documented on NCCL by {'; '.join(documented)}.", style="dim"))
        if told.gloo and run.meta["backend"] == "gloo":
            lines.append(Text(f"Why gloo differs: {told.gloo}"))
    title = Text(f"Case {number}: {_program(case)}; rank 0 has {_inputs(n)}, rank 1 {n + 1}", style="bold")
    return Group(title, *(Padding(line, (0, 0, 0, 2)) for line in lines), Text())


def _inputs(n: int) -> str:
    return f"{n} input{'' if n == 1 else 's'}"


def _beside(end: Ending, documented: str, n: int) -> str:
    mark = "= " if IN_A_TRACE[end.kind] == documented else "≠ "
    return (mark if n == 5 else "") + documented  # what was documented for 5 inputs says nothing of another N


def _program(case: Case) -> str:
    if (told := case.documentation) is None:
        return case.title.removeprefix("Case ").lstrip("0123456789: ")
    barrier = f"barrier {told.barrier}" if told.barrier else "no barrier"
    return f"{'join()' if told.join else 'no join()'}, {barrier}"


def _documented(who: str, n: int, ends: Sequence[str]) -> str:
    return f"{who}, N = {n}: " + ", ".join(f"rank {rank} {end}" for rank, end in enumerate(ends))


# ---- one run


def calls_table(run: Timeline, setup: bool = False) -> Table:
    """Which calls met, one row a slot; `setup`: with those of DDP's construction and bucket rebuild."""
    matched = Matched(run)
    table = _table(f"{run.meta.get('program')} on {run.meta.get('backend')}, inputs {_listed(run.meta.get('inputs'))}")
    table.add_column("input", justify="right")
    for rank in range(run.world_size) if run.world_size <= WIDE else ["all ranks"]:
        table.add_column(f"rank {rank}" if isinstance(rank, int) else rank, overflow="fold")
    table.add_column("")
    hidden = 0
    groups = len({slot.group for slot in matched.slots})
    for slot in matched.slots:
        calls = {rank: matched.row_of[rank, slot.group, seq] for rank, seq in slot.calls.items()}
        if not setup and _is_dull(slot, calls.values()):
            hidden += 1
            continue
        cells = [Text(_call(calls[rank])) if rank in calls else Text("-") for rank in range(run.world_size)]
        if run.world_size > WIDE:
            cells = [_together(cells)]
        remark = _remark(slot, calls, run)
        where = f"group {slot.group}" if groups > 1 else ""
        table.add_row(
            "" if slot.input is None else str(slot.input),
            *cells,
            Text(", ".join(filter(None, (where, remark))), style="bold red" if remark else "dim"),
        )
    if hidden:
        table.caption = (
            f"left out: {hidden} row{'s' * (hidden > 1)} of DDP's construction and bucket rebuild (--setup shows them)"
        )
    return table


def endings(run: Timeline) -> Group:
    """How each rank ended, and why."""
    diagnosis = diagnose(run)
    grid = Table.grid(padding=(0, 2, 0, 0))
    for one in diagnosis.ranks:
        grid.add_row(Text(f"rank {one.rank}", style="bold"), _ending(one.ending), Text(one.sentence))
    return Group(Text(diagnosis.sentence), grid)


def _ending(end: Ending) -> Text:
    return Text(str(end), style=STYLES[end.kind])


def _call(row: Mapping[str, Any]) -> str:
    label = row["origin"] or row["op"]
    if row["error"]:
        return f"{label} - raised"
    return label if row["completed_ns"] is not None else f"{label} - never completed"


def _is_dull(slot: Slot, calls: Iterable[Mapping[str, Any]]) -> bool:
    return slot.expected and all(is_setup(row["origin"] or "") and row["completed_ns"] is not None for row in calls)


def _remark(slot: Slot, calls: Mapping[int, Mapping[str, Any]], run: Timeline) -> str:
    """What is wrong with a slot; "" if nothing is."""
    if slot.differs:
        return f"{'met, but differ' if slot.met else 'did not meet: they differ'} in {', '.join(slot.differs)}"
    if any(row["op"] in ("send", "recv") for row in calls.values()):
        return "" if slot.met else "nobody at the other side"
    missing = [rank for rank in run.meta["groups"].get(slot.group, ()) if rank not in calls]
    return f"no such call on rank {_listed(missing)}" if missing else ""


def _together(cells: Sequence[Text]) -> Text:
    """Neighbouring ranks with the same call as one line: "0-14: all-reduce (barrier)"."""
    lines = []
    for text, group in groupby(enumerate(cells), key=lambda cell: cell[1].plain):
        ranks = [rank for rank, _ in group]
        lines.append(f"{ranks[0]}-{ranks[-1]}: {text}" if len(ranks) > 1 else f"{ranks[0]}: {text}")
    return Text("\n".join(lines))


def _listed(values: Iterable[Any] | None) -> str:
    return ", ".join(map(str, values or ())) or "not recorded"


# ---- the machine


def facts_table(facts: Sequence[Fact]) -> Table:
    """The doctor's report."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column()
    for fact in facts:
        mark = {True: Text("ok", style="green"), False: Text("--", style="bold red"), None: Text("")}[fact.works]
        table.add_row(fact.name, mark, Text(fact.text))
    return table


def _table(title: str) -> Table:
    return Table(
        title=Text(title), box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", caption_justify="left"
    )
