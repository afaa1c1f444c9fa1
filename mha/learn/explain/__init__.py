"""The path of a tensor through the layer, as data: every step with its shape, its line of code and its meaning."""

from mha.learn.explain.path import Step, call, example, steps, token

__all__ = ["Step", "call", "example", "steps", "token"]
