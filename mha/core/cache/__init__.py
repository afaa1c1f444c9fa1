"""What a decoder keeps of the tokens before: the cache of a layer, for every backend; no framework is imported."""

from mha.core.cache.cache import Cache
from mha.core.cache.fitting import check_owner, fit, fit_values
from mha.core.cache.slots import LOST, attended, left_of

__all__ = ["LOST", "Cache", "attended", "check_owner", "fit", "fit_values", "left_of"]
