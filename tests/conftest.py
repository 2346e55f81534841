"""Shared by all tests: Hypothesis' settings, fixtures, and skips for what this machine lacks."""

from __future__ import annotations

import fcntl
import gc
import os
import shutil
import signal
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import settings

# No deadlines, since a test machine may be slow at times; the same examples every time, so that CI
# is deterministic.
os.environ["JOINLAB_PROGRESS"] = "off"  # tests must not touch the user's progress in the course
settings.register_profile("joinlab", deadline=None, derandomize=True, max_examples=25)
settings.register_profile("nightly", deadline=None, max_examples=2_000)  # others every night
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "joinlab"))

# A shell's background job ignores SIGINT, but tests interrupt their own process.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

if TYPE_CHECKING:
    from playwright.sync_api import Browser

collect_ignore = ["material"]  # programs that tests run, not tests

TIMEOUT_S = 300
"""A test that runs longer fails, unless it has a timeout of its own."""
GPU_TIMEOUT_S = 1200
"""On a GPU a hang may be only suspected, 30 s after its last event, and tests take turns."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """The processes of `make test` collect one after another, so that only the first one compiles
    the tests: 6 s of processor time. No collection of garbage looks at what stays until the end,
    PyTorch and every test: a tenth of the time of tests that emulate."""
    gc.disable()
    try:
        with open(__file__) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test a timeout, and put modules with a browser last: they share one, and while
    Playwright runs, no other event loop can."""
    with_browser = {item.path for item in items if item.get_closest_marker("browser")}
    items.sort(key=lambda item: item.path in with_browser)
    for item in items:  # not in pyproject.toml: who runs the notebooks has no pytest-timeout
        if not item.get_closest_marker("timeout"):
            on_gpu = item.get_closest_marker("gpu") is not None
            item.add_marker(pytest.mark.timeout(GPU_TIMEOUT_S if on_gpu else TIMEOUT_S))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests that need a GPU or a browser if this machine has none."""
    if item.get_closest_marker("browser") and not (
        os.environ.get("CHROMIUM") or shutil.which("chromium")
    ):
        pytest.skip("no chromium: apt-get install chromium, or CHROMIUM=path")
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("no NVIDIA GPU")


@pytest.fixture(autouse=True)
def one_gpu_test_at_a_time(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Two workers of pytest-xdist would share the GPUs, and NCCL refuses that."""
    if request.node.get_closest_marker("gpu") is None:
        yield
        return
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    folder = tmp_path_factory.getbasetemp()
    with (folder.parent if worker else folder).joinpath("gpu.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture
def nothing_left_behind() -> Iterator[None]:
    """Fails the test if a run of it left a process, a port or a file behind."""
    from tests.leftovers import assert_nothing_left

    yield
    assert_nothing_left()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One Chromium for all tests; each opens its own pages in it (browser.watched)."""
    pytest.importorskip("playwright.sync_api")
    from tests.browser import chromium

    with chromium() as running:
        yield running


class Served(NamedTuple):
    """A JupyterLab: the folder that it serves, its address and its token."""

    folder: Path
    url: str
    token: str


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One JupyterLab for all tests; each writes notebooks of its own names into its folder."""
    from tests.browser import lab

    folder = tmp_path_factory.mktemp("lab")
    (folder / "served").mkdir()
    with lab(folder / "served", folder / "settings") as (url, token):
        yield Served(folder / "served", url, token)


@pytest.fixture(scope="session")
def npm(tmp_path_factory) -> Callable[[str], Path]:
    """Gets a package from npm, for the tests alone; returns the folder that has it. Skips the test
    where it cannot."""

    def get(package: str) -> Path:
        from tests.browser import from_npm

        try:
            return from_npm(package, tmp_path_factory.mktemp("npm"))
        except RuntimeError as error:
            pytest.skip(str(error))

    return get


@pytest.fixture(scope="session")
def axe(npm) -> str:
    """The script of axe-core, which finds obstacles for people who cannot see or use a mouse."""
    from tests.browser import axe_core

    return axe_core(npm)
