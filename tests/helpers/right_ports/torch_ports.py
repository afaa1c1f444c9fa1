"""Attention as people write it in PyTorch: in steps, by its kernel, and by its layer."""

import contextlib

import numpy as np
import torch
from draws import ABILITIES
from torch.func import functional_call
from torch.nn import functional as F  # noqa: N812
from torch.nn.attention import SDPBackend, sdpa_kernel

import mha
from mha.parity.rule.layouts import OF_INPUTS

FUSED = ABILITIES - {"softcap", "sinks"}
LAYER = {"bias", "score_bias"}


def own(X, dtype=None):
    """A NumPy array as PyTorch's own."""
    return mha.tensor(X, backend="torch").to(dtype)


class Attention:
    """The layer as the models of transformers have it, with the weights of a trial; letters as in the lessons."""

    def __init__(self, trial, dtype=None):
        self.trial, self.config = trial, trial.config
        self.dtype = dtype or getattr(torch, trial.config.dtype)
        self.arrays = {name: X.to(self.dtype) for name, X in trial.arrays(own).items()}

    def __call__(self, pool):
        x, y, z = (self.arrays[name] for name in OF_INPUTS)
        i, j = self.trial.positions
        q, k, v = self.heads("W_q", x), self.heads("W_k", y), self.heads("W_v", z)
        q, k = self.turn(self.norm("q_norm", q), i), self.turn(self.norm("k_norm", k), j)
        pooled = pool(q, k, v).transpose(1, 2)  # (B, Q, H, d)
        if self.config.output_gate:
            gates = self.linear("W_g", x).unflatten(2, (self.config.num_heads, -1))  # (B, Q, H, d or 1)
            pooled = pooled * torch.sigmoid(gates)
        return self.linear("W_o", pooled.flatten(2))  # (B, Q, D)

    def linear(self, name, X):
        """Project."""
        return F.linear(X, self.arrays[f"{name}.kernel"].T, self.arrays.get(f"{name}.bias"))

    def heads(self, name, X):
        """Project, and split the heads."""
        return self.linear(name, X).unflatten(2, (-1, self.config.key_dim)).transpose(1, 2)  # (B, H, T, d)

    def norm(self, name, X):
        """Norm queries or keys: in float32, rounded, and then multiplied, as Llama's."""
        norm = self.config.qk_norm
        if norm is None:
            return X
        weight = self.arrays[f"{name}.scale"]
        if norm.kind == "layer":
            return F.layer_norm(X, weight.shape, weight, eps=norm.eps)
        wide = X.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + norm.eps)
        return weight * wide.to(X.dtype)

    def turn(self, X, places):
        """Rotate, by cosines and sines in the port's dtype; each product is rounded."""
        rotary = self.config.rotary
        if rotary is None:
            return X
        angles = torch.tensor(self.trial.angles(places))  # (T, n)
        angles = angles.repeat_interleave(2, 1) if rotary.interleaved else torch.cat((angles, angles), 1)  # (T, 2n)
        cos, sin = angles.cos().to(self.dtype), angles.sin().to(self.dtype)
        turning, rest = X[..., : rotary.dim], X[..., rotary.dim :]
        turned = turning * cos + rotate_half(turning, rotary.interleaved) * sin
        return torch.cat((turned, rest), -1)

    def hiding(self, dtype):
        """What is added to the scores, or None."""
        seen, bias = self.trial.seen, self.trial.bias
        added = None if bias is None else own(bias, dtype)
        if seen is None:
            return added
        hidden = torch.zeros(seen.shape, dtype=dtype).masked_fill(~torch.tensor(seen), -torch.inf)
        return hidden if added is None else added + hidden

    def pool_in_steps(self, q, k, v, wide=torch.float32):
        """Pool in steps; wide: the dtype of the softmax, None = that of the scores."""
        k, v = (X.repeat_interleave(self.trial.share, 1) for X in (k, v))  # (B, H, K, d)
        scores = torch.matmul(q, k.transpose(2, 3)) * self.trial.scale  # (B, H, Q, K)
        if cap := self.config.softcap:
            scores = torch.tanh(scores / cap) * cap
        if (hiding := self.hiding(scores.dtype)) is not None:
            scores = scores + hiding
        K = scores.shape[-1]
        if self.config.sinks:
            sinks = self.arrays["sinks"].view(1, -1, 1, 1).expand(*scores.shape[:3], 1)  # (B, H, Q, 1)
            scores = torch.cat((scores, sinks.to(scores.dtype)), -1)
            largest = scores.max(-1, keepdim=True).values
            scores = scores - torch.where(largest > -torch.inf, largest, 0)
        weights = torch.softmax(scores, -1, dtype=wide).to(q.dtype)
        return torch.matmul(weights[..., :K], v)

    def pool_by_kernel(self, q, k, v):
        """Pool by `scaled_dot_product_attention`."""
        only_causal = self.trial.only_causal
        how = {"is_causal": True} if only_causal else {"attn_mask": self.hiding(q.dtype)}
        if self.trial.bias is None and self.trial.seen is not None and not only_causal:
            how = {"attn_mask": torch.tensor(self.trial.seen)}  # True = may attend
        return F.scaled_dot_product_attention(q, k, v, **how, scale=self.trial.scale, enable_gqa=self.trial.share > 1)


def rotate_half(X, interleaved):
    """Turn each pair of components by a quarter."""
    if interleaved:
        return torch.stack((-X[..., 1::2], X[..., ::2]), -1).flatten(-2)
    one, other = X.chunk(2, -1)
    return torch.cat((-other, one), -1)


def eager(trial):
    """In steps, with the softmax in float32."""
    port = Attention(trial)
    return port(port.pool_in_steps)


def half_softmax(trial):
    """In steps, with the softmax in the layer's dtype."""
    port = Attention(trial)
    return port(lambda q, k, v: port.pool_in_steps(q, k, v, None))


def upcast(trial):
    """In steps of float32, rounded at the end."""
    port = Attention(trial, torch.float32)
    return port(port.pool_in_steps).to(getattr(torch, trial.config.dtype))


def autocast(trial, by_kernel=False):
    """A module in float32 whose products are in half precision."""
    port, half = Attention(trial, torch.float32), getattr(torch, trial.config.dtype)
    with torch.autocast("cpu", half) if half != torch.float32 else contextlib.nullcontext():
        return port(port.pool_by_kernel if by_kernel else port.pool_in_steps)


def autocast_sdpa(trial):
    """As `autocast`, by PyTorch's kernel."""
    return autocast(trial, True)


def sdpa(trial):
    """By the kernel that PyTorch chooses."""
    port = Attention(trial)
    return port(port.pool_by_kernel)


def sdpa_math(trial):
    """By the kernel of plain operations."""
    with sdpa_kernel(SDPBackend.MATH):
        return sdpa(trial)


def mha_weights(trial):
    """PyTorch's layer, which computes attention weights."""
    return of_layer(trial, need_weights=True)


def mha_fused(trial):
    """PyTorch's layer, which calls the kernel."""
    return of_layer(trial, need_weights=False)


def mha_fast(trial):
    """The quick path of the layer, where it takes it: without gradients and training."""
    with torch.inference_mode():
        return of_layer(trial, False, need_weights=False)


def of_layer(trial, training=True, **options):
    """Call `torch.nn.MultiheadAttention`."""
    layer = trial.layer.to_native("torch.nn.MultiheadAttention").train(training)
    seen, bias = trial.seen, trial.bias
    sizes = len(trial.inputs[0]), trial.config.num_heads, *(X.shape[1] for X in trial.inputs[:2])
    if bias is not None:  # what is added to the scores
        added = own(bias) if seen is None else own(bias).masked_fill(~torch.tensor(seen), -torch.inf)
        options["attn_mask"] = added.expand(sizes).flatten(0, 1)  # (B*H, Q, K)
    elif seen is not None:
        options["attn_mask"] = torch.tensor(~np.broadcast_to(seen, sizes)).flatten(0, 1)  # (B*H, Q, K), True = hide
    arrays = trial.arrays(own)
    inputs = [arrays[name] for name in OF_INPUTS]  # one array stays one: the quick path looks
    if trial.given is None:
        return layer(*inputs, **options)[0]
    return functional_call(layer, packed(arrays), tuple(inputs), options)[0]


def packed(arrays):
    """The parameters of `torch.nn.MultiheadAttention`."""
    found = {"in_proj_weight": torch.cat([arrays[f"W_{one}.kernel"].T for one in "qkv"])}  # (3D, D)
    found["out_proj.weight"] = arrays["W_o.kernel"].T
    if "W_o.bias" in arrays:
        found["in_proj_bias"] = torch.cat([arrays[f"W_{one}.bias"] for one in "qkv"])  # (3D,)
        found["out_proj.bias"] = arrays["W_o.bias"]
    return found


def gradients(port, trial, cotangent):
    """The gradients of sum(output * cotangent) by all inputs and weights of a port."""
    leaves = {name: X.requires_grad_() for name, X in trial.leaves(own).items()}
    output = port(trial.with_leaves(leaves))
    output.backward(own(cotangent, output.dtype))
    return {name: X.grad for name, X in leaves.items() if X.grad is not None}


PORTS = {
    "eager": (eager, ABILITIES), "half_softmax": (half_softmax, ABILITIES), "upcast": (upcast, ABILITIES),
    "autocast": (autocast, ABILITIES), "autocast_sdpa": (autocast_sdpa, FUSED), "sdpa": (sdpa, FUSED),
    "sdpa_math": (sdpa_math, FUSED), "mha": (mha_weights, LAYER), "mha_fused": (mha_fused, LAYER),
    "mha_fast": (mha_fast, LAYER),
}  # fmt: skip
