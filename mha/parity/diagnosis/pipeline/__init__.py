"""Attention in NumPy, in pieces that a mistake can replace; without mistakes its steps are those of `trace`."""
