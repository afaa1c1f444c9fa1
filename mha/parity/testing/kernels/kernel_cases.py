"""The cases of kernels as data: sizes, options and numbers of one call each, and the arrays that it gets.

Letters: B samples, H heads of queries, G of keys and values, T tokens (Q queries, K keys), d and dv widths of a head.
"""

import dataclasses
import zlib
from typing import Any, Literal

import numpy as np

from mha.core.options.config import numpy_dtype
from mha.core.options.names import FloatName
from mha.parity.rule.heads import at_least_float32
from mha.parity.rule.kernel_call import NUMBERS

Arrays = dict[str, np.ndarray]
# What a kernel is given in each call of an option that it cannot do without, where the case does not have it.
NEEDED = {"mask": "nothing", "bias": "nothing", "lengths": "nothing", "sinks": 1.0}
UNPACKED = ("mask", "bias", "lengths")  # those that packed calls do not have
DRAWN = (*NUMBERS, *UNPACKED, "sinks")
HALVES: tuple[FloatName, ...] = ("bfloat16", "float16")
HUGE = {"float16": 3e4}  # in keys that nobody sees; in other dtypes 1e30


@dataclasses.dataclass(frozen=True)
class KernelCase:
    """One call of a kernel.

    Attributes:
        about: the fields without which the case shows nothing: "size", "width", "heads", or options by their names;
            "options": any two. Other options are left out where a kernel does not take them.
        causal, window, scale, softcap, bias, lengths: the options of the call. bias, lengths: whether there are some.
            "nothing" = of zeros, or of all keys, where a kernel cannot do without.
        mask, numbers: kinds, as of `draw_mask` and `draw_numbers`; sinks: their magnitude, 0 = none.
        memory: where the arrays of the inputs lie: "transposed", "stride 0", "NaN around", "freed NaN".
        texts, key_texts: in a packed call, the number of tokens of each text; () = of T and of T // 2 tokens.
        also: further dtypes in the quick suite; rare: whether it is in the full suite alone.
    """

    name: str
    about: tuple[str, ...] = ()
    batch: int = 2
    heads: int = 4
    groups: int = 4
    queries: int = 65
    keys: int = 65
    width: int = 16
    value_width: int | None = None
    causal: Any = False
    window: tuple[int | None, int | None] | None = None
    scale: float | None = None
    softcap: float | None = None
    mask: str = ""
    bias: bool | Literal["float32", "nothing"] = False
    lengths: bool | Literal["nothing"] = False
    sinks: float = 0.0
    numbers: str = ""
    memory: str = ""
    texts: tuple[int, ...] = ()
    key_texts: tuple[int, ...] = ()
    also: tuple[FloatName, ...] = ()
    rare: bool = False

    @property
    def options(self) -> tuple[str, ...]:
        """Return the names of the options that the call has."""
        return tuple(name for name in DRAWN if getattr(self, name) not in (None, False, "", 0.0))

    @property
    def numbers_in_all(self) -> int:
        """Return how large the call is: the number of scores and of features."""
        tokens = self.queries * self.keys + (self.queries + self.keys) * self.width
        return max(self.batch, 1) * self.heads * max(tokens, 1)

    def arrays(self, dtype: FloatName, empty_rows: bool = True) -> Arrays:
        """Draw the arrays of the call, the same for each name: q, k, v and cotangent (B, H or G, T, d), and options.

        empty_rows: whether a length may be 0. A packed call has one sample, and `cu_seqlens` and `cu_seqlens_k`.
        """
        rng, kind = np.random.default_rng(zlib.crc32(self.name.encode())), numpy_dtype(dtype)
        B, H, G, Q, K = self.batch, self.heads, self.groups, self.queries, self.keys
        d, dv = self.width, self.width if self.value_width is None else self.value_width
        if self.texts:
            B, Q, K = 1, sum(self.texts), sum(self.key_texts or self.texts)
        shapes = {"q": (B, H, Q, d), "k": (B, G, K, d), "v": (B, G, K, dv), "cotangent": (B, H, Q, dv)}
        found = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
        scale = d**-0.5 if self.scale is None else self.scale
        draw_numbers(self.numbers, found, scale)
        found = {name: X.astype(kind) for name, X in found.items()}
        if self.bias:
            wide = at_least_float32(dtype) if self.bias == "float32" else kind
            found["bias"] = ((self.bias != "nothing") * rng.standard_normal((B, H, Q, K))).astype(wide)
        if self.sinks:
            found["sinks"] = (self.sinks * rng.standard_normal(H)).astype(kind)
        if self.mask:
            found["mask"] = draw_mask(self.mask, rng, B, H, Q, K)
        if self.lengths:
            halves = np.full(B, K) if self.lengths == "nothing" else np.arange(B) * K // 2  # no key, half of them, all
            found["lengths"] = np.maximum(halves, 0 if empty_rows else 1).astype(np.int32)
            hidden = np.arange(K) >= found["lengths"][:, None, None, None]  # (B, 1, 1, K)
            filled = {"hidden huge": HUGE.get(dtype, 1e30), "hidden NaN": np.nan}.get(self.numbers)
            for name in ("k", "v") if filled is not None else ():
                found[name][np.broadcast_to(hidden[:, :, 0, :, None], found[name].shape)] = filled
        if self.texts:
            ends = {"cu_seqlens": self.texts, "cu_seqlens_k": self.key_texts or self.texts}
            found |= {name: np.cumsum([0, *texts]).astype(np.int32) for name, texts in ends.items()}
        return found


def draw_numbers(kind: str, found: Arrays, scale: float) -> None:
    """Change inputs (B, H or G, T, d) that are drawn as a kind of numbers says; any other kind is as they are."""
    q, k, v = found["q"], found["k"], found["v"]
    match kind:
        case "large":  # scores are some 30 times as large
            q *= 30
        case "low":  # all scores are about -120, where exponentials without the maximum are 0 in float32
            q[..., 0], k[..., 0] = 120 / scale, -1
        case "growing":  # scores grow by 40 from the first key to the last: each tile has a larger maximum
            q[..., 0], k[..., 0] = 40 / scale, np.linspace(0, 1, k.shape[2])
        case "equal":  # all keys are equal, so that all weights are
            k[:] = k[:, :, :1]
        case "small":  # the values of every second head: their errors disappear in a bound over all heads
            v[:, 1::2] *= 1e-4


def draw_mask(kind: str, rng: np.random.Generator, B: int, H: int, Q: int, K: int) -> np.ndarray:
    """Draw a mask (B, 1 or H, Q, K) of a kind, in which each query sees the first key, but for "empty rows"."""
    match kind:
        case "heads":  # other pairs in each head
            mask = rng.random((B, H, Q, K)) < 0.7
        case "keys":  # the same keys for all queries
            mask = np.repeat(rng.random((B, 1, 1, K)) < 0.7, Q, 2)  # (B, 1, Q, K)
        case "blocks":  # whole blocks of 64 pairs by 64, of which a row sees some that are far apart
            blocks = rng.random((B, 1, -(-Q // 64), -(-K // 64))) < 0.5
            mask = blocks.repeat(64, 2).repeat(64, 3)[:, :, :Q, :K]  # (B, 1, Q, K)
        case "nothing":  # is hidden
            mask = np.ones((B, 1, Q, K), bool)
        case _:  # pairs, three of ten, in all heads
            mask = rng.random((B, 1, Q, K)) < 0.7
    mask[..., :1] = True
    if kind == "empty rows":  # one query sees no key, nor does the whole last sample
        mask[0, :, Q // 3], mask[-1] = False, False
    return mask


def of_size(name: str, queries: int, keys: int | None = None, **fields: Any) -> KernelCase:
    """Make a case about a number of tokens; keys None = as many as queries."""
    return KernelCase(name, ("size",), queries=queries, keys=queries if keys is None else keys, **fields)


def case(name: str, *about: str, tokens: int = 65, **fields: Any) -> KernelCase:
    """Make a case about options, numbers or memory, with as many keys as queries."""
    return KernelCase(name, about, **{"queries": tokens, "keys": tokens} | fields)


LONG = {"batch": 1, "heads": 2, "groups": 1}
ALL: dict[str, Any] = {"causal": True, "window": (40, 3), "scale": 0.37, "softcap": 2.0, "mask": "pairs"}
ALL |= {"bias": True, "lengths": True, "sinks": 1.0}
KERNEL_CASES = (
    case("plain", also=("float64", *HALVES)),
    of_size("1 token", 1, width=8),
    of_size("31 tokens", 31, causal=True),
    of_size("32 tokens", 32, rare=True),
    of_size("33 tokens", 33, groups=2),
    of_size("63 tokens", 63, rare=True),
    of_size("64 tokens", 64, causal=True, width=64),
    of_size("127 tokens", 127, rare=True),
    of_size("128 tokens", 128, groups=2, also=("bfloat16",)),
    of_size("129 tokens", 129, rare=True),
    of_size("193 tokens", 193, rare=True),
    of_size("257 tokens", 257, causal=True, batch=1),
    of_size("33 queries, 65 keys", 33, 65, causal=True),
    of_size("65 queries, 33 keys", 65, 33, groups=2, causal=True),
    of_size("64 queries, 192 keys", 64, 192, rare=True),
    of_size("1 query, 704 keys", 1, 704, groups=2, batch=1),
    of_size("704 tokens, mask of blocks", 704, mask="blocks", also=("bfloat16",), **LONG),
    of_size("192 tokens, mask of blocks", 192, mask="blocks", **LONG, width=32),
    case("width 40", "width", width=40, tokens=32),
    case("width 80", "width", width=80, tokens=63),
    case("width 96", "width", width=96, rare=True),
    case("width 128", "width", width=128, tokens=31, rare=True),
    case("width 256", "width", width=256, tokens=33, batch=1),
    case("6 heads of 2", "heads", heads=6, groups=2, also=("float64",)),
    case("6 heads of 3", "heads", heads=6, groups=3, causal=True, also=("bfloat16",)),
    case("4 heads of 1", "heads", heads=4, groups=1),
    case("causal", "causal", groups=2, causal=True, tokens=63, also=HALVES),
    case("scores x 30", groups=2, numbers="large", tokens=63),
    case("scores near -120", numbers="low", tokens=127),
    case("growing maximum", numbers="growing", tokens=193),
    case("equal keys", numbers="equal", tokens=129),
    case("small values in every second head", groups=2, numbers="small", also=("bfloat16",)),
    case("mask of pairs", "mask", mask="pairs", also=("bfloat16",)),
    case("mask of heads", "mask", groups=2, mask="heads", tokens=33, width=96),
    case("mask of keys", "mask", mask="keys", tokens=127),
    case("mask that hides a row and a sample", "mask", mask="empty rows"),
    case("mask, causal", "mask", "causal", mask="pairs", causal=True, rare=True),
    case("lengths", "lengths", groups=2, lengths=True, batch=3),
    case("lengths, causal", "lengths", "causal", lengths=True, causal=True, batch=3, rare=True),
    case("huge numbers in hidden keys", "lengths", lengths=True, batch=3, numbers="hidden huge"),
    case("NaN in hidden keys", "lengths", "hidden NaN", lengths=True, batch=3, numbers="hidden NaN"),
    case("bias", "bias", bias=True, also=("bfloat16",)),
    case("bias, causal", "bias", "causal", bias=True, causal=True, tokens=33, rare=True),
    case("float32 bias", "bias", "half", bias="float32", also=("bfloat16",)),
    case("window (0, 0)", "window", window=(0, 0)),
    case("window (5, None)", "window", window=(5, None), tokens=129),
    case("window (40, 3)", "window", window=(40, 3), tokens=128),
    case("window (9, 4), causal", "window", "causal", window=(9, 4), causal=True),
    case("scale", "scale", scale=0.37),
    case("cap", "softcap", groups=2, softcap=2.0, numbers="large"),
    case("cap with bias", "softcap", "bias", softcap=1.5, bias=True),
    case("cap with mask", "softcap", "mask", softcap=1.5, mask="pairs"),
    case("sinks", "sinks", groups=2, sinks=1.0, also=("bfloat16",)),
    case("sinks, large scores", "sinks", sinks=8.0, numbers="large", tokens=129),
    case("all options", "options", also=("bfloat16",), batch=3, groups=2, numbers="large", **ALL),
    case("transposed inputs", memory="transposed", tokens=33),
    case("inputs of stride 0", memory="stride 0", tokens=33),
    case("NaN around the inputs", memory="NaN around", tokens=33),
    case("NaN in freed memory", memory="freed NaN", tokens=33, rare=True),
    case("texts", "texts", texts=(1, 33, 64, 65)),
    case("texts, causal", "texts", "causal", texts=(65, 1, 64, 33), causal=True, also=HALVES),
    case("texts, other lengths of keys", "texts", "key texts", texts=(33, 1, 65), key_texts=(65, 33, 64)),
    case("a long text", "texts", texts=(704, 33), heads=2, groups=1),
    case("an empty text", "texts", texts=(33, 0, 64), rare=True),
    of_size("no samples", 33, batch=0, rare=True),
    case("values of another width", "value width", width=16, value_width=24, rare=True),
    of_size("4096 keys", 64, 4096, **LONG, rare=True),
)
