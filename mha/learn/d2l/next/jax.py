"""The names of the book's next edition in JAX, with Flax's NNX: `from mha.d2l.next import jax as d2l`.

Its layer and its pooling are in `nnx.py`. The other files beside have what all frameworks share.
"""

import itertools

from mha.core import dispatch

dispatch.load("jax")  # first: if the framework is missing, this says how to install it

import jax
import numpy as np
from flax import nnx
from jax import numpy as jnp

from mha.arrays import check_shape, masked_softmax
from mha.backends.jax.heads import transpose_qkv
from mha.learn.d2l.common import show_heatmaps
from mha.learn.d2l.jax import ones, tensor
from mha.learn.d2l.next import model, text
from mha.learn.d2l.next.names import __getattr__, add_to_class, plot
from mha.learn.d2l.next.nnx import DotProductAttention, MultiHeadAttention, Pooling, Steps, dense


class TinyCharLM(model.CharModel, nnx.Module):
    """The book's language model of characters, with attention alone; a block has the dense layers `qkv` and `proj`.

    pos: "learned" or "sinusoidal" = added to the embeddings, "rope" = rotation, "alibi" = linear biases, or "none".
    """

    def __init__(
        self, vocab_size, num_hiddens=128, num_heads=4, num_blks=2, pos="rope", max_len=512, bias=False, rngs=None
    ):
        rngs = nnx.Rngs(0) if rngs is None else rngs
        config = self.describe(num_hiddens, num_heads, pos, max_len, bias)
        self.token_emb = embedding(vocab_size, num_hiddens, rngs)
        if pos == "learned":
            self.pos_emb = embedding(max_len, num_hiddens, rngs)
        if pos == "sinusoidal":
            self.P = nnx.Cache(jnp.asarray(model.waves(max_len, num_hiddens)))
        self.blks = nnx.List([Block(config, rngs) for _ in range(num_blks)])

    def __call__(self, X):
        """Scores (B, T, vocab_size) of the character after each one of X (B, T)."""
        return self.token_emb.attend(self.through(X)[0])

    def embed(self, X):
        """Characters X (B, T) as rows (B, T, D), with their positions where they are added."""
        rows, T = self.token_emb(X), X.shape[1]
        if self.pos == "learned":
            return rows + self.pos_emb.embedding[:T]
        return rows + self.P[:T] if self.pos == "sinusoidal" else rows


class Block(nnx.Module):
    """The lesson's layer, whose three first projections are one, `block["qkv"]`; the last is `block["proj"]`."""

    def __init__(self, config, rngs):
        self.config = config
        self.qkv = dense(config.num_hiddens, 3 * config.num_hiddens, config.bias, rngs)
        self.proj = dense(config.num_hiddens, config.num_hiddens, config.bias, rngs)

    def __getitem__(self, name):
        return {"qkv": self.qkv, "proj": self.proj}[name]

    def __call__(self, *inputs, **options):
        """Attend, with arguments and results of the lesson's layer."""
        return Packed(self.config, parts=self.parts).apply({}, *inputs, **options)

    def parts(self):
        """The parts by the names of the steps, as functions."""
        attention = Pooling(self.config.dropout, dropping=lambda weights: weights)
        return {"qkv": self.qkv.__call__, "W_o": self.proj.__call__, "attention": attention}


class Packed(Steps):
    """The lesson's layer, with one projection for queries, keys and values."""

    def project(self, queries, keys, values, call):
        """Heads of queries, keys and values, (B*H, T, d) each, all of the queries; and the call."""
        parts = jnp.split(self.qkv(queries), 3, -1)
        q, k, v = (transpose_qkv(X, self.config.num_heads) for X in parts)  # (B*H, T, d)
        return q, k, v, call


def embedding(count, width, rngs):
    """An embedding of so many rows, with the book's initial numbers."""
    return nnx.Embed(count, width, embedding_init=nnx.initializers.normal(model.STD), rngs=rngs)


class TimeMachine(text.TimeMachine):
    """The windows of a text, as NumPy's arrays, which JAX takes.

    Of those to train with, a last batch that is smaller is left out: a step would be compiled once more for it.
    """

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.random = np.random.default_rng(0)

    def batches(self, windows, shuffle):
        if shuffle:
            windows = self.random.permutation(windows)[: len(windows) // self.batch_size * self.batch_size]
        for start in range(0, len(windows), self.batch_size):
            batch = windows[start : start + self.batch_size]
            yield batch[:, :-1], batch[:, 1:]


def train_lm(model, data, optimizer, num_steps):
    """Train a model to say the next character, for so many batches; returns the losses."""
    batches = itertools.islice(text.forever(data), num_steps)
    return [float(train(model, optimizer, jnp.asarray(X), jnp.asarray(Y))) for X, Y in batches]


@nnx.jit
def train(model, optimizer, X, Y):
    """One training step on characters X and what follows each, Y, (B, T); returns the loss."""
    loss, gradients = nnx.value_and_grad(loss_of)(model, X, Y)
    optimizer.update(model, gradients)
    return loss


def loss_of(model, X, Y):
    """The mean cross-entropy of what a model says after the characters X and what follows each, Y, (B, T)."""
    says = jax.nn.log_softmax(model(X), -1)  # (B, T, vocab_size)
    return -jnp.take_along_axis(says, Y[:, :, None], -1).mean()
