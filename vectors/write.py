"""Write the conformance vectors, the same bytes every time: `python vectors/write.py`; `--check` only compares.

Each vector is a case file; docs/vectors.md describes them. The last bits of float64 differ between processors.
Therefore this script runs itself again with only those instructions that every x86-64 processor has. The bytes also
depend on NumPy's version, which tox.ini pins.
"""

import dataclasses
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from mha.names import FloatName

import mha
from mha.parity import Case, case_files
from mha.parity.cases.decodes import DECODES, Decode
from mha.parity.testing.kernels.kernel_cases import KernelCase
from mha.parity.testing.kernels.options import read_setup
from mha.parity.testing.kernels.running import KernelCall
from mha.weights import files

# Variables of a process: the instructions that OpenBLAS and the C library may use, and the number of threads.
PLAIN = {"OPENBLAS_CORETYPE": "Nehalem", "OPENBLAS_NUM_THREADS": "1"}
PLAIN |= {"GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4,-AVX2_Usable,-FMA_Usable,-FMA4_Usable"}

# Small primes, so that swapped axes do not fit.
SIZES = {"batch": 2, "num_queries": 5, "num_keys": 7}
PLAIN_LAYER: dict[str, Any] = {
    "num_hiddens": 13, "num_heads": 3, "bias": True,
    "query_size": 3, "key_size": 5, "value_size": 11, "key_dim": 11, "value_dim": 2,
}  # fmt: skip
INPUT_WIDTHS = ("query_size", "key_size", "value_size")
FOUR = {"num_heads": 4, "num_key_value_heads": 2}
EVERY_FLOAT: tuple[FloatName, ...] = ("float32", "float64", "float16", "bfloat16")
SOME = [3, 6]  # lengths


@dataclasses.dataclass(frozen=True)
class Vector:
    """A case, and a change of its numbers.

    name: of its file, before the dtype; case: layer and call; change: a function that changes queries, keys, values,
    cotangent and the arguments by name, in place.
    """

    name: str
    case: Case
    change: Callable[[tuple[np.ndarray, ...], dict[str, Any]], None] | None = None

    def made(self, dtype: FloatName) -> case_files.CaseFile:
        """Make the case file in a dtype."""
        inputs, call = self.case.inputs(dtype), self.case.call(dtype)
        if self.change:
            self.change(inputs, call)
        return case_files.make(f"{self.name}-{dtype}", self.case.layer("numpy", dtype), inputs, call)


def vector(
    name: str,
    valid_lens: list | None = None,
    *,
    layer: dict[str, Any] | None = None,
    dtypes: tuple[FloatName, ...] = ("float32",),
    change: Callable[[tuple[np.ndarray, ...], dict[str, Any]], None] | None = None,
    **call: Any,
) -> Vector:
    """A vector of the plain layer with the options of `layer`; call: sizes, mask, causal and so on, as of a `Case`."""
    case = Case(name, PLAIN_LAYER | (layer or {}), valid_lens, **SIZES | {"dtypes": dtypes} | call)
    return Vector(name, case, change)


def poison(inputs: tuple[np.ndarray, ...], call: dict[str, Any]) -> None:
    """Put NaN and infinity into keys and values that no query sees."""
    for b, length in enumerate(call["valid_lens"]):
        inputs[1][b, length:], inputs[2][b, length:] = np.nan, np.inf


def hide_rows(inputs: tuple[np.ndarray, ...], call: dict[str, Any]) -> None:
    """Hide every key of the second query by -inf; give the third query the lowest numbers, which do not hide."""
    bias, cotangent = call["score_bias"], inputs[3]
    bias[..., 1, :], bias[..., 2, :] = -np.inf, np.finfo(np.float32).min
    cotangent[:, 2] = 0  # scores that a number absorbs have no slope


def alibi(inputs: tuple[np.ndarray, ...], call: dict[str, Any]) -> None:
    """Add a bias to the scores that falls with the distance."""
    call["score_bias"] = mha.alibi(3, SIZES["num_keys"]).astype(inputs[0].dtype)


ROTARY = {"rotary": mha.Rotary(10)}
ADDITIVE = {"pooling": "additive"}
BIAS, GATES = {"score_bias": (2, 3, 5, 7)}, {"head_gates": (2, 3)}
OTHERS = {"num_heads": 6, "num_key_value_heads": 3, "softcap": 1.5, "window": (3, 1)}
ALL = OTHERS | {"scale": 0.7, "rotary": mha.Rotary(6, base=500.0, interleaved=True), "qk_norm": "layer"}
ALL_CALL: dict[str, Any] = {"mask": (2, 5, 7), "score_bias": (2, 1, 5, 7), "offset": [1, 3], "head_gates": (6,)}

VECTORS = (
    # The plain layer, sizes and scales.
    vector("plain", dtypes=EVERY_FLOAT),
    vector("no-bias", layer={"bias": False}),
    vector("equal-widths", SOME, layer={"num_hiddens": 21} | dict.fromkeys(INPUT_WIDTHS)),
    vector("one-head", SOME, layer={"num_heads": 1}),
    vector("head-of-width-1", SOME, layer={"key_dim": 1, "value_dim": 1}),
    vector("one-query-one-key", num_queries=1, num_keys=1),
    vector("many-keys", [127], batch=1, num_keys=131),
    vector("small-numbers", SOME, scale=1e-2, dtypes=("float32", "float16")),
    vector("large-numbers", SOME, scale=30.0, dtypes=EVERY_FLOAT),
    # Lengths, masks and causal order.
    vector("lengths", SOME, dtypes=EVERY_FLOAT),
    vector("lengths-of-0", [0, 4]),
    vector("lengths-all-0", [0, 0]),
    vector("lengths-above-K", [9, 2]),
    vector("lengths-per-query", [[1, 4, 2, 7, 0], [0, 3, 9, 5, 6]], dtypes=("float32", "float64")),
    vector("padding-of-nan", SOME, change=poison),
    vector("mask-of-pairs", mask=(5, 7)),
    vector("mask-of-samples", mask=(2, 5, 7)),
    vector("mask-of-heads", mask=(2, 3, 5, 7)),
    vector("mask-of-keys", mask=(2, 1, 1, 7)),
    vector("mask-of-queries", mask=(2, 1, 5, 1)),
    vector("causal", causal=True),
    vector("causal-more-queries", causal=True, num_queries=7, num_keys=5),
    vector("causal-offset", causal=True, offset=2),
    vector("causal-offset-below-0", causal=True, offset=-2),
    vector("causal-offsets", causal=True, offset=[-1, 3]),
    vector("lengths-mask-causal", [[4, 2, 3, 7, 5], [5, 0, 2, 6, 1]], mask=(5, 7), causal=True),
    # Options of today's models, alone.
    vector("groups", SOME, layer=FOUR, dtypes=("float32", "float16", "bfloat16")),
    vector("groups-of-1", SOME, layer=FOUR | {"num_key_value_heads": 1}),
    vector("scale", layer={"scale": 0.7}),
    vector("cap", layer={"softcap": 1.5}, dtypes=("float32", "float16")),
    vector("cap-of-large-scores", layer={"softcap": 20.0}, scale=30.0),
    vector("window", layer={"window": (2, 1)}),
    vector("chunks", layer={"chunk": 3}, causal=True, offset=1),
    vector("window-to-the-left", layer={"window": (2, None)}),
    vector("window-to-the-right", layer={"window": (None, 1)}),
    vector("window-of-one", layer={"window": (0, 0)}, num_queries=7),
    vector("bias-of-pairs", score_bias=(5, 7)),
    vector("bias-of-samples", score_bias=(2, 1, 5, 7)),
    vector("bias-of-heads", **BIAS, dtypes=("float32", "float16", "bfloat16")),
    vector("bias-that-hides-rows", **BIAS, change=hide_rows),
    vector("alibi", causal=True, change=alibi),
    vector("gates", head_gates=(3,)),
    vector("gates-of-samples", **GATES),
    vector("rotary", layer=ROTARY, dtypes=EVERY_FLOAT),
    vector("rotary-interleaved", layer={"rotary": mha.Rotary(10, interleaved=True)}),
    vector("rotary-of-a-part", layer={"rotary": mha.Rotary(4)}),
    vector("rotary-frequencies", layer={"rotary": mha.Rotary(frequencies=mha.llama3_frequencies(10))}),
    vector("rotary-magnified", layer={"rotary": mha.Rotary(6, magnitude=1.25)}),
    vector("temperature", layer=ROTARY | {"temperature": mha.Temperature(0.4, 2)}, offset=[4, 99]),
    vector("rotary-far", layer={"rotary": mha.Rotary(10, base=500000.0)}, offset=131072),
    vector("rotary-offsets", layer=ROTARY, offset=[4, 99]),
    vector("positions", layer=ROTARY, causal=True, positions=[2, 9, 4, 3, 6], key_positions=[5, 1, 2, 4, 3, 7, 6]),
    vector(
        "positions-padded",
        layer=ROTARY | {"window": (3, None)},
        causal=True,
        positions=[[-1, -1, 0, 1, 2], [2, 3, 4, -1, -1]],
        key_positions=[[-1, -1, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, -1, -1]],
    ),
    vector("segments", segments=[[3, 3, 0, -1, 0], [1, 0, 1, 0, 7]], key_segments=[3, 0, 0, 1, -1, 3, 1]),
    vector(
        "segments-packed",
        layer=ROTARY | {"window": (3, None)},
        causal=True,
        num_keys=5,
        segments=[4, 4, 4, 1, 1],
        positions=[0, 1, 2, 0, 1],
        key_positions=[0, 1, 2, 0, 1],
    ),
    vector("rms-norm", layer={"qk_norm": "rms"}, dtypes=("float32", "bfloat16")),
    vector("layer-norm", layer={"qk_norm": "layer"}),
    vector("sinks", SOME, layer={"sinks": True}, dtypes=("float32", "bfloat16")),
    vector("sinks-groups-cap", [0, 5], layer=FOUR | {"sinks": True, "softcap": 1.5}),
    vector("output-gate", SOME, layer={"output_gate": "element"}, dtypes=("float32", "bfloat16")),
    vector("output-gate-of-heads", [0, 5], layer=FOUR | {"output_gate": "head"}, head_gates=(4,)),
    vector("norm-epsilon", layer={"qk_norm": mha.Norm("rms", 0.5)}, scale=1e-2),
    # Options together.
    vector("groups-rotary", SOME, layer=FOUR | ROTARY),
    vector("groups-rotary-one-query", layer=FOUR | ROTARY, causal=True, offset=[6, 4], num_queries=1),
    vector("groups-window-lengths", SOME, layer=FOUR | {"window": (2, 0)}),
    vector("groups-gates", layer=FOUR, head_gates=(4,)),
    vector("window-offset", layer={"window": (1, 0)}, causal=True, offset=2),
    vector("window-offsets", SOME, layer={"window": (2, 1)}, offset=[-1, 3]),
    vector("window-beyond-the-keys", layer={"window": (2, 2)}, offset=5),
    vector("cap-bias", layer={"softcap": 1.5}, **BIAS),
    vector("cap-window-bias", layer={"softcap": 1.5, "window": (3, 1)}, score_bias=(2, 1, 5, 7)),
    vector("bias-lengths", [0, 5], **BIAS),
    vector("rms-norm-rotary", layer=ROTARY | {"qk_norm": "rms"}),
    vector("norm-of-all-heads", SOME, layer=ROTARY | FOUR | {"qk_norm": mha.Norm("rms", 0.01, "all")}),
    vector("norm-after-rotary", layer=ROTARY | {"qk_norm": mha.Norm("rms", 0.01, after=True)}, offset=3),
    vector("norm-of-values", SOME, layer={"value_norm": mha.Norm("rms", 0.01)}),
    vector("layer-norm-rotary", layer={"rotary": mha.Rotary(10, interleaved=True), "qk_norm": "layer"}, offset=3),
    vector("norm-scale-cap", layer={"qk_norm": "rms", "scale": 0.7, "softcap": 1.5}),
    vector("all-options", [4, 6], layer=ALL, **ALL_CALL, dtypes=EVERY_FLOAT),
    # Additive pooling.
    vector("additive", layer=ADDITIVE, dtypes=EVERY_FLOAT),
    vector("additive-lengths-of-0", [0, 4], layer=ADDITIVE),
    vector("additive-groups", SOME, layer=ADDITIVE | FOUR),
    vector("additive-sinks", SOME, layer=ADDITIVE | {"sinks": True}),
    vector("additive-output-gate", SOME, layer=ADDITIVE | {"output_gate": "element"}),
    vector("additive-large-numbers", SOME, layer=ADDITIVE, scale=30.0),
    vector("additive-all-options", [4, 6], layer=ADDITIVE | OTHERS, **ALL_CALL),
)


def kernel(name: str, *, dtypes: tuple[FloatName, ...] = ("float32",), **fields: Any) -> KernelCase:
    """A call of a kernel with 4 heads of 2, small, unless its fields say otherwise."""
    sizes = {"batch": 2, "heads": 4, "groups": 2, "queries": 5, "keys": 7, "width": 3}
    return KernelCase(name, also=dtypes, **sizes | fields)


LOWER_RIGHT = {"causal": "lower right"}
KERNELS = (
    kernel("plain", dtypes=EVERY_FLOAT),
    kernel("heads-of-their-own", groups=4),
    kernel("one-head-of-keys", groups=1),
    kernel("one-query", queries=1),
    kernel("one-key", keys=1),
    kernel("width-40", width=40, batch=1, heads=2, groups=1),
    kernel("values-of-another-width", value_width=5),
    kernel("two-tiles", queries=3, keys=67, batch=1, heads=2, groups=1, width=2),
    kernel("causal", causal=True, dtypes=("float32", "bfloat16")),
    kernel("causal-more-queries", causal=True, queries=7, keys=5),
    kernel("lower-right", **LOWER_RIGHT),
    kernel("lower-right-more-queries", **LOWER_RIGHT, queries=7, keys=5),
    kernel("mask-of-pairs", mask="pairs"),
    kernel("mask-of-heads", mask="heads"),
    kernel("mask-that-hides-rows", mask="empty rows"),
    kernel("bias", bias=True),
    kernel("lengths-of-0", lengths=True, batch=3, dtypes=("float32", "float16")),
    kernel("huge-numbers-in-hidden-keys", lengths=True, batch=3, numbers="hidden huge"),
    kernel("window", window=(2, 1)),
    kernel("window-to-the-left", window=(1, None), causal=True),
    kernel("scale", scale=0.37),
    kernel("cap", softcap=1.5, numbers="large"),
    kernel("cap-mask-bias", softcap=1.5, mask="pairs", bias=True),
    kernel("sinks", sinks=1.0, dtypes=("float32", "bfloat16")),
    kernel("large-scores", numbers="large"),
    kernel("low-scores", numbers="low"),
    kernel("small-values-in-every-second-head", groups=4, numbers="small"),
    kernel("packed", texts=(1, 3, 5)),
    kernel("packed-causal", texts=(5, 1, 3), causal=True),
    kernel("packed-lower-right", texts=(4, 1, 3), key_texts=(2, 6, 3), **LOWER_RIGHT),
    kernel("packed-other-lengths-of-keys", texts=(3, 1, 4), key_texts=(5, 2, 4), **LOWER_RIGHT),
)


def kernel_file(case: KernelCase, dtype: FloatName) -> case_files.KernelFile:
    """Make the case file of a kernel's call in a dtype."""
    layout: Any = "THD" if case.texts else "BHTD"
    call = KernelCall(case, dtype, read_setup("numpy", {"layout": layout}))
    inputs = {name: call.arrays[name] for name in ("q", "k", "v", "cotangent")}
    return case_files.make_kernel(f"{case.name}-{dtype}", inputs, call.options, layout)


def decoded(case: Decode, dtype: FloatName) -> case_files.CaseFile:
    """Make the case file of a decode in a dtype."""
    return dataclasses.replace(case_files.from_case(case, dtype), name=f"{case.name}-{dtype}")


def plain_environment() -> dict[str, str]:
    """The variables of a process that computes the same bits on every processor."""
    found = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
    return PLAIN | {"NPY_DISABLE_CPU_FEATURES": " ".join(found)}


def main(*arguments: str) -> None:
    """Write every vector into this script's folder; with --check, only name the files that would change."""
    if not PLAIN.items() <= os.environ.items():
        os.execve(sys.executable, [sys.executable, __file__, *arguments], os.environ | plain_environment())
    if arguments not in ((), ("--check",)):
        raise SystemExit(f"got {' '.join(arguments)}, expected nothing or --check")
    folder = Path(__file__).parent
    made = [one.made(dtype) for one in VECTORS for dtype in one.case.dtypes]
    made += [decoded(one, dtype) for one in DECODES for dtype in one.dtypes]
    contents = {folder / f"{case.name}.safetensors": case_files.to_bytes(case) for case in made}
    kernels = [kernel_file(one, dtype) for one in KERNELS for dtype in one.also]
    contents |= {folder / "kernels" / f"{case.name}.safetensors": case_files.kernel_to_bytes(case) for case in kernels}
    there = {path: path.read_bytes() for path in folder.rglob("*.safetensors")}
    different = sorted(path for path in {*contents, *there} if contents.get(path) != there.get(path))
    if arguments:
        names = ", ".join(path.name for path in different)
        raise SystemExit(f"{names}: not as {Path(__file__).name} writes it" if different else 0)
    for path in different:
        if path in contents:
            files.write(path, contents[path])
        else:
            path.unlink()
    print(f"{len(contents)} vectors, {sum(map(len, contents.values())):,} bytes, of which {len(different)} changed")


if __name__ == "__main__":
    main(*sys.argv[1:])
