"""Reasons that lie in a rotation, sinks, biases or float16, of calls with several options, from the output alone."""

import numpy as np
import pytest
from ports import Port

import mha
from mha import parity

D, T, d = 40, 13, 20
X = np.random.default_rng(3).normal(size=(2, T, D)).astype("float32")
OPTIONS = {"num_hiddens": D, "num_heads": 6, "num_key_value_heads": 3, "key_dim": d, "bias": True}
NORMED = {"qk_norm": "rms", "softcap": 3.0}
CALLS = {"causal": {"causal": True}, "lengths": {"valid_lens": [11, 6]}, "window": {"causal": True, "offset": 3}}


def made(**options):
    """A layer with random biases, sinks and scales."""
    layer = mha.MultiHeadAttention(**OPTIONS | options, seed=0, backend="numpy")
    random = np.random.default_rng(2)
    layer.weights = {
        name: X if X.ndim == 2 else random.normal(1, 0.5, X.shape).astype(X.dtype) for name, X in layer.weights.items()
    }
    return layer


def reasons(layer, call, weights=None, **methods):
    """What is named for a port in float64 with these weights and methods; without them it is right."""
    found = []
    for own, changed in (({}, {}), (weights or {}, methods)):
        port = type("Changed", (Port,), changed)(layer)
        port.weights = {name: own.get(name, W).astype("float64") for name, W in layer.weights.items()}
        wide = X.astype("float64")
        found.append(port(wide, wide, wide, **call)[0].astype("float32"))
    assert parity.ratio(layer, found[0], X, X, X, **call) <= 0.5
    assert parity.ratio(layer, found[1], X, X, X, **call) > 20
    return parity.compare(layer, found[1], X, X, X, **call).diagnosis.alternatives


def turned(first, second, angles):
    """A way to turn pairs of components, by complex numbers."""

    def turn(self, role, X, places):
        Y, factors = X.copy(), np.exp(1j * places[:, None, :, None] * np.array(angles))
        found = (X[..., first] + 1j * X[..., second]) * factors
        Y[..., first], Y[..., second] = found.real, found.imag
        return Y

    return turn


def angles(n, width, base=1e4):
    return [base ** (-2 * i / width) for i in range(n)]


def span(first, n):
    return list(range(first, first + n))


# Of heads of 20 components 12 turn, as halves or neighbours; or of their 10 pairs 4

PART, PAIRS, SHARE = mha.Rotary(12), mha.Rotary(12, interleaved=True), 0.4
PARTS = {
    "pairs of the whole head": (PART, span(0, 6), span(10, 6), angles(6, 12)),
    "pairs of the whole head, its frequencies": (PART, span(0, 6), span(10, 6), angles(6, 20)),
    "pairs of the whole head, for neighbours": (PAIRS, span(0, 6), span(10, 6), angles(6, 12)),
    "pairs of the part that turns": (None, span(0, 4), span(4, 4), angles(4, 20)),
    "pairs of the part that turns, its frequencies": (None, span(0, 4), span(4, 4), angles(4, 8)),
    "frequencies of the part that turns": (None, span(0, 4), span(10, 4), angles(4, 8)),
    "frequencies of the whole head": (PART, span(0, 6), span(6, 6), angles(6, 20)),
    "the last pairs turn": (None, span(6, 4), span(16, 4), angles(4, 20)),
    "the last components turn": (PART, span(8, 6), span(14, 6), angles(6, 12)),
}


@pytest.mark.parametrize(("case", "options", "call"), [
    (case, *([({}, "causal"), (NORMED, "lengths"), ({"window": (4, 0)}, "window")][at % 3]))
    for at, case in enumerate(PARTS)
])  # fmt: skip
def test_the_pairs_of_a_part_are_named(case, options, call):
    rotary, *how = PARTS[case]
    rotary = rotary or mha.proportional(d, rope_theta=1e4, partial_rotary_factor=SHARE)
    assert reasons(made(rotary=rotary, **options), CALLS[call], turn=turned(*how)) == ((case.split(",")[0],),)


@pytest.mark.parametrize(("make", "inverse"), [
    (lambda factor: mha.linear(d, rope_theta=1e4, factor=factor), 1 / 6.0),
    (lambda factor: mha.yarn(d, rope_theta=1e4, factor=factor, original_max_position_embeddings=32,
                             attention_factor=1.2), 1 / 6.0),
    (lambda factor: mha.Rotary(d, 1e4, frequencies=mha.llama3_frequencies(d, 1e4, factor, 1.0, 4.0, 32)), 1 / 6.0),
], ids=["linear", "yarn", "llama3"])  # fmt: skip
def test_an_inverted_factor_is_named(make, inverse):
    frequencies = np.array(make(inverse).angles())
    found = reasons(made(rotary=make(6.0)), CALLS["causal"], frequencies=lambda self, rotary: frequencies)
    assert found == (("the scaling of frequencies is inverted",),)


def test_what_is_not_inverted_is_named():
    layer = made(rotary=mha.Rotary(12, 300.0), **NORMED)
    steep = reasons(layer, CALLS["causal"], frequencies=lambda self, rotary: 300.0 ** (np.arange(6) / 6))
    assert steep == (("frequencies are not inverted",),)


def permuted(W, heads, n):
    """Columns of pairs that were neighbours as halves: the first n pairs of each of so many heads."""
    blocks = W.reshape(*W.shape[:-1], heads, -1).copy()
    turning = blocks[..., : 2 * n]
    blocks[..., : 2 * n] = np.concatenate([turning[..., ::2], turning[..., 1::2]], -1)
    return blocks.reshape(W.shape)


@pytest.mark.parametrize("bias", [False, True])
def test_kernels_permuted_by_another_number_of_heads_are_named(bias):
    """A checkpoint with neighbours as pairs, which both read as halves: one by the wrong number of heads."""
    layer = made(rotary=mha.Rotary(), bias=bias)
    original = {name: W for name, W in layer.weights.items() if name[:3] in ("W_q", "W_k")}
    right = {name: permuted(W, 6 if name[2] == "q" else 3, d // 2) for name, W in original.items()}
    layer.weights = layer.weights | right
    for wrong, of in ((6, "W_k"), (3, "W_q")):
        numbers = {name: permuted(W, wrong, W.shape[-1] // wrong // 2) for name, W in original.items() if of in name}
        assert reasons(layer, CALLS["causal"], numbers) == (("rotary components are permuted in other blocks",),), of
    alone = {name: permuted(W, 6, d // 2) for name, W in layer.weights.items() if name == "W_q.kernel"}
    name = "kernels are permuted without their biases" if bias else "rotary components of W_q are in another order"
    assert reasons(layer, CALLS["causal"], alone) == ((name,),)


def test_sinks_of_each_block_are_named():
    layer = made(sinks=True)
    weights = {"sinks": layer.weights["sinks"].astype("float64")}
    for times in (2, 7):
        several = {"sinks": np.log(times * np.exp(weights["sinks"]))}
        assert reasons(layer, CALLS["causal"], several) == (("sinks count several times",),)
    for size in (3, 4):

        def softmax(self, scores, seen, size=size):
            total = 0
            for at in range(0, T, size):  # each block by itself, and those without a key left out
                some = np.exp(np.where(seen, scores, -np.inf)[..., at : at + size]).sum(-1, keepdims=True)
                total = total + np.where(some > 0, some + np.exp(self.sinks()), 0)
            return np.where(seen, np.exp(scores), 0) / total

        assert reasons(layer, CALLS["causal"], softmax=softmax) == (("a sink counts once for each block",),)
    assert reasons(layer, CALLS["lengths"], {"sinks": weights["sinks"][[0, 0, 1, 1, 2, 2]]}) == (
        ("sinks of other heads",),
    )


@pytest.mark.parametrize("names", ["q", "k", "vo", "qkvo"])
def test_biases_that_are_added_twice_are_named(names):
    layer = made(rotary=mha.Rotary(12))
    twice = {name: 2 * W for name, W in layer.weights.items() if name.endswith("bias") and name[2] in names}
    assert reasons(layer, CALLS["window"], twice) == (("biases are added twice",),)


@pytest.mark.parametrize("name", ["q", "k", "v", "o"])
def test_a_bias_that_is_left_out_is_named(name):
    layer = made(rotary=mha.Rotary(12))
    without = {f"W_{name}.bias": 0 * layer.weights[f"W_{name}.bias"]}
    assert reasons(layer, CALLS["lengths"], without) == ((f"W_{name}.bias is dropped",),)


def test_a_temperature_that_is_inverted_or_of_keys_is_named():
    layer = made(temperature=mha.Temperature(0.5, 3))
    inverse = reasons(layer, CALLS["causal"], factor=lambda self, place: 1 / Port.factor(self, place))
    assert inverse == (("the temperature is inverted",),)
    for roles in (("k",), ("q", "k")):
        of_keys = reasons(layer, CALLS["causal"], tempered=roles)
        assert of_keys == (("the temperature is that of keys",),)


@pytest.mark.parametrize("blank", [False, True])
def test_dot_products_that_overflow_float16_are_named(blank):
    """In float16, products of heads are infinite before their scale; scaled before, they are not."""
    layer = mha.MultiHeadAttention(64, 4, num_key_value_heads=2, bias=True, dtype="float16", seed=0, backend="numpy")
    large = 110 * np.random.default_rng(5).normal(size=(2, 9, 64))
    large[:, ::2] /= 60
    large = large.astype("float16")

    def half(X):
        return X.astype("float16").astype("float32")

    def port(scaled_first):
        W = {name: X.astype("float32") for name, X in layer.weights.items()}
        heads = [half(large.astype("float32") @ W[f"W_{role}.kernel"] + W[f"W_{role}.bias"]) for role in "qkv"]
        q, k, v = (X.reshape(2, 9, -1, 16).swapaxes(1, 2) for X in heads)
        k, v = k.repeat(2, 1), v.repeat(2, 1)
        scores = half(half(q / 4) @ k.mT) if scaled_first else half(half(q @ k.mT) / 4)
        scores = np.where(np.tri(9, dtype=bool), scores, -np.inf)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares = half(shares / shares.sum(-1, keepdims=True))
        shares = np.nan_to_num(shares) if blank else shares
        merged = half(shares @ v).swapaxes(1, 2).reshape(2, 9, 64)
        return (merged @ W["W_o.kernel"] + W["W_o.bias"]).astype("float16")

    with np.errstate(all="ignore"):
        right, wrong = port(True), port(False)
    assert np.isnan(wrong).any() != blank
    assert parity.compare(layer, right, large, large, large, causal=True)
    report = parity.compare(layer, wrong, large, large, large, causal=True)
    assert report.diagnosis.alternatives == (("dot products overflow float16",),), report
