"""The book's layers as a reader defines them, attributes and nothing else: what converts them calls nothing.

Each has num_heads=3, dropout=0.25 and biases, with num_hiddens=12 and queries, keys and values of widths 11, 13 and 17.
    first: what a conversion asks for as long as there are no weights
    layer, ready(): the layer without weights, and with them
    weights(): the canonical weights
"""

import numpy as np

from peers import PROJECTIONS

WIDTHS = dict(zip(PROJECTIONS, (11, 13, 17, 12), strict=True))


def of(backend):
    """The book's layer of a framework, which is imported only now."""
    return {"torch": Torch, "tensorflow": TensorFlow, "jax": Jax, "mxnet": MXNet}[backend]()


class DotProductAttention:
    def __init__(self, dropout):
        self.dropout = dropout


class Printed:
    first = "call it once"

    def weights(self):
        return {f"{name}.{kind}": X for name in PROJECTIONS for kind, X in self.parameters(name).items()}


class Torch(Printed):
    def __init__(self):
        import torch

        class MultiHeadAttention(torch.nn.Module):
            def __init__(self, num_hiddens, num_heads, dropout, bias):
                super().__init__()
                self.num_heads = num_heads
                self.attention = DotProductAttention(torch.nn.Dropout(dropout))
                for name in PROJECTIONS:
                    setattr(self, name, torch.nn.LazyLinear(num_hiddens, bias=bias))

        self.layer = MultiHeadAttention(12, 3, 0.25, True)

    def ready(self):
        import torch

        for name, size in WIDTHS.items():
            getattr(self.layer, name)(torch.ones(2, size))
        return self.layer

    def parameters(self, name):
        part = getattr(self.layer, name)
        return {"kernel": part.weight.detach().numpy().T, "bias": part.bias.detach().numpy()}


class TensorFlow(Printed):
    def __init__(self):
        import keras

        class MultiHeadAttention(keras.layers.Layer):
            def __init__(self, num_hiddens, num_heads, dropout, bias):
                super().__init__()
                self.num_heads = num_heads
                self.attention = DotProductAttention(keras.layers.Dropout(dropout))
                options = {"use_bias": bias, "bias_initializer": "random_normal"}
                for name in PROJECTIONS:
                    setattr(self, name, keras.layers.Dense(num_hiddens, **options))

        self.layer = MultiHeadAttention(12, 3, 0.25, True)

    def ready(self):
        for name, size in WIDTHS.items():
            getattr(self.layer, name).build((None, size))
        return self.layer

    def parameters(self, name):
        part = getattr(self.layer, name)
        return {"kernel": part.kernel.numpy(), "bias": part.bias.numpy()}


class Jax(Printed):
    first = "bind"

    def __init__(self):
        from flax import linen

        dot_product = type("DotProductAttention", (linen.Module,), {"__annotations__": {"dropout": float}})

        class MultiHeadAttention(linen.Module):
            num_hiddens: int
            num_heads: int
            dropout: float
            bias: bool = False

            def setup(self):
                self.attention = dot_product(self.dropout)
                self.W_q, self.W_k, self.W_v, self.W_o = (linen.Dense(self.num_hiddens, self.bias) for _ in PROJECTIONS)

            def __call__(self, *inputs):
                return self.W_o(self.W_q(inputs[0]) + self.W_k(inputs[1]) + self.W_v(inputs[2]))

        self.layer = MultiHeadAttention(12, 3, 0.25, True)

    def ready(self):
        import jax

        inputs = [jax.numpy.ones((1, WIDTHS[name])) for name in PROJECTIONS[:3]]
        self.variables = self.layer.init(jax.random.key(5), *inputs)
        return self.layer.bind(self.variables)

    def parameters(self, name):
        return {kind: np.asarray(X) for kind, X in self.variables["params"][name].items()}


class MXNet(Printed):
    first = "initialize"

    def __init__(self):
        from mxnet.gluon import nn

        class MultiHeadAttention(nn.Block):
            def __init__(self, num_hiddens, num_heads, dropout, use_bias):
                super().__init__()
                self.num_heads = num_heads
                self.attention = DotProductAttention(nn.Dropout(dropout))
                for name in PROJECTIONS:
                    setattr(self, name, nn.Dense(num_hiddens, use_bias=use_bias, flatten=False))

        self.layer = MultiHeadAttention(12, 3, 0.25, True)

    def ready(self):
        from mxnet import np as mnp

        self.layer.initialize()
        for name, size in WIDTHS.items():
            getattr(self.layer, name)(mnp.ones((2, size)))
        return self.layer

    def parameters(self, name):
        part = getattr(self.layer, name)
        return {"kernel": part.weight.data().asnumpy().T, "bias": part.bias.data().asnumpy()}
