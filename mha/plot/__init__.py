"""Pictures of attention weights, heads and reports, drawn by matplotlib, which the extra `plots` installs."""

from mha.plot.pictures import heatmaps
from mha.plot.ratios import ratios
from mha.plot.splits import splits

__all__ = ["heatmaps", "ratios", "splits"]
