"""Right ports in PyTorch, JAX and Keras, by what each has ready."""

import numpy as np

from .written import CAUSAL, GROUPED, LENGTHS, PLAIN, Written


def weights_of(layer, array):
    """The weights of a layer in another framework's arrays."""
    return {name: array(np.array(X)) for name, X in layer.weights.items()}


def by_sdpa(layer, queries, keys, values, mask=None, causal=False):
    """PyTorch's fused attention, with grouped heads where there are some."""
    import torch

    F = torch.nn.functional
    W, config = weights_of(layer, torch.from_numpy), layer.config

    def heads(name, X, number):
        return F.linear(torch.from_numpy(X), W[f"{name}.kernel"].T, W.get(f"{name}.bias")).unflatten(-1, (number, -1))

    G = config.num_key_value_heads
    q, k, v = heads("W_q", queries, config.num_heads), heads("W_k", keys, G), heads("W_v", values, G)
    q, k, v = (X.transpose(1, 2) for X in (q, k, v))
    seen = None if mask is None else torch.from_numpy(mask)
    out = F.scaled_dot_product_attention(q, k, v, seen, is_causal=causal, enable_gqa=config.num_heads != G)
    return F.linear(out.transpose(1, 2).flatten(2), W["W_o.kernel"].T, W.get("W_o.bias"))


def multihead_attention(layer, queries, keys, values, valid_lens):
    """`torch.nn.MultiheadAttention` with the layer's weights."""
    import torch

    W = weights_of(layer, torch.from_numpy)
    theirs = torch.nn.MultiheadAttention(layer.config.num_hiddens, layer.config.num_heads, batch_first=True).eval()
    state = {
        "in_proj_weight": torch.cat([W[f"W_{name}.kernel"].T for name in "qkv"]),
        "in_proj_bias": torch.cat([W[f"W_{name}.bias"] for name in "qkv"]),
        "out_proj.weight": W["W_o.kernel"].T, "out_proj.bias": W["W_o.bias"],
    }  # fmt: skip
    theirs.load_state_dict(state)
    padding = torch.arange(keys.shape[1]) >= torch.tensor(valid_lens)[:, None]
    given = (torch.from_numpy(X) for X in (queries, keys, values))
    with torch.no_grad():
        return theirs(*given, key_padding_mask=padding, average_attn_weights=False)


def autograd(layer, queries, keys, values):
    """Gradients by PyTorch."""
    import torch

    given = [torch.tensor(X, requires_grad=True) for X in (queries, keys, values)]
    W = {name: X.requires_grad_() for name, X in weights_of(layer, torch.from_numpy).items()}
    heads = (X @ W[f"W_{n}.kernel"] + W[f"W_{n}.bias"] for n, X in zip("qkv", given, strict=True))
    q, k, v = (X.unflatten(-1, (layer.config.num_heads, -1)).transpose(1, 2) for X in heads)
    weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
    output = (weights @ v).transpose(1, 2).flatten(2) @ W["W_o.kernel"] + W["W_o.bias"]
    output.sum().backward()
    inputs = dict(zip(("queries", "keys", "values"), given, strict=True))
    return {"output": output.detach()} | {name: X.grad for name, X in (inputs | W).items()}


def in_half_precision(layer, X, *_, causal):
    """bfloat16 by PyTorch's fused attention, the softmax in float32."""
    import torch

    F = torch.nn.functional
    W = weights_of(layer, lambda Y: torch.from_numpy(Y.astype("float32")).bfloat16())
    heads = (torch.from_numpy(X.astype("float32")).bfloat16() @ W[f"W_{name}.kernel"] for name in "qkv")
    q, k, v = (Y.unflatten(-1, (-1, layer.config.key_dim)).transpose(1, 2) for Y in heads)
    out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return out.transpose(1, 2).flatten(2) @ W["W_o.kernel"]


def dot_product_attention(layer, queries, keys, values, mask=None, causal=False):
    """`jax.nn.dot_product_attention`, which has grouped heads and (B, T, H, d)."""
    import jax

    W, config = weights_of(layer, jax.numpy.asarray), layer.config

    def heads(name, X, number):
        return (X @ W[f"{name}.kernel"] + W[f"{name}.bias"]).reshape(*X.shape[:2], number, -1)

    G = config.num_key_value_heads
    q, k, v = heads("W_q", queries, config.num_heads), heads("W_k", keys, G), heads("W_v", values, G)
    out = jax.nn.dot_product_attention(q, k, v, mask=mask, is_causal=causal)
    return out.reshape(*queries.shape[:2], -1) @ W["W_o.kernel"] + W["W_o.bias"]


def keras_layer(layer, queries, keys, values, mask):
    """`keras.layers.MultiHeadAttention`, whose kernels are (D, H, d)."""
    import keras

    H, d, D = layer.config.num_heads, layer.config.key_dim, layer.config.num_hiddens
    theirs = keras.layers.MultiHeadAttention(H, d)
    theirs.build(queries.shape, values.shape, keys.shape)
    W, given = weights_of(layer, np.asarray), []
    for name in ("W_q", "W_k", "W_v"):
        given += [W[f"{name}.kernel"].reshape(D, H, d), W[f"{name}.bias"].reshape(H, d)]
    theirs.set_weights([*given, W["W_o.kernel"].reshape(H, d, D), W["W_o.bias"]])
    return theirs(queries, values, keys, attention_mask=mask[:, 0], return_attention_scores=True)


ELSEWHERE = [
    Written("fused attention", by_sdpa, PLAIN, {"mask": ...}, backend="torch", cross=True),
    Written("fused attention with groups", by_sdpa, GROUPED, CAUSAL, backend="torch"),
    Written("torch.nn.MultiheadAttention", multihead_attention, PLAIN, LENGTHS, backend="torch", cross=True),
    Written("gradients by autograd", autograd, PLAIN, backend="torch", cross=True),
    Written("fused attention in bfloat16", in_half_precision, PLAIN | {"bias": False}, CAUSAL, dtype="bfloat16",
            backend="torch"),
    Written("jax.nn.dot_product_attention", dot_product_attention, GROUPED, {"mask": ...}, backend="jax"),
    Written("keras.layers.MultiHeadAttention", keras_layer, PLAIN, {"mask": ...}, backend="tensorflow", cross=True),
]  # fmt: skip
