"""`doctor`: say what works on this machine."""

from __future__ import annotations

import argparse

from joinlab.cli import machine
from joinlab.cli.command import Command


def _run(options: argparse.Namespace) -> int:
    from joinlab.cli import report

    here = machine.examine()
    report.Screen().print(report.facts_table(machine.facts(here)))
    return 0 if machine.can_launch(here) else 1


COMMAND = Command(
    "doctor",
    "say what works on this machine: versions, backends, GPUs",
    lambda parser: None,
    _run,
    (("", "what works on this machine"),),
)
