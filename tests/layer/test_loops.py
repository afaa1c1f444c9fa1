"""The oracle against plain loops and finite differences, in float64.

Every size of a configuration is its own, so that a swapped axis cannot go unnoticed; there are few of them, because
some frameworks compile anew for every shape.

Letters: B batch, Q queries, K key-value pairs, H heads, D num_hiddens, d and dv widths of a query or key head and of a
value head.
"""

import itertools
import math

import adapters
import numpy as np
import pytest

import mha
from mha import parity

SIZES = [
    # B, Q, K, D, H, and the layer's widths
    (2, 3, 5, 14, 2, {"query_size": 13, "key_size": 11, "value_size": 17, "key_dim": 4, "value_dim": 6}),
    (3, 5, 2, 21, 3, {}),
    (5, 2, 7, 3, 1, {"query_size": 2, "key_dim": 1, "value_dim": 1}),
]
HIDING = list(itertools.product((None, "sample", "query"), (None, "plain", "samples", "heads"), (False, True)))


def configuration(rng, backend, sizes, pooling, bias, lengths, mask, causal):
    """A layer with random weights in float64, inputs whose every unseen row is poisoned, and what hides keys."""
    B, Q, K, D, H, widths = sizes
    attention = mha.MultiHeadAttention(D, H, bias=bias, pooling=pooling, dtype="float64", backend=backend, **widths)
    attention.weights = {name: rng.normal(size=X.shape) for name, X in attention.weights.items()}
    config = attention.config
    named = {
        "queries": rng.normal(size=(B, Q, config.query_size)),
        "keys": rng.normal(size=(B, K, config.key_size)),
        "values": rng.normal(size=(B, K, config.value_size)),
    }
    shape = {None: None, "sample": (B,), "query": (B, Q)}[lengths]
    mask_shape = {None: None, "plain": (Q, K), "samples": (B, Q, K), "heads": (B, H, Q, K)}[mask]
    hiding = {
        "valid_lens": None if shape is None else rng.integers(0, K + 2, shape),
        "mask": None if mask_shape is None else rng.random(mask_shape) < 0.7,
        "causal": causal,
    }
    seen = np.reshape([sees(hiding, *at) for at in np.ndindex(B, H, Q, K)], (B, H, Q, K)).any(1)  # (B, Q, K)
    named["queries"][~seen.any(2)] = np.nan
    named["keys"][~seen.any(1)] = np.inf
    named["values"][~seen.any(1)] = np.nan
    return attention, named, hiding


def sees(hiding, b, h, i, j):
    """Whether query i of head h in sample b sees key j."""
    lengths, mask, causal = hiding["valid_lens"], hiding["mask"], hiding["causal"]
    if lengths is not None and j >= (lengths[b] if lengths.ndim == 1 else lengths[b, i]):
        return False
    if mask is not None and not mask[{2: (i, j), 3: (b, i, j), 4: (b, h, i, j)}[mask.ndim]]:
        return False
    return not causal or j <= i


def naive(config, weights, queries, keys, values, hiding):
    """Multi-head attention by loops over samples, heads, queries and keys, on Python's own numbers.

    Returns the output (B, Q, D) and the weights (B, H, Q, K). Nothing hidden is ever looked at.
    """
    weights = {name: X.tolist() for name, X in weights.items()}
    (B, Q, _), (_, K, _) = queries.shape, keys.shape
    d, dv = config.key_dim, config.value_dim
    output, all_weights = np.zeros((B, Q, config.num_hiddens)), np.zeros((B, config.num_heads, Q, K))

    def project(name, row, columns):
        kernel, bias = weights[f"{name}.kernel"], weights.get(f"{name}.bias")
        return [math.fsum(x * line[c] for x, line in zip(row, kernel)) + (bias[c] if bias else 0) for c in columns]  # noqa: B905

    def score(query, key):
        if config.pooling == "dot":
            return math.fsum(x * y for x, y in zip(query, key, strict=True)) / math.sqrt(d)
        query, key = project("attention.W_q", query, range(d)), project("attention.W_k", key, range(d))
        features = [math.tanh(x + y) for x, y in zip(query, key, strict=True)]
        return project("attention.w_v", features, [0])[0]

    for b, i in itertools.product(range(B), range(Q)):
        merged = []
        for h in range(config.num_heads):
            seen = [j for j in range(K) if sees(hiding, b, h, i, j)]
            key_columns, value_columns = range(h * d, h * d + d), range(h * dv, h * dv + dv)
            scores = []
            for j in seen:
                query = project("W_q", queries[b, i].tolist(), key_columns)
                scores.append(score(query, project("W_k", keys[b, j].tolist(), key_columns)))
            shares = [math.exp(s - max(scores)) for s in scores]
            shares = [share / math.fsum(shares) for share in shares]
            pooled = [0.0] * dv
            for j, share in zip(seen, shares, strict=True):
                all_weights[b, h, i, j] = share
                value = project("W_v", values[b, j].tolist(), value_columns)
                pooled = [total + share * x for total, x in zip(pooled, value, strict=True)]
            merged += pooled
        output[b, i] = project("W_o", merged, range(config.num_hiddens))
    return output, all_weights


def close(result, expected):
    assert parity.error(result, expected) <= parity.bound("float64", expected, expected)


LONG = pytest.mark.long(*adapters.COMPILED)


FEW = HIDING[::6] + HIDING[-1:]  # which meet each way of hiding


@pytest.mark.parametrize(
    "hiding",
    [pytest.param(one, marks=() if one in FEW else LONG, id="-".join(map(str, one))) for one in HIDING],
)
@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param(SIZES[0], id="widths"),
        pytest.param(SIZES[1], id="equal", marks=LONG),
        pytest.param(SIZES[2], id="one-head", marks=LONG),
    ],
)
def test_plain_loops_agree(backend, rng, sizes, hiding):
    number = HIDING.index(hiding)
    pooling, bias = ("dot", "additive")[number % 2], number % 3 > 0
    attention, inputs, hiding = configuration(rng, backend, sizes, pooling, bias, *hiding)
    output, weights = attention(*inputs.values(), **hiding, return_weights=True)
    expected_output, expected_weights = naive(attention.config, attention.weights, *inputs.values(), hiding)
    close(output, expected_output)
    close(weights, expected_weights)
    assert (weights[expected_weights == 0] == 0).all()


# A central difference of step h errs by h^2 f''' / 6 and by rounding of about u f / h; h = cbrt(u) makes both about
# u^(2/3) = 2e-11. Weights are of size 1 and sums have up to 70 terms: 1e-8 of the largest gradient leaves room for f'''
# and is far below any mistake.
STEP, TOLERANCE = 2.0**-17, 1e-8


@pytest.mark.parametrize("pooling", ["dot", "additive"])
@pytest.mark.parametrize("hiding", [(None, None, False), ("query", "heads", True)], ids=["all-seen", "hidden"])
def test_numpy_gradients_match_finite_differences_one_by_one(rng, pooling, hiding):
    attention, inputs, hiding = configuration(rng, "numpy", SIZES[0], pooling, True, *hiding)
    cotangent = rng.normal(size=(*inputs["queries"].shape[:2], attention.config.num_hiddens))
    gradients = attention.gradients(*inputs.values(), **hiding, cotangent=cotangent)
    inputs = {name: np.nan_to_num(X, posinf=0) for name, X in inputs.items()}  # poison has no neighbours
    weights = attention.weights

    def loss():
        attention.weights = weights
        return (attention(*inputs.values(), **hiding) * cotangent).sum()

    largest = max(map(parity.largest, gradients.values()))
    for name, X in (inputs | weights).items():
        differences = np.empty(X.shape)
        for at in np.ndindex(X.shape):
            kept = X[at]
            X[at] = kept + STEP
            above = loss()
            X[at] = kept - STEP
            differences[at] = (above - loss()) / (2 * STEP)
            X[at] = kept
        assert parity.error(gradients[name], differences) <= TOLERANCE * largest, name


@pytest.mark.parametrize("pooling", ["dot", "additive"])
def test_gradients_match_differences_of_plain_loops(backend, rng, pooling):
    attention, inputs, hiding = configuration(rng, backend, SIZES[0], pooling, True, "query", "heads", False)
    cotangent = rng.normal(size=(*inputs["queries"].shape[:2], attention.config.num_hiddens))
    gradients = attention.gradients(*inputs.values(), **hiding, cotangent=cotangent)
    inputs = {name: np.nan_to_num(X, posinf=0) for name, X in inputs.items()}
    arrays = inputs | attention.weights

    def loss(moved):
        moved = arrays | moved
        queries, keys, values = (moved.pop(name) for name in inputs)
        return (naive(attention.config, moved, queries, keys, values, hiding)[0] * cotangent).sum()

    assert gradients.keys() == arrays.keys()
    largest = max(map(parity.largest, gradients.values()))
    for name, X in arrays.items():
        direction = rng.normal(size=X.shape)
        difference = (loss({name: X + STEP * direction}) - loss({name: X - STEP * direction})) / (2 * STEP)
        slope = (gradients[name] * direction).sum()
        assert abs(slope - difference) <= TOLERANCE * largest * direction.size, name
