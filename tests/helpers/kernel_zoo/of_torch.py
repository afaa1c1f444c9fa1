"""Kernels in PyTorch: its own, in steps, in tiles with a backward pass by hand, of packed texts."""

import warnings

import ml_dtypes
import numpy as np
import torch
from torch.nn.attention import flex_attention as flex

from kernel_zoo import Kernel


def own(X):
    """Return a NumPy array as a tensor with the same strides."""
    if isinstance(X, np.ndarray) and X.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(X.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(X) if isinstance(X, np.ndarray) else X


def numpys(X):
    """Return a tensor as a NumPy array."""
    X = X.detach()
    return X.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if X.dtype == torch.bfloat16 else X.numpy()


def run(kernel, inputs, options, cotangent):
    """Call a kernel; return its arrays by name, NumPy's."""
    leaves = [own(X).requires_grad_(cotangent is not None) for X in inputs]
    made = kernel.call(*leaves, **{name: own(X) for name, X in options.items()})
    output, *lse = made if isinstance(made, tuple) else (made,)
    found = dict(zip(("output", "lse"), (output, *lse), strict=False))
    if cotangent is not None:
        found |= dict(zip(("dq", "dk", "dv"), torch.autograd.grad(output, leaves, own(cotangent)), strict=True))
    return {name: numpys(X) for name, X in found.items()}


# The framework's own


def sdpa(q, k, v, attn_mask=None, attn_bias=None, is_causal=False, scale=None):
    if (attn_mask is not None) + (attn_bias is not None) + bool(is_causal) > 1:
        raise NotImplementedError
    if attn_bias is not None and attn_bias.dtype != q.dtype:  # PyTorch takes no other; to round it is a mistake
        raise NotImplementedError
    attn_mask = attn_mask if attn_bias is None else attn_bias
    groups = q.shape[1] != k.shape[1]
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=groups
    )


def sdpa_math(q, k, v, attn_mask=None, is_causal=False, scale=None):
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return sdpa(q, k, v, attn_mask, None, is_causal, scale)


def sdpa_by_tokens(q, k, v, attn_mask=None, is_causal=False):
    q, k, v = (X.transpose(1, 2) for X in (q, k, v))  # (B, H, T, d)
    return sdpa(q, k, v, attn_mask, None, is_causal).transpose(1, 2)  # (B, Q, H, d)


def flex_attention(q, k, v, causal=False, window=None, softcap=None, scale=None):
    left, right = (q.shape[2] + k.shape[2] if side is None else side for side in window or (None, None))

    def capped(score, b, h, i, j):
        return score if softcap is None else softcap * torch.tanh(score / softcap)

    def seen(b, h, i, j):
        near = (i - left <= j) & (j <= i + right)
        return near & (j <= i) if causal else near

    mask = flex.create_block_mask(seen, None, None, q.shape[2], k.shape[2], device="cpu")
    groups = q.shape[1] != k.shape[1]
    wanted = flex.AuxRequest(lse=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # it says that it is not compiled, as is meant here
        output, aux = flex.flex_attention(q, k, v, capped, mask, scale, enable_gqa=groups, return_aux=wanted)
    return output, aux.lse


# In steps


def eager(q, k, v, mask=None, bias=None, causal=False, softcap=None, sinks=None, scale=None):
    k, v = (X.repeat_interleave(q.shape[1] // X.shape[1], 1) for X in (k, v))  # (B, H, K, d)
    scores = (q @ k.transpose(2, 3)).float() * (q.shape[-1] ** -0.5 if scale is None else scale)
    scores = scores if softcap is None else torch.tanh(scores / softcap) * softcap
    scores = scores if bias is None else scores + bias
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[2:], dtype=torch.bool).triu(1), -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks[:, None, None].expand(*scores.shape[:3], 1)], -1)  # (B, H, Q, K + 1)
    weights = torch.softmax(scores, -1).to(q.dtype)[..., : k.shape[2]]
    return weights @ v, torch.logsumexp(scores, -1)


def with_sinks(q, k, v, s_aux, causal=False):
    output, lse = eager(q, k, v, causal=causal)
    sinks = s_aux[:, None]  # (H, 1)
    return (output * torch.sigmoid(lse - sinks)[..., None]).to(q.dtype), torch.logaddexp(lse, sinks)


def varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, causal=False):
    q, k, v = (X.transpose(0, 1)[None] for X in (q, k, v))  # (1, H, tokens, d)
    of_q, of_k = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    ends = zip(of_q[:-1], of_q[1:], of_k[:-1], of_k[1:], strict=True)
    texts = [sdpa(q[:, :, a:b], k[:, :, c:d], v[:, :, c:d], is_causal=causal) for a, b, c, d in ends]
    return torch.cat(texts, 2)[0].transpose(0, 1)  # (tokens, H, d)


# In tiles


class Tiled(torch.autograd.Function):
    """Attention in tiles of 32 keys, forward and backward."""

    @staticmethod
    def forward(context, q, k, v, causal):
        wide, scale = q.float(), q.shape[-1] ** -0.5
        maximum = torch.full((*q.shape[:3], 1), -torch.inf)
        total, pooled = torch.zeros_like(maximum), torch.zeros(*q.shape[:3], v.shape[-1])
        for start in range(0, k.shape[2], 32):
            scores = hidden(wide @ k[:, :, start : start + 32].float().transpose(2, 3) * scale, start, causal)
            largest = torch.maximum(maximum, scores.amax(-1, keepdim=True))
            shares, keep = torch.exp(scores - largest), torch.exp(maximum - largest)
            total, maximum = keep * total + shares.sum(-1, keepdim=True), largest
            pooled = keep * pooled + shares.to(q.dtype).float() @ v[:, :, start : start + 32].float()
        output, lse = (pooled / total).to(q.dtype), maximum + torch.log(total)
        context.save_for_backward(q, k, v, output, lse)
        context.causal = causal
        return output, lse[..., 0]

    @staticmethod
    def backward(context, cotangent, _):
        q, k, v, output, lse = context.saved_tensors
        wide, by_output, scale = q.float(), cotangent.float(), q.shape[-1] ** -0.5
        delta = (output.float() * by_output).sum(-1, keepdim=True)
        dq, dk, dv = (torch.zeros(X.shape) for X in (q, k, v))
        for start in range(0, k.shape[2], 32):
            keys, values = (X[:, :, start : start + 32].float() for X in (k, v))
            weights = torch.exp(hidden(wide @ keys.transpose(2, 3) * scale, start, context.causal) - lse)
            by_scores = (weights * (by_output @ values.transpose(2, 3) - delta)).to(q.dtype).float()
            dq += by_scores @ keys * scale
            dk[:, :, start : start + 32] = by_scores.transpose(2, 3) @ wide * scale
            dv[:, :, start : start + 32] = weights.to(q.dtype).float().transpose(2, 3) @ by_output
        return dq.to(q.dtype), dk.to(q.dtype), dv.to(q.dtype), None


def hidden(scores, start, causal):
    """Return the scores of keys from a place on, minus infinity where causal order hides them."""
    Q, C = scores.shape[2:]
    return scores.masked_fill(torch.ones(Q, C, dtype=torch.bool).triu(1 - start), -torch.inf) if causal else scores


def tiled(q, k, v, causal=False, tiles=Tiled):
    k, v = (X.repeat_interleave(q.shape[1] // X.shape[1], 1) for X in (k, v))  # (B, H, K, d)
    return tiles.apply(q, k, v, causal)


RIGHT = {
    "scaled_dot_product_attention": Kernel(sdpa),
    "scaled_dot_product_attention, math": Kernel(sdpa_math),
    "scaled_dot_product_attention, B T H d": Kernel(sdpa_by_tokens, "BTHD"),
    "flex_attention": Kernel(flex_attention, gradients=False),  # PyTorch has none on processors
    "steps": Kernel(eager, empty_rows=False),
    "sinks by the log of sums": Kernel(with_sinks),
    "tiles": Kernel(tiled, takes=("causal",)),
    "packed": Kernel(varlen, "THD"),
}


# Wrong ones


class WithoutRowSums(Tiled):
    @staticmethod
    def backward(context, cotangent, _):
        return Tiled.backward(context, cotangent - cotangent.mean(-1, keepdim=True), _)


def upside_down(q, k, v, attn_mask):
    return sdpa(q, k, v, ~attn_mask)


def lower_right(q, k, v, is_causal=False):
    mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2]) if is_causal else None
    return sdpa(q, k, v, mask)


def groups_tiled(q, k, v, causal=False):
    return eager(q, *(X.repeat(1, q.shape[1] // X.shape[1], 1, 1) for X in (k, v)), causal=causal)


def detached_sinks(q, k, v, s_aux, causal=False):
    output, lse = eager(q, k, v, causal=causal)
    return (output * torch.sigmoid(lse.detach() - s_aux[:, None])[..., None]).to(q.dtype)


def weak_fill(q, k, v, mask):
    return sdpa(q, k, v, attn_bias=torch.where(mask, 0.0, -10.0).to(q.dtype))


def uniform_where_nothing(q, k, v, mask):
    return sdpa(q, k, v, attn_bias=torch.where(mask, 0.0, -1e30).to(q.dtype))


def sinks_the_other_way(q, k, v, s_aux, causal=False):
    output, lse = eager(q, k, v, causal=causal)
    return (output * torch.sigmoid(s_aux[:, None] - lse)[..., None]).to(q.dtype)


def ends_of_queries(q, k, v, cu_seqlens_q, cu_seqlens_k):
    return varlen(q, k, v, cu_seqlens_q, torch.minimum(cu_seqlens_q, cu_seqlens_k[-1]))


def dropped(q, k, v):
    torch.manual_seed(0)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=0.1, enable_gqa=q.shape[1] != k.shape[1])


WRONG = {
    "the mask is inverted, as MultiheadAttention's": Kernel(upside_down, known="the mask is inverted"),
    "causal order is lower right": Kernel(lower_right, known="causal order is aligned to the lower right"),
    "heads of keys are tiled, not repeated": Kernel(groups_tiled, known="heads of keys are tiled, not repeated"),
    "the share of sinks has no gradient": Kernel(detached_sinks),
    "the share of sinks is the other way": Kernel(sinks_the_other_way),
    "hidden scores have -10 added": Kernel(weak_fill, known="weak mask fill"),
    "a row that sees nothing is the mean": Kernel(uniform_where_nothing, known="rows without keys are uniform"),
    "texts of keys end where queries do": Kernel(ends_of_queries, "THD"),
    "dropout is on": Kernel(dropped),
    "the cotangent is centred": Kernel(
        lambda q, k, v, causal=False: tiled(q, k, v, causal, WithoutRowSums), takes=("causal",)
    ),
}
