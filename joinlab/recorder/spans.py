"""Host spans: when the host was in forward, backward and the optimizer, and which line of the program called them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from types import CodeType, FrameType

from joinlab.ops import Source
from joinlab.program.labels import kind_of, sources_under
from joinlab.recorder.events import EventLog, now, to_json


class Spans:
    """Writes the host spans of one rank."""

    def __init__(self, log: EventLog, note: Callable[[Iterable[Source]], None]) -> None:
        """`note` writes down the texts of functions."""
        self._write = log.write_text
        self._note = note
        self.backward_site: str | None = None
        """"file:line" of the program that called the latest backward pass."""
        self._numbers = itertools.count()
        self._is_program = _IsProgram()
        self._sites: dict[tuple[str, int, int], tuple[CodeType | None, str | None, str]] = {}
        """By name, id of the code and place in it; the code is kept, so that no other gets its id."""

    def begin(self, name: str, frame: FrameType | None, place: str) -> int:
        """Record that the host began `name`, called from `frame`, at Recorder.place; returns the span's number."""
        number = next(self._numbers)
        is_program = self._is_program
        while frame is not None and not is_program[frame.f_code.co_filename]:
            frame = frame.f_back
        known = self._sites.get((name, 0, 0) if frame is None else (name, id(frame.f_code), frame.f_lasti))
        if known is None:
            known = self._site(name, frame)
        if name == "backward":
            self.backward_site = known[1]
        self._write(f'{{"e":"span+","id":{number},{place},{known[2]},"t":{now()}}}\n')
        return number

    def end(self, number: int) -> None:
        """Record that the host ended it."""
        self._write(f'{{"e":"span-","id":{number},"t":{now()}}}\n')

    def _site(self, name: str, frame: FrameType | None) -> tuple[CodeType | None, str | None, str]:
        site = None if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
        self._note(sources_under(frame))
        code = None if frame is None else frame.f_code
        key = (name, 0, 0) if frame is None else (name, id(frame.f_code), frame.f_lasti)
        known = self._sites[key] = (code, site, f'"n":"{name}","site":{to_json(site)}')
        return known


class _IsProgram(dict[str, bool]):
    """By file, whether it is the learner's."""

    def __missing__(self, file: str) -> bool:
        self[file] = kind_of(file) == "program"
        return self[file]
