"""The book's small language model of characters, whose blocks are attention alone: what all frameworks share.

Letters: B batch, T characters, H heads, D num_hiddens.
"""

from typing import Any

import numpy as np

from mha.core.options import checks
from mha.core.options.config import Config
from mha.core.options.positions import Rotary, alibi

POSITIONS = ("learned", "sinusoidal", "rope", "alibi", "none")  # what a model may know of the order
STD = 0.02  # of the initial embeddings


class CharModel:
    """A stack of attention blocks with residual connections; subclasses embed characters and compute their scores."""

    blks: Any
    embed: Any  # a function of characters (B, T), which returns rows (B, T, D), with positions where they are added
    max_len: int

    def describe(self, num_hiddens: int, num_heads: int, pos: str, max_len: int, bias: bool) -> Config:
        """Keep the options, and return the configuration of a block's attention."""
        self.num_heads, self.pos = num_heads, checks.choice("pos", pos, POSITIONS)
        self.max_len = checks.size("max_len", max_len)
        rotary = Rotary(interleaved=True) if pos == "rope" else None
        return Config(num_hiddens, num_heads, bias=bias, rotary=rotary)

    def through(self, X: Any) -> tuple[Any, list[Any]]:
        """Run characters X (B, T) through the blocks: rows (B, T, D), and the weights (B, H, T, T) of each block."""
        T = X.shape[1]
        if self.pos in ("learned", "sinusoidal") and self.max_len < T:
            raise ValueError(f"X has {T} characters, expected at most max_len = {self.max_len}")
        bias = alibi(self.num_heads, T) if self.pos == "alibi" else None  # (1, H, 1, T)
        rows, maps = self.embed(X), []
        for block in self.blks:
            attended, weights = block(rows, rows, rows, causal=True, score_bias=bias, return_weights=True)
            rows = rows + attended
            maps.append(weights)
        return rows, maps

    def attention_weights(self, X: Any) -> list[Any]:
        """The attention weights (B, H, T, T) of each block for characters X (B, T)."""
        return self.through(X)[1]


def waves(length: int, width: int) -> np.ndarray:
    """Sines and cosines of positions, (length, width): those of one frequency side by side.

    Source: Vaswani et al., Attention Is All You Need (2017), section 3.5.
    """
    angles = np.arange(length)[:, None] * 10000.0 ** (-np.arange(0, width, 2) / width)  # (length, width / 2)
    found = np.stack([np.sin(angles), np.cos(angles)], -1).reshape(length, -1)  # (length, width), or one more
    return found[:, :width].astype("float32")
