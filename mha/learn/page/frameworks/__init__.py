"""Measurements of how each framework differs, one file for each, whose functions `measures.NAMES` describes."""
