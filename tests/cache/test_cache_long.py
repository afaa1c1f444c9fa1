"""A cache over many calls: 2,000 tokens, nothing compiled anew, gradients of a call's own tokens; every option."""

import adapters
import numpy as np
import pytest

import mha
from mha import parity
from mha.core import dispatch
from mha.core.call import GIVEN, Call
from mha.core.engine import blocks

B, D, H = 2, 24, 4
MANY = 2000
OPTIONS = {
    "plain": {},
    "all slots": {"num_key_value_heads": 2, "rotary": mha.Rotary(4), "softcap": 5.0, "qk_norm": "layer"},
    "a ring": {"window": (6, 0), "rotary": mha.Rotary(6), "bias": True},
    "a larger ring": {"window": (6, 1), "num_key_value_heads": 1},
    "additive": {"pooling": "additive", "window": (6, None)},
    "chunks": {"chunk": 7, "rotary": mha.Rotary(4)},
    "chunks, window": {"chunk": 6, "window": (4, 0), "num_key_value_heads": 2},
}


# The lesson copies the slots, what a call runs writes them in place. JAX compiles each operation of the lesson;
# test_cache_compiled.py has it compiled as a whole.
LONG = pytest.mark.long(*adapters.COMPILED)  # which compile each portion
WAYS = [
    *(pytest.param(name, False, marks=() if name in ("all slots", "a ring") else LONG) for name in OPTIONS),
    *(pytest.param(name, True, marks=pytest.mark.long("jax")) for name in ("all slots", "a ring")),
]


def layer(backend, dtype="float32", **options):
    return mha.MultiHeadAttention(D, H, dtype=dtype, seed=5, backend=backend, **options)


def programs(backend):
    """How many programs the backend has compiled for calls with a cache, where calls are compiled."""
    if backend == "jax":
        from mha.backends.jax.engine import calls

        return calls.program.cache_info().currsize
    if backend == "tensorflow":
        from mha.backends.tensorflow.engine import compiled

        return len(compiled._functions)
    return 0


@pytest.mark.parametrize(
    ("options", "count"),
    [pytest.param("a ring", MANY, marks=pytest.mark.long("mxnet", "tensorflow")), ("a larger ring", 60)],
)
def test_two_thousand_tokens(backend, options, count):
    attention = layer(backend, **OPTIONS[options])
    X = np.random.default_rng(1).normal(size=(B, count, D)).astype("float32")
    cache, outputs, compiled = attention.cache(B, 7 if options == "a ring" else 11), [], []
    for t in range(count):
        x = X[:, t : t + 1]
        output, cache = attention(x, x, x, causal=True, cache=cache)
        outputs.append(output)
        compiled.append(programs(backend))
    assert len(set(compiled[2:])) == 1
    oracle = layer("numpy", "float64", **OPTIONS[options])
    wide = X.astype("float64")
    expected = oracle(wide, wide, wide, causal=True)
    base = layer("numpy", **OPTIONS[options])(X, X, X, causal=True)
    found = np.concatenate(outputs, 1)
    assert parity.error(found, expected) <= parity.bound("float32", expected, base)
    assert mha.to_numpy(cache.positions).max(1).tolist() == [count - 1] * B
    assert mha.to_numpy(cache.lengths).tolist() == [count] * B


@pytest.mark.parametrize(("options", "readable"), WAYS)
def test_prompts_of_different_lengths_with_every_option(backend, options, readable):
    """One prompt is padded in the middle; what each sample gives is what it gives alone, without padding."""
    attention = layer(backend, "float64", readable=readable, **OPTIONS[options])
    X = np.random.default_rng(2).normal(size=(B, 17, D))
    size = None if {"window", "chunk"} & OPTIONS[options].keys() and options != "a larger ring" else 18
    cache, placed = attention.cache(B, size), np.array([[0, 1, 2, 3, 4], [0, -1, 1, -1, 2]])
    prompt = X[:, :5].copy()
    prompt[1, [0, 2, 4]], prompt[1, [1, 3]] = X[1, :3], np.nan
    output, cache = attention(prompt, prompt, prompt, positions=placed, causal=True, cache=cache)
    rows, places = [output[0], output[1, [0, 2, 4]]], [5, 3]
    assert (output[1, [1, 3]] == (attention.weights["W_o.bias"] if "bias" in OPTIONS[options] else 0)).all()
    for portion in ([1, 1], [1, 1], [2, 1], [0, 2], [1, 0], [5, 2]):
        x = np.full((B, max(portion), D), np.nan)
        for b, count in enumerate(portion):
            x[b, :count] = X[b, places[b] : places[b] + count]
        output, cache = attention(x, x, x, portion, causal=True, cache=cache)
        for b, count in enumerate(portion):
            rows[b] = np.concatenate([rows[b], output[b, :count]])
            places[b] += count
    expected = layer("numpy", "float64", **OPTIONS[options])(X, X, X, causal=True)
    for b in range(B):
        np.testing.assert_allclose(rows[b], expected[b, : places[b]], rtol=0, atol=1e-12)


@LONG
@pytest.mark.parametrize(("options", "readable"), WAYS)
def test_pairs_of_slots_with_every_option(backend, options, readable):
    attention = layer(backend, "float64", readable=readable, **OPTIONS[options])
    rng, S = np.random.default_rng(3), 13
    X, gates = rng.normal(size=(B, 11, D)), rng.normal(size=(B, H))
    mask, bias = rng.random((B, 1, 11, 11)) > 0.3, rng.normal(size=(H, 11, 11))
    bias[:, :, 3] = -np.inf
    X[:, 3] = np.where(np.arange(D) == 5, np.inf, X[:, 3])  # which nobody sees
    call = {"mask": mask, "score_bias": bias[None], "head_gates": gates, "causal": True}
    expected = layer("numpy", "float64", **OPTIONS[options])(X, X, X, **call)
    cache, outputs = attention.cache(B, S), []
    for first, last in ((0, 5), (5, 6), (6, 7), (7, 8), (8, 11)):
        pairs = {}
        for name in ("mask", "score_bias"):
            pairs[name] = np.zeros((*call[name].shape[:2], last - first, S), call[name].dtype)
            pairs[name][..., :11] = call[name][:, :, first:last]
        x = X[:, first:last]
        output, cache = attention(x, x, x, **call | pairs, cache=cache)
        outputs.append(output)
    np.testing.assert_allclose(np.concatenate(outputs, 1), expected, rtol=0, atol=1e-11, equal_nan=True)


@pytest.mark.parametrize("options", ["all slots", pytest.param("a larger ring", marks=LONG)])
@pytest.mark.long(*adapters.COMPILED)  # which compile it for seconds
def test_portions_in_small_pieces(backend, monkeypatch, options):
    """Where the scores of a portion are not one piece, it is computed in several."""
    monkeypatch.setattr(blocks, "SCORES", 30)
    if backend == "jax":
        from mha.backends.jax.engine import calls

        calls.program.cache_clear()
    attention = layer(backend, "float64", **OPTIONS[options])
    X = np.random.default_rng(6).normal(size=(B, 14, D))
    expected = layer("numpy", "float64", **OPTIONS[options])(X, X, X, causal=True)
    cache, outputs = attention.cache(B, 15), []
    for first, last in ((0, 6), (6, 12), (12, 13), (13, 14)):
        x = X[:, first:last]
        output, cache = attention(x, x, x, causal=True, cache=cache)
        outputs.append(output)
    np.testing.assert_allclose(np.concatenate(outputs, 1), expected, rtol=0, atol=1e-12)
    mask = np.random.default_rng(7).random((B, 1, 6, 15)) > 0.3
    poisoned = X[:, :6].copy()
    poisoned[:, 2] = np.nan
    mask[..., 2] = False
    output, _ = attention(poisoned, poisoned, poisoned, causal=True, mask=mask, cache=attention.cache(B, 15))
    expected = layer("numpy", "float64", **OPTIONS[options])(
        X[:, :6], X[:, :6], X[:, :6], causal=True, mask=mask[..., :6]
    )
    kept = [0, 1, 3, 4, 5]
    np.testing.assert_allclose(output[:, kept], expected[:, kept], rtol=0, atol=1e-12)
    if backend == "jax":
        calls.program.cache_clear()


@pytest.mark.backends(*(name for name in dispatch.FRAMEWORKS if not adapters.lacks(name, "automatic differentiation")))
def test_gradients_flow_through_the_tokens_of_the_call(backend):
    attention, rng = layer(backend, "float64", num_key_value_heads=2, rotary=mha.Rotary(4)), np.random.default_rng(4)
    X, cotangent = rng.normal(size=(B, 6, D)), rng.normal(size=(B, 6, D))
    cotangent[:, :4] = 0
    _, cache = attention(X[:, :4], X[:, :4], X[:, :4], causal=True, cache=attention.cache(B, 8))

    def call(x):
        return attention.layer(x, x, x, *Call(causal=True, cache=cache)[GIVEN])[0]

    if backend == "jax":  # which would compile each operation
        import jax

        call = jax.jit(call)
    module = dispatch.load(backend)
    with module.context("float64"):
        x, weights = (module.tensor(one[:, 4:].copy()) for one in (X, cotangent))
        _, found = adapters.of(backend).pull_back(call, x, weights)
    gradients = layer("numpy", "float64", num_key_value_heads=2, rotary=mha.Rotary(4)).gradients(
        X, X, X, causal=True, cotangent=cotangent
    )
    expected = sum(gradients[name] for name in ("queries", "keys", "values"))[:, 4:]
    np.testing.assert_allclose(mha.to_numpy(found), expected, rtol=0, atol=1e-11)


@pytest.mark.needs("automatic differentiation")
@pytest.mark.long("jax")
@pytest.mark.parametrize("tokens", [pytest.param(1, id="one token"), pytest.param(3, id="several")])
def test_slots_of_earlier_calls_are_constants_for_gradients(backend, tokens):
    """Inside of one function that is differentiated, too."""
    attention, rng = layer(backend, "float64"), np.random.default_rng(4)
    X, cotangent = rng.normal(size=(2, B, tokens, D))

    def call(x, cache):
        return attention.layer(x, x, x, *Call(causal=True, cache=cache)[GIVEN])

    def both(x):
        return call(2 * x, call(x, attention.cache(B, 8))[1])[0]

    module, framework = dispatch.load(backend), adapters.of(backend)
    with module.context("float64"):
        x, weights = (module.tensor(one) for one in (X, cotangent))
        filled = call(x, attention.cache(B, 8))[1]
        _, found = framework.pull_back(both, x, weights)
        _, expected = framework.pull_back(lambda x: call(2 * x, filled)[0], x, weights)
    np.testing.assert_allclose(mha.to_numpy(found), mha.to_numpy(expected), rtol=0, atol=1e-11)
