"""The cache of a layer, with keys and values of earlier tokens, for every backend; no framework is imported."""

from mha.core.cache.cache import Cache
from mha.core.cache.fitting import check_cache, check_owner, plan_step
from mha.core.cache.slots import LOST, last_heads, left_of

__all__ = ["LOST", "Cache", "check_cache", "check_owner", "last_heads", "left_of", "plan_step"]
