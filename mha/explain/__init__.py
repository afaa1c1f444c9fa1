"""The path of a tensor through the layer, as data: every step with its shape, its line of code and its meaning."""

from mha.explain.example import example
from mha.explain.path import Step, call, steps, token

__all__ = ["Step", "call", "example", "steps", "token"]
