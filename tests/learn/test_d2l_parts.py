"""Names beside the book's layer: its poolings, functions, helpers and heat maps, and what its modules name."""

import ast
import importlib
import random
import sys

import adapters
import numpy as np
import pages
import pytest

import mha
from mha import parity
from mha.backends import numpy as oracle_module
from mha.core import dispatch
from mha.core.call import Call

B, Q, K, H, d, dv = 2, 3, 5, 7, 11, 23
LENGTHS = {"none": None, "per sample": np.array([4, 0]), "per query": np.array([[1, 9, 0], [5, 2, 3]])}
WITH_BOOK = dispatch.backends_with("learn/d2l/*.py")


def arrays(rng, *shapes):
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def draw(backend, rng, *shapes):
    """Random arrays of the backend's."""
    return adapters.of(backend).own(*arrays(rng, *shapes))


# The poolings


def oracle_results(kernels, queries, keys, values, lengths, dtype):
    """Pooled values and weights of the NumPy backend's pooling in a dtype."""
    if kernels:
        oracle = oracle_module.AdditiveAttention(0.0, *kernels["w_v"].shape[:1], queries.shape[2], keys.shape[2], dtype)
        for name, kernel in kernels.items():
            getattr(oracle, name).kernel = kernel.astype(dtype)
    else:
        oracle = oracle_module.DotProductAttention(0.0)
    queries, keys, values = (X.astype(dtype) for X in (queries, keys, values))
    visible = oracle_module.visible_keys(queries, keys, Call(lengths))
    return oracle(queries, keys, values, None if visible is None else visible[:, 0])


POOLINGS = {
    "dot": (d, d, lambda d2l: d2l.DotProductAttention(dropout=0.5)),
    "additive": (13, d, lambda d2l: d2l.AdditiveAttention(num_hiddens=17, dropout=0.5)),
    "additive, first edition": (13, d, lambda d2l: d2l.AdditiveAttention(d, 13, 17, 0.5)),
}


@pytest.mark.parametrize(
    ("pooling", "lengths"),
    list(zip(POOLINGS, [LENGTHS["per sample"], LENGTHS["per query"], None], strict=True)),
    ids=POOLINGS,
)
def test_a_pooling_gives_the_numbers_of_numpy(backend, d2l, rng, pooling, lengths):
    query_size, key_size, make = POOLINGS[pooling]
    inputs = arrays(rng, (B, Q, query_size), (B, K, key_size), (B, K, dv))
    arguments = adapters.of(backend).own(*inputs, lengths)
    framework = adapters.of(backend)
    attention = framework.start(make(d2l), *arguments)
    results = framework.call_book(attention, *arguments)
    names = ("W_q", "W_k", "w_v") if "additive" in pooling else ()
    kernels = {name: mha.to_numpy(framework.kernel(attention, name)) for name in names}
    base, oracle = (oracle_results(kernels, *inputs, lengths, t) for t in ("float32", "float64"))
    for result, in_float32, exact in zip(results, base, oracle, strict=True):
        assert parity.error(mha.to_numpy(result), exact) <= parity.bound("float32", exact, in_float32)
        assert not mha.to_numpy(result)[exact == 0].any()
    trained, weights_in_training = framework.call_book(attention, *arguments, training=True)
    assert not np.array_equal(mha.to_numpy(trained), mha.to_numpy(results[0]))
    np.testing.assert_array_equal(mha.to_numpy(weights_in_training), mha.to_numpy(results[1]))


# These know by themselves whether they train; an argument overrules them.
@pytest.mark.backends("torch", "mxnet")
@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_pooling_trains_if_it_is_told_to(backend, d2l, rng, pooling):
    query_size, key_size, make = POOLINGS[pooling]
    shapes = (B, Q, query_size), (B, K, key_size), (B, K, dv)
    arguments = adapters.of(backend).own(*arrays(rng, *shapes), LENGTHS["per query"])
    attention = adapters.of(backend).start(make(d2l), *arguments)
    evaluated, _ = adapters.of(backend).call_book(attention, *arguments)
    assert not np.array_equal(mha.to_numpy(attention(*arguments, True)), mha.to_numpy(evaluated))


def test_a_pooling_refuses_what_does_not_fit(backend, d2l, rng):
    shapes = {"queries": (B, Q, d), "keys": (B, K, d), "values": (B, K, dv)}
    framework = adapters.of(backend)
    dot, additive = d2l.DotProductAttention(0.5), d2l.AdditiveAttention(13, d, 17, 0.5)
    for attention, changed, error, message in (
        (
            dot,
            {"keys": (B, K, 13)},
            ValueError,
            r"keys has shape \(2, 5, 13\), expected \(batch, key-value pairs, 11\)",
        ),
        (dot, {"values": (B, K + 1, dv)}, ValueError, "values has 6 rows a sample, expected 5"),
        (dot, {"values": (B + 1, K, dv)}, ValueError, "values has batch size 3, expected 2"),
        (dot, {"queries": (Q, d)}, ValueError, r"queries has shape \(3, 11\), expected \(batch, rows, width\)"),
        (additive, {}, ValueError, r"keys has shape \(2, 5, 11\), expected \(batch, key-value pairs, 13\)"),
    ):
        arguments = draw(backend, rng, *(shapes | changed).values())
        with pytest.raises(error, match=message):
            framework.call_without_start(attention, *arguments)
    arguments = draw(backend, rng, *shapes.values())
    (valid_lens,) = framework.own(np.array([[1, 2], [3, 4], [5, 6]]))
    with pytest.raises(ValueError, match=r"valid_lens has shape \(3, 2\).*it looks transposed"):
        framework.call_without_start(dot, *arguments, valid_lens)
    (whole,) = framework.own(np.ones((B, K, d), np.int32))
    with pytest.raises(TypeError, match="keys has dtype int32, expected floats"):
        framework.call_without_start(dot, arguments[0], whole, arguments[2])


# The functions and helpers


def test_transposes_are_functions_and_methods(backend, d2l, rng):
    (X,) = draw(backend, rng, (B, Q, H * d))
    attention = d2l.MultiHeadAttention(H * d, H, 0.5)
    expected = oracle_module.transpose_qkv(mha.to_numpy(X), H)
    for split in (d2l.transpose_qkv(X, H), attention.transpose_qkv(X)):
        np.testing.assert_array_equal(mha.to_numpy(split), expected)
        for merged in (d2l.transpose_output(split, H), attention.transpose_output(split)):
            np.testing.assert_array_equal(mha.to_numpy(merged), mha.to_numpy(X))


def test_masked_softmax_is_that_of_mha(backend, d2l, rng):
    """Also of lengths as the book makes them, which are floats in MXNet."""
    (X,) = draw(backend, rng, (B, Q, K))
    for lengths in LENGTHS.values():
        expected = mha.to_numpy(mha.masked_softmax(X, lengths))
        printed = [] if lengths is None else [d2l.tensor(lengths.tolist())]
        for valid_lens in (*adapters.of(backend).own(lengths), *printed):
            np.testing.assert_array_equal(mha.to_numpy(d2l.masked_softmax(X, valid_lens)), expected)


def test_lengths_are_whole(backend, d2l, rng):
    X, valid_lens = adapters.of(backend).own(*arrays(rng, (B, Q, K)), np.array([1.5, 2.0], np.float32))
    with pytest.raises(TypeError, match="valid_lens has dtype float32, expected integers"):
        d2l.masked_softmax(X, valid_lens)


def test_helpers_make_arrays(backend, d2l):
    normal = adapters.of(backend).normal(d2l, B, Q)
    for X in (d2l.ones((B, Q)), d2l.zeros((B, Q)), normal, d2l.reshape(d2l.ones((B * Q,)), (B, Q))):
        d2l.check_shape(X, (B, Q))
    np.testing.assert_array_equal(mha.to_numpy(d2l.tensor([[1.0, 2.0]])), [[1, 2]])
    assert mha.to_numpy(d2l.ones((B, Q))).all()
    assert not mha.to_numpy(d2l.zeros((B, Q))).any()
    with pytest.raises(ValueError, match=r"array has shape \(2, 3\), expected \(3, 2\)"):
        d2l.check_shape(d2l.ones((B, Q)), (Q, B))


@pytest.mark.backends("jax")
def test_keys_are_drawn_by_pythons_random_numbers(d2l):
    random.seed(1)
    keys = [np.asarray(d2l.get_key()) for _ in range(2)]
    random.seed(1)
    np.testing.assert_array_equal(np.asarray(d2l.get_key()), keys[0])
    assert not np.array_equal(*keys)


@pytest.mark.all_backends  # the one environment that has matplotlib
def test_heat_maps_are_drawn(backend, d2l, rng, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    from matplotlib import pyplot

    (matrices,) = draw(backend, rng, (2, 3, Q, K))
    d2l.show_heatmaps(matrices, xlabel="Keys", ylabel="Queries", titles=["a", "b", "c"], figsize=(5, 4), cmap="Blues")
    *maps, _ = pyplot.gcf().axes
    drawn = np.stack([axes.get_images()[0].get_array() for axes in maps])
    np.testing.assert_array_equal(drawn, mha.to_numpy(matrices).reshape(6, Q, K))
    assert len({axes.get_images()[0].get_clim() for axes in maps}) == 1
    assert [axes.get_xlabel() for axes in maps] == ["", "", "", "Keys", "Keys", "Keys"]
    assert [axes.get_ylabel() for axes in maps] == ["Queries", "", "", "Queries", "", ""]
    assert [axes.get_title() for axes in maps] == ["a", "b", "c"] * 2
    pyplot.close()
    with pytest.raises(ValueError, match=r"matrices has shape \(3, 5\), expected \(rows, columns, queries, keys\)"):
        d2l.show_heatmaps(matrices[0, 0], xlabel="Keys", ylabel="Queries")


# Every module of the book's names, its framework installed or not


NEXT = "d2l.next"
MODULES = [
    *(("d2l", name) for name in WITH_BOOK),
    *((NEXT, name) for name in dispatch.backends_with("learn/d2l/next/*.py")),
]


@pytest.mark.parametrize(("edition", "name"), MODULES)
def test_a_missing_framework_says_how_to_install_it(edition, name, monkeypatch):
    monkeypatch.setitem(sys.modules, dispatch.FRAMEWORKS[name].needs[-1], None)
    for module in (f"mha.{edition}.{name}", f"mha.backends.{name}", f"mha.learn.{edition}.{name}"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(ModuleNotFoundError, match=f"backend '{name}' needs .*: pip install"):
        importlib.import_module(f"mha.{edition}.{name}")


ABSENT = [
    ("d2l", name, "the book has no section for it; it has torch, ")
    for name in dispatch.FRAMEWORKS
    if name not in WITH_BOOK
]
ABSENT += [(NEXT, "mxnet", "the book's next edition has its chapter.*; it has torch, jax")]
ABSENT += [(NEXT, "numpy", "the book has no section for it.*; it has torch, jax")]


@pytest.mark.parametrize(("edition", "name", "why"), ABSENT)
def test_a_framework_that_an_edition_has_not_is_refused_with_the_reason(edition, name, why):
    with pytest.raises(ImportError, match=f"mha.{edition} has no {name}: {why}"):
        exec(f"from mha.{edition} import {name}")
    with pytest.raises(ImportError, match="cannot import name 'paddle'"):
        exec(f"from mha.{edition} import paddle")


@pytest.mark.parametrize("name", WITH_BOOK)
def test_each_framework_has_the_same_names_of_the_book(name):
    expected = public("torch")
    assert expected >= {"MultiHeadAttention", "masked_softmax", "transpose_qkv", "show_heatmaps", "ones"}
    assert public(name) - {"get_key"} == expected
    assert ("get_key" in public(name)) == (name == "jax")


def public(name):
    """Public names of the source of the book's names for a framework, but those of modules."""
    names = set()
    for node in ast.parse(pages.text(f"mha/learn/d2l/{name}.py")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names.add(node.targets[0].id)
        elif isinstance(node, ast.ImportFrom) and node.module in ("mha.arrays", "mha.learn.d2l.common"):
            names |= {alias.name for alias in node.names}
    return {each for each in names if not each.startswith("_")}
