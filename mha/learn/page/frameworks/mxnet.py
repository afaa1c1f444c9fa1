"""Measure how MXNet with Gluon differs: it has no attention layer, so that its dense layer stands for it."""

import mxnet as mx
from mxnet import autograd, npx
from mxnet import np as mx_np
from mxnet.gluon import nn

from mha.backends.mxnet.arrays import to_numpy
from mha.learn.page import measures

npx.set_np()


def layer():
    return [("none" if not hasattr(nn, "MultiHeadAttention") else "", "gluon.nn")]


def kernel():
    return [("of_dense", measures.orientation(_dense(5, in_units=3).weight.shape, 3))]


def names():
    made = _dense(8, in_units=8)
    return [("of_dense", ""), *measures.shapes({"weight": made.weight.shape, "bias": made.bias.shape})]


def initial():
    made = _dense(256, in_units=256)
    kernel, bias = to_numpy(made.weight.data()), to_numpy(made.bias.data())
    return [("of_dense", measures.spread(kernel)), ("of_bias", measures.spread(bias))]


def lazy():
    made = _dense(5)
    before = made.weight.shape
    made(mx_np.ones((1, 3)))
    return [("of_dense", ""), ("eager" if min(before) > 0 else "lazy", f"weight.shape: {before} → {made.weight.shape}")]


def training():
    made, X = nn.Dropout(0.5), mx_np.ones((64, 8))
    fresh = measures.drops(lambda: to_numpy(made(X)))
    with autograd.record():
        said = measures.drops(lambda: to_numpy(made(X)))
    return [(fresh, "Dropout(0.5)(X)"), (said, "autograd.record()")]


def dtype():
    made = str(_dense(5, in_units=3).weight.data().dtype), str(mx_np.array([1.0]).dtype)
    return [("of_layer", made[0].removeprefix("<class 'numpy.").removesuffix("'>")), ("of_array", made[1])]


def random():
    return [
        (
            measures.repeats(lambda: mx.random.seed(0), lambda: to_numpy(mx_np.random.normal(size=3))),
            "mx.random.seed(0)",
        )
    ]


def compiled():
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
    return measures.programs("HybridBlock.hybridize", traced, lambda T: made(mx_np.ones((2, T, 8))))


def _dense(out_size, **options):
    made = nn.Dense(out_size, **options)
    made.initialize()
    return made
