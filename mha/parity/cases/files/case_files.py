"""Case files: a layer, a call of it or a decode, and the oracle's results, in one safetensors file for any framework.

Any other framework can compute the same and compare by the bounds in the file. Letters: B batch, Q queries, K key-value
pairs, H heads, D num_hiddens.

The metadata are `format`, `layout`, `name`, and in JSON `config`, `call` (arguments that are no arrays) and `bounds`.
The arrays are `weights/...`, `inputs/...` and `call/...` in the layer's dtype, and the results in float64: `steps/...`,
`attention_weights`, `output` and `gradients/...`. Those of a decode are `step1.output`, `step1.cache.keys` and so on;
see `CaseFile`.
"""

import functools
import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mha.core.call import FLOATS, ROWS
from mha.core.options import checks
from mha.core.options.config import numpy_dtype
from mha.core.options.names import BackendName, FloatName
from mha.layer import MultiHeadAttention, restore
from mha.parity.cases.decodes import Decode
from mha.parity.cases.files import case_reader, decode_files
from mha.parity.cases.files.case_reader import ARGUMENTS, CALL, DECODE, FORMAT, INPUTS, STORED, CaseFile
from mha.parity.cases.files.kernel_files import KernelFile as KernelFile
from mha.parity.cases.files.kernel_files import kernel_to_bytes as kernel_to_bytes
from mha.parity.cases.files.kernel_files import make_kernel as make_kernel
from mha.parity.cases.files.kernel_files import read_kernel as read_kernel
from mha.parity.cases.files.kernel_files import write_kernel as write_kernel
from mha.parity.cases.suite import Arrays, Result, one_line
from mha.parity.cases.usual import Case
from mha.parity.diagnosis.pipeline.chance import with_rounding
from mha.parity.rule.layouts import GRADIENT
from mha.parity.rule.problem import Expected, problem
from mha.parity.rule.rules import UNIT, bound, error, fraction, gradient_scale, in_dtype
from mha.weights import files, own_format, readers, safetensors_writer


def from_case(case: Case | Decode, dtype: FloatName) -> CaseFile:
    """Make the case file of a case of the suite, or of a decode, in a dtype; raises ValueError as `make` does."""
    if isinstance(case, Decode):
        return make_decode(case.name, case.layer("numpy", dtype), case.steps(dtype), case.size)
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
    given = {"causal": False, "offset": 0} | {key: X for key, X in call.items() if X is not None}
    for key, row in ROWS.items():
        if row.holds == "integers" and np.ndim(given.get(key, 0)):
            given[key] = checks.array_of(key, given[key]).astype(np.int64, casting="safe")
    return _compute_case(name, attention, dict(zip(INPUTS, inputs, strict=True)), given)


def make_decode(
    name: str,
    attention: MultiHeadAttention,
    steps: Sequence[Mapping[str, Any]],
    size: int | None = None,
    causal: bool = True,
) -> CaseFile:
    """Make the case of a layer that decodes: calls with one cache, and the cache after each.

    Args:
        name: of the case.
        attention: the layer, on any backend.
        steps: the arguments of each call by name: "queries", "keys" and "values", NumPy arrays in the layer's dtype;
            if they are given, "valid_lens" and "positions"; and "crop", (B,), where the cache is cropped before it.
        size: number of slots; None = as the layer's window or chunk says.
        causal: whether no query sees a later token.

    Raises TypeError and ValueError as the calls do, and ValueError as `make` does.
    """
    inputs, given = decode_files.flatten_steps(attention, steps, size)
    return _compute_case(name, attention, inputs, {"causal": causal} | given)


def _compute_case(name: str, attention: MultiHeadAttention, inputs: Arrays, given: dict[str, Any]) -> CaseFile:
    """Compute the expected results of a call or a decode, and their bounds; see `make`."""
    if not name.isprintable():
        raise ValueError(f"name is {name!r}, expected one that can be printed")
    if empty := [key for key, X in inputs.items() if 0 in X.shape]:
        raise ValueError(f"{empty[0]} has shape {inputs[empty[0]].shape}, expected no size of 0")
    layer, dtype = attention.to("numpy"), attention.config.dtype
    wide = {key: X.astype(np.float64) for key, X in given.items() if key in FLOATS}
    wide_inputs = {key: X.astype(np.float64) for key, X in inputs.items()}
    base, *_ = _results(layer, inputs, given)
    expected, *_ = _results(in_dtype(layer, "float64"), wide_inputs, given | wide)
    gradients = {key.removeprefix("gradients/"): X for key, X in expected.items() if key.startswith("gradients/")}
    bounds = {}
    for key, X in expected.items():
        gradient = key.removeprefix("gradients/")
        scale = gradient_scale(gradient, gradients) if gradient in gradients else 0.0
        exact = X.dtype.kind == "i"  # positions and lengths of a cache
        bounds[key] = 0.0 if exact else bound(dtype, X, base[key], gradient=gradient in gradients, scale=scale)
        if not bounds[key] < math.inf:
            raise ValueError(f"{key} of {name!r} overflows {dtype}: there is no bound for it; choose smaller numbers")
    return CaseFile(name, layer.config, layer.weights, inputs, given, expected, bounds)


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
    names = dict.fromkeys((*ARGUMENTS, *case.call))
    given = {key: X for key in names if isinstance(X := case.call.get(key), np.ndarray)}
    arrays |= {f"call/{key}": X.astype(stored) if key in FLOATS else X for key, X in given.items()}
    metadata = {
        "format": FORMAT,
        "layout": DECODE if "size" in case.call else CALL,
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
    with readers.open_weights(path) as source:
        return case_reader.parse_case(source)


def check(case: CaseFile, backend: BackendName) -> list[Result]:
    """Compute a case on a backend: each result in the order of the file, how far it is from the file's, and the bound.

    The output is computed by three calls: traced, with attention weights, and alone; the worst counts. Each call of a
    decode is made once. In half precision the output and the gradients of a call are also judged as by
    `parity.compare`; if that is worse, it is the error, and the bound is 1. An exception becomes the only result, a
    failed one.
    """
    result = functools.partial(Result, backend, "case file", case.name, case.config.dtype)
    try:
        found = _results(restore(case.config, case.weights, backend), case.inputs, case.call)
    except Exception as failure:
        return [result(one_line(failure), math.inf, 0.0)]
    results, half = [], _expected_in_half(case)
    for name, expected in case.expected.items():
        arrays = [one[name] for one in found if name in one]
        measured = [(error(X, expected), case.bounds[name]) for X in arrays]
        measured += [(half[name].ratio(X.astype(np.float64)), 1.0) for X in arrays if name in half]
        results.append(result(name, *max(measured, key=lambda one: fraction(*one))))
    return results


def _expected_in_half(case: CaseFile) -> dict[str, Expected]:
    """Return the expected output and gradients of a call in half precision; of any other, and of a decode, nothing."""
    if UNIT[case.config.dtype] < UNIT["float16"] or "size" in case.call:
        return {}
    queries, keys, values, cotangent = (case.inputs[name] for name in INPUTS)
    layer = restore(case.config, case.weights, "numpy")
    asked = with_rounding(problem(layer, queries, keys, values, case.call, cotangent))
    names = {key: key.replace("gradients/", GRADIENT) for key in case.expected}
    return {key: asked.expected(name) for key, name in names.items() if name == "output" or name.startswith(GRADIENT)}


def _results(attention: MultiHeadAttention, inputs: Arrays, call: dict[str, Any]) -> tuple[Arrays, ...]:
    """Compute all results that a case file has; of one call, then the output of `trace`, and that of a call alone."""
    if "size" in call:
        return (decode_files.results(attention, inputs, call),)
    *arrays, cotangent = (inputs[name] for name in INPUTS)
    steps = {f"steps/{name}": X for name, X in attention.trace(*arrays, **call).items()}
    traced = steps.pop("steps/output")
    output, weights = attention(*arrays, **call, return_weights=True)
    gradients = attention.gradients(*arrays, **call, cotangent=cotangent)
    found = {**steps, "attention_weights": weights, "output": output}
    found |= {f"gradients/{name}": X for name, X in gradients.items()}
    return found, {"output": traced}, {"output": attention(*arrays, **call)}
