"""Convert PyTorch's own layer, and the book's in PyTorch; make caches of transformers.

torch.nn.MultiheadAttention has kernels (out, in), packed where queries, keys and values have one width.
"""

import importlib.util
from typing import Any

import numpy as np
import torch
from torch.nn.parameter import is_lazy

from mha.backends.torch.arrays import tensor
from mha.core import dispatch
from mha.core.options.config import Config
from mha.core.options.names import SchemeName
from mha.weights import foreign, schemes

KIND = "torch.nn.MultiheadAttention"
DENSE = ("Linear",)  # the class of the book's projections
FIRST = "call it once, so that its parts learn their sizes"


def take(layer: Any) -> tuple[Config, dict[str, np.ndarray]]:
    """Return the configuration and canonical weights of a layer; batch_first is a matter of its calls."""
    foreign.refuse(KIND, {"add_bias_kv": layer.bias_k is not None, "add_zero_attn": layer.add_zero_attn})
    return foreign.canonical(layer.state_dict(), _scheme(layer), "", layer.num_heads, dropout=layer.dropout)


def make(kind: str, config: Config, weights: dict[str, np.ndarray]) -> Any:
    """Make a layer with batch_first=True and these canonical weights."""
    D, H = config.num_hiddens, config.num_heads
    width = D / H if D % H else D // H
    foreign.require(kind, config, {"query_size": D, "key_dim": width, "value_dim": width, "pooling": "dot"})
    sizes = {"kdim": config.key_size, "vdim": config.value_size}
    layer = torch.nn.MultiheadAttention(
        D, H, config.dropout, config.bias, **sizes, batch_first=True, dtype=getattr(torch, config.dtype)
    )
    arrays = schemes.from_canonical(config, weights, _scheme(layer))
    layer.load_state_dict({name: tensor(array) for name, array in arrays.items()})
    return layer


def make_cache(kind: str, keys: Any, values: Any, tokens: int) -> Any:
    """Make the cache of one layer; keys: (B, G, S, d), values: (B, G, S, dv), with so many slots filled."""
    if importlib.util.find_spec("transformers") is None:
        needed = dispatch.pip_for(("transformers>=5",))
        raise ModuleNotFoundError(f"kind {kind!r} needs transformers: {needed}", name="transformers")
    import transformers

    cache: Any = transformers.DynamicCache()
    if kind == "transformers.StaticCache":
        config = transformers.PreTrainedConfig.from_dict({"num_hidden_layers": 1})
        cache = transformers.StaticCache(config, keys.shape[2])
    cache.update(keys[:, :, :tokens], values[:, :, :tokens], 0)
    return cache


def attend(
    layer: Any, inputs: dict[str, Any], padding: Any, pairs: Any, causal: bool, cotangent: Any
) -> tuple[Any, Any, dict[str, Any], SchemeName]:
    """Call the layer in its own manner; see `mha.weights.foreign`."""
    place = layer.out_proj.weight.device
    inputs = {name: X.to(place).requires_grad_() for name, X in inputs.items()}
    if causal:
        order = torch.ones(inputs["queries"].shape[1], inputs["keys"].shape[1], dtype=torch.bool).tril()
        pairs = order if pairs is None else pairs & order
    # In masks of this layer True = hide.
    hiding = {} if padding is None else {"key_padding_mask": ~padding.to(place)}
    if pairs is not None:
        hidden = ~pairs.to(place)
        if hidden.ndim == 4:
            hidden = hidden.expand(-1, layer.num_heads, -1, -1).flatten(0, 1)  # (B*H, Q, K)
        hiding["attn_mask"] = hidden

    def call(**options: Any) -> tuple[Any, ...]:
        given = [X if layer.batch_first else X.swapaxes(0, 1) for X in inputs.values()]
        result = layer(*given, **hiding, **foreign.select_options(layer.forward, **options))
        output, weights = result if isinstance(result, tuple) else (result, None)
        return output if layer.batch_first else output.swapaxes(0, 1), weights

    weights = None
    if of_each_head := foreign.select_options(layer.forward, average_attn_weights=False):
        with torch.no_grad():
            _, weights = call(need_weights=True, **of_each_head)
    parameters = {name: X for name, X in layer.named_parameters() if X.requires_grad}
    by, cotangent = inputs | parameters, cotangent.to(place)
    with torch.enable_grad():
        output, _ = call(need_weights=False)
        pulled = torch.autograd.grad(output, list(by.values()), cotangent, allow_unused=True, materialize_grads=True)
    return output, weights, dict(zip(by, pulled, strict=True)), _scheme(layer)


def is_ready(layer: Any) -> bool:
    """Whether a layer of the book has its weights."""
    return not any(map(is_lazy, layer.parameters()))


def book_arrays(layer: Any) -> tuple[str, dict[str, Any]]:
    """Return the naming scheme and the arrays of a layer as the book prints it."""
    return "d2l", layer.state_dict()


def allocate(layer: Any) -> Any:
    """Return a layer of the book with room for its weights."""
    return layer


def children(module: Any) -> list[tuple[str, Any]]:
    """Return the parts of a module, each with the text to write after the module for it."""
    parts = module.named_children() if isinstance(module, torch.nn.Module) else ()
    return [(foreign.access_text(name), part) for name, part in parts]


def _scheme(layer: Any) -> SchemeName:
    return "torch-separate" if layer.in_proj_weight is None else "torch"
