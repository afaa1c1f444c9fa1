"""Measure how MLX differs: its own attention is `mlx.nn.MultiHeadAttention`."""

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten

from mha.backends.mlx.arrays import to_numpy
from mha.learn.page import measures


def layer():
    return [("", f"mlx.nn.{nn.MultiHeadAttention.__name__}")]


def kernel():
    return [("", measures.orientation(nn.Linear(3, 5).weight.shape, 3))]


def names():
    return measures.shapes({name: X.shape for name, X in tree_flatten(_layer(bias=True).parameters())})


def initial():
    made = nn.MultiHeadAttention(256, 4, bias=True).query_proj
    return [("", measures.spread(to_numpy(made.weight))), ("of_bias", measures.spread(to_numpy(made.bias)))]


def lazy():
    return [("eager" if _layer().query_proj.weight.size else "lazy", "nn.MultiHeadAttention")]


def training():
    made, X = nn.Dropout(0.5), mx.ones((64, 8))

    def call():
        return to_numpy(made(X))

    fresh = measures.drops(call)
    made.eval()
    return [(fresh, "nn.Dropout(0.5)(X)"), (measures.drops(call), "layer.eval()")]


def mask():
    return [
        (measures.polarity(_weights(mx.array([[True, False, False]])), 0), "fast.scaled_dot_product_attention: mask")
    ]


def no_keys():
    added = mx.full((1, 3), -mx.inf)
    return [(measures.alone(_weights(mx.array([[False] * 3]))), "bool"), (measures.alone(_weights(added)), "float32")]


def dtype():
    made = str(_layer().query_proj.weight.dtype), str(mx.array([1.0]).dtype)
    return [("of_layer", made[0]), ("of_array", made[1])]


def random():
    return [
        (
            measures.repeats(lambda: mx.random.seed(0), lambda: to_numpy(mx.random.uniform(shape=(3,)))),
            "mx.random.seed(0)",
        )
    ]


def heads():
    return measures.outcome(lambda: nn.MultiHeadAttention(10, 3))


def compiled():
    made, traced = _layer(), []

    @mx.compile
    def call(X):
        traced.append(X.shape)
        return made(X, X, X)

    return measures.programs("mx.compile", traced, lambda T: call(mx.ones((2, T, 8))))


def _layer(**options):
    return nn.MultiHeadAttention(8, 2, **options)


def _weights(mask):
    """The attention weights (K,) of one query for 3 keys: the output, where the values are the identity."""
    identity = mx.eye(3)[None, None]
    X = mx.ones((1, 1, 1, 3)), mx.ones((1, 1, 3, 3)), identity
    return to_numpy(mx.fast.scaled_dot_product_attention(*X, scale=1.0, mask=mask))[0, 0, 0]
