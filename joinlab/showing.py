"""How a Timeline shows itself: a registry, since it is plain data and imports neither stories nor
pictures.

`joinlab/__init__.py`, above all rooms, fills it in. Importing it needs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

html: Callable[[Any], str] | None = None
"""Makes a picture of a Timeline, as HTML."""
story: Callable[[Any], str] | None = None
"""Tells how a Timeline's ranks ended, and why; its findings are stored in the Timeline's `meta`."""
