"""Timelines made of joinlab's records, of PyTorch's flight recorder and profiler, and of logs."""
