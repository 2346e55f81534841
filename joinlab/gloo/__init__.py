"""Gloo: its messages, the model that carries them, what it refuses, and what it can never
complete."""
