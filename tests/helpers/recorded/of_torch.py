"""The decoder in PyTorch, whose mistakes are in layer 1; and its decoding with a cache."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from mha import parity
from recorded import EPS, LAYERS, WRONG_EPS, B, D, M, V, d, tokens, weights

BACKEND = "torch"
PATHS = "blocks.{}.attention", "norm"


class Attention(nn.Module):
    scale = d**-0.5

    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(D, D, bias=False) for _ in range(4))

    def forward(self, x, past=None):
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        if past is not None:
            k, v = torch.cat((past[0], k), 1), torch.cat((past[1], v), 1)  # (B, K, D)
        q, *kv = (X.unflatten(2, (-1, d)).transpose(1, 2) for X in (q, k, v))  # (B, H, T, d)
        Q, K = q.shape[2], k.shape[1]
        seen = torch.arange(K) <= torch.arange(K - Q, K)[:, None]
        pooled = functional.scaled_dot_product_attention(q, *kv, attn_mask=seen, scale=self.scale)
        return self.o_proj(pooled.transpose(1, 2).flatten(2)), (k, v)  # (B, T, D)


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.act, self.down = nn.Linear(D, M, bias=False), nn.GELU("tanh"), nn.Linear(M, D, bias=False)

    def forward(self, x):
        return self.down(self.act(self.up(x)))


class Block(nn.Module):
    residual = True

    def __init__(self):
        super().__init__()
        self.before, self.attention, self.after, self.mlp = nn.LayerNorm(D), Attention(), nn.LayerNorm(D), MLP()

    def forward(self, x, past=None):
        y, past = self.attention(self.before(x), past)
        x = x + y if self.residual else y
        return x + self.mlp(self.after(x)), past


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(V, D), nn.LayerNorm(D), nn.Linear(D, V, bias=False)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))

    def forward(self, input_ids, past_key_values=None):
        x, kept = self.embed(input_ids), []
        for at, block in enumerate(self.blocks):
            x, past = block(x, None if past_key_values is None else past_key_values[at])
            kept.append(past)
        return {"logits": self.head(self.norm(x)), "past_key_values": kept}


def model(mistake="", dtype=torch.float32):
    """The model, with a mistake."""
    made, found = Decoder().eval(), weights()
    with torch.no_grad():
        made.embed.weight.copy_(torch.tensor(found["embed"]))
        made.head.weight.copy_(torch.tensor(found["head"].T))
        norms = {"norm": made.norm}
        for at, block in enumerate(made.blocks):
            norms |= {f"{at}.before": block.before, f"{at}.after": block.after}
            places = {name: getattr(block.attention, f"{name}_proj") for name in "qkvo"}
            for name, module in (places | {"up": block.mlp.up, "down": block.mlp.down}).items():
                module.weight.copy_(torch.tensor(found[f"{at}.{name}"].T))
        for name, module in norms.items():
            module.eps = EPS
            module.weight.copy_(torch.tensor(found[f"{name}.scale"]))
            module.bias.copy_(torch.tensor(found[f"{name}.bias"]))
        block = made.blocks[1]
        if mistake == "eps":
            block.after.eps = WRONG_EPS
        elif mistake == "residual":
            block.residual = False
        elif mistake == "gelu":
            block.mlp.act = nn.GELU()
        elif mistake == "scale":
            block.attention.scale = 1.0
        elif mistake == "tied":
            made.head.weight = made.embed.weight
        elif mistake == "kernel":
            block.attention.v_proj.weight[:] = block.attention.v_proj.weight.T.clone()
    return made.to(dtype)


def recorded(mistake="", path=None, dtype=torch.float32, **options):
    """A record of one call."""
    made = model(mistake, dtype)
    with parity.record(made, path, **options) as record:
        made(torch.tensor(tokens()))
    return record


def decoded(mistake="", steps=(4, 1, 1, 3, 1, 1)):
    """A record of the tokens in portions, with a cache; with the mistake "last" its last value is not in the cache."""
    made, ids, past = model("" if mistake == "last" else mistake), torch.tensor(tokens()), None
    assert sum(steps) == ids.shape[1]
    with parity.record(made) as record:
        for portion in ids.split(list(steps), 1):
            past = made(portion, past)["past_key_values"]
            if mistake == "last":
                past = [(k, torch.cat((v[:, :-1], 0 * v[:, -1:]), 1)) for k, v in past]
    return record


def logits(made):
    """What the model returns."""
    with torch.no_grad():
        return made(torch.tensor(tokens()))["logits"].reshape(B, -1, V).numpy().astype(np.float64)
