"""Edges that mean something stand out 3:1 from every fill beside them, for people with any common colour blindness."""

from __future__ import annotations

import pytest

from joinlab.picture import theme
from joinlab.picture.rows import RowKind

EYES = {
    "all cones": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
}
"""What becomes of linear RGB: Machado, Oliveira and Fernandes, "A Physiologically-based Model for Simulation of Color
Vision Deficiency" (IEEE TVCG 15, 2009), their matrices of severity 1.0."""

PAGES = {
    "light": (theme._LIGHT, theme._LIGHT["paper"], theme._LIGHT["ink"]),
    "dark": (theme._DARK, theme._DARK["paper"], theme._DARK["ink"]),
    "JupyterLab Light": (theme._LIGHT, "#ffffff", "#000000"),
    "JupyterLab Dark": (theme._DARK, "#111111", "#ffffff"),
}
CALLS = [color for kind, (color, _) in theme.STYLES.items() if kind not in (RowKind.SPAN, RowKind.WAIT)]


def linear(color: str) -> list[float]:
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts]


def contrast(one: str, other: str, eyes: str) -> float:
    """As WCAG 2.2 defines it, of what those eyes make of two colours."""
    light = linear(one), linear(other)
    seen = [[sum(a * b for a, b in zip(row, rgb, strict=True)) for row in EYES[eyes]] for rgb in light]
    bright = sorted(
        sum(w * min(max(c, 0.0), 1.0) for w, c in zip((0.2126, 0.7152, 0.0722), rgb, strict=True)) for rgb in seen
    )
    return (bright[1] + 0.05) / (bright[0] + 0.05)


def over(color: str, opacity: float, ground: str) -> str:
    parts = [(int(color[at : at + 2], 16), int(ground[at : at + 2], 16)) for at in (1, 3, 5)]
    return "#" + "".join(f"{round(top * opacity + below * (1 - opacity)):02x}" for top, below in parts)


def fills(page: str) -> dict[str, str]:
    """Everything on a page that an edge can lie on or beside."""
    palette, paper, ink = PAGES[page]
    found = {"paper": paper, **{lane: over(ink, float(palette[lane]), paper) for lane in ("lane", "host")}}
    bands = {
        f"{name} on {ground}": over(theme.WRONG, opacity, found[ground])
        for name, opacity in (("clash", float(palette["clash-fill"])), ("miss", float(palette["miss-fill"])))
        for ground in ("paper", "lane", "host")
    }
    return found | bands | {color: color for color in CALLS}


def test_the_formula_gives_what_wcag_gives():
    assert contrast("#000000", "#ffffff", "all cones") == pytest.approx(21)
    assert contrast("#777777", "#ffffff", "all cones") == pytest.approx(4.48, abs=0.01)
    assert contrast("#ff0000", "#000000", "protanopia") < 0.7 * contrast("#ff0000", "#000000", "all cones")


@pytest.mark.parametrize("eyes", EYES)
@pytest.mark.parametrize("page", PAGES)
def test_an_edge_stands_out_from_every_fill_beside_it(page, eyes):
    marks = {"edge of what went wrong": theme.EDGE, "edge of what is selected": theme.PICKED}
    weak = {
        f"{mark} on {name} {fill}": round(ratio, 2)
        for mark, color in marks.items()
        for name, fill in fills(page).items()
        if (ratio := contrast(color, fill, eyes)) < 3
    }
    assert weak == {}


@pytest.mark.parametrize("eyes", EYES)
@pytest.mark.parametrize("page", PAGES)
def test_the_band_of_calls_that_met_has_an_edge_that_stands_out(page, eyes):
    palette, paper, ink = PAGES[page]
    for lane in ("lane", "host"):
        ground = over(ink, float(palette[lane]), paper)
        inside = over(palette["soft"], theme.BAND_OPACITY[False, True], ground)
        assert min(contrast(palette["soft"], fill, eyes) for fill in (paper, ground, inside)) >= 3


@pytest.mark.parametrize("eyes", EYES)
def test_words_on_a_fill_can_be_read(eyes):
    assert min(contrast(theme.BLACK, fill, eyes) for fill in (*CALLS, theme.FINE)) >= 4.5
    assert contrast(theme.BLACK, theme.WRONG, eyes) >= (4.5 if eyes == "all cones" else 3)
