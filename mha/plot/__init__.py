"""Pictures of attention weights and of reports, drawn by matplotlib, which the extra `plots` installs."""

from mha.plot.pictures import heatmaps
from mha.plot.ratios import ratios

__all__ = ["heatmaps", "ratios"]
