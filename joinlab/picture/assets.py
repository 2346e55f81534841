"""The package's scripts and styles: ES modules, joined into one that a widget or a page can
load."""

from __future__ import annotations

import gzip
import json
import re
from base64 import b64encode
from functools import cache
from importlib.resources import files

from joinlab.picture.theme import variables

_FOR_READERS = re.compile(
    r"(?m)^[ \t]*//.*\n|^[ \t]*/\*\*(?:(?!\*/)[\s\S])*\*/[ \t]*\n|/\*\* @(?:type|returns) [^*]*\*/ ?"
    r"|^[ \t]+|[ \t]+// .*$"
)
"""Comments, types and indentation: a quarter of the bytes of a view. No template of the scripts
spans lines, and no text of theirs holds " // "."""

_OF_STYLES = re.compile(r"\s*/\*.*?\*/|(?<=[{};,:])\s+|\s+(?=[{}])", re.DOTALL)

_IMPORT = re.compile(r'(?m)^import \{[^}]*\} from "\./([\w.]+)";\n')


@cache
def script(name: str) -> str:
    """A module and all modules that it imports, joined: each once, after the modules that it needs.

    All top-level names differ, so exports need no renaming.

        script("widget.js")     # the live view in a notebook: exports what anywidget asks for
        script("page.js")       # the same on a page
    """
    return _FOR_READERS.sub("", "\n".join(_parts(name, set())))


_UNPACKS = """const packed = Uint8Array.from(atob("%s"), (c) => c.charCodeAt(0));
const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
const type = "text/javascript";
const url = URL.createObjectURL(new Blob([await new Response(stream).blob()], { type }));
const { default: widget } = await import(url);
URL.revokeObjectURL(url);
export default widget;"""


@cache
def packed_script(name: str) -> str:
    """The same as a module that unpacks it, a third as long: a widget's module travels with it."""
    packed = gzip.compress(script(name).encode(), mtime=0)
    return _UNPACKS % b64encode(packed).decode()


def figures_script() -> str:
    """What draws views within other pages, with its style, for a <script src>: that loads from a folder,
    too, where no module does."""
    text = re.sub(r"(?m)^export ", "", script("figures.js"))
    styles = json.dumps(style("view.css", "first.css", "figures.css"), ensure_ascii=False)
    return f'"use strict";(() => {{const joinlabStyles = {styles};\n{text}}})();\n'


def _parts(name: str, included: set[str]) -> list[str]:
    if name in included:
        return []
    included.add(name)
    text = asset(name)
    needed = []
    for imported in _IMPORT.findall(text):
        needed.extend(_parts(imported, included))
    return [*needed, _IMPORT.sub("", text)]


def asset(name: str) -> str:
    """The text of one file.

    asset("view.css")
    """
    return (files("joinlab.picture") / "static" / name).read_text("utf-8")


def style(*names: str) -> str:
    """Style sheets, preceded by the palette of their colours.

    style("view.css")
    """
    return variables() + "".join(_OF_STYLES.sub("", asset(name)) for name in names)
