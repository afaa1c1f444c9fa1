"""Models of MLX."""

import dataclasses

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx.utils import tree_flatten, tree_map

import audited
from audited import D, H, Model, T, attend
from mha.models.frameworks.mlx import modules

BACKEND = "mlx"
KINDS = "encoder", "described", "taught"
LIKE = "encoder"


def state(model):
    """What an audit has to leave as it was."""
    parts = [(path, type(one), sorted(one), sorted(vars(one)), one.training) for path, one in modules(model).items()]
    names = [name for name, _ in tree_flatten(model.parameters())]
    functions = mx.softmax, mx.fast.scaled_dot_product_attention
    return parts, names, functions, compiles(), [np.array(X) for _, X in tree_flatten(model.parameters())]


def compiles():
    """Whether a compiled function runs once only."""
    ran = []
    one = mx.compile(lambda X: (ran.append(1), X + 1)[1])
    mx.eval(one(mx.zeros(1)), one(mx.zeros(1)))
    return len(ran) == 1


def drawn(model):
    """The model with random numbers in each array."""
    mx.random.seed(5)
    model.update(tree_map(lambda X: mx.random.normal(X.shape, scale=0.4), model.parameters()))
    mx.eval(model.parameters())
    return model.train()


class Wrong(nn.MultiHeadAttention):
    """The framework's layer, which forgets its mask, or its scale."""

    def __call__(self, queries, keys, values, mask=None):
        if self.mistake == "scale":
            queries = queries * (D / H) ** 0.5
        return super().__call__(queries, keys, values, None if self.mistake == "mask" else mask)


def hidden():
    """What each query may see, in order and without padding, (B, 1, T, T)."""
    return mx.tri(T, dtype=mx.bool_) & (mx.arange(T) < mx.array(audited.LENGTHS)[:, None])[:, None, None]


def encoder(mistake):
    """`nn.TransformerEncoder`, with a mask that is added, as its users call it."""
    model = drawn(nn.TransformerEncoder(2, D, H, 29, dropout=0.3))
    last = model.layers[1].attention
    if mistake == "kernel":
        last.out_proj.weight = mx.array(np.array(last.out_proj.weight).T)
    elif mistake:
        last.__class__ = Wrong
        last.mistake = mistake
    mask = mx.where(hidden(), 0, mx.finfo(mx.float32).min)
    return Model(model, (mx.array(audited.inputs()), mask), ["layers.0.attention", "layers.1.attention"], state)


class Attention(nn.Module):
    """A layer by hand."""

    def __init__(self, mistake):
        super().__init__()
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(D, D) for _ in range(4))
        self.drop, self.mistake = nn.Dropout(0.5), mistake

    def __call__(self, X):
        q, k, v = self.to_q(X), self.to_k(X), self.to_v(X)
        pooled = attend(Functions, nn.softmax, q, k, v, self.mistake)
        return X + self.to_out(self.drop(pooled))


class Functions:
    """MLX's functions by NumPy's names."""

    arange, einsum, reshape, swapaxes, where = mx.arange, mx.einsum, mx.reshape, mx.swapaxes, mx.where


@dataclasses.dataclass
class Arguments:
    """What a model of mlx-lm says of itself."""

    model_type: str = "llama"
    hidden_size: int = D
    num_attention_heads: int = H
    num_key_value_heads: int = H
    head_dim: int = 4
    rope_theta: float = 500.0
    rope_traditional: bool = True
    sliding_window: int = 3
    layer_types: tuple[str, ...] = ("full_attention", "sliding_attention")


class Cache:
    """The cache of a layer, as mlx-lm has it."""

    def __init__(self):
        self.offset, self.kept = 0, []

    def update(self, *arrays):
        """The keys and values of all tokens, (B, H, K, d)."""
        self.kept = [
            mx.concatenate(pair, 2) for pair in zip(self.kept or [X[:, :, :0] for X in arrays], arrays, strict=True)
        ]
        self.offset += arrays[0].shape[2]
        return self.kept

    def trim(self, tokens):
        """Leave so many tokens out."""
        self.offset -= tokens
        self.kept = [X[:, :, : self.offset] for X in self.kept]


class Turning(nn.Module):
    """A layer as mlx-lm has it."""

    def __init__(self, args, at, mistake):
        super().__init__()
        width = args.num_attention_heads * args.head_dim
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(D, width, bias=False) for _ in range(3))
        self.o_proj = nn.Linear(width, D, bias=False)
        self.rope = nn.RoPE(args.head_dim, args.rope_traditional, args.rope_theta)
        self.window = args.sliding_window if args.layer_types[at] == "sliding_attention" else T
        self.scale, self.mistake = 1.0 if mistake == "scale" else args.head_dim**-0.5, mistake

    def __call__(self, X, cache):
        q, k, v = (part(X).reshape(*X.shape[:2], H, -1) for part in (self.q_proj, self.k_proj, self.v_proj))
        q, k, v = (part.swapaxes(1, 2) for part in (q, k, v))  # (B, H, T, d)
        offset, (Q, K) = cache.offset, (X.shape[1], cache.offset + X.shape[1])
        k, v = cache.update(self.rope(k, offset=offset), v)
        seen = mx.tri(Q, K, K - Q) - mx.tri(Q, K, K - Q - self.window) > 0
        mask = None if self.mistake == "mask" else seen
        pooled = mx.fast.scaled_dot_product_attention(self.rope(q, offset=offset), k, v, scale=self.scale, mask=mask)
        return self.o_proj(pooled.swapaxes(1, 2).reshape(*X.shape[:2], -1))  # (B, T, D)


class Stack(nn.Module):
    """Two layers, and what the model says of itself."""

    def __init__(self, mistake):
        super().__init__()
        self.args = Arguments()
        self.layers = [{"self_attn": Turning(self.args, at, mistake * (at == 1))} for at in range(2)]

    def __call__(self, X, cache=None):
        for layer, own in zip(self.layers, cache or [Cache(), Cache()], strict=True):
            X = X + layer["self_attn"](X, own)
        return X


def described(mistake):
    """Layers with the names of LLaMA, of a model that says what it is as mlx-lm's do."""
    paths = [f"layers.{at}.self_attn" for at in range(2)]
    return Model(drawn(Stack(mistake)), (mx.array(audited.inputs()),), paths, state)


def taught(mistake):
    """Layers by hand, whose projections are to be taught."""
    model = drawn(nn.Sequential(Attention(""), Attention(mistake)))
    return Model(
        model, (mx.array(audited.inputs()),), ["layers.0", "layers.1"], state, layers={"layers.?": audited.TAUGHT}
    )
