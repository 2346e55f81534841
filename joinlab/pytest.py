"""The public name of the plugin: `pytest -p joinlab.pytest`; joinlab/jobs/pytest.py says what it
offers."""

from joinlab.jobs.pytest import counts, on_ranks, ranks

__all__ = ["counts", "on_ranks", "ranks"]
