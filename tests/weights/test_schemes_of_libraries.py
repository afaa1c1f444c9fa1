"""Checkpoints of libraries whose attention is written here by hand, as their code computes it, in float64.

Letters: B batch, T tokens, H heads, G heads of keys, d width of a head.
"""

import numpy as np
import pytest
from layers import assert_same_weights
from safetensors.numpy import save_file

import mha
from mha.parity.rule.rules import error, largest

B, T, H, d, D, LIMIT = 2, 7, 6, 4, 22, 1e-12
AT = "blocks.1.attn."


def heads(X, count):
    return X.reshape(B, T, count, -1).swapaxes(1, 2)  # (B, H, T, d)


def merged(X):
    return X.swapaxes(1, 2).reshape(B, T, -1)  # (B, T, H*d)


def pooled(q, k, v, scale=d**-0.5):
    scores = scale * q @ k.swapaxes(2, 3)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


def turned(X, base=10000.0):
    """Rotate the halves of each head, (B, H, T, d), as ESM's `rotate_half` does."""
    angles = np.arange(T)[:, None] * base ** -(np.arange(0, d, 2) / d)  # (T, d / 2)
    cos, sin = (np.concatenate([f(angles)] * 2, -1) for f in (np.cos, np.sin))
    first, second = np.split(X, 2, -1)
    return X * cos + np.concatenate([-second, first], -1) * sin


def normed(X, scale, eps=1e-5):
    centred = X - X.mean(-1, keepdims=True)
    return centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + eps) * scale


def linear(A, name, X):
    """A layer of PyTorch or Equinox: kernels (out, in)."""
    return X @ A[f"{name}.weight"].T + A.get(f"{name}.bias", 0.0)


def whisper(A, X):
    """`qkv_attention`: queries and keys are multiplied by the fourth root each."""
    q, k, v = (heads(linear(A, name, X), H) for name in ("query", "key", "value"))
    return linear(A, "out", merged(pooled(q * d**-0.25, k * d**-0.25, v, 1.0)))


def equinox(A, X):
    """`dot_product_attention_weights`: queries are divided before the product."""
    q, k, v = (heads(linear(A, f"{name}_proj", X), H) for name in ("query", "key", "value"))
    return linear(A, "output_proj", merged(pooled(q / np.sqrt(d), k, v, 1.0)))


def haiku(A, X):
    """`hk.Linear`: kernels `w` are (in, out)."""
    q, k, v = (heads(X @ A[f"{name}.w"] + A[f"{name}.b"], H) for name in ("query", "key", "value"))
    return merged(pooled(q, k, v)) @ A["linear.w"] + A["linear.b"]


def diffusers(A, X):
    q, k, v = (heads(linear(A, f"to_{name}", X), H) for name in "qkv")
    q, k = (
        Y / np.sqrt(np.square(Y).mean(-1, keepdims=True) + 1e-6) * A[f"norm_{n}.weight"]
        for Y, n in ((q, "q"), (k, "k"))
    )
    return linear(A, "to_out.0", merged(pooled(q, k, v)))


def nano_gpt(A, X):
    q, k, v = (heads(Y, H) for Y in np.split(linear(A, "c_attn", X), 3, -1))
    return linear(A, "c_proj", merged(pooled(q, k, v)))


def vit_pytorch(A, X):
    q, k, v = (heads(Y, H) for Y in np.split(linear(A, "to_qkv", X), 3, -1))
    return linear(A, "to_out.0", merged(pooled(q, k, v)))


def flash(A, X):
    """Shared heads: all queries, then the heads of keys, then those of values."""
    q, k, v = np.split(linear(A, "Wqkv", X), [H * d, (H + 2) * d], -1)
    k, v = (heads(Y, 2).repeat(H // 2, 1) for Y in (k, v))
    return linear(A, "out_proj", merged(pooled(heads(q, H), k, v)))


def megatron(A, X):
    """`get_query_key_value_tensors`: group by group, queries of the group, its keys, its values."""
    groups = linear(A, "linear_qkv", X).reshape(B, T, 2, H // 2 + 2, d)
    q = groups[:, :, :, :-2].reshape(B, T, H, d).swapaxes(1, 2)
    k, v = (groups[:, :, :, at].swapaxes(1, 2).repeat(H // 2, 1) for at in (-2, -1))
    return linear(A, "linear_proj", merged(pooled(q, k, v)))


def esmc(A, X):
    """Queries and keys are normed over all features before they are split, and then rotated."""
    q, k, v = np.split(linear(A, "layernorm_qkv.1", X), 3, -1)
    q, k = normed(q, A["q_ln.weight"]), normed(k, A["k_ln.weight"])
    return linear(A, "out_proj", merged(pooled(turned(heads(q, H)), turned(heads(k, H)), heads(v, H))))


def sizes(*names, of=H * d, to="weight", bias=()):
    return {f"{name}.{to}": (of, D) for name in names} | {f"{name}.bias": (of,) for name in bias}


OUT = {"weight": (D, H * d), "bias": (D,)}
ROTARY = {"rotary": None}
# The formula, the arrays, other arrays beside them, and what names do not show.
CASES = {
    "whisper": (whisper, sizes("query", "key", "value", bias=("query", "value")), "out", {}, {}),
    "equinox": (equinox, sizes("query_proj", "key_proj", "value_proj", bias=("value_proj",)), "output_proj", {}, {}),
    "haiku": (
        haiku,
        {f"{name}.{kind}": (D, H * d)[kind == "b" :] for name in ("query", "key", "value") for kind in "wb"}
        | {"linear.w": (H * d, D), "linear.b": (D,)},
        "", {}, {},
    ),
    "diffusers": (
        diffusers, sizes("to_q", "to_k", "to_v") | {"norm_q.weight": (d,), "norm_k.weight": (d,)}, "to_out.0", {},
        ROTARY | {"qk_norm": "rms"},
    ),
    "gpt2-mlx": (nano_gpt, sizes("c_attn", of=3 * H * d, bias=("c_attn",)), "c_proj", {"bias": (1, 1, T, T)}, {}),
    "vit_pytorch": (vit_pytorch, sizes("to_qkv", of=3 * H * d), "to_out.0", {"norm.weight": (D,)}, ROTARY),
    "flash_attn": (flash, sizes("Wqkv", of=(H + 4) * d, bias=("Wqkv",)), "out_proj", {}, ROTARY),
    "megatron": (
        megatron, sizes("linear_qkv", of=(H + 4) * d, bias=("linear_qkv",)), "linear_proj",
        {"linear_qkv.layer_norm_weight": (D,)}, ROTARY,
    ),
    "esmc": (
        esmc, sizes("layernorm_qkv.1", of=3 * H * d) | {"q_ln.weight": (H * d,), "k_ln.weight": (H * d,)}, "out_proj",
        {"layernorm_qkv.0.weight": (D,), "layernorm_qkv.0.bias": (D,)}, {"rotary": mha.Rotary()},
    ),
}  # fmt: skip


def stored(rng, scheme):
    """The arrays of a layer as the library has them, and those that stand beside."""
    _, shapes, output, beside, _ = CASES[scheme]
    shapes = shapes | ({f"{output}.{name}": X for name, X in OUT.items()} if output else {})
    if scheme == "esmc":  # whose layers have no biases
        del shapes["out_proj.bias"]
    return tuple({name: rng.normal(size=shape) for name, shape in some.items()} for some in (shapes, beside))


@pytest.mark.parametrize("scheme", CASES)
def test_a_checkpoint_computes_what_its_library_does(rng, tmp_path, scheme):
    formula, *_, options = CASES[scheme]
    arrays, beside = stored(rng, scheme)
    X = rng.normal(size=(B, T, D))
    path = tmp_path / "model.safetensors"
    save_file(
        {AT + name: np.ascontiguousarray(array) for name, array in (arrays | beside).items()}, path, {"format": "pt"}
    )
    attention, expected = mha.load(path, "numpy", num_heads=H, **options), formula(arrays, X)
    assert error(attention(X, X, X), expected) <= LIMIT * largest(expected)
    named = mha.load(path, "numpy", scheme=scheme, prefix=AT, num_heads=H, **options)
    assert_same_weights(named.weights, attention.weights)
    held = mha.from_native(arrays, num_heads=H, backend="numpy", **options)
    assert error(held(X, X, X), expected) <= LIMIT * largest(expected)


@pytest.mark.parametrize("scheme", [name for name in CASES if CASES[name][-1]])
def test_what_names_do_not_show_is_asked_for(rng, scheme):
    arrays, _ = stored(rng, scheme)
    with pytest.raises(TypeError, match=r"(rotary|qk_norm) is not given, expected an mha\."):
        mha.from_native(arrays, num_heads=H)


@pytest.mark.parametrize(
    ("scheme", "name", "text"),
    [
        ("diffusers", "add_k_proj.weight", "attention of two streams"),
        ("diffusers", "group_norm.weight", "for which scheme 'diffusers' has no place"),
        ("diffusers", "norm_q.bias", "for which scheme 'diffusers' has no place"),
        ("esmc", "q_ln.bias", "for which scheme 'esmc' has no place"),
        ("whisper", "query_ln.weight", "for which scheme 'whisper' has no place"),
    ],
)
def test_what_these_libraries_add_is_refused_by_name(rng, scheme, name, text):
    arrays, _ = stored(rng, scheme)
    with pytest.raises(ValueError, match=text):
        mha.from_native(arrays | {name: np.ones(d)}, num_heads=H, **CASES[scheme][-1])
