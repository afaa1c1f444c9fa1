"""The published node tests of ONNX's operator `Attention`, computed here: layers whose projections are identities.

The package `onnx` makes them when they are asked for: a graph of one node, inputs, and the outputs of its reference
implementation in the node's dtype, not in float64. So both are held against float64 NumPy by the rule of `mha.parity`:
what is published, and what each backend gives. So are random nodes, computed by the reference evaluator.
Letters: B batch, Q queries, P past keys, K keys, H heads of queries, G of keys, d width of a head, dv of one of values.
"""

import collections
import dataclasses
import functools
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.backend.test.case.node import collect_testcases
from onnx.reference import ReferenceEvaluator

import mha
from mha import parity
from mha.core import dispatch

# As of onnx 1.23, the number of tests by opset. All have a counterpart here: `mapped` fails with what it does not know.
NUMBERS = {23: 69, 24: 13, 25: 11}
INPUTS = "Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen"
OUTPUTS = "Y", "present_key", "present_value", "qk_matmul_output"
# What the operator's fourth output is, by `qk_matmul_output_mode`.
STEPS = {0: "scores", 1: "capped", 2: "biased", 3: "weights"}


@dataclasses.dataclass(frozen=True)
class Node:
    """A node of the operator: its attributes, and its arrays by the operator's names for them."""

    attributes: dict[str, Any]
    inputs: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]


@functools.cache
def collected():
    """All tests of the operator, by name: each one twice, as one node, and expanded into simpler ones."""
    with np.errstate(all="ignore"):  # tests of other operators are computed on the way, and overflow
        return {test.name: test for test in collect_testcases("Attention")}


@functools.cache
def published():
    """The tests of one node, by name."""
    found = {}
    for name, test in collected().items():
        if not name.endswith("_expanded"):
            [node], [(inputs, outputs)] = test.model.graph.node, test.data_sets
            pairs = (node.input, inputs), (node.output, outputs)
            arrays = [dict(zip(filter(None, names), given, strict=True)) for names, given in pairs]
            attributes = {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
            found[name] = Node(attributes, *arrays)
    return found


def evaluated(attributes, inputs):
    """A node of the newest opset, as the reference evaluator computes it."""
    given = [name if name in inputs else "" for name in INPUTS]
    wanted = [name if "past_key" in inputs or "present" not in name else "" for name in OUTPUTS]
    node = onnx.helper.make_node("Attention", given, wanted, **attributes)
    with np.errstate(invalid="ignore"):
        found = dict(zip(wanted, ReferenceEvaluator(node).run(None, inputs), strict=True))
    return Node(attributes, inputs, {name: X for name, X in found.items() if name})


def drawn(seed):
    """A random node, with the weights as its fourth output."""
    rng = np.random.default_rng(seed)
    dtype, Q = ("float16", "float32", "float64")[seed % 3], (1, 5, 17)[seed // 3 % 3]
    B, H, G, K, P, d, dv = 2, 15, 3, 13, 19, 7, 11
    shapes = {"Q": (B, H, Q, d), "K": (B, G, K, d), "V": (B, G, K, dv)}
    cache, mask = rng.choice(["none", "past", "lengths"]), rng.choice(["none", "booleans", "floats"])
    if cache == "past":
        shapes |= {"past_key": (B, G, P, d), "past_value": (B, G, P, dv)}
    inputs = {name: rng.normal(size=shape).astype(dtype) for name, shape in shapes.items()}
    if cache == "lengths":
        inputs["nonpad_kv_seqlen"] = rng.integers(0, K + 1, B)
    if mask != "none":
        width = K + P - 8 if cache == "past" else K  # after past keys, it is too short
        seen = rng.random((B, H, Q, width)[rng.integers(3) :]) < 0.7
        bias = np.where(seen, rng.normal(size=seen.shape), -np.inf).astype(dtype)
        inputs["attn_mask"] = seen if mask == "booleans" else bias
    # The evaluator has the square root of the scale in float32: this one is exact.
    options = {"is_causal": 1, "softcap": 2.0, "scale": 0.25, "left_window_size": 3, "right_window_size": 2}
    attributes = {name: value for name, value in options.items() if rng.random() < 0.5}
    if dtype == "float16":
        attributes["softmax_precision"] = onnx.TensorProto.FLOAT
    return evaluated(attributes | {"qk_matmul_output_mode": 3}, inputs)


def heads_first(X, heads):
    """(B, T, H*d) as (B, H, T, d); what has four axes as it is."""
    return X if X.ndim == 4 else X.reshape(*X.shape[:2], heads, -1).transpose(0, 2, 1, 3)  # (B, H, T, d)


def side_by_side(X):
    """(B, H, T, d) as (B, T, H*d)."""
    return X.transpose(0, 2, 1, 3).reshape(X.shape[0], X.shape[2], -1)  # (B, T, H*d)


def mapped(node):
    """A node as options of a layer, queries, keys and values, the other arguments of the call, and a step's name."""
    attributes, inputs = dict(node.attributes), dict(node.inputs)
    step = STEPS[attributes.pop("qk_matmul_output_mode", 0)]
    # Here, the softmax is in float32 at least.
    assert attributes.pop("softmax_precision", None) in (None, onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)
    heads = attributes.pop("q_num_heads", None), *2 * (attributes.pop("kv_num_heads", None),)
    queries, keys, values = (heads_first(inputs.pop(name), n) for name, n in zip("QKV", heads, strict=True))
    (_, H, Q, d), offset = queries.shape, 0
    if "past_key" in inputs:
        offset = inputs["past_key"].shape[2]
        keys = np.concatenate([inputs.pop("past_key"), keys], 2)
        values = np.concatenate([inputs.pop("past_value"), values], 2)
    _, G, K, dv = values.shape
    options = {"num_hiddens": H * dv, "num_heads": H, "num_key_value_heads": G, "key_dim": d, "value_dim": dv}
    options |= {"query_size": H * d, "key_size": G * d, "value_size": G * dv, "dtype": queries.dtype.name}
    options |= {name: attributes.pop(name) for name in ("scale", "softcap") if name in attributes}
    window = [attributes.pop(f"{side}_window_size", -1) for side in ("left", "right")]
    if max(window) >= 0:
        options["window"] = tuple(None if n == -1 else n for n in window)
    call = {"causal": bool(attributes.pop("is_causal", 0))}
    if "nonpad_kv_seqlen" in inputs:  # the last query is at the last key that is no padding
        call["valid_lens"] = inputs.pop("nonpad_kv_seqlen")
        offset = call["valid_lens"] - Q  # (B,)
    call["offset"] = offset
    if "attn_mask" in inputs:
        mask = inputs.pop("attn_mask")
        boolean = mask.dtype == np.bool_
        mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)  # (B, H, Q, K), where a size may be 1
        short = K - mask.shape[-1]  # of a mask that is too short, the rest hides
        mask = np.pad(mask, [(0, 0)] * 3 + [(0, short)], constant_values=False if boolean else -np.inf)
        call["mask" if boolean else "score_bias"] = mask
    assert (attributes, inputs) == ({}, {}), f"no counterpart here: {attributes}, {list(inputs)}"
    return options, [side_by_side(X) for X in (queries, keys, values)], call, step


def identity(**options):
    """A layer whose projections change nothing."""
    attention = mha.MultiHeadAttention(**options)
    attention.weights = {name: np.eye(len(X), dtype=X.dtype) for name, X in attention.weights.items()}
    return attention


def computed(backend, options, arrays, call, step):
    """The output, traced and alone, (B, Q, H*dv), and the step that is called qk_matmul_output there, (B, H, Q, K)."""
    attention = identity(**options, backend=backend)
    native = [mha.tensor(X, backend=backend) for X in arrays]
    steps = attention.trace(*native, **call)
    found = {name: mha.to_numpy(X) for name, X in steps.items()}
    B, Q = found["output"].shape[:2]
    alone = mha.to_numpy(attention(*native, **call))
    return found["output"], alone, found[step].reshape(B, options["num_heads"], Q, -1)  # (B, H, Q, K)


def expected(node):
    """A node as it is mapped, the oracle's results, and their bounds."""
    options, arrays, call, step = mapped(node)
    wide = {key: X.astype("float64") if key == "score_bias" else X for key, X in call.items()}
    oracle = computed("numpy", options | {"dtype": "float64"}, [X.astype("float64") for X in arrays], wide, step)
    base = computed("numpy", options, arrays, call, step)
    bounds = [parity.bound(options["dtype"], *pair) for pair in zip(oracle, base, strict=True)]
    return (options, arrays, call, step), oracle, bounds


@functools.cache
def expected_of(name):
    """What is expected of a published test."""
    return expected(published()[name])


def differing(node, found):
    """The names of a node's outputs that differ from what is expected."""
    (_, (_, keys, values), call, step), (Y, _, scores), (bound, _, bound_of_scores) = found
    if step == "biased" and call["causal"]:  # theirs have the causal order in them, ours have not
        scores = np.where(np.tri(*scores.shape[2:], call["offset"], dtype=bool), scores, -np.inf)
    pairs = (Y, bound), (keys, 0), (values, 0), (side_by_side(scores), bound_of_scores)
    named = dict(zip(OUTPUTS, pairs, strict=True))
    given = {name: X if X.ndim == 3 else side_by_side(X) for name, X in node.outputs.items()}
    return [name for name, X in given.items() if parity.error(X, named[name][0]) > named[name][1]]


def test_every_published_test_is_known():
    nodes = [collected()[name] for name in published()]
    assert collections.Counter(test.model.opset_import[0].version for test in nodes) == NUMBERS
    assert set(collected()) == {name + end for name in published() for end in ("", "_expanded")}


@pytest.mark.parametrize("name", collected())
def test_the_evaluator_gives_what_is_published(name):
    test = collected()[name]
    [(inputs, outputs)], names = test.data_sets, [X.name for X in test.model.graph.input]
    with np.errstate(invalid="ignore"):
        found = ReferenceEvaluator(test.model).run(None, dict(zip(names, inputs, strict=True)))
    for X, own in zip(found, outputs, strict=True):
        np.testing.assert_allclose(X, own, test.rtol, test.atol, strict=True)


@pytest.mark.parametrize("name", published())
def test_what_is_published_is_what_the_oracle_says(name):
    assert differing(published()[name], expected_of(name)) == []


@pytest.mark.parametrize("seed", range(90))
def test_a_random_node_is_what_the_oracle_says(seed):
    node = drawn(seed)
    assert differing(node, expected(node)) == []


@pytest.mark.parametrize("name", published())
def test_a_backend_is_as_near_to_the_oracle_as_what_is_published(backend, name):
    (options, *rest), oracle, bounds = expected_of(name)
    if options["dtype"] in dispatch.load(backend).DTYPES:
        found = computed(backend, options, *rest)
        for X, own, bound in zip(found, oracle, bounds, strict=True):
            assert parity.error(X, own) <= bound


# Queries, keys and values; and ways in which some queries see no key.
FEW = dict(zip("QKV", np.random.default_rng(0).normal(size=(3, 1, 2, 5, 7)).astype("float32"), strict=True))
WITHOUT_KEYS = {
    "mask": ({}, {"attn_mask": np.tri(5, k=-1, dtype=bool)}),
    "bias": ({}, {"attn_mask": np.where(np.tri(5, k=-1), 0, -np.inf).astype("float32")}),
    "length": ({}, {"nonpad_kv_seqlen": np.array([0])}),
    "order": ({"is_causal": 1}, {"nonpad_kv_seqlen": np.array([3])}),
    "window": ({"right_window_size": 0}, {"nonpad_kv_seqlen": np.array([3])}),
}


@pytest.mark.parametrize(("attributes", "inputs"), WITHOUT_KEYS.values(), ids=WITHOUT_KEYS)
def test_a_query_without_keys_gives_0(attributes, inputs):
    node = evaluated({**attributes, "qk_matmul_output_mode": 3}, FEW | inputs)
    found = expected(node)
    assert differing(node, found) == []
    for X in (node.outputs["Y"], node.outputs["qk_matmul_output"], found[1][0], found[1][2]):
        assert (X[..., 0, :] == 0).all()


@pytest.mark.parametrize("opset", NUMBERS)
def test_the_text_gives_0_to_a_query_without_keys(opset):
    assert "produces a zero output row" in onnx.defs.get_schema("Attention", opset).doc


def test_the_evaluator_returns_scores_of_mode_0_after_the_cap():
    """By the text, they are those before it."""
    before, after = (evaluated({"softcap": 0.5, "qk_matmul_output_mode": mode}, FEW) for mode in (0, 1))
    assert differing(after, expected(after)) == []
    assert differing(before, expected(before)) == ["qk_matmul_output"]


def test_the_evaluator_gives_all_queries_the_order_of_the_first_beside_a_mask_of_one_row():
    """By the text, such a mask is one of equal rows."""
    row, rows = (evaluated({"is_causal": 1}, FEW | {"attn_mask": np.zeros((n, 5), "float32")}) for n in (1, 5))
    assert differing(rows, expected(row)) == []
    assert differing(row, expected(row)) == ["Y"]


def test_the_evaluator_lets_hidden_nan_through():
    weights, seen = {"qk_matmul_output_mode": 3}, np.arange(5) < 4
    clean = evaluated(weights, FEW | {"attn_mask": seen})
    poisoned = evaluated(weights, clean.inputs | {"V": np.where(seen[:, None], FEW["V"], np.float32(np.nan))})
    assert differing(clean, expected(poisoned)) == []
    assert np.isnan(poisoned.outputs["Y"]).all()
