"""The story of a run: its typed lines, who writes them down, and what they are derived from."""
