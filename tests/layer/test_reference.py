"""Measures of the oracle itself, first: answers by hand. Then plain loops, and the frameworks' own layers.

Most cases have the scores [0, 1], so that the weights are [1, e] / (1 + e) = [0.26894142, 0.73105858].
"""

import math

import numpy as np

import mha
from mha import parity

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
