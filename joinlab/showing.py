"""Where and how things are shown: IPython's shell, and how a Timeline shows itself, a registry since
it is plain data and imports neither stories nor pictures.

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
