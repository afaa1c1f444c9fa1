"""Rows about the computation: the rule itself, hidden keys, odd numbers, odd sizes, compilers."""

import numpy as np

from semantics.calls import (
    COTANGENT,
    EACH_QUERY,
    HALF_ZERO,
    LARGE,
    MASK,
    ONE_EMPTY,
    PLAIN,
    SHORT,
    ZERO,
    D,
    K,
    changed,
    each,
    in_dtype,
    lens,
    padded,
    scaled,
)
from semantics.columns import ALL, LAYERS, ask
from semantics.verdicts import Probe, Table, uniform


def after_dropout(part: str, X: np.ndarray) -> bool:
    """True for the attention weights of the plain call, some dropped and the others doubled."""
    plain = 2 * ask(PLAIN, "numpy")["weights"]
    return part == "weights" and np.allclose(X, np.where(X == 0, 0, plain), rtol=1e-5)


COMPUTED = Table(
    "What is computed",
    """For head i, `h_i = f(W_q^i q, W_k^i k, W_v^i v)`; the H heads side by side, times `W_o`, are the output.
Each framework [stores the weights](weights.md) in its own way; with the same weights, all compute the same. Keras takes
values before keys. PyTorch's layer takes `is_causal` only as a hint, and needs the mask, too; linen's layer and MXNet's
operators have no such argument; MLX's `"causal"` counts from the last query and key. The rows about lengths also
compare gradients.""",
    ALL,
    (
        Probe("No lengths, no mask: softmax(q kᵀ / √d) v in each head", PLAIN),
        Probe(
            "`key_size=29, value_size=31`: keys and values have widths of their own",
            PLAIN.but({"key_size": 29, "value_size": 31}, keys=PLAIN.keys[..., :29], values=PLAIN.values[..., :31]),
        ),
        Probe(
            "`key_dim=5, value_dim=13`: heads have widths of their own, too", PLAIN.but({"key_dim": 5, "value_dim": 13})
        ),
        Probe(
            "`num_key_value_heads=1`: all heads of queries share one of keys and values",
            PLAIN.but({"num_key_value_heads": 1}),
        ),
        Probe(
            "`pooling='additive'`: softmax(w_vᵀ tanh(W_q q + W_k k)) v in each head",
            PLAIN.but({"pooling": "additive"}),
        ),
        Probe(
            "`valid_lens` (B,): a query of sample b sees key j if j < valid_lens[b]",
            SHORT.but(cotangent=COTANGENT),
        ),
        Probe(
            "`valid_lens` (B, Q): query i of sample b sees key j if j < valid_lens[b, i]",
            EACH_QUERY.but(cotangent=COTANGENT),
        ),
        Probe("`causal=True`, Q < K: query i sees key j if j <= i, counted from the first", PLAIN.but(causal=True)),
        Probe(
            "Lengths, mask and causal order together: a query sees a key if all three allow it",
            EACH_QUERY.but(mask=MASK, causal=True),
        ),
    ),
)


NO_KEYS = Table(
    "A query that sees no key",
    """[It gets](hiding.md#a-query-that-sees-no-key) weights 0 and pooled value 0, so that its output is `W_o`'s bias,
and it sends no gradient. In float16, the book's -1e6 is minus infinity. The layers of PyTorch and Keras give one output
with weights and another one without.""",
    ALL,
    (
        Probe("A length of 0, with weights", ZERO, readings=uniform(ZERO)),
        Probe(
            "A length of 0, without weights: the same output",
            ZERO.but(return_weights=False),
            readings=uniform(ZERO),
        ),
        Probe(
            "A length of 0, gradients by queries, keys and values: 0",
            ZERO.but(cotangent=COTANGENT),
            parts=("gradients",),
        ),
        Probe("A length of 0 for one query of a sample", ONE_EMPTY, readings=uniform(ONE_EMPTY)),
        Probe("A length of 0 in float16", HALF_ZERO, readings=uniform(HALF_ZERO)),
    ),
)


PADDING = Table(
    "Padding and extreme values",
    """[Padding never matters](hiding.md#padding-never-matters), whatever it holds and however large the scores are. NaN
in a key or value that is seen stays in its sample, NaN in a query in its row.""",
    ALL,
    (
        Probe("NaN in padding: no effect", padded(np.nan).but(cotangent=COTANGENT), SHORT),
        Probe("Infinity in padding: no effect", padded(np.inf).but(cotangent=COTANGENT), SHORT),
        Probe("1e30 in padding: no effect", padded(1e30).but(cotangent=COTANGENT), SHORT),
        Probe("All inputs times 1e4: the padding still has no weight", LARGE),
        Probe(
            "NaN in a value that is seen: NaN in its sample alone",
            SHORT.but(values=changed(SHORT.values, (0, 1), np.nan)),
            parts=("output",),
        ),
        Probe(
            "NaN in a query: NaN in its row alone",
            SHORT.but(queries=changed(SHORT.queries, (0, 1), np.nan)),
            parts=("output",),
        ),
        Probe("float16, scores beyond its largest number 65504: finite", in_dtype(scaled(SHORT, 250), "float16")),
    ),
)


DROPOUT = Table(
    "Dropout",
    """Inverted dropout on the attention weights, only when training. The returned weights are those before dropout.""",
    LAYERS,
    (
        Probe("`dropout=0.5`, not training: no effect", PLAIN.but({"dropout": 0.5})),
        Probe(
            "`dropout=0.5`, training: the weights that are returned",
            PLAIN.but({"dropout": 0.5}, training=True),
            readings={"after dropout": after_dropout},
            parts=("weights",),
        ),
    ),
)


EMPTY = Table(
    "Empty and single",
    """Without samples or queries there is nothing to compute; without keys, no query sees a key.""",
    ALL,
    (
        Probe("B = 0", each(lambda X: X[:0])),
        Probe("Q = 0", each(lambda X: X[:, :0], "queries")),
        Probe("K = 0", each(lambda X: X[:, :0], "keys", "values")),
        Probe("Q = K = 1", each(lambda X: X[:, :1])),
        Probe("d = 1", PLAIN.but({"num_heads": D})),
    ),
)


COMPILED = Table(
    "Compiled",
    """`attention.layer`, compiled by its framework, beside `mha` without a compiler. Compiled code checks shapes and
dtypes, but not the values of lengths: a length below 0 acts as 0, and one above K as K.""",
    ("torch.compile", "tf.function", "jax.jit"),
    (
        Probe("Valid lengths", SHORT, parts=("output",)),
        Probe("A length of 0", ZERO, parts=("output",)),
        Probe("A length above K", lens(K + 2, 3), parts=("output",)),
        Probe("A length of -1", lens(-1, 3), error=ValueError, readings={"as 0": lens(0, 3)}, parts=("output",)),
        Probe("Lengths (B, Q, 1)", lens(*EACH_QUERY.valid_lens[..., None]), error=ValueError),
        Probe("Fewer keys than values", SHORT.but(keys=SHORT.keys[:, 2:]), error=ValueError),
        Probe("float16 keys beside float32 queries", SHORT.but(keys=SHORT.keys.astype("float16")), error=TypeError),
    ),
)
