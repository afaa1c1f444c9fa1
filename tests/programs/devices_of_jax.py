"""Checks of a layer of JAX over eight devices in one process; `ranks.py` runs them.

Letters: B batch, T queries and keys, H heads, D num_hiddens, N devices. The oracle is NumPy.
"""

import collections
import dataclasses
import functools
import re

import jax
import numpy as np
from dropping import assert_share, see_through
from flax.traverse_util import flatten_dict
from jax import numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from layers import assert_same_weights
from orbax import checkpoint
from ranks import long, refused

import mha
from mha import parallel
from mha.parity.cases import devices

N, B, T, H, D = 8, 8, 16, 8, 64
PART = B * T * D // N  # numbers of an array of inputs that one device holds
WEIGHTS = 4 * (D * D + D)
KINDS = "all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter"
WAYS = (
    {"heads": "devices"},
    {"data": "devices"},
    *({"sequence": "devices", "how": how} for how in ("ring", "ulysses", "gather")),
)
OF_ALL = {"qk_norm": mha.Norm("layer", over="all"), "value_norm": mha.Norm("rms", over="all")}
RATE = 0.25


def mesh():
    """All devices in a row."""
    return Mesh(np.array(jax.devices()), ("devices",))


def sent(text):
    """The collectives of a compiled text: for each kind, the sorted numbers of their results."""
    found = collections.defaultdict(list)
    for result, kind in re.findall(rf"= (\(.*?\)|\S+) ({KINDS})(?:-start)?\(", text):
        shapes = re.findall(r"\w+\[([\d,]*)\]", result)
        found[kind].append(sum(int(np.prod([int(n) for n in shape.split(",") if n] or [1])) for shape in shapes))
    return {kind: sorted(sizes) for kind, sizes in found.items()}


def compiled(attend, variables, *arrays):
    """The compiled texts of a call, forward alone, and with its gradients."""

    def both(variables, *arrays):
        output, pull = jax.vjp(attend, variables, *arrays)
        return output, pull(output)

    return [jax.jit(function).lower(variables, *arrays).compile().as_text() for function in (attend, both)]


def layer(**options):
    """The module and the variables of a layer of these sizes."""
    return mha.MultiHeadAttention(D, H, backend="jax", bias=True, seed=0, **options).layer.unbind()


def texts(options=None, **way):
    """The compiled texts of a call of the layer, with these options, over all devices."""
    module, variables = layer(**(options or {}))
    X = jax.ShapeDtypeStruct((B, T, D), "float32")
    return compiled(lambda v, q, k, w: parallel.attend(module, v, q, k, w, mesh=mesh(), **way), variables, X, X, X)


def loops(text):
    """How many loops of a compiled text have N - 1 steps."""
    return text.count(f'"known_trip_count":{{"n":"{N - 1}"}}')


# By way, the numbers that the collectives of a call send, and those of a call with its gradients.
SENT = {
    # Backward three inputs, and the bias of W_o, of which one device alone has the gradient.
    "heads": ({"all-reduce": [B * T * D]}, {"all-reduce": [B * T * D, 3 * B * T * D + D]}),
    "data": ({}, {"all-reduce": [WEIGHTS]}),
    # Forward 2 in a loop, 2(N - 1) parts; backward 4 in a loop and 2 after it: 4N - 2 parts.
    "ring": ({"collective-permute": 2 * [PART]}, {"collective-permute": 8 * [PART], "all-reduce": [WEIGHTS]}),
    # Of each the N-th part stays: 4(N - 1)/N parts.
    "ulysses": ({"all-to-all": 4 * [PART]}, {"all-to-all": 8 * [PART], "all-reduce": [WEIGHTS]}),
    "gather": (
        {"all-gather": 2 * [N * PART]},
        {"all-gather": 2 * [N * PART], "reduce-scatter": 2 * [PART], "all-reduce": [WEIGHTS]},
    ),
}


def check_what_each_way_sends(group):
    for way, (name, expected) in zip(WAYS, SENT.items(), strict=True):
        both = texts(**way)
        assert tuple(map(sent, both)) == expected, name
        assert name != "ring" or [*map(loops, both)] == [1, 2]


@long
def check_few_heads_of_keys_send_their_gradients_too(group):
    forward, both = texts({"num_key_value_heads": 2}, heads="devices")
    assert sent(forward) == {"all-reduce": [B * T * D]}
    of_keys = 2 * (D + 1) * 2 * D // H
    assert sent(both) == {"all-reduce": [B * T * D, 3 * B * T * D + D + of_keys]}


def sharded_batch(size, causal):
    """A batch that lies on all devices, of so many rows, compiled by `jax.jit` alone: what it sends, and numbers."""
    rng, (module, variables) = np.random.default_rng(0), layer()
    attention = mha.MultiHeadAttention(D, H, bias=True, backend="numpy", seed=0)
    attention.weights = parallel.gather(module.bind(variables))
    X = rng.normal(size=(B, size, D)).astype("float32")
    lens = np.array([1, size, 0, size // 3, size - 1, size // 2, 3, 7], np.int32)  # the first has few, others many
    given = [jax.device_put(x, NamedSharding(mesh(), PartitionSpec("devices"))) for x in (X, lens)]

    def attend(variables, X, lens):
        return module.apply(variables, X, X, X, lens, causal=causal)

    def both(variables, X, lens):
        output, pull = jax.vjp(lambda variables, X: attend(variables, X, lens), variables, X)
        return output, pull(X)

    forward, backward = (jax.jit(f).lower(variables, *given).compile() for f in (attend, both))
    sums = sent(forward.as_text())
    assert set(sums) == {"all-reduce"}, sums
    assert max(sums["all-reduce"]) == 1, sums  # which branch is taken, by all alike
    sums = sent(backward.as_text())
    assert set(sums) == {"all-reduce"}, sums
    assert sum(n for n in sums["all-reduce"] if n > 2) == WEIGHTS, sums
    output, (by_weights, by_X) = backward(variables, *given)
    expected = attention.gradients(X, X, X, lens, causal=causal, cotangent=X)
    wide, exact = X.astype("float64"), mha.parity.in_dtype(attention, "float64")
    by_name = exact.gradients(wide, wide, wide, lens, causal=causal, cotangent=wide)
    by_input = {"inputs": sum(expected.pop(name) for name in ("queries", "keys", "values"))}
    wide_input = sum(by_name.pop(name) for name in ("queries", "keys", "values"))
    whole = exact(wide, wide, wide, lens, causal=causal)
    within(output, whole, attention(X, X, X, lens, causal=causal), gradient=False)
    within(by_X, wide_input, by_input["inputs"])
    for name, X in parallel.gather(module.bind(by_weights)).items():
        within(X, by_name[name], expected[name])


def within(found, expected, base, gradient=True):
    """An array agrees with float64, where base is NumPy's in float32."""
    scale = float(np.abs(expected).max())
    limit = mha.parity.bound("float32", expected, base, gradient=gradient, scale=scale)
    assert mha.parity.error(np.asarray(found), expected) <= limit


def check_a_sharded_batch_is_never_collected(group):
    sharded_batch(256, True)


def agree(names, case, dtype="float64"):
    """These ways agree with NumPy in a case of the suite."""
    with jax.enable_x64(False):
        checks = devices.plan_rank("jax", "full", {case}, {dtype}, 0, N, "", 60)
        chosen = [check for check in checks if check.name.removeprefix(f"{dtype}, {case}, ") in names]
        assert len(chosen) == len(names), [check.name for check in checks]
        for result in (result for check in chosen for result in check.run()):
            assert result.error <= result.bound, result


def check_all_ways_together_agree(group):
    agree({"data x heads x ring"}, "all options")


@long
def check_cases_agree(group):
    agree({"ring"}, "additive, all options")
    agree({"heads"}, "lengths per query, mask")
    agree({"heads"}, "norms over all heads, after the rotation")  # and a mask for each head
    agree({"heads"}, "heads of keys on two devices")
    agree({"ring", "ulysses"}, "sinks, lengths")
    agree({"ring"}, "scale 30, lengths", "float32")
    agree({"ring", "gather"}, "causal, offset, one sample")
    agree({"ulysses"}, "window, offsets")
    agree({"ring"}, "no lengths")


def check_one_column_stands_for_the_keys_of_all_devices(group):
    (module, variables), X = layer(), np.random.default_rng(0).normal(size=(2, T, D)).astype("float32")
    mask, bias = np.arange(T)[:, None] % 5 != 2, np.arange(H * T, dtype="float32").reshape(1, H, T, 1)
    attention = mha.MultiHeadAttention(D, H, bias=True, backend="numpy", seed=0)
    wide, exact = X.astype("float64"), mha.parity.in_dtype(attention, "float64")
    expected = exact(wide, wide, wide, mask=mask, score_bias=bias.astype("float64"))
    base = attention(X, X, X, mask=mask, score_bias=bias)
    for way in WAYS[2:]:
        call = jax.jit(functools.partial(parallel.attend, module, mask=mask, score_bias=bias, mesh=mesh(), **way))
        within(call(variables, X, X, X), expected, base, gradient=False)


@long
def check_a_ring_keeps_its_digits_at_large_scores(group):
    queries, keys, values, cotangent = np.random.default_rng(1).normal(size=(4, 1, 48, 12)).astype("float32") * 60
    attention = mha.MultiHeadAttention(12, 4, backend="numpy", seed=1)
    module, variables = attention.to("jax").layer.unbind()

    def attend(values):
        return parallel.attend(module, variables, queries, keys, values, mesh=mesh(), sequence="devices")

    found = jax.jit(lambda values: jax.vjp(attend, values)[1](cotangent)[0])(values)
    wide = [X.astype("float64") for X in (queries, keys, values)]
    exact = mha.parity.in_dtype(attention, "float64").gradients(*wide, cotangent=cotangent.astype("float64"))
    within(found, exact["values"], attention.gradients(queries, keys, values, cotangent=cotangent)["values"])


@long
def check_nan_that_is_seen_stays(group):
    module, variables = layer()
    X = jnp.ones((1, T, D))
    call = jax.jit(functools.partial(parallel.attend, module, mesh=mesh(), sequence="devices"))
    assert np.isnan(call(variables, X, X.at[0, -1].set(jnp.nan), X)).all()


@long
def check_nothing_to_attend_to_is_no_error(group):
    module, variables = layer()
    for size, Q, K in ((0, 8, 8), (8, 0, 8), (8, 8, 0)):
        X, Y = jnp.zeros((size, Q, D)), jnp.zeros((size, K, D))
        for way in WAYS:
            output = parallel.attend(module, variables, X, Y, Y, mesh=mesh(), **way)
            assert np.array_equal(output, module.apply(variables, X, Y, Y)), way


@long
def check_a_batch_on_one_device_is_computed_one_by_one(group):
    """The other devices of a process change nothing: 15 MiB; all samples at once would take more than 100."""
    module, variables = layer()
    lens = np.array([100 * n + 1 for n in range(B)])
    X = jax.ShapeDtypeStruct((B, 1024, D), "float32")
    call = jax.jit(lambda variables, X: module.apply(variables, X, X, X, lens)).lower(variables, X).compile()
    assert call.memory_analysis().temp_size_in_bytes < 30 * 2**20


@long
def check_rows_that_do_not_divide_agree_where_shardings_are_types(group):
    (module, variables), rows = layer(), jax.make_mesh((N,), ("rows",))
    for T in (2 * N + 5, 2 * N):  # how many there are decides where they lie in the end
        X = jnp.asarray(np.random.default_rng(4).normal(size=(B, T, D)).astype("float32"))
        call = {"causal": True, "mesh": rows, "sequence": "rows"}
        found = jax.jit(lambda X, call=call: parallel.attend(module, variables, X, X, X, **call))(X)
        attention = mha.MultiHeadAttention(D, H, backend="numpy", bias=True, seed=0)
        assert mha.parity.ratio(attention, np.asarray(found), *[np.asarray(X)] * 3, causal=True) <= 1


def dropped(way):
    """Two calls with each of two keys, of equal weights (B, H, T, T): what dropout makes of them."""
    attention, inputs = see_through("jax", RATE, (B, H, T, T))
    module, variables = attention.layer.unbind()
    queries, keys, values = map(jnp.asarray, inputs)

    @jax.jit
    def both(values, seed, cotangent):
        rngs = {"dropout": jax.random.key(seed)}
        options = {"training": True, "rngs": rngs, "mesh": mesh(), **way}
        output, pull = jax.vjp(
            lambda values: parallel.attend(module, variables, queries, keys, values, **options), values
        )
        return output, pull(cotangent)[0]

    for seed in (0, 0, 1, 1):
        cotangent = np.random.default_rng(5).normal(size=(B, T, H * T)).astype("float32")
        output, by_values = both(values, seed, cotangent)
        assert np.isclose((by_values * values).sum(), (cotangent * output).sum(), rtol=1e-4), way  # the same pattern
        yield np.asarray(output).reshape(B, T, H, T).transpose(0, 2, 1, 3)  # (B, H, T, T)


def dropout_of(way):
    """Dropout has the rate, patterns of its own for each head, sample and device, and the key decides them."""
    weights, again, other, _ = dropped(way)
    kept = weights > 0
    assert np.allclose(weights[kept], 1 / (1 - RATE), rtol=1e-5), way
    assert_share(kept, 1 - RATE)
    assert len(np.unique(kept.reshape(B * H, T * T), axis=0)) == B * H, way  # no two heads or samples are alike
    parts = kept.reshape(B * H, N, -1).swapaxes(0, 1)  # (N, B*H, T/N*T)
    assert len(np.unique(parts.reshape(N, -1), axis=0)) == N, way  # nor two parts of the queries
    assert np.array_equal(weights, again), way
    assert not np.array_equal(weights, other), way


def check_dropout_differs_between_devices(group):
    dropout_of(WAYS[0])
    dropout_of(WAYS[2])


def check_weights_are_split_saved_and_restored(group):
    attention = mha.MultiHeadAttention(D, H, num_key_value_heads=8, bias=True, backend="jax", seed=3, **OF_ALL)
    expected, (module, variables) = attention.weights, attention.layer.unbind()
    specs = parallel.plan(module, "devices")
    place = functools.partial(NamedSharding, mesh())
    where = jax.tree.map(place, specs, is_leaf=lambda X: isinstance(X, PartitionSpec))
    split = jax.device_put(variables, where)
    assert split["params"]["W_q"]["kernel"].addressable_shards[3].data.shape == (D, D // N)
    assert split["params"]["W_o"]["kernel"].addressable_shards[3].data.shape == (D // N, D)
    assert split["params"]["q_norm"]["scale"].addressable_shards[3].data.shape == (D // N,)
    assert_same_weights(parallel.gather(module.bind(split)), expected)
    path = group.folder / "split.safetensors"
    parallel.save(module.bind(split), path)
    assert_same_weights(mha.load(path, backend="numpy").weights, expected)
    zeros = jax.tree.map(jnp.zeros_like, split)
    loaded = parallel.load(module.bind(zeros), path)
    assert_same_weights(parallel.gather(loaded), expected)
    assert jax.tree.all(jax.tree.map(lambda X, like: X.sharding == like, loaded.variables, where))
    refused(lambda: parallel.save(module.bind(split), group.folder / "none" / "x"), "none", kind=OSError)
    for name, number in {"scale": 0.7, "softcap": 3.0}.items():
        mha.weights.save(path, dataclasses.replace(module.config, **{name: number}), expected)
        refused(lambda: parallel.load(module.bind(zeros), path), f"{name}={number}, expected None as the layer")

    keeper = checkpoint.StandardCheckpointer()
    keeper.save(group.folder.resolve() / "orbax", split)
    keeper.wait_until_finished()
    restored = keeper.restore(group.folder.resolve() / "orbax", zeros)
    assert_same_weights(parallel.gather(module.bind(restored)), expected)
    assert jax.tree.all(jax.tree.map(lambda X, like: X.sharding == like, restored, where))


@long
def check_weights_of_few_heads_of_keys_are_whole_on_each_device(group):
    attention = mha.MultiHeadAttention(D, H, num_key_value_heads=2, bias=True, backend="jax", seed=3, **OF_ALL)
    module, variables = attention.layer.unbind()
    X, found = np.random.default_rng(0).normal(size=(B, T, D)).astype("float32"), []
    call = jax.jit(functools.partial(parallel.attend, module, mesh=mesh(), heads="devices"))
    for plan in (parallel.plan(module, "devices", mesh()), parallel.plan(module, "devices")):
        place = functools.partial(NamedSharding, mesh())
        where = jax.tree.map(place, plan, is_leaf=lambda X: isinstance(X, PartitionSpec))
        split = jax.device_put(variables, where)
        params = {
            name: X.addressable_shards[0].data.shape for name, X in flatten_dict(split["params"], sep=".").items()
        }
        found.append([params[name] for name in ("W_q.kernel", "W_k.kernel", "W_v.bias", "k_norm.scale")])
        wide, plain = X.astype("float64"), attention.to("numpy")
        within(call(split, X, X, X), mha.parity.in_dtype(plain, "float64")(*3 * [wide]), plain(X, X, X), gradient=False)
        assert_same_weights(parallel.gather(module.bind(split)), attention.weights)
    of_keys = 2 * D // H
    assert found[0] == [(D, D // N), (D, of_keys), (of_keys,), (of_keys,)]
    assert found[1] == [(D, D // N), (D, of_keys // N), (of_keys // N,), (of_keys // N,)]
    refused(lambda: parallel.plan(module, "rows", mesh()), "heads is 'rows'", "'devices'")
    refused(lambda: parallel.plan(module, mesh="devices"), "mesh", "jax.sharding.Mesh", kind=TypeError)
    six = mha.MultiHeadAttention(D - 4, 6, backend="jax").layer.unbind()[0]
    refused(lambda: parallel.plan(six, "devices", mesh()), "num_heads is 6", "8")


def check_what_does_not_divide_is_refused(group):
    module, variables = layer()
    X, six = jnp.zeros((3, T, D)), mha.MultiHeadAttention(D - 4, 6, backend="jax").layer.unbind()

    def call(made=(module, variables), X=X, **way):
        return lambda: parallel.attend(*made, X, X, X, **{"mesh": mesh()} | way)

    refused(call(data="devices"), "batch size 3", "8")
    refused(call(six, X[..., :60], heads="devices"), "6", "8")
    refused(call(six, X[..., :60], sequence="devices", how="ulysses"), "6 heads on 8 devices", '"ring"')
    refused(call(heads="rows"), "heads is 'rows'", "'devices'")
    refused(call(heads="devices", sequence="devices"), "an axis of its own")
    refused(call(sequence="devices", how="rings"), "how", "ring")
    refused(call(mesh=None, heads="devices"), "mesh", kind=TypeError)
    refused(call(heads="devices", rngs=jax.random.key(0)), "rngs", '{"dropout": jax.random.key(seed)}', kind=TypeError)
    refused(lambda: parallel.gather(module), "module.bind(variables)", kind=TypeError)
    refused(lambda: parallel.plan(mha.MultiHeadAttention(4, 2, backend="jax")), "attention.layer", kind=TypeError)
