"""The arguments of a kernel's call, checked, as a `KernelProblem`; letters as in the lessons."""

import contextlib
import re
from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any, NamedTuple, TypedDict, Unpack, get_args

import numpy as np

from mha import arrays
from mha.core import dispatch
from mha.core.call import Call, check
from mha.core.options import checks
from mha.core.options.config import Config
from mha.parity.rule.heads import LAYOUTS, heads_first, merge
from mha.parity.rule.kernel import Kernel, KernelProblem
from mha.parity.rule.options import Option, complete
from mha.parity.rule.problem import StyleName, as_numpy

LOWER_RIGHT = "lower right"
NUMBERS = ("causal", "window", "scale", "softcap")  # options that are no arrays
# The arguments of a layer's call that a kernel's call names otherwise.
NAMES = {"queries": "q", "keys": "k", "values": "v", "valid_lens": "lengths", "score_bias": "bias"}


class KernelCallOptions(TypedDict, total=False):
    """The options of a kernel's call, as `parity.compare_kernel` describes them."""

    layout: Annotated[str, Option("BHTD", partial(checks.choice, known=LAYOUTS))]
    causal: Annotated[bool | str, Option(False)]
    window: Annotated[Any, Option()]
    scale: Annotated[float | None, Option()]
    softcap: Annotated[float | None, Option()]
    mask: Annotated[Any, Option()]
    bias: Annotated[Any, Option()]
    lengths: Annotated[Any, Option()]
    sinks: Annotated[Any, Option()]
    cotangent: Annotated[Any, Option()]
    cu_seqlens: Annotated[Any, Option()]
    cu_seqlens_k: Annotated[Any, Option()]
    dtype: Annotated[str | None, Option(None, partial(checks.choice, known=checks.FLOATS))]
    empty_rows: Annotated[bool, Option(True, checks.flag)]
    style: Annotated[str | None, Option(None, partial(checks.choice, known=get_args(StyleName)))]


def kernel_problem(q: Any, k: Any, v: Any, **options: Unpack[KernelCallOptions]) -> KernelProblem:
    """Make a problem of the arguments of `parity.compare_kernel`; raises as it does."""
    given = complete("compare_kernel", KernelCallOptions, options)
    layout, window, lengths, mask, bias = (given[name] for name in ("layout", "window", "lengths", "mask", "bias"))
    arrays_of = {name: floats_of(name, X) for name, X in (("q", q), ("k", k), ("v", v))}
    heads = {name: heads_first(name, X, layout) for name, X in arrays_of.items()}  # (B, H or G, T, d)
    check_heads(heads, layout)
    (B, H, Q, d), (_, G, K, dv) = heads["q"].shape, heads["v"].shape
    config = Config(
        H * dv, H, query_size=H * d, key_size=G * d, value_size=G * dv, key_dim=d, value_dim=dv, num_key_value_heads=G,
        scale=given["scale"], softcap=given["softcap"], window=window, sinks=given["sinks"] is not None,
        dtype="float64",
    )  # fmt: skip
    if (sinks := given["sinks"]) is not None:
        sinks = floats_of("sinks", sinks)
        if sinks.shape != (H,):
            raise ValueError(f"sinks has shape {sinks.shape}, expected {(H,)}: one for each head of queries")
    wide, (queries, keys, values) = Kernel(config).in_dtype("float64"), (merge(X) for X in heads.values())
    order = order_of(given["causal"])
    texts = packed_texts(layout, given["cu_seqlens"], given["cu_seqlens_k"], (Q, K))
    hiding: dict[str, Any] = {"valid_lens": lengths, "mask": None if mask is None else as_numpy(mask)}
    hiding["score_bias"] = None if bias is None else floats_of("bias", bias).astype(np.float64)
    hiding |= places_of(order, lengths, (B, Q, K)) if texts is None else texts.places(order, window is not None)
    q64, k64, v64 = (X.astype(np.float64) for X in (queries, keys, values))
    with names_of_kernels():
        call = check(dispatch.load("numpy"), wide.layer, q64, k64, v64, Call(**hiding, causal=order != "none"))
    if (cotangent := given["cotangent"]) is not None:
        cotangent = heads_first("cotangent", floats_of("cotangent", cotangent), layout)
        if cotangent.shape != (B, H, Q, dv):
            raise ValueError(f"cotangent has shape {cotangent.shape}, expected {(B, H, Q, dv)}, as the output")
        cotangent = merge(cotangent)
    kernel = Kernel(config, sinks).in_dtype(given["dtype"] or checks.dtype_name(arrays_of["q"].dtype))
    counting = cotangent, None, given["empty_rows"], False, given["style"]
    return KernelProblem(kernel, queries, keys, values, call, *counting, layout)  # type: ignore[arg-type]


class Texts(NamedTuple):
    """The texts that are packed into one row: where each begins among queries and keys, and where the last ends."""

    queries: np.ndarray
    keys: np.ndarray

    def places(self, order: str, windowed: bool) -> dict[str, Any]:
        """Return the segments of a call, and positions where something goes by them."""
        numbers = [np.repeat(np.arange(len(one) - 1), np.diff(one)) for one in self]
        found: dict[str, Any] = dict(zip(("segments", "key_segments"), numbers, strict=True))
        if order == "none" and not windowed:
            return found
        within = [np.arange(one[-1]) - one[text] for one, text in zip(self, numbers, strict=True)]
        if order == LOWER_RIGHT:
            within[0] = within[0] + (np.diff(self.keys) - np.diff(self.queries))[numbers[0]]
        return found | dict(zip(("positions", "key_positions"), within, strict=True))


def packed_texts(layout: str, of_queries: Any, of_keys: Any, sizes: tuple[int, int]) -> Texts | None:
    """Return the texts of a packed call, checked; None of a call that is not packed. sizes: of queries and keys."""
    if layout != "THD":
        if of_queries is not None or of_keys is not None:
            raise ValueError(f'cu_seqlens is given with layout={layout!r}, expected None: only "THD" is packed')
        return None
    if of_queries is None:
        raise ValueError('cu_seqlens is None with layout="THD", expected where each text begins, and the last ends')
    named = {"cu_seqlens": of_queries, "cu_seqlens_k": of_queries if of_keys is None else of_keys}
    found = [starts_of(name, X, n) for (name, X), n in zip(named.items(), sizes, strict=True)]
    if len(found[0]) != len(found[1]):
        raise ValueError(f"cu_seqlens_k has {len(found[1])} numbers, expected {len(found[0])} as cu_seqlens")
    return Texts(*found)


def starts_of(name: str, X: Any, tokens: int) -> np.ndarray:
    """Return where texts begin, and the last ends, as checked NumPy integers."""
    X = np.asarray(as_numpy(X))
    expected = f"integers that rise from 0 to {tokens}, the number of tokens"
    if X.dtype.kind not in "iu" or X.ndim != 1:
        raise TypeError(f"{name} has dtype {X.dtype} and shape {X.shape}, expected a row of {expected}")
    X = X.astype(np.int64)
    if len(X) < 2 or X[0] != 0 or X[-1] != tokens or (np.diff(X) < 0).any():
        raise ValueError(f"{name} is {checks.brief(X.tolist())}, expected {expected}")
    return X


def order_of(causal: Any) -> str:
    """Return which keys a causal order hides: "none", those behind the "upper left" diagonal, or the "lower right"."""
    if isinstance(causal, str):
        return checks.choice("causal", causal.replace("_", " "), (LOWER_RIGHT, "upper left"))
    return "upper left" if checks.flag("causal", causal) else "none"


def places_of(order: str, lengths: Any, sizes: tuple[int, int, int]) -> dict[str, Any]:
    """Return the positions of a call whose last query is at the last key; {} of any other. sizes: (B, Q, K)."""
    B, Q, K = sizes
    if order != LOWER_RIGHT or (lengths is None and Q == K):
        return {}
    ends = np.full(B, K) if lengths is None else np.asarray(as_numpy(lengths))
    if ends.shape != (B,):
        raise ValueError(f"lengths has shape {ends.shape} beside causal={LOWER_RIGHT!r}, expected {(B,)}")
    placed = np.arange(Q) + np.minimum(ends, K).astype(np.int64)[:, None] - Q  # (B, Q)
    return {"positions": placed, "key_positions": np.arange(K)}


def floats_of(name: str, X: Any) -> np.ndarray:
    """Return an array of floats of any framework as NumPy's, copied; TypeError if it is anything else."""
    dispatch.module_of(X, name)  # or it is no array
    found = arrays.to_numpy(X)
    if checks.dtype_name(found.dtype) not in checks.FLOATS:
        raise TypeError(f"{name} has dtype {found.dtype}, expected one of {', '.join(checks.FLOATS)}")
    return np.array(found)


def check_heads(heads: dict[str, np.ndarray], layout: str) -> None:
    """Check the shapes of heads (B, H or G, T, d) against each other; ValueError if they do not fit."""
    q, k, v = heads.values()
    hint = f"; layout={layout!r} says which axis is which"
    for name, own, (other, X), axis, what in (
        ("k", k, ("q", q), 0, "samples"), ("v", v, ("q", q), 0, "samples"), ("v", v, ("k", k), 1, "heads"),
        ("v", v, ("k", k), 2, "keys"), ("k", k, ("q", q), 3, "features"),
    ):  # fmt: skip
        if own.shape[axis] != X.shape[axis]:
            raise ValueError(f"{name} has {own.shape[axis]} {what}, expected {X.shape[axis]} as {other}{hint}")
    if q.shape[1] % k.shape[1]:
        raise ValueError(f"q has {q.shape[1]} heads, expected a multiple of the {k.shape[1]} heads of k{hint}")
    for name, X in heads.items():
        if not X.shape[1] * X.shape[3]:
            raise ValueError(f"{name} has no heads or no features, expected at least one of each{hint}")


@contextlib.contextmanager
def names_of_kernels() -> Iterator[None]:
    """Let errors about the arguments of a layer's call say how a kernel's call names them."""
    try:
        yield
    except (TypeError, ValueError) as error:
        words = re.sub(r"^\w+|valid_lens|score_bias", lambda found: NAMES.get(found[0], found[0]), str(error))
        raise type(error)(words) from None
