"""Measure how MXNet with Gluon differs: it has no attention layer, so that its dense layer stands for it.

Each function returns pairs of a word and a detail, as `mha.learn.page.measures` has them.
"""

import mxnet as mx
from mxnet import autograd, npx
from mxnet import np as mx_np
from mxnet.gluon import nn

from mha.backends.mxnet.arrays import to_numpy
from mha.learn.page import measures

npx.set_np()


def layer():
    """The framework's own attention layer."""
    return [("none" if not hasattr(nn, "MultiHeadAttention") else "", "gluon.nn")]


def kernel():
    """Which way round a dense layer stores its kernel."""
    return [("of_dense", measures.orientation(_dense(5, in_units=3).weight.shape, 3))]


def names():
    """The parameters of a fresh layer and their shapes, of 8 hidden units and 2 heads."""
    made = _dense(8, in_units=8)
    return [("of_dense", ""), *measures.shapes({"weight": made.weight.shape, "bias": made.bias.shape})]


def initial():
    """Mean and standard deviation of a fresh layer's query kernel, of 256 hidden units and 4 heads; its bias."""
    made = _dense(256, in_units=256)
    kernel, bias = to_numpy(made.weight.data()), to_numpy(made.bias.data())
    return [("of_dense", measures.spread(kernel)), ("of_bias", measures.spread(bias))]


def lazy():
    """Whether a fresh layer has its weights before it is called."""
    made = _dense(5)
    before = made.weight.shape
    made(mx_np.ones((1, 3)))
    return [("of_dense", ""), ("eager" if min(before) > 0 else "lazy", f"weight.shape: {before} → {made.weight.shape}")]


def training():
    """Whether a fresh layer drops weights when nobody says whether it is training, and what says it."""
    made, X = nn.Dropout(0.5), mx_np.ones((64, 8))
    fresh = measures.drops(lambda: to_numpy(made(X)))
    with autograd.record():
        said = measures.drops(lambda: to_numpy(made(X)))
    return [(fresh, "Dropout(0.5)(X)"), (said, "autograd.record()")]


def dtype():
    """The dtype of a fresh layer, and of an array that is made of Python's floats."""
    made = str(_dense(5, in_units=3).weight.data().dtype), str(mx_np.array([1.0]).dtype)
    return [("of_layer", made[0].removeprefix("<class 'numpy.").removesuffix("'>")), ("of_array", made[1])]


def random():
    """The way to make random numbers repeat, and whether a second draw is another."""
    return [
        (
            measures.repeats(lambda: mx.random.seed(0), lambda: to_numpy(mx_np.random.normal(size=3))),
            "mx.random.seed(0)",
        )
    ]


def compiled():
    """How many programs a compiled layer takes for sequences of 3 lengths."""
    traced = []

    class Doubled(nn.HybridBlock):
        pass

    def double(self, *given):
        traced.append(given)
        return 2 * given[-1]

    # MXNet 1.9 traces `hybrid_forward`, whose first argument is the namespace of its operators; 2.0 refuses that name.
    setattr(Doubled, "hybrid_forward" if mx.__version__.startswith("1.") else "forward", double)
    made = Doubled()
    made.hybridize()
    for T in (3, 4, 5):
        made(mx_np.ones((2, T, 8)))
    return [(measures.programs(len(traced), 3), f"HybridBlock.hybridize: {len(traced)}")]


def _dense(out_size, **options):
    made = nn.Dense(out_size, **options)
    made.initialize()
    return made
