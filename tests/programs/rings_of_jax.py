"""Checks of a ring of JAX over eight devices: rows in zigzag, segments and positions.

Letters as in devices_of_jax.py.
"""

import collections
import contextlib
import functools

import jax
import numpy as np
from devices_of_jax import (
    PART,
    WEIGHTS,
    D,
    H,
    T,
    agree,
    dropout_of,
    dropped,
    layer,
    loops,
    mesh,
    sent,
    texts,
    within,
)  # fmt: skip
from jax import numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from ranks import long, refused

import mha
from mha import parallel
from mha.core.engine import blocks
from mha.parallel import rows
from mha.parallel.jax.ring import passes

RING = {"sequence": "devices", "how": "ring"}


@contextlib.contextmanager
def always(**options):
    """Calls over devices with these options."""
    given = parallel.attend
    parallel.attend = functools.partial(given, **options)
    try:
        yield
    finally:
        parallel.attend = given


def work(call, count, size, both=False, **options):
    """How many pairs of queries and keys each of so many devices computes scores of, in a call of so many rows."""
    found, scores = collections.Counter(), passes._scores

    def counted(circle, call, q, k, bias, variables):
        pairs = q.shape[1] * k.shape[1]
        jax.debug.callback(lambda device: found.update({int(device): pairs}), jax.lax.axis_index("devices"))
        return scores(circle, call, q, k, bias, variables)

    module, variables = layer()
    X = jnp.asarray(np.random.default_rng(0).normal(size=(1, size, D)).astype("float32"))
    few = Mesh(np.array(jax.devices()[:count]), ("devices",))

    def attend(X):
        return parallel.attend(module, variables, X, X, X, mesh=few, **RING, **call, **options)

    passes._scores = counted
    try:
        jax.block_until_ready(jax.jit(jax.grad(lambda X: attend(X).sum()) if both else attend)(X))
        jax.effects_barrier()
    finally:
        passes._scores = scores
    return np.array([found[device] for device in range(count)])


def check_zigzag_balances_a_causal_ring(group):
    for both in (False, True):
        for options, least, most in (({}, 1, 1.1), ({"zigzag": True}, 1, 1.1), ({"zigzag": False}, 1.5, 1.7)):
            pairs = work({"causal": True}, 4, 64, both, **options)
            assert least <= pairs.max() / pairs.mean() <= most, (options, pairs)


@long
def check_rows_go_into_zigzag_and_back(group):
    for count in (1, 3, 8):
        few = Mesh(np.array(jax.devices()[:count]), ("devices",))
        spec, X = PartitionSpec(None, "devices"), np.arange(2 * 6 * count).reshape(2, 6 * count)
        ways = [functools.partial(way, axis="devices", dim=1) for way in (passes.into_zigzag, passes.out_of_zigzag)]
        there, back = (jax.jit(jax.shard_map(way, mesh=few, in_specs=spec, out_specs=spec)) for way in ways)
        expected = [X[:, piece] for pieces in rows.zigzag(6 * count, count) for piece in pieces]
        assert np.array_equal(there(X), np.concatenate(expected, 1)), count
        assert np.array_equal(back(there(X)), X), count


@long
def check_zigzag_sends_queries_keys_values_and_outputs_there_and_back(group):
    forward, both = texts(causal=True, **RING)
    pieces = [PART // 2] * 8  # two of each array: at most 4 parts, beside those of the ring
    assert sent(forward) == {"collective-permute": pieces + 2 * [PART]}, sent(forward)
    assert loops(forward) == 1
    assert sent(both) == {"collective-permute": 2 * pieces + 8 * [PART], "all-reduce": [WEIGHTS]}, sent(both)
    assert loops(both) == 2
    consecutive = texts(causal=True, zigzag=False, **RING)
    assert [sent(text) for text in consecutive] == [sent(text) for text in texts(**RING)]


def check_all_options_agree_in_zigzag(group):
    with always(zigzag=True):
        agree({"data x heads x ring"}, "all options")


@long
def check_cases_agree(group):
    agree({"data x heads x ring"}, "segments")
    agree({"ring"}, "positions")
    with always(zigzag=True):
        for case in ("additive, all options", "lengths per query, mask", "segments, positions"):
            agree({"ring"}, case)
        agree({"ring"}, "sinks, lengths", "bfloat16")


@long
def check_dropout_differs_between_devices_and_halves_in_zigzag(group):
    dropout_of(RING | {"zigzag": True})
    kept = next(dropped(RING | {"zigzag": True})) > 0  # (B, H, T, T), whose key T - 1 - j is on the device of key j
    assert not np.array_equal(kept, kept[..., ::-1])


@long
def check_chunks_beside_segments_agree_in_a_ring(group):
    """Chunks then go by positions, and segments by their numbers, which need no order."""
    attention = mha.MultiHeadAttention(D, H, backend="numpy", bias=True, seed=0, chunk=5)
    module, variables = attention.to("jax").layer.unbind()
    X, segments = np.random.default_rng(2).normal(size=(2, 21, D)).astype("float32"), np.arange(21) * 7 % 4 - 1
    call = {"segments": segments, "offset": [3, -2], "causal": True}
    found = parallel.attend(module, variables, X, X, X, **call, mesh=mesh(), **RING)
    assert mha.parity.ratio(attention, np.asarray(found), X, X, X, **call) <= 1


@long
def check_blocks_that_do_not_divide_the_rows_see_no_padding(group):
    """Of five rows on each device two are attended together; what is filled in is of no segment."""
    given, blocks.SCORES = blocks.SCORES, 400
    try:
        X, segments = np.random.default_rng(2).normal(size=(1, 40, D)).astype("float32"), np.arange(40) % 3
        poisoned = np.where(segments[:, None] == 0, np.nan, X)
        attention = mha.MultiHeadAttention(D, H, backend="numpy", bias=True, seed=0)
        module, variables = attention.to("jax").layer.unbind()
        call = {"segments": segments % 2 + 1, "key_segments": segments}
        both = jax.jit(functools.partial(parallel.attend, module, **call, mesh=mesh(), **RING))
        output, pull = jax.vjp(lambda X: both(variables, X, poisoned, poisoned), X)
        assert mha.parity.ratio(attention, np.asarray(output), X, X, X, **call) <= 1
        wide = X.astype("float64")
        exact = mha.parity.in_dtype(attention, "float64").gradients(wide, wide, wide, **call, cotangent=wide)
        found = attention.gradients(X, X, X, **call, cotangent=X)
        within(pull(X)[0], exact["queries"], found["queries"])
    finally:
        blocks.SCORES = given


@long
def check_segments_that_do_not_meet_are_left_out(group):
    segments, places = np.repeat([3, 0, 2, 1], 16), np.arange(64)
    segments[15::16] = -1  # padding
    assert (work({"segments": segments}, 4, 64) == 16 * 16).all()  # each of four devices has one of its own
    backwards = {"positions": places[::-1], "key_positions": places}
    assert (work(backwards | {"causal": True}, 4, 64) == 16 * 16 * np.array([4, 3, 2, 1])).all()


def needed(**call):
    """MiB that XLA needs on each device for a call of 8,192 rows and its gradients, beside arguments and results."""
    module, variables = layer()
    X = jax.ShapeDtypeStruct((1, 8192, D), "float32", sharding=NamedSharding(mesh(), PartitionSpec(None, "devices")))

    def both(X, given):
        output, pull = jax.vjp(lambda X: parallel.attend(module, variables, X, X, X, **given, mesh=mesh(), **RING), X)
        return output, pull(output)

    return jax.jit(both).lower(X, call).compile().memory_analysis().temp_size_in_bytes / 2**20


@long
def check_segments_and_positions_take_no_memory_of_all_pairs(group):
    """5.1 MiB, and 0.2 more with both; a mask of all keys for the queries of one device alone has 8."""
    plain, tokens = needed(), jax.ShapeDtypeStruct((1, 8192), "int32")
    assert needed(segments=tokens, positions=tokens, key_positions=tokens) < plain + 1


def check_zigzag_for_what_is_no_ring_is_refused(group):
    module, variables = layer()
    X = jnp.zeros((1, T, D))

    def call(**options):
        return lambda: parallel.attend(module, variables, X, X, X, mesh=mesh(), **options)

    refused(call(sequence="devices", how="gather", zigzag=True), 'zigzag is True beside how="gather"', 'how="ring"')
    refused(call(heads="devices", zigzag=True), "zigzag is True without sequence", 'sequence="axis"')
    refused(call(zigzag="yes", **RING), "zigzag is 'yes'", "True or False", kind=TypeError)
