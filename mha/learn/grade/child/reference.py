"""Functions that stand in for those of a submission that failed, in any framework, so that a mistake counts once."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .frameworks import Array, Framework


class Reference:
    """The names of the first three levels for a framework.

    pair: whether attention also returns its weights; axes: of split heads, 3 = (B*H, T, d), 4 = (B, H, T, d).
    """

    def __init__(self, framework: Framework, pair: bool, axes: int) -> None:
        self.framework, self.pair, self.axes = framework, pair, axes

    def masked_softmax(self, X: Array, valid_lens: Array = None, *rest: Any, **named: Any) -> Array:
        """Softmax of X (B, Q, K) or (B, H, Q, K) over the first valid_lens keys, (B,) or (B, Q)."""
        xp, lens = self.framework.xp, valid_lens
        hidden = xp.zeros_like(X) - 1e6
        if lens is not None:
            B, Q = lens.shape[0], 1 if len(lens.shape) == 1 else lens.shape[1]
            lens = xp.reshape(lens, (B, *[1] * (len(X.shape) - 3), Q, 1))
            X = xp.where(self.framework.array(np.arange(X.shape[-1], dtype="int32")) < lens, X, hidden)
        mask = named.get("mask")
        if mask is not None:
            X = xp.where(mask, X, hidden)
        return self.framework.softmax(X)

    def dot_product_attention(
        self, queries: Array, keys: Array, values: Array, valid_lens: Array = None, *rest: Any, **named: Any
    ) -> Any:
        """Scaled dot-product attention over the last two axes."""
        axes = list(range(len(keys.shape)))
        scores = queries @ self.framework.permute(keys, [*axes[:-2], axes[-1], axes[-2]]) / math.sqrt(queries.shape[-1])
        weights = self.masked_softmax(scores, valid_lens, **named)
        self.weights = weights
        return (weights @ values, weights) if self.pair else weights @ values

    def transpose_qkv(self, X: Array, num_heads: int) -> Array:
        """(B, T, H*d) -> (B*H, T, d), or (B, H, T, d)."""
        B, T, width = X.shape
        fw, d = self.framework, width // num_heads
        X = fw.permute(fw.xp.reshape(X, (B, T, num_heads, d)), (0, 2, 1, 3))  # (B, H, T, d)
        return X if self.axes == 4 else fw.xp.reshape(X, (B * num_heads, T, d))  # (B*H, T, d)

    def transpose_output(self, X: Array, num_heads: int) -> Array:
        """(B*H, T, d), or (B, H, T, d) -> (B, T, H*d)."""
        fw, T, d = self.framework, X.shape[-2], X.shape[-1]
        X = fw.xp.reshape(X, (-1, num_heads, T, d))  # (B, H, T, d)
        return fw.xp.reshape(fw.permute(X, (0, 2, 1, 3)), (-1, T, num_heads * d))  # (B, T, H*d)

    def pooling(self) -> type:
        """A class in place of DotProductAttention."""
        attend, reference = self.dot_product_attention, self

        class DotProductAttention:
            """Scaled dot-product attention."""

            def __init__(self, *given: Any, **named: Any) -> None:
                self.attention_weights = None

            def __call__(self, *given: Any, **named: Any) -> Any:
                """Attend."""
                found = attend(*given, **named)
                self.attention_weights = reference.weights
                return found

        return DotProductAttention


def stand_in(
    names: dict[str, Any], reference: Reference, failed: list[str], aliases: dict[str, str]
) -> list[tuple[Any, str, Any]]:
    """Put the reference in the place of names of a submission that failed, functions and methods alike.

    Returns the replaced methods: class, name and the old method.
    """
    replaced = []
    owner = names.get(aliases.get("MultiHeadAttention", "MultiHeadAttention"))
    for name in failed:
        made = reference.pooling() if name == "DotProductAttention" else getattr(reference, name)
        if isinstance(owner, type) and name in vars(owner):
            replaced.append((owner, name, vars(owner)[name]))
            setattr(owner, name, as_method(made))
        else:
            names[aliases.get(name, name)] = made
    return replaced


def as_method(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a method from a function of X and num_heads."""

    def method(self: Any, X: Any, num_heads: int | None = None) -> Any:
        return function(X, self.num_heads if num_heads is None else num_heads)

    return method
