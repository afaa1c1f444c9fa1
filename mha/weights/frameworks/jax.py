"""Convert the layers of Flax, linen's and nnx's, and the book's in JAX; make caches of Flax.

flax.linen.MultiHeadDotProductAttention and flax.nnx.MultiHeadAttention have kernels with an axis for the heads. That of
linen has them in variables outside the module. Both may have layer norms of queries and keys, that of nnx groups too.
"""

import functools
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
from flax import linen, nnx
from flax.nnx.nn import dtypes

from mha.backends.jax.arrays import context, tensor
from mha.core.options import checks
from mha.core.options.config import Config
from mha.core.options.names import SchemeName
from mha.core.options.norms import Norm
from mha.weights import foreign, schemes

LINEN, NNX = "flax.linen.MultiHeadDotProductAttention", "flax.nnx.MultiHeadAttention"
DENSE = ("Dense", "Linear")  # the classes of the book's projections, in linen and in NNX
FIRST = "take `module.bind(variables)`"
EPSILON = 1e-6  # of the norms that these layers make
# Options of both layers that have no counterpart; `decode` is a matter of their calls.
OPTIONS = (
    "precision", "qkv_dot_general", "out_dot_general", "qkv_dot_general_cls",
    "out_dot_general_cls", "qk_attn_weights_einsum_cls", "attn_weights_value_einsum_cls",
)  # fmt: skip


def take(layer: Any) -> tuple[Config, dict[str, np.ndarray]]:
    """Return the configuration and canonical weights of a layer; one of linen must be bound to its variables."""
    return _take_nnx(layer) if isinstance(layer, nnx.MultiHeadAttention) else _take_linen(layer)


def make(kind: str, config: Config, weights: dict[str, np.ndarray]) -> Any:
    """Make a layer with these canonical weights: of linen bound to its variables, of nnx with dropout from seed 0."""
    needed: dict[str, Any] = {"value_dim": config.key_dim}
    if kind == NNX:
        needed |= {"value_size": config.key_size, "num_key_value_heads": config.num_key_value_heads}
    if config.qk_norm:
        needed |= {"qk_norm": Norm("layer", EPSILON)}
    foreign.require(kind, config, needed | {"pooling": "dot"})
    arrays = schemes.from_canonical(config, weights, "flax")
    with context(config.dtype):
        own = {name: tensor(X) for name, X in arrays.items()}
        if kind == NNX:
            return _make_nnx(config, own)
        module = getattr(linen, kind.rpartition(".")[2])(**_options(config))
        return module.bind({"params": flax.traverse_util.unflatten_dict(own, sep=".")})


def make_cache(kind: str, keys: Any, values: Any, tokens: int) -> Any:
    """Make the cache of one layer; keys: (B, G, S, d), values: (B, G, S, dv), with so many slots filled."""
    arrays = {
        "cached_key": keys.swapaxes(1, 2),  # (B, S, G, d)
        "cached_value": values.swapaxes(1, 2),  # (B, S, G, dv)
        "cache_index": jnp.asarray(tokens, jnp.int32),
    }
    return arrays if kind == "flax.linen" else nnx.State({name: nnx.Cache(X) for name, X in arrays.items()})


def attend(
    layer: Any, inputs: dict[str, Any], padding: Any, pairs: Any, causal: bool, cotangent: Any
) -> tuple[Any, Any, dict[str, Any], SchemeName]:
    """Call the layer in its own manner; see `mha.weights.foreign`."""
    order = jnp.tri(inputs["queries"].shape[1], inputs["keys"].shape[1], dtype=bool) if causal else None
    shown = [X for X in (padding if padding is None else padding[:, None, None], pairs, order) if X is not None]
    mask = {"mask": functools.reduce(jnp.logical_and, shown)} if shown else {}  # broadcasts against (B, H, Q, K)
    options = mask | foreign.select_options(layer.__call__, deterministic=True, sow_weights=True)
    if isinstance(layer, nnx.MultiHeadAttention):
        parts: Any = nnx.split(layer, nnx.Param, ...)
        graph, params, rest = parts

        def call(params: Any, *inputs: Any) -> Any:
            output, kept = nnx.capture(nnx.merge(graph, params, rest), nnx.Intermediate)(*inputs, **options)
            return output, nnx.to_pure_dict(kept)
    else:
        module, variables = layer.unbind()
        params = variables["params"]

        def call(params: Any, *inputs: Any) -> Any:
            output, kept = module.apply({"params": params}, *inputs, **options, mutable=["intermediates"])
            return output, kept.get("intermediates", {})

    output, pull_back, kept = jax.vjp(call, params, *inputs.values(), has_aux=True)
    by_params, *by_inputs = pull_back(cotangent)
    gradients = dict(zip(inputs, by_inputs, strict=True)) | foreign.flatten_names(by_params)
    return output, next(iter(kept.get("attention_weights", ())), None), gradients, "flax"


def is_ready(layer: Any) -> bool:
    """Whether a layer of the book has its weights."""
    return isinstance(layer, nnx.Module) or layer.scope is not None


def book_arrays(layer: Any) -> tuple[str, dict[str, Any]]:
    """Return the naming scheme and the arrays of a layer as the book prints it."""
    if isinstance(layer, nnx.Module):
        return "mha", foreign.flatten_names(nnx.to_pure_dict(nnx.state(layer, nnx.Param)))
    return "mha", foreign.flatten_names(layer.variables["params"])


def allocate(layer: Any) -> Any:
    """Return a layer of the book with room for its weights."""
    return layer.bind({})


def children(module: Any) -> list[tuple[str, Any]]:
    """Return the parts of a module, each with the text to write after the module for it."""
    parts = nnx.iter_children(module) if isinstance(module, nnx.Module) else ()
    return [(foreign.access_text(name), part) for name, part in parts]


def _take_linen(layer: Any) -> tuple[Config, dict[str, np.ndarray]]:
    if layer.scope is None:
        raise ValueError(f"the {LINEN} holds no weights, expected `module.bind(variables)`")
    _refuse(LINEN, layer, linen.dot_product_attention)
    arrays = foreign.flatten_names(layer.variables.get("params", {}))
    config, weights = foreign.canonical(arrays, "flax", "", layer.num_heads, dropout=layer.dropout_rate)
    _refuse_dtype(LINEN, layer, config)
    expected = {
        "num_heads": config.num_key_value_heads,
        "normalize_qk": config.qk_norm is not None,
        "use_bias": config.bias,
        "qkv_features": config.num_heads * config.key_dim,
        "out_features": config.num_hiddens,
    }
    for name, value in expected.items():
        if (own := getattr(layer, name)) not in (None, value):
            raise ValueError(f"the {LINEN} has {name}={own}, but its variables are those of one with {name}={value}")
    return config, weights


def _take_nnx(layer: Any) -> tuple[Config, dict[str, np.ndarray]]:
    _refuse(NNX, layer, nnx.dot_product_attention)
    ways = ("qkv_promote_dtype", "out_promote_dtype", "ln_promote_dtype")
    promotions = {name: getattr(layer, name, None) for name in ways}
    foreign.refuse(NNX, {name: None if way is dtypes.promote_dtype else way for name, way in promotions.items()})
    arrays = foreign.flatten_names(nnx.state(layer, nnx.Param))
    config, weights = foreign.canonical(arrays, "flax", "", layer.num_heads, dropout=layer.dropout_rate, **_norm(layer))
    _refuse_dtype(NNX, layer, config)
    return config, weights


def _norm(layer: Any) -> dict[str, Any]:
    """Return the options of the norms of a layer of nnx, which are objects of its own."""
    if not layer.normalize_qk:
        return {}
    for name in ("query_ln", "key_ln"):
        norm = getattr(layer, name)
        if type(norm) is not nnx.LayerNorm or norm.epsilon != layer.query_ln.epsilon:
            foreign.refuse(NNX, {name: norm})
    return {"qk_norm": Norm("layer", layer.query_ln.epsilon)}


def _make_nnx(config: Config, arrays: dict[str, Any]) -> Any:
    sizes: dict[str, Any] = {"in_features": config.query_size, "in_kv_features": config.key_size, "decode": False}
    if config.num_key_value_heads != config.num_heads:
        sizes["num_kv_heads"] = config.num_key_value_heads  # which older versions of Flax lack
    zeros = nnx.initializers.zeros
    layer = nnx.MultiHeadAttention(**_options(config), **sizes, kernel_init=zeros, rngs=nnx.Rngs(0))
    for name, array in arrays.items():
        part, kind = name.split(".")
        getattr(getattr(layer, part), kind)[...] = array
    return layer


def _options(config: Config) -> dict[str, Any]:
    """Return a configuration by the names of both layers."""
    dtype = jnp.dtype(config.dtype)
    return {
        "num_heads": config.num_heads, "qkv_features": config.num_heads * config.key_dim,
        "out_features": config.num_hiddens, "dropout_rate": config.dropout, "broadcast_dropout": False,
        "use_bias": config.bias, "normalize_qk": config.qk_norm is not None, "dtype": dtype, "param_dtype": dtype,
    }  # fmt: skip


def _refuse(kind: str, layer: Any, attention_fn: Any) -> None:
    """Refuse options of either layer that have no counterpart."""
    own = {name: getattr(layer, name, None) for name in OPTIONS}
    own["attention_fn"] = None if layer.attention_fn is attention_fn else layer.attention_fn
    own["broadcast_dropout"] = layer.broadcast_dropout and layer.dropout_rate > 0  # one mask for all samples and heads
    foreign.refuse(kind, own)


def _refuse_dtype(kind: str, layer: Any, config: Config) -> None:
    """Refuse a layer that computes in another dtype than its weights have."""
    if layer.dtype is not None and checks.dtype_name(np.dtype(layer.dtype)) != config.dtype:
        raise ValueError(
            f"the {kind} has dtype={checks.dtype_name(np.dtype(layer.dtype))} and weights of {config.dtype}, which no "
            "layer of mha has; only one of a single dtype can be converted"
        )
