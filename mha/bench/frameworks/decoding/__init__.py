"""Decoding, token by token, measured in each framework."""
