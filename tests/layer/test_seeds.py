"""Layers that are given no seed: each draws from another one, the same in every run and on every backend."""

import concurrent.futures
import re
import subprocess
import sys

import numpy as np
import pytest

import mha
import mha.parity


def kernel(attention):
    return attention.weights["W_q.kernel"]


def make(backend="numpy", **options):
    return mha.MultiHeadAttention(12, 3, backend=backend, **options)


@pytest.fixture(autouse=True)
def from_the_start():
    mha.manual_seed(0)
    yield
    mha.manual_seed(0)


def test_two_layers_differ_and_a_new_start_makes_the_same(backend):
    first, second = make(backend), make(backend)
    assert not np.array_equal(kernel(first), kernel(second))
    mha.manual_seed(0)
    for attention in (first, second):
        assert np.array_equal(kernel(make("numpy")), kernel(attention))
    mha.manual_seed(1)
    assert not np.array_equal(kernel(make(backend)), kernel(first))


def test_a_seed_that_is_given_counts_for_no_other_layer(backend):
    first, _, second = make(backend), make(backend, seed=7), make(backend)
    mha.manual_seed(0)
    assert [make().seed for _ in range(2)] == [first.seed, second.seed]


def test_repr_says_the_seed_which_makes_the_layer_again(backend):
    attention = make(backend)
    seed = int(re.search(r", seed=(\d+),", repr(attention))[1])
    assert seed == attention.seed
    assert np.array_equal(kernel(make(backend, seed=seed)), kernel(attention))
    assert attention.to("numpy").seed == seed


def test_a_script_makes_the_same_layers_in_every_run():
    script = "import mha; print([mha.MultiHeadAttention(4, 2).seed for _ in range(3)])"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout == f"{[make().seed for _ in range(3)]}\n"


def test_checks_of_parity_take_no_seed(rng):
    attention, X = make(), rng.normal(size=(2, 5, 12)).astype("float32")
    following = make().seed
    mha.manual_seed(0)
    assert make().seed == attention.seed
    mha.parity.ratio(attention, attention(X, X, X), X, X, X)
    assert make().seed == following


def test_a_layer_that_cannot_be_made_takes_no_seed(monkeypatch):
    following = make().seed
    for options, error in (
        ({"backend": "mxnet2"}, ValueError),
        ({"dtype": "float128"}, ValueError),
        ({"num_hiddens": 3 * 10**12}, ValueError),
        ({"readable": 1}, TypeError),
    ):
        mha.manual_seed(0)
        with pytest.raises(error):
            mha.MultiHeadAttention(**{"num_hiddens": 12, "num_heads": 3, "backend": "numpy"} | options)
        assert make().seed == following


def test_layers_that_are_loaded_drop_other_weights(tmp_path):
    attention, X = make(dropout=0.5), np.ones((2, 5, 12), "float32")
    attention.save(tmp_path / "layer.safetensors")
    loaded = [mha.load(tmp_path / "layer.safetensors", "numpy") for _ in range(2)]
    first, second = (layer(X, X, X, training=True) for layer in loaded)
    assert not np.array_equal(first, second)


def test_threads_get_a_seed_each():
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        seeds = list(threads.map(lambda _: make().seed, range(64)))
    mha.manual_seed(0)
    assert sorted(seeds) == sorted(make().seed for _ in range(64))
    assert len(set(seeds)) == 64


@pytest.mark.parametrize(
    ("seed", "error", "text"),
    [
        (-1, ValueError, "seed is -1, expected at least 0"),
        (1.0, TypeError, r"seed is 1.0 \(float\), expected an int of at least 0"),
        (None, TypeError, r"seed is None \(NoneType\), expected an int of at least 0"),
    ],
)
def test_a_wrong_seed_is_refused_and_changes_nothing(seed, error, text):
    first = make().seed
    mha.manual_seed(0)
    with pytest.raises(error, match=text):
        mha.manual_seed(seed)
    assert make().seed == first
