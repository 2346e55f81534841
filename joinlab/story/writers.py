"""The writers of a story as text, HTML and Markdown; `Story.json` is the third form. Nothing else lays one out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from textwrap import wrap

from joinlab.analysis.wording import ranks_text, short_site, shown, sign_of
from joinlab.story.forms import pieces_of, said
from joinlab.story.lines import Edit, Line, LineKind, Piece, SourceLine
from joinlab.story.words import ENDINGS, ends
from joinlab.timeline import EndKind

TAGS = {
    LineKind.CAUSE: "WHY",
    LineKind.PARTING: "AT",
    LineKind.FATE: "ENDED",
    LineKind.FIX: "FIX",
    LineKind.NOTE: "NOTE",
}
"""What stands before the first line of each kind."""

CALLERS = 2
"""How many of the lines that led to a call are printed, the nearest first."""

_INDENT = 7
_ORDER = (LineKind.CAUSE, LineKind.PARTING, LineKind.FIX, LineKind.FATE, LineKind.NOTE)


def text_of(lines: Sequence[Line], width: int | None = None) -> str:
    """The story as text; broken at `width` characters, if that is given."""
    found = _broken(said(lines[0]), "", width)
    for text in _under_headline(lines):
        found += _broken(f"{' ' * _INDENT}{text}", " " * _INDENT, width)
    for kind in _ORDER:
        tag = TAGS[kind]
        for line in _of(lines, kind):
            for text in (said(line), *_beside(line)):
                found += _broken(f"{tag:{_INDENT}}{text}", " " * _INDENT, width)
                tag = ""
    return shown("\n".join(found))


def ended_in_short(headline: Line) -> str:
    """How the ranks ended, in a few words: "rank 1 hangs", "both finished"."""
    groups = headline.facts["ends"]
    world = sum(len(one["ranks"]) for one in groups)
    if len(groups) == 1 and world > 1:
        one, every = groups[0], "both" if world == 2 else f"all {world}"
        verb = "still running" if one["runs"] else ENDINGS[EndKind(one["kind"])].many
        return f"{every} {verb}{', a call still pending' if one['pending'] else ''}"
    bad = [one for one in groups if not one["good"]] or groups
    return " · ".join(
        f"{ranks_text(one['ranks'])} left a call"
        if one["pending"]
        else "".join(piece.text for piece in ends(one["ranks"], one["kind"], runs=one["runs"]))
        for one in bad[:2]
    )


def _of(lines: Sequence[Line], kind: LineKind) -> list[Line]:
    return [line for line in lines if line.kind is kind]


def _broken(text: str, indent: str, width: int | None) -> list[str]:
    if width is None:
        return [text.rstrip()]
    return wrap(text, width, subsequent_indent=indent, break_on_hyphens=False, drop_whitespace=True) or [""]


def _beside(line: Line) -> Iterator[str]:
    """The program's lines under a line of the story, and what a fix changes."""
    if line.kind is LineKind.CAUSE:
        yield from _sources(line)
    for edit in line.edits:
        yield from diff_of(edit)


def _sources(line: Line) -> Iterator[str]:
    for one in line.lines:
        if one.text:
            yield _cited(one)
            yield from (f"  called from {_cited(via)}" for via in one.via[:CALLERS])


def _under_headline(lines: Sequence[Line]) -> list[str]:
    """The program's lines that the headline rests on, where no cause tells them."""
    return [] if _of(lines, LineKind.CAUSE) else list(_sources(lines[0]))


def _cited(line: SourceLine) -> str:
    return f"{short_site(line.site)}  {line.text.strip()}"


def diff_of(edit: Edit) -> Iterator[str]:
    """An edit as the lines of a diff."""
    yield f"{short_site(f'{edit.file}:{edit.begin}')}"
    yield from (f"- {text}" for text in edit.removed)
    yield from (f"+ {text}" for text in edit.added)


def html_of(lines: Sequence[Line]) -> str:
    """The story as HTML, without any style of its own but the weight of the headline."""
    under = "\n".join(_under_headline(lines))
    found = [f"<p><strong>{_html(pieces_of(lines[0]))}</strong></p>" + (f"<pre>{escape(under)}</pre>" if under else "")]
    for kind in _ORDER:
        rows = [_html_line(line) for line in _of(lines, kind)]
        if rows:
            items = "".join(f"<li>{row}</li>" for row in rows)
            found.append(f'<p>{TAGS[kind].lower()}</p><ul class="{kind.value}">{items}</ul>')
    return shown("".join(found))


def _html_line(line: Line) -> str:
    under = "\n".join(_beside(line))
    mark = f"{sign_of(line.form, bool(line.facts.get('pending')))} " if line.kind is LineKind.FATE else ""
    return mark + _html(pieces_of(line)) + (f"<pre>{escape(under)}</pre>" if under else "")


def _html(pieces: tuple[Piece, ...]) -> str:
    return "".join(f"<code>{escape(one.text)}</code>" if one.code else escape(one.text) for one in pieces)


def markdown_of(lines: Sequence[Line]) -> str:
    """The story as Markdown: its text, the headline in bold."""
    found = [f"**{_html(pieces_of(lines[0]))}**", ""]
    found += [f"  `{text}`" for text in _under_headline(lines) if "`" not in text]
    for kind in _ORDER:
        for line in _of(lines, kind):
            found.append(f"- {TAGS[kind].lower()}: {_html(pieces_of(line))}")
            found += [f"  `{text}`" for text in _beside(line) if "`" not in text]
    return shown("\n".join(found))
