"""What every test shares: Hypothesis without deadlines, and which tests this machine cannot run."""

from __future__ import annotations

import os
import shutil

import pytest
from hypothesis import settings

# No deadlines: a test machine is shared and slow at times. The same examples every time, so that CI is no lottery.
os.environ["JOINLAB_PROGRESS"] = "off"  # no test reads or writes how far the user is in the course
settings.register_profile("joinlab", deadline=None, derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "joinlab"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a GPU or a browser that is not there."""
    if item.get_closest_marker("browser") and not (os.environ.get("CHROMIUM") or shutil.which("chromium")):
        pytest.skip("no chromium: apt-get install chromium, or CHROMIUM=path")
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("no NVIDIA GPU")
