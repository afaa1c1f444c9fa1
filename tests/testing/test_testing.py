"""`mha.testing.assert_parity`: functions and layers that are right pass, wrong ones fail with a report of why."""

import re

import adapters
import failures
import numpy as np
import peers
import pytest
from ports import Port

import mha
from mha.core import dispatch

failure_of = failures.of(mha.testing.assert_parity)

SQUARE = {"num_hiddens": 24, "num_heads": 4, "bias": True}


def port_with(**methods):
    """A function as somebody may write it, of layers with dot products; methods: of `Port`, with a mistake."""

    def port(attention, queries, keys, values, valid_lens=None, mask=None, causal=False):
        if attention.config.pooling != "dot":
            raise NotImplementedError("dot products alone")
        return type("Changed", (Port,), methods)(attention)(queries, keys, values, valid_lens, mask, causal)

    return port


def turned(self, name, X):
    kernel = self.weights[f"{name}.kernel"]
    return X @ (kernel.T if name == "W_q" else kernel) + self.weights[f"{name}.bias"]


def without_bias(role):
    return {"project": lambda self, name, X: X @ self.weights[f"{name}.kernel"] if name == role else Port.project(
        self, name, X)}  # fmt: skip


def nan_without_keys(self, scores, seen):
    shares = np.where(seen, Port.softmax(self, scores, seen), 0)
    return np.where(seen.any(-1, keepdims=True), shares, np.nan).astype(scores.dtype)


def longer(self, seen, valid_lens):
    return Port.lengths(self, seen, None if valid_lens is None else valid_lens + 1)


port = port_with()
MISTAKES = {
    "W_q.kernel is not transposed": {"project": turned},
    "W_q.bias is dropped": without_bias("W_q"),
    "W_v.bias is dropped": without_bias("W_v"),
    "no scale": {"scale": 1.0},
    "lengths are one too long": {"lengths": longer},
    "rows without keys are NaN": {"softmax": nan_without_keys},
}


def with_mistake(name):
    return port_with(**MISTAKES[name])


# 1. Functions


def test_a_function_is_given_arrays_of_its_backend(backend):
    def right(queries, keys, values, attention, **call):
        arrays = queries, keys, values, *(call[name] for name in ("valid_lens", "mask", "score_bias"))
        assert {dispatch.backend_of(X) for X in arrays} == {adapters.of_arrays(backend)}
        assert attention.backend == backend
        inputs = map(mha.to_numpy, (queries, keys, values))
        call = {name: mha.to_numpy(X) for name, X in call.items()}
        return mha.tensor(attention.to("numpy")(*inputs, **call), backend=backend)

    outcome = mha.testing.assert_parity(right, backend, cases=["all options"])
    assert outcome.left_out == {}
    assert {"float32, all options", "float64, all options"} <= outcome.reports.keys()
    assert all(outcome.reports.values())


def test_the_quick_suite_in_numpy():
    outcome = mha.testing.assert_parity(port, "numpy", attention=SQUARE)
    names = list(outcome.reports)
    assert {"float64, no lengths", "float32, scale 30", "bfloat16, lengths per sample", "float64, mask"} <= set(names)
    assert "float64, additive" not in names  # the same call as with lengths per sample
    assert all([row.name for row in report.rows] == ["weights", "output"] for report in outcome.reports.values())
    assert outcome.left_out["float64, score bias"] == "it takes no score_bias"
    assert f"{len(names)} cases the same, the largest ratio 0." in str(outcome)
    assert "left out, it takes no score_bias: float64, score bias" in str(outcome)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named(mistake):
    message = failure_of(with_mistake(mistake), "numpy", attention=SQUARE, dtypes="float64")
    assert f"{mistake}: " in message
    assert "first to differ: " in message


def test_the_message_is_the_report_of_the_first_case_that_differs():
    message = failure_of(with_mistake("lengths are one too long"), "numpy", dtypes="float64")
    first, _, described, alone, table, *_ = message.splitlines()
    assert re.match(r"port_with.<locals>.port differs in \d+ of \d+ cases \(float64, lengths per sample; ", first)
    assert described.startswith("float64, lengths per sample: MultiHeadAttention(num_hiddens=29, num_heads=7, ")
    assert described.endswith(" called with queries, keys, values, valid_lens=[3, 2]")
    assert alone == "this case alone: cases='lengths per sample', dtypes='float64'"
    assert table.startswith("array")
    assert message.splitlines()[-1].startswith("left out, ")
    again = failure_of(with_mistake("lengths are one too long"), "numpy", cases="lengths per sample", dtypes="float64")
    assert "differs in 1 of 1 case (float64, lengths per sample)" in again


def test_what_raises_is_said_in_a_line():
    def raises(attention, queries, keys, values, **call):
        if call:
            raise RuntimeError("out of\n  luck")
        return attention(queries, keys, values)

    message = failure_of(raises, "numpy", dtypes="float64", cases=["mask", "no lengths", "causal"])
    name = "test_what_raises_is_said_in_a_line.<locals>.raises"
    first = f"{name} raised in 2 of 3 cases (float64, mask; float64, causal): RuntimeError: out of luck\n"
    assert message.startswith(first)


def test_what_was_given_is_said_where_an_implementation_raises():
    def of_samples(attention, queries, keys, values, valid_lens=None, mask=None, causal=False):
        if valid_lens is not None:
            (_B,) = valid_lens.shape  # another shape raises
        return Port(attention)(queries, keys, values, valid_lens, mask, causal)

    message = failure_of(
        of_samples, "numpy", cases=["lengths per sample", "lengths per query", "causal"], dtypes="float64"
    )
    given = r"queries \(2, 3, \d+\), keys \(2, 5, \d+\), values \(2, 5, \d+\), valid_lens=\[\[.*\]\]"
    assert re.search(rf"values to unpack .*\n  float64, lengths per query: it was called with {given}\n", message)
    assert "\n  only there it gets valid_lens (batch, queries)\n" in message
    assert "\ncalls that it is not made for are left out if it raises NotImplementedError, or by cases=" in message


def test_what_other_calls_have_too_is_not_said_to_be_the_reason():
    def broken(attention, queries, keys, values, valid_lens=None, mask=None, causal=False):
        if valid_lens is None:
            raise RuntimeError("no lengths")
        return Port(attention)(queries, keys, values, valid_lens, mask, causal)

    message = failure_of(broken, "numpy", cases=["lengths, mask, causal", "causal"], dtypes="float64")
    assert "float64, causal: it was called with queries" in message
    assert "only there" not in message


def test_what_is_no_array_is_said_in_a_line():
    def returns(attention, queries, keys, values, **call):
        return None

    message = failure_of(returns, "numpy", cases="mask", dtypes="float64")
    assert re.search(r"raised in 1 of 1 case .*: TypeError: theirs is a NoneType, expected an array", message)
    assert message.count("\n") == 1


def test_nothing_compared_is_a_failure():
    def nothing(attention, queries, keys, values):
        raise NotImplementedError

    message = failure_of(nothing, "numpy", cases=["mask", "no lengths"], dtypes="float64")
    assert "nothing was compared, every case is left out" in message
    assert "left out, it takes no mask: float64, mask" in message
    assert "left out, NotImplementedError: float64, no lengths" in message


@pytest.mark.needs("arrays that change")
def test_an_implementation_may_write_to_its_inputs(backend):
    def writes(attention, queries, keys, values, mask):
        output = attention(queries, keys, values, mask=mask)
        for X in (queries, keys, values, mask):
            X[:] = 0
        return output

    mha.testing.assert_parity(writes, backend, cases="mask", dtypes="float64")


def test_parameters_are_known_by_their_names():
    def keras_order(value, query, key, *, attention, mask):
        return attention(query, key, value, mask=mask)

    def letters(a, b, c, attention, mask, /, other=None):
        return attention(a, b, c, mask=mask)

    for function in (keras_order, letters):
        mha.testing.assert_parity(function, "numpy", cases="mask", dtypes="float64")


def test_one_input_is_all_three():
    def alone(X, attention, **call):
        return attention(X, X, X, **call)

    outcome = mha.testing.assert_parity(alone, "numpy", attention=SQUARE, dtypes="float64")
    assert "float64, lengths, mask, causal" in outcome.reports
    assert "float64, all options" in outcome.reports
    outcome = mha.testing.assert_parity(alone, "numpy", cases=["mask", "equal widths, no bias"], dtypes="float64")
    assert list(outcome.reports) == ["float64, equal widths, no bias"]
    assert "different widths" in outcome.left_out["float64, mask"]


def test_a_mask_says_what_else_is_not_taken():
    def masked(attention, queries, keys, values, mask=None):
        return attention(queries, keys, values, mask=mask)

    told = {"dtypes": "float64", "cases": ["lengths per query", "lengths, mask, causal", "window, offset", "rotary"]}
    outcome = mha.testing.assert_parity(masked, "numpy", **told)
    left_out = {"float64, rotary": "it takes no offset", "float64, window, offset": "it takes no causal, offset"}
    assert outcome.left_out == left_out
    assert len(outcome.reports) == 2
    everything = mha.testing.assert_parity(masked, "numpy", attention=SQUARE, dtypes="float64").reports
    assert {"float64, causal", "float64, mask", "float64, lengths per query"} <= everything.keys()


def test_gradients_are_of_the_cotangent_that_is_asked_for():
    def of_ones(attention, queries, keys, values, **call):
        return attention.gradients(queries, keys, values, **call)

    def of_cotangent(attention, queries, keys, values, cotangent, **call):
        return attention.gradients(queries, keys, values, **call, cotangent=cotangent)

    for function in (of_ones, of_cotangent):
        outcome = mha.testing.assert_parity(function, "numpy", cases="causal", dtypes="float64")
        assert "gradient.W_o.kernel" in [row.name for row in outcome.reports["float64, causal"].rows]


def test_rows_without_keys_may_be_left_out():
    wrong = with_mistake("rows without keys are NaN")
    assert "length zero" in failure_of(wrong, "numpy", attention=SQUARE, dtypes="float64")
    outcome = mha.testing.assert_parity(wrong, "numpy", attention=SQUARE, dtypes="float64", empty_rows=False)
    assert outcome.left_out["float64, length zero"] == "a query sees no key"
    assert {"float64, mask", "float64, lengths per query", "float64, lengths, mask, causal"} <= outcome.reports.keys()


def test_the_layout_of_steps_can_be_said():
    def steps(attention, queries, keys, values):
        split = attention.trace(queries, keys, values)["split_q"]
        return {"split_q": split.reshape(2, 3, *split.shape[1:]).transpose(0, 2, 1, 3)}  # (B, Q, H, d)

    told = {"attention": {"num_hiddens": 12, "num_heads": 3}, "cases": "no lengths", "dtypes": "float64"}
    assert "say which with layout=" in failure_of(steps, "numpy", **told)
    mha.testing.assert_parity(steps, "numpy", **told, layout="BTHd")


# 2. What cannot be compared


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        (3, {}, "implementation is 3 .*, expected a function, or an attention layer"),
        (port, {"suite": "slow"}, "suite is 'slow', expected one of quick, full"),
        (port, {"backend": "pytorch"}, "backend is 'pytorch', expected .*did you mean 'torch'"),
        (port, {"cases": ["mas"]}, "cases has 'mas', expected names of mha.parity.CASES, .*did you mean 'mask'"),
        (port, {"dtypes": ["float23"]}, "dtypes is 'float23', expected one of"),
        (port, {"layout": "HTBd"}, "layout is 'HTBd', expected"),
        (port, {"empty_rows": "no"}, "empty_rows is 'no' .*, expected True or False"),
        (port, {"attention": 3}, "attention is 3 .*, expected an mha.MultiHeadAttention, or options of one"),
        (port, {"attention": SQUARE | {"dtype": "float64"}}, "attention has dtype, which the suite chooses"),
        (port, {"attention": SQUARE | {"heads": 4}}, "unexpected keyword argument 'heads'"),
        (lambda q, k, v: q, {}, r"\(q, k, v\) has no parameter `attention`, .*: add one; or pass attention="),
        (max, {}, "implementation max shows no parameters: call it in a function of your own"),
        (lambda attention, q, k: q, {}, "takes 2 inputs, expected three, queries, keys and values, or one"),
        (mha.MultiHeadAttention(8, 2, backend="numpy"), {"backend": "torch"}, "backend is 'torch', expected 'numpy'"),
        (mha.MultiHeadAttention(8, 2, backend="numpy"), {"dtypes": "float64"}, "dtypes is float64, expected float32"),
    ],
)
def test_a_bad_argument_is_named(given, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        mha.testing.assert_parity(given, **{"backend": None} | options)


# 3. Layers


def test_our_own_layers(backend):
    layer = mha.MultiHeadAttention(12, 3, bias=True, window=(2, 0), backend=backend).layer
    outcome = mha.testing.assert_parity(layer, backend, cases="length zero")
    assert list(outcome.reports) == ["float32, length zero"]
    assert outcome.left_out == {}
    assert outcome.note == "W_q.bias, W_k.bias, W_v.bias, W_o.bias are all 0: a mistake in them would not show"


def test_every_call_of_our_own_layer():
    attention = mha.MultiHeadAttention(12, 3, bias=True, window=(2, 0), backend="numpy")
    for one in (attention, attention.layer):
        outcome = mha.testing.assert_parity(one)
        assert outcome.left_out == {}
        assert {"float32, window, offset", "float32, score bias", "float32, all options"} <= outcome.reports.keys()
    names = {row.name for row in mha.testing.assert_parity(attention).reports["float32, score bias"].rows}
    assert {"split_q", "weights", "output", "gradient.keys", "gradient.score_bias"} <= names
    other = mha.MultiHeadAttention(12, 3, bias=True, window=(2, 1), backend="numpy")
    other.weights = attention.weights
    assert "the window is one " in failure_of(attention.layer, attention=other, cases="no lengths")


LAYERS = [
    pytest.param(kind, marks=pytest.mark.backends(backend))
    for kind, backend in [
        ("torch", "torch"), ("keras", "tensorflow"), ("keras_grouped", "tensorflow"), ("nnx", "jax"), ("linen", "jax"),
        ("mlx", "mlx"),
    ]
]  # fmt: skip


@pytest.mark.parametrize("peer", LAYERS)
def test_the_layers_of_frameworks(peer):
    """On JAX in few calls that have all that they can hide, since it compiles each anew."""
    layer = peers.of(peer).new()
    rare = ["lengths, mask, causal", "mask of one head for all"]
    assert len(mha.testing.assert_parity(layer, cases=rare).reports) == 2
    outcome = mha.testing.assert_parity(layer, cases=rare[:1] if peer in ("nnx", "linen") else None)
    names = [row.name for row in outcome.reports["float32, lengths, mask, causal"].rows]
    assert {"output", "gradient.queries", "gradient.values", "gradient.W_q.kernel"} <= set(names)
    assert ("weights" in names) == (peer != "mlx")
    assert len([name for name in names if name.endswith(".bias")]) == (0 if peer == "mlx" else 4)
    if peer not in ("nnx", "linen"):
        assert len(outcome.reports) == 12
        assert mha.testing.assert_parity(layer, cases="mask of one row").reports
        assert outcome.left_out["float32, length zero"] == "a query sees no key"
        assert outcome.left_out["float32, score bias"] == "it takes no score_bias"


@pytest.mark.backends("torch")
def test_a_broken_layer_of_torch():
    import torch

    class Broken(torch.nn.MultiheadAttention):
        def forward(self, query, key, value, key_padding_mask=None, attn_mask=None, is_causal=False):
            return super().forward(query, key, value, attn_mask=attn_mask)  # whose weights are averaged

    layer = Broken(12, 3, dropout=0.5, batch_first=True).train()
    message = failure_of(layer, "torch")
    assert "the lengths are ignored" in message
    assert "weights  " not in message
    assert layer.training  # it was without dropout meanwhile, and is as it came
    assert layer.out_proj.training
    mha.testing.assert_parity(layer, cases="causal", dtypes="float32", attention=mha.from_native(plain(layer)))


def plain(layer):
    """The layer as its framework has it, with the same weights."""
    import torch

    other = torch.nn.MultiheadAttention(layer.embed_dim, layer.num_heads, batch_first=True)
    other.load_state_dict(layer.state_dict())
    return other


@pytest.mark.backends("tensorflow")
def test_a_broken_layer_of_keras():
    import keras

    class Broken(keras.layers.MultiHeadAttention):
        def call(self, query, value, key=None, attention_mask=None, use_causal_mask=False, training=None):
            return super().call(query, value, key, attention_mask=attention_mask)

    layer = Broken(3, 4)
    layer.build((2, 3, 12), (2, 5, 12), (2, 5, 12))
    assert "causal order is ignored" in failure_of(layer, cases=["lengths per sample", "causal"])


@pytest.mark.backends("jax")
@pytest.mark.long("jax")  # which compiles it for seconds
def test_a_broken_layer_of_flax():
    from flax import nnx

    class Broken(nnx.MultiHeadAttention):
        def __call__(self, queries, keys, values, *, mask=None, deterministic=None, **options):
            return super().__call__(queries, keys, values, mask=None, deterministic=deterministic, **options)

    layer = peers.of("nnx").new()
    layer.__class__ = Broken
    assert "everything is seen: " in failure_of(layer, cases="lengths, mask, causal")


@pytest.mark.backends("torch")
def test_another_layer_of_torch_with_its_weights():
    import torch

    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.MultiheadAttention(12, 3, batch_first=True)
            self.drop = torch.nn.Dropout(0.5)

        def forward(self, query, key, value, valid_lens=None):
            hidden = torch.arange(key.shape[1]) >= valid_lens[:, None] if valid_lens is not None else None
            return self.drop(self.inner(query, key, value, key_padding_mask=hidden)[0])

    layer = Own().train()
    attention = mha.from_native(layer.inner)
    outcome = mha.testing.assert_parity(layer, attention=attention, cases=["lengths per sample", "mask"])
    assert list(outcome.reports) == ["float32, lengths per sample"]
    assert outcome.left_out == {"float32, mask": "it takes no mask"}
    with pytest.raises(TypeError, match=r"whose weights mha cannot read; it contains one at \.inner: pass impl"):
        mha.testing.assert_parity(layer)
    with pytest.raises(ValueError, match="backend is 'numpy', expected 'torch', the backend of the implementation"):
        mha.testing.assert_parity(layer, "numpy", attention=attention)
