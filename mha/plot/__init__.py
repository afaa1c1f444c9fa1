"""Pictures of attention weights, drawn by matplotlib: `pip install "mha[plots]"` brings it."""

from mha.plot.pictures import heatmaps

__all__ = ["heatmaps"]
