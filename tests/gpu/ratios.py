"""Time calls on a GPU beside the best way by hand: `python tests/gpu/ratios.py` prints a table of ratios.

A ratio is the time by hand divided by that of `mha`, the median over rounds in which both run one after the other:
above 1, `mha` is faster. The best way by hand is the framework's own kernel with what it needs made beforehand.
"""

import functools
import itertools
import statistics
import time

import mha

SHORT, LONG, HEADS = (8, 1024, 1024), (2, 8192, 1024), 16
ROUNDS = 30


def of_torch():
    """Rows of PyTorch: what is called, and functions of no arguments by name, `mha` first."""
    import torch
    from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention
    from torch.nn.functional import scaled_dot_product_attention as pool

    flex, cudnn = torch.compile(flex_attention, dynamic=False), torch.backends.cuda.enable_cudnn_sdp

    def made(B, T, D, **options):
        attention = mha.MultiHeadAttention(D, HEADS, seed=0, backend="torch", dtype="bfloat16", **options)
        attention.layer.to("cuda")
        return attention, torch.randn(B, T, D, device="cuda", dtype=torch.bfloat16)

    def by_hand(layer, X, pooled):
        q, k, v = (W(X).unflatten(-1, (HEADS, -1)).transpose(1, 2) for W in (layer.W_q, layer.W_k, layer.W_v))
        return layer.W_o(pooled(q, k, v).transpose(1, 2).flatten(2))

    def both(sizes, call, pooled, **options):
        attention, X = made(*sizes, **options)
        layer = attention.layer
        return {
            "layer": lambda: layer(X, X, X, **call),
            "attention": lambda: attention(X, X, X, **call),
            "by hand": lambda: by_hand(layer, X, pooled),
        }

    def trained(functions):
        def step(function):
            function().sum().backward()

        return {name: functools.partial(step, function) for name, function in functions.items()}

    def own_layer(sizes):
        B, T, D = sizes
        layer = torch.nn.MultiheadAttention(D, HEADS, batch_first=True, device="cuda", dtype=torch.bfloat16).eval()
        X = torch.randn(B, T, D, device="cuda", dtype=torch.bfloat16)
        return lambda: layer(X, X, X, need_weights=False)

    lengths = torch.randint(SHORT[1] // 2, SHORT[1], SHORT[:1], device="cuda")
    ragged = create_block_mask(lambda b, h, q, k: k < lengths[b], SHORT[0], None, SHORT[1], SHORT[1], "cuda")
    near = create_block_mask(lambda b, h, q, k: (k <= q) & (q - k <= 256), None, None, LONG[1], LONG[1], "cuda")
    order = create_block_mask(lambda b, h, q, k: k <= q, None, None, LONG[1], LONG[1], "cuda")
    sinks = torch.zeros(HEADS, 1, 1, device="cuda")

    def with_sinks(q, k, v):
        pooled, more = flex(q, k, v, block_mask=order, return_aux=AuxRequest(lse=True))
        return (pooled * torch.sigmoid(more.lse[..., None] - sinks)).to(pooled.dtype)

    def capped(score, b, h, q, k):
        return 30 * torch.tanh(score / 30)

    def in_order(q, k, v):
        return pool(q, k, v, is_causal=True)

    flexible = functools.partial(flex, block_mask=ragged)
    no_gradients = {
        "none": both(SHORT, {}, pool) | {"own layer": own_layer(SHORT)},
        "causal": both(SHORT, {"causal": True}, in_order),
        "ragged lengths": both(SHORT, {"valid_lens": lengths}, flexible),
        "long, causal": both(LONG, {"causal": True}, in_order),
        "long, window": both(LONG, {"causal": True}, functools.partial(flex, block_mask=near), window=(256, 0)),
        "long, cap": both(
            LONG, {"causal": True}, functools.partial(flex, block_mask=order, score_mod=capped), softcap=30.0
        ),
        "long, sinks": both(LONG, {"causal": True}, with_sinks, sinks=True),
    }
    for size in (1024, 4096):
        no_gradients[f"a token after {size}"] = token(torch, made, by_hand, pool, cudnn, size)
    training = {
        "training": trained(both(SHORT, {}, pool)),
        "training, ragged": trained(both(SHORT, {"valid_lens": lengths}, flexible)),
    }
    for name, functions in no_gradients.items():
        with torch.inference_mode():
            yield f"PyTorch, {name}", functions, torch.cuda.synchronize
    for name, functions in training.items():
        yield f"PyTorch, {name}", functions, torch.cuda.synchronize


def token(torch, made, by_hand, pool, cudnn, size):
    """A token after so many others, again and again, each one place further."""
    attention, X = made(1, size + 1, 1024)
    layer, slots, X = attention.layer, size + 2000, X[:, :1]
    with torch.inference_mode():
        cache = attention.cache(1, slots)
        _, cache = attention(*3 * [X.expand(1, size, -1).contiguous()], cache=cache, causal=True)
        keys, values = (torch.zeros(1, HEADS, slots, 1024 // HEADS, device="cuda", dtype=X.dtype) for _ in range(2))
    state, places = {"cache": cache}, itertools.count(size)

    def ours():
        output, state["cache"] = layer(X, X, X, cache=state["cache"])
        return output

    def pooled(q, k, v):
        place = next(places)
        keys[:, :, place : place + 1], values[:, :, place : place + 1] = k, v
        cudnn(False)
        found = pool(q, keys[:, :, : place + 1], values[:, :, : place + 1])
        cudnn(True)
        return found

    return {"layer": ours, "by hand": lambda: by_hand(layer, X, pooled)}


def of_jax():
    """Rows of JAX: what is called, and functions of no arguments by name, `mha` first."""
    import jax
    from flax import linen
    from jax import numpy as jnp

    def both(sizes, call, kernel, **options):
        B, T, D = sizes
        attention = mha.MultiHeadAttention(D, HEADS, seed=0, backend="jax", dtype="bfloat16", **options)
        X = jax.random.normal(jax.random.key(0), (B, T, D), jnp.bfloat16)
        W = [jnp.asarray(attention.weights[f"{name}.kernel"]) for name in ("W_q", "W_k", "W_v", "W_o")]

        def by_hand(implementation):
            def attend(X, W, given):
                q, k, v = (jnp.reshape(X @ each, (B, T, HEADS, -1)) for each in W[:3])  # (B, T, H, d)
                pooled = jax.nn.dot_product_attention(q, k, v, implementation=implementation, **kernel, **given)
                return pooled.reshape(B, T, D) @ W[3]  # (B, T, D)

            given = {"key_value_seq_lengths": call["valid_lens"]} if "valid_lens" in call else {}
            compiled = jax.jit(attend)
            return lambda: compiled(X, W, given)

        linear = linen.MultiHeadDotProductAttention(HEADS, dtype=jnp.bfloat16, param_dtype=jnp.bfloat16)
        variables = linear.init(jax.random.key(1), X)
        apply = jax.jit(linear.apply)
        return {
            "layer": lambda: attention(X, X, X, **call),
            "by hand, cuDNN": by_hand("cudnn"),
            "by hand, XLA": by_hand("xla"),
            "own layer": lambda: apply(variables, X),
        }

    lengths = jnp.arange(SHORT[1], SHORT[1] // 2, -64, dtype=jnp.int32)[: SHORT[0]]
    rows = {
        "none": both(SHORT, {}, {}),
        "causal": both(SHORT, {"causal": True}, {"is_causal": True}),
        "ragged lengths": both(SHORT, {"valid_lens": lengths}, {}),
        "long, causal": both(LONG, {"causal": True}, {"is_causal": True}),
        "long, window": both(
            LONG, {"causal": True}, {"is_causal": True, "local_window_size": (256, 0)}, window=(256, 0)
        ),
    }
    for name, functions in rows.items():
        yield f"JAX, {name}", functions, lambda: None


def measured(functions, wait):
    """The median times of functions, and of each the ratio of its time to that of the first in the same round."""

    def once(function):
        begin = time.perf_counter()
        found = function()
        if hasattr(found, "block_until_ready"):
            found.block_until_ready()
        wait()
        return time.perf_counter() - begin

    for function in functions.values():
        for _ in range(3):
            once(function)
    rounds = [[once(function) for function in functions.values()] for _ in range(ROUNDS)]
    times = [statistics.median(each) for each in zip(*rounds, strict=True)]
    ratios = [statistics.median(each[at] / each[0] for each in rounds) for at in range(len(functions))]
    return times, ratios


def table(rows):
    """Lines of a table in Markdown."""
    yield "| call | milliseconds of the layer | time of others / its time |"
    yield "| --- | --- | --- |"
    for name, functions, wait in rows:
        try:
            times, ratios = measured(functions, wait)
        except Exception as error:  # the other rows are worth having
            yield f"| {name} | failed | {type(error).__name__}: {str(error).splitlines()[0]} |"
            continue
        others = zip([*functions][1:], ratios[1:], strict=True)
        yield f"| {name} | {1e3 * times[0]:.3f} | {', '.join(f'{other} {ratio:.2f}' for other, ratio in others)} |"


if __name__ == "__main__":
    for of_framework in (of_torch, of_jax):
        for line in table(of_framework()):
            print(line, flush=True)
