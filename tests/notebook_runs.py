"""Runs a notebook in this process, without a kernel.

A kernel imports torch, which takes 5 s of processor time per notebook, and as much again for the
process that launches ranks. Here all notebooks share both; each has its own namespace.
"""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from joinlab.course import progress


def run(path: Path) -> tuple[Any, dict[str, Any]]:
    """Run a notebook; return it with its outputs (nbformat) and its variables. Raises the exception
    of a cell.

    Questions stay unanswered, and the learner's progress is neither read nor written.
    """
    from nbformat import read  # importing it takes a second

    notebook: Any = read(path, as_version=4)  # type: ignore[no-untyped-call]
    with (
        warnings.catch_warnings(action="default"),
        _shell() as shell,
        chdir(path.parent),
        patch.object(progress, "_state", None),
    ):
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.execution_count = shell.execution_count
                cell.outputs = shell.display_pub.shown = []
                with (
                    redirect_stdout(_Stream("stdout", cell.outputs)),
                    redirect_stderr(_Stream("stderr", cell.outputs)),
                ):
                    shell.run_cell(cell.source, store_history=True).raise_error()
        names = dict(shell.user_ns)
    return notebook, names


@contextmanager
def _shell() -> Iterator[Any]:
    with patch.dict(os.environ, {"JOINLAB_PROGRESS": "off"}):
        shell: Any = _Shell.instance(config=Config(HistoryManager={"enabled": False}))
        shell.extension_manager.load_extension("joinlab")  # shows Timelines
        try:
            yield shell
        finally:
            shell.restore_sys_module_state()
            _Shell.clear_instance()


def _output(kind: str, data: Any = None, **fields: Any) -> Any:
    from nbformat.v4 import new_output

    return new_output(kind, data, **fields)  # type: ignore[no-untyped-call]


class _Stream(io.TextIOBase):
    def __init__(self, name: str, shown: list[Any]) -> None:
        self._name, self._shown = name, shown

    def write(self, text: str) -> int:
        if not self._shown or self._shown[-1].get("name") != self._name:
            self._shown.append(_output("stream", name=self._name))
        self._shown[-1]["text"] += text
        return len(text)


class _Publisher(DisplayPublisher):
    shown: list[Any]

    def publish(self, data: Any, metadata: Any = None, **_: Any) -> None:  # type: ignore[override]
        self.shown.append(_output("display_data", data, metadata=metadata or {}))


class _Hook(DisplayHook):
    def __call__(self, result: Any = None) -> None:
        if result is not None and not self.quiet():  # type: ignore[no-untyped-call]
            shell: Any = self.shell
            data, metadata = shell.display_formatter.format(result)
            if data:  # else the result has shown itself
                shell.display_pub.publish(data, metadata)


class _Shell(InteractiveShell):
    displayhook_class = _Hook
    display_pub_class = _Publisher
