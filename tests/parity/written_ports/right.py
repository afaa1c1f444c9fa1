"""Right ports in NumPy: other layouts, other orders of the arithmetic, a cache; or one part written in another way."""

import numpy as np
from ports import Port

from .written import CAUSAL, GEMMA, GROUPED, INTERLEAVED, LENGTHS, LLAMA, PLAIN, Written


def by_einsum(layer, queries, keys, values, valid_lens):
    """As in T5X: heads stay behind tokens, (B, T, H, d)."""
    W, H, D = layer.weights, layer.config.num_heads, layer.config.num_hiddens
    bq, bk, bv, bo = (W[f"W_{name}.bias"] for name in "qkvo")
    q = np.einsum("btc,chd->bthd", queries, W["W_q.kernel"].reshape(D, H, -1)) + bq.reshape(H, -1)
    k = np.einsum("bsc,chd->bshd", keys, W["W_k.kernel"].reshape(D, H, -1)) + bk.reshape(H, -1)
    v = np.einsum("bsc,chd->bshd", values, W["W_v.kernel"].reshape(D, H, -1)) + bv.reshape(H, -1)
    logits = np.einsum("bthd,bshd->bhts", q / np.float32(np.sqrt(q.shape[-1])), k)
    logits = np.where(np.arange(keys.shape[1]) < valid_lens[:, None, None, None], logits, np.float32(-1e10))
    shares = np.exp(logits - logits.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    out = np.einsum("bhts,bshd->bthd", shares, v)
    return np.einsum("bthd,hdc->btc", out, W["W_o.kernel"].reshape(H, -1, D)) + bo, shares


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


# One part written in another way


class BySoftmaxOfBase2(Port):
    def softmax(self, scores, seen):
        scaled = np.where(seen, scores * scores.dtype.type(np.log2(np.e)), -np.inf)
        shares = np.exp2(scaled - scaled.max(-1, keepdims=True))
        return shares / shares.sum(-1, keepdims=True)


class InBlocks(Port):
    """As FlashAttention: blocks of 4 keys, what is summed so far is rescaled by each new largest score."""

    def softmax(self, scores, seen):
        low = np.where(seen, scores, np.float32(-1e30))
        best, total = np.full((*low.shape[:-1], 1), -np.inf, "float32"), np.zeros((*low.shape[:-1], 1), "float32")
        weights = np.zeros_like(low)
        for start in range(0, low.shape[-1], 4):
            block = low[..., start : start + 4]
            larger = np.maximum(best, block.max(-1, keepdims=True))
            rescale = np.exp(best - larger)
            weights *= rescale
            weights[..., start : start + 4] = np.exp(block - larger)
            total = total * rescale + weights[..., start : start + 4].sum(-1, keepdims=True)
            best = larger
        return weights / total


class WithLowestNumber(Port):
    def softmax(self, scores, seen):
        added = scores + np.where(seen, 0, np.finfo(scores.dtype).min).astype(scores.dtype)
        shares = np.exp(added - added.max(-1, keepdims=True))
        return shares / shares.sum(-1, keepdims=True)


class ByComplexNumbers(Port):
    """As Meta's LLaMA: neighbours are the real and imaginary parts."""

    def turn(self, role, X, places):
        turns = np.exp(1j * places[..., None] * self.frequencies(self.config.rotary))[:, None]  # (1, 1, T, n)
        pairs = X[..., ::2] + 1j * X[..., 1::2]
        turned = pairs * turns
        return np.stack([turned.real, turned.imag], -1).reshape(X.shape).astype(X.dtype)


class ShiftedPositions(Port):
    """Positions count from 5: only distances matter."""

    def turn(self, role, X, places):
        return super().turn(role, X, places + 5)


class WideScores(Port):
    """Half precision with scores and softmax in float32, as most code of the hub."""

    def score(self, q, k):
        return (q @ k.swapaxes(2, 3)).astype("float32") * np.float32(self.scale)

    def softmax(self, scores, seen):
        return super().softmax(scores, seen).astype(self.weights["W_q.kernel"].dtype)


class WideThroughout(Port):
    """Everything in float64, rounded at the end."""

    def __init__(self, attention):
        super().__init__(attention)
        self.weights = {name: X.astype("float64") for name, X in self.weights.items()}

    def __call__(self, queries, keys, values, *arguments, **call):
        found = super().__call__(*(X.astype("float64") for X in (queries, keys, values)), *arguments, **call)
        return tuple(X.astype(queries.dtype) for X in found)


ALIBI = np.minimum(0, np.arange(13) - np.arange(13)[:, None]) * 0.5 ** (np.arange(1, 5)[:, None, None] * 2)
LEFT = np.arange(13) >= np.array([0, 4, 6])[:, None, None, None]

RIGHT = [
    Written("einsum, heads behind tokens", by_einsum, PLAIN, LENGTHS),
    Written("biases as rows of the kernels", bias_folded_in, PLAIN),
    Written("products of kernels", absorbed, PLAIN | {"bias": False}, cross=True),
    Written("each sample without its padding", without_padding, PLAIN, LENGTHS, cross=True),
    Written("all samples in one sequence", one_sequence, PLAIN),
    Written("token by token with a cache", token_by_token, LLAMA, CAUSAL),
    Written("ALiBi by the place of the key", relative_bias, PLAIN, {"score_bias": ALIBI[None].astype("f4"), **CAUSAL}),
    Written("gates in W_o", gates_in_the_output, PLAIN, {"head_gates": ...}),
    Written("prompts padded on the left", first_token_at_0, LLAMA, {"mask": LEFT, **CAUSAL},
            compared={"rows": LEFT[:, 0, 0]}),
    Written("exponents of base 2", BySoftmaxOfBase2, PLAIN, CAUSAL),
    Written("blocks of keys", InBlocks, GROUPED, {"mask": ...}),
    Written("the lowest number added", WithLowestNumber, LLAMA, LENGTHS | CAUSAL),
    Written("rotation by complex numbers", ByComplexNumbers, INTERLEAVED, CAUSAL),
    Written("positions from 5 on", ShiftedPositions, LLAMA, CAUSAL),
    Written("float32 scores in float16", WideScores, LLAMA, CAUSAL, dtype="float16"),
    Written("float32 scores in bfloat16", WideScores, GEMMA, CAUSAL, dtype="bfloat16"),
    Written("float64 throughout", WideThroughout, GEMMA, {"head_gates": ..., "score_bias": ...}),
]  # fmt: skip
