"""Writes a story as text and HTML; `Story.json` is the third form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from textwrap import wrap

from joinlab.analysis.wording import shown, sign_of
from joinlab.showing import short_site
from joinlab.story.forms.fates import CALLERS, Fate
from joinlab.story.forms.pasted import FromText
from joinlab.story.lines import Edit, Headline, Line, LineKind, SourceLine
from joinlab.story.words import ends, listing

TAGS = {
    LineKind.CAUSE: "WHY",
    LineKind.PARTING: "AT",
    LineKind.FATE: "ENDED",
    LineKind.FIX: "FIX",
    LineKind.NOTE: "NOTE",
}
"""Heading before the first line of each kind."""

_INDENT = 7
_ORDER = (
    LineKind.HEADLINE,
    LineKind.CAUSE,
    LineKind.PARTING,
    LineKind.FIX,
    LineKind.FATE,
    LineKind.NOTE,
)


def text_of(lines: Sequence[Line], width: int | None = None) -> str:
    """The story as text, wrapped at `width` characters if given."""
    texts, last = list[str](), LineKind.HEADLINE
    for line, under in _outline(lines):
        tag = TAGS[line.kind] if line.kind is not last else ""
        last = line.kind
        for text in (line.sentence, *under):
            if line.kind is LineKind.HEADLINE and not texts:
                begin = ""
            else:
                begin = f"{tag:{_INDENT}}"
            texts += _broken(f"{begin}{text}", " " * len(begin), width)
            tag = ""
    return shown("\n".join(texts))


def _outline(lines: Sequence[Line]) -> Iterator[tuple[Line, list[str]]]:
    """The lines in reading order, each with the text below it: lines of the program, or a diff."""
    causes = any(line.kind is LineKind.CAUSE for line in lines)
    for line in sorted(lines, key=lambda line: _ORDER.index(line.kind)):
        cited = line.kind is LineKind.CAUSE or (line.kind is LineKind.HEADLINE and not causes)
        yield (
            line,
            [
                *(_sources(line) if cited else ()),
                *(text for edit in line.edits for text in diff_of(edit)),
            ],
        )


def ended_in_short(headline: Headline) -> str:
    """How the ranks ended, in a few words: "rank 1 hangs", "both ranks finished"."""
    groups = headline.ends
    world = sum(len(group.ranks) for group in groups)
    if isinstance(headline, FromText):  # there may be more ranks
        world = 0
    bad = [group for group in groups if not group.good] or groups
    each = [ends(group.ranks, group.kind, group.pending, group.runs, world) for group in bad[:2]]
    return "".join(piece.text for piece in listing(each, " · "))


def _broken(text: str, indent: str, width: int | None) -> list[str]:
    if width is None:
        return [text.rstrip()]
    return wrap(
        text, width, subsequent_indent=indent, break_on_hyphens=False, drop_whitespace=True
    ) or [""]


def _sources(line: Line) -> Iterator[str]:
    for source_line in line.lines:
        if source_line.text:
            yield _cited(source_line)
            for via in source_line.via[:CALLERS]:
                yield f"  called from {_cited(via)}"


def _cited(line: SourceLine) -> str:
    return f"{short_site(line.site)}  {line.text.strip()}"


def diff_of(edit: Edit) -> Iterator[str]:
    """An edit as the lines of a diff. Of several lines that it keeps, the first is shown."""
    yield f"{short_site(f'{edit.file}:{edit.begin}')}"
    for hunk in edit.hunks():
        if hunk.kept:
            last = hunk.begin + len(hunk.added) - 1
            indented = ", indented" if hunk.added != hunk.removed else ""
            more = f" ...  (lines {hunk.begin}-{last}{indented})" if last > hunk.begin else ""
            yield f"  {hunk.added[0]}{more}"
        else:
            yield from (f"- {text}" for text in hunk.removed)
            yield from (f"+ {text}" for text in hunk.added)


def html_of(lines: Sequence[Line]) -> str:
    """The story as HTML, unstyled except for the headline's weight."""
    parts = list[str]()
    for kind, outlined in groupby(_outline(lines), key=lambda outlined: outlined[0].kind):
        head = kind is LineKind.HEADLINE
        template = "<p><strong>{}</strong></p>{}" if head else "<li>{}{}</li>"
        rows = "".join(template.format(_html(line), _pre(under)) for line, under in outlined)
        parts.append(
            rows if head else f'<p>{TAGS[kind].lower()}</p><ul class="{kind.value}">{rows}</ul>'
        )
    return shown("".join(parts))


def _pre(under: Sequence[str]) -> str:
    return f"<pre>{escape(chr(10).join(under))}</pre>" if under else ""


def _html(line: Line) -> str:
    mark = f"{sign_of(line.form, line.pending)} " if isinstance(line, Fate) else ""
    return mark + "".join(
        f"<code>{escape(piece.text)}</code>" if piece.code else escape(piece.text)
        for piece in line.pieces()
    )
