"""The cases of the full suite that the quick one leaves out: rare sizes, calls in many pieces, random combinations."""

import dataclasses
from typing import Any

from mha.parity import drawn
from mha.parity.cases import ADDITIVE, WIDTHS, Case
from mha.positions import Rotary

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
    Case("half precision, unequal widths", WIDTHS, [[1, 4, 2], [0, 3, 9]], dtypes=("float16", "bfloat16")),
)  # fmt: skip

HEADS: dict[str, Any] = {"num_hiddens": 24, "num_heads": 6}
WINDOW = HEADS | {"num_key_value_heads": 2, "window": (31, 0), "rotary": Rotary(4)}
# More scores than fit one piece, so that samples, heads, queries and keys are cut.
LARGE = tuple(
    dataclasses.replace(case, batch=2, num_queries=503, num_keys=509, dtypes=("float32",))
    for case in (
        Case("many pieces, lengths", HEADS, [509, 17]),
        Case("many pieces, mask, causal", HEADS, mask=(2, 1, 503, 509), causal=True),
        Case("many pieces, additive", HEADS | {"pooling": "additive"}, [211, 0]),
        Case("many pieces, window", WINDOW, [509, 100], causal=True, offset=3),
        Case(
            "many pieces, bias, cap", HEADS | {"num_key_value_heads": 1, "softcap": 1.5}, causal=True,
            score_bias=(1, 6, 1, 509), offset=[0, 5], head_gates=(2, 6),
        ),
    )
)  # fmt: skip

DRAWN = (*map(drawn.sizes, range(6)), *map(drawn.options, range(12)))
MORE = (*SMALL, *LARGE, *DRAWN)
