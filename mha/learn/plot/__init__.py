"""Pictures of weights, heads, masks, caches and reports, drawn by matplotlib, which the extra `plots` installs."""

from mha.learn.plot.cache_bytes import cache_bytes
from mha.learn.plot.copies import copies
from mha.learn.plot.masks import masks
from mha.learn.plot.pictures import heatmaps
from mha.learn.plot.ratios import ratios
from mha.learn.plot.slots import slots
from mha.learn.plot.splits import splits

__all__ = ["cache_bytes", "copies", "heatmaps", "masks", "ratios", "slots", "splits"]
