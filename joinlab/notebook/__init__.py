"""What a Jupyter notebook shows: the live view, the comparison and the bench."""
