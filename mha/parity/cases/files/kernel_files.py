"""Case files of kernels: a call of one, the oracle's output, log-sum-exp and gradients, in one safetensors file.

The metadata are `format`, `layout` (of the file), `name`, and in JSON `call`: the dtype to compute in, the layout of
the arrays, and the options that are no arrays. The arrays are `inputs/...` and `call/...`; the results in float64:
`output`, `lse`, `dq`, `dk` and `dv`; and `bounds/...`, the largest error of each number, which broadcast.

Letters: B samples, T tokens (Q queries, K keys), H heads of queries, G of keys and values, d width of a head.
"""

import dataclasses
import json
import os
import reprlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from mha.core.options import checks
from mha.core.options.config import numpy_dtype
from mha.core.options.names import FloatName
from mha.parity.cases.files.case_reader import STORED, read_floats, read_name
from mha.parity.cases.suite import Arrays
from mha.parity.rule.heads import KernelLayout, at_least_float32
from mha.parity.rule.kernel import ARRAYS, KernelProblem
from mha.parity.rule.kernel_call import NUMBERS, kernel_problem
from mha.parity.rule.layouts import GRADIENT, LSE
from mha.weights import files, json_text, readers, safetensors_writer
from mha.weights.readers import ALL, SafetensorsFile, Source

FORMAT, LAYOUT = "mha kernel", "1"
INPUTS = ("q", "k", "v", "cotangent")
WIDE = ("bias", "sinks")  # floats that a kernel in half precision gets in float32
INTEGERS = ("lengths", "cu_seqlens", "cu_seqlens_k")
OPTIONS = ("mask", *WIDE, *INTEGERS)


@dataclasses.dataclass(frozen=True, eq=False)
class KernelFile:
    """A call of a kernel, the results in float64 NumPy, and how far others may be from these.

    Attributes:
        name: of the case.
        dtype: to compute in.
        layout: of the arrays, as of `parity.compare_kernel`.
        inputs: "q", "k", "v" and "cotangent", the gradient of a loss by the output.
        options: those that are on, as `parity.compare_kernel` takes them.
        expected: in float64, "output", "lse" (B, H, Q), or packed (H, tokens), "dq", "dk", "dv".
        bounds: by the same names, the largest absolute difference that rounding explains, of each text and head; they
            broadcast to the results.
    """

    name: str
    dtype: FloatName
    layout: KernelLayout
    inputs: Arrays
    options: dict[str, Any]
    expected: Arrays
    bounds: Arrays

    @property
    def arguments(self) -> dict[str, Any]:
        """Return what `parity.compare_kernel` takes beside the results that it judges."""
        return {**self.inputs, **self.options, "layout": self.layout, "dtype": self.dtype}


def make_kernel(
    name: str, inputs: Mapping[str, np.ndarray], options: Mapping[str, Any], layout: KernelLayout = "BHTD"
) -> KernelFile:
    """Make the case of a kernel's call, with the results of the oracle.

    Args:
        name: of the case.
        inputs: "q", "k", "v" and "cotangent", NumPy arrays in one dtype.
        options: as `parity.compare_kernel` takes them; those that are off may be left out.
        layout: of the arrays.

    Raises TypeError and ValueError as `parity.compare_kernel` does, and ValueError if NumPy overflows in the dtype, so
    that there is no bound.
    """
    given = {key: X for key, X in options.items() if X is not None and X is not False}
    given |= {key: np.asarray(given[key]).astype(np.int64) for key in INTEGERS if key in given}
    arguments: dict[str, Any] = {**inputs, **given}
    asked = kernel_problem(**arguments, layout=layout)
    plain = asked.base | {GRADIENT + key: X for key, X in asked.base_gradients.items()}
    expected, bounds = Arrays(), Arrays()
    for own, key in ARRAYS.items():
        found = asked.expected(key)
        if (np.isfinite(found.X) & ~np.isfinite(plain[key])).any():
            raise ValueError(f"{own} of {name!r} overflows: there is no bound for it; choose smaller numbers")
        shares = np.ones_like(found.X) if found.shares is None else found.shares
        expected[own] = in_layout(asked, key, found.X)
        limits = in_layout(asked, key, np.broadcast_to(found.limit * shares, found.X.shape))
        bounds[own] = one_of_head(limits, key, layout)
    return KernelFile(name, asked.config.dtype, layout, dict(inputs), given, expected, bounds)


def in_layout(asked: KernelProblem, name: str, X: np.ndarray) -> np.ndarray:
    """Return an array of a problem in the layout of the call; the log-sum-exp is (B, H, Q), or packed (H, tokens)."""
    X = np.asarray(asked.by_heads(name, X))  # (B, H or G, T, d)
    if name == LSE:
        return X[0, ..., 0] if asked.layout == "THD" else X[..., 0]
    return {"BHTD": X, "BTHD": X.swapaxes(1, 2), "THD": X[0].swapaxes(0, 1)}[asked.layout]  # (T, H, d)


def one_of_head(limits: np.ndarray, name: str, layout: KernelLayout) -> np.ndarray:
    """Return one bound for each head of a sample, or of a packed token."""
    limits = limits if name == LSE else limits[..., :1]
    if layout == "THD":
        return limits
    return limits[:, :1] if layout == "BTHD" and name != LSE else limits[:, :, :1]


def write_kernel(path: str | os.PathLike[str], case: KernelFile) -> None:
    """Write a case file of a kernel, as `case_files.write` does that of a layer."""
    files.write(path, kernel_to_bytes(case))


def kernel_to_bytes(case: KernelFile) -> bytes:
    """Return the bytes that `write_kernel` writes."""
    arrays = {f"inputs/{key}": X.astype(stored_dtype(key, case.dtype)) for key, X in case.inputs.items()}
    given = {key: case.options[key] for key in OPTIONS if key in case.options}
    arrays |= {f"call/{key}": np.asarray(X).astype(stored_dtype(key, case.dtype)) for key, X in given.items()}
    arrays |= case.expected | {f"bounds/{key}": X for key, X in case.bounds.items()}
    numbers = {key: case.options.get(key, False if key == "causal" else None) for key in NUMBERS}
    call = {"dtype": case.dtype, "layout": case.layout} | numbers
    metadata = {"format": FORMAT, "layout": LAYOUT, "name": case.name, "call": json.dumps(call)}
    return safetensors_writer.to_bytes(arrays, metadata)


def stored_dtype(name: str, dtype: FloatName) -> np.dtype:
    """Return the dtype of an array in a file."""
    if name == "mask" or name in INTEGERS:
        return np.dtype(bool if name == "mask" else np.int64)
    return at_least_float32(dtype) if name in WIDE else numpy_dtype(STORED.get(dtype, dtype))


def read_kernel(path: str | os.PathLike[str]) -> KernelFile:
    """Read a file that `write_kernel` wrote; raises as `case_files.read` does."""
    with readers.open_weights(path) as source:
        return parse_kernel(source)


def parse_kernel(source: Source) -> KernelFile:
    """Read the case in an open file; ValueError if it is none, or contradicts itself."""
    texts = source.metadata
    if not isinstance(source, SafetensorsFile) or (texts.get("format"), texts.get("layout")) != (FORMAT, LAYOUT):
        came = reprlib.repr((texts.get("format"), texts.get("layout")))
        raise ValueError(f"is no case file of a kernel: it has format and layout {came}, expected {(FORMAT, LAYOUT)}")
    name = read_name(source, "call")
    try:
        call, entries = json_text.parse(texts["call"]), source.entries
        if alone := call.keys() ^ {"dtype", "layout", *NUMBERS}:
            raise ValueError(f"its call lacks, or should not have, {', '.join(sorted(alone))}")
        dtype = checks.choice("dtype", call.pop("dtype"), checks.FLOATS)
        layout = call.pop("layout")
        given = [key for key in OPTIONS if f"call/{key}" in entries]
        wanted = {f"inputs/{key}": key for key in INPUTS} | {f"call/{key}": key for key in given}
        results = {prefix + key: key for prefix in ("", "bounds/") for key in ARRAYS}
        if alone := entries.keys() ^ {*wanted, *results}:
            raise ValueError(f"it lacks, or should not have, {', '.join(sorted(alone))}")
        kinds = {stored: stored_dtype(key, dtype) for stored, key in wanted.items()}
        kinds |= dict.fromkeys(results, np.dtype(np.float64))
        for key, kind in kinds.items():
            if (claimed := entries[key].numpy_dtype(key, ALL)) != kind:
                raise ValueError(f"{key} is {claimed}, expected {kind}")
        inputs: dict[str, Any] = {key: read_floats(source, f"inputs/{key}", dtype) for key in INPUTS}
        options = {key: X for key, X in call.items() if X is not None and X is not False}
        options |= {key: source.read(f"call/{key}", ALL).copy() for key in given}
        if "mask" in given and options["mask"].view(np.uint8).max(initial=0) > 1:
            raise ValueError("call/mask holds other bytes than 0 and 1")
        found = {key: source.read(key) for key in results}
        expected, bounds = ({key: found[prefix + key] for key in ARRAYS} for prefix in ("", "bounds/"))
        asked = kernel_problem(**inputs, **options, layout=layout, dtype=dtype)
        for own, X in expected.items():
            if isinstance(problem := asked.turn(ARRAYS[own], X), str):
                raise ValueError(f"{own} does not fit: {problem}")
            if np.broadcast_shapes(X.shape, bounds[own].shape) != X.shape or not (bounds[own] >= 0).all():
                raise ValueError(f"bounds/{own} are no bounds of shape {X.shape}")
    except (TypeError, ValueError) as problem:
        raise ValueError(f"does not fit its own description: {problem}") from problem
    return KernelFile(name, dtype, asked.layout, inputs, options, expected, bounds)
