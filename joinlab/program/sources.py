"""Sources: the texts of the functions that a run's calls came from, read while Python still has
them.

The unit is a function, from its decorators to its last line; outside of functions, the statement
around the line, such as the loop of a script. Texts are bounded, since they are stored with every
run.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import os
import re
import textwrap
from collections.abc import Iterable
from functools import lru_cache
from types import CodeType

from joinlab.ops import Source

MAX_TEXT = 16_000
"""Most characters of one text; of a longer function, only the PIECE lines around the call are
kept."""
MAX_TEXTS = 64_000
"""Most characters of all texts of one run; the first that fit are kept."""
PIECE = 200

# frames of their own, inside a function's lines
_INNER = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")


def source_of(program: object) -> Source | None:
    """The program's text and its place: {"file", "first_line", "text"}; None if Python does not
    know it."""
    code = getattr(inspect.unwrap(program), "__code__", None)  # type: ignore[arg-type]
    source = None if code is None else _function(code, code.co_filename)
    if source is None:
        return None
    return source.copy()


def source_at(code: CodeType, line: int) -> Source | None:
    """The text of the function or statement of `code`, around one of its lines; None if Python does
    not know it."""
    if code.co_name in _INNER:
        return None
    at_top = code.co_name == "<module>"
    if at_top:
        whole = _statement(code, code.co_filename, line)
    else:
        whole = _function(code, code.co_filename)
    if whole is None or len(whole["text"]) <= MAX_TEXT:
        return whole
    lines = whole["text"].split("\n")
    # fixed pieces, so that calls from near lines share one
    begin = (line - whole["first_line"]) // PIECE * PIECE
    text = "\n".join(lines[begin : begin + PIECE])
    if not text or len(text) > MAX_TEXT:
        return None
    return {"file": whole["file"], "first_line": whole["first_line"] + begin, "text": text}


def other_functions(program: Source | None, sources: Iterable[Source]) -> list[Source]:
    """The texts in `sources` that are not part of the program's: each once, within MAX_TEXTS, by file
    and line.

    A function inside another function of `sources` is left out.
    """
    texts: dict[tuple[str, int], Source] = {}
    budget = MAX_TEXTS
    for source in sources:
        key, size = (source["file"], source["first_line"]), len(source["text"])
        if key not in texts and size <= min(budget, MAX_TEXT):
            texts[key] = source
            budget -= size
    chosen = (
        source
        for source in texts.values()
        if not (program and _holds(program, source))
        and not any(
            _holds(container, source) for container in texts.values() if container is not source
        )
    )
    return [
        source.copy()
        for source in sorted(chosen, key=lambda source: (source["file"], source["first_line"]))
    ]


def texts_of_cells(pickled: bytes) -> dict[str, str]:
    """By file name: the texts, such as notebook cells, that exist in no file and that code in
    `pickled` came from.

    Another process needs them to show the code.
    """
    texts = {}
    for file, entry in list(linecache.cache.items()):
        named = file.encode(errors="surrogatepass") in pickled
        if len(entry) == 4 and named and not os.path.exists(file):
            texts[file] = "".join(entry[2])
    return texts


def know_cells(texts: dict[str, str]) -> None:
    """Let Python find these texts by their file names: what `texts_of_cells` returned in another
    process."""
    for file, text in texts.items():
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)


def _holds(outer: Source, inner: Source) -> bool:
    """Whether all lines of `inner` are lines of `outer`."""
    begin = inner["first_line"] - outer["first_line"]
    return outer["file"] == inner["file"] and 0 <= begin <= outer["text"].count("\n") - inner[
        "text"
    ].count("\n")


# `file` is an argument although `code` has it: equal codes of two files are equal to the cache.


@lru_cache(maxsize=1024)
def _function(code: CodeType, file: str) -> Source | None:
    try:
        block = inspect.getblock(_lines(file)[code.co_firstlineno - 1 :])
    except Exception:  # no text, or it has changed since (TokenError, IndentationError)
        return None
    text = textwrap.dedent("".join(block))
    named = rf"\b(def|class)\s+{re.escape(code.co_name)}\b"
    if text.strip() and (code.co_name == "<lambda>" or re.search(named, text)):
        return {"file": file, "first_line": code.co_firstlineno, "text": text}
    return None  # the file has changed since: another function is there now


@lru_cache(maxsize=1024)
def _statement(code: CodeType, file: str, line: int) -> Source | None:
    for first, last in _top_level(code, file):
        if first <= line <= last:
            return {
                "file": file,
                "first_line": first,
                "text": "".join(_lines(file)[first - 1 : last]),
            }
    return None


@lru_cache(maxsize=64)
def _top_level(code: CodeType, file: str) -> list[tuple[int, int]]:
    """The first and the last line of each statement of a module."""
    try:
        return [
            (statement.lineno, statement.end_lineno or statement.lineno)
            for statement in ast.parse("".join(_lines(file))).body
        ]
    except Exception:
        return []


def _lines(file: str) -> list[str]:
    if file == "<string>":  # any text without a file; Python 3.13 takes it for that of `python -c`
        return []
    linecache.checkcache(file)
    return linecache.getlines(file)
