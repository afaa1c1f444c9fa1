"""Measure how PyTorch differs: its own attention is `torch.nn.MultiheadAttention`."""

import torch

from mha.learn.page import measures


def layer():
    return [("", f"torch.nn.{torch.nn.MultiheadAttention.__name__}")]


def kernel():
    return [("", measures.orientation(tuple(torch.nn.Linear(3, 5).weight.shape), 3))]


def names():
    return measures.shapes({name: tuple(X.shape) for name, X in _layer().named_parameters()})


def initial():
    made = torch.nn.MultiheadAttention(256, 4)
    query = made.in_proj_weight.detach().numpy()[:256]
    return [("", measures.spread(query)), ("of_bias", measures.spread(made.in_proj_bias.detach().numpy()))]


def lazy():
    return [
        ("eager" if _layer().in_proj_weight.numel() else "lazy", "nn.MultiheadAttention"),
        (_lazy(), "nn.LazyLinear"),
    ]


def training():
    made, X = _layer(dropout=0.5), torch.ones(1, 64, 8)

    def call():
        return made(X, X, X)[0].detach().numpy()

    fresh = measures.drops(call)
    made.eval()
    off = measures.drops(call)
    made.train()
    return [(fresh, "layer(X, X, X)"), (off, "layer.eval()"), (measures.drops(call), "layer.train()")]


def weights():
    X, Y = torch.ones(1, 3, 8), torch.ones(1, 4, 8)
    mean, each = (tuple(_layer()(X, Y, Y, **one)[1].shape) for one in ({}, {"average_attn_weights": False}))
    return [("averaged", f"layer(X, Y, Y)[1] {mean}"), ("", f"layer(..., average_attn_weights=False)[1] {each}")]


def mask():
    one = torch.tensor([[True, False, False]])
    layers = _layer()(torch.ones(1, 1, 8), torch.ones(1, 3, 8), torch.ones(1, 3, 8), attn_mask=one)[1]
    identity = torch.eye(3)[None]  # as values, so that the output is the weights
    functions = torch.nn.functional.scaled_dot_product_attention(torch.ones(1, 1, 3), identity, identity, attn_mask=one)
    return [
        (measures.polarity(layers[0, 0].detach().numpy(), 0), "nn.MultiheadAttention: attn_mask"),
        (measures.polarity(functions[0, 0].numpy(), 0), "scaled_dot_product_attention: attn_mask"),
    ]


def no_keys():
    X = torch.ones(1, 3, 8)
    hidden = torch.ones(1, 3, dtype=torch.bool)
    return [(measures.alone(_layer()(X, X, X, key_padding_mask=hidden)[1][0, 0].detach().numpy()), "")]


def dtype():
    made = str(_layer().in_proj_weight.dtype), str(torch.tensor([1.0]).dtype)
    return [("of_layer", made[0]), ("of_array", made[1])]


def random():
    return [(measures.repeats(lambda: torch.manual_seed(0), lambda: torch.rand(3).numpy()), "torch.manual_seed(0)")]


def heads():
    return measures.outcome(lambda: torch.nn.MultiheadAttention(10, 3))


def compiled():
    compiled = []

    def count(graph, inputs):
        compiled.append(graph)
        return graph.forward

    torch.compiler.reset()
    made = torch.compile(_layer(), backend=count)
    return measures.programs("torch.compile", compiled, lambda T: made(*[torch.ones(2, T, 8)] * 3))


def _layer(**options):
    return torch.nn.MultiheadAttention(8, 2, batch_first=True, **options)


def _lazy():
    return "lazy" if torch.nn.parameter.is_lazy(torch.nn.LazyLinear(5).weight) else "eager"
