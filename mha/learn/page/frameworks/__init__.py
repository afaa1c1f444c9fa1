"""Measurements of how each framework differs, one file for each, with the same functions."""
