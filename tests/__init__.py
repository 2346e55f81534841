"""The tests, as a package: each module of theirs is loaded once, by whatever name another asks for it."""
