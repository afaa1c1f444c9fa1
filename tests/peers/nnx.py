"""`flax.nnx.MultiHeadAttention`: as in `flax.linen`, but an object that holds its weights."""

import jax
import numpy as np
from flax import nnx

from peers import renamed
from peers.linen import by_part, mask_of, of_heads, own_options, results


def new(**options):
    return nnx.MultiHeadAttention(
        **own_options(in_features=11, in_kv_features=13, decode=False) | options, rngs=nnx.Rngs(5)
    )


def make(options, weights, call):
    names = {"num_hiddens": "out_features", "bias": "use_bias", "dropout": "dropout_rate"}
    named = renamed(options, **names, num_key_value_heads="num_kv_heads")
    named["param_dtype"] = named.setdefault("dtype", "float32")
    width = options["num_hiddens"]
    layer = nnx.MultiHeadAttention(in_features=width, **named, decode=False, rngs=nnx.Rngs(0))
    if weights is not None:
        nnx.update(layer, of_heads(weights, options["num_heads"]))
    return layer


def run(layer, call):
    graph, params, rest = nnx.split(layer, nnx.Param, ...)
    hiding = {"is_causal": True} if call.only_causal else {"mask": mask_of(call)}

    def attend(params, *inputs):
        forward = nnx.capture(nnx.merge(graph, params, rest), nnx.Intermediate)
        output, state = forward(
            *inputs, **hiding, deterministic=not call.training, sow_weights=call.return_weights
        )  # fmt: skip
        return output, nnx.to_pure_dict(state).get("attention_weights", ())

    return results(call, attend, params, lambda params: by_part(nnx.to_pure_dict(params)))


class Decoder:
    def __init__(self, attention, batch_size, size):
        self.layer = attention.to_native("flax.nnx.MultiHeadAttention")
        self.layer.decode = True
        self.layer.init_cache((batch_size, size, attention.config.query_size), attention.config.dtype)

    def __call__(self, x):
        # Without weights, JAX's function takes its softmax in float32, whatever the dtype.
        output, _ = nnx.capture(self.layer, nnx.Intermediate)(jax.numpy.asarray(x), sow_weights=True)
        return np.asarray(output)

    @property
    def cache(self):
        return nnx.state(self.layer, nnx.Cache)

    @cache.setter
    def cache(self, kept):
        nnx.update(self.layer, kept)
