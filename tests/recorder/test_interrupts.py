"""SIGINT is heard while the main thread runs no Python, and only in the process that it came to."""

from __future__ import annotations

import subprocess
import sys

HEARS = """
import os, signal, sys
from joinlab.recorder import interrupts
heard = interrupts.of_process()
reads, writes = os.pipe()
os.set_blocking(writes, False)
signal.signal(signal.SIGINT, lambda *_: None)
heard.listeners.append(lambda: os.write(writes, b"!"))
if sys.argv[1] == "own":
    signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
    if os.fork() == 0:
        os._exit(signal.set_wakeup_fd(-1) == writes)
    print(os.waitstatus_to_exitcode(os.wait()[1]))
elif sys.argv[1] == "child":
    if os.fork() == 0:
        signal.raise_signal(signal.SIGINT)
        os._exit(heard.came())
    print(os.waitstatus_to_exitcode(os.wait()[1]), heard.came())
else:
    signal.raise_signal(signal.SIGINT)
    print(os.read(reads, 1), heard.came())
"""


def _run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", HEARS, *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_a_listener_is_called_once_sigint_has_come() -> None:
    assert _run("parent") == "b'!' True"


def test_a_signal_of_a_forked_child_is_not_its_parents() -> None:
    assert _run("child") == "0 False"


def test_a_forked_child_keeps_the_programs_own_pipe() -> None:
    assert _run("own") == "1"
