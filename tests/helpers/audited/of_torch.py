"""Models of PyTorch."""

import torch
from torch import nn
from torch.nn import functional

import audited
from audited import B, D, H, Model, T, attend

BACKEND = "torch"
KINDS = "encoder", "tokens_first", "taught"
LIKE = "encoder"


def state(model):
    """What an audit has to leave as it was."""
    hooks = [(len(one._forward_hooks), len(one._forward_pre_hooks), one.training) for one in model.modules()]
    return hooks, torch.backends.mha.get_fastpath_enabled(), [X.clone() for X in model.state_dict().values()]


def drawn(model):
    """The model with random numbers in each array."""
    torch.manual_seed(5)
    with torch.no_grad():
        for X in model.parameters():
            X.normal_(std=0.4)
    return model


class Wrong(nn.MultiheadAttention):
    """The framework's layer, which forgets its masks, or its scale."""

    mistake = ""

    def forward(self, query, key, value, **options):
        if self.mistake == "mask":
            options["attn_mask"] = None
            options["is_causal"] = False
        if self.mistake == "scale":
            query = query * (D / H) ** 0.5
        return super().forward(query, key, value, **options)


def encoder(mistake):
    """`nn.TransformerEncoder`, with a mask of the order and padding, as its users call it."""
    layer = nn.TransformerEncoderLayer(D, H, 29, dropout=0.3, batch_first=True, bias=False)
    model = drawn(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)).train()
    if mistake == "kernel":
        with torch.no_grad():
            model.layers[1].self_attn.out_proj.weight.copy_(model.layers[1].self_attn.out_proj.weight.T.clone())
    elif mistake:
        model.layers[1].self_attn.__class__ = Wrong
        model.layers[1].self_attn.mistake = mistake
    order = nn.Transformer.generate_square_subsequent_mask(T)
    padding = torch.arange(T) >= torch.tensor(audited.LENGTHS)[:, None]
    options = {"mask": order, "src_key_padding_mask": torch.zeros(B, T).masked_fill(padding, -torch.inf)}
    paths = ["layers.0.self_attn", "layers.1.self_attn"]
    return Model(model, (torch.tensor(audited.inputs()),), paths, state, options)


class First(nn.Module):
    """Two of the framework's layers whose batch is not the first axis."""

    def __init__(self, mistake):
        super().__init__()
        self.parts = nn.ModuleList([nn.MultiheadAttention(D, H, bias=False), Wrong(D, H, bias=False)])
        self.parts[1].mistake = mistake

    def forward(self, X):
        hidden = torch.ones(T, T, dtype=torch.bool).triu(1)
        for part in self.parts:
            X = X + part(X, X, X, attn_mask=hidden, need_weights=False)[0]
        return X


def tokens_first(mistake):
    """Layers of tokens, then samples."""
    X = torch.tensor(audited.inputs()).swapaxes(0, 1)
    return Model(drawn(First(mistake)).eval(), (X,), ["parts.0", "parts.1"], state)


class Attention(nn.Module):
    """A layer by hand."""

    def __init__(self, mistake):
        super().__init__()
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(D, D) for _ in range(4))
        self.mistake = mistake

    def forward(self, X):
        q, k, v = self.to_q(X), self.to_k(X), self.to_v(X)
        pooled = attend(torch, lambda scores: functional.softmax(scores, -1), q, k, v, self.mistake)
        return self.to_out(functional.dropout(pooled, 0.5, self.training))


class ByHand(nn.Module):
    """Two layers by hand."""

    def __init__(self, mistake):
        super().__init__()
        self.blocks = nn.ModuleList([Attention(""), Attention(mistake)])

    def forward(self, X):
        for block in self.blocks:
            X = X + block(X)
        return X


def taught(mistake):
    """Layers by hand, whose projections are to be taught."""
    return Model(
        drawn(ByHand(mistake)).train(), (torch.tensor(audited.inputs()),), ["blocks.0", "blocks.1"], state,
        layers={"blocks.*": audited.TAUGHT},
    )  # fmt: skip
