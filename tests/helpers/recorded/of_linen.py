"""The decoder in Flax's linen."""

import jax
from flax import linen as nn
from jax import numpy as jnp

from mha import parity
from recorded import EPS, LAYERS, WRONG_EPS, D, M, V, attend, d, tokens, weights

BACKEND = "jax"
PATHS = "h_{}.attn", "last"


class Attention(nn.Module):
    scale: float = d**-0.5

    @nn.compact
    def __call__(self, x):
        q, k, v = (nn.Dense(D, use_bias=False, name=name)(x) for name in ("query", "key", "value"))
        return nn.Dense(D, use_bias=False, name="out")(attend(jnp, jax.nn.softmax, q, k, v, self.scale))


class Block(nn.Module):
    scale: float = d**-0.5
    eps: float = EPS

    @nn.compact
    def __call__(self, x):
        x = x + Attention(self.scale, name="attn")(nn.LayerNorm(epsilon=EPS, name="ln1")(x))
        y = nn.Dense(M, use_bias=False, name="fc")(nn.LayerNorm(epsilon=self.eps, name="ln2")(x))
        return x + nn.Dense(D, use_bias=False, name="proj")(nn.gelu(y, approximate=True))


class Decoder(nn.Module):
    mistake: str = ""

    @nn.compact
    def __call__(self, ids):
        x = nn.Embed(V, D, name="wte")(ids)
        for at in range(LAYERS):
            wrong = self.mistake if at == 1 else ""
            scale, eps = 1.0 if wrong == "scale" else d**-0.5, WRONG_EPS if wrong == "eps" else EPS
            x = Block(scale, eps, name=f"h_{at}")(x)
        return nn.Dense(V, use_bias=False, name="unembed")(nn.LayerNorm(epsilon=EPS, name="last")(x))


def recorded(mistake="", path=None, **options):
    """A record of one call."""
    found, ids = {name: jnp.asarray(X) for name, X in weights().items()}, jnp.asarray(tokens())
    params = {"wte": {"embedding": found["embed"]}, "unembed": {"kernel": found["head"]}}
    params["last"] = {"scale": found["norm.scale"], "bias": found["norm.bias"]}
    for at in range(LAYERS):
        names = {"query": "q", "key": "k", "value": "v", "out": "o"}
        block = {"attn": {name: {"kernel": found[f"{at}.{own}"]} for name, own in names.items()}}
        for name, own in {"ln1": "before", "ln2": "after"}.items():
            block[name] = {"scale": found[f"{at}.{own}.scale"], "bias": found[f"{at}.{own}.bias"]}
        params[f"h_{at}"] = block | {"fc": {"kernel": found[f"{at}.up"]}, "proj": {"kernel": found[f"{at}.down"]}}
    made, variables = Decoder(mistake), {"params": params}
    with parity.record(made, path, call=(variables, ids), **options) as record:
        made.apply(variables, ids)
    return record
