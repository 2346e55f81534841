"""The scripts and styles that the package holds: one ES module of three files, which widget and page have in common."""

from __future__ import annotations

from importlib.resources import files

_PARTS = ("lanes.js", "picture.js", "view.js")


def script() -> str:
    """The live view as one ES module: exports mount, unpack and Store, and, for anywidget, a default."""
    return "\n".join(asset(part) for part in _PARTS)


def asset(name: str) -> str:
    """The text of one file.

    asset("view.css")
    """
    return (files("joinlab.picture") / "static" / name).read_text("utf-8")
