"""The theme: every colour of joinlab's pictures. Style sheets and scripts get theirs from here,
too.

The colours are the Okabe-Ito palette, which people with any common colour blindness can tell apart.
Vermillion is only for what went wrong. Colour is never the only sign: every box also says in words
what it is.

Edges with a meaning (EDGE, PICKED) have a contrast of at least 3:1 to every fill beside them, on
light and dark pages and with simulated colour blindness (tests/picture/test_contrast.py). That is why the
pastels are no darker.
"""

from __future__ import annotations

from collections.abc import Mapping

from joinlab.picture.rows import RowKind

WRONG = "#D55E00"
# around what went wrong: between pastels and a dark page there is room for this, not for WRONG
EDGE = "#B85832"
PICKED = "#1F6FC4"  # around what is selected
RIGHT = "#009E73"
FINE = "#B7DFD0"  # all ranks finish: the pastel of RIGHT
INK = "#7A7A7A"  # reads on white (4.3:1) and on the dark of JupyterLab (4.4:1)
BLACK, WHITE = "#000000", "#FFFFFF"
OUTLINE = "#333333"  # edge of a box
CHIPS = ("#56B4E9", "#E69F00", "#5FC9A5", "#E3A8CB", "#F0E442", "#C9C9C9")
"""One a rank, light enough for black text; the seventh rank begins again."""

_KINDS: Mapping[
    RowKind, tuple[str, str, str, str]
] = {  # fill and ink on a light page, and on a dark one
    RowKind.FORWARD: ("#CFE3F3", "#1f4a78", "#214873", "#9cc0e6"),
    RowKind.BACKWARD: ("#CFE9DF", "#14543a", "#17503b", "#8accae"),
    RowKind.JOIN: ("#F6DFB4", "#6b4600", "#574313", "#e2c078"),
    RowKind.FINAL: ("#D9DAF2", "#403d8c", "#3f3a8f", "#b2b1e6"),
    RowKind.BARRIER: ("#EADFEA", "#66365f", "#65316e", "#cfaad8"),
    RowKind.REDUCE: ("#EDEBC8", "#585200", "#4a4813", "#d3cf8a"),
    RowKind.SPREAD: ("#F7DEE1", "#7d2a3d", "#772d3f", "#e6a7b6"),
    RowKind.COLLECT: ("#D3E6C3", "#345c12", "#304e17", "#a9d084"),
    RowKind.PAIR: ("#EBDFD2", "#6a4520", "#623e22", "#d8b58d"),
    RowKind.OTHER: ("#DDE9E9", "#35595b", "#1b4c50", "#9cc3c6"),
    RowKind.SETUP: ("#E4E4E1", "#55554f", "#3f4752", "#b8c0cc"),
    RowKind.FOLD: ("#F3F3F1", "#55554f", "#3f4752", "#b8c0cc"),
    RowKind.WAIT: ("#FFFFFF", "#55554f", "#3f4752", "#b8c0cc"),
    RowKind.SPAN: ("#D9D9D6", "#55554f", "#3f4752", "#b8c0cc"),
}
"""Pastel, so that what went wrong stands out; on a dark page 1.8:1 to it, so that kinds can be told
apart. Each ink reads 4.5:1 on its box and the page: tests/picture/test_contrast.py."""

FILLS: Mapping[RowKind, str] = {kind: colors[0] for kind, colors in _KINDS.items()}

LIGHT = {
    "ink": "#1a1a1a",
    "soft": "#595959",
    "paper": "#ffffff",
    "panel": "#f4f4f2",
    "edge": "#b5b5b0",
    "link": "#0057a8",
    "wrong": "#a84300",
    "right": "#00674a",
    "mark": "#ffe8d9",
    "bad": "#b63a00",
    "onbad": "#ffffff",
    "warn": "#6a5200",
    "ground": "#fff2ea",
    "line": "#dfe3e8",
    "faint": "#eceff2",
    "card": "#f5f6f8",
    "host": "#cdd2d9",
    "dot": "#14171c",
    "knob": "#14171c",
    "onknob": "#ffffff",
}
DARK = {
    "ink": "#ececec",
    "soft": "#b4b4b4",
    "paper": "#141414",
    "panel": "#1f1f1f",
    "edge": "#555555",
    "link": "#7cc0ff",
    "wrong": "#ff9c5c",
    "right": "#4ed0a4",
    "mark": "#4a2a14",
    "bad": "#ffb07a",
    "onbad": "#1a0d06",
    "warn": "#d9bd6a",
    "ground": "#33200f",
    "line": "#2b313b",
    "faint": "#1d2229",
    "card": "#171b21",
    "host": "#454c58",
    "dot": "#9ba4b2",
    "knob": "#333b47",
    "onknob": "#c2c9d3",
}
for _at, _colors in enumerate(_KINDS.values()):
    LIGHT[f"k{_at}"], LIGHT[f"i{_at}"], DARK[f"k{_at}"], DARK[f"i{_at}"] = _colors


def ink_of(kind: RowKind) -> str:
    """The colour of words on a box of this kind, and of its name on the page."""
    return _KINDS[kind][1]


def variables() -> str:
    """The palette as CSS variables `--jl-...`: for a light page, a dark one, and JupyterLab's two
    themes."""

    def block(colors: Mapping[str, str]) -> str:
        return " ".join(f"--jl-{name}: {color};" for name, color in colors.items())

    return (
        f":root, :host {{ {block({'black': BLACK, 'picked': PICKED} | LIGHT)} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root, :host {{ {block(DARK)} }} }}\n"
        f'[data-jp-theme-light="true"] {{ {block(LIGHT)} }}\n'
        f'[data-jp-theme-light="false"] {{ {block(DARK)} }}\n'
    )
