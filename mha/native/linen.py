"""flax.linen.MultiHeadDotProductAttention: kernels with an axis for the heads, in variables outside the module."""

from typing import Any

import flax
import jax.numpy as jnp
import numpy as np
from flax import linen

from mha import checks, native
from mha.backends import jax as tab
from mha.config import Config
from mha.weights import schemes

KIND = "flax.linen.MultiHeadDotProductAttention"
# Options of this layer and of that of nnx that have no counterpart.
OPTIONS = (
    "normalize_qk", "decode", "precision", "qkv_dot_general", "out_dot_general", "qkv_dot_general_cls",
    "out_dot_general_cls", "qk_attn_weights_einsum_cls", "attn_weights_value_einsum_cls",
)  # fmt: skip


def take(layer: Any) -> tuple[Config, dict[str, np.ndarray]]:
    """The configuration and canonical weights of a module that is bound to its variables."""
    if layer.scope is None:
        raise ValueError(f"the {KIND} holds no weights, expected `module.bind(variables)`")
    refuse(KIND, layer, linen.dot_product_attention)
    arrays = native.named(layer.variables.get("params", {}))
    config, weights = native.canonical(arrays, "flax", "", layer.num_heads, layer.dropout_rate)
    refuse_dtype(KIND, layer, config)
    told = {
        "use_bias": config.bias,
        "qkv_features": config.num_heads * config.key_dim,
        "out_features": config.num_hiddens,
    }
    for name, value in told.items():
        if (own := getattr(layer, name)) not in (None, value):
            raise ValueError(f"the {KIND} has {name}={own}, but its variables are those of one with {name}={value}")
    return config, weights


def make(kind: str, config: Config, weights: dict[str, np.ndarray]) -> Any:
    """A module bound to variables with these canonical weights; `unbind` takes the two apart."""
    native.require(kind, config, {"value_dim": config.key_dim, "pooling": "dot"})
    arrays = schemes.from_canonical(config, weights, "flax")
    with tab.context(config.dtype):
        params = flax.traverse_util.unflatten_dict({name: tab.tensor(X) for name, X in arrays.items()}, sep=".")
    module = getattr(linen, kind.rpartition(".")[2])(**options(config))
    return module.bind({"params": params})


def options(config: Config) -> dict[str, Any]:
    """What a configuration is called by this layer and by that of nnx."""
    dtype = jnp.dtype(config.dtype)
    return {
        "num_heads": config.num_heads, "qkv_features": config.num_heads * config.key_dim,
        "out_features": config.num_hiddens, "dropout_rate": config.dropout, "broadcast_dropout": False,
        "use_bias": config.bias, "dtype": dtype, "param_dtype": dtype,
    }  # fmt: skip


def refuse(kind: str, layer: Any, attention_fn: Any, **others: Any) -> None:
    """Refuse options of this layer and of that of nnx that have no counterpart."""
    own = {name: getattr(layer, name, None) for name in OPTIONS} | others
    own["attention_fn"] = None if layer.attention_fn is attention_fn else layer.attention_fn
    own["broadcast_dropout"] = layer.broadcast_dropout and layer.dropout_rate > 0  # one mask for all samples and heads
    native.refuse(kind, own)


def refuse_dtype(kind: str, layer: Any, config: Config) -> None:
    """Refuse a layer that computes in another dtype than its weights have."""
    if layer.dtype is not None and checks.dtype_name(np.dtype(layer.dtype)) != config.dtype:
        raise ValueError(
            f"the {kind} has dtype={checks.dtype_name(np.dtype(layer.dtype))} and weights of {config.dtype}, which no "
            "layer of mha has; only one of a single dtype can be converted"
        )
