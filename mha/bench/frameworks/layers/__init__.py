"""Layers and calls, measured in each framework."""
