"""The layers, poolings and models of the book's next edition as its code calls them, the same on both frameworks."""

import contextlib
import importlib

import numpy as np

import mha
from mha.core import dispatch

NAMES = ("W_q", "W_k", "W_v", "W_o")


def of(backend):
    """The framework of a backend, as the book's code uses it."""
    return {"torch": Torch, "jax": Jax}[backend]()


class Torch:
    """PyTorch, for its model: its layer and its pooling are those of today."""

    def __init__(self):
        self.torch = importlib.import_module("torch")

    def read(self, part):
        """The kernel (in, out) of a dense layer, and its bias or None."""
        return mha.to_numpy(part.weight.T), None if part.bias is None else mha.to_numpy(part.bias)

    def table(self, embedding):
        """The rows of an embedding."""
        return mha.to_numpy(embedding.weight)

    def count(self, made):
        """The number of parameters, as the book counts them."""
        return sum(p.numel() for p in made.parameters())

    def gradients(self, made, function, *parts):
        """Gradients of function(made), a number, by dense layers: pairs of kernel (in, out) and bias, in a list."""
        made.zero_grad()
        function(made).backward()
        return [(part.weight.grad.T.numpy(), None if part.bias is None else part.bias.grad.numpy()) for part in parts]

    def seeded(self, seed):
        """What to give a model so that its random numbers are those of a seed."""
        self.torch.manual_seed(seed)
        return {}

    def optimizer(self, model, rate):
        return self.torch.optim.AdamW(model.parameters(), lr=rate)


class Jax:
    """JAX with NNX: a view turns dropout off, and the weights of a call are returned."""

    def __init__(self):
        self.nnx = importlib.import_module("flax.nnx")
        self.jax = importlib.import_module("jax")

    def call(self, made, *inputs, training=False):
        """The output and the attention weights of a layer or a pooling."""
        return self.nnx.view(made, deterministic=not training)(*inputs)

    def put(self, part, kernel, bias=None):
        """Give a dense layer a kernel (in, out), and its bias."""
        part.kernel[...] = kernel
        if bias is not None:
            part.bias[...] = bias

    def read(self, part):
        return np.asarray(part.kernel[...]), None if part.bias is None else np.asarray(part.bias[...])

    def table(self, embedding):
        return np.asarray(embedding.embedding[...])

    def count(self, made):
        return sum(p.size for p in self.jax.tree.leaves(self.nnx.state(made, self.nnx.Param)))

    def gradients(self, made, function, *parts):
        found = self.nnx.grad(function)(made)
        paths = [next(path for path, one in self.nnx.iter_graph(made) if one is part) for part in parts]
        by_part = []
        for path in paths:
            state = found
            for name in path:
                state = state[name]
            by_part.append(
                (np.asarray(state["kernel"][...]), np.asarray(state["bias"][...]) if "bias" in state else None)
            )
        return by_part

    def seeded(self, seed):
        return {"rngs": self.nnx.Rngs(seed)}

    def optimizer(self, model, rate):
        return self.nnx.Optimizer(model, importlib.import_module("optax").adamw(rate), wrt=self.nnx.Param)


def put_all(framework, layer, weights):
    """Give a layer canonical weights, as of `mha.MultiHeadAttention`."""
    for name in NAMES:
        framework.put(getattr(layer, name), weights[f"{name}.kernel"], weights.get(f"{name}.bias"))


@contextlib.contextmanager
def d2l_of(backend):
    """The module of the names of the next edition, in the precision that the book's code runs in."""
    with dispatch.load(backend).context("float32"):
        yield importlib.import_module(f"mha.d2l.next.{backend}")
