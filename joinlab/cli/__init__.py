"""The command line: `main` reads it, each command has a module of its own, `report` prints."""
