"""Timelines of runs that others recorded: PyTorch's flight recorder and profiler."""
