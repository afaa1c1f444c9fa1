"""The decoder in Flax's nnx."""

import jax
from flax import nnx
from jax import numpy as jnp

from mha import parity
from recorded import EPS, LAYERS, WRONG_EPS, D, M, V, attend, d, tokens, weights

BACKEND = "jax"
PATHS = "h.{}.attn", "last"


class Attention(nnx.Module):
    def __init__(self, rngs):
        self.a, self.b, self.c, self.out = (nnx.Linear(D, D, use_bias=False, rngs=rngs) for _ in range(4))
        self.scale = d**-0.5

    def __call__(self, x):
        return self.out(attend(jnp, jax.nn.softmax, self.a(x), self.b(x), self.c(x), self.scale))


class Block(nnx.Module):
    def __init__(self, rngs):
        self.ln1, self.ln2 = (nnx.LayerNorm(D, epsilon=EPS, rngs=rngs) for _ in range(2))
        self.attn = Attention(rngs)
        self.fc = nnx.Linear(D, M, use_bias=False, rngs=rngs)
        self.proj = nnx.Linear(M, D, use_bias=False, rngs=rngs)

    def __call__(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.proj(jax.nn.gelu(self.fc(self.ln2(x)), approximate=True))


class Decoder(nnx.Module):
    def __init__(self, rngs):
        self.wte, self.last = nnx.Embed(V, D, rngs=rngs), nnx.LayerNorm(D, epsilon=EPS, rngs=rngs)
        self.h = nnx.List([Block(rngs) for _ in range(LAYERS)])
        self.unembed = nnx.Linear(D, V, use_bias=False, rngs=rngs)

    def __call__(self, ids):
        x = self.wte(ids)
        for block in self.h:
            x = block(x)
        return self.unembed(self.last(x))


def recorded(mistake="", path=None, **options):
    """A record of one call."""
    made, found = Decoder(nnx.Rngs(0)), {name: jnp.asarray(X) for name, X in weights().items()}
    made.wte.embedding[...] = found["embed"]
    made.unembed.kernel[...] = found["head"]
    norms = {"norm": made.last}
    for at, block in enumerate(made.h):
        attention = block.attn
        places = {"q": attention.a, "k": attention.b, "v": attention.c, "o": attention.out}
        for name, module in (places | {"up": block.fc, "down": block.proj}).items():
            module.kernel[...] = found[f"{at}.{name}"]
        norms |= {f"{at}.before": block.ln1, f"{at}.after": block.ln2}
    for name, module in norms.items():
        module.scale[...], module.bias[...] = found[f"{name}.scale"], found[f"{name}.bias"]
    if mistake == "scale":
        made.h[1].attn.scale = 1.0
    elif mistake == "eps":
        made.h[1].ln2.epsilon = WRONG_EPS
    with parity.record(made, path, **options) as record:
        made(jnp.asarray(tokens()))
    return record
