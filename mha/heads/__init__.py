"""Which heads matter, and a smaller layer without those that do not."""

from mha.heads.importance import importance
from mha.heads.pruning import prune

__all__ = ["importance", "prune"]
