"""The suites of `mha parity` and of the tests: every case on a backend, compared by the rule, and exact equalities."""

import dataclasses
import math
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from rich.text import Text

from mha import arrays
from mha.core import dispatch
from mha.core.call import FLOATS, PLACES
from mha.core.options.config import numpy_dtype
from mha.core.options.names import BackendName, FloatName, SuiteName
from mha.layer import MultiHeadAttention
from mha.parity.cases.rare import RARE
from mha.parity.cases.usual import ADDITIVE, CASES, Case
from mha.parity.diagnosis.mistakes.of_precision import TF32, TF32_EFFECT, TF32_OFF
from mha.parity.diagnosis.pipeline.chance import with_rounding
from mha.parity.diagnosis.search.precision import is_in_tf32
from mha.parity.rule.problem import Expected, Problem, problem
from mha.parity.rule.rules import UNIT, error, fraction, gradient_scale, in_dtype
from mha.weights.sources import load, sync

Key = TypeVar("Key")
ALL_CASES = (*CASES, *RARE)
Arrays = dict[str, np.ndarray]
Verdict = tuple[str, float, float]  # name of the worst array, its error and its bound


class Check(NamedTuple):
    """A part of a suite: its name, and the function that compares."""

    name: str
    run: Callable[[], list["Result"]]


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of one check on one backend: its largest error, and the bound for it.

    backend: its name, or that of a group of devices, as torch:2; where: the step, gradient or weight with the largest
    error, or the exception; cause: of the error, and what to type against it, where that is known.
    """

    backend: str
    check: str
    case: str
    dtype: str
    where: str
    error: float
    bound: float
    cause: str = ""

    @property
    def ratio(self) -> float:
        """Return error by bound, see `fraction`: 0 without an error, infinite where nothing may pass."""
        return fraction(self.error, self.bound)

    @property
    def passed(self) -> bool:
        """Return whether the error is within its bound, and the bound is finite."""
        return self.error <= self.bound < np.inf


def worst_of_each(results: Iterable[Result], key: Callable[[Result], Key]) -> dict[Key, Result]:
    """Return of all results with one key that which comes nearest to its bound, or exceeds it most."""
    worst: dict[Key, Result] = {}
    for result in results:
        worst[key(result)] = max(worst.get(key(result), result), result, key=lambda one: one.ratio)
    return worst


def chosen_cases(
    every: Iterable[Case], suite: SuiteName, names: Collection[str] | None, dtypes: Collection[FloatName]
) -> Iterator[tuple[Case, FloatName]]:
    """Yield the cases of a suite, or those with these names, each in the dtypes in which it is compared."""
    for case in every:
        if names is None or case.name in names:
            wanted = case.quick if suite == "quick" and names is None else case.dtypes
            yield from ((case, dtype) for dtype in dtypes if dtype in wanted)


def plan(
    backend: BackendName,
    suite: SuiteName = "quick",
    cases: Collection[str] | None = None,
    dtypes: Collection[FloatName] | None = None,
) -> list[Check]:
    """Plan a suite on a backend: checks to call one after the other, each of which returns results.

    Args:
        backend: its name.
        suite: "quick", which leaves out rare cases and dtypes, or "full".
        cases: names of cases, of both suites, to compare alone, each in every dtype; None = all cases of the suite,
            and the exact equalities.
        dtypes: those to compare in; None = all that the suite has.

    Raises ModuleNotFoundError, or the framework's own error, if the backend does not load.
    """
    known = [one for one in dispatch.load(backend).DTYPES if dtypes is None or one in dtypes]
    checks, quick = [], suite == "quick" and cases is None
    for case, dtype in chosen_cases(CASES if quick else ALL_CASES, suite, cases, known):
        lesson = dtype in case.lesson and (case.quick_lesson or not quick)
        checks.append(Check(f"{dtype}, {case.name}", partial(check_case, backend, case, dtype, lesson)))
    if cases is None:
        checks += [Check(f"{dtype}, exact", partial(check_exact, backend, dtype)) for dtype in known]
    return checks


def check_case(backend: BackendName, case: Case, dtype: FloatName, lesson: bool = False) -> list[Result]:
    """Compare a case on a backend with the float64 oracle: output, attention weights, every step and every gradient.

    If keys are hidden, their weights must be exactly 0, and NaN in padding must change nothing. lesson: whether to
    compare the lesson's own layer too, which runs eagerly. An exception of the backend becomes a failed result. If
    errors look like those of TF32, the results say so.
    """
    inputs, call, visible = case.inputs(dtype), case.call(dtype), case.visible()
    wide, half = [X.astype(np.float64) for X in inputs], UNIT[dtype] >= UNIT["float16"]
    # NumPy gets a mask of all pairs: it cannot leave out keys, nor read lengths as backends do.
    plain: dict[str, Any] = {name: X for name, X in call.items() if name in (*FLOATS, "offset", *PLACES)}
    plain["mask"] = visible
    base = case.layer("numpy", dtype, window=None)
    oracle = in_dtype(base, "float64")

    def outputs(layer: MultiHeadAttention, call: dict[str, Any], *inputs: Any) -> Arrays:
        output, weights = layer(*inputs[:3], **call, return_weights=True)
        alone = layer(*inputs[:3], **call)  # by another path than with weights
        return {"output": output, "weights": weights, "output alone": alone}

    def steps(layer: MultiHeadAttention, call: dict[str, Any], *inputs: Any) -> Arrays:
        return layer.trace(*inputs[:3], **call)

    def gradients(layer: MultiHeadAttention, call: dict[str, Any], *inputs: Any) -> Arrays:
        output, pull_back = layer.vjp(*inputs[:3], **call)
        return {"output of vjp": output} | pull_back(inputs[3])

    def against_oracle(compute: Callable[..., Arrays], readable: bool = False) -> Verdict:
        in_float64 = {name: X.astype(np.float64) for name, X in plain.items() if name in FLOATS}
        layer = case.layer(backend, dtype, readable=True) if readable else attention()
        found, based = compute(layer, call, *inputs), compute(base, plain, *inputs)
        expected = compute(oracle, plain | in_float64, *wide)
        _check_alike(found, based)
        if compute is outputs:
            expected["output alone"] = expected["output"]
        by_all = {name: X for name, X in expected.items() if compute is gradients and name != "output of vjp"}

        def measure(name: str, X: np.ndarray) -> Verdict:
            if name in by_all:
                right = asked().expected_gradient(name, X, based[name], gradient_scale(name, by_all))
            elif half and name.startswith("output"):
                right = asked().expected("output")
            else:
                right = Expected.of(dtype, X, based[name], False)
            return worst_of(name, right, found[name])

        return _largest(measure(name, X) for name, X in expected.items())

    @cache
    def asked() -> Problem:
        queries, keys, values, cotangent = inputs
        return with_rounding(problem(base, queries, keys, values, {"causal": False} | plain, cotangent))

    def hides() -> Verdict:
        by, weights = gradients(attention(), call, *inputs), outputs(attention(), call, *inputs)["weights"]
        found = {"queries": by["queries"][~sees], "keys": by["keys"][~seen], "values": by["values"][~seen]}
        found["weights"] = weights[~visible]
        return _identical(found, {name: np.zeros_like(X) for name, X in found.items()})

    def padding() -> Verdict:
        padded = [X.copy() for X in inputs]
        padded[0][~sees], padded[1][~seen], padded[2][~seen] = np.nan, np.nan, np.inf
        found, clean = (outputs(attention(), call, *X) | gradients(attention(), call, *X) for X in (padded, inputs))
        return _identical(found, clean)

    # The first check makes the layer, so that a backend that cannot make it fails that check.
    attention = cache(partial(case.layer, backend, dtype))
    sees, seen = visible.any((1, 3)), visible.any((1, 2))  # (B, Q), (B, K)
    checks: dict[str, Callable[[], Verdict]] = {
        "output and weights": partial(against_oracle, outputs),
        "steps": partial(against_oracle, steps),
        "gradients": partial(against_oracle, gradients),
    }
    if lesson:
        checks |= {
            "lesson": partial(against_oracle, outputs, readable=True),
            "gradients of the lesson": partial(against_oracle, gradients, readable=True),
        }
    if not visible.all():
        checks |= {"hidden keys": hides, "padding": padding}
    results = [_result(backend, check, case.name, dtype, function) for check, function in checks.items()]
    wrong = [one for one in results if one.bound < one.error < np.inf]
    if wrong and dtype == "float32" and backend in TF32_OFF and is_in_tf32(asked(), attention()(*inputs[:3], **call)):
        cause = f"{TF32}: {TF32_EFFECT}. Switch it off: {TF32_OFF[backend]}"
        return [dataclasses.replace(one, cause=cause) if one in wrong else one for one in results]
    return results


def check_exact(backend: BackendName, dtype: FloatName) -> list[Result]:
    """Compare on a backend, without arithmetic, transposes, sync, save and load; and an answer worked out by hand.

    The last does not depend on the NumPy backend, as all others do. An exception becomes a failed result.
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

    def syncs() -> Verdict:
        source = case.layer("numpy", dtype)
        there = MultiHeadAttention(**case.options, dtype=dtype, seed=5, backend=backend)
        back = MultiHeadAttention(**case.options, dtype=dtype, seed=6, backend="numpy")
        sync(source, there)
        sync(there, back)
        return _identical(back.weights, source.weights)

    def saves() -> Verdict:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "layer.safetensors"
            case.layer(backend, dtype).save(path)
            return _identical(load(path, backend).weights, case.layer("numpy", dtype).weights)

    def by_hand() -> Verdict:
        # The scores of the two visible keys are 0 and 2 * 1 / sqrt(4) = 1, and only the second has a value.
        d, e = 4, math.e
        attention = MultiHeadAttention(d, 1, dtype=dtype, seed=0, backend=backend)
        unit = np.eye(d, dtype=numpy_dtype(dtype))  # (d, d)
        attention.weights = dict.fromkeys(attention.weights, unit)
        nothing, padding = np.zeros_like(unit[0]), np.full_like(unit[0], np.nan)
        queries = (unit + unit)[None, :1]  # (1, 1, d); in NumPy 2.0, 2 * bfloat16 is float32
        keys = np.stack([nothing, unit[0], padding])[None]  # (1, 3, d)
        values = np.stack([nothing, unit[1], padding])[None]  # (1, 3, d)
        output, weights = attention(queries, keys, values, [2], return_weights=True)
        expected = {
            "output": np.array([[[0, e / (1 + e), 0, 0]]]),  # (B, Q, D)
            "weights": np.array([[[[1 / (1 + e), e / (1 + e), 0]]]]),  # (B, H, Q, K)
        }
        return _worst({"output": output, "weights": weights}, expected, dict.fromkeys(expected, 16 * UNIT[dtype]))

    checks = {"transposes": transposes, "sync": syncs, "save and load": saves, "answer by hand": by_hand}
    return [_result(backend, check, "", dtype, function) for check, function in checks.items()]


def worst_of(name: str, right: Expected, theirs: np.ndarray) -> Verdict:
    """Return name, error and bound of an array; or by what else it is judged in half precision, its ratio, and 1."""
    verdict = right.judge(theirs.astype(np.float64))
    if verdict.rest <= fraction(verdict.error, verdict.limit):
        return name, verdict.error, verdict.limit
    return f"the {'mean' if verdict.rounding is None else 'rounding'} of {name}", verdict.rest, 1.0


def one_line(problem: Exception) -> str:
    """Put an exception in one line, without the colours that Keras writes into its messages."""
    return " ".join(f"{type(problem).__name__}: {Text.from_ansi(str(problem)).plain}".split())


def _result(backend: BackendName, check: str, case: str, dtype: FloatName, function: Callable[[], Verdict]) -> Result:
    try:
        return Result(backend, check, case, dtype, *function())
    except Exception as problem:
        return Result(backend, check, case, dtype, one_line(problem), np.inf, 0.0)


def _worst(found: Arrays, expected: Arrays, bounds: dict[str, float]) -> Verdict:
    """Return name, error and bound of the array that comes nearest to its bound, or exceeds it most."""
    return _largest((name, error(found[name], expected[name]), bounds[name]) for name in expected)


def _largest(results: Iterable[Verdict]) -> Verdict:
    return max(results, key=lambda result: fraction(*result[1:]))


def _identical(found: Arrays, expected: Arrays) -> Verdict:
    """Return the largest difference, where none is allowed."""
    _check_alike(found, expected)
    return _worst(found, expected, dict.fromkeys(expected, 0.0))


def _check_alike(found: Arrays, expected: Arrays) -> None:
    if list(found) != list(expected):
        raise ValueError(f"got {', '.join(found)}, expected {', '.join(expected)}")
    for name, array in found.items():
        if array.dtype != expected[name].dtype:
            raise TypeError(f"{name} has dtype {array.dtype}, expected {expected[name].dtype}")
