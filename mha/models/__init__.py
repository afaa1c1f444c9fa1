"""Whole models: which attention layer is wrong, where two models part, and the layers of two checkpoints."""
