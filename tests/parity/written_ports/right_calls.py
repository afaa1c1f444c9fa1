"""Right ports in NumPy, written from end to end: other layouts, other orders of the arithmetic, caches."""

import numpy as np
from ports import Port

from .written import CAUSAL, GEMMA, GROUPED, LENGTHS, LLAMA, PLAIN, Written


def biases(W, X):
    """The four biases, 0 where a layer has none."""
    return (W.get(f"W_{name}.bias", X.dtype.type(0)) for name in "qkvo")


def by_einsum(layer, queries, keys, values, valid_lens):
    """As in T5X: heads stay behind tokens, (B, T, H, d)."""
    W, H, D = layer.weights, layer.config.num_heads, layer.config.num_hiddens
    bq, bk, bv, bo = biases(W, queries)
    q = np.einsum("btc,chd->bthd", queries, W["W_q.kernel"].reshape(D, H, -1)) + bq.reshape(H, -1)
    k = np.einsum("bsc,chd->bshd", keys, W["W_k.kernel"].reshape(D, H, -1)) + bk.reshape(H, -1)
    v = np.einsum("bsc,chd->bshd", values, W["W_v.kernel"].reshape(D, H, -1)) + bv.reshape(H, -1)
    logits = np.einsum("bthd,bshd->bhts", q / np.float32(np.sqrt(q.shape[-1])), k)
    logits = np.where(np.arange(keys.shape[1]) < valid_lens[:, None, None, None], logits, np.float32(-1e10))
    shares = np.exp(logits - logits.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    out = np.einsum("bhts,bshd->bthd", shares, v)
    return np.einsum("bthd,hdc->btc", out, W["W_o.kernel"].reshape(H, -1, D)) + bo, shares


def packed(layer, X, *_, causal):
    """As in GPT-2: one product for all three, cut in three."""
    W, H = layer.weights, layer.config.num_heads
    kernel = np.concatenate([W[f"W_{name}.kernel"] for name in "qkv"], 1)
    bias = np.concatenate([W[f"W_{name}.bias"] for name in "qkv"])
    B, T, D = X.shape
    q, k, v = (X.reshape(-1, D) @ kernel + bias).reshape(B, T, 3, H, D // H).transpose(2, 0, 3, 1, 4)  # (B, H, T, d)
    att = q @ k.transpose(0, 1, 3, 2) * np.float32((D // H) ** -0.5)
    att[:, :, np.triu_indices(T, 1)[0], np.triu_indices(T, 1)[1]] = -np.inf
    att = np.exp(att - att.max(-1)[..., None])
    att /= att.sum(-1)[..., None]
    return (att @ v).swapaxes(1, 2).reshape(B, T, D) @ W["W_o.kernel"] + W["W_o.bias"]


def transposed_layout(layer, queries, keys, values, mask):
    """As in PyTorch: kernels are (out, in), and the mask is added as minus infinity."""
    state = {name.replace("kernel", "weight"): X.T if X.ndim == 2 else X for name, X in layer.weights.items()}

    def linear(name, X):
        return X @ state[f"{name}.weight"].T + state[f"{name}.bias"]

    def heads(X):
        return np.stack(np.split(X, layer.config.num_heads, -1), 1)  # (B, H, T, d)

    q, k, v = heads(linear("W_q", queries)), heads(linear("W_k", keys)), heads(linear("W_v", values))
    added = np.zeros(mask.shape, "float32")
    added[~mask] = -np.inf
    weights = np.exp(logits := q @ np.moveaxis(k, 2, 3) / np.float32(q.shape[-1] ** 0.5) + added)
    weights /= np.exp(logits).sum(-1, keepdims=True)
    return linear("W_o", np.concatenate(list((weights @ v).swapaxes(0, 1)), -1)), weights


def per_head(layer, queries, keys, values):
    """Each head alone, its output added to those of the others, as when heads lie on several devices."""
    W, H, d = layer.weights, layer.config.num_heads, layer.config.key_dim
    output = np.zeros_like(queries)
    for h in range(H):
        at = slice(h * d, (h + 1) * d)
        q, k, v = (
            X @ W[f"{name}.kernel"][:, at] + W[f"{name}.bias"][at]
            for name, X in (("W_q", queries), ("W_k", keys), ("W_v", values))
        )
        scores = q @ k.swapaxes(1, 2) / np.float32(np.sqrt(d))
        shares = np.exp(scores - np.log(np.exp(scores).sum(2, keepdims=True)))
        output += shares @ v @ W["W_o.kernel"][at]
    return output + W["W_o.bias"]


def bias_folded_in(layer, queries, keys, values):
    """A column of ones at the inputs, and a row more of each kernel."""
    W = {n: np.vstack([layer.weights[f"{n}.kernel"], layer.weights[f"{n}.bias"]]) for n in ("W_q", "W_k", "W_v", "W_o")}
    ones = np.ones((*queries.shape[:2], 1), queries.dtype)

    def heads(name, X):
        return (np.dstack([X, ones]) @ W[name]).reshape(*X.shape[:2], layer.config.num_heads, -1).swapaxes(1, 2)

    q, k, v = heads("W_q", queries), heads("W_k", keys), heads("W_v", values)
    q *= np.float32(q.shape[-1] ** -0.25)  # and the scale on both sides
    k *= np.float32(k.shape[-1] ** -0.25)
    shares = np.exp(q @ k.swapaxes(2, 3))
    pooled = (shares @ v / shares.sum(-1, keepdims=True)).swapaxes(1, 2)
    return np.dstack([pooled.reshape(queries.shape), ones]) @ W["W_o"]


def absorbed(layer, queries, keys, values):
    """As DeepSeek at inference: W_q and W_k multiplied beforehand, and W_v and W_o."""
    W, H, D = layer.weights, layer.config.num_heads, layer.config.num_hiddens
    q, k, v = (W[f"W_{name}.kernel"].reshape(D, H, -1).swapaxes(0, 1) for name in "qkv")  # (H, D, d)
    o = W["W_o.kernel"].reshape(H, -1, D)
    scores = queries[:, None] @ (q @ k.swapaxes(1, 2) * np.float32(q.shape[-1] ** -0.5)) @ keys[:, None].swapaxes(2, 3)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    return (shares @ values[:, None] @ (v @ o)).sum(1), shares


def in_groups(layer, queries, keys, values, causal):
    """Queries as (B, G, r, Q, d), so that no key is repeated."""
    W, G, d = layer.weights, layer.config.num_key_value_heads, layer.config.key_dim
    bq, bk, bv, bo = biases(W, queries)
    B, Q, _ = queries.shape
    q = (queries @ W["W_q.kernel"] + bq).reshape(B, Q, G, -1, d)
    k, v = ((X @ W[f"W_{n}.kernel"] + b).reshape(B, -1, G, d) for n, b, X in (("k", bk, keys), ("v", bv, values)))
    logits = np.einsum("bqgrd,bkgd->bgrqk", q, k) * np.float32(d**-0.5)
    logits += np.where(np.tri(Q, k.shape[1], dtype=bool) | (not causal), 0, np.float32(-3e38))
    shares = np.exp(logits - logits.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    out = np.einsum("bgrqk,bkgd->bqgrd", shares, v).reshape(B, Q, -1)
    return out @ W["W_o.kernel"] + bo, shares.reshape(B, -1, Q, k.shape[1])


def without_padding(layer, queries, keys, values, valid_lens):
    """As with variable lengths: each sample without its padding."""
    port = Port(layer)
    return np.concatenate([
        port(queries[b : b + 1], keys[b : b + 1, :n], values[b : b + 1, :n])[0] for b, n in enumerate(valid_lens)
    ])  # fmt: skip


def one_sequence(layer, X, *_):
    """All samples in one sequence, with a mask of blocks."""
    B, T, D = X.shape
    sample = np.repeat(np.arange(B), T)
    flat = X.reshape(1, B * T, D)
    return Port(layer)(flat, flat, flat, mask=sample[:, None] == sample)[0].reshape(X.shape)


def token_by_token(layer, X, *_, causal):
    """A decoder with a cache: one query at a time, at its place."""
    port = Port(layer)
    return np.concatenate(
        [port(X[:, t : t + 1], X[:, : t + 1], X[:, : t + 1], offset=t)[0] for t in range(X.shape[1])], 1
    )


def in_two_calls(layer, queries, keys, values, causal, offset):
    """A prompt in two chunks after a cache."""
    port = Port(layer)
    halves = (queries[:, :3], offset), (queries[:, 3:], offset + 3)
    return np.concatenate([port(part, keys, values, causal=causal, offset=at)[0] for part, at in halves], 1)


def keys_in_another_order(layer, queries, keys, values):
    """Without positions, the order of the keys is the same."""
    order = np.random.default_rng(3).permutation(keys.shape[1])
    return Port(layer)(queries, keys[:, order], values[:, order])[0]


def padded_on_the_left(layer, X, *_, mask):
    """What is first in each sample is padding, which no query sees."""
    starts = mask[:, 0, 0].argmax(-1)  # (B,), the first tokens
    weights = np.zeros((len(X), layer.config.num_heads, X.shape[1], X.shape[1]), X.dtype)
    output = np.zeros_like(X)
    for b, start in enumerate(starts):
        each = X[b : b + 1, start:]
        output[b], weights[b, :, :, start:] = (Y[0] for Y in Port(layer)(X[b : b + 1], each, each))
    return output, weights


def first_token_at_0(layer, X, *_, mask, causal):
    """As a batch of prompts is padded: on the left, and each sample's positions begin at its first token."""
    output = np.full_like(X, np.nan)
    for b, start in enumerate(mask[:, 0, 0].argmax(-1)):
        output[b, start:] = Port(layer)(*[X[b : b + 1, start:]] * 3, causal=causal)[0][0]
    return output


def relative_bias(layer, queries, keys, values, score_bias, causal):
    """As BLOOM: ALiBi by the position of the key alone, which shifts all scores of a query alike."""
    last = score_bias[:, :, -1:, :]  # (1, H, 1, K)
    return Port(layer)(queries, keys, values, score_bias=last, causal=causal)


def gates_in_the_output(layer, queries, keys, values, head_gates):
    """Gates that scale the rows of W_o."""
    other = layer.to("numpy")
    rows = np.repeat(head_gates, layer.config.key_dim)[:, None]
    other.weights = layer.weights | {"W_o.kernel": layer.weights["W_o.kernel"] * rows}
    return Port(other)(queries, keys, values)


ALIBI = np.minimum(0, np.arange(13) - np.arange(13)[:, None]) * 0.5 ** (np.arange(1, 5)[:, None, None] * 2)
LEFT = np.arange(13) >= np.array([0, 4, 6])[:, None, None, None]

RIGHT_CALLS = [
    Written("einsum, heads behind tokens", by_einsum, PLAIN, LENGTHS),
    Written("packed kernels of GPT-2", packed, PLAIN, CAUSAL),
    Written("kernels (out, in), a mask of minus infinity", transposed_layout, PLAIN, {"mask": ...}, cross=True),
    Written("head by head, outputs added", per_head, PLAIN, cross=True),
    Written("biases as rows of the kernels", bias_folded_in, PLAIN),
    Written("products of kernels", absorbed, PLAIN | {"bias": False}, cross=True),
    Written("each sample without its padding", without_padding, PLAIN, LENGTHS, cross=True),
    Written("all samples in one sequence", one_sequence, PLAIN),
    Written("token by token with a cache", token_by_token, LLAMA, CAUSAL),
    Written("a prompt in chunks after a cache", in_two_calls, GEMMA, CAUSAL | {"offset": 6}, tokens=(7, 13)),
    Written("keys in another order", keys_in_another_order, PLAIN, cross=True),
    Written("padding on the left", padded_on_the_left, PLAIN, {"mask": np.repeat(LEFT, 13, 2)}),
    Written("groups without a copy", in_groups, GROUPED, CAUSAL),
    Written("ALiBi by the place of the key", relative_bias, PLAIN, {"score_bias": ALIBI[None].astype("f4"), **CAUSAL}),
    Written("gates in W_o", gates_in_the_output, PLAIN, {"head_gates": ...}),
    Written("prompts padded on the left", first_token_at_0, LLAMA, {"mask": LEFT, **CAUSAL},
            compared={"rows": LEFT[:, 0, 0]}),
]  # fmt: skip
