"""The path of a tensor through the layer, as data: every step, its shape, the line that computes it, what it means."""

from mha.explain.example import example
from mha.explain.path import Step, call, steps

__all__ = ["Step", "call", "example", "steps"]
