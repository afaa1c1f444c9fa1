"""Case files: a layer, a call of it, and the results of the oracle, in one safetensors file for any framework.

Any other framework can compute the same and compare by the bounds in the file. Letters: B batch, Q queries, K key-value
pairs, H heads, D num_hiddens.

The metadata are `format`, `layout`, `name`, and in JSON `config`, `call` (arguments that are no arrays) and `bounds`.
The arrays are `weights/...`, `inputs/...` and `call/...` in the layer's dtype, and the results in float64: `steps/...`,
`attention_weights`, `output` and `gradients/...`.
"""

import dataclasses
import functools
import json
import math
import os
import reprlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from mha import checks, dispatch
from mha.call import ARRAYS, FLOATS, ROWS, Call, fitting, of_output
from mha.call.check import column
from mha.config import Config, numpy_dtype, shapes
from mha.layer import MultiHeadAttention, restore
from mha.names import BackendName, FloatName
from mha.parity.cases.suite import Arrays, Result, one_line
from mha.parity.cases.usual import Case
from mha.parity.same.layouts import STEPS, Sizes, traced
from mha.parity.same.rules import bound, error, gradient_scale, in_dtype
from mha.weights import files, json_text, own_format, readers, safetensors_writer
from mha.weights.readers import ALL, SafetensorsFile, Source

Shapes = dict[str, tuple[int, ...]]

FORMAT, LAYOUT = "mha case", "1"
HEADER_LIMIT = 2**20  # bytes; the headers that `write` makes have less than 20,000
INPUTS = ("queries", "keys", "values", "cotangent")
ARGUMENTS = (*(name for name in ARRAYS if name not in FLOATS), *FLOATS)  # of a call
# NumPy has no bfloat16 of its own, and safetensors reads none into it: float32 holds the same numbers.
STORED = {"bfloat16": "float32"}


@dataclasses.dataclass(frozen=True, eq=False)
class CaseFile:
    """A layer, a call of it, its results in float64 NumPy, and how far other results may be from these.

    name: of the case; config: of the layer, its dtype being the one to compute in; weights: canonical ones.
    inputs: "queries" (B, Q, query_size), "keys" (B, K, key_size), "values" (B, K, value_size) and "cotangent"
        (B, Q, D), the gradient of a loss by the output.
    call: the other arguments by name: causal, offset, and the arrays that are given.
    expected: in float64, in the order in which they are computed: "steps/..." of `trace`, "attention_weights"
        (B, H, Q, K), "output" (B, Q, D), "gradients/...".
    bounds: by the same names, the largest absolute difference that rounding explains in the layer's dtype.
    """

    name: str
    config: Config
    weights: Arrays
    inputs: Arrays
    call: dict[str, Any]
    expected: Arrays
    bounds: dict[str, float]


def from_case(case: Case, dtype: FloatName) -> CaseFile:
    """Make the case file of a case of the suite in a dtype; raises ValueError as `make` does."""
    return make(case.name, case.layer("numpy", dtype), case.inputs(dtype), case.call(dtype))


def make(name: str, attention: MultiHeadAttention, inputs: tuple[np.ndarray, ...], call: Mapping[str, Any]) -> CaseFile:
    """Make the case of a layer that is called without dropout, with the results of the oracle.

    Args:
        name: of the case.
        attention: the layer, on any backend.
        inputs: queries, keys, values and cotangent, NumPy arrays in the layer's dtype.
        call: the other arguments of the call by name; lengths and offsets may be lists, the rest NumPy arrays.

    Raises TypeError and ValueError as the call does, and ValueError if NumPy overflows in the layer's dtype, so that
    there is no bound, or if an input has a size of 0.
    """
    if not name.isprintable():
        raise ValueError(f"name is {name!r}, expected one that can be printed")
    layer, dtype = attention.to("numpy"), attention.config.dtype
    named = dict(zip(INPUTS, inputs, strict=True))
    if empty := [key for key, X in named.items() if 0 in X.shape]:
        raise ValueError(f"{empty[0]} has shape {named[empty[0]].shape}, expected no size of 0")
    given = {"causal": False, "offset": 0} | {key: X for key, X in call.items() if X is not None}
    for key, row in ROWS.items():
        if row.holds == "integers" and np.ndim(given.get(key, 0)):
            given[key] = checks.listed(key, given[key]).astype(np.int64, casting="safe")
    wide = {key: X.astype(np.float64) for key, X in given.items() if key in FLOATS}
    wide_inputs = {key: X.astype(np.float64) for key, X in named.items()}
    base, *_ = _results(layer, named, given)
    expected, *_ = _results(in_dtype(layer, "float64"), wide_inputs, given | wide)
    gradients = {key.removeprefix("gradients/"): X for key, X in expected.items() if key.startswith("gradients/")}
    bounds = {}
    for key, X in expected.items():
        gradient = key.removeprefix("gradients/")
        scale = gradient_scale(gradient, gradients) if gradient in gradients else 0.0
        bounds[key] = bound(dtype, X, base[key], gradient=gradient in gradients, scale=scale)
        if not bounds[key] < math.inf:
            raise ValueError(f"{key} of {name!r} overflows {dtype}: there is no bound for it; choose smaller numbers")
    return CaseFile(name, layer.config, layer.weights, named, given, expected, bounds)


def write(path: str | os.PathLike[str], case: CaseFile) -> None:
    """Write a case file, the same bytes for the same case; an old file stays until the new one is complete.

    Raises FileError (an OSError and a ValueError) if something else than a regular file is there, and OSError if the
    file cannot be written; then nothing is written.
    """
    files.write(path, to_bytes(case))


def to_bytes(case: CaseFile) -> bytes:
    """Return the bytes that `write` writes."""
    stored = numpy_dtype(STORED.get(case.config.dtype, case.config.dtype))
    arrays = {f"weights/{key}": X.astype(stored) for key, X in case.weights.items()}
    arrays |= {f"inputs/{key}": X.astype(stored) for key, X in case.inputs.items()}
    given = {key: X for key in ARGUMENTS if isinstance(X := case.call.get(key), np.ndarray)}
    arrays |= {f"call/{key}": X.astype(stored) if key in FLOATS else X for key, X in given.items()}
    metadata = {
        "format": FORMAT,
        "layout": LAYOUT,
        "name": case.name,
        "config": own_format.config_text(case.config),
        "call": json.dumps({key: X for key, X in case.call.items() if key not in given}),
        "bounds": json.dumps(case.bounds),
    }
    return safetensors_writer.to_bytes(arrays | case.expected, metadata)


def read(path: str | os.PathLike[str]) -> CaseFile:
    """Read a file that `write` wrote. Nothing is unpickled, and no number is read before all descriptions fit.

    Raises:
        FileNotFoundError: if nothing is there.
        FileError (an OSError and a ValueError): if it is no regular file or may not be read.
        ValueError: if it is no case file, is damaged, or contradicts itself; the message names the path.
    """
    with readers.opened(path) as source:
        return _case(source)


def check(case: CaseFile, backend: BackendName) -> list[Result]:
    """Compute a case on a backend: each result in the order of the file, how far it is from the file's, and the bound.

    The output is computed by three calls: traced, with attention weights, and alone; the worst counts. An exception
    becomes the only result, a failed one.
    """
    result = functools.partial(Result, backend, "case file", case.name, case.config.dtype)
    try:
        found = _results(restore(case.config, case.weights, backend), case.inputs, case.call)
    except Exception as problem:
        return [result(one_line(problem), math.inf, 0.0)]
    results = []
    for name, expected in case.expected.items():
        worst = max(error(one[name], expected) for one in found if name in one)
        results.append(result(name, worst, case.bounds[name]))
    return results


def _results(attention: MultiHeadAttention, inputs: Arrays, call: dict[str, Any]) -> tuple[Arrays, Arrays, Arrays]:
    """Compute all results of a call that a case file has; then the output of `trace`, and that of a call alone."""
    *arrays, cotangent = (inputs[name] for name in INPUTS)
    steps = {f"steps/{name}": X for name, X in attention.trace(*arrays, **call).items()}
    traced = steps.pop("steps/output")
    output, weights = attention(*arrays, **call, return_weights=True)
    gradients = attention.gradients(*arrays, **call, cotangent=cotangent)
    found = {**steps, "attention_weights": weights, "output": output}
    found |= {f"gradients/{name}": X for name, X in gradients.items()}
    return found, {"output": traced}, {"output": attention(*arrays, **call)}


def _case(source: Source) -> CaseFile:
    """Read the case in an open file; the descriptions are checked before the numbers are read."""
    if (form := source.metadata.get("format")) != FORMAT or not isinstance(source, SafetensorsFile):
        raise ValueError(f"is no case file: its metadata has format {reprlib.repr(form)}, expected {FORMAT!r}")
    if source.header_size > HEADER_LIMIT:
        raise ValueError(f"has a header of {source.header_size} bytes, expected at most {HEADER_LIMIT}")
    if (layout := source.metadata.get("layout")) != LAYOUT:
        raise ValueError(
            f"has layout {reprlib.repr(layout)}, expected {LAYOUT!r}; if another version of mha wrote it, use that one"
        )
    if missing := [key for key in ("name", "config", "call", "bounds") if key not in source.metadata]:
        raise ValueError(f"lacks {', '.join(missing)} in its metadata")
    if not (name := source.metadata["name"]).isprintable():
        raise ValueError(f"has the name {reprlib.repr(name)}, expected one that can be printed")
    config = own_format.parse_config(source.metadata["config"])
    call = _call(source)
    expected = _described(source, config, call)
    bounds = _bounds(source.metadata["bounds"], expected)

    def floats(key: str) -> np.ndarray:
        X = source.read(key)
        with np.errstate(over="ignore"):
            narrow = X.astype(numpy_dtype(config.dtype))
        if error(narrow, X):
            raise ValueError(f"is damaged: {key} holds numbers that {config.dtype} has not")
        return narrow

    weights = {key: floats(f"weights/{key}") for key in shapes(config)}
    for key, X in weights.items():
        try:
            checks.finite(key, X)
        except ValueError as problem:
            raise ValueError(f"is damaged: {problem}") from problem
    inputs = {key: floats(f"inputs/{key}") for key in INPUTS}
    for key in [key for key in ARGUMENTS if f"call/{key}" in source.entries]:
        call[key] = floats(f"call/{key}") if key in FLOATS else source.read(f"call/{key}", ALL)
    if (mask := call.get("mask")) is not None and mask.view(np.uint8).max() > 1:
        raise ValueError("is damaged: call/mask holds other bytes than 0 and 1")
    return CaseFile(name, config, weights, inputs, call, {key: source.read(key) for key in expected}, bounds)


def _call(source: Source) -> dict[str, Any]:
    """Read the arguments of the call that are no arrays."""
    try:
        call = json_text.parse(source.metadata["call"])
        names = {"causal"} if "call/offset" in source.entries else {"causal", "offset"}
        if set(call) != names:
            raise ValueError(f"it has {', '.join(sorted(call)) or 'nothing'}, expected {' and '.join(sorted(names))}")
        checks.flag("causal", call["causal"])
        if "offset" in call:
            column(checks.whole("offset", call["offset"]))
    except (TypeError, ValueError) as problem:
        raise ValueError(f"holds no valid call: {problem}") from problem
    return call


def _described(source: Source, config: Config, call: dict[str, Any]) -> Shapes:
    """Return the shapes of the expected results, in order; raises ValueError if any array is described otherwise."""
    entries = source.entries
    try:
        if missing := [key for key in (f"inputs/{name}" for name in INPUTS) if key not in entries]:
            raise ValueError(f"{', '.join(missing)} is not there")
        claimed = {name: entry.claimed(name, ALL) for name, entry in entries.items()}
        stored = numpy_dtype(STORED.get(config.dtype, config.dtype))
        inputs = [_typed(claimed[f"inputs/{name}"], stored, config, f"inputs/{name}") for name in INPUTS]
        given = {key: claimed[f"call/{key}"] for key in ARGUMENTS if f"call/{key}" in entries}
        given |= {key: _typed(given[key], stored, config, f"call/{key}") for key in FLOATS if key in given}
        queries, keys, values, cotangent = inputs
        own, (B, Q, K) = dispatch.load("numpy"), (*queries.shape[:2], keys.shape[1])
        fitting.fit_inputs(own, config, None, queries, keys, values)
        fitting.fit_call(own, config, None, (B, Q, K), Call(**call | given))
        of_output(own, config, None, cotangent, (B, Q, config.num_hiddens))
        expected = _expected(config, given, B, Q, K)
        wanted: dict[str, tuple[np.dtype, tuple[int, ...]]] = {
            **{f"weights/{name}": (stored, shape) for name, shape in shapes(config).items()},
            **{name: (np.dtype(np.float64), shape) for name, shape in expected.items()},
        }
        known = {*wanted, *(f"inputs/{name}" for name in INPUTS), *(f"call/{name}" for name in given)}
        if missing := [name for name in wanted if name not in entries]:
            raise ValueError(f"{', '.join(missing)} is not there")
        if unknown := [name for name in entries if name not in known]:
            raise ValueError(f"{', '.join(unknown)} is there, which such a case has not")
        for name, (dtype, shape) in wanted.items():
            if (came := claimed[name]).shape != shape or came.dtype != dtype:
                raise ValueError(f"{name} is {came.dtype} {came.shape}, expected {dtype} {shape}")
    except (TypeError, ValueError) as problem:
        raise ValueError(f"does not fit its own configuration: {problem}") from problem
    return expected


def _typed(array: np.ndarray, stored: np.dtype, config: Config, name: str) -> np.ndarray:
    """Return an array of the layer's dtype, without numbers, for one that is stored in the right dtype."""
    if array.dtype != stored:
        raise ValueError(f"{name} has dtype {array.dtype}, expected {stored}")
    return np.broadcast_to(np.zeros((), numpy_dtype(config.dtype)), array.shape)


def _expected(config: Config, given: Mapping[str, np.ndarray], B: int, Q: int, K: int) -> Shapes:
    """Return name and shape of each result, in order, of a call with these arrays besides queries, keys and values."""
    sizes, options = Sizes(B, Q, K, config), {"norm": config.qk_norm, "rotate": config.rotary, "capped": config.softcap}
    left_out = {name for name, option in options.items() if option is None}
    left_out |= {row.step for name, row in ROWS.items() if name not in given}
    steps = [name for name in STEPS if name not in left_out and name.partition("_")[0] not in left_out]
    gradients: Shapes = {"queries": (B, Q, config.query_size), "keys": (B, K, config.key_size)}
    gradients["values"] = (B, K, config.value_size)
    gradients |= {name: given[name].shape for name in FLOATS if name in given} | shapes(config)
    return {
        **{f"steps/{name}": traced(name, sizes.shape(name))[0] for name in steps},
        "attention_weights": (B, config.num_heads, Q, K),
        "output": (B, Q, config.num_hiddens),
        **{f"gradients/{name}": shape for name, shape in gradients.items()},
    }


def _bounds(text: str, expected: Shapes) -> dict[str, float]:
    """Read the bounds of the expected results."""
    try:
        bounds = json_text.parse(text)
        if alone := bounds.keys() ^ expected.keys():
            raise ValueError(f"of {', '.join(sorted(alone))} there are results or bounds alone")
        return {name: checks.number(f"the bound of {name}", bounds[name], 0) for name in expected}
    except (TypeError, ValueError) as problem:
        raise ValueError(f"holds no valid bounds: {problem}") from problem
