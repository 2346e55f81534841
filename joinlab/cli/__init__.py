"""The command line: what it prints and what it finds out about the machine."""
