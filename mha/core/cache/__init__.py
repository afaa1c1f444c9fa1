"""The cache of a layer, with keys and values of earlier tokens, for every backend; no framework is imported."""

from mha.core.cache.cache import Cache
from mha.core.cache.fitting import check_owner, fit, fit_values
from mha.core.cache.slots import LOST, attended, left_of

__all__ = ["LOST", "Cache", "attended", "check_owner", "fit", "fit_values", "left_of"]
