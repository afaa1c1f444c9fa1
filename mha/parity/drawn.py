"""Cases that are drawn: any sizes, any combination of options, the same for the same number."""

from typing import Any

import numpy as np

from mha.parity.cases import Case
from mha.positions import Rotary


def sizes(number: int) -> Case:
    """A case of random sizes, and of what has long been there: lengths, mask, causal order, either pooling."""
    draw = np.random.default_rng(number).integers
    heads, batch, queries, keys = (int(draw(1, end)) for end in (7, 5, 9, 11))
    mask = (batch, heads, queries, keys)
    full: tuple[int, ...] | None = [None, mask[2:], (mask[0], *mask[2:]), mask][draw(4)]
    chosen = full and tuple(1 if draw(4) == 0 else size for size in full)
    options: dict[str, Any] = {
        name: int(draw(1, 9)) for name in ("query_size", "key_size", "value_size", "key_dim", "value_dim")
    }
    options |= {"num_heads": heads, "num_hiddens": int(heads * draw(1, 6)), "bias": bool(draw(2))}
    return Case(
        f"sizes {number}",
        options | {"pooling": ("dot", "additive")[draw(2)]},
        valid_lens=[None, draw(0, keys + 2, batch).tolist(), draw(0, keys + 2, (batch, queries)).tolist()][draw(3)],
        mask=chosen,
        causal=bool(draw(2)),
        batch=batch,
        num_queries=queries,
        num_keys=keys,
        dtypes=("float64",),
        quick=(),
    )


def options(number: int) -> Case:
    """A case of a random combination of the options of today's models."""
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
        "rotary": maybe(Rotary([2, 4][number % 2], base=100.0, interleaved=bool(random.random() < 0.5))),
        "qk_norm": maybe(["rms", "layer"][number % 2]),
        "qk_norm_eps": 0.01,
    }
    return Case(
        f"options {number}",
        {"num_hiddens": 11, "num_heads": H, "key_dim": d, "value_dim": 3} | layer,
        valid_lens=maybe(random.integers(0, K + 2, [(B,), (B, Q)][number % 2]).tolist()),
        mask=maybe(pairs),
        score_bias=maybe(pairs),
        causal=bool(random.random() < 0.5),
        offset=maybe([2, [1, -2]][number % 2], 0),
        head_gates=maybe([(H,), (B, H)][number % 2]),
        batch=B,
        num_queries=Q,
        num_keys=K,
        dtypes=("float64",),
        quick=(),
    )
