"""Calls in which every known mistake of `mha.parity` can be made, and what an implementation with it would give."""

import dataclasses
import functools
from typing import Any

import numpy as np

import mha
from mha.core.call import ROWS
from mha.core.options.config import numpy_dtype
from mha.parity.diagnosis.mistakes.bench import Bench
from mha.parity.diagnosis.pipeline.parts import PART_OF
from mha.parity.diagnosis.pipeline.plan import make_plan
from mha.parity.rule.problem import problem

SQUARE = {"num_hiddens": 24, "num_heads": 4, "bias": True}
MODERN = SQUARE | {"num_key_value_heads": 2, "scale": 0.7, "softcap": 1.5, "window": (2, 1), "qk_norm": "rms"}


@dataclasses.dataclass(frozen=True)
class Call:
    """A layer and a call of it, with random numbers that are the same in every run."""

    options: dict[str, Any]
    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    Q: int = 5
    K: int = 7
    nan: bool = False
    times: float = 1.0  # of queries and keys

    @functools.cached_property
    def benches(self):
        """By dtype, the pipeline of this call, in which much is computed once for all mistakes."""
        return {}

    def bench(self, dtype):
        if dtype not in self.benches:
            layer, inputs, arguments = self.made(dtype)
            self.benches[dtype] = Bench(problem(layer, *inputs, DEFAULTS | arguments, None), dtype, slice(None))
        return self.benches[dtype]

    def made(self, dtype="float32", backend="numpy"):
        """The layer, queries, keys and values, and the other arguments by name."""
        rng = np.random.default_rng(7)
        layer = mha.MultiHeadAttention(**self.options, dtype=dtype, seed=1, backend="numpy")
        layer.weights = {
            name: (X if X.ndim == 2 else rng.normal(1, 0.5, X.shape)).astype(X.dtype)
            for name, X in layer.weights.items()
        }
        width, B = self.options["num_hiddens"], 3
        inputs = [rng.normal(size=(B, T, width)).astype(numpy_dtype(dtype)) for T in (self.Q, *[self.K] * 2)]
        inputs[:2] = [X * X.dtype.type(self.times) for X in inputs[:2]]
        if self.nan:
            inputs[2][:, -1] = np.nan
        call = dict(self.arguments)
        for name, shape in (("score_bias", (1, 4, self.Q, self.K)), ("head_gates", (B, 4))):
            if name in call:
                given = rng.normal(size=shape) if call[name] is True else call[name]
                call[name] = given.astype(numpy_dtype(dtype))
        return layer.to(backend), inputs, call


DEFAULTS = {name: row.default for name, row in ROWS.items()}
PADDED = {"positions": [[-1, 3, 4, 5, 6], [1, 2, 2, 3, 3], [0, 1, 2, 3, 4]], "key_positions": [-1, 5, 4, 3, 2, 1, 0]}
PACKED = {
    "segments": [[0, 0, 1, 1, 2], [3, 3, -1, 0, 0]],
    "key_segments": [[0, 0, 0, 1, 1, 2, -1], [3, 3, -1, -1, 0, 0, 0]],
}
PACKED = {name: [*rows, rows[0]] for name, rows in PACKED.items()}
SQUARE_MASK = np.random.default_rng(8).random((3, 1, 7, 7)) < 0.7
MASK = np.random.default_rng(3).random((3, 4, 5, 7)) < 0.7
ROTARY = mha.Rotary(4, base=500.0)
SLOPES = 2.0 ** (-8 * np.arange(1, 7) / 6)
BUCKETS = np.random.default_rng(4).normal(size=(32, 4)).astype("float32")[mha.t5_buckets(5, 7)]  # (Q, K, H)
LONG = np.arange(7) < np.array([4, 7, 5])[:, None]  # (B, K)
IN_ORDER = (LONG[:, None] & np.tri(7, dtype=bool))[:, None]
OF_SAMPLES, OF_HEADS = (np.random.default_rng(5).normal(size=shape) for shape in ((3, 1, 5, 7), (1, 3, 5, 7)))
MASKED = {"mask": MASK[:, :1]}
THREE, SIX = SQUARE | {"num_heads": 3}, SQUARE | {"num_heads": 6}
TEXTS = np.array([[-1, 0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 2, 2, 2], [0, 0, 0, 0, 0, 1, 1]])
PLACES = np.array([[0, 0, 1, 2, 0, 1, 2], [0, 1, 0, 1, 0, 1, 2], [0, 1, 2, 3, 4, 0, 1]])
TEXTS, PLACES = ({name: X, f"key_{name}": X} for name, X in (("segments", TEXTS), ("positions", PLACES)))
# A mistake is tried in the first of these calls in which it can be made and changes the output.
CALLS = (
    Call(SQUARE, {"valid_lens": [4, 0, 6]}),
    Call(SQUARE, {"valid_lens": [3, 6, 5]}, Q=7),
    Call(SQUARE, {"mask": MASK}),
    Call(SQUARE, {"causal": True, "offset": 1}),
    Call(SQUARE, {"causal": True}),
    Call(SQUARE, {"valid_lens": [4, 5, 6]}, nan=True),
    Call(MODERN, {"score_bias": True, "head_gates": True, "offset": 2}),
    Call(MODERN | {"qk_norm": mha.Norm("layer", 0.02), "rotary": ROTARY}, {"offset": [30, 2, 3]}),
    Call(MODERN | {"rotary": ROTARY, "window": (1, None)}, {"offset": 1}),
    Call(SQUARE | {"rotary": mha.Rotary(4, frequencies=(1.0, 0.002))}, {"offset": [300, 2, 3]}),
    Call(SQUARE | {"rotary": mha.Rotary(base=20.0)}, {"offset": [291, 2, 3]}),
    Call(SQUARE, {"valid_lens": [4, 0, 6], "causal": True}),
    Call(SQUARE | {"window": (2, 1)}, {"valid_lens": [4, 0, 6], "causal": True}),
    Call(SQUARE, {"mask": SQUARE_MASK}, Q=7),
    Call(SQUARE, {"score_bias": BUCKETS.transpose(2, 0, 1)[None]}),
    Call(SQUARE | {"num_heads": 6, "num_key_value_heads": 2}, {"score_bias": mha.alibi(6, 7)}),
    Call(SQUARE | {"num_heads": 6}, {"score_bias": (SLOPES[:, None, None] * np.arange(7))[None]}),
    Call(MODERN | {"rotary": ROTARY, "window": None, "qk_norm": None}, {"offset": [8300, 4200, 900]}),
    Call(SQUARE, {"valid_lens": [1031, 90, 300]}, K=1031),
    Call(SQUARE, {"causal": True} | PADDED),
    Call(SQUARE | {"window": (2, 1)}, PADDED),
    Call(SQUARE | {"rotary": ROTARY}, PADDED),
    Call(SQUARE | {"chunk": 3}, {"causal": True, "offset": 1}),
    Call(SQUARE | {"chunk": 3}, PADDED),
    Call(SQUARE, PACKED),
    Call(SQUARE | {"rotary": ROTARY, "qk_norm": mha.Norm("rms", 0.02, "all", after=True)}, {"offset": [30, 2, 3]}),
    Call(SQUARE | {"value_norm": mha.Norm("rms", 0.02)}, {"valid_lens": [4, 0, 6]}),
    Call(SQUARE | {"temperature": mha.Temperature(0.4, 2)}, {"offset": [3, 0, 6]}),
    Call(SQUARE | {"rotary": mha.Rotary(2, magnitude=1.3)}, {"offset": [7, 2, 3]}),
    Call(SQUARE | {"num_heads": 6, "num_key_value_heads": 2, "softcap": 1.5, "sinks": True}, {"valid_lens": [4, 0, 6]}),
    Call(SQUARE | {"num_heads": 6, "num_key_value_heads": 2, "output_gate": "element"}, {"valid_lens": [4, 0, 6]}),
    Call(SQUARE, {"mask": IN_ORDER}, Q=7),
    Call(SQUARE, {"valid_lens": [4, 7, 5], "causal": True}, Q=7),
    Call(SQUARE | {"softcap": 1.5}, {"valid_lens": [4, 7, 5], "causal": True, "score_bias": True}),
    Call(SQUARE, {"score_bias": np.where(MASK[:, :1], OF_SAMPLES, -np.inf)}),
    Call(SQUARE, MASKED | {"valid_lens": [4, 7, 5]}),
    Call(SQUARE | {"num_key_value_heads": 2}, MASKED),
    Call(SQUARE | {"num_key_value_heads": 2}, {"score_bias": OF_SAMPLES}),
    Call(THREE, MASKED | {"score_bias": OF_HEADS}),
    Call(THREE, {"mask": MASK[:1, :3]}),
    Call(THREE, {"score_bias": OF_SAMPLES}),
    *(Call(SIX | {"num_key_value_heads": G}, given) for G in (3, 2) for given in (MASKED, {"score_bias": OF_SAMPLES})),
    *(Call(SQUARE, given, Q=3) for given in ({"mask": LONG[:, None]}, {"score_bias": OF_SAMPLES[:, :, :1]})),
    Call(SQUARE, {"causal": True} | TEXTS, Q=7),
    Call(SQUARE, {"causal": True} | TEXTS | PLACES, Q=7),
    Call(SQUARE, {"causal": True} | PLACES, Q=7),
    Call(SQUARE | {"rotary": ROTARY}, {"causal": True} | TEXTS, Q=7),
    Call(SQUARE | {"rotary": ROTARY}, {"causal": True} | TEXTS | PLACES, Q=7),
    Call(SQUARE | {"rotary": mha.Rotary(base=50.0, frequencies=(1.0, 50 ** (-1 / 3), 0.0))}, {"offset": [7, 2, 3]}),
    Call(
        SQUARE | {"num_heads": 6, "num_key_value_heads": 2, "key_dim": 12, "rotary": mha.Rotary(base=20.0)},
        {"offset": [7, 2, 3]},
    ),
    Call(SQUARE, {"valid_lens": [4, 3, 6]}, times=300.0),
)  # fmt: skip


def with_mistake(state, call, names=("output",), dtype="float32", right=False):
    """The results of an implementation with a mistake, or several, by name; None if it is made, or shows, nowhere.

    names: None = every step; right: what one without the mistake gives.
    """
    state, bench = state if isinstance(state, tuple) else (state,), call.bench(dtype)
    steps = [name for name in names or PART_OF if bench.steps((), name) is not None]
    with np.errstate(all="ignore"):
        expected = bench.all_of((), steps)
        found = bench.all_of(state, [name for name in steps if bench.steps(state, name) is not None])
    bench.forget()
    if right or not found:
        return expected if right else None
    shown = [name for name, X in found.items() if not alike(X, expected[name])]
    return found if shown else None


def planted_in(form, names=("output",), dtype="float32"):
    """The first call in which a mistake shows, and what an implementation with it gives there; None, if in none."""
    for call in CALLS:
        if (theirs := with_mistake(form, call, names, dtype)) is not None:
            return call, {name: X for name, X in theirs.items() if X is not None}
    return None


def possible(change, call, dtype="float32"):
    """Whether a mistake can be made in a call."""
    layer, inputs, arguments = call.made(dtype)
    return change(make_plan(problem(layer, *inputs, DEFAULTS | arguments, None), dtype)) is not None


def alike(X, expected):
    """Whether two arrays are nearly the same."""
    return X.shape == expected.shape and np.allclose(X, expected, rtol=0, atol=1e-4, equal_nan=True)
