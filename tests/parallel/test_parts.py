"""`mha.parallel.shard` and `unshard`: parts of a layer's heads, whose outputs and gradients sum to the whole's."""

import dataclasses

import adapters
import numpy as np
import pytest
from layers import assert_same_weights, random_layer

import mha
from mha import parallel, parity
from mha.core.options.config import MODERN
from mha.parallel.whole import read

LONG = pytest.mark.long(*adapters.COMPILED)
SIZES = {"num_hiddens": 17, "bias": True, "query_size": 13, "key_size": 11, "value_size": 7}
WIDTHS = SIZES | {"num_heads": 6, "key_dim": 5, "value_dim": 3}
LAYERS = {
    "plain": WIDTHS,
    "groups": WIDTHS | {"num_key_value_heads": 3},
    "additive": WIDTHS | {"pooling": "additive"},
    "all options": WIDTHS | {"num_key_value_heads": 3, "qk_norm": "rms", "rotary": mha.Rotary(4), "softcap": 3.0},
}
FEW = {
    "one head of keys": (WIDTHS | {"num_key_value_heads": 1}, 2, [[0], [0]]),
    "two heads of keys": (WIDTHS | {"num_key_value_heads": 2, "qk_norm": "rms"}, 3, [[0, 0], [0, 1], [1, 1]]),
    "three heads of keys": (LAYERS["all options"], 2, [[0, 0, 1], [1, 2, 2]]),
    "three for six": (LAYERS["all options"], 6, [[0], [0], [1], [1], [2], [2]]),
}
B, Q, K, H = 2, 3, 5, 6
FIRST = {"queries": 13, "keys": 11, "values": 7}
# Part by part, which axis of a gradient has the heads; those of what the parts share add up.
SPLIT = {f"{name}.{kind}": -1 for name in ("W_q", "W_k", "W_v") for kind in ("kernel", "bias")} | {"W_o.kernel": 0}
OF_KEYS = {name for name in SPLIT if name.startswith(("W_k", "W_v"))}


def parts_of(attention, count, backend):
    """The parts of a layer, each a layer of a backend."""
    for index in range(count):
        config, weights = parallel.shard(attention.config, attention.weights, index, count)
        part = mha.MultiHeadAttention(**vars(config), backend=backend)
        part.weights = weights
        yield part


def of_copies(parts, heads, G):
    """What of heads of keys the parts have, along the last axis, added up by the heads of the whole."""
    found = [0] * G
    for X, own in zip(parts, heads, strict=True):
        for head, columns in zip(own, np.split(X, len(own), -1), strict=True):
            found[head] = found[head] + columns
    return np.concatenate(found, -1)


@pytest.mark.parametrize(
    "name", ["all options", *(pytest.param(name, marks=LONG) for name in (*LAYERS, *FEW) if name != "all options")]
)
def test_outputs_and_gradients_of_the_parts_make_those_of_the_whole(rng, backend, name):
    options, count, heads = FEW.get(name) or (LAYERS[name], 3, None)
    attention = random_layer(rng, options, "float64")
    inputs = [rng.normal(size=(B, Q if name == "queries" else K, width)) for name, width in FIRST.items()]
    mask, gates = rng.random((B, H, Q, K)) < 0.7, rng.normal(size=(B, H))
    cotangent = rng.normal(size=(B, Q, 17))
    whole = attention.gradients(*inputs, [5, 3], mask=mask, head_gates=gates, cotangent=cotangent)
    whole["output"] = attention(*inputs, [5, 3], mask=mask, head_gates=gates)
    found = []
    for index, part in enumerate(parts_of(attention, count, backend)):
        own = slice(index * H // count, (index + 1) * H // count)
        call = {"mask": mask[:, own], "head_gates": gates[:, own]}
        output, pull_back = part.vjp(*inputs, [5, 3], **call)
        found.append({"output": output} | pull_back(cotangent))
    for name, expected in whole.items():
        each = [one[name] for one in found]
        if name == "W_o.bias":  # every part sees the whole gradient of the output
            result = each[0]
        elif heads and name in OF_KEYS:
            result = of_copies(each, heads, attention.config.num_key_value_heads)
        elif name == "head_gates" or name in SPLIT:
            result = np.concatenate(each, SPLIT.get(name, -1))
        else:
            result = np.add.reduce(each)
        limit = parity.bound("float64", expected, expected, gradient=name != "output", scale=1.0)
        assert parity.error(result, expected) <= limit, name


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_all_parts_are_the_whole_again(rng, name, count, dtype):
    attention = mha.MultiHeadAttention(**LAYERS[name], dtype=dtype, backend="numpy")
    weights = {name: rng.normal(size=X.shape).astype(X.dtype) for name, X in attention.weights.items()}
    parts = [parallel.shard(attention.config, weights, index, count) for index in range(count)]
    config, again = parallel.unshard(parts)
    assert config == attention.config
    assert_same_weights(again, weights)
    assert not any(np.shares_memory(X, weights[name]) for name, X in again.items())


@pytest.mark.parametrize("name", FEW)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_heads_of_keys_that_parts_share_are_copied_and_joined(rng, name, dtype):
    options, count, heads = FEW[name]
    attention = mha.MultiHeadAttention(**options, dtype=dtype, backend="numpy")
    config, G = attention.config, attention.config.num_key_value_heads
    weights = {name: rng.normal(size=X.shape).astype(X.dtype) for name, X in attention.weights.items()}
    parts = [parallel.shard(config, weights, index, count) for index in range(count)]
    for (part, found), own in zip(parts, heads, strict=True):
        assert (part.num_heads, part.num_key_value_heads) == (H // count, len(own))
        for kernel in OF_KEYS:
            columns = np.split(weights[kernel], G, -1)
            assert np.array_equal(found[kernel], np.concatenate([columns[head] for head in own], -1))
    again, joined = parallel.unshard(parts, num_key_value_heads=G)
    assert again == config
    assert_same_weights(joined, weights)
    assert not any(np.shares_memory(X, weights[name]) for name, X in joined.items())


def test_copies_are_heads_of_their_own_where_nothing_else_is_said(rng):
    attention = random_layer(rng, FEW["two heads of keys"][0], "float64")
    parts = [parallel.shard(attention.config, attention.weights, index, 3) for index in range(3)]
    config, weights = parallel.unshard(parts)
    assert config.num_key_value_heads == 6
    wider = mha.MultiHeadAttention(**vars(config), backend="numpy")
    wider.weights = weights
    inputs = [rng.normal(size=(B, K, width)) for width in FIRST.values()]
    expected = attention(*inputs)
    assert parity.error(wider(*inputs), expected) <= parity.bound("float64", expected, expected)


@pytest.mark.parametrize("part", [0, 2])
def test_copies_of_a_head_of_keys_must_be_the_same(rng, part):
    attention = random_layer(rng, FEW["two heads of keys"][0])
    parts = [parallel.shard(attention.config, attention.weights, index, 3) for index in range(3)]  # 0 0, 0 1, 1 1
    parts[part][1]["W_v.bias"][-1] += 1
    head, first = {0: (0, 0), 2: (1, 1)}[part]
    words = rf"parts\[{part}\] has other numbers in W_v.bias for head {head} of keys than .* in parts\[{first}\]"
    with pytest.raises(ValueError, match=words + ".*; when parts are trained, add up the gradients of all copies"):
        parallel.unshard(parts, 2)


@pytest.mark.parametrize("given", [3, 5, 12, 0])
def test_parts_of_another_number_of_heads_of_keys_are_refused(rng, given):
    attention = random_layer(rng, FEW["two heads of keys"][0])
    parts = [parallel.shard(attention.config, attention.weights, index, 3) for index in range(3)]
    words = "0, expected at least 1" if given == 0 else f"{given}, expected 2 or 6: .*, each of 3 parts has 2"
    with pytest.raises(ValueError, match=f"num_key_value_heads is {words}"):
        parallel.unshard(parts, given)


def test_biases_of_the_output_are_added_up(rng):
    attention = random_layer(rng, WIDTHS)
    parts = [parallel.shard(attention.config, attention.weights, index, 2) for index in range(2)]
    assert not parts[1][1]["W_o.bias"].any()
    parts[1][1]["W_o.bias"] += 1  # as after training
    assert np.array_equal(parallel.unshard(parts)[1]["W_o.bias"], attention.weights["W_o.bias"] + 1)


def test_what_the_heads_share_must_be_the_same_in_all_parts(rng):
    attention = random_layer(rng, LAYERS["additive"])
    parts = [parallel.shard(attention.config, dict(attention.weights), index, 2) for index in range(2)]
    parts[1][1]["attention.w_v.kernel"] = parts[1][1]["attention.w_v.kernel"] + 1
    with pytest.raises(ValueError, match=r"parts\[1\] has other numbers in attention.w_v.kernel than parts\[0\]"):
        parallel.unshard(parts)


@pytest.mark.parametrize(
    ("options", "count", "problem"),
    [
        ({}, 4, "num_heads is 6, expected a multiple of the number of parts, 4; .* into 1 or 2 or 3 or 6"),
        ({}, 0, "count is 0, expected at least 1"),
    ],
)
def test_heads_that_do_not_divide_are_refused(options, count, problem):
    attention = mha.MultiHeadAttention(**WIDTHS, **options, backend="numpy")
    with pytest.raises(ValueError, match=problem):
        parallel.shard(attention.config, attention.weights, 0, count)


def test_wrong_arguments_are_refused():
    attention = mha.MultiHeadAttention(**WIDTHS, backend="numpy")
    config, weights = attention.config, attention.weights
    for index in (-1, 2):
        with pytest.raises(ValueError, match=f"index is {index}, expected 0 to 1, a part of 2"):
            parallel.shard(config, weights, index, 2)
    with pytest.raises(TypeError, match=r"expected attention\.config"):
        parallel.shard(attention, weights, 0, 2)
    with pytest.raises(ValueError, match=r"weights lacks W_q\.kernel"):
        parallel.shard(config, {}, 0, 2)
    with pytest.raises(ValueError, match="parts is empty, expected all parts of a layer"):
        parallel.unshard([])
    other = mha.MultiHeadAttention(**WIDTHS | {"num_hiddens": 19}, backend="numpy")
    with pytest.raises(ValueError, match=r"parts\[1\] is a part of .*num_hiddens=19.*, expected .*num_hiddens=17"):
        parallel.unshard([(config, weights), (other.config, other.weights)])


@pytest.mark.parametrize("name", ["qk_norm", "value_norm"])
def test_parts_that_are_layers_take_no_norm_over_all_heads(name):
    attention = mha.MultiHeadAttention(**WIDTHS, **{name: mha.Norm("rms", over="all")}, backend="numpy")
    whole = parallel.shard(attention.config, attention.weights, 0, 1)
    assert_same_weights(parallel.unshard([whole])[1], attention.weights)
    words = f'{name} has over="all", expected "head": a part that is a layer itself does not know the mean of all heads'
    for call in (lambda: parallel.shard(*whole, 0, 2), lambda: parallel.unshard([whole, whole])):
        with pytest.raises(ValueError, match=f"{words}; split the layer with mha.parallel.parallelize on PyTorch, or"):
            call()


def test_a_layer_of_another_kind_is_refused():
    attention = mha.MultiHeadAttention(**WIDTHS, backend="numpy")
    with pytest.raises(TypeError, match=r"layer is an mha\.MultiHeadAttention, .*: write attention\.layer"):
        parallel.parallelize(attention, None)
    for call in (parallel.plan, parallel.gather, lambda layer: parallel.attend(layer, {}, 1, 2, 3)):
        with pytest.raises(TypeError, match=r"expected a layer of .*; mha\.parallel\.shard splits the weights of any"):
            call(attention.layer)


OTHERS = {
    "scale": 0.5, "softcap": 2.0, "window": (3, 0), "rotary": mha.Rotary(2), "qk_norm": mha.Norm("rms", 0.1),
    "value_norm": "rms", "chunk": 3, "num_key_value_heads": 2, "temperature": mha.Temperature(0.4, 3), "sinks": True,
    "output_gate": "head",
}  # fmt: skip


@pytest.mark.parametrize("name", MODERN)
def test_a_file_of_a_layer_with_another_option_is_refused(tmp_path, name):
    """As `mha.parallel.load` reads it, on each rank; weights alone would not show it."""
    given = mha.MultiHeadAttention(12, 6, backend="numpy", **{name: OTHERS[name]})
    given.save(tmp_path / "other.safetensors")
    config = mha.MultiHeadAttention(12, 6, backend="numpy").config
    with pytest.raises(ValueError, match=f"has a layer with {name}=.*, expected .* as the layer"):
        read(tmp_path / "other.safetensors", config)
    found = read(tmp_path / "other.safetensors", given.config)
    assert_same_weights(found, given.weights)
    again = dataclasses.replace(given.config, dropout=0.5)  # of which weights know nothing
    assert_same_weights(read(tmp_path / "other.safetensors", again), given.weights)
