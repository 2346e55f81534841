"""How each rank of a launched run ended, from its event log, its process's status and what it printed last."""

from __future__ import annotations

import os
import signal
from dataclasses import replace

from joinlab.launcher.run_files import Output
from joinlab.recorder.rank_log import RankLog
from joinlab.timeline import Ending, EndKind


def ended(log: RankLog, status: int, output: Output, cut_short: str = "") -> Ending:
    """The ending of a rank whose process has ended. `cut_short`: why joinlab ended it, if it did."""
    if log.returned:
        end = Ending.finished(log.calls.values())
        text = f"its program returned, but its process did not end; {cut_short}"
        return replace(end, text=text) if cut_short else end
    if log.raised is not None:
        return Ending.raised(log.calls.values(), log.raised["x"])
    return Ending.at(EndKind.KILLED, log.awaited(), _cause(status, output))


def _cause(status: int, output: Output) -> str:
    if not os.WIFSIGNALED(status):
        return f"its process ended with exit code {os.WEXITSTATUS(status)} before the program returned (os._exit?)"
    name = signal.Signals(os.WTERMSIG(status)).name
    lines = output.last(4000).splitlines()
    said = next((line.strip() for line in reversed(lines) if "what():" in line or "terminate called" in line), "")
    return f"its process was killed by {name}" + (f": {said}" if said else "")
