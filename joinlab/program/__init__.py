"""A rank's side of a run: the program, its process group, the labels of its calls and what it
returns."""
