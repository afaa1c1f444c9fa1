"""Pictures of weights, heads, masks, caches and reports, drawn by matplotlib, which the extra `plots` installs."""

from mha.plot.cache_bytes import cache_bytes
from mha.plot.copies import copies
from mha.plot.masks import masks
from mha.plot.pictures import heatmaps
from mha.plot.ratios import ratios
from mha.plot.slots import slots
from mha.plot.splits import splits

__all__ = ["cache_bytes", "copies", "heatmaps", "masks", "ratios", "slots", "splits"]
