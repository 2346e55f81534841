"""The symptoms: programs that fail as users' jobs did, each with cause, cure and a page of the
site.

symptom = SYMPTOMS["early_stopping"]
joinlab.emulate(symptom.program, symptom.inputs)        # hangs
joinlab.emulate(symptom.cured, symptom.inputs)          # finishes
"""

from __future__ import annotations

import inspect
import linecache
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

from joinlab.scenarios import symptoms as programs


@dataclass(frozen=True, slots=True)
class Symptom:
    """One symptom. `edits`: (old, new) texts that make up the cure; each old text occurs once in
    the program."""

    name: str
    title: str
    inputs: tuple[int, ...]
    cause: str
    cure: str
    edits: Sequence[tuple[str, str]]
    reports: Sequence[str]
    backends: Sequence[str] = ("nccl", "gloo")
    silent: bool = False

    def __str__(self) -> str:
        return self.name

    @property
    def program(self) -> Callable[..., object]:
        """The function that goes wrong."""
        found: Callable[..., object] = getattr(programs, self.name)
        return found

    @property
    def text(self) -> str:
        """Its source, without the docstring."""
        head, _, rest = inspect.getsource(self.program).partition('    """')
        return re.sub(r"  # type: ignore.*", "", head + rest.partition('"""\n')[2])

    @property
    def cured_text(self) -> str:
        """Its source after the cure."""
        text = self.text
        for old, new in self.edits:
            text = text.replace(old, new, 1)
        return text

    @property
    def cured(self) -> Callable[..., object]:
        """The function after the cure, with its lines in linecache so that they can be shown."""
        file = f"<{self.name}, cured>"
        text = self.cured_text
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        space = dict(vars(programs))
        exec(compile(text, file, "exec"), space)
        found: Callable[..., object] = space[self.name]
        return found


_table = tomllib.loads((files("joinlab.course") / "symptoms.toml").read_text("utf-8"))

SYMPTOMS: Mapping[str, Symptom] = {
    name: Symptom(name, **(entry | {"inputs": tuple(entry["inputs"])}))
    for name, entry in _table.items()
}
"""By name of the function in joinlab.scenarios.symptoms."""
