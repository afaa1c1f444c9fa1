"""Read an attention layer in a module of Hugging Face's transformers: its arrays, and its config.

The module is known by the names of its arrays and by its attribute `config`, as `save_pretrained` would write both;
transformers itself is not imported.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from mha.weights import json_text, models, schemes
from mha.weights.foreign.arrays import Layer, canonical, to_numpy

# What the probability of dropout of attention weights is called.
_DROPOUT = "attention_dropout", "attention_probs_dropout_prob", "attn_pdrop", "dropout_rate"
# BERT's module of attention without its output, in whose place the identity stands.
_WITHOUT_OUTPUT = {"query.weight", "key.weight", "value.weight"}


def config_of(source: Any) -> Any | None:
    """Return the config of a module, or of the first of its parts that has one; None if it is not transformers'."""
    if isinstance(source, type) or not all(callable(getattr(source, name, None)) for name in ("state_dict", "modules")):
        return None
    found = (getattr(part, "config", None) for part in source.modules())
    return next((config for config in found if hasattr(config, "to_json_string")), None)


def take(
    source: Any, config: Any, scheme: str, prefix: str | None, num_heads: int | None, given: Mapping[str, Any]
) -> Layer:
    """Return the configuration and canonical weights of a layer in a module; arguments as for `mha.from_native`."""
    arrays = _whole(source.state_dict())
    chosen, prefix = schemes.choose(arrays, scheme, prefix)
    number, given = getattr(source, "layer_idx", None), dict(given)
    length = given.pop(models.LENGTH, None)
    place = f"layers.{number}.{prefix}" if number is not None else prefix
    model = json_text.parse(config.to_json_string())
    try:
        options = models.options_in(model, chosen, place, length)
    except (OverflowError, TypeError, ValueError) as error:
        raise ValueError(f"source has a config, which does not describe such a layer: {error}") from error
    num_heads, options = models.join_options(options, num_heads, given, "source has a config")
    dropout = next((model[name] for name in _DROPOUT if name in model), 0.0)
    return canonical(arrays, chosen, prefix, num_heads, dropout=dropout, **options)


def _whole(arrays: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arrays of a module; BERT's self-attention has no output kernel, and gets the identity."""
    kernels = {name for name in arrays if name.endswith(".weight")}
    if kernels != _WITHOUT_OUTPUT:
        return arrays
    value = to_numpy("value.weight", arrays["value.weight"])
    output = {"output.dense.weight": np.eye(len(value), dtype=value.dtype)}
    if "value.bias" in arrays:
        output["output.dense.bias"] = np.zeros(len(value), value.dtype)
    return {f"self.{name}": X for name, X in arrays.items()} | output
