"""Models of MLX."""

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx.utils import tree_flatten, tree_map

import audited
from audited import B, D, H, Model, T, attend
from mha.backends.mlx.commands.taps import modules

BACKEND = "mlx"
KINDS = "encoder", "masked", "taught"
LIKE = "encoder"


def state(model):
    """What an audit has to leave as it was."""
    parts = [(path, type(one), sorted(one), sorted(vars(one)), one.training) for path, one in modules(model).items()]
    names = [name for name, _ in tree_flatten(model.parameters())]
    functions = mx.softmax, mx.fast.scaled_dot_product_attention
    return parts, names, functions, compiles(), [np.array(X) for _, X in tree_flatten(model.parameters())]


def compiles():
    """Whether a compiled function runs once only."""
    ran = []
    one = mx.compile(lambda X: (ran.append(1), X + 1)[1])
    mx.eval(one(mx.zeros(1)), one(mx.zeros(1)))
    return len(ran) == 1


def drawn(model):
    """The model with random numbers in each array."""
    mx.random.seed(5)
    model.update(tree_map(lambda X: mx.random.normal(X.shape, scale=0.4), model.parameters()))
    mx.eval(model.parameters())
    return model.train()


class Wrong(nn.MultiHeadAttention):
    """The framework's layer, which forgets its mask, or its scale."""

    def __call__(self, queries, keys, values, mask=None):
        if self.mistake == "scale":
            queries = queries * (D / H) ** 0.5
        return super().__call__(queries, keys, values, None if self.mistake == "mask" else mask)


def hidden():
    """What each query may see, in order and without padding, (B, 1, T, T)."""
    return mx.tri(T, dtype=mx.bool_) & (mx.arange(T) < mx.array(audited.LENGTHS)[:, None])[:, None, None]


def encoder(mistake):
    """`nn.TransformerEncoder`, with a mask that is added, as its users call it."""
    model = drawn(nn.TransformerEncoder(2, D, H, 29, dropout=0.3))
    last = model.layers[1].attention
    if mistake == "kernel":
        last.out_proj.weight = mx.array(np.array(last.out_proj.weight).T)
    elif mistake:
        last.__class__ = Wrong
        last.mistake = mistake
    mask = mx.where(hidden(), 0, mx.finfo(mx.float32).min)
    return Model(model, (mx.array(audited.inputs()), mask), ["layers.0.attention", "layers.1.attention"], state)


class Attention(nn.Module):
    """A layer by hand."""

    def __init__(self, mistake):
        super().__init__()
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(D, D) for _ in range(4))
        self.drop, self.mistake = nn.Dropout(0.5), mistake

    def __call__(self, X):
        q, k, v = self.to_q(X), self.to_k(X), self.to_v(X)
        pooled = attend(Functions, nn.softmax, q, k, v, self.mistake)
        return X + self.to_out(self.drop(pooled))


class Functions:
    """MLX's functions by NumPy's names."""

    arange, einsum, reshape, swapaxes, where = mx.arange, mx.einsum, mx.reshape, mx.swapaxes, mx.where


def masked(mistake):
    """Two of the framework's layers, one inside of a list, with a boolean mask."""

    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.others = nn.MultiHeadAttention(D, H, bias=True), [Wrong(D, H)]
            self.others[0].mistake = mistake

        def __call__(self, X, mask):
            X = X + self.first(X, X, X, mask=mask)
            return X + self.others[0](X, X, X, mask)

    return Model(drawn(Masked()), (mx.array(audited.inputs()), hidden()), ["first", "others.0"], state)


def taught(mistake):
    """Layers by hand, whose projections are to be taught."""
    model = drawn(nn.Sequential(Attention(""), Attention(mistake)))
    X = mx.array(audited.inputs())
    assert X.shape[0] == B
    return Model(model, (X,), ["layers.0", "layers.1"], state, layers={"layers.?": audited.TAUGHT})
