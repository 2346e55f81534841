"""Predictions about a run, compared with its outcome."""

from __future__ import annotations

import pytest

from joinlab.notebook.predictions import WORDS, Score, word
from joinlab.timeline import Ending


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        (Ending("finished"), "finishes"),
        (Ending("finished", pending=True), "finishes"),
        (Ending("hung", proven=True), "hangs"),
        (Ending("hung", proven=False), "hangs"),
        (Ending("raised", text="ValueError: no"), "raises"),
        (Ending("killed", text="its process was killed by SIGABRT"), "raises"),
        (Ending("killed", text="stopped on request"), None),
        (Ending("killed", text="interrupted by the user"), None),
        (Ending("killed", text="ended by joinlab: still running after timeout=5 s"), None),
    ],
)
def test_an_ending_in_one_word(ending, said):
    assert word(ending) == said and (said is None or said in WORDS)


def test_a_score_counts_only_what_could_be_right():
    assert Score(("finishes", "hangs", "raises"), ("finishes", None, "hangs")).right == (
        True,
        False,
        False,
    )
