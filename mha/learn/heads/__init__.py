"""Measure how much each head matters, and remove heads from a layer."""

from mha.learn.heads.importance import importance
from mha.learn.heads.pruning import prune

__all__ = ["importance", "prune"]
