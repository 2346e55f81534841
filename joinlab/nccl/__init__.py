"""NCCL: its ring, the model that runs on it, what it refuses, and what it can never complete."""
