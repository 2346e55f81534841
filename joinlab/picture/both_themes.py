"""Both themes in one SVG file: a picture drawn in the colours of a light page takes those of a dark
one where the reader's system asks for it, as an <img>, too."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape

from joinlab.picture.theme import DARK, LIGHT

FONT = "Inter, Helvetica Neue, Arial, Liberation Sans, sans-serif"

_NAMES: dict[str, str] = {}
for _name, _color in LIGHT.items():  # of equal colours the first one: white is the paper
    _NAMES.setdefault(_color.lower(), _name)

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


def drawing(width: float, height: float, label: str, parts: Iterable[str]) -> str:
    """A drawing of our own as <svg>."""
    return in_both_themes(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" style="max-width:100%;height:auto" role="img" aria-label="{escape(label)}" '
        f'font-family="{FONT}" font-size="13"><rect width="100%" height="100%" rx="8" '
        f'fill="{LIGHT["paper"]}"/>{"".join(parts)}</svg>'
    )
