"""`torch.nn.functional.scaled_dot_product_attention` between projections of ours; it gives no attention weights."""

import types

import torch

from peers import own
from peers.torch import results


def make(options, weights, call):
    return types.SimpleNamespace(
        num_heads=options["num_heads"], weights={name: own("torch", X) for name, X in weights.items()}
    )


def run(layer, call):
    hiding = {"is_causal": call.causal}
    if call.own_mask:
        hiding = {"attn_mask": own("torch", call.mask)}
    elif not call.only_causal and (seen := call.seen()) is not None:
        hiding = {"attn_mask": torch.tensor(seen)}  # True = may attend

    def dense(name, X):
        return X @ layer.weights[f"{name}.kernel"] + layer.weights[f"{name}.bias"]

    width = layer.weights["W_q.kernel"].shape[1] // layer.num_heads

    def split(X):
        return X.unflatten(2, (-1, width)).transpose(1, 2)  # (B, H or G, T, d)

    def attend(*inputs):
        q, k, v = (split(dense(f"W_{x}", X)) for x, X in zip("qkv", inputs, strict=True))
        more = hiding | {"enable_gqa": q.shape[1] != k.shape[1]}
        pooled = torch.nn.functional.scaled_dot_product_attention(q, k, v, **more)  # (B, H, Q, dv)
        return (dense("W_o", pooled.transpose(1, 2).flatten(2)),)  # (B, Q, D)

    return results(call, attend)
