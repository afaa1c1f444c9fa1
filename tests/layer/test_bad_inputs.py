"""Bad arguments of a layer are refused, with the same error and words on every backend and path."""

import re
import threading
import warnings

import adapters
import malformed
import numpy as np
import pages
import pytest
from calls import SHAPES, B, D, H, K, Q, draw, draw_by_name, make, own

import mha
from mha.core import dispatch
from mha.core.options.config import numpy_dtype

from .paths import PATHS, on, refuses


class Sneaky:
    """Looks like an array to those who ask for attributes alone."""

    shape, dtype, device = (B,), np.dtype("int64"), "cpu"


def nested(depth):
    value = [1]
    for _ in range(depth):
        value = [value]
    return value


# name -> the argument, what stands in its place (from the good one), the error's class, and how its words begin.
BAD = {
    # shapes
    "rank 0": ("queries", lambda X: np.array(1, "float32"), ValueError, "queries has shape (), expected (batch, queri"),
    "rank 1": ("queries", lambda X: X[0, 0], ValueError, "queries has shape (13,), expected (batch, queries, 13)"),
    "rank 2": ("keys", lambda X: X[0], ValueError, "keys has shape (7, 17), expected (batch, key-value pairs, 17)"),
    "rank 4": ("values", lambda X: X[None], ValueError, "values has shape (1, 2, 7, 19), expected (batch, key-value p"),
    "batch of one": ("keys", lambda X: X[:1], ValueError, "keys has batch size 1, expected 2 as queries: nothing broa"),
    "other batch": ("values", lambda X: X.repeat(2, 0), ValueError, "values has batch size 4, expected 2 as queries"),
    "fewer values": ("values", lambda X: X[:, 1:], ValueError, "values has 6 rows a sample, expected 7: one for each"),
    "more values": ("values", lambda X: X.repeat(2, 1), ValueError, "values has 14 rows a sample, expected 7"),
    "width": ("keys", lambda X: X[:, :, 1:], ValueError, "keys has shape (2, 7, 16), expected (batch, key-value pairs"),
    "transposed": ("keys", lambda X: X.swapaxes(1, 2).copy(), ValueError, "keys has shape (2, 17, 7), expected (batch"),
    "none": ("queries", lambda X: None, TypeError, "queries is *None*, expected a"),
    "text": ("keys", lambda X: "keys", TypeError, "keys is *str*, expected a"),
    "number": ("values", lambda X: 1.5, TypeError, "values is *float*, expected a"),
    "dict": ("values", lambda X: {"values": 1}, TypeError, "values is *dict*, expected a"),
    "iterator": ("keys", lambda X: iter([1.0]), TypeError, "keys is *iterator*, expected a"),
    "looks like an array": ("queries", lambda X: Sneaky(), TypeError, "queries is *Sneaky*, expected a"),
    "masked array": ("keys", np.ma.masked_array, TypeError, "keys is *MaskedArray*, expected a"),
    # dtypes; where the framework has no such dtype, NumPy's array is refused for what it is
    "objects": ("queries", lambda X: X.astype(object), TypeError, "queries *, expected "),
    "texts": ("queries", lambda X: X.astype(str), TypeError, "queries *, expected "),
    "integers": ("queries", lambda X: X.astype("int32"), TypeError, "queries has dtype int32, expected float32 as the"),
    "booleans": ("values", lambda X: X > 0, TypeError, "values has dtype bool, expected float32 as the layer; conve"),
    "complex": ("keys", lambda X: X.astype("complex64"), TypeError, "keys *, expected "),
    "float64": ("queries", lambda X: X.astype("float64"), TypeError, "queries *, expected "),
    "float16": ("keys", lambda X: X.astype("float16"), TypeError, "keys has dtype float16, expected float32 as the la"),
    "bfloat16": ("values", lambda X: X.astype(numpy_dtype("bfloat16")), TypeError, "values *, expected "),
    "longdouble": ("values", lambda X: X.astype("longdouble"), TypeError, "values *, expected "),
    # lengths
    "negative": ("valid_lens", lambda X: np.array([-1, 2]), ValueError, "valid_lens holds -1, expected 0 or more: the"),
    "negative list": ("valid_lens", lambda X: [2, -3], ValueError, "valid_lens holds -3, expected 0 or more"),
    "one negative": ("valid_lens", lambda X: np.where(np.eye(B, Q), -5, 3), ValueError, "valid_lens holds -5, expecte"),
    "very negative": ("valid_lens", lambda X: [-(2**62), 1], ValueError, "valid_lens holds -4611686018427387904, expe"),
    "halves": ("valid_lens", lambda X: [2.5, 3], TypeError, "valid_lens has dtype float64, expected integers; masks g"),
    "whole floats": ("valid_lens", lambda X: [2.0, 3.0], TypeError, "valid_lens has dtype float64, expected integers"),
    "float16 as lengths": ("valid_lens", lambda X: np.float16([2.5, 3]), TypeError, "valid_lens has dtype float16, ex"),
    "not a number": ("valid_lens", lambda X: [float("nan"), 3], TypeError, "valid_lens has dtype float64, expected in"),
    "booleans as lengths": ("valid_lens", lambda X: [True, False], TypeError, "valid_lens has dtype bool, expected in"),
    "texts as lengths": ("valid_lens", lambda X: ["3", "2"], TypeError, "valid_lens has dtype str*, expected integers"),
    "none in lengths": ("valid_lens", lambda X: [3, None], TypeError, "valid_lens has dtype object, expected integers"),
    "beyond integers": ("valid_lens", lambda X: [2**70, 1], TypeError, "valid_lens has dtype object, expected integer"),
    "ragged": ("valid_lens", lambda X: [[1, 2], [3]], ValueError, "valid_lens is a nested list that is no array"),
    "nested too deep": ("valid_lens", lambda X: nested(10_000), ValueError, "valid_lens is a nested list that is no a"),
    "too many": ("valid_lens", lambda X: [1, 2, 3], ValueError, "valid_lens has shape (3,), expected (2,) or (2, 5):"),
    "just one": ("valid_lens", lambda X: [1], ValueError, "valid_lens has shape (1,), expected (2,) or (2, 5): (batch"),
    "a query more": ("valid_lens", lambda X: np.ones((B, Q + 1), int), ValueError, "valid_lens has shape (2, 6), expe"),
    "transposed lengths": ("valid_lens", lambda X: np.ones((Q, B), int), ValueError, "valid_lens *; it looks transpos"),
    "for each head": ("valid_lens", lambda X: np.ones(B * H, int), ValueError, "valid_lens has shape (6,), expected ("),
    "scalar": ("valid_lens", lambda X: 3, TypeError, "valid_lens is 3 (int), expected integers of shape (batch,) or ("),
    "scalar array": ("valid_lens", lambda X: np.array(3), ValueError, "valid_lens has shape (), expected (2,) or (2,"),
    "rank 3": ("valid_lens", lambda X: np.ones((B, Q, 1), int), ValueError, "valid_lens has shape (2, 5, 1), expected"),
    "column": ("valid_lens", lambda X: [[1], [2]], ValueError, "valid_lens has shape (2, 1), expected (2,) or (2, 5):"),
    "mask as lengths": ("valid_lens", lambda X: np.ones((B, K), bool), TypeError, "valid_lens *; masks go to mask="),
    "set": ("valid_lens", lambda X: {3, 2}, TypeError, "valid_lens is {2, 3} (set), expected integers of shape"),
    "looks like lengths": ("valid_lens", lambda X: Sneaky(), TypeError, "valid_lens is *Sneaky*, expected integers of"),
    "masked lengths": ("valid_lens", lambda X: np.ma.masked_array([3, 2]), TypeError, "valid_lens is *MaskedArray*, e"),
    "times": ("valid_lens", lambda X: np.array([3, 2], "timedelta64[s]"), TypeError, "valid_lens has dtype timedelta6"),
    # masks
    "float mask": ("mask", lambda X: np.ones((Q, K), "float32"), TypeError, "mask has dtype float32, expected boolean"),
    "integer mask": ("mask", lambda X: np.ones((Q, K), "int32"), TypeError, "mask has dtype int32, expected booleans,"),
    "numbers": ("mask", lambda X: [[1] * K] * Q, TypeError, "mask has dtype int64, expected booleans, True = may atte"),
    "transposed mask": ("mask", lambda X: np.ones((K, Q), bool), ValueError, "mask has shape (7, 5), expected (5, 7),"),
    "mask of a batch": ("mask", lambda X: np.ones((B, K), bool), ValueError, "mask has shape *is mask[:, None]"),
    "mask of rank 1": ("mask", lambda X: np.ones((K,), bool), ValueError, "mask has shape (7,), expected (5, 7), (2,"),
    "mask of rank 5": ("mask", lambda X: np.ones((1, B, H, Q, K), bool), ValueError, "mask has shape (1, 2, 3, 5, 7),"),
    "heads in the batch": ("mask", lambda X: np.ones((B * H, Q, K), bool), ValueError, "mask has shape (6, 5, 7), *; o"
        "ne for each head of each sample (batch * heads, queries, keys) is mask.reshape(2, 3, 5, 7), negated if Tr*"),
    "heads in the bias": ("score_bias", lambda X: np.ones((B * H, 1, K), "float32"), ValueError, "score_bias has shape "
        "(6, 1, 7), *; one for each head of each sample (*) is score_bias.reshape(2, 3, 1, 7)"),
    "heads alone": ("mask", lambda X: np.ones((H, Q, K), bool), ValueError, "mask has shape (3, 5, 7), *is mask[None]"),
    "text as mask": ("mask", lambda X: "causal", TypeError, "mask is 'causal' (str), expected booleans, True = may at"),
    "true": ("mask", lambda X: True, TypeError, "mask is True (bool), expected booleans, True = may attend"),
    "masked mask": ("mask", lambda X: np.ma.masked_array(np.ones((Q, K), bool)), TypeError, "mask is *MaskedArray*, e"),
    "float mask and its place": ("mask", lambda X: np.zeros((Q, K), "float64"), TypeError, "mask *go to score_bias="),
    # biases of scores, offsets and gates
    "bias in float64": ("score_bias", lambda X: np.zeros((Q, K)), TypeError, "score_bias *, expected *"),
    "mask as bias": ("score_bias", lambda X: np.ones((Q, K), bool), TypeError, "score_bias *; booleans go to mask="),
    "integers as bias": ("score_bias", lambda X: np.ones((Q, K), "int32"), TypeError, "score_bias has dtype int32, ex"),
    "transposed bias": ("score_bias", lambda X: np.ones((K, Q), "float32"), ValueError, "score_bias has shape (7, 5),"),
    "bias of rank 1": ("score_bias", lambda X: np.ones(K, "float32"), ValueError, "score_bias has shape (7,), expecte"),
    "bias of a number": ("score_bias", lambda X: 0.5, TypeError, "score_bias is 0.5 (float), expected a dense array o"),
    "text as bias": ("score_bias", lambda X: "alibi", TypeError, "score_bias is 'alibi' (str), expected a dense array"),
    "offset in between": ("offset", lambda X: 0.5, TypeError, "offset is 0.5 (float), expected an int, or integers of"),
    "offset true": ("offset", lambda X: True, TypeError, "offset is True (bool), expected an int, or integers of sh"),
    "offset none": ("offset", lambda X: None, TypeError, "offset is None (NoneType), expected an int, or integers o"),
    "offset text": ("offset", lambda X: "3", TypeError, "offset is '3' (str), expected an int, or integers of shap"),
    "floats as offsets": ("offset", lambda X: [1.0, 2.0], TypeError, "offset has dtype float64, expected an int, or"),
    "offsets of queries": ("offset", lambda X: np.ones(Q, int), ValueError, "offset has shape (5,), expected (2,), ("),
    "offsets in a column": ("offset", lambda X: np.ones((B, 1), int), ValueError, "offset has shape (2, 1), expected"),
    "far offset": ("offset", lambda X: 2**31, ValueError, "offset holds 2147483648, expected no position beyond 10737"),
    "floats as positions": ("positions", lambda X: [0.0] * Q, TypeError, "positions has dtype float64, expected integ"),
    "positions of samples": ("positions", lambda X: np.ones(B, int), ValueError, "positions has shape (2,), expected "),
    "positions as an int": ("positions", lambda X: 3, TypeError, "positions is 3 (int), expected integers of shape (q"),
    "far positions": ("positions", lambda X: np.full(Q, 2**30 + 1), ValueError, "positions holds 1073741825, expected"),
    "positions of queries": ("key_positions", lambda X: np.ones(Q, int), ValueError, "key_positions has shape (5,), e"),
    "far keys": ("key_positions", lambda X: [0] * 6 + [2**31], ValueError, "key_positions holds 2147483648, expected "),
    "floats as segments": ("segments", lambda X: [0.0] * Q, TypeError, "segments has dtype float64, expected integers"),
    "segments of samples": ("segments", lambda X: np.ones(B, int), ValueError, "segments has shape (2,), expected (5"),
    "segments as an int": ("segments", lambda X: 3, TypeError, "segments is 3 (int), expected integers of shape (q"),
    "booleans as segments": ("key_segments", lambda X: np.ones(K, bool), TypeError, "key_segments has dtype bool, e"),
    "segments of queries": ("key_segments", lambda X: np.ones(Q, int), ValueError, "key_segments has shape (5,), e"),
    "far offsets": ("offset", lambda X: np.array([-(2**30) - 1, 0]), ValueError, "offset holds 1073741825, expected n"),
    "gates in float64": ("head_gates", lambda X: np.ones(H), TypeError, "head_gates *, expected *"),
    "gates of a number": ("head_gates", lambda X: 1.0, TypeError, "head_gates is 1.0 (float), expected a dense array"),
    "booleans as gates": ("head_gates", lambda X: np.ones(H, bool), TypeError, "head_gates has dtype bool, expected f"),
    "too few gates": ("head_gates", lambda X: np.ones(H - 1, "float32"), ValueError, "head_gates has shape (2,), expe"),
    "transposed gates": ("head_gates", lambda X: np.ones((H, B), "float32"), ValueError, "head_gates has shape (3, 2)"),
    # switches
    "causal 1": ("causal", lambda X: 1, TypeError, "causal is 1 (int), expected True or False"),
    "causal text": ("causal", lambda X: "yes", TypeError, "causal is 'yes' (str), expected True or False"),
    "training 1": ("training", lambda X: 1, TypeError, "training is 1 (int), expected True or False"),
    "training text": ("training", lambda X: "yes", TypeError, "training is 'yes' (str), expected True or False"),
    "weights 1": ("return_weights", lambda X: 1, TypeError, "return_weights is 1 (int), expected True or False"),
    "weights text": ("return_weights", lambda X: "no", TypeError, "return_weights is 'no' (str), expected True or Fal"),
    "causal none": ("causal", lambda X: None, TypeError, "causal is None (NoneType), expected True or False"),
}  # fmt: skip


@on(*PATHS)
def test_bad_inputs_are_refused(backend, rng, path):
    call = PATHS[path](backend)
    for name, change, error, words in BAD.values():
        arguments = draw_by_name(rng)
        arguments[name] = change(arguments.get(name))
        queries, keys, values = (arguments.pop(position) for position in SHAPES)
        if name in ("training", "return_weights") and path in ("gradients", "trace"):
            error, words = TypeError, f"*unexpected keyword argument '{name}'"
        with refuses(error, words):
            call(queries, keys, values, **arguments)


@on("mha-own-arrays")
def test_bad_inputs_are_refused_after_good_ones(backend, rng, path):
    """A plan made before lets no bad call pass that looks alike: 1 is a key as True is."""
    call, inputs = PATHS[path](backend), draw_by_name(rng)
    good = {"valid_lens": np.array([3, 2]), "mask": np.ones((Q, K), bool), "score_bias": np.zeros((Q, K), "float32")}
    good |= {"causal": True, "offset": 1, "head_gates": np.ones(H, "float32"), "training": True, "return_weights": True}
    call(**inputs)
    for name, value in good.items():
        call(**inputs, **{name: value})
    for name, change, error, words in BAD.values():
        with refuses(error, words):
            call(**inputs | {name: change(inputs.get(name))})


def test_the_page_says_how_many_bad_inputs_and_files_there_are():
    page = pages.text("docs/testing.md")
    assert len(PATHS) == 6
    assert f"**Bad inputs**: {len(BAD)} kinds, in six places, " in page
    assert f"also {len(malformed.CORPUS)} malformed files." in page


# The fixes that an error names are to be copied


@pytest.mark.parametrize("name", [*SHAPES, "cotangent"])
def test_the_two_fixes_of_a_wide_array_work_as_they_are_written(backend, rng, name):
    arguments = draw_by_name(rng) | {"cotangent": np.ones((B, Q, D), "float32")}
    wide = arguments | {name: arguments[name].astype("float64")}
    with pytest.raises(TypeError) as caught:
        make(backend).gradients(**wide)
    convert, option = re.fullmatch(
        rf"{name} has dtype float64, expected float32 as the layer; convert it, in NumPy with (.*), "
        r"or make the layer with (dtype=.*)",
        str(caught.value),
    ).groups()
    converted = eval(convert, {name: wide[name]})
    make(backend).gradients(**(arguments | {name: converted}))
    attention = eval(f"make(backend, {option})", {"make": make, "backend": backend})
    attention.gradients(**{other: X.astype("float64") for other, X in arguments.items()})


# Arrays of other kinds and places

NOT_DENSE = pytest.mark.needs("arrays of its own")


@NOT_DENSE
@pytest.mark.needs("sparse arrays")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor, torch.quantize_per_channel")
@on("mha-own-arrays", "gradients", "layer", "d2l")
@pytest.mark.parametrize("name", [pytest.param("queries", marks=pytest.mark.long("jax")), "keys"])
def test_arrays_that_are_not_dense_or_lie_elsewhere_are_refused(backend, rng, path, name):
    arguments = {name: own(backend, X) for name, X in draw_by_name(rng).items()}
    others = list(adapters.of(backend).not_dense(arguments[name]))
    assert len(others) >= 2
    call = PATHS[path](backend)
    call(*arguments.values())  # what is remembered of this call does not let others in
    for other in others:
        with pytest.raises((TypeError, ValueError), match=rf"^{name} (is|has) .*, expected "):
            call(*(arguments | {name: other}).values())


@NOT_DENSE
def test_numpy_arrays_beside_the_frameworks_own_are_refused(backend, rng):
    arguments = {name: own(backend, X) for name, X in draw_by_name(rng).items()}
    with pytest.raises(TypeError, match=r"^(queries|keys|values) is .*, expected "):
        make(backend)(*(arguments | {"keys": draw_by_name(rng)["keys"]}).values())


@pytest.mark.all_backends
@on("mha", "layer")
def test_arrays_of_another_framework_are_refused(backend, rng, path):
    call, arguments = PATHS[path](backend), draw_by_name(rng)
    for other in dispatch.FRAMEWORKS.keys() - {"numpy", backend}:
        for name, X in arguments.items():
            with pytest.raises(TypeError, match=r"^(queries|keys|values) is .*, expected "):
                call(*(arguments | {name: own(other, X)}).values())


# Lists


def test_a_list_of_numbers_that_the_dtype_cannot_hold_is_refused(backend, rng):
    arguments = {name: X.tolist() for name, X in draw_by_name(rng).items()}
    arguments["keys"][0][0][0] = -1e60
    with pytest.raises(ValueError, match=r"keys holds -1e.60, expected numbers that float32 can hold"):
        make(backend)(*arguments.values())
    arguments["keys"][0][0][0] = float("inf")
    assert not np.isfinite(make(backend)(*arguments.values())[0]).all()
    arguments["keys"][0][0][0] = None
    with refuses(TypeError, "keys holds object values, expected numbers"):
        make(backend)(*arguments.values())


def test_lists_of_several_kinds(backend, rng):
    attention, (queries, keys, values) = make(backend), draw(rng)
    with refuses(TypeError, "valid_lens holds booleans beside other values, expected values of one kind"):
        attention(queries, keys, values, [True, 2])
    with refuses(TypeError, "valid_lens holds masked arrays, expected numbers"):
        attention(queries, keys, values, [np.ma.masked_array([1, 2, 3, 4, 5]), [1] * Q])
    with refuses(TypeError, "queries has dtype float64, expected float32 as the layer"):
        attention(list(queries.astype("float64")), keys, values)
    with refuses(TypeError, "keys has dtype bool, expected float32 as the layer"):
        attention(queries, (keys > 0).tolist(), values)
    everything = attention(queries, keys, values)
    for lengths in ([2**63, K], [np.int64(K), np.uint64(2**63)], [np.int32(K)] * B):
        assert np.array_equal(attention(queries, keys, values, lengths), everything)
    assert attention(queries, keys[:, :0], values[:, :0], mask=[[] for _ in range(Q)]).shape == (B, Q, D)


def test_lists_leave_the_filters_of_warnings_alone():
    before = list(warnings.filters)
    errors = []

    def call():
        for _ in range(200):
            try:
                mha.masked_softmax(np.ones((2, 3, 4), "float32"), [[1, 2], [3]])
            except ValueError as error:
                errors.append(error)

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 1600
    assert warnings.filters == before
