"""`%%ranks`: the body of a cell as a program, run by every rank, with its swimlanes below it.

    %load_ext joinlab

    %%ranks 5 6
    model = DDP(torch.nn.Linear(1, 1))
    for x in inputs:
        model(x).sum().backward()
    rank * 10

`rank` and `inputs` are the program's arguments, and the body can read every name of the notebook.
Its assignments are local to each rank. `_ranks` gets the values of the body's last expression, one
per rank, and `_timeline` the run.
"""

from __future__ import annotations

import ast
import shlex
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import Any, NoReturn

from IPython.core.error import UsageError

from joinlab.errors import JoinlabError, LaunchInterrupted
from joinlab.timeline import Timeline

NAME = "cell"
"""The program's name in tracebacks and Timelines."""


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"%%ranks: {message}. {self.format_usage().strip()}")


def _options(line: str) -> Namespace:
    """The options of a line. Raises UsageError."""
    parser = _Parser(prog="%%ranks", add_help=False)
    parser.add_argument("counts", nargs="*", type=int, default=[5, 6])
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--emulate", choices=["nccl", "gloo"], default="nccl")
    either.add_argument("--launch", choices=["nccl", "gloo"])
    parser.add_argument("--era", choices=["today", "1.9"])
    parser.add_argument("--timeout", type=float, default=60.0)
    return parser.parse_args(shlex.split(line))


def load_magic(shell: Any) -> None:
    """Register %%ranks in a shell."""

    def ranks(line: str, cell: str) -> Timeline:
        """Run the cell on every rank and show what happened. Results: _ranks, and the run: _timeline.

        %%ranks [inputs per rank: 5 6] [options]

        --emulate nccl|gloo   on a modelled backend; nccl is the default
        --launch nccl|gloo    as real processes on this machine
        --era today|1.9       PyTorch version whose barrier an emulated NCCL uses
        --timeout SECONDS     after which the run is ended: 60
        """
        options = _options(line)
        if options.launch and options.era:
            raise UsageError(
                "%%ranks: --era needs --emulate; --launch has the barrier of the installed PyTorch."
            )
        program = program_of(shell, cell)
        try:
            timeline = _run(program, options)
        except LaunchInterrupted as stopped:
            _give(shell, stopped.timeline)
            raise
        except JoinlabError as error:
            raise UsageError(f"%%ranks: {error}") from error
        _give(shell, timeline)
        return timeline

    shell.register_magic_function(ranks, "cell", "ranks")


def _give(shell: Any, timeline: Timeline) -> None:
    shell.user_ns.update(_timeline=timeline, _ranks=list(timeline.returns))


def _run(program: Callable[..., object], options: Namespace) -> Timeline:
    if options.launch:
        from joinlab.launcher.launcher import launch

        return launch(program, options.counts, options.launch, timeout=options.timeout)
    from joinlab.emulator.emulate import emulate
    from joinlab.launcher.terminal import Echo

    knobs = {"timeout": options.timeout, "on_output": Echo(), "era": options.era or "today"}
    return emulate(program, options.counts, options.emulate, **knobs)


def program_of(shell: Any, cell: str) -> Callable[..., Any]:
    """The body of a cell as a function of rank and inputs. Raises SyntaxError, as the cell itself
    would.

    Its text is that of a function whose line `def` stands where the cell has %%ranks. So tracebacks
    and calls name the line that the reader sees, and fixes are tried as for any other function.
    """
    text = "\n" + shell.transform_cell(cell)
    # While a cell runs, execution_count may be that of the next one.
    number = len(shell.history_manager.input_hist_parsed) - 1
    tree = ast.parse(text, shell.compile.cache(text, number))
    lines = [line.encode() for line in text.split("\n")]
    if tree.body and isinstance(last := tree.body[-1], ast.Expr):
        line, column = lines[last.lineno - 1], last.col_offset  # in bytes
        lines[last.lineno - 1] = line[:column] + b"return " + line[column:]
    unindented = {0}  # with the lines within strings, which stay as they are
    for node in ast.walk(tree):
        if isinstance(node, (ast.Constant, ast.JoinedStr)):
            unindented.update(range(node.lineno, node.end_lineno or node.lineno))
    lines[0] = f"def {NAME}(rank, inputs):{'' if tree.body else ' pass'}".encode()
    indented = [line if i in unindented else b"    " + line for i, line in enumerate(lines)]
    text = b"\n".join(indented).decode()
    local: dict[str, Any] = {}
    file = shell.compile.cache(text, number)
    exec(compile(text, file, "exec"), shell.user_ns, local)
    program: Callable[..., Any] = local[NAME]
    return program
