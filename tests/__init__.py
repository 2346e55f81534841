"""The tests, as a package, so that each module is loaded once under one name."""
