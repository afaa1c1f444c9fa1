"""Layers as each naming scheme stores them, every number another, for the tests of schemes and of checkpoints."""

import numpy as np

from mha.core.options.config import Config, numpy_dtype, shapes
from mha.weights import schemes

SCHEMES = sorted(schemes.SCHEMES)
# Every size is a prime of its own, but for those that a scheme packs into one array.
WIDTHS = {"query_size": 11, "key_size": 13, "value_size": 17, "key_dim": 5, "value_dim": 7}
PACKED = {"query_size": 11, "key_size": 11, "value_size": 11, "key_dim": 5, "value_dim": 5}
NARROW = {"query_size": 11, "key_size": 13, "value_size": 17, "key_dim": 5, "value_dim": 5}  # its biases are packed
TOLD = ("keras", "keras3", "flax")  # the schemes whose arrays show the heads


def sizes(scheme):
    """Sizes of a layer that the scheme can hold."""
    packed = [name for name, place in schemes.SCHEMES[scheme].places.items() if place.part]
    return PACKED if "W_q.kernel" in packed else NARROW if packed else WIDTHS


def layer(scheme, bias=True, dtype="float32", square=False):
    """A configuration that a scheme can hold, and canonical weights, every number another; bias: if there may be.

    square: whether every kernel is, so that no shape says which way round it lies.
    """
    description = schemes.SCHEMES[scheme]
    implied = {name: value for name, value in description.implied.items() if name != "qk_norm"}
    bias = bool(description.instead) or (bias and "W_q.bias" in description.places)
    widths = {} if square else sizes(scheme)
    config = Config(15 if square else 19, 3, bias=bias, dtype=dtype, **widths, **implied)
    weights, count = {}, 0
    for name, shape in shapes(config).items():
        weights[name] = np.arange(count, count + np.prod(shape)).reshape(shape).astype(numpy_dtype(dtype))
        count += np.prod(shape)
    return config, weights


def stored(scheme, prefix="", **options):
    """The configuration and the arrays of a layer as a scheme stores it."""
    config, weights = layer(scheme, **options)
    return config, {prefix + name: X for name, X in schemes.from_canonical(config, weights, scheme).items()}


def asked(scheme):
    """The options to pass that a scheme asks for: the layers here rotate no positions."""
    return {"rotary": None} if schemes.SCHEMES[scheme].may_rotate else {}


def heads(scheme):
    """The number of heads to pass, which is None where the arrays tell it."""
    return None if scheme in TOLD else 3
