"""`doctor --course`: one green line, or the one command that repairs what is wrong."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest

from joinlab.cli.main import main
from joinlab.course import ready
from joinlab.course.ready import CHECKS, NotReady, ReadyCheck, check_course
from joinlab.errors import LaunchInterrupted
from joinlab.launcher import launcher


@pytest.fixture(autouse=True)
def no_progress(monkeypatch, tmp_path):
    monkeypatch.setenv("JOINLAB_PROGRESS", str(tmp_path / "progress.json"))
    yield
    assert not (tmp_path / "progress.json").exists()  # no answer of the learner


def test_a_machine_that_runs_the_tests_is_ready(capsys):
    assert main(["doctor", "--course"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[0] for line in lines[:-1]] == ["✓"] * len(CHECKS)
    assert lines[-1] == "This machine is ready for the course."


def test_the_first_check_that_fails_says_what_to_run_and_ends_it(capsys):
    def fails():
        raise NotReady("no\nwidgets", "make setup")

    checks = (
        ReadyCheck("one", lambda: "fine"),
        ReadyCheck("two", fails),
        ReadyCheck("three", fails),
    )
    assert check_course(checks) == 1
    first, second, last = capsys.readouterr().out.splitlines()
    assert first.startswith("✓ one") and second.split() == ["✕", "two", "no", "widgets"]
    assert last == "Not ready for the course. Run: make setup"


def test_an_error_that_nobody_foresaw_is_told_in_one_line(capsys):
    assert check_course([ReadyCheck("one", lambda: 1 / 0)]) == 1
    assert "ZeroDivisionError: division by zero" in capsys.readouterr().out


def test_ctrl_c_is_no_fault_of_the_machine(monkeypatch, capsys):
    def interrupted(*args, **kwargs):
        raise LaunchInterrupted("the run was interrupted", None)

    monkeypatch.setattr(launcher, "launch", interrupted)
    assert main(["doctor", "--course"]) == 130
    said = capsys.readouterr()
    assert "Not ready" not in said.out and said.err == "joinlab: interrupted\n"


def test_a_package_that_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(ready, "find_spec", lambda name: None if name == "anywidget" else name)
    with pytest.raises(NotReady, match="anywidget missing in ") as failed:
        ready._packages()
    assert failed.value.repair == "make setup"


def test_a_kernel_without_joinlab_is_named(monkeypatch):
    kernel = SimpleNamespace(argv=["false"])
    monkeypatch.setattr(
        "jupyter_client.kernelspec.KernelSpecManager.get_kernel_spec", lambda *_: kernel
    )
    with pytest.raises(
        NotReady, match="the kernel python3 is false, which has no joinlab"
    ) as failed:
        ready._browses()
    assert failed.value.repair.endswith("-m ipykernel install --sys-prefix")


@pytest.mark.parametrize(
    ("interfaces", "repair"),
    [
        ({}, "sudo ip link set lo up"),
        ({"lo": SimpleNamespace(isup=False)}, "sudo ip link set lo up"),
        ({"lo": SimpleNamespace(isup=True)}, "sudo iptables -I INPUT -i lo -j ACCEPT"),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="the commands of Linux")
def test_how_gloo_is_let_through_depends_on_the_interface(interfaces, repair, monkeypatch):
    monkeypatch.setattr(psutil, "net_if_stats", lambda: interfaces)
    assert ready._for_gloo() == repair


NAMESPACE = ["unshare", "--user", "--map-root-user", "--net"]
"""A network of its own, in which the loopback interface is down."""


def can_unshare() -> bool:
    return (
        shutil.which("unshare") is not None
        and not subprocess.run([*NAMESPACE, "true"], capture_output=True).returncode
    )


def doctor_without_a_network(before: str = "") -> subprocess.CompletedProcess[str]:
    """`joinlab doctor --course` after a command, in a namespace."""
    return subprocess.run(
        [*NAMESPACE, "sh", "-c", f"{before}{sys.executable} -m joinlab doctor --course"],
        capture_output=True,
        text=True,
        env=os.environ | {"NO_COLOR": "1"},
    )


REPAIR = "sudo ip link set lo up"


@pytest.mark.nightly
@pytest.mark.skipif(not can_unshare(), reason="needs a network namespace")
def test_with_gloo_blocked_the_command_that_repairs_it_is_told():
    blocked = doctor_without_a_network()
    assert blocked.returncode == 1
    *_, failed, last = blocked.stdout.splitlines()
    assert failed.startswith("✕ launches on gloo")
    assert last == f"Not ready for the course. Run: {REPAIR}"


@pytest.mark.nightly
@pytest.mark.skipif(not (can_unshare() and shutil.which("ip")), reason="needs a namespace and ip")
def test_the_command_that_is_told_lets_gloo_through():
    done = doctor_without_a_network(f"{REPAIR.removeprefix('sudo ')} && ")
    assert done.returncode == 0, done.stdout
