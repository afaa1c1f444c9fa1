"""Case files: a layer, a call of it, and what the oracle makes of it, in one safetensors file for any framework.

Whoever has another framework computes the same and judges the result by the bounds in the file. Letters: B batch, Q
queries, K key-value pairs, H heads, G heads of keys and values, D num_hiddens, d and dv widths of a head's keys and
values.

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

from mha import calls, checks
from mha.config import Config, numpy_dtype, shapes
from mha.layer import MultiHeadAttention, restore
from mha.names import BackendName, FloatName
from mha.parity.cases import Case
from mha.parity.rules import bound, error, gradient_scale, in_dtype
from mha.parity.suite import Arrays, Result, one_line
from mha.weights import files, own_format, safetensors_reader, safetensors_writer
from mha.weights.safetensors_reader import ALL, Tensors

Shapes = dict[str, tuple[int, ...]]

FORMAT, LAYOUT = "mha case", "1"
HEADER_LIMIT = 2**20  # bytes; the headers that `write` makes have less than 20,000
INPUTS = ("queries", "keys", "values", "cotangent")
FLOATS = ("score_bias", "head_gates")  # of a call
ARGUMENTS = ("valid_lens", "mask", "offset", *FLOATS)
# NumPy has no bfloat16 of its own, and safetensors reads none into it: float32 holds the same numbers.
STORED = {"bfloat16": "float32"}


@dataclasses.dataclass(frozen=True, eq=False)
class CaseFile:
    """A layer, a call of it, what float64 NumPy makes of it, and how far a result may be from that.

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
    """A case of the suite in a dtype; raises ValueError as `make` does."""
    return make(case.name, case.layer("numpy", dtype), case.inputs(dtype), case.call(dtype))


def make(name: str, attention: MultiHeadAttention, inputs: tuple[np.ndarray, ...], call: Mapping[str, Any]) -> CaseFile:
    """The case of a layer that is called without dropout, with the oracle's results.

    Args:
        name: of the case.
        attention: the layer, on any backend.
        inputs: queries, keys, values and cotangent, NumPy arrays in the layer's dtype.
        call: the other arguments of the call by name; lengths and offsets may be lists, the rest NumPy arrays.

    Raises TypeError and ValueError as the call does, and ValueError if NumPy overflows in the layer's dtype, so that no
    bound can be told, or if an input has a size of 0.
    """
    if not name.isprintable():
        raise ValueError(f"name is {name!r}, expected one that can be printed")
    layer, dtype = attention.to("numpy"), attention.config.dtype
    named = dict(zip(INPUTS, inputs, strict=True))
    if empty := [key for key, X in named.items() if 0 in X.shape]:
        raise ValueError(f"{empty[0]} has shape {named[empty[0]].shape}, expected no size of 0")
    given = {"causal": False, "offset": 0} | {key: X for key, X in call.items() if X is not None}
    for key in ("valid_lens", "offset"):
        if np.ndim(given.get(key, 0)):
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
            raise ValueError(f"{key} of {name!r} overflows {dtype}: nothing can be told; choose smaller numbers")
    return CaseFile(name, layer.config, layer.weights, named, given, expected, bounds)


def write(path: str | os.PathLike[str], case: CaseFile) -> None:
    """Write a case file, the same bytes for the same case; the old file stays until the new one is whole.

    Raises FileError (an OSError and a ValueError) if the path is there but no regular file, and OSError if the file
    cannot be written; nothing is written then.
    """
    files.write(path, to_bytes(case))


def to_bytes(case: CaseFile) -> bytes:
    """What `write` writes."""
    stored = numpy_dtype(STORED.get(case.config.dtype, case.config.dtype))
    arrays = {f"weights/{key}": X.astype(stored) for key, X in case.weights.items()}
    arrays |= {f"inputs/{key}": X.astype(stored) for key, X in case.inputs.items()}
    told = dict(case.call)
    for key in ARGUMENTS:
        if isinstance(told.get(key), np.ndarray):
            X = told.pop(key)
            arrays[f"call/{key}"] = X.astype(stored) if key in FLOATS else X
    metadata = {
        "format": FORMAT,
        "layout": LAYOUT,
        "name": case.name,
        "config": own_format.config_text(case.config),
        "call": json.dumps(told),
        "bounds": json.dumps(case.bounds),
    }
    return safetensors_writer.to_bytes(arrays | case.expected, metadata)


def read(path: str | os.PathLike[str]) -> CaseFile:
    """The case in a file that `write` wrote. Nothing is unpickled, and no number is read before all descriptions fit.

    Raises:
        FileNotFoundError: if nothing is there.
        FileError (an OSError and a ValueError): if the path is no regular file or may not be read.
        ValueError: if it is no case file, is damaged, or does not fit itself; the message names the path.
    """
    with safetensors_reader.opened(path) as source:
        return _case(source)


def check(case: CaseFile, backend: BackendName) -> list[Result]:
    """A case on a backend: for every quantity in its order, how far it is from what the file says, and the bound.

    The output is that of three calls: traced, with attention weights, and alone; the worst counts. An error that is
    raised is the only result, a failed one.
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
    """Everything that a case file has of a call; then the output as `trace` has it, and that of a call alone."""
    *arrays, cotangent = (inputs[name] for name in INPUTS)
    steps = {f"steps/{name}": X for name, X in attention.trace(*arrays, **call).items()}
    traced = steps.pop("steps/output")
    output, weights = attention(*arrays, **call, return_weights=True)
    gradients = attention.gradients(*arrays, **call, cotangent=cotangent)
    found = {**steps, "attention_weights": weights, "output": output}
    found |= {f"gradients/{name}": X for name, X in gradients.items()}
    return found, {"output": traced}, {"output": attention(*arrays, **call)}


def _case(source: Tensors) -> CaseFile:
    """The case in an open file, whose descriptions are checked before its numbers are read."""
    if (form := source.metadata.get("format")) != FORMAT:
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
    dtype = numpy_dtype(config.dtype)

    def floats(key: str) -> np.ndarray:
        X = source.read(key)
        with np.errstate(over="ignore"):
            narrow = X.astype(dtype)
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
        name_in_file = f"call/{key}"
        call[key] = floats(name_in_file) if key in FLOATS else source.read(name_in_file, ALL)
    if (mask := call.get("mask")) is not None and mask.view(np.uint8).max() > 1:
        raise ValueError("is damaged: call/mask holds other bytes than 0 and 1")
    return CaseFile(name, config, weights, inputs, call, {key: source.read(key) for key in expected}, bounds)


def _call(source: Tensors) -> dict[str, Any]:
    """The arguments of the call that are no arrays."""
    try:
        told = safetensors_reader.parse(source.metadata["call"])
        names = {"causal"} if "call/offset" in source.entries else {"causal", "offset"}
        if set(told) != names:
            raise ValueError(f"it has {', '.join(sorted(told)) or 'nothing'}, expected {' and '.join(sorted(names))}")
        checks.flag("causal", told["causal"])
        if "offset" in told:
            calls.offset(checks.whole("offset", told["offset"]))
    except (TypeError, ValueError) as problem:
        raise ValueError(f"holds no valid call: {problem}") from problem
    return told


def _described(source: Tensors, config: Config, call: dict[str, Any]) -> Shapes:
    """The shapes of the expected results, in order; raises ValueError unless all arrays are described as they must."""
    entries = source.entries
    try:
        if missing := [key for key in (f"inputs/{name}" for name in INPUTS) if key not in entries]:
            raise ValueError(f"{', '.join(missing)} is not there")
        claimed = {name: entry.claimed(name, ALL) for name, entry in entries.items()}
        stored = numpy_dtype(STORED.get(config.dtype, config.dtype))
        inputs = [_typed(claimed[f"inputs/{name}"], stored, config, f"inputs/{name}") for name in INPUTS]
        given = {key: claimed[f"call/{key}"] for key in ARGUMENTS if f"call/{key}" in entries}
        for key in FLOATS:
            if key in given:
                given[key] = _typed(given[key], stored, config, f"call/{key}")
        queries, keys, values, cotangent = inputs
        own = checks.is_numpy
        calls.inputs(config, queries, keys, values, given.get("valid_lens"), given.get("mask"), is_own=own)
        B, Q, K = *queries.shape[:2], keys.shape[1]
        offset = given.get("offset", call.get("offset"))
        calls.extras(config, (B, Q, K), given.get("score_bias"), offset, given.get("head_gates"), is_own=own)
        calls.output(config, cotangent, (B, Q, config.num_hiddens), is_own=own)
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
    """An array without numbers in the layer's dtype, if it has the one that this is stored in."""
    if array.dtype != stored:
        raise ValueError(f"{name} has dtype {array.dtype}, expected {stored}")
    return np.broadcast_to(np.zeros((), numpy_dtype(config.dtype)), array.shape)


def _expected(config: Config, given: Mapping[str, np.ndarray], B: int, Q: int, K: int) -> Shapes:
    """Name and shape of every result of a call with these arrays beside queries, keys and values, in order."""
    H, G, d, dv, D = config.num_heads, config.num_key_value_heads, config.key_dim, config.value_dim, config.num_hiddens
    steps: Shapes = {"W_q": (B, Q, H * d), "W_k": (B, K, G * d), "W_v": (B, K, G * dv)}
    steps |= {"split_q": (B * H, Q, d), "split_k": (B * G, K, d), "split_v": (B * G, K, dv)}
    if config.qk_norm:
        steps |= {"norm_q": (B * H, Q, d), "norm_k": (B * G, K, d)}
    if config.rotary:
        steps |= {"rotate_q": (B * H, Q, d), "rotate_k": (B * G, K, d)}
    of_pairs = {"scores": True, "capped": config.softcap is not None, "biased": "score_bias" in given, "weights": True}
    steps |= {name: (B * H, Q, K) for name, is_there in of_pairs.items() if is_there}
    steps["pooled"] = (B * H, Q, dv)
    if "head_gates" in given:
        steps["head_gated"] = (B * H, Q, dv)
    steps["merged"] = (B, Q, H * dv)
    gradients: Shapes = {"queries": (B, Q, config.query_size), "keys": (B, K, config.key_size)}
    gradients["values"] = (B, K, config.value_size)
    gradients |= {name: given[name].shape for name in FLOATS if name in given} | shapes(config)
    return {
        **{f"steps/{name}": shape for name, shape in steps.items()},
        "attention_weights": (B, H, Q, K),
        "output": (B, Q, D),
        **{f"gradients/{name}": shape for name, shape in gradients.items()},
    }


def _bounds(text: str, expected: Shapes) -> dict[str, float]:
    """The bounds of the expected results."""
    try:
        told = safetensors_reader.parse(text)
        if told.keys() != expected.keys():
            raise ValueError(f"of {', '.join(sorted(told.keys() ^ expected.keys()))} there are results or bounds alone")
        return {name: checks.number(f"the bound of {name}", told[name], 0) for name in expected}
    except (TypeError, ValueError) as problem:
        raise ValueError(f"holds no valid bounds: {problem}") from problem
