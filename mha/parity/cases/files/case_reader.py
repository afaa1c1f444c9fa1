"""The reader of case files; it checks that the descriptions in a file fit together before it reads any number.

Letters: B batch, Q queries, K key-value pairs, H heads, D num_hiddens.
"""

import dataclasses
import reprlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from mha.core import dispatch
from mha.core.call import ARRAYS, FLOATS, ROWS, Call, check_cotangent, fitting
from mha.core.call.check import offset_column
from mha.core.options import checks
from mha.core.options import config as layers
from mha.core.options.config import Config, numpy_dtype, shapes
from mha.core.options.names import FloatName
from mha.parity.cases.files import decode_files
from mha.parity.cases.files.decode_files import Kinds
from mha.parity.cases.suite import Arrays
from mha.parity.rule.layouts import STEPS, Sizes, trace_layout
from mha.parity.rule.rules import error
from mha.weights import json_text, own_format
from mha.weights.readers import ALL, SafetensorsFile, Source

Shapes = dict[str, tuple[int, ...]]

FORMAT = "mha case"
CALL, DECODE = LAYOUTS = "1", "2"  # layout 2 is a decode, which older versions of mha do not know
HEADER_LIMIT = 2**20  # bytes; the headers that `write` makes have less than 20,000
INPUTS = ("queries", "keys", "values", "cotangent")
ARGUMENTS = (*(name for name in ARRAYS if name not in FLOATS), *FLOATS)  # of a call
# NumPy has no bfloat16 of its own, and safetensors reads none into it: float32 holds the same numbers.
STORED = {"bfloat16": "float32"}


@dataclasses.dataclass(frozen=True, eq=False)
class CaseFile:
    """A layer, a call of it or a decode, the results in float64 NumPy, and how far others may be from these.

    A decode has several calls with one cache. The names of one call's arrays begin with its number: inputs are
    "step1.queries", "step1.keys" and "step1.values", without a cotangent; in `call`, beside causal and size, the
    slots of the cache, are "step1.valid_lens" (B,), "step1.positions" (B, Q) and "step1.crop" (B,), where it is
    cropped before the call; expected are "step1.output" and, as the cache is after the call, "step1.cache.keys" and
    so on.

    Attributes:
        name: of the case.
        config: of the layer, its dtype being the one to compute in.
        weights: canonical ones.
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


def parse_case(source: Source) -> CaseFile:
    """Read the case in an open file; the descriptions are checked before the numbers are read."""
    if (form := source.metadata.get("format")) != FORMAT or not isinstance(source, SafetensorsFile):
        raise ValueError(f"is no case file: its metadata has format {reprlib.repr(form)}, expected {FORMAT!r}")
    if (layout := source.metadata.get("layout")) not in LAYOUTS:
        raise ValueError(
            f"has layout {reprlib.repr(layout)}, expected {' or '.join(map(repr, LAYOUTS))}; if another version of mha "
            "wrote it, use that one"
        )
    name = read_name(source, "config", "call", "bounds")
    config = own_format.parse_config(source.metadata["config"])
    call = _read_call(source)
    inputs, given, expected = _check_kinds(source, config, call)
    bounds = _read_bounds(source.metadata["bounds"], expected)

    weights = {key: read_floats(source, f"weights/{key}", config.dtype) for key in shapes(config)}
    for key, X in weights.items():
        try:
            checks.finite(key, X)
        except ValueError as problem:
            raise ValueError(f"is damaged: {problem}") from problem
    arrays = {key.removeprefix("inputs/"): read_floats(source, key, config.dtype) for key in inputs}
    for key in given:
        argument = key.removeprefix("call/")
        call[argument] = read_floats(source, key, config.dtype) if argument in FLOATS else source.read(key, ALL)
    if (mask := call.get("mask")) is not None and mask.view(np.uint8).max() > 1:
        raise ValueError("is damaged: call/mask holds other bytes than 0 and 1")
    return CaseFile(name, config, weights, arrays, call, {key: source.read(key, ALL) for key in expected}, bounds)


def read_name(source: SafetensorsFile, *others: str) -> str:
    """Return the name of the case in a file; ValueError if it, or one of the other metadata, does not fit."""
    if source.header_size > HEADER_LIMIT:
        raise ValueError(f"has a header of {source.header_size} bytes, expected at most {HEADER_LIMIT}")
    if missing := [key for key in ("name", *others) if key not in source.metadata]:
        raise ValueError(f"lacks {', '.join(missing)} in its metadata")
    if not (name := source.metadata["name"]).isprintable():
        raise ValueError(f"has the name {reprlib.repr(name)}, expected one that can be printed")
    return name


def read_floats(source: Source, name: str, dtype: FloatName) -> np.ndarray:
    """Read an array in the dtype of a case; ValueError if it holds numbers that this dtype has not."""
    X = source.read(name)
    with np.errstate(over="ignore"):
        narrow = X.astype(numpy_dtype(dtype))
    if error(narrow, X):
        raise ValueError(f"is damaged: {name} holds numbers that {dtype} has not")
    return narrow


def _read_call(source: Source) -> dict[str, Any]:
    """Read the arguments of the call that are no arrays."""
    try:
        call = json_text.parse(source.metadata["call"])
        decodes = source.metadata["layout"] == DECODE
        names = {"causal", *["size"] * decodes, *["offset"] * (not decodes and "call/offset" not in source.entries)}
        if set(call) != names:
            raise ValueError(f"it has {', '.join(sorted(call)) or 'nothing'}, expected {' and '.join(sorted(names))}")
        checks.flag("causal", call["causal"])
        if "offset" in call:
            offset_column(checks.whole("offset", call["offset"]))
        if "size" in call:
            checks.size("size", call["size"])
    except (TypeError, ValueError) as problem:
        raise ValueError(f"holds no valid call: {problem}") from problem
    return call


def _check_kinds(source: Source, config: Config, call: dict[str, Any]) -> tuple[Kinds, Kinds, Kinds]:
    """Return the expected inputs, arguments and results, in order; ValueError if an array is described otherwise."""
    entries = source.entries
    try:
        claimed = {name: entry.stand_in(name, ALL) for name, entry in entries.items()}
        stored = numpy_dtype(STORED.get(config.dtype, config.dtype))
        describe = decode_files.array_kinds if "size" in call else _kinds_of_call
        inputs, given, expected = describe(config, call, claimed, stored)
        weights = {f"weights/{name}": (stored, shape) for name, shape in shapes(config).items()}
        wanted: Kinds = {**inputs, **given, **weights, **expected}
        if missing := [name for name in wanted if name not in entries]:
            raise ValueError(f"{', '.join(missing)} is not there")
        if unknown := [name for name in entries if name not in wanted]:
            raise ValueError(f"{', '.join(unknown)} is there, which such a case has not")
        for name, (dtype, shape) in wanted.items():
            if (came := claimed[name]).shape != shape or came.dtype != dtype:
                raise ValueError(f"{name} is {came.dtype} {came.shape}, expected {dtype} {shape}")
    except (TypeError, ValueError) as problem:
        raise ValueError(f"does not fit its own configuration: {problem}") from problem
    return inputs, given, expected


def _kinds_of_call(
    config: Config, call: Mapping[str, Any], claimed: Mapping[str, np.ndarray], stored: np.dtype
) -> tuple[Kinds, Kinds, Kinds]:
    """Return the expected inputs, arguments and results of a call; raises ValueError or TypeError as a call does."""
    if missing := [key for key in (f"inputs/{name}" for name in INPUTS) if key not in claimed]:
        raise ValueError(f"{', '.join(missing)} is not there")
    inputs = {f"inputs/{name}": claimed[f"inputs/{name}"] for name in INPUTS}
    queries, keys, values, cotangent = (_empty_in_layer_dtype(X, stored, config, key) for key, X in inputs.items())
    given = {f"call/{name}": claimed[f"call/{name}"] for name in ARGUMENTS if f"call/{name}" in claimed}
    arguments = {key.removeprefix("call/"): X for key, X in given.items()}
    arguments |= {
        key: _empty_in_layer_dtype(arguments[key], stored, config, f"call/{key}") for key in FLOATS if key in arguments
    }
    own, (B, Q, K) = dispatch.load("numpy"), (*queries.shape[:2], keys.shape[1])
    fitting.fit_inputs(own, config, None, queries, keys, values)
    fitting.fit_call(own, config, None, (B, Q, K), Call(**call, **arguments))
    check_cotangent(own, config, None, cotangent, (B, Q, config.num_hiddens))
    expected = {
        name: (np.dtype(np.float64), shape) for name, shape in _result_shapes(config, arguments, B, Q, K).items()
    }
    given_kinds, input_kinds = ({key: (X.dtype, X.shape) for key, X in part.items()} for part in (given, inputs))
    return input_kinds, given_kinds, expected


def _empty_in_layer_dtype(array: np.ndarray, stored: np.dtype, config: Config, name: str) -> np.ndarray:
    """Return an array of the layer's dtype, without numbers, for one that is stored in the right dtype."""
    if array.dtype != stored:
        raise ValueError(f"{name} has dtype {array.dtype}, expected {stored}")
    return np.broadcast_to(np.zeros((), numpy_dtype(config.dtype)), array.shape)


def _result_shapes(config: Config, given: Mapping[str, np.ndarray], B: int, Q: int, K: int) -> Shapes:
    """Return name and shape of each result, in order, of a call with these arrays besides queries, keys and values."""
    of_options = {row.step: name for name, row in layers.ROWS.items() if row.step}
    sizes, left_out = Sizes(B, Q, K, config), {name for name, one in of_options.items() if getattr(config, one) is None}
    left_out |= {row.step for name, row in ROWS.items() if name not in given}
    kinds = {name: name if name in of_options else name.partition("_")[0] for name in STEPS}
    steps = [name for name, kind in kinds.items() if not {name, kind} & left_out]
    gradients: Shapes = {"queries": (B, Q, config.query_size), "keys": (B, K, config.key_size)}
    gradients["values"] = (B, K, config.value_size)
    gradients |= {name: given[name].shape for name in FLOATS if name in given} | shapes(config)
    return {
        **{f"steps/{name}": trace_layout(name, sizes.shape(name))[0] for name in steps},
        "attention_weights": (B, config.num_heads, Q, K),
        "output": (B, Q, config.num_hiddens),
        **{f"gradients/{name}": shape for name, shape in gradients.items()},
    }


def _read_bounds(text: str, expected: Kinds) -> dict[str, float]:
    """Read the bounds of the expected results."""
    try:
        bounds = json_text.parse(text)
        if alone := bounds.keys() ^ expected.keys():
            raise ValueError(f"of {', '.join(sorted(alone))} there are results or bounds alone")
        return {name: checks.number(f"the bound of {name}", bounds[name], 0) for name in expected}
    except (TypeError, ValueError) as problem:
        raise ValueError(f"holds no valid bounds: {problem}") from problem
