"""Attention as people write it in JAX: with einsum, by JAX's function, and by Flax's layers; compiled or not."""

import jax
import jax.numpy as jnp
from draws import ABILITIES
from flax import nnx

import mha
from mha.parity.rule.layouts import OF_INPUTS

FUSED = ABILITIES - {"softcap", "sinks"}
HALVES = ("bfloat16", "float16")
LINEN, NNX = {"bias", "layer"}, {"bias", "layer", "groups"}


def own(X):
    """A NumPy array as JAX's own."""
    return mha.tensor(X, backend="jax")


def known(X):
    """An array of the call as JAX's own, or None."""
    return None if X is None else own(X)


def attend(trial, weights, pool):
    """The layer around a pooling of q (B, Q, H, d), k and v (B, K, G, d), all in the layout of JAX's function.

    weights: inputs, too.
    """
    config, (x, y, z), (i, j) = trial.config, (weights[name] for name in OF_INPUTS), trial.positions

    def linear(name, X):
        X = jnp.einsum("btc,cf->btf", X, weights[f"{name}.kernel"])
        return X + weights[f"{name}.bias"] if config.bias else X

    def heads(name, X):
        X = linear(name, X)
        return X.reshape(*X.shape[:2], -1, config.key_dim)  # (B, T, H, d)

    def norm(name, X):
        """Norm as `flax.linen.RMSNorm`: in float32, weight included."""
        if config.qk_norm is None:
            return X
        wide = X.astype(jnp.float32)
        if config.qk_norm.kind == "layer":
            wide = wide - wide.mean(-1, keepdims=True)
        factor = jax.lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + config.qk_norm.eps)
        return (wide * (factor * weights[f"{name}.scale"])).astype(X.dtype)

    def turn(X, places):
        """Rotate as Gemma: cosines and sines stay float32, and the sum is rounded."""
        if config.rotary is None:
            return X
        angles = trial.angles(places)[:, None]  # (T, 1, n)
        cos, sin, dim = jnp.cos(angles), jnp.sin(angles), config.rotary.dim
        turning, rest = X[..., :dim], X[..., dim:]
        if config.rotary.interleaved:
            one, other = turning[..., ::2], turning[..., 1::2]
            pairs = jnp.stack([one * cos - other * sin, other * cos + one * sin], -1)
            turned = pairs.reshape(turning.shape)  # (B, T, H, 2n)
        else:
            one, other = jnp.split(turning, 2, -1)
            turned = jnp.concatenate([one * cos - other * sin, other * cos + one * sin], -1)
        return jnp.concatenate([turned.astype(X.dtype), rest], -1)

    q, k, v = heads("W_q", x), heads("W_k", y), heads("W_v", z)
    pooled = pool(trial, weights, turn(norm("q_norm", q), i), turn(norm("k_norm", k), j), v)  # (B, Q, H, d)
    if config.output_gate:
        gates = linear("W_g", x)
        pooled = pooled * jax.nn.sigmoid(gates.reshape(*gates.shape[:2], config.num_heads, -1))  # (B, Q, H, d or 1)
    return linear("W_o", pooled.reshape(*pooled.shape[:2], -1))  # (B, Q, D)


def pool_in_steps(trial, weights, q, k, v, wide=False):
    """Pool in steps; wide: whether scores and their softmax are float32."""
    k, v = (jnp.repeat(X, trial.share, 2) for X in (k, v))  # (B, K, H, d)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32 if wide else None) * trial.scale
    if cap := trial.config.softcap:
        scores = jnp.tanh(scores / cap) * cap
    if (bias := known(trial.bias)) is not None:
        scores = scores + bias
    if (seen := known(trial.seen)) is not None:
        scores = jnp.where(seen, scores, jnp.finfo(scores.dtype).min)
    K = scores.shape[-1]
    if trial.config.sinks:
        sinks = weights["sinks"].astype(scores.dtype)[:, None, None]  # (H, 1, 1)
        scores = jnp.concatenate([scores, jnp.broadcast_to(sinks, (*scores.shape[:3], 1))], -1)
    shares = jax.nn.softmax(scores, -1).astype(q.dtype)[..., :K]
    return jnp.einsum("bhqk,bkhd->bqhd", shares, v)


def pool_wide(*arguments):
    """Pool in steps, with scores in float32."""
    return pool_in_steps(*arguments, wide=True)


def pool_by_function(trial, weights, q, k, v):
    """Pool by `jax.nn.dot_product_attention`."""
    hiding = {"is_causal": True} if trial.only_causal else {"mask": known(trial.seen)}
    return jax.nn.dot_product_attention(q, k, v, known(trial.bias), **hiding, scale=trial.scale)


def port(pool, compiled):
    """A port around a pooling."""

    def call(trial):
        def whole(arrays):
            return attend(trial, arrays, pool)

        return (jax.jit(whole) if compiled else whole)(trial.arrays(own))

    return call


def linen(compiled):
    """A port that is the layer of `flax.linen`."""

    def call(trial):
        module, variables = trial.layer.to_native("flax.linen.MultiHeadDotProductAttention").unbind()
        arrays = trial.arrays(own)
        if trial.given is not None:
            variables = {"params": parameters(arrays, variables["params"])}
        function = jax.jit(module.apply) if compiled else module.apply
        return function(variables, *(arrays[name] for name in OF_INPUTS), mask=known(trial.seen))

    return call


def of_nnx(compiled, keep=False):
    """A port that is the layer of `flax.nnx`; keep: whether it keeps its weights, and so computes in steps."""

    def call(trial):
        layer = trial.layer.to_native("flax.nnx.MultiHeadAttention")
        mask, arrays = known(trial.seen), trial.arrays(own)
        inputs = [arrays[name] for name in OF_INPUTS]
        if trial.given is not None:
            definition, state = nnx.split(layer)
            layer = nnx.merge(definition, nnx.State(parameters(arrays, nnx.to_pure_dict(state))))
        if keep:
            return nnx.capture(layer, nnx.Intermediate)(*inputs, mask=mask, sow_weights=True)[0]

        def whole(layer, *inputs):
            return layer(*inputs, mask=mask)

        return (nnx.jit(whole) if compiled else whole)(layer, *inputs)

    return call


def parameters(arrays, like):
    """The parameters of Flax's layers, in the shapes of those of another one."""
    modules = {"W_q": "query", "W_k": "key", "W_v": "value", "W_o": "out", "q_norm": "query_ln", "k_norm": "key_ln"}
    found = jax.tree.map(lambda X: X, like)
    for name, X in arrays.items():
        role, _, part = name.partition(".")
        if part:
            found[modules[role]][part] = X.reshape(like[modules[role]][part].shape)  # (in, H, d), (H, d, out), (H, d)
    return found


def gradients(port, trial, cotangent, compiled):
    """The gradients of sum(output * cotangent) by all inputs and weights of a port."""
    if trial.config.dtype not in getattr(port, "dtypes", HALVES):
        return None

    def whole(leaves, cotangent):
        output, pull_back = jax.vjp(lambda leaves: port(trial.with_leaves(leaves)), leaves)
        return pull_back(cotangent.astype(output.dtype))[0]

    return (jax.jit(whole) if compiled else whole)(trial.leaves(own), own(cotangent))


def in_bfloat16(port):
    """A port that leaves float16 out: what XLA compiles it to fails on a CPU."""

    def call(trial):
        return None if trial.config.dtype == "float16" else port(trial)

    call.dtypes = ("bfloat16",)
    return call


PORTS = {
    "einsum": (port(pool_in_steps, False), ABILITIES), "einsum_jit": (port(pool_in_steps, True), ABILITIES),
    "wide": (port(pool_wide, False), ABILITIES), "wide_jit": (port(pool_wide, True), ABILITIES),
    "function": (port(pool_by_function, False), FUSED),
    "function_jit": (in_bfloat16(port(pool_by_function, True)), FUSED),
    "linen": (linen(False), LINEN), "linen_jit": (linen(True), LINEN),
    "nnx": (of_nnx(False), NNX), "nnx_jit": (in_bfloat16(of_nnx(True)), NNX), "nnx_weights": (of_nnx(False, True), NNX),
}  # fmt: skip
