"""The course's exercises with their checks and solutions, and the hand-out."""
