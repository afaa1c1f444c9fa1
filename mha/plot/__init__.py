"""Pictures of attention weights, drawn by matplotlib: `pip install "mha[plots]"` brings it."""

from mha.plot.heatmaps import heatmaps

__all__ = ["heatmaps"]
