"""Models of Flax's linen."""

import jax
import numpy as np
from flax import linen as nn
from jax import numpy as jnp

import audited
from audited import D, H, Model, attend, d

BACKEND = "jax"
KINDS = "own", "scanned", "taught"
LIKE = ""


def state(model):
    """What an audit has to leave as it was."""
    functions = jax.nn.softmax, nn.softmax, jax.nn.dot_product_attention, jax.checkpoint, jax.remat
    return functions, jax.config.jax_disable_jit, []


def drawn(module, X, **rngs):
    """Random numbers for each array."""
    rng = np.random.default_rng(5)
    variables = module.init({"params": jax.random.key(0)} | rngs, X)
    return jax.tree.map(lambda A: jnp.asarray(rng.normal(size=A.shape, scale=0.4), A.dtype), variables)


class Wrong(nn.MultiHeadDotProductAttention):
    """The framework's layer, which forgets its mask, or its scale."""

    mistake: str = ""

    @nn.compact
    def __call__(self, inputs_q, mask=None):
        queries = d**0.5 * inputs_q if self.mistake == "scale" else inputs_q
        return super().__call__(queries, inputs_q, inputs_q, mask=None if self.mistake == "mask" else mask)


class Block(nn.Module):
    """A layer with a residual, a norm and dropout."""

    mistake: str = ""

    @nn.compact
    def __call__(self, X):
        options = {"num_heads": H, "dropout_rate": 0.3, "deterministic": False, "use_bias": False, "name": "attention"}
        kind = Wrong(**options, mistake=self.mistake) if self.mistake else nn.MultiHeadDotProductAttention(**options)
        Y = kind(nn.LayerNorm()(X), mask=nn.make_causal_mask(X[..., 0]))
        return X + nn.Dropout(0.5, deterministic=False)(Y), None


class Stack(nn.Module):
    """Two blocks."""

    mistake: str = ""

    @nn.compact
    def __call__(self, X):
        X, _ = Block(name="one")(X)
        return Block(self.mistake, name="two")(X)[0]


def own(mistake):
    """The framework's layer, in a module that is not bound to its variables."""
    X, key = jnp.asarray(audited.inputs()), jax.random.key(1)
    model = Stack("" if mistake == "kernel" else mistake)
    variables = drawn(model, X, dropout=key)
    if mistake == "kernel":
        query = variables["params"]["two"]["attention"]["query"]
        query["kernel"] = query["kernel"].reshape(D, H * d).T.reshape(D, H, d)  # (D, H, d)
    return Model(model, (variables, X), ["one.attention", "two.attention"], state, {"rngs": {"dropout": key}}, at=1)


class Scanned(nn.Module):
    """Three blocks whose arrays are a stack, which are computed again for their gradients."""

    mistake: str = ""

    @nn.compact
    def __call__(self, X):
        split = {"params": True, "dropout": True}
        blocks = nn.scan(nn.remat(Block), variable_axes={"params": 0}, split_rngs=split, length=3)
        return blocks(self.mistake, name="blocks")(X)[0]


def scanned(mistake):
    """A stack of layers, in a module that is bound."""
    X, key = jnp.asarray(audited.inputs()), jax.random.key(1)
    model = Scanned(mistake)
    bound = model.bind(drawn(model, X, dropout=key), rngs={"dropout": key})
    return Model(bound, (X,), [f"blocks.{n}.attention" for n in range(3)], state)


class ByHand(nn.Module):
    """A layer by hand, of projections without and with an axis for heads."""

    mistake: str = ""

    def setup(self):
        self.to_q, self.to_k, self.to_v = nn.Dense(D), nn.DenseGeneral((H, d)), nn.Dense(D)
        self.to_out, self.drop = nn.DenseGeneral(D, axis=(-2, -1)), nn.Dropout(0.5, deterministic=False)

    def __call__(self, X):
        q, k, v = self.to_q(X), self.to_k(X), self.to_v(X)
        pooled = self.drop(attend(jnp, jax.nn.softmax, q, k, v, self.mistake))
        return X + self.to_out(pooled.reshape(*X.shape[:2], H, d))  # (B, T, D)


class Two(nn.Module):
    """Two layers by hand, the second of which is computed again for gradients."""

    mistake: str = ""

    def setup(self):
        self.blocks = [ByHand(), nn.remat(ByHand)(self.mistake)]

    def __call__(self, X):
        for block in self.blocks:
            X = block(X)
        return X


def taught(mistake):
    """Layers by hand, whose projections are to be taught."""
    X, model, key = jnp.asarray(audited.inputs()), Two(mistake), jax.random.key(1)
    teaching, rngs = {"blocks_*": audited.TAUGHT}, {"rngs": {"dropout": key}}
    args = drawn(model, X, dropout=key), X
    return Model(model, args, ["blocks_0", "blocks_1"], state, rngs, layers=teaching, at=1)
