"""Meaningful edges have a contrast of 3:1 with every adjacent fill, for all common kinds of colour
blindness."""

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
"""What becomes of linear RGB: Machado, Oliveira and Fernandes, "A Physiologically-based Model for
Simulation of Color Vision Deficiency" (IEEE TVCG 15, 2009), their matrices of severity 1.0."""

PAGES = {
    "light": (theme.LIGHT, theme.LIGHT["paper"], theme.LIGHT["ink"]),
    "dark": (theme.DARK, theme.DARK["paper"], theme.DARK["ink"]),
    "JupyterLab Light": (theme.LIGHT, "#ffffff", "#000000"),
    "JupyterLab Dark": (theme.DARK, "#111111", "#ffffff"),
}
HOSTS = (RowKind.SPAN, RowKind.WAIT)
CALLS = [color for kind, color in theme.FILLS.items() if kind not in HOSTS]


def linear(color: str) -> list[float]:
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts]


def contrast(one: str, other: str, eyes: str) -> float:
    """The contrast, by WCAG 2.2, of two colours as those eyes see them."""
    light = linear(one), linear(other)
    seen = [
        [sum(a * b for a, b in zip(row, rgb, strict=True)) for row in EYES[eyes]] for rgb in light
    ]
    bright = sorted(
        sum(w * min(max(c, 0.0), 1.0) for w, c in zip((0.2126, 0.7152, 0.0722), rgb, strict=True))
        for rgb in seen
    )
    return (bright[1] + 0.05) / (bright[0] + 0.05)


def test_the_formula_gives_what_wcag_gives():
    assert contrast("#000000", "#ffffff", "all cones") == pytest.approx(21)
    assert contrast("#777777", "#ffffff", "all cones") == pytest.approx(4.48, abs=0.01)
    assert contrast("#ff0000", "#000000", "protanopia") < 0.7 * contrast(
        "#ff0000", "#000000", "all cones"
    )


@pytest.mark.parametrize("eyes", EYES)
@pytest.mark.parametrize("page", PAGES)
def test_an_edge_stands_out_from_every_fill_beside_it(page, eyes):
    palette, paper, _ = PAGES[page]
    grounds = {"paper": paper, "ground": palette["ground"]}
    boxes = {
        kind.value: palette[f"k{at}"] for at, kind in enumerate(theme.FILLS) if kind not in HOSTS
    }
    pairs = [
        ("what went wrong", palette["bad"], grounds | boxes),
        ("what is selected", theme.PICKED, {"paper": paper}),
    ]
    pairs.append(
        (
            "what went wrong in a figure",
            theme.EDGE,
            {"paper": paper} | {color: color for color in CALLS},
        )
    )
    weak = {
        f"edge of {mark} on {name}": round(ratio, 2)
        for mark, color, fills in pairs
        for name, fill in fills.items()
        if (ratio := contrast(color, fill, eyes)) < 3
    }
    assert weak == {}


@pytest.mark.parametrize("page", [page for page in PAGES if "ark" in page])
def test_a_box_can_be_seen_on_a_dark_page(page):
    palette, paper, _ = PAGES[page]
    fills = {kind: palette[f"k{at}"] for at, kind in enumerate(theme.FILLS) if kind not in HOSTS}
    assert {kind for kind in fills if contrast(fills[kind], paper, "all cones") < 1.8} == set()


@pytest.mark.parametrize("eyes", EYES)
def test_words_on_a_fill_can_be_read(eyes):
    assert min(contrast(theme.BLACK, fill, eyes) for fill in (*CALLS, theme.FINE)) >= 4.5
    assert contrast(theme.BLACK, theme.WRONG, eyes) >= (4.5 if eyes == "all cones" else 3)
