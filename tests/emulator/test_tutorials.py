"""Tutorials' training scripts give the same numbers emulated on NCCL, emulated on gloo, and
launched."""

from __future__ import annotations

import re

import pytest

from joinlab import emulate, launch
from tests.material.tutorials import SCRIPTS

# what torch itself deprecates is not our concern here
pytestmark = pytest.mark.filterwarnings("ignore")


FORK = re.compile(r".*DeprecationWarning: This process .* is multi-threaded.*\n.*os\.fork\(\)\n")
"""What Python 3.12 says where a rank's DataLoader really forks."""


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_a_script_trains_alike_in_every_engine(script):
    launched = launch(script, (0, 0), "gloo", on_output=None, progress=False)
    assert [(str(end), end.text) for end in launched.ends] == [("finished", "")] * 2
    for backend in ("gloo", "nccl"):
        emulated = emulate(script, (0, 0), backend)
        assert [(str(end), end.text) for end in emulated.ends] == [("finished", "")] * 2
        assert emulated.returns == launched.returns
        assert [FORK.sub("", text) for text in launched.output] == [*emulated.output]
