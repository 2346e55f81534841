"""Host spans: when the host was in forward, backward and the optimizer, and which line of the program called them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from types import CodeType, FrameType

from joinlab.ops import Source
from joinlab.program.labels import kind_of, sources_under
from joinlab.recorder.events import Log, now, to_json


class Spans:
    """Writes the host spans of one rank."""

    def __init__(self, log: Log, note: Callable[[Iterable[Source]], None]) -> None:
        """`note` writes down the texts of functions."""
        self.log = log
        self._note = note
        self.backward_site: str | None = None
        """"file:line" of the program that called the latest backward pass."""
        self._numbers = itertools.count()
        self._sites: dict[tuple[str, CodeType | None, int], tuple[str | None, str]] = {}

    def begin(self, name: str, frame: FrameType | None, place: str) -> int:
        """Record that the host began `name`, called from `frame`, at Recorder.place(); returns the span's number."""
        number = next(self._numbers)
        while frame is not None and kind_of(frame.f_code.co_filename) != "program":
            frame = frame.f_back
        key = (name, None, 0) if frame is None else (name, frame.f_code, frame.f_lasti)
        known = self._sites.get(key)
        if known is None:
            site = None if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
            self._note(sources_under(frame))
            known = self._sites[key] = (site, f'"n":"{name}","site":{to_json(site)}')
        site, text = known
        if name == "backward":
            self.backward_site = site
        self.log.write_text(f'{{"e":"span+","id":{number},{place},{text},"t":{now()}}}')
        return number

    def end(self, number: int) -> None:
        """Record that the host ended it."""
        self.log.write_text(f'{{"e":"span-","id":{number},"t":{now()}}}')
