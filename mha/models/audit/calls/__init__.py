"""Calls of a model: what enters and leaves its modules, and what that asks of each attention layer."""
