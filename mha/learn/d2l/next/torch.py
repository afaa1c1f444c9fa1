"""The names of the book's next edition in PyTorch: `from mha.d2l.next import torch as d2l`.

Its layer and its pooling are the same as today's. The other files beside have what all frameworks share.
"""

import itertools

from mha.core import dispatch

dispatch.load("torch")  # first: if the framework is missing, this says how to install it

import torch
from torch import nn

from mha.arrays import check_shape, masked_softmax
from mha.backends.torch import layer, pooling
from mha.backends.torch.arrays import tensor as own
from mha.backends.torch.heads import transpose_qkv
from mha.backends.torch.weights import dense
from mha.core.options.config import Config
from mha.learn.d2l.common import show_heatmaps
from mha.learn.d2l.next import model, text
from mha.learn.d2l.next.names import __getattr__, add_to_class, plot
from mha.learn.d2l.torch import DotProductAttention, MultiHeadAttention, ones, tensor

Module = nn.Module


class TinyCharLM(model.CharModel, nn.Module):
    """The book's language model of characters, with attention alone; a block has the dense layers `qkv` and `proj`.

    pos: "learned" or "sinusoidal" = added to the embeddings, "rope" = rotation, "alibi" = linear biases, or "none".
    """

    def __init__(self, vocab_size, num_hiddens=128, num_heads=4, num_blks=2, pos="rope", max_len=512, bias=False):
        super().__init__()
        config = self.describe(num_hiddens, num_heads, pos, max_len, bias)
        self.token_emb = embedding(vocab_size, num_hiddens)
        if pos == "learned":
            self.pos_emb = embedding(max_len, num_hiddens)
        if pos == "sinusoidal":
            self.register_buffer("P", own(model.waves(max_len, num_hiddens)))
        self.blks = nn.ModuleList([Block(config) for _ in range(num_blks)])

    def forward(self, X):
        """Scores (B, T, vocab_size) of the character after each one of X (B, T)."""
        return nn.functional.linear(self.through(X)[0], self.token_emb.weight)

    def embed(self, X):
        """Characters X (B, T) as rows (B, T, D), with their positions where they are added."""
        rows, T = self.token_emb(X), X.shape[1]
        if self.pos == "learned":
            return rows + self.pos_emb.weight[:T]
        return rows + self.P[:T] if self.pos == "sinusoidal" else rows


class Block(layer.MultiHeadAttention):
    """The lesson's layer, whose three first projections are one, `block["qkv"]`; the last is `block["proj"]`."""

    W_o = property(lambda self: self.proj)

    def __init__(self, config: Config):
        nn.Module.__init__(self)
        self.config = config
        self.qkv = dense(config.num_hiddens, 3 * config.num_hiddens, config.bias, config.dtype)
        self.proj = dense(config.num_hiddens, config.num_hiddens, config.bias, config.dtype)
        self.attention = pooling.pooling(config)

    def __getitem__(self, name):
        return self.get_submodule(name)

    def project(self, queries, keys, values, call):
        """Heads of queries, keys and values, (B*H, T, d) each, all of the queries; and the call."""
        q, k, v = (transpose_qkv(X, self.config.num_heads) for X in self.qkv(queries).chunk(3, -1))  # (B*H, T, d)
        return q, k, v, call


def embedding(count, width):
    """An embedding of so many rows, with the book's initial numbers."""
    made = nn.Embedding(count, width)
    nn.init.normal_(made.weight, std=model.STD)
    return made


class TimeMachine(text.TimeMachine):
    """The windows of a text, as PyTorch's tensors."""

    def batches(self, windows, shuffle):
        windows = own(windows)
        pairs = torch.utils.data.TensorDataset(windows[:, :-1], windows[:, 1:])
        return torch.utils.data.DataLoader(pairs, self.batch_size, shuffle=shuffle)


def train_lm(model, data, optimizer, num_steps):
    """Train a model to say the next character, for so many batches; returns the losses."""
    device, losses = try_gpu(), []
    model.to(device)
    for X, Y in itertools.islice(text.forever(data), num_steps):
        loss = nn.functional.cross_entropy(model(X.to(device)).flatten(0, 1), Y.to(device).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def try_gpu(i=0):
    """The GPU of this number, or the CPU where there is none."""
    return torch.device(f"cuda:{i}" if torch.cuda.device_count() > i else "cpu")
