"""Cases of the suite whose layer and integers lie on a GPU, and what they are called with."""

import dataclasses

import numpy as np

from mha import Norm, Rotary
from mha.parity import Case

ROTARY, NORM, GATE = Rotary(10), Norm("rms", 0.01), "element"
KERNEL_WIDTHS = {"num_hiddens": 96, "num_heads": 6, "num_key_value_heads": 3, "query_size": 31, "value_size": 29}
BOUND = {"bias": True}
BATCH = 3


@dataclasses.dataclass(frozen=True)
class Placed(Case):
    """A case on a GPU. far: whether lengths and other integers lie there, too; else they are known as it is called."""

    framework: str = "torch"
    far: bool = True
    batch: int = BATCH

    def layer(self, backend, dtype, **options):
        """The layer of the case; that of PyTorch is moved, JAX puts arrays on a GPU by itself."""
        attention = super().layer(backend, dtype, **options)
        if backend == "torch":
            attention.layer.to("cuda")
        return attention

    def call(self, dtype):
        """The arguments of the call, of which integers and booleans are where the case says."""
        call = super().call(dtype)
        if not self.far:
            return call
        return {name: self.moved(X) if isinstance(X, list) or is_plain(X) else X for name, X in call.items()}

    def visible(self):
        """Which query sees which key, by what is known on the processor."""
        return dataclasses.replace(self, far=False).visible() if self.far else super().visible()

    def moved(self, X):
        """Integers or booleans on the GPU."""
        if self.framework == "torch":
            import torch

            return torch.tensor(X, device="cuda")
        from jax import numpy as jnp

        return jnp.asarray(X)


def is_plain(X):
    """Whether X is an array of NumPy that no float64 oracle has to widen."""
    return isinstance(X, np.ndarray) and X.dtype.kind in "bi"


def is_floats(X):
    """Whether X is an array of NumPy with floats."""
    return isinstance(X, np.ndarray) and not is_plain(X)


def lengths(size):
    """Of one sample all keys, of one few, of one none."""
    return [size, size // 3 + 1, 0]


def texts(size):
    """Packed texts: two in one sample, padding behind them in another, one text in the last."""
    half = size // 2
    return [[0] * half + [1] * (size - half), [0] * half + [-1] * (size - half), [4] * size]


def options(size):
    """Every option alone, by name: of the layer, and of its call with so many tokens."""
    return {
        "none": ({}, {}),
        "order": ({}, {"causal": True}),
        "lengths": ({}, {"valid_lens": lengths(size)}),
        "a length for each query": ({}, {"valid_lens": [[(3 * i) % (size + 1) for i in range(size)]] * BATCH}),
        "mask": ({}, {"mask": (BATCH, 1, size, size)}),
        "mask of heads": ({}, {"mask": (BATCH, 6, size, size)}),
        "bias": ({}, {"score_bias": (1, 6, size, size)}),
        "offset": ({}, {"causal": True, "offset": -3}),
        "offsets": ({}, {"causal": True, "offset": [0, 5, -2]}),
        "positions": ({}, {"causal": True, "positions": [[*range(size - 1), -1]] * BATCH}),
        "segments": ({}, {"segments": texts(size)}),
        "gates of heads": ({}, {"head_gates": (BATCH, 6)}),
        "window": ({"window": (7, 3)}, {"valid_lens": lengths(size)}),
        "window, order": ({"window": (7, 0)}, {"causal": True}),
        "lengths, window, order": ({"window": (7, 0)}, {"causal": True, "valid_lens": lengths(size)}),
        "chunk": ({"chunk": 8}, {"causal": True}),
        "cap": ({"softcap": 1.5}, {"causal": True}),
        "sinks": ({"sinks": True}, {"valid_lens": lengths(size)}),
        "rotation": ({"rotary": ROTARY}, {"causal": True}),
        "norm": ({"qk_norm": NORM}, {"causal": True}),
        "output gate": ({"output_gate": GATE}, {}),
        "values of another width": ({"value_dim": 24}, {"valid_lens": lengths(size)}),
        "additive": ({"pooling": "additive"}, {"valid_lens": lengths(size)}),
        "all": (
            {"window": (size // 2, 3), "softcap": 1.5, "sinks": True, "rotary": ROTARY, "qk_norm": NORM, "scale": 0.3},
            {"valid_lens": lengths(size), "segments": texts(size), "causal": True},
        ),
    }  # fmt: skip


def case(name, size, **more):
    """One of `options` as a case of so many queries and keys."""
    layer, call = options(size)[name]
    sizes = {"num_queries": size, "num_keys": size}
    return Placed(f"{name}, {size}", KERNEL_WIDTHS | BOUND | layer, **sizes, **call, **more)
