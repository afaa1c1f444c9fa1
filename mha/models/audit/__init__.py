"""Whole models: which of their attention layers computes something else than it should, and why."""
