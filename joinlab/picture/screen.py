"""The first screen of a run as plain data: what `first_screen` makes of a Timeline, and all pictures
draw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from joinlab.ops import CallRow, counted
from joinlab.picture.rows import RowKind

Flag = Literal["met", "wrong", "apart", "open"]
"""How the calls of a column fit: as meant; met, but should not have; never meet; somebody never
came."""

Tone = Literal["", "good", "warn", "bad"]

LaneEnd = tuple[str, str, Tone, str]
"""How the ranks of a lane ended: a sign, a word, its tone, and a detail."""

Size = Literal["stack", "slim", "mid", "big", "ghost"]
"""How much room a column has: what agrees is slim, what does not has room for words, and the
parting is big."""


class Box(NamedTuple):
    """One lane of a column: a call, or a stack of calls.

    open    it never ended
    failed  the backend raised instead of completing it
    stack   what a stack holds in this lane, if not what its column says
    line    of the program shown, from which it comes, of a stack its last call; 0: unknown
    row     the call, of a stack the last; None: it is not known
    """

    kind: RowKind
    label: str
    open: bool = False
    failed: bool = False
    stack: str = ""
    line: int = 0
    row: CallRow | None = None


class ScreenPiece(NamedTuple):
    """Words, and the kind of call whose colour they have, or the tone."""

    text: str
    kind: RowKind | None = None
    tone: Tone = ""


@dataclass(eq=False)
class Column:
    """A column: the calls of one slot.

    slot     the first that it holds, as `joinlab.match` counts; `until` the last
    numbers  of its calls; of a stack, the first and the last
    boxes    by lane; none where it issued no call here
    stack    what a stack holds: "5 inputs"; "" for calls
    remark   what differs between its calls, or who never came
    clashes  pairs of lanes, one below the other, whose calls do not belong together
    absent   lanes that should have come, and never did
    lacks    of sends or recvs that nothing meets: "no recv", "no send"
    extra    the lane whose call is the one too many
    missing  (lane, call): that lane never issued this one, which should stand here
    far      whether room is left around it
    """

    slot: int
    until: int
    numbers: tuple[int, ...]
    boxes: dict[int, Box]
    flag: Flag = "met"
    stack: str = ""
    remark: str = ""
    clashes: tuple[tuple[int, int], ...] = ()
    absent: tuple[int, ...] = ()
    lacks: str = ""
    extra: int | None = None
    missing: tuple[int, str] | None = None
    size: Size = "slim"
    far: bool = False

    @property
    def number(self) -> str:
        """The numbers of its calls: "28", of a stack "0-24"; "" where none is shown."""
        return ("-" if self.stack else "/").join(map(str, self.numbers))

    @property
    def drawn(self) -> list[Box]:
        """Its boxes, from the first lane on."""
        return [self.boxes[lane] for lane in sorted(self.boxes)]


class MisreadValue(NamedTuple):
    """In a column, lane `to` reads `value` as its own answer, though lane `of` sent it, as `sent`."""

    column: int
    to: int
    of: int
    value: str
    sent: str
    taken: str


class ScreenLine(NamedTuple):
    """A line of the program with the ranks that stand there, and the call that they issue; sign "-"
    goes, "+" comes."""

    sign: str
    number: int | None
    text: str
    here: tuple[ScreenPiece, ...] = ()


@dataclass(frozen=True)
class FirstScreen:
    """All that the first screen says. `focus`: the column where the ranks part.

    ranks   of each lane; `names` of the lanes: "ranks 0-4, 6, 7"; `inputs` of each, None if they differ
    meant   (column, lane, column, lane): calls that should have met
    outlier the lane of the ranks that did otherwise than most, if they did not finish well
    ends    per lane (sign, word, tone, more)
    file    of the lines in `code`
    tried   what came of the edit that `code` shows, or why none was tried
    story   every other line of the story, with its tag
    least   px past the last call, at least, for how the ranks ended: what two on one axis need
    """

    ranks: tuple[tuple[int, ...], ...]
    names: tuple[str, ...]
    inputs: tuple[int | None, ...]
    headline: tuple[ScreenPiece, ...]
    columns: tuple[Column, ...]
    focus: int | None
    meant: tuple[tuple[int, int, int, int], ...]
    readings: tuple[MisreadValue, ...]
    outlier: int | None
    ends: tuple[LaneEnd, ...]
    file: str
    code: tuple[ScreenLine, ...]
    tried: ScreenPiece
    story: tuple[tuple[str, tuple[ScreenPiece, ...]], ...]
    provenance: str
    least: int = 0

    @property
    def tone(self) -> Tone:
        """How all ended: the worst of the lanes; "warn", too, if calls met that should not have."""
        tones: list[Tone] = [tone for _, _, tone, _ in self.ends]
        if any(column.flag == "wrong" for column in self.columns):
            tones.append("warn")
        return max(tones, key=_WORST.index)

    def short(self, lane: int) -> str:
        """A lane's name where there is little room."""
        count, name = len(self.ranks[lane]), self.names[lane]
        return f"{count} ranks" if count > 3 and name.startswith("ranks") else name

    def had(self, lane: int) -> str:
        """How many inputs each rank of a lane had, unless that tells nothing: of many lanes, all had as
        many."""
        inputs = self.inputs[lane]
        if inputs is None or (len(self.inputs) > 4 and len({*self.inputs}) == 1):
            return ""
        return counted(inputs, "input")

    def under(self, lane: int) -> str:
        """The text below a lane's name: how many inputs each rank had, and the ranks if there are
        many."""
        name, had = self.names[lane], self.had(lane)
        if len(self.ranks[lane]) < 4 or not name.startswith("ranks "):
            return had
        return f"{had}: {name.removeprefix('ranks ')}".removeprefix(": ")

    def title(self, column: Column) -> str:
        """A column in words: "call 12: barrier meets anyone left?"."""
        if column.missing is not None:
            return f"{self.names[column.missing[0]]} never issued {column.missing[1]}"
        labels = list(dict.fromkeys(box.label for box in column.drawn))
        if not labels:
            return "no call here"
        number = f"{'calls' if column.stack else 'call'} {column.number}: " if column.number else ""
        if column.stack:
            return f"{number}{' · '.join(labels)}, {column.remark}"
        if len(column.boxes) > 1 and (column.flag != "open" or len(labels) < 2):
            return number + (" faces " if column.flag == "apart" else " meets ").join(labels)
        calls = []
        for lane, box in sorted(column.boxes.items()):
            name = self.names[lane]
            of_many = name.endswith("s")
            calls.append(f"{box.label} of {name}" if of_many else f"{name}'s {box.label}")
        return number + ", ".join(calls)

    def fate(self, column: Column, lane: int) -> str:
        """What became of a lane's call there, if it did not complete."""
        box = column.boxes.get(lane)
        if box is None or not (box.open or box.failed):
            return ""
        return "fails" if box.failed else fate_of(self.ends[lane][0])

    def below(self, index: int, lane: int) -> str:
        """The text below the label of a lane's big box. The renderers drop the part behind ": ", what
        the value was taken for, where it does not fit."""
        column = self.columns[index]
        if column.size != "big" or lane not in column.boxes:
            return ""
        for reading in self.readings:
            if reading.column != index:
                continue
            alike = column.boxes[reading.to].label == column.boxes[lane].label
            if lane == reading.to or (lane != reading.of and alike):
                return f"reads {reading.value}: {reading.taken}".removesuffix(": ")
            return f"puts in {reading.sent}" if lane == reading.of else ""
        return self.fate(column, lane)


_WORST: tuple[Tone, ...] = ("good", "", "warn", "bad")
_FATES = {"✓": "left pending", "!": "left pending", "…": "not ended", "?": "no end on record"}


def fate_of(sign: str) -> str:
    """What became of a call that did not complete, by the sign of its rank's ending."""
    return _FATES.get(sign, "never ends")
