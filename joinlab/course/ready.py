"""`doctor --course`: whether this machine is ready for the course, and if not, the one command that
repairs it.

Each check does what a notebook does: it emulates, launches, judges an answer, and looks for what the
browser needs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import psutil
from rich.console import Console

PACKAGES = ("torch", "jupyterlab", "ipywidgets", "anywidget", "plotly", "nbmake")
"""What the notebooks import, beside what joinlab itself needs."""

LAUNCH_S = 90.0
"""Longest time for two processes on gloo, torch's import included."""


class NotReady(Exception):
    """Why a check fails; `repair` is the command to run."""

    def __init__(self, reason: str, repair: str) -> None:
        super().__init__(reason)
        self.repair = repair


@dataclass(frozen=True, slots=True)
class ReadyCheck:
    """One check: what it looks at, in words, and the function that raises NotReady if it fails."""

    name: str
    run: Callable[[], str]


def install_command() -> str:
    """How to install what the notebooks need: in a copy of the repository, or from PyPI."""
    root = Path(__file__).parents[2]
    if (root / "Makefile").is_file():
        return "make setup"
    return "pip install 'joinlab[lab]'"


def _packages() -> str:
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise NotReady(f"{', '.join(missing)} missing in {sys.executable}", install_command())
    return ", ".join(PACKAGES)


def _emulates() -> str:
    from joinlab.cases import CASES
    from joinlab.emulator.emulate import emulate
    from joinlab.errors import LaunchError

    try:
        ends = list(map(str, emulate(CASES[4].program, (2, 3)).ends))
    except LaunchError as error:
        raise NotReady(f"{error}", install_command()) from error
    if ends != ["finished", "hung (proven)"]:
        raise NotReady(
            f"case 4 ended otherwise than it should: {', '.join(ends)}", install_command()
        )
    return "case 4: rank 0 finishes, rank 1 hangs"


def _launches() -> str:
    from joinlab.cases import CASES
    from joinlab.errors import LaunchError
    from joinlab.launcher.launcher import launch

    try:
        run = launch(
            CASES[1].program, (1, 2), "gloo", timeout=LAUNCH_S, on_output=None, progress=False
        )
    except LaunchError as error:
        raise NotReady(f"{error}", _for_gloo()) from error
    wrong = [end for end in run.ends if str(end) != "finished"]
    if wrong:
        raise NotReady(wrong[0].text.partition("\n")[0] or str(wrong[0]), _for_gloo())
    return "case 1: two processes finish"


def _for_gloo() -> str:
    """The command that lets the processes of this machine reach each other."""
    if not hasattr(os, "fork"):
        return "wsl --install"
    interfaces = psutil.net_if_stats()
    name = next((interface for interface in ("lo", "lo0") if interface in interfaces), "lo")
    if name not in interfaces or not interfaces[name].isup:
        if sys.platform == "darwin":
            return f"sudo ifconfig {name} up"
        return f"sudo ip link set {name} up"
    if sys.platform == "darwin":
        return f"sudo /usr/libexec/ApplicationFirewall/socketfilterfw --add {sys.executable}"
    return f"sudo iptables -I INPUT -i {name} -j ACCEPT"


def _judges() -> str:
    from joinlab.course.answers.solutions import last_joiner
    from joinlab.course.exercises import check

    previous = os.environ.get("JOINLAB_PROGRESS")
    os.environ["JOINLAB_PROGRESS"] = "off"  # this is no answer of the learner
    try:
        verdict = check("last_joiner", last_joiner)
    finally:
        if previous is None:
            del os.environ["JOINLAB_PROGRESS"]
        else:
            os.environ["JOINLAB_PROGRESS"] = previous
    if not verdict:
        raise NotReady(f"a right answer was refused: {verdict.sentence}", install_command())
    return "a right answer is right"


def _browses() -> str:
    """JupyterLab finds the scripts of the widgets, and its kernel is a Python that has joinlab."""
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel
    from jupyter_core.paths import jupyter_path

    folders = list(map(Path, jupyter_path("labextensions")))
    for extension in ("anywidget", "@jupyter-widgets/jupyterlab-manager"):
        if not any((folder / extension / "package.json").is_file() for folder in folders):
            raise NotReady(f"JupyterLab does not find {extension}", install_command())
    try:
        kernel = KernelSpecManager().get_kernel_spec("python3").argv[0]
        if kernel in ("python", "python3", f"python3.{sys.version_info.minor}"):
            kernel = sys.executable  # as jupyter_client does
    except NoSuchKernel as error:
        raise NotReady("JupyterLab has no kernel python3", install_command()) from error
    process = subprocess.run([kernel, "-c", "import joinlab"], capture_output=True, text=True)
    if process.returncode:
        user = f"{sys.executable} -m ipykernel install --sys-prefix"
        raise NotReady(f"the kernel python3 is {kernel}, which has no joinlab", user)
    return "JupyterLab, its widgets and its kernel"


CHECKS = (
    ReadyCheck("packages", _packages),
    ReadyCheck("emulates", _emulates),
    ReadyCheck("launches on gloo", _launches),
    ReadyCheck("checks an answer", _judges),
    ReadyCheck("shows it in a browser", _browses),
)


def check_course(checks: Sequence[ReadyCheck] = CHECKS) -> int:
    """Run the checks, say how each went, and end in one line; 0 if the machine is ready, else 1.

    Stops at the first check that fails: what comes after it needs it.
    """
    console = Console(highlight=False, soft_wrap=True)
    for check in checks:
        begun = time.monotonic()
        try:
            result = check.run()
        except KeyboardInterrupt:
            raise  # LaunchInterrupted is an Exception, too
        except Exception as error:
            if isinstance(error, NotReady):
                reason, repair = f"{error}", error.repair
            else:
                reason, repair = f"{type(error).__name__}: {error}", install_command()
            console.print(f"✕ {check.name:22} {' '.join(reason.split())}", markup=False)
            console.print(
                f"Not ready for the course. Run: {repair}", style="bold red", markup=False
            )
            return 1
        console.print(
            f"✓ {check.name:22} {result} ({time.monotonic() - begun:.0f} s)", markup=False
        )
    console.print("This machine is ready for the course.", style="bold green")
    return 0
