"""Checks of a cache of JAX whose slots are split over devices.

Letters as in devices_of_jax.py. The oracle is NumPy, for gradients the whole layer.
"""

import copy
import functools

import jax
import numpy as np
from devices_of_jax import OF_ALL, D, H, mesh, sent
from jax import numpy as jnp
from jax.sharding import Mesh
from ranks import long, refused

import mha
from mha import parallel
from mha.core import dispatch
from mha.core.engine import blocks

SIZE = 8
OPTIONS = {
    "all slots": {"num_key_value_heads": 4, "rotary": mha.Rotary(4), "softcap": 5.0, "qk_norm": "layer", "sinks": True},
    "a ring": {"window": (6, 0), "rotary": mha.Rotary(6), "bias": True, "output_gate": "head"},
    "additive": {"pooling": "additive", "window": (5, None), "sinks": True},
    "chunks": {"chunk": 4, "rotary": mha.Rotary(4)},
}


def four():
    """Four devices in a row."""
    return Mesh(np.array(jax.devices()[:4]), ("rows",))


def steps(options, size, portions, where=None, copies=1, **call):
    """Decode in portions on devices and on NumPy: outputs and caches agree after each; returns the last cache.

    copies: of each head of keys, on the devices.
    """
    where = where or {"mesh": four(), "sequence": "rows"}
    attention = mha.MultiHeadAttention(D, H, seed=0, backend="jax", dtype="float64", **options)
    whole, (module, variables) = attention.to("numpy"), attention.layer.unbind()
    X = np.random.default_rng(1).normal(size=(4, sum(portions), D))

    @jax.jit
    def step(variables, x, given, cache):
        return parallel.attend(module, variables, x, x, x, causal=True, cache=cache, **given, **where)

    cache, expected, first = attention.cache(4, size), whole.cache(4, size), 0
    for rows in portions:
        x = X[:, first : first + rows]
        given = {name: make(rows) for name, make in call.items()}
        output, cache = step(variables, x, given, cache)
        right, expected = whole(x, x, x, causal=True, cache=expected, **given)
        same(output, right)
        keys, values, *others = expected.arrays()
        for found, array in zip(
            cache.arrays(), (keys.repeat(copies, 1), values.repeat(copies, 1), *others), strict=True
        ):
            same(found, array)
        first += rows
    return cache


def same(found, expected):
    """Two arrays agree, and no number is missing."""
    found = np.asarray(found)
    assert np.isfinite(found).all()
    assert np.abs(found - expected).max() <= 1e-12 * max(1, np.abs(expected).max())


@long
def check_a_prompt_and_tokens_agree(group):
    with dispatch.load("jax").context("float64"):
        for name, options in OPTIONS.items():
            size = 12 if name == "all slots" else SIZE
            cache = steps(options, size, (5, 3, 3) if name == "a ring" else (5, 1, 1, 1, 1, 1, 1))
            for X in (cache.keys, cache.values):
                assert X.sharding.shard_shape(X.shape)[2] == size // 4
            assert cache.positions.sharding.shard_shape(cache.positions.shape)[1] == size


def check_lengths_masks_and_biases_agree(group):
    rng = np.random.default_rng(3)
    given = {
        "valid_lens": lambda rows: np.array([rows, rows // 2, 0, max(0, rows - 1)]),
        "mask": lambda rows: rng.random((4, 1, rows, 12)) > 0.3,
        "score_bias": lambda rows: rng.normal(size=(1, H, rows, 12)),
    }
    with dispatch.load("jax").context("float64"):
        steps({}, 12, (5, 2, 2), **given)
        steps({"num_key_value_heads": 2}, 12, (3, 3), mask=lambda rows: np.arange(rows)[:, None] != 1)


def check_batch_heads_and_slots_are_split_together(group):
    """On a mesh whose shardings are types, with a norm over all heads."""
    cube = jax.make_mesh((2, 2, 2), ("data", "heads", "rows"))
    where = {"mesh": cube, "data": "data", "heads": "heads", "sequence": "rows", "how": "ulysses"}
    with dispatch.load("jax").context("float64"):
        cache = steps(OPTIONS["all slots"] | OF_ALL | {"bias": True}, 12, (5, 1, 1), where)
    assert cache.keys.sharding.shard_shape(cache.keys.shape) == (2, 2, 6, D // H)


@long
def check_a_cache_keeps_the_heads_of_a_device(group):
    """Tokens one by one, on two devices for samples by four for heads: of keys, each once, or on two devices."""
    grid = Mesh(np.array(jax.devices()).reshape(2, 4), ("rows", "heads"))
    options = {"rotary": mha.Rotary(4), "window": (3, None), "bias": True} | OF_ALL
    with dispatch.load("jax").context("float64"):
        for of_keys, copies in ((4, 1), (2, 2)):
            grouped, where = options | {"num_key_value_heads": of_keys}, {"mesh": grid, "heads": "heads"}
            cache = steps(grouped, None, 7 * (1,), where | {"data": "rows"}, copies)  # the ring of 4 slots wraps
            assert cache.keys.sharding.shard_shape(cache.keys.shape) == (2, 1, 4, D // H)
            attention = mha.MultiHeadAttention(D, H, seed=0, backend="jax", dtype="float64", **grouped)
            X, (module, variables) = np.random.default_rng(1).normal(size=(4, 7, D)), attention.layer.unbind()
            frozen, growing = attention.cache_of(X), attention.cache(4)
            cross = jax.jit(lambda *given, frozen=frozen: parallel.attend(module, *given, cache=frozen, **where))  # noqa: B023
            output, left = cross(variables, X, None, None)
            same(output, attention.to("numpy")(X, X, X))
            assert left.frozen
            assert left.keys.shape[:2] == (4, 4)
            parallel.attend(module, variables, *3 * [X[:, :1]], cache=growing, **where)  # not compiled
            refused(lambda: growing.keys, "used up")  # noqa: B023


@long
def check_blocks_of_queries_agree(group):
    given, blocks.SCORES = blocks.SCORES, 4 * H * 6 * 2  # two queries at once
    try:
        with dispatch.load("jax").context("float64"):
            steps(OPTIONS["all slots"], 12, (5, 3), valid_lens=lambda rows: np.array([rows, 2, 1, 0]))
    finally:
        blocks.SCORES = given


@long
def check_a_frozen_cache_agrees(group):
    with dispatch.load("jax").context("float64"):
        attention = mha.MultiHeadAttention(D, H, seed=0, backend="jax", dtype="float64", sinks=True)
        whole, (module, variables) = attention.to("numpy"), attention.layer.unbind()
        X, lens = np.random.default_rng(1).normal(size=(2, 12, D)), np.array([12, 7])
        frozen, x = attention.cache_of(X, valid_lens=lens), X[:, :3]
        for valid_lens in (None, np.array([5, 9])):
            output, left = jax.jit(
                lambda v, x, lens: parallel.attend(
                    module, v, x, None, None, lens, cache=frozen, mesh=four(), sequence="rows"
                )
            )(variables, x, valid_lens)
            same(output, whole(x, X, X, lens if valid_lens is None else np.minimum(lens, valid_lens)))
            assert left.frozen


def check_gradients_are_those_of_the_whole_layer(group):
    with dispatch.load("jax").context("float64"):
        for options in ("all slots", "additive"):
            attention = mha.MultiHeadAttention(D, H, seed=0, backend="jax", dtype="float64", **OPTIONS[options])
            module, variables = attention.layer.unbind()
            sinks = jnp.linspace(-1.0, 800.0, H)  # whose powers are no numbers
            variables = {"params": variables["params"] | {"sinks": sinks}}
            X = jnp.asarray(np.random.default_rng(1).normal(size=(2, 8, D)))
            cache, x = attention(X[:, :5], X[:, :5], X[:, :5], causal=True, cache=attention.cache(2, 12))[1], X[:, 5:]
            bias = jnp.asarray(np.random.default_rng(2).normal(size=(1, H, 3, 12)))
            split = functools.partial(parallel.attend, module, mesh=four(), sequence="rows")

            def pulled(call, cache=cache, x=x, bias=bias, variables=variables):
                def output(variables, x, bias):
                    return call(variables, x, x, x, causal=True, score_bias=bias, cache=copy.copy(cache))[0]

                return jax.jit(jax.grad(lambda *given: (output(*given) ** 3).sum(), (0, 1, 2)))(variables, x, bias)

            found, expected = pulled(split), pulled(module.apply)
            jax.tree.map(lambda X, Y: same(X, np.asarray(Y)), found, expected)


@long
def check_what_nobody_sees_may_be_no_number(group):
    attention = mha.MultiHeadAttention(D, H, seed=0, backend="jax", window=(3, None))
    module, variables = attention.layer.unbind()
    X = np.random.default_rng(1).normal(size=(1, 7, D)).astype("float32")
    whole = attention.to("numpy")(X, X, X, causal=True)
    X[:, 0] = np.nan  # a token that has left the window when the last two come, but not its slot
    cache, where = attention.cache(1, 8), {"mesh": four(), "sequence": "rows"}
    for rows in (slice(0, 5), slice(5, 7)):
        x = X[:, rows]
        output, cache = parallel.attend(module, variables, x, x, x, causal=True, cache=cache, **where)
        assert np.isnan(np.asarray(output)).any() == (rows.start == 0)
    assert np.abs(np.asarray(output) - whole[:, 5:]).max() < 1e-5


@long
def check_dropout_drops_weights_of_slots_and_tokens(group):
    attention = mha.MultiHeadAttention(D, H, seed=0, backend="jax", dropout=0.5)
    module, variables = attention.layer.unbind()
    X = jnp.asarray(np.random.default_rng(1).normal(size=(1, 4, D)).astype("float32"))
    cache, where = attention.cache(1, 8), {"mesh": four(), "sequence": "rows"}

    @jax.jit
    def step(x, cache, seed):
        given = {"training": seed is not None, "rngs": {} if seed is None else {"dropout": jax.random.key(seed)}}
        return parallel.attend(module, variables, x, x, x, causal=True, cache=cache, **given, **where)

    kept, cache = step(X, cache, None)
    outputs = np.array([step(X[:, :1], cache, seed)[0][0, 0] for seed in range(400)])
    again, (kept, _) = step(X[:, :1], cache, 0)[0][0, 0], step(X[:, :1], cache, None)
    assert np.array_equal(outputs[0], again)
    assert (outputs.std(0) > 0.01).all()
    assert (np.abs(outputs.mean(0) - kept[0, 0]) < 5 * outputs.std(0) / 20).all()  # dropped weights are made up for


@long
def check_a_token_sends_three_sums(group):
    """A maximum, a sum and a pooled value for each query and head."""
    attention = mha.MultiHeadAttention(D, H, seed=0, backend="jax")
    module, variables = attention.layer.unbind()
    x, cache = jnp.zeros((3, 1, D)), attention.cache(3, 16)
    call = functools.partial(parallel.attend, module, causal=True, mesh=mesh(), sequence="devices")
    text = jax.jit(lambda x, cache: call(variables, x, x, x, cache=cache)).lower(x, cache).compile().as_text()
    found = sent(text)
    assert set(found) == {"all-reduce"}, found
    assert sum(found["all-reduce"]) == 3 * H * (2 + D // H), found


@long
def check_half_precision_is_by_the_rule(group):
    attention = mha.MultiHeadAttention(D, H, seed=0, backend="jax", dtype="bfloat16", num_key_value_heads=2)
    module, variables = attention.layer.unbind()
    X = np.random.default_rng(1).normal(size=(2, 7, D)).astype(mha.core.options.config.numpy_dtype("bfloat16"))
    cache, outputs = attention.cache(2, 8), []
    for rows in (slice(0, 5), slice(5, 6), slice(6, 7)):
        x = jnp.asarray(X[:, rows])
        call = {"causal": True, "cache": cache, "mesh": four(), "sequence": "rows"}
        output, cache = parallel.attend(module, variables, x, x, x, **call)
        outputs.append(np.asarray(output))
    assert mha.parity.compare(attention.to("numpy"), np.concatenate(outputs, 1), X, X, X, causal=True)


@long
def check_no_tokens_change_nothing(group):
    attention = mha.MultiHeadAttention(D, H, seed=0, backend="jax")
    x, where = jnp.zeros((2, 0, D)), {"mesh": four(), "sequence": "rows"}
    output, cache = parallel.attend(*attention.layer.unbind(), x, x, x, cache=attention.cache(2, 8), **where)
    assert output.shape == (2, 0, D)
    assert (np.asarray(cache.positions) == -1).all()


def check_what_does_not_fit_is_refused(group):
    attention = mha.MultiHeadAttention(D, H, seed=0, backend="jax")
    module, variables = attention.layer.unbind()
    x = jnp.zeros((2, 1, D))

    def call(size, **options):
        cache = attention.cache(2, size)
        return lambda: parallel.attend(module, variables, x, x, x, cache=cache, mesh=four(), sequence="rows", **options)

    refused(call(10), "cache has 10 slots", "a multiple of 4 devices", "size=12")
    refused(call(8, zigzag=True), "zigzag is True beside a cache")
    refused(call(8, segments=[0]), "segments")
