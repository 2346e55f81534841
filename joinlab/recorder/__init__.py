"""Records the calls, waits and host spans of one real rank."""
