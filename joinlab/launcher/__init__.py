"""Runs a program as real processes and watches them until they end."""
