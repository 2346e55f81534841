"""The command line: `main` parses it, each command is a module, `report` prints."""
