"""The published node tests of ONNX's operator `Attention`, computed here: layers whose projections are identities.

The package `onnx` carries them as data: a graph of one node, inputs, and the outputs of its reference implementation in
float32 or float16, not in float64. So both are held against float64 NumPy by the rule of `mha.parity`: what is
published, and what each backend gives. Letters: B batch, Q queries, P past keys, K new keys, H heads, d width of one.
"""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests
from onnx.reference import ReferenceEvaluator

import mha
from mha import parity
from mha.core import dispatch

# As of onnx 1.22. A test that is not mapped would be named here with its reason; so far, all are.
NUMBER, NOT_MAPPED = 64, {}
# What the operator's fourth output is, by `qk_matmul_output_mode`.
STEPS = {0: "scores", 1: "capped", 2: "biased", 3: "weights"}


@dataclasses.dataclass(frozen=True)
class Published:
    """One test: the attributes of its node, and its arrays by the operator's names for them."""

    attributes: dict[str, Any]
    inputs: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]


@functools.cache
def published():
    """All tests of the operator, by name; those of its expansion into simpler ones have no such node."""
    found = {}
    for test in load_model_tests(kind="node"):
        graph = onnx.load(Path(test.model_dir, "model.onnx")).graph
        nodes = [node for node in graph.node if node.op_type == "Attention"]
        if not nodes:
            assert not test.name.startswith("test_attention") or test.name.endswith("_expanded"), test.name
            continue
        assert len(graph.node) == 1, test.name
        arrays = []
        for kind, names in (("input", nodes[0].input), ("output", nodes[0].output)):
            files = (Path(test.model_dir, "test_data_set_0", f"{kind}_{i}.pb") for i in range(len(names)))
            given = filter(None, names)
            arrays.append({name: numpy_helper.to_array(onnx.load_tensor(next(files))) for name in given})
        attributes = {one.name: onnx.helper.get_attribute_value(one) for one in nodes[0].attribute}
        found[test.name] = Published(attributes, *arrays)
    return found


def heads_first(X, heads):
    """(B, T, H*d) as (B, H, T, d); what has four axes as it is."""
    return X if X.ndim == 4 else X.reshape(*X.shape[:2], heads, -1).transpose(0, 2, 1, 3)  # (B, H, T, d)


def side_by_side(X):
    """(B, H, T, d) as (B, T, H*d)."""
    return X.transpose(0, 2, 1, 3).reshape(X.shape[0], X.shape[2], -1)  # (B, T, H*d)


def mapped(test):
    """A test as options of a layer, queries, keys and values, and the other arguments of the call."""
    attributes, inputs = dict(test.attributes), dict(test.inputs)
    mode = attributes.pop("qk_matmul_output_mode", 0)
    told = attributes.pop("q_num_heads", None), *2 * (attributes.pop("kv_num_heads", None),)
    queries, keys, values = (heads_first(inputs.pop(name), heads) for name, heads in zip("QKV", told, strict=True))
    past = 0
    if "past_key" in inputs:
        past = inputs["past_key"].shape[2]
        keys = np.concatenate([inputs.pop("past_key"), keys], 2)
        values = np.concatenate([inputs.pop("past_value"), values], 2)
    (_, H, _, d), (_, G, K, dv) = queries.shape, values.shape
    options = {"num_hiddens": H * dv, "num_heads": H, "num_key_value_heads": G, "key_dim": d, "value_dim": dv}
    options |= {"query_size": H * d, "key_size": G * d, "value_size": G * dv, "dtype": queries.dtype.name}
    options |= {name: attributes.pop(name) for name in ("scale", "softcap") if name in attributes}
    # A past moves the queries along; without causal order, positions do not matter.
    call = {"causal": bool(attributes.pop("is_causal", 0)), "offset": past}
    if "attn_mask" in inputs:
        mask = inputs.pop("attn_mask")
        short = K - mask.shape[-1]  # of a mask that is too short, the rest hides
        boolean = mask.dtype == np.bool_
        mask = np.pad(mask, [(0, 0)] * (mask.ndim - 1) + [(0, short)], constant_values=False if boolean else -np.inf)
        call["mask" if boolean else "score_bias"] = mask
    if "nonpad_kv_seqlen" in inputs:
        call["valid_lens"] = inputs.pop("nonpad_kv_seqlen")
    assert (attributes, inputs) == ({}, {}), f"no counterpart here: {attributes}, {list(inputs)}"
    return options, [side_by_side(X) for X in (queries, keys, values)], call, STEPS[mode]


def identity(**options):
    """A layer whose projections change nothing."""
    attention = mha.MultiHeadAttention(**options)
    attention.weights = {name: np.eye(len(X), dtype=X.dtype) for name, X in attention.weights.items()}
    return attention


def computed(backend, options, arrays, call, step):
    """The output (B, Q, H*dv) and the step that the operator calls qk_matmul_output, (B, H, Q, K)."""
    attention = identity(**options, backend=backend)
    native = [mha.tensor(X, backend=backend) for X in arrays]
    steps = attention.trace(*native, **call)
    found = {name: mha.to_numpy(X) for name, X in steps.items()}
    B, Q = found["output"].shape[:2]
    alone = mha.to_numpy(attention(*native, **call))
    return found["output"], alone, found[step].reshape(B, options["num_heads"], Q, -1)  # (B, H, Q, K)


@functools.cache
def told(name):
    """A test as it is mapped; the oracle's results, their bounds, and what is published in the same form."""
    options, arrays, call, step = mapped(published()[name])
    wide = {key: X.astype("float64") if key == "score_bias" else X for key, X in call.items()}
    oracle = computed("numpy", options | {"dtype": "float64"}, [X.astype("float64") for X in arrays], wide, step)
    base = computed("numpy", options, arrays, call, step)
    bounds = [parity.bound(options["dtype"], *pair) for pair in zip(oracle, base, strict=True)]
    outputs = published()[name].outputs
    Y = outputs["Y"] if outputs["Y"].ndim == 3 else side_by_side(outputs["Y"])
    return (options, arrays, call, step), oracle, bounds, (Y, Y, outputs.get("qk_matmul_output"))


NAMES = sorted(set(published()) - set(NOT_MAPPED))


def test_every_published_test_is_known():
    assert len(published()) == NUMBER
    assert set(NOT_MAPPED) <= set(published())


@pytest.mark.parametrize("name", NAMES)
def test_what_is_published_is_what_the_oracle_says(name):
    (_, arrays, call, step), oracle, bounds, theirs = told(name)
    *outputs, scores = oracle
    if step == "biased" and call["causal"]:  # theirs have the causal order in them, ours have not
        scores = np.where(np.tri(*scores.shape[2:], call["offset"], dtype=bool), scores, -np.inf)
    for expected, bound, found in zip((*outputs, scores), bounds, theirs, strict=True):
        assert found is None or parity.error(found, expected) <= bound
    outputs = published()[name].outputs
    for key, X in (("present_key", arrays[1]), ("present_value", arrays[2])):
        assert key not in outputs or np.array_equal(side_by_side(outputs[key]), X)


@pytest.mark.parametrize("name", NAMES)
def test_a_backend_gives_what_is_published(backend, name):
    (options, *rest), oracle, bounds, theirs = told(name)
    if options["dtype"] in dispatch.load(backend).DTYPES:
        found = computed(backend, options, *rest)
        for X, expected, bound in zip(found, oracle, bounds, strict=True):
            assert parity.error(X, expected) <= bound
        assert parity.error(found[0], theirs[0]) <= 2 * bounds[0]  # each of the two may be off by the bound


@pytest.mark.backends("numpy")
def test_a_query_without_keys_differs():
    """No published test has one; the reference implementation gives NaN, and the rest of the rows as here."""
    X, mask = np.random.default_rng(0).normal(size=(1, 3, 4)).astype("float32"), np.tri(3, k=-1, dtype=bool)
    types = {"Q": onnx.TensorProto.FLOAT, "M": onnx.TensorProto.BOOL}
    inputs = [onnx.helper.make_tensor_value_info(name, kind, None) for name, kind in types.items()]
    outputs = [onnx.helper.make_tensor_value_info("Y", onnx.TensorProto.FLOAT, None)]
    node = onnx.helper.make_node("Attention", ["Q", "Q", "Q", "M"], ["Y"], q_num_heads=1, kv_num_heads=1)
    graph = onnx.helper.make_graph([node], "one", inputs, outputs)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 23)])
    with np.errstate(invalid="ignore"):
        [theirs] = ReferenceEvaluator(model).run(None, {"Q": X, "M": mask})
    attention = identity(num_hiddens=4, num_heads=1)
    assert np.isnan(theirs[0, 0]).all()
    assert (attention(X, X, X, mask=mask)[0, 0] == 0).all()
    theirs[0, 0] = 0
    assert parity.ratio(attention, theirs, X, X, X, mask=mask) <= 1
