"""Models of Flax's nnx."""

import jax
import numpy as np
from flax import nnx
from jax import numpy as jnp

import audited
from audited import D, H, Model, attend, d

BACKEND = "jax"
KINDS = "own", "taught"
LIKE = "own"


def state(model):
    """What an audit has to leave as it was."""
    kinds = {type(module) for _, module in nnx.iter_modules(model)}
    functions = jax.nn.softmax, jax.checkpoint, jax.config.jax_disable_jit
    rates = [getattr(module, "dropout_rate", None) for _, module in nnx.iter_modules(model)]
    arrays = jax.tree.leaves(nnx.state(model, nnx.Param))
    return [(kind.__name__, vars(kind).get("__call__")) for kind in sorted(kinds, key=repr)], functions, rates, arrays


def drawn(model):
    """The model with random numbers in each array."""
    rng = np.random.default_rng(5)
    arrays = nnx.state(model, nnx.Param)
    nnx.update(model, jax.tree.map(lambda A: jnp.asarray(rng.normal(size=A.shape, scale=0.4), A.dtype), arrays))
    return model


class Wrong(nnx.MultiHeadAttention):
    """The framework's layer, which forgets its mask, or its scale."""

    mistake = ""

    def __call__(self, inputs_q, mask=None, **options):
        queries = d**0.5 * inputs_q if self.mistake == "scale" else inputs_q
        return super().__call__(queries, inputs_q, inputs_q, mask=None if self.mistake == "mask" else mask, **options)


class Block(nnx.Module):
    """A layer with a residual and dropout."""

    def __init__(self, kind, rngs):
        self.attention = kind(H, D, decode=False, dropout_rate=0.3, deterministic=False, use_bias=False, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, X):
        return X + self.drop(self.attention(X, mask=nnx.make_causal_mask(X[..., 0])))


class Stack(nnx.Module):
    """Two blocks, compiled."""

    def __init__(self, kind, rngs):
        self.blocks = nnx.List([Block(nnx.MultiHeadAttention, rngs), Block(kind, rngs)])

    @nnx.jit
    def __call__(self, X):
        for block in self.blocks:
            X = block(X)
        return X


def own(mistake):
    """The framework's layer."""
    model = drawn(Stack(Wrong, nnx.Rngs(0)))
    attention = model.blocks[1].attention
    attention.mistake = mistake
    if mistake == "kernel":
        kernel = attention.query.kernel[...]
        attention.query.kernel[...] = kernel.reshape(D, D).T.reshape(kernel.shape)  # (D, H, d)
    return Model(model, (jnp.asarray(audited.inputs()),), ["blocks.0.attention", "blocks.1.attention"], state)


class ByHand(nnx.Module):
    """A layer by hand."""

    def __init__(self, mistake, rngs):
        self.to_q, self.to_k, self.to_v, self.to_out = (nnx.Linear(D, D, rngs=rngs) for _ in range(4))
        self.mistake, self.drop = mistake, nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, X):
        q, k, v = self.to_q(X), self.to_k(X), self.to_v(X)
        return X + self.to_out(self.drop(attend(jnp, jax.nn.softmax, q, k, v, self.mistake)))


def taught(mistake):
    """Layers by hand, whose projections are to be taught."""
    rngs = nnx.Rngs(0)
    model = drawn(nnx.Sequential(ByHand("", rngs), ByHand(mistake, rngs)))
    paths = ["layers.0", "layers.1"]
    return Model(model, (jnp.asarray(audited.inputs()),), paths, state, layers=dict.fromkeys(paths, audited.TAUGHT))
