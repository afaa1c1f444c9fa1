"""Kernels in JAX: its own, in steps, in blocks by a scan; layout (B, T, H, d)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from kernel_zoo import Kernel


def run(kernel, inputs, options, cotangent):
    """Call a kernel; return its arrays by name, NumPy's."""

    def called(*inputs):
        made = kernel.call(*inputs, **options)
        return made if isinstance(made, tuple) else (made,)

    options = {name: jnp.asarray(X) if isinstance(X, np.ndarray) else X for name, X in options.items()}
    inputs = [jnp.asarray(X) for X in inputs]
    if cotangent is None:
        return dict(zip(("output", "lse"), map(np.asarray, called(*inputs)), strict=False))
    (output, *lse), pull_back = jax.vjp(called, *inputs)
    gradients = pull_back((jnp.asarray(cotangent), *map(jnp.zeros_like, lse)))
    names = "output", *("lse" for _ in lse), "dq", "dk", "dv"
    return {name: np.asarray(X) for name, X in zip(names, (output, *lse, *gradients), strict=True)}


def function(
    q, k, v, bias=None, mask=None, *, scale=None, is_causal=False, key_value_seq_lengths=None, local_window_size=None
):
    if local_window_size and None in local_window_size:
        raise NotImplementedError
    return jax.nn.dot_product_attention(
        q, k, v, bias, mask, scale=scale, is_causal=is_causal, key_value_seq_lengths=key_value_seq_lengths,
        local_window_size=local_window_size,
    )  # fmt: skip


def einsum(q, k, v, mask=None, bias=None, softcap=None):
    k, v = (jnp.repeat(X, q.shape[2] // X.shape[2], axis=2) for X in (k, v))  # (B, K, H, d)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32) * q.shape[-1] ** -0.5
    scores = scores if softcap is None else softcap * jnp.tanh(scores / softcap)
    scores = scores if bias is None else scores + bias
    scores = scores if mask is None else jnp.where(mask, scores, -jnp.inf)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1).astype(q.dtype), v)


def blocks(q, k, v, causal=False, keep=jnp.exp, lacks=0):
    (B, Q, H, d), K = q.shape, k.shape[1]
    k, v = (jnp.repeat(X, H // X.shape[2], axis=2).astype(jnp.float32) for X in (k, v))  # (B, K, H, d)
    k, v = (jnp.pad(X, ((0, 0), (0, -K % 32), (0, 0), (0, 0))) for X in (k, v))
    k, v = (X.reshape(B, -1, 32, H, d).swapaxes(0, 1) for X in (k, v))  # (blocks, B, 32, H, d)

    def add(state, block):
        maximum, total, pooled = state
        number, keys, values = block
        places = number * 32 + jnp.arange(32)
        seen = (places < K - lacks) & ((places <= jnp.arange(Q)[:, None]) | (not causal))  # (Q, 32)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q.astype(jnp.float32), keys) * d**-0.5
        scores = jnp.where(seen, scores, -1e30)
        largest = jnp.maximum(maximum, scores.max(-1))
        shares, kept = jnp.exp(scores - largest[..., None]), keep(maximum - largest)
        pooled = kept[..., None] * pooled + jnp.einsum("bhqk,bkhd->bhqd", shares, values)
        return (largest, kept * total + shares.sum(-1), pooled), None

    start = jnp.full((B, H, Q), -1e30), jnp.zeros((B, H, Q)), jnp.zeros((B, H, Q, d))
    (maximum, total, pooled), _ = jax.lax.scan(add, start, (jnp.arange(len(k)), k, v))
    output = (pooled / total[..., None]).swapaxes(1, 2).astype(q.dtype)  # (B, Q, H, d)
    return output, jax.lax.stop_gradient(maximum + jnp.log(total))


RIGHT = {
    "jax.nn.dot_product_attention": Kernel(function, "BTHD", empty_rows=False),
    "einsum": Kernel(einsum, "BTHD", empty_rows=False),
    "blocks by a scan": Kernel(blocks, "BTHD", takes=("causal",)),
}


# Wrong ones


def window_to_the_left(q, k, v, local_window_size, is_causal=False):
    if None in local_window_size:
        raise NotImplementedError
    return function(q, k, v, local_window_size=(local_window_size[0], 0), is_causal=is_causal)


def mask_as_bias(q, k, v, mask):
    return function(q, k, v, bias=mask.astype(q.dtype))


def wrong_blocks(**how):
    """Return the kernel in blocks with something else in it."""
    return Kernel(functools.partial(blocks, **how), "BTHD", takes=("causal",))


WRONG = {
    "blocks are not rescaled": wrong_blocks(keep=jnp.ones_like)._replace(
        known="the accumulator of blocks is not rescaled"
    ),
    "the last key is left out": wrong_blocks(lacks=1),
    "padding of the last block counts": wrong_blocks(lacks=-31),
    "the window only looks back": Kernel(
        window_to_the_left, "BTHD", known="the window only looks back", empty_rows=False
    ),
    "booleans are added to the scores": Kernel(
        mask_as_bias, "BTHD", known="booleans are added to the scores", empty_rows=False
    ),
    "lengths are those of the first sample": Kernel(
        lambda q, k, v, key_value_seq_lengths, is_causal=False: function(
            q, k, v, key_value_seq_lengths=jnp.broadcast_to(key_value_seq_lengths[:1], q.shape[:1]), is_causal=is_causal
        ),
        "BTHD", empty_rows=False,
    ),
}  # fmt: skip
