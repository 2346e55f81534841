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

import re
import tomllib
from collections.abc import Mapping
from importlib.resources import files

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

THEME = tomllib.loads((files("joinlab.picture") / "looks.toml").read_text("utf-8"))
"""The colours of each kind of call and of both pages, and all else that the scripts use, too."""

_KINDS = {RowKind[name]: colors for name, colors in THEME["kinds"].items()}

FILLS: Mapping[RowKind, str] = {kind: colors[0] for kind, colors in _KINDS.items()}

LIGHT: dict[str, str] = THEME["light"]
DARK: dict[str, str] = THEME["dark"]
for _index, _colors in enumerate(_KINDS.values()):
    _fill, _ink = f"k{_index}", f"i{_index}"
    LIGHT[_fill], LIGHT[_ink], DARK[_fill], DARK[_ink] = _colors


def ink_of(kind: RowKind) -> str:
    """The colour of words on a box of this kind, and of its name on the page."""
    ink: str = _KINDS[kind][1]
    return ink


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


# of equal colours the first one: white is the paper
_NAMES = {color.lower(): name for name, color in reversed(LIGHT.items())}

_COLOR = re.compile(r'\b(fill|stroke|stop-color)="(#[0-9a-fA-F]{6})"')


def in_both_themes(svg: str) -> str:
    """The same <svg> with a style sheet: every colour of `theme.LIGHT` becomes a variable. Other
    colours, such as those of masks, stay."""
    used: dict[str, None] = {}

    def variable(match: re.Match[str]) -> str:
        name = _NAMES.get(match[2].lower())
        if name is None:
            return match[0]
        used[name] = None
        return f'{match[1]}="var(--{name})"'

    text = _COLOR.sub(variable, svg)
    light, dark = (
        "".join(f"--{name}:{colors[name]};" for name in used) for colors in (LIGHT, DARK)
    )
    style = f"<style>svg{{{light}}}@media(prefers-color-scheme:dark){{svg{{{dark}}}}}</style>"
    head, bracket, body = text.partition(">")
    return head + bracket + style + body
