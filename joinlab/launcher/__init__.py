"""Runs a program as real processes and watches them to their ends."""
