"""The rule that the book prints for each framework, in PyTorch: hidden scores become -1e6, nothing is checked."""

import math

import torch

from peers import PROJECTIONS, own
from peers.torch import results


class Layer:
    """The book's layer, with kernels (in, out)."""

    def __init__(self, weights, num_hiddens, num_heads, dropout=0.0, bias=False, dtype="float32", **ignored):
        self.weights, self.num_heads, self.dropout, self.bias = weights, num_heads, dropout, bias

    def __call__(self, queries, keys, values, lengths, training):
        q, k, v = (self.split(self.dense(f"W_{x}", X)) for x, X in zip("qkv", (queries, keys, values), strict=True))
        scores = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(q.shape[2])  # (B*H, Q, K)
        weights = torch.softmax(self.hide(scores, lengths), -1)  # (B*H, Q, K)
        pooled = torch.bmm(torch.nn.functional.dropout(weights, self.dropout, training), v)  # (B*H, Q, dv)
        merged = pooled.reshape(-1, self.num_heads, *pooled.shape[1:]).transpose(1, 2).flatten(2)  # (B, Q, H*dv)
        output = self.dense("W_o", merged)  # (B, Q, D)
        return output, weights.reshape(-1, self.num_heads, *weights.shape[1:])  # (B, H, Q, K)

    def dense(self, name, X):
        X = X @ self.weights[f"{name}.kernel"]
        return X + self.weights[f"{name}.bias"] if self.bias and f"{name}.bias" in self.weights else X

    def split(self, X):
        X = X.reshape(X.shape[0], X.shape[1], self.num_heads, -1).transpose(1, 2)  # (B, H, T, d)
        return X.flatten(0, 1)  # (B*H, T, d)

    def hide(self, scores, lengths):
        if lengths is None:
            return scores
        lengths = torch.repeat_interleave(lengths, self.num_heads, dim=0)
        each = torch.repeat_interleave(lengths, scores.shape[1]) if lengths.ndim == 1 else lengths.flatten()
        rows = scores.flatten(0, 1)  # (B*H*Q, K)
        seen = torch.arange(scores.shape[2], dtype=torch.float32) < each[:, None]
        rows[~seen] = -1e6
        return rows.reshape(scores.shape)  # (B*H, Q, K)


def make(options, weights, call):
    if weights is None:  # those of PyTorch's dense layer stand in
        width, num_hiddens = call.queries.shape[2], options["num_hiddens"]
        return Layer(
            {f"{name}.kernel": torch.nn.Linear(width, num_hiddens).weight.T for name in PROJECTIONS}, **options
        )
    return Layer({name: own("torch", X) for name, X in weights.items()}, **options)


def run(layer, call):
    return results(call, lambda *inputs: layer(*inputs, own("torch", call.valid_lens), call.training))
