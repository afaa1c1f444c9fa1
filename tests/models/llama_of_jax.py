"""A LLaMA in JAX as people write it by hand: pure functions on a dict of arrays, jitted, with a cache of keys.

Letters: B batch, T tokens, S slots of the cache, H heads, G heads of keys, D features, d width of a head.
"""

import functools

import jax
from jax import numpy as jnp

from .tiny_llama import BASE, EPSILON, LAYERS, G, H, d


def ported(arrays):
    """The parameters of this port: kernels (in, out), layer by layer."""
    layers = []
    for n in range(LAYERS):
        own = {name: X for name, X in arrays.items() if name.startswith(f"model.layers.{n}.")}
        short = {name.split(".")[-2]: jnp.asarray(X.T) for name, X in own.items()}
        layers.append(short)
    words, last = (jnp.asarray(arrays[f"model.{name}.weight"]) for name in ("embed_tokens", "norm"))
    return {"embed_tokens": words, "norm": last, "layers": layers}


def empty_cache(B, S):
    """Keys and values of no tokens yet, for each layer."""
    zeros = jnp.zeros((B, S, G, d))
    return [(zeros, zeros) for _ in range(LAYERS)]


def norm(X, scale):
    """Divide by the root mean square."""
    return X * jax.lax.rsqrt(jnp.mean(X * X, -1, keepdims=True) + EPSILON) * scale


def rotate(X, places):
    """Turn the halves of each head (B, T, heads, d) by the angles of places (T,)."""
    angles = places[:, None] * BASE ** (-jnp.arange(0, d, 2) / d)  # (T, d / 2)
    cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]  # (T, 1, d / 2)
    a, b = jnp.split(X, 2, -1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def attention(layer, X, cache, start, lengths, mistake):
    """Attend from tokens (B, T, D), the first of which is at place start, to all so far of those in lengths (B,)."""
    B, T, _ = X.shape
    S = cache[0].shape[1]
    places = start + jnp.arange(T)
    q = (X @ layer["q_proj"]).reshape(B, T, H, d)  # (B, T, H, d)
    k = (X @ layer["k_proj"]).reshape(B, T, G, d)  # (B, T, G, d)
    v = (X @ layer["v_proj"]).reshape(B, T, G, d)  # (B, T, G, d)
    q, k = rotate(q, places), rotate(k, places)
    keys, values = (
        jax.lax.dynamic_update_slice(old, new, (0, start, 0, 0)) for old, new in zip(cache, (k, v), strict=True)
    )
    if mistake == "heads":  # the heads of a group are apart, as jnp.tile lays them
        all_keys, all_values = (jnp.tile(Y, (1, 1, H // G, 1)) for Y in (keys, values))
    else:
        all_keys, all_values = (jnp.repeat(Y, H // G, 2) for Y in (keys, values))  # (B, S, H, d)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, all_keys)
    scores = scores if mistake == "scale" else scores / d**0.5
    last = (
        places[-1:] if mistake == "mask" else places
    )  # of "mask" it says which slots are filled, and forgets the order
    seen = jnp.arange(S) <= last[:, None]  # (T or 1, S)
    seen = seen & (jnp.arange(S) < lengths[:, None])[:, None, None]  # (B, 1, T, S)
    weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf))
    merged = jnp.einsum("bhqk,bkhd->bqhd", weights, all_values).reshape(B, T, H * d)  # (B, T, H*d)
    return merged @ layer["o_proj"], (keys, values)


@functools.partial(jax.jit, static_argnames="wrong")
def step(params, tokens, cache, start, lengths, wrong=(None, "")):
    """Scores of the next words (B, T, words), the cache, and what entered and left the attention of each layer.

    wrong: the number of a layer, and the mistake in it.
    """
    X, left, taps = params["embed_tokens"][tokens], [], []
    for n, layer in enumerate(params["layers"]):
        entered = norm(X, layer["input_layernorm"])
        mistake = wrong[1] if wrong[0] == n else ""
        output, own = attention(layer, entered, cache[n], start, lengths, mistake)
        taps.append((entered, output))
        left.append(own)
        X = X + output
        Y = norm(X, layer["post_attention_layernorm"])
        X = X + (jax.nn.silu(Y @ layer["gate_proj"]) * (Y @ layer["up_proj"])) @ layer["down_proj"]
    return norm(X, params["norm"]) @ params["embed_tokens"].T, left, taps
