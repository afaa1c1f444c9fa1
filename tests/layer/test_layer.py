"""The layer that users hold: how it is made, its weights, and layers that take them over, on every backend."""

import copy
import dataclasses
import re

import numpy as np
import pytest
from calls import draw, make, same

import mha
from mha.core import dispatch
from mha.core.options.config import numpy_dtype

# Construction


def test_defaults_are_filled_in():
    config = mha.MultiHeadAttention(num_hiddens=100, num_heads=5, dropout=0.5, backend="numpy").config
    assert dataclasses.asdict(config) == {
        "num_hiddens": 100, "num_heads": 5, "dropout": 0.5, "bias": False,
        "query_size": 100, "key_size": 100, "value_size": 100, "key_dim": 20, "value_dim": 20,
        "num_key_value_heads": 5, "scale": None, "softcap": None, "window": None, "chunk": None, "rotary": None,
        "qk_norm": None, "value_norm": None, "temperature": None, "sinks": False, "output_gate": None,
        "pooling": "dot", "dtype": "float32",
    }  # fmt: skip
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.num_heads = 4


def test_given_head_widths():
    assert mha.MultiHeadAttention(12, 4, key_dim=7, backend="numpy").config.value_dim == 3
    assert mha.MultiHeadAttention(12, 4, value_dim=7, backend="numpy").config.key_dim == 3
    assert mha.MultiHeadAttention(10, 3, key_dim=7, backend="numpy").config.value_dim == 7


def test_dtypes_may_be_written_as_numpy_writes_them(backend):
    assert make(backend, dtype=np.float64).config.dtype == "float64"
    assert make(backend, dtype=np.dtype("float32")).config.dtype == "float32"


def test_a_dtype_that_the_framework_lacks_is_refused(backend):
    for dtype in ("float32", "float64", "float16", "bfloat16"):
        if dtype in dispatch.load(backend).DTYPES:
            assert make(backend, dtype=dtype).weights["W_q.kernel"].dtype == numpy_dtype(dtype)
        else:
            with pytest.raises(ValueError, match=f"is {dtype!r}, expected one of float32, float64"):
                make(backend, dtype=dtype)


def test_the_seed_decides_the_weights_whatever_the_backend(backend):
    options = {"bias": True, "pooling": "additive"}
    assert same(make(backend, seed=3, **options).weights, make("numpy", seed=3, **options).weights)
    assert not same(make(backend, seed=3, **options).weights, make(backend, seed=4, **options).weights)


def test_repr_says_all(backend):
    assert repr(make(backend)).startswith("MultiHeadAttention(num_hiddens=11, num_heads=3, dropout=0.0")
    code, _, hint = repr(make(backend)).partition("  # ")
    assert code.endswith(f", seed=0, backend={backend!r})")
    known = dispatch.FRAMEWORKS[backend]
    takes = f"no layer of {known.needs[-1]}: a model of your own takes its .layer"
    assert hint == (takes if dispatch.facts("METHOD")[backend] else "")


# Weights


def test_weights_are_canonical(backend):
    weights = make(backend, bias=True, pooling="additive").weights
    assert {name: array.shape for name, array in weights.items()} == {
        "W_q.kernel": (13, 12), "W_q.bias": (12,), "W_k.kernel": (17, 12), "W_k.bias": (12,),
        "W_v.kernel": (19, 18), "W_v.bias": (18,), "W_o.kernel": (18, 11), "W_o.bias": (11,),
        "attention.W_q.kernel": (4, 4), "attention.W_k.kernel": (4, 4), "attention.w_v.kernel": (4, 1),
    }  # fmt: skip
    assert all(type(array) is np.ndarray for array in weights.values())


def test_weights_come_out_as_they_went_in(backend, rng):
    attention = make(backend, bias=True)
    new = {name: rng.normal(size=array.shape).astype("float32") for name, array in attention.weights.items()}
    # Transposed, strided and read-only arrays hold the same numbers.
    given = new | {"W_q.kernel": np.asfortranarray(new["W_q.kernel"]), "W_k.kernel": new["W_k.kernel"][::-1][::-1]}
    given["W_v.kernel"] = np.ascontiguousarray(new["W_v.kernel"].T).T
    given["W_o.kernel"] = new["W_o.kernel"].copy()
    given["W_o.kernel"].flags.writeable = False
    attention.weights = given
    assert same(attention.weights, new)
    for array in attention.weights.values():
        array[:] = 0  # a copy
    assert same(attention.weights, new)


WRONG = {
    "missing": (lambda w: w.pop("W_o.bias"), ValueError, "weights lacks W_o.bias"),
    "extra": (lambda w: w.update({"W_o.scale": w["W_o.bias"]}), ValueError,
              "weights has W_o.scale, which the layer does not have"),
    "transposed": (lambda w: w.update({"W_o.kernel": w["W_o.kernel"].T}), ValueError,
                   "weights['W_o.kernel'] has shape (11, 18), expected "),
    "one axis": (lambda w: w.update({"W_o.kernel": w["W_o.kernel"][:, 0]}), ValueError, "weights['W_o.kernel'] has "),
    "dtype": (lambda w: w.update({"W_o.bias": w["W_o.bias"].astype("float64")}), TypeError, "has dtype float64"),
    "objects": (lambda w: w.update({"W_o.bias": w["W_o.bias"].astype(object)}), TypeError, "has dtype object"),
    "list": (lambda w: w.update({"W_o.bias": w["W_o.bias"].tolist()}), TypeError, "expected a NumPy array"),
    "masked": (lambda w: w.update({"W_o.bias": np.ma.masked_array(w["W_o.bias"])}), TypeError, "(MaskedArray), exp"),
    "nothing": (lambda w: w.update({"W_o.bias": None}), TypeError, "weights['W_o.bias'] is "),
    "text": (lambda w: w.update({"W_o.bias": "W_o"}), TypeError, "weights['W_o.bias'] is "),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_weights_that_do_not_fit_change_nothing(backend, wrong):
    attention, (change, error, text) = make(backend, bias=True), WRONG[wrong]
    before = attention.weights
    given = {name: array + 1 for name, array in before.items()}
    change(given)
    with pytest.raises(error, match=re.escape(text)):
        attention.weights = given
    assert same(attention.weights, before)


def test_to_another_backend_and_back_is_exact(backend):
    attention = make(backend, seed=5, bias=True, pooling="additive", dropout=0.25)
    there = attention.to("numpy")
    assert there.backend == "numpy"
    assert there.config == attention.config
    assert same(there.weights, attention.weights)
    assert same(there.to(backend).weights, attention.weights)


def test_sync_copies_every_weight(backend):
    source, target = make("numpy", seed=1, bias=True), make(backend, seed=2, bias=True)
    mha.sync(source, target)
    assert same(target.weights, source.weights)
    mha.sync(make(backend, seed=3, bias=True), source)
    assert same(source.weights, make("numpy", seed=3, bias=True).weights)


@pytest.mark.parametrize(
    "options",
    [{"num_heads": 4}, {"dtype": "float64"}, {"window": (3, None)}, {"sinks": True}, {"output_gate": "head"}],
    ids=str,
)
def test_sync_refuses_layers_that_differ(backend, options):
    plain = {"num_hiddens": 12, "num_heads": 2, "key_dim": 6, "value_dim": 6, "backend": backend}
    source, target = mha.MultiHeadAttention(**(plain | options)), mha.MultiHeadAttention(**plain, seed=1)
    before = target.weights
    option, value = next(iter(options.items()))
    with pytest.raises(ValueError, match=rf"target has {option}=.*, expected {re.escape(repr(value))} as the source"):
        mha.sync(source, target)
    assert same(target.weights, before)
    with pytest.raises(TypeError, match=r"source is a builtins\.dict, expected an mha\.Multi"):
        mha.sync({}, target)


# Keras converts its variables in a way that NumPy 2 deprecates.
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning")
def test_a_layer_can_be_copied(backend, rng):
    attention, arrays = make(backend), draw(rng)
    twin = copy.deepcopy(attention)
    expected = attention(*arrays)
    attention.weights = {name: array * 2 for name, array in attention.weights.items()}
    assert np.array_equal(twin(*arrays), expected)
