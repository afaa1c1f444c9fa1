"""When two results are the same: the rules that the tests and `mha parity` measure by, and the quick suite of both.

The oracle is the NumPy backend in float64. In float64 every backend must agree with it up to rounding (logic); in a
lower precision a backend may err as far as plain NumPy of that precision does, times a small factor (precision).
"""

import dataclasses
import math
import tempfile
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.text import Text

from mha import arrays, dispatch
from mha.config import DTYPES, Config, numpy_dtype
from mha.layer import MultiHeadAttention, load, sync

# Unit roundoff: half the distance from 1 to the next number.
UNIT = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def error(result: np.ndarray, oracle: np.ndarray) -> float:
    """Largest absolute difference, infinite where only one of the two is NaN or infinite, or the shapes differ."""
    if result.shape != oracle.shape:
        return np.inf
    result, oracle = result.astype(np.float64), oracle.astype(np.float64)
    same = (result == oracle) | (np.isnan(result) & np.isnan(oracle))
    if not np.isfinite(result[~same]).all() or not np.isfinite(oracle[~same]).all():
        return np.inf
    return float(np.abs(result[~same] - oracle[~same]).max(initial=0.0))


def largest(oracle: np.ndarray) -> float:
    """Largest finite magnitude."""
    return float(np.abs(oracle[np.isfinite(oracle)]).max(initial=0.0))


def bound(dtype: str, oracle: np.ndarray, base: np.ndarray, *, gradient: bool = False, scale: float = 0.0) -> float:
    """How far a result in this dtype may be from the float64 oracle.

    Args:
        dtype: of the result.
        oracle: the float64 result of the NumPy backend.
        base: the result of the NumPy backend in `dtype`.
        gradient: whether it is a gradient, which accumulates more rounding.
        scale: a magnitude to measure rounding against where the oracle itself is nothing but rounding.
    """
    size = max(largest(oracle), scale)
    if dtype == "float64":
        return (1e-10 if gradient else 1e-12) * size
    return (16 if gradient else 8) * error(base, oracle) + 16 * UNIT[dtype] * size


def ratio(
    attention: MultiHeadAttention,
    output: Any,
    queries: Any,
    keys: Any,
    values: Any,
    valid_lens: Any = None,
    *,
    mask: Any = None,
    causal: bool = False,
) -> float:
    """How far another implementation's output is from a layer's, as a part of what rounding explains: the same if <= 1.

    Args:
        attention: the layer, on any backend, whose weights the other implementation should have.
        output: what that gave, without dropout, (B, Q, D) in the layer's dtype.
        queries, keys, values, valid_lens, mask, causal: what it was called with, as for the layer.

    Returns:
        The largest difference from float64 NumPy, divided by how large it may be; infinite if the shapes differ, or if
        one has NaN or infinity where the other has not.

    Raises TypeError and ValueError as a call of the layer does, TypeError if output has another dtype, and ValueError
    if NumPy itself overflows in that dtype, so that nothing can be told.
    """
    if not isinstance(attention, MultiHeadAttention):
        raise TypeError(f"attention is a {type(attention).__name__}, expected an mha.MultiHeadAttention")
    dtype = attention.config.dtype
    dispatch.tab_of(output, "output")  # or it is no array
    found = arrays.to_numpy(output)
    if found.dtype != numpy_dtype(dtype):
        raise TypeError(f"output has dtype {found.dtype}, expected {dtype} as the layer")
    given = (queries, keys, values, valid_lens, mask)
    queries, keys, values, lengths, sees = (arrays.to_numpy(X) if hasattr(X, "dtype") else X for X in given)
    layer = attention.to("numpy")
    base = layer(queries, keys, values, lengths, mask=sees, causal=causal)  # raises what is wrong
    q, k, v = (np.asarray(X, np.float64) for X in (queries, keys, values))
    oracle = in_dtype(layer, "float64")(q, k, v, lengths, mask=sees, causal=causal)
    limit = bound(dtype, oracle, base)
    if limit == math.inf:
        raise ValueError(f"the layer overflows {dtype} with these numbers: nothing can be told; choose smaller ones")
    return _ratio(error(found, oracle), limit)


def in_dtype(attention: MultiHeadAttention, dtype: str) -> MultiHeadAttention:
    """The same layer on the same backend, its weights cast to another dtype."""
    layer = MultiHeadAttention(**vars(attention.config) | {"dtype": dtype}, backend=attention.backend)
    layer.weights = {name: X.astype(numpy_dtype(dtype)) for name, X in attention.weights.items()}
    return layer


def gradient_scale(name: str, gradients: dict[str, np.ndarray]) -> float:
    """What a gradient's rounding is measured against besides itself: 0, but for the bias of the keys.

    That bias shifts all scores of a query alike, so with dot-product pooling its gradient is 0 but for rounding.
    """
    return max(map(largest, gradients.values())) if name == "W_k.bias" else 0.0


# The quick suite

# The most general widths: letters of different primes, so that a swapped axis cannot fit.
WIDTHS = {
    "num_hiddens": 29, "num_heads": 7, "bias": True,
    "query_size": 17, "key_size": 19, "value_size": 23, "key_dim": 11, "value_dim": 13,
}  # fmt: skip
ADDITIVE = WIDTHS | {"pooling": "additive"}

Arrays = dict[str, np.ndarray]
Verdict = tuple[str, float, float]  # what was worst, its error and its bound


@dataclasses.dataclass(frozen=True)
class Case:
    """One layer and one call of it, with random numbers that are the same in every run.

    name: in the table; options: of `mha.MultiHeadAttention`; valid_lens, causal: of the call; mask: None, or the shape
    of the random mask of the call; scale: standard deviation of queries, keys and values;
    batch, num_queries, num_keys: sizes B, Q and K; dtypes: those to compare in, where the backend has them.
    """

    name: str
    options: dict[str, Any]
    valid_lens: list | None = None
    mask: tuple[int, ...] | None = None
    causal: bool = False
    scale: float = 1.0
    batch: int = 2
    num_queries: int = 3
    num_keys: int = 5
    dtypes: tuple[str, ...] = ("float32", "float64")

    def layer(self, backend: str, dtype: str) -> MultiHeadAttention:
        """The layer on a backend, with random biases; the same weights on each."""
        attention = MultiHeadAttention(**self.options, dtype=dtype, backend=backend)
        random = np.random.default_rng(1)
        attention.weights = {
            name: random.normal(size=X.shape).astype(X.dtype) if name.endswith("bias") else X
            for name, X in attention.weights.items()
        }
        return attention

    def inputs(self, dtype: str) -> tuple[np.ndarray, ...]:
        """Queries (B, Q, query_size), keys (B, K, key_size), values (B, K, value_size) and cotangent (B, Q, D)."""
        config, random = Config(**self.options), np.random.default_rng(2)
        sizes = (
            (self.scale, self.num_queries, config.query_size),
            (self.scale, self.num_keys, config.key_size),
            (self.scale, self.num_keys, config.value_size),
            (1.0, self.num_queries, config.num_hiddens),
        )
        return tuple(random.normal(0, std, (self.batch, T, D)).astype(numpy_dtype(dtype)) for std, T, D in sizes)

    def hiding(self) -> dict[str, Any]:
        """What hides keys in the call: valid_lens, mask and causal, as keyword arguments."""
        mask = None if self.mask is None else np.random.default_rng(3).random(self.mask) < 0.5
        return {"valid_lens": self.valid_lens, "mask": mask, "causal": self.causal}

    def visible(self) -> np.ndarray:
        """Which query sees which key, (B, H, Q, K), by slices and so not by the way of any backend."""
        visible = np.ones((self.batch, self.options["num_heads"], self.num_queries, self.num_keys), bool)
        for b, i in np.ndindex(self.batch, self.num_queries):
            if self.valid_lens is not None:
                length = self.valid_lens[b]
                visible[b, :, i, length if isinstance(length, int) else length[i] :] = False
            if self.causal:
                visible[b, :, i, i + 1 :] = False
        mask = self.hiding()["mask"]
        if mask is not None:
            visible &= mask[:, None] if mask.ndim == 3 else mask
        return visible


@dataclasses.dataclass(frozen=True)
class Result:
    """What one check of one backend came to: its largest error, and the bound that this must not exceed.

    where: the step, gradient or weight with the largest error, or what was raised.
    """

    backend: str
    check: str
    case: str
    dtype: str
    where: str
    error: float
    bound: float

    @property
    def ratio(self) -> float:
        """Error by bound; 0 where there is no error, infinite where there is one and none is allowed."""
        return _ratio(self.error, self.bound)

    @property
    def passed(self) -> bool:
        """Whether the error is within its bound, and the bound says something."""
        return self.error <= self.bound < np.inf


# The layers share shapes where they can: JAX compiles each anew.
CASES = (
    Case("no lengths", WIDTHS),
    Case("lengths per sample", WIDTHS, [3, 2], dtypes=DTYPES),
    Case("length zero", WIDTHS, [0, 4]),
    Case("length above K", WIDTHS, [9, 2]),
    Case("scale 0.01", WIDTHS, [3, 2], scale=1e-2, dtypes=DTYPES),
    Case("scale 30", WIDTHS, [3, 2], scale=30.0, dtypes=DTYPES),
    Case("lengths per query", WIDTHS, [[1, 4, 2], [0, 3, 9]]),
    Case("mask", WIDTHS, mask=(2, 7, 3, 5)),
    Case("mask of each sample", WIDTHS, mask=(2, 3, 5)),
    Case("causal", WIDTHS, causal=True),
    Case("lengths, mask, causal", WIDTHS, [[4, 2, 3], [5, 0, 2]], mask=(3, 5), causal=True),
    Case("additive", ADDITIVE, [3, 2], dtypes=DTYPES),
    Case("additive, scale 0.01", ADDITIVE, [3, 2], scale=1e-2),
    Case("additive, scale 30", ADDITIVE, [3, 2], scale=30.0),
    Case("additive, lengths, mask, causal", ADDITIVE, [4, 0], mask=(2, 7, 3, 5), causal=True),
    Case("equal widths, no bias", {"num_hiddens": 77, "num_heads": 7}, [3, 2]),
    Case("one head", {"num_hiddens": 11, "num_heads": 1}, [3, 2]),
    Case("head of width 1", {"num_hiddens": 7, "num_heads": 7, "bias": True}, [3, 2]),
    Case("2053 keys", WIDTHS, [2039], batch=1, num_keys=2053),
)


def plan(backends: Iterable[str]) -> list[Callable[[], list[Result]]]:
    """The quick suite on these backends: functions to be called one after the other, each giving some results.

    Raises ModuleNotFoundError, or what the framework raises, if a backend does not load.
    """
    checks: list[Callable[[], list[Result]]] = []
    for backend in backends:
        known = dispatch.load(backend).DTYPES
        checks += [partial(compare, backend, case, dtype) for case in CASES for dtype in case.dtypes if dtype in known]
        checks += [partial(check_exact, backend, dtype) for dtype in known]
    return checks


def compare(backend: str, case: Case, dtype: str) -> list[Result]:
    """A case on a backend against the float64 oracle: output, attention weights, every step and every gradient.

    Where keys are hidden, also whether they weigh exactly 0 and what padding holds has no influence at all. An error
    that is raised is a failed result, not an exception.
    """
    inputs, hiding, visible = case.inputs(dtype), case.hiding(), case.visible()
    wide = [X.astype(np.float64) for X in inputs]
    base = case.layer("numpy", dtype)
    oracle = in_dtype(base, "float64")

    def outputs(layer: MultiHeadAttention, hiding: dict[str, Any], *inputs: Any) -> Arrays:
        output, weights = layer(*inputs[:3], **hiding, return_weights=True)
        alone = layer(*inputs[:3], **hiding)  # takes another path
        return {"output": output, "weights": weights, "output alone": alone}

    def steps(layer: MultiHeadAttention, hiding: dict[str, Any], *inputs: Any) -> Arrays:
        return layer.trace(*inputs[:3], **hiding)

    def gradients(layer: MultiHeadAttention, hiding: dict[str, Any], *inputs: Any) -> Arrays:
        return layer.gradients(*inputs[:3], **hiding, cotangent=inputs[3])

    def against_oracle(compute: Callable[..., Arrays]) -> Verdict:
        plain = {"mask": visible}  # of all pairs, so that NumPy cannot leave out keys, nor read lengths as backends do
        found, based = compute(attention(), hiding, *inputs), compute(base, plain, *inputs)
        expected = compute(oracle, plain, *wide)
        _check_alike(found, based)
        if compute is outputs:
            expected["output alone"] = expected["output"]
        gradient = compute is gradients
        scales = {name: gradient_scale(name, expected) if gradient else 0.0 for name in expected}
        bounds = {
            name: bound(dtype, expected[name], based[name], gradient=gradient, scale=scales[name]) for name in expected
        }
        return _worst(found, expected, bounds)

    def hidden() -> Verdict:
        by, weights = gradients(attention(), hiding, *inputs), outputs(attention(), hiding, *inputs)["weights"]
        found = {"queries": by["queries"][~sees], "keys": by["keys"][~seen], "values": by["values"][~seen]}
        found["weights"] = weights[~visible]
        return _identical(found, {name: np.zeros_like(X) for name, X in found.items()})

    def padding() -> Verdict:
        padded = [X.copy() for X in inputs]
        padded[0][~sees], padded[1][~seen], padded[2][~seen] = np.nan, np.nan, np.inf
        found, clean = (outputs(attention(), hiding, *X) | gradients(attention(), hiding, *X) for X in (padded, inputs))
        return _identical(found, clean)

    # Made by the first check, so that a backend that cannot make it fails that check.
    attention = cache(partial(case.layer, backend, dtype))
    sees, seen = visible.any((1, 3)), visible.any((1, 2))  # (B, Q), (B, K)
    checks: dict[str, Callable[[], Verdict]] = {
        "output and weights": partial(against_oracle, outputs),
        "steps": partial(against_oracle, steps),
        "gradients": partial(against_oracle, gradients),
    }
    if not visible.all():
        checks |= {"hidden keys": hidden, "padding": padding}
    return [_result(backend, check, case.name, dtype, function) for check, function in checks.items()]


def check_exact(backend: str, dtype: str) -> list[Result]:
    """What involves no arithmetic, on a backend: transposes, sync, save and load; and an answer worked out by hand.

    The last does not rest on NumPy's tab, as the comparisons do. An error that is raised is a failed result.
    """
    case = Case("", ADDITIVE)

    def transposes() -> Verdict:
        B, T, H, d = 2, 3, 7, 11
        X = np.random.default_rng(4).normal(size=(B, T, H * d)).astype(numpy_dtype(dtype))
        heads = np.concatenate(
            [X[b : b + 1, :, h * d : (h + 1) * d] for b in range(B) for h in range(H)]
        )  # (B*H, T, d)
        split = arrays.transpose_qkv(arrays.tensor(X, backend=backend), H)
        found = {"transpose_qkv": split, "transpose_output": arrays.transpose_output(split, H)}
        found = {name: arrays.to_numpy(array) for name, array in found.items()}
        return _identical(found, {"transpose_qkv": heads, "transpose_output": X})

    def synced() -> Verdict:
        source = case.layer("numpy", dtype)
        there = MultiHeadAttention(**case.options, dtype=dtype, seed=5, backend=backend)
        back = MultiHeadAttention(**case.options, dtype=dtype, seed=6, backend="numpy")
        sync(source, there)
        sync(there, back)
        return _identical(back.weights, source.weights)

    def saved() -> Verdict:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "layer.safetensors"
            case.layer(backend, dtype).save(path)
            return _identical(load(path, backend).weights, case.layer("numpy", dtype).weights)

    def by_hand() -> Verdict:
        # The scores of the two visible keys are 0 and 2 * 1 / sqrt(4) = 1, and only the second has a value.
        d, e = 4, math.e
        attention = MultiHeadAttention(d, 1, dtype=dtype, backend=backend)
        unit = np.eye(d, dtype=numpy_dtype(dtype))  # (d, d)
        attention.weights = dict.fromkeys(attention.weights, unit)
        nothing, padding = np.zeros_like(unit[0]), np.full_like(unit[0], np.nan)
        queries = 2 * unit[None, :1]  # (1, 1, d)
        keys = np.stack([nothing, unit[0], padding])[None]  # (1, 3, d)
        values = np.stack([nothing, unit[1], padding])[None]  # (1, 3, d)
        output, weights = attention(queries, keys, values, [2], return_weights=True)
        expected = {
            "output": np.array([[[0, e / (1 + e), 0, 0]]]),  # (B, Q, D)
            "weights": np.array([[[[1 / (1 + e), e / (1 + e), 0]]]]),  # (B, H, Q, K)
        }
        return _worst({"output": output, "weights": weights}, expected, dict.fromkeys(expected, 16 * UNIT[dtype]))

    checks = {"transposes": transposes, "sync": synced, "save and load": saved, "answer by hand": by_hand}
    return [_result(backend, check, "", dtype, function) for check, function in checks.items()]


def one_line(problem: Exception) -> str:
    """An exception in one line without colours, which Keras writes into its messages."""
    return " ".join(f"{type(problem).__name__}: {Text.from_ansi(str(problem)).plain}".split())


def _result(backend: str, check: str, case: str, dtype: str, function: Callable[[], Verdict]) -> Result:
    try:
        return Result(backend, check, case, dtype, *function())
    except Exception as problem:
        return Result(backend, check, case, dtype, one_line(problem), np.inf, 0.0)


def _worst(found: Arrays, expected: Arrays, bounds: dict[str, float]) -> Verdict:
    """Name, error and bound of the array that comes nearest to its bound, or exceeds it most."""
    results = [(name, error(found[name], expected[name]), bounds[name]) for name in expected]
    return max(results, key=lambda result: _ratio(*result[1:]))


def _identical(found: Arrays, expected: Arrays) -> Verdict:
    """The largest difference, where none is allowed."""
    _check_alike(found, expected)
    return _worst(found, expected, dict.fromkeys(expected, 0.0))


def _check_alike(found: Arrays, expected: Arrays) -> None:
    if list(found) != list(expected):
        raise ValueError(f"got {', '.join(found)}, expected {', '.join(expected)}")
    for name, array in found.items():
        if array.dtype != expected[name].dtype:
            raise TypeError(f"{name} has dtype {array.dtype}, expected {expected[name].dtype}")


def _ratio(error: float, bound: float) -> float:
    if error == 0 or error == np.inf:
        return error
    return error / bound if bound else np.inf
