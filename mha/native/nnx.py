"""flax.nnx.MultiHeadAttention: kernels with an axis for the heads, in the layer."""

from typing import Any

import numpy as np
from flax import nnx
from flax.nnx.nn import dtypes

from mha import native
from mha.backends import jax as tab
from mha.config import Config
from mha.native import linen
from mha.weights import schemes

KIND = "flax.nnx.MultiHeadAttention"


def take(layer: Any) -> tuple[Config, dict[str, np.ndarray]]:
    """The configuration and canonical weights of a layer."""
    groups = getattr(layer, "num_kv_heads", layer.num_heads)
    linen.refuse(KIND, layer, nnx.dot_product_attention, num_kv_heads=None if groups == layer.num_heads else groups)
    promotions = {name: getattr(layer, name, None) for name in ("qkv_promote_dtype", "out_promote_dtype")}
    native.refuse(KIND, {name: None if way is dtypes.promote_dtype else way for name, way in promotions.items()})
    arrays = native.named(nnx.state(layer, nnx.Param))
    config, weights = native.canonical(arrays, "flax", "", layer.num_heads, layer.dropout_rate)
    linen.refuse_dtype(KIND, layer, config)
    return config, weights


def make(kind: str, config: Config, weights: dict[str, np.ndarray]) -> Any:
    """A layer with these canonical weights, whose dropout draws from the seed 0."""
    native.require(kind, config, {"value_dim": config.key_dim, "value_size": config.key_size, "pooling": "dot"})
    sizes = {"in_features": config.query_size, "in_kv_features": config.key_size}
    arrays = schemes.from_canonical(config, weights, "flax")
    with tab.context(config.dtype):
        layer = nnx.MultiHeadAttention(
            **linen.options(config), **sizes, decode=False, kernel_init=nnx.initializers.zeros, rngs=nnx.Rngs(0)
        )
        for name, array in arrays.items():
            part, kind = name.split(".")
            getattr(getattr(layer, part), kind)[...] = tab.tensor(array)
    return layer
