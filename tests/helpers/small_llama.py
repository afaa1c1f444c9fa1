"""A LLaMA in PyTorch as somebody may write it, small and with random weights; and its configuration.

Letters: B batch, T tokens, H heads, G heads of keys and values, d the width of a head.
"""

import json

import torch
from torch.nn import functional

VOCABULARY, WIDTH, HEADS, GROUPS, HEAD_DIM, LAYERS = 37, 30, 6, 2, 10, 3


class Config:
    """What its `config.json` says, as the classes of transformers have it."""

    def __init__(self, **changed):
        self.said = {
            "model_type": "llama", "hidden_size": WIDTH, "num_attention_heads": HEADS, "num_key_value_heads": GROUPS,
            "head_dim": HEAD_DIM, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "num_hidden_layers": LAYERS,
        } | changed  # fmt: skip

    def to_json_string(self):
        return json.dumps(self.said)


class Attention(torch.nn.Module):
    """Causal attention with shared heads and a rotation; subclasses make a mistake in one of its methods."""

    first = 0  # the position of the first token

    def __init__(self):
        super().__init__()
        self.q_proj = torch.nn.Linear(WIDTH, HEADS * HEAD_DIM, bias=False)
        self.k_proj = torch.nn.Linear(WIDTH, GROUPS * HEAD_DIM, bias=False)
        self.v_proj = torch.nn.Linear(WIDTH, GROUPS * HEAD_DIM, bias=False)
        self.o_proj = torch.nn.Linear(HEADS * HEAD_DIM, WIDTH, bias=False)

    def forward(self, x, seen, past=None):
        before = 0 if past is None else past[0].shape[2]
        q = self.turn(self.split(self.q_proj(x), HEADS), before)
        k, v = self.turn(self.split(self.k_proj(x), GROUPS), before), self.split(self.v_proj(x), GROUPS)
        if past is not None:
            k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)  # (B, G, K, d)
        scores = self.scores(q, self.share(k)).masked_fill(~self.see(seen), -torch.inf)
        pooled = torch.softmax(scores.float(), -1).nan_to_num().to(v.dtype) @ self.share(v)
        return self.o_proj(self.merge(pooled)), (k, v)

    def split(self, x, heads):
        return x.view(*x.shape[:2], heads, -1).transpose(1, 2)  # (B, H, T, d)

    def turn(self, x, before):
        before += self.first
        angles = self.angles(torch.arange(before, before + x.shape[2]).float())  # (T, d / 2)
        cos, sin = (f(angles).repeat(1, 2).to(x.dtype) for f in (torch.cos, torch.sin))  # (T, d)
        return x * cos + torch.cat((-x[..., HEAD_DIM // 2 :], x[..., : HEAD_DIM // 2]), -1) * sin

    def angles(self, places):
        return torch.outer(places, 10000.0 ** (-torch.arange(0, HEAD_DIM, 2).float() / HEAD_DIM))

    def share(self, x):
        return x.repeat_interleave(HEADS // GROUPS, 1)

    def scores(self, q, k):
        return q @ k.transpose(2, 3) * HEAD_DIM**-0.5

    def see(self, seen):
        return seen

    def merge(self, x):
        return x.transpose(1, 2).flatten(2)  # (B, T, H*d)


class Norm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.eps = torch.nn.Parameter(torch.ones(WIDTH)), 1e-6

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class MLP(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(WIDTH, 41), torch.nn.Linear(41, WIDTH)

    def forward(self, x):
        return self.down(functional.gelu(self.up(x)))


class Layer(torch.nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.self_attn, self.mlp, self.before, self.after = attention(), MLP(), Norm(), Norm()

    def forward(self, x, seen, past):
        attended, past = self.self_attn(self.before(x), seen, past)
        x = x + attended
        return x + self.mlp(self.after(x)), past


class Model(torch.nn.Module):
    """The model; mistaken: a class of attention for layer 1."""

    def __init__(self, mistaken=Attention, dtype=torch.float32, **changed):
        super().__init__()
        torch.manual_seed(11)
        self.config = Config(**changed)
        self.embed = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.layers = torch.nn.ModuleList(Layer(mistaken if at == 1 else Attention) for at in range(LAYERS))
        self.norm, self.dropout = Norm(), torch.nn.Dropout(0.3)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.normal_(std=0.4)
        self.to(dtype).eval()

    def forward(self, input_ids, attention_mask=None, past_key_values=None, position_ids=None):
        before = 0 if past_key_values is None else past_key_values[0][0].shape[2]
        (B, Q), K = input_ids.shape, before + input_ids.shape[1]
        seen = (torch.arange(K) <= torch.arange(before, K)[:, None])[None, None].expand(B, 1, Q, K)
        if attention_mask is not None:
            seen = seen & attention_mask[:, None, None].bool()
        x, kept = self.dropout(self.embed(input_ids)), []
        for at, layer in enumerate(self.layers):
            layer.self_attn.first = 0 if position_ids is None else int(position_ids[0, 0])
            x, past = layer(x, seen, None if past_key_values is None else past_key_values[at])
            kept.append(past)
        return {"logits": self.norm(x) @ self.embed.weight.T, "past_key_values": kept}


def tokens(B=2, T=13, seed=3):
    """Tokens (B, T), and a mask by which the first sample has four tokens of padding on the left."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.ones(B, T, dtype=torch.long)
    mask[0, :4] = 0
    return torch.randint(VOCABULARY, (B, T), generator=generator), mask
