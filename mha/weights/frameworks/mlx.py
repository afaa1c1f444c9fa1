"""Convert MLX's own layer; make caches of mlx-lm, and unpack arrays that are quantised in its files.

mlx.nn.MultiHeadAttention has kernels (out, in), and one `bias` for all. A module of MLX is a dict of what it holds.
"""

import importlib.util
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx.utils import tree_flatten, tree_unflatten

from mha.backends.mlx.arrays import evaluate, tensor, to_numpy
from mha.core import dispatch
from mha.core.options import checks
from mha.core.options.config import Config
from mha.core.options.names import SchemeName
from mha.weights import foreign, schemes

KIND = "mlx.nn.MultiHeadAttention"
SCHEME: SchemeName = "mlx"
PROJECTIONS = ("query_proj", "key_proj", "value_proj", "out_proj")


def take(layer: Any) -> tuple[Config, dict[str, np.ndarray]]:
    """Return the configuration and canonical weights of a layer."""
    for name in PROJECTIONS:
        if type(part := layer[name]) is not nn.Linear:
            raise TypeError(f"{name} of the {KIND} is a {type(part).__name__}, expected an mlx.nn.Linear")
    return foreign.canonical(dict(tree_flatten(layer.parameters())), SCHEME, "", layer.num_heads)


def make(kind: str, config: Config, weights: dict[str, np.ndarray]) -> Any:
    """Make a layer with these canonical weights."""
    foreign.require(kind, config, {"dropout": 0.0, "pooling": "dot"})
    sizes = {f"{name}_input_dims": getattr(config, f"{name}_size") for name in ("query", "key", "value")}
    sizes |= {"value_dims": config.num_heads * config.value_dim, "value_output_dims": config.num_hiddens}
    layer = nn.MultiHeadAttention(config.num_heads * config.key_dim, config.num_heads, **sizes, bias=config.bias)
    arrays = schemes.from_canonical(config, weights, SCHEME)
    layer.load_weights([(name, tensor(np.ascontiguousarray(X))) for name, X in arrays.items()])
    return layer


def make_cache(kind: str, keys: Any, values: Any, tokens: int) -> Any:
    """Make the cache of one layer; keys: (B, G, S, d), values: (B, G, S, dv), with so many slots filled."""
    if importlib.util.find_spec("mlx_lm") is None:
        raise ModuleNotFoundError(f"kind {kind!r} needs mlx_lm: {dispatch.pip_for(('mlx-lm>=0.28',))}", name="mlx_lm")
    from mlx_lm.models.cache import KVCache

    cache = KVCache()
    if tokens:
        cache.update_and_fetch(keys[:, :, :tokens], values[:, :, :tokens])
        evaluate([cache.keys, cache.values])
    return cache


def attend(
    layer: Any, inputs: dict[str, Any], padding: Any, pairs: Any, causal: bool, cotangent: Any
) -> tuple[Any, Any, dict[str, Any], SchemeName]:
    """Call the layer in its own manner; see `mha.weights.foreign`."""
    conditions = [] if padding is None else [padding[:, None, None]]  # (B, 1, 1, K)
    conditions += [] if pairs is None else [pairs]
    conditions += [mx.tri(inputs["queries"].shape[1], inputs["keys"].shape[1], dtype=mx.bool_)] if causal else []
    hiding = {"mask": conditions[0]} if conditions else {}
    for condition in conditions[1:]:
        hiding["mask"] = hiding["mask"] & condition  # True = may attend
    parameters = dict(tree_flatten(layer.trainable_parameters()))
    by = inputs | parameters

    def call(*arrays: Any) -> Any:
        given = dict(zip(by, arrays, strict=True))
        layer.update(tree_unflatten([(name, given[name]) for name in parameters]))
        return layer(*(given[name] for name in inputs), **hiding)

    try:
        (output,), pulled = mx.vjp(call, list(by.values()), [cotangent])
    finally:
        layer.update(tree_unflatten(list(parameters.items())))
    return evaluate(output), None, dict(zip(by, evaluate(pulled), strict=True)), SCHEME


def children(module: Any) -> list[tuple[str, Any]]:
    """Return the parts of a module, each with the text to write after the module for it."""
    return _parts(module.children()) if isinstance(module, nn.Module) else []


def _parts(held: Any, path: str = "") -> list[tuple[str, Any]]:
    """Return the modules in lists and dicts of modules, each with its path."""
    found: list[tuple[str, Any]] = []
    for name, part in held.items() if isinstance(held, dict) else enumerate(held):
        here = path + (f"[{name!r}]" if path and isinstance(held, dict) else foreign.access_text(name))
        found += [(here, part)] if isinstance(part, nn.Module) else _parts(part, here)
    return found


def unpacked(
    packed: np.ndarray, parts: dict[str, np.ndarray], dtype: np.dtype, group_size: int, bits: int, mode: str
) -> np.ndarray:
    """Return the floats of an array that is quantised in a file; parts: its scales and biases, by name."""
    given = {name: tensor(X) for name, X in parts.items()}
    how = {"group_size": group_size, "bits": bits, "mode": mode, "dtype": getattr(mx, checks.dtype_name(dtype))}
    return to_numpy(mx.dequantize(tensor(packed), **given, **how, stream=mx.cpu))
