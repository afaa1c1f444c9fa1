"""Measure how much each head matters, and remove heads from a layer."""

from mha.heads.importance import importance
from mha.heads.pruning import prune

__all__ = ["importance", "prune"]
