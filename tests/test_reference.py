"""What the oracle itself is measured by: answers by hand, finite differences, plain loops, the frameworks' own layers.

Letters as in the backend modules: B batch, Q queries, K key-value pairs, H heads, D num_hiddens, d and dv widths of a
query or key head and of a value head.
"""

import itertools
import math

import numpy as np
import pytest

import mha
from mha import parity

# 1. By hand. Most cases have the scores [0, 1], so that the weights are [1, e] / (1 + e) = [0.26894142, 0.73105858].

E = math.e
P = E / (1 + E)  # the weight of the second key
SLOPE = P * (1 - P)  # its derivative by its score: 0.19661193


def by_hand(backend, num_hiddens, num_heads, *, weights=(), **options):
    """A float64 layer whose kernels are identities and whose biases are 0, but for the weights given as lists."""
    attention = mha.MultiHeadAttention(num_hiddens, num_heads, dtype="float64", backend=backend, **options)
    plain = {name: np.eye(*X.shape) if X.ndim == 2 else np.zeros(X.shape) for name, X in attention.weights.items()}
    attention.weights = plain | {name: np.array(X, "float64") for name, X in dict(weights).items()}
    return attention


def close(result, expected):
    expected = np.array(expected, "float64")
    assert parity.error(np.asarray(result), expected) <= parity.bound("float64", expected, expected)


def test_one_head_of_width_one(backend):
    attention = by_hand(backend, 1, 1, weights={"W_o.kernel": [[10]]})
    output, weights = attention([[[1]]], [[[0], [1]]], [[[2], [5]]], return_weights=True)
    close(weights, [[[[1 / (1 + E), E / (1 + E)]]]])
    close(output, [[[10 * (2 + 5 * E) / (1 + E)]]])  # 41.931757


def test_scores_are_divided_by_the_root_of_the_head_width(backend):
    # The dot products are 0 and 2, and sqrt(d) is 2.
    attention = by_hand(backend, 4, 1)
    _, weights = attention([[[2, 0, 0, 0]]], [[[0, 0, 0, 0], [1, 0, 0, 0]]], np.zeros((1, 2, 4)), return_weights=True)
    close(weights, [[[[1 - P, P]]]])


def test_heads_are_neighbouring_columns(backend):
    # Head 0 has columns 0 and 1 and scores [0, sqrt(2) / sqrt(2)]; head 1 has columns 2 and 3 and equal scores.
    attention = by_hand(backend, 4, 2)
    keys, values = [[[0, 0, 9, 9], [1, 0, 9, 9]]], [[[2, 3, 10, 11], [5, 7, 30, 31]]]
    output, weights = attention([[[math.sqrt(2), 0, 0, 0]]], keys, values, return_weights=True)
    close(weights, [[[[1 - P, P]], [[0.5, 0.5]]]])
    close(output, [[[(2 + 5 * E) / (1 + E), (3 + 7 * E) / (1 + E), 20, 21]]])


def test_kernels_multiply_from_the_right(backend):
    # [1, 0] W_q = [0, 1] and [sqrt(2), 0] W_k = [0, sqrt(2)], so that the scores are [0, 1]; transposed kernels would
    # give [0, 0]. [1, 10] W_v = [31, 42] for both keys, and [31, 42] W_o = [31, 73].
    right = [[0, 1], [0, 0]]
    kernels = {"W_q.kernel": right, "W_k.kernel": right, "W_v.kernel": [[1, 2], [3, 4]], "W_o.kernel": [[1, 1], [0, 1]]}
    attention = by_hand(backend, 2, 1, weights=kernels)
    keys, values = [[[0, 0], [math.sqrt(2), 0]]], [[[1, 10], [1, 10]]]
    output, weights = attention([[[1, 0]]], keys, values, return_weights=True)
    close(weights, [[[[1 - P, P]]]])
    close(output, [[[31, 73]]])


def test_each_bias_is_added(backend):
    # Query 0 becomes 1; keys 0 and 1 become 3 and 4, which moves both scores alike; values 2 and 5 become 3 and 6.
    biases = {"W_q.bias": [1], "W_k.bias": [3], "W_v.bias": [1], "W_o.bias": [100]}
    attention = by_hand(backend, 1, 1, bias=True, weights={"W_o.kernel": [[10]], **biases})
    close(attention([[[0]]], [[[0], [1]]], [[[2], [5]]]), [[[10 * (3 + 6 * E) / (1 + E) + 100]]])


def test_a_length_hides_the_keys_from_it_on(backend):
    attention = by_hand(backend, 1, 1)
    queries, keys, values = [[[1]]] * 2, [[[0], [1], [0]]] * 2, [[[2], [5], [-7]]] * 2
    output, weights = attention(queries, keys, values, [1, 2], return_weights=True)
    close(weights, [[[[1, 0, 0]]], [[[1 - P, P, 0]]]])
    close(output, [[[2]], [[(2 + 5 * E) / (1 + E)]]])


def test_each_query_has_a_length_of_its_own(backend):
    attention = by_hand(backend, 1, 1)
    output = attention([[[1], [1]]] * 2, [[[0], [1]]] * 2, [[[2], [5]]] * 2, [[2, 1], [1, 9]])
    mean = (2 + 5 * E) / (1 + E)
    close(output, [[[mean], [2]], [[2], [mean]]])


def test_every_head_of_a_sample_has_its_length(backend):
    # Two samples and two heads of width 1: lengths told to the heads in the order of the samples would fail.
    attention = by_hand(backend, 2, 2)
    output = attention([[[1, 1]]] * 2, [[[0, 0], [1, 1]]] * 2, [[[2, 20], [5, 50]]] * 2, [1, 2])
    close(output, [[[2, 20]], [[(2 + 5 * E) / (1 + E), (20 + 50 * E) / (1 + E)]]])


def test_scores_of_minus_infinity_are_scores(backend):
    infinite, finite = -np.inf, np.finfo("float32").min
    scores = [[[infinite, 1, 7], [infinite, infinite, 1], [finite, finite, 9]]]
    weights = mha.to_numpy(mha.masked_softmax(mha.tensor(np.float32(scores), backend=backend), [2]))
    assert weights[0, 0].tolist() == [0, 1, 0]
    assert np.isnan(weights[0, 1, :2]).any()  # as without lengths: no share of nothing is right
    assert weights[0, 2].tolist() == [0.5, 0.5, 0]


def test_causal_order_and_mask(backend):
    attention = by_hand(backend, 1, 1)
    queries, keys, values = [[[1], [1]]], [[[0], [1]]], [[[2], [5]]]
    mean = (2 + 5 * E) / (1 + E)
    close(attention(queries, keys, values, causal=True), [[[2], [mean]]])
    close(attention(queries, keys, values, mask=np.array([[True, True], [False, True]])), [[[mean], [5]]])
    close(attention(queries, keys, values, mask=np.array([[True, True], [False, True]]), causal=True), [[[2], [5]]])


def test_a_query_without_keys_has_the_last_bias_alone(backend):
    biases = {"W_q.bias": [1], "W_k.bias": [3], "W_v.bias": [1], "W_o.bias": [100]}
    attention = by_hand(backend, 1, 1, bias=True, weights=biases)
    output, weights = attention([[[1]]], [[[0], [1]]], [[[2], [5]]], [0], return_weights=True)
    assert output.tolist() == [[[100]]]
    assert weights.tolist() == [[[[0, 0]]]]


def test_additive_pooling(backend):
    # tanh(log(3) / 2) = (3 - 1) / (3 + 1) = 1/2. Query: 2 * log(3) / 4 = log(3) / 2. Keys: 4 * -log(3) / 8 undoes that,
    # 4 * 0 does not. Scores: 2 * tanh(0) = 0 and 2 * tanh(log(3) / 2) = 1.
    attention = by_hand(backend, 1, 1, pooling="additive", weights=ADDITIVE)
    output, weights = attention([[[math.log(3) / 4]]], [[[-math.log(3) / 8], [0]]], [[[2], [5]]], return_weights=True)
    close(weights, [[[[1 - P, P]]]])
    close(output, [[[10 * (2 + 5 * E) / (1 + E)]]])


ADDITIVE = {
    "attention.W_q.kernel": [[2]],
    "attention.W_k.kernel": [[4]],
    "attention.w_v.kernel": [[2]],
    "W_o.kernel": [[10]],
}


def test_gradients_of_one_head(backend):
    # The output is 10 * (2 * (1 - p) + 5 * p), with p the weight of key 1: its derivative by the score of key 1 is
    # 10 * (5 - 2) * p * (1 - p), by that of key 0 minus that. The cotangent 7 multiplies everything.
    attention = by_hand(backend, 1, 1, weights={"W_o.kernel": [[10]]})
    gradients = attention.gradients([[[1]]], [[[0], [1]]], [[[2], [5]]], cotangent=[[[7]]])
    expected = {
        "queries": [[[30 * SLOPE]]],  # times key 1, which is 1; key 0 is 0
        "keys": [[[-30 * SLOPE], [30 * SLOPE]]],  # times the query, which is 1
        "values": [[[10 * (1 - P)], [10 * P]]],
        "W_q.kernel": [[30 * SLOPE]],  # the query times its own derivative
        "W_k.kernel": [[30 * SLOPE]],  # the same of the keys, 0 and 1
        "W_v.kernel": [[10 * (2 * (1 - P) + 5 * P)]],
        "W_o.kernel": [[2 * (1 - P) + 5 * P]],
    }
    assert gradients.keys() == expected.keys()
    for name, gradient in gradients.items():
        close(gradient, 7 * np.array(expected[name]))


def test_gradients_of_additive_pooling(backend):
    # By the scores: -30 p (1 - p) and 30 p (1 - p). By the sums inside tanh, times w_v = 2 and 1 - tanh^2 = 1 and 3/4:
    # -60 p (1 - p) and 45 p (1 - p), of which the query receives the sum.
    attention = by_hand(backend, 1, 1, pooling="additive", weights=ADDITIVE)
    log3 = math.log(3)
    gradients = attention.gradients([[[log3 / 4]]], [[[-log3 / 8], [0]]], [[[2], [5]]])
    expected = {
        "queries": [[[2 * -15 * SLOPE]]],
        "keys": [[[4 * -60 * SLOPE], [4 * 45 * SLOPE]]],
        "attention.W_q.kernel": [[log3 / 4 * -15 * SLOPE]],
        "attention.W_k.kernel": [[-log3 / 8 * -60 * SLOPE]],
        "attention.w_v.kernel": [[1 / 2 * 30 * SLOPE]],
    }
    for name, gradient in expected.items():
        close(gradients[name], gradient)


# 2. By finite differences and by plain loops, in float64. Every size of a configuration is its own, so that a swapped
# axis cannot go unnoticed; there are few of them, because some frameworks compile anew for every shape.

SIZES = [
    # B, Q, K, D, H, and the layer's widths
    (2, 3, 5, 14, 2, {"query_size": 13, "key_size": 11, "value_size": 17, "key_dim": 4, "value_dim": 6}),
    (3, 5, 2, 21, 3, {}),
    (5, 2, 7, 3, 1, {"query_size": 2, "key_dim": 1, "value_dim": 1}),
]
HIDING = list(itertools.product((None, "sample", "query"), (None, "plain", "samples", "heads"), (False, True)))
KEYS_OF_HIDING = ("lengths", "mask", "causal")


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
    seen = np.array([[[visible(hiding, *at) for at in row] for row in rows] for rows in positions(B, H, Q, K)]).any(1)
    named["queries"][~seen.any(2)] = np.nan
    named["keys"][~seen.any(1)] = np.inf
    named["values"][~seen.any(1)] = np.nan
    return attention, named, hiding


def positions(B, H, Q, K):
    return [[[(b, h, i, range(K)) for i in range(Q)] for h in range(H)] for b in range(B)]


def visible(hiding, b, h, i, keys):
    """For each key, whether query i of head h in sample b sees it."""
    return [sees(hiding, b, h, i, j) for j in keys]


def sees(hiding, b, h, i, j):
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


@pytest.mark.parametrize("hiding", HIDING, ids=lambda hiding: "-".join(map(str, hiding)))
@pytest.mark.parametrize("sizes", SIZES, ids=["widths", "equal", "one-head"])
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


# 3. By the frameworks' own layers, which are given our weights in their layouts. Each function returns a dict of the
# output, the weights (B, H, Q, K) and the gradients in our names and layouts.


def own_torch(config, weights, queries, keys, values, lengths, mask, cotangent):
    import torch

    D, H, K = config.num_hiddens, config.num_heads, keys.shape[1]
    widths = {"kdim": config.key_size, "vdim": config.value_size}
    layer = torch.nn.MultiheadAttention(D, H, batch_first=True, dtype=torch.float64, **widths)
    # Equal widths are packed into one parameter, different ones are three; both transposed. The biases are packed.
    packed = config.key_size == config.value_size == D
    ours = {name: torch.tensor(X.T) for name, X in weights.items()}
    kernels = [ours[f"{name}.kernel"] for name in ("W_q", "W_k", "W_v")]
    own = {"in_proj_weight": torch.cat(kernels)} if packed else dict(zip(PROJECTIONS, kernels, strict=True))
    own["out_proj.weight"] = ours["W_o.kernel"]
    own["in_proj_bias"] = torch.cat([ours[f"{name}.bias"] for name in ("W_q", "W_k", "W_v")])
    own["out_proj.bias"] = ours["W_o.bias"]
    layer.load_state_dict(own)
    inputs = [torch.tensor(X, requires_grad=True) for X in (queries, keys, values)]
    output, shares = layer(
        *inputs,
        key_padding_mask=torch.tensor(np.arange(K) >= lengths[:, None]),  # (B, K), True = hide
        attn_mask=torch.tensor(~mask).flatten(0, 1),  # (B*H, Q, K), True = hide
        average_attn_weights=False,
    )
    (output * torch.tensor(cotangent)).sum().backward()
    by_own = {name: parameter.grad for name, parameter in layer.named_parameters()}
    by_kernels = by_own["in_proj_weight"].chunk(3) if packed else [by_own[name] for name in PROJECTIONS]
    by_all = dict(zip(("W_q.kernel", "W_k.kernel", "W_v.kernel"), (X.T for X in by_kernels), strict=True))
    by_all |= dict(zip(("W_q.bias", "W_k.bias", "W_v.bias"), by_own["in_proj_bias"].chunk(3), strict=True))
    by_all |= {"W_o.kernel": by_own["out_proj.weight"].T, "W_o.bias": by_own["out_proj.bias"]}
    by_all |= dict(zip(("queries", "keys", "values"), (X.grad for X in inputs), strict=True))
    return {name: X.detach().numpy() for name, X in ({"output": output, "weights": shares} | by_all).items()}


PROJECTIONS = ("q_proj_weight", "k_proj_weight", "v_proj_weight")


def own_tensorflow(config, weights, queries, keys, values, lengths, mask, cotangent):
    import keras
    import tensorflow as tf

    layer = keras.layers.MultiHeadAttention(
        config.num_heads, config.key_dim, config.value_dim, output_shape=config.num_hiddens, dtype="float64"
    )
    inputs = [tf.constant(X) for X in (queries, keys, values)]
    layer.build(queries.shape, values.shape, keys.shape)
    dense = {"W_q": layer.query_dense, "W_k": layer.key_dense, "W_v": layer.value_dense, "W_o": layer.output_dense}
    own = {f"{name}.{kind}": getattr(part, kind) for name, part in dense.items() for kind in ("kernel", "bias")}
    for name, parameter in own.items():
        parameter.assign(weights[name].reshape(parameter.shape))  # (in, H, d), (H, d) and (H, dv, D)
    seen = mask & (np.arange(keys.shape[1]) < lengths[:, None, None, None])  # (B, H, Q, K)
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        output, shares = layer(
            inputs[0], inputs[2], inputs[1], attention_mask=tf.constant(seen), return_attention_scores=True
        )
    by_all = tape.gradient(output, [*inputs, *(X.value for X in own.values())], tf.constant(cotangent))
    named = dict(zip(("queries", "keys", "values", *own), by_all, strict=True))
    named = {name: X.numpy().reshape(weights[name].shape if name in weights else X.shape) for name, X in named.items()}
    return {"output": output.numpy(), "weights": shares.numpy()} | named


def own_jax(config, weights, queries, keys, values, lengths, mask, cotangent):
    import jax
    from flax import linen as nn

    H = config.num_heads
    layer = nn.MultiHeadDotProductAttention(
        H,
        dtype="float64",
        param_dtype="float64",
        qkv_features=H * config.key_dim,
        out_features=config.num_hiddens,
        deterministic=True,
    )
    seen = mask & (np.arange(keys.shape[1]) < lengths[:, None, None, None])  # (B, H, Q, K)
    own_names = {"W_q": "query", "W_k": "key", "W_v": "value", "W_o": "out"}
    with jax.enable_x64(True):
        params = {}
        for name, own_name in own_names.items():
            kernel, bias = weights[f"{name}.kernel"], weights[f"{name}.bias"]
            if name == "W_o":
                kernel = kernel.reshape(H, -1, kernel.shape[1])  # (H, dv, D)
            else:
                kernel, bias = kernel.reshape(len(kernel), H, -1), bias.reshape(H, -1)  # (in, H, d), (H, d)
            params[own_name] = {"kernel": kernel, "bias": bias}

        def call(params, *inputs):
            variables = {"params": params}
            return layer.apply(variables, *inputs, mask=seen, sow_weights=True, mutable=["intermediates"])

        output, pull_back, state = jax.vjp(call, params, queries, keys, values, has_aux=True)
        by_params, *by_inputs = pull_back(jax.numpy.asarray(cotangent))
        (shares,) = state["intermediates"]["attention_weights"]
        by_all = dict(zip(("queries", "keys", "values"), map(np.asarray, by_inputs), strict=True))
        for name, kind in itertools.product(own_names, ("kernel", "bias")):
            full = f"{name}.{kind}"
            by_all[full] = np.asarray(by_params[own_names[name]][kind]).reshape(weights[full].shape)
        return {"output": np.asarray(output), "weights": np.asarray(shares)} | by_all


def own_none(config, weights, queries, keys, values, lengths, mask, cotangent):
    """NumPy and MXNet bring no such layer: plain loops stand in. The gradients' test is the one above."""
    hiding = {"valid_lens": lengths, "mask": mask, "causal": False}
    return dict(zip(("output", "weights"), naive(config, weights, queries, keys, values, hiding), strict=True))


# d = 4 everywhere: Keras' own layer rounds 1 / sqrt(d) to float32, even in float64, and 1/2 needs no rounding.
ANY_WIDTHS = {"query_size": 11, "key_size": 13, "value_size": 17, "key_dim": 4, "value_dim": 3}
OWN = {
    # the framework's own layer, and the most unequal widths that it can have
    "numpy": (own_none, ANY_WIDTHS),
    "torch": (own_torch, {"key_size": 13, "value_size": 17}),
    "tensorflow": (own_tensorflow, ANY_WIDTHS),
    "jax": (own_jax, ANY_WIDTHS | {"value_dim": 4}),
    "mxnet": (own_none, ANY_WIDTHS),
}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("equal", [True, False], ids=["equal-widths", "unequal-widths"])
def test_own_layer_of_the_framework_agrees(backend, rng, dtype, equal):
    own, widths = OWN[backend]
    B, Q, K, D, H = 3, 5, 7, 8, 2
    attention = mha.MultiHeadAttention(D, H, bias=True, dtype=dtype, backend=backend, **({} if equal else widths))
    attention.weights = {name: rng.normal(size=X.shape).astype(dtype) for name, X in attention.weights.items()}
    config = attention.config
    shapes = (B, Q, config.query_size), (B, K, config.key_size), (B, K, config.value_size), (B, Q, D)
    *inputs, cotangent = (rng.normal(size=shape).astype(dtype) for shape in shapes)
    lengths, mask = np.array([7, 4, 2]), rng.random((B, H, Q, K)) < 0.6
    mask[..., 0] = True  # what a query without keys yields is each framework's own affair

    def ours(attention):
        output, weights = attention(*inputs, lengths, mask=mask, return_weights=True)
        gradients = attention.gradients(*inputs, lengths, mask=mask, cotangent=cotangent)
        return {"output": output, "weights": weights} | gradients

    widened = {name: X.astype("float64") for name, X in attention.weights.items()}
    oracle = own(config, widened, *(X.astype("float64") for X in inputs), lengths, mask, cotangent.astype("float64"))
    results, bases = ours(attention), ours(attention.to("numpy"))
    assert own is own_none or oracle.keys() == results.keys()
    for name, expected in oracle.items():
        gradient, scale = name not in ("output", "weights"), parity.gradient_scale(name, oracle)
        limit = parity.bound(dtype, expected, bases[name], gradient=gradient, scale=scale)
        assert parity.error(results[name], expected) <= limit, name
