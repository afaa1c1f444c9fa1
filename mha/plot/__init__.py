"""Pictures of attention weights, drawn by matplotlib, which the extra `plots` installs."""

from mha.plot.pictures import heatmaps

__all__ = ["heatmaps"]
