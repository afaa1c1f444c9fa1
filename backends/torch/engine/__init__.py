"""Compute the same numbers as the chapters, in less time and memory, where nobody asks for attention weights."""
