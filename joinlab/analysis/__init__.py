"""Reads a Timeline: which calls met, how each rank ended, and why."""
