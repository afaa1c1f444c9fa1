"""The attention of the frameworks themselves and of the book, each made and called in one place: `peers.of("torch")`.

A module here, imported on use, is one peer:
    make(options, weights, call) -> a layer with these options, in the names of `mha.MultiHeadAttention`, and these
        canonical weights, or with random ones if they are None; call is the first that it will get
    run(layer, call) -> the output, the attention weights (B, H, Q, K) if there are any, and the gradients if the call
        has a cotangent: NumPy arrays under our names, in our layouts, found without the conversions of `mha`
    new(**options) -> a layer with random weights and biases, with options in the framework's own names
    Decoder(attention, batch_size, size) -> the framework's own layer with the weights of ours and a cache of its own:
        a call takes one token (B, 1, D) and gives its output; `cache` is what it keeps, and can be set
A peer that cannot be made of options of ours, has none of its own, or keeps nothing, lacks `make`, `new` or `Decoder`.

Letters: B batch, Q queries, K key-value pairs, H heads, D num_hiddens, d and dv widths of a query or key head and of a
value head.
"""

import dataclasses
import functools
import importlib
from typing import Any

import numpy as np

from mha.core import dispatch
from mha.weights import foreign

# The peer that knows how to run layers of a kind; "ours" for all others.
RUN_BY = {
    "torch.nn.MultiheadAttention": "torch",
    "keras.layers.MultiHeadAttention": "keras",
    "keras.layers.GroupQueryAttention": "keras_grouped",
    "flax.linen.MultiHeadDotProductAttention": "linen",
    "flax.linen.MultiHeadAttention": "linen",
    "flax.nnx.MultiHeadAttention": "nnx",
    "mlx.nn.MultiHeadAttention": "mlx",
    "mha.d2l.jax.MultiHeadAttention": "d2l_jax",
}
# What can be made of one of our layers and become one, by its name: the peer that runs it, and its backend.
KINDS = {name: ("ours", name) for name in dispatch.FRAMEWORKS}
KINDS |= {kind: (RUN_BY.get(kind, "ours"), backend) for kind, backend in foreign.KINDS.items()}
WITHOUT_WEIGHTS = ("mlx.nn.MultiHeadAttention",)  # kinds whose calls give none
PROJECTIONS = ("W_q", "W_k", "W_v", "W_o")
INPUTS = ("queries", "keys", "values")


def of(name):
    """The module of a peer, which imports its framework only now."""
    return importlib.import_module(f"peers.{name}")


def of_kind(kind):
    """The module that runs the layers of a kind."""
    return of(KINDS[kind][0])


def backend_of(kind):
    """The backend whose framework a kind of layer needs; None if its folder is gone."""
    return KINDS.get(kind, (None, None))[1]


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of an attention layer, in the names of `mha.MultiHeadAttention`.

    own_mask: whether a peer gets the mask as it is, instead of in its own convention; cotangent: (B, Q, D), where
    gradients are wanted. What is no NumPy array reaches the peer as it is, and a function is called with the name of
    a backend for an array of that one.
    """

    queries: Any
    keys: Any
    values: Any
    valid_lens: Any = None
    mask: Any = None
    causal: bool = False
    training: bool = False
    return_weights: bool = True
    own_mask: bool = False
    cotangent: Any = None

    @property
    def inputs(self):
        """Queries, keys and values."""
        return [self.queries, self.keys, self.values]

    def widened(self):
        """The same call in float64."""
        names = [*INPUTS, "cotangent"] if self.cotangent is not None else INPUTS
        return dataclasses.replace(self, **{name: getattr(self, name).astype("float64") for name in names})

    @property
    def only_causal(self):
        """Whether causal order alone hides keys, for which some peers have an option."""
        return self.causal and self.valid_lens is self.mask is None

    def seen(self):
        """Which query sees which key by lengths, mask and causal order, (B, 1 or H, 1 or Q, K); None if all do."""
        conditions = []
        if self.valid_lens is not None:
            lengths, keys = np.asarray(self.valid_lens), np.arange(self.keys.shape[1])
            per_query = lengths[:, None] if lengths.ndim == 1 else lengths  # (B, 1 or Q)
            conditions.append((per_query[..., None] > keys)[:, None])  # (B, 1, 1 or Q, K)
        if self.mask is not None:
            rank = self.mask.ndim
            conditions.append(self.mask if rank == 4 else self.mask[:, None] if rank == 3 else self.mask[None, None])
        if self.causal:
            queries, keys = (np.arange(X.shape[1]) for X in (self.queries, self.keys))
            conditions.append((queries[:, None] >= keys)[None, None])  # (1, 1, Q, K)
        if not conditions:
            return None
        seen = functools.reduce(np.logical_and, conditions)
        return np.broadcast_to(seen, (len(self.queries), *seen.shape[1:]))


# For the modules here


def own(backend, value):
    """A NumPy array as the framework's own; a function's array for this backend; anything else as it is."""
    if callable(value):
        return value(backend)
    return dispatch.load(backend).tensor(value) if isinstance(value, np.ndarray) else value


def own_inputs(call, backend):
    """Queries, keys and values as the framework's own."""
    return [own(backend, X) for X in call.inputs]


def renamed(options, **names):
    """Options under a peer's own names; those named None it does without."""
    return {names.get(name, name): value for name, value in options.items() if names.get(name, name) is not None}


def merged(name, X):
    """A kernel or bias whose heads have an axis of their own, in our layout; any other array as it is."""
    X = np.asarray(X)
    if name == "W_o.kernel":
        return X.reshape(-1, X.shape[-1])  # (H*dv, D)
    if name.endswith("kernel"):
        return X.reshape(len(X), -1)  # (in, H*d)
    return X.reshape(-1) if name.endswith("bias") else X  # (H*d,)
