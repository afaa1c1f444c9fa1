"""JAX on a GPU that is only named: which calls cuDNN's kernel computes, what it is handed, and what is compiled."""

import re

import adapters
import gpu_of_jax
import numpy as np
import pytest
from layers import assert_within_bounds

import mha
from mha import parity
from mha.core.engine import blocks
from mha.core.options.config import numpy_dtype

pytestmark = pytest.mark.backends("jax")
T = 67  # tokens, which do not fill a tile
MANY = np.arange(3 * T).reshape(3, T) % T
SQUARE = np.ones((T, T), bool)
# Options, arguments and sizes of calls, and words of what the kernel cannot do; what is not said is as in `choice`.
CHOICES = {
    "plain": ({}, {}, {}, None),
    "order": ({}, {"causal": True}, {}, None),
    "lengths": ({}, {"valid_lens": [T, 0, 3]}, {}, None),
    "lengths in order": ({}, {"valid_lens": [T, 0, 3], "causal": True}, {}, None),
    "lengths of queries": ({}, {"valid_lens": MANY}, {}, "one length for all queries"),
    "window to the left": ({"window": (9, 0)}, {}, {}, None),
    "window and order": ({"window": (9, 4)}, {"causal": True}, {}, None),
    "window that is an order": ({"window": (None, 0)}, {}, {}, None),
    "window to the right": ({"window": (9, 1)}, {}, {}, "without the causal order"),
    "window without an order": ({"window": (9, None)}, {}, {}, "without the causal order"),
    "groups": ({"num_key_value_heads": 2}, {}, {}, None),
    "scale": ({"scale": 2.0}, {}, {}, None),
    "bias of weights": ({"bias": True}, {}, {}, None),
    "gates of heads": ({}, {"head_gates": np.ones(4, "float16")}, {}, None),
    "cap": ({"softcap": 5.0}, {}, {}, "capped"),
    "sinks": ({"sinks": True}, {}, {}, "sinks"),
    "dropout in training": ({"dropout": 0.5}, {"training": True}, {}, "neither kept"),
    "dropout": ({"dropout": 0.5}, {}, {}, None),
    "additive": ({"pooling": "additive"}, {}, {}, "dot products"),
    "mask": ({}, {"mask": SQUARE}, {}, "a mask or bias"),
    "bias": ({}, {"score_bias": SQUARE.astype("float16")}, {}, "a mask or bias"),
    "segments": ({}, {"segments": MANY}, {}, "no segments"),
    "chunk": ({"chunk": 8}, {"causal": True}, {}, "no segments"),
    "positions": ({}, {"positions": MANY, "key_positions": MANY, "causal": True}, {}, "a mask or bias"),
    "offset without an order": ({}, {"offset": 3}, {}, None),
    "offset in order": ({}, {"offset": 3, "causal": True}, {}, "not documented"),
    "fewer queries": ({}, {}, {"queries": 64}, None),
    "few queries": ({}, {}, {"queries": 63}, "with few"),
    "few keys": ({}, {}, {"keys": 63}, "with few"),
    "fewer queries in order": ({}, {"causal": True}, {"queries": 64}, None),  # later keys are left out
    "more queries in order": ({}, {"causal": True}, {"keys": 66}, "not documented"),
    "bfloat16": ({"dtype": "bfloat16"}, {}, {}, None),
    "float32": ({"dtype": "float32"}, {}, {}, "float16 and bfloat16"),
    "128 wide": ({"key_dim": 128, "value_dim": 128}, {}, {}, None),
    "136 wide": ({"key_dim": 136, "value_dim": 136}, {}, {}, "128 wide"),
    "12 wide": ({"key_dim": 12, "value_dim": 12}, {}, {}, "multiple of 8"),
    "values of another width": ({"value_dim": 16}, {}, {}, "as wide"),
    "an old GPU": ({}, {}, {"capability": "7.5"}, "8.0"),
    "the oldest GPU": ({}, {}, {"capability": "8.0"}, None),
    "a new GPU": ({}, {}, {"capability": "12.0"}, None),
    "another maker's GPU": ({}, {}, {"capability": "gfx942"}, "NVIDIA"),
    "JAX before 0.11.2": ({}, {}, {"version": (0, 11, 1)}, "jax.vmap"),
}


@pytest.fixture
def kernels():
    from mha.backends.jax.engine import kernels

    return kernels


@pytest.fixture
def named(monkeypatch, kernels):
    """A function that names the GPU where calls run from now on, and the version of JAX."""
    adapter = adapters.of("jax")

    def name(capability="9.0", version=(0, 11, 2), **more):
        found = gpu_of_jax.gpu(capability, **more)
        monkeypatch.setattr(kernels, "gpu_of", lambda X: found)
        monkeypatch.setattr(kernels, "VERSION", version)
        adapter.forget_programs()

    yield name
    adapter.forget_programs()


@pytest.fixture
def handed(monkeypatch):
    """What the kernel is handed beside queries, keys and values, in each call; it computes as `gpu_of_jax` says."""
    import jax

    found = []

    def kernel(*inputs, **named):
        found.append(named)
        return gpu_of_jax.kernel(*inputs, **named)

    monkeypatch.setattr(jax.nn, "dot_product_attention", kernel)
    return found


@pytest.mark.parametrize("name", CHOICES)
def test_which_calls_the_kernel_computes(name, named, handed, kernels, monkeypatch):
    import jax

    options, call, sizes, cannot = CHOICES[name]
    sizes, reasons, limits = {"queries": T, "keys": T} | sizes, [], kernels.limits

    def recorded(remedy, *case):
        reasons.extend(found := limits(remedy, *case) if remedy == "products" else [])
        return found or limits(remedy, *case)

    monkeypatch.setattr("mha.backends.jax.engine.pooling.limits", recorded)
    named(**{name: sizes[name] for name in sizes.keys() & {"capability", "version"}})
    attention = mha.MultiHeadAttention(32, 4, seed=0, backend="jax", **{"dtype": "float16"} | options)
    module, variables = attention.layer.unbind()
    call = {name: np.array(X) if isinstance(X, list) else X for name, X in call.items()}
    inputs = [np.zeros((3, sizes[name], 32), attention.config.dtype) for name in ("queries", "keys", "keys")]
    if attention.config.dtype == "bfloat16":
        inputs = [jax.numpy.asarray(X, "bfloat16") for X in inputs]
    rngs = {"dropout": jax.random.key(0)}
    jax.eval_shape(lambda *inputs: module.apply(variables, *inputs, **call, rngs=rngs), *inputs)
    if cannot is None:
        assert (reasons, len(handed)) == ([], 1)
    else:
        assert not handed
        assert any(cannot in one for one in reasons), reasons


def test_on_a_processor_it_computes_none(handed, monkeypatch, kernels, rng):
    monkeypatch.setattr(kernels, "VERSION", (0, 11, 2))
    X = rng.normal(size=(3, T, 32)).astype("float16")
    attention = mha.MultiHeadAttention(32, 4, backend="jax", dtype="float16")
    attention(X, X, X)
    assert not handed
    monkeypatch.setattr(kernels, "_device_of", None)
    attention(X, X, X)  # no call asks for its device where there is no GPU


def test_several_devices_have_a_way_of_their_own(kernels):
    import jax

    mesh = jax.sharding.AbstractMesh((2,), ("samples",))
    X = jax.ShapeDtypeStruct((4, T, 8), "float16", sharding=jax.NamedSharding(mesh, jax.P("samples")))
    (rule,) = [limit for limit in kernels.LIMITS if "one device" in limit.what]
    found = []
    jax.eval_shape(lambda X: found.append(rule.concerns(kernels.Case(None, X, X, X, None))), X)
    jax.eval_shape(lambda X: found.append(rule.concerns(kernels.Case(None, X, X, X, None))), np.zeros((4, T, 8)))
    assert found == [True, False]


# Options and arguments of calls, the sizes of queries and keys, and what the kernel is handed beside these.
LENGTHS = [T, 0, 1, 40]
CALLS = {
    "full tiles": ({}, {}, (128, 128), {"lengths": False}),
    "order of full tiles": ({}, {"causal": True}, (128, 128), {"lengths": False, "is_causal": True}),
    "an even number of queries": ({}, {}, (70, 128), {"lengths": True}),
    "an even number of keys": ({}, {}, (128, 70), {"lengths": True}),
    "odd numbers": ({}, {}, (T, 65), {"lengths": True}),
    "lengths": ({"bias": True}, {"valid_lens": LENGTHS}, (128, 128), {"lengths": True}),
    "lengths beyond all": ({}, {"valid_lens": [900, 0, 1, 40]}, (T, T), {"lengths": True}),
    "order": ({}, {"valid_lens": LENGTHS, "causal": True}, (T, T), {"lengths": True, "is_causal": True}),
    "window": ({"window": (5, 0)}, {}, (T, T), {"lengths": True, "is_causal": True, "local_window_size": (5, 0)}),
    "window and lengths": (
        {"window": (5, 2), "bias": True},
        {"valid_lens": LENGTHS, "causal": True},
        (T, T),
        {"lengths": True, "is_causal": True, "local_window_size": (5, 0)},
    ),
    "window that hides one key": (
        {"window": (T - 2, 0)},
        {"valid_lens": LENGTHS},
        (T, T),
        {"lengths": True, "is_causal": True, "local_window_size": (T - 2, 0)},
    ),
    "window that hides none": (
        {"window": (T - 1, 0)},
        {"valid_lens": LENGTHS},
        (T, T),
        {"lengths": True, "is_causal": True, "local_window_size": None},
    ),
    "groups and scale": (
        {"num_key_value_heads": 2, "scale": 0.3, "qk_norm": "rms", "rotary": mha.Rotary()},
        {"valid_lens": LENGTHS},
        (T, T),
        {"lengths": True, "scale": 0.3},
    ),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", CALLS)
def test_its_numbers_are_those_of_the_lesson(name, dtype, named, handed, kernels, monkeypatch):
    """In float32, too, which the kernel does not know, so that a small mistake is seen."""
    options, call, (Q, K), wanted = CALLS[name]
    monkeypatch.setattr(kernels, "LIMITS", [one for one in kernels.LIMITS if one.what != "float16 and bfloat16"])
    named()
    attention = mha.MultiHeadAttention(64, 4, seed=0, backend="jax", dtype=dtype, **options)
    random = np.random.default_rng(3)
    cotangent, queries, *others = (random.normal(size=(4, size, 64)) for size in (Q, Q, K, K))
    for X in others:
        for row, length in zip(X, call.get("valid_lens", ()), strict=False):
            row[length:] = np.nan
    inputs = [X.astype(numpy_dtype(dtype)) for X in (queries, *others, cotangent)]
    call = {name: np.array(X) if isinstance(X, list) else X for name, X in call.items()}
    assert parity.ratio(attention, attention(*inputs[:3], **call), *inputs[:3], **call) <= 1
    given = {name: X for name, X in handed[0].items() if name in wanted}
    assert given | {"lengths": handed[0]["query_seq_lengths"] is not None} == wanted
    found, base = (
        one.gradients(*inputs[:3], cotangent=inputs[3], **call) for one in (attention, attention.to("numpy"))
    )
    wide = [X.astype("float64") for X in inputs]
    oracle = parity.in_dtype(attention.to("numpy"), "float64").gradients(*wide[:3], cotangent=wide[3], **call)
    assert len(handed) == 2
    for name, X in oracle.items():
        limit = parity.bound(dtype, X, base[name], gradient=True, scale=parity.gradient_scale(name, oracle))
        assert parity.error(found[name], X) <= limit, name


def test_a_query_that_sees_a_key_behind_its_window_is_computed(named, handed, kernels, rng):
    """How many queries the kernel is told that there are: those that see a key, and no fewer."""
    import jax

    named()
    module, variables = mha.MultiHeadAttention(
        32, 4, seed=0, backend="jax", dtype="float16", window=(5, 0)
    ).layer.unbind()
    X = rng.normal(size=(4, T, 32)).astype("float16")
    with jax.disable_jit():
        module.apply(variables, X, X, X, np.array([T, 0, 1, 40]))
    assert handed[0]["query_seq_lengths"].tolist() == [T, 6, 6, 45]
    assert handed[0]["key_value_seq_lengths"].tolist() == [T, 1, 1, 40]


# Options and arguments of calls, and whether the kernel computes them in bfloat16.
COMPILED = {
    "none": ({}, {}, True),
    "lengths": ({}, {"valid_lens": np.arange(8)}, True),
    "odd tokens": ({}, {"valid_lens": np.arange(8)}, True),
    "order": ({}, {"causal": True}, True),
    "window": ({"window": (256, 0)}, {"valid_lens": np.arange(8)}, True),
    "softcap": ({"softcap": 30.0}, {"valid_lens": np.arange(8), "causal": True}, False),
    "sinks": ({"sinks": True, "window": (256, 3)}, {}, False),
    "segments": ({}, {"segments": np.arange(8 * 1024).reshape(8, 1024) // 300}, False),
    "offsets": ({"window": (256, 0)}, {"offset": np.arange(8)}, False),
}


@pytest.fixture
def traced_here(monkeypatch):
    """JAX traces the kernel without a GPU."""
    from jax._src.cudnn import fused_attention_stablehlo as kernel

    monkeypatch.setattr(kernel, "check_cudnn_version", lambda: 91200)
    monkeypatch.setattr(kernel, "check_compute_capability", lambda capability: True)
    monkeypatch.setattr(kernel, "is_cuda_compute_capability_equal", lambda capability: False)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", COMPILED)
def test_programs_for_cuda_have_the_kernel_and_neither_loops_nor_branches(name, dtype, named, traced_here):
    import jax

    options, call, is_kernel = COMPILED[name]
    named()
    module, variables = mha.MultiHeadAttention(1024, 16, backend="jax", dtype=dtype, **options).layer.unbind()
    arrays = {name: X for name, X in call.items() if isinstance(X, np.ndarray)}

    def total(variables, X, arrays):
        return module.apply(variables, X, X, X, **call | arrays).astype("float32").sum()

    inputs = variables, jax.ShapeDtypeStruct((8, 1023 if name == "odd tokens" else 1024, 1024), dtype), arrays
    lowered = jax.jit(jax.value_and_grad(total, (0, 1))).trace(*inputs).lower(lowering_platforms=("cuda",)).as_text()
    found = set(re.findall(r"__cudnn\$fmha\w+", lowered))
    wanted = {"__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward"} if is_kernel and dtype == "bfloat16" else set()
    assert found == wanted
    assert not re.search(r"stablehlo\.(while|case|if)\b", lowered)


@pytest.mark.parametrize("mask", [None, np.ones((3, 50), bool)], ids=["plain", "mask"])
@pytest.mark.parametrize("fits", [True, False], ids=["fits", "in pieces"])
def test_tokens_in_a_cache_are_computed_without_branches(fits, mask, named, monkeypatch):
    import jax

    monkeypatch.setattr(blocks, "SCORES", 60)
    if not fits:
        monkeypatch.setattr(blocks, "room_in", lambda memory: 60)
    named()
    attention = mha.MultiHeadAttention(32, 4, backend="jax", dtype="float16")
    module, variables = attention.layer.unbind()
    X, cache = jax.ShapeDtypeStruct((2, 3, 32), "float16"), attention.cache(2, 50)

    def decode(cache, X):
        return module.apply(variables, X, X, X, cache=cache, causal=True, mask=mask)

    lowered = jax.jit(decode).trace(cache, X).lower(lowering_platforms=("cuda",)).as_text()
    assert not re.search(r"stablehlo\.(case|if)\b", lowered)
    copied = re.search(r"concatenate.*-> tensor<8x53x8xf16>", lowered)  # slots beside new tokens
    assert (copied is None, "stablehlo.while" not in lowered) == (fits, fits)


def test_first_tokens_of_a_cache_are_computed_by_the_kernel(named, handed, rng):
    named()
    attention = mha.MultiHeadAttention(64, 4, seed=0, backend="jax", dtype="bfloat16")
    X = rng.normal(size=(2, T, 64)).astype(numpy_dtype("bfloat16"))
    output, cache = attention(X, X, X, causal=True, cache=attention.cache(2, 150))
    assert (len(handed), handed[0]["is_causal"]) == (1, True)
    assert parity.ratio(attention, output, X, X, X, causal=True) <= 1
    attention(X, X, X, causal=True, cache=cache)
    assert len(handed) == 1


def test_first_tokens_of_a_cache_with_a_mask_of_slots(named, rng):
    named()
    attention, X = mha.MultiHeadAttention(12, 3, seed=0, backend="jax"), rng.normal(size=(2, 5, 12)).astype("float32")
    mask = rng.random((5, 9)) < 0.7
    found, wanted = (
        one(X, X, X, causal=True, mask=mask, cache=one.cache(2, 9))[0] for one in (attention, attention.to("numpy"))
    )
    assert parity.error(found, wanted) <= parity.bound("float32", wanted, wanted)


PIECES = {
    "lengths": ({}, {"valid_lens": [31, 0, 7]}),
    "order and lengths of queries": ({}, {"valid_lens": MANY[:, :31] % 32, "causal": True}),
    "window": ({"window": (4, 3), "num_key_value_heads": 2}, {"offset": np.array([0, -3, 9])}),
    "segments": ({}, {"segments": MANY[:, :31] // 9 - 1, "causal": True}),
    "segments and window": ({"window": (4, 3)}, {"segments": MANY[:, :31] // 9 - 1}),
    "segments and positions": (
        {"window": (4, 3)},
        {"segments": MANY[:, :31] // 9, "positions": MANY[:, :31], "key_positions": MANY[:, :31]},
    ),
    "cap and sinks": ({"softcap": 2.0, "sinks": True}, {"mask": np.tri(31, k=-1, dtype=bool)}),
}


@pytest.mark.parametrize("name", PIECES)
def test_what_does_not_fit_is_computed_in_few_pieces(name, named, monkeypatch, rng):
    """Two samples are computed together, then the third one."""
    import jax

    options, call = PIECES[name]
    monkeypatch.setattr(blocks, "room_in", lambda memory: 2 * 4 * 31 * 40)
    if name != "window":  # whose blocks are at least as large
        monkeypatch.setattr(blocks, "LEAST", 5)
    named()
    attention = mha.MultiHeadAttention(24, 4, seed=0, backend="jax", **options)
    X = rng.normal(size=(3, 31, 24)).astype("float32")
    call = {name: np.array(X) if isinstance(X, list) else X for name, X in call.items()}
    assert parity.ratio(attention, attention(X, X, X, **call), X, X, X, **call) <= 1
    plain = attention.to("numpy")
    layers = attention, parity.in_dtype(plain, "float64"), plain
    found = (one.gradients(*[X.astype(one.config.dtype)] * 3, **call) for one in layers)
    assert_within_bounds(*found, "float32")
    module, variables = attention.layer.unbind()
    lowered = jax.jit(lambda X: module.apply(variables, X, X, X, **call)).lower(X).as_text()
    assert len(re.findall(r"stablehlo\.while\b", lowered)) == 1
    assert re.search(r"= stablehlo\.constant dense<2> : tensor<i32>", lowered)  # how often it goes round
    assert not re.search(r"stablehlo\.(case|if)\b", lowered)


def test_no_piece_is_larger_than_memory_allows(named, monkeypatch):
    from mha.backends.jax.engine import pieces

    loops, counts = pieces._in_loops, []

    def in_loops(function, of_each, *inputs):
        counts.append(of_each)
        return loops(function, of_each, *inputs)

    monkeypatch.setattr(pieces, "_in_loops", in_loops)
    monkeypatch.setattr(blocks, "room_in", lambda memory: 300)
    named()
    X = np.ones((3, 31, 24), "float32")
    mha.MultiHeadAttention(24, 4, backend="jax")(X, X, X)
    assert counts[0] == (3, 4, 4)  # samples, heads, and blocks of 8 queries, which need 31 keys


@pytest.mark.parametrize("memory", [gpu_of_jax.MEMORY, None])
def test_pieces_are_as_large_as_memory_allows(memory, named, kernels):
    from mha.core.call import Call

    named(memory=memory)
    plan = kernels.beside_gpu(Call(), None).plan
    assert plan.room == blocks.room_in(memory or 2**34)
    assert plan.room > blocks.SCORES


def test_no_call_waits_for_the_device(named, monkeypatch, rng):
    from mha.backends import jax as backend
    from mha.backends.jax import arrays

    def read(X):
        raise AssertionError("waits for the device")

    attention = mha.MultiHeadAttention(12, 3, seed=0, backend="jax")
    (X, lengths, offsets, tokens) = adapters.of("jax").own(
        rng.normal(size=(2, 8, 12)).astype("float32"), *(np.array(X, "int32") for X in ([3, 9], [-2, 1], 2 * [8 * [1]]))
    )
    named()
    calls = [
        {"valid_lens": lengths},
        {"offset": offsets, "causal": True},
        {"segments": tokens},
        {"positions": tokens, "key_positions": tokens, "causal": True},
    ]
    wanted = [mha.to_numpy(attention(X, X, X, **call)) for call in calls]
    adapters.of("jax").forget_programs()
    for module in (arrays, backend):
        monkeypatch.setattr(module, "is_far", lambda X: True)
        monkeypatch.setattr(module, "to_numpy", read)
    found = [attention(X, X, X, **call) for call in calls for _ in range(2)]
    monkeypatch.undo()
    for array, output in zip(found, np.repeat(wanted, 2, 0), strict=True):
        assert parity.error(mha.to_numpy(array), output) <= parity.bound("float32", output, output)


def test_a_call_runs_where_its_arrays_lie(monkeypatch, kernels, rng):
    """Also if others would lie on a GPU: what is compiled for one is no program for the other."""
    import jax

    processor, other, usual = jax.devices("cpu")[0], gpu_of_jax.gpu(), kernels._usual_device
    monkeypatch.setattr(kernels, "_usual_device", lambda: usual() if jax.config.jax_default_device else other)
    monkeypatch.setattr(kernels, "_gpus", lambda: [other])
    X, rooms = jax.numpy.asarray(rng.normal(size=(2, 8, 12)).astype("float32")), []
    beside = kernels.beside_gpu
    monkeypatch.setattr(
        "mha.backends.jax.engine.layer.beside_gpu",
        lambda *inputs: (found := beside(*inputs), rooms.append(found.plan.room))[0],
    )
    attention = mha.MultiHeadAttention(12, 3, backend="jax")
    adapters.of("jax").forget_programs()
    attention(X, X, X)
    attention.gradients(X, X, X)
    attention(X, X, X, cache=attention.cache(2, 9))
    attention(X, cache=attention.cache_of(X))
    assert rooms == 4 * [None]
    module, variables = attention.layer.unbind()
    jax.eval_shape(module.apply, variables, X, X, X)
    with jax.default_device(processor):
        jax.eval_shape(module.apply, variables, X, X, X)
    assert [room is None for room in rooms[4:]] == [False, True]
