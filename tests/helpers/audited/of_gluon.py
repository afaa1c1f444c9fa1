"""Models of Gluon."""

import mxnet
from mha.d2l import mxnet as d2l
from mxnet import np, npx
from mxnet.gluon import nn

import audited
from audited import D, H, Model, attend, d
from mha.models.frameworks.mxnet import modules

BACKEND = "mxnet"
KINDS = "own", "taught"
LIKE = "own"


def state(model):
    """What an audit has to leave as it was."""
    blocks = [(sorted(vars(one)), getattr(one, "_active", None)) for one in modules(model).values()]
    functions = [vars(owner)[name] for owner in (npx, mxnet.nd.npx) for name in ("softmax", "dropout")]
    return blocks, functions, [X.data().asnumpy() for X in model.collect_params().values()]


def drawn(model, *args):
    """The model with random numbers in each array."""
    mxnet.random.seed(5)
    model.initialize(mxnet.init.Normal(0.4))
    model(*args)
    return model


class Wrong(d2l.MultiHeadAttention):
    """The book's layer, which forgets its lengths, or its scale."""

    mistake = ""

    def forward(self, queries, keys, values, valid_lens=None, *options):
        if self.mistake == "scale":
            queries = d**0.5 * queries
        return super().forward(queries, keys, values, None if self.mistake == "mask" else valid_lens, *options)


class Block(nn.Block):
    """A layer with a residual and dropout."""

    def __init__(self, kind, mistake=""):
        super().__init__()
        self.attention, self.drop = kind(D, H, 0.3), nn.Dropout(0.5)
        self.attention.mistake = mistake

    def forward(self, X, lengths):
        return X + self.drop(self.attention(X, X, X, lengths))


class Stack(nn.Block):
    """Two blocks."""

    def __init__(self, mistake):
        super().__init__()
        self.one, self.two = Block(d2l.MultiHeadAttention), Block(Wrong, mistake)

    def forward(self, X, lengths):
        return self.two(self.one(X, lengths), lengths)


def own(mistake):
    """The book's layer."""
    args = np.array(audited.inputs()), np.array(audited.LENGTHS, dtype="int32")
    model = drawn(Stack(mistake), *args)
    if mistake == "kernel":
        weight = model.two.attention.W_q.weight
        weight.set_data(weight.data().T)
    return Model(model, args, ["one.attention", "two.attention"], state)


class ByHand(nn.HybridBlock):
    """A layer by hand."""

    def __init__(self, mistake):
        super().__init__()
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Dense(D, flatten=False, in_units=D) for _ in range(4))
        self.mistake = mistake

    def hybrid_forward(self, F, X):
        q, k, v = self.to_q(X), self.to_k(X), self.to_v(X)
        return X + self.to_out(attend(F.np, F.npx.softmax, q, k, v, self.mistake))


def taught(mistake):
    """Layers by hand, compiled, whose projections are to be taught."""
    model = nn.HybridSequential()
    model.add(ByHand(""), ByHand(mistake))
    X = np.array(audited.inputs())
    model.hybridize()
    return Model(drawn(model, X), (X,), ["0", "1"], state, layers={"[01]": audited.TAUGHT})
