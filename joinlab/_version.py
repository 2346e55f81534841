"""The version of joinlab: read by pyproject.toml, the archive and the reports. It imports
nothing."""

__version__ = "0.1.0"
