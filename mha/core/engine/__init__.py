"""Compute calls without attention weights in less time and memory: the part that is the same for all backends."""
