"""What each rank printed, below the bench's picture."""

from __future__ import annotations

import threading
import time
from collections import deque
from functools import cached_property
from typing import Any

import ipywidgets

from joinlab.analysis.wording import shown_html
from joinlab.timeline import Timeline

LINES = 200
"""This many lines of a rank are shown, the last ones; `timeline.output` has them all."""

EVERY_S = 0.1
"""How often the lines of a run that is under way are sent to the browser."""


class Layout(ipywidgets.Layout):  # type: ignore[misc]
    """A layout that begins with what it sets: that the 40 other properties are null is known without being sent."""

    def get_state(self, key: Any = None, drop_defaults: bool = False) -> dict[str, Any]:
        state: dict[str, Any] = super().get_state(key, drop_defaults)
        return state if key else {name: value for name, value in state.items() if value is not None}


def close(widget: Any) -> None:
    """Close a widget with its children, its layout and its style, which are widgets, too."""
    for child in getattr(widget, "children", ()):
        close(child)
    parts = [getattr(widget, name, None) for name in ("layout", "style")]
    widget.close()
    for part in parts:
        if part is not None:
            part.close()


class Words:
    """HTML in a widget that is made when `widget` is asked for first, and travels with what it says by then."""

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._value = ""

    @cached_property
    def widget(self) -> ipywidgets.HTML:
        """The widget."""
        return ipywidgets.HTML(self._value, **self._options)

    @property
    def value(self) -> str:
        """What it says, as HTML. Settable."""
        return self._value

    @value.setter
    def value(self, html: str) -> None:
        self._value = html
        if "widget" in self.__dict__:
            self.widget.value = html


_PRE = "max-height:14em;overflow:auto;white-space:pre-wrap;line-height:1.35;margin:0"
_joined = "\n".join


class Output(Words):
    """Each rank's lines, in a widget; called with (rank, line) by a run that is under way, in its own thread."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._lines: dict[int, deque[str]] = {}
        self._dirty = False
        self._at = 0.0
        self._lock = threading.Lock()

    def __call__(self, rank: int, line: str) -> None:
        with self._lock:
            self._lines.setdefault(rank, deque(maxlen=LINES)).append(line)
            self._dirty = True

    def flush(self) -> None:
        """Send what is new to the browser, if the last time is a moment ago."""
        if self._dirty and time.monotonic() - self._at > EVERY_S:
            self._draw()

    def show(self, timeline: Timeline) -> None:
        """Show what the ranks of a finished run printed."""
        with self._lock:
            self._lines = {
                rank: deque(text.splitlines(), maxlen=LINES) for rank, text in enumerate(timeline.output) if text
            }
        self._draw()

    def clear(self) -> None:
        """Show nothing."""
        with self._lock:
            self._lines = {}
        self._draw()

    def _draw(self) -> None:
        with self._lock:
            self._dirty, self._at = False, time.monotonic()
            parts = [
                f'<section aria-label="Output of rank {rank}" style="flex:1 1 260px;min-width:0">'
                f"<b>rank {rank} printed</b>"
                f'<pre tabindex="0" style="{_PRE}">{shown_html(_joined(lines))}</pre></section>'
                for rank, lines in sorted(self._lines.items())
            ]
        self.value = f'<div style="display:flex;flex-wrap:wrap;gap:8px">{"".join(parts)}</div>' if parts else ""
