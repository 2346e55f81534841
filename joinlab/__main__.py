"""`python -m joinlab`: the command line, which lives in joinlab/cli."""

from __future__ import annotations

import sys

from joinlab.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
