"""The rare cases, in the full suite alone: rare sizes, calls in many pieces, random sizes and options."""

import dataclasses
from typing import Any

import numpy as np

from mha.core.options.norms import Norm
from mha.core.options.positions import Rotary, Temperature
from mha.parity.cases.usual import ADDITIVE, WIDTHS, Case

SMALL = (
    Case("no bias", WIDTHS | {"bias": False}, [3, 2]),
    Case("additive, one head", {"num_hiddens": 11, "num_heads": 1, "pooling": "additive"}, [3, 2]),
    Case("additive, head of width 1", {"num_hiddens": 7, "num_heads": 7, "pooling": "additive"}, [3, 2]),
    Case("additive, lengths per query", ADDITIVE, [[1, 4, 2], [0, 3, 9]]),
    Case("additive, 2053 keys", ADDITIVE, [2039], batch=1, num_keys=2053),
    Case("more queries than keys, causal", WIDTHS, causal=True, num_queries=13),
    Case("mask of one row", WIDTHS, mask=(1, 5)),
    Case("mask of one column, every query or none", WIDTHS, mask=(2, 1, 3, 1)),
    Case("mask of one head for all", WIDTHS, [4, 5], mask=(2, 1, 3, 5)),
    Case(
        "scale 30, 2053 keys, causal", WIDTHS, causal=True, scale=30.0, batch=1, num_queries=211, num_keys=2053,
        dtypes=("float32",),
    ),
    Case(
        "additive, segments", ADDITIVE, num_queries=5, segments=[[1, 1, -1, 1, 0], [7, 7, 7, 3, 7]], head_gates=(7,),
        score_bias=(2, 5, 5),
    ),
    Case("segments without keys", WIDTHS, segments=[3, -1, 0], key_segments=[1, -1, 3, 3, 1]),
    Case("half precision, unequal widths", WIDTHS, [[1, 4, 2], [0, 3, 9]], dtypes=("float16", "bfloat16")),
)  # fmt: skip

HEADS: dict[str, Any] = {"num_hiddens": 24, "num_heads": 6}
WINDOW = HEADS | {"num_key_value_heads": 2, "window": (31, 0), "rotary": Rotary(4)}
# Two samples of a few segments with padding between them, in one run each but for the last.
PACKED = [[j // 101 if j % 101 < 97 else -1 for j in range(503)], [4 - j // 131 + j // 499 for j in range(503)]]
PACKED_KEYS = [[*packed, *packed[-1:] * 6] for packed in PACKED]
# With more scores than fit one piece, so that samples, heads, queries and keys are cut.
LARGE = tuple(
    dataclasses.replace(case, batch=2, num_queries=503, num_keys=509, dtypes=("float32",))
    for case in (
        Case("many pieces, lengths", HEADS, [509, 17]),
        Case("many pieces, mask, causal", HEADS, mask=(2, 1, 503, 509), causal=True),
        Case("many pieces, additive", HEADS | {"pooling": "additive"}, [211, 0]),
        Case("many pieces, sinks", HEADS | {"num_key_value_heads": 3, "sinks": True}, [509, 17], causal=True),
        Case("many pieces, sinks, window", WINDOW | {"sinks": True}, [509, 100], causal=True, offset=3),
        Case("many pieces, output gate", WINDOW | {"output_gate": "element"}, [509, 100], causal=True, offset=3),
        Case("many pieces, output gate of heads", HEADS | {"output_gate": "head"}, [509, 17], head_gates=(6,)),
        Case("many pieces, segments", WINDOW | {"window": None}, segments=PACKED, key_segments=PACKED_KEYS),
        Case(
            "many pieces, segments, positions", WINDOW, causal=True, segments=PACKED, key_segments=PACKED_KEYS,
            positions=[j % 101 for j in range(503)], key_positions=[j % 101 for j in range(509)],
        ),
        Case("many pieces, chunks", HEADS | {"num_key_value_heads": 3, "chunk": 97}, [509, 17], causal=True, offset=5),
        Case("many pieces, window", WINDOW, [509, 100], causal=True, offset=3),
        Case(
            "many pieces, bias, cap", HEADS | {"num_key_value_heads": 1, "softcap": 1.5}, causal=True,
            score_bias=(1, 6, 1, 509), offset=[0, 5], head_gates=(2, 6),
        ),
    )
)  # fmt: skip


NORMS = Norm("rms", 0.01, "all"), Norm("layer", 0.01), Norm("rms", 0.01), Norm("layer", 0.01, "all", after=True)


def sizes(number: int) -> Case:
    """Draw a case with any sizes, lengths, mask, causal order and pooling; the same number gives the same case."""
    draw = np.random.default_rng(number).integers
    H, B, Q, K = (int(draw(1, end)) for end in (7, 5, 9, 11))
    full: tuple[int, ...] | None = [None, (Q, K), (B, Q, K), (B, H, Q, K)][draw(4)]
    mask = full and tuple(1 if draw(4) == 0 else size for size in full)
    widths = ("query_size", "key_size", "value_size", "key_dim", "value_dim")
    layer: dict[str, Any] = {name: int(draw(1, 9)) for name in widths}
    layer |= {"num_heads": H, "num_hiddens": int(H * draw(1, 6)), "bias": bool(draw(2))}
    layer["pooling"] = ("dot", "additive")[draw(2)]
    lengths = [None, draw(0, K + 2, B).tolist(), draw(0, K + 2, (B, Q)).tolist()][draw(3)]
    sizes: dict[str, Any] = {"batch": B, "num_queries": Q, "num_keys": K}
    return Case(f"sizes {number}", layer, lengths, mask, bool(draw(2)), **sizes, dtypes=("float64",), quick=())


def options(number: int) -> Case:
    """Draw a case with any of the options of today's models; the same number gives the same case."""
    random = np.random.default_rng(number)
    B, Q, K, H, d = 2, 5, 7, 6, 4

    def maybe(value: Any, otherwise: Any = None) -> Any:
        return value if random.random() < 0.6 else otherwise

    pairs = [(Q, K), (B, 1, K), (1, H, Q, 1), (B, H, Q, K)][number % 4]
    layer = {
        "bias": bool(random.random() < 0.5),
        "num_key_value_heads": maybe(int(random.choice([1, 2, 3]))),
        "scale": maybe(0.7),
        "softcap": maybe(1.5),
        "window": maybe([(2, 1), (3, None), (None, 2), (0, 0)][number // 4 % 4]),
        "chunk": [None, 3][number % 7 == 4],
        "rotary": maybe(
            Rotary([2, 4][number % 2], 100.0, bool(random.random() < 0.5), magnitude=[1.0, 1.25][number // 2 % 2])
        ),
        "qk_norm": maybe(NORMS[number % 4]),
        "value_norm": [None, None, Norm("rms", 0.01), Norm("layer", 0.01, "all")][number // 2 % 4],
        "temperature": [None, Temperature(0.4, 3, number // 5 % 2)][number % 5 == 2],
        "sinks": number % 3 == 1,
        "output_gate": [None, "element", "head"][number % 7 % 3],
    }
    placed: dict[str, Any] = {"offset": maybe([2, [1, -2]][number % 2], 0)}
    gates = maybe([(H,), (B, H)][number % 2])
    if number % 4 == 3:
        keys = random.integers(-1, 9, [(K,), (B, K)][number // 4 % 2])
        placed = {"positions": random.integers(-1, 9, (B, Q)).tolist(), "key_positions": keys.tolist()}
    if number % 4 == 2:
        placed |= {name: random.integers(-1, 3, (B, T)).tolist() for name, T in (("segments", Q), ("key_segments", K))}
    return Case(
        f"options {number}",
        {"num_hiddens": 11, "num_heads": H, "key_dim": d, "value_dim": 3} | layer,
        valid_lens=maybe(random.integers(0, K + 2, [(B,), (B, Q)][number % 2]).tolist()),
        mask=maybe(pairs),
        score_bias=maybe(pairs),
        causal=bool(random.random() < 0.5),
        **placed,
        head_gates=gates,
        batch=B,
        num_queries=Q,
        num_keys=K,
        dtypes=("float64",),
        quick=(),
    )


RARE = (*SMALL, *LARGE, *map(sizes, range(6)), *map(options, range(12)))
