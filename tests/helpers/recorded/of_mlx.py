"""The decoder in MLX."""

import mlx.core as mx
from mlx import nn

from mha import parity
from recorded import EPS, LAYERS, WRONG_EPS, D, H, M, V, d, tokens, weights

BACKEND = "mlx"
PATHS = "h.{}.mixer", "last"


class Attention(nn.Module):
    scale = d**-0.5

    def __init__(self):
        super().__init__()
        self.one, self.two, self.three, self.out = (nn.Linear(D, D, bias=False) for _ in range(4))

    def __call__(self, x):
        q, k, v = self.one(x), self.two(x), self.three(x)
        q, k, v = (X.reshape(*X.shape[:2], H, d).swapaxes(1, 2) for X in (q, k, v))  # (B, H, T, d)
        pooled = mx.fast.scaled_dot_product_attention(q, k, v, scale=self.scale, mask="causal")
        return self.out(pooled.swapaxes(1, 2).reshape(x.shape))  # (B, T, D)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(D, EPS), nn.LayerNorm(D, EPS)
        self.mixer, self.wide, self.narrow = Attention(), nn.Linear(D, M, bias=False), nn.Linear(M, D, bias=False)

    def __call__(self, x):
        x = x + self.mixer(self.first(x))
        return x + self.narrow(nn.gelu_approx(self.wide(self.second(x))))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.last, self.out = nn.Embedding(V, D), nn.LayerNorm(D, EPS), nn.Linear(D, V, bias=False)
        self.h = [Block() for _ in range(LAYERS)]

    def __call__(self, ids):
        x = self.table(ids)
        for block in self.h:
            x = block(x)
        return self.out(self.last(x))


def recorded(mistake="", path=None, **options):
    """A record of one call."""
    made, found = Decoder(), {name: mx.array(X) for name, X in weights().items()}
    made.table.weight, made.out.weight = found["embed"], found["head"].T
    norms = {"norm": made.last}
    for at, block in enumerate(made.h):
        places = dict(zip("qkvo", (getattr(block.mixer, name) for name in ("one", "two", "three", "out")), strict=True))
        for name, module in (places | {"up": block.wide, "down": block.narrow}).items():
            module.weight = found[f"{at}.{name}"].T
        norms |= {f"{at}.before": block.first, f"{at}.after": block.second}
    for name, module in norms.items():
        module.weight, module.bias = found[f"{name}.scale"], found[f"{name}.bias"]
    if mistake == "scale":
        made.h[1].mixer.scale = 1.0
    elif mistake == "eps":
        made.h[1].second.eps = WRONG_EPS
    with parity.record(made, path, **options) as record:
        made(mx.array(tokens()))
    return record
