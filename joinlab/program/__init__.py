"""What a rank runs: the program, the process group it talks to, its labels and what it returns."""
