"""Wording: how ranks, calls, tensors and endings are named. Rooms from the story up
and those below it share these words; those of the story alone are in `story/words.py`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from joinlab.ops import counted
from joinlab.program.steps import BY_BACKWARD
from joinlab.timeline import FROM_TEXT, Ending, EndKind, Meta, Timeline

K = TypeVar("K")
V = TypeVar("V")


def by_key(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """The values of each key, in order.

    >>> by_key([("lr 0.1", 0), ("lr 0.2", 1), ("lr 0.1", 2)])
    {'lr 0.1': [0, 2], 'lr 0.2': [1]}
    """
    values: dict[K, list[V]] = {}
    for key, value in pairs:
        values.setdefault(key, []).append(value)
    return values


def listed(items: Sequence[str]) -> str:
    """Words joined as in a sentence.

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    if len(items) == 1:
        return items[0]
    return f"{', '.join(items[:-1])} and {items[-1]}"


_UNSHOWABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


def shown(text: str) -> str:
    """The text for output: control characters, writing directions and lone surrogates become
    escapes.

    The text may come from a program or a stranger's file. A raw control character can rename a
    terminal or fill its clipboard, and makes SVG malformed; a lone surrogate cannot be encoded. A
    Timeline keeps the original text.

    >>> print(shown("\\x1b[2J in\\ntwo lines"))
    \\x1b[2J in
    two lines
    """
    return _UNSHOWABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def number_text(meta: Meta, group: str, number: int | None) -> str:
    """A call's number as its record has it: NCCL's log and DETAIL count from 0."""
    counts = meta.get("counted", {}).get(group)
    if number is None or counts is None:
        if number is None:
            return ""
        return str(number)
    if counts == "opCount":
        return f"{counts} {number - 1:x}"
    return f"{counts} {number - 1}"


# ---- tensors


def shapes(shape: Sequence[Sequence[int]] | None) -> str:
    """Shapes in words: "[1]", "[2, 3] and [2]"; a scalar is "scalar"."""
    return (
        " and ".join(str(list(sizes)) if sizes else "scalar" for sizes in shape or [])
        or "no tensor"
    )


def tensor(row: Mapping[str, Any]) -> str:
    """dtype and shape of a call's tensors: "float32[1]"; "no tensor" for a gloo barrier.

    >>> tensor({"dtype": "float32", "shape": [[1]]})
    'float32[1]'
    """
    if row["dtype"] is None:
        return "no tensor"
    dtypes = str(row["dtype"]).split(",")
    sizes = row["shape"] or []
    if len(dtypes) == 1:
        dtypes *= len(sizes) or 1
    pairs = []
    for dtype, size in zip(dtypes, sizes, strict=False):
        pairs.append(f"{dtype}{list(size) if size else ' scalar'}")
    return ", ".join(pairs) or str(row["dtype"])


# ---- endings


def good(ending: Ending) -> bool:
    """Whether a rank finished and left nothing pending, or is still running."""
    return ending.runs or (ending.kind is EndKind.FINISHED and not ending.pending)


_SIGNS = {"finished": "✓", "running": "…", EndKind.UNKNOWN: "?"}


def sign_of(form: str, pending: bool = False) -> str:
    """An ending as a sign: finished, finished with a call pending, still running, not known, or
    anything else.

    >>> sign_of("finished"), sign_of("finished", pending=True), sign_of("killed")
    ('✓', '!', '✕')
    """
    if pending:
        return "!"
    return _SIGNS.get(form, "✕")


def sign(ending: Ending) -> str:
    """The same of an Ending."""
    return sign_of("running" if ending.runs else ending.kind.value, ending.pending)


# ---- runs


def title(timeline: Timeline) -> str:
    """One line: which program, on what, with how many inputs.

    >>> from joinlab.timeline import timeline_from_rows
    >>> meta = {"program": "case_4", "inputs": [5, 6], "engine": "launched", "backend": "gloo"}
    >>> title(timeline_from_rows([], [Ending("finished")] * 2, meta))
    'case_4, inputs (5, 6), launched on gloo'
    """
    meta = timeline.meta
    inputs = meta.get("inputs")
    if inputs:
        inputs_text = f", inputs ({', '.join(map(str, inputs))})"
    else:
        inputs_text = ""
    if inputs and len(inputs) > 8:
        low, high = min(inputs), max(inputs)
        inputs_text = (
            f", {len(inputs)} ranks with {low if low == high else f'{low} to {high}'} inputs"
        )
    program, backend = meta.get("program", "program"), meta.get("backend")
    on_backend = f" on {backend}" if backend else ""
    return f"{program}{inputs_text}, {meta.get('engine', 'recorded')}{on_backend}"


def size_text(timeline: Timeline) -> str:
    """How many ranks a run has; a text proves only some.

    >>> from joinlab.timeline import timeline_from_rows
    >>> size_text(timeline_from_rows([], [Ending("finished")] * 2, {}))
    '2 ranks'
    """
    size = counted(timeline.world_size, "rank")
    return f"at least {size}" if timeline.meta.get("format") == FROM_TEXT else size


def at_input(number: int, meta: Meta) -> str:
    """A number of the column `input` in words.

    >>> at_input(2, {}), at_input(2, {"input_column": "backward passes"})
    ('inputs[2]', 'step 2')
    """
    if counts_steps(meta):
        return f"step {number}"
    return f"inputs[{number}]"


def input_or_step(meta: Meta) -> str:
    """The unit of the column `input`: "input" or "step"."""
    if counts_steps(meta):
        return "step"
    return "input"


def counts_steps(meta: Meta) -> bool:
    """Whether the column `input` counts steps, see program/steps.py: it says nothing of
    meta["inputs"] then."""
    return meta.get("input_column") == BY_BACKWARD


def measured(timeline: Timeline) -> str:
    """Whether a run was measured or modelled, and on which system."""
    meta = timeline.meta
    backend, versions = meta.get("backend", "an unknown backend"), meta.get("versions") or {}
    if versions.get("torch"):
        torch = f", PyTorch {versions['torch']}"
    else:
        torch = ""
    match meta.get("engine"):
        case "launched":
            return (
                f"Measured: {timeline.world_size} real processes on {backend}{torch}. "
                "Times are of the machine's clock."
            )
        case "emulated":
            return (
                f"Modelled: PyTorch's own code on a modelled {backend}{torch}{_barrier(timeline)}. "
                f"Times are of a virtual clock."
            )
        case engine:
            return f"{str(engine or 'recorded').capitalize()}: {size_text(timeline)} on {backend}{torch}."


def _barrier(timeline: Timeline) -> str:
    """Which barrier was modelled; on NCCL, endings depend on it."""
    knobs = timeline.meta.get("emulation") or {}
    if timeline.meta.get("backend") != "nccl" or "era" not in knobs:
        return ""
    if knobs["era"] == "today":
        return ", with today's barrier, an all-reduce of a float zero"
    byte = knobs.get("barrier_value")
    if knobs.get("pad"):
        pad = f", and {knobs['pad']} as the undefined half of a line"
    else:
        pad = ""
    return f", with the barrier of PyTorch 1.9, an all-reduce of one byte that nobody set, here {byte}{pad}"


def splits_text(splits: Sequence[Sequence[int]]) -> str:
    """The column `splits` in words; one number alone is of each rank.

    >>> splits_text([[1, 3], [2]])
    'sends 1, 3 and expects 2 of each'
    """
    texts = []
    for side, of_all in zip(splits, ("to each", "of each"), strict=True):
        numbers = ", ".join(map(str, side[:8]))
        if len(side) == 1:
            numbers += f" {of_all}"
        elif len(side) > 8:
            numbers += ", ..."
        texts.append(numbers)
    return f"sends {texts[0]} and expects {texts[1]}"


# ---- calls and groups


def differing_text(names: Sequence[str]) -> str:
    """The properties in which calls differ (Slot.differs), in words.

    >>> differing_text(["dtype", "shape"]), differing_text(["reduce_op"])
    ('dtype and size', 'reduce operation')
    """
    return listed(
        [{"shape": "size", "reduce_op": "reduce operation"}.get(name, name) for name in names]
    )


def group_text(meta: Mapping[str, Any], group: str) -> str:
    """A group for readers: its name, or the beginning of a hash, and its description or its ranks.

    >>> names = {"group_names": {"1": "mesh_dp", "3dc437aa018bb5b1c0d2": "ranks 0, 2"}}
    >>> group_text(names, "1"), group_text(names, "3dc437aa018bb5b1c0d2"), group_text(names, "0")
    ('1 (mesh_dp)', '3dc437 (ranks 0, 2)', '0')
    """
    description = meta.get("group_names", {}).get(group)
    short = group[:6] if len(group) > 16 else group
    if description:
        return f"{short} ({description})"
    return group


def ranks_text(ranks: Sequence[int]) -> str:
    """Ranks as every room writes them, as short as they can be.

    >>> ranks_text([3]), ranks_text([2, 0]), ranks_text([0, 1, 2, 3, 4, 6, 7])
    ('rank 3', 'ranks 0, 2', 'ranks 0-4, 6, 7')
    >>> ranks_text(range(1, 64, 2))
    'ranks 1, 3, ..., 63'
    """
    runs: list[str] = []
    remaining = sorted(ranks)
    while remaining:
        step = remaining[1] - remaining[0] if remaining[1:] else 1
        count = next(
            (index for index, rank in enumerate(remaining) if rank != remaining[0] + index * step),
            len(remaining),
        )
        first, last = remaining[0], remaining[count - 1]
        if step == 1 and count > 2:
            runs.append(f"{first}-{last}")
        elif step > 1 and count > 4:
            runs.append(f"{first}, {first + step}, ..., {last}")
        else:
            runs.append(f"{first}")
            count = 1  # the next one may begin a run
        remaining = remaining[count:]
    return f"{'ranks' if len(ranks) > 1 else 'rank'} {', '.join(runs)}"
