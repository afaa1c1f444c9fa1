"""Rows about arguments: options, shapes, dtypes, lengths and masks, good and bad."""

import math

import numpy as np

from semantics.calls import (
    EACH_QUERY,
    LENGTHS,
    MASK,
    MASKS,
    NEGATIVE,
    NOT_NEGATIVE,
    PLAIN,
    POSITIONS,
    SHORT,
    B,
    Call,
    D,
    H,
    K,
    Q,
    each,
    foreign,
    in_dtype,
    lens,
    meta,
)
from semantics.columns import ALL, LAYERS, MASKED, OPERATORS, WITH_LENGTHS
from semantics.verdicts import Probe, Table, uniform


def numbers(part: str, X: np.ndarray) -> bool:
    """True for any numbers."""
    return True


def reads_past_the_end(call: Call) -> str:
    """Call PyTorch's function with fewer keys than values: does it read the memory behind the keys?"""
    import torch

    q, values = torch.ones(B, H, Q, D // H), torch.arange(float(B * H * K * D // H)).reshape(B, H, K, D // H)
    found = []
    for behind in (0.0, 1.0):
        memory = torch.full((B, H, K, D // H), behind)
        keys = memory[:, :, :-2]
        keys[:] = 0
        try:
            found.append(torch.nn.functional.scaled_dot_product_attention(q, keys, values))
        except RuntimeError:
            return "error"
    return "takes it" if torch.equal(*found) else "reads memory behind the keys"


CONSTRUCTION = Table(
    "Construction",
    """`mha` refuses bad options when it makes the layer. A framework's layer is made and called once, not training.
Keras's `key_dim` is the width of one head, so that `num_hiddens` need not be a multiple of `num_heads`.
Its grouped layer has no `num_hiddens`: outputs are as wide as queries.""",
    LAYERS,
    (
        Probe(
            "`num_hiddens=33, num_heads=2`: no multiple",
            PLAIN.but({"num_heads": 2}),
            error=ValueError,
            without=("keras",),
        ),
        *(Probe(f"`num_heads={n!r}`", PLAIN.but({"num_heads": n}), error=ValueError) for n in (0, -3)),
        *(Probe(f"`num_heads={n!r}`", PLAIN.but({"num_heads": n}), error=TypeError) for n in (3.0, "3", True)),
        *(
            Probe(f"`num_hiddens={n!r}`", PLAIN.but({"num_hiddens": n}), error=error, without=("grouped",))
            for n, error in ((0, ValueError), (-33, ValueError), (33.0, TypeError))
        ),
        Probe("`key_size=-1`", PLAIN.but({"key_size": -1}), error=ValueError, without=("book", "keras", "flax")),
        *(
            Probe(f"`dropout={p!r}`", PLAIN.but({"dropout": p}), error=error, readings={"takes it": PLAIN})
            for p, error in ((1.5, ValueError), (1.0, ValueError), (math.nan, ValueError), ("0.1", TypeError))
        ),
        Probe("`bias=1`", PLAIN.but({"bias": 1}), error=TypeError, readings={"takes it": PLAIN}),
        Probe(
            "An unknown keyword, `use_biases=True`",
            PLAIN.but({"use_biases": True}),
            error=TypeError,
            readings={"takes it": PLAIN},
        ),
        Probe("`dtype='int32'`", PLAIN.but({"dtype": "int32"}), error=ValueError, without=("book",)),
    ),
)


SHAPES = Table(
    "Shapes",
    """`mha` checks shapes before any kernel runs, and broadcasts nothing.""",
    ALL,
    (
        Probe(
            "Queries, keys and values (T, D), without a batch",
            each(lambda X: X[0]),
            error=ValueError,
            without=OPERATORS,
        ),
        Probe("Queries of rank 1", each(lambda X: X[0, 0], "queries"), error=ValueError, without=OPERATORS),
        Probe("All three of rank 4", each(lambda X: X[:, None]), error=ValueError, without=OPERATORS),
        Probe(
            "Keys and values of B + 1 samples",
            each(lambda X: np.concatenate([X, X[:1]]), "keys", "values"),
            error=ValueError,
        ),
        Probe(
            "Keys and values of 1 sample, queries of B",
            each(lambda X: X[:1], "keys", "values"),
            error=ValueError,
            readings={"broadcasts": each(lambda X: np.repeat(X[:1], B, 0), "keys", "values")},
        ),
        Probe(
            "Fewer keys than values",
            each(lambda X: X[:, 2:], "keys"),
            error=ValueError,
            instead={"sdpa": reads_past_the_end},
        ),
        Probe(
            "Fewer values than keys",
            each(lambda X: X[:, 2:], "values"),
            error=ValueError,
            readings={"ignores the last keys": each(lambda X: X[:, :-2], "keys").but(values=PLAIN.values[:, 2:])},
        ),
        Probe(
            "Keys of another width than the layer's",
            each(lambda X: X[..., 2:], "keys"),
            error=ValueError,
            without=OPERATORS,
        ),
        Probe("`None` as queries", each(lambda X: None, "queries"), error=TypeError, without=OPERATORS),
        Probe("Nested lists: converted", each(lambda X: X.tolist()), PLAIN, without=OPERATORS),
    ),
)


DTYPES = Table(
    "Dtypes and devices",
    """Inputs must have the layer's dtype, float32 by default; `mha` casts none. In half precision, it computes dot
products, softmax and pooled values in float32, and then rounds.""",
    ALL,
    (
        *(Probe(f"{dtype}, everything in it", in_dtype(SHORT, dtype)) for dtype in ("float64", "float16", "bfloat16")),
        Probe(
            "float64 inputs into a float32 layer",
            each(lambda X: X.astype("float64")),
            error=TypeError,
            readings={"casts to float32": PLAIN},
        ),
        Probe(
            "float16 keys beside float32 queries",
            each(lambda X: X.astype("float16"), "keys"),
            error=TypeError,
            readings={"casts to float32": PLAIN},
        ),
        Probe(
            "int32 queries",
            each(lambda X: X.astype("int32"), "queries"),
            error=TypeError,
            readings={"casts to float32": each(np.trunc, "queries")},
        ),
        Probe(
            "bool queries",
            each(lambda X: X > 0, "queries"),
            error=TypeError,
            readings={"casts to float32": each(lambda X: (X > 0).astype("float32"), "queries")},
        ),
        Probe(
            "complex64 queries",
            each(lambda X: X.astype("complex64"), "queries"),
            error=TypeError,
            readings={"drops the imaginary part": PLAIN},
        ),
        Probe(
            "Queries of another framework",
            PLAIN.but(queries=foreign(PLAIN.queries)),
            error=TypeError,
            readings={"converts them": PLAIN},
        ),
        Probe(
            "PyTorch queries on the device `meta`, which hold no numbers",
            PLAIN.but(queries=meta),
            error=TypeError,
            readings={"returns numbers": numbers},
            without=("keras", "flax", "mxnet"),
            backends=("torch",),
        ),
    ),
)


LENGTHS_GIVEN = Table(
    "Lengths",
    """Integers of any width, (B,) or (B, Q), arrays or lists. The layers of other frameworks take only masks. MXNet
checks no values: with a length above K, `npx.softmax` reads the next rows; with one below 0, both operators overwrite
the row before. `mha` checks them unless a [compiler](#compiled) hides them.""",
    WITH_LENGTHS,
    (
        Probe(
            "A length of -1",
            NEGATIVE,
            error=ValueError,
            readings={"as 0": NOT_NEGATIVE, **uniform(NOT_NEGATIVE)},
        ),
        Probe("A length above K: hides nothing", lens(K + 2, 3)),
        Probe(
            "A length of 2 ** 40 in int64: hides nothing",
            lens(2**40, 3, dtype="int64"),
            readings={"as 0": lens(0, 3), **uniform(lens(0, 3))},
        ),
        Probe(
            "2.5",
            lens(2.5, 4, dtype="float32"),
            error=TypeError,
            readings={"3 keys": lens(3, 4), "2 keys": lens(2, 4)},
        ),
        Probe("2.0", lens(2, 4, dtype="float32"), error=TypeError, readings={"2 keys": lens(2, 4)}),
        Probe(
            "NaN",
            lens(math.nan, 4, dtype="float32"),
            error=TypeError,
            readings={"as 0": lens(0, 4), "hides nothing": lens(K, 4), **uniform(lens(0, 4))},
            alone=("mxnet_mask",),
        ),
        Probe("Booleans", lens(True, True, dtype="bool"), error=TypeError, readings={"as 1": lens(1, 1)}),
        Probe(
            "Booleans (B, K), like a mask of keys, with Q = K",
            PLAIN.but(queries=PLAIN.keys, valid_lens=LENGTHS[:, None] > POSITIONS),
            error=TypeError,
        ),
        Probe("A list", PLAIN.but(valid_lens=[3, 5]), without=("mxnet_mask", "mxnet")),
        Probe("A tuple", PLAIN.but(valid_lens=(3, 5)), without=("mxnet_mask", "mxnet")),
        Probe("uint8", lens(3, 5, dtype="uint8")),
        Probe(
            "uint64, one above 2 ** 63",
            lens(2**63 + 1, 3, dtype="uint64"),
            means=lens(K, 3),
            readings={"as 0": lens(0, 3), **uniform(lens(0, 3))},
        ),
        Probe(
            "Of another framework: converted",
            PLAIN.but(valid_lens=foreign(LENGTHS)),
            means=SHORT,
            without=("mxnet_mask", "mxnet"),
        ),
        Probe("(B + 1,)", lens(3, 5, 2), error=ValueError),
        Probe("(1,), B = 2", lens(3), error=ValueError, readings={"broadcasts": lens(3, 3)}),
        Probe("(B, Q + 1)", lens([3] * (Q + 1), [5] * (Q + 1)), error=ValueError),
        Probe(
            "(Q, B): the sizes multiply",
            lens(*EACH_QUERY.valid_lens.T),
            error=ValueError,
            readings={
                "as (B, Q)": EACH_QUERY,
                "in the order of memory": EACH_QUERY.but(valid_lens=EACH_QUERY.valid_lens.T.reshape(B, Q)),
            },
        ),
        Probe("(B, 1), Q = 5", lens([3], [5]), error=ValueError, readings={"broadcasts": SHORT}),
        Probe("A number alone", PLAIN.but(valid_lens=3), error=TypeError, without=("mxnet_mask", "mxnet")),
        Probe(
            "(B, Q, 1)",
            lens(*EACH_QUERY.valid_lens[..., None]),
            error=ValueError,
            readings={"as (B, Q)": EACH_QUERY},
        ),
    ),
)


MASKS_GIVEN = Table(
    "Masks",
    """Booleans, **True = may attend**, (Q, K), (B, Q, K) or (B, H, Q, K), where any size may be 1. In this table, every
layer gets the array unchanged; in the others, booleans in its own convention. PyTorch's two functions read booleans in
opposite ways, and add a mask of floats to the scores. Flax reads (B, Q, K) as (H, Q, K), which is an error only if B
differs from H.""",
    MASKED,
    (
        *(
            Probe(f"{shape}", PLAIN.but(mask=mask, own_mask=True), readings={"True = hide": PLAIN.but(mask=~mask)})
            for shape, mask in MASKS.items()
        ),
        Probe("(1, K)", PLAIN.but(mask=MASK[:1], own_mask=True), readings={"True = hide": PLAIN.but(mask=~MASK[:1])}),
        Probe("(B, 1, 1, K)", PLAIN.but(mask=(LENGTHS[:, None] > POSITIONS)[:, None, None], own_mask=True)),
        Probe(
            "float32 zeros and ones",
            PLAIN.but(mask=MASK.astype("float32"), own_mask=True),
            error=TypeError,
            readings={"as booleans": PLAIN.but(mask=MASK)},
        ),
        Probe(
            "int32 zeros and ones",
            PLAIN.but(mask=MASK.astype("int32"), own_mask=True),
            error=TypeError,
            readings={"as booleans": PLAIN.but(mask=MASK)},
        ),
        Probe("(K, Q)", PLAIN.but(mask=MASK.T, own_mask=True), error=ValueError),
        Probe(
            "(K,)",
            PLAIN.but(mask=MASK[1], own_mask=True),
            error=ValueError,
            readings={"broadcasts": PLAIN.but(mask=MASK[1:2])},
        ),
        Probe(
            "Rank 5",
            PLAIN.but(mask=MASK[None, None, None], own_mask=True),
            error=ValueError,
            readings={"broadcasts": PLAIN.but(mask=MASK)},
        ),
    ),
)
