"""Calls to judge kernels by, and how a kernel is called: by its own names, in its layout, with its framework's arrays.

Letters as in the lessons.
"""

import importlib
import inspect
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

# The names that kernels have for an option, ours first.
SYNONYMS = {
    "causal": ("causal", "is_causal"),
    "mask": ("mask", "attn_mask"),
    "bias": ("bias", "attn_bias"),
    "scale": ("scale", "sm_scale", "softmax_scale"),
    "window": ("window", "window_size", "local_window_size"),
    "softcap": ("softcap", "logits_soft_cap", "attn_logits_soft_cap"),
    "sinks": ("sinks", "s_aux"),
    "lengths": ("lengths", "key_value_seq_lengths"),
    "cu_seqlens": ("cu_seqlens", "cu_seqlens_q"),
    "cu_seqlens_k": ("cu_seqlens_k",),
}
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


class Case(NamedTuple):
    """A call to draw: B samples, Q queries of H heads, K keys of G heads, and the options by their own names.

    options: words for what is drawn, or the values. scores: by what queries are multiplied. how: what else is special.
    """

    Q: int
    K: int
    width: int = 40
    G: int = 6
    options: Mapping[str, Any] = MappingProxyType({})
    scores: float = 1.0
    how: str = ""
    B: int = 2
    H: int = 6

    def __str__(self):
        options = ", ".join(f"{name}={value}" for name, value in self.options.items())
        sizes = f"{self.Q} x {self.K}, " * (self.Q > 0) + f"width {self.width}, heads {self.H} of {self.G}"
        return "; ".join(
            filter(None, (sizes, options, self.how, "" if self.scores == 1 else f"scores x {self.scores}"))
        )


CASES = (
    Case(1, 1, 8),
    Case(33, 32, 64),
    Case(65, 129, G=2),
    Case(31, 31, options={"causal": True}),
    Case(64, 64, 64, options={"causal": True}),
    Case(33, 65, G=2, options={"causal": True}),
    Case(129, 65, 80, G=3, options={"causal": True}),
    Case(1, 704, 8, G=2),
    Case(65, 63, options={"mask": "pairs"}),
    Case(32, 127, 8, G=2, options={"mask": "heads"}),
    Case(31, 193, 64, options={"mask": "keys"}),
    Case(63, 65, G=2, options={"mask": "rows"}),
    Case(65, 97, 8, options={"mask": "pairs", "causal": True}),
    Case(65, 64, 8, options={"bias": "pairs"}, G=3),
    Case(33, 129, options={"bias": "heads"}),
    Case(127, 127, options={"window": (5, 0), "causal": True}),
    Case(193, 129, 8, options={"window": (17, 3)}),
    Case(65, 65, options={"window": (9, 4)}),
    Case(65, 97, options={"window": (None, 2)}),
    Case(65, 97, options={"window": (40, None)}, G=2),
    Case(33, 129, options={"lengths": "drawn"}, G=3),
    Case(65, 65, 64, options={"lengths": "drawn", "causal": True}),
    Case(65, 33, options={"scale": 0.3}),
    Case(33, 65, 64, options={"softcap": 5.0}, scores=10),
    Case(64, 129, 8, G=3, options={"softcap": 2.0, "mask": "pairs", "bias": "pairs"}, scores=3),
    Case(32, 65, options={"sinks": "drawn"}, scores=3),
    Case(65, 97, 64, G=2, options={"sinks": "drawn", "causal": True}, scores=10),
    Case(33, 193, how="scores near -120"),
    Case(65, 129, 64, scores=30),
    Case(33, 193, how="growing scores"),
    Case(32, 65, how="equal keys"),
    Case(65, 63, how="small heads"),
    Case(33, 65, G=3, how="transposed"),
    Case(33, 129, options={"lengths": "drawn"}, how="1e30 in hidden keys"),
    Case(31, 4096, 8, how="values with a mean", B=1, H=2, G=1),
    *(
        Case(0, 0, width, G, {"cu_seqlens": texts, "cu_seqlens_k": keys} | more, scores, B=1)
        for texts, keys, width, G, more, scores in (
            ((1, 33, 64, 65), (1, 33, 64, 65), 40, 6, {}, 1),
            ((33, 1, 65), (65, 31, 33), 64, 2, {}, 1),
            ((1, 33, 64, 65), (1, 33, 64, 65), 8, 3, {"causal": True}, 3),
            ((31, 65), (65, 33), 40, 6, {"causal": True, "window": (9, 0)}, 1),
        )
    ),
)


class Drawn(NamedTuple):
    """A call as NumPy arrays, in the layout (B, H, T, d), or (tokens, H, d) of texts; options by our names."""

    inputs: tuple[np.ndarray, np.ndarray, np.ndarray]
    cotangent: np.ndarray
    options: dict[str, Any]


def draw(case, seed, dtype="float32"):
    """Draw a call."""
    rng, options, kind = np.random.default_rng(seed), dict(case.options), DTYPES[dtype]
    B, Q, K, H, G, d = case.B, case.Q, case.K, case.H, case.G, case.width
    if texts := "cu_seqlens" in options:
        starts = {name: np.cumsum((0, *options[name])).astype(np.int32) for name in ("cu_seqlens", "cu_seqlens_k")}
        options, Q, K = options | starts, *(int(one[-1]) for one in starts.values())
    q, k, v = (rng.standard_normal((B, n, T, d)) for n, T in ((H, Q), (G, K), (G, K)))
    q, cotangent = q * case.scores, rng.standard_normal(q.shape)
    if case.how == "scores near -120":
        q, k = q + 4, k - 120 / 4 / d**0.5
    elif case.how == "growing scores":
        k = k + np.linspace(0, 30, K)[:, None] / d**0.5
        q = q + 4
    elif case.how == "equal keys":
        k = np.repeat(k[:, :, :1], K, 2)
    elif case.how == "small heads":
        v[:, ::2] *= 1e-4
    elif case.how == "values with a mean":
        v = v + 1
    elif case.how == "transposed":
        q, k, v, cotangent = (np.ascontiguousarray(X.swapaxes(1, 2)).swapaxes(1, 2) for X in (q, k, v, cotangent))
    options |= draw_options(case, rng, B, H, Q, K)
    if case.how == "1e30 in hidden keys":
        k, v = (np.where(np.arange(K)[:, None] >= options["lengths"][:, None, None, None], 1e30, X) for X in (k, v))
    inputs = [X.astype(kind) for X in (q, k, v, cotangent)]
    if texts:
        inputs = [np.ascontiguousarray(X[0].swapaxes(0, 1)) for X in inputs]  # (T, H, d)
    return Drawn(tuple(inputs[:3]), inputs[3], options)


def draw_options(case, rng, B, H, Q, K):
    """Draw the options of a call that are arrays."""
    shapes = {"pairs": (1, 1, Q, K), "heads": (B, H, Q, K), "keys": (B, 1, 1, K), "rows": (B, 1, Q, K)}
    found = {}
    if how := case.options.get("mask"):
        found["mask"] = rng.random(shapes[how]) < 0.6
        found["mask"][..., 0] |= how != "rows"  # else a row may see nothing
        if how == "rows":
            found["mask"][0, :, 3] = False
    if how := case.options.get("bias"):
        found["bias"] = rng.standard_normal(shapes[how]).astype(np.float32) * 2
    if "lengths" in case.options:
        found["lengths"] = np.array([K // 2, K - 3] if case.options.get("causal") else [K // 2 + 1, 0])[:B]
    if "sinks" in case.options:
        found["sinks"] = rng.standard_normal(H).astype(np.float32) * case.scores
    return found


def parameters(kernel):
    """Return a kernel's own names of the options that it takes, by ours."""
    own = kernel.takes or tuple(inspect.signature(kernel.call).parameters)[3:]
    return {name: each for name, synonyms in SYNONYMS.items() for each in synonyms if each in own}


def sees_nothing(case):
    """Return whether some row of a case has no key."""
    beyond = "window" in case.options and case.Q > case.K
    return beyond or case.options.get("mask") == "rows" or ("lengths" in case.options and "causal" not in case.options)


def takes(kernel, case):
    """Return whether a kernel can do a case."""
    packed = "cu_seqlens" in case.options
    unseeing = sees_nothing(case) or (kernel.holds.get("causal") == "lower right" and (packed or case.Q > case.K))
    if (kernel.layout == "THD") != packed or (unseeing and not kernel.empty_rows):
        return False
    own = () if kernel.takes else [*inspect.signature(kernel.call).parameters.values()][3:]
    needed = {one.name for one in own if one.default is inspect.Parameter.empty}
    names = parameters(kernel)
    return needed <= {names.get(name) for name in case.options} and {*case.options} <= {*names, *kernel.holds}


def asked(kernel, case, drawn):
    """Return the arguments of `parity.compare_kernel` for the call that a kernel makes."""
    inputs = [in_layout(X, kernel.layout) for X in (*drawn.inputs, drawn.cotangent)]
    more = {"layout": kernel.layout, "empty_rows": kernel.empty_rows, "cotangent": inputs[3]}
    return inputs[:3], drawn.options | dict(kernel.holds) | more


def in_layout(X, layout):
    """Return heads (B, H, T, d) as a layout has them; a packed array is as it should be."""
    return np.ascontiguousarray(X.swapaxes(1, 2)) if layout == "BTHD" else X  # (B, T, H, d)


def call(backend, kernel, case, drawn, gradients=True):
    """Call a kernel as its users do, and return its arrays by name, NumPy's."""
    run = importlib.import_module(f"kernel_zoo.of_{backend}").run
    names, always = parameters(kernel), {"causal": True} if kernel.holds.get("causal") else {}
    options = {names[name]: X for name, X in (drawn.options | always).items() if name in names}
    inputs, cotangent = asked(kernel, case, drawn)[0], in_layout(drawn.cotangent, kernel.layout)
    with np.errstate(all="ignore"):
        return run(kernel, inputs, options, cotangent if gradients and kernel.gradients else None)


def by_hand(kernel, inputs, options, cotangent):
    """Call a kernel with its own backward pass; return its arrays by name, those without gradients if no cotangent."""
    output, *lse = made if isinstance(made := kernel.call(*inputs, **options), tuple) else (made,)
    found = {"output": output} | dict(zip(("lse",), lse, strict=False))
    if cotangent is None or kernel.backward is None:
        return found
    return found | kernel.backward(*inputs, output, *lse, cotangent, **options)


def able(kernel, cases=CASES):
    """Return the cases that a kernel can do."""
    return [case for case in cases if takes(kernel, case)]
