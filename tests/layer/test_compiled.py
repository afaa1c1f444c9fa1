"""Compilers and maps of the frameworks around a layer, and around the `mha` layer that holds it: the same numbers."""

import adapters
import numpy as np
import pytest
from layers import B, H, K, Q, agrees, draw, make

import mha
from mha.core.engine import blocks

COMPILES = pytest.mark.needs("a compiler")
# A compiler that traces does not know the values of lengths, and so nothing checks them.
TRACES = pytest.mark.needs("a compiler of calls")

HIDING = {
    "nothing": lambda rng, B, Q, K: (None, None, False),
    "lengths": lambda rng, B, Q, K: (np.arange(B) * 2, None, False),
    "lengths-of-queries": lambda rng, B, Q, K: (rng.integers(0, K + 2, (B, Q)), None, True),
    "mask": lambda rng, B, Q, K: (None, rng.random((B, H, Q, K)) < 0.4, False),
    "all": lambda rng, B, Q, K: (np.arange(B) * 2, rng.random((Q, K)) < 0.7, True),
}


@pytest.fixture(params=[pytest.param("layer", marks=pytest.mark.long("torch", "tensorflow")), "mha"])
def what(request):
    """The functions to compile or map: `attention.layer`, or `attention` itself."""
    return request.param


def part_of(attention, what):
    return attention.layer if what == "layer" else attention


def compiled_by(attention, what="layer"):
    """A function of NumPy's queries, keys, values, lengths, mask and causal that calls the compiled layer.

    It returns the output and the gradient by the queries of half the sum of its squares, as NumPy's too.
    """
    framework = adapters.of(attention.backend)
    compiled = framework.compile_with_gradient(attention, part_of(attention, what))

    def call(*arrays, causal=False):
        arrays = [*arrays, *[None] * (5 - len(arrays))]
        return [mha.to_numpy(X) for X in compiled(*framework.own(*arrays), causal)]

    return call


# They compile each for seconds: what is one of all there says little more alone.
MORE = dict.fromkeys(
    ("nothing", "lengths", "lengths-of-queries", "mask"), pytest.mark.long("torch", "tensorflow", "jax")
)


@COMPILES
@pytest.mark.parametrize("hiding", [pytest.param(name, marks=MORE.get(name, ())) for name in HIDING])
def test_compiled_results_are_unchanged(backend, rng, what, hiding):
    attention = make(backend, pooling="additive" if hiding == "all" else "dot")
    compiled = compiled_by(attention, what)
    for sizes in ((B, Q, K), (B + 2, Q + 5, K + 6)):  # the second time with all sizes changed
        inputs, (valid_lens, mask, causal) = draw(rng, sizes), HIDING[hiding](rng, *sizes)
        output, by_queries = compiled(*inputs, valid_lens, mask, causal=causal)
        expected = attention.to("numpy")(*inputs, valid_lens, mask=mask, causal=causal)
        assert agrees(output, expected)
        gradients = attention.to("numpy").gradients(*inputs, valid_lens, mask=mask, causal=causal, cotangent=expected)
        assert agrees(by_queries, gradients["queries"], gradient=True)


# Options of a layer, and of its call with T queries.
OPTIONS = {
    "window": ({"window": (3, 0), "num_key_value_heads": 2, "rotary": mha.Rotary()}, lambda T: {"causal": True}),
    "bias": (
        {"num_key_value_heads": 1, "qk_norm": "rms"},
        lambda T: {"score_bias": np.arange(4.0)[None, :, None, None]},
    ),
    "offset": ({"window": (3, 1), "softcap": 2.0}, lambda T: {"causal": True, "offset": T // 2}),
}


@pytest.mark.backends("torch")  # which else goes on by itself where a call is no graph
@pytest.mark.parametrize("name", ["window", "bias", pytest.param("offset", marks=pytest.mark.long("torch"))])
def test_options_are_in_one_graph_of_any_sizes(backend, rng, name):
    import torch

    options, call = OPTIONS[name]
    layer = mha.MultiHeadAttention(16, 4, **options, dtype="float64", backend=backend).layer
    torch.compiler.reset()  # or what earlier tests compiled counts against torch's limit
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    for T in (7, 300):  # what differs from the first call is a symbol in the second
        X = torch.tensor(rng.normal(size=(2, T, 16)))
        given = {key: torch.tensor(A) if isinstance(A, np.ndarray) else A for key, A in call(T).items()}
        found, expected = (mha.to_numpy(attend(X, X, X, **given)) for attend in (compiled, layer))
        assert agrees(found, expected)


@pytest.mark.backends("torch")
def test_blocks_are_in_one_graph(backend, rng, monkeypatch):
    """Their backward pass computes them again there, too."""
    import torch

    layer = mha.MultiHeadAttention(16, 4, dtype="float64", backend=backend).layer
    X, mask = torch.tensor(rng.normal(size=(2, 11, 16)), requires_grad=True), torch.ones(11, 11, dtype=bool).tril()
    monkeypatch.setattr(blocks, "SCORES", 2 * 4 * 3 * 11)  # of three queries
    torch.compiler.reset()
    results = []
    for attend in (layer, torch.compile(layer, fullgraph=True, backend="aot_eager")):
        output = attend(X, X, X, mask=mask)
        results.append((output, *torch.autograd.grad(output.square().sum(), X)))
    for expected, found in zip(*results, strict=True):
        assert agrees(found, mha.to_numpy(expected), gradient=True)


@pytest.mark.backends("torch")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:`torch.jit")
def test_a_trace_of_torch_takes_other_lengths(backend, rng):
    """Nothing of its symbols is remembered for later calls."""
    import torch

    layer = mha.MultiHeadAttention(16, 4, dtype="float64", backend=backend).layer
    X, (first, other) = torch.tensor(rng.normal(size=(2, 7, 16))), torch.tensor([[3, 5], [7, 0]])
    traced = torch.jit.trace(layer, (X, X, X, first), check_trace=False)
    assert not layer.plans
    for lengths in (first, other):
        assert agrees(traced(X, X, X, lengths), mha.to_numpy(layer(X, X, X, lengths)))


@COMPILES
def test_compiled_padding_does_not_matter(backend, rng):
    compiled = compiled_by(make(backend))
    queries, keys, values = draw(rng)
    valid_lens = np.array([3, 0, 1])
    expected = compiled(queries, keys, values, valid_lens)
    padding = np.arange(K) >= valid_lens[:, None]  # (B, K)
    keys[padding], values[padding] = np.nan, np.inf
    queries[1] = np.nan
    for result, wanted in zip(compiled(queries, keys, values, valid_lens), expected, strict=True):
        assert (result == wanted).all()


@COMPILES
def test_a_wrong_shape_is_told_under_compilation(backend, rng, what):
    compiled = compiled_by(make(backend), what)
    # Three axes are wrong even where a compiler does not know the sizes. Of a whole graph torch raises an error of its
    # own, which quotes ours.
    with pytest.raises(Exception, match=r"valid_lens has shape \(.*, .*, .*\), expected \(.*,\) or \(.*, .*\)"):
        compiled(*draw(rng), np.ones((B, Q, K), "int64"))


@TRACES
def test_compiled_lengths_below_0_act_as_0(backend, rng, what):
    compiled, inputs = compiled_by(make(backend), what), draw(rng)
    negative, zero = (compiled(*inputs, np.array(lengths, "int32")) for lengths in ([-7, 2, -1], [0, 2, 0]))
    for result, expected in zip(negative, zero, strict=True):
        assert (result == expected).all()


@pytest.mark.backends("mxnet")
def test_lengths_below_0_are_refused_by_a_hybrid_layer(backend, rng, what):
    compiled = compiled_by(make(backend), what)
    with pytest.raises(ValueError, match="valid_lens holds -7, expected 0 or more"):
        compiled(*draw(rng), np.array([-7, 2, -1], "int32"))


@COMPILES
@pytest.mark.long("torch", "tensorflow")  # which compile for each dtype
def test_compiled_lengths_above_all_keys_act_as_all(backend, rng, what):
    compiled, inputs = compiled_by(make(backend, dtype="float32"), what), draw(rng, dtype="float32")

    def call(*lengths, dtype):
        return compiled(*inputs, np.array(lengths, dtype))[0]

    expected = call(K, 2, K, dtype="int32")
    for dtype in adapters.of(backend).integers:
        assert (call(np.iinfo(dtype).max, 2, np.iinfo(dtype).max - 1, dtype=dtype) == expected).all(), dtype


@TRACES
def test_mapped_over_samples(backend, rng, what):
    attention, framework = make(backend), adapters.of(backend)
    samples = [draw(rng) for _ in range(4)]
    inputs = [np.stack(Xs) for Xs in zip(*samples, strict=True)]
    valid_lens = rng.integers(0, K + 2, (4, B))
    mapped = framework.map(part_of(attention, what), *framework.own(*inputs, valid_lens))
    reference = attention.to("numpy")
    for result, sample, lengths in zip(mha.to_numpy(mapped), samples, valid_lens, strict=True):
        assert agrees(np.array(result), reference(*sample, lengths))
    with pytest.raises(ValueError, match=r"valid_lens has shape \(4, 3\), expected \(3,\) or \(3, 2\)"):
        framework.map(part_of(attention, what), *framework.own(*inputs, np.ones((4, 4, B), "int64")))
