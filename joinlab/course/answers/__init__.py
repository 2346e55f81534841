"""A solution of each exercise, and the judge of each."""
