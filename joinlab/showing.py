"""Where and how things are shown: IPython's shell, a line of a program, and how a Timeline shows
itself, a registry since it is plain data and imports neither stories nor pictures.

`joinlab/__init__.py`, above all rooms, fills the registry in. Importing it needs nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

html: Callable[[Any], str] | None = None
"""Makes a picture of a Timeline, as HTML."""
story: Callable[[Any], str] | None = None
"""Tells how a Timeline's ranks ended, and why; its findings are stored in the Timeline's `meta`."""


def somebody_answers() -> bool | None:
    """Whether the client of this notebook can answer `input()`, so that a person runs it: nbclient,
    which nbmake, nbconvert and papermill use, cannot. None outside of a notebook."""
    return getattr(getattr(running_shell(), "kernel", None), "_allow_stdin", None)


def running_shell() -> Any:
    """IPython's shell that runs this code; None outside of IPython, which is not imported for it."""
    if "IPython" in sys.modules:
        return sys.modules["IPython"].get_ipython()
    return None


def is_terminal() -> bool:
    """Whether only text can be shown here."""
    formatter = getattr(running_shell(), "display_formatter", None)
    return formatter is None or formatter.active_types == ["text/plain"]


def put(value: object) -> None:
    """Display an object, or a dict of its forms by MIME type, as output of the cell."""
    from IPython.display import display

    display(value, raw=isinstance(value, dict))  # type: ignore[no-untyped-call]


def file_name(file: str) -> str:
    """A file without its folders; the code of a notebook's cell by the cell's number, "In [2]".

    >>> file_name("project/train.py")
    'train.py'
    """
    named = getattr(getattr(running_shell(), "compile", None), "format_code_name", None)
    # ("Cell", "In[2]"), if this kernel ran it
    cell: tuple[str, str] | None = named(file) if named else None
    name = file.replace("\\", "/").rpartition("/")[2]
    if cell:
        return cell[1].replace("In[", "In [")
    if name.startswith("<ipython-input-"):
        return f"In [{name.split('-')[2]}]"
    if "ipykernel_" in file and name.removesuffix(".py").isdecimal():
        return "a notebook's cell"
    return name


def site_text(site: str | None) -> str:
    """A call site in parentheses, behind a word; "" without one."""
    return f" ({short_site(site)})" if site else ""


def short_site(site: str) -> str:
    """A call site without the folders.

    >>> short_site("project/train.py:12")
    'train.py:12'
    """
    file, colon, line = site.rpartition(":")
    name = file_name(file)
    if name and not name.endswith(".py") and line.isdecimal():
        return f"{name}, line {line}"
    return f"{name}{colon}{line}"
