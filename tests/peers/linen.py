"""`flax.linen.MultiHeadDotProductAttention`: kernels (in, H, d) and (H, dv, D); in its masks True = may attend."""

import jax
import numpy as np
from flax import linen

from peers import INPUTS, PROJECTIONS, merged, own, own_inputs, renamed

PARTS = ("query", "key", "value", "out")


def new(name="MultiHeadDotProductAttention", bind=True, **options):
    """A module of this name, bound to weights of queries, keys and values of widths 11, 13 and 17 unless bind=False."""
    module = getattr(linen, name)(**own_options(**options))
    inputs = [jax.numpy.ones((1, 5, size)) for size in (11, 13, 17)]
    return module.bind(module.init(jax.random.key(5), *inputs, deterministic=True)) if bind else module


def own_options(**options):
    """Options of Flax's layers, here and in nnx, whose biases are then not 0."""
    return {"num_heads": 3, "qkv_features": 12, "bias_init": linen.initializers.normal(1.0)} | options


def make(options, weights, call):
    sizes = dict.fromkeys(("query_size", "key_size", "value_size", "value_dim"))  # read off the inputs, or as key_dim
    names = {"num_hiddens": "out_features", "bias": "use_bias", "dropout": "dropout_rate", "key_dim": "qkv_features"}
    options = renamed(options, **names, **sizes)
    heads, width = options["num_heads"], options.get("qkv_features")
    options["qkv_features"] = options["out_features"] if width is None else heads * width
    options["param_dtype"] = options.setdefault("dtype", "float32")
    module = linen.MultiHeadDotProductAttention(**options)
    if weights is None:
        return module.bind(module.init(jax.random.key(0), *own_inputs(call, "jax"), deterministic=True))
    return module.bind({"params": of_heads(weights, heads)})


def of_heads(weights, heads):
    """Canonical weights as nested parameters of Flax's layers, here and in nnx, in which heads have an axis."""
    parts, width = dict(zip(PROJECTIONS, PARTS, strict=True)), weights["W_q.kernel"].shape[1] // heads
    params = {part: {} for part in PARTS}
    for name, X in weights.items():
        projection, kind = name.split(".")
        if projection != "W_o":
            X = X.reshape(*X.shape[:-1], -1, width)  # (in, H or G, d) and (H or G, d)
        elif kind == "kernel":
            X = X.reshape(heads, -1, X.shape[1])  # (H, dv, D)
        params[parts[projection]][kind] = jax.numpy.asarray(X)
    return params


def run(layer, call):
    module, variables = layer.unbind()
    hiding = mask_of(call)

    def attend(params, *inputs):
        output, state = module.apply(
            {"params": params}, *inputs, mask=hiding, deterministic=not call.training,
            sow_weights=call.return_weights, mutable=["intermediates"], rngs={"dropout": jax.random.key(0)},
        )  # fmt: skip
        return output, state.get("intermediates", {}).get("attention_weights", ())

    return results(call, attend, variables["params"], by_part)


class Decoder:
    def __init__(self, attention, batch_size, size):
        module, variables = attention.to_native("flax.linen.MultiHeadDotProductAttention").unbind()
        self.module, self.params = module.clone(decode=True), variables["params"]
        tokens = jax.numpy.zeros((batch_size, size, attention.config.query_size), attention.config.dtype)
        self.cache = self.module.init(jax.random.key(0), tokens)["cache"]

    def __call__(self, x):
        variables = {"params": self.params, "cache": self.cache}
        output, kept = self.module.apply(variables, jax.numpy.asarray(x), mutable=["cache"])
        self.cache = kept["cache"]
        return np.asarray(output)


def mask_of(call):
    """The mask of a call, in Flax's convention or as it is."""
    if call.own_mask:
        return own("jax", call.mask)
    seen = call.seen()
    return None if seen is None else jax.numpy.asarray(seen)


def by_part(params):
    """Flax's nested parameters as arrays by our names, their heads still apart."""
    names = dict(zip(PARTS, PROJECTIONS, strict=True)) | {"query_ln": "q_norm", "key_ln": "k_norm"}
    return {f"{names[part]}.{kind}": X for part, own in params.items() for kind, X in own.items()}


def results(call, attend, params, named):
    """Output, weights if there are any, and gradients by inputs and parameters, of something in Flax.

    attend(params, *inputs) returns the output and a tuple of the weights; named(params) is a dict by our names.
    """
    inputs = own_inputs(call, "jax")
    if call.cotangent is None:
        output, shares = attend(params, *inputs)
        gradients = {}
    else:
        output, pull_back, shares = jax.vjp(attend, params, *inputs, has_aux=True)
        by_params, *by_inputs = pull_back(jax.numpy.asarray(call.cotangent, output.dtype))
        gradients = dict(zip(INPUTS, by_inputs, strict=True)) | named(by_params)
    found = dict(zip(("output", "weights"), (output, *shares), strict=False)) | gradients
    return {name: merged(name, np.asarray(X)) for name, X in found.items()}
