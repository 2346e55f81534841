"""What both backends are handed: issued calls, modelled calls, their bytes, and the clock."""
